//! The directories of state that outlives a reboot.
//!
//! podman without root calls a driver as root of a user namespace, where /var/lib is the host's and /run is its own.
//! Root of a container of LXC is also root of a user namespace, but its /var/lib is its own.

use std::fs;
use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::kernel::file;

/// The parent of the usual directories.
const USUAL: &str = "/var/lib/cni";

/// A directory of state, by its two possible paths.
#[derive(Clone, Copy, Debug)]
pub struct StateDirectory {
    /// Below /var/lib/cni.
    pub usual: &'static str,
    /// In a user namespace whose root does not own /var/lib.
    pub of_user: &'static str,
}

impl StateDirectory {
    pub fn path(self) -> &'static Path {
        static IS_OF_USER: OnceLock<bool> = OnceLock::new();
        let is_of_user = *IS_OF_USER.get_or_init(|| !is_of_root() && is_in_user_namespace());
        Path::new(if is_of_user { self.of_user } else { self.usual })
    }
}

/// Whether root of this user namespace owns /var/lib/cni, or the directory in which it would be made. The answer may not depend
/// on the moment, as whether the file system is writable does: two directories of state give out the same addresses.
fn is_of_root() -> bool {
    for path in Path::new(USUAL).ancestors() {
        match fs::metadata(path) {
            Ok(metadata) => return metadata.uid() == 0,
            Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => {}
            // An error proves nothing. The call that needs the state reports it.
            Err(_) => return true,
        }
    }
    true
}

/// The initial user namespace maps all users to themselves (user_namespaces(7)).
pub fn is_in_user_namespace() -> bool {
    let map = file::read_lossy("/proc/self/uid_map");
    map.is_ok_and(|map| !map.split_whitespace().eq(["0", "0", "4294967295"]))
}
