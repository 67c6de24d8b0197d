//! Regular files, and nothing else that has a file's name: an open FIFO waits for its other end, a device may do anything.
//!
//! O_NONBLOCK keeps the open itself from waiting, and means nothing for a regular file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::libc;

/// To open for reading without waiting. Symbolic links are followed.
pub fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    options
}

/// To open for writing without waiting. A symbolic link at the end of the path is an error.
pub fn writing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    options
}

/// Opens a file that need not be regular. An error says what is there if the type is the reason.
pub fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO | libc::EISDIR) => {
            fs::metadata(path).map_or(error, |found| not_regular(&found))
        }
        // Of a link that leads back to itself, the kernel's own words say more.
        Some(libc::ELOOP) if !is_loop(path) => {
            fs::symlink_metadata(path).map_or(error, |found| not_regular(&found))
        }
        _ => error,
    })
}

fn is_loop(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.raw_os_error() == Some(libc::ELOOP))
}

/// Opens a regular file.
pub fn open_regular(options: &OpenOptions, path: &Path) -> io::Result<(File, Metadata)> {
    let file = open(options, path)?;
    let metadata = regular(&file)?;
    Ok((file, metadata))
}

/// What is known of an open file; an error if it is not a regular one.
pub fn regular(file: &File) -> io::Result<Metadata> {
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(metadata) } else { Err(not_regular(&metadata)) }
}

/// The content of a regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let (mut file, metadata) = open_regular(&reading(), path)?;
    // Files below /proc and /sys are regular, too, and say that they are empty. `read_to_end` reads those to the end.
    let mut content = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    file.read_to_end(&mut content)?;
    Ok(content)
}

/// The same as text. An error if it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// The kind is that of a directory's error, whatever is there.
#[cold]
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
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
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
        let said =
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
            assert_eq!(said(read(&at(name)).map(drop)), when_read, "read {name}");
            let written = open_regular(&writing(), &at(name)).map(drop);
            assert_eq!(said(written), when_written, "write {name}");
        }
        assert_eq!(
            said(open_regular(&writing(), Path::new("/dev/null")).map(drop)),
            refused("device")
        );
        assert_eq!(read_text(&at("to-file")).unwrap(), "text");
        assert!(!read(Path::new("/proc/self/stat")).unwrap().is_empty());
        fs::remove_dir_all(&dir).unwrap();
    }
}
