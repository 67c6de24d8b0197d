//! The record of an ADD in progress.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Seek};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::attachments::owner;
use crate::attachments::record::files::{self, BYTES_MAX, NEW_BYTES_MAX, has_reserved};
use crate::attachments::record::{
    Made, Note, Record, Records, append, cannot, held, line, orphans,
};
use crate::error::Result;
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Limit, Mode};
use crate::kernel::sys;

/// The number of attempts to write a record. Each further attempt means that another process removed or replaced the record.
const ATTEMPTS_MAX: u32 = 100;

/// The record of an earlier ADD, in whose place an ADD has written its own.
pub struct Replaced {
    pub record: Record,
    /// The time of the last write. `None` if the file system has no times.
    modified: Option<SystemTime>,
}

impl Replaced {
    /// `Records::has_reserved`, for this record.
    pub fn has_reserved(&self, address: IpAddr, modified: Option<SystemTime>) -> bool {
        has_reserved(&self.record, address, modified, || self.modified)
    }
}

/// A record of an ADD in progress.
pub struct Begun {
    path: PathBuf,
    file: File,
    /// The plugin that delegates to this one wrote the record, and its ADD is in progress.
    is_of_caller: bool,
    /// The content of the file that this record replaced, and the time of its last write.
    replaced: Option<(Vec<u8>, Option<SystemTime>)>,
    /// An earlier ADD of the attachment has succeeded, and no DEL has come since.
    pub is_repeated: bool,
    /// The directories that were missing, and that this ADD made.
    directories: Vec<PathBuf>,
}

impl Begun {
    fn new(path: &Path, file: File) -> Self {
        Self {
            path: path.into(),
            file,
            is_of_caller: false,
            replaced: None,
            is_repeated: false,
            directories: Vec::new(),
        }
    }

    /// The record that this one has replaced.
    pub fn replaced(&self) -> Option<Replaced> {
        let (content, modified) = self.replaced.as_ref()?;
        Some(Replaced { record: Record::parse(content).ok()?, modified: *modified })
    }

    /// Notes that the ADD has failed and its DEL begins, so that the DEL of an executed plugin does not wait for this lock.
    pub fn note_deleting(&mut self) -> Result<()> {
        self.write(&Note::of_del().line())
    }

    /// Appends the names of claims, which the ADD is about to make.
    pub fn note_claims(&mut self, claims: &[String]) -> Result<()> {
        self.write(&Note::of_claims(claims).line())
    }

    /// Appends the `Made` line of the ADD, whose plugins have succeeded.
    pub fn note_made(&mut self, made: &Made) -> Result<()> {
        self.write(&line(made))
    }

    /// Notes that the ADD of a runtime is complete.
    pub fn note_added(&mut self) -> Result<()> {
        self.write(&Note { added: Some(true), ..Note::default() }.line())
    }

    fn write(&mut self, line: &[u8]) -> Result<()> {
        append(&self.file, line).map_err(|error| cannot("write", &self.path, error))
    }

    /// Restores the file as it was before the ADD, which has failed. A record of the caller stays.
    pub fn undo(self) -> Result<()> {
        if self.is_of_caller {
            return Ok(());
        }
        let restored = match &self.replaced {
            Some((content, modified)) => restore(&self.path, content, *modified),
            None => files::remove_file(&self.path),
        };
        // An error is not reported: rmdir(2) fails if another process has written a file into the directory.
        self.directories.iter().rev().all(|directory| fs::remove_dir(directory).is_ok());
        restored.map_err(|error| cannot("remove", &self.path, error))
    }
}

impl Records {
    /// Writes the record of an ADD that begins. If the caller of this plugin has written the record of this ADD, that record
    /// stays.
    pub fn begin(&self, record: &Record) -> Result<Begun> {
        self.create(record, Some(&Limit::new(held::HOLD_MAX)))
    }

    /// `begin` for a runtime, which nobody calls. Fails with code 11 while another ADD of the attachment is in progress.
    pub fn begin_of_runtime(&self, record: &Record) -> Result<Begun> {
        let begun = self.begin(record)?;
        if begun.is_of_caller { Err(held::busy(&begun.path)) } else { Ok(begun) }
    }

    /// `begin` for a reconcile, which holds the present record.
    pub fn renew(&self, record: &Record) -> Result<Begun> {
        self.create(record, None)
    }

    /// Writes the record of an attachment that was found alive. Returns false if the attachment has a record already, which
    /// stays.
    pub fn adopt(&self, record: &Record, made: &Made) -> Result<bool> {
        let path = self.path(&record.network, &record.at);
        let content = [record.content(), line(made)].concat();
        match create_new(&path, &content, &mut Vec::new()) {
            Ok(_) => {
                self.remove_old(&record.network, &record.at)?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(cannot("write", &path, error)),
        }
    }

    fn create(&self, record: &Record, limit: Option<&Limit>) -> Result<Begun> {
        let path = self.path(&record.network, &record.at);
        create(record, &path, limit).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => held::busy(&path),
            _ => cannot("write", &path, error),
        })
    }
}

