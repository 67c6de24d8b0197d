//! The file operations of the store. A test can make each one fail.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::Path;
use std::time::SystemTime;

use crate::fault;
use crate::kernel::file;
use crate::names::hash;

/// The longest content of a reservation. A container id can have 128 KiB: MAX_ARG_STRLEN (linux/binfmts.h).
const BYTES_MAX: usize = 256 << 10;

/// Opens or creates the lock file, which is always empty.
pub(super) fn open_or_create(path: &Path) -> io::Result<File> {
    match open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fault::file_operation()?;
            let opened = file::open_any(path, file::APPEND | file::CREATE, 0o750);
            opened.map_err(|error| file::with_type(error, path))
        }
        opened => opened,
    }
}

/// Opens or creates a file that is written again and again.
pub(super) fn open_to_write(path: &Path) -> io::Result<File> {
    fault::file_operation()?;
    file::open(path, file::UPDATE | file::CREATE)
}

/// Opens a file or directory for reading only, so that it also works on a read-only file system.
pub(super) fn open(path: &Path) -> io::Result<File> {
    fault::file_operation()?;
    file::open(path, file::READ)
}

/// Whether a path still leads to the regular file that was opened with it.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    fault::file_operation()?;
    file::is_at(&file::regular(file)?, path)
}

pub(super) fn probe_writing(dir: &Path) -> io::Result<()> {
    fault::file_operation()?;
    file::probe_writing(dir)
}

pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    fault::file_operation()?;
    file::read_within(path, BYTES_MAX)
}

/// The content of a file, and its identity.
pub(super) fn read_identified(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    fault::file_operation()?;
    let (content, metadata) = file::read_with_metadata(path, BYTES_MAX)?;
    Ok((content, identity(&metadata)))
}

/// Creates a file and returns its identity. If it fails, it can leave an incomplete file.
pub(super) fn write_new(path: &Path, content: &str) -> io::Result<u64> {
    fault::file_operation()?;
    let mut file = file::open(path, file::NEW)?;
    fault::file_operation()?;
    file.write_all(content.as_bytes())?;
    Ok(identity(&file.metadata()?))
}

/// Overwrites an existing file, which can be incomplete after an error. Returns false if it does not exist.
pub(super) fn overwrite(path: &Path, content: &str) -> io::Result<bool> {
    fault::file_operation()?;
    let opened = file::found(file::open_regular(path, file::WRITE))?;
    let Some((file, metadata)) = opened else { return Ok(false) };
    let length = content.len() as u64;
    let is_shorter = metadata.len() > length;
    fault::file_operation()?;
    file.write_all_at(content.as_bytes(), 0)?;
    if is_shorter {
        fault::file_operation()?;
        file.set_len(length)?;
    }
    Ok(true)
}

/// A number that changes when a file is written again or replaced, also after a reboot. Times are compared for equality
/// only, so a wrong clock does not matter.
fn identity(metadata: &Metadata) -> u64 {
    hash(format!("{} {} {}", metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
}

/// Removes a file. Returns false if it does not exist.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    fault::file_operation()?;
    unless(ErrorKind::NotFound, fs::remove_file(path))
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fault::file_operation()?;
    fs::rename(from, to)
}

/// Gives a file a second name. Returns false if that name is in use.
pub(super) fn link(from: &Path, to: &Path) -> io::Result<bool> {
    fault::file_operation()?;
    unless(ErrorKind::AlreadyExists, fs::hard_link(from, to))
}

/// Whether a name is free. The name of a dangling symbolic link is not free.
pub(super) fn is_absent(path: &Path) -> io::Result<bool> {
    fault::file_operation()?;
    unless(ErrorKind::NotFound, fs::symlink_metadata(path)).map(|exists| !exists)
}

/// Whether an operation has succeeded; false after an error of this kind.
fn unless<T>(kind: ErrorKind, result: io::Result<T>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == kind => Ok(false),
        Err(error) => Err(error),
    }
}

/// A directory entry with an address as its name.
pub(super) struct AddressEntry {
    pub(super) ip: IpAddr,
    pub(super) is_file: bool,
}

