//! Identifies the boot of the host: all containers of an earlier boot have ended.

use super::digest::digest;
use crate::kernel::file;

/// The digest of the boot id. `None` if /proc is not mounted.
pub(super) fn id() -> Option<u64> {
    Some(digest(0, file::boot_id().ok()?.as_bytes()))
}
