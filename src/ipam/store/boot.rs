//! Which boot of the host this is: what a reservation of an earlier one was made for is gone.

use std::path::Path;

use super::digest::digest;
use super::files;

/// Another text after every boot, and the same for every process until then. No matter of clocks, which many a small
/// host does not have.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const BOOT_ID_BYTES: usize = 36;

/// None where /proc is missing: then one boot cannot be told from another.
pub(super) fn id() -> Option<u64> {
    let mut text = [0; BOOT_ID_BYTES];
    files::read_start(Path::new(BOOT_ID), &mut text).ok()?;
    Some(digest(0, &text))
}
