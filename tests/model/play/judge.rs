//! Safety: what must hold after each step.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, Play};
use crate::look::{Seen, names};
use crate::model::{Attachment, Holds, Key, State, bare, fails, is_reservation_of_another};
use crate::node::Outcome;
use crate::step::{Action, By, Fault, Step};

impl Play {
    /// Looks at the node. The living attachments have what they had, except those that the step was about.
    pub(super) fn judge(&mut self, effect: &Effect) -> Holds {
        self.seen = self.look();
        self.model.prune(&self.seen);
        let mut lost = Vec::new();
        let keys: Vec<Key> = self.model.attachments.keys().cloned().collect();
        for key in keys {
            let attachment = &self.model.attachments[&key];
            let facts = self.model.facts(&key, attachment, &self.seen);
            let must_stay = self.is_up(&key)
                && !effect.shakes
                && !effect.touched.contains(&key)
                && !self.is_moving(attachment);
            if must_stay {
                let missing = attachment.facts.difference(&facts);
                // An operator who removes a reservation gives the address away, with its rules.
                let may_lose = |line: &&String| {
                    self.is_given_away(line, effect) || self.is_without_interface(&key, line)
                };
                let missing = missing.filter(|line| !attachment.is_perturbed || !may_lose(line));
                lost.extend(missing.map(|line| format!("{}: {line}", key.owner())));
            }
            if let Some(attachment) = self.model.attachments.get_mut(&key) {
                attachment.facts = facts;
            }
        }
        if !lost.is_empty() {
            return fails("nothing living loses anything", lost.join("\n"));
        }
        self.hidden_ones_are_whole()?;
        self.leases_are_kept()?;
        self.entries_are_whole()?;
        self.no_address_twice()
    }

    /// Whether the address of an attachment may change while the daemon of `dhcp` follows the server.
    pub(super) fn is_moving(&self, attachment: &Attachment) -> bool {
        let is_moving = self.model.dhcp.as_ref().is_some_and(|dhcp| dhcp.is_moving);
        attachment.has_dhcp() && (is_moving || attachment.is_perturbed)
    }

    /// Whether a line is about an address that an attachment of the step has or had.
    fn is_given_away(&self, line: &str, effect: &Effect) -> bool {
        let used = effect.touched.iter().filter_map(|key| self.model.used.get(key));
        used.flatten().any(|address| names(line, bare(address)))
    }

    /// Whether a line is about the container, in which another program has removed the interface.
    fn is_without_interface(&self, key: &Key, line: &str) -> bool {
        let space = &self.model.spaces[self.model.attachments[key].space];
        let space = self.seen.spaces.get(&space.path);
        line.starts_with("container ") && !space.is_some_and(|space| space.has_link(&key.interface))
    }

    /// An entry of the cache is a whole document, also after a killed call.
    fn entries_are_whole(&self) -> Holds {
        for (path, content) in &self.seen.files {
            let is_of_others = self.model.is_disturbed || self.model.damaged.contains(path);
            // A file with a dot in front is not finished, and no runtime reads it.
            let is_entry = path.contains("/results/") && !path.contains("/.");
            let document = serde_json::from_str::<serde_json::Value>(content);
            if is_entry && !is_of_others && document.is_err() {
                return fails("a cache entry is whole", format!("{path}: {content}"));
            }
        }
        Ok(())
    }

    fn no_address_twice(&self) -> Holds {
        let mut owners: BTreeMap<&str, &Key> = BTreeMap::new();
        for (key, attachment) in &self.model.attachments {
            // An operator who removes a reservation gives the address away.
            if !self.is_up(key) || attachment.by == By::Go || attachment.is_perturbed {
                continue;
            }
            for address in &attachment.addresses {
                if let Some(other) = owners.insert(address, key) {
                    let text = format!("{address} of {} and {}", other.owner(), key.owner());
                    return fails("no address is given twice", text);
                }
            }
        }
        Ok(())
    }

