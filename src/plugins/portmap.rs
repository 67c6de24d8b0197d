//! `portmap`: ports of the host that lead to ports of the container. A chained plugin, after the one that makes the
//! interface.
//!
//! ```json
//! { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true }
//! ```
//!
//! The runtime says which: `"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp",
//! "hostIP": "192.0.2.1"}]}`. Protocols are tcp (also where none is named), udp and sctp, in any case. Without `hostIP`
//! a port is published under all addresses of the host, in both families; `0.0.0.0` and `::` are those of one family; an
//! address of a family that the container has no address of publishes nothing. A port that another container has, under
//! the same address or under all, is refused, and the error says who has it. A container that is in several networks may
//! have a port in each: packets go by one of them, and by another when that is gone.
//!
//! Only what is sent to the host itself is translated; what goes through it to others is left alone. Published ports
//! answer outside, on the host under all of its addresses, in the container itself and at its neighbours. 127.0.0.1
//! works, too: for that `route_localnet` is switched on for the link that leads to the container, and packets to
//! 127.0.0.0/8 from any other interface than `lo` are dropped, since otherwise neighbours could reach what the host offers
//! only to itself (CVE-2020-8558). The kernel has nothing like it for IPv6: `::1` is not translated.
//!
//! | key | meaning |
//! |---|---|
//! | `snat` | default true: what comes from the container's subnet, or from 127.0.0.1, gets the host's address as its source, or else the answers would not find back |
//! | `masqAll` | default false: what comes from anywhere does |
//! | `conditionsV4`, `conditionsV6` | what a packet must be besides, as arguments for iptables (`["!", "-s", "10.0.0.0/8"]`) or as pieces of a rule of nft (`["iifname eth0"]`); what cannot be expressed is refused by name |
//! | `backend` | `iptables`, `nftables` or absent: all are served by nf_tables, through netlink, without any program. Keys that are only for the other one are refused, as in the reference |
//! | `markMasqBit`, `externalSetMarkChain` | ask for packets to be marked so that somebody masquerades them; they are checked, and served by masquerading, without a mark |
//!
//! Two attachments with the same port and different conditions may both have it: where both mean a packet, the one whose
//! conditions came to this host later gets it. A port without conditions can only have one.
//!
//! A container reaches itself by a published port only if its link takes packets back that it sent: on a bridge that is
//! `hairpinMode`, unless `net.bridge.bridge-nf-call-iptables` is 0.
//!
//! DEL removes what the attachment published and forgets the UDP connections to it; it needs neither the ports nor a
//! result nor the namespace. It also removes what the Go plugin made for the attachment. GC does the same for what is not
//! valid. The tables `ip cnibox` and `ip6 cnibox` with their empty maps stay, as does `route_localnet`.

mod attachment;
mod conditions;
mod config;
mod ruleset;
mod skeleton;
mod withdrawal;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::conntrack::{Conntrack, Flows};
use crate::kernel::netns::NetNs;
use crate::kernel::nft::{Family, Feature, Nft, Transport};
use crate::kernel::rtnl::{self, Rtnl};
use crate::kernel::sysctl;
use crate::names::Attachment;
use crate::plugin::{Context, Plugin};
use crate::steps::netfilter::Stale;
use crate::steps::owner::Owner;
use crate::steps::reference;
use crate::steps::undo::{Failures, Undo};
use attachment::Publication;
pub use config::Portmap;
use config::{HostIp, Settings, Source};
use ruleset::Side;
use withdrawal::{Withdrawal, is_registered};

