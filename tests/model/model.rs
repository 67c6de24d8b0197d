//! The model: the containers that live, and the attachments that must be there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::look::{Seen, names};
use crate::play::Dhcp;
use crate::step::By;

/// A rule that does not hold, and how that shows.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The same rule fails while a history shrinks.
    pub rule: &'static str,
    pub text: String,
}

pub type Holds<T = ()> = Result<T, Failure>;

pub fn fails<T>(rule: &'static str, text: impl Into<String>) -> Holds<T> {
    Err(Failure { rule, text: text.into() })
}

/// Network, container id and interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub network: String,
    pub id: String,
    pub interface: String,
}

impl Key {
    /// The name of the owner in links and rules of nftables.
    pub fn owner(&self) -> String {
        format!("{} {} {}", self.network, self.id, self.interface)
    }

    /// The name of the files of the runtime.
    pub fn file(&self) -> String {
        format!("{}-{}-{}", self.network, self.id, self.interface)
    }

    pub fn cache(&self) -> String {
        format!("/var/lib/cni/results/{}", self.file())
    }

    pub fn record(&self) -> String {
        format!("/var/lib/cni/attachments/{}+{}+{}", self.network, self.id, self.interface)
    }

    /// What has our mark: the rules and links of the host that name the owner.
    pub fn marked(&self, seen: &Seen) -> Vec<String> {
        let owner = self.owner();
        let mut lines: Vec<String> = seen.host_lines().into_iter().collect();
        lines.retain(|line| {
            let has_mark = line.starts_with("nft ") || line.contains(" alias 'cnibox ");
            has_mark && names(line, &owner)
        });
        lines
    }
}

#[derive(Clone, Debug)]
pub struct Container {
    pub id: String,
    /// CNI_NETNS.
    pub path: String,
    /// The number of its namespace.
    pub space: usize,
    pub pid: Option<u64>,
    /// `cnibox run` holds it, in this process.
    pub runner: Option<u64>,
}

/// A network namespace, by the number in the model.
#[derive(Clone, Debug, Default)]
pub struct Space {
    pub path: String,
    pub is_alive: bool,
    /// Other processes than the container's that end with it.
    pub pids: Vec<u64>,
    /// The path of its containers does not lead to it.
    pub is_left: bool,
    /// A process in another namespace uses it.
    pub is_nested: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// An ADD succeeded, and no DEL was tried.
    Up,
    /// An ADD or a DEL failed, or was killed: each part may be there or not.
    Unsure,
}

#[derive(Clone, Debug)]
pub struct Attachment {
    pub state: State,
    pub by: By,
    pub space: usize,
    pub path: String,
    /// The list at the time of ADD, and the capability arguments.
    pub config: Value,
    pub capabilities: Value,
    pub result: Value,
    pub addresses: Vec<String>,
    /// The container or another program has changed something of it.
    pub is_perturbed: bool,
    /// The lines about it, after the last step.
    pub facts: BTreeSet<String>,
}

impl Attachment {
    pub fn has_plugin(&self, kind: &str) -> bool {
        plugins(&self.config).iter().any(|plugin| plugin["type"] == kind)
    }
}

pub fn plugins(config: &Value) -> Vec<Value> {
    config["plugins"].as_array().cloned().unwrap_or_default()
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    /// By the number in the steps.
    pub containers: BTreeMap<usize, Container>,
    pub spaces: Vec<Space>,
    /// The paths of namespaces that no runtime has attached, with an own interface of each name.
    pub strangers: BTreeSet<String>,
    pub attachments: BTreeMap<Key, Attachment>,
    pub networks: BTreeMap<usize, Value>,
    /// All keys that an ADD was tried with, and their addresses.
    pub used: BTreeMap<Key, BTreeSet<String>>,
    /// Programs other than runtimes and containers have changed something.
    pub is_disturbed: bool,
    /// Files that have lost their content, and so perhaps their owner.
    pub damaged: BTreeSet<String>,
    /// Others have removed or damaged the cache entries of these attachments.
    pub forgotten: BTreeSet<Key>,
    /// The Go plugins have made something. They leave an ifb without an owner.
    pub has_go: bool,
    pub dhcp: Option<Dhcp>,
    pub boots: u32,
    pub pids: Vec<u64>,
}

impl Model {
    pub fn is_left(&self, space: usize) -> bool {
        self.spaces.get(space).is_some_and(|space| space.is_left)
    }

    pub fn lives(&self, attachment: &Attachment) -> bool {
        self.spaces.get(attachment.space).is_some_and(|space| space.is_alive)
    }

