//! The lock of an attachment: flock(2) on the file of its record. The writer of a record has it until its ADD ends, so it shows an
//! ADD in progress. `reconcile` and GC take it before they change anything, and an ADD and a DEL wait for them.
//!
//! A file that is removed or replaced keeps its lock. So after the lock, the file must still be the one at the path.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Mode};
use crate::names::{Attachment, NetworkName};
use crate::plugin::record::{Note, Record, Records, cannot};

/// The reason why a lock cannot be taken.
pub(super) const BUSY: &str = "another operation has it";

/// A record whose lock this process has. The lock ends when this is dropped.
pub struct Held {
    pub record: Record,
    file: File,
}

impl Held {
    /// Notes that GC removes the attachment, so that the DEL of an executed plugin does not wait for this lock, and `reconcile`
    /// makes nothing.
    pub fn note_deleting(&mut self) -> Result<()> {
        if self.record.is_deleting {
            return Ok(());
        }
        let line = Note::of_del().line();
        let written = fault::file_operation().and_then(|()| self.file.write_all(&line));
        let Record { network, at, .. } = &self.record;
        written.map_err(|error| cannot("write", &Records::of_host().path(network, at), error))?;
        self.record.is_deleting = true;
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

impl Records {
    /// Locks the record of an attachment for a reconcile. `Busy` while an ADD, a DEL or a GC has the lock. The lock is a shared
    /// one, which tells an ADD that its caller is not the holder.
    pub fn hold(&self, network: &NetworkName, at: &Attachment) -> Result<Hold> {
        self.lock(network, at, Mode::Shared)
    }

    /// Locks the record of an attachment for a GC. `Busy` while any other process has the lock.
    pub fn hold_for_removal(&self, network: &NetworkName, at: &Attachment) -> Result<Hold> {
        self.lock(network, at, Mode::Exclusive)
    }

    /// Whether another process has the exclusive lock of an attachment's record: a GC, which removes the record itself and last,
    /// or the ADD of a later attachment, to which the record belongs.
    pub(super) fn is_held(&self, network: &NetworkName, at: &Attachment) -> Result<bool> {
        let locked = self.lock_file(&self.path(network, at), Mode::Shared)?;
        Ok(locked.is_some_and(|(_, is_locked)| !is_locked))
    }

    fn lock(&self, network: &NetworkName, at: &Attachment, mode: Mode) -> Result<Hold> {
        let path = self.path(network, at);
        match self.lock_file(&path, mode)? {
            None => Ok(Hold::Missing),
            Some((file, true)) => {
                let record = self.read(network, at)?;
                Ok(record
                    .map_or(Hold::Missing, |record| Hold::Held(Box::new(Held { record, file }))))
            }
            Some((_, false)) => Ok(Hold::Busy(busy(&path))),
        }
    }

    /// Tries to lock the file of a record. The second value is false while another process has the lock. `None` if there is no
    /// file.
    fn lock_file(&self, path: &Path, mode: Mode) -> Result<Option<(File, bool)>> {
        let open = || -> io::Result<(File, bool)> {
            fault::file_operation()?;
            let options = &mut file::writing();
            let options = match mode {
                Mode::Shared => &mut file::reading(),
                Mode::Exclusive => options.read(true).append(true),
            };
            let (file, open) = file::open_regular(options, path)?;
            let is_locked = flock::try_lock(&file, mode)? && file::is_at(&open, path)?;
            Ok((file, is_locked))
        };
        file::found(open()).map_err(|error| cannot("lock", path, error))
    }
}

/// Code 11: the runtime tries again.
pub(super) fn busy(path: &Path) -> Error {
    let msg = format!("cannot lock {}: {BUSY}", path.display());
    Error::new(Code::TRY_AGAIN_LATER, msg)
}
