//! The host's end of a container's pair: a port of the bridge.

use std::time::Duration;

use super::{Bridge, vlan::Vlans};
use crate::error::{Error, Result};
use crate::kernel::rtnl::{Batch, Link, LinkChange, PortState, Rtnl, SpanningTree};
use crate::plugin::owner::Owner;
use crate::steps::link::host_link;

/// How long the bridge may take to forward for a new port. It does so some hundred microseconds after both ends are up.
/// Later the port is announced all the same, and the ADD succeeds.
const PORT_LIMIT: Duration = Duration::from_millis(100);

/// How long CHECK waits for it.
const CHECK_LIMIT: Duration = Duration::from_secs(1);

impl Bridge {
    /// Deaf to router advertisements, told whose it is, in its VLANs, and up.
    pub(super) fn set_up_port(
        &self,
        owner: &Owner,
        host: &Rtnl,
        bridge: &Link,
        vlans: &Vlans,
        port: &Link,
    ) -> Result<()> {
        host_link::refuse_router_advertisements(port)?;
        let alias = host_link::alias(owner);
        let mut batch = Batch::new();
        // Should this fail, the next request still brings the port up. Nothing comes in by it: the container's end is
        // down.
        vlans.set(&mut batch, bridge, port.index, &port.name);
        let change = LinkChange {
            up: Some(true),
            alias: Some(&alias),
            // A new port has neither.
            hairpin: self.hairpin_mode.then_some(true),
            isolated: self.port_isolation.then_some(true),
            ..LinkChange::default()
        };
        batch.change_link(port.index, &port.name, &change);
        host.commit(batch)
    }

    pub(super) fn check_port(&self, host: &Rtnl, bridge: &Link, port: &Link) -> Result<()> {
        let name = &port.name;
        if port.master != Some(bridge.index) {
            return Err(Error::internal(format!(
                "interface {name} is not a port of bridge {}",
                bridge.name
            )));
        }
        let flags = port.port.unwrap_or_default();
        if self.hairpin_mode && !flags.hairpin {
            return Err(Error::internal(format!(
                "port {name} of bridge {} is not in hairpin mode",
                bridge.name
            )));
        }
        if self.port_isolation && !flags.isolated {
            return Err(Error::internal(format!(
                "port {name} of bridge {} is not isolated",
                bridge.name
            )));
        }
        // Without a carrier, it is disabled.
        if self.disable_container_interface { Ok(()) } else { check_state(host, bridge, port) }
    }
}

/// The port forwards, or spanning tree is about to let it.
fn check_state(host: &Rtnl, bridge: &Link, port: &Link) -> Result<()> {
    use PortState::{Forwarding, Learning, Listening};

    let has_stp = bridge.spanning_tree() != SpanningTree::Off;
    let state = |link: &Link| link.port.unwrap_or_default().state;
    let is_fine = |link: &Link| match state(link) {
        Forwarding => true,
        Listening | Learning => has_stp,
        _ => false,
    };
    if is_fine(port) {
        return Ok(());
    }
    // CHECK can come before the kernel has noticed the carrier of a new port.
    let state = match host.wait_for_link(port.index, CHECK_LIMIT, is_fine)? {
        Some(port) if is_fine(&port) => return Ok(()),
        Some(port) => state(&port).text(),
        None => "gone",
    };
    Err(Error::internal(format!("bridge port in error state: {} is {state}", port.name)))
}

/// Frames that come before the port forwards are lost, and a lost ARP request costs its sender a second. Not waited for with
/// spanning tree, which takes at least 4 s: until then nothing of the container is heard, and the bridge itself tells its
/// neighbours of the change.
pub(super) fn wait_until_forwarding(host: &Rtnl, bridge: &Link, port: &Link) -> Result<()> {
    if bridge.spanning_tree() == SpanningTree::Kernel {
        return Ok(());
    }
    let forwards = |link: &Link| link.port.is_some_and(|port| port.state == PortState::Forwarding);
    match host.wait_for_link(port.index, PORT_LIMIT, forwards)? {
        Some(_) => Ok(()),
        None => Err(Error::internal(format!("bridge port in error state: {} is gone", port.name))),
    }
}
