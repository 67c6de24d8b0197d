//! The command that makes the program of a rule accept the packets that the rule drops.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{Base, Expr, Family, Hook, Nft, Table, Trace, Transport};
use crate::netlink::rtnl::Link;

use super::super::finding::quoted;
use super::super::manager::{Manager, is_of_iptables};
use super::ask::Way;
use super::plan::{Direction, Question};

/// A rule, or the policy of a base chain, that drops packets.
pub(super) struct Drop {
    pub(super) manager: Manager,
    family: Family,
    /// The name of the table.
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
}

impl Drop {
    pub(super) fn of(nft: &Nft, way: &Way, trace: &Trace) -> Result<Self> {
        let table = Table { family: trace.family, name: &trace.table };
        let chains = nft.chains(table)?;
        let rules = nft.rules_of(table, &trace.chain)?;
        let number = rules.iter().position(|rule| Some(rule.handle) == trace.rule);
        let rule = number.and_then(|number| rules.get(number));
        let of_table = way
            .chains
            .iter()
            .rev()
            .filter(|(family, table, _)| (*family, table) == (trace.family, &trace.table));
        let base_of =
            |name: &String| chains.iter().find(|chain| chain.name == *name).and_then(|it| it.base);
        let names = chains.iter().map(|chain| chain.name.as_str());
        Ok(Self {
            manager: Manager::of(table, &trace.chain, names.clone()),
            family: trace.family,
            table: trace.table.clone(),
            chain: trace.chain.clone(),
            rule: trace.rule,
            number: number.map(|at| at + 1),
            has_docker_user: names.clone().any(|name| name == DOCKER_USER),
            base: of_table.filter_map(|(.., chain)| base_of(chain)).next(),
            is_by_chance: rule.is_some_and(|rule| rule.exprs.iter().any(is_of_chance)),
        })
    }

    fn table(&self) -> Table<'_> {
        Table { family: self.family, name: &self.table }
    }

    /// The end of a line of hops: `forward: rule 7 of inet fw4 drops`.
    pub(super) fn hop(&self) -> String {
        format!("{}: {} of {} drops", self.chain, self.rule_text(), self.table())
    }

    fn rule_text(&self) -> String {
        self.rule.map_or_else(|| "the policy".into(), |handle| format!("rule {handle}"))
    }

    /// The rule with its program, and the command that shows it.
    pub(super) fn text(&self) -> String {
        let (table, chain) = (self.table(), &self.chain);
        format!(
            "{} of chain {chain}, table {table} ({}); `nft -a list chain {table} {}` shows it",
            self.rule_text(),
            self.manager.text(),
            quoted(chain)
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
                    self.table(),
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
            _ if !is_of_iptables(self.table(), &self.chain) => self.nft(&rule, question.direction),
            // iptables knows no incoming link at POSTROUTING.
            _ if rule.stage == Stage::Leaving && question.direction != Direction::Port => {
                self.in_words(question)
            }
            _ => self.iptables(&rule, question),
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
        format!("chain {} of table {} has to accept packets {what}", self.chain, self.table())
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
        let is_by_link = !matches!(self.family, Family::Bridge | Family::Netdev);
        let mut conditions = vec![rule.nft(is_by_link)];
        if is_by_link && direction != Direction::Gateway && self.sees_answers() {
            conditions.push("ct state established,related".into());
        }
        let command = |condition: &String| {
            let (table, chain) = (self.table(), &self.chain);
            let text = format!("{verb} rule {table} {chain}{position} {condition} accept");
            format!("nft {}", quoted(text))
        };
        conditions.iter().map(command).collect::<Vec<_>>().join(" && ")
    }

    /// Rules in the chain that drops the packet; in the chain of the administrator if the chain is Docker's.
    fn iptables(&self, rule: &Accepted, question: &Question<'_>) -> String {
        let program = if self.family == Family::Ip6 { "ip6tables-nft" } else { "iptables-nft" };
        let place = match (self.has_docker_user, self.rule, self.number) {
            (true, _, _) if self.sees_answers() => format!("-I {DOCKER_USER} 1"),
            (_, Some(_), Some(number)) => format!("-I {} {number}", quoted(&self.chain)),
            (_, Some(_), None) => return format!("edit the rules: {}", self.in_words(question)),
            (_, None, _) => format!("-A {}", quoted(&self.chain)),
        };
        let table = match self.table.as_str() {
            "filter" => String::new(),
            name => format!("-t {name} "),
        };
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
        let line = quoted(format!("{} accept", rule.nft(true)));
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

/// What a rule compares of a packet.
enum Part<'a> {
    In(&'a str),
    Out(&'a str),
    From(IpNet),
    To(IpNet),
    /// The destination port.
    Port(Transport, u16),
    /// The destination was translated.
    Translated,
}

/// A subnet; a single address without the length of its prefix.
fn plain(net: IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
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

    /// What the packets have. `by_link`: the chain knows the links between which they are routed.
    fn parts(&self, by_link: bool) -> Vec<Part<'_>> {
        let (subnet, port) = (self.subnet, Part::Port(self.transport, self.port));
        let uplink = self.uplink.as_deref();
        let own = self.own.as_deref().filter(|_| by_link);
        let is_routed = by_link && matches!(self.stage, Stage::Routed | Stage::Leaving);
        let [out, back] = [uplink, own].map(|link| link.filter(|_| is_routed).map(Part::Out));
        let from = own.map_or(Part::From(subnet), Part::In);
        let parts = match self.direction {
            Direction::World => [Some(from), out, None],
            Direction::Port if by_link && self.stage == Stage::Sent => {
                let (address, port) = self.sent_to;
                let port = Part::Port(self.transport, port);
                [uplink.map(Part::In), Some(Part::To(address.into())), Some(port)]
            }
            Direction::Port => {
                let translated = by_link.then_some(Part::Translated);
                [translated, Some(Part::To(subnet)), Some(port)]
            }
            Direction::Container if own.is_some() => [Some(from), back, None],
            Direction::Container => [Some(from), Some(Part::To(subnet)), None],
            Direction::Gateway => [Some(from), by_link.then_some(port), None],
        };
        parts.into_iter().flatten().collect()
    }

    /// The condition of a rule of nft.
    fn nft(&self, by_link: bool) -> String {
        let ip = if self.family == IpFamily::V4 { "ip" } else { "ip6" };
        let text = |part: &Part<'_>| match part {
            Part::In(link) => format!(r#"iifname "{link}""#),
            Part::Out(link) => format!(r#"oifname "{link}""#),
            Part::From(net) => format!("{ip} saddr {}", plain(*net)),
            Part::To(net) => format!("{ip} daddr {}", plain(*net)),
            Part::Port(transport, port) => format!("{} dport {port}", transport.name()),
            Part::Translated => "ct status dnat".into(),
        };
        self.parts(by_link).iter().map(text).collect::<Vec<_>>().join(" ")
    }

    /// The condition of a rule of iptables.
    fn iptables(&self) -> String {
        let text = |part: &Part<'_>| match part {
            Part::In(link) => format!("-i {}", quoted(link)),
            Part::Out(link) => format!("-o {}", quoted(link)),
            Part::From(net) => format!("-s {}", plain(*net)),
            Part::To(net) => format!("-d {}", plain(*net)),
            Part::Port(transport, port) => format!("-p {} --dport {port}", transport.name()),
            Part::Translated => "-m conntrack --ctstate DNAT".into(),
        };
        self.parts(true).iter().map(text).collect::<Vec<_>>().join(" ")
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
