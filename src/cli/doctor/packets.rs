//! The packets that the host forwards for containers: new connections to other networks, answers, and packets to published
//! ports.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::cni::json::Json;
use crate::error::Result;
use crate::names::{IfName, IpFamily};
use crate::netlink::nft::{CtState, Packet, Side};
use crate::netlink::rtnl::{Link, RT_TABLE_MAIN};
use crate::plugin::owner::Owner;
use crate::plugins::firewall::passage::End;

use super::forwarding::{BRIDGED, value};
use super::host::{ConfiguredNetwork, Host};

/// The kind of a forwarded packet, by the state and the direction of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TrafficKind {
    /// The first packet of a connection from a container to another network. If the host does not route for the network: to
    /// another container on the bridge.
    Out,
    /// The later packets of any connection, in both directions.
    Answers,
    /// The first packet to a published port.
    Published,
}

impl TrafficKind {
    pub(super) const ALL: [Self; 3] = [Self::Out, Self::Answers, Self::Published];

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Out => "new connections",
            Self::Answers => "answers",
            Self::Published => "published ports",
        }
    }
}

/// The links by which the host reaches other networks: those of the default routes. Without a default route: the links that are
/// not of containers and have an address of more than link scope.
pub(super) struct Uplinks {
    links: Vec<Link>,
    of_family: [Vec<u32>; 2],
}

impl Uplinks {
    pub(super) fn find(host: &Host<'_>) -> Result<Self> {
        let links = host.rtnl.links()?;
        let mut of_family = [Vec::new(), Vec::new()];
        for (family, found) in IpFamily::ALL.into_iter().zip(&mut of_family) {
            *found = default_links(host, family)?;
            if found.is_empty() {
                for link in links.iter().filter(|link| !is_of_containers(host, link)) {
                    let addresses = host.rtnl.addresses(link.index)?;
                    let mut nets = addresses
                        .iter()
                        .filter(|address| !address.scope_link)
                        .map(|address| address.net);
                    if nets.any(|net| family.has(net.addr())) {
                        found.push(link.index);
                    }
                }
            }
        }
        Ok(Self { links, of_family })
    }

    /// The uplinks of a family. Empty if the host has none.
    pub(super) fn of(&self, family: IpFamily) -> Vec<&Link> {
        let indexes = &self.of_family[usize::from(family == IpFamily::V6)];
        self.links.iter().filter(|link| indexes.contains(&link.index)).collect()
    }

    fn side(&self, name: &str) -> Side {
        let link = self.links.iter().find(|link| link.name == name);
        Side {
            name: IfName::new(name).ok(),
            prefix: "",
            index: link.map(|link| link.index),
            // A link that does not exist yet will be in group 0.
            group: Some(link.map_or(0, |link| link.group)),
            net: None,
        }
    }
}

/// The links of the default routes with the lowest metric.
fn default_links(host: &Host<'_>, family: IpFamily) -> Result<Vec<u32>> {
    let mut routes = host.rtnl.routes(family)?;
    routes.retain(|route| {
        route.dst.prefix_len() == 0 && matches!(route.table, None | Some(RT_TABLE_MAIN))
    });
    let best = routes.iter().map(|route| route.metric).min();
    let mut links = Vec::new();
    for route in routes.iter().filter(|route| Some(route.metric) == best) {
        links.extend(route.dev);
        links.extend(route.nexthops.iter().map(|hop| hop.dev));
    }
    Ok(links)
}

/// Whether a link belongs to containers or to loopback: lo, a bridge of a network, the port of a master, or a link that a
/// plugin made.
fn is_of_containers(host: &Host<'_>, link: &Link) -> bool {
    let is_bridge =
        |net: &ConfiguredNetwork| gateway_link(net).as_deref() == Some(link.name.as_str());
    link.mac.is_none()
        || link.name == "lo"
        || link.master.is_some()
        || link.alias.as_deref().and_then(Owner::in_alias).is_some()
        || host.networks.iter().any(is_bridge)
}

/// The link of the host that packets from all containers of a network enter by: the bridge, or its VLAN link. `None` without a
/// bridge: each container has its own link.
pub(super) fn gateway_link(net: &ConfiguredNetwork) -> Option<String> {
    let bridge = net.bridge.as_ref()?;
    Some(match net.network.plugin("bridge").and_then(|plugin| plugin.get("vlan")) {
        Some(Json::Number(vlan)) if net.is_gateway && vlan.as_u64() != Some(0) => {
            format!("{bridge}.{}", vlan.as_u64()?)
        }
        _ => bridge.clone(),
    })
}

/// The packets of one traffic kind for one subnet. Each item of `paths` has the packets by one uplink.
pub(super) struct Flow {
    pub(super) traffic: TrafficKind,
    pub(super) paths: Vec<Vec<Forwarded>>,
}

/// A packet, and which end of it is the container.
pub(super) struct Forwarded {
    pub(super) packet: Packet,
    pub(super) container: End,
}

