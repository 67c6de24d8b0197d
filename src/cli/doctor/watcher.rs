//! Finds objects that the watcher of `reconcile` leaves, because another program removes them again and again.

use crate::error::Result;

use super::finding::{Findings, Harm};
use super::host::Host;

pub(super) fn watcher(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    for left in host.runtime.left_by_watcher()? {
        found.add(
            Harm::Broken,
            left,
            "Another program removes it again and again. The watcher repairs it at the latest 10 s after the last change.",
            "sudo cnibox reconcile",
        );
    }
    Ok(())
}
