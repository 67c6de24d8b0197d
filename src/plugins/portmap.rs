//! `portmap`: publishes ports of a container on the host.
//!
//! ```json
//! { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `backend` | string | any | `iptables` or `nftables`. Both give the same nf_tables rules. Keys of the other backend are then refused. |
//! | `snat` | boolean | true | Packets from the subnet of the container and from 127.0.0.1 get the host's address as source, so that replies return through the host. |
//! | `masqAll` | boolean | false | With `snat`, all packets to published ports get the host's address as source. |
//! | `markMasqBit` | integer | none | Checked (0 to 31), and served by masquerading without a mark. Not with `externalSetMarkChain`. |
//! | `externalSetMarkChain` | string | none | Checked, and served by masquerading without a mark. |
//! | `conditionsV4` | list of strings | none | Further conditions on IPv4 packets: arguments of iptables (`["!", "-s", "10.0.0.0/8"]`) or parts of an nft rule (`["iifname eth0"]`). An unknown condition is an error. |
//! | `conditionsV6` | list of strings | none | The same for IPv6 packets. |
//! | `runtimeConfig.portMappings` | list of objects | none | Ports to publish (capability `portMappings`). |
//! | `runtimeConfig.portMappings[].hostPort` | integer | required | Port on the host, 1 to 65535. |
//! | `runtimeConfig.portMappings[].containerPort` | integer | required | Port in the container, 1 to 65535. |
//! | `runtimeConfig.portMappings[].protocol` | string | `tcp` | `tcp`, `udp` or `sctp`, in upper or lower case. |
//! | `runtimeConfig.portMappings[].hostIP` | string | all addresses | Address of the host. `0.0.0.0` and `::` mean all addresses of one family. |
//!
//! The plugin follows one that made an interface. It uses the first address of the container in each family; a port
//! for a family without an address is not published. ADD refuses a port that another container has at the same
//! address, and names that container. Two attachments may have the same port if their conditions differ: the later ADD
//! wins where both match. A container in several networks may publish a port in each of them.
//!
//! Only packets to addresses of the host are translated. A published port answers to other hosts, to the host under
//! all of its addresses, to the container itself and to its neighbours. A container reaches itself only if its link
//! sends frames back: on a bridge this needs `hairpinMode`, unless `net.bridge.bridge-nf-call-iptables` is 0. `::1` is
//! not translated, because the kernel has no `route_localnet` for IPv6.
//!
//! - **ADD** adds the elements for all ports in one transaction, and replaces those of an earlier ADD of the
//!   attachment. With `snat` it enables `route_localnet` on the link to the container, for 127.0.0.1; a rule drops
//!   packets to 127.0.0.0/8 that arrive on any interface but `lo` (CVE-2020-8558). It deletes old UDP connections to
//!   the ports from conntrack.
//! - **CHECK** compares the elements and shared rules with the configuration.
//! - **DEL** removes the elements of the attachment and its UDP connections. It needs neither ports, `prevResult` nor
//!   namespace. It also removes the rules of the Go plugin for the attachment. Empty maps and `route_localnet` stay.
//! - **GC** does the same for all attachments that are not valid.
//! - **STATUS** fails if the kernel lacks nf_tables, NAT, masquerading, `fib` or conntrack in a family that it has.

mod attachment;
mod conditions;
mod config;
mod ruleset;
mod skeleton;
mod withdrawal;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;

use crate::cni::success::Success;
use crate::compat::rules;
use crate::error::{Error, Result};
use crate::kernel::conntrack::{Conntrack, Flows};
use crate::kernel::netns::NetNs;
use crate::kernel::nft::{Batch, Family, Feature, Nft, Transport};
use crate::kernel::rtnl::{Link, Rtnl};
use crate::kernel::sysctl;
use crate::names::{Attachment, IpFamily};
use crate::plugin::owner::{Owner, Owners};
use crate::plugin::{Context, Plugin, Scope};
use crate::steps::flow::chained;
use crate::steps::flow::undo::Undo;
use attachment::Publication;
pub use config::Portmap;
use config::{HostIp, Settings, Source};
use ruleset::Side;
use withdrawal::Withdrawal;

/// The reference's message.
const WITHOUT_RESULT: &str = "must be called as chained plugin";

