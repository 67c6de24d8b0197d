//! A locked store: looks up and changes reservations.

mod changes;

use std::collections::HashSet;
use std::mem;
use std::net::IpAddr;
use std::path::PathBuf;

use super::address_files::{AddressFile, AddressFiles, Known};
use super::content::{self, Owner, attachment_in};
use super::{ASIDE, StorePaths, failed, files};
use crate::cni::text;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::names::Attachment;

#[cfg(test)]
pub(super) use changes::{Placed, put_in_place};

/// The number of taken addresses after which the names of all files are read, so that a search passes a long run of them.
const TAKEN_MAX: u32 = 64;

/// The reservations of a network. While a `Locked` exists, this process holds the lock.
///
/// The kernel says whether an address is taken: link(2) fails if its file exists. The addresses of an owner are looked up, and
/// confirmed by their files: a write into a file does not change the directory.
pub struct Locked<'a> {
    paths: &'a StorePaths,
    source: Source,
    /// This call has read all files. If they differ from what is known of the owners later, it does not ask the owners again.
    is_read: bool,
    /// How many addresses were found taken, and after `TAKEN_MAX` the addresses of all files.
    taken: (u32, Option<HashSet<IpAddr>>),
    /// The content of the temporary file and the identity of the file. The file can exist while this is not `None`.
    aside: Option<(String, u64)>,
    /// The directory has changed since it was stamped.
    is_changed: bool,
}

/// What answers which addresses an owner has.
enum Source {
    Owners,
    /// The owners cannot be read or written.
    Files(AddressFiles),
    /// The next look-up reads the files.
    Unknown,
}

/// A reservation to release: its address, and the text of its owner.
type HeldAddress = (IpAddr, String);

impl<'a> Locked<'a> {
    pub(super) fn new(paths: &'a StorePaths) -> Result<Self> {
        let is_current = paths.owners.are_current();
        let source = if is_current { Source::Owners } else { Source::Unknown };
        let mut locked = Self::with(paths, source);
        locked.load()?;
        Ok(locked)
    }

    /// The reservations of a directory that does not exist.
    pub(super) fn empty(paths: &'a StorePaths) -> Self {
        Self::with(paths, Source::Files(AddressFiles::default()))
    }

    fn with(paths: &'a StorePaths, source: Source) -> Self {
        Self { paths, source, is_read: false, taken: (0, None), aside: None, is_changed: false }
    }

    /// If the source is unknown: reads all files, and writes the owners if this is the first read of the call.
    fn load(&mut self) -> Result<()> {
        if !matches!(self.source, Source::Unknown) {
            return Ok(());
        }
        let is_first = !mem::replace(&mut self.is_read, true);
        let (dir, owners) = (&self.paths.dir, &self.paths.owners);
        // A crash can have left the file, or this call. If it stays, the directory is not stamped, and the next write reports the error.
        let is_clean = files::remove(&dir.join(ASIDE)).is_ok();
        if is_clean {
            self.aside = None;
        }
        let before = owners.times();
        let mut files = AddressFiles::read(dir)?;
        let recalled = owners.recall(&mut files);
        let are_written = is_first
            && is_clean
            && recalled.and_then(|recalled| owners.write_all(&files, &recalled)).is_ok()
            && before.is_some_and(|before| owners.times() == Some(before));
        self.is_changed = are_written;
        self.source = if are_written { Source::Owners } else { Source::Files(files) };
        Ok(())
    }

