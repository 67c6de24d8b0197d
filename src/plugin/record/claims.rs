//! The addresses that attachments have on the links of the node. On one link, an address has one attachment: a bridge, the
//! master of a macvlan or ipvlan, and for `ptp` the routes of the host.
//!
//! A claim is a symbolic link `@ADDRESS@LINK` to the record of the attachment, in the directory of the records: there is one at
//! most, it is made and found in one step, and it means nothing once the record does not name it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::flock;
use crate::kernel::sys;
use crate::plugin::record::{Record, Records};

/// No name of a record begins with it, and no address and no link has it.
const MARK: &str = "@";

/// The wait for another process that takes over a claim.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// Whether a name in the directory of the records is that of a claim.
pub(super) fn is_claim(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(MARK.as_bytes())
}

/// The name of the claim of an address on a link.
pub fn name(address: IpAddr, link: &str) -> String {
    format!("{MARK}{address}{MARK}{link}")
}

impl Records {
    /// Makes a claim for a record. Returns the file of the record that has it.
    pub fn claim(&self, claim: &str, own: &Path) -> io::Result<Option<PathBuf>> {
        fault::file_operation()?;
        let path = self.directory().join(claim);
        match symlink(own, &path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match fs::read_link(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => self.claim(claim, own),
                other => Ok(Some(other?).filter(|other| other != own)),
            },
            made => made.map(|()| None),
        }
    }

    /// Removes a claim of this record. Another process may have taken it over.
    fn release(&self, claim: &str, of: &Path) -> io::Result<()> {
        fault::file_operation()?;
        let path = self.directory().join(claim);
        if fs::read_link(&path).is_ok_and(|found| found == of) {
            fs::remove_file(path)
        } else {
            Ok(())
        }
    }

    /// Removes the claim of a record that has ended. One process at a time does that: the claim can be another one's then.
    pub fn release_of_ended(&self, claim: &str, of: &Path) -> io::Result<()> {
        let (_directory, is_locked) = flock::lock_directory(self.directory(), 0o700, LOCK_LIMIT)?;
        if is_locked { self.release(claim, of) } else { Err(ErrorKind::TimedOut.into()) }
    }

    /// Releases the claims of a record.
    pub fn release_all(&self, record: &Record) -> io::Result<()> {
        let file = self.file_name(&record.network, &record.at);
        record.claims.iter().try_for_each(|claim| self.release(claim, &file))
    }

    /// Moves the claims of a record to another address. What another record has stays.
    pub fn move_claims(&self, record: &Record, from: IpAddr, to: IpAddr) -> Result<()> {
        let own = self.file_name(&record.network, &record.at);
        let start = name(from, "");
        for old in &record.claims {
            let Some(link) = old.strip_prefix(&start) else { continue };
            let new = name(to, link);
            self.note_claims(&own, std::slice::from_ref(&new))?;
            let moved = self.claim(&new, &own).and_then(|_| self.release(old, &own));
            moved.map_err(|error| {
                let msg = format_args!("cannot move the claim of {from} to {to}");
                Error::internal(msg).with_details(sys::reason(&error))
            })?;
        }
        Ok(())
    }

    /// The record that a claim leads to, if that names it.
    pub fn holder(&self, claim: &str) -> Option<Record> {
        let file = fs::read_link(self.directory().join(claim)).ok()?;
        let record = self.read_file(&file)?;
        record.claims.iter().any(|known| known == claim).then_some(record)
    }

    /// Removes the claims that lead to no record that names them: those of killed processes. The others are in use. `all`: the
    /// records; there can be more by now.
    pub(super) fn sweep_claims(&self, all: &[Record]) {
        let claims = |record: &Record| {
            let file = self.file_name(&record.network, &record.at);
            record.claims.iter().map(move |claim| (file.clone(), claim.clone())).collect::<Vec<_>>()
        };
        let known: HashSet<(PathBuf, String)> = all.iter().flat_map(claims).collect();
        for entry in fs::read_dir(self.directory()).into_iter().flatten().flatten() {
            let Ok(claim) = entry.file_name().into_string() else { continue };
            if !is_claim(claim.as_ref()) {
                continue;
            }
            let Ok(file) = fs::read_link(entry.path()) else { continue };
            let found = (file, claim);
            if !known.contains(&found) && self.holder(&found.1).is_none() {
                let _ = self.release_of_ended(&found.1, &found.0);
            }
        }
    }
}
