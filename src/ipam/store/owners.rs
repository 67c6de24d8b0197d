//! The addresses of each owner, so that a call finds those of its attachment without reading the files of all others.
//!
//! `DATADIR/.cnibox/NETWORK~owners` has a symbolic link for each owner. It leads nowhere: its target is a text.
//!
//! ```text
//! c1+eth0 -> 10.1.0.2 8f14e45fceea167a 9bf31c7ff062936a
//!            address, boot in which cnibox first saw the reservation, identity of the file; three words more per address
//! c2      -> ...     a file without an interface, from an old release of the reference
//! ~none   -> ...     the incomplete files
//! ```
//!
//! The texts are a copy of what the files say, and count only while the directory of the network has our *stamp*: a
//! modification time that only cnibox sets. Its fraction of a second is a hash of the boot, the directory, and the state of
//! `NETWORK~owners`, so a change of one of the two directories by anybody else is seen, if it comes while no call runs. Without the stamp all files are read, and
//! the texts are written again. So a crash, a power failure or the loss of a directory costs time, and nothing else but the boots.
//!
//! The kernel sets a change time when the stamp is set, which no program can choose. So a stamp that is restored from a backup
//! counts only within the seconds after it was set.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::io::ErrorKind::{self, InvalidData, InvalidInput};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::address_files::{AddressFiles, Known};
use super::content::{LINE_BREAK, attachment_in};
use super::files;
use crate::kernel::boot;
use crate::kernel::file;
use crate::names::hash;

/// The name for incomplete files, whose owner is the empty text. No container id begins with this character.
const NONE: &str = "~none";
/// The longest time from the modification time of the stamp, which is in the past, to the change time: two seconds, and a tick.
const STAMP_SECONDS_MAX: i64 = 3;
const MICROSECONDS: u64 = 1_000_000;

/// The addresses of the owners of one network.
pub(super) struct Owners {
    /// The directory of the network.
    network: PathBuf,
    /// The directory of the symbolic links.
    path: PathBuf,
    /// A hash of the boot id: all containers of an earlier boot have ended. `None` if /proc is not mounted, or if the id is not the
    /// kernel's: then no stamp counts.
    pub(super) boot: Option<u64>,
}

impl Owners {
    pub(super) fn new(network: &Path, path: PathBuf) -> Self {
        Self { network: network.into(), path, boot: boot::proven_id().ok().map(hash) }
    }

    /// Whether the directory of the network has the stamp: the texts say what the files say.
    pub(super) fn are_current(&self) -> bool {
        let Ok(found) = files::metadata(&self.network) else { return false };
        let is_recent = (0..=STAMP_SECONDS_MAX).contains(&(found.ctime() - found.mtime()));
        let is_it = |stamp| found.modified().is_ok_and(|modified| modified == stamp);
        is_recent && self.stamp_of(&found, found.mtime()).is_ok_and(is_it)
    }

