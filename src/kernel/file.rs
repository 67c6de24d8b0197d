//! Opens and reads files. Nearly all functions refuse a file that is not regular: the open of a FIFO waits for its other end,
//! and the open of a device can have any effect.
//!
//! With O_NONBLOCK the open of a FIFO does not wait. The flag has no effect on a regular file.
//!
//! Each read has a limit: a sparse file or one below /proc can be larger than the memory. Other modules read files through this
//! one. The few exceptions have their own limit, and a test lists them.

mod aside;
mod holder;

use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::libc;
use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::statfs::statfs;
use nix::sys::time::TimeSpec;
use nix::unistd::{AccessFlags, dup2_stderr, faccessat};

pub(crate) use super::sys::{failed_with, reason};
pub use aside::{
    Aside, create, is_aside, make_directory, remove_abandoned, replace, replace_private, sweep,
    sweep_after, sweep_of, take_place,
};
pub use holder::holder;

/// The largest file that `read` reads. The largest file of cnibox is a cache entry, with a configuration in base64 and a
/// result: the configuration and the result have 4 MiB at most each.
pub const BYTES_MAX: usize = 16 << 20;
/// The largest file that is read line by line: a log with some million calls.
const LINES_BYTES_MAX: usize = 1 << 30;
/// The length of the first read of a file that reports the length 0.
const PAGE_BYTES: usize = 4096;

/// Reading, with an open that does not wait. Symbolic links are followed.
pub const READ: OFlag = OFlag::O_NONBLOCK;
/// Writing, with an open that does not wait. A symbolic link at the end of the path is an error.
pub const WRITE: OFlag = OFlag::O_WRONLY.union(NO_LINK);
/// `WRITE`, and reading.
pub const UPDATE: OFlag = OFlag::O_RDWR.union(NO_LINK);
/// `WRITE`, after the content is removed.
pub const REWRITE: OFlag = OFlag::O_TRUNC.union(WRITE);
/// `UPDATE` at the end of the file.
pub const APPEND: OFlag = OFlag::O_APPEND.union(UPDATE);
/// A missing file is created, with the mode 0600.
pub const CREATE: OFlag = OFlag::O_CREAT;
/// A new file, to write and read. Any file at the path is an error.
pub const NEW: OFlag = OFlag::O_EXCL.union(CREATE).union(UPDATE);
/// A lock file, which is created if it is missing. It is read-only: a process that inherits it must not write it.
pub const LOCK: OFlag = CREATE.union(NO_LINK);
const NO_LINK: OFlag = OFlag::O_NONBLOCK.union(OFlag::O_NOFOLLOW);

/// Opens a file of any type. If the open fails because of the type, the error names the type.
pub fn open(path: &Path, flags: OFlag) -> io::Result<File> {
    open_any(path, flags, 0o600).map_err(|error| with_type(error, path))
}

/// The error of an open. If the open failed because of the type of the file, the error names the type.
pub fn with_type(error: io::Error, path: &Path) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENXIO | libc::EISDIR) => {
            fs::metadata(path).map_or(error, |found| not_regular(&found))
        }
        // For a loop of symbolic links the kernel's text is better.
        Some(libc::ELOOP) if !is_loop(path) => {
            fs::symlink_metadata(path).map_or(error, |found| not_regular(&found))
        }
        _ => error,
    }
}

/// Opens a file of any type, and creates it with this mode. An error has the errno of the kernel.
///
/// The open(2) of musl, which the standard library calls, sets O_CLOEXEC once more by fcntl(2).
pub fn open_any(path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
    loop {
        match openat(AT_FDCWD, path, flags | OFlag::O_CLOEXEC, Mode::from_bits_truncate(mode)) {
            Err(Errno::EINTR) => {}
            opened => return Ok(opened?.into()),
        }
    }
}

/// Whether the symbolic links at a path are a loop.
fn is_loop(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.raw_os_error() == Some(libc::ELOOP))
}

/// Opens a regular file. Fails if the file has another type.
pub fn open_regular(path: &Path, flags: OFlag) -> io::Result<(File, Metadata)> {
    let file = open(path, flags)?;
    let metadata = regular(&file)?;
    Ok((file, metadata))
}

/// The metadata of an open file. Fails if it is not a regular file.
pub fn regular(file: &File) -> io::Result<Metadata> {
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(metadata) } else { Err(not_regular(&metadata)) }
}

/// The content of a regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_within(path, BYTES_MAX)
}

/// The content of a regular file that has this many bytes at most.
pub fn read_within(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_with_metadata(path, bytes_max).map(|(content, _)| content)
}

/// The content of a regular file that has this many bytes at most, and its metadata.
pub fn read_with_metadata(path: &Path, bytes_max: usize) -> io::Result<(Vec<u8>, Metadata)> {
    let (file, metadata) = open_regular(path, READ)?;
    Ok((content(&file, &metadata, bytes_max)?, metadata))
}

/// The content of an open file.
pub fn read_open(file: &File, bytes_max: usize) -> io::Result<Vec<u8>> {
    content(file, &file.metadata()?, bytes_max)
}

