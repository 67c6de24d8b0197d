//! Whether a directory can be written to, found out without changing it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::libc;
use nix::unistd::{AccessFlags, faccessat};

/// Fails where no file can be made and written: the file system is full or read-only, the directory may not be changed.
/// The file that this takes has no name, so no one sees it and the directory stays as it is. Of a file system that has
/// no such files, only the rights are known.
pub fn probe_writing(dir: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(dir) {
        Err(error) if is_without_tmpfile(&error) => {
            let rights = AccessFlags::W_OK | AccessFlags::X_OK;
            Ok(faccessat(AT_FDCWD, dir, rights, AtFlags::AT_EACCESS)?)
        }
        file => file?.write_all(b"0"),
    }
}

/// Kernels before 3.11 open the directory itself, which cannot be written.
fn is_without_tmpfile(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL))
}