    /// The paths of the living namespaces, each once.
    pub fn paths(&self) -> Vec<String> {
        let alive = self.spaces.iter().filter(|space| space.is_alive);
        let mut paths: BTreeSet<String> = alive.map(|space| space.path.clone()).collect();
        paths.extend(self.strangers.iter().cloned());
        paths.into_iter().collect()
    }

    /// The lines of the host about an attachment: those that name it, its reservations, and those that name an address that
    /// no other attachment has.
    pub fn host_lines(&self, key: &Key, addresses: &BTreeSet<String>, seen: &Seen) -> Vec<String> {
        let own = |address: &&String| {
            !self
                .attachments
                .iter()
                .any(|(other, attachment)| other != key && attachment.addresses.contains(address))
        };
        let mut tokens: Vec<String> =
            addresses.iter().filter(own).map(|address| bare(address).to_owned()).collect();
        tokens.push(key.owner());
        tokens.push(key.file());
        let about = |line: &&String| {
            !is_of_no_attachment(line)
                && !self.is_damaged(line)
                && (is_reservation(key, line) || tokens.iter().any(|token| names(line, token)))
        };
        seen.host_lines().iter().filter(about).cloned().collect()
    }

    /// Rules of the Go plugins name no owner.
    pub fn is_of_go(&self, line: &str) -> bool {
        self.has_go && line.starts_with("nft ") && line.contains("CNI-")
    }

    /// A command of another program names the cache entries that it changes.
    pub fn forget(&mut self, command: &str) {
        let changed = self.used.keys().filter(|key| names(command, &key.cache()));
        self.forgotten.extend(changed.cloned().collect::<Vec<_>>());
    }

    /// The reservation of an unknown owner stays, until the operator removes it.
    pub fn is_damaged(&self, line: &str) -> bool {
        self.damaged.iter().any(|path| line.contains("/networks/") && line.contains(path.as_str()))
    }

    /// All lines about an attachment, in its namespace too.
    pub fn facts(&self, key: &Key, attachment: &Attachment, seen: &Seen) -> BTreeSet<String> {
        let addresses = attachment.addresses.iter().cloned().collect();
        let mut facts: BTreeSet<String> =
            self.host_lines(key, &addresses, seen).into_iter().collect();
        // A source of published ports names one of the containers behind it.
        facts.retain(|line| !line.contains("/run/cnibox/") && !line.contains(" portmap-sources-"));
        // The Go plugins make nothing in a table of cnibox: an earlier attachment of this name left it.
        facts.retain(|line| {
            attachment.by != By::Go || !line.starts_with("nft ") || !line.contains(" cnibox ")
        });
        let Some(space) = self.spaces.get(attachment.space).filter(|space| space.is_alive) else {
            return facts;
        };
        let device = &key.interface;
        let ends = [format!(" dev {device}"), format!("\"{device}\"")];
        for line in seen.spaces.get(&space.path).iter().flat_map(|space| &space.lines) {
            let is_own = line.starts_with(&format!("link {device} "))
                || ends.iter().any(|end| line.contains(end))
                || attachment.addresses.iter().any(|address| names(line, bare(address)));
            if is_own {
                facts.insert(format!("container {line}"));
            }
        }
        facts
    }

    /// Forgets what is dead or unsure and has left nothing.
    pub fn prune(&mut self, seen: &Seen) {
        let keys: Vec<Key> = self.attachments.keys().cloned().collect();
        for key in keys {
            let attachment = &self.attachments[&key];
            if attachment.state == State::Up && self.lives(attachment) {
                continue;
            }
            let addresses = attachment.addresses.iter().cloned().collect();
            if self.host_lines(&key, &addresses, seen).is_empty() {
                self.attachments.remove(&key);
            }
        }
    }
}

/// Whether a line is a reservation of an attachment, as host-local writes it. A killed ADD did not tell which address it has.
pub fn is_reservation(key: &Key, line: &str) -> bool {
    // An address, and not a file that a killed ADD has left aside.
    line.contains(&format!("/networks/{}/", key.network))
        && !line.contains("/.")
        && line.ends_with(&format!("'{} {}'", key.id, key.interface))
}

/// Whether a line is the reservation of an address by another attachment.
pub fn is_reservation_of_another(key: &Key, line: &str) -> bool {
    let is_file = line.contains(&format!("/networks/{}/", key.network)) && !line.contains("/.");
    is_file && line.ends_with('\'') && !line.ends_with("''") && !is_reservation(key, line)
}

/// The address without the length of its prefix.
pub fn bare(address: &str) -> &str {
    address.split('/').next().unwrap_or(address)
}

/// Files that name the last attachment, and locks.
fn is_of_no_attachment(line: &str) -> bool {
    line.contains("/last_reserved_ip.") || line.contains("/run/cnibox/locks/")
}
