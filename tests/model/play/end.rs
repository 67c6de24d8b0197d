//! Liveness: faults stop, all containers end, and a bounded number of calls brings the node to empty.

use std::collections::BTreeSet;

use super::Play;
use super::calls::cnibox;
use crate::look::names;
use crate::model::{Holds, Key, bare, fails, is_reservation};
use crate::step::{Action, By, Fault, Step};

/// Whether a record is damaged.
fn is_unreadable(record: &str) -> bool {
    let first = record.lines().next().unwrap_or_default();
    let document: serde_json::Value = serde_json::from_str(first).unwrap_or_default();
    document["maker"].is_null()
}

/// Whether a line of `cnibox attachments` is about an attachment.
fn shows(shown: &str, key: &Key) -> bool {
    let words = [&*key.network, &*key.id, &*key.interface];
    shown.lines().any(|line| line.split_whitespace().take(words.len()).eq(words))
}

impl Play {
    pub(super) fn end(&mut self) -> Holds {
        self.settle()?;
        self.say("# the end: all containers end".into());
        let containers: Vec<usize> = self.model.containers.keys().copied().collect();
        for container in containers {
            self.end_container(&Step { container, ..Step::new(Action::End) })?;
        }
        self.node.shell(
            "find /var/lib/cni /run/cnibox /run/cni -name litter -exec rm -rf {} +; find /var/lib/cni /run/cnibox /run/cni -type p -delete;
             find /var/lib/cni/results /var/lib/cni/networks/n* /var/lib/cni/attachments /var/lib/cni/flannel -mindepth 1 -type d -empty -delete",
        );
        for path in std::mem::take(&mut self.model.damaged) {
            if path.contains("/networks/") {
                self.node.shell(&format!("rm -rf {path}"));
            }
        }
        self.seen = self.look();
        self.model.prune(&self.seen);
        self.gc(&Step::new(Action::Gc))?;
        self.seen = self.look();
        self.model.prune(&self.seen);
        self.operator_deletes()?;
        self.doctor(&Step::new(Action::Doctor))?;
        self.gc(&Step::new(Action::Gc))?;
        self.seen = self.look();
        self.operator_releases()?;
        self.operator_removes_unknown()?;
        self.seen = self.look();
        self.is_empty()?;
        self.can_begin_again()
    }

    /// The operator deletes what is known to have been attached and is not seen to be gone.
    fn operator_deletes(&mut self) -> Holds {
        let keys: Vec<Key> = self.model.used.keys().cloned().collect();
        for key in keys {
            let addresses = self.model.used[&key].clone();
            let is_left = !self.model.host_lines(&key, &addresses, &self.seen).is_empty();
            let by =
                self.model.attachments.get(&key).map_or(By::Runtime, |attachment| attachment.by);
            if !is_left {
                self.model.attachments.remove(&key);
                continue;
            }
            self.say(format!("# the operator deletes {}", key.owner()));
            if by == By::Go {
                self.del_of(&key, By::Go, &Fault::None, 0)?;
            }
            self.del_of(&key, By::Runtime, &Fault::None, 1)?;
        }
        Ok(())
    }

    /// Without its cache entry, and with another configuration, an attachment leaves its address to the operator.
    fn operator_releases(&mut self) -> Holds {
        for key in self.model.forgotten.clone() {
            for address in self.model.used.get(&key).cloned().unwrap_or_default() {
                let address = bare(&address).to_owned();
                if self
                    .seen
                    .files
                    .contains_key(&format!("/var/lib/cni/networks/{}/{address}", key.network))
                {
                    let of = ["ipam", "release", "--force", "--network", &key.network, &address];
                    self.cnibox_call(&of, &Fault::None)?;
                }
            }
        }
        Ok(())
    }

    /// A DEL or GC of others can remove the record, and leave the cache of `cnibox`, or rules of a plugin that its list has lost:
    /// nothing proves their end. Nor does a record that cannot be read. Other records that prove nothing, and those of interrupted
    /// operations, are what `cnibox attachments` shows.
    fn operator_removes_unknown(&mut self) -> Holds {
        let shown = self.cnibox_call(&["attachments"], &Fault::None)?.stdout;
        let keys: Vec<Key> = self.model.used.keys().cloned().collect();
        for key in keys {
            let record = self.seen.files.get(&key.record());
            if !key.marked(&self.seen).is_empty()
                || self.seen.files.contains_key(&key.cache())
                || record.is_some_and(|record| is_unreadable(record))
                || shows(&shown, &key)
            {
                let name = format!("{}/{}/{}", key.network, key.id, key.interface);
                self.cnibox_call(&["gc", "--unknown", &name], &Fault::None)?;
            }
        }
        Ok(())
    }

    fn is_empty(&self) -> Holds {
        let mut tokens: BTreeSet<String> = BTreeSet::new();
        for (key, addresses) in &self.model.used {
            tokens.insert(key.owner());
            tokens.insert(key.file());
            tokens.extend(addresses.iter().map(|address| bare(address).to_owned()));
        }
        let known = |key: &&Key| !self.model.forgotten.contains(*key);
        let is_reserved = |line: &str| {
            let mut keys = self.model.used.keys().filter(known);
            !self.model.is_damaged(line) && keys.any(|key| is_reservation(key, line))
        };
        let mut left: Vec<String> = Vec::new();
        for line in self.seen.host_lines() {
            let is_kept = line.contains("/last_reserved_ip.") || line.contains("/locks/");
            let is_of_plugin = line.contains("alias 'cnibox n")
                || (line.contains(" kind ifb ") && !self.model.has_go)
                || line.contains("/results/")
                || line.contains("file /var/lib/cni/attachments/")
                || line.ends_with(".lease");
            if !is_kept
                && !self.model.is_of_go(&line)
                && (is_of_plugin
                    || is_reserved(&line)
                    || tokens.iter().any(|token| names(&line, token)))
            {
                left.push(line);
            }
        }
        let content = |line: &String| {
            let path = line.strip_prefix("file ")?.split_whitespace().next()?;
            self.seen.files.get(path).map(|content| format!("\n{path}: {content}"))
        };
        let contents: String = left.iter().filter_map(content).collect();
        match left.is_empty() {
            true => Ok(()),
            false => fails("the node becomes empty", left.join("\n") + &contents),
        }
    }

    /// On the empty node each network attaches a container, passes a CHECK, and deletes it.
    fn can_begin_again(&mut self) -> Holds {
        let networks: Vec<usize> = self.model.networks.keys().copied().collect();
        self.model.is_disturbed = false;
        for network in networks {
            let container = 9;
            self.make_container(&Step { container, ..Step::new(Action::Mounted) })?;
            let step = Step { network, container, ..Step::new(Action::Add) };
            self.add(&step)?;
            let Some(key) = self.key(&step).filter(|key| self.is_up(key)) else {
                let report = self.log.last().cloned().unwrap_or_default();
                return fails("an empty node attaches a container", report);
            };
            self.judge(&super::Effect::of(key))?;
            self.check(&step)?;
            self.steps += 10;
            self.traffic()?;
            self.del(&step)?;
            self.end_container(&step)?;
        }
        let outcome = self.node.run(&cnibox(&["gc"]));
        self.note(&outcome)
    }
}
