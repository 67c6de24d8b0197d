//! The file operations of the store, each of which a test can make fail.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::digest::digest;
use crate::fault;
use crate::kernel::file;

pub(super) fn create_dirs(path: &Path) -> io::Result<()> {
    fault::file_operation()?;
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Opens a file that has no content and never gets any.
pub(super) fn open_or_create(path: &Path) -> io::Result<File> {
    match open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fault::file_operation()?;
            let mut options = file::writing();
            file::open(options.read(true).append(true).create(true).mode(0o750), path)
        }
        opened => opened,
    }
}

/// Opens a file or directory for reading, which also works where the file system is mounted read-only.
pub(super) fn open(path: &Path) -> io::Result<File> {
    fault::file_operation()?;
    file::open(&file::reading(), path)
}

/// Whether a path still leads to the regular file that was opened by it.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    fault::file_operation()?;
    let ours = file::regular(file)?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if super::is_missing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Fails where no file can be made in a directory and written; changes nothing.
pub(super) fn probe_writing(dir: &Path) -> io::Result<()> {
    fault::file_operation()?;
    file::probe_writing(dir)
}

pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_all(&mut open(path)?)
}

/// Nearly always one system call: a plugin writes something, and nothing longer than the buffer.
fn read_all(file: &mut File) -> io::Result<Vec<u8>> {
    let mut content = vec![0; 512];
    // A FIFO without data is at its end or would have to be waited for, and a device may have no end.
    let length = match file.read(&mut content) {
        Ok(length) if 0 < length && length < 512 => length,
        result => file::regular(file).and(result)?,
    };
    content.truncate(length);
    if length == 512 {
        file.read_to_end(&mut content)?;
    }
    Ok(content)
}

/// Reads the beginning of a file, all of the buffer.
pub(super) fn read_start(path: &Path, buffer: &mut [u8]) -> io::Result<()> {
    fault::file_operation()?;
    File::open(path)?.read_exact(buffer)
}

/// Like `read`, of what may well be no regular file.
pub(super) fn read_any(path: &Path) -> io::Result<Vec<u8>> {
    fault::file_operation()?;
    file::read(path)
}

/// What a file holds, and its identity.
pub(super) fn read_identified(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    fault::file_operation()?;
    let (mut file, metadata) = file::open_regular(&file::reading(), path)?;
    Ok((read_all(&mut file)?, identity(&metadata)))
}

/// Writes a file that is not there yet, and gives its identity. On an error there may be one that is not complete.
pub(super) fn write_new(path: &Path, content: &str) -> io::Result<u64> {
    fault::file_operation()?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    fault::file_operation()?;
    file.write_all(content.as_bytes())?;
    Ok(identity(&file.metadata()?))
}

/// Writes into a file that is there, and is of use also when that is cut short; false when it is not there.
pub(super) fn overwrite(path: &Path, content: &str) -> io::Result<bool> {
    fault::file_operation()?;
    let (file, metadata) = match file::open_regular(&file::writing(), path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
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

/// A number that another file, or this one written anew, does not have, also after a reboot. Times are compared for
/// being the same, and not taken for times.
fn identity(metadata: &Metadata) -> u64 {
    let (seconds, nanoseconds) =
        (metadata.mtime().to_le_bytes(), metadata.mtime_nsec().to_le_bytes());
    digest(metadata.ino(), &[seconds, nanoseconds].concat())
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

/// Something in the directory that is called like an address.
pub(super) struct Named {
    pub(super) ip: IpAddr,
    pub(super) is_file: bool,
}

/// What a directory holds: the addresses that are names of files, and whether `wanted` is there too.
pub(super) fn addresses_in(dir: &Path, wanted: &str) -> io::Result<(Vec<Named>, bool)> {
    fault::file_operation()?;
    let mut addresses = Vec::new();
    let mut has_wanted = false;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        has_wanted |= name == wanted;
        if let Some(ip) = name.to_str().and_then(address) {
            addresses.push(Named { ip, is_file: entry.file_type()?.is_file() });
        }
    }
    Ok((addresses, has_wanted))
}

/// The address that a file is the reservation of: only one spelling is ever written, so any other is not ours.
fn address(name: &str) -> Option<IpAddr> {
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_canonical() == ip && ip.to_string() == name).then_some(ip)
}

/// Opens one of our own files to change it in place: nothing that is not a plain file, however it got there, and
/// nothing that waits.
pub(super) fn open_plain(path: &Path) -> io::Result<(File, u64)> {
    fault::file_operation()?;
    let (file, metadata) = file::open_regular(file::writing().read(true), path)?;
    Ok((file, metadata.len()))
}

/// Writes one of our own files, whatever was there. Its directory is made if it is missing, and is only ours.
pub(super) fn replace(path: &Path, aside: &Path, content: &[u8]) -> io::Result<File> {
    make_private_dir(path.parent().unwrap_or(path))?;
    clear(aside)?;
    fault::file_operation()?;
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(aside)?;
    fault::file_operation()?;
    let placed = file.write_all(content).and_then(|()| match rename(aside, path) {
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            clear(path)?;
            rename(aside, path)
        }
        renamed => renamed,
    });
    match placed {
        Ok(()) => Ok(file),
        Err(error) => {
            // Where this fails, too, the next one who writes here clears it away.
            let _ = remove(aside);
            Err(error)
        }
    }
}

/// A link to somewhere else is not followed: what is written there would be somebody else's.
fn make_private_dir(dir: &Path) -> io::Result<()> {
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

/// Removes whatever lies where one of our own files belongs.
fn clear(path: &Path) -> io::Result<()> {
    match remove(path) {
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            fault::file_operation()?;
            fs::remove_dir_all(path)
        }
        removed => removed.map(drop),
    }
}

pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    fault::file_operation()?;
    file.read_exact_at(buffer, offset)
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
