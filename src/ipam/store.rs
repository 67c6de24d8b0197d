//! The store of a network's reservations: the directory `DATADIR/NETWORK`, in the format of the Go plugin `host-local`.
//!
//! Both plugins can use one directory at the same time, and either can replace the other:
//!
//! ```text
//! lock                    empty; every reader and writer of the directory holds a flock(2) on it
//! 10.1.0.2, fd00:1::2     a reservation: "CONTAINER\r\nIFNAME", in old releases of the reference only "CONTAINER"
//! last_reserved_ip.N      the last allocated address of the N-th range set
//! .cnibox-aside           an incomplete file; it exists only while the lock is held, or after a crash
//! ```
//!
//! Only these files are authoritative. `DATADIR/.cnibox`, which the reference never reads, has files that can be removed,
//! restored or damaged while no call runs:
//!
//! ```text
//! DATADIR/.cnibox/NETWORK~owners    the addresses of each owner, which make look-ups fast (see `owners`)
//! DATADIR/.cnibox/NETWORK~sticky    the last addresses of containers, for `sticky`
//! DATADIR/.cnibox/NETWORK~search    the lock of the search for ended containers in a full range, and when it found none
//! ```
//!
//! Changes by other programs:
//!
//! - A change by a program that holds the lock, or by one without the lock while cnibox does not hold it, is always detected.
//! - If a program without the lock adds a file while cnibox changes the directory, no other attachment gets the address. But a
//!   DEL may not find the file until another program changes the directory again.
//! - A write into an existing file does not change the directory. So before a file is removed, its owner is read. If it is
//!   another one, all files are read. The new owner is found when all files are read the next time.
//! - A removal of `.cnibox/NETWORK~owners`, or of a file in it, while a call runs, can hide the reservations of its owners until all
//!   files are read the next time.

mod address_files;
mod content;
mod files;
pub mod held;
#[cfg(feature = "tool")]
pub mod listed;
mod lock;
mod locked;
mod owners;
mod sticky;
#[cfg(test)]
pub(crate) mod tests;

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};
use crate::kernel::file;
use crate::kernel::flock::{Limit, Turns};
use crate::names::NetworkName;

pub use locked::Locked;
use owners::Owners;
use sticky::Sticky;
pub use sticky::identity;

const LOCK: &str = "lock";

/// The name of the temporary file. A file is written under this name and then linked or renamed, so that a crash leaves no
/// address without an owner.
///
/// It is in the directory of the network because a link cannot cross file systems. The Go plugin reads this file, too, but
/// its name is not an address: the plugin can only remove it, in a DEL of the attachment that it names.
const ASIDE: &str = ".cnibox-aside";

/// The paths of a network's files.
struct StorePaths {
    dir: PathBuf,
    owners: Owners,
    sticky: Sticky,
    search: PathBuf,
}

/// The reservations of one network. Every access needs the lock.
pub struct Store<'a> {
    paths: StorePaths,
    turns: &'a Turns,
    lock: File,
    if_missing: IfMissing,
}

#[derive(Clone, Copy)]
enum IfMissing {
    Create,
    LeaveAlone,
}

impl<'a> Store<'a> {
    /// Opens the store for ADD: creates missing directories and the lock.
    ///
    /// Threads that use one store at the same time share `turns`: they queue there, so that only one of them at a time waits
    /// for the lock of the file.
    pub fn open(data_dir: &Path, network: &NetworkName, turns: &'a Turns) -> Result<Self> {
        let paths = StorePaths::new(data_dir, network);
        let lock = paths.open_or_create_lock()?;
        Ok(Self { paths, turns, lock, if_missing: IfMissing::Create })
    }

    /// Opens the store for all verbs except ADD: creates nothing, except the lock if there are reservations without it. Returns
    /// `None` if the network has no reservations.
    pub fn open_if_exists(
        data_dir: &Path,
        network: &NetworkName,
        turns: &'a Turns,
    ) -> Result<Option<Self>> {
        let paths = StorePaths::new(data_dir, network);
        let Some(lock) = paths.open_lock_if_needed()? else { return Ok(None) };
        Ok(Some(Self { paths, turns, lock, if_missing: IfMissing::LeaveAlone }))
    }

