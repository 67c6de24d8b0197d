//! The questions of the probe: which packets the host should let pass, by its living containers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::attachments::life::Life;
use crate::error::Result;
use crate::names::{IpFamily, Mac, NetworkName};
use crate::netlink::nft::Transport;
use crate::netlink::rtnl::Link;
use crate::netlink::sock_diag;
use crate::plugins::firewall::passage::Passage;
use crate::plugins::portmap::Mapping;
use crate::runtime::cache::CacheEntry;

use super::super::host::Host;
use super::super::published::mappings;
use super::super::routes;
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
    /// From a container to its gateway: the question for its Ethernet address. Without an answer there is no IPv6.
    Discovery,
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
    /// The address and the port that the packet arrives at in a container.
    pub(super) goal: Option<(IpAddr, u16)>,
}

impl Question<'_> {
    /// The links that receive the packet.
    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        let bridge = self.who.bridge.as_ref().filter(|_| self.direction != Direction::Port);
        [&self.receiver].into_iter().chain(bridge)
    }
}

/// Packets that are not sent.
pub(super) struct LeftOut {
    pub(super) network: NetworkName,
    /// The container.
    pub(super) whose: String,
    pub(super) reason: String,
}

impl LeftOut {
    fn of(entry: &CacheEntry, text: impl Display) -> Self {
        let network = entry.network.clone();
        Self { whose: entry.at.title(&network), reason: text.to_string(), network }
    }
}

/// The other host: the name server a.root-servers.net. Filters take its addresses neither for forged ones nor for a service
/// that they block, such as a resolver. No packet reaches it.
const WORLD: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 41, 0, 4)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30)),
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
    pub(super) fn all(
        host: &Host<'_>,
        attachments: &'a [(CacheEntry, Life)],
        left_out: &mut Vec<LeftOut>,
    ) -> Result<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        for (entry, life) in attachments {
            let is_asked = host.options.concerns(&entry.network, &entry.at);
            match life {
                Life::Alive => {}
                Life::Unknown(reason) if is_asked => {
                    left_out.push(LeftOut::of(entry, reason));
                    continue;
                }
                Life::Unknown(_) | Life::Ended(_) => continue,
            }
            match Self::of(host, entry, left_out) {
                Ok(Some(endpoint)) => all.push(endpoint),
                Ok(None) if is_asked => {
                    left_out.push(LeftOut::of(entry, "its interface has no end on the host"));
                }
                Ok(None) => {}
                // A container that ends meanwhile is not asked.
                Err(_) if Self::is_gone(host, entry) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    fn is_gone(host: &Host<'_>, entry: &CacheEntry) -> bool {
        match host.home.open(&entry.netns).and_then(|netns| netns.rtnl()) {
            Ok(rtnl) => matches!(rtnl.link(&entry.at.ifname), Ok(None)),
            Err(_) => matches!(entry.netns.try_exists(), Ok(false)),
        }
    }

    fn of(
        host: &Host<'_>,
        entry: &'a CacheEntry,
        left_out: &mut Vec<LeftOut>,
    ) -> Result<Option<Self>> {
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
            mappings: mappings(&entry.capability_args).unwrap_or_else(|error| {
                left_out.push(LeftOut::of(entry, error));
                Vec::new()
            }),
        }))
    }

    /// `eth0 of container web in network a`
    pub(super) fn title(&self) -> String {
        self.entry.at.title(self.network())
    }

    /// The first address of a family, with its prefix length.
    pub(super) fn net(&self, family: IpFamily) -> Option<IpNet> {
        self.addresses.iter().copied().find(|net| family.has(net.addr()))
    }

    pub(super) fn network(&self) -> &NetworkName {
        &self.entry.network
    }

    pub(super) fn address(&self, family: IpFamily) -> Option<IpAddr> {
        self.net(family).map(|net| net.addr())
    }

    /// The link of the host that the container sends packets for other networks to.
    pub(super) fn gateway_link(&self) -> &Link {
        self.bridge.as_ref().unwrap_or(&self.port)
    }
}

/// Collects the questions.
pub(super) struct Plan<'a> {
    host: &'a Host<'a>,
    asked: Asked,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) questions: Vec<Question<'a>>,
    /// Containers that the host sends packets to through another link than that of their network.
    pub(super) misrouted: Vec<&'a Endpoint<'a>>,
}

