//! Removes attachments that have ended, see `evidence`, and those of an interrupted operation.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::Serialize;

use crate::cni::json::Json;
use crate::cni::version::Version;
use crate::error::{Code, Error, Result};
use crate::kernel::flock::Mode;
use crate::kernel::sys::{self, warn};
use crate::names::{Attachment, NetworkName};
use crate::plugin::identity::Record;
use crate::runtime::Runtime;
use crate::runtime::cache::{self, CacheEntry};
use crate::runtime::chain::{Chain, Parameters};
use crate::runtime::conf::Network;
#[cfg(feature = "tool")]
use crate::runtime::confirm;
use crate::runtime::confirm::{Confirmation, Found};
use crate::runtime::evidence::{Evidence, Life};
use crate::runtime::lifecycle::{Choice, netns_of};
use crate::runtime::lock::{self, Lock};

/// Options of GC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// List what is to be removed, and remove nothing.
    pub is_dry_run: bool,
    /// Let the plugins remove attachments that are not in the cache, too. Attachments of runtimes with a cache of their own, and
    /// an ADD of another runtime in progress, are lost.
    pub uncached: bool,
    /// Remove only what an earlier run of this kind has found, too.
    pub confirm: bool,
    /// Also remove the reservations, rules and links of owners that have ended, which no cache has.
    #[cfg(feature = "tool")]
    pub remains: bool,
}

/// One attachment that was removed.
#[derive(Debug, Serialize)]
pub struct Removed {
    pub network: NetworkName,
    #[serde(flatten)]
    pub at: Attachment,
    /// Why it was removed.
    pub reason: String,
}

impl Removed {
    /// The line that tells of it.
    pub fn line(&self, is_dry_run: bool) -> String {
        let Self { network, at: Attachment { container_id, ifname }, reason } = self;
        let [would, done] = REMOVE;
        let verb = if is_dry_run { would } else { done };
        format!("{verb} {ifname} of container {container_id} from network {network}: {reason}")
    }
}

/// A reservation, the rules and links of an owner, or a namespace.
#[derive(Debug, Serialize)]
pub struct Remainder {
    /// In words.
    pub what: String,
    pub reason: String,
}

/// An object that a later run may remove.
#[derive(Debug, Serialize)]
pub struct Waiting {
    pub what: String,
    pub reason: String,
    /// The time until then.
    pub seconds: u64,
}

/// The result of a GC.
#[derive(Debug, Default)]
pub struct Collected {
    pub removed: Vec<Removed>,
    pub remains: Vec<Remainder>,
    pub waiting: Vec<Waiting>,
    pub errors: Vec<Error>,
}

/// A GC in progress.
pub(super) struct Collection<'a> {
    pub(super) options: Options,
    /// `None`: no earlier run has to agree.
    confirmation: Option<Confirmation>,
    pub(super) collected: Collected,
    /// Gets a line for each object at once: the process can be killed before its end.
    tell: &'a mut dyn FnMut(&str),
}

impl Collection<'_> {
    /// Whether an object is to be removed now. Else it waits for a later run.
    pub(super) fn is_confirmed(&mut self, found: Found) -> bool {
        let Some(confirmation) = &mut self.confirmation else { return true };
        let (what, reason) = (found.object.clone(), found.proof.clone());
        let seconds = confirmation.wait(found);
        if seconds == 0 {
            return true;
        }
        (self.tell)(&format!("{what} waits for a run in {seconds} s or later: {reason}"));
        self.collected.waiting.push(Waiting { what, reason, seconds });
        false
    }

    /// The same for a record. No line tells of records.
    fn is_confirmed_record(&mut self, record: &Record) -> bool {
        let Some(confirmation) = &mut self.confirmation else { return true };
        let object = format!("the record of {}", cache::title(&record.network, &record.at));
        let found = Found::new("", object, record.identity.text(), "its namespace has ended");
        let is_confirmed = confirmation.wait(found) == 0;
        if is_confirmed {
            confirmation.forget_last();
        }
        is_confirmed
    }

    /// The object that `is_confirmed` got last is removed, or would be.
    fn note(&mut self, line: &str) {
        if let Some(confirmation) = &mut self.confirmation {
            confirmation.forget_last();
        }
        (self.tell)(line);
    }

    fn note_attachment(&mut self, removed: Removed) {
        self.note(&removed.line(self.options.is_dry_run));
        self.collected.removed.push(removed);
    }

    pub(super) fn note_remainder(&mut self, verbs: [&str; 2], what: String, reason: String) {
        let [would, done] = verbs;
        let verb = if self.options.is_dry_run { would } else { done };
        self.note(&format!("{verb} {what}: {reason}"));
        self.collected.remains.push(Remainder { what, reason });
    }
}

