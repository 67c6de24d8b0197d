//! `ingressPolicy`: the bridge, the gateway and the port of a container, and the isolation of ports within a bridge.

use std::net::IpAddr;

use super::source_links;
use crate::attachments::owner::Owners;
use crate::error::{Error, Result};
use crate::names::{Attachment, IfName, IpFamily};
use crate::netlink::nft::{
    Base, Batch, Comment, Element, Field, Hook, NewSet, Nft, Table, Type, Value, Verdict, in_set,
    not_in_set, pack,
};
use crate::netlink::rtnl::{Link, Rtnl};
use crate::plugin::Context;
use crate::rules::shared_rules::{self, Chain, SharedRules, rule};
use crate::steps::link::{host_link, uplinks, veth};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Open,
    SameBridge,
    Strict,
    Isolated,
}

/// The links of a container that a policy other than `open` applies to.
pub(super) struct PolicyLinks {
    pub(super) policy: Policy,
    /// With the policy `strict`: the bridges through which the host reaches other hosts.
    pub(super) uplinks: Vec<IfName>,
    v4: GatewayLink,
    v6: GatewayLink,
    /// The host end of the container's interface, if it is a port of a bridge.
    port: Option<IfName>,
}

/// The link over which the host and a container reach each other in one family.
#[derive(Clone)]
struct GatewayLink {
    /// The link with the gateway address: the bridge, the gateway link of a VLAN, or without a bridge the host end of the pair.
    link: IfName,
    /// The port of the bridge that is the other end of this link, if the link is one end of a veth pair.
    port: Option<IfName>,
    /// The other links of the host in the same network.
    neighbours: Vec<IfName>,
}

impl Policy {
    pub(super) fn parse(text: &str) -> Result<Self> {
        match text {
            "" | "open" => Ok(Self::Open),
            "same-bridge" => Ok(Self::SameBridge),
            "strict" => Ok(Self::Strict),
            "isolated" => Ok(Self::Isolated),
            other => Err(Error::config(format_args!("unknown ingress policy: {other:?}"))
                .with_details("ingressPolicy can be open, same-bridge, strict or isolated")),
        }
    }
}

impl PolicyLinks {
    /// Reads the links of the container from the kernel, because a result lists interfaces in any order and need not list the
    /// bridge. `None` if the policy is `open`.
    pub(super) fn of(
        cx: &Context<'_>,
        policy: Policy,
        at: &Attachment,
        addresses: &[IpAddr],
    ) -> Result<Option<Self>> {
        if policy == Policy::Open {
            return Ok(None);
        }
        let link = host_link::in_container(cx.session.container()?, at)?;
        let host = cx.session.host()?;
        let end = veth::host_end(host, &link, &at.ifname)
            .map_err(|error| error.context("ingressPolicy: cannot find the container's bridge"))?;
        let master = match end.master {
            Some(index) => host.link_at(index)?,
            None => None,
        };
        let port = master.as_ref().map(|_| IfName::new(end.name.as_str())).transpose()?;
        let bridge = master.unwrap_or(end);
        let macvlans = source_links::macvlans(host)?;
        let [v4, v6] = IpFamily::ALL.map(|family| {
            let (mut of_family, others): (Vec<IpAddr>, Vec<IpAddr>) =
                addresses.iter().partition(|address| family.has(**address));
            // In a family without addresses the policy applies to the same link.
            if of_family.is_empty() {
                of_family = others;
            }
            GatewayLink::find(host, &bridge, &macvlans, &of_family)
        });
        let uplinks = match policy {
            Policy::Strict => names(&uplinks::uplinks(host)?)?,
            _ => Vec::new(),
        };
        Ok(Some(Self { policy, uplinks, v4: v4?, v6: v6?, port }))
    }

    /// The bridge of the container in a family: the link that receives its packets to other networks.
    pub(super) fn bridge(&self, family: IpFamily) -> &IfName {
        &self.gateway(family).link
    }

    /// The other links of the host in the network of this bridge.
    pub(super) fn neighbours(&self, family: IpFamily) -> &[IfName] {
        &self.gateway(family).neighbours
    }

    fn gateway(&self, family: IpFamily) -> &GatewayLink {
        match family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        }
    }

    /// The port of the container, if the policy is `isolated` and there is a bridge.
    fn isolated_port(&self) -> Option<&IfName> {
        self.port.as_ref().filter(|_| self.policy == Policy::Isolated)
    }

    /// The keys of the container in `firewall-isolated-ports` and in `firewall-isolated-gateways`: its port, and its port with
    /// each port that leads to its gateway.
    fn keys(&self) -> [Vec<Vec<u8>>; 2] {
        let Some(port) = self.isolated_port().map(Value::IfName) else { return Default::default() };
        let ports = [&self.v4, &self.v6].into_iter().filter_map(|link| link.port.as_ref());
        let mut gateways: Vec<Vec<u8>> =
            ports.map(|gateway| pack(&[port, Value::IfName(gateway)])).collect();
        gateways.dedup();
        [vec![pack(&[port])], gateways]
    }

    pub(super) fn check_port(&self, nft: &Nft, owner: &Comment) -> Result<()> {
        let Some(port) = self.isolated_port() else { return Ok(()) };
        let [ports, gateways] = self.keys();
        let known = nft.elements_at(TABLE, PORTS, &ports)?;
        let is_there = |element: &Element| element.comment.as_ref() == Some(owner);
        if !known.iter().flatten().any(is_there) {
            let missing = Error::difference(format_args!(
                "port {port} is not isolated: it is missing from set {PORTS} of table {TABLE}"
            ));
            return Err(shared_rules::missing_in_set(nft, TABLE, PORTS, missing)?);
        }
        if nft.elements_at(TABLE, GATEWAYS, &gateways)?.iter().any(Option::is_none) {
            let missing = Error::difference(format_args!(
                "port {port} does not reach its gateway: it is missing from set {GATEWAYS} of table {TABLE}"
            ));
            return Err(shared_rules::missing_in_set(nft, TABLE, GATEWAYS, missing)?);
        }
        shared().check(nft).map_err(|error| error.context(format!("port {port} is not isolated")))
    }
}

