//! A veth pair between the host and a container.
//!
//! A failing ADD, DEL and GC remove the pair; the kernel removes it when the namespace of the container ends. The alias of the
//! host end names the owner, so DEL and GC find the pair without the namespace.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::attachments::owner::{Owner, Owners};
use crate::cni::conf;
use crate::cni::success::{Interface, Success};
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sys;
use crate::names::{Attachment, IfName, Mac};
use crate::netlink::rtnl::{Batch, Link, LinkChange, LinkProperty, NewLink, Rtnl, VETH};
use crate::plugin::{Context, Scope};
use crate::steps::link::{host_link, interface, mtu, tuned};
use crate::steps::rules::Rules;
use crate::steps::undo::{Failures, Undo};

/// The maximum number of names to try. An attempt fails only if another link on the host has the name.
const NAME_ATTEMPTS_MAX: u32 = 10;

/// A new veth pair, of which both ends are down.
pub struct Pair {
    pub host: Link,
    pub host_mac: Mac,
    pub container_index: u32,
    pub container_mac: Mac,
}

/// The properties of a pair to create.
pub struct NewPair<'a> {
    pub owner: &'a Owner,
    /// The name of the container's end.
    pub ifname: &'a IfName,
    /// In bytes. `None` means the kernel's default.
    pub mtu: Option<u32>,
    /// The MAC address of the container's end. `None` means a random one.
    pub mac: Option<Mac>,
    /// The index of the bridge of which the host end becomes a port.
    pub master: Option<u32>,
}

impl Pair {
    /// Both ends in the result of an ADD, the host's first.
    pub fn interfaces(&self, cx: &Context<'_>, at: &Attachment) -> [Interface; 2] {
        [
            host_link::interface(&self.host.name, Some(self.host_mac), String::new()),
            host_link::interface(&at.ifname, Some(self.container_mac), cx.request.sandbox()),
        ]
    }
}

/// Checks the keys of `bridge` and `veth`: fails if the kernel refuses the MTU, if it is too small for IPv6 and the containers
/// get IPv6 addresses, or if `ipMasqBackend` is unknown.
pub fn validate(cx: &Context<'_>, mtu: Option<u32>, ip_masq_backend: &str) -> Result<()> {
    if !["", "iptables", "nftables"].contains(&ip_masq_backend) {
        let msg = format_args!("unknown ipmasq backend {ip_masq_backend:?}");
        return Err(Error::config(msg).with_details("ipMasqBackend"));
    }
    match mtu {
        Some(mtu) if !mtu::ETHERNET.contains(&mtu) => Err(mtu::invalid(mtu.into(), &mtu::ETHERNET)),
        mtu => mtu::check_ipv6(cx, mtu),
    }
}

/// The configured MAC address of the container's end.
pub fn requested_mac(cx: &Context<'_>) -> Result<Option<Mac>> {
    let requested = conf::requested_mac(&cx.request.json, &cx.request.parameters.args)?;
    let parse =
        |mac: &str| mac.parse().map_err(|error: Error| error.in_front("failed to make veth pair"));
    requested.as_deref().map(parse).transpose()
}

/// Creates both ends in one request, both down; `undo` removes them. The container's end gets its final name in its namespace,
/// so udev and NetworkManager see no temporary name.
pub fn create<'a>(
    cx: &'a Context<'a>,
    netns: &NetNs,
    new: &NewPair<'_>,
    undo: &mut Undo<'a>,
) -> Result<Pair> {
    let host = cx.session.host()?;
    // Choose random MAC addresses here. Those that the kernel chooses need a second request to read, and systemd-udevd changes
    // them.
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
            Ok(end) => {
                let index = end.index;
                undo.push("remove the veth pair", move || host.del_link(index));
                let container_index = end.peer.ok_or_else(|| {
                    Error::internal(format_args!(
                        "cannot find the peer of {name}: IFLA_LINK is missing"
                    ))
                })?;
                return Ok(Pair { host: end, host_mac, container_index, container_mac });
            }
            Err(error) if error.is_exists() => {}
            Err(error) => return Err(error.into()),
        }
        if cx.session.container()?.link(new.ifname)?.is_some() {
            return Err(Error::internal(format_args!(
                "container veth name ({:?}) peer provided ({name:?}) already exists",
                &**new.ifname
            )));
        }
        name = format!("veth{:08x}", u32::from_be_bytes(sys::random_bytes()?));
    }
    Err(Error::internal(format_args!(
        "cannot create interface {}: no name for the host end is free",
        new.ifname
    )))
}

