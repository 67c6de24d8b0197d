//! The files of the attachments that have names: one for each, in a directory for each network.

use std::ffi::OsStr;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use serde::Serialize;

use crate::cni::json::{Json, keys};
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::sys::warn;
use crate::steps::state::{self, StateFile};

pub const DIRECTORY: &str = "/run/cnibox/names";
pub(super) const NETWORKS: &str = "/run/cnibox/names/networks";

keys! {
    /// The names of an attachment.
    #[derive(Clone, Debug, PartialEq, Serialize)]
    pub struct Named requires "container" {
        "container" => pub container: String,
        /// With the prefix lengths of their subnets.
        "addresses" => pub addresses: Vec<IpNet>,
        "names" => pub names: Vec<String>,
        /// The addresses of the host at which the container asks.
        "listen" => pub listen: Vec<IpAddr>,
        /// The servers that are asked for other names. Empty: those of the host.
        "servers" => pub servers: Vec<IpAddr>,
        /// Other names are not asked for.
        "internal" => pub internal: bool,
    }
}

/// A network with names.
pub(super) struct Network {
    /// The name of its directory.
    pub(super) key: String,
    pub(super) names: Vec<Named>,
    /// The addresses of the host at which the engine serves it, or will.
    pub(super) served: Vec<IpAddr>,
}

impl Network {
    /// The names, in the order of their files. Warns of a damaged file.
    pub(super) fn read(key: &str) -> Result<Self> {
        let mut files = state::all(&Path::new(NETWORKS).join(key).to_string_lossy())?;
        files.sort_unstable_by(|one, other| one.name().cmp(&other.name()));
        let mut names = Vec::new();
        for file in files {
            match file.read()?.map(|content| parse(&file, content)) {
                Some(Ok(named)) => names.push(named),
                Some(Err(error)) => warn(format_args!("{error}; its names are not answered")),
                None => {}
            }
        }
        Ok(Self { key: key.to_owned(), names, served: Vec::new() })
    }
}

/// The keys of the networks with names. Removes the directories of the others.
pub(super) fn keys() -> Result<Vec<String>> {
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

/// Whether a network of this host has names.
pub(super) fn has_names() -> bool {
    is_there(NETWORKS.as_ref()).unwrap_or(false)
}

pub(super) fn is_there(path: &Path) -> Result<bool> {
    let found = fault::file_operation().and_then(|()| fs::metadata(path));
    file::found(found).map(|found| found.is_some()).map_err(Error::of_file("read", path))
}

pub(super) fn parse(file: &StateFile, content: Result<Vec<u8>>) -> Result<Named> {
    let named = Json::parse(&content?).and_then(|json| json.read("names"));
    named.map_err(|error| file.damaged(error))
}
