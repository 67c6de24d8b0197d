//! The directory in which the reservations of a network are: `DATADIR/NETWORK`, as the Go plugin `host-local` has it.
//! Knows nothing of ranges.
//!
//! Both can work on one directory at once, and either can take over from the other:
//!
//! ```text
//! lock                    empty; flock(2) on it is held while anything else is looked at or changed
//! 10.1.0.2, fd00:1::2     a reservation: "CONTAINER\r\nIFNAME", in old releases of the reference only "CONTAINER"
//! last_reserved_ip.N      the address that was given out last from the N-th range set
//! .cnibox-aside           what is being written; there only while the lock is held, or after a crash
//! ```
//!
//! Truth is in these files. Beside the directories of the networks, where the reference never looks, lies what only
//! makes us fast, and may be removed or restored or damaged at any time:
//!
//! ```text
//! DATADIR/.cnibox/NETWORK           the index
//! DATADIR/.cnibox/NETWORK~sticky    the addresses that containers had last, for those who want them again
//! ```
//!
//! Who changes the directory while he has the lock, or without it while we do not have it, is always noticed. Who
//! removes a file without the lock, in the microseconds between our own change and the note of it in the index, is
//! noticed when that address is asked for, and before a range is called exhausted; who adds one then keeps it from
//! being given to another, but a DEL may not find it before the next change by somebody else. Who writes into an
//! existing file changes no directory: the owner that the index knows is compared with the file before anything is done
//! to it, and a new owner is found when the index is next made.

mod boot;
mod digest;
mod directory;
mod files;
mod index;
mod known;
mod lock;
mod locked;
mod owner;
mod sticky;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};
use crate::kernel::file;
use crate::kernel::flock::{Limit, Turns};
use crate::names::NetworkName;

use index::IndexPath;
pub use locked::Locked;
use sticky::Sticky;
pub use sticky::identity;

const LOCK: &str = "lock";

/// Content is written here and then put in place whole, so that a crash leaves no address without an owner.
///
/// It is in the directory itself since a link cannot leave its file system. The Go plugin reads every file, whatever
/// its name; but it takes only names that are addresses for reservations, so all that it can do to a left-over is to
/// remove it with the attachment that it names.
const ASIDE: &str = ".cnibox-aside";

/// Where everything of a network is, and when.
struct Place {
    dir: PathBuf,
    index: IndexPath,
    sticky: Sticky,
    /// None when it cannot be found out: then there is no index.
    boot: Option<u64>,
}

/// The reservations of one network. Nothing is read or changed but under its lock.
pub struct Store<'a> {
    place: Place,
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
    /// For ADD: what is missing is created.
    ///
    /// Threads that use one store at the same time share `turns`: they queue there, and only one of them at a time waits
    /// for the lock of the file.
    pub fn open(data_dir: &Path, network: &NetworkName, turns: &'a Turns) -> Result<Self> {
        let mut place = Place::new(data_dir, network);
        let lock = place.open_or_create_lock()?;
        place.boot = boot::id();
        Ok(Self { place, turns, lock, if_missing: IfMissing::Create })
    }

    /// For every other verb: where there is no store nothing is reserved, and nothing is created.
    pub fn open_if_exists(
        data_dir: &Path,
        network: &NetworkName,
        turns: &'a Turns,
    ) -> Result<Option<Self>> {
        let mut place = Place::new(data_dir, network);
        let Some(lock) = place.open_lock_if_needed()? else { return Ok(None) };
        place.boot = boot::id();
        Ok(Some(Self { place, turns, lock, if_missing: IfMissing::LeaveAlone }))
    }

    /// For STATUS: fails when `open` would, or when nothing could be written then; creates nothing.
    pub fn check_usable(data_dir: &Path, network: &NetworkName) -> Result<()> {
        check_writable(&data_dir.join(&**network))
    }

    /// Waits for the turn of this thread and then for the lock, runs `f`, and unlocks. Fails with code 11 after 30 s of
    /// waiting in all.
    pub fn locked<T>(self, f: impl FnOnce(&mut Locked<'_>) -> Result<T>) -> Result<T> {
        let limit = Limit::new(lock::WAIT_MAX);
        let path = self.place.dir.join(LOCK);
        // Declared before the lock and so dropped after it: the next thread finds the file unlocked.
        let _turn = lock::take_turn(self.turns, &path, &limit)?;
        let Self { place, mut lock, if_missing, .. } = self;
        // Another process can remove the directory during the wait. The lock of a removed file excludes nobody.
        let has_lock = loop {
            lock::take(&lock, &path, &limit)?;
            if files::is_at(&lock, &path).map_err(failed("look at", &path))? {
                break true;
            }
            lock = match if_missing {
                IfMissing::Create => place.open_or_create_lock()?,
                IfMissing::LeaveAlone => match place.open_lock_if_needed()? {
                    Some(lock) => lock,
                    None => break false,
                },
            };
            lock::check(&path, &limit)?;
        };
        if !has_lock {
            return f(&mut Locked::of_nothing(&place));
        }
        let mut locked = Locked::new(&place)?;
        let result = f(&mut locked);
        locked.finish();
        result
    }
}

impl Place {
    fn new(data_dir: &Path, network: &NetworkName) -> Self {
        // No name of a network begins with a dot or has a tilde in it.
        let own = data_dir.join(".cnibox");
        let sticky = format!("{network}~sticky");
        Self {
            dir: data_dir.join(&**network),
            index: IndexPath { path: own.join(&**network), aside: own.join(format!(".{network}")) },
            sticky: Sticky { path: own.join(&sticky), aside: own.join(format!(".{sticky}")) },
            boot: None,
        }
    }

    fn open_or_create_lock(&self) -> Result<File> {
        let path = self.dir.join(LOCK);
        let opened = match files::open_or_create(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                files::create_dirs(&self.dir).map_err(failed("create directory", &self.dir))?;
                files::open_or_create(&path)
            }
            opened => opened,
        };
        opened.map_err(failed("open", path))
    }

    /// None where nothing can be reserved.
    fn open_lock_if_needed(&self) -> Result<Option<File>> {
        let path = self.dir.join(LOCK);
        let opened = match files::open(&path) {
            Err(error) if is_missing(&error) => {
                let has_reservations = match files::addresses_in(&self.dir, LOCK) {
                    Ok((addresses, _)) => !addresses.is_empty(),
                    Err(error) if is_missing(&error) => false,
                    Err(error) => return Err(failed("read directory", &self.dir)(error)),
                };
                if !has_reservations {
                    return Ok(None);
                }
                // A backup without empty files was restored. Whoever comes next must find the same lock.
                files::open_or_create(&path)
            }
            opened => opened,
        };
        opened.map(Some).map_err(failed("open", path))
    }
}

/// Fails when no file could be made in a directory, or the directory itself could not be made; creates nothing.
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
            Err(error) if is_missing(&error) && error.kind() != ErrorKind::InvalidFilename => {}
            Err(error) => return Err(failed("open", existing)(error)),
        }
    }
    Ok(())
}

/// An address as a number, of which IPv4 and IPv6 have different ones.
fn number_of(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address_of(number: u128) -> IpAddr {
    Ipv6Addr::from_bits(number).to_canonical()
}

/// Nothing is there, nor can it be, since something on the way to it is not a directory or has too long a name.
fn is_missing(error: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, NotADirectory, NotFound};

    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
}

fn failed(doing: impl Display, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
    move |error| {
        let (path, reason) = (path.as_ref().display(), file::reason(&error));
        Error::new(Code::IO, format!("cannot {doing} {path}: {reason}"))
    }
}