/// Brings the container's end up.
pub fn bring_up(cx: &Context<'_>, pair: &Pair, ifname: &IfName) -> Result<()> {
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    cx.session.container()?.change_link(pair.container_index, ifname, &up)
}

/// The name of the host end. It looks like the random names of the reference, but depends on the owner only, so DEL finds the
/// link with one request.
pub fn host_name(owner: &Owner) -> String {
    format!("veth{}", owner.short())
}

/// A random MAC address: unicast and locally administered.
pub fn random_mac() -> Result<Mac> {
    let mut bytes: [u8; 6] = sys::random_bytes()?;
    bytes[0] = bytes[0] & 0xfc | 0x02;
    Ok(Mac(bytes))
}

/// DEL and GC of a plugin that makes veth pairs, nf_tables rules and addresses.
///
/// First the pair goes down, so no packet of the container leaves the host without its rules. Then the rules are deleted,
/// and then the pair: the kernel frees the rules and the link at the same time, so there is one wait for both.
pub fn clean(
    cx: &Context<'_>,
    scope: Scope<'_>,
    netns: Option<&NetNs>,
    owners: &Owners,
) -> Result<()> {
    let stale = owners.clone();
    let result = scope.one().map_or_else(Success::default, |_| cx.prev_result_of_del());
    let addresses: Vec<IpAddr> = result.nets().iter().map(IpNet::addr).collect();
    cx.defer(move |nft, batch| Rules::remove(nft, batch, &stale, &addresses), || Ok(()));
    interface::release(cx, scope, &|| {
        let mut failures = Failures::default();
        let host = cx.session.host()?;
        let links = failures.note(find(cx, netns, owners, &result));
        let take_down = || {
            let mut batch = Batch::new();
            links.iter().for_each(|link| batch.take_down(link.index, &link.name));
            host.commit(batch)
        };
        failures.note(cx.session.commit_after(&take_down));
        failures.note(cx.session.delete_links(links));
        failures.into_result()
    })
}

/// The host ends of the owners' pairs that still exist.
fn find(
    cx: &Context<'_>,
    netns: Option<&NetNs>,
    owners: &Owners,
    result: &Success,
) -> Result<Vec<Link>> {
    let host = cx.session.host()?;
    let Some((at, owner)) = owners.one() else {
        return host_link::all_of(host, VETH, owners);
    };
    let usual = host_name(owner);
    let mut names = vec![&*usual];
    // The link of the result has another name if the usual one was taken at ADD, perhaps by an earlier pair of this owner.
    let listed = result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    let listed = listed.map(|interface| &*interface.name);
    names.extend(listed.filter(|name| is_host_end(name) && *name != usual));
    let mut links = Vec::new();
    for name in names {
        links.extend(host.link(name)?.filter(|link| host_link::is_of(link, owners)));
    }
    if !links.is_empty() {
        return Ok(links);
    }
    // No link of the owner has one of these names: the reference made the pair, or the result is not known.
    let Some(_) = netns else { return host_link::all_of(host, VETH, owners) };
    let Some(link) = cx.session.container()?.link(&at.ifname)? else { return Ok(Vec::new()) };
    let is_of_another = |link: &Link| host_link::is_of_another(link, owner);
    if link.kind.as_deref() != Some(VETH) || either_end(host, &link, is_of_another)? {
        // Another network or plugin made the interface, or the path now leads to the namespace of another container.
        return Ok(Vec::new());
    }
    let end = peer(host, &link)?;
    let can_be_ours = |end: &Link| is_host_end(&end.name) || host_link::is_of(end, owners);
    if !end.as_ref().is_some_and(can_be_ours) && is_unfinished(cx, at) {
        // The ADD that was killed would have made a pair with such an end on the host, so this is a pair of others.
        return Ok(Vec::new());
    }
    match end {
        Some(end) => Ok(vec![end]),
        None => {
            // The peer is not on the host: delete the pair through the container's end.
            cx.session.container()?.del_link(link.index)?;
            Ok(Vec::new())
        }
    }
}

