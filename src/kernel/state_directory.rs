//! The directories of state that outlives a reboot.
//!
//! podman without root calls a driver as root of a user namespace, where /var/lib is the host's and /run is its own.
//! Root of a container of LXC is also root of a user namespace, but its /var/lib is its own.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use crate::kernel::file;

/// The parent of the usual directories.
const USUAL: &str = "/var/lib/cni";

/// A directory of state, by its two possible paths.
#[derive(Clone, Copy, Debug)]
pub struct StateDirectory {
    /// Below /var/lib/cni.
    pub usual: &'static str,
    /// In a user namespace whose root may not write there, and has no state there.
    pub of_user: &'static str,
}

impl StateDirectory {
    pub fn path(self) -> &'static Path {
        static IS_OF_USER: OnceLock<bool> = OnceLock::new();
        let is_of_user = *IS_OF_USER
            .get_or_init(|| is_refused() && is_in_user_namespace() && !has_state_of_root());
        Path::new(if is_of_user { self.of_user } else { self.usual })
    }
}

/// Whether the kernel refuses to write to /var/lib/cni, or to the directory in which it would be made.
fn is_refused() -> bool {
    let attempts = Path::new(USUAL).ancestors().map(|path| access(path, AccessFlags::W_OK));
    let mut of_existing = attempts.filter(|attempt| *attempt != Err(Errno::ENOENT));
    matches!(of_existing.next(), Some(Err(Errno::EROFS | Errno::EACCES)))
}

/// Whether root of this user namespace has state in /var/lib/cni. If the file system becomes read-only, for example after an
/// error of the disk, that state is still valid: a second directory would give out its addresses again.
fn has_state_of_root() -> bool {
    let is_absent = |error: io::Error| {
        matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
    };
    match fs::metadata(USUAL) {
        Ok(metadata) if metadata.uid() != 0 => false,
        // A directory that cannot be read is not empty.
        Ok(_) => fs::read_dir(USUAL).map_or(true, |mut entries| entries.next().is_some()),
        Err(error) => !is_absent(error),
    }
}

/// The initial user namespace maps all users to themselves (user_namespaces(7)).
fn is_in_user_namespace() -> bool {
    let map = file::read_lossy("/proc/self/uid_map");
    map.is_ok_and(|map| !map.split_whitespace().eq(["0", "0", "4294967295"]))
}
