//! The files of a network's addresses, all read at once.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use super::content::Owner;
use super::{failed, files};
use crate::error::{Error, Result};

/// The files with addresses as names.
#[derive(Default)]
pub(super) struct AddressFiles(pub(super) BTreeMap<IpAddr, AddressFile>);

/// The content of one file with an address as its name.
pub(super) struct AddressFile {
    pub(super) owner: Owner,
    /// The identity of the file (see `files::read_identified`).
    pub(super) identity: u64,
    /// The boot in which cnibox first saw the reservation. `None` if it is unknown.
    pub(super) boot: Option<u64>,
}

/// A reservation, without its owner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Known {
    pub(super) address: IpAddr,
    /// The boot in which cnibox first saw the reservation: a hash of its id. `None` if it is unknown.
    pub(super) boot: Option<u64>,
    /// The identity of the file (see `files::read_identified`).
    pub(super) identity: u64,
}

impl AddressFile {
    /// Reads a file. The boot is unknown. `None` if its name is free; that of a dangling symbolic link is not.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let (owner, identity) = match files::read_identified(path) {
            Ok((content, identity)) => (Owner::parse(&content), identity),
            Err(error) if error.kind() == ErrorKind::NotFound => match files::is_absent(path) {
                Ok(true) => return None,
                _ => (Owner::NotRegular, 0),
            },
            Err(error) if error.kind() == ErrorKind::IsADirectory => (Owner::NotRegular, 0),
            Err(error) => (Owner::Unreadable(failed("read", path)(error)), 0),
        };
        Some(Self { owner, identity, boot: None })
    }

    /// Whether this is still the file with this identity, of this owner.
    pub(super) fn is(&self, owner: &str, identity: u64) -> bool {
        self.identity == identity && self.owner.is(owner)
    }
}

impl AddressFiles {
    /// Reads all files with addresses as names. The boots are unknown.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for entry in files::addresses_in(dir).map_err(failed("read directory", dir))? {
            let path = dir.join(entry.ip.to_string());
            // A program without the lock can have removed the file.
            let Some(file) = AddressFile::read(&path) else { continue };
            let identity = if entry.is_file { file.identity } else { 0 };
            files.insert(entry.ip, AddressFile { identity, ..file });
        }
        Ok(Self(files))
    }

    /// The reservations of the owners that `is_wanted` accepts.
    pub(super) fn all(&self, is_wanted: &dyn Fn(&str) -> bool) -> Vec<(String, Known)> {
        let known = |(ip, file): (&IpAddr, &AddressFile)| {
            let owner = file.owner.text().filter(|owner| is_wanted(owner))?;
            let AddressFile { identity, boot, .. } = *file;
            Some((owner.to_owned(), Known { address: *ip, boot, identity }))
        };
        self.0.iter().filter_map(known).collect()
    }

    /// The errors of all unreadable files.
    pub(super) fn errors(&self) -> impl Iterator<Item = Error> {
        self.0.values().filter_map(|file| match &file.owner {
            Owner::Unreadable(error) => Some(error.clone()),
            _ => None,
        })
    }
}
