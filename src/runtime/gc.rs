//! GC: deletes the attachments of the cache that have ended (see `attachments::life`) by a DEL with the list of their ADD. Then
//! removes the rules, links and reservations of other owners that have ended, without a configuration.

mod collect;
mod ordered;
#[cfg(feature = "tool")]
mod reservations;

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;

use crate::attachments::life::Witness;
use crate::attachments::owner::Owner;
use crate::attachments::record::orphans;
use crate::attachments::record::{AllRecords, Hold, Maker, Record, Unreadable};
use crate::cni::request::Verb;
use crate::cni::version::Version;
use crate::error::{Error, Result};
use crate::kernel::flock::Mode;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, NetworkName};
use crate::netlink::nft::Nft;
use crate::netlink::rtnl::Rtnl;
use crate::rules::compat::rules as rules_of_reference;
use crate::rules::localnet;
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;
use crate::runtime::chain::Chain;
use crate::runtime::conf::Network;
use crate::runtime::confirm::{self, Candidate, Confirmation};
use crate::runtime::host_objects;
use crate::runtime::lifecycle::Choice;
use crate::runtime::lock::{self, Lock};

/// Options of GC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// List the objects that a GC would remove, and remove nothing.
    pub is_dry_run: bool,
    /// Call GC of the plugins, which also removes attachments that are not in the cache. This breaks attachments of runtimes
    /// that have their own cache, and an ADD of another runtime in progress.
    pub uncached: bool,
    /// Remove an object only if an earlier run with this option has found it, too.
    pub confirm: bool,
}

/// An attachment that was removed, or would be in a dry run.
#[derive(Debug, Serialize)]
pub struct Removed {
    pub network: NetworkName,
    #[serde(flatten)]
    pub at: Attachment,
    /// The reason for the removal.
    pub reason: String,
}

impl Removed {
    /// The text line for the removal.
    pub fn line(&self, is_dry_run: bool) -> String {
        let Self { network, at: Attachment { container_id, ifname }, reason } = self;
        let [would, done] = REMOVE;
        let verb = if is_dry_run { would } else { done };
        format!("{verb} {ifname} of container {container_id} from network {network}: {reason}")
    }
}

/// A removed object that is not an attachment: a reservation, the rules and links of an owner, or a namespace.
#[derive(Debug, Serialize)]
pub struct Remainder {
    /// The object as text.
    pub what: String,
    pub reason: String,
}

/// An object that a later run may remove.
#[derive(Debug, Serialize)]
pub struct Waiting {
    pub what: String,
    pub reason: String,
    /// The time until a run may remove the object.
    pub seconds: u64,
}

/// The result of a GC. This is also the output of `cnibox gc --json`.
#[derive(Debug, Default, Serialize)]
pub struct Collected {
    pub removed: Vec<Removed>,
    pub remains: Vec<Remainder>,
    /// The objects that a later run may remove. `None` without `--confirm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Vec<Waiting>>,
    #[serde(skip)]
    pub errors: Vec<Error>,
}

/// What a GC has left.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// The networks of the attachments in the cache, and that of the GC.
    networks: Vec<NetworkName>,
    /// The addresses of the attachments that stay.
    addresses: BTreeSet<(NetworkName, IpAddr)>,
    /// The owners of rules and links. `None` if they cannot be read.
    owners: Option<HashSet<String>>,
    /// The networks and containers of reservations. `None` if they cannot be read.
    holders: Option<BTreeSet<(NetworkName, ContainerId)>>,
}

/// A GC in progress.
pub(super) struct GcRun<'a> {
    pub(super) options: Options,
    /// The network of the GC; `None`: all networks.
    choice: Option<&'a Choice>,
    /// The objects that `gc --confirm` found, in earlier runs and in this one. `None` without `--confirm`.
    confirmation: Option<Confirmation>,
    pub(super) collected: Collected,
    /// Called with a line for each object immediately, because the process can be killed before its end.
    print_line: &'a mut dyn FnMut(&str),
}

