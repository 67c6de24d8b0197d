//! The files of the records, one for each attachment.

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use crate::attachments::owner::{self, Owner, hash};
use crate::attachments::record::{
    Hold, Made, Note, Record, append, cannot, claims, held, line, orphans,
};
use crate::cni::json;
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Limit, Mode};
use crate::kernel::identity::Identity;
use crate::kernel::state_directory::StateDirectory;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, IfName, NetworkName};

/// The directory of the records. It persists over a reboot, as the caches of the runtimes do: after a boot, the records prove
/// that their attachments have ended.
pub const DIRECTORY: StateDirectory =
    StateDirectory { usual: "/var/lib/cni/attachments", of_user: "/run/cnibox/lib/attachments" };

/// The records of releases up to 0.2.0, in one directory for each PID namespace.
const OLD_DIRECTORY: &str = "/var/lib/cni/identities";

/// The separator of the names in a file name. A network name or container id cannot contain it.
const SEPARATOR: char = '+';

/// The longest file name of a record: NAME_MAX (255, linux/limits.h) less the bytes that the name of a temporary file adds.
const NAME_BYTES_MAX: usize = 200;

/// The size limit of a record's file that can be read. All ports of a protocol have 380 KiB in each family, and a list of 4 MiB has
/// 5.4 MiB in a request.
pub(super) const BYTES_MAX: usize = file::BYTES_MAX;

/// The size limit of a new record: the rest is for what is appended.
pub(super) const NEW_BYTES_MAX: usize = BYTES_MAX / 2;

/// The maximum number of `Made` lines: with each renewal a DHCP server can give a new address. A line more replaces the file by
/// a shorter one, see `Record::shortened`.
const MADE_MAX: usize = 16;

/// The records of a host.
#[derive(Clone, Debug)]
pub struct Records {
    directory: PathBuf,
}

/// The records of a host.
#[derive(Debug, Default)]
pub struct AllRecords {
    pub records: Vec<Record>,
    pub unreadable: Vec<Unreadable>,
}

/// The file of a record that cannot be read. Its attachment may live.
#[derive(Debug)]
pub struct Unreadable {
    /// The name of the file.
    pub file: PathBuf,
    /// `cannot read record PATH: REASON`.
    pub error: Error,
}

impl Unreadable {
    /// The attachment, by the name of the file. `None` if the name is a hash, or the file has a name of another program.
    pub fn named(&self) -> Option<(NetworkName, Attachment)> {
        let mut names = self.file.to_str()?.split(SEPARATOR);
        let (network, id, ifname) = (names.next()?, names.next()?, names.next()?);
        let container_id = ContainerId::new(id).ok().filter(|_| names.next().is_none())?;
        let at = Attachment { container_id, ifname: IfName::new(ifname).ok()? };
        Some((NetworkName::new(network).ok()?, at))
    }

    /// Warns that the attachment may live. What belongs to it stays.
    pub fn warn(&self) {
        let (error, remover) = (&self.error, owner::remover(self.named()));
        sys::warn(format_args!("warning: {error}; its attachment may live; {remover} removes it"));
    }
}

impl Records {
    /// The records in `DIRECTORY`.
    pub fn of_host() -> Self {
        Self::in_directory(DIRECTORY.path())
    }

    /// The records in another directory, for example below another root.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Lists the orphans of a node that has no directory of records.
    pub fn list_orphans(&self) -> Result<()> {
        let found = file::found(fs::symlink_metadata(&self.directory));
        match found.map_err(Error::of_file("read", &self.directory))? {
            Some(_) => Ok(()),
            None => orphans::list(&self.directory)
                .map_err(|error| cannot("list the orphans beside", &self.directory, error)),
        }
    }

