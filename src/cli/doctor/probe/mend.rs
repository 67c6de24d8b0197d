//! Whose a rule that drops packets is, and the command that makes its program accept them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{Base, Expr, Family, Hook, Nft, Table, Trace, Transport};
use crate::netlink::rtnl::Link;

use super::super::finding::quoted;
use super::ask::Way;
use super::plan::{Direction, Question};
use crate::cli::output::NAME;

/// The program that a chain belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manager {
    Cnibox,
    Firewalld,
    /// The firewall of OpenWrt.
    Fw4,
    Ufw,
    Docker,
    KubeProxy,
    Iptables,
    /// Rules of the administrator, or of another program, in nf_tables.
    Nft,
}

impl Manager {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Cnibox => NAME,
            Self::Firewalld => "firewalld",
            Self::Fw4 => "fw4, the firewall of OpenWrt",
            Self::Ufw => "ufw",
            Self::Docker => "Docker",
            Self::KubeProxy => "kube-proxy",
            Self::Iptables => "iptables",
            Self::Nft => "nftables",
        }
    }

    /// The program of a chain, by the names of the table and of its chains.
    fn of(family: &str, table: &str, chain: &str, chains: &[String]) -> Self {
        let has = |prefix: &str| chains.iter().any(|name| name.starts_with(prefix));
        let is_iptables = matches!(family, "ip" | "ip6")
            && ["filter", "nat", "mangle", "raw", "security"].contains(&table)
            && chain.chars().all(|c| c.is_ascii_uppercase() || "-_0123456789".contains(c));
        match table {
            NAME => Self::Cnibox,
            "firewalld" => Self::Firewalld,
            "fw4" => Self::Fw4,
            "kube-proxy" => Self::KubeProxy,
            _ if chain.starts_with("CNI-") => Self::Cnibox,
            _ if chain.starts_with("ufw") => Self::Ufw,
            _ if chain.starts_with("KUBE-") => Self::KubeProxy,
            _ if chain.starts_with("DOCKER") => Self::Docker,
            _ if is_iptables && has("ufw-") | has("ufw6-") => Self::Ufw,
            _ if is_iptables => Self::Iptables,
            _ => Self::Nft,
        }
    }
}

/// A rule, or the policy of a base chain, that drops packets.
pub(super) struct Drop {
    pub(super) manager: Manager,
    /// The name of a table, with its family.
    table: String,
    chain: String,
    rule: Option<u64>,
    /// The number of the rule in its chain, from 1.
    number: Option<usize>,
    /// The table has the chain for rules of Docker's administrator.
    has_docker_user: bool,
    /// The chain that the packet came from, if that is a base chain.
    base: Option<Base>,
    /// The rule drops by a limit, a count or at random: the next packet can pass.
    pub(super) is_by_chance: bool,
    family: Option<IpFamily>,
    name: String,
}

impl Drop {
    pub(super) fn of(nft: &Nft, way: &Way, trace: &Trace) -> Result<Self> {
        let (mut chains, mut bases, mut number) = (Vec::new(), BTreeMap::new(), None);
        let mut is_by_chance = false;
        let family = match trace.family {
            "inet" => Some(Family::Inet),
            "ip" => Some(Family::Ip),
            "ip6" => Some(Family::Ip6),
            "bridge" => Some(Family::Bridge),
            _ => None,
        };
        if let Some(family) = family {
            let table = Table { family, name: &trace.table };
            for chain in nft.chains(table)? {
                bases.extend(chain.base.map(|base| (chain.name.clone(), base)));
                chains.push(chain.name);
            }
            let rules = nft.rules_of(table, &trace.chain)?;
            number = rules.iter().position(|rule| Some(rule.handle) == trace.rule);
            let rule = number.and_then(|number| rules.get(number));
            is_by_chance = rule.is_some_and(|rule| rule.exprs.iter().any(is_of_chance));
        }
        let of_table = way
            .chains
            .iter()
            .rev()
            .filter(|(family, table, _)| (*family, table) == (trace.family, &trace.table));
        let base = of_table.filter_map(|(.., chain)| bases.get(chain).copied()).next();
        Ok(Self {
            manager: Manager::of(trace.family, &trace.table, &trace.chain, &chains),
            table: format!("{} {}", trace.family, trace.table),
            chain: trace.chain.clone(),
            rule: trace.rule,
            number: number.map(|at| at + 1),
            has_docker_user: chains.iter().any(|name| name == DOCKER_USER),
            base,
            is_by_chance,
            family: match trace.family {
                "ip" => Some(IpFamily::V4),
                "ip6" => Some(IpFamily::V6),
                _ => None,
            },
            name: trace.table.clone(),
        })
    }

