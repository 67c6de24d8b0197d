//! What is known of the reservations of a network: an index to ask, or what all the files say.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use super::directory::{DirState, Directory};
use super::index::{Holder, Index, Kind};
use super::owner::Owner;
use super::{Place, address_of, failed, files, number_of};
use crate::error::Result;

/// Where answers come from.
pub(super) enum Known {
    Index(Index),
    Files(Files),
    /// What there was is not to be believed any more.
    Nothing,
}

/// What was found under the names that are addresses.
pub(super) type Files = BTreeMap<IpAddr, Found>;

pub(super) struct Found {
    pub(super) owner: Owner,
    pub(super) identity: u64,
    /// Made in an earlier boot of this host. False where that is not known: then it may be in use.
    pub(super) is_older: bool,
}

/// Reads every file of the directory; also tells whether there is a left-over.
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
                // Somebody does not mind the lock.
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

/// Notes which reservations an earlier boot left: those that an index knows, be it out of date or not, and that are
/// still the same files. Of others nobody knows when they were made; they count as made in this boot.
pub(super) fn tell_older(files: &mut Files, index: &Index, boot: u64) {
    // Where it is damaged, nothing is known of what it would have said.
    let Ok(holders) = index.holders() else { return };
    for holder in holders.iter().filter(|holder| holder.is_older || index.boot() != boot) {
        if let Some(found) = files.get_mut(&address_of(holder.address)) {
            found.is_older = holder.kind == Kind::Reserved
                && found.identity == holder.identity
                && found.holder(holder.address).owner == holder.owner;
        }
    }
}

/// Makes an index of what was found while the directory had the state that it was stamped with. None where that cannot
/// be, or where the directory was changed meanwhile: then the files have to do.
pub(super) fn make_index(
    place: &Place,
    directory: &Directory,
    stamp: DirState,
    boot: u64,
    files: &Files,
) -> Option<Index> {
    // Whose an unreadable file is cannot be written down.
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

/// The first address that is not taken, of those between two, both included.
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
