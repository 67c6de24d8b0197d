//! Changes of the directory. Each file appears complete or not at all.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::{HeldAddress, Locked, Source};
use crate::error::{Error, Result};
use crate::ipam::store::address_files::{AddressFile, Known};
use crate::ipam::store::content::{self, KeepSet, Owner};
use crate::ipam::store::owners::Owners;
use crate::ipam::store::{ASIDE, failed, files};
use crate::names::Attachment;

/// The result of `put_in_place`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ipam::store) enum Placed {
    /// The name was free, or that of an incomplete file, which was replaced.
    New,
    /// The name is in use.
    NameInUse,
}

impl Locked<'_> {
    /// Reserves an address. Returns false if it is taken.
    pub fn reserve(&mut self, ip: IpAddr, at: &Attachment) -> Result<bool> {
        self.reserve_as(ip, &content::content(at))
    }

    /// Reserves an address, with a file of this content. Returns false if it is taken.
    pub(in crate::ipam::store) fn reserve_as(&mut self, ip: IpAddr, content: &str) -> Result<bool> {
        self.is_changed = true;
        let target = self.path_of(ip);
        let placed = self.write_aside(content).and_then(|(aside, identity)| {
            let placed = put_in_place(&aside, &target, files::link);
            Ok((placed.map_err(failed("write", &target))?, identity))
        });
        let error = match placed {
            // The temporary file stays for the next address.
            Ok((Placed::NameInUse, _)) => {
                self.taken.0 += 1;
                return Ok(false);
            }
            Ok((Placed::New, identity)) => match self.remove_aside() {
                Ok(()) => {
                    self.note(|owners| owners.add(content, ip, identity));
                    return Ok(true);
                }
                Err(error) => error.and(self.remove_file(ip).and_then(|()| self.remove_aside())),
            },
            Err(error) => error.and(self.remove_aside()),
        };
        self.source = Source::Unknown;
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
            let stale = self.all(&|owner| keep_set.releases(owner))?;
            let is_confirmed =
                |(owner, known): &(String, Known)| self.owner_of(known.address).is(owner);
            if stale.iter().all(is_confirmed) {
                break stale;
            }
            self.source = Source::Unknown;
        };
        let errors = self.unreadable().collect();
        let stale = stale.into_iter().map(|(owner, known)| (known.address, owner));
        self.release_all(stale.collect(), errors)
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
        self.release_one(ip, &content::content(at))
    }

    /// Releases a reservation, if its file still has this identity and this owner. Returns false if not.
    pub(in crate::ipam::store) fn release_if(
        &mut self,
        ip: IpAddr,
        owner: &str,
        identity: u64,
    ) -> Result<bool> {
        let found = AddressFile::read(&self.path_of(ip));
        let is_same = found.is_some_and(|file| file.is(owner, identity));
        if is_same {
            self.release_all(vec![(ip, owner.to_owned())], Vec::new())?;
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
            self.aside = None;
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

    /// Removes the temporary file, and stamps the directory if it has changed. If that fails, the next call reads the files.
    pub(in crate::ipam::store) fn finish(mut self) {
        let is_removed = self.remove_aside().is_ok();
        if self.is_changed && is_removed && matches!(self.source, Source::Owners) {
            let _ = self.paths.owners.stamp();
        }
    }

    /// Updates the owners with a change of the directory. If that fails, the next look-up reads the files.
    fn note(&mut self, change: impl FnOnce(&Owners) -> io::Result<()>) {
        if !matches!(self.source, Source::Owners) || change(&self.paths.owners).is_err() {
            self.source = Source::Unknown;
        }
    }

    fn release_all(&mut self, items: Vec<HeldAddress>, mut errors: Vec<Error>) -> Result<()> {
        for (ip, owner) in items {
            errors.extend(self.release_one(ip, &owner).err());
        }
        errors.extend(self.remove_aside().err());
        Error::joined(errors)
    }

    fn release_one(&mut self, ip: IpAddr, owner: &str) -> Result<()> {
        self.remove_file(ip)?;
        self.note(|owners| owners.remove(owner, ip));
        Ok(())
    }

    fn remove_file(&mut self, ip: IpAddr) -> Result<()> {
        self.is_changed = true;
        self.taken = (0, None);
        let path = self.path_of(ip);
        files::remove(&path).map(drop).map_err(failed("remove", path))
    }

    /// Writes the temporary file, or finds the one with this content. A file that a crash left is never opened for writing: it
    /// can be a second name of a valid reservation.
    fn write_aside(&mut self, content: &str) -> Result<(PathBuf, u64)> {
        let aside = self.paths.dir.join(ASIDE);
        if let Some((written, identity)) = &self.aside
            && written == content
        {
            return Ok((aside, *identity));
        }
        self.remove_aside()?;
        self.aside = Some((String::new(), 0));
        let identity = files::write_new(&aside, content).map_err(failed("write", &aside))?;
        self.aside = Some((content.to_owned(), identity));
        Ok((aside, identity))
    }

    fn remove_aside(&mut self) -> Result<()> {
        if self.aside.is_some() {
            let aside = self.paths.dir.join(ASIDE);
            files::remove(&aside).map_err(failed("remove", aside))?;
            self.aside = None;
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
            Ok(Placed::New)
        }
        _ => Ok(Placed::NameInUse),
    }
}
