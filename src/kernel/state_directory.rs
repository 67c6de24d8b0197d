//! The directories of state that outlives a reboot.
//!
//! podman without root calls a driver as root of a user namespace, where /var/lib is the host's and /run is its own.

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
    /// In a user namespace that may not write there.
    pub of_user: &'static str,
}

impl StateDirectory {
    pub fn path(self) -> &'static Path {
        static IS_OF_USER: OnceLock<bool> = OnceLock::new();
        let is_of_user = *IS_OF_USER.get_or_init(|| is_refused() && is_in_user_namespace());
        Path::new(if is_of_user { self.of_user } else { self.usual })
    }
}

/// Whether the kernel refuses to write to /var/lib/cni, or to the directory in which it would be made.
fn is_refused() -> bool {
    let attempts = Path::new(USUAL).ancestors().map(|path| access(path, AccessFlags::W_OK));
    let mut of_existing = attempts.filter(|attempt| *attempt != Err(Errno::ENOENT));
    matches!(of_existing.next(), Some(Err(Errno::EROFS | Errno::EACCES)))
}

/// The initial user namespace maps all users to themselves (user_namespaces(7)).
fn is_in_user_namespace() -> bool {
    let map = file::read_lossy("/proc/self/uid_map");
    map.is_ok_and(|map| !map.split_whitespace().eq(["0", "0", "4294967295"]))
}