    /// For STATUS: fails if `open` would fail, or if no file can be written. Creates nothing.
    pub fn check_usable(data_dir: &Path, network: &NetworkName) -> Result<()> {
        check_writable(&data_dir.join(&**network))
    }

    /// Waits for the turn of this thread and then for the lock, runs `f`, and unlocks. Fails with code 11 after 30 s of
    /// waiting in all.
    pub fn locked<T>(self, mut f: impl FnMut(&mut Locked<'_>) -> Result<T>) -> Result<T> {
        let limit = Limit::new(lock::WAIT_MAX);
        let path = self.paths.dir.join(LOCK);
        // Declared before the lock, so dropped after it: the next thread finds the file unlocked.
        let _turn = lock::take_turn(self.turns, &path, &limit)?;
        let Self { paths, mut lock, if_missing, .. } = self;
        // Another process can remove the directory during the wait. A lock on a removed file excludes no process.
        loop {
            let done = lock::locked(&lock, &path, &limit, || {
                if !files::is_at(&lock, &path).map_err(failed("examine", &path))? {
                    return Ok(None);
                }
                let mut locked = Locked::new(&paths)?;
                let result = f(&mut locked);
                locked.finish();
                Ok(Some(result))
            })?;
            if let Some(result) = done {
                return result;
            }
            lock = match if_missing {
                IfMissing::Create => paths.open_or_create_lock()?,
                IfMissing::LeaveAlone => match paths.open_lock_if_needed()? {
                    Some(lock) => lock,
                    None => return f(&mut Locked::empty(&paths)),
                },
            };
            lock::check(&path, &limit)?;
        }
    }
}

impl StorePaths {
    fn new(data_dir: &Path, network: &NetworkName) -> Self {
        // No network has the same path, because its name cannot begin with a dot or contain a tilde.
        let own = data_dir.join(".cnibox");
        let dir = data_dir.join(&**network);
        Self {
            owners: Owners::new(&dir, own.join(format!("{network}~owners"))),
            dir,
            sticky: Sticky { path: own.join(format!("{network}~sticky")) },
            search: own.join(format!("{network}~search")),
        }
    }

    fn open_or_create_lock(&self) -> Result<File> {
        let path = self.dir.join(LOCK);
        let opened = match files::open_or_create(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = file::make_directory(&self.dir, 0o755);
                made.map_err(failed("create directory", &self.dir))?;
                files::open_or_create(&path)
            }
            opened => opened,
        };
        opened.map_err(failed("open", path))
    }

    /// Opens the lock, and creates it if there are reservations without a lock. `None` if the network has no reservations.
    fn open_lock_if_needed(&self) -> Result<Option<File>> {
        let path = self.dir.join(LOCK);
        let opened = match files::open(&path) {
            Err(error) if file::is_missing(&error) => {
                let has_reservations = match files::addresses_in(&self.dir) {
                    Ok(addresses) => !addresses.is_empty(),
                    Err(error) if file::is_missing(&error) => false,
                    Err(error) => return Err(failed("read directory", &self.dir)(error)),
                };
                if !has_reservations {
                    return Ok(None);
                }
                // Reservations without a lock file: a backup without empty files was restored. Create the lock, which all
                // later processes must use.
                files::open_or_create(&path)
            }
            opened => opened,
        };
        opened.map(Some).map_err(failed("open", path))
    }
}

/// Fails if no file can be written in a directory, or if a missing directory cannot be created. Creates nothing.
pub fn check_writable(dir: &Path) -> Result<()> {
    for existing in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        match files::open(existing).and_then(|file| file.metadata()) {
            Ok(metadata) if metadata.is_dir() => {
                return files::probe_writing(existing).map_err(failed("write to", existing));
            }
            Ok(_) => {
                let error = ErrorKind::NotADirectory.into();
                return Err(failed("create directory in", existing)(error));
            }
            Err(error)
                if file::is_missing(&error) && error.kind() != ErrorKind::InvalidFilename => {}
            Err(error) => return Err(failed("open", existing)(error)),
        }
    }
    Ok(())
}

fn failed(doing: &str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
    move |error| {
        let (path, reason) = (path.as_ref().display(), file::reason(&error));
        Error::new(Code::IO, format_args!("cannot {doing} {path}: {reason}"))
    }
}
