//! rtnetlink: links, addresses, routes, rules and traffic control as plain values. Its callers see no netlink messages.

mod address;
mod bridge_vlan;
mod consts;
mod dropping;
mod link;
mod link_change;
mod link_group;
mod namespace;
mod neighbour;
mod netconf;
mod property;
mod route;
mod rule;
mod traffic;

use std::time::{Duration, Instant};

use neli::consts::socket::NlFamily;
use nix::sys::socket::getsockopt;

use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sys::{self, socket::NetnsCookie};
use crate::netlink::{self, Events, REQUESTS_AT_ONCE, Requests, Socket};

pub use address::{Address, NewAddress};
pub use bridge_vlan::{PortVlans, VlanRange};
pub use consts::RT_TABLE_MAIN;
pub use link::{Link, PortState};
pub use link_change::{LinkChange, NewLink};
pub use namespace::{End, Ends, Nsid};
pub use property::{LinkProperty, SpanningTree, VETH};
pub use route::{NextHop, Route};
pub use rule::Rule;
pub use traffic::{AddressField, TokenBucket, Traffic, TrafficSelector};

/// An rtnetlink socket for one network namespace.
pub struct Rtnl {
    socket: Socket,
    /// The namespace of the socket, if it is not that of the caller.
    netns: Option<NetNs>,
}

/// Changes that are sent together. They are not atomic: after a failed change the kernel still makes the later ones.
#[derive(Debug, Default)]
pub struct Batch {
    requests: Requests,
}

impl Rtnl {
    /// Opens a socket in the namespace of the calling thread. `NetNs::rtnl` opens one in another namespace.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open(NlFamily::Route)?, netns: None })
    }

    /// The namespace of the socket, which has to be that of the calling thread.
    pub fn netns(&self) -> Result<NetNs> {
        NetNs::of_socket(&self.socket)
    }

    /// The cookie of the namespace: a number that is unique until the next boot. `None` before Linux 5.14.
    pub fn netns_cookie(&self) -> Option<u64> {
        getsockopt(&self.socket, NetnsCookie).ok()
    }

    /// Makes the changes; returns the first error. Many changes are sent in several datagrams. A datagram fits into the send
    /// buffer of each host, and the answers to it fit into the receive buffer.
    pub fn commit(&self, batch: Batch) -> Result<()> {
        let parts = batch.requests.parts(REQUESTS_AT_ONCE, DATAGRAM_BYTES_MAX);
        let committed = parts.into_iter().map(|part| self.change(part));
        Ok(committed.fold(Ok(()), Result::and)?)
    }

    fn change(&self, requests: Requests) -> Result<(), netlink::Error> {
        self.socket.commit(requests, |_| {})
    }

    /// Repeats a query after each change in the multicast group, until its answer is `true`, or until the timeout. Returns the
    /// last answer. Fails after an interrupt.
    fn wait<T>(
        &self,
        group: u32,
        timeout: Duration,
        query: impl Fn() -> Result<(bool, T)>,
    ) -> Result<(bool, T)> {
        let first = query()?;
        if first.0 {
            // Most calls do not wait, and reading the clock costs two page faults.
            return Ok(first);
        }
        let start = Instant::now();
        let events = match &self.netns {
            Some(netns) => netns.run(|| Ok(Events::subscribe(&[group])?))?,
            None => Events::subscribe(&[group])?,
        };
        loop {
            // The query follows the subscription, so no change is missed.
            let answer = query()?;
            let left = timeout.saturating_sub(start.elapsed());
            if answer.0 || left.is_zero() {
                return Ok(answer);
            }
            sys::fail_if_interrupted().map_err(|error| {
                Error::internal(format_args!("cannot wait for the kernel: {error}"))
            })?;
            events.wait(left)?;
        }
    }
}

impl NetNs {
    /// Opens an rtnetlink socket in this namespace, for threads that are in another namespace.
    pub fn rtnl(&self) -> Result<Rtnl> {
        Ok(Rtnl { netns: Some(self.clone()), ..self.run(Rtnl::open)? })
    }
}

/// The longest datagram: less than the kernel's default send buffer, 212,992 bytes.
const DATAGRAM_BYTES_MAX: usize = 128 << 10;

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }
}
