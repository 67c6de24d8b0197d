//! The names of the containers of this host: a file for each attachment, from which the file that the engine reads is made for each
//! network.
//!
//! ```text
//! /run/cnibox/names/networks/NETWORK/CONTAINERID+IFNAME   addresses and names of an attachment, in JSON
//! /run/cnibox/names/aardvark/n-NETWORK                    what the engine reads; n-NETWORK%int if the network is internal
//! /run/cnibox/names/changing                              exists while files are changed
//! ```
//!
//! ADD writes the file of an attachment. A failing ADD, DEL and GC remove it, and with the last file of a network that of the engine.
//! The lock of /run/cnibox/names is held meanwhile. A process that is killed leaves `changing`, and the next call makes all files of
//! the engine again. The engine runs while there is a name: the call that removes the last one ends it.

use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::engine::{self, Engine};
use super::input;
use super::named::{DIRECTORY, NETWORKS, Named, Network, is_there, keys, parse};
use crate::attachments::owner::{Owners, shortened};
use crate::cni::json;
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::process::Opened;
use crate::kernel::sys::{self, warn};
use crate::names::Attachment;
use crate::plugin::Context;
use crate::steps::state::{self, StateFile};

pub(super) const ENGINE: Engine = Engine { directory: "/run/cnibox/names/aardvark" };
const CHANGING: &str = "/run/cnibox/names/changing";

/// The longest network name and container id in a file's name. A longer one is replaced by its hash.
const NAME_BYTES_MAX: usize = 180;

/// The names of one network.
pub struct Registry<'a> {
    cx: &'a Context<'a>,
    /// The name of its directory.
    key: String,
}

impl<'a> Registry<'a> {
    /// The network of the request.
    pub fn new(cx: &'a Context<'a>) -> Self {
        Self { cx, key: shortened(&cx.request.network, NAME_BYTES_MAX) }
    }

    /// Writes the names of an attachment, and makes the engine answer them. On an error, the names are as before.
    pub fn put(&self, at: &Attachment, named: &Named) -> Result<()> {
        engine::require_signals()?;
        let lock = state::lock(DIRECTORY)?;
        let own = self.file(at);
        // `None` until it was read: then nothing has changed.
        let mut before = None;
        let put = self.change(&lock, Aim::Serve(&named.listen), || {
            before = Some(own.read()?);
            own.write(json::compact(named).as_bytes())
        });
        put.map_err(|error| {
            let restore = || match &before {
                None => Ok(()),
                Some(Some(Ok(content))) => own.write(content),
                Some(Some(Err(_)) | None) => own.remove(),
            };
            error.and(sys::despite_interrupt(|| self.change(&lock, Aim::Restore, restore)))
        })
    }

    /// Removes the names of the owners, which are of this network.
    pub fn remove(&self, owners: &Owners) -> Result<()> {
        let directory = self.directory();
        // A call that was killed, or failed, can have left more than names.
        if !is_there(&directory)? && !is_there(CHANGING.as_ref())? {
            return Ok(());
        }
        let lock = state::lock(DIRECTORY)?;
        self.change(&lock, Aim::Remove, || {
            let is_gone = |file: &&StateFile| {
                owners.has(|at, _| file.name().is_some_and(|name| name == file_name(at)))
            };
            let all = state::all(&directory.to_string_lossy())?;
            Error::joined(
                all.iter().filter(is_gone).filter_map(|file| file.remove().err()).collect(),
            )
        })
    }

    /// The names of an attachment. `None` if it has none.
    pub fn read(&self, at: &Attachment) -> Result<Option<Named>> {
        let file = self.file(at);
        file.read()?.map(|content| parse(&file, content)).transpose()
    }

    /// Fails if the engine does not run, does not have these names or does not listen for them, or a rule of INPUT is missing.
    pub fn check(&self, named: &Named) -> Result<()> {
        let missing = |what: &str| Err(Error::difference(format_args!("{} {what}", engine::NAME)));
        let Some(engine) = ENGINE.running()? else {
            return missing("does not run").map_err(|error: Error| error.of_shared(engine::NAME));
        };
        if let Some(address) = engine::unserved(&named.listen, &engine)? {
            return missing(&format!("does not serve {address}"));
        }
        if !ENGINE.has(&self.key, named)? {
            return missing(&format!("has no names of container {}", named.container));
        }
        match self.cx.session.nft_if_supported()? {
            Some(nft) => input::check(nft, &self.key, named),
            None => Ok(()),
        }
    }

    fn directory(&self) -> PathBuf {
        Path::new(NETWORKS).join(&self.key)
    }

    fn file(&self, at: &Attachment) -> StateFile {
        StateFile::new(&self.directory().to_string_lossy(), &file_name(at))
    }

    /// Changes files of this network, and makes the engine answer accordingly.
    fn change(&self, _: &File, aim: Aim<'_>, edit: impl FnOnce() -> Result<()>) -> Result<()> {
        let was_interrupted = is_there(CHANGING.as_ref())?;
        if was_interrupted {
            file::sweep(DIRECTORY.as_ref());
        }
        let begun = fault::file_operation().and_then(|()| fs::write(CHANGING, ""));
        begun.map_err(Error::of_file("write", CHANGING.as_ref()))?;
        edit()?;
        let is_served = match ENGINE.running()? {
            Some(engine) => {
                // A call of another network namespace wrote its own id there, and the files of the engine.
                let are_others = ENGINE.note(&engine)?;
                self.update(&engine, aim, was_interrupted || are_others)?
            }
            None => false,
        };
        if !is_served {
            self.start(aim)?;
        }
        let removed = fault::file_operation().and_then(|()| fs::remove_file(CHANGING));
        removed.map_err(Error::of_file("remove", CHANGING.as_ref()))
    }