    /// The end of a line of hops: `forward: rule 7 of inet fw4 drops`.
    pub(super) fn hop(&self) -> String {
        format!("{}: {} of {} drops", self.chain, self.rule_text(), self.table)
    }

    fn rule_text(&self) -> String {
        self.rule.map_or_else(|| "the policy".into(), |handle| format!("rule {handle}"))
    }

    /// The rule with its program, and the command that shows it.
    pub(super) fn text(&self) -> String {
        format!(
            "{} of chain {}, table {} ({}); `nft -a list chain {} {}` shows it",
            self.rule_text(),
            self.chain,
            self.table,
            self.manager.text(),
            self.table,
            quoted(&self.chain)
        )
    }

    /// The command that accepts the packet; instructions in words if no command can. `own` is the link of the host that the
    /// containers are behind, `outside` that to other networks.
    pub(super) fn fix(
        &self,
        question: &Question<'_>,
        own: &Link,
        outside: Option<&Link>,
    ) -> String {
        let rule = Accepted::of(question, own, outside, self.base);
        match self.manager {
            _ if !rule.has_conditions() => self.in_words(question),
            Manager::Cnibox => match self.rule {
                Some(handle) => format!(
                    "cnibox reconcile; if another program added the rule: nft delete rule {} {} handle {handle}",
                    self.table,
                    quoted(&self.chain)
                ),
                None => "cnibox reconcile".into(),
            },
            // A source of a zone would open more than the port.
            Manager::Firewalld if question.direction == Direction::Port => self.in_words(question),
            Manager::Firewalld => rule.firewalld(),
            Manager::Ufw => rule.ufw(),
            Manager::Fw4 => self.fw4(&rule, question.direction),
            Manager::KubeProxy => {
                format!("edit the rules of kube-proxy: {}", self.in_words(question))
            }
            // iptables knows no incoming link at POSTROUTING.
            Manager::Docker | Manager::Iptables
                if rule.stage == Stage::Leaving && question.direction != Direction::Port =>
            {
                self.in_words(question)
            }
            Manager::Docker | Manager::Iptables => self.iptables(&rule, question),
            Manager::Nft => self.nft(&rule, question.direction),
        }
    }

    fn in_words(&self, question: &Question<'_>) -> String {
        let network = &question.who.entry.network;
        let what = match question.goal {
            Some((address, port)) => {
                let transport = question.packet.transport.name();
                format!("to {address}, {transport} port {port}, and their answers")
            }
            None => format!("of {network}"),
        };
        format!("chain {} of table {} has to accept packets {what}", self.chain, self.table)
    }

    /// Whether the packets of the connection in both directions pass the chain.
    fn sees_answers(&self) -> bool {
        self.base.is_some_and(|base| base.hook == Hook::Forward)
    }

    fn nft(&self, rule: &Accepted, direction: Direction) -> String {
        let (verb, position) = match self.rule {
            Some(handle) => ("insert", format!(" handle {handle}")),
            None => ("add", String::new()),
        };
        let is_by_link = !self.table.starts_with("bridge") && !self.table.starts_with("netdev");
        let mut conditions = vec![if is_by_link { rule.nft() } else { rule.nft_by_address() }];
        if is_by_link && direction != Direction::Gateway && self.sees_answers() {
            conditions.push("ct state established,related".into());
        }
        let command = |condition: &String| {
            let text =
                format!("{verb} rule {} {}{position} {condition} accept", self.table, self.chain);
            format!("nft {}", quoted(text))
        };
        conditions.iter().map(command).collect::<Vec<_>>().join(" && ")
    }

