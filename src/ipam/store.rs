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

mod files;
mod owner;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::cni::text;
use crate::error::{Code, Error, Result};
use crate::names::{Attachment, NetworkName};

use owner::{Kept, Owner};

const LOCK: &str = "lock";

/// Content is written here and then put in place whole, so that a crash leaves no address without an owner.
///
/// It is in the directory itself since a link cannot leave its file system. The Go plugin reads every file, whatever
/// its name; but it takes only names that are addresses for reservations, so all that it can do to a left-over is to
/// remove it with the attachment that it names.
const ASIDE: &str = ".cnibox-aside";

/// The reservations of one network. Nothing is read or changed but under its lock.
pub struct Store {
    dir: PathBuf,
    lock: fd_lock::RwLock<File>,
}

/// Having a `Locked` is proof that nobody else touches the store.
///
/// What it knows was read when the lock was taken; this is where an index takes over from reading every file.
pub struct Locked<'a> {
    dir: &'a Path,
    reservations: BTreeMap<IpAddr, Owner>,
    has_aside: bool,
}

impl Store {
    /// For ADD: what is missing is created.
    pub fn open(data_dir: &Path, network: &NetworkName) -> Result<Self> {
        let dir = data_dir.join(&**network);
        let lock = match files::open_or_create(&dir.join(LOCK)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                files::create_dirs(&dir).map_err(failed("create directory", &dir))?;
                files::open_or_create(&dir.join(LOCK))
            }
            opened => opened,
        };
        Self::with_lock(dir, lock)
    }

    /// For every other verb: where there is no store nothing is reserved, and nothing is created.
    pub fn open_if_exists(data_dir: &Path, network: &NetworkName) -> Result<Option<Self>> {
        let dir = data_dir.join(&**network);
        let lock = match files::open(&dir.join(LOCK)) {
            Err(error) if is_missing(&error) => {
                let has_reservations = match files::addresses_in(&dir, LOCK) {
                    Ok((addresses, _)) => !addresses.is_empty(),
                    Err(error) if is_missing(&error) => false,
                    Err(error) => return Err(failed("read directory", &dir)(error)),
                };
                if !has_reservations {
                    return Ok(None);
                }
                // A backup without empty files was restored. Whoever comes next must find the same lock.
                files::open_or_create(&dir.join(LOCK))
            }
            opened => opened,
        };
        Self::with_lock(dir, lock).map(Some)
    }

    /// For STATUS: fails when `open` would, or when nothing could be written then; creates nothing.
    pub fn check_usable(data_dir: &Path, network: &NetworkName) -> Result<()> {
        let dir = data_dir.join(&**network);
        let lock = dir.join(LOCK);
        match files::probe_writing(&lock) {
            Err(error) if is_missing(&error) => {}
            probed => return probed.map_err(failed("write", &lock)),
        }
        for existing in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            match files::open(existing).and_then(|file| file.metadata()) {
                Ok(metadata) if metadata.is_dir() => return Ok(()),
                Ok(_) => {
                    let error = ErrorKind::NotADirectory.into();
                    return Err(failed("create directory in", existing)(error));
                }
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(failed("open", existing)(error)),
            }
        }
        Ok(())
    }

    fn with_lock(dir: PathBuf, lock: io::Result<File>) -> Result<Self> {
        let lock = lock.map_err(failed("open", dir.join(LOCK)))?;
        Ok(Self { dir, lock: fd_lock::RwLock::new(lock) })
    }

    /// Waits until nobody else has the lock, and keeps it until `f` returns.
    pub fn locked<T>(&mut self, f: impl FnOnce(&mut Locked<'_>) -> Result<T>) -> Result<T> {
        let _guard = files::lock(&mut self.lock).map_err(failed("lock", self.dir.join(LOCK)))?;
        f(&mut Locked::read(&self.dir)?)
    }
}

impl<'a> Locked<'a> {
    fn read(dir: &'a Path) -> Result<Self> {
        let (addresses, has_aside) =
            files::addresses_in(dir, ASIDE).map_err(failed("read directory", dir))?;
        let mut reservations = BTreeMap::new();
        for ip in addresses {
            let path = dir.join(ip.to_string());
            let owner = match files::read(&path) {
                Ok(content) => Owner::parse(&content),
                // Somebody does not mind the lock.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) if error.kind() == ErrorKind::IsADirectory => Owner::Directory,
                Err(error) => Owner::Unreadable(failed("read", path)(error)),
            };
            reservations.insert(ip, owner);
        }
        Ok(Self { dir, reservations, has_aside })
    }

    /// The addresses that cannot be reserved, in their order.
    pub fn reserved(&self) -> impl Iterator<Item = IpAddr> {
        let taken = self.reservations.iter().filter(|(_, owner)| !matches!(owner, Owner::Torn));
        taken.map(|(ip, _)| *ip)
    }

    /// The addresses of an attachment: those in its name, else those that an old release of the reference left in
    /// the name of its container.
    pub fn held_by(&self, at: &Attachment) -> Vec<IpAddr> {
        let of = |owner: &str| {
            let found = self.reservations.iter().filter(|(_, it)| it.is(owner));
            found.map(|(ip, _)| *ip).collect::<Vec<_>>()
        };
        match of(&owner::content(at)) {
            none if none.is_empty() => of(&at.container_id),
            held => held,
        }
    }

