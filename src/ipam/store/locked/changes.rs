//! What changes the directory: every file whole or not at all, and what is known with it.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::{Item, Locked};
use crate::error::{Error, Result};
use crate::ipam::store::index::{Holder, Kind};
use crate::ipam::store::known::{Found, Known};
use crate::ipam::store::owner::{self, KeepSet, Owner};
use crate::ipam::store::{ASIDE, address_of, failed, files, number_of};
use crate::names::Attachment;

/// What became of a file that was to be put in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ipam::store) enum Placed {
    New,
    /// In the place of one that a crash had left.
    OverTorn,
    /// Somebody has the name.
    Not,
}

impl Locked<'_> {
    /// Takes an address; false when somebody has it.
    pub fn reserve(&mut self, ip: IpAddr, at: &Attachment) -> Result<bool> {
        if self.is_taken(ip)? {
            return Ok(false);
        }
        let content = owner::content(at);
        self.is_changed = true;
        let placed = self.write_aside(&content).and_then(|(aside, identity)| {
            let target = self.path_of(ip);
            let placed = put_in_place(&aside, &target, files::link);
            Ok((placed.map_err(failed("write", &target))?, identity))
        });
        let error = match (placed, self.remove_left_over()) {
            (Ok((Placed::Not, _)), Ok(())) => {
                // Nobody else has the lock, so it was there before, and what we know is wrong.
                if !self.is_certain() {
                    self.known = Known::Nothing;
                }
                return Ok(false);
            }
            (Ok((placed, identity)), Ok(())) => {
                self.note_reserved(ip, content, identity, placed);
                return Ok(true);
            }
            (Ok((Placed::Not, _)), Err(error)) | (Err(error), Ok(())) => error,
            (Ok(_), Err(error)) => {
                match self.remove_file(ip).and_then(|()| self.remove_left_over()) {
                    Ok(()) => error,
                    Err(undo) => error.also(&undo),
                }
            }
            (Err(error), Err(undo)) => error.also(&undo),
        };
        self.known = Known::Nothing;
        Err(error.context(format_args!("cannot reserve {ip}")))
    }

    /// Gives back what `held_by` lists, as far as it can, and reports what it cannot.
    pub fn release(&mut self, at: &Attachment) -> Result<()> {
        let held = self.held(at)?;
        // One that cannot be read may be the attachment's too.
        let errors = self.unreadable().collect();
        self.release_all(held, errors)
    }

    /// Gives back whatever belongs to none of these attachments.
    pub fn keep_only(&mut self, keep: &[Attachment]) -> Result<()> {
        let keep_set = KeepSet::new(keep);
        let stale = loop {
            let all = self.ask(
                |index| index.holders(),
                |files| files.iter().map(|(ip, found)| found.holder(number_of(*ip))).collect(),
            )?;
            if let Some(stale) = self.not_among(&keep_set, all) {
                break stale;
            }
            self.known = Known::Nothing;
        };
        let errors = self.unreadable().collect();
        self.release_all(stale, errors)
    }

    /// None when a file is not what the index says. Only what is not to be keep_set is read.
    fn not_among(&self, keep_set: &KeepSet, all: Vec<Holder>) -> Option<Vec<Item>> {
        let mut stale = Vec::new();
        for holder in all {
            let ip = address_of(holder.address);
            let item = (ip, holder.owner);
            if let Known::Files(files) = &self.known {
                if files.get(&ip).is_some_and(|found| keep_set.releases(&found.owner)) {
                    stale.push(item);
                }
                continue;
            }
            let may_go = match holder.kind {
                Kind::Reserved => !keep_set.has(holder.owner),
                Kind::Torn => true,
                Kind::NoFile => false,
            };
            if may_go {
                let owner = self.owner_of(ip);
                if owner.digest(holder.address) != holder.owner {
                    return None;
                }
                if keep_set.releases(&owner) {
                    stale.push(item);
                }
            }
        }
        Some(stale)
    }

    /// Gives back what an earlier boot of the host left behind; whether that was anything.
    pub fn reclaim(&mut self, is_wanted: impl Fn(IpAddr) -> bool) -> Result<bool> {
        let left_behind = self.left_behind(is_wanted)?;
        let has_any = !left_behind.is_empty();
        self.release_all(left_behind, Vec::new())?;
        Ok(has_any)
    }

    /// Gives back an address that was reserved for an attachment just now.
    pub fn release_address(&mut self, ip: IpAddr, at: &Attachment) -> Result<()> {
        self.release_one(ip, owner::digest_of(&owner::content(at)))
    }

    /// In the file that is there, like the reference: a rename over it would make ext4 write it to the disk at once,
    /// and half an address costs a container no more than its place in the round.
    pub fn set_last_reserved(&mut self, set_index: usize, ip: IpAddr) -> Result<()> {
        let target = self.last_reserved_path(set_index);
        let content = ip.to_string();
        let doing = format_args!("cannot note {ip} as the last reserved address");
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
        let error = match self.remove_left_over() {
            Ok(()) => error,
            Err(undo) => error.also(&undo),
        };
        Err(error.context(doing))
    }

    /// Keeps for the next time which addresses an identity has got, in the place of those that they `replace`.
    pub fn remember(&self, identity: u64, ips: &[IpAddr], replace: impl Fn(IpAddr) -> bool) {
        // Nothing is lost but a preference.
        let _ = self.place.sticky.remember(identity, ips, replace);
    }

    /// Writes down what is known, for the next one. Where that fails he has to read the files.
    pub(in crate::ipam::store) fn finish(self) {
        let Self { place, directory: Some(directory), known: Known::Index(mut index), .. } = self
        else {
            return;
        };
        if self.is_changed && !self.has_aside {
            // What was written is of no state that the directory has, so nobody believes it.
            let _ = index.commit(&place.index, &directory);
        }
    }

    fn note_reserved(&mut self, ip: IpAddr, content: String, identity: u64, placed: Placed) {
        let found = Found { owner: Owner::Text(content), identity, is_older: false };
        let address = number_of(ip);
        let noted = match &mut self.known {
            Known::Nothing => Ok(()),
            Known::Files(files) => {
                files.insert(ip, found);
                Ok(())
            }
            Known::Index(index) => match placed {
                Placed::OverTorn => index.remove(address, Owner::Torn.digest(address)),
                Placed::New | Placed::Not => Ok(()),
            }
            .and_then(|()| index.add(found.holder(address))),
        };
        if noted.is_err() {
            self.known = Known::Nothing;
        }
    }

    fn release_all(&mut self, items: Vec<Item>, mut errors: Vec<Error>) -> Result<()> {
        for (ip, owner) in items {
            errors.extend(self.release_one(ip, owner).err());
        }
        errors.extend(self.remove_left_over().err());
        errors.into_iter().reduce(|first, error| first.also(&error)).map_or(Ok(()), Err)
    }

    fn release_one(&mut self, ip: IpAddr, owner: u64) -> Result<()> {
        self.remove_file(ip)?;
        let noted = match &mut self.known {
            Known::Nothing => Ok(()),
            Known::Files(files) => {
                files.remove(&ip);
                Ok(())
            }
            Known::Index(index) => index.remove(number_of(ip), owner),
        };
        if noted.is_err() {
            self.known = Known::Nothing;
        }
        Ok(())
    }

    fn remove_file(&mut self, ip: IpAddr) -> Result<()> {
        self.is_changed = true;
        let path = self.path_of(ip);
        files::remove(&path).map(drop).map_err(failed("remove", path))
    }

    /// A left-over of a crash may be another name of a live reservation: it is removed, and never opened for writing.
    fn write_aside(&mut self, content: &str) -> Result<(PathBuf, u64)> {
        self.remove_left_over()?;
        self.has_aside = true;
        let aside = self.place.dir.join(ASIDE);
        let identity = files::write_new(&aside, content).map_err(failed("write", &aside))?;
        Ok((aside, identity))
    }

    fn remove_left_over(&mut self) -> Result<()> {
        if self.has_aside {
            let aside = self.place.dir.join(ASIDE);
            files::remove(&aside).map_err(failed("remove", aside))?;
            self.has_aside = false;
        }
        Ok(())
    }
}

/// Gives `aside` the name `target`, unless somebody has it. A torn file is nobody's.
pub(in crate::ipam::store) fn put_in_place(
    aside: &Path,
    target: &Path,
    link: impl FnOnce(&Path, &Path) -> io::Result<bool>,
) -> io::Result<Placed> {
    let is_placed = match link(aside, target) {
        // Some file systems (vfat, and what is mounted through FUSE) have no links. Then the lock alone keeps others
        // away.
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
    match files::read_any(target) {
        Ok(content) if matches!(Owner::parse(&content), Owner::Torn) => {
            files::rename(aside, target)?;
            Ok(Placed::OverTorn)
        }
        // Whatever it is, somebody has the name.
        _ => Ok(Placed::Not),
    }
}
