//! `portmap`: publishes ports of a container on the host.
//!
//! ```json
//! { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `backend` | string | any | `iptables` or `nftables`. Both give the same nf_tables rules. Keys of the other backend are then refused. |
//! | `snat` | boolean | true | Packets from the subnet of the container and from 127.0.0.1 get the host's address as source, so that replies return through the host. Without it, 127.0.0.1 leads to the host itself. |
//! | `masqAll` | boolean | false | With `snat`, all packets to published ports get the host's address as source. |
//! | `markMasqBit` | integer | 13 | The bit (0 to 31) of the packet mark that marks packets whose source is to be replaced. Not with `externalSetMarkChain`. |
//! | `externalSetMarkChain` | string | none | Checked; the rules of cnibox replace the source, with bit 13, and do not use the chain of iptables. |
//! | `conditionsV4` | list of strings | none | Further conditions on IPv4 packets: arguments of iptables (`["!", "-s", "10.0.0.0/8"]`) or parts of an nft rule (`["iifname eth0"]`). An unknown condition is an error. |
//! | `conditionsV6` | list of strings | none | The same for IPv6 packets. |
//! | `runtimeConfig.portMappings` | list of objects | none | Ports to publish (capability `portMappings`). |
//! | `runtimeConfig.portMappings[].hostPort` | integer | required | Port on the host, 1 to 65535. |
//! | `runtimeConfig.portMappings[].containerPort` | integer | required | Port in the container, 1 to 65535. |
//! | `runtimeConfig.portMappings[].protocol` | string | `tcp` | `tcp`, `udp` or `sctp`, in upper or lower case. |
//! | `runtimeConfig.portMappings[].hostIP` | string | all addresses | Address of the host. `0.0.0.0` and `::` mean all addresses of one family. Not `::1`, nor a link-local IPv6, multicast or broadcast address; not 127.0.0.1 without `snat`. |
//!
//! The plugin follows a plugin that created an interface. It uses the first address of the container in each family; a port for
//! a family without an address is not published. ADD refuses a port that another container has at the same address, and names
//! that container. If that container has ended, also if it ended with an earlier boot and its ruleset was restored, ADD removes
//! all ports that it published. If it is unknown whether the container has ended, the error names the command that removes its
//! ports. Two attachments may have the same port if their conditions differ: the later ADD wins where both match. A container
//! in several networks may publish a port in each of them.
//!
//! Only packets to addresses of the host are translated. A published port answers to other hosts, to the host under
//! all of its addresses, to the container itself and to its neighbours. A container reaches itself only if its link
//! sends frames back: on a bridge this needs `hairpinMode`, unless `net.bridge.bridge-nf-call-iptables` is 0. Packets from and
//! to `::1` and fe80::/10 are not translated, because the kernel does not forward them: they reach the host itself.
//!
//! The rules come behind the rules of the administrator, of iptables and of firewalld: cnibox does not translate a port or a
//! source address that those rules translate. The source is replaced only in packets that the rules of cnibox have sent to a
//! container; a packet that another program sent to a container, for example from a ClusterIP, keeps its source. A packet whose
//! source is to be replaced has the bit of `markMasqBit` in its mark, and other packets to addresses of the host lose that bit.
//!
//! - **ADD** adds the elements for all ports in one transaction, and replaces those of an earlier ADD of the attachment. With
//!   `snat` it enables `route_localnet` on the link to the container, for 127.0.0.1; a rule drops packets to 127.0.0.0/8 that
//!   arrive on such a link (CVE-2020-8558). It deletes old UDP connections to the ports from conntrack. A port that the Go
//!   plugin has published for another container is refused, because the rules of the Go plugin come first. The error names the
//!   command that removes these rules if that container has ended.
//! - **CHECK** compares the elements and shared rules with the configuration.
//! - **DEL** removes the elements of the attachment and its UDP connections. It needs neither ports, `prevResult` nor
//!   namespace. It also removes the rules of the Go plugin for the attachment. Empty maps and `route_localnet` stay.
//! - **GC** does the same for all attachments that are not valid. It also closes 127.0.0.0/8 again on links to containers that
//!   were renamed, or whose element was lost in a flush of all rules.
//! - **STATUS** fails if the kernel lacks nf_tables, NAT, masquerading, `fib` or conntrack in a family that it has.

