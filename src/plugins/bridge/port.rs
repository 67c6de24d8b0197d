//! The host end of the pair, which is a port of the bridge.

use std::time::Duration;

use super::{Bridge, vlan::Vlans};
use crate::attachments::owner::Owner;
use crate::error::{Error, Result};
use crate::netlink::rtnl::{Batch, Link, LinkChange, PortState, Rtnl, SpanningTree};
use crate::steps::link::{host_link, veth};

/// The timeout of ADD until a new port forwards. A port usually forwards some 100 us after both ends are up, and later on a
/// loaded host. After the timeout ADD continues.
const FORWARDING_TIMEOUT: Duration = Duration::from_secs(1);
/// The same timeout if a program of the host runs the spanning tree protocol: then a port can need many seconds.
const FORWARDING_TIMEOUT_USER_STP: Duration = Duration::from_millis(100);

/// The timeout of CHECK until the port forwards.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

impl Bridge {
    /// Sets accept_ra=0, the VLANs, the alias and the port flags, and brings the port up.
    pub(super) fn set_up_port(
        &self,
        owner: &Owner,
        host: &Rtnl,
        bridge: &Link,
        vlans: &Vlans,
        port: &Link,
    ) -> Result<()> {
        host_link::refuse_router_advertisements(port)?;
        let alias = owner.alias();
        let mut batch = Batch::new();
        // The kernel brings the port up even if it refuses the VLANs. No frame passes, because the container's end is down.
        vlans.set(&mut batch, bridge, port.index, &port.name);
        let change = LinkChange {
            up: Some(true),
            alias: Some(&alias),
            // Both flags are off on a new port.
            hairpin: self.hairpin_mode.then_some(true),
            isolated: self.port_isolation.then_some(true),
            ..LinkChange::default()
        };
        batch.change_link(port.index, &port.name, &change);
        host.commit(batch)
    }

    pub(super) fn check_port(&self, host: &Rtnl, bridge: &Link, port: &Link) -> Result<()> {
        let is_not = |state: &str| {
            let (port, bridge) = (&port.name, &bridge.name);
            Error::internal(format_args!("port {port} of bridge {bridge} is not {state}"))
        };
        let flags = port.port.unwrap_or_default();
        if self.hairpin_mode && !flags.hairpin {
            return Err(is_not("in hairpin mode"));
        }
        if self.port_isolation && !flags.isolated {
            return Err(is_not("isolated"));
        }
        // If ADD leaves the container's end down, the port has no carrier and is in the state disabled.
        if self.disable_container_interface { Ok(()) } else { check_state(host, bridge, port) }
    }
}

/// For CHECK: the host end of the container's interface, which must be up and a port of the bridge.
pub(super) fn find(host: &Rtnl, container: &Link, bridge: &Link) -> Result<Link> {
    let missing = |reason: String| {
        let msg = format!("CNI veth created for bridge {} was not found", bridge.name);
        Error::internal(reason).in_front(&msg)
    };
    match veth::find_host_end(host, container)? {
        Some(port) if port.master == Some(bridge.index) => Ok(port),
        Some(port) => Err(missing(format!("interface {} is not its port", port.name))),
        None => Err(missing(format!("the peer of {} is not on the host", container.name))),
    }
}

/// For CHECK: fails if the port does not forward. With spanning tree, it may also be in the state listening or learning.
fn check_state(host: &Rtnl, bridge: &Link, port: &Link) -> Result<()> {
    use PortState::{Forwarding, Learning, Listening};

    let has_stp = bridge.spanning_tree() != SpanningTree::Off;
    let state = |link: &Link| link.port.unwrap_or_default().state;
    let is_valid = |link: &Link| match state(link) {
        Forwarding => true,
        Listening | Learning => has_stp,
        _ => false,
    };
    if is_valid(port) {
        return Ok(());
    }
    // A CHECK right after ADD can see a port without a carrier.
    let state = match host.wait_for_link(port.index, CHECK_TIMEOUT, is_valid)? {
        Some(port) if is_valid(&port) => return Ok(()),
        Some(port) => state(&port).text(),
        None => "gone",
    };
    Err(Error::internal(format_args!("bridge port in error state: {} is {state}", port.name)))
}

/// Waits until the port forwards. The bridge drops earlier frames, and the sender of a dropped ARP request retries only after
/// one second. With the kernel's spanning tree there is no wait: a port needs at least 4 s, and then the bridge itself notifies
/// the neighbours of the change.
pub(super) fn wait_until_forwarding(host: &Rtnl, bridge: &Link, port: &Link) -> Result<()> {
    let limit = match bridge.spanning_tree() {
        SpanningTree::Kernel => return Ok(()),
        SpanningTree::User => FORWARDING_TIMEOUT_USER_STP,
        SpanningTree::Off => FORWARDING_TIMEOUT,
    };
    let forwards = |link: &Link| link.port.is_some_and(|port| port.state == PortState::Forwarding);
    match host.wait_for_link(port.index, limit, forwards)? {
        Some(_) => Ok(()),
        None => {
            Err(Error::internal(format_args!("bridge port in error state: {} is gone", port.name)))
        }
    }
}
