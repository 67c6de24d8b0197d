//! The gateway of a VLAN: `cni0.10` for VLAN 10 of `cni0`.
//!
//! It is a veth pair on the host, as in the reference: one end has this name and the gateway addresses, the other end is a port
//! of the bridge in the VLAN. All networks with this bridge and VLAN share the pair, also those of the Go plugin.
//!
//! A failing ADD, DEL and GC remove the pair when no container is in the VLAN, even if another process made it.

use super::LOCK_TIMEOUT;
use super::vlan::Vlans;
use crate::error::{Error, Result};
use crate::kernel::netns::Lock;
use crate::kernel::sys;
use crate::names::IfName;
use crate::netlink::rtnl::{Batch, Link, LinkChange, LinkProperty, NewLink, PortVlans, Rtnl, VETH};
use crate::steps::link::{host_link, veth};

/// The maximum number of attempts to make the link. An attempt fails only if another process made or removed the link in the
/// meantime.
const ATTEMPTS_MAX: u32 = 10;

/// Finds or makes the VLAN gateway `name`, puts its other end as a port into the VLAN, and brings both ends up.
pub(super) fn ensure(host: &Rtnl, bridge: &Link, name: &IfName, vlans: &Vlans) -> Result<Link> {
    for _ in 0..ATTEMPTS_MAX {
        if let Some(link) = host.link(name)? {
            let port = veth::peer(host, &link)?;
            let is_on_bridge =
                |port: &Link| port.master.is_none_or(|master| master == bridge.index);
            return match port.filter(is_on_bridge) {
                Some(port) => complete(host, bridge, link, &port, vlans),
                // An operator made the link, for example as a VLAN link. As in the reference, it is used and not changed.
                None => Ok(link),
            };
        }
        let mtu = Some(bridge.mtu);
        let peer = NewLink { name, mtu, mac: Some(veth::random_mac()?), ..NewLink::default() };
        let port = NewLink {
            name: &format!("veth{:08x}", u32::from_be_bytes(sys::random_bytes()?)),
            master: Some(bridge.index),
            mac: Some(veth::random_mac()?),
            ..peer
        };
        match host.add_link(&port, VETH, &[LinkProperty::VethPeer(peer)]) {
            Ok(_) => {}
            // Another process made the pair first.
            Err(error) if error.is_exists() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::internal(format_args!(
        "cannot make VLAN gateway {name}: other processes make and remove it at the same time"
    )))
}

/// Makes `port`, the other end of the pair, a port of the bridge in the VLAN, and brings both ends up. Idempotent.
fn complete(
    host: &Rtnl,
    bridge: &Link,
    mut link: Link,
    port: &Link,
    vlans: &Vlans,
) -> Result<Link> {
    let is_attached = port.master == Some(bridge.index);
    if link.up && port.up && is_attached {
        return Ok(link);
    }
    for end in [&link, port] {
        host_link::refuse_router_advertisements(end)?;
    }
    host_link::skip_duplicate_detection(&link.name)?;
    let mut batch = Batch::new();
    // The port has no master if another program removed the bridge, and `bridge` is a new one.
    let master = (!is_attached).then_some(bridge.index);
    batch.change_link(port.index, &port.name, &LinkChange { master, ..LinkChange::default() });
    vlans.access_only().set(&mut batch, bridge, port.index, &port.name);
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    batch.change_link(port.index, &port.name, &up);
    host.commit(batch)?;
    // The link comes up last: other processes use a link that is up without further changes.
    host.change_link(link.index, &link.name, &up)?;
    link.up = true;
    Ok(link)
}

/// For CHECK: fails if the link or its other end is down, or if the other end is not a port of the bridge in the VLAN. A link
/// without a peer on the host only has to exist.
pub(super) fn check(
    host: &Rtnl,
    bridge: &Link,
    name: &IfName,
    vlan: Option<u16>,
    ports: &[PortVlans],
) -> Result<Link> {
    let problem = |what: &str| Error::difference(format_args!("gateway link {name} {what}"));
    let link = host.link(name)?.ok_or_else(|| problem("not found"))?;
    let Some(port) = veth::peer(host, &link)? else { return Ok(link) };
    let is_port = |other: &&PortVlans| other.index == port.index && other.bridge == bridge.index;
    if !link.up || !port.up {
        return Err(problem("is down"));
    }
    if ports.iter().find(is_port).and_then(PortVlans::pvid) != vlan {
        return Err(problem(&format!("is not in its VLAN on bridge {}", bridge.name)));
    }
    Ok(link)
}

/// Removes every VLAN gateway without containers. `configured` is the name and VLAN of the configured gateway.
pub(super) fn remove_unused(
    host: &Rtnl,
    lock: Option<&Lock>,
    configured: Option<(&str, u16)>,
) -> Result<()> {
    if unused(host, configured)?.is_empty() {
        return Ok(());
    }
    // An ADD takes the lock before it looks for the link, and holds it until its container is in the VLAN. After a timeout
    // of `make_exclusive`, the VLAN gateways stay until the next DEL or GC.
    if let Some(lock) = lock
        && lock.make_exclusive(LOCK_TIMEOUT)?
    {
        for index in unused(host, configured)? {
            host.del_link(index)?;
        }
    }
    Ok(())
}

/// The indexes of the VLAN gateways without containers in their VLANs. A gateway whose other end is not a port of a bridge is
/// found only by its configured name.
fn unused(host: &Rtnl, configured: Option<(&str, u16)>) -> Result<Vec<u32>> {
    let all = host.bridge_ports()?;
    let mut unused = Vec::new();
    if let Some((name, vlan)) = configured
        && let Some(link) = host.link(name)?
        && let Some(port) = veth::peer(host, &link)?
        && port.master.is_none_or(|master| link_name(&all, master, vlan).as_deref() == Some(name))
        && !has_container(host, &all, port.master, port.index, vlan)?
    {
        unused.push(link.index);
    }
    for port in all.iter().filter(|port| port.index != port.bridge) {
        let (Some(vlan), Some(peer)) = (port.pvid(), port.peer) else { continue };
        if unused.contains(&peer) || has_container(host, &all, Some(port.bridge), port.index, vlan)?
        {
            continue;
        }
        if let Some(link) = host.link_at(peer)?
            && link_name(&all, port.bridge, vlan).as_ref() == Some(&link.name)
            && veth::peer(host, &link)?.is_some_and(|end| end.index == port.index)
        {
            unused.push(link.index);
        }
    }
    Ok(unused)
}

/// The name of the gateway of a VLAN. `None` if `bridge` is not the index of a bridge.
fn link_name(all: &[PortVlans], bridge: u32, vlan: u16) -> Option<String> {
    let bridge = all.iter().find(|port| port.index == bridge && port.bridge == bridge)?;
    Some(format!("{}.{vlan}", bridge.name))
}

/// Whether the VLAN has a port to a container (veth) or a virtual machine (tun) other than the gateway's. Other kinds of
/// ports connect the bridge to networks outside the host.
fn has_container(
    host: &Rtnl,
    all: &[PortVlans],
    bridge: Option<u32>,
    gateway: u32,
    vlan: u16,
) -> Result<bool> {
    let is_other = |port: &&PortVlans| {
        Some(port.bridge) == bridge
            && port.is_in(vlan)
            && ![port.bridge, gateway].contains(&port.index)
    };
    let others: Vec<&PortVlans> = all.iter().filter(is_other).collect();
    // A port with a peer counts as a veth, so its kind is not requested.
    if others.iter().any(|port| port.peer.is_some()) {
        return Ok(true);
    }
    for port in others {
        let kind = host.link_at(port.index)?.and_then(|link| link.kind);
        if matches!(kind.as_deref(), Some(VETH | "tun")) {
            return Ok(true);
        }
    }
    Ok(false)
}