impl GcRun<'_> {
    /// Whether the GC is for this network.
    pub(super) fn is_of(&self, network: &NetworkName) -> bool {
        self.choice.is_none_or(|choice| choice.name() == network)
    }

    /// The configuration that the caller names for the network of the GC.
    fn chosen(&self) -> Option<&Network> {
        match self.choice {
            Some(Choice::Configuration(network)) => Some(network),
            Some(Choice::Named(_)) | None => None,
        }
    }

    /// Whether this run may remove an object. If not, adds it to `waiting`.
    pub(super) fn is_confirmed(&mut self, found: impl FnOnce() -> Candidate) -> bool {
        let Some(confirmation) = &mut self.confirmation else { return true };
        let found = found();
        let (what, reason) = (found.object.clone(), found.proof.clone());
        let seconds = confirmation.seconds_until_confirmed(found);
        if seconds == 0 {
            return true;
        }
        (self.print_line)(&format!("{what} waits for a run in {seconds} s or later: {reason}"));
        self.collected.waiting.get_or_insert_default().push(Waiting { what, reason, seconds });
        false
    }

    /// Whether this run may remove a record. Prints no line.
    fn is_confirmed_record(&mut self, record: &Record) -> bool {
        let Some(confirmation) = &mut self.confirmation else { return true };
        let object = format!("the record of {}", record.at.title(&record.network));
        let generation = record.generation.clone();
        let network = &record.network;
        let found = Candidate::new(network, object.clone(), generation, "its namespace has ended");
        let is_confirmed = confirmation.seconds_until_confirmed(found) == 0;
        if is_confirmed {
            confirmation.remove(&object);
        }
        is_confirmed
    }

    /// Prints the line of a removed object.
    fn note(&mut self, object: &str, line: &str) {
        if let Some(confirmation) = &mut self.confirmation {
            confirmation.remove(object);
        }
        (self.print_line)(line);
    }

    fn note_failure(&mut self, what: &str, error: Error) {
        self.collected.errors.push(error.context(format!("cannot delete {what}")));
    }

    pub(super) fn note_attachment(&mut self, removed: Removed) {
        let object = removed.at.title(&removed.network);
        self.note(&object, &removed.line(self.options.is_dry_run));
        self.collected.removed.push(removed);
    }

    pub(super) fn note_remainder(&mut self, verbs: [&str; 2], what: String, reason: String) {
        let [would, done] = verbs;
        let verb = if self.options.is_dry_run { would } else { done };
        self.note(&what, &format!("{verb} {what}: {reason}"));
        self.collected.remains.push(Remainder { what, reason });
    }
}

pub(super) const REMOVE: [&str; 2] = ["would remove", "removed"];

/// The reason for the removal of a namespace and of the attachments in it.
pub(super) const PROCESS_DIED: &str = "its process died";

impl Runtime {
    /// GC of one network, or of all networks in the cache. Calls `print_line` for each object that is removed or waits.
    pub fn gc(
        &self,
        choice: Option<&Choice>,
        options: Options,
        print_line: &mut dyn FnMut(&str),
    ) -> Result<Collected> {
        let confirmation = options.confirm.then(|| Confirmation::open(self.confirmation()));
        let waiting = options.confirm.then(Vec::new);
        if options.is_dry_run {
            self.records.all()?.unreadable.iter().for_each(Unreadable::warn);
        }
        let collected = Collected { waiting, ..Collected::default() };
        let mut run = GcRun { options, choice, confirmation, collected, print_line };
        sys::catch_interrupts();
        let witness = Witness::new()?;
        if !options.confirm && !options.is_dry_run {
            // The steps below report the error of a directory that cannot be read.
            let all = self.records.all().unwrap_or_default();
            witness.settle(all.records.iter());
        }
        let dead = self.dead_namespaces(&witness);
        // The removal of a namespace ends the attachments in it. With `--confirm`, the namespaces stay until these attachments
        // are removed: a namespace of a killed process is the proof that its attachments may be removed.
        if !options.is_dry_run && !options.confirm {
            self.remove_dead_namespaces(&witness);
        }
        let removed = self.remove_abandoned_namespaces(&witness, &mut run);
        run.collected.errors.extend(removed.err());
        let left = self.remove_ended(&witness, &dead, &mut run)?;
        if options.uncached && !options.is_dry_run {
            for name in &left.networks {
                run.collected.errors.extend(self.gc_by_plugins(name, run.chosen()).err());
            }
        }
        self.remove_rest(&witness, left, &mut run)?;
        let GcRun { confirmation, mut collected, .. } = run;
        if let (Some(confirmation), false) = (confirmation, options.is_dry_run) {
            let written = confirmation.write(choice.map(|choice| &**choice.name()));
            collected.errors.extend(written.err());
        }
        Ok(collected)
    }

    /// Only the driver of netavark records a starter.
    #[cfg(not(feature = "netavark"))]
    fn remove_abandoned_namespaces(&self, _: &Witness, _: &mut GcRun<'_>) -> Result<()> {
        Ok(())
    }

    /// The part of a GC for what belongs to no attachment: reservations, namespaces, files, and last the records. The record of an owner
    /// is the proof for its rules and for its reservations. As in a DEL, an address is released after the rules for it are removed.
    fn remove_rest(&self, witness: &Witness, left: Left, run: &mut GcRun<'_>) -> Result<()> {
        #[cfg(feature = "tool")]
        let left = self.release_ended(witness, left, run);
        // The runtime alone releases no reservations, so it needs no proofs for them.
        #[cfg(not(feature = "tool"))]
        let left = Left { holders: Some(BTreeSet::new()), ..left };
        if !run.options.is_dry_run {
            run.collected.errors.extend(refresh_localnet().err());
        }
        if sys::is_interrupted() {
            return Err(Error::internal("cannot collect garbage: interrupted"));
        }
        if run.options.confirm {
            self.remove_confirmed_namespaces(witness, run);
        }
        if !run.options.is_dry_run {
            self.sweep(witness, &left, run)?;
        }
        Ok(())
    }