    /// Takes an address; false when somebody has it.
    pub fn reserve(&mut self, ip: IpAddr, at: &Attachment) -> Result<bool> {
        let is_torn = match self.reservations.get(&ip) {
            None => false,
            Some(Owner::Torn) => true,
            Some(_) => return Ok(false),
        };
        let content = owner::content(at);
        let target = self.dir.join(ip.to_string());
        let placed = self.write_aside(&content).and_then(|aside| {
            if is_torn {
                files::rename(&aside, &target).map(|()| true)
            } else {
                put_in_place(&aside, &target, files::link)
            }
            .map_err(failed("write", &target))
        });
        let error = match (placed, self.remove_left_over()) {
            (Ok(is_placed), Ok(())) => {
                if is_placed {
                    self.reservations.insert(ip, Owner::Text(content));
                }
                return Ok(is_placed);
            }
            (Ok(false), Err(error)) | (Err(error), Ok(())) => error,
            (Ok(true), Err(error)) => {
                match self.release_address(ip).and_then(|()| self.remove_left_over()) {
                    Ok(()) => error,
                    Err(undo) => error.also(&undo),
                }
            }
            (Err(error), Err(undo)) => error.also(&undo),
        };
        Err(error.context(format_args!("cannot reserve {ip}")))
    }

    /// Gives back what `held_by` lists, as far as it can, and reports what it cannot.
    pub fn release(&mut self, at: &Attachment) -> Result<()> {
        let held = self.held_by(at);
        // One that cannot be read may be the attachment's too.
        let errors = self.unreadable().collect();
        self.release_all(held, errors)
    }

    /// Gives back whatever belongs to none of these attachments.
    pub fn keep_only(&mut self, keep: &[Attachment]) -> Result<()> {
        let kept = Kept::new(keep);
        let stale = self.reservations.iter().filter(|(_, owner)| kept.lets_go(owner));
        let stale = stale.map(|(ip, _)| *ip).collect();
        let errors = self.unreadable().collect();
        self.release_all(stale, errors)
    }

    /// Gives back one address, whoever has it.
    pub fn release_address(&mut self, ip: IpAddr) -> Result<()> {
        let path = self.dir.join(ip.to_string());
        files::remove(&path).map_err(failed("remove", path))?;
        self.reservations.remove(&ip);
        Ok(())
    }

    /// The address that was given out last from a range set; one that cannot be read as an address is none.
    pub fn last_reserved(&self, set_index: usize) -> Result<Option<IpAddr>> {
        let path = self.last_reserved_path(set_index);
        match files::read(&path) {
            Ok(content) => Ok(text::parse_ip(String::from_utf8_lossy(&content).trim()).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", path)(error)),
        }
    }

    pub fn set_last_reserved(&mut self, set_index: usize, ip: IpAddr) -> Result<()> {
        let target = self.last_reserved_path(set_index);
        let written = self
            .write_aside(&ip.to_string())
            .and_then(|aside| files::rename(&aside, &target).map_err(failed("write", target)));
        let Err(error) = written else {
            self.has_aside = false;
            return Ok(());
        };
        let error = match self.remove_left_over() {
            Ok(()) => error,
            Err(undo) => error.also(&undo),
        };
        Err(error.context(format_args!("cannot note {ip} as the last reserved address")))
    }

    fn last_reserved_path(&self, set_index: usize) -> PathBuf {
        self.dir.join(format!("last_reserved_ip.{set_index}"))
    }

    /// A left-over of a crash may be another name of a live reservation: it is removed, and never opened for writing.
    fn write_aside(&mut self, content: &str) -> Result<PathBuf> {
        self.remove_left_over()?;
        self.has_aside = true;
        let aside = self.dir.join(ASIDE);
        files::write_new(&aside, content).map_err(failed("write", &aside))?;
        Ok(aside)
    }

    fn remove_left_over(&mut self) -> Result<()> {
        if self.has_aside {
            let aside = self.dir.join(ASIDE);
            files::remove(&aside).map_err(failed("remove", aside))?;
            self.has_aside = false;
        }
        Ok(())
    }

    /// Fails when there is a reservation of which it cannot be told whose it is.
    pub fn all_readable(&self) -> Result<()> {
        self.unreadable().next().map_or(Ok(()), Err)
    }

    fn unreadable(&self) -> impl Iterator<Item = Error> {
        self.reservations.values().filter_map(|owner| match owner {
            Owner::Unreadable(error) => Some(error.clone()),
            _ => None,
        })
    }

    fn release_all(&mut self, addresses: Vec<IpAddr>, mut errors: Vec<Error>) -> Result<()> {
        for ip in addresses {
            errors.extend(self.release_address(ip).err());
        }
        errors.extend(self.remove_left_over().err());
        errors.into_iter().reduce(|first, error| first.also(&error)).map_or(Ok(()), Err)
    }
}

/// Gives `aside` the name `target`, or finds that somebody has it.
fn put_in_place(
    aside: &Path,
    target: &Path,
    link: impl FnOnce(&Path, &Path) -> io::Result<bool>,
) -> io::Result<bool> {
    match link(aside, target) {
        // Some file systems (vfat, and what is mounted through FUSE) have no links. Then the lock alone keeps others
        // away.
        Err(error)
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) =>
        {
            Ok(files::is_absent(target)? && files::rename(aside, target).map(|()| true)?)
        }
        linked => linked,
    }
}

/// Nothing is there, nor can it be, since something on the way to it is not a directory.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn failed(doing: impl Display, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
    move |error| {
        Error::new(Code::IO, format!("cannot {doing} {}: {error}", path.as_ref().display()))
    }
}