mod bindings;
mod conditions;
mod config;
mod removal;
pub mod return_path;
mod rules;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;

use crate::cni::success::Success;
use crate::compat::rules as rules_of_reference;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sysctl;
use crate::names::{Attachment, IfName, IpFamily};
use crate::netlink::conntrack::{Conntrack, FlowFilter};
use crate::netlink::nft::{Batch, Family, Feature, Nft, Transport};
use crate::netlink::rtnl::{Link, Rtnl};
use crate::plugin::life;
use crate::plugin::owner::{Owner, Owners};
use crate::plugin::restore::Parts;
use crate::plugin::{Context, Facts, Plugin, Scope};
use crate::steps::flow::undo::Undo;
use crate::steps::link::chained;
use crate::steps::nft::localnet;
use bindings::{PortBindings, title};
pub use config::Portmap;
use config::{HostIp, Settings, Snat};
use removal::Removal;

pub const FACTS: Facts = Facts { leaves_owned: true, probes: &[("", "")], ..Facts::NONE };

/// The error text of the reference for a call without `prevResult`.
const WITHOUT_RESULT: &str = "must be called as chained plugin";

impl Plugin for Portmap {
    fn unreadable(&self) -> &'static str {
        "failed to parse network configuration"
    }

    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        chained::prev_result(cx, WITHOUT_RESULT)?;
        self.settings().map(drop).map_err(|error| error.in_front("failed to parse config"))
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let success = chained::prev_result(cx, WITHOUT_RESULT)?;
        let settings = self.settings().map_err(|error| error.in_front("failed to parse config"))?;
        let owner = Owner::new(&cx.request.network, at);
        let owners = Owners::of(cx, Scope::One(at));
        let bindings = bindings(at, &success, &settings, &owner);
        if bindings.is_empty() {
            // An earlier ADD of the attachment may have published ports.
            remove_now(cx, &owners, &settings)?;
            return Ok(success);
        }
        let nft = cx.session.nft()?;
        replace_reference_rules(cx, at, nft, &bindings)?;
        let covered = links_to_cover(cx, nft, &settings, &bindings)?;
        let mut undo = Undo::new(cx);
        let published = publish(cx, nft, (&owner, &owners), &settings, &bindings, &covered);
        if published.is_ok() || nft.is_partial() {
            undo.push("remove the port bindings", || remove_now(cx, &owners, &settings));
        }
        published?;
        if settings.snat != Snat::Off {
            let host = cx.session.host()?;
            bindings.iter().try_for_each(|bindings| allow_loopback(host, bindings))?;
        }
        // An error is only a warning: the ports are published, and the kernel translates an older UDP connection after a pause
        // in its packets.
        if let Err(error) = delete_untranslated(cx, &bindings) {
            cx.warn(error);
        }
        undo.keep();
        warn_of_return_path(cx, at, netns, &settings, &bindings);
        Ok(success)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        let result = cx.request.required_prev_result()?;
        let settings = self.settings()?;
        let owner = Owner::new(&cx.request.network, at);
        let bindings = bindings(at, &result, &settings, &owner);
        if bindings.is_empty() {
            return Ok(());
        }
        let nft = cx.session.nft()?;
        check_published(cx, at, nft, &bindings)?;
        if settings.snat == Snat::Off {
            return Ok(());
        }
        let host = cx.session.host()?;
        bindings.iter().try_for_each(|bindings| check_loopback(host, nft, bindings))
    }

    /// Restores elements, rules and `route_localnet`. Connections to the container stay.
    #[cfg(feature = "tool")]
    fn restore(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        let result = cx.request.required_prev_result()?;
        let settings = self.settings()?;
        let owner = Owner::new(&cx.request.network, at);
        let owners = Owners::of(cx, Scope::One(at));
        let bindings = bindings(at, &result, &settings, &owner);
        if bindings.is_empty() {
            return Ok(());
        }
        let nft = cx.session.nft()?;
        let covered = links_to_cover(cx, nft, &settings, &bindings)?;
        let publish = || publish(cx, nft, (&owner, &owners), &settings, &bindings, &covered);
        parts.ensure(&|| check_published(cx, at, nft, &bindings), &mut || {
            publish()?;
            delete_answered_by_host(cx, &bindings)
        });
        if settings.snat == Snat::Off {
            return Ok(());
        }
        let host = cx.session.host()?;
        for bindings in &bindings {
            // If the route to the container is missing, the host routes its address to an uplink, which must not get
            // `route_localnet`.
            let is_in_result = |link: &Link| {
                result.interfaces.is_empty() || result.interface_index(&link.name, "").is_some()
            };
            if link_to_container(host, bindings)?.is_some_and(|link| is_in_result(&link)) {
                parts.ensure(&|| check_loopback(host, nft, bindings), &mut || {
                    publish()?;
                    allow_loopback(host, bindings)
                });
            }
        }
        Ok(())
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, _: Option<&NetNs>) -> Result<()> {
        let addresses = scope.one().map_or_else(Vec::new, |at| {
            let result = cx.prev_result_of_del();
            let address = |family| container_address(family, at, &result);
            IpFamily::ALL.into_iter().filter_map(address).map(|net| net.addr()).collect()
        });
        remove_later(cx, Owners::of(cx, scope), self.settings().ok(), addresses);
        Ok(())
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        self.settings()?;
        let missing = cx.session.nft().and_then(|nft| {
            let all = [Family::Ip, Family::Ip6].into_iter().filter(|family| is_present(*family));
            let features: Vec<(Family, Feature)> =
                all.flat_map(|family| FEATURES.map(|feature| (family, feature))).collect();
            Ok(nft.missing(&features)?)
        });
        match missing.map_err(Error::into_not_available)?.as_slice() {
            [] => Ok(()),
            missing => Err(Error::internal(format_args!(
                "cannot publish ports: the kernel lacks {}",
                missing.join(", ")
            ))
            .into_not_available()),
        }
    }
}

