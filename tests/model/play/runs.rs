//! `cnibox run`, and `cnibox oci-hook`.

use serde_json::{Value, json};

use super::calls::{Made, cnibox, under};
use super::libcni::Listed;
use super::{Effect, Play};
use crate::model::{Container, Holds, Key, fails};
use crate::node::{CNIBOX, CONFIGURATIONS, Call, LIMIT_MS, PLUGINS, TOOLS};
use crate::step::{By, Step};

impl Play {
    /// Starts `cnibox run`, which is a container with one attachment until its command ends.
    pub(super) fn run_container(&mut self, step: &Step) -> Holds<Effect> {
        let list = self.model.networks.get(&step.network).cloned();
        let (Some(list), false) = (list, self.model.containers.contains_key(&step.container))
        else {
            return Ok(Effect::none());
        };
        let (name, network) = (format!("r{}", step.container), format!("n{}", step.network));
        self.node.shell("rm -f /mnt/up");
        let interface = format!("eth{}", step.interface);
        let answer = self.node.ask(&json!({
            "do": "start",
            "argv": [CNIBOX, "run", "--name", name, "-n", format!("{network}:{interface}"), "--", "sh", "-c",
                "echo > /mnt/up; exec sleep 100000"],
            "env": {"PATH": TOOLS, "NETCONFPATH": CONFIGURATIONS, "CNI_PATH": PLUGINS},
        }));
        let pid = answer["pid"].as_u64().unwrap_or_else(|| panic!("{answer}"));
        let wait = format!(
            "i=0; while [ ! -e /mnt/up ] && [ -d /proc/{pid} ] && ! grep -q 'State:.Z' /proc/{pid}/status; do
             i=$((i+1)); [ $i -lt {} ] || break; sleep 0.01; done; cat /mnt/io/start_err; [ -e /mnt/up ]",
            LIMIT_MS / 10
        );
        let outcome = self.node.shell(&wait);
        self.note(&outcome)?;
        if outcome.status != 0 {
            self.node.shell(&format!("kill -9 {pid}"));
            return Ok(Effect::none());
        }
        let before = std::mem::take(&mut self.seen);
        let path = format!("/run/netns/{name}");
        let space = self.new_space(&path);
        self.seen = self.look();
        let is_new = |path: &&String| {
            path.starts_with(&format!("/var/lib/cni/results/{network}-"))
                && self.seen.files.get(*path) != before.files.get(*path)
        };
        let new: Vec<&String> = self.seen.files.keys().filter(is_new).collect();
        let Some(entry) = new.first().and_then(|path| self.seen.files.get(*path)) else {
            return fails("run caches its attachment", outcome.report());
        };
        let entry: Value = serde_json::from_str(entry).unwrap_or_default();
        let id = entry["containerId"].as_str().unwrap_or_default().to_owned();
        let key = Key { network, id: id.clone(), interface };
        let container = Container { id, path, space, pid: None, runner: Some(pid) };
        self.model.containers.insert(step.container, container.clone());
        let made = Made { list, capabilities: Value::Null, by: By::Runtime, container };
        self.learn_add(key, &made, Listed::Done(entry["result"].clone()), false)
    }

    /// Ends `cnibox run`: with SIGTERM it detaches; SIGKILL is for gc.
    pub(super) fn end_runner(&mut self, pid: u64, step: &Step) {
        let signal = if step.number.is_multiple_of(2) { "TERM" } else { "KILL" };
        self.node.shell(&format!(
            "child=$(cat /proc/{pid}/task/{pid}/children); kill -s {signal} {pid}; i=0
             while [ -d /proc/{pid} ] && ! grep -q 'State:.Z' /proc/{pid}/status && [ $i -lt 500 ]; do sleep 0.01; i=$((i+1)); done
             kill -9 $child {pid} 2>/dev/null; true"
        ));
    }

    /// Ends `cnibox run` and its command. Its namespace stays.
    pub(super) fn kill_runner(&mut self, pid: u64) {
        self.node.shell(&format!(
            "child=$(cat /proc/{pid}/task/{pid}/children); kill -9 {pid} $child
             for pid in {pid} $child; do while [ -d /proc/$pid ] && ! grep -q 'State:.Z' /proc/$pid/status; do sleep 0.01; done; done"
        ));
    }

    /// The author of an image writes the annotation, so a path in it is refused.
    pub(super) fn hook_by_path(&mut self, step: &Step) -> Holds<Effect> {
        let container = self.model.containers.get(&step.container);
        let Some(pid) = container.and_then(|container| container.pid) else {
            return Ok(Effect::none());
        };
        let path = format!("{CONFIGURATIONS}/n{}.conflist:eth7", step.network);
        let state = json!({
            "ociVersion": "1.0.2", "id": "intruder", "status": "creating", "pid": pid, "bundle": "/",
            "annotations": {"cnibox.networks": path},
        });
        let outcome = self.node.run(&cnibox(&["oci-hook"]).stdin(state.to_string()));
        self.note(&outcome)?;
        self.tool_form(&outcome)?;
        if outcome.status == 0 {
            return fails("an annotation names no file", outcome.report());
        }
        Ok(Effect::none())
    }

    /// The hook of a container that is created. Only containers with a process have it.
    pub(super) fn hook_add(
        &mut self,
        step: &Step,
        list: &Value,
        key: &Key,
        container: &Container,
    ) -> Holds<Effect> {
        let Some(pid) = container.pid.filter(|_| !self.model.attachments.contains_key(key)) else {
            return Ok(Effect::none());
        };
        let mut state = json!({
            "ociVersion": "1.0.2", "id": key.id, "status": "creating", "pid": pid, "bundle": "/",
            "annotations": {"cnibox.networks": format!("{}:{}", key.network, key.interface)},
        });
        let capabilities = self.capabilities(list, step);
        if let Some(port) = capabilities["portMappings"][0]["hostPort"].as_u64() {
            state["annotations"]["cnibox.ports"] = format!("{port}:80").into();
        }
        self.model.used.entry(key.clone()).or_default();
        let call: Call = cnibox(&["oci-hook"]).stdin(state.to_string());
        let outcome = self.node.run(&under(call, &step.fault));
        self.note(&outcome)?;
        self.tool_form(&outcome)?;
        let listed = match outcome.status {
            0 => {
                let seen = self.look();
                let entry = seen.files.get(&key.cache()).cloned().unwrap_or_default();
                let entry: Value = serde_json::from_str(&entry).unwrap_or_default();
                Listed::Done(entry["result"].clone())
            }
            1 => Listed::FailedAsWhole(outcome.report()),
            _ => Listed::Killed,
        };
        let made = Made {
            list: list.clone(),
            capabilities,
            by: By::Runtime,
            container: container.clone(),
        };
        self.learn_add(key.clone(), &made, listed, false)
    }
}
