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

use std::ffi::OsStr;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::engine::{self, Engine};
use crate::attachments::owner::{Owners, shortened};
use crate::cni::json::{self, Json, keys};
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::process::Opened;
use crate::kernel::sys::{self, warn};
use crate::names::Attachment;
use crate::plugin::Context;
use crate::steps::state::{self, StateFile};

pub const DIRECTORY: &str = "/run/cnibox/names";
const NETWORKS: &str = "/run/cnibox/names/networks";
const ENGINE: Engine = Engine { directory: "/run/cnibox/names/aardvark" };
const CHANGING: &str = "/run/cnibox/names/changing";

/// The longest network name and container id in a file's name. A longer one is replaced by its hash.
const NAME_BYTES_MAX: usize = 180;

keys! {
    /// The names of an attachment.
    #[derive(Clone, Debug, PartialEq, Serialize)]
    pub struct Named requires "container" {
        "container" => pub container: String,
        "addresses" => pub addresses: Vec<IpAddr>,
        "names" => pub names: Vec<String>,
        /// The addresses of the host at which the container asks.
        "listen" => pub listen: Vec<IpAddr>,
        /// The servers that are asked for other names. Empty: those of the host.
        "servers" => pub servers: Vec<IpAddr>,
        /// Other names are not asked for.
        "internal" => pub internal: bool,
    }
}

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
        let own = self.file(at);
        // `None` until it was read: then nothing has changed.
        let mut before = None;
        let put = self.change(true, || {
            before = Some(own.read()?);
            own.write(json::compact(named).as_bytes())
        });
        put.map_err(|error| {
            let restore = || match &before {
                None => Ok(()),
                Some(Some(Ok(content))) => own.write(content),
                Some(Some(Err(_)) | None) => own.remove(),
            };
            error.and(sys::despite_interrupt(|| self.change(false, restore)))
        })
    }

    /// Removes the names of the owners, which are of this network.
    pub fn remove(&self, owners: &Owners) -> Result<()> {
        let directory = self.directory();
        // A call that was killed, or failed, can have left more than names.
        if !is_there(&directory)? && !is_there(CHANGING.as_ref())? {
            return Ok(());
        }
        self.change(false, || {
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

    /// Fails if the engine does not run, or does not have these names.
    pub fn check(&self, named: &Named) -> Result<()> {
        if ENGINE.running()?.is_none() {
            let msg = format!("{} does not run", engine::NAME);
            return Err(Error::difference(msg).of_shared(engine::NAME));
        }
        if ENGINE.has(&self.key, named)? {
            return Ok(());
        }
        let msg = format!("{} has no names of container {}", engine::NAME, named.container);
        Err(Error::difference(msg))
    }

    /// The addresses at which the containers of the network ask.
    fn listen(&self) -> Result<Vec<IpAddr>> {
        Ok(names_of(&self.key)?.into_iter().flat_map(|named| named.listen).collect())
    }

    fn directory(&self) -> PathBuf {
        Path::new(NETWORKS).join(&self.key)
    }

    fn file(&self, at: &Attachment) -> StateFile {
        StateFile::new(&self.directory().to_string_lossy(), &file_name(at))
    }

    /// Changes files of this network, and makes the engine answer accordingly. If it cannot serve the network, this is an error if it
    /// `must`; and else a warning if it cannot be started.
    fn change(&self, must: bool, edit: impl FnOnce() -> Result<()>) -> Result<()> {
        let _lock = state::lock(DIRECTORY)?;
        let was_interrupted = is_there(CHANGING.as_ref())?;
        if was_interrupted {
            file::sweep(DIRECTORY.as_ref());
        }
        let begun = fault::file_operation().and_then(|()| fs::write(CHANGING, ""));
        begun.map_err(Error::of_file("write", CHANGING.as_ref()))?;
        edit()?;
        let running = match ENGINE.running()? {
            Some(running) => self.reload(running, must, was_interrupted)?,
            None => None,
        };
        if running.is_none() {
            self.start(must)?;
        }
        let removed = fault::file_operation().and_then(|()| fs::remove_file(CHANGING));
        removed.map_err(Error::of_file("remove", CHANGING.as_ref()))
    }

    /// Makes the files of the engine again that can differ, and the engine read them. Ends it without a file. `None` if it has ended.
    fn reload(&self, running: Opened, must: bool, was_interrupted: bool) -> Result<Option<Opened>> {
        let keys = if was_interrupted { networks()? } else { vec![self.key.clone()] };
        let on_host = self.cx.session.host()?.all_addresses()?;
        let mut rendered = ENGINE.render(&keys, &|address| on_host.contains(&address))?;
        if was_interrupted {
            rendered.is_changed = true;
            ENGINE.remove_others(&keys)?;
        }
        if ENGINE.has_no_file()? {
            engine::stop(&running)?;
            // `start` finds no name, and removes what is left.
            return Ok(None);
        }
        let own = if must { self.listen()? } else { Vec::new() };
        rendered.new.retain(|address| own.contains(address));
        for address in &rendered.new {
            engine::refuse_taken(*address, Some(&running))?;
        }
        if rendered.is_changed && !engine::reload(&running)? {
            return Ok(None);
        }
        engine::wait_for(&rendered.new).map(|()| Some(running))
    }

    /// Starts the engine for all addresses that it can serve: one that it cannot serve would stop it. Without names removes its files.
    fn start(&self, must: bool) -> Result<()> {
        let keys = networks()?;
        for address in if must { self.listen()? } else { Vec::new() } {
            engine::refuse_taken(address, None)?;
        }
        let on_host =
            if keys.is_empty() { Vec::new() } else { self.cx.session.host()?.all_addresses()? };
        let can_serve =
            |address| on_host.contains(&address) && engine::refuse_taken(address, None).is_ok();
        ENGINE.render(&keys, &can_serve)?;
        ENGINE.remove_others(&keys)?;
        match ENGINE.has_no_file()? {
            true => {
                // Without a name it is empty.
                let _ = fs::remove_dir(NETWORKS);
                ENGINE.remove_files()
            }
            false => {
                let executable = engine::find(&self.cx.request.parameters.path);
                match executable.and_then(|executable| ENGINE.start(&executable)) {
                    Err(error) if !must => {
                        warn(format_args!("{error}; the names of containers are not answered"));
                        Ok(())
                    }
                    started => started,
                }
            }
        }
    }
}

fn is_there(path: &Path) -> Result<bool> {
    let found = fault::file_operation().and_then(|()| fs::metadata(path));
    file::found(found).map(|found| found.is_some()).map_err(Error::of_file("read", path))
}

/// The name of the file of an attachment.
fn file_name(at: &Attachment) -> String {
    format!("{}+{}", shortened(&at.container_id, NAME_BYTES_MAX), at.ifname)
}

/// The networks with names. Removes the directories of the others.
fn networks() -> Result<Vec<String>> {
    let cannot = Error::of_file("read directory", Path::new(NETWORKS));
    let mut keys = Vec::new();
    for entry in file::found(fs::read_dir(NETWORKS)).map_err(&cannot)?.into_iter().flatten() {
        let path = entry.map_err(&cannot)?.path();
        let Some(key) = path.file_name().and_then(OsStr::to_str) else { continue };
        if state::all(&path.to_string_lossy())?.is_empty() {
            // If it has a file by now, it stays.
            let _ = fs::remove_dir(&path);
        } else {
            keys.push(key.to_owned());
        }
    }
    keys.sort_unstable();
    Ok(keys)
}

/// The names of a network, in the order of their files. Warns of a damaged file.
pub(super) fn names_of(key: &str) -> Result<Vec<Named>> {
    let mut files = state::all(&Path::new(NETWORKS).join(key).to_string_lossy())?;
    files.sort_unstable_by(|one, other| one.name().cmp(&other.name()));
    let mut all = Vec::new();
    for file in files {
        match file.read()?.map(|content| parse(&file, content)) {
            Some(Ok(named)) => all.push(named),
            Some(Err(error)) => warn(format_args!("{error}; its names are not answered")),
            None => {}
        }
    }
    Ok(all)
}

fn parse(file: &StateFile, content: Result<Vec<u8>>) -> Result<Named> {
    let named = Json::parse(&content?).and_then(|json| json.read("names"));
    named.map_err(|error| file.damaged(error))
}
