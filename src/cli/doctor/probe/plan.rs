//! The questions of the probe: which packets the host should let pass, by its living containers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::cni::json::Json;
use crate::error::Result;
use crate::kernel::file;
use crate::names::{IpFamily, Mac};
use crate::netlink::nft::Transport;
use crate::netlink::rtnl::Link;
use crate::plugin::life::Life;
use crate::plugins::portmap::{Mapping, Portmap};
use crate::runtime::cache::CacheEntry;

use super::super::host::Host;
use super::Asked;
use super::packets::Packet;

/// A living container with a veth pair to the host.
pub(super) struct Endpoint<'a> {
    pub(super) entry: &'a CacheEntry,
    mac: Mac,
    /// The end of the pair on the host.
    pub(super) port: Link,
    /// The bridge of the port.
    pub(super) bridge: Option<Link>,
    addresses: Vec<IpNet>,
    /// The gateways of the default routes in the container.
    gateways: Vec<IpAddr>,
    mappings: Vec<Mapping>,
}

/// The way that a packet should take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From a container to other networks.
    World,
    /// From other networks to a published port of the host.
    Port,
    /// From a container to another container of the network.
    Container,
    /// From a container to the name server of the host.
    Gateway,
}

/// A packet that the host should let pass.
pub(super) struct Question<'a> {
    pub(super) direction: Direction,
    /// The container that sends the packet, or that has the published port.
    pub(super) who: &'a Endpoint<'a>,
    pub(super) packet: Packet,
    pub(super) from: Mac,
    pub(super) to: Mac,
    /// The link that receives the packet.
    pub(super) receiver: Link,
    /// The link of the host's default route, for packets from and to other networks.
    pub(super) uplink: Option<Link>,
    /// For a published port: the port in the container.
    pub(super) container_port: Option<u16>,
}

/// The other host: a host that answers to everybody, so no filter takes it for a forged address. No packet reaches it.
const WORLD: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1111)),
];

/// The Ethernet address of the router that packets of other hosts come from. It is of the range for local use.
const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// What a container asks of other hosts: names, and web pages.
const WORLD_PORTS: [(Transport, u16); 2] = [(Transport::Udp, 53), (Transport::Tcp, 443)];
const CONTAINER_PORTS: [(Transport, u16); 2] = [(Transport::Udp, 53), (Transport::Tcp, 80)];

/// The source port of the first packet: outside of the kernel's range for connections.
const SOURCE_PORTS: u16 = 20_000;
/// The most questions in one probe, a few milliseconds each.
const QUESTIONS_MAX: usize = 200;

impl<'a> Endpoint<'a> {
    /// All living containers with a veth pair.
    pub(super) fn all(host: &Host<'_>, attachments: &'a [(CacheEntry, Life)]) -> Vec<Self> {
        let alive = attachments.iter().filter(|(_, life)| *life == Life::Alive);
        // A container that ends meanwhile, or has another interface, is not asked.
        alive.filter_map(|(entry, _)| Self::of(host, entry).ok().flatten()).collect()
    }

    fn of(host: &Host<'_>, entry: &'a CacheEntry) -> Result<Option<Self>> {
        let rtnl = host.home.open(&entry.netns)?.rtnl()?;
        let Some(inside) = rtnl.link(&entry.at.ifname)? else { return Ok(None) };
        let is_port = |link: &&Link| {
            Some(link.index) == inside.peer
                && link.peer == Some(inside.index)
                && link.peer_is_elsewhere
                && link.kind.as_deref() == Some("veth")
        };
        let (Some(mac), Some(port)) = (inside.mac, host.links.iter().find(is_port)) else {
            return Ok(None);
        };
        let addresses = rtnl.addresses(inside.index)?;
        let addresses = addresses.iter().filter(|address| !address.scope_link);
        let mut gateways = Vec::new();
        for family in IpFamily::ALL {
            let routes = rtnl.routes(family)?;
            let is_default = |dev| dev == Some(inside.index);
            let of_link = routes.iter().filter(|route| is_default(route.dev));
            let defaults = of_link.filter(|route| route.dst.prefix_len() == 0);
            gateways.extend(defaults.filter_map(|route| route.via));
        }
        let bridge = host.links.iter().find(|link| Some(link.index) == port.master).cloned();
        Ok(Some(Self {
            entry,
            mac,
            port: port.clone(),
            bridge,
            addresses: addresses.map(|address| address.net).collect(),
            gateways,
            mappings: mappings(&entry.capability_args),
        }))
    }

