//! The bridge device. Its containers share it, so several processes may find, make and remove it at the same time.

use std::time::Duration;

use ipnet::IpNet;

use super::{Bridge, HostState, REMOVAL_TIMEOUT, vlan};
use crate::error::{Error, Result};
use crate::kernel::netns::Lock;
use crate::names::{IfName, IpFamily, Mac};
use crate::netlink::rtnl::{Link, LinkChange, LinkProperty, NewLink, Rtnl, VETH};
use crate::plugin::Context;
use crate::steps::link::{host_link, mtu, veth};
use crate::steps::undo::Undo;

/// The maximum number of attempts to make the bridge. An attempt fails only if another process made or removed the bridge in
/// the meantime.
const ATTEMPTS_MAX: u32 = 10;

/// The timeout of ADD until a bridge that it brought up has a carrier.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(1);

/// The link kind of a bridge in the kernel (IFLA_INFO_KIND).
const KIND: &str = "bridge";

/// The bridge with this name, if it exists. Fails if the link is of another kind.
pub(super) fn existing_bridge(host: &Rtnl, name: &IfName) -> Result<Option<Link>> {
    match host.link(name)? {
        Some(link) if link.kind.as_deref() != Some(KIND) => Err(Error::config(format_args!(
            "failed to create bridge \"{name}\": \"{name}\" already exists but is not a bridge"
        ))),
        link => Ok(link),
    }
}

/// The bridge with this name. Fails if it does not exist.
pub(super) fn require_bridge(host: &Rtnl, name: &IfName) -> Result<Link> {
    existing_bridge(host, name)?
        .ok_or_else(|| Error::internal(format_args!("bridge {name} not found")))
}

impl Bridge {
    /// Finds or makes the bridge. If the ADD fails, `undo` removes a bridge that this ADD made, unless another container uses
    /// it.
    pub(super) fn ensure_bridge<'a>(
        &self,
        state: &HostState<'a>,
        undo: &mut Undo<'a>,
    ) -> Result<Link> {
        let HostState { host, lock, validated } = *state;
        let name = &validated.bridge;
        let (mut bridge, is_new) = self.find_or_make(host, name)?;
        if is_new {
            let index = bridge.index;
            undo.push_shared("remove the bridge", move || {
                if_unused(host, lock, index, || host.del_link(index))
            });
            host_link::skip_duplicate_detection(name)?;
        } else {
            check_port_mtu(host, &bridge, self.mtu())?;
        }
        if !validated.vlans.is_empty() {
            vlan::require_filtering(&bridge)?;
        }
        host_link::refuse_router_advertisements(&bridge)?;
        // A bridge that lost its MAC address with its last port needs a new one for its gateway address.
        let needs_mac = self.is_gateway() && bridge.mac == Some(Mac([0; 6]));
        let change = LinkChange {
            mac: needs_mac.then(veth::random_mac).transpose()?,
            up: (!bridge.up).then_some(true),
            promiscuous: (self.promisc_mode && !bridge.promiscuous).then_some(true),
            ..LinkChange::default()
        };
        if change.mac.is_some() || change.up.is_some() || change.promiscuous.is_some() {
            host.change_link(bridge.index, name, &change)?;
            (bridge.up, bridge.promiscuous) = (true, self.promisc_mode || bridge.promiscuous);
            bridge.mac = change.mac.or(bridge.mac);
            if change.up.is_some() && !is_new && self.is_gateway() {
                bridge.operstate_up = wait_for_carrier(host, bridge.index)?;
            }
        }
        Ok(bridge)
    }

    /// For DEL and GC, as configured: removes the bridge if it has no ports. After a timeout it stays until the next DEL or GC.
    pub(super) fn remove_unused_bridge(&self, cx: &Context<'_>) -> Result<()> {
        if !self.remove_unused {
            return Ok(());
        }
        let host = cx.session.host()?;
        let bridge = host.link(&self.bridge)?.filter(|link| link.kind.as_deref() == Some(KIND));
        let Some(bridge) = bridge.filter(|bridge| bridge.name == self.bridge) else {
            return Ok(());
        };
        let is_unused = || Ok::<_, Error>(host.links_with_master(bridge.index)?.is_empty());
        if !is_unused()? {
            return Ok(());
        }
        // An ADD holds the lock until its container has a port.
        let Some(_lock) = cx.session.host_netns()?.lock_exclusive(REMOVAL_TIMEOUT)? else {
            return Ok(());
        };
        if is_unused()? { host.del_link(bridge.index) } else { Ok(()) }
    }

    /// The bridge, and whether this call made it.
    fn find_or_make(&self, host: &Rtnl, name: &IfName) -> Result<(Link, bool)> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(bridge) = existing_bridge(host, name)? {
                return Ok((bridge, false));
            }
            // Without a MAC address that is set, the kernel gives the bridge the lowest one of its ports, and changes it when
            // ports change. Containers would use the old address for up to a minute.
            let mac = Some(veth::random_mac()?);
            let link = NewLink { name, mtu: self.mtu(), mac, ..NewLink::default() };
            let filters_vlans = self.configures_vlans();
            let filtering = filters_vlans.then_some(LinkProperty::BridgeVlanFiltering(true));
            match host.add_link(&link, KIND, filtering.as_slice()) {
                Ok(bridge) => return Ok((bridge, true)),
                // Another process made the bridge first.
                Err(error) if error.is_exists() => {}
                Err(error) if error.is_unsupported() && filters_vlans => {
                    return Err(vlan::unsupported());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::internal(format_args!(
            "cannot make bridge {name}: other processes make and remove it at the same time"
        )))
    }
}

/// Whether a bridge that was brought up has a carrier. Waits for the carrier if one of its ports has one, or can get one from outside
/// of the host: only then others can answer for the gateway address.
fn wait_for_carrier(host: &Rtnl, bridge: u32) -> Result<bool> {
    let can_carry = |port: &Link| port.operstate_up || port.kind.as_deref() != Some(VETH);
    if !host.links_with_master(bridge)?.iter().any(can_carry) {
        return Ok(false);
    }
    let has_carrier = |link: &Link| link.operstate_up;
    let link = host.wait_for_link(bridge, CARRIER_TIMEOUT, has_carrier)?;
    Ok(link.as_ref().is_some_and(has_carrier))
}

/// Fails if a port with this MTU would make the bridge lose its IPv6 addresses: the kernel gives the bridge the smallest MTU
/// of its ports, and removes IPv6 addresses below 1280.
pub(super) fn check_port_mtu(host: &Rtnl, bridge: &Link, mtu: Option<u32>) -> Result<()> {
    let Some(mtu) = mtu.filter(|mtu| mtu::is_too_small(*mtu)) else { return Ok(()) };
    let addresses = host.addresses_of(bridge.index, IpFamily::V6)?;
    // Link-local addresses do not count: the kernel sets them on each bridge.
    let is_set = |net: &IpNet| !matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local());
    match addresses.iter().map(|address| address.net).find(is_set) {
        Some(net) => {
            let reason = format_args!("bridge {} has {net} and would lose it", bridge.name);
            Err(mtu::too_small(mtu).with_details(reason))
        }
        None => Ok(()),
    }
}

/// Calls `revert` if the bridge has no ports and no other call holds the lock. Without a lock, does nothing.
pub(super) fn if_unused(
    host: &Rtnl,
    lock: Option<&Lock>,
    bridge: u32,
    revert: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Some(lock) = lock else { return Ok(()) };
    if lock.try_make_exclusive()? && host.links_with_master(bridge)?.is_empty() {
        revert()?;
    }
    Ok(())
}
