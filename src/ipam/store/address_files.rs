//! The files of a network's addresses, all read at once.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use super::owner::Owner;
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

impl AddressFiles {
    /// Reads all files with addresses as names. The boots are unknown.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for entry in files::addresses_in(dir).map_err(failed("read directory", dir))? {
            let path = dir.join(entry.ip.to_string());
            let read = if entry.is_file {
                files::read_identified(&path)
            } else {
                files::read(&path).map(|content| (content, 0))
            };
            let (owner, identity) = match read {
                Ok((content, identity)) => (Owner::parse(&content), identity),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    match files::is_absent(&path) {
                        // A program without the lock has removed the file.
                        Ok(true) => continue,
                        _ => (Owner::NotRegular, 0),
                    }
                }
                Err(error) if error.kind() == ErrorKind::IsADirectory => (Owner::NotRegular, 0),
                Err(error) => (Owner::Unreadable(failed("read", path)(error)), 0),
            };
            files.insert(entry.ip, AddressFile { owner, identity, boot: None });
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
