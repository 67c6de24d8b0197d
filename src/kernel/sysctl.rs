//! Kernel parameters under `/proc/sys`, of the network namespace that the calling thread is in.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::libc;

use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::{file, sys};
use crate::names::IpFamily;

/// The path of a parameter of one link: `net/ipv4/conf/eth0.100/arp_notify`. All paths here have slashes only, so a dot belongs
/// to the name of a link. `all` and `default` count as names of links.
pub fn of_link(family: IpFamily, link: &str, key: &str) -> String {
    let directory = match family {
        IpFamily::V4 => "ipv4",
        IpFamily::V6 => "ipv6",
    };
    format!("net/{directory}/conf/{link}/{key}")
}

/// Sets a parameter; returns whether it had another value.
pub fn set(path: &str, value: &str) -> Result<bool> {
    set_under(Path::new(ROOT), path, value).map_err(|error| cannot_set(path, value, &error))
}

/// Sets a parameter. It is no error if the parameter does not exist (the kernel has no IPv6, or is too old) or if
/// `/proc/sys` is read-only, because then the value is the administrator's decision.
pub fn set_if_possible(path: &str, value: &str) -> Result<()> {
    match set_under(Path::new(ROOT), path, value) {
        Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => Ok(()),
        result => if_exists(path, value, result.map(drop)),
    }
}

/// Sets a parameter. It is no error if the parameter does not exist.
pub fn set_if_exists(path: &str, value: &str) -> Result<()> {
    if_exists(path, value, set_under(Path::new(ROOT), path, value).map(drop))
}

/// `set_if_exists` without reading the parameter first, for a parameter that is known to have another value.
pub fn change_if_exists(path: &str, value: &str) -> Result<()> {
    let opened = open(Path::new(ROOT), path, OFlag::O_WRONLY);
    let changed = opened.and_then(|file| write(&file, value));
    if_exists(path, value, changed)
}

fn if_exists(path: &str, value: &str, result: io::Result<()>) -> Result<()> {
    file::found(result).map(drop).map_err(|error| cannot_set(path, value, &error))
}

/// Fails if a parameter has another value and cannot be written. Does not change it.
pub fn check_settable(path: &str, value: &str) -> Result<()> {
    match open(Path::new(ROOT), path, OFlag::O_RDWR) {
        Err(error) if !get(path).is_ok_and(|now| now.is_some_and(|now| is_same(&now, value))) => {
            Err(cannot_set(path, value, &error))
        }
        _ => Ok(()),
    }
}

/// The value without its newline; `None` if the parameter exists and cannot be read: some are write-only, some have no
/// value yet. A lack of memory or of file descriptors is an error: it says nothing about the parameter.
pub fn get(path: &str) -> Result<Option<String>> {
    match open(Path::new(ROOT), path, OFlag::O_RDONLY).and_then(|file| read(&file)) {
        Ok(value) => Ok(Some(value.strip_suffix('\n').unwrap_or(&value).into())),
        Err(error) => match error.raw_os_error() {
            None | Some(libc::ENOENT | libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                Err(sys::failed(format_args!("cannot read {}", dotted(path)))(error))
            }
            Some(_) => Ok(None),
        },
    }
}

/// Whether two values are the same for the kernel, which writes tabs between numbers, and accepts blanks, hexadecimal and
/// octal.
pub fn is_same(one: &str, other: &str) -> bool {
    let words = one.split_ascii_whitespace().map(number_or_text);
    words.eq(other.split_ascii_whitespace().map(number_or_text))
}

fn number_or_text(word: &str) -> Result<i128, &str> {
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
    let (radix, digits) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    u64::from_str_radix(digits, radix).map_or(Err(word), |number| Ok(sign * i128::from(number)))
}

/// Whether a parameter, or a directory of parameters, exists.
pub fn exists(path: &str) -> bool {
    Path::new(ROOT).join(path).exists()
}

const ROOT: &str = "/proc/sys";

/// The length of a read. Nearly all values are shorter, so one read is enough.
const CHUNK_BYTES: usize = 4096;
/// The longest value. That of net.ipv4.ip_local_reserved_ports can have more than 100 KiB.
const VALUE_BYTES_MAX: usize = 1 << 20;

fn cannot_set(path: &str, value: &str, error: &io::Error) -> Error {
    Error::internal(format_args!("cannot set {} to {value}: {}", dotted(path), sys::reason(error)))
}

