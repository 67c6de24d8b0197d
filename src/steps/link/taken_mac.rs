//! A MAC address that another interface on the same parent has. The kernel refuses it for a macvlan: when the interface comes up,
//! and when the MAC address of an interface is set that is up.

use std::time::{Duration, Instant};

use crate::attachments::life::{Life, Witness};
use crate::attachments::record::{Record, Records};
use crate::error::{Error, Result};
use crate::kernel::clock;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::kernel::sys;
use crate::names::Mac;
use crate::netlink::rtnl::{Link, LinkChange, Rtnl};

/// The longest wait for the end of the interface that has the MAC address.
const ENDING_MAX: Duration = Duration::from_secs(5);
/// No event reports the end of a macvlan in another namespace.
const PAUSE: Duration = Duration::from_millis(20);

/// Makes a change of a link that needs this MAC address. While the MAC address may be that of a container that is ending, waits.
pub fn change_when_free(rtnl: &Rtnl, link: &Link, mac: Mac, change: &LinkChange<'_>) -> Result<()> {
    let start = Instant::now();
    loop {
        let error = match rtnl.try_to_change_link(link.index, &link.name, change) {
            Err(error) if error.is_address_in_use() => error,
            changed => return Ok(changed?),
        };
        let (holder, is_living) = holder(rtnl, link, mac)?;
        if is_living || start.elapsed() >= ENDING_MAX {
            let msg = format!("cannot use MAC address {mac} for {}: {holder} has it", link.name);
            return Err(Error::internal(msg).with_details(error));
        }
        sys::fail_if_interrupted().map_err(Error::internal)?;
        clock::readable(&[], Some(PAUSE)).map_err(Error::internal)?;
    }
}

/// The interface with this MAC address on the parent of a link, in words, and whether it certainly exists and is not ending.
fn holder(rtnl: &Rtnl, link: &Link, mac: Mac) -> Result<(String, bool)> {
    let witness = Witness::new()?;
    let beside = if link.peer_is_elsewhere { witness.host() } else { rtnl };
    let is_holder = |found: &Link| {
        let is_on_parent = Some(found.index) == link.peer || found.peer == link.peer;
        found.mac == Some(mac)
            && is_on_parent
            && (link.peer_is_elsewhere || found.index != link.index)
    };
    if let Some(found) = beside.links()?.into_iter().find(is_holder) {
        return Ok((format!("link {}", found.name), true));
    }
    let mut records = Records::of_host().all()?.records;
    records.retain(|record| record.made.last().is_some_and(|made| made.macs.contains(&mac)));
    let is_living =
        |record: &&Record| witness.life_of_record(record) == Life::Alive && is_at_path(record);
    Ok(match (records.iter().find(is_living), records.first()) {
        (Some(record), _) => (record.at.title(&record.network), true),
        (None, Some(record)) => (record.at.title(&record.network), false),
        (None, None) => ("an interface in another network namespace".into(), false),
    })
}

/// Whether the path of a record leads to the recorded namespace. The kernel ends a namespace some time after its last name.
fn is_at_path(record: &Record) -> bool {
    let netns = NetNs::own().and_then(|home| {
        home.open_if_exists(&record.netns).map_err(Error::of_file("open", &record.netns))
    });
    let rtnl = netns.ok().flatten().and_then(|netns| netns.rtnl().ok());
    rtnl.is_some_and(|rtnl| record.identity.is(&Identity::of(rtnl.netns_cookie())))
}
