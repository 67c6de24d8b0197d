//! The host's end of a container's pair: a port of the bridge.

use std::time::Duration;

use super::{Bridge, vlan::Vlans};
use crate::error::{Error, Result};
use crate::kernel::rtnl::{Batch, Link, LinkChange, Port, Rtnl};
use crate::steps::host_link;
use crate::steps::owner::Owner;

/// How long the bridge may take to forward for a new port. It does so some hundred microseconds after both ends are up;
/// a bridge with spanning tree takes up to 30 s, and the reference gives up after this time, too.
const PORT_LIMIT: Duration = Duration::from_millis(2550);

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

    pub(super) fn check_port(&self, bridge: &Link, port: &Link) -> Result<()> {
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
        Ok(())
    }
}

/// Frames that come before the port forwards are lost, and a lost ARP request costs its sender a second.
pub(super) fn wait_until_forwarding(host: &Rtnl, port: &Link) -> Result<()> {
    let forwards = |link: &Link| link.port.is_some_and(|Port { forwarding, .. }| forwarding);
    match host.wait_for_link(port.index, PORT_LIMIT, forwards)? {
        Some(link) if forwards(&link) => Ok(()),
        Some(link) => Err(Error::internal(format!(
            "bridge port in error state: {} does not forward after {} ms",
            link.name,
            PORT_LIMIT.as_millis()
        ))),
        None => Err(Error::internal(format!("bridge port in error state: {} is gone", port.name))),
    }
}