/// Restores a record, with the time of its last write: `Records::has_reserved` compares it.
fn restore(path: &Path, content: &[u8], modified: Option<SystemTime>) -> io::Result<()> {
    let file = file::take_place(path, content, 0o600)?;
    modified.map_or(Ok(()), |modified| file.set_modified(modified))
}

/// Writes the record of an ADD that begins, or replaces an earlier one. `limit` is for the lock of the earlier one; `None` if the
/// caller has it.
fn create(record: &Record, path: &Path, limit: Option<&Limit>) -> io::Result<Begun> {
    let content = record.content();
    if content.len() > NEW_BYTES_MAX {
        return Err(file::too_long(NEW_BYTES_MAX));
    }
    let mut directories = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        match create_new(path, &content, &mut directories) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => {
                return created.map(|file| Begun { directories, ..Begun::new(path, file) });
            }
        }
        if let Some(begun) = replace(record, path, limit)? {
            return Ok(begun);
        }
    }
    Err(io::Error::new(ErrorKind::TimedOut, held::BUSY))
}

/// Replaces the record at a path by that of an ADD that begins. `None` if another process has removed or replaced the record
/// meanwhile. An unreadable record stays: its attachment may live, and then needs its claims.
fn replace(record: &Record, path: &Path, limit: Option<&Limit>) -> io::Result<Option<Begun>> {
    let unknown = |reason: &dyn Display| unknown_record(record, reason);
    fault::file_operation()?;
    let opened = file::open_regular(path, file::APPEND);
    let opened = file::found(opened).map_err(|error| unknown(&sys::reason(&error)))?;
    let Some((file, open)) = opened else { return Ok(None) };
    let read = || {
        let content =
            file::read_open(&file, BYTES_MAX).map_err(|error| unknown(&sys::reason(&error)))?;
        Record::parse(&content).map(|known| (known, content)).map_err(|error| unknown(&error))
    };
    // The writer of a record holds the lock until its ADD ends. A reconcile has a shared lock. Who removes the attachment has noted
    // that.
    let (known, _) = read()?;
    let is_same = known.identity.is(&record.identity);
    if is_same && !known.is_deleting && !flock::try_lock(&file, Mode::Shared)? {
        let is_repeated = known.is_repeated;
        return Ok(Some(Begun { is_of_caller: true, is_repeated, ..Begun::new(path, file) }));
    }
    // A GC that removes the earlier attachment of this name would remove the new interface, too.
    if let Some(limit) = limit
        && !flock::lock_within(&file, Mode::Exclusive, limit)?
    {
        return Err(io::Error::new(ErrorKind::TimedOut, held::BUSY));
    }
    if !file::is_at(&open, path)? {
        return Ok(None);
    }
    (&file).rewind()?;
    let (known, content) = read()?;
    let replaced = Some((content, file.metadata().and_then(|file| file.modified()).ok()));
    let is_repeated = !known.made.is_empty() || known.is_repeated;
    // Take over the claims and the ports of the replaced record, so that DEL removes them, too.
    let record = Record { ports: known.ports, ..record.clone() };
    let note = Note {
        claims: known.claims,
        repeated: is_repeated && known.identity.is(&record.identity),
        ..Note::default()
    };
    let new = file::take_place(path, &[record.content(), note.line()].concat(), 0o600)?;
    if open.nlink() != 1 {
        file::sweep_after(path, &open);
    }
    Ok(Some(Begun { replaced, is_repeated, ..Begun::new(path, new) }))
}

/// Writes a new file under a temporary name and links it to its name, so a reader never finds an incomplete file. Fails if the
/// name exists. Puts the directories that it made into `directories`.
fn create_new(path: &Path, content: &[u8], directories: &mut Vec<PathBuf>) -> io::Result<File> {
    match file::create(path, content, 0o600) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let directory = path.parent().unwrap_or(path);
            orphans::list(directory)?;
            *directories = make_directories(directory)?;
            file::create(path, content, 0o600)
        }
        created => created,
    }
}

/// Makes a directory with mode 0700, and its parent with mode 0755 as the reference does. Returns the directories that were
/// missing.
fn make_directories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for (path, mode) in
        directory.parent().map(|above| (above, 0o755)).into_iter().chain([(directory, 0o700)])
    {
        fault::file_operation()?;
        match DirBuilder::new().mode(mode).create(path) {
            Ok(()) => made.push(path.into()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(mode).create(path)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(made)
}

/// The reason why a record cannot be written: the present one cannot be read.
fn unknown_record(record: &Record, reason: impl Display) -> io::Error {
    let remover = owner::remover(Some((record.network.clone(), record.at.clone())));
    io::Error::other(format!(
        "the record of an attachment that may live is there, and cannot be read: {reason}; {remover} removes it"
    ))
}