    /// Writes the record of a finished ADD again, with the identity and the number of its namespace that `now` has. Another
    /// record and a busy one stay.
    pub fn identify(&self, generation: &str, now: &Record) -> Result<()> {
        let Hold::Held(held) = self.hold_for_removal(&now.network, &now.at)? else { return Ok(()) };
        let Some(made) = held.record.made.last().filter(|_| held.record.generation == generation)
        else {
            return Ok(());
        };
        let (identity, observer, number) = (now.identity.clone(), now.observer, now.number);
        let record = Record { identity, observer, number, ..held.record.clone() };
        let path = self.path(&now.network, &now.at);
        fault::file_operation()
            .and_then(|()| file::replace_private(&path, &record.shortened(made)))
            .map_err(|error| cannot("write", &path, error))
    }

    /// Appends the present addresses of an attachment to its record, if it has one.
    pub fn amend(&self, network: &NetworkName, at: &Attachment, made: &Made) -> Result<()> {
        let path = self.path(network, at);
        match self.read(network, at)? {
            Some(record) if record.made.len() >= MADE_MAX => {
                let content = record.shortened(made);
                fault::file_operation()
                    .and_then(|()| file::replace_private(&path, &content))
                    .map_err(|error| cannot("write", &path, error))
            }
            _ => self.append(&path, &line(made)).map(drop),
        }
    }

    /// Appends the names of claims to a record. Returns false if there is no record.
    pub fn note_claims(&self, file: &Path, claims: &[String]) -> Result<bool> {
        self.append(&self.directory.join(file), &Note::of_claims(claims).line())
    }

    /// Notes that a plugin is one of those of the ADD, the ports that it publishes, and that the attachment has an ADD after a DEL.
    pub fn note_add(&self, record: &Record, plugin: &str, ports: Vec<String>) -> Result<()> {
        let deleting = record.is_deleting.then_some(false);
        let mut note = Note { ports, deleting, ..Note::default() };
        if record.plugins.iter().all(|known| known != plugin) {
            note.plugins.push(plugin.into());
        }
        if note == Note::default() {
            return Ok(());
        }
        self.append(&self.path(&record.network, &record.at), &note.line()).map(drop)
    }

    /// Notes that the operation of the runtime that was interrupted is void: another runtime has attached the container since.
    pub fn note_void(&self, record: &Record) -> Result<()> {
        let note = Note { added: Some(true), ..Note::default() };
        self.append(&self.path(&record.network, &record.at), &note.line()).map(drop)
    }