impl GatewayLink {
    /// Finds the link of the host's route to the addresses, if that link is the bridge or is connected to it. Otherwise returns
    /// the bridge: without a gateway on this host, the route to a container leads to another host.
    fn find(host: &Rtnl, bridge: &Link, macvlans: &[Link], addresses: &[IpAddr]) -> Result<Self> {
        for address in addresses {
            let Some(index) = host.link_towards(*address, None)? else { continue };
            if index == bridge.index {
                break;
            }
            let Some(link) = host.link_at(index)? else { continue };
            let port = veth::peer(host, &link)?.filter(|port| port.master == Some(bridge.index));
            // The link has the bridge as lower link, for example a VLAN link that an operator made.
            let is_above = link.peer == Some(bridge.index) && !link.peer_is_elsewhere;
            if port.is_some() || is_above {
                let port = port.map(|port| IfName::new(port.name.as_str())).transpose()?;
                return Self::new(host, &link, port, macvlans);
            }
        }
        Self::new(host, bridge, None, macvlans)
    }

    fn new(host: &Rtnl, link: &Link, port: Option<IfName>, macvlans: &[Link]) -> Result<Self> {
        let neighbours = source_links::neighbours(host, link, macvlans)?;
        Ok(Self { link: IfName::new(link.name.as_str())?, port, neighbours })
    }
}

fn names(links: &[Link]) -> Result<Vec<IfName>> {
    links.iter().map(|link| IfName::new(link.name.as_str())).collect()
}

/// Isolates the container's port, if the policy is `isolated`. Removes the other elements that an earlier ADD of the owner
/// added.
pub(super) fn set_port(
    nft: &Nft,
    batch: &mut Batch,
    policy_links: Option<&PolicyLinks>,
    owner: &Comment,
) -> Result<()> {
    let [ports, gateways] = policy_links.map(PolicyLinks::keys).unwrap_or_default();
    if !ports.is_empty() {
        let mut shared = shared();
        shared.sets.push(NewSet::set(GATEWAYS, [Type::IfName; 2]));
        shared.ensure(nft, batch)?;
    }
    for (set, wanted) in [(PORTS, ports), (GATEWAYS, gateways)] {
        let mut earlier = nft.elements(TABLE, set)?;
        earlier.retain(|element| {
            element.comment.as_ref() == Some(owner) && !wanted.contains(&element.key)
        });
        batch.delete_elements(TABLE, set, &earlier);
        for key in wanted {
            let wanted = Element { key, data: None, comment: Some(owner.clone()) };
            shared_rules::put(nft, batch, TABLE, set, wanted)?;
        }
    }
    Ok(())
}

pub(super) fn remove_ports(nft: &Nft, batch: &mut Batch, owners: &Owners) -> Result<()> {
    shared_rules::delete(nft, batch, (TABLE, &[PORTS, GATEWAYS]), owners)
}

/// The rules that isolate ports within a bridge:
///
/// ```nft
/// table bridge cnibox {
///     set firewall-isolated-ports { type ifname; }
///     set firewall-isolated-gateways { type ifname . ifname; }
///     chain firewall-policy {
///         type filter hook forward priority -200; policy accept;
///         iifname @firewall-isolated-ports iifname . oifname != @firewall-isolated-gateways drop
///         oifname @firewall-isolated-ports oifname . iifname != @firewall-isolated-gateways drop
///     }
/// }
/// ```
///
/// Packets to the bridge itself, and those that the host routes, do not pass the forward hook of the bridge. Packets to a
/// gateway that is the other end of a port pass it; the second set has the container's port together with that port.
fn shared() -> SharedRules {
    let [iif, oif] = [Field::Iifname, Field::Oifname];
    let drops = |own: Field, other: Option<Field>| {
        let to_other = other.into_iter().flat_map(|other| not_in_set(&[own, other], GATEWAYS));
        rule(in_set(&[own], PORTS).into_iter().chain(to_other), Verdict::Drop)
    };
    let base = Base::filter(Hook::Forward, PRIORITY);
    let former = Chain::base(FORMER_CHAIN, base, vec![drops(iif, None), drops(oif, None)]);
    let rules = vec![drops(iif, Some(oif)), drops(oif, Some(iif))];
    let chains = vec![Chain::base(CHAIN, base, rules).replacing(former)];
    SharedRules { table: TABLE, sets: vec![NewSet::set(PORTS, [Type::IfName])], chains }
}

const TABLE: Table<'static> = Table::bridge(shared_rules::TABLE);
const PORTS: &str = "firewall-isolated-ports";
const GATEWAYS: &str = "firewall-isolated-gateways";
/// The name of the base chain, also in the tables of `ruleset`.
pub(super) const CHAIN: &str = "firewall-policy";
/// The name of the chain `firewall-policy` up to release 0.2.0.
const FORMER_CHAIN: &str = "firewall-forward";

/// The priority of the chain `firewall-policy`: NF_BR_PRI_FILTER_BRIDGED (linux/netfilter_bridge.h); nft calls it `filter`.
const PRIORITY: i32 = -200;
