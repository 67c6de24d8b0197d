//! rtnetlink: links, addresses, routes, rules and traffic control as plain values. Its callers see no netlink messages.

mod address;
mod bridge_vlan;
mod consts;
mod link;
mod link_change;
mod property;
mod route;
mod rule;
mod traffic;

use std::time::{Duration, Instant};

use nix::libc;

use crate::error::Result;
use crate::kernel::netlink::{self, Events, Protocol, Requests, Socket};
use crate::kernel::netns::NetNs;
use crate::kernel::sys;

pub use address::{Address, NewAddress};
pub use bridge_vlan::{PortVlans, VlanRange};
pub use link::{Link, Port, PortState};
pub use link_change::{LinkChange, NewLink};
pub use property::{LinkProperty, SpanningTree, VETH};
pub use route::{NextHop, Route};
pub use rule::Rule;
pub use traffic::{AddressField, TokenBucket, Traffic, TrafficSelector};

/// A conversation about one network namespace.
pub struct Rtnl {
    socket: Socket,
    /// Where the socket lives, if that is not where the caller is.
    netns: Option<NetNs>,
}

/// Changes that go to the kernel together. They are not atomic: those after a failed one are tried nevertheless.
#[derive(Debug, Default)]
pub struct Batch {
    requests: Requests,
}

impl Rtnl {
    /// About the namespace that the calling thread is in. For another one, there is `NetNs::rtnl`.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::Route)?, netns: None })
    }

    /// The namespace of the calling thread, where the socket was opened.
    pub fn home(&self) -> Result<NetNs> {
        NetNs::of_socket(&self.socket)
    }

    /// The kernel's number for the namespace of the socket, which no other one gets before the next boot. None before
    /// Linux 5.14.
    pub fn netns_cookie(&self) -> Option<u64> {
        let mut cookie = [0; 8];
        let (level, option) = (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
        sys::socket_option(&self.socket, level, option, &mut cookie).ok()?;
        Some(u64::from_ne_bytes(cookie))
    }

    pub(super) fn living_in(self, netns: NetNs) -> Self {
        Self { netns: Some(netns), ..self }
    }

    /// Makes the changes; returns the first failure.
    pub fn commit(&self, batch: Batch) -> Result<()> {
        Ok(self.socket.commit(batch.requests, |_| {})?)
    }

    fn change(&self, requests: Requests) -> Result<(), netlink::Error> {
        self.socket.commit(requests, |_| {})
    }

    /// Asks until the answer is that it is done, or until the limit; again whenever something of the group changed.
    /// Returns the last answer.
    fn wait<T>(
        &self,
        group: u32,
        limit: Duration,
        ask: impl Fn() -> Result<(bool, T)>,
    ) -> Result<(bool, T)> {
        let first = ask()?;
        if first.0 {
            // Most need not wait, and the first look at the clock costs two page faults.
            return Ok(first);
        }
        let start = Instant::now();
        let events = match &self.netns {
            Some(netns) => netns.run(|| Ok(Events::subscribe(group)?))?,
            None => Events::subscribe(group)?,
        };
        loop {
            // After subscribing, so that no change can be missed.
            let answer = ask()?;
            let left = limit.saturating_sub(start.elapsed());
            if answer.0 || left.is_zero() {
                return Ok(answer);
            }
            events.wait(left)?;
        }
    }
}

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }
}
