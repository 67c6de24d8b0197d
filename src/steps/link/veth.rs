//! A veth pair between the host and a container.
//!
//! Who removes it: the failing ADD that made it, DEL, GC; and the kernel, when the container's namespace ends. The
//! host end carries its owner in its alias, so DEL and GC find it also when the namespace cannot be reached any more.

use crate::cni::conf;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::rtnl::{Batch, Link, LinkChange, LinkProperty, NewLink, Rtnl, VETH};
use crate::kernel::sys;
use crate::names::{IfName, Mac};
use crate::plugin::owner::{Owner, Owners};
use crate::plugin::{Context, Scope};
use crate::steps::flow::undo::Failures;
use crate::steps::link::{host_link, interface};
use crate::steps::nft::rules::Rules;

/// How often another name is tried for the host end when somebody has that one.
const NAME_ATTEMPTS_MAX: u32 = 10;

/// A pair just made; the container's end is down.
pub struct Pair {
    pub host: Link,
    pub host_mac: Mac,
    pub container_index: u32,
    pub container_mac: Mac,
}

/// What a pair is to look like.
pub struct NewPair<'a> {
    pub owner: &'a Owner,
    /// Of the container's end.
    pub ifname: &'a IfName,
    /// In bytes; None is the kernel's default.
    pub mtu: Option<u32>,
    /// Of the container's end; None is a random one.
    pub mac: Option<Mac>,
    /// The bridge that the host's end is a port of.
    pub master: Option<u32>,
}

/// The MAC address that is asked for of the container's end.
pub fn requested_mac(cx: &Context<'_>) -> Result<Option<Mac>> {
    let requested = conf::requested_mac(&cx.request.json, &cx.request.args)?;
    let parse =
        |mac: &str| mac.parse().map_err(|error: Error| error.in_front("failed to make veth pair"));
    requested.as_deref().map(parse).transpose()
}

/// Makes both ends in one request, the container's under its final name in its namespace, so that nobody (udev,
/// NetworkManager) sees a temporary name. Both are down.
pub fn create(cx: &Context<'_>, netns: &NetNs, new: &NewPair<'_>) -> Result<Pair> {
    let host = cx.session.host()?;
    // Chosen here rather than by the kernel: this spares asking for them, and systemd-udevd leaves them alone.
    let container_mac = new.mac.map_or_else(random_mac, Ok)?;
    let host_mac = random_mac()?;
    let mut name = host_name(new.owner);
    for _ in 0..NAME_ATTEMPTS_MAX {
        let peer = NewLink {
            name: new.ifname,
            mtu: new.mtu,
            mac: Some(container_mac),
            netns: Some(netns),
            ..NewLink::default()
        };
        let end = NewLink {
            name: &name,
            mtu: new.mtu,
            mac: Some(host_mac),
            master: new.master,
            ..NewLink::default()
        };
        match host.add_link(&end, VETH, &[LinkProperty::VethPeer(peer)]) {
            Ok(host) => {
                let container_index = host.peer.ok_or_else(|| {
                    Error::internal(format!(
                        "cannot find the other end of {name}: the kernel does not tell"
                    ))
                })?;
                return Ok(Pair { host, host_mac, container_index, container_mac });
            }
            Err(error) if error.is_exists() => {}
            Err(error) => return Err(error.into()),
        }
        if cx.session.container()?.link(new.ifname)?.is_some() {
            return Err(Error::internal(format!(
                "container veth name ({:?}) peer provided ({name:?}) already exists",
                &**new.ifname
            )));
        }
        name = format!("veth{:08x}", u32::from_be_bytes(sys::random_bytes()?));
    }
    Err(Error::internal(format!(
        "cannot create interface {}: no free name for its host end",
        new.ifname
    )))
}

/// Brings the container's end up before it has addresses.
pub fn bring_up(cx: &Context<'_>, pair: &Pair, ifname: &IfName) -> Result<()> {
    let mut batch = Batch::new();
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    batch.change_link(pair.container_index, ifname, &up);
    cx.session.container()?.commit(batch)
}

/// The name of the host end: like the reference's random ones to look at, but the same for the same owner, so that DEL
/// finds it with one request.
fn host_name(owner: &Owner) -> String {
    format!("veth{}", owner.short())
}

/// A random address: unicast, locally administered.
pub fn random_mac() -> Result<Mac> {
    let mut bytes: [u8; 6] = sys::random_bytes()?;
    bytes[0] = bytes[0] & 0xfc | 0x02;
    Ok(Mac(bytes))
}

