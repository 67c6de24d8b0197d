//! A locked store: looks up and changes reservations.

mod changes;

use std::io::{self, ErrorKind};
use std::mem;
use std::net::IpAddr;
use std::path::PathBuf;

use super::directory::{DirState, Directory};
use super::index::{FileKind, Index, IndexedFile};
use super::lookup_source::{self, AddressFile, AddressFiles, LookupSource};
use super::owner::{self, KeepSet, Owner};
use super::{ASIDE, StorePaths, address_of, failed, files, number_of};
use crate::cni::text;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::names::Attachment;

#[cfg(test)]
pub(super) use changes::{Placed, put_in_place};

/// The reservations of a network. While a `Locked` exists, this process holds the lock.
///
/// Look-ups use the index. If it is not valid, they read all files and build a new index. Before an address is released,
/// refused or confirmed, the index is compared with the address's file: a write into a file does not change the state of the
/// directory.
pub struct Locked<'a> {
    paths: &'a StorePaths,
    /// `None` if the directory does not exist or cannot be opened.
    directory: Option<Directory>,
    source: LookupSource,
    /// This call has read all files. If the index differs from them later, this call builds no other index.
    is_read: bool,
    /// The temporary file can exist.
    has_aside: bool,
    /// The directory has changed since the index was committed.
    is_changed: bool,
}

/// A reservation to release: its address, and the digest of its owner.
type HeldAddress = (IpAddr, u64);

impl<'a> Locked<'a> {
    pub(super) fn new(paths: &'a StorePaths) -> Result<Self> {
        let directory = Directory::open(&paths.dir).ok();
        let mut locked = Self { directory, ..Self::empty(paths) };
        locked.source = locked.current_index().map_or(LookupSource::NotLoaded, LookupSource::Index);
        locked.load()?;
        Ok(locked)
    }

    /// The reservations of a directory that does not exist.
    pub(super) fn empty(paths: &'a StorePaths) -> Self {
        Self {
            paths,
            directory: None,
            source: LookupSource::Files(AddressFiles::default()),
            is_read: false,
            has_aside: false,
            is_changed: false,
        }
    }

    /// The index, if it is valid for the present state of the directory and this boot.
    fn current_index(&self) -> Option<Index> {
        let state = self.directory.as_ref()?.state().ok()?;
        let index = Index::open(&self.paths.index).ok()?;
        index.is_of(&state, self.paths.boot?).then_some(index)
    }

    /// If no source is loaded: reads all files, and builds an index if this is the first read of the call. If no index can
    /// be built, look-ups use the files.
    fn load(&mut self) -> Result<()> {
        if !matches!(self.source, LookupSource::NotLoaded) {
            return Ok(());
        }
        let is_first = !mem::replace(&mut self.is_read, true);
        // If this fails, no index is built, and the next write reports the error.
        let _ = files::remove(&self.paths.dir.join(ASIDE));
        let old = Index::open(&self.paths.index).ok();
        let stamp = self.directory.as_ref().filter(|_| is_first).and_then(|directory| {
            let last = old.as_ref().map_or_else(DirState::default, |index| *index.directory());
            directory.stamp(&last).ok()
        });
        let (mut files, has_aside) = lookup_source::read_files(&self.paths.dir, ASIDE)?;
        self.has_aside = has_aside;
        if let (Some(old), Some(boot)) = (&old, self.paths.boot) {
            lookup_source::mark_older(&mut files, old, boot);
        }
        let index = match (&self.directory, stamp, self.paths.boot) {
            (Some(directory), Some(stamp), Some(boot)) if !has_aside => {
                lookup_source::make_index(self.paths, directory, stamp, boot, &files)
            }
            _ => None,
        };
        self.is_changed = index.is_none();
        self.source = index.map_or(LookupSource::Files(files), LookupSource::Index);
        Ok(())
    }

    pub(super) fn look_up<T>(
        &mut self,
        of_index: impl Fn(&mut Index) -> io::Result<T>,
        of_files: impl Fn(&AddressFiles) -> T,
    ) -> Result<T> {
        // If the index is damaged, `load` builds a new one. If that is damaged, too, `load` returns the files.
        loop {
            self.load()?;
            match &mut self.source {
                LookupSource::Index(index) => match of_index(index) {
                    Ok(answer) => return Ok(answer),
                    Err(_) => self.source = LookupSource::NotLoaded,
                },
                LookupSource::Files(files) => return Ok(of_files(files)),
                LookupSource::NotLoaded => {}
            }
        }
    }

    /// Whether look-ups use an index from an earlier call.
    #[cfg(test)]
    pub(super) fn has_index(&self) -> bool {
        matches!(self.source, LookupSource::Index(_)) && !self.is_read
    }

    /// Whether look-ups use the files, which need no comparison.
    fn reads_files(&self) -> bool {
        matches!(self.source, LookupSource::Files(_))
    }

    /// The addresses of an attachment. If it has none, those of its container without an interface: old releases of the
    /// reference wrote the container id only.
    pub fn held_by(&mut self, at: &Attachment) -> Result<Vec<IpAddr>> {
        Ok(self.held(at)?.into_iter().map(|(ip, _)| ip).collect())
    }

    fn held(&mut self, at: &Attachment) -> Result<Vec<HeldAddress>> {
        match self.held_by_owner(&owner::content(at))? {
            none if none.is_empty() => self.held_by_owner(&at.container_id),
            held => Ok(held),
        }
    }