    /// After an ADD everything that its result promises is there.
    pub(super) fn is_made(&mut self, key: &Key) -> Holds {
        let attachment = &self.model.attachments[key];
        let rule = "an ADD makes what its result says";
        let fails =
            |what: &str| fails(rule, format!("{}: {what}: {}", key.owner(), attachment.result));
        let path = &self.model.spaces[attachment.space].path;
        let Some(space) = self.seen.spaces.get(path) else { return fails("no namespace") };
        if !space.has_link(&key.interface) {
            return fails("no interface");
        }
        for address in &attachment.addresses {
            if !space.has_address(address) {
                return fails(&format!("{address} is not in the container"));
            }
            let is_of_host_local = attachment.config["plugins"][0]["ipam"]["type"] == "host-local";
            let file = format!("/var/lib/cni/networks/{}/{}", key.network, bare(address));
            let owner = self
                .seen
                .files
                .get(&file)
                .map(|content| content.split_whitespace().collect::<Vec<_>>());
            if is_of_host_local && owner != Some(vec![&key.id, &key.interface]) {
                return fails(&format!("{address} is not reserved: {owner:?}"));
            }
            let is_in_rules = |table: &str| {
                self.seen.nft.iter().any(|line| line.contains(table) && names(line, bare(address)))
            };
            // The Go plugin writes a rule for each address into the table of iptables.
            let is_accepted = is_in_rules(" firewall-addresses") || is_in_rules(" filter ");
            if attachment.has_plugin("firewall") && !is_accepted {
                return fails(&format!("the firewall does not accept {address}"));
            }
            let publishes = attachment.capabilities["portMappings"].is_array();
            if publishes && !is_in_rules(" portmap-published") {
                return fails(&format!("no port of {address} is published"));
            }
        }
        if !self.seen.files.contains_key(&key.cache()) {
            return fails("no cache entry");
        }
        let interfaces = attachment.result["interfaces"].as_array();
        for interface in interfaces.into_iter().flatten() {
            let name = interface["name"].as_str().unwrap_or_default();
            let is_there = match interface["sandbox"].as_str().unwrap_or_default() {
                "" => self.seen.host.has_link(name),
                _ => space.has_link(name),
            };
            if !is_there {
                return fails(&format!("no interface {name}"));
            }
        }
        Ok(())
    }

    /// Nothing on the host names an attachment that was deleted.
    pub(super) fn is_gone(&self, key: &Key, known: Option<&Attachment>, after: &str) -> Holds {
        let mut addresses = self.model.used.get(key).cloned().unwrap_or_default();
        // Earlier addresses of the same key can be others' by now.
        if let Some(known) = known.filter(|attachment| !attachment.addresses.is_empty()) {
            addresses = known.addresses.iter().cloned().collect();
        }
        let mut left = self.model.host_lines(key, &addresses, &self.seen);
        // The records of cnibox outlive a DEL by others.
        if known.is_some_and(|attachment| attachment.by != By::Runtime) {
            left.retain(|line| !line.contains("/run/cnibox/"));
        }
        left.retain(|line| !self.model.is_of_go(line));
        // Another program removed the reservation, and another attachment got the address.
        left.retain(|line| !is_reservation_of_another(key, line));
        let unsound = |address: &String| self.seen.host.has_address(address);
        left.retain(|line| {
            !addresses
                .iter()
                .filter(|address| unsound(address))
                .any(|address| names(line, bare(address)))
        });
        let space = known
            .and_then(|known| self.model.spaces.get(known.space))
            .filter(|space| space.is_alive);
        let space = space.and_then(|space| self.seen.spaces.get(&space.path));
        if let (Some(space), Some(known)) = (space, known)
            && !known.is_perturbed
            && !self.may_leave_interface(key, known)
            && space.has_link(&key.interface)
        {
            left.push(format!("the interface {} in the container", key.interface));
        }
        if left.is_empty() {
            Ok(())
        } else {
            let record = self.seen.files.get(&key.record()).map_or("no record", String::as_str);
            let text = format!("{after} of {} leaves:\n{}\n{record}", key.owner(), left.join("\n"));
            fails("nothing is left of a deleted attachment", text)
        }
    }

    /// A failed ADD takes back all but the records of the runtime, because their removal can have failed. `before`: what
    /// was there already, such as the reservation of an attachment that the operator has removed from the cache.
    pub(super) fn has_left_nothing(
        &self,
        key: &Key,
        before: &BTreeSet<String>,
        report: &str,
    ) -> Holds {
        let left = self.lines_of(key);
        let left: Vec<&str> = left.difference(before).map(String::as_str).collect();
        if left.is_empty() {
            return Ok(());
        }
        fails(
            "a failed ADD leaves nothing",
            format!("{}: {report}\n{}", key.owner(), left.join("\n")),
        )
    }

