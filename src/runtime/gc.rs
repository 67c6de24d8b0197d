//! Removes attachments that have ended, see `evidence`, and those of an interrupted operation.

use std::fs;

use crate::cni::json::Json;
use crate::cni::version::Version;
use crate::error::{Code, Error, Result};
use crate::kernel::flock::Mode;
use crate::kernel::sys::{self, warn};
use crate::names::{Attachment, NetworkName};
use crate::runtime::cache::{self, Entry};
use crate::runtime::chain::{Chain, Parameters};
use crate::runtime::conf::Network;
use crate::runtime::evidence::{Evidence, Life};
use crate::runtime::lifecycle::{Choice, Runtime, netns_of};
use crate::runtime::lock::{self, Lock};

/// Options of GC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// List what is to be removed, and remove nothing.
    pub is_dry_run: bool,
    /// Let the plugins remove attachments that are not in the cache, too. Attachments of runtimes with a cache of their own, and
    /// an ADD of another runtime in progress, are lost.
    pub uncached: bool,
}

/// One attachment that was removed.
#[derive(Debug)]
pub struct Removed {
    pub network: NetworkName,
    pub at: Attachment,
    /// Why it was removed.
    pub reason: String,
}

/// The result of a GC.
#[derive(Debug, Default)]
pub struct Collected {
    pub removed: Vec<Removed>,
    pub errors: Vec<Error>,
}

impl Runtime {
    /// GC of one network, or of all that the cache knows.
    pub fn gc(&self, choice: Option<&Choice>, options: Options) -> Result<Collected> {
        let mut collected = Collected::default();
        let given = match choice {
            Some(Choice::Given(network)) => Some(network),
            _ => None,
        };
        let names = match choice {
            Some(choice) => vec![choice.name().clone()],
            None => self.known_networks()?,
        };
        sys::catch_interrupts();
        let evidence = self.evidence()?;
        // Their attachments have ended then.
        if !options.is_dry_run {
            self.remove_dead_namespaces(&evidence);
        }
        if let (Err(reason), false) = (evidence.view(), names.is_empty()) {
            warn(format_args!(
                "warning: cannot tell which attachments have ended: this process has no view of the host: {reason}"
            ));
        }
        for name in names {
            if let Err(error) = self.gc_of(&evidence, &name, given, options, &mut collected) {
                collected.errors.push(error);
            }
            if sys::is_interrupted() {
                return Err(Error::internal("cannot collect garbage: interrupted"));
            }
        }
        if !options.is_dry_run {
            self.sweep(&evidence);
        }
        Ok(collected)
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
    fn sweep(&self, evidence: &Evidence<'_>) {
        lock::sweep(&self.locks);
        self.sweep_files();
        // 0.1.0 had its records there, until the next boot.
        for directory in ["namespaces", "pending"] {
            let _ = fs::remove_dir_all(self.state.join(directory));
        }
        for record in self.records.all() {
            let is_cached = self.known(&record.network, &record.at).is_some();
            if !is_cached && evidence.has_ended(&record) {
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
            for Entry { network, .. } in found.entries {
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
        name: &NetworkName,
        given: Option<&Network>,
        options: Options,
        collected: &mut Collected,
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
            if is_done || (self.removal(evidence, entry).is_none() && !self.has_operation(entry)) {
                continue;
            }
            let reason = self
                .collect(entry, given, options.is_dry_run)
                .map_err(|error| error.context(format!("cannot delete {}", entry.title())));
            match reason {
                Ok(Some(reason)) => {
                    let (network, at) = (name.clone(), entry.at.clone());
                    collected.removed.push(Removed { network, at, reason });
                }
                Ok(None) => {}
                Err(error) => collected.errors.push(error),
            }
        }
        if options.uncached && !options.is_dry_run {
            self.gc_by_plugins(name, given)?;
        }
        Ok(())
    }

    /// Deletes an attachment if it is still to be removed, and returns why. Only its own container has to wait meanwhile.
    fn collect(
        &self,
        entry: &Entry,
        given: Option<&Network>,
        is_dry_run: bool,
    ) -> Result<Option<String>> {
        let _locks = self.lock(&entry.network, &entry.at.container_id)?;
        let Some(entry) = self.known(&entry.network, &entry.at) else { return Ok(None) };
        // It may have changed before the lock.
        let evidence = self.evidence()?;
        let is_disabled = entry.network_of_add().is_ok_and(|network| network.disable_gc);
        let Some(reason) = self.removal(&evidence, &entry) else {
            if !is_dry_run && evidence.life(&entry) == Life::Alive {
                // A later ADD has made the interrupted operation void.
                self.pending.remove(&entry.network, &entry.at)?;
            }
            return Ok(None);
        };
        if is_disabled {
            return Ok(None);
        }
        if !is_dry_run {
            self.delete_of_add(&evidence, &entry, given)?;
        }
        Ok(Some(reason))
    }

    /// Why an attachment is to be removed, if it is. Without the lock of its container, its operation may be in progress.
    fn removal(&self, evidence: &Evidence<'_>, entry: &Entry) -> Option<String> {
        if self.interrupted(&entry.network, &entry.at).is_some() {
            return Some("its ADD or DEL died".into());
        }
        if evidence.is_of_killed(&entry.netns) {
            return Some("its process died".into());
        }
        match evidence.life(entry) {
            Life::Gone(reason) => Some(reason),
            Life::Alive | Life::Unknown(_) => None,
        }
    }

    fn has_operation(&self, entry: &Entry) -> bool {
        self.pending.path(&entry.network, &entry.at).exists()
    }

    /// Deletes an attachment with the configuration of its ADD; else with the given one, or that of the directory.
    fn delete_of_add(
        &self,
        evidence: &Evidence<'_>,
        entry: &Entry,
        given: Option<&Network>,
    ) -> Result<()> {
        let network = match (entry.network_of_add(), given) {
            (Ok(network), _) => network,
            (Err(_), Some(given)) => given.clone(),
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
    fn gc_by_plugins(&self, name: &NetworkName, given: Option<&Network>) -> Result<()> {
        let _lock = Lock::network(&self.locks, name, Mode::Exclusive)?;
        let (mut keep, mut of_add) = (Vec::new(), None);
        for entry in self.cache.all()?.entries {
            if entry.network == *name {
                of_add = of_add.or_else(|| entry.network_of_add().ok());
                keep.push(entry.at);
            }
        }
        let network = match given.cloned().or(of_add) {
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
        Chain { means: &self.means, network: &network, parameters }.gc(&keep)
    }
}
