//! The bridge itself: the part that all containers of a host share, so everything here may happen in several processes
//! at once.

use super::vlan;
use crate::error::{Error, Result};
use crate::kernel::netns::Lock;
use crate::kernel::rtnl::{Batch, Link, LinkChange, LinkProperty, NewLink, Rtnl};
use crate::names::{IfName, Mac};
use crate::steps::flow::undo::Undo;
use crate::steps::link::{host_link, veth};

/// How often the bridge is looked for and made, while others make and remove it.
const ATTEMPTS_MAX: u32 = 10;

/// What a bridge is to be like.
pub(super) struct NewBridge {
    /// Of a bridge that is made now; one that is there keeps its own.
    pub(super) mtu: Option<u32>,
    /// Also of one that is there.
    pub(super) promiscuous: bool,
    /// One that is there and has no MAC address, because its last port has left, gets one: with the gateway's address
    /// it would keep none, and nobody would reach it.
    pub(super) is_gateway: bool,
    /// It is born with VLAN filtering; one that is there keeps its own.
    pub(super) filters_vlans: bool,
    /// One that is there and does not filter cannot be used.
    pub(super) must_filter_vlans: bool,
}

/// The kernel's name of the kind.
const KIND: &str = "bridge";

/// The bridge of this name, None if there is no such link. Another kind of link is an error.
pub(super) fn existing_bridge(host: &Rtnl, name: &IfName) -> Result<Option<Link>> {
    match host.link(name)? {
        Some(link) if link.kind.as_deref() != Some(KIND) => Err(Error::config(format!(
            "cannot use {name} as a bridge: it already exists but is not a bridge"
        ))),
        link => Ok(link),
    }
}

/// Finds or makes the bridge. A failing caller takes a bridge that was made here back, if nobody else uses it by then.
pub(super) fn ensure_bridge<'a>(
    host: &'a Rtnl,
    in_use: Option<&'a Lock>,
    name: &IfName,
    new: &NewBridge,
    undo: &mut Undo<'a>,
) -> Result<Link> {
    let (mut bridge, is_new) = find_or_make(host, name, new)?;
    if is_new {
        let index = bridge.index;
        undo.push_shared("remove the bridge", move || {
            if_unused(host, in_use, index, || host.del_link(index))
        });
        host_link::skip_duplicate_detection(name)?;
    }
    if new.must_filter_vlans {
        vlan::require_filtering(&bridge)?;
    }
    host_link::refuse_router_advertisements(&bridge)?;
    let needs_mac = new.is_gateway && bridge.mac == Some(Mac([0; 6]));
    let change = LinkChange {
        mac: needs_mac.then(veth::random_mac).transpose()?,
        up: (!bridge.up).then_some(true),
        promiscuous: (new.promiscuous && !bridge.promiscuous).then_some(true),
        ..LinkChange::default()
    };
    if change.mac.is_some() || change.up.is_some() || change.promiscuous.is_some() {
        let mut batch = Batch::new();
        batch.change_link(bridge.index, name, &change);
        host.commit(batch)?;
        (bridge.up, bridge.promiscuous) = (true, new.promiscuous || bridge.promiscuous);
        bridge.mac = change.mac.or(bridge.mac);
    }
    Ok(bridge)
}

fn find_or_make(host: &Rtnl, name: &IfName, new: &NewBridge) -> Result<(Link, bool)> {
    for _ in 0..ATTEMPTS_MAX {
        if let Some(bridge) = existing_bridge(host, name)? {
            return Ok((bridge, false));
        }
        // A bridge without an address of its own takes the lowest one of its ports, and changes it as containers come
        // and go; their neighbours would keep the old one for a minute. One that it is born with stays.
        let mac = Some(veth::random_mac()?);
        let link = NewLink { name, mtu: new.mtu, mac, ..NewLink::default() };
        let filtering = new.filters_vlans.then_some(LinkProperty::BridgeVlanFiltering(true));
        match host.add_link(&link, KIND, filtering.as_slice()) {
            Ok(bridge) => return Ok((bridge, true)),
            // Somebody else was faster.
            Err(error) if error.is_exists() => {}
            Err(error) if error.is_unsupported() && new.filters_vlans => {
                return Err(vlan::unsupported());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::internal(format!("cannot make bridge {name}: it comes and goes")))
}

/// Takes something back unless containers use the bridge, or another process is just about to, between finding it and
/// being its port.
pub(super) fn if_unused(
    host: &Rtnl,
    in_use: Option<&Lock>,
    bridge: u32,
    take_back: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Some(lock) = in_use else { return Ok(()) };
    if lock.try_make_exclusive()? && host.links_with_master(bridge)?.is_empty() {
        take_back()?;
    }
    Ok(())
}