/// The entries of a directory that have an address as their name.
pub(super) fn addresses_in(dir: &Path) -> io::Result<Vec<AddressEntry>> {
    fault::file_operation()?;
    let mut addresses = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(ip) = entry.file_name().to_str().and_then(address) {
            addresses.push(AddressEntry { ip, is_file: entry.file_type()?.is_file() });
        }
    }
    Ok(addresses)
}

/// The names in a directory that are UTF-8.
pub(super) fn names_in(dir: &Path) -> io::Result<Vec<String>> {
    fault::file_operation()?;
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name()));
    names.filter_map(|name| name.map(|name| name.into_string().ok()).transpose()).collect()
}

/// Parses a file name as an address. Plugins write the canonical spelling only: a file with any other spelling belongs to
/// another program.
fn address(name: &str) -> Option<IpAddr> {
    let ip: IpAddr = name.parse().ok()?;
    // An IPv4 address has one spelling.
    (ip.is_ipv4() || ip.to_canonical() == ip && ip.to_string() == name).then_some(ip)
}

/// The metadata of the object that a path leads to.
pub(super) fn metadata(path: &Path) -> io::Result<Metadata> {
    fault::file_operation()?;
    fs::metadata(path)
}

/// The metadata of the object at a path.
pub(super) fn symlink_metadata(path: &Path) -> io::Result<Metadata> {
    fault::file_operation()?;
    fs::symlink_metadata(path)
}

/// Sets the modification time of the object that a path leads to.
pub(super) fn set_modified(path: &Path, time: SystemTime) -> io::Result<()> {
    fault::file_operation()?;
    file::set_modified(path, time)
}

/// Makes a symbolic link with this target.
pub(super) fn symlink(target: &str, path: &Path) -> io::Result<()> {
    fault::file_operation()?;
    unix::fs::symlink(target, path)
}

/// The target of a symbolic link.
pub(super) fn read_link(path: &Path) -> io::Result<String> {
    fault::file_operation()?;
    let target = fs::read_link(path)?.into_os_string();
    target.into_string().map_err(|_| ErrorKind::InvalidData.into())
}

/// Creates a directory with mode 0700. Fails if its name is a symbolic link, whose target belongs to another program.
pub(super) fn make_private_dir(dir: &Path) -> io::Result<()> {
    fault::file_operation()?;
    match fs::symlink_metadata(dir) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            DirBuilder::new().mode(0o700).create(dir)
        }
        Err(error) => Err(error),
    }
}

/// Makes a directory and its parent, each with mode 0700. An object of another type in its place is replaced.
pub(super) fn make_own_dir(dir: &Path) -> io::Result<()> {
    make_private_dir(dir.parent().unwrap_or(dir))?;
    match make_private_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            clear(dir)?;
            make_private_dir(dir)
        }
        made => made,
    }
}

/// Replaces the file or the directory at a path, under the lock of the network. A file that a crash left is removed first.
pub(super) fn replace(path: &Path, content: &str) -> io::Result<()> {
    let aside = &path.with_file_name("aside");
    remove(aside)?;
    write_new(aside, content)?;
    match rename(aside, path) {
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            clear(path)?;
            rename(aside, path)
        }
        renamed => renamed,
    }
}

/// Removes a file, or a directory with all that is in it.
pub(super) fn clear(path: &Path) -> io::Result<()> {
    match remove(path) {
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            fault::file_operation()?;
            fs::remove_dir_all(path)
        }
        removed => removed.map(drop),
    }
}

pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    fault::file_operation()?;
    file.write_all_at(bytes, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_addresses_are_reservations() {
        for name in ["10.1.0.2", "fd00:1::2", "::", "::102:304"] {
            assert!(address(name).is_some(), "{name}");
        }
        for name in [
            "lock",
            "last_reserved_ip.0",
            ".cnibox-aside",
            "FD00::1",
            "fd00:0::1",
            "::ffff:10.1.0.2",
            "010.1.0.2",
            "10.1.0",
            "10.1.0.2~",
        ] {
            assert!(address(name).is_none(), "{name}");
        }
    }
}
