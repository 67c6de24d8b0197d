//! The source of look-ups: a valid index, or else the content of all files.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use super::directory::{DirState, Directory};
use super::index::{FileKind, Index, IndexedFile};
use super::owner::Owner;
use super::{StorePaths, address_of, failed, files, number_of};
use crate::error::Result;

/// The data that answers look-ups.
pub(super) enum LookupSource {
    Index(Index),
    Files(AddressFiles),
    /// No data is loaded, or it was wrong and is dropped. The next look-up loads it.
    NotLoaded,
}

/// The files with addresses as names.
pub(super) type AddressFiles = BTreeMap<IpAddr, AddressFile>;

/// The content of one file with an address as its name.
pub(super) struct AddressFile {
    pub(super) owner: Owner,
    /// The identity of the file (see `files::read_identified`).
    pub(super) identity: u64,
    /// The reservation was made in an earlier boot of this host. False if the boot is unknown: the address may be in use.
    pub(super) is_older: bool,
}

/// Reads all files with addresses as names. Also returns whether the temporary file `aside` exists.
pub(super) fn read_files(dir: &Path, aside: &str) -> Result<(AddressFiles, bool)> {
    let (names, has_aside) =
        files::addresses_in(dir, aside).map_err(failed("read directory", dir))?;
    let mut files = AddressFiles::new();
    for name in names {
        let path = dir.join(name.ip.to_string());
        let read = if name.is_file {
            files::read_identified(&path)
        } else {
            files::read(&path).map(|content| (content, 0))
        };
        let (owner, identity) = match read {
            Ok((content, identity)) => (Owner::parse(&content), identity),
            Err(error) if error.kind() == ErrorKind::NotFound => match files::is_absent(&path) {
                // A program without the lock has removed the file.
                Ok(true) => continue,
                _ => (Owner::NotRegular, 0),
            },
            Err(error) if error.kind() == ErrorKind::IsADirectory => (Owner::NotRegular, 0),
            Err(error) => (Owner::Unreadable(failed("read", path)(error)), 0),
        };
        files.insert(name.ip, AddressFile { owner, identity, is_older: false });
    }
    Ok((files, has_aside))
}

/// Marks the reservations of an earlier boot: those that the index has, if their files have not changed since. The index can
/// be out of date. The age of all other reservations is unknown: they count as made in this boot.
pub(super) fn mark_older(files: &mut AddressFiles, index: &Index, boot: u64) {
    // A damaged index has no valid data.
    let Ok(indexed_files) = index.indexed_files() else { return };
    for indexed in indexed_files.iter().filter(|file| file.is_older || index.boot() != boot) {
        if let Some(file) = files.get_mut(&address_of(indexed.address)) {
            file.is_older = indexed.kind == FileKind::Reserved
                && file.identity == indexed.identity
                && file.indexed(indexed.address).owner == indexed.owner;
        }
    }
}

/// Builds an index of files that were read while the directory had the state `stamp`. Returns `None` if that fails, or if the
/// directory has changed since: then look-ups use the files.
pub(super) fn make_index(
    paths: &StorePaths,
    directory: &Directory,
    stamp: DirState,
    boot: u64,
    files: &AddressFiles,
) -> Option<Index> {
    // An index cannot hold an unknown owner.
    if files.values().any(|file| matches!(file.owner, Owner::Unreadable(_))) {
        return None;
    }
    let indexed_files: Vec<IndexedFile> =
        files.iter().map(|(ip, file)| file.indexed(number_of(*ip))).collect();
    let mut index = Index::create(&paths.index, boot, &indexed_files).ok()?;
    let is_same = directory.state().ok()? == stamp;
    (is_same && index.commit_as(stamp).is_ok()).then_some(index)
}

impl AddressFile {
    /// The entry of the file in the index.
    pub(super) fn indexed(&self, address: u128) -> IndexedFile {
        let kind = match &self.owner {
            Owner::Text(_) => FileKind::Reserved,
            Owner::Incomplete => FileKind::Incomplete,
            Owner::NotRegular | Owner::Unreadable(_) => FileKind::NotRegular,
        };
        let owner = self.owner.digest(address);
        IndexedFile { address, owner, identity: self.identity, kind, is_older: self.is_older }
    }

    pub(super) fn is_taken(&self) -> bool {
        !matches!(self.owner, Owner::Incomplete)
    }
}

/// The first address from `first` to `last` that is not taken.
pub(super) fn next_free(files: &AddressFiles, first: IpAddr, last: IpAddr) -> Option<IpAddr> {
    let (mut free, last_number) = (number_of(first), number_of(last));
    for (ip, _) in files.range(first..).filter(|(_, file)| file.is_taken()) {
        if number_of(*ip) != free || free > last_number {
            break;
        }
        free = free.checked_add(1)?;
    }
    (free <= last_number).then(|| address_of(free))
}
