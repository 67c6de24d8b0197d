//! The packets that a rule has to accept, as conditions of each program.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::names::IpFamily;
use crate::netlink::nft::{Base, Hook, Transport};
use crate::netlink::rtnl::Link;

use super::super::finding::quoted;
use super::plan::{Direction, Question};

/// Which packets a fix accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extent {
    /// All packets of the network in this direction: none passes.
    Network,
    /// Those to the port of the packet: packets to others pass.
    Port,
    /// Those of the container to this port: those of other containers pass.
    Container,
}

/// The packets to accept.
pub(super) struct Accepted {
    pub(super) direction: Direction,
    /// The bridge that the containers are behind. `None`: each container has its own link.
    own: Option<String>,
    uplink: Option<String>,
    pub(super) family: IpFamily,
    /// The subnet of the containers.
    subnet: IpNet,
    extent: Extent,
    transport: Transport,
    /// The port of the container for published ports; else that of the packet.
    port: u16,
    /// The destination of the packet before a translation: its address and its port.
    sent_to: (IpAddr, u16),
    pub(super) stage: Stage,
}

/// What a chain knows of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// At prerouting, before the destination is translated. The link that the packet leaves through is unknown.
    Sent,
    /// At prerouting, after that.
    Translated,
    /// Both links are known.
    Routed,
    /// The source can be another one already.
    Leaving,
}

impl Stage {
    fn of(base: Option<Base>) -> Self {
        match base {
            Some(Base { hook: Hook::Prerouting, priority, .. }) if priority <= DSTNAT => Self::Sent,
            Some(Base { hook: Hook::Prerouting, .. }) => Self::Translated,
            Some(Base { hook: Hook::Postrouting, .. }) => Self::Leaving,
            _ => Self::Routed,
        }
    }
}

/// The priority at which destinations are translated.
const DSTNAT: i32 = -100;

