//! Removes stale attachments: those with a removed or replaced namespace, and those of an interrupted operation.

use crate::cni::json::Json;
use crate::cni::version::Version;
use crate::error::{Error, Result};
use crate::kernel::flock::Mode;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::{self, warn};
use crate::names::{Attachment, NetworkName};
use crate::runtime::cache::Entry;
use crate::runtime::chain::{Chain, Parameters};
use crate::runtime::conf::Network;
use crate::runtime::life::Life;
use crate::runtime::lifecycle::{Choice, Runtime};
use crate::runtime::lock::{self, Lock};

/// Options of GC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// List the stale attachments, and remove nothing.
    pub is_dry_run: bool,
    /// Let the plugins remove attachments that are not in the cache, too. Attachments of runtimes with a cache of their own, and
    /// an ADD of another runtime in progress, are lost.
    pub uncached: bool,
}

/// One stale attachment.
#[derive(Debug)]
pub struct Removed {
    pub network: NetworkName,
    pub at: Attachment,
    /// Why it is stale.
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
        // Their attachments are stale then.
        if !options.is_dry_run {
            self.remove_dead_namespaces();
        }
        for name in names {
            if sys::is_interrupted() {
                return Err(Error::internal("cannot collect garbage: interrupted"));
            }
            if let Err(error) = self.gc_of(&name, given, options, &mut collected) {
                collected.errors.push(error);
            }
        }
        if !options.is_dry_run {
            self.sweep();
        }
        Ok(collected)
    }

    /// Removes the temporary files and locks of killed processes. A file that cannot be removed does no harm.
    fn sweep(&self) {
        lock::sweep(&self.locks);
        self.sweep_files();
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
        name: &NetworkName,
        given: Option<&Network>,
        options: Options,
        collected: &mut Collected,
    ) -> Result<()> {
        let _lock = Lock::network(&self.locks, name, Mode::Exclusive)?;
        let home = NetNs::own()?;
        let mut keep = Vec::new();
        let mut last = given.cloned();
        for (entry, life) in self.entries_of(&home, name)? {
            let network = entry.network_of_add();
            let is_disabled = network.as_ref().is_ok_and(|network| network.disable_gc);
            let reason = match life {
                Life::Stale(reason) if !is_disabled => reason,
                _ => {
                    keep.push(entry.at.clone());
                    last = last.or_else(|| network.ok());
                    continue;
                }
            };
            if !options.is_dry_run
                && let Err(error) = self.delete_dead(&home, &entry, network, given)
            {
                collected.errors.push(error);
                continue;
            }
            collected.removed.push(Removed { network: name.clone(), at: entry.at, reason });
        }
        if !options.uncached || options.is_dry_run {
            return Ok(());
        }
        let network = match last {
            Some(network) => network,
            None => Network::find(name, &self.configurations, &mut |error| {
                warn(format_args!("{error}"))
            })?,
        };
        self.gc_by_plugins(&network, &keep)
    }

    /// The attachments of a network, and whether they are alive. This process holds the lock of the network, so a
    /// pending operation was interrupted.
    fn entries_of(&self, home: &NetNs, name: &NetworkName) -> Result<Vec<(Entry, Life)>> {
        let mut pending = self.pending.all()?.entries;
        let mut entries = self.cache.all()?.entries;
        pending.retain(|entry| entry.network == *name);
        entries.retain(|entry| entry.network == *name);
        let mut known = Vec::new();
        let dead = self.dead_namespaces();
        for entry in entries {
            let is_pending = pending.iter().position(|pending| pending.at == entry.at);
            let life = match is_pending {
                Some(index) => {
                    pending.swap_remove(index);
                    Life::Stale(DIED.into())
                }
                None if dead.contains(&entry.netns) => Life::Stale("its process died".into()),
                None => self.identities.life(home, &entry),
            };
            known.push((entry, life));
        }
        for entry in pending {
            known.push((entry, Life::Stale(DIED.into())));
        }
        Ok(known)
    }

    fn delete_dead(
        &self,
        home: &NetNs,
        entry: &Entry,
        network: Result<Network>,
        given: Option<&Network>,
    ) -> Result<()> {
        let _lock = Lock::container(&self.locks, &entry.at.container_id)?;
        let network = match (network, given) {
            (Ok(network), _) => network,
            (Err(_), Some(given)) => given.clone(),
            (Err(error), None) => {
                warn(format_args!("{error}"));
                let warn = &mut |error: &Error| warn(format_args!("{error}"));
                Network::find(&entry.network, &self.configurations, warn)?
            }
        };
        let deleted = self.delete(entry, &network, &self.netns_of(home, entry));
        deleted.map_err(|error| error.context(format!("cannot delete {}", entry.title())))
    }

    fn gc_by_plugins(&self, network: &Network, keep: &[Attachment]) -> Result<()> {
        if network.disable_gc || network.version < Version::V1_1_0 {
            return Ok(());
        }
        let parameters = Parameters {
            at: None,
            netns: std::path::Path::new(""),
            args: "",
            capability_args: &Json::Null,
        };
        Chain { means: &self.means, network, parameters }.gc(keep)
    }
}

const DIED: &str = "its ADD or DEL died";
