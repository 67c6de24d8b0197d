//! The addresses that the kernel of a container configures after a router advertisement.

use crate::dhcp::time::Time;
use std::net::IpAddr;

use crate::cni::success::Ip;
use crate::dhcp::exchange::ClientEvent;
use crate::dhcp::exchange6::POLL_INTERVAL;
use crate::dhcp::site::{Site, SiteError};
use crate::error::Result;
use crate::names::IpFamily;

/// RTPROT_RA (linux/rtnetlink.h): the route is from a router advertisement.
const RTPROT_RA: u8 = 9;

/// The wait for the addresses of an interface, and the addresses.
#[derive(Default)]
pub struct Slaac {
    pub ips: Vec<Ip>,
    next_poll: Option<Time>,
    began: Time,
    limit: Time,
}

impl Slaac {
    /// Begins to wait.
    pub fn start(&mut self, now: Time, limit: Time) {
        (self.next_poll, self.began, self.limit) = (Some(now), now, limit);
    }

    /// The time of the next `tick`.
    pub fn deadline(&self) -> Option<Time> {
        self.next_poll
    }

    /// Looks at the interface if it is time.
    pub fn tick(&mut self, site: &Site<'_>, now: Time, events: &mut Vec<ClientEvent>) {
        if self.next_poll.is_none_or(|at| now < at) {
            return;
        }
        self.next_poll = None;
        match found(site) {
            Err(SiteError::Gone(reason)) => return events.push(ClientEvent::Gone(reason)),
            Ok(ips) if !ips.is_empty() => {
                self.ips = ips;
                return events.push(ClientEvent::Bound);
            }
            _ => {}
        }
        let waited = now - self.began;
        if waited >= self.limit {
            let waited_s = waited.as_secs();
            return events.push(ClientEvent::Failed(format!(
                "no router advertisement gave it an address in {waited_s} s"
            )));
        }
        self.next_poll = Some(now + POLL_INTERVAL);
    }
}

/// The addresses with a lifetime that are usable, with the default router as their gateway.
fn found(site: &Site<'_>) -> Result<Vec<Ip>, SiteError> {
    let rtnl = site.open()?.rtnl()?;
    let index = site.record.ifindex;
    let addresses = rtnl.addresses(index)?;
    let is_made = |address: &&crate::netlink::rtnl::Address| {
        let is_usable = !address.tentative && !address.dad_failed;
        address.net.addr().is_ipv6() && !address.scope_link && !address.permanent && is_usable
    };
    let made: Vec<_> = addresses.iter().filter(is_made).collect();
    if made.is_empty() {
        return Ok(Vec::new());
    }
    let gateway: Option<IpAddr> = rtnl
        .routes(IpFamily::V6)?
        .iter()
        .find(|route| {
            route.dst.prefix_len() == 0
                && route.dev == Some(index)
                && route.protocol == Some(RTPROT_RA)
        })
        .and_then(|route| route.via);
    Ok(made.iter().map(|address| Ip { address: address.net, gateway, interface: None }).collect())
}
