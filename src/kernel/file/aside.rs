//! Replaces files: the new content is written aside, to a temporary file with a random name in the same directory, which is
//! then renamed.
//!
//! A process that is killed leaves the temporary file. The writer holds a flock(2) on it, which ends with the process, so
//! `sweep` removes only a file that no process writes. This does not depend on a clock.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata};
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;

use crate::fault;
use crate::kernel::flock::{self, Limit, Mode};

/// The longest file name: NAME_MAX (linux/limits.h).
const NAME_BYTES_MAX: usize = 255;
/// The length of RANDOM in the name of a temporary file, with the dot before it: 64 bits in hexadecimal.
const RANDOM_BYTES: usize = 17;
/// The number of attempts to write a file: a sweep can remove the temporary file before its writer has locked it.
const ATTEMPTS_MAX: u32 = 10;

/// A complete temporary file, `.NAME.RANDOM~`. The file is removed when this value is dropped.
pub struct Aside {
    name: RandomName,
    file: File,
}

/// The path of the temporary file, which is removed when this value is dropped. Empty after a rename: nothing to remove.
struct RandomName(PathBuf);

impl Aside {
    /// Writes the temporary file for `path`. A file at `path` does not change.
    pub fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<Self> {
        fault::file_operation()?;
        let aside = path.with_file_name(name(path));
        let file = super::open_any(&aside, super::NEW | OFlag::O_APPEND, mode)?;
        let mut aside = Self { name: RandomName(aside), file };
        // On a file system without locks `sweep` cannot lock the file, either, and keeps it.
        let _ = flock::try_lock(&aside.file, Mode::Exclusive);
        fault::file_operation()?;
        aside.file.write_all(content)?;
        Ok(aside)
    }

    /// `write` for a file that is used under its temporary name: no sweep has removed it.
    pub fn keep(path: &Path, content: &[u8], mode: u32) -> io::Result<Self> {
        put(path, content, mode, |aside, _| match aside.file.metadata()?.nlink() {
            0 => Err(ErrorKind::NotFound.into()),
            _ => Ok(aside),
        })
    }

    pub fn path(&self) -> &Path {
        &self.name.0
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Renames the temporary file. A file with the new name is replaced.
    pub fn rename(self, to: &Path) -> io::Result<()> {
        self.take_place(to).map(drop)
    }

    /// `rename`. Returns the file, which is locked, to write more.
    fn take_place(mut self, to: &Path) -> io::Result<File> {
        fault::file_operation()?;
        fs::rename(&self.name.0, to)?;
        self.name.0.clear();
        Ok(self.file)
    }

    /// Links the file to a new name, and removes the random name. Fails if the new name exists. Returns the file, to write
    /// more.
    pub fn link(self, to: &Path) -> io::Result<File> {
        fault::file_operation()?;
        fs::hard_link(&self.name.0, to)?;
        Ok(self.file)
    }
}

impl Drop for RandomName {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // If this fails, the next sweep removes the file.
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Writes a file, or replaces the object at its path: a link, a FIFO, or a file that others still read. A reader never finds an
/// incomplete file.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    put(path, content, mode, Aside::rename)
}

/// `replace`. Returns the file, which is locked, to write more.
pub fn take_place(path: &Path, content: &[u8], mode: u32) -> io::Result<File> {
    put(path, content, mode, Aside::take_place)
}

/// Writes a new file, which a reader never finds incomplete. Fails if the path exists. Returns the file, to write more.
pub fn create(path: &Path, content: &[u8], mode: u32) -> io::Result<File> {
    put(path, content, mode, Aside::link)
}

/// Writes the temporary file, and gives it its place. `place` fails with `NotFound` if there is no temporary file.
fn put<T>(
    path: &Path,
    content: &[u8],
    mode: u32,
    place: fn(Aside, &Path) -> io::Result<T>,
) -> io::Result<T> {
    for _ in 1..ATTEMPTS_MAX {
        match place(Aside::write(path, content, mode)?, path) {
            // A sweep removed the temporary file before it was locked.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            placed => return placed,
        }
    }
    place(Aside::write(path, content, mode)?, path)
}

/// `replace` for a file that only its owner may read, in a directory of such files. Creates the directory if it is missing.
pub fn replace_private(path: &Path, content: &[u8]) -> io::Result<()> {
    match replace(path, content, 0o600) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_directory(path.parent().unwrap_or(path), 0o700)?;
            replace(path, content, 0o600)
        }
        replaced => replaced,
    }
}