impl Plugin for Portmap {
    const UNREADABLE: &'static str = "failed to parse network configuration";

    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        chained::prev_result(cx, WITHOUT_RESULT)?;
        self.settings().map(drop).map_err(|error| error.in_front("failed to parse config"))
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<Success> {
        let success = chained::prev_result(cx, WITHOUT_RESULT)?;
        let settings = self.settings().map_err(|error| error.in_front("failed to parse config"))?;
        let owner = Owner::new(&cx.request.network, at);
        let owners = Owners::of(cx, Scope::One(at));
        let publications = publications(at, &success, &settings, &owner);
        if publications.is_empty() {
            // What an earlier ADD published goes all the same.
            withdraw_now(cx, &owners, &settings)?;
            return Ok(success);
        }
        let nft = cx.session.nft()?;
        let mut undo = Undo::new(cx);
        publish(nft, &owner, &owners, &settings, &publications)?;
        undo.push("take the published ports back", || withdraw_now(cx, &owners, &settings));
        if settings.source != Source::Kept {
            let host = cx.session.host()?;
            publications.iter().try_for_each(|publication| allow_loopback(host, publication))?;
        }
        // The ports are published all the same. A connection from before is translated after its next pause.
        if let Err(error) = forget_untranslated(cx, &publications) {
            cx.warn(error);
        }
        undo.keep();
        Ok(success)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        let result = cx.request.required_prev_result()?;
        let settings = self.settings()?;
        let owner = Owner::new(&cx.request.network, at);
        let publications = publications(at, &result, &settings, &owner);
        if publications.is_empty() {
            return Ok(());
        }
        let nft = cx.session.nft()?;
        publications.iter().try_for_each(|publication| publication.check(nft))?;
        if settings.source == Source::Kept {
            return Ok(());
        }
        let host = cx.session.host()?;
        publications.iter().try_for_each(|publication| check_loopback(host, publication))
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, _: Option<&NetNs>) -> Result<()> {
        let addresses = scope.one().map_or_else(Vec::new, |at| {
            let result = chained::prev_result_of_del(cx);
            let address = |side| container_address(side, at, &result);
            Side::BOTH.into_iter().filter_map(address).map(|net| net.addr()).collect()
        });
        withdraw_later(cx, Owners::of(cx, scope), self.settings().ok(), addresses);
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
            missing => Err(Error::internal(format!(
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

/// A host without IPv6 needs no IPv6 rules.
fn is_present(family: Family) -> bool {
    family != Family::Ip6 || sysctl::exists("net/ipv6")
}

/// The port bindings, one for each family with a port to publish.
fn publications<'a>(
    at: &Attachment,
    result: &Success,
    settings: &'a Settings,
    owner: &'a Owner,
) -> Vec<Publication<'a>> {
    let in_side = |side| {
        let address = container_address(side, at, result)?;
        let publication = Publication::new(side, owner, address, settings);
        (!publication.is_empty()).then_some(publication)
    };
    Side::BOTH.into_iter().filter_map(in_side).collect()
}

/// The first address of the family on the container's interface. An address without an interface in the result counts as
/// one of this interface.
fn container_address(side: Side, at: &Attachment, result: &Success) -> Option<IpNet> {
    let is_ours = |index: Option<u32>| {
        let interface = index.and_then(|index| result.interfaces.get(index as usize));
        interface.is_none_or(|it| it.name == *at.ifname && !it.sandbox.is_empty())
    };
    let ips = result.ips.iter().filter(|ip| side.has(ip.address.addr()));
    ips.filter(|ip| is_ours(ip.interface)).map(|ip| ip.address).next()
}

/// Publishes in both families in one transaction, and replaces what the attachment published before.
fn publish(
    nft: &Nft,
    owner: &Owner,
    owners: &Owners,
    settings: &Settings,
    publications: &[Publication<'_>],
) -> Result<()> {
    let of_side = |side| publications.iter().find(move |publication| publication.side == side);
    nft.transact(|nft, batch| {
        for side in Side::BOTH {
            let publication = of_side(side);
            let found = publication.map(|publication| publication.look(nft)).transpose()?;
            let mut found = found.unwrap_or_default();
            let publication = publication.map(|publication| publication.placed(&found));
            let in_use = publication.as_ref().map(|publication| &publication.group);
            let withdrawal = Withdrawal { nft, side, owners, settings: Some(settings), in_use };
            if found.is_own || withdrawal.is_registered(owner)? {
                found.shared.extend(withdrawal.withdraw(batch)?.shared);
            }
            if let Some(publication) = publication {
                publication.publish(nft, batch, &found)?;
            }
        }
        Ok(())
    })
}

/// Removes what the owners published and what the reference's plugin left, and then the connections to it, at the end of
/// the session or before.
fn withdraw_later(
    cx: &Context<'_>,
    owners: Owners,
    settings: Option<Settings>,
    addresses: Vec<IpAddr>,
) {
    let flows = Rc::new(RefCell::new(Vec::new()));
    let found = Rc::clone(&flows);
    let build = move |nft: &Nft, batch: &mut Batch| {
        *found.borrow_mut() = withdraw(nft, batch, &owners, settings.as_ref())?;
        rules::remove_portmap(nft, batch, &owners, &addresses)
    };
    cx.later(build, move || forget(&flows.take()));
}

/// Removes what an attachment published, for an ADD that fails or publishes nothing any more.
fn withdraw_now(cx: &Context<'_>, owners: &Owners, settings: &Settings) -> Result<()> {
    match cx.session.nft_if_supported()? {
        Some(nft) => {
            nft.transact(|nft, batch| withdraw(nft, batch, owners, Some(settings)).map(drop))
        }
        None => Ok(()),
    }
}

/// Returns the connections that were translated and must not be any longer.
fn withdraw(
    nft: &Nft,
    batch: &mut Batch,
    owners: &Owners,
    settings: Option<&Settings>,
) -> Result<Vec<Flows>> {
    let mut flows = Vec::new();
    for side in Side::BOTH {
        let withdrawal = Withdrawal { nft, side, owners, settings, in_use: None };
        flows.extend(withdrawal.withdraw(batch)?.flows);
    }
    Ok(flows)
}

/// Enables `route_localnet` on the link to the container, for packets from 127.0.0.1. The rule that drops such packets from
/// other links exists by then.
fn allow_loopback(host: &Rtnl, publication: &Publication<'_>) -> Result<()> {
    match link_to_container(host, publication)? {
        Some(link) => sysctl::set(&route_localnet(&link.name), "1").map(drop),
        None => Ok(()),
    }
}

/// For CHECK. The kernel takes it for on where it is on for all links.
fn check_loopback(host: &Rtnl, publication: &Publication<'_>) -> Result<()> {
    let Some(Link { name, .. }) = link_to_container(host, publication)? else { return Ok(()) };
    let value = |link: &str| sysctl::get(&route_localnet(link));
    if [value(&name)?, value("all")?].iter().all(|value| value.as_deref() == Some("0")) {
        let msg =
            format!("127.0.0.1 does not lead to the container: route_localnet of {name} is 0");
        return Err(Error::internal(msg));
    }
    Ok(())
}

fn route_localnet(link: &str) -> String {
    sysctl::of_link(IpFamily::V4, link, "route_localnet")
}

/// The link by which the host reaches a container under its IPv4 address.
fn link_to_container(host: &Rtnl, publication: &Publication<'_>) -> Result<Option<Link>> {
    if !publication.side.has(ruleset::loopback().addr()) {
        return Ok(None);
    }
    let index = host.link_towards(publication.address.addr())?;
    index.map_or(Ok(None), |index| host.link_at(index))
}

/// Deletes UDP connections to a port from before it was published. The kernel would not translate them as long as packets
/// keep coming.
fn forget_untranslated(cx: &Context<'_>, publications: &[Publication<'_>]) -> Result<()> {
    let mut flows = Vec::new();
    let mut own: Option<BTreeSet<IpAddr>> = None;
    for publication in publications {
        let side = publication.side;
        let family = if side.family() == Family::Ip { IpFamily::V4 } else { IpFamily::V6 };
        for mapping in publication.mappings().filter(|it| it.transport == Transport::Udp) {
            let to_port = Flows::to_port(family, Transport::Udp, mapping.host_port);
            match mapping.host_ip {
                HostIp::One(ip) => flows.push(to_port.at(ip)),
                // Connections through the host to others' same port are none of ours.
                HostIp::Any | HostIp::AnyOf(_) => {
                    if own.is_none() {
                        own = Some(cx.session.host()?.all_addresses()?.into_iter().collect());
                    }
                    let own = own.iter().flatten().filter(|ip| side.has(**ip));
                    flows.extend(own.map(|ip| to_port.at(*ip)));
                }
            }
        }
    }
    forget(&flows)
}

fn forget(flows: &[Flows]) -> Result<()> {
    if flows.is_empty() { Ok(()) } else { Conntrack::open()?.delete(flows) }
}
