//! Repairs of a node by itself: the gc of the timer, and `reconcile` after changes by other programs.

use super::calls::cnibox;
use super::{Effect, Play};
use crate::model::{Attachment, Holds, fails};
use crate::node::Call;
use crate::step::{By, Fault, Step};

/// As if the last run of the timer was 700 s earlier.
const LATER: &str = r#"file=/run/cnibox/confirm; test ! -f $file ||
    perl -pi -e 's/"(run|since)":(-?\d+)/"\"$1\":" . ($2 - 700)/ge' $file"#;

/// Starts a watcher and prints its process id. Another program deletes the table every 300 ms, and ends.
const STORM: &str = r#""$0" reconcile --watch >/run/storm.log 2>&1 & echo $!
    for number in $(seq 10); do sleep 0.3; nft delete table ip cnibox 2>/dev/null || true; done"#;
/// Succeeds if nothing is missing now.
const IS_WHOLE: &str = r#"sleep 1; ! "$0" reconcile --dry-run 2>&1 | grep '^would restore' >&2"#;
/// The limit for the watcher, in seconds at least.
const WHOLE_TRIES: usize = 90;

impl Play {
    /// One run may remove nothing, because two have to agree. No run may take anything from the living.
    pub(super) fn confirm(&mut self, step: &Step) -> Holds<Effect> {
        if step.number.is_multiple_of(2) {
            self.node.must(&Call::shell(LATER));
        }
        let outcome = self.cnibox_call(&["gc", "--confirm"], &step.fault)?;
        self.tool_form(&outcome)?;
        Ok(Effect::none())
    }

    /// All that lives must have the same after the step: `reconcile` restores what another program has removed. The rules of
    /// the Go plugins are not ours to restore.
    pub(super) fn reconcile(&mut self, step: &Step) -> Holds<Effect> {
        let is_calm = !self.model.is_disturbed && step.fault == Fault::None;
        if is_calm && self.all_can_be_restored() {
            if step.number.is_multiple_of(2) {
                self.node.must(&Call::shell("nft flush ruleset"));
            }
            // Without a gateway it is the forwarding of the host, which `reconcile` does not restore.
            if step.number % 4 > 1 && self.living().any(is_gateway) {
                self.node.must(&Call::shell("sysctl -qw net.ipv4.ip_forward=0"));
            }
        }
        let outcome = self.cnibox_call(&["reconcile"], &step.fault)?;
        self.tool_form(&outcome)?;
        // It says what it cannot restore: rules for an interface that another program has deleted, or that it does not find.
        let can_fail = |of: &Attachment| of.is_perturbed || self.model.is_left(of.space);
        if is_calm && !self.living().any(can_fail) && outcome.status != 0 {
            return fails("a reconcile without a fault succeeds", outcome.report());
        }
        Ok(Effect::none())
    }

    /// What a watcher left during the deletions is back when they have ended. All that lives must have the same after the step.
    pub(super) fn storm(&mut self) -> Holds<Effect> {
        if self.model.is_disturbed || !self.all_can_be_restored() {
            return Ok(Effect::none());
        }
        let script = |script| cnibox(&[]).under(&["sh", "-c", script]);
        let watcher = self.node.must(&script(STORM));
        let is_whole = (0..WHOLE_TRIES).any(|_| self.node.run(&script(IS_WHOLE)).status == 0);
        let end = format!("kill {}; cat /run/storm.log", watcher.trim());
        let log = self.node.must(&Call::shell(&end));
        if is_whole {
            Ok(Effect::none())
        } else {
            fails("the watcher restores all when it is quiet", log)
        }
    }

    /// The rules of the Go plugins, and those of an interface that nothing finds, are not restored.
    fn all_can_be_restored(&self) -> bool {
        let can_be =
            |of: &Attachment| of.by != By::Go && !of.is_perturbed && !self.model.is_left(of.space);
        self.living().all(can_be)
    }

    fn living(&self) -> impl Iterator<Item = &Attachment> {
        self.model.attachments.values().filter(|attachment| self.model.lives(attachment))
    }
}

/// Whether the ADD switched forwarding of IPv4 on.
fn is_gateway(attachment: &Attachment) -> bool {
    attachment.config["plugins"][0]["isGateway"] == true
        && attachment.addresses.iter().any(|address| !address.contains(':'))
}