    /// Stamps the directory of the network.
    pub(super) fn stamp(&self) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
        // In the past, so that the kernel does not set the same time.
        let seconds = i64::try_from(now.as_secs()).map_err(io::Error::other)? - 1;
        let stamp = self.stamp_of(&files::metadata(&self.network)?, seconds)?;
        files::set_modified(&self.network, stamp)
    }

    /// The stamp that begins with these seconds. It is a whole number of microseconds, because some file systems store no smaller
    /// unit.
    pub(super) fn stamp_of(&self, network: &Metadata, seconds: i64) -> io::Result<SystemTime> {
        let boot = self.boot.ok_or(ErrorKind::Unsupported)?;
        let owners = files::symlink_metadata(&self.path)?;
        if !owners.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        let (dev, ino) = (network.dev(), network.ino());
        let (of, s, ns) = (owners.ino(), owners.ctime(), owners.ctime_nsec());
        let micros = hash(format!("{boot} {dev} {ino} {seconds} {of} {s} {ns}")) % MICROSECONDS;
        let seconds = u64::try_from(seconds).map_err(io::Error::other)?;
        Ok(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros))
    }

    /// Whether a boot is an earlier one. False if it or this boot is unknown.
    pub(super) fn is_earlier(&self, boot: Option<u64>) -> bool {
        boot.zip(self.boot).is_some_and(|(boot, present)| boot != present)
    }

    /// The times of the directory of the network, which differ after a change.
    pub(super) fn times(&self) -> Option<[i64; 4]> {
        let found = files::metadata(&self.network).ok()?;
        Some([found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()])
    }

    /// The reservations of an owner.
    pub(super) fn of(&self, owner: &str) -> io::Result<Vec<Known>> {
        let Some(name) = name_of(owner) else { return Ok(Vec::new()) };
        match files::read_link(&self.path.join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            target => parse(&target?),
        }
    }

    /// The reservations of all owners that `is_wanted` accepts.
    pub(super) fn all(&self, is_wanted: &dyn Fn(&str) -> bool) -> io::Result<Vec<(String, Known)>> {
        let mut all = Vec::new();
        for name in files::names_in(&self.path)? {
            let owner = owner_of(&name);
            if is_wanted(&owner) {
                all.extend(self.of(&owner)?.into_iter().map(|known| (owner.clone(), known)));
            }
        }
        Ok(all)
    }

    /// Adds a reservation that was made in this boot.
    pub(super) fn add(&self, owner: &str, address: IpAddr, identity: u64) -> io::Result<()> {
        let mut all = self.of(owner)?;
        all.push(Known { address, boot: self.boot, identity });
        self.set(owner, &all)
    }

    pub(super) fn remove(&self, owner: &str, address: IpAddr) -> io::Result<()> {
        let mut all = self.of(owner)?;
        all.retain(|known| known.address != address);
        self.set(owner, &all)
    }

    /// Not atomic: until the directory of the network is stamped, the texts do not count.
    fn set(&self, owner: &str, all: &[Known]) -> io::Result<()> {
        let Some(name) = name_of(owner) else { return Ok(()) };
        let path = self.path.join(name);
        if all.is_empty() {
            return files::remove(&path).map(drop);
        }
        match files::symlink(&text_of(all), &path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                files::remove(&path)?;
                files::symlink(&text_of(all), &path)
            }
            made => made,
        }
    }

    /// Reads what the texts say, also if they do not count. Finds out by them in which boot cnibox first saw each file: in this
    /// one, unless the file was there before and has not changed. Fails if a text cannot be read: then no boot is known.
    pub(super) fn recall(&self, files: &mut AddressFiles) -> io::Result<Recalled> {
        let found = file::found(files::symlink_metadata(&self.path))?;
        let is_directory = found.is_some_and(|found| found.is_dir());
        let names = if is_directory { files::names_in(&self.path)? } else { Vec::new() };
        let known = |name: String| match files::read_link(&self.path.join(&name)) {
            Ok(target) => Ok((name, parse(&target).unwrap_or_default())),
            // No symbolic link, or no text.
            Err(error) if matches!(error.kind(), InvalidInput | InvalidData) => {
                Ok((name, Vec::new()))
            }
            Err(error) => Err(error),
        };
        let recalled = names.into_iter().map(known).collect::<io::Result<Recalled>>()?;
        for (address, file) in &mut files.0 {
            let all = file.owner.text().and_then(name_of).and_then(|name| recalled.get(&name));
            let is_it = |old: &&Known| (old.address, old.identity) == (*address, file.identity);
            let before = all.and_then(|all| all.iter().find(is_it)).and_then(|old| old.boot);
            file.boot = before.or(self.boot);
        }
        Ok(recalled)
    }

    /// Writes the texts for the present files. Fails if one cannot be written, and if a file is unreadable: its owner is unknown.
    pub(super) fn write_all(&self, files: &AddressFiles, recalled: &Recalled) -> io::Result<()> {
        if self.boot.is_none() || files.errors().next().is_some() {
            return Err(ErrorKind::Unsupported.into());
        }
        files::make_own_dir(&self.path)?;
        // The index of releases up to 0.2.0.
        files::clear(&self.path.with_file_name(self.network.file_name().unwrap_or_default()))?;
        let mut wanted = Recalled::new();
        for (owner, known) in files.all(&|_| true) {
            if let Some(name) = name_of(&owner) {
                wanted.entry(name).or_default().push(known);
            }
        }
        for name in recalled.keys().filter(|name| !wanted.contains_key(*name)) {
            files::clear(&self.path.join(name))?;
        }
        for (name, all) in wanted.into_iter().filter(|(name, all)| recalled.get(name) != Some(all))
        {
            let path = self.path.join(name);
            files::clear(&path)?;
            files::symlink(&text_of(&all), &path)?;
        }
        Ok(())
    }
}

/// The reservations by the name of their owner.
pub(super) type Recalled = HashMap<String, Vec<Known>>;

/// The name for an owner. `None` for a text that no plugin has written: nobody asks for its addresses.
fn name_of(owner: &str) -> Option<String> {
    if owner.is_empty() {
        return Some(NONE.into());
    }
    let (id, ifname) = attachment_in(owner)?;
    Some(ifname.map_or_else(|| id.to_string(), |ifname| format!("{id}+{ifname}")))
}

/// The owner with a name. A container id cannot contain `+`.
fn owner_of(name: &str) -> String {
    if name == NONE { String::new() } else { name.replacen('+', LINE_BREAK, 1) }
}

fn text_of(all: &[Known]) -> String {
    let words = |Known { address, boot, identity }: &Known| {
        format!("{address} {:016x} {identity:016x}", boot.unwrap_or_default())
    };
    all.iter().map(words).collect::<Vec<_>>().join(" ")
}

fn parse(text: &str) -> io::Result<Vec<Known>> {
    let words: Vec<&str> = text.split(' ').collect();
    let known = |words: &[&str; 3]| {
        let [address, boot, identity] = *words;
        let number = |word| u64::from_str_radix(word, 16).ok();
        let boot = Some(number(boot)?).filter(|boot| *boot != 0);
        Some(Known { address: address.parse().ok()?, boot, identity: number(identity)? })
    };
    let (triples, rest) = words.as_chunks::<3>();
    let all: Option<Vec<Known>> = triples.iter().map(known).collect();
    all.filter(|_| rest.is_empty()).ok_or_else(|| ErrorKind::InvalidData.into())
}
