//! A store whose lock we have: who holds what, and how that is changed.

mod changes;

use std::io::{self, ErrorKind};
use std::mem;
use std::net::IpAddr;
use std::path::PathBuf;

use super::directory::{DirState, Directory};
use super::index::{Holder, Index, Kind};
use super::known::{self, Files, Known};
use super::owner::{self, KeepSet, Owner};
use super::{ASIDE, Place, address_of, failed, files, number_of};
use crate::cni::text;
use crate::error::{Error, Result};
use crate::names::Attachment;

#[cfg(test)]
pub(super) use changes::{Placed, put_in_place};

/// Having a `Locked` is proof that nobody else touches the store.
///
/// It asks the index, or, where there is none to be believed, the files, and then makes an index for the next one. What
/// the index says of an address that is given back, kept from somebody or confirmed, is compared with the one file that
/// it is about: others may have written into a file, which changes no directory.
pub struct Locked<'a> {
    place: &'a Place,
    /// None when there is nothing, or nothing that can be looked at as a whole.
    directory: Option<Directory>,
    known: Known,
    /// Everything has been read in this very call. If that is not right either, nothing is written down.
    is_read: bool,
    has_aside: bool,
    /// The directory is not in the state any more that the index was committed with.
    is_changed: bool,
}

/// A reservation that is to be given back: its address, and what its owner is found by.
type Item = (IpAddr, u64);

impl<'a> Locked<'a> {
    pub(super) fn new(place: &'a Place) -> Result<Self> {
        let directory = Directory::open(&place.dir).ok();
        let mut locked = Self { directory, ..Self::of_nothing(place) };
        locked.known = locked.current_index().map_or(Known::Nothing, Known::Index);
        locked.know()?;
        Ok(locked)
    }

    /// Of a directory that is not there.
    pub(super) fn of_nothing(place: &'a Place) -> Self {
        Self {
            place,
            directory: None,
            known: Known::Files(Files::new()),
            is_read: false,
            has_aside: false,
            is_changed: false,
        }
    }

    fn current_index(&self) -> Option<Index> {
        let state = self.directory.as_ref()?.state().ok()?;
        let index = Index::open(&self.place.index.path).ok()?;
        index.is_of(&state, self.place.boot?).then_some(index)
    }

    /// Makes sure that there is something to ask: reads all files, and makes an index of them the first time. Whatever
    /// goes wrong with that, there are still the files.
    fn know(&mut self) -> Result<()> {
        if !matches!(self.known, Known::Nothing) {
            return Ok(());
        }
        let is_first = !mem::replace(&mut self.is_read, true);
        // A left-over that cannot be removed is one more reason to make no index; who writes will say why.
        let _ = files::remove(&self.place.dir.join(ASIDE));
        let old = Index::open(&self.place.index.path).ok();
        let stamp = self.directory.as_ref().filter(|_| is_first).and_then(|directory| {
            let last = old.as_ref().map_or_else(DirState::default, |index| *index.directory());
            directory.stamp(&last).ok()
        });
        let (mut files, has_aside) = known::read_files(&self.place.dir, ASIDE)?;
        self.has_aside = has_aside;
        if let (Some(old), Some(boot)) = (&old, self.place.boot) {
            known::tell_older(&mut files, old, boot);
        }
        let index = match (&self.directory, stamp, self.place.boot) {
            (Some(directory), Some(stamp), Some(boot)) if !has_aside => {
                known::make_index(self.place, directory, stamp, boot, &files)
            }
            _ => None,
        };
        self.is_changed = index.is_none();
        self.known = index.map_or(Known::Files(files), Known::Index);
        Ok(())
    }

    fn ask<T>(
        &mut self,
        of_index: impl Fn(&mut Index) -> io::Result<T>,
        of_files: impl Fn(&Files) -> T,
    ) -> Result<T> {
        // An index that fails is followed by a new one, and that by the files themselves.
        loop {
            self.know()?;
            match &mut self.known {
                Known::Index(index) => match of_index(index) {
                    Ok(answer) => return Ok(answer),
                    Err(_) => self.known = Known::Nothing,
                },
                Known::Files(files) => return Ok(of_files(files)),
                Known::Nothing => {}
            }
        }
    }

    /// Whether an index is asked that another call has made.
    #[cfg(test)]
    pub(super) fn has_index(&self) -> bool {
        matches!(self.known, Known::Index(_)) && !self.is_read
    }

    fn is_certain(&self) -> bool {
        matches!(self.known, Known::Files(_))
    }

    /// The addresses of an attachment: those in its name, else those that an old release of the reference left in
    /// the name of its container.
    pub fn held_by(&mut self, at: &Attachment) -> Result<Vec<IpAddr>> {
        Ok(self.held(at)?.into_iter().map(|(ip, _)| ip).collect())
    }

    fn held(&mut self, at: &Attachment) -> Result<Vec<Item>> {
        match self.held_in_name(&owner::content(at))? {
            none if none.is_empty() => self.held_in_name(&at.container_id),
            held => Ok(held),
        }
    }

