//! Restores objects of living attachments on the host, such as rules and routes, that other programs removed.
//!
//! Only attachments that are alive by `attachments::life` and have a cache entry are restored, with the request in that entry.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::net::IpAddr;

use serde::Serialize;

use crate::attachments::life::{Life, Witness};
use crate::attachments::record::Hold;
use crate::cni::json::Json;
use crate::cni::request::Verb;
use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::names::{Attachment, NetworkName};
use crate::netlink::conntrack::Conntrack;
use crate::plugin::parts::{Parts, object_of};
use crate::runtime::Runtime;
use crate::runtime::attachments;
use crate::runtime::cache::CacheEntry;
use crate::runtime::chain::Chain;

/// What is done with an attachment while there is an operation of its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Waits for the end of the operation.
    Wait,
    /// Skips the attachment. Also skips one without a record: the DEL of a chained plugin removes the record before that of the
    /// main plugin, if only the chained plugin is of this executable.
    Skip,
}

/// Makes the parts of a plugin of an attachment.
pub type NewParts<'a> = dyn Fn(&NetworkName, &Attachment, &str) -> Parts + 'a;

/// An object of the host that was missing or different.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// The attachment and its plugin. `None` if attachments share the object.
    pub owner: Option<(String, String)>,
    /// The name of a shared object, else the difference from the ADD.
    pub name: String,
}

/// An object that reconcile tried to restore.
#[derive(Clone, Debug)]
pub struct Tried {
    pub object: Object,
    pub plugin: String,
}

/// A part of an attachment that was missing or different.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub network: NetworkName,
    #[serde(flatten)]
    pub at: Attachment,
    pub plugin: String,
    /// The difference from the ADD, as CHECK describes it.
    pub difference: String,
    /// The same without the names of the kernel's objects.
    #[serde(skip)]
    pub title: String,
}

/// An attachment, or a plugin of one, that was not restored.
#[derive(Debug, Serialize)]
pub struct Skipped {
    pub network: NetworkName,
    #[serde(flatten)]
    pub at: Attachment,
    /// The skipped plugin. `None` if the whole attachment is skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    pub reason: String,
}

/// An attachment with a part that could not be restored.
#[derive(Debug)]
pub struct Failed {
    pub network: NetworkName,
    pub at: Attachment,
    pub error: Error,
}

/// The result of a reconcile. This is also the output of `cnibox reconcile --json`.
#[derive(Debug, Default, Serialize)]
pub struct Reconciled {
    pub restored: Vec<Difference>,
    /// What differs in containers, if it was only listed. It can be an error: an interface is gone.
    #[serde(rename = "leftInside")]
    pub left_inside: Vec<Difference>,
    pub skipped: Vec<Skipped>,
    #[serde(skip)]
    pub failed: Vec<Failed>,
    /// The objects of the parts in `restored`, and of the parts that could not be restored.
    #[serde(skip)]
    pub tried: Vec<Tried>,
    /// The objects that `Parts::leaving` left.
    #[serde(skip)]
    pub left: Vec<Object>,
    /// Errors of no attachment: an entry of the cache that cannot be read, connections that cannot be deleted.
    #[serde(skip)]
    pub errors: Vec<Error>,
    /// Whether an attachment was skipped because of an operation in progress.
    #[serde(skip)]
    pub is_partial: bool,
    /// The addresses of which the masquerading was missing.
    #[serde(skip)]
    pub(super) masqueraded: BTreeSet<IpAddr>,
}

