//! Changes of the directory. Each file appears complete or not at all, and the index is updated with it.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::{HeldAddress, Locked};
use crate::error::{Error, Result};
use crate::ipam::store::index::{FileKind, Index, IndexedFile};
use crate::ipam::store::lookup_source::{AddressFile, AddressFiles, LookupSource};
use crate::ipam::store::owner::{self, KeepSet, Owner};
use crate::ipam::store::{ASIDE, address_of, failed, files, number_of};
use crate::names::Attachment;

/// The result of `put_in_place`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ipam::store) enum Placed {
    New,
    /// An incomplete file was replaced.
    OverIncomplete,
    /// The name is in use.
    NameInUse,
}

impl Locked<'_> {
    /// Reserves an address. Returns false if it is taken.
    pub fn reserve(&mut self, ip: IpAddr, at: &Attachment) -> Result<bool> {
        self.reserve_as(ip, owner::content(at))
    }

    /// Reserves an address, with a file of this content. Returns false if it is taken.
    pub(in crate::ipam::store) fn reserve_as(
        &mut self,
        ip: IpAddr,
        content: String,
    ) -> Result<bool> {
        if self.is_taken(ip)? {
            return Ok(false);
        }
        self.is_changed = true;
        let placed = self.write_aside(&content).and_then(|(aside, identity)| {
            let target = self.path_of(ip);
            let placed = put_in_place(&aside, &target, files::link);
            Ok((placed.map_err(failed("write", &target))?, identity))
        });
        let error = match (placed, self.remove_aside()) {
            (Ok((Placed::NameInUse, _)), Ok(())) => {
                // No other process holds the lock, so the file existed before, and the index is wrong.
                if !self.reads_files() {
                    self.source = LookupSource::NotLoaded;
                }
                return Ok(false);
            }
            (Ok((placed, identity)), Ok(())) => {
                self.record_reserved(ip, content, identity, placed);
                return Ok(true);
            }
            (Ok((Placed::NameInUse, _)), Err(error)) => error,
            (Ok(_), Err(error)) => {
                error.and(self.remove_file(ip).and_then(|()| self.remove_aside()))
            }
            (Err(error), removed) => error.and(removed),
        };
        self.source = LookupSource::NotLoaded;
        Err(error.context(format_args!("cannot reserve {ip}")))
    }

    /// Releases the addresses that `held_by` returns. An error does not stop the release of the others.
    pub fn release(&mut self, at: &Attachment) -> Result<()> {
        let held = self.held(at)?;
        // An unreadable file can belong to the attachment.
        let errors = self.unreadable().collect();
        self.release_all(held, errors)
    }

    /// For GC: releases the addresses of all attachments except those in `keep`.
    pub fn keep_only(&mut self, keep: &[Attachment]) -> Result<()> {
        let keep_set = KeepSet::new(keep);
        let stale = loop {
            let all = self.look_up(
                |index| index.indexed_files(),
                |files| files.iter().map(|(ip, file)| file.indexed(number_of(*ip))).collect(),
            )?;
            if let Some(stale) = self.stale_in(all, &keep_set) {
                break stale;
            }
            self.source = LookupSource::NotLoaded;
        };
        let errors = self.unreadable().collect();
        self.release_all(stale, errors)
    }

    /// The reservations that GC releases. `None` if a file differs from the index. Reads only the files whose owner is not in
    /// the keep set.
    fn stale_in(&self, all: Vec<IndexedFile>, keep_set: &KeepSet) -> Option<Vec<HeldAddress>> {
        let mut stale = Vec::new();
        for file in all {
            let ip = address_of(file.address);
            let item = (ip, file.owner);
            if let LookupSource::Files(files) = &self.source {
                if files.get(&ip).is_some_and(|file| keep_set.releases(&file.owner)) {
                    stale.push(item);
                }
                continue;
            }
            let is_stale = match file.kind {
                FileKind::Reserved => !keep_set.has(file.owner),
                FileKind::Incomplete => true,
                FileKind::NotRegular => false,
            };
            if is_stale {
                let owner = self.owner_of(ip);
                if owner.digest(file.address) != file.owner {
                    return None;
                }
                if keep_set.releases(&owner) {
                    stale.push(item);
                }
            }
        }
        Some(stale)
    }

    /// Releases stale reservations of an earlier boot, of the addresses for which `is_wanted` returns true. Returns whether
    /// there were any.
    pub fn reclaim(&mut self, is_wanted: impl Fn(IpAddr) -> bool) -> Result<bool> {
        let stale = self.stale(is_wanted)?;
        let has_any = !stale.is_empty();
        self.release_all(stale, Vec::new())?;
        Ok(has_any)
    }

    /// Releases an address that this call reserved for an attachment.
    pub fn release_address(&mut self, ip: IpAddr, at: &Attachment) -> Result<()> {
        self.release_one(ip, owner::digest_of(&owner::content(at)))
    }

    /// Releases a reservation, if its file still has this identity and an owner with this digest. Returns false if not.
    pub(in crate::ipam::store) fn release_if(
        &mut self,
        ip: IpAddr,
        owner: u64,
        identity: u64,
    ) -> Result<bool> {
        let is_same = files::read_identified(&self.path_of(ip)).is_ok_and(|(content, there)| {
            there == identity && Owner::parse(&content).digest(number_of(ip)) == owner
        });
        if is_same {
            self.release_all(vec![(ip, owner)], Vec::new())?;
        }
        Ok(is_same)
    }

    /// Records the last allocated address of a range set. Overwrites the existing file, as the reference does: after a rename
    /// over the file, ext4 would write to the disk at once. If a crash leaves the file incomplete, the next search only
    /// begins at the first address.
    pub fn set_last_reserved(&mut self, set_index: usize, ip: IpAddr) -> Result<()> {
        let target = self.last_reserved_path(set_index);
        let content = ip.to_string();
        let doing = format_args!("cannot record {ip} as the last reserved address");
        let is_written = files::overwrite(&target, &content).map_err(failed("write", &target));
        if is_written.map_err(|error| error.context(doing))? {
            return Ok(());
        }
        self.is_changed = true;
        let written = self
            .write_aside(&content)
            .and_then(|(aside, _)| files::rename(&aside, &target).map_err(failed("write", target)));
        let Err(error) = written else {
            self.has_aside = false;
            return Ok(());
        };
        Err(error.and(self.remove_aside()).context(doing))
    }

    /// Saves the addresses of an identity, for `sticky`. They replace its saved addresses for which `replace` returns true.
    pub fn save_last_addresses(
        &self,
        identity: u64,
        ips: &[IpAddr],
        replace: impl Fn(IpAddr) -> bool,
    ) {
        // If the addresses are not saved, the container gets another address the next time.
        let _ = self.paths.sticky.save_last_addresses(identity, ips, replace);
    }

    /// Writes the index, if it has changed. If that fails, the next call reads the files.
    pub(in crate::ipam::store) fn finish(self) {
        let Self {
            paths, directory: Some(directory), source: LookupSource::Index(mut index), ..
        } = self
        else {
            return;
        };
        if self.is_changed && !self.has_aside {
            // On an error the file is not valid: its header names another state of the directory.
            let _ = index.commit(&paths.index, &directory);
        }
    }

    fn record_reserved(&mut self, ip: IpAddr, content: String, identity: u64, placed: Placed) {
        let file = AddressFile { owner: Owner::Text(content), identity, is_older: false };
        let address = number_of(ip);
        let indexed = file.indexed(address);
        self.update(
            |files| drop(files.insert(ip, file)),
            |index| {
                if placed == Placed::OverIncomplete {
                    index.remove(address, Owner::Incomplete.digest(address))?;
                }
                index.add(indexed)
            },
        );
    }

    /// Updates the data for look-ups with a change of the directory. If that fails, the next look-up loads them again.
    fn update(
        &mut self,
        of_files: impl FnOnce(&mut AddressFiles),
        of_index: impl FnOnce(&mut Index) -> io::Result<()>,
    ) {
        match &mut self.source {
            LookupSource::NotLoaded => {}
            LookupSource::Files(files) => of_files(files),
            LookupSource::Index(index) => {
                if of_index(index).is_err() {
                    self.source = LookupSource::NotLoaded;
                }
            }
        }
    }

    fn release_all(&mut self, items: Vec<HeldAddress>, mut errors: Vec<Error>) -> Result<()> {
        for (ip, owner) in items {
            errors.extend(self.release_one(ip, owner).err());
        }
        errors.extend(self.remove_aside().err());
        Error::joined(errors)
    }

    fn release_one(&mut self, ip: IpAddr, owner: u64) -> Result<()> {
        self.remove_file(ip)?;
        self.update(|files| drop(files.remove(&ip)), |index| index.remove(number_of(ip), owner));
        Ok(())
    }

    fn remove_file(&mut self, ip: IpAddr) -> Result<()> {
        self.is_changed = true;
        let path = self.path_of(ip);
        files::remove(&path).map(drop).map_err(failed("remove", path))
    }

    /// Writes the temporary file. A temporary file that a crash left is removed first and never opened for writing: it can be
    /// a second name of a valid reservation.
    fn write_aside(&mut self, content: &str) -> Result<(PathBuf, u64)> {
        self.remove_aside()?;
        self.has_aside = true;
        let aside = self.paths.dir.join(ASIDE);
        let identity = files::write_new(&aside, content).map_err(failed("write", &aside))?;
        Ok((aside, identity))
    }

    fn remove_aside(&mut self) -> Result<()> {
        if self.has_aside {
            let aside = self.paths.dir.join(ASIDE);
            files::remove(&aside).map_err(failed("remove", aside))?;
            self.has_aside = false;
        }
        Ok(())
    }
}

/// Gives `aside` the name `target` if that name is free. An incomplete file is replaced.
pub(in crate::ipam::store) fn put_in_place(
    aside: &Path,
    target: &Path,
    link: impl FnOnce(&Path, &Path) -> io::Result<bool>,
) -> io::Result<Placed> {
    let is_placed = match link(aside, target) {
        // Some file systems, vfat and FUSE for example, have no links. Then only the lock excludes other processes.
        Err(error)
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) =>
        {
            files::is_absent(target)? && files::rename(aside, target).map(|()| true)?
        }
        linked => linked?,
    };
    if is_placed {
        return Ok(Placed::New);
    }
    match files::read(target) {
        Ok(content) if matches!(Owner::parse(&content), Owner::Incomplete) => {
            files::rename(aside, target)?;
            Ok(Placed::OverIncomplete)
        }
        _ => Ok(Placed::NameInUse),
    }
}