/// Whether the record is that of an ADD of this executable which did not end.
fn is_unfinished(cx: &Context<'_>, at: &Attachment) -> bool {
    let record = cx.session.record(&cx.request.network, at).ok().flatten();
    record.is_some_and(|record| record.maker.makes_interfaces() && record.made.is_empty())
}

/// Whether `create` can have chosen the name for the host's end.
fn is_host_end(name: &str) -> bool {
    name.starts_with("veth")
}

/// The peer of a link, if the link is a veth and its peer is on the host.
pub fn peer(host: &Rtnl, link: &Link) -> Result<Option<Link>> {
    let (Some(VETH), Some(index)) = (link.kind.as_deref(), link.peer) else {
        return Ok(None);
    };
    // Each namespace has its own indexes. If the peer is not on the host, an unrelated link of the host can have its index.
    let is_peer = |peer: &Link| peer.kind.as_deref() == Some(VETH) && peer.peer == Some(link.index);
    Ok(host.link_at(index)?.filter(is_peer))
}

/// Whether `holds` is true for the link of a container or for its peer on the host.
pub fn either_end(host: &Rtnl, link: &Link, holds: impl Fn(&Link) -> bool) -> Result<bool> {
    Ok(holds(link) || peer(host, link)?.is_some_and(|peer| holds(&peer)))
}

/// For CHECK: fails if an end of the pair does not have the configured MTU. On the container's end `tuning` may have set a
/// smaller MTU. A larger MTU is an error, because the host end drops larger packets.
pub fn check_mtu(
    at: &Attachment,
    host_end: &Link,
    container: &Link,
    wanted: Option<u32>,
) -> Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let is_tuned = container.mtu < wanted && tuned::has_mtu(at)?;
    for (link, may_differ) in [(host_end, false), (container, is_tuned)] {
        let (name, mtu) = (&link.name, link.mtu);
        if mtu != wanted && !may_differ {
            let msg = format_args!("interface {name} has mtu {mtu}, not {wanted}");
            return Err(Error::internal(msg));
        }
    }
    Ok(())
}

/// The host end of the container's interface. Fails if the host end is down or does not exist.
pub fn host_end(host: &Rtnl, container: &Link, ifname: &IfName) -> Result<Link> {
    find_host_end(host, container)?.ok_or_else(|| no_host_end(ifname))
}

/// The host end of a living attachment. If the container renamed its interface, finds the link of the result whose alias names
/// the owner. Fails if the host end is down or does not exist.
pub fn host_end_of(cx: &Context<'_>, at: &Attachment, result: &Success) -> Result<Link> {
    let host = cx.session.host()?;
    let owner = Owner::new(&cx.request.network, at);
    let mut found = match cx.session.container()?.link(&at.ifname)? {
        Some(link) => peer(host, &link)?.filter(|end| !host_link::is_of_another(end, &owner)),
        None => None,
    };
    for interface in result.interfaces.iter().filter(|interface| interface.sandbox.is_empty()) {
        if found.is_none() {
            let names_owner = |link: &Link| link.alias == Some(owner.alias());
            found = host.link(&interface.name)?.filter(names_owner);
        }
    }
    require_up(found.ok_or_else(|| no_host_end(&at.ifname))?, &at.ifname)
}

/// The host end of the container's interface, if it exists. Fails if the interface is not a veth, or if the host end is
/// down.
pub fn find_host_end(host: &Rtnl, container: &Link) -> Result<Option<Link>> {
    let ifname = &container.name;
    if container.kind.as_deref() != Some(VETH) {
        return Err(Error::internal(format_args!("interface {ifname} is not a veth")));
    }
    peer(host, container)?.map(|end| require_up(end, ifname)).transpose()
}

fn no_host_end(ifname: &str) -> Error {
    Error::internal(format_args!("the host end of interface {ifname} was not found"))
}

/// The host end of an interface. Fails if it is down.
fn require_up(end: Link, ifname: &str) -> Result<Link> {
    if end.up {
        return Ok(end);
    }
    let name = &end.name;
    Err(Error::internal(format_args!("interface {name}, the host end of {ifname}, is down")))
}