/// Sets a parameter below `root`, which is another directory than /proc/sys in tests.
fn set_under(root: &Path, path: &str, value: &str) -> io::Result<bool> {
    match open(root, path, OFlag::O_RDWR) {
        // Some parameters can be written but not read: stable_secret gives EIO until it is set.
        Ok(file) if read(&file).is_ok_and(|now| is_same(&now, value)) => Ok(false),
        Ok(file) => write(&file, value).map(|()| true),
        // Some parameters are write-only, such as `net/ipv4/route/flush`.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            write(&open(root, path, OFlag::O_WRONLY)?, value).map(|()| true)
        }
        // A read-only /proc matters only if the value has to change.
        Err(error) => match open(root, path, OFlag::O_RDONLY).and_then(|file| read(&file)) {
            Ok(now) if is_same(&now, value) => Ok(false),
            _ => Err(error),
        },
    }
}

fn open(root: &Path, path: &str, flags: OFlag) -> io::Result<File> {
    file::open_any(&resolve(root, path)?, flags, 0)
}

fn resolve(root: &Path, path: &str) -> io::Result<PathBuf> {
    if path.split('/').any(|component| matches!(component, "" | "." | "..")) {
        return Err(io::Error::other("not the name of a kernel parameter"));
    }
    Ok(root.join(path))
}

/// Converts a path into the notation of sysctl(8), and back: dots and slashes are interchanged. In that notation a slash is
/// part of a name.
pub fn dotted(path: &str) -> String {
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    path.chars().map(swap).collect()
}

/// The text of an open parameter. The kernel writes it at once, if the buffer is long enough.
pub(super) fn read(mut file: &File) -> io::Result<String> {
    let mut text = Vec::new();
    let mut chunk = [0; CHUNK_BYTES];
    loop {
        let count = file.read(&mut chunk)?;
        text.extend_from_slice(&chunk[..count]);
        if text.len() > VALUE_BYTES_MAX {
            return Err(file::too_long(VALUE_BYTES_MAX));
        }
        if count < chunk.len() {
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
    }
}

fn write(file: &File, value: &str) -> io::Result<()> {
    fault::kernel_request()?;
    // The kernel ignores a write of zero bytes. An empty line sets an empty value.
    let value = if value.is_empty() { "\n" } else { value };
    // At offset 0, because the kernel ignores numbers at other offsets (kernel.sysctl_writes_strict), and in one
    // piece, because each write is a whole value.
    let count = file.write_at(value.as_bytes(), 0)?;
    if count == value.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_the_dots_in_its_name() {
        let path = of_link(IpFamily::V6, "eth0.100", "accept_ra");
        assert_eq!(path, "net/ipv6/conf/eth0.100/accept_ra");
        assert_eq!(dotted(&path), "net.ipv6.conf.eth0/100.accept_ra");
    }

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for path in ["", "/", "/etc/passwd", "net/../../etc", "net//ipv4", "net/", "./net", "a/."] {
            assert!(resolve(Path::new("/r"), path).is_err(), "{path}");
        }
        assert_eq!(resolve(Path::new("/r"), "a/b.c").unwrap(), Path::new("/r/a/b.c"));
    }

    #[test]
    fn values_are_compared_as_the_kernel_reads_them() {
        for (one, other, expected) in [
            ("1\n", "1", true),
            ("4096\t16384\t4194304\n", "4096 16384 4194304", true),
            ("1\n", "10", false),
            ("\n", "1", false),
            ("", "\n", true),
            ("1", "01", true),
            ("8", "010", true),
            ("16", "0x10", true),
            ("-1", "-01", true),
            ("-1", "1", false),
            ("0", "-0", true),
            ("018", "18", false), // no number in octal
            ("cubic", "reno", false),
            ("99999999999999999999", "99999999999999999999", true),
        ] {
            assert_eq!(is_same(one, other), expected, "{one:?} {other:?}");
        }
    }

    #[test]
    fn only_a_different_value_is_written() {
        let root = std::env::temp_dir().join(format!("cnibox-sysctl-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("x"), "0\n").unwrap();
        assert!(set_under(&root, "x", "1").unwrap());
        assert!(!set_under(&root, "x", "1").unwrap());
        assert_eq!(std::fs::read_to_string(root.join("x")).unwrap(), "1\n");
        let error = set_under(&root, "net/eth0.1/y", "1").unwrap_err();
        let error = cannot_set("net/eth0.1/y", "1", &error);
        assert_eq!(error.msg, "cannot set net.eth0/1.y to 1: No such file or directory");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