/// The kernel features that the rules need.
const FEATURES: [Feature; 5] =
    [Feature::Tables, Feature::Nat, Feature::Masquerade, Feature::Fib, Feature::Conntrack];

/// Whether the host has the address family. A host without IPv6 needs no IPv6 rules.
fn is_present(family: Family) -> bool {
    family != Family::Ip6 || sysctl::exists("net/ipv6")
}

/// The port bindings of each family that has a port to publish.
fn bindings<'a>(
    at: &Attachment,
    result: &Success,
    settings: &'a Settings,
    owner: &'a Owner,
) -> Vec<PortBindings<'a>> {
    let of_family = |family| {
        let address = container_address(family, at, result)?;
        let bindings = PortBindings::new(family, owner, address, settings);
        (!bindings.is_empty()).then_some(bindings)
    };
    IpFamily::ALL.into_iter().filter_map(of_family).collect()
}

/// The first address of the family on the container's interface. An address without an interface in the result counts as
/// an address of this interface.
fn container_address(family: IpFamily, at: &Attachment, result: &Success) -> Option<IpNet> {
    let is_ours = |index: Option<u32>| {
        let interface = index.and_then(|index| result.interfaces.get(index as usize));
        interface
            .is_none_or(|interface| interface.name == *at.ifname && !interface.sandbox.is_empty())
    };
    let ips = result.ips.iter().filter(|ip| family.has(ip.address.addr()));
    ips.filter(|ip| is_ours(ip.interface)).map(|ip| ip.address).next()
}