fn content(mut file: &File, metadata: &Metadata, bytes_max: usize) -> io::Result<Vec<u8>> {
    let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    if length > bytes_max {
        return Err(too_long(bytes_max));
    }
    // Most files have the length that they report, so one read is enough. Files below /proc report 0, those below /sys the
    // length of a page.
    let mut content = vec![0; if length == 0 { PAGE_BYTES } else { length + 1 }];
    let count = file.read(&mut content)?;
    content.truncate(count);
    if count == 0 || count == length { Ok(content) } else { read_more(file, content, bytes_max) }
}

/// The content of a file of any type. Unlike the other functions it can wait: a FIFO ends when its writers have closed it.
pub fn read_to_end(file: impl Read, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_more(file, Vec::new(), bytes_max)
}

/// Calls `on` with each line of a file, without its newline. A line that is longer than `line_bytes_max` is skipped.
pub fn each_line(path: &Path, line_bytes_max: usize, mut on: impl FnMut(&[u8])) -> io::Result<()> {
    let (file, metadata) = open_regular(path, READ)?;
    if metadata.len() > LINES_BYTES_MAX as u64 {
        return Err(too_long(LINES_BYTES_MAX));
    }
    let mut reader = BufReader::new(file.take(LINES_BYTES_MAX as u64));
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = reader.by_ref().take(line_bytes_max as u64 + 1).read_until(b'\n', &mut line)?;
        match line.split_last() {
            None => return Ok(()),
            Some((b'\n', line)) => on(line),
            Some(_) if count <= line_bytes_max => on(&line),
            Some(_) => drop(reader.skip_until(b'\n')?),
        }
    }
}

fn read_more(file: impl Read, mut content: Vec<u8>, bytes_max: usize) -> io::Result<Vec<u8>> {
    let left = (bytes_max + 1).saturating_sub(content.len());
    file.take(left as u64).read_to_end(&mut content)?;
    if content.len() > bytes_max { Err(too_long(bytes_max)) } else { Ok(content) }
}

/// Whether two paths lead to one file. False if one of them cannot be read.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(one).is_some_and(|found| Some(found) == identity(other))
}

/// The result of an operation on a file; `None` if the file does not exist.
pub fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Whether an error means that the file does not exist, or cannot exist: a part of its path is not a directory or has a name
/// that is too long.
pub fn is_missing(error: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, NotADirectory, NotFound};

    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
}

/// Whether an open file is still the one at its path: no process has removed or replaced it.
pub fn is_at(open: &Metadata, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (open.dev(), open.ino())),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The path of a file of the host for a process that sees the host's files below `prefix`. An empty prefix changes nothing.
pub fn below(prefix: &Path, path: &Path) -> PathBuf {
    if prefix.as_os_str().is_empty() {
        return path.to_owned();
    }
    prefix.join(path.strip_prefix("/").unwrap_or(path))
}

/// The error for a file that is longer than the limit.
pub fn too_long(bytes_max: usize) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes"))
}

/// Sets the modification time of the object that a path leads to. Its access time stays.
pub fn set_modified(path: &Path, time: SystemTime) -> io::Result<()> {
    let since = time.duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    let (accessed, modified) = (TimeSpec::UTIME_OMIT, TimeSpec::from(since));
    Ok(utimensat(AT_FDCWD, path, &accessed, &modified, UtimensatFlags::FollowSymlink)?)
}

/// The content of a regular file as text. Fails if it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// The content of a regular file as text in which bytes that are not UTF-8 are replaced. For files that are not written by
/// cnibox, such as those below /proc: any user can choose a part of the text and its length, by locks, sockets or mounts.
pub fn read_lossy(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read(path.as_ref())?).into_owned())
}

/// Redirects stderr to this file. An existing file is truncated; a new one is created with mode 0600.
pub fn redirect_stderr(path: &Path) -> io::Result<()> {
    Ok(dup2_stderr(open(path, REWRITE | CREATE)?)?)
}

/// Whether the file system of a path can be shared with other machines, so that it can contain files of other machines.
pub fn is_on_shared_file_system(path: &Path) -> io::Result<bool> {
    let magic = u32::try_from(statfs(path)?.filesystem_type().0);
    Ok(magic.is_ok_and(|magic| SHARED_FILE_SYSTEMS.contains(&magic)))
}

/// The magic numbers of file systems that machines can share (linux/magic.h): nfs, 9p, fuse (also that of virtiofs), smb, smb2,
/// cifs and ceph.
const SHARED_FILE_SYSTEMS: [u32; 7] =
    [0x6969, 0x0102_1997, 0x6573_5546, 0x517B, 0xFE53_4D42, 0xFF53_4D42, 0x00c3_6400];