    /// The first address of a family, with its prefix length.
    pub(super) fn net(&self, family: IpFamily) -> Option<IpNet> {
        self.addresses.iter().copied().find(|net| family.has(net.addr()))
    }

    fn address(&self, family: IpFamily) -> Option<IpAddr> {
        self.net(family).map(|net| net.addr())
    }

    /// The link of the host that the container sends packets for other networks to.
    pub(super) fn gateway_link(&self) -> &Link {
        self.bridge.as_ref().unwrap_or(&self.port)
    }
}

/// The published ports in the capability arguments of ADD.
fn mappings(arguments: &Json) -> Vec<Mapping> {
    let config = Json::object([("runtimeConfig", Some(arguments.clone()))]);
    let settings = config.read::<Portmap>("the published ports").and_then(|it| it.settings());
    settings.map_or_else(|_| Vec::new(), |settings| settings.mappings)
}

/// Collects the questions.
pub(super) struct Plan<'a> {
    host: &'a Host<'a>,
    asked: Asked,
    /// Questions that cannot be asked, with the reason.
    pub(super) left_out: Vec<String>,
    pub(super) questions: Vec<Question<'a>>,
}

impl<'a> Plan<'a> {
    pub(super) fn make(host: &'a Host<'a>, asked: Asked, all: &'a [Endpoint<'a>]) -> Result<Self> {
        let (left_out, questions) = (Vec::new(), Vec::new());
        let mut plan = Self { host, asked, left_out, questions };
        for family in IpFamily::ALL {
            let world = WORLD[usize::from(family == IpFamily::V6)];
            let uplink = host.rtnl.link_towards(world, None)?;
            let uplink = host.links.iter().find(|link| Some(link.index) == uplink);
            let uplink = uplink.filter(|link| link.mac.is_some());
            let mut asked_networks = Vec::new();
            for who in all {
                let Some(address) = who.address(family) else { continue };
                if let Some(uplink) = uplink {
                    plan.published(who, world, uplink)?;
                }
                let is_first = !asked_networks.contains(&&who.entry.network);
                let is_asked = match &host.options.only {
                    Some(_) => host.options.concerns(&who.entry.network, &who.entry.at),
                    None => is_first,
                };
                if is_asked && asked.port.is_none() {
                    asked_networks.push(&who.entry.network);
                    plan.container(who, address, world, uplink)?;
                    plan.neighbour(who, address, all);
                }
            }
        }
        if plan.questions.len() > QUESTIONS_MAX {
            plan.questions.truncate(QUESTIONS_MAX);
            plan.left_out.push(format!("only the first {QUESTIONS_MAX} packets are sent"));
        }
        Ok(plan)
    }

    fn ask(&mut self, mut question: Question<'a>) {
        let number = u16::try_from(self.questions.len()).unwrap_or_default();
        question.packet.source_port = SOURCE_PORTS.saturating_add(number);
        self.questions.push(question);
    }

    /// Asks for packets of a container to other networks, and to the name server of the host.
    fn container(
        &mut self,
        who: &'a Endpoint<'a>,
        address: IpAddr,
        world: IpAddr,
        uplink: Option<&Link>,
    ) -> Result<()> {
        let family = IpFamily::of(address);
        let gateway = who.gateways.iter().copied().find(|gateway| family.has(*gateway));
        let (Some(gateway), Some(to)) = (gateway, who.gateway_link().mac) else { return Ok(()) };
        let question = |direction, to_address, (transport, port)| Question {
            direction,
            who,
            packet: Packet { from: address, to: to_address, transport, source_port: 0, port },
            from: who.mac,
            to,
            receiver: who.port.clone(),
            uplink: uplink.cloned(),
            container_port: None,
        };
        match uplink {
            Some(_) if self.host.rtnl.link_with_address(gateway)?.is_some() => {
                for port in WORLD_PORTS {
                    self.ask(question(Direction::World, world, port));
                }
            }
            // Another machine is the gateway of the network.
            Some(_) => {}
            None => self.left_out.push(format!(
                "the host has no default route of {}: packets of {} to other networks",
                family_text(family),
                who.entry.network
            )),
        }
        if serves_names(gateway) {
            self.ask(question(Direction::Gateway, gateway, (Transport::Udp, DNS)));
        }
        Ok(())
    }

    /// Asks for packets of a container to another container of the network.
    fn neighbour(&mut self, who: &'a Endpoint<'a>, address: IpAddr, all: &'a [Endpoint<'a>]) {
        let family = IpFamily::of(address);
        let is_neighbour = |other: &&Endpoint<'_>| {
            let are_isolated = |link: &Link| link.port.as_ref().is_some_and(|port| port.isolated);
            other.entry.network == who.entry.network
                && other.entry.at != who.entry.at
                && other.port.master == who.port.master
                && other.address(family).is_some()
                && !(are_isolated(&other.port) && are_isolated(&who.port))
        };
        let Some(other) = all.iter().find(is_neighbour) else { return };
        let to_mac = if who.bridge.is_some() { Some(other.mac) } else { who.port.mac };
        let (Some(to_address), Some(to)) = (other.address(family), to_mac) else { return };
        for (transport, port) in CONTAINER_PORTS {
            self.ask(Question {
                direction: Direction::Container,
                who,
                packet: Packet { from: address, to: to_address, transport, source_port: 0, port },
                from: who.mac,
                to,
                receiver: who.port.clone(),
                uplink: None,
                container_port: None,
            });
        }
    }

    /// Asks for the published ports of a container on one family of addresses.
    fn published(&mut self, who: &'a Endpoint<'a>, world: IpAddr, uplink: &Link) -> Result<()> {
        let family = IpFamily::of(world);
        let Some(to) = uplink.mac else { return Ok(()) };
        let is_asked = |mapping: &&Mapping| {
            mapping.host_ip.is_in(family)
                && mapping.transport != Transport::Sctp
                && self.asked.port.is_none_or(|port| port == mapping.host_port)
                && self.host.options.concerns(&who.entry.network, &who.entry.at)
        };
        let mappings: Vec<Mapping> = who.mappings.iter().filter(is_asked).copied().collect();
        let addresses = self.host.rtnl.addresses_of(uplink.index, family)?;
        let first = addresses.iter().find(|address| !address.scope_link && address.is_usable());
        for mapping in mappings {
            let address = mapping.host_ip.one().or_else(|| Some(first?.net.addr()));
            let Some(address) = address.filter(|address| !address.is_loopback()) else { continue };
            let (transport, port) = (mapping.transport, mapping.host_port);
            self.ask(Question {
                direction: Direction::Port,
                who,
                packet: Packet { from: world, to: address, transport, source_port: 0, port },
                from: ROUTER,
                to,
                receiver: uplink.clone(),
                uplink: Some(uplink.clone()),
                container_port: Some(mapping.container_port),
            });
        }
        Ok(())
    }

    /// The link of an index.
    pub(super) fn link(&self, index: u32) -> Option<&Link> {
        self.host.links.iter().find(|link| link.index == index)
    }
}

pub(super) fn family_text(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

const DNS: u16 = 53;

/// Whether a program of the host waits for UDP datagrams to port 53 of this address, by the kernel's list of sockets.
fn serves_names(gateway: IpAddr) -> bool {
    let (list, bytes) = match gateway {
        IpAddr::V4(address) => ("/proc/thread-self/net/udp", address.octets().to_vec()),
        IpAddr::V6(address) => ("/proc/thread-self/net/udp6", address.octets().to_vec()),
    };
    // Each word of an address is printed as a number of the host.
    let words = bytes.chunks_exact(4).filter_map(|word| <[u8; 4]>::try_from(word).ok());
    let address: String = words.map(|word| format!("{:08X}", u32::from_ne_bytes(word))).collect();
    let local = format!("{address}:{DNS:04X}");
    file::read_lossy(list).is_ok_and(|text| {
        text.lines().any(|line| line.split_ascii_whitespace().nth(1) == Some(local.as_str()))
    })
}