impl Plugin for Portmap {
    fn add(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<Success> {
        let success = cx.request.prev_result()?.ok_or_else(|| {
            Error::config("must be called as chained plugin: required prevResult missing")
        })?;
        let settings = self.settings()?;
        let owner = Owner::new(&cx.request.network, at);
        let publications = publications(at, &success, &settings, &owner);
        if publications.is_empty() {
            return Ok(success);
        }
        let nft = Nft::open()?;
        let mut undo = Undo::default();
        publish(&nft, &owner, &publications)?;
        let (nft, own) = (&nft, &owner);
        undo.push("take the published ports back", move || {
            withdraw(nft, &Stale::Of(own.clone())).map(drop)
        });
        if settings.source != Source::Kept {
            publications.iter().try_for_each(allow_loopback)?;
        }
        // The ports are published all the same, only for those who used them before it takes until their pause.
        if let Err(error) = forget_untranslated(&publications) {
            eprintln!("portmap: {error}");
        }
        undo.keep();
        Ok(success)
    }

    fn del(&self, cx: &Context<'_>, at: &Attachment, _: Option<&NetNs>) -> Result<()> {
        let network = &cx.request.network;
        let mut failures = Failures::default();
        failures.note(withdraw_if_supported(&Stale::Of(Owner::new(network, at))));
        // A result that cannot be read is no reason to leave anything.
        let result = cx.request.prev_result().unwrap_or_default().unwrap_or_default();
        let addresses: Vec<IpAddr> = Side::BOTH
            .into_iter()
            .filter_map(|side| container_address(side, at, &result))
            .map(|net| net.addr())
            .collect();
        let of_reference = reference::Stale::Of(at);
        failures.note(reference::remove_portmap(network, of_reference, &addresses));
        failures.into_result()
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        let result = cx.request.required_prev_result()?;
        let settings = self.settings()?;
        let owner = Owner::new(&cx.request.network, at);
        let publications = publications(at, &result, &settings, &owner);
        if publications.is_empty() {
            return Ok(());
        }
        let nft = Nft::open()?;
        publications.iter().try_for_each(|publication| publication.check(&nft))
    }

    fn gc(&self, cx: &Context<'_>, keep: &[Attachment]) -> Result<()> {
        let network = &cx.request.network;
        let mut failures = Failures::default();
        failures.note(withdraw_if_supported(&Stale::all_but(network, keep)));
        let of_reference = reference::Stale::AllBut(keep);
        failures.note(reference::remove_portmap(network, of_reference, &[]));
        failures.into_result()
    }

    fn status(&self, _: &Context<'_>) -> Result<()> {
        self.settings()?;
        let missing = Nft::open().map_err(Error::from).and_then(|nft| {
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

/// What rules of ours are made of.
const FEATURES: [Feature; 5] =
    [Feature::Tables, Feature::Nat, Feature::Masquerade, Feature::Fib, Feature::Conntrack];

/// Nobody needs rules for IPv6 where there is none.
fn is_present(family: Family) -> bool {
    family != Family::Ip6 || sysctl::exists("net/ipv6")
}

/// One for each family in which there is something to publish.
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

/// The first address of the family that is the container's: those of links on the host and of its other interfaces are
/// not; where a result does not say whose an address is, it is.
fn container_address(side: Side, at: &Attachment, result: &Success) -> Option<IpNet> {
    let is_ours = |index: Option<u32>| {
        let interface = index.and_then(|index| result.interfaces.get(index as usize));
        interface.is_none_or(|it| it.name == *at.ifname && !it.sandbox.is_empty())
    };
    let ips = result.ips.iter().filter(|ip| side.has(ip.address.addr()));
    ips.filter(|ip| is_ours(ip.interface)).map(|ip| ip.address).next()
}

/// One transaction for both families. What the attachment had before is replaced by it.
fn publish(nft: &Nft, owner: &Owner, publications: &[Publication<'_>]) -> Result<()> {
    let of_side = |side| publications.iter().find(move |publication| publication.side == side);
    let stale = Stale::Of(owner.clone());
    nft.transact(|nft, batch| {
        for side in Side::BOTH {
            let publication = of_side(side);
            let found = publication.map(|publication| publication.look(nft)).transpose()?;
            let found = found.unwrap_or_default();
            let publication = publication.map(|publication| publication.placed(&found));
            if found.is_own || is_registered(nft, side, owner)? {
                let in_use = publication.as_ref().map(|publication| &publication.group);
                Withdrawal { nft, side, stale: &stale, in_use }.withdraw(batch)?;
            }
            if let Some(publication) = publication {
                publication.publish(nft, batch, &found)?;
            }
        }
        Ok(())
    })
}

/// Removes what is stale, and the connections to it.
fn withdraw_if_supported(stale: &Stale) -> Result<()> {
    match Nft::open_if_supported()? {
        Some(nft) => forget(&withdraw(&nft, stale)?),
        None => Ok(()),
    }
}

/// Removes what is stale; returns the connections to it that it leaves behind.
fn withdraw(nft: &Nft, stale: &Stale) -> Result<Vec<Flows>> {
    let mut flows = Vec::new();
    nft.transact(|nft, batch| {
        flows.clear();
        for side in Side::BOTH {
            let may_be_there = match stale {
                // Most containers have no ports.
                Stale::Of(owner) => is_registered(nft, side, owner)?,
                Stale::AllBut { .. } => true,
            };
            if may_be_there {
                flows.extend(Withdrawal { nft, side, stale, in_use: None }.withdraw(batch)?);
            }
        }
        Ok(())
    })?;
    Ok(flows)
}

/// Lets packets from 127.0.0.1 out by the link that leads to the container. The rule that keeps others' out is there.
fn allow_loopback(publication: &Publication<'_>) -> Result<()> {
    if !publication.side.has(ruleset::loopback().addr()) {
        return Ok(());
    }
    let host = Rtnl::open()?;
    let Some(index) = host.link_towards(publication.address.addr())? else { return Ok(()) };
    let Some(link) = host.link_at(index)? else { return Ok(()) };
    sysctl::set(&format!("net/ipv4/conf/{}/route_localnet", link.name), "1").map(drop)
}

/// UDP connections to a port from before it was published would go on past it, as long as packets keep coming.
fn forget_untranslated(publications: &[Publication<'_>]) -> Result<()> {
    let mut flows = Vec::new();
    let mut own: Option<BTreeSet<IpAddr>> = None;
    for publication in publications {
        let side = publication.side;
        let family = if side.family() == Family::Ip { rtnl::Family::V4 } else { rtnl::Family::V6 };
        for mapping in publication.mappings().filter(|it| it.transport == Transport::Udp) {
            let to_port = Flows::to_port(family, Transport::Udp, mapping.host_port);
            match mapping.host_ip {
                HostIp::One(ip) => flows.push(to_port.at(ip)),
                // Connections through the host to others' same port are none of ours.
                HostIp::Any | HostIp::AnyOf(_) => {
                    if own.is_none() {
                        own = Some(Rtnl::open()?.all_addresses()?.into_iter().collect());
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