    /// The path of the file of `gc --confirm`.
    fn confirmation(&self) -> PathBuf {
        self.state.join("confirm")
    }

    /// Whether another runtime, which may never call GC, made an attachment of the cache.
    pub fn is_of_another_runtime(&self, entry: &CacheEntry) -> Result<bool> {
        let record = self.records.read(&entry.network, &entry.at)?;
        Ok(record.is_none_or(|record| record.maker != Maker::Cnibox))
    }

    /// The seconds since the last `gc --confirm` in this boot.
    pub fn seconds_since_confirmed_gc(&self) -> Result<Option<u64>> {
        confirm::seconds_since_last_run(&self.confirmation())
    }

    /// Removes the temporary files and lock files of killed processes, and the records of ended attachments that have nothing left. A
    /// failed removal has no effect on later calls.
    fn sweep(&self, witness: &Witness, left: &Left, run: &mut GcRun<'_>) -> Result<()> {
        lock::sweep(&self.locks);
        let AllRecords { records, unreadable } = self.sweep_files()?;
        unreadable.iter().for_each(Unreadable::warn);
        // Release 0.1.0 wrote its records into the first two of these directories, 0.2.0 its operations into the last one.
        for directory in ["namespaces", "pending", "operations"] {
            let _ = fs::remove_dir_all(self.state.join(directory));
        }
        for record in records {
            let (network, at) = (&record.network, &record.at);
            if run.is_of(network)
                && !self.has_entry(network, at)
                && witness.life_of_record(&record).is_ended()
                && !left.needs(&record)
                && run.is_confirmed_record(&record)
                && let Some(_locks) = self.lock_if_free(network, &at.container_id)?
                && !self.has_entry(network, at)
                // An ADD of another runtime may have replaced the record since, or be in progress.
                && let Ok(Hold::Held(held)) = self.records.hold_for_removal(network, at)
                && held.record.generation == record.generation
            {
                let _ = self.records.discard(&record);
            }
        }
        orphans::sweep(host_objects::on_host)
    }

    /// Calls GC of the plugins of a network: they remove all objects that belong to no attachment in the cache. Locks the
    /// network exclusively, so no ADD runs meanwhile.
    fn gc_by_plugins(&self, name: &NetworkName, chosen: Option<&Network>) -> Result<()> {
        let _lock = Lock::network(&self.locks, name, Mode::Exclusive)?;
        let (mut keep, mut of_add) = (Vec::new(), None);
        let found = self.cache.all()?;
        // The attachment of an unreadable entry may live, and would not be in the keep set.
        if let Some(file) = found.damaged.into_iter().next() {
            return Err(file.error.context(format!("cannot call GC of network {name}")));
        }
        for entry in found.entries {
            if entry.network == *name {
                of_add = of_add.or_else(|| entry.network_of_add().ok());
                keep.push(entry.at);
            }
        }
        let network = match chosen.cloned().or(of_add) {
            Some(network) => network,
            None => self.configured_network(name)?,
        };
        if network.disable_gc || network.version < Version::V1_1_0 {
            return Ok(());
        }
        Chain::without_parameters(&self.settings, &network, Verb::Gc(keep)).gc()
    }
}

impl Left {
    /// Whether a record is still needed as the proof that the owner of a rule, a link or a reservation has ended.
    fn needs(&self, Record { network, at, .. }: &Record) -> bool {
        let holder = (network.clone(), at.container_id.clone());
        let owner = Owner::new(network, at).to_string();
        self.owners.as_ref().is_none_or(|owners| owners.contains(&owner))
            || self.holders.as_ref().is_none_or(|holders| holders.contains(&holder))
    }
}

/// Updates the set of `rules::localnet`. GC does this itself, because it calls no plugin if nothing is to be removed.
fn refresh_localnet() -> Result<()> {
    let Some(nft) = Nft::open_if_supported()? else { return Ok(()) };
    let host = Rtnl::open()?;
    nft.transact(|nft, batch| localnet::refresh(nft, &host, batch))
}

/// Whether rules of the Go plugins name an attachment. Only a DEL of the attachment or the operator removes such rules.
fn has_rules_of_reference(network: &NetworkName, at: &Attachment) -> Result<bool> {
    match Nft::open_if_supported()? {
        Some(nft) => rules_of_reference::have_attachment(&nft, network, at),
        None => Ok(false),
    }
}