    /// The reservations of the owners that `is_wanted` accepts.
    fn all(&mut self, is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<(String, Known)>> {
        loop {
            self.load()?;
            let found = match &self.source {
                Source::Owners => self.paths.owners.all(is_wanted),
                Source::Files(files) => return Ok(files.all(is_wanted)),
                Source::Unknown => continue,
            };
            match found {
                Ok(all) => return Ok(all),
                Err(_) => self.source = Source::Unknown,
            }
        }
    }

    /// Whether look-ups use what an earlier call knew of the owners.
    #[cfg(test)]
    pub(super) fn knows_owners(&self) -> bool {
        matches!(self.source, Source::Owners) && !self.is_read
    }

    /// The addresses of an attachment. If it has none, those of its container without an interface: old releases of the
    /// reference wrote the container id only.
    pub fn held_by(&mut self, at: &Attachment) -> Result<Vec<IpAddr>> {
        Ok(self.held(at)?.into_iter().map(|(ip, _)| ip).collect())
    }

    fn held(&mut self, at: &Attachment) -> Result<Vec<HeldAddress>> {
        match self.held_by_owner(&content::content(at))? {
            none if none.is_empty() => self.held_by_owner(&at.container_id),
            held => Ok(held),
        }
    }

    fn held_by_owner(&mut self, owner: &str) -> Result<Vec<HeldAddress>> {
        loop {
            self.load()?;
            let known = match &self.source {
                Source::Owners => self.paths.owners.of(owner).ok(),
                Source::Files(files) => Some(
                    files.all(&|other| other == owner).into_iter().map(|(_, one)| one).collect(),
                ),
                Source::Unknown => None,
            };
            if let Some(known) = known
                && known.iter().all(|known: &Known| self.owner_of(known.address).is(owner))
            {
                let mut held: Vec<IpAddr> = known.into_iter().map(|known| known.address).collect();
                held.sort_unstable();
                return Ok(held.into_iter().map(|ip| (ip, owner.to_owned())).collect());
            }
            self.source = Source::Unknown;
        }
    }

    /// Reads the owner of an address from its file. Without a file the address is free, as with an incomplete one.
    fn owner_of(&self, ip: IpAddr) -> Owner {
        AddressFile::read(&self.path_of(ip)).map_or(Owner::Incomplete, |file| file.owner)
    }

    /// Says in words which container has an address. Empty if its file does not say it.
    pub fn holder(&self, ip: IpAddr) -> String {
        let content = files::read(&self.path_of(ip)).unwrap_or_default();
        let content = String::from_utf8_lossy(&content);
        let first = content.lines().next().unwrap_or_default().trim();
        if first.is_empty() { String::new() } else { format!("it is taken by {first}") }
    }

    /// Whether an address is free.
    pub fn is_free(&mut self, ip: IpAddr) -> bool {
        let is_free = matches!(self.owner_of(ip), Owner::Incomplete);
        self.taken.0 += u32::from(!is_free);
        is_free
    }

    /// Whether a search looks at an address. After many taken ones the names of all files are read, and those of complete files
    /// are passed over.
    pub fn may_be_free(&mut self, ip: IpAddr) -> Result<bool> {
        if self.taken.0 < TAKEN_MAX {
            return Ok(true);
        }
        if self.taken.1.is_none() {
            let mut taken: HashSet<IpAddr> = self.addresses()?.into_iter().collect();
            for (_, incomplete) in self.all(&str::is_empty)? {
                taken.remove(&incomplete.address);
            }
            self.taken.1 = Some(taken);
        }
        Ok(self.taken.1.as_ref().is_none_or(|taken| !taken.contains(&ip)))
    }

    /// The addresses with a file, in their order.
    pub fn taken(&self) -> Result<Vec<IpAddr>> {
        let mut taken = self.addresses()?;
        taken.sort_unstable();
        Ok(taken)
    }

    fn addresses(&self) -> Result<Vec<IpAddr>> {
        let dir = &self.paths.dir;
        let entries =
            file::found(files::addresses_in(dir)).map_err(failed("read directory", dir))?;
        Ok(entries.into_iter().flatten().map(|entry| entry.ip).collect())
    }

    /// The saved addresses of an identity, for `sticky`.
    pub fn last_addresses(&self, identity: u64) -> Vec<IpAddr> {
        self.paths.sticky.last_addresses(identity)
    }

    /// The stale reservations: those that a plugin made in an earlier boot, if their files have not changed since.
    fn stale(&mut self, is_wanted: impl Fn(IpAddr) -> bool) -> Result<Vec<HeldAddress>> {
        let all = self.all(&|owner| attachment_in(owner).is_some())?;
        let is_stale = |(owner, known): &(String, Known)| {
            self.paths.owners.is_earlier(known.boot) && is_wanted(known.address) && {
                let found = AddressFile::read(&self.path_of(known.address));
                found.is_some_and(|file| file.is(owner, known.identity))
            }
        };
        let stale = all.into_iter().filter(is_stale);
        Ok(stale.map(|(owner, known)| (known.address, owner)).collect())
    }

    /// Whether `reclaim` would release an address.
    pub fn can_reclaim(&mut self, is_wanted: impl Fn(IpAddr) -> bool) -> Result<bool> {
        Ok(!self.stale(is_wanted)?.is_empty())
    }

    /// The last allocated address of a range set. `None` if the file is missing or has no address.
    pub fn last_reserved(&self, set_index: usize) -> Result<Option<IpAddr>> {
        let path = self.last_reserved_path(set_index);
        let content = file::found(files::read(&path)).map_err(failed("read", path))?;
        Ok(content
            .and_then(|content| text::parse_ip(String::from_utf8_lossy(&content).trim()).ok()))
    }

    /// Fails if the file of an address cannot be read.
    pub fn all_readable(&self) -> Result<()> {
        self.unreadable().next().map_or(Ok(()), Err)
    }

    /// The errors of all unreadable files. With the owners there are none: they are written only if all files are readable.
    fn unreadable(&self) -> impl Iterator<Item = Error> {
        let files = match &self.source {
            Source::Files(files) => Some(files),
            Source::Owners | Source::Unknown => None,
        };
        files.into_iter().flat_map(AddressFiles::errors)
    }

    fn last_reserved_path(&self, set_index: usize) -> PathBuf {
        self.paths.dir.join(format!("last_reserved_ip.{set_index}"))
    }

    fn path_of(&self, ip: IpAddr) -> PathBuf {
        self.paths.dir.join(ip.to_string())
    }
}
