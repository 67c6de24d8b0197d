//! The source of look-ups: a valid index, or the content of all files.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use super::directory::{DirState, Directory};
use super::index::{Holder, Index, Kind};
use super::owner::Owner;
use super::{StorePaths, address_of, failed, files, number_of};
use crate::error::Result;

pub(super) enum Known {
    Index(Index),
    Files(Files),
    /// The index or the files are out of date.
    Nothing,
}

/// The files with addresses as names, sorted by address. A removed file leaves an empty place, so that the removal of all
/// takes linear time.
#[derive(Default)]
pub(super) struct Files(Vec<(IpAddr, Option<Found>)>);

pub(super) struct Found {
    pub(super) owner: Owner,
    pub(super) identity: u64,
    /// An earlier boot of this host made the reservation. False if the boot is unknown: the address may be in use.
    pub(super) is_older: bool,
}

impl Files {
    fn sorted(mut list: Vec<(IpAddr, Option<Found>)>) -> Self {
        list.sort_unstable_by_key(|(ip, _)| *ip);
        list.dedup_by_key(|(ip, _)| *ip);
        Self(list)
    }

    fn place(&self, ip: IpAddr) -> Result<usize, usize> {
        self.0.binary_search_by_key(&ip, |(ip, _)| *ip)
    }

    pub(super) fn get(&self, ip: IpAddr) -> Option<&Found> {
        self.place(ip).ok().and_then(|at| self.0[at].1.as_ref())
    }

    fn get_mut(&mut self, ip: IpAddr) -> Option<&mut Found> {
        self.place(ip).ok().and_then(|at| self.0[at].1.as_mut())
    }

    pub(super) fn insert(&mut self, ip: IpAddr, found: Found) {
        match self.place(ip) {
            Ok(at) => self.0[at].1 = Some(found),
            Err(at) => self.0.insert(at, (ip, Some(found))),
        }
    }

    pub(super) fn remove(&mut self, ip: IpAddr) {
        if let Ok(at) = self.place(ip) {
            self.0[at].1 = None;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &Found)> {
        self.0.iter().filter_map(|(ip, found)| Some((*ip, found.as_ref()?)))
    }
}

/// Reads all files of the directory. Also returns whether an incomplete file exists.
pub(super) fn read_files(dir: &Path, left_over: &str) -> Result<(Files, bool)> {
    let (names, has_left_over) =
        files::addresses_in(dir, left_over).map_err(failed("read directory", dir))?;
    let mut found = Vec::new();
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
        found.push((name.ip, Some(Found { owner, identity, is_older: false })));
    }
    Ok((Files::sorted(found), has_left_over))
}

/// Marks the reservations of an earlier boot: the index has them, and their files have not changed since. The index can be
/// out of date. The age of all other reservations is unknown; they count as made in this boot.
pub(super) fn mark_older(files: &mut Files, index: &Index, boot: u64) {
    // A damaged index has no valid data.
    let Ok(holders) = index.holders() else { return };
    for holder in holders.iter().filter(|holder| holder.is_older || index.boot() != boot) {
        if let Some(found) = files.get_mut(address_of(holder.address)) {
            found.is_older = holder.kind == Kind::Reserved
                && found.identity == holder.identity
                && found.holder(holder.address).owner == holder.owner;
        }
    }
}

/// Builds an index of files that were read while the directory had the state `stamp`. Returns `None` if that fails or the
/// directory has changed since: then the files are used.
pub(super) fn make_index(
    paths: &StorePaths,
    directory: &Directory,
    stamp: DirState,
    boot: u64,
    files: &Files,
) -> Option<Index> {
    // An index cannot hold an unknown owner.
    if files.iter().any(|(_, found)| matches!(found.owner, Owner::Unreadable(_))) {
        return None;
    }
    let holders: Vec<Holder> =
        files.iter().map(|(ip, found)| found.holder(number_of(ip))).collect();
    let mut index = Index::create(&paths.index, boot, &holders).ok()?;
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
    let (Ok(from) | Err(from)) = files.place(first);
    for (ip, found) in &files.0[from..] {
        if !found.as_ref().is_some_and(Found::is_taken) {
            continue;
        }
        if number_of(*ip) != free || free > last_number {
            break;
        }
        free = free.checked_add(1)?;
    }
    (free <= last_number).then(|| address_of(free))
}
