//! Calls beside a call that takes longer, as they come from different runtimes.

use serde_json::json;

use super::calls::cnibox;
use super::{Effect, Play};
use crate::model::Holds;
use crate::node::{Call, LIMIT_MS, Outcome};
use crate::step::{Action, By, Fault, Step};

/// `gc` waits this long at the entry of each of these system calls.
const DELAYED: &str = "inject=rename,renameat,renameat2,unlink,unlinkat:delay_enter=200000";
const TRACED: &str = "trace=rename,renameat,renameat2,unlink,unlinkat";
/// Where the call writes its output, with `.out` and so on.
const FILE: &str = "/mnt/io/beside";

impl Play {
    /// A container is replaced, and its runtime deletes and adds the attachment while a gc removes what has ended.
    pub(super) fn beside(&mut self, step: &Step) -> Holds<Effect> {
        let container = self.model.containers.get(&step.container);
        let is_replaced = container
            .is_some_and(|container| container.pid.is_none() && container.runner.is_none());
        if !is_replaced || !matches!(step.by, By::Libcni | By::Runtime) {
            return Ok(Effect::none());
        }
        let replace = Step { action: Action::Replace, ..step.clone() };
        self.end_container(&replace)?;
        let trace = ["strace", "-f", "-qq", "-o", "/mnt/trace-gc", "-e", TRACED, "-e", DELAYED];
        self.begin(&cnibox(&["gc"]).under(&trace));
        self.node.shell(&format!("sleep 0.{}", step.number % 10));
        self.is_beside = true;
        let add = Step { action: Action::Add, fault: Fault::None, ..step.clone() };
        let effect = self.add(&add);
        self.is_beside = false;
        let outcome = self.finish();
        self.note(&outcome)?;
        self.tool_form(&outcome)?;
        self.seen = self.look();
        match self.key(step) {
            Some(key) if self.is_up(&key) => self.is_made(&key)?,
            _ => {}
        }
        effect
    }

    /// Starts a call. `finish` waits for its end.
    pub(super) fn begin(&mut self, call: &Call) {
        let script = format!(
            "\"$@\" < {FILE}.in > {FILE}.out 2> {FILE}.err; echo $? > {FILE}.new; mv {FILE}.new {FILE}.status"
        );
        self.node.must(
            &Call::shell(&format!("rm -f {FILE}.*; cat > {FILE}.in")).stdin(call.stdin.clone()),
        );
        let mut argv = ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
        argv.extend(call.argv.iter().cloned());
        let answer = self.node.ask(&json!({"do": "start", "argv": argv, "env": call.env}));
        assert!(answer["pid"].is_u64(), "{answer}");
        self.begun = call.describe();
    }

    pub(super) fn finish(&mut self) -> Outcome {
        let wait = format!(
            "i=0; until [ -e {FILE}.status ]; do sleep 0.02; i=$((i+1)); [ $i -lt {} ] || exit 1; done; cat {FILE}.status",
            LIMIT_MS / 20
        );
        let status = self.node.shell(&wait);
        let [stdout, stderr] =
            ["out", "err"].map(|kind| self.node.must(&Call::shell(&format!("cat {FILE}.{kind}"))));
        let code: i64 = status.stdout.trim().parse().unwrap_or_default();
        Outcome {
            status: if code > 128 { 128 - code } else { code },
            stdout,
            stderr,
            is_late: status.status != 0,
            what: std::mem::take(&mut self.begun),
        }
    }
}