/// Publishes the ports. On an error, removes the ports of containers that have ended, and tries once more.
fn publish(
    cx: &Context<'_>,
    nft: &Nft,
    owners: (&Owner, &Owners),
    settings: &Settings,
    all: &[PortBindings<'_>],
    covered: &[IfName],
) -> Result<()> {
    match publish_once(nft, owners, settings, all, covered) {
        Err(_) if remove_ended(cx, nft, all)? => publish_once(nft, owners, settings, all, covered),
        published => published,
    }
}

/// Publishes the ports of both families in one transaction, and replaces the port bindings of an earlier ADD.
fn publish_once(
    nft: &Nft,
    (owner, owners): (&Owner, &Owners),
    settings: &Settings,
    all: &[PortBindings<'_>],
    covered: &[IfName],
) -> Result<()> {
    nft.transact(|nft, batch| {
        for family in IpFamily::ALL {
            let bindings = all.iter().find(|bindings| bindings.family == family);
            let existing = bindings.map(|bindings| bindings.read_existing(nft)).transpose()?;
            let mut existing = existing.unwrap_or_default();
            let bindings = bindings.map(|bindings| bindings.in_group_for(&existing));
            let kept_group = bindings.as_ref().map(|bindings| &bindings.group);
            let removal = Removal { nft, family, owners, settings: Some(settings), kept_group };
            existing.is_published |= removal.is_registered(owner)?;
            if existing.is_published {
                existing.shared.extend(removal.remove(batch)?.shared);
            }
            if let Some(bindings) = bindings {
                bindings.publish(nft, batch, &existing)?;
            }
        }
        localnet::add_links(batch, covered);
        Ok(())
    })
}

/// The links on which packets to 127.0.0.0/8 must be dropped: the link to the container, which gets `route_localnet`, and
/// other links with `route_localnet` that no rule protects yet.
fn links_to_cover(
    cx: &Context<'_>,
    nft: &Nft,
    settings: &Settings,
    all: &[PortBindings<'_>],
) -> Result<Vec<IfName>> {
    let of_v4 = all.iter().find(|bindings| bindings.family == IpFamily::V4);
    let Some(bindings) = of_v4.filter(|_| settings.snat != Snat::Off) else {
        return Ok(Vec::new());
    };
    let host = cx.session.host()?;
    let mut links = localnet::links_to_add(nft, host)?;
    if let Some(link) = link_to_container(host, bindings)? {
        links.push(IfName::new(link.name.as_str())?);
    }
    links.sort_unstable();
    links.dedup();
    Ok(links)
}

/// Warns if other hosts will get no reply from the published ports. It is not an error, because `sbr` can follow in the chain.
fn warn_of_return_path(
    cx: &Context<'_>,
    at: &Attachment,
    netns: &NetNs,
    settings: &Settings,
    all: &[PortBindings<'_>],
) {
    let v4 = all.iter().find(|bindings| bindings.family == IpFamily::V4);
    let (Some(v4), true) = (v4, settings.snat != Snat::All) else { return };
    let fault = cx
        .session
        .host()
        .and_then(|host| return_path::fault_of_address(host, netns, at, v4.address.addr()));
    match fault {
        Ok(None) => {}
        Ok(Some(fault)) => {
            let network = &cx.request.network;
            cx.warn(format!("{fault}; add the plugin sbr to network {network} if it has none"));
        }
        Err(error) => cx.warn(error),
    }
}

/// Removes all ports of each container that has ended without a DEL and that publishes a host port of `all`. Returns whether
/// there was such a container.
fn remove_ended(cx: &Context<'_>, nft: &Nft, all: &[PortBindings<'_>]) -> Result<bool> {
    let mut owners = BTreeSet::new();
    for bindings in all {
        owners.extend(bindings.conflicting_owners(nft)?);
    }
    owners.retain(|owner| life::has_ended(owner));
    for owner in &owners {
        let mut flows = Vec::new();
        nft.transact(|nft, batch| {
            // A new container can have the same owner name by now. Its ADD writes the record before the rules; if the rules
            // follow during this transaction, the transaction runs again.
            let Some(record) = life::ended(owner) else { return Ok(()) };
            let owners = Owners::in_network(&record.network, Scope::One(&record.at));
            flows = remove(nft, batch, &owners, None)?;
            Ok(())
        })?;
        if let Err(error) = delete_flows(&flows) {
            cx.warn(error);
        }
    }
    Ok(!owners.is_empty())
}

/// Removes the rules of the Go plugin for this attachment. Fails if the Go plugin has published one of the ports for another
/// container: its rules come before those of cnibox, and no record of cnibox proves that such a container has ended.
fn replace_reference_rules(
    cx: &Context<'_>,
    at: &Attachment,
    nft: &Nft,
    all: &[PortBindings<'_>],
) -> Result<()> {
    let network = &cx.request.network;
    let mut has_own = false;
    for bindings in all {
        for (mapping, port) in bindings.published_by_reference(nft)? {
            if port.container_id != *at.container_id {
                let id = &port.container_id;
                let of = port.network.unwrap_or_else(|| network.to_string());
                return Err(Error::internal(format_args!(
                    "cannot publish {}: it is taken by container {id} of the Go plugin portmap, which may have \
                     ended; cnibox gc --unknown {of}/{id}/{} removes its rules",
                    title(mapping),
                    at.ifname
                )));
            }
            has_own |= port.network.as_deref() == Some(&**network);
        }
    }
    if has_own {
        let owners = Owners::in_network(network, Scope::One(at));
        nft.transact(|nft, batch| rules_of_reference::remove_portmap(nft, batch, &owners, &[]))?;
    }
    Ok(())
}

/// Fails if an element or rule of cnibox is missing, unless the Go plugin published the ports.
fn check_published(
    cx: &Context<'_>,
    at: &Attachment,
    nft: &Nft,
    all: &[PortBindings<'_>],
) -> Result<()> {
    for bindings in all {
        if let Err(error) = bindings.check(nft) {
            let table = rules::table(bindings.family);
            let (network, address) = (&cx.request.network, bindings.address.addr());
            if !rules_of_reference::has_portmap(nft, table.family, network, at, address)? {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// When the session commits, removes the port bindings of the owners and the rules of the Go plugin, and then deletes the UDP
/// connections to the removed ports from conntrack.
fn remove_later(
    cx: &Context<'_>,
    owners: Owners,
    settings: Option<Settings>,
    addresses: Vec<IpAddr>,
) {
    let flows = Rc::new(RefCell::new(Vec::new()));
    let found = Rc::clone(&flows);
    let build = move |nft: &Nft, batch: &mut Batch| {
        *found.borrow_mut() = remove(nft, batch, &owners, settings.as_ref())?;
        if owners.one().is_none() {
            localnet::refresh(nft, &Rtnl::open()?, batch)?;
        }
        rules_of_reference::remove_portmap(nft, batch, &owners, &addresses)
    };
    cx.defer(build, move || delete_flows(&flows.take()));
}

/// Removes the port bindings of an attachment, for an ADD that fails or has no ports to publish.
fn remove_now(cx: &Context<'_>, owners: &Owners, settings: &Settings) -> Result<()> {
    match cx.session.nft_if_supported()? {
        Some(nft) => {
            nft.transact(|nft, batch| remove(nft, batch, owners, Some(settings)).map(drop))
        }
        None => Ok(()),
    }
}

/// Adds the deletions of the port bindings to the batch. Returns conntrack filters for the UDP connections to these ports.
fn remove(
    nft: &Nft,
    batch: &mut Batch,
    owners: &Owners,
    settings: Option<&Settings>,
) -> Result<Vec<FlowFilter>> {
    let mut flows = Vec::new();
    for family in IpFamily::ALL {
        let removal = Removal { nft, family, owners, settings, kept_group: None };
        flows.extend(removal.remove(batch)?.flows);
    }
    Ok(flows)
}

/// Enables `route_localnet` on the link to the container, for packets from 127.0.0.1. The rule that drops packets to
/// 127.0.0.0/8 from this link must exist before.
fn allow_loopback(host: &Rtnl, bindings: &PortBindings<'_>) -> Result<()> {
    match link_to_container(host, bindings)? {
        Some(link) => sysctl::set(&localnet::route_localnet(&link.name), "1").map(drop),
        None => Ok(()),
    }
}

/// Fails if `route_localnet` of the link to the container is 0, or if no rule of cnibox drops packets to 127.0.0.0/8 from this
/// link. If `route_localnet` of `all` is 1, the kernel enables it on every link.
fn check_loopback(host: &Rtnl, nft: &Nft, bindings: &PortBindings<'_>) -> Result<()> {
    let Some(link) = link_to_container(host, bindings)? else { return Ok(()) };
    let name = &link.name;
    if bindings.are_registered(nft)? && !localnet::covers(nft, &IfName::new(name.as_str())?)? {
        let msg = format!("127.0.0.0/8 is open to the neighbours on {name}");
        return Err(Error::internal(msg));
    }
    let value = |link: &str| sysctl::get(&localnet::route_localnet(link));
    if [value(name)?, value("all")?].iter().all(|value| value.as_deref() == Some("0")) {
        let msg =
            format!("127.0.0.1 does not lead to the container: route_localnet of {name} is 0");
        return Err(Error::internal(msg));
    }
    Ok(())
}

/// The link of the host's route to the IPv4 address of the container. `None` for IPv6, or without such a route.
fn link_to_container(host: &Rtnl, bindings: &PortBindings<'_>) -> Result<Option<Link>> {
    if bindings.family == IpFamily::V6 {
        return Ok(None);
    }
    let index = host.link_towards(bindings.address.addr())?;
    index.map_or(Ok(None), |index| host.link_at(index))
}

/// Deletes the UDP connections to the published ports from conntrack. The kernel does not translate a connection that is older
/// than the rules while its packets keep coming.
fn delete_untranslated(cx: &Context<'_>, all: &[PortBindings<'_>]) -> Result<()> {
    let to_ports = udp_connections(cx, all)?;
    delete_flows(&to_ports.into_iter().map(|(flows, _)| flows).collect::<Vec<_>>())
}

/// Deletes the UDP connections that began while the rules were missing: the host itself answers them. Connections to the
/// container stay.
fn delete_answered_by_host(cx: &Context<'_>, all: &[PortBindings<'_>]) -> Result<()> {
    let to_ports = udp_connections(cx, all)?;
    let answered = to_ports.into_iter().map(|(flows, host_ip)| flows.answered_by(host_ip));
    delete_flows(&answered.collect::<Vec<_>>())
}

/// A conntrack filter for each published UDP port and each address of the host that it is published on, with that address.
fn udp_connections(
    cx: &Context<'_>,
    all: &[PortBindings<'_>],
) -> Result<Vec<(FlowFilter, IpAddr)>> {
    let mut flows = Vec::new();
    let mut addresses: Option<Vec<IpAddr>> = None;
    for bindings in all {
        let family = bindings.family;
        for mapping in bindings.mappings().filter(|mapping| mapping.transport == Transport::Udp) {
            let to_port = FlowFilter::to_port(family, Transport::Udp, mapping.host_port);
            match mapping.host_ip {
                HostIp::One(ip) => flows.push((to_port.at(ip), ip)),
                // One filter for each address of the host: connections that it forwards to this port of other hosts stay.
                HostIp::Any | HostIp::AnyOf(_) => {
                    if addresses.is_none() {
                        let mut all = cx.session.host()?.all_addresses()?;
                        all.sort_unstable();
                        all.dedup();
                        addresses = Some(all);
                    }
                    let of_family = addresses.iter().flatten().filter(|ip| family.has(**ip));
                    flows.extend(of_family.map(|ip| (to_port.at(*ip), *ip)));
                }
            }
        }
    }
    Ok(flows)
}

fn delete_flows(flows: &[FlowFilter]) -> Result<()> {
    if flows.is_empty() { Ok(()) } else { Conntrack::open()?.delete(flows) }
}
