//! The bridge itself: the part that all containers of a host share, so everything here may happen in several processes
//! at once.

use ipnet::IpNet;

use crate::error::{Error, Result};
use crate::kernel::netlink::Attrs;
use crate::kernel::netns::Lock;
use crate::kernel::rtnl::{Batch, Link, LinkChange, LinkKind, NewAddress, NewLink, Rtnl};
use crate::names::IfName;
use crate::steps::undo::Undo;
use crate::steps::{host_link, veth};

/// How often the bridge is looked for and made, while others make and remove it.
const ATTEMPTS_MAX: u32 = 10;

/// What a bridge is to be like.
pub(super) struct NewBridge {
    /// Of a bridge that is made now; one that is there keeps its own.
    pub(super) mtu: Option<u32>,
    /// Also of one that is there.
    pub(super) promiscuous: bool,
}

struct BridgeKind;

impl LinkKind for BridgeKind {
    const NAME: &'static str = "bridge";

    fn encode(&self, _: &mut Attrs) {}
}

/// The bridge of this name, None if there is no such link. Another kind of link is an error.
pub(super) fn existing_bridge(host: &Rtnl, name: &IfName) -> Result<Option<Link>> {
    match host.link(name)? {
        Some(link) if link.kind.as_deref() != Some(BridgeKind::NAME) => Err(Error::config(
            format!("cannot use {name} as a bridge: it already exists but is not a bridge"),
        )),
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
        undo.push("remove the bridge", move || {
            if_unused(host, in_use, index, || host.del_link(index))
        });
        host_link::skip_duplicate_detection(name)?;
    }
    host_link::refuse_router_advertisements(name)?;
    let change = LinkChange {
        up: (!bridge.up).then_some(true),
        promiscuous: (new.promiscuous && !bridge.promiscuous).then_some(true),
        ..LinkChange::default()
    };
    if change.up.is_some() || change.promiscuous.is_some() {
        let mut batch = Batch::new();
        batch.change_link(bridge.index, name, &change);
        host.commit(batch)?;
        (bridge.up, bridge.promiscuous) = (true, new.promiscuous || bridge.promiscuous);
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
        match host.add_link(&link, &BridgeKind) {
            Ok(bridge) => return Ok((bridge, true)),
            // Somebody else was faster.
            Err(error) if error.is_exists() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::internal(format!("cannot make bridge {name}: it comes and goes")))
}

/// Takes something back unless containers use the bridge, or another process is just about to, between finding it and
/// being its port.
fn if_unused(
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

/// Gives the bridge the gateways' addresses. Where it has others of the same family (for IPv6: that overlap) they make
/// way if `force`, else it is an error.
pub(super) fn ensure_addresses<'a>(
    host: &'a Rtnl,
    in_use: Option<&'a Lock>,
    bridge: &Link,
    gateways: &[IpNet],
    force: bool,
    undo: &mut Undo<'a>,
) -> Result<()> {
    if gateways.is_empty() {
        return Ok(());
    }
    let (index, name) = (bridge.index, bridge.name.as_str());
    let present: Vec<IpNet> =
        host.addresses(index)?.into_iter().map(|address| address.net).collect();
    let missing: Vec<IpNet> =
        gateways.iter().filter(|net| !present.contains(net)).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let in_the_way = |other: &&IpNet| {
        !gateways.contains(other) && missing.iter().any(|net| conflicts(**other, *net))
    };
    let replaced: Vec<IpNet> = present.iter().filter(in_the_way).copied().collect();
    if let (Some(other), false) = (replaced.first(), force) {
        return Err(Error::internal(format!(
            "{name:?} already has an IP address different from {}",
            missing[0]
        ))
        .with_details(format!("it has {other}; forceAddress would replace it")));
    }
    let mut batch = replace_addresses(bridge, &replaced, &missing);
    // A bridge that somebody else made may still change its MAC address with its ports: setting it makes it stay.
    batch.change_link(index, name, &LinkChange { mac: bridge.mac, ..LinkChange::default() });
    let bridge = bridge.clone();
    undo.push("give the bridge the addresses that it had", move || {
        let take_back = || host.commit(replace_addresses(&bridge, &missing, &replaced));
        if_unused(host, in_use, bridge.index, take_back)
    });
    host.commit(batch)
}

fn replace_addresses(bridge: &Link, old: &[IpNet], new: &[IpNet]) -> Batch {
    let mut batch = Batch::new();
    for net in old {
        batch.del_address(bridge.index, &bridge.name, *net);
    }
    for net in new {
        // Another ADD may be giving it the same one right now.
        let address =
            NewAddress { net: *net, no_dad: true, no_prefix_route: false, may_exist: true };
        batch.add_address(bridge.index, &bridge.name, &address);
    }
    batch
}

/// As the reference sees it: an interface has one IPv4 network, and any number of IPv6 ones that do not overlap.
fn conflicts(present: IpNet, wanted: IpNet) -> bool {
    match (present, wanted) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(a), IpNet::V6(b)) => a.contains(&b.network()) || b.contains(&a.network()),
        _ => false,
    }
}