    fn held_by_owner(&mut self, owner: &str) -> Result<Vec<HeldAddress>> {
        let digest = owner::digest_of(owner);
        loop {
            let mut held = self.look_up(
                |index| Ok(index.held_by(digest)?.into_iter().map(address_of).collect::<Vec<_>>()),
                |files| {
                    let owned = files.iter().filter(|(_, file)| file.owner.is(owner));
                    owned.map(|(ip, _)| *ip).collect()
                },
            )?;
            held.sort_unstable();
            let is_confirmed = |ip: &IpAddr| {
                files::read(&self.path_of(*ip))
                    .is_ok_and(|content| Owner::parse(&content).is(owner))
            };
            if self.reads_files() || held.iter().all(is_confirmed) {
                return Ok(held.into_iter().map(|ip| (ip, digest)).collect());
            }
            self.source = LookupSource::NotLoaded;
        }
    }

    /// Reads the owner of an address from its file. Without a file the address is free, as with an incomplete one.
    fn owner_of(&self, ip: IpAddr) -> Owner {
        match files::read(&self.path_of(ip)) {
            Ok(content) => Owner::parse(&content),
            Err(error) if error.kind() == ErrorKind::NotFound => Owner::Incomplete,
            Err(_) => Owner::NotRegular,
        }
    }

    /// Says in words which container has an address. Empty if its file does not say it.
    pub fn holder(&self, ip: IpAddr) -> String {
        let content = files::read(&self.path_of(ip)).unwrap_or_default();
        let content = String::from_utf8_lossy(&content);
        let first = content.lines().next().unwrap_or_default().trim();
        if first.is_empty() { String::new() } else { format!("it is taken by {first}") }
    }

    /// Whether an address is taken. If it is taken in the index, also reads its file, and drops an index that differs.
    fn is_taken(&mut self, ip: IpAddr) -> Result<bool> {
        loop {
            let is_taken = self.look_up(
                |index| index.is_taken(number_of(ip)),
                |files| files.get(&ip).is_some_and(AddressFile::is_taken),
            )?;
            if !is_taken || self.reads_files() || !matches!(self.owner_of(ip), Owner::Incomplete) {
                return Ok(is_taken);
            }
            self.source = LookupSource::NotLoaded;
        }
    }

    /// Whether an address that is free in the index is also free by its file. Drops an index that differs.
    pub fn is_free(&mut self, ip: IpAddr) -> Result<bool> {
        let is_free = matches!(self.owner_of(ip), Owner::Incomplete);
        if !is_free && !self.reads_files() {
            self.source = LookupSource::NotLoaded;
        }
        Ok(is_free)
    }

    /// The first address from `first` to `last` that is not taken.
    pub fn next_free(&mut self, first: IpAddr, last: IpAddr) -> Result<Option<IpAddr>> {
        self.look_up(
            |index| {
                let free = index.next_free(number_of(first), number_of(last))?;
                Ok(free.map(address_of))
            },
            |files| lookup_source::next_free(files, first, last),
        )
    }

    /// Compares the number of files with the index, and drops an index that differs. Called before a range counts as
    /// exhausted: a program without the lock can have removed files while the index was written. Returns true if the index
    /// was dropped, so that a new search can find an address.
    pub fn drop_index_if_count_differs(&mut self) -> Result<bool> {
        let dir = &self.paths.dir;
        let is_right = match &self.source {
            LookupSource::Index(index) if !self.is_read => {
                let (names, _) =
                    files::addresses_in(dir, ASIDE).map_err(failed("read directory", dir))?;
                index.indexed_files().is_ok_and(|indexed_files| indexed_files.len() == names.len())
            }
            _ => true,
        };
        if !is_right {
            self.source = LookupSource::NotLoaded;
        }
        Ok(!is_right)
    }

    /// The saved addresses of an identity, for `sticky`.
    pub fn last_addresses(&self, identity: u64) -> Vec<IpAddr> {
        self.paths.sticky.last_addresses(identity)
    }

    /// The stale reservations: those that a plugin made in an earlier boot, if their files have not changed since.
    fn stale(&mut self, is_wanted: impl Fn(IpAddr) -> bool) -> Result<Vec<HeldAddress>> {
        let older = self.look_up(
            |index| if index.has_older() { index.indexed_files() } else { Ok(Vec::new()) },
            |files| files.iter().map(|(ip, file)| file.indexed(number_of(*ip))).collect(),
        )?;
        let no_attachments = KeepSet::new(&[]);
        let is_stale = |file: &IndexedFile| {
            let path = self.path_of(address_of(file.address));
            files::read_identified(&path).is_ok_and(|(content, identity)| {
                identity == file.identity && no_attachments.releases(&Owner::parse(&content))
            })
        };
        let wanted = older.into_iter().filter(|file| {
            file.is_older && file.kind == FileKind::Reserved && is_wanted(address_of(file.address))
        });
        let items = wanted.filter(is_stale);
        Ok(items.map(|file| (address_of(file.address), file.owner)).collect())
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

    /// The errors of all unreadable files. With an index there are none: it is built only if all files are readable.
    fn unreadable(&self) -> impl Iterator<Item = Error> {
        let files = match &self.source {
            LookupSource::Files(files) => Some(files),
            LookupSource::Index(_) | LookupSource::NotLoaded => None,
        };
        files.into_iter().flat_map(AddressFiles::values).filter_map(|file| match &file.owner {
            Owner::Unreadable(error) => Some(error.clone()),
            _ => None,
        })
    }

    fn last_reserved_path(&self, set_index: usize) -> PathBuf {
        self.paths.dir.join(format!("last_reserved_ip.{set_index}"))
    }

    fn path_of(&self, ip: IpAddr) -> PathBuf {
        self.paths.dir.join(ip.to_string())
    }
}