    /// Rules in the chain that drops the packet; in the chain of the administrator if the chain is Docker's.
    fn iptables(&self, rule: &Accepted, question: &Question<'_>) -> String {
        let program = match self.family {
            Some(IpFamily::V6) => "ip6tables-nft",
            _ => "iptables-nft",
        };
        let place = match (self.has_docker_user, self.rule, self.number) {
            (true, _, _) if self.sees_answers() => format!("-I {DOCKER_USER} 1"),
            (_, Some(_), Some(number)) => format!("-I {} {number}", quoted(&self.chain)),
            (_, Some(_), None) => return format!("edit the rules: {}", self.in_words(question)),
            (_, None, _) => format!("-A {}", quoted(&self.chain)),
        };
        let table =
            if self.name == "filter" { String::new() } else { format!("-t {} ", self.name) };
        let mut conditions = vec![rule.iptables()];
        if self.sees_answers() && question.direction != Direction::Gateway {
            conditions.push("-m conntrack --ctstate RELATED,ESTABLISHED".into());
        }
        let command =
            |condition: &String| format!("{program} {table}{place} {condition} -j ACCEPT");
        conditions.iter().map(command).collect::<Vec<_>>().join(" && ")
    }

    /// The commands for the tables of iptables-legacy, whose rules are not traced.
    pub(super) fn legacy(question: &Question<'_>, own: &Link, outside: Option<&Link>) -> String {
        let rule = Accepted::of(question, own, outside, None);
        let program = match rule.family {
            IpFamily::V4 => "iptables-legacy",
            IpFamily::V6 => "ip6tables-legacy",
        };
        let conditions = [rule.iptables(), "-m conntrack --ctstate RELATED,ESTABLISHED".into()];
        conditions
            .map(|condition| format!("{program} -I FORWARD 1 {condition} -j ACCEPT"))
            .join(" && ")
    }

    /// fw4 includes the files of this directory at the beginning of its chain.
    fn fw4(&self, rule: &Accepted, direction: Direction) -> String {
        let chain = if direction == Direction::Gateway { "input" } else { "forward" };
        let directory = format!("/usr/share/nftables.d/chain-pre/{chain}");
        let line = quoted(format!("{} accept", rule.nft()));
        format!("mkdir -p {directory} && echo {line} >> {directory}/cnibox.nft && fw4 reload")
    }
}

const DOCKER_USER: &str = "DOCKER-USER";

/// The packets to accept.
struct Accepted {
    direction: Direction,
    /// The bridge that the containers are behind. `None`: each container has its own link.
    own: Option<String>,
    uplink: Option<String>,
    family: IpFamily,
    /// The subnet of the containers.
    subnet: IpNet,
    transport: Transport,
    /// The port of the container for published ports; else that of the packet.
    port: u16,
    /// The destination of the packet before a translation: its address and its port.
    sent_to: (IpAddr, u16),
    stage: Stage,
}

/// What a chain knows of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
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

/// An expression by which a rule matches one packet and not another one that is equal.
fn is_of_chance(expr: &Expr) -> bool {
    match expr {
        Expr::Other(name) => ["limit", "connlimit", "numgen", "quota"].contains(&name.as_str()),
        Expr::XtMatch(one) => ["limit", "hashlimit", "connlimit", "statistic", "quota", "recent"]
            .contains(&one.name.as_str()),
        _ => false,
    }
}

impl Accepted {
    fn of(question: &Question<'_>, own: &Link, outside: Option<&Link>, base: Option<Base>) -> Self {
        let family = IpFamily::of(question.packet.from);
        let net = question.who.net(family).unwrap_or_else(|| family.everything());
        let is_own = own.index != question.who.port.index;
        Self {
            direction: question.direction,
            own: is_own.then(|| own.name.clone()),
            uplink: outside.map(|link| link.name.clone()),
            family,
            subnet: if question.direction == Direction::Port {
                net.addr().into()
            } else {
                net.trunc()
            },
            transport: question.packet.transport,
            port: question.goal.map_or(question.packet.port, |(_, port)| port),
            sent_to: (question.packet.to, question.packet.port),
            stage: Stage::of(base),
        }
    }

    /// Whether a chain can select the packets. After postrouting has translated the source, it knows them by their link only.
    fn has_conditions(&self) -> bool {
        self.stage != Stage::Leaving || self.own.is_some() || self.direction == Direction::Port
    }

