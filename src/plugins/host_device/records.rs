//! The records of host-device: one file per attachment, `/run/cni/host-device/CONTAINERID:IFNAME`, with the saved state of
//! the device as text. A container cannot write to this file, so the saved state on a link is valid only if a record has the
//! same content. The directory is empty after a boot, which returns all devices to the host.
//!
//! ADD writes the record before it changes the device. A failing ADD, DEL and GC remove it when the device is back on the host,
//! or when the kernel deleted a virtual device with its namespace. In the second case the number in the record, which the host
//! gave to the namespace, is unused.

use crate::error::Result;
use crate::names::Attachment;
use crate::netlink::rtnl::{Link, Rtnl};
use crate::steps::state::{self, StateFile};
use crate::steps::undo::Failures;

use super::saved_state::SavedState;

/// The directory of the records.
pub const DIR: &str = "/run/cni/host-device";

/// The record of one attachment.
pub struct DeviceRecord {
    pub record: StateFile,
    pub saved: SavedState,
}

/// The records of all attachments.
pub struct Records(pub Vec<DeviceRecord>);

/// The record file of an attachment. A container id or interface name contains no colon, so each file name is unique.
pub fn record(at: &Attachment) -> StateFile {
    StateFile::new(DIR, &format!("{}:{}", at.container_id, at.ifname))
}

/// The recorded state of the device of this container and interface, in any network.
pub fn find(at: &Attachment) -> Result<Option<SavedState>> {
    read(&record(at))
}

/// A damaged record is an error: its attachment has a device.
fn read(record: &StateFile) -> Result<Option<SavedState>> {
    let Some(content) = record.read()?.transpose()? else { return Ok(None) };
    let saved = str::from_utf8(&content).ok().and_then(SavedState::parse);
    saved.map(Some).ok_or_else(|| record.damaged("it is not the saved state of a device"))
}

/// The records that can be read. The errors of the others are added to `failures`.
pub fn readable(failures: &mut Failures) -> Result<Vec<DeviceRecord>> {
    let mut entries = Vec::new();
    for record in state::all(DIR)? {
        let saved = failures.note(read(&record));
        entries.extend(saved.map(|saved| DeviceRecord { record, saved }));
    }
    Ok(entries)
}

impl Records {
    /// Fails if a record cannot be read: any device can be the one of that record.
    pub fn open() -> Result<Self> {
        let mut failures = Failures::default();
        let entries = readable(&mut failures)?;
        failures.into_result().map(|()| Self(entries))
    }

    /// The recorded state that the link also has as an alternative name.
    pub fn of(&self, link: &Link) -> Option<&SavedState> {
        self.0.iter().map(|entry| &entry.saved).find(|saved| saved.is_on(link))
    }

    /// The recorded states of the devices that are not on the host and may be in a container.
    pub fn not_on_host(&self, host: &Rtnl) -> Result<Vec<&SavedState>> {
        let links = host.links()?;
        let is_on_host = |saved: &SavedState| {
            links.iter().any(|link| saved.is_on(link) || saved.is_unmoved(link))
        };
        let states = self.0.iter().map(|entry| &entry.saved);
        Ok(states.filter(|saved| !is_on_host(saved) && !saved.is_gone(host)).collect())
    }

    /// Removes the records of the link for attachments other than `at`, to which the link now belongs.
    pub fn remove_for_others(&self, link: &Link, at: &Attachment) -> Result<()> {
        let own = record(at);
        let is_old =
            |entry: &&DeviceRecord| entry.saved.is_on(link) && entry.record.name() != own.name();
        self.0.iter().filter(is_old).try_for_each(|entry| entry.record.remove())
    }
}
