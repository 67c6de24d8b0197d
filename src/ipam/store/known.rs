//! The source of look-ups: a valid index, or the content of all files.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use super::directory::{DirState, Directory};
use super::index::{Holder, Index, Kind};
use super::owner::Owner;
use super::{Place, address_of, failed, files, number_of};
use crate::error::Result;

pub(super) enum Known {
    Index(Index),
    Files(Files),
    /// The index or the files are out of date.
    Nothing,
}

/// The files with addresses as names.
pub(super) type Files = BTreeMap<IpAddr, Found>;

pub(super) struct Found {
    pub(super) owner: Owner,
    pub(super) identity: u64,
    /// An earlier boot of this host made the reservation. False if the boot is unknown: the address may be in use.
    pub(super) is_older: bool,
}

/// Reads all files of the directory. Also returns whether an incomplete file exists.
pub(super) fn read_files(dir: &Path, left_over: &str) -> Result<(Files, bool)> {
    let (names, has_left_over) =
        files::addresses_in(dir, left_over).map_err(failed("read directory", dir))?;
    let mut found = Files::new();
    for name in names {
        let path = dir.join(name.ip.to_string());
        let read = if name.is_file {
            files::read_identified(&path)
        } else {
            files::read_any(&path).map(|content| (content, 0))
        };
        let (owner, identity) = match read {
            Ok((content, identity)) => (Owner::parse(&content), identity),
            Err(error) if error.kind() == ErrorKind::NotFound => match files::is_absent(&path) {
                // A program without the lock removed it.
                Ok(true) => continue,
                _ => (Owner::NoFile, 0),
            },
            Err(error) if error.kind() == ErrorKind::IsADirectory => (Owner::NoFile, 0),
            Err(error) => (Owner::Unreadable(failed("read", path)(error)), 0),
        };
        found.insert(name.ip, Found { owner, identity, is_older: false });
    }
    Ok((found, has_left_over))
}

/// Marks the reservations of an earlier boot: the index has them, and their files have not changed since. The index can be
/// out of date. The age of all other reservations is unknown; they count as made in this boot.
pub(super) fn mark_older(files: &mut Files, index: &Index, boot: u64) {
    // A damaged index has no valid data.
    let Ok(holders) = index.holders() else { return };
    for holder in holders.iter().filter(|holder| holder.is_older || index.boot() != boot) {
        if let Some(found) = files.get_mut(&address_of(holder.address)) {
            found.is_older = holder.kind == Kind::Reserved
                && found.identity == holder.identity
                && found.holder(holder.address).owner == holder.owner;
        }
    }
}

/// Builds an index of files that were read while the directory had the state `stamp`. Returns `None` if that fails or the
/// directory has changed since: then the files are used.
pub(super) fn make_index(
    place: &Place,
    directory: &Directory,
    stamp: DirState,
    boot: u64,
    files: &Files,
) -> Option<Index> {
    // An index cannot hold an unknown owner.
    if files.values().any(|found| matches!(found.owner, Owner::Unreadable(_))) {
        return None;
    }
    let holders: Vec<Holder> =
        files.iter().map(|(ip, found)| found.holder(number_of(*ip))).collect();
    let mut index = Index::create(&place.index, boot, &holders).ok()?;
    let is_same = directory.state().ok()? == stamp;
    (is_same && index.commit_as(stamp).is_ok()).then_some(index)
}

impl Found {
    pub(super) fn holder(&self, address: u128) -> Holder {
        let kind = match &self.owner {
            Owner::Text(_) => Kind::Reserved,
            Owner::Torn => Kind::Torn,
            Owner::NoFile | Owner::Unreadable(_) => Kind::NoFile,
        };
        let owner = self.owner.digest(address);
        Holder { address, owner, identity: self.identity, kind, is_older: self.is_older }
    }

    pub(super) fn is_taken(&self) -> bool {
        !matches!(self.owner, Owner::Torn)
    }
}

/// The first address from `first` to `last` that is not taken.
pub(super) fn next_free(files: &Files, first: IpAddr, last: IpAddr) -> Option<IpAddr> {
    let (mut free, last_number) = (number_of(first), number_of(last));
    if first > last {
        return None;
    }
    for (ip, _) in files.range(first..=last).filter(|(_, found)| found.is_taken()) {
        if number_of(*ip) != free {
            break;
        }
        free = free.checked_add(1)?;
    }
    (free <= last_number).then(|| address_of(free))
}
