//! Reservations that keep an ADD from an address, and the search for one whose holder has ended.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::content::{self, Owner};
use super::locked::Locked;
use super::{StorePaths, failed, files};
use crate::error::{Code, Error, Result};
use crate::kernel::flock::{self, Limit, Mode};
use crate::names::{Attachment, NetworkName};

/// After a search of a full range that found no ended holder, other calls do not search for this time.
const PAUSE: Duration = Duration::from_secs(3);

/// A reservation of an attachment.
#[derive(Debug)]
pub struct Held {
    pub address: IpAddr,
    pub at: Attachment,
    /// The time of the last write. `None` if the file system has no times.
    pub modified: Option<SystemTime>,
    /// The identity of the file: it changes when the file is written again or replaced.
    identity: u64,
    /// The text in the file, which names the owner.
    owner: String,
}

/// Reads the reservation of an address without the lock. `None` if its file names no attachment with an interface, or cannot be
/// read.
pub fn read(data_dir: &Path, network: &NetworkName, address: IpAddr) -> Option<Held> {
    let path = data_dir.join(&**network).join(address.to_string());
    let (content, identity) = files::read_identified(&path).ok()?;
    let Owner::Text(text) = Owner::parse(&content) else { return None };
    let (container_id, ifname) = content::attachment_in(&text)?;
    Some(Held {
        address,
        at: Attachment { container_id, ifname: ifname? },
        modified: fs::metadata(&path).and_then(|file| file.modified()).ok(),
        identity,
        owner: text,
    })
}

impl Locked<'_> {
    /// Releases a reservation. Returns false if its file has changed since it was read, or does not exist any more.
    pub fn release_held(&mut self, held: &Held) -> Result<bool> {
        self.release_if(held.address, &held.owner, held.identity)
    }
}

/// The search of a full range for a holder that has ended. Only one process searches a range at a time, until the value is dropped.
pub struct Search(fs::File);

impl Search {
    /// Waits for the searches of other processes. `None` if a search found nothing within the last seconds.
    pub fn begin(data_dir: &Path, network: &NetworkName) -> Result<Option<Self>> {
        let path = StorePaths::new(data_dir, network).search;
        let made = files::make_private_dir(path.parent().unwrap_or(&path));
        let opened = made.and_then(|()| files::open_to_write(&path));
        let file = opened.map_err(failed("open", &path))?;
        let locked = flock::lock_within(&file, Mode::Exclusive, &Limit::new(super::lock::WAIT_MAX));
        if !locked.map_err(failed("lock", &path))? {
            let msg = format!("cannot search {network} for addresses of ended containers");
            return Err(Error::new(Code::TRY_AGAIN_LATER, msg)
                .with_details(format!("{} is locked", path.display())));
        }
        let metadata = file.metadata().map_err(failed("read", &path))?;
        // Of a time in the future nothing is concluded.
        let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
        let is_recent = metadata.len() > 0 && age.is_some_and(|age| age < PAUSE);
        Ok((!is_recent).then_some(Self(file)))
    }

    /// Notes that the search found no holder that has ended.
    pub fn note_none(&self) {
        // If this is not written, the next call searches again.
        let _ = self.0.set_len(0).and_then(|()| files::write_at(&self.0, b"none\n", 0));
    }
}
