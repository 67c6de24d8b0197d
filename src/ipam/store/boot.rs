//! Identifies the boot of the host: the containers of an earlier boot do not run any more.

use std::path::Path;

use super::digest::digest;
use super::files;

/// The kernel chooses a new text at every boot. It does not depend on a clock, which some hosts do not have.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const BOOT_ID_BYTES: usize = 36;

/// Returns `None` without /proc.
pub(super) fn id() -> Option<u64> {
    let mut text = [0; BOOT_ID_BYTES];
    files::read_start(Path::new(BOOT_ID), &mut text).ok()?;
    Some(digest(0, &text))
}