    /// Notes that the DEL of the attachment has begun. First waits until a reconcile of the attachment has ended, so that it
    /// makes nothing that the DEL has removed. After the timeout the DEL goes on: the lock can be that of an ADD which calls
    /// this DEL to undo itself.
    pub fn mark_deleting(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.network, &record.at);
        let limit = Limit::new(held::HOLD_MAX);
        let mark = || -> io::Result<()> {
            loop {
                fault::file_operation()?;
                let (file, open) = file::open_regular(&path, file::APPEND)?;
                flock::lock_within(&file, Mode::Exclusive, &limit)?;
                if file::is_at(&open, &path)? {
                    return append(&file, &Note::of_del().line());
                }
                // The process that had the lock has replaced the file: by a shorter one, or for a later ADD.
                match self.read(&record.network, &record.at) {
                    Ok(Some(now)) if now.generation == record.generation => {}
                    _ => return Ok(()),
                }
            }
        };
        file::found(mark()).map(drop).map_err(|error| cannot("write", &path, error))
    }

    fn append(&self, path: &Path, line: &[u8]) -> Result<bool> {
        let append = || -> io::Result<()> {
            fault::file_operation()?;
            let (file, _) = file::open_regular(path, file::APPEND)?;
            append(&file, line)
        };
        let appended = file::found(append()).map_err(|error| cannot("write", path, error))?;
        Ok(appended.is_some())
    }

    /// Whether the ADD of a record made a reservation, which was last written at `modified`. An ADD of the Go plugins, which write no
    /// record, can have reserved the address later, for a later container of the same name.
    pub fn has_reserved(
        &self,
        record: &Record,
        address: IpAddr,
        modified: Option<SystemTime>,
    ) -> bool {
        let path = self.path(&record.network, &record.at);
        has_reserved(record, address, modified, || {
            fs::metadata(path).and_then(|file| file.modified()).ok()
        })
    }

    /// The record of an attachment. `None` only if there is none: an unreadable record is an error, and proves nothing.
    pub fn read(&self, network: &NetworkName, at: &Attachment) -> Result<Option<Record>> {
        self.read_by(network, at, &file::read_within)
    }

    /// `read` by another function, which gets the path and the size limit.
    pub fn read_by(
        &self,
        network: &NetworkName,
        at: &Attachment,
        content: &dyn Fn(&Path, usize) -> io::Result<Vec<u8>>,
    ) -> Result<Option<Record>> {
        let path = self.path(network, at);
        match read(&path, content)? {
            Some(record) if record.network != *network || record.at != *at => {
                let belongs = format!("it is the record of {}", record.at.title(&record.network));
                Err(unreadable(&path, belongs))
            }
            record => Ok(record),
        }
    }

    /// The record of the owner of an object. If the text of the owner has only the hash of a long name, all records are read, and
    /// an unreadable one may be the owner's.
    pub fn of_owner(&self, owner: &str) -> Result<Option<Record>> {
        if let Some((network, at)) = Owner::named(owner) {
            return self.read(&network, &at);
        }
        let all = self.all()?;
        let has_owner = |record: &Record| Owner::new(&record.network, &record.at).as_str() == owner;
        match (all.records.into_iter().find(has_owner), all.unreadable.into_iter().next()) {
            (None, Some(Unreadable { error, .. })) => Err(error),
            (found, _) => Ok(found),
        }
    }

    pub(super) fn read_file(&self, file: &Path) -> Result<Option<Record>> {
        read(&self.directory.join(file), &file::read_within)
    }

    /// The identity that a release up to 0.2.0 recorded for the namespace at a path. These releases recorded no number.
    pub fn old_identity(
        &self,
        network: &NetworkName,
        at: &Attachment,
        netns: &Path,
    ) -> Option<Identity> {
        let read = |path: PathBuf| -> Option<OldRecord> {
            json::read(&file::read_within(&path, BYTES_MAX).ok()?).ok()
        };
        let is_of_attachment =
            |old: &OldRecord| (&old.network, &old.at, &*old.netns) == (network, at, netns);
        let mut found = old_paths(network, at).into_iter().filter_map(read);
        found.find(is_of_attachment).map(|old| old.identity)
    }

    /// Removes the record of an attachment. A missing record is not an error.
    pub fn remove(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        remove(&self.path(network, at))?;
        self.remove_old(network, at)
    }

    /// Removes a record that cannot be read.
    pub fn remove_unreadable(&self, unreadable: &Unreadable) -> Result<()> {
        remove(&self.directory.join(&unreadable.file))
    }

    /// Removes the files of an attachment beside its record: those of killed processes and of earlier releases.
    pub fn remove_leftovers(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        file::sweep_of(&self.path(network, at));
        self.remove_old(network, at)
    }

    pub(super) fn remove_old(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        old_paths(network, at).iter().try_for_each(|path| remove(path))
    }

    /// Removes a record and its claims.
    pub fn discard(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.network, &record.at);
        self.release_all(record).map_err(|error| cannot("remove", &path, error))?;
        self.remove(&record.network, &record.at)
    }

    /// All records. Fails if the directory cannot be read.
    pub fn all(&self) -> Result<AllRecords> {
        self.all_with_name(|_| true)
    }

    /// The records of a container, and the unreadable ones that can be of it.
    pub fn of_container(&self, id: &ContainerId) -> Result<AllRecords> {
        let part = format!("{SEPARATOR}{id}{SEPARATOR}");
        let mut all =
            self.all_with_name(|name| name.starts_with(SEPARATOR) || name.contains(&part))?;
        all.records.retain(|record| record.at.container_id == *id);
        all.unreadable.retain(|unreadable| unreadable.named().is_some());
        Ok(all)
    }

    fn all_with_name(&self, is_wanted: impl Fn(&str) -> bool) -> Result<AllRecords> {
        let mut all = AllRecords::default();
        let files = self.files();
        let files = files.map_err(|error| cannot("read directory", &self.directory, error))?;
        for file in files.into_iter().filter(|file| is_wanted(&file.to_string_lossy())) {
            match self.read_file(&file) {
                Ok(record) => all.records.extend(record),
                Err(error) => all.unreadable.push(Unreadable { file, error }),
            }
        }
        Ok(all)
    }

    /// The names of the records' files. Empty if there is no directory.
    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let directory = fault::file_operation().and_then(|()| fs::read_dir(&self.directory));
        let Some(entries) = file::found(directory)? else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            if !file::is_aside(&name) && !claims::is_claim(&name) {
                files.push(name.into());
            }
        }
        Ok(files)
    }

    /// Removes incomplete files of killed processes, and invalid claims. A file that cannot be removed stays: no other function
    /// uses it. Returns the records.
    pub fn sweep(&self) -> Result<AllRecords> {
        file::sweep(&self.directory);
        let all = self.all()?;
        self.sweep_claims(&all.records);
        Ok(all)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file name of the record of an attachment.
    pub fn file_name(&self, network: &NetworkName, at: &Attachment) -> PathBuf {
        file_name(network, at).into()
    }

    /// The path of the record of an attachment.
    pub fn path(&self, network: &NetworkName, at: &Attachment) -> PathBuf {
        self.directory.join(file_name(network, at))
    }
}