    /// Makes the running engine answer the names of this network, or of `all` networks. False if it has ended: without a name it is
    /// ended.
    fn update(&self, engine: &Opened, aim: Aim<'_>, all: bool) -> Result<bool> {
        let keys = if all { keys()? } else { vec![self.key.clone()] };
        let (networks, is_changed) = self.render(&keys, Some(engine), (aim, all))?;
        if ENGINE.has_no_file()? {
            // `start` finds no name, and removes what is left.
            return engine::stop(engine).map(|()| false);
        }
        let must = aim.must();
        let is_stale = is_changed || all || engine::unserved(must, engine)?.is_some();
        if is_stale && !engine::reload(engine)? {
            return Ok(false);
        }
        if !engine::wait_for(must, engine)? {
            return Ok(false);
        }
        self.accept(&networks, (aim, all)).map(|()| true)
    }

    /// Starts the engine for all addresses that it can serve: one that it cannot serve would stop it. Without names removes its files.
    fn start(&self, aim: Aim<'_>) -> Result<()> {
        let keys = keys()?;
        let executable = match aim {
            _ if keys.is_empty() => None,
            Aim::Restore => None,
            Aim::Serve(_) => Some(engine::find(&self.cx.request.parameters.path)?),
            Aim::Remove => or_warn(engine::find(&self.cx.request.parameters.path)),
        };
        let (networks, _) = self.render(&keys, None, (aim, true))?;
        match executable {
            _ if ENGINE.has_no_file()? => {
                // Without a name it is empty.
                let _ = fs::remove_dir(NETWORKS);
                ENGINE.remove_files()?;
            }
            None => {}
            Some(executable) => match ENGINE.start(&executable) {
                Err(error) if matches!(aim, Aim::Remove) => drop(or_warn::<()>(Err(error))),
                started => started?,
            },
        }
        self.accept(&networks, (aim, true))
    }

    /// Makes the files of the engine from the names of networks. `are_all`: no other network has names. Returns whether a file has
    /// changed, and the networks with what is served.
    fn render(
        &self,
        keys: &[String],
        engine: Option<&Opened>,
        (aim, are_all): (Aim<'_>, bool),
    ) -> Result<(Vec<Network>, bool)> {
        let mut networks = keys.iter().map(|key| Network::read(key)).collect::<Result<Vec<_>>>()?;
        if are_all {
            ENGINE.remove_others(&networks)?;
        }
        let can_serve = |key: &str, address, had: bool| {
            // The engine has this port itself.
            if had && engine.is_some() {
                return Ok(true);
            }
            let probed = match ENGINE.other_network_at(key, address)? {
                Some(other) => Err(engine::served_by(&other, address)),
                None => engine::probe(address, engine),
            };
            match (probed, aim) {
                (Err(error), Aim::Serve(must)) if must.contains(&address) => Err(error),
                (Err(_), Aim::Restore) => Ok(false),
                (Err(error), _) => {
                    warn(format_args!("{error}; names are not answered there"));
                    Ok(false)
                }
                (Ok(()), _) => Ok(true),
            }
        };
        let is_changed = ENGINE.render(&mut networks, &can_serve)?;
        Ok((networks, is_changed))
    }

    /// Makes the rules of INPUT for what is served. Only for an ADD an error is one: what is removed does not need them.
    fn accept(&self, networks: &[Network], (aim, are_all): (Aim<'_>, bool)) -> Result<()> {
        let put = match self.cx.session.nft_if_supported() {
            Ok(Some(nft)) => input::put(nft, networks, are_all),
            found => found.map(drop),
        };
        match (put, aim) {
            (Err(error), Aim::Remove | Aim::Restore) => {
                warn(format_args!("{error}; rules that accept queries can be left"));
                Ok(())
            }
            (put, _) => put,
        }
    }
}

/// What a change is for.
#[derive(Clone, Copy)]
enum Aim<'a> {
    /// An ADD: the engine must serve these addresses. Others that it cannot serve are warned of.
    Serve(&'a [IpAddr]),
    /// DEL and GC: an engine that cannot be started is warned of.
    Remove,
    /// A failing ADD, which has its error: an engine that does not run stays so.
    Restore,
}

impl<'a> Aim<'a> {
    fn must(self) -> &'a [IpAddr] {
        match self {
            Self::Serve(must) => must,
            Self::Remove | Self::Restore => &[],
        }
    }
}

/// Warns of an engine that cannot be started.
fn or_warn<T>(result: Result<T>) -> Option<T> {
    let warned = |error| warn(format_args!("{error}; the names of containers are not answered"));
    result.map_err(warned).ok()
}

/// The name of the file of an attachment.
fn file_name(at: &Attachment) -> String {
    format!("{}+{}", shortened(&at.container_id, NAME_BYTES_MAX), at.ifname)
}
