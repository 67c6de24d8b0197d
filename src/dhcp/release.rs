//! Sends a RELEASE from the plugin itself: in a DEL, while no daemon runs and the container's interface still exists.

use std::path::Path;

use crate::dhcp::clients::{Clients, DaemonOptions};
use crate::dhcp::journal::LeaseRecord;
use crate::dhcp::site::{Site, SiteError};
use crate::dhcp::time::Time;
use crate::error::Result;
use crate::kernel::netns::NetNs;

/// Releases the leases of a record through its interface. Returns false if the interface does not exist any more.
pub fn release(own_netns: &NetNs, record: &LeaseRecord) -> Result<bool> {
    let site = Site { own_netns, prefix: Path::new(""), record };
    let mut clients = Clients::new(record, &DaemonOptions::default())?;
    let now = Time::now();
    clients.resume_to_release(record, now);
    let mut release = || {
        site.verify()?;
        clients.release(now).iter().try_for_each(|packet| packet.send(&site))
    };
    match release() {
        Ok(()) => Ok(true),
        Err(SiteError::Gone(_)) => Ok(false),
        Err(SiteError::Failed(error)) => {
            Err(error.in_front(format_args!("cannot release the lease of {}", record.request.key)))
        }
    }
}