/// Creates a directory, and its missing parents. An existing directory is no error.
pub fn make_directory(directory: &Path, mode: u32) -> io::Result<()> {
    fault::file_operation()?;
    DirBuilder::new().recursive(true).mode(mode).create(directory)
}

/// Whether a file name is that of a temporary file, `.NAME.RANDOM~`. A reader of the directory must skip such a file.
pub fn is_aside(name: &OsStr) -> bool {
    let Some(rest) = name.as_bytes().strip_suffix(b"~") else { return false };
    let Some((name, random)) = rest.split_last_chunk::<RANDOM_BYTES>() else { return false };
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() > 1 && name[0] == b'.' && random[0] == b'.' && random[1..].iter().all(is_digit)
}

/// Removes the temporary files that killed processes have left in a directory.
pub fn sweep(directory: &Path) {
    names(directory, &|_| true).iter().for_each(|path| remove_abandoned(path));
}

/// Removes the temporary files that killed processes have left for one path.
pub fn sweep_of(path: &Path) {
    names_for(path).iter().for_each(|path| remove_abandoned(path));
}

/// `sweep_of` after the file at the path was removed or replaced. Also removes the temporary name of this file, whose writer was
/// killed before it did so: the caller can have the lock of the file.
pub fn sweep_after(path: &Path, removed: &Metadata) {
    for aside in names_for(path) {
        match fs::symlink_metadata(&aside) {
            Ok(found) if (found.dev(), found.ino()) == (removed.dev(), removed.ino()) => {
                let _ = fs::remove_file(aside);
            }
            _ => remove_abandoned(&aside),
        }
    }
}

/// The temporary files for one path.
fn names_for(path: &Path) -> Vec<PathBuf> {
    let start = start(path);
    let is_of_path =
        |name: &[u8]| name.len() == start.len() + RANDOM_BYTES + 1 && name.starts_with(&start);
    names(path.parent().unwrap_or(path), &is_of_path)
}

/// The temporary files whose names `is_wanted` accepts. Errors are ignored: every reader skips temporary files.
fn names(directory: &Path, is_wanted: &dyn Fn(&[u8]) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_found = |name: &OsStr| is_aside(name) && is_wanted(name.as_bytes());
    let found = entries.filter(|entry| is_found(&entry.file_name()));
    found.map(|entry| entry.path()).collect()
}

/// Removes a temporary file if no process writes it.
pub fn remove_abandoned(path: &Path) {
    let Ok((file, _)) = super::open_regular(path, super::READ | OFlag::O_NOFOLLOW) else { return };
    // The lock is held until the file is removed.
    let _ = flock::while_locked(&file, &Limit::new(Duration::ZERO), || fs::remove_file(path));
}

/// The name of a new temporary file for a path.
fn name(path: &Path) -> OsString {
    let mut name = start(path);
    // A hasher of std has random keys, and all hashers of a thread have different ones.
    name.extend(format!(".{:016x}", RandomState::new().hash_one(())).as_bytes());
    name.push(b'~');
    OsString::from_vec(name)
}