/// `recorded` is the time of the last write of the record.
pub(super) fn has_reserved(
    record: &Record,
    address: IpAddr,
    modified: Option<SystemTime>,
    recorded: impl FnOnce() -> Option<SystemTime>,
) -> bool {
    record.may_have_reserved(address) && (record.made.is_empty() || modified <= recorded())
}

fn remove(path: &Path) -> Result<()> {
    // On a read-only file system, unlink(2) fails with EROFS also for a missing file.
    let is_absent = || file::found(fs::symlink_metadata(path)).is_ok_and(|found| found.is_none());
    match remove_file(path) {
        Err(error) if !is_absent() => Err(cannot("remove", path, error)),
        _ => Ok(()),
    }
}

/// Removes the file of a record. If the file has a second name, its writer was killed between link(2) and the removal of the
/// temporary name: removes the temporary name, too.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    fault::file_operation()?;
    let found = fs::symlink_metadata(path);
    let removed = fs::remove_file(path);
    match found {
        Ok(found) if found.nlink() == 1 => {}
        Ok(found) => file::sweep_after(path, &found),
        Err(_) => file::sweep_of(path),
    }
    removed
}

fn file_name(network: &NetworkName, at: &Attachment) -> String {
    let name = [&**network, &*at.container_id, &*at.ifname].join(&SEPARATOR.to_string());
    // A hash of the names is sufficient as file name, because the file contains the names.
    if name.len() > NAME_BYTES_MAX { format!("{SEPARATOR}{:016x}", hash(&name)) } else { name }
}

/// The files that releases up to 0.2.0 may have written for an attachment.
fn old_paths(network: &NetworkName, at: &Attachment) -> Vec<PathBuf> {
    let nodes = fs::read_dir(OLD_DIRECTORY).into_iter().flatten().flatten();
    nodes.map(|node| node.path().join(file_name(network, at))).collect()
}

fn read(
    path: &Path,
    content: &dyn Fn(&Path, usize) -> io::Result<Vec<u8>>,
) -> Result<Option<Record>> {
    let content = fault::file_operation().and_then(|()| content(path, BYTES_MAX));
    let content = file::found(content).map_err(|error| {
        let mut error = unreadable(path, sys::reason(&error));
        error.code = Code::IO;
        error
    })?;
    let record = content.map(|content| Record::parse(&content)).transpose();
    record.map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, reason: impl Display) -> Error {
    Error::internal(format_args!("cannot read record {}", path.display())).with_details(reason)
}

/// The content of a record of a release up to 0.2.0.
#[derive(Deserialize)]
struct OldRecord {
    network: NetworkName,
    #[serde(flatten)]
    at: Attachment,
    netns: PathBuf,
    identity: Identity,
}

#[cfg(test)]
mod tests;