/// The packets of a network in one family that pass the chains of hook forward.
pub(super) fn flows(net: &ConfiguredNetwork, family: IpFamily, uplinks: &Uplinks) -> Vec<Flow> {
    let key = if family == IpFamily::V4 { BRIDGED } else { BRIDGED_V6 };
    let is_bridged = value(key) == "1" && net.bridge.is_some();
    if !net.has_family(family) || !net.is_routed && !is_bridged {
        return Vec::new();
    }
    let link = gateway_link(net);
    let own = match &link {
        Some(name) => uplinks.side(name),
        None => Side { prefix: HOST_END, ..Side::default() },
    };
    let subnets = net.subnets.iter().filter(|subnet| family.has(subnet.addr()));
    let mut subnets: Vec<Option<IpNet>> = subnets.copied().map(Some).collect();
    if subnets.is_empty() {
        subnets.push(None);
    }
    let mut flows = Vec::new();
    for subnet in subnets {
        let own = Side { net: subnet, ..own.clone() };
        let mut others: Vec<Side> = Vec::new();
        if net.is_routed {
            others.extend(uplinks.of(family).iter().map(|link| uplinks.side(&link.name)));
            if others.is_empty() {
                others.push(Side::default());
            }
        } else {
            others.push(own.clone());
        }
        for traffic in TrafficKind::ALL {
            if traffic != TrafficKind::Published
                || net.is_routed && net.network.plugin("portmap").is_some()
            {
                let paths = others.iter().map(|other| packets(traffic, net, family, &own, other));
                flows.push(Flow { traffic, paths: paths.collect() });
            }
        }
    }
    flows
}

/// The prefix of the names of veth host ends, in cnibox and in the Go plugin ptp.
const HOST_END: &str = "veth";

const BRIDGED_V6: &str = "net/bridge/bridge-nf-call-ip6tables";

fn packets(
    traffic: TrafficKind,
    net: &ConfiguredNetwork,
    family: IpFamily,
    own: &Side,
    other: &Side,
) -> Vec<Forwarded> {
    let new = |from: &Side, to: &Side, state, is_dnat| Packet {
        family,
        from: from.clone(),
        to: to.clone(),
        state,
        is_dnat,
    };
    let out = |state, is_dnat| Forwarded {
        packet: new(own, other, state, is_dnat),
        container: End::Source,
    };
    let back = |state, is_dnat| Forwarded {
        packet: new(other, own, state, is_dnat),
        container: End::Destination,
    };
    match traffic {
        TrafficKind::Out => vec![out(CtState::NEW, false)],
        TrafficKind::Published => vec![back(CtState::NEW, true)],
        TrafficKind::Answers => {
            let mut packets = Vec::new();
            for is_dnat in [false, true] {
                if !is_dnat || net.network.plugin("portmap").is_some() {
                    packets.push(back(CtState::ESTABLISHED, is_dnat));
                    packets.push(out(CtState::ESTABLISHED, is_dnat));
                }
            }
            packets
        }
    }
}

/// Copies of a packet whose other end has an address outside of the container's subnet: one copy for each of the networks that
/// cover those addresses. Empty if the subnet is unknown.
pub(super) fn with_foreign_address(packet: &Packet) -> Vec<Packet> {
    let (subnet, is_source) = match (packet.from.net, packet.to.net) {
        (Some(subnet), None) => (subnet, false),
        (None, Some(subnet)) => (subnet, true),
        _ => return Vec::new(),
    };
    let with = |net| {
        let mut packet = packet.clone();
        let side = if is_source { &mut packet.from } else { &mut packet.to };
        side.net = Some(net);
        packet
    };
    foreign(subnet).into_iter().map(with).collect()
}

/// The addresses outside of a subnet, as few networks as possible. IPv6: global unicast (2000::/3), the range of NAT64 (RFC
/// 6052) and unique local addresses. Without 6to4: it is deprecated (RFC 7526), and firewalld drops some of its addresses (RFC
/// 3964).
fn foreign(subnet: IpNet) -> Vec<IpNet> {
    let net = |address, length| IpNet::new(address, length).ok();
    let v6 = |first, length| net(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0).into(), length);
    let (all, without) = match subnet {
        IpNet::V4(_) => ([net(Ipv4Addr::UNSPECIFIED.into(), 0), None, None], None),
        IpNet::V6(_) => ([v6(0x2000, 3), v6(0x64, 16), v6(0xfc00, 7)], v6(0x2002, 16)),
    };
    let without: Vec<IpNet> = without.into_iter().chain([subnet]).collect();
    let mut rest: Vec<IpNet> = all.into_iter().flatten().collect();
    let mut found = Vec::new();
    while let Some(net) = rest.pop() {
        if without.iter().any(|other| other.contains(&net)) {
            continue;
        }
        match net.subnets(net.prefix_len() + 1) {
            Ok(halves) if without.iter().any(|other| net.contains(other)) => rest.extend(halves),
            _ => found.push(net),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_address_is_any_one_outside_of_the_subnet() {
        for (subnet, count, has) in [
            ("10.1.0.0/16", 16, ["128.0.0.0/1", "10.0.0.0/16"]),
            ("fd00:1::/64", 13 + 1 + 57, ["3000::/4", "fd00:1:0:1::/64"]),
            ("2001:db8::/64", 61 + 1 + 1, ["2003::/16", "fc00::/7"]),
        ] {
            let net: IpNet = subnet.parse().unwrap();
            let packet = Packet {
                family: IpFamily::of(net.addr()),
                from: Side { net: Some(net), ..Side::default() },
                to: Side::default(),
                state: CtState::NEW,
                is_dnat: false,
            };
            let parts = with_foreign_address(&packet);
            let nets: Vec<String> =
                parts.iter().map(|part| part.to.net.unwrap().to_string()).collect();
            assert_eq!(nets.len(), count, "{nets:?}");
            assert!(has.iter().all(|part| nets.iter().any(|net| net == part)), "{nets:?}");
            assert!(parts.iter().all(|part| part.from.net == Some(net)));
        }
    }
}
