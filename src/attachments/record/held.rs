//! The lock of an attachment: flock(2) on the file of its record. The writer of a record has it until its ADD ends, so it shows an
//! ADD in progress. `reconcile` and GC take it before they change anything, and an ADD and a DEL wait for them.
//!
//! A file that is removed or replaced keeps its lock. So after the lock, the file must still be the one at the path.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::attachments::record::{Note, Record, Records, append, cannot, request_line};
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Limit, Mode};
use crate::names::{Attachment, NetworkName};

/// The reason why a lock cannot be taken.
pub(super) const BUSY: &str = "another operation has it";

/// The longest wait of an ADD or DEL for a reconcile or a GC.
pub(super) const HOLD_MAX: Duration = Duration::from_secs(5);

/// A record whose lock this process has. The lock ends when this is dropped.
pub struct Held {
    pub record: Record,
    file: File,
}

impl Held {
    /// Notes that the runtime removes the attachment, so that the DEL of an executed plugin does not wait for this lock, and
    /// `reconcile` makes nothing. `request` prints that of the DEL, see `Record::request`: that of the ADD stays.
    pub fn note_deleting(&mut self, request: impl FnOnce() -> Vec<u8>) -> Result<()> {
        let request = if self.record.request.is_empty() { request() } else { Vec::new() };
        if self.record.is_deleting && !self.record.is_added && request.is_empty() {
            return Ok(());
        }
        let added = self.record.is_added.then_some(false);
        let note = Note { added, ..Note::of_del() };
        let written = append(&self.file, &[note.line(), request_line(&request)].concat());
        let Record { network, at, .. } = &self.record;
        written.map_err(|error| cannot("write", &Records::of_host().path(network, at), error))?;
        (self.record.is_deleting, self.record.is_added) = (true, false);
        Ok(())
    }
}

/// The result of an attempt to lock a record.
pub enum Hold {
    Held(Box<Held>),
    /// The attachment has no record.
    Missing,
    /// Another process has the lock. The error is for a caller that cannot go on without the lock.
    Busy(Error),
}

/// The lock that a DEL or GC of a plugin has while it unlinks a record.
pub enum Shared {
    /// The lock ends when the file is dropped.
    Locked(File),
    /// The attachment has no record.
    Missing,
    /// Another process has the exclusive lock: a GC, which removes the record itself and last, or the ADD of a later attachment,
    /// to which the record belongs.
    Held,
}

impl Records {
    /// Locks the record of an attachment for a reconcile. `Busy` while an ADD, a DEL or a GC has the lock. The lock is a shared
    /// one, which tells an ADD that its caller is not the holder.
    pub fn hold(&self, network: &NetworkName, at: &Attachment) -> Result<Hold> {
        self.lock(network, at, (Mode::Shared, Duration::ZERO))
    }

    /// Locks the record of an attachment for a GC. `Busy` while any other process has the lock.
    pub fn hold_for_removal(&self, network: &NetworkName, at: &Attachment) -> Result<Hold> {
        self.lock(network, at, (Mode::Exclusive, Duration::ZERO))
    }

    /// `hold_for_removal` for the DEL of a runtime, which removes the record last. Waits while another process has the lock: a
    /// reconcile, a GC, or an ADD that takes the address of an ended container.
    pub fn hold_for_del(&self, network: &NetworkName, at: &Attachment) -> Result<Hold> {
        self.lock(network, at, (Mode::Exclusive, HOLD_MAX))
    }

    /// Keeps other processes from locking the record of an attachment for a removal, for the DEL or GC of a plugin that unlinks the
    /// record. Other DELs can have this lock, too.
    pub fn share(&self, network: &NetworkName, at: &Attachment) -> Result<Shared> {
        let locked = self.lock_file(&self.path(network, at), (Mode::Shared, Duration::ZERO))?;
        Ok(match locked {
            None => Shared::Missing,
            Some((file, true)) => Shared::Locked(file),
            Some((_, false)) => Shared::Held,
        })
    }

    fn lock(&self, network: &NetworkName, at: &Attachment, how: (Mode, Duration)) -> Result<Hold> {
        let path = self.path(network, at);
        match self.lock_file(&path, how)? {
            None => Ok(Hold::Missing),
            Some((file, true)) => {
                let record = self.read_by(network, at, &|_, max| file::read_open(&file, max))?;
                Ok(record
                    .map_or(Hold::Missing, |record| Hold::Held(Box::new(Held { record, file }))))
            }
            Some((_, false)) => Ok(Hold::Busy(busy(&path))),
        }
    }

    /// Locks the file of a record. The second value is false if another process still has the lock after the timeout. `None` if
    /// there is no file.
    fn lock_file(
        &self,
        path: &Path,
        (mode, timeout): (Mode, Duration),
    ) -> Result<Option<(File, bool)>> {
        let limit = Limit::new(timeout);
        let open = || -> io::Result<(File, bool)> {
            loop {
                fault::file_operation()?;
                let flags = match mode {
                    Mode::Shared => file::READ,
                    Mode::Exclusive => file::APPEND,
                };
                let (file, open) = file::open_regular(path, flags)?;
                let is_locked = flock::lock_within(&file, mode, &limit)?;
                let is_current = is_locked && file::is_at(&open, path)?;
                // The process that had the lock can have replaced the file.
                if is_current || limit.left().is_zero() {
                    return Ok((file, is_current));
                }
            }
        };
        file::found(open()).map_err(|error| cannot("lock", path, error))
    }
}

/// Code 11: the runtime tries again.
pub(super) fn busy(path: &Path) -> Error {
    let msg = format!("cannot lock {}: {BUSY}", path.display());
    Error::new(Code::TRY_AGAIN_LATER, msg)
}