/// The beginning of the names of temporary files for a path. A long name is cut.
fn start(path: &Path) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let length = name.len().min(NAME_BYTES_MAX - RANDOM_BYTES - 2);
    [b".", &name[..length]].concat()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use super::*;
    use crate::kernel::file::read_text;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("cnibox-{name}-{}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            Self(dir)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn an_object_at_the_path_is_replaced_and_the_target_of_a_link_stays() {
        let dir = Scratch::new("replaced");
        let (path, precious) = (dir.0.join("file"), dir.0.join("precious"));
        let plant: [&dyn Fn(); 4] = [
            &|| (),
            &|| fs::write(&path, "a longer text than the new one").unwrap(),
            &|| symlink(&precious, &path).unwrap(),
            &|| assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
        ];
        fs::write(&precious, "precious").unwrap();
        for plant in plant {
            plant();
            replace(&path, b"new", 0o640).unwrap();
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
            assert_eq!(read_text(&path).unwrap(), "new");
            assert_eq!(read_text(&precious).unwrap(), "precious");
            assert_eq!(dir.names(), ["file", "precious"]);
            fs::remove_file(&path).unwrap();
        }
        fs::create_dir(&path).unwrap();
        assert_eq!(replace(&path, b"new", 0o600).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_eq!(dir.names(), ["file", "precious"], "a failed write leaves nothing");
        let missing = replace(&dir.0.join("none/file"), b"new", 0o600).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        replace_private(&dir.0.join("some/where/file"), b"new").unwrap();
        let mode = fs::metadata(dir.0.join("some/where")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn only_temporary_files_of_ended_writers_are_swept() {
        let dir = Scratch::new("swept");
        let path = dir.0.join("net-c-eth0");
        let alive = Aside::write(&path, b"half", 0o600).unwrap();
        let left = |name: &str| {
            let path = dir.0.join(name);
            let aside = Aside::write(&path, b"half", 0o600).unwrap();
            let copy = dir.0.join(super::name(&path));
            fs::copy(aside.path(), &copy).unwrap();
            copy
        };
        let (own, other) = (left("net-c-eth0"), left("net-c-eth0.1"));
        let strange = dir.0.join(super::name(&path));
        assert!(Command::new("mkfifo").arg(&strange).status().unwrap().success());
        let kept = [".net-c-eth0", ".net-c-eth0.new", "net-c-eth0.0123456789abcdef~", ".log"];
        for name in kept {
            fs::write(dir.0.join(name), "").unwrap();
        }
        sweep_of(&path);
        assert!(!own.exists() && other.exists());
        sweep(&dir.0);
        assert!(!other.exists());
        assert!(alive.path().exists() && strange.exists());
        assert!(kept.iter().all(|name| dir.0.join(name).exists()));
        drop(alive);
        assert_eq!(dir.names().len(), kept.len() + 1);
    }

    #[test]
    fn a_file_that_was_swept_before_it_was_locked_is_written_again() {
        let dir = Scratch::new("again");
        let path = dir.0.join("file");
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    sweep(&dir.0);
                }
            });
            let written: io::Result<()> = (0..2000).try_for_each(|_| {
                replace(&path, b"content", 0o600)?;
                fs::remove_file(&path)?;
                create(&path, b"content", 0o600)?;
                let kept = Aside::keep(&path, b"content", 0o600)?;
                fs::symlink_metadata(kept.path()).map(drop)
            });
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            written.unwrap();
        });
        assert_eq!(dir.names(), ["file"]);
    }

    #[test]
    fn temporary_names_are_different_and_fit() {
        let long = PathBuf::from("n".repeat(NAME_BYTES_MAX));
        let names: Vec<OsString> =
            [&long, &long, Path::new("file")].map(name).into_iter().collect();
        assert!(names[0] != names[1] && names[0].len() == NAME_BYTES_MAX);
        assert!(names.iter().all(|name| is_aside(name)), "{names:?}");
        for name in ["", "~", ".~", "file~", ".file~", "..0123456789abcdef~", ".0123456789abcdef~"]
        {
            assert!(!is_aside(OsStr::new(name)), "{name}");
        }
    }
}
