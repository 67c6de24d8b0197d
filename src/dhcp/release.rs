//! The RELEASE that the plugin itself sends in a DEL while no daemon runs and the container's interface is still there.

use std::net::SocketAddr;
use std::time::Duration;

use crate::dhcp::journal::Record;
use crate::dhcp::protocol::Ask;
use crate::dhcp::v4::client::{Action, Client, Event, Settings, Times, Via};
use crate::dhcp::v4::frame::{CLIENT_PORT, SERVER_PORT};
use crate::error::{Error, Result};
use crate::kernel::clock;
use crate::kernel::inet::LinkUdp;
use crate::kernel::netns::NetNs;
use crate::kernel::sys;

/// The longest wait for the server's MAC address.
const SEND_MAX: Duration = Duration::from_millis(500);

/// Releases the IPv4 lease of a record from its interface. False if only a daemon can release it: the interface is not there
/// any more, or there is an IPv6 lease.
pub fn release(home: &NetNs, record: &Record) -> Result<bool> {
    let netns = home.open_if_exists(&record.ask.netns).ok().flatten();
    let Some(netns) = netns.filter(|it| it.identity() == Ok(record.netns_id)) else {
        return Ok(false);
    };
    let link = netns.rtnl()?.link_at(record.ifindex)?;
    let Some(link) = link.filter(|it| it.mac == Some(record.mac)) else { return Ok(false) };
    let Ask { key, settings, .. } = &record.ask;
    let settings = Settings {
        mac: record.mac,
        client_id: key.client_id(),
        broadcast: settings.broadcast,
        provide: settings.provide.clone(),
        request: settings.request.clone(),
        probe: false,
        times: Times::default(),
    };
    let (Some(lease), None) = (&record.v4, &record.v6) else {
        return Ok(record.v6.is_none());
    };
    let mut client = Client::new(settings, u64::from_ne_bytes(sys::random_bytes()?));
    let now = clock::since_boot();
    // The confirmation that it asks for is not sent.
    client.step(Event::Resume(lease.clone()), now);
    for action in client.step(Event::Release, now) {
        let Action::Send { payload, via: Via::Unicast { from, to } } = action else { continue };
        let send = || {
            let socket = LinkUdp::bind(&link.name, SocketAddr::new(from.into(), CLIENT_PORT))?;
            socket.send(&payload, SocketAddr::new(to.into(), SERVER_PORT))?;
            socket.wait_until_sent(SEND_MAX).map(drop)
        };
        netns.run(|| {
            send().map_err(|error| {
                let reason = sys::reason(&error);
                Error::internal(format!("cannot release {} of {key}: {reason}", lease.address))
            })
        })?;
    }
    Ok(true)
}