/// What a rule compares of a packet.
enum Part<'a> {
    In(&'a str),
    Out(&'a str),
    From(IpNet),
    To(IpNet),
    /// The destination port.
    Port(Transport, u16),
    SourcePort(Transport, u16),
    /// The destination was translated.
    Translated,
    /// It is part of neighbour discovery.
    Discovery,
}

/// A subnet; a single address without the length of its prefix.
fn plain(net: IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

impl Accepted {
    pub(super) fn of(
        question: &Question<'_>,
        extent: Extent,
        (own, outside): (&Link, Option<&Link>),
        base: Option<Base>,
    ) -> Self {
        let family = IpFamily::of(question.packet.from);
        let net = question.who.net(family).unwrap_or_else(|| family.everything());
        let is_single = question.direction == Direction::Port || extent == Extent::Container;
        let is_own = own.index != question.who.port.index;
        Self {
            direction: question.direction,
            own: is_own.then(|| own.name.clone()),
            uplink: outside.map(|link| link.name.clone()),
            family,
            subnet: if is_single { net.addr().into() } else { net.trunc() },
            extent,
            transport: question.packet.transport,
            port: question.goal.map_or(question.packet.port, |(_, port)| port),
            sent_to: (question.packet.to, question.packet.port),
            stage: Stage::of(base),
        }
    }

    /// Whether a chain can select the packets. After postrouting has translated the source, it knows them by their link only.
    pub(super) fn has_conditions(&self) -> bool {
        self.stage != Stage::Leaving || self.own.is_some() || self.direction == Direction::Port
    }

    /// What the packets have. `by_link`: the chain knows the links between which they are routed.
    fn parts(&self, by_link: bool) -> Vec<Part<'_>> {
        let uplink = self.uplink.as_deref();
        let own = self.own.as_deref().filter(|_| by_link);
        let is_routed = by_link && matches!(self.stage, Stage::Routed | Stage::Leaving);
        let out = |link| is_routed.then_some(link).flatten().map(Part::Out);
        let from = match own {
            Some(own) if self.extent != Extent::Container => Part::In(own),
            _ => Part::From(self.subnet),
        };
        let port = Part::Port(self.transport, self.port);
        let is_by_port = self.extent != Extent::Network;
        let parts = match self.direction {
            Direction::World => [Some(from), out(uplink), is_by_port.then_some(port)],
            Direction::Port if by_link && self.stage == Stage::Sent => {
                let (address, port) = self.sent_to;
                let port = Part::Port(self.transport, port);
                [uplink.map(Part::In), Some(Part::To(address.into())), Some(port)]
            }
            Direction::Port => {
                let translated = by_link.then_some(Part::Translated);
                [translated, Some(Part::To(self.subnet)), Some(port)]
            }
            Direction::Container => {
                let to = match own {
                    Some(_) => out(own),
                    None => {
                        Some(Part::To(self.subnet)).filter(|_| self.extent != Extent::Container)
                    }
                };
                [Some(from), to, is_by_port.then_some(port)]
            }
            Direction::Gateway => [Some(from), None, (by_link || is_by_port).then_some(port)],
            Direction::Discovery => [Some(from), Some(Part::Discovery), None],
        };
        parts.into_iter().flatten().collect()
    }

    /// The condition for the answers, in a chain that knows no connections. `None`: that of the packets selects them, too.
    pub(super) fn answers(&self) -> Option<String> {
        let parts = self.parts(false).into_iter().map(|part| match part {
            Part::From(net) => Part::To(net),
            Part::To(net) => Part::From(net),
            Part::Port(transport, port) => Part::SourcePort(transport, port),
            other => other,
        });
        (self.extent != Extent::Network).then(|| self.text_of(parts))
    }

    /// The condition of a rule of nft.
    pub(super) fn nft(&self, by_link: bool) -> String {
        self.text_of(self.parts(by_link).into_iter())
    }

    fn text_of<'p>(&self, parts: impl Iterator<Item = Part<'p>>) -> String {
        let ip = if self.family == IpFamily::V4 { "ip" } else { "ip6" };
        let text = |part: Part<'_>| match part {
            Part::In(link) => format!(r#"iifname "{link}""#),
            Part::Out(link) => format!(r#"oifname "{link}""#),
            Part::From(net) => format!("{ip} saddr {}", plain(net)),
            Part::To(net) => format!("{ip} daddr {}", plain(net)),
            Part::Port(transport, port) => format!("{} dport {port}", transport.name()),
            Part::SourcePort(transport, port) => format!("{} sport {port}", transport.name()),
            Part::Translated => "ct status dnat".into(),
            Part::Discovery => "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert }".into(),
        };
        parts.map(text).collect::<Vec<_>>().join(" ")
    }

    /// The condition of a rule of iptables.
    pub(super) fn iptables(&self) -> String {
        let text = |part: &Part<'_>| match part {
            Part::In(link) => format!("-i {}", quoted(link)),
            Part::Out(link) => format!("-o {}", quoted(link)),
            Part::From(net) => format!("-s {}", plain(*net)),
            Part::To(net) => format!("-d {}", plain(*net)),
            Part::Port(transport, port) => format!("-p {} --dport {port}", transport.name()),
            Part::SourcePort(transport, port) => format!("-p {} --sport {port}", transport.name()),
            Part::Translated => "-m conntrack --ctstate DNAT".into(),
            Part::Discovery => "-p ipv6-icmp".into(),
        };
        self.parts(true).iter().map(text).collect::<Vec<_>>().join(" ")
    }

    /// firewalld forwards packets from the sources of the zone trusted.
    pub(super) fn firewalld(&self) -> Vec<String> {
        let add = format!("firewall-cmd --permanent --zone=trusted --add-source={}", self.subnet);
        vec![add, "firewall-cmd --reload".into()]
    }

    pub(super) fn ufw(&self) -> String {
        let (subnet, port) = (self.subnet, self.port);
        let (inside, outside) = match &self.own {
            Some(own) => (format!(" in on {}", quoted(own)), format!(" out on {}", quoted(own))),
            None => (String::new(), String::new()),
        };
        let on = |way: &str| match &self.uplink {
            Some(link) => format!(" {way} on {}", quoted(link)),
            None => String::new(),
        };
        let protocol = self.transport.name();
        let to_port = match self.extent {
            Extent::Network => String::new(),
            _ => format!(" port {port} proto {protocol}"),
        };
        match self.direction {
            Direction::World => {
                let to = if to_port.is_empty() { "" } else { " to any" };
                format!("ufw route allow{inside}{} from {subnet}{to}{to_port}", on("out"))
            }
            Direction::Port => format!(
                "ufw route allow{}{outside} to {} port {port} proto {protocol}",
                on("in"),
                subnet.addr()
            ),
            Direction::Container => {
                let to = if self.extent == Extent::Container {
                    "any".into()
                } else {
                    subnet.to_string()
                };
                format!("ufw route allow{inside}{outside} from {subnet} to {to}{to_port}")
            }
            Direction::Gateway | Direction::Discovery => {
                format!("ufw allow{inside} from {subnet} to any port {port} proto {protocol}")
            }
        }
    }
}
