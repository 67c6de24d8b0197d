//! Waits for the addresses that the kernel configures in a container after a router advertisement.

use crate::dhcp::time::Time;
use std::net::IpAddr;

use crate::cni::success::Ip;
use crate::dhcp::exchange::{ClientEvent, POLL_INTERVAL};
use crate::dhcp::site::{Site, SiteError};
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::rtnl::Address;

/// RTPROT_RA (linux/rtnetlink.h): the route is from a router advertisement.
const RTPROT_RA: u8 = 9;

/// The state of the wait for the addresses of an interface, and the addresses.
#[derive(Default)]
pub struct Slaac {
    pub ips: Vec<Ip>,
    /// The event that the caller has not taken yet: `Bound`, `Failed` or `Gone`.
    pub event: Option<ClientEvent>,
    next_poll: Option<Time>,
    began: Time,
    timeout: Time,
}

impl Slaac {
    /// Starts the wait.
    pub fn start(&mut self, now: Time, timeout: Time) {
        (self.next_poll, self.began, self.timeout) = (Some(now), now, timeout);
    }

    /// The time of the next `run`.
    pub fn deadline(&self) -> Option<Time> {
        self.next_poll
    }

    /// Reads the addresses of the interface if the poll is due.
    pub fn run(&mut self, site: &Site<'_>, now: Time) {
        if self.next_poll.take_if(|at| *at <= now).is_none() {
            return;
        }
        let waited = now - self.began;
        match configured(site) {
            Err(SiteError::Gone(reason)) => self.event = Some(ClientEvent::Gone(reason)),
            Ok(ips) if !ips.is_empty() => {
                self.ips = ips;
                self.event = Some(ClientEvent::Bound);
            }
            _ if waited < self.timeout => self.next_poll = Some(now + POLL_INTERVAL),
            _ => {
                let waited_s = waited.as_secs();
                let tried = format!("no address from a router advertisement in {waited_s} s");
                self.event = Some(ClientEvent::Failed(tried));
            }
        }
    }
}

/// The usable addresses with a limited lifetime, with the default router as their gateway.
fn configured(site: &Site<'_>) -> Result<Vec<Ip>, SiteError> {
    let rtnl = site.open()?.rtnl()?;
    let index = site.record.ifindex;
    let addresses = rtnl.addresses(index)?;
    let is_from_router = |address: &&Address| {
        let is_learned = !address.scope_link && !address.permanent;
        address.net.addr().is_ipv6() && is_learned && address.is_usable()
    };
    let from_router: Vec<_> = addresses.iter().filter(is_from_router).collect();
    if from_router.is_empty() {
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
    Ok(from_router
        .iter()
        .map(|address| Ip { address: address.net, gateway, interface: None })
        .collect())
}
