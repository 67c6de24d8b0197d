//! The claims: which attachment has an address on a link of the node. Only one attachment can have an address on a link. The
//! link is the bridge, or the master of a macvlan or ipvlan; for `ptp` it is empty, which stands for the routes of the host.
//!
//! A claim is a symbolic link `@ADDRESS@LINK` to the record of the attachment, in the directory of the records. symlink(2)
//! makes it in one step, and fails if there is one. A claim is valid only if the record also contains its name.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::attachments::record::{Record, Records};
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock;
use crate::kernel::sys;

/// The first character of each claim's name, and its separator. No record's name begins with it, and no address or link
/// contains it.
const MARK: &str = "@";

/// The longest wait for the lock of the records' directory. Another process holds this lock while it removes a stale claim.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// The number of attempts to make a claim. Each further attempt means that another process removed or replaced the claim.
pub const ATTEMPTS_MAX: u32 = 100;

/// The error after `ATTEMPTS_MAX` attempts.
pub fn contended() -> io::Error {
    io::Error::new(ErrorKind::ResourceBusy, "other processes keep changing the claim")
}

/// Whether a file name in the directory of the records is that of a claim.
pub(super) fn is_claim(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(MARK.as_bytes())
}

/// The file name of the claim of an address on a link.
pub fn name(address: IpAddr, link: &str) -> String {
    format!("{MARK}{address}{MARK}{link}")
}

impl Records {
    /// Makes a claim for the record with the file `own`. If another record has the claim, returns the file of that record.
    pub fn claim(&self, claim: &str, own: &Path) -> io::Result<Option<PathBuf>> {
        let path = self.directory().join(claim);
        for _ in 0..ATTEMPTS_MAX {
            fault::file_operation()?;
            match symlink(own, &path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made.map(|()| None),
            }
            match fs::read_link(&path) {
                // Another process has removed the claim.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                found => return Ok(Some(found?).filter(|found| found != own)),
            }
        }
        Err(contended())
    }

    /// Removes a claim if its symbolic link still leads to the record `of`. Otherwise another process has replaced the claim,
    /// and the new claim stays.
    fn release(&self, claim: &str, of: &Path) -> io::Result<()> {
        fault::file_operation()?;
        let path = self.directory().join(claim);
        match file::found(fs::read_link(&path))? {
            Some(found) if found == of => file::found(fs::remove_file(path)).map(drop),
            _ => Ok(()),
        }
    }

    /// Removes the claim of an attachment that has ended. The directory is locked, so that no other process replaces the claim
    /// between the read of the symbolic link and its removal. Fails if the lock is not free in time.
    pub fn release_of_ended(&self, claim: &str, of: &Path) -> io::Result<()> {
        let (_directory, is_locked) = flock::lock_directory(self.directory(), 0o700, LOCK_LIMIT)?;
        if is_locked { self.release(claim, of) } else { Err(ErrorKind::TimedOut.into()) }
    }

    /// Removes all claims of a record.
    pub fn release_all(&self, record: &Record) -> io::Result<()> {
        let file = self.file_name(&record.network, &record.at);
        record.claims.iter().try_for_each(|claim| self.release(claim, &file))
    }

    /// Removes all claims that lead to the record with this file, for a DEL that cannot read the record.
    pub fn release_leading_to(&self, own: &Path) -> io::Result<()> {
        let entries = fault::file_operation().and_then(|()| fs::read_dir(self.directory()));
        let Some(entries) = file::found(entries)? else { return Ok(()) };
        for entry in entries {
            let name = entry?.file_name();
            if let Some(claim) = name.to_str().filter(|_| is_claim(&name)) {
                self.release(claim, own)?;
            }
        }
        Ok(())
    }

    /// Moves the claims of a record to another address. A claim of the new address that another record has stays as it is.
    pub fn move_claims(&self, record: &Record, from: IpAddr, to: IpAddr) -> Result<()> {
        let own = self.file_name(&record.network, &record.at);
        let start = name(from, "");
        for old in &record.claims {
            let Some(link) = old.strip_prefix(&start) else { continue };
            let new = name(to, link);
            // A retry has noted it already.
            if !record.claims.contains(&new) {
                self.note_claims(&own, std::slice::from_ref(&new))?;
            }
            let moved = self.claim(&new, &own).and_then(|_| self.release(old, &own));
            moved.map_err(|error| {
                let msg = format_args!("cannot move the claim of {from} to {to}");
                Error::internal(msg).with_details(sys::reason(&error))
            })?;
        }
        Ok(())
    }

    /// The record that a claim leads to, if the claim is valid, that is, if the record contains its name. Fails if the record cannot
    /// be read: then the claim may be valid.
    pub fn holder(&self, claim: &str) -> Result<Option<Record>> {
        let path = self.directory().join(claim);
        let file = file::found(fs::read_link(&path)).map_err(Error::of_file("read", &path))?;
        let record = file.map_or(Ok(None), |file| self.read_file(&file))?;
        Ok(record.filter(|record| record.claims.iter().any(|known| known == claim)))
    }

    /// The file of the record that a claim leads to, for messages.
    pub fn file_of_claim(&self, claim: &str) -> Option<PathBuf> {
        fs::read_link(self.directory().join(claim)).ok()
    }

    /// Whether a claim of an address leads to the record with this file. True if the claims cannot be read.
    pub fn may_claim(&self, own: &Path, address: IpAddr) -> bool {
        let Ok(entries) = fs::read_dir(self.directory()) else { return true };
        let is_of_address =
            |file: &OsStr| file.as_encoded_bytes().starts_with(name(address, "").as_bytes());
        let mut claims = entries
            .filter(|entry| entry.as_ref().map_or(true, |entry| is_of_address(&entry.file_name())));
        claims.any(|claim| {
            claim.and_then(|claim| fs::read_link(claim.path())).map_or(true, |found| found == own)
        })
    }

    /// Removes the invalid claims, which killed processes have left. `all` are the records that were read before. A record can
    /// have been written since then, so if `all` lacks a claim, the record that the claim leads to is read again.
    pub(super) fn sweep_claims(&self, all: &[Record]) {
        let claims_of = |record: &Record| {
            let file = self.file_name(&record.network, &record.at);
            record.claims.iter().map(move |claim| (file.clone(), claim.clone())).collect::<Vec<_>>()
        };
        let known: HashSet<(PathBuf, String)> = all.iter().flat_map(claims_of).collect();
        for entry in fs::read_dir(self.directory()).into_iter().flatten().flatten() {
            let Ok(claim) = entry.file_name().into_string() else { continue };
            if !is_claim(claim.as_ref()) {
                continue;
            }
            let Ok(file) = fs::read_link(entry.path()) else { continue };
            let found = (file, claim);
            if !known.contains(&found) && self.holder(&found.1) == Ok(None) {
                let _ = self.release_of_ended(&found.1, &found.0);
            }
        }
    }
}