/// Fails if no file can be created and written in a directory: the file system is full or read-only, or the permissions
/// forbid it. The directory does not change: the test file has no name (O_TMPFILE). On a file system without O_TMPFILE only the
/// permissions are checked.
pub fn probe_writing(dir: &Path) -> io::Result<()> {
    match open_any(dir, OFlag::O_WRONLY | OFlag::O_TMPFILE, 0o600) {
        Err(error) if is_without_tmpfile(&error) => {
            let permissions = AccessFlags::W_OK | AccessFlags::X_OK;
            Ok(faccessat(AT_FDCWD, dir, permissions, AtFlags::AT_EACCESS)?)
        }
        file => file?.write_all(b"0"),
    }
}

/// Whether the error means that O_TMPFILE is not supported. A kernel before 3.11 opens the directory itself, which is not
/// writable.
fn is_without_tmpfile(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL))
}

/// The error for a file that is not regular. Its kind is `IsADirectory` for every type of file.
fn not_regular(metadata: &Metadata) -> io::Error {
    let found = metadata.file_type();
    let found = match () {
        () if found.is_dir() => "directory",
        () if found.is_symlink() => "symbolic link",
        () if found.is_fifo() => "FIFO",
        () if found.is_socket() => "socket",
        () => "device",
    };
    io::Error::new(ErrorKind::IsADirectory, format!("it is a {found}, not a regular file"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_read_returns_all_up_to_its_limit() {
        let path = std::env::temp_dir().join(format!("cnibox-read-{}", std::process::id()));
        for length in [0, 1, 4095, 4096, 4097, 100_000] {
            let content = vec![b'x'; length];
            fs::write(&path, &content).unwrap();
            assert_eq!(read(&path).unwrap(), content);
            assert_eq!(read_within(&path, length).unwrap(), content);
            let file = File::open(&path).unwrap();
            assert_eq!(read_open(&file, length).unwrap(), content);
            if length > 0 {
                let reason = format!("it has more than {} bytes", length - 1);
                let error = read_within(&path, length - 1).unwrap_err();
                assert_eq!((error.kind(), error.to_string()), (ErrorKind::FileTooLarge, reason));
            }
        }
        fs::remove_file(&path).unwrap();
        // The kernel reports the length 0 for this file.
        let mounts = read_lossy("/proc/self/mountinfo").unwrap();
        assert_eq!(mounts, fs::read_to_string("/proc/self/mountinfo").unwrap());
        let error = read_within(Path::new("/proc/self/mountinfo"), 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn lines_are_read_one_by_one_and_long_ones_are_skipped() {
        let path = std::env::temp_dir().join(format!("cnibox-lines-{}", std::process::id()));
        let long = "x".repeat(20_000);
        for (text, expected) in [
            (String::new(), vec![]),
            ("a\n\nbcde\nf".into(), vec!["a", "", "bcde", "f"]),
            (format!("a\nabcde\n{long}\nb\n"), vec!["a", "b"]),
            (format!("a\n{long}"), vec!["a"]),
        ] {
            fs::write(&path, &text).unwrap();
            let mut lines = Vec::new();
            let on = |line: &[u8]| lines.push(String::from_utf8(line.into()).unwrap());
            each_line(&path, 4, on).unwrap();
            assert_eq!(lines, expected, "{text:?}");
        }
        File::create(&path).unwrap().set_len(LINES_BYTES_MAX as u64 + 1).unwrap();
        let error = each_line(&path, 4, |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_regular_files_are_opened_and_no_open_waits() {
        let dir = std::env::temp_dir().join(format!("cnibox-file-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let at = |name: &str| dir.join(name);
        fs::write(at("file"), "text").unwrap();
        assert!(Command::new("mkfifo").arg(at("FIFO")).status().unwrap().success());
        fs::create_dir(at("directory")).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        for (link, target) in [
            ("to-file", "file"),
            ("to-FIFO", "FIFO"),
            ("to-itself", "to-itself"),
            ("device", "/dev/zero"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        let error_text =
            |result: io::Result<()>| result.map_or_else(|error| error.to_string(), |()| "".into());
        let refused = |what: &str| format!("it is a {what}, not a regular file");
        let link = refused("symbolic link");
        let no_end = io::Error::from_raw_os_error(libc::ELOOP).to_string();
        let cases = [
            ("file", String::new(), String::new()),
            ("to-file", String::new(), link.clone()),
            ("FIFO", refused("FIFO"), refused("FIFO")),
            ("to-FIFO", refused("FIFO"), link.clone()),
            ("to-itself", no_end.clone(), no_end),
            ("socket", refused("socket"), refused("socket")),
            ("device", refused("device"), link),
            ("directory", refused("directory"), refused("directory")),
        ];
        for (name, when_read, when_written) in cases {
            assert_eq!(error_text(read(&at(name)).map(drop)), when_read, "read {name}");
            let written = open_regular(&at(name), WRITE).map(drop);
            assert_eq!(error_text(written), when_written, "write {name}");
        }
        assert_eq!(
            error_text(open_regular(Path::new("/dev/null"), WRITE).map(drop)),
            refused("device")
        );
        assert_eq!(read_text(&at("to-file")).unwrap(), "text");
        assert!(!read(Path::new("/proc/self/stat")).unwrap().is_empty());
        fs::remove_dir_all(&dir).unwrap();
    }
}