impl Runtime {
    /// Restores the attachments in the cache that are chosen. `new` makes the parts of each plugin.
    pub fn reconcile(
        &self,
        busy: Busy,
        new: &NewParts<'_>,
        is_chosen: impl Fn(&NetworkName, &Attachment) -> bool,
    ) -> Result<Reconciled> {
        let found = self.cache.all()?;
        sys::catch_interrupts();
        let errors = found.damaged.into_iter().map(|file| file.error).collect();
        let mut reconciled = Reconciled { errors, ..Reconciled::default() };
        let witness = Witness::new()?;
        for entry in found.entries {
            if !is_chosen(&entry.network, &entry.at) {
                continue;
            }
            if let Some(reason) = self.obstacle(&witness, &entry, busy) {
                reconciled.skip(&entry, None, reason);
            } else if let Err(error) =
                self.reconcile_one(&witness, &entry, (busy, new), &mut reconciled)
            {
                reconciled.fail(&entry, error);
            }
            if sys::is_interrupted() {
                break;
            }
        }
        if !reconciled.masqueraded.is_empty() {
            let deleted = Conntrack::open().map_err(Error::from);
            let deleted =
                deleted.and_then(|flows| flows.delete_unanswered(&reconciled.masqueraded));
            reconciled.errors.extend(deleted.err());
        }
        if sys::is_interrupted() {
            return Err(Error::internal("cannot restore the other attachments: interrupted"));
        }
        Ok(reconciled)
    }

    /// Restores one attachment. Other operations of its container wait meanwhile.
    fn reconcile_one(
        &self,
        witness: &Witness,
        listed: &CacheEntry,
        (busy, new): (Busy, &NewParts<'_>),
        reconciled: &mut Reconciled,
    ) -> Result<()> {
        let container_id = &listed.at.container_id;
        let locks = match busy {
            Busy::Skip => self.lock_if_free(&listed.network, container_id)?,
            Busy::Wait => Some(self.lock(&listed.network, container_id)?),
        };
        let Some(_locks) = locks else {
            reconciled.skip_busy(listed);
            return Ok(());
        };
        // Read the entry again: it may have changed before the lock.
        let Some(entry) = self.cache.read(&listed.network, &listed.at)? else { return Ok(()) };
        if let Some(reason) = self.obstacle(witness, &entry, busy) {
            reconciled.skip(&entry, None, reason);
            return Ok(());
        }
        // The plugins of another runtime do not take the locks of this one.
        let held = match self.records.hold(&entry.network, &entry.at)? {
            Hold::Held(held) => Some(held),
            Hold::Missing if busy == Busy::Wait => None,
            Hold::Missing => {
                reconciled.skip(&entry, None, "it has no record: its DEL may have begun".into());
                return Ok(());
            }
            Hold::Busy(_) => {
                reconciled.skip_busy(&entry);
                return Ok(());
            }
        };
        let record = held.as_ref().map(|held| &held.record);
        if let Some(record) = record
            && self.interrupted(record)?.is_some()
        {
            reconciled.skip(&entry, None, "its ADD or DEL died".into());
            return Ok(());
        }
        if record.is_some_and(|record| record.is_deleting) {
            reconciled.skip(&entry, None, "its DEL has begun".into());
            return Ok(());
        }
        // The record of an earlier ADD says nothing about the namespace and the plugins of the present one.
        let record = record.filter(|record| attachments::is_record_of(record, &entry, &self.cache));
        let network = match entry.network_of_add() {
            Ok(network) => network,
            Err(error) => {
                reconciled.skip(&entry, None, error.to_string());
                return Ok(());
            }
        };
        // The requests of ADD, because CNI versions before 0.4.0 have no CHECK. The requests of a CHECK are the same.
        let verb = Verb::Add(entry.at.clone());
        let chain = Chain { record, ..self.chain(&entry, &network, &entry.netns, verb) };
        let new = |plugin: &str| new(&entry.network, &entry.at, plugin);
        for (plugin, parts) in chain.reconcile(&entry.at, &entry.result, &new) {
            reconciled.add(&entry, &plugin, parts);
        }
        Ok(())
    }

    /// Whether an attachment is still the listed one and alive, and no ADD, DEL or GC of it is in progress. Waits for none.
    pub fn is_at_rest(&self, listed: &CacheEntry) -> Result<bool> {
        let (network, at) = (&listed.network, &listed.at);
        let Some(_locks) = self.lock_if_free(network, &at.container_id)? else { return Ok(false) };
        // The DEL of a plugin removes the record, and then another runtime its cache entry.
        let Hold::Held(held) = self.records.hold(network, at)? else { return Ok(false) };
        Ok(!held.record.is_deleting
            && self.cache.read(network, at)?.as_ref() == Some(listed)
            && self.judge(&Ok(Some(held.record)), &Witness::new()?, listed).0 == Life::Alive)
    }

    /// The reason not to restore an attachment, or `None`.
    fn obstacle(&self, witness: &Witness, entry: &CacheEntry, busy: Busy) -> Option<String> {
        let life = match busy {
            Busy::Wait => self.life(witness, entry),
            // Without writing a record: see `Busy::Skip`.
            Busy::Skip => {
                let found = self.records.read(&entry.network, &entry.at);
                self.judge(&found, witness, entry).0
            }
        };
        match life {
            Life::Ended(reason) => Some(format!("it has ended: {reason}")),
            Life::Unknown(reason) => Some(format!("it may have ended: {reason}")),
            Life::Alive if entry.result == Json::Null => {
                Some("its entry in the cache has no result".into())
            }
            Life::Alive => None,
        }
    }
}

impl Reconciled {
    /// Adds the parts of a plugin.
    fn add(&mut self, entry: &CacheEntry, plugin: &str, parts: Parts) {
        let object = |difference: &Error| Object::of(entry, plugin, difference);
        let tried = parts.restored.iter().chain(&parts.failed).map(object);
        self.tried.extend(tried.map(|object| Tried { object, plugin: plugin.to_owned() }));
        self.left.extend(parts.left.iter().map(object));
        self.masqueraded.extend(parts.masqueraded);
        let difference = |error: Error| Difference {
            network: entry.network.clone(),
            at: entry.at.clone(),
            plugin: plugin.to_owned(),
            difference: error.to_string(),
            // The details of an error are its reason.
            title: if error.is_difference { error.msg.clone() } else { error.to_string() },
        };
        self.restored.extend(parts.restored.into_iter().map(difference));
        self.left_inside.extend(parts.left_inside.into_iter().map(difference));
        for reason in parts.skipped {
            self.skip(entry, Some(plugin.to_owned()), reason);
        }
        for error in parts.errors {
            self.fail(entry, error);
        }
    }