impl<'a> Plan<'a> {
    pub(super) fn make(
        host: &'a Host<'a>,
        asked: Asked,
        all: &'a [Endpoint<'a>],
        left_out: Vec<LeftOut>,
    ) -> Result<Self> {
        let mut plan = Self { host, asked, left_out, questions: Vec::new(), misrouted: Vec::new() };
        let mut uplinks = Vec::new();
        for family in IpFamily::ALL {
            let world = WORLD[usize::from(family == IpFamily::V6)];
            let uplink = host.rtnl.link_towards(world, None)?;
            let uplink = host.links.iter().find(|link| Some(link.index) == uplink);
            uplinks.push((family, world, uplink));
        }
        let concerned =
            all.iter().filter(|who| host.options.concerns(who.network(), &who.entry.at));
        let mut networks: Vec<&NetworkName> = Vec::new();
        let (mut first, mut others) = (Vec::new(), Vec::new());
        for who in concerned {
            let is_first = host.options.only.is_some() || !networks.contains(&who.network());
            networks.push(who.network());
            if is_first { &mut first } else { &mut others }.push(who);
        }
        // The first of each network first: there is a limit.
        for who in first.into_iter().chain(others) {
            for (family, world, uplink) in uplinks.iter().copied() {
                if let Some(address) = who.address(family) {
                    plan.published(who, world, uplink)?;
                    if asked.port.is_none() {
                        plan.container(who, address, world, uplink)?;
                        plan.neighbour(who, address, all);
                    }
                }
            }
        }
        Ok(plan)
    }

    fn leave_out(&mut self, who: &Endpoint<'_>, text: impl Display) {
        let left_out = LeftOut::of(who.entry, text);
        let is_same =
            |known: &LeftOut| (&known.whose, &known.reason) == (&left_out.whose, &left_out.reason);
        if !self.left_out.iter().any(is_same) {
            self.left_out.push(left_out);
        }
    }

    fn ask(&mut self, mut question: Question<'a>) {
        let (who, from) = (question.who, question.packet.from);
        let is_other = |other: &Question<'_>| {
            other.packet.from == from && other.receiver.index != question.receiver.index
        };
        let down = question.links().find(|link| !link.up || !link.has_carrier);
        if let Some(link) = down {
            let state = if link.up { "has no carrier" } else { "is down" };
            let reason = format!("{} {state}", link.name);
            self.leave_out(who, reason);
        } else if self.questions.iter().any(is_other) {
            self.leave_out(who, format_args!("another container has the address {from}"));
        } else if self.questions.len() >= QUESTIONS_MAX {
            self.leave_out(who, format_args!("only {QUESTIONS_MAX} packets are sent"));
        } else {
            let number = u16::try_from(self.questions.len()).unwrap_or_default();
            if question.direction != Direction::Discovery {
                question.packet.source_port = SOURCE_PORTS.saturating_add(number);
            }
            self.questions.push(question);
        }
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
        let text = family_text(family);
        let gateway = who.gateways.iter().copied().find(|gateway| family.has(*gateway));
        // A network without a gateway has no way to others.
        let Some(gateway) = gateway else { return Ok(()) };
        let Some(to) = who.gateway_link().mac else {
            self.leave_out(who, format_args!("{} has no address", who.gateway_link().name));
            return Ok(());
        };
        let question = |direction, to_address, (transport, port)| Question {
            direction,
            who,
            packet: Packet { from: address, to: to_address, transport, source_port: 0, port },
            from: who.mac,
            to,
            receiver: who.port.clone(),
            goal: None,
        };
        let at_gateway = self.host.rtnl.link_with_address(gateway)?;
        let link = who.gateway_link();
        if routes::elsewhere(self.host, link, gateway, address)?.is_some() {
            self.misrouted.push(who);
        }
        match uplink {
            // The host would tell the container that there is a shorter way.
            Some(uplink) if uplink.index == link.index => self
                .leave_out(who, format_args!("{} is the link to other networks, too", uplink.name)),
            Some(_) if at_gateway.is_some() => {
                for port in WORLD_PORTS {
                    self.ask(question(Direction::World, world, port));
                }
            }
            Some(_) => self.leave_out(
                who,
                format_args!("its gateway {gateway} is not an address of this host"),
            ),
            None => self.leave_out(
                who,
                format_args!("the host has no route of {text} to other networks, such as {world}"),
            ),
        }
        if at_gateway.is_some() && family == IpFamily::V6 {
            let packet = Packet::solicitation(address, gateway, who.mac);
            self.ask(Question { packet, ..question(Direction::Discovery, gateway, DNS) });
        }
        if serves_names(gateway)? {
            self.ask(question(Direction::Gateway, gateway, DNS));
        }
        Ok(())
    }

    /// Asks for packets of a container to another container of the network.
    fn neighbour(&mut self, who: &'a Endpoint<'a>, address: IpAddr, all: &'a [Endpoint<'a>]) {
        let family = IpFamily::of(address);
        let is_isolated = |link: &Link| link.port.as_ref().is_some_and(|port| port.isolated);
        let mut neighbours = all.iter().filter(|other| {
            other.network() == who.network()
                && other.entry.at != who.entry.at
                && other.port.master == who.port.master
                && other.address(family).is_some()
        });
        let are_isolated =
            |other: &Endpoint<'_>| is_isolated(&other.port) && is_isolated(&who.port);
        let has_neighbours = neighbours.clone().next().is_some();
        let Some(other) = neighbours.find(|other| !are_isolated(other)) else {
            if has_neighbours && self.host.options.only.is_some() {
                self.leave_out(who, "its port of the bridge is isolated from other containers");
            }
            return;
        };
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
                goal: Some((to_address, port)),
            });
        }
    }

    /// Asks for the published ports of a container on one family of addresses.
    fn published(
        &mut self,
        who: &'a Endpoint<'a>,
        world: IpAddr,
        uplink: Option<&Link>,
    ) -> Result<()> {
        let family = IpFamily::of(world);
        let is_asked = |mapping: &&Mapping| {
            mapping.host_ip.is_in(family)
                && self.asked.port.is_none_or(|port| port == mapping.host_port)
        };
        let mappings: Vec<Mapping> = who.mappings.iter().filter(is_asked).copied().collect();
        for mapping in mappings {
            if let Err(reason) = self.mapping(who, world, uplink, mapping)? {
                let (port, text) = (mapping.host_port, family_text(family));
                self.leave_out(who, format_args!("published port {port} over {text}: {reason}"));
            }
        }
        Ok(())
    }

    /// Asks for a published port. The inner error is the reason why it cannot be asked.
    fn mapping(
        &mut self,
        who: &'a Endpoint<'a>,
        world: IpAddr,
        uplink: Option<&Link>,
        mapping: Mapping,
    ) -> Result<std::result::Result<(), String>> {
        let family = IpFamily::of(world);
        let Some(uplink) = uplink else {
            return Ok(Err(format!("the host has no route to other networks, such as {world}")));
        };
        let Some(to) = uplink.mac else {
            return Ok(Err(format!("{} has no Ethernet address", uplink.name)));
        };
        if mapping.transport == Transport::Sctp {
            return Ok(Err("packets of SCTP are not sent".into()));
        }
        let addresses = self.host.rtnl.addresses_of(uplink.index, family)?;
        let mut own = addresses.iter().filter(|address| !address.scope_link && address.is_usable());
        let address = match mapping.host_ip.one() {
            Some(one) => own.map(|address| address.net.addr()).find(|address| *address == one),
            None => own.next().map(|address| address.net.addr()),
        };
        let (Some(address), Some(goal)) = (address, who.address(family)) else {
            return Ok(Err(format!("it is not on an address of {}", uplink.name)));
        };
        let (transport, port) = (mapping.transport, mapping.host_port);
        self.ask(Question {
            direction: Direction::Port,
            who,
            packet: Packet { from: world, to: address, transport, source_port: 0, port },
            from: ROUTER,
            to,
            receiver: uplink.clone(),
            goal: Some((goal, mapping.container_port)),
        });
        Ok(Ok(()))
    }

    /// What is left out, in a line for each reason.
    pub(super) fn left_out_lines(&self) -> Vec<String> {
        lines(self.left_out.iter().map(|one| (one.whose.clone(), one.reason.as_str())))
    }

    /// Removes the questions that are not harmless. Returns whether there are some.
    pub(super) fn leave_out_if(
        &mut self,
        reason: &str,
        is_removed: impl Fn(&Question<'_>) -> bool,
    ) -> bool {
        let (removed, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.questions).into_iter().partition(is_removed);
        self.questions = kept;
        removed.iter().for_each(|question| self.leave_out(question.who, reason));
        !removed.is_empty()
    }

    /// Whether the network accepts packets of other networks to its published ports in each filter.
    pub(super) fn publishes_for_all(&self, question: &Question<'_>) -> bool {
        let mut networks = self.host.networks.iter();
        let own = networks.find(|net| net.network.name == *question.who.network());
        matches!(
            own.and_then(|net| net.passage()),
            Some(Passage::Forward { accepts_published: true, .. })
        )
    }

    /// Whether the operator asks about some attachments only.
    pub(super) fn is_about_one(&self) -> bool {
        self.host.options.only.is_some()
    }

    /// The link of an index.
    pub(super) fn link(&self, index: u32) -> Option<&Link> {
        self.host.links.iter().find(|link| link.index == index)
    }
}

/// The packets of containers that were not sent, in a line for each reason.
pub(super) fn lines<'r>(all: impl Iterator<Item = (String, &'r str)>) -> Vec<String> {
    let mut reasons: BTreeMap<&str, (String, usize)> = BTreeMap::new();
    for (whose, reason) in all {
        reasons.entry(reason).or_insert((whose, 0)).1 += 1;
    }
    let line = |(reason, (whose, count)): (&str, (String, usize))| match count {
        1 => format!("{whose}: {reason}"),
        _ => format!("{whose}, and {} more: {reason}", count - 1),
    };
    reasons.into_iter().map(line).collect()
}

pub(super) fn family_text(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

const DNS: (Transport, u16) = (Transport::Udp, 53);

/// Whether a program of the host waits for UDP datagrams to port 53 of this address.
fn serves_names(gateway: IpAddr) -> Result<bool> {
    let waiting = sock_diag::waiting(DNS.0)?;
    Ok(waiting.iter().any(|socket| socket.port == DNS.1 && socket.is_on(Some(gateway))))
}
