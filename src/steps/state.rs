//! State files: a plugin stores data of one attachment from ADD to DEL. A file is replaced atomically, so a reader, also the
//! reference, never finds an incomplete file.
//!
//! The plugin that wrote a state file removes it in a failing ADD, DEL and GC. The directories stay.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::attachments::owner::hash;
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::ipam::store;
use crate::kernel::file;
use crate::kernel::flock;

/// The longest wait for the lock of a directory. A holder reads and writes one file, which takes milliseconds.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);

/// The longest file name: NAME_MAX (linux/limits.h).
const NAME_BYTES_MAX: usize = 255;

/// The file of an attachment.
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    pub fn new(dir: &str, name: &str) -> Self {
        Self { path: Path::new(dir).join(file_name(name)) }
    }

    pub fn name(&self) -> Option<&str> {
        self.path.file_name()?.to_str()
    }

    /// Reads the file. `None` if it does not exist, an error as content if the file is too long: it is damaged, and every later
    /// read fails, too.
    pub fn read(&self) -> Result<Option<Result<Vec<u8>>>> {
        match fault::file_operation().and_then(|()| file::read(&self.path)) {
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                Ok(Some(Err(self.damaged(error))))
            }
            content => Ok(self.missing_as_none("read", content)?.map(Ok)),
        }
    }

    /// The error for a content that cannot be used. Such a file is not missing: its attachment has made something.
    pub fn damaged(&self, reason: impl Display) -> Error {
        Error::new(Code::DECODE, format_args!("cannot use {}: {reason}", self.path.display()))
    }

    /// Writes the file, or replaces it. Creates the directory if it is missing.
    pub fn write(&self, content: &[u8]) -> Result<()> {
        file::replace_private(&self.path, content).map_err(|error| self.cannot("write", &error))
    }

    /// Removes the temporary file that a killed process left in `write`. To find the file, lists the directory.
    pub fn remove_aside(&self) {
        file::sweep_of(&self.path);
    }

    /// Removes the file. Idempotent: succeeds if it does not exist.
    pub fn remove(&self) -> Result<()> {
        let removed = fault::file_operation().and_then(|()| fs::remove_file(&self.path));
        self.missing_as_none("remove", removed).map(drop)
    }

    fn missing_as_none<T>(&self, verb: &str, result: io::Result<T>) -> Result<Option<T>> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(self.cannot(verb, &error)),
        }
    }

    fn cannot(&self, verb: &str, error: &io::Error) -> Error {
        failed(format_args!("{verb} {}", self.path.display()), error)
    }
}

/// Locks the directory until the returned file is dropped; creates the directory if it is missing. The lock is needed if
/// several attachments can write one file, and the first of them owns the file. Fails with code 11 after 10 s.
pub fn lock(dir: &str) -> Result<File> {
    lock_within(dir, LOCK_WAIT_MAX)
}

fn lock_within(dir: &str, limit: Duration) -> Result<File> {
    let (file, is_locked) = flock::lock_directory(Path::new(dir), 0o700, limit)
        .map_err(|error| failed(format_args!("lock {dir}"), &error))?;
    if is_locked {
        return Ok(file);
    }
    let msg = format!("cannot lock {dir} within {} s", limit.as_secs());
    Err(Error::new(Code::TRY_AGAIN_LATER, msg).with_details(file::holder(&file)))
}

/// For STATUS: fails if no state file can be written in the directory.
pub fn check_writable(dir: &str) -> Result<()> {
    store::check_writable(Path::new(dir))
}

/// All state files of a directory. Also removes the temporary files of killed processes.
pub fn all(dir: &str) -> Result<Vec<StateFile>> {
    let list = || {
        fault::file_operation()?;
        let mut files = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if file::is_aside(&entry.file_name()) {
                file::remove_abandoned(&entry.path());
            } else {
                files.push(StateFile { path: entry.path() });
            }
        }
        Ok(files)
    };
    match list() {
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        found => found.map_err(|error| failed(format_args!("list {dir}"), &error)),
    }
}

/// The file name for a name. A name that is too long is cut, and `#` and a hash are appended. No container id has a `#`.
fn file_name(name: &str) -> String {
    if name.len() <= NAME_BYTES_MAX {
        return name.to_owned();
    }
    let start = name.floor_char_boundary(NAME_BYTES_MAX - 17);
    format!("{}#{:016x}", &name[..start], hash(name))
}

fn failed(doing: impl Display, error: &io::Error) -> Error {
    Error::new(Code::IO, format_args!("cannot {doing}: {}", file::reason(error)))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_too_long_are_shortened_and_still_differ() {
        let name = |bytes: usize| "n".repeat(bytes);
        assert_eq!(
            (file_name(&name(255)), file_name("c1_eth0.json")),
            (name(255), "c1_eth0.json".into())
        );
        let long = [name(256), name(257), name(255) + "m"].map(|name| file_name(&name));
        assert!(long.iter().all(|name| name.len() == 255), "{long:?}");
        assert!(long[0] != long[1] && long[0] != long[2] && long[1] != long[2]);
    }

    #[test]
    fn the_wait_for_a_lock_on_a_directory_has_a_limit() {
        let dir = std::env::temp_dir().join(format!("cnibox-record-{}", std::process::id()));
        let path = dir.to_str().unwrap();
        let first = lock(path).unwrap();
        let error = lock_within(path, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN_LATER);
        assert_eq!(error.msg, format!("cannot lock {path} within 0 s"));
        let holder = format!("process {} (", std::process::id());
        assert!(error.details.starts_with(&holder), "{error}");
        drop(first);
        drop(lock_within(path, Duration::ZERO).unwrap());
        fs::remove_dir(dir).unwrap();
    }
}