    fn skip(&mut self, entry: &CacheEntry, plugin: Option<String>, reason: String) {
        let (network, at) = (entry.network.clone(), entry.at.clone());
        self.skipped.push(Skipped { network, at, plugin, reason });
    }

    fn skip_busy(&mut self, entry: &CacheEntry) {
        self.is_partial = true;
        self.skip(entry, None, "its ADD or DEL is in progress".into());
    }

    fn fail(&mut self, entry: &CacheEntry, error: Error) {
        let (network, at) = (entry.network.clone(), entry.at.clone());
        let error = error.context(format!("cannot restore {}", entry.title()));
        self.failed.push(Failed { network, at, error });
    }

    /// One line for each reason why something is not restored. The line about a plugin is the same for all attachments of a
    /// network, and is listed once.
    pub fn reasons(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for Skipped { network, at, plugin, reason } in &self.skipped {
            let line = match plugin {
                Some(_) => format!("left in network {network}: {reason}"),
                None => format!("left {}: {reason}", at.title(network)),
            };
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }
}

impl Object {
    fn of(entry: &CacheEntry, plugin: &str, difference: &Error) -> Self {
        let is_shared = difference.shared.is_some();
        let owner = (!is_shared).then(|| (entry.at.title(&entry.network), plugin.to_owned()));
        Self { owner, name: object_of(difference) }
    }
}

impl Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((attachment, plugin)) = &self.owner {
            write!(f, "{attachment}: {plugin}: ")?;
        }
        f.write_str(&self.name)
    }
}

impl Difference {
    /// The line about the part: `restored eth0 of container c1 in network net: PLUGIN: DIFFERENCE`.
    pub fn line(&self, verb: &str) -> String {
        let Self { network, at, plugin, difference, .. } = self;
        format!("{verb} {}: {plugin}: {difference}", at.title(network))
    }
}