    fn nft(&self) -> String {
        let from = match &self.own {
            Some(own) => format!(r#"iifname "{own}""#),
            None => self.nft_by_address(),
        };
        let is_routed = matches!(self.stage, Stage::Routed | Stage::Leaving);
        let to = |link: &Option<String>| match link {
            Some(link) if is_routed => format!(r#" oifname "{link}""#),
            _ => String::new(),
        };
        let ip = if self.family == IpFamily::V4 { "ip" } else { "ip6" };
        let transport = self.transport.name();
        match self.direction {
            Direction::World => from + &to(&self.uplink),
            Direction::Port if self.stage == Stage::Sent => {
                let (address, port) = self.sent_to;
                let link = self.uplink.as_deref().unwrap_or_default();
                format!(r#"iifname "{link}" {ip} daddr {address} {transport} dport {port}"#)
            }
            Direction::Port => {
                let (address, port) = (self.subnet.addr(), self.port);
                format!("ct status dnat {ip} daddr {address} {transport} dport {port}")
            }
            Direction::Container => from + &to(&self.own),
            Direction::Gateway => format!("{from} udp dport {}", self.port),
        }
    }

    /// A condition that also a chain of a bridge, or of a link, can have.
    fn nft_by_address(&self) -> String {
        let ip = if self.family == IpFamily::V4 { "ip" } else { "ip6" };
        let end = if self.direction == Direction::Port { "daddr" } else { "saddr" };
        let to = match self.direction {
            Direction::Container => format!(" {ip} daddr {}", self.subnet),
            Direction::Port => format!(" {} dport {}", self.transport.name(), self.port),
            _ => String::new(),
        };
        format!("{ip} {end} {}{to}", self.subnet)
    }

    fn iptables(&self) -> String {
        let from = match &self.own {
            Some(own) => format!("-i {}", quoted(own)),
            None if self.direction == Direction::Container => {
                format!("-s {0} -d {0}", self.subnet)
            }
            None => format!("-s {}", self.subnet),
        };
        let is_routed = matches!(self.stage, Stage::Routed | Stage::Leaving);
        let to = |link: &Option<String>| match link {
            Some(link) if is_routed => format!(" -o {}", quoted(link)),
            _ => String::new(),
        };
        let transport = self.transport.name();
        match self.direction {
            Direction::World => from + &to(&self.uplink),
            Direction::Port if self.stage == Stage::Sent => {
                let (address, port) = self.sent_to;
                let link = self.uplink.as_ref().map_or_else(String::new, quoted);
                format!("-i {link} -d {address} -p {transport} --dport {port}")
            }
            Direction::Port => {
                let (address, port) = (self.subnet.addr(), self.port);
                format!("-d {address} -p {transport} --dport {port} -m conntrack --ctstate DNAT")
            }
            Direction::Container => from + &to(&self.own),
            Direction::Gateway => format!("{from} -p udp --dport {}", self.port),
        }
    }

    /// firewalld forwards packets from the sources of the zone trusted.
    fn firewalld(&self) -> String {
        let add = format!("firewall-cmd --permanent --zone=trusted --add-source={}", self.subnet);
        format!("{add} && firewall-cmd --reload")
    }

    fn ufw(&self) -> String {
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
        match self.direction {
            Direction::World => format!("ufw route allow{inside}{} from {subnet}", on("out")),
            Direction::Port => format!(
                "ufw route allow{}{outside} to {} port {port} proto {protocol}",
                on("in"),
                subnet.addr()
            ),
            Direction::Container => {
                format!("ufw route allow{inside}{outside} from {subnet} to {subnet}")
            }
            Direction::Gateway => {
                format!("ufw allow{inside} from {subnet} to any port {port} proto {protocol}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_has_a_program() {
        let ufw = ["FORWARD".to_owned(), "ufw-before-forward".into()];
        for (family, table, chain, chains, expected) in [
            ("inet", "firewalld", "filter_FORWARD", &[][..], Manager::Firewalld),
            ("inet", "fw4", "forward", &[], Manager::Fw4),
            ("ip", "filter", "FORWARD", &ufw, Manager::Ufw),
            ("ip", "filter", "ufw-user-forward", &[], Manager::Ufw),
            ("ip", "filter", "FORWARD", &[], Manager::Iptables),
            ("ip6", "raw", "PREROUTING", &[], Manager::Iptables),
            ("ip", "filter", "DOCKER-USER", &[], Manager::Docker),
            ("ip", "filter", "KUBE-FORWARD", &[], Manager::KubeProxy),
            ("ip", "kube-proxy", "filter-forward", &[], Manager::KubeProxy),
            ("inet", "filter", "forward", &[], Manager::Nft),
            ("ip", "filter", "forward", &[], Manager::Nft),
            ("ip", NAME, "FORWARD", &[], Manager::Cnibox),
        ] {
            let found = Manager::of(family, table, chain, chains);
            assert_eq!(found, expected, "{family} {table} {chain}");
        }
    }
}