/// DEL and GC of a plugin that has pairs with rules, and addresses.
///
/// The order is such that no packet of the container leaves the host while the rules for it are gone: the pair goes down
/// first, which takes the kernel microseconds. Then the rules go, then the pair: the kernel frees what belonged to the rules
/// while it removes the link, and waits for both at once.
pub fn clean(
    cx: &Context<'_>,
    scope: Scope<'_>,
    netns: Option<&NetNs>,
    owners: &Owners,
) -> Result<()> {
    let stale = owners.clone();
    cx.later(move |nft, batch| Rules::remove(nft, batch, &stale), || Ok(()));
    interface::release(cx, scope, &|| {
        let mut failures = Failures::default();
        let host = cx.session.host()?;
        let links = match find(cx, netns, owners) {
            Ok(links) => links,
            Err(error) => {
                failures.note(Err(error));
                Vec::new()
            }
        };
        let take_down = || {
            let mut batch = Batch::new();
            links.iter().for_each(|link| batch.take_down(link.index, &link.name));
            host.commit(batch)
        };
        failures.note(cx.session.settle_after(&take_down));
        for link in &links {
            failures.note(host.del_link(link.index));
        }
        failures.into_result()
    })
}

/// The host ends of the owners' pairs. One that is gone already is fine.
fn find(cx: &Context<'_>, netns: Option<&NetNs>, owners: &Owners) -> Result<Vec<Link>> {
    let host = cx.session.host()?;
    let Some((at, owner)) = owners.one() else {
        return host_link::all_of(host, VETH, owners);
    };
    if let Some(link) = host.link(&host_name(owner))?.filter(|link| host_link::is_of(link, owners))
    {
        return Ok(vec![link]);
    }
    // The name was taken, or another implementation made the pair.
    let Some(_) = netns else { return host_link::all_of(host, VETH, owners) };
    let Some(link) = cx.session.container()?.link(&at.ifname)? else { return Ok(Vec::new()) };
    let is_of_another = |link: &Link| host_link::is_of_another(link, owners);
    if link.kind.as_deref() != Some(VETH) || either_end(host, &link, is_of_another)? {
        // The path of the namespace is another container's by now, or the interface is of another plugin.
        return Ok(Vec::new());
    }
    match other_end(host, &link)? {
        Some(end) => Ok(vec![end]),
        None => {
            // Its other end is not on this host, so it can be removed from here only.
            cx.session.container()?.del_link(link.index)?;
            Ok(Vec::new())
        }
    }
}

/// The other end of a pair, if it is in the namespace of `home`.
pub fn other_end(home: &Rtnl, link: &Link) -> Result<Option<Link>> {
    let (Some(VETH), Some(peer)) = (link.kind.as_deref(), link.peer) else { return Ok(None) };
    // Indexes are counted per namespace: if the other end has been moved away, that index is some other link.
    let is_it = |it: &Link| it.kind.as_deref() == Some(VETH) && it.peer == Some(link.index);
    Ok(home.link_at(peer)?.filter(is_it))
}

/// Whether a container's interface says something of its owner, or the host's end of its pair does.
pub fn either_end(home: &Rtnl, link: &Link, says: impl Fn(&Link) -> bool) -> Result<bool> {
    Ok(says(link) || other_end(home, link)?.is_some_and(|end| says(&end)))
}

/// For CHECK: the pair has the MTU that was asked for. A later plugin of the chain, or the container, may give its own end a
/// smaller one; what is larger does not arrive.
pub fn check_mtu(host_end: &Link, container: &Link, wanted: Option<u32>) -> Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let (name, mtu) = (&host_end.name, host_end.mtu);
    if mtu != wanted {
        return Err(Error::internal(format!("interface {name} has mtu {mtu}, not {wanted}")));
    }
    let (name, mtu) = (&container.name, container.mtu);
    if mtu > wanted {
        return Err(Error::internal(format!("interface {name} has mtu {mtu}, more than {wanted}")));
    }
    Ok(())
}

/// For CHECK: the host end of the container's interface, which has to be there and up.
pub fn host_end(host: &Rtnl, container: &Link, ifname: &IfName) -> Result<Link> {
    if container.kind.as_deref() != Some(VETH) {
        return Err(Error::internal(format!("interface {ifname} is not a veth")));
    }
    match other_end(host, container)? {
        Some(link) if link.up => Ok(link),
        Some(link) => Err(Error::internal(format!(
            "interface {}, the host end of {ifname}, is down",
            link.name
        ))),
        None => Err(Error::internal(format!("the host end of interface {ifname} was not found"))),
    }
}