    /// The lines about an attachment on the host, without the records of the runtime.
    pub(super) fn lines_of(&self, key: &Key) -> BTreeSet<String> {
        let mut lines = self.model.host_lines(key, &BTreeSet::new(), &self.seen);
        lines.retain(|line| !line.contains("/run/cnibox/") && !line.contains("/results/"));
        lines.into_iter().collect()
    }

    /// After a gc that succeeded, nothing is left of the attachments that are provably dead.
    pub(super) fn learn_gc(&mut self, outcome: &Outcome, step: &Step) -> Holds<Effect> {
        if step.fault != Fault::None || step.action != Action::Gc {
            return Ok(Effect::none());
        }
        if outcome.status != 0 {
            let is_calm = !self.model.is_disturbed;
            return if is_calm {
                fails("a gc without a fault succeeds", outcome.report())
            } else {
                Ok(Effect::none())
            };
        }
        let before = std::mem::take(&mut self.seen);
        self.seen = self.look();
        for (key, attachment) in self.model.attachments.clone() {
            let is_cached =
                before.files.contains_key(&key.cache()) && !self.model.forgotten.contains(&key);
            // Neither does a record without a number prove the end, nor in the node's PID namespace a path below /proc, nor a file
            // that is no namespace any more: the namespace can live on without its name.
            let has_proof = match before.files.get(&key.record()) {
                Some(record) => has_own_number(record),
                None if self.model.damaged.contains(&key.record()) => false,
                None => !attachment.path.starts_with("/proc/") && !self.is_file(&attachment.path),
            };
            let is_dead = has_proof && self.is_provably_dead(&attachment);
            if !is_cached || attachment.is_perturbed || !is_dead {
                continue;
            }
            self.is_gone(&key, Some(&attachment), "a gc")?;
            self.model.attachments.remove(&key);
        }
        self.marks_are_gone(&before)?;
        Ok(Effect::none())
    }

    fn is_file(&mut self, path: &str) -> bool {
        self.node.shell(&format!("test -e {path}")).status == 0
    }

    /// A gc goes by what is there: with a record that tells the end of the container, nothing has its mark, whatever the cache
    /// and the list say.
    fn marks_are_gone(&self, before: &Seen) -> Holds {
        for key in self.model.used.keys() {
            let record = before.files.get(&key.record());
            let is_proof = record.is_some_and(|record| has_own_number(record))
                && !self.model.damaged.contains(&key.record());
            let known = self.model.attachments.get(key);
            // An entry of the Go plugins is about a later attachment than the record.
            let may_live = known.is_some_and(|known| self.model.lives(known) || known.by == By::Go);
            // The Go plugins have deleted it, and its container may live: the record is of a living namespace.
            let is_kept = self.model.forgotten.contains(key)
                && self.model.containers.values().any(|container| container.id == key.id);
            let mut left = key.marked(&self.seen);
            // The interface was moved to the host, where it lives on.
            if may_live || is_kept || left.iter().any(|line| line.contains(" kind veth ")) {
                continue;
            }
            left.retain(|_| is_proof);
            if !left.is_empty() {
                let text = format!("{}:\n{}", key.owner(), left.join("\n"));
                return fails("gc goes by what is there", text);
            }
        }
        Ok(())
    }

    /// No namespace is at its path, or it is known that another one is.
    fn is_provably_dead(&self, attachment: &Attachment) -> bool {
        if self.model.lives(attachment) || attachment.by == By::Go {
            return false;
        }
        let has_another =
            self.model.spaces.iter().any(|space| space.is_alive && space.path == attachment.path);
        !has_another && attachment.state == State::Up
    }
}

/// Whether the number in a record is of ours, and its boot is known. The kernel gives another number again, and a number of an
/// unknown boot proves nothing: an ADD with few descriptors may not be able to read the boot id.
pub(super) fn has_own_number(record: &str) -> bool {
    let has_boot = |identity: &str| !identity.starts_with(' ');
    kept(record)["identity"].as_str().is_some_and(has_boot)
        && number_in(record).is_some_and(|number| number >= 1 << 30)
}

/// The number of the namespace in a record.
pub(super) fn number_in(record: &str) -> Option<i64> {
    kept(record)["number"].as_i64()
}

fn kept(record: &str) -> serde_json::Value {
    let line = record.lines().next().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_default()
}