    fn held_in_name(&mut self, owner: &str) -> Result<Vec<Item>> {
        let digest = owner::digest_of(owner);
        loop {
            let mut held = self.ask(
                |index| Ok(index.held_by(digest)?.into_iter().map(address_of).collect::<Vec<_>>()),
                |files| {
                    let its = files.iter().filter(|(_, found)| found.owner.is(owner));
                    its.map(|(ip, _)| *ip).collect()
                },
            )?;
            held.sort();
            let is_still = |ip: &IpAddr| {
                files::read(&self.path_of(*ip)).is_ok_and(|it| Owner::parse(&it).is(owner))
            };
            if self.is_certain() || held.iter().all(is_still) {
                return Ok(held.into_iter().map(|ip| (ip, digest)).collect());
            }
            self.known = Known::Nothing;
        }
    }

    /// What the file of an address says now.
    fn owner_of(&self, ip: IpAddr) -> Owner {
        match files::read_any(&self.path_of(ip)) {
            Ok(content) => Owner::parse(&content),
            Err(error) if error.kind() == ErrorKind::NotFound => Owner::Torn,
            Err(_) => Owner::NoFile,
        }
    }

    fn is_taken(&mut self, ip: IpAddr) -> Result<bool> {
        loop {
            let is_taken = self.ask(
                |index| index.is_taken(number_of(ip)),
                |files| files.get(&ip).is_some_and(known::Found::is_taken),
            )?;
            if !is_taken || self.is_certain() || !matches!(self.owner_of(ip), Owner::Torn) {
                return Ok(is_taken);
            }
            self.known = Known::Nothing;
        }
    }

    /// Whether an address that seems to be free is.
    pub fn is_free(&mut self, ip: IpAddr) -> Result<bool> {
        let is_free = matches!(self.owner_of(ip), Owner::Torn);
        if !is_free && !self.is_certain() {
            self.known = Known::Nothing;
        }
        Ok(is_free)
    }

    /// The first address that is not taken, of those between two, both included.
    pub fn next_free(&mut self, first: IpAddr, last: IpAddr) -> Result<Option<IpAddr>> {
        self.ask(
            |index| {
                let free = index.next_free(number_of(first), number_of(last))?;
                Ok(free.map(address_of))
            },
            |files| known::next_free(files, first, last),
        )
    }

    /// Counts the files, for who finds nothing free: somebody who does not mind the lock may have removed some at the
    /// very moment at which we wrote down what there is. Whether there is a reason to look again.
    pub fn has_lost_count(&mut self) -> Result<bool> {
        let dir = &self.place.dir;
        let is_right = match &self.known {
            Known::Index(index) if !self.is_read => {
                let (names, _) =
                    files::addresses_in(dir, ASIDE).map_err(failed("read directory", dir))?;
                index.holders().is_ok_and(|holders| holders.len() == names.len())
            }
            _ => true,
        };
        if !is_right {
            self.known = Known::Nothing;
        }
        Ok(!is_right)
    }

    /// The addresses that an identity had last.
    pub fn recall(&self, identity: u64) -> Vec<IpAddr> {
        self.place.sticky.recall(identity)
    }

    /// The reservations among those of an earlier boot that are what they were then, and that a plugin made.
    fn left_behind(&mut self, is_wanted: impl Fn(IpAddr) -> bool) -> Result<Vec<Item>> {
        let older = self.ask(
            |index| if index.has_older() { index.holders() } else { Ok(Vec::new()) },
            |files| files.iter().map(|(ip, found)| found.holder(number_of(*ip))).collect(),
        )?;
        let no_attachments = KeepSet::new(&[]);
        let is_left_behind = |holder: &Holder| {
            let path = self.path_of(address_of(holder.address));
            files::read_identified(&path).is_ok_and(|(content, identity)| {
                identity == holder.identity && no_attachments.releases(&Owner::parse(&content))
            })
        };
        let wanted = older.into_iter().filter(|holder| {
            holder.is_older
                && holder.kind == Kind::Reserved
                && is_wanted(address_of(holder.address))
        });
        let items = wanted.filter(is_left_behind);
        Ok(items.map(|holder| (address_of(holder.address), holder.owner)).collect())
    }

    /// Whether `reclaim` would find something.
    pub fn can_reclaim(&mut self, is_wanted: impl Fn(IpAddr) -> bool) -> Result<bool> {
        Ok(!self.left_behind(is_wanted)?.is_empty())
    }

    /// The address that was given out last from a range set; one that cannot be read as an address is none.
    pub fn last_reserved(&self, set_index: usize) -> Result<Option<IpAddr>> {
        let path = self.last_reserved_path(set_index);
        match files::read(&path) {
            Ok(content) => Ok(text::parse_ip(String::from_utf8_lossy(&content).trim()).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", path)(error)),
        }
    }

    /// Fails when there is a reservation of which it cannot be told whose it is.
    pub fn all_readable(&self) -> Result<()> {
        self.unreadable().next().map_or(Ok(()), Err)
    }

    /// An index is made of readable files only.
    fn unreadable(&self) -> impl Iterator<Item = Error> {
        let files = match &self.known {
            Known::Files(files) => Some(files),
            Known::Index(_) | Known::Nothing => None,
        };
        files.into_iter().flat_map(|files| files.values()).filter_map(|found| match &found.owner {
            Owner::Unreadable(error) => Some(error.clone()),
            _ => None,
        })
    }

    fn last_reserved_path(&self, set_index: usize) -> PathBuf {
        self.place.dir.join(format!("last_reserved_ip.{set_index}"))
    }

    fn path_of(&self, ip: IpAddr) -> PathBuf {
        self.place.dir.join(ip.to_string())
    }
}
