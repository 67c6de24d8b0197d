//! The file operations of the store, each of which a test can make fail.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use fd_lock::{RwLock, RwLockWriteGuard};

use crate::fault;

pub(super) fn create_dirs(path: &Path) -> io::Result<()> {
    fault::file_operation()?;
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Opens a file that has no content and never gets any.
pub(super) fn open_or_create(path: &Path) -> io::Result<File> {
    match open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fault::file_operation()?;
            OpenOptions::new().read(true).append(true).create(true).mode(0o750).open(path)
        }
        opened => opened,
    }
}

/// Opens for reading, which also works where the file system is mounted read-only.
pub(super) fn open(path: &Path) -> io::Result<File> {
    fault::file_operation()?;
    File::open(path)
}

/// Waits for the exclusive lock, which lasts as long as what is returned.
pub(super) fn lock(lock: &mut RwLock<File>) -> io::Result<RwLockWriteGuard<'_, File>> {
    fault::file_operation()?;
    lock.write()
}

/// Fails where nothing can be written, and writes nothing.
pub(super) fn probe_writing(path: &Path) -> io::Result<()> {
    fault::file_operation()?;
    OpenOptions::new().append(true).open(path).map(drop)
}

pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    fault::file_operation()?;
    fs::read(path)
}

/// Writes a file that is not there yet. On an error there may be one that is not complete.
pub(super) fn write_new(path: &Path, content: &str) -> io::Result<()> {
    fault::file_operation()?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    fault::file_operation()?;
    file.write_all(content.as_bytes())
}

/// Whether there was anything to remove.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    fault::file_operation()?;
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fault::file_operation()?;
    fs::rename(from, to)
}

/// Gives a file a second name that is not in use; whether it could.
pub(super) fn link(from: &Path, to: &Path) -> io::Result<bool> {
    fault::file_operation()?;
    match fs::hard_link(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether there is nothing of that name, not even a link that leads nowhere.
pub(super) fn is_absent(path: &Path) -> io::Result<bool> {
    fault::file_operation()?;
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// What a directory holds: the addresses that are names of files, and whether `wanted` is there too.
pub(super) fn addresses_in(dir: &Path, wanted: &str) -> io::Result<(Vec<IpAddr>, bool)> {
    fault::file_operation()?;
    let mut addresses = Vec::new();
    let mut has_wanted = false;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        has_wanted |= name == wanted;
        addresses.extend(name.to_str().and_then(address));
    }
    Ok((addresses, has_wanted))
}

/// The address that a file is the reservation of: only one spelling is ever written, so any other is not ours.
fn address(name: &str) -> Option<IpAddr> {
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_canonical() == ip && ip.to_string() == name).then_some(ip)
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