pub(super) const REMOVE: [&str; 2] = ["would remove", "removed"];

/// The reason to remove a namespace, and what was attached in it.
pub(super) const PROCESS_DIED: &str = "its process died";

impl Runtime {
    /// GC of one network, or of all that the cache knows. `tell` gets a line for each object that is removed, or waits.
    pub fn gc(
        &self,
        choice: Option<&Choice>,
        options: Options,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Collected> {
        let confirmation = options.confirm.then(|| Confirmation::open(self.confirmation()));
        let collected = Collected::default();
        let mut run = Collection { options, confirmation, collected, tell };
        let chosen = match choice {
            Some(Choice::Configuration(network)) => Some(network),
            _ => None,
        };
        let names = match choice {
            Some(choice) => vec![choice.name().clone()],
            None => self.known_networks()?,
        };
        sys::catch_interrupts();
        let evidence = self.evidence()?;
        let dead = self.dead_namespaces(&evidence);
        // Their attachments have ended then. With a confirmation, they have to keep their proof until they are removed.
        if !options.is_dry_run && !options.confirm {
            self.remove_dead_namespaces(&evidence);
        }
        if let (Err(reason), false) = (evidence.view(), names.is_empty()) {
            warn(format_args!("warning: cannot tell which attachments have ended: {reason}"));
        }
        for name in names {
            if let Err(error) = self.gc_of(&evidence, &dead, &name, chosen, &mut run) {
                run.collected.errors.push(error);
            }
            if sys::is_interrupted() {
                return Err(Error::internal("cannot collect garbage: interrupted"));
            }
        }
        self.gc_of_all(choice, &mut run)?;
        let Collection { confirmation, mut collected, .. } = run;
        if let (Some(confirmation), false) = (confirmation, options.is_dry_run) {
            let written = confirmation.write(choice.map(|choice| &**choice.name()));
            collected.errors.extend(written.err());
        }
        Ok(collected)
    }

    /// The part of a GC that is about no attachment in the cache.
    fn gc_of_all(&self, choice: Option<&Choice>, run: &mut Collection<'_>) -> Result<()> {
        #[cfg(feature = "tool")]
        if run.options.remains
            && let Err(error) = self.remove_remains(choice.map(Choice::name), run)
        {
            run.collected.errors.push(error);
        }
        #[cfg(not(feature = "tool"))]
        let _ = choice;
        if sys::is_interrupted() {
            return Err(Error::internal("cannot collect garbage: interrupted"));
        }
        if run.options.confirm {
            self.remove_confirmed_namespaces(&self.evidence()?, run);
        }
        if !run.options.is_dry_run {
            // An ADD since the begin of this run has made a namespace that the evidence of then does not have.
            self.sweep(&self.evidence()?, run);
        }
        Ok(())
    }

    /// The file of `gc --confirm`.
    fn confirmation(&self) -> PathBuf {
        self.state.join("confirm")
    }

    /// Whether a runtime that may never call GC made an attachment of the cache.
    #[cfg(feature = "tool")]
    pub fn is_of_another_runtime(&self, entry: &CacheEntry) -> bool {
        !self.records.read(&entry.network, &entry.at).is_some_and(|record| record.is_of_cnibox)
    }

    /// The seconds since the last `gc --confirm` in this boot.
    #[cfg(feature = "tool")]
    pub fn seconds_since_confirmed_gc(&self) -> Option<u64> {
        confirm::seconds_since_last_run(&self.confirmation())
    }

    /// Removes an attachment that may live, by the word of the operator. Refuses one that is alive.
    pub fn remove_unknown(
        &self,
        network: &NetworkName,
        at: &Attachment,
        is_dry_run: bool,
    ) -> Result<Removed> {
        let _locks = self.lock(network, &at.container_id)?;
        let cannot = || format!("cannot remove {}", cache::title(network, at));
        let Some(entry) = self.known(network, at) else {
            let msg = format!("{}: it is not attached", cannot());
            return Err(Error::new(Code::UNKNOWN_CONTAINER, msg));
        };
        let evidence = self.evidence()?;
        let reason = match evidence.life(&entry) {
            Life::Alive => return Err(Error::internal(format!("{}: it is alive", cannot()))),
            Life::Gone(reason) => reason,
            Life::Unknown(reason) => format!("by the word of the operator, although {reason}"),
        };
        if !is_dry_run {
            self.delete_of_add(&evidence, &entry, None)?;
        }
        Ok(Removed { network: network.clone(), at: at.clone(), reason })
    }

    /// Removes the temporary files and locks of killed processes, and the records of attachments that no cache has. A file
    /// that cannot be removed does no harm.
    fn sweep(&self, evidence: &Evidence<'_>, run: &mut Collection<'_>) {
        lock::sweep(&self.locks);
        self.sweep_files();
        // 0.1.0 had its records there, until the next boot.
        for directory in ["namespaces", "pending"] {
            let _ = fs::remove_dir_all(self.state.join(directory));
        }
        // They are listed before `evidence` reads the namespaces.
        for record in self.records.all() {
            let is_cached = self.known(&record.network, &record.at).is_some();
            if !is_cached && evidence.has_ended(&record) && run.is_confirmed_record(&record) {
                let _ = self.records.remove(&record.network, &record.at);
            }
        }
    }

    /// In the order of their names.
    fn known_networks(&self) -> Result<Vec<NetworkName>> {
        let mut names: Vec<NetworkName> = Vec::new();
        for cache in [&self.cache, &self.pending] {
            let found = cache.all()?;
            for error in &found.damaged {
                warn(format_args!("{error}"));
            }
            for CacheEntry { network, .. } in found.entries {
                let place = names.iter().position(|name| *name >= network).unwrap_or(names.len());
                if names.get(place) != Some(&network) {
                    names.insert(place, network);
                }
            }
        }
        Ok(names)
    }

    fn gc_of(
        &self,
        evidence: &Evidence<'_>,
        dead: &[PathBuf],
        name: &NetworkName,
        chosen: Option<&Network>,
        run: &mut Collection<'_>,
    ) -> Result<()> {
        let (mut entries, pending) = (self.cache.all()?.entries, self.pending.all()?.entries);
        entries.extend(pending);
        entries.retain(|entry| entry.network == *name);
        let mut done: Vec<&Attachment> = Vec::new();
        for entry in &entries {
            if sys::is_interrupted() {
                return Ok(());
            }
            let is_done = done.contains(&&entry.at);
            done.push(&entry.at);
            // Most attachments live, and need no lock.
            if is_done
                || (self.removal(evidence, dead, entry).is_none() && !self.has_operation(entry))
            {
                continue;
            }
            if let Err(error) = self.collect(entry, chosen, run) {
                let context = format!("cannot delete {}", entry.title());
                run.collected.errors.push(error.context(context));
            }
        }
        if run.options.uncached && !run.options.is_dry_run {
            self.gc_by_plugins(name, chosen)?;
        }
        Ok(())
    }

    /// Deletes an attachment if it is still to be removed. Only its own container has to wait meanwhile.
    fn collect(
        &self,
        entry: &CacheEntry,
        chosen: Option<&Network>,
        run: &mut Collection<'_>,
    ) -> Result<()> {
        let _locks = self.lock(&entry.network, &entry.at.container_id)?;
        let Some(entry) = self.known(&entry.network, &entry.at) else { return Ok(()) };
        // It may have changed before the lock.
        let evidence = self.evidence()?;
        let dead = self.dead_namespaces(&evidence);
        let is_disabled = entry.network_of_add().is_ok_and(|network| network.disable_gc);
        let Some(reason) = self.removal(&evidence, &dead, &entry) else {
            if !run.options.is_dry_run && evidence.life(&entry) == Life::Alive {
                // A later ADD has made the interrupted operation void.
                self.pending.remove(&entry.network, &entry.at)?;
            }
            return Ok(());
        };
        if is_disabled {
            return Ok(());
        }
        let incarnation = self.incarnation(&entry);
        if !run.is_confirmed(Found::new(&entry.network, entry.title(), incarnation, &reason)) {
            return Ok(());
        }
        if !run.options.is_dry_run {
            self.delete_of_add(&evidence, &entry, chosen)?;
        }
        run.note_attachment(Removed { network: entry.network, at: entry.at, reason });
        Ok(())
    }

    /// Tells an attachment from a later one of the same name: by the identity of its namespace, if a plugin recorded that, and by
    /// its files.
    fn incarnation(&self, entry: &CacheEntry) -> String {
        let (network, at) = (&entry.network, &entry.at);
        let mut text = self.identity_text(network, at);
        for path in [self.cache.path(network, at), self.pending.path(network, at)] {
            let file = fs::metadata(path);
            let file = file
                .map(|file| format!("{} {}.{:09}", file.ino(), file.mtime(), file.mtime_nsec()));
            text.push('|');
            text.push_str(&file.unwrap_or_default());
        }
        text
    }

    /// The recorded identity of the namespace. Empty without a record.
    pub(super) fn identity_text(&self, network: &NetworkName, at: &Attachment) -> String {
        let record = self.records.read(network, at);
        record.map_or_else(String::new, |record| record.identity.text())
    }

    /// Why an attachment is to be removed, if it is. Without the lock of its container, its operation may be in progress.
    /// `dead`: the namespaces of killed processes.
    fn removal(
        &self,
        evidence: &Evidence<'_>,
        dead: &[PathBuf],
        entry: &CacheEntry,
    ) -> Option<String> {
        // From another network namespace a DEL does not see that the interface is of another network.
        let has_view = evidence.view().is_ok();
        if has_view && self.interrupted(&entry.network, &entry.at).is_some() {
            return Some("its ADD or DEL died".into());
        }
        if dead.contains(&entry.netns) {
            return Some(PROCESS_DIED.into());
        }
        match evidence.life(entry) {
            Life::Gone(reason) => Some(reason),
            Life::Alive | Life::Unknown(_) => None,
        }
    }

    fn has_operation(&self, entry: &CacheEntry) -> bool {
        self.pending.path(&entry.network, &entry.at).exists()
    }

    /// Deletes an attachment with the configuration of its ADD; else with the given one, or that of the directory.
    fn delete_of_add(
        &self,
        evidence: &Evidence<'_>,
        entry: &CacheEntry,
        chosen: Option<&Network>,
    ) -> Result<()> {
        let network = match (entry.network_of_add(), chosen) {
            (Ok(network), _) => network,
            (Err(_), Some(chosen)) => chosen.clone(),
            (Err(error), None) => {
                warn(format_args!("{error}"));
                self.configured(&entry.network)?
            }
        };
        self.delete(entry, &network, &netns_of(evidence, entry))
    }

    fn configured(&self, name: &NetworkName) -> Result<Network> {
        let warn = &mut |error: &Error| warn(format_args!("{error}"));
        Network::find(name, &self.configurations, warn)
    }

    /// The plugins remove what belongs to no attachment in the cache. No ADD of this network may run meanwhile.
    fn gc_by_plugins(&self, name: &NetworkName, chosen: Option<&Network>) -> Result<()> {
        let _lock = Lock::network(&self.locks, name, Mode::Exclusive)?;
        let (mut keep, mut of_add) = (Vec::new(), None);
        for entry in self.cache.all()?.entries {
            if entry.network == *name {
                of_add = of_add.or_else(|| entry.network_of_add().ok());
                keep.push(entry.at);
            }
        }
        let network = match chosen.cloned().or(of_add) {
            Some(network) => network,
            None => self.configured(name)?,
        };
        if network.disable_gc || network.version < Version::V1_1_0 {
            return Ok(());
        }
        let parameters = Parameters {
            at: None,
            netns: std::path::Path::new(""),
            args: "",
            capability_args: &Json::Null,
        };
        Chain { settings: &self.settings, network: &network, parameters }.gc(&keep)
    }
}
