//! `cnibox doctor --probe`: asks the kernel which rule of the host drops packets of the containers.
//!
//! A packet of a living container is put into the receive path of its port, and one of another host into that of the uplink. The
//! kernel traces it through all rules; a table of the probe drops it behind the last hook. So nothing of it leaves the host or
//! reaches a program. Counters of rules, limits, quotas and rules with `log` see it.

mod ask;
mod may;
mod mend;
mod packets;
mod plan;
mod risks;

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::error::Result;
use crate::kernel::sysctl;
use crate::names::{IpFamily, NetworkName};
use crate::netlink::nft::{Nft, Trap};
use crate::netlink::rtnl::Link;
use crate::netlink::xtables;
use crate::plugin::life::Life;
use crate::runtime::cache::CacheEntry;

use super::finding::{Finding, Findings, Harm};
use super::host::Host;
use super::manager::Manager;
use ask::{Answer, Asker, LostAt, REVERSE_PATH, Way};
use mend::Drop;
use plan::{Direction, Endpoint, Plan, Question, family_text};

/// What the operator asks.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// Only this published port.
    pub(super) port: Option<u16>,
    /// Also where packets do more than count.
    pub(super) force: bool,
}

/// What the probe has done.
pub(super) struct Probed {
    /// The way of each packet, in a line.
    pub(super) ways: Vec<String>,
    /// The line if there is no fault, unless everything was asked.
    pub(super) healthy: Option<String>,
}

/// Sends the packets, and adds a finding for each rule that drops one. `all` has all attachments of the host. Removes what `found`
/// has of filters whose packets all pass.
pub(super) fn probe(
    host: &Host<'_>,
    all: &[(CacheEntry, Life)],
    asked: Asked,
    found: &mut Findings,
) -> Result<Probed> {
    let mut left_out = Vec::new();
    let endpoints = Endpoint::all(host, all, &mut left_out)?;
    let mut plan = Plan::make(host, asked, &endpoints, left_out)?;
    let nft = Nft::open()?;
    // The error of a kernel without nf_tables.
    nft.generation()?;
    let bridges = Trap::can_bridge()?;
    if !bridges {
        // Without tables of bridges nothing stops a frame between two ports.
        let reason = "the kernel has no tables of bridges (CONFIG_NF_TABLES_BRIDGE)";
        plan.leave_out_if(reason, |question| question.direction == Direction::Container);
    }
    let mut risky = false;
    if !asked.force {
        for risk in risks::risks(host, &nft, &plan.questions)? {
            risky |= plan.leave_out_if(&risk.reason, |question| risk.concerns(question));
        }
    }
    let mut reports = Reports::default();
    reports.0.extend(plan.misrouted.iter().map(|one| Fault::misrouted(&plan, one)));
    let mut ways = Vec::new();
    let mut sent: Vec<&Question<'_>> = Vec::new();
    if !plan.questions.is_empty() {
        let asker = Asker::new(host, &plan.questions, bridges)?;
        for question in &plan.questions {
            let Some(answer) = asker.ask(question)? else { break };
            let report = Report::of(&nft, &plan, question, &answer)?;
            sent.push(question);
            ways.push(report.line.clone());
            reports.add(question, report);
        }
    }
    let mut not_sent = plan.left_out_lines();
    if sent.len() < plan.questions.len() {
        let late = plan.questions.len() - sent.len();
        not_sent.push(format!("{late} packets: the time for the others was too long"));
    }
    may::forget(&mut found.filters, &plan, &sent);
    reports.0.into_iter().for_each(|fault| fault.add_to(found));
    let healthy = (!not_sent.is_empty()).then(|| healthy(&sent));
    if !not_sent.is_empty() {
        let what = "not asked: some packets of containers were not sent".into();
        let why = "It is unknown whether the host drops them.";
        let fix = if risky { "cnibox doctor --probe --force" } else { "" }.into();
        let harm = Harm::Note;
        found.list.push(Finding { harm, what, why, fix, lines: not_sent, ..Finding::default() });
    }
    Ok(Probed { ways, healthy })
}

/// `no fault found in what was asked: 12 packets of 2 networks`
fn healthy(sent: &[&Question<'_>]) -> String {
    let networks: BTreeSet<_> = sent.iter().map(|question| question.who.network()).collect();
    let counted = |count: usize, name: &str| match count {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    };
    let (packets, networks) = (counted(sent.len(), "packet"), counted(networks.len(), "network"));
    if sent.is_empty() {
        return "no fault found in what was asked: no packet was sent".into();
    }
    format!("no fault found in what was asked: {packets} of {networks}")
}

/// The result of one question.
struct Report {
    /// The way of the packet.
    line: String,
    fault: Option<Fault>,
}

/// Packets that do not pass, for one reason.
struct Fault {
    harm: Harm,
    network: NetworkName,
    direction: Direction,
    /// Whose packets, and where they go.
    subject: String,
    /// The packets: `udp 53 over IPv4`.
    packets: Vec<String>,
    reason: String,
    why: &'static str,
    fix: String,
}

/// The faults, one for each reason.
#[derive(Default)]
struct Reports(Vec<Fault>);

impl Reports {
    fn add(&mut self, question: &Question<'_>, report: Report) {
        let Some(fault) = report.fault else { return };
        let is_same = |other: &&mut Fault| {
            let is_of_network = question.direction != Direction::Port
                && other.harm == Harm::Broken
                && (&other.network, other.direction) == (&fault.network, fault.direction);
            other.reason == fault.reason && (other.subject == fault.subject || is_of_network)
        };
        match self.0.iter_mut().find(is_same) {
            Some(other) => {
                let packet = packet_text(question);
                if !other.packets.contains(&packet) {
                    other.packets.push(packet);
                }
            }
            None => self.0.push(fault),
        }
    }
}

impl Fault {
    /// A container that the host has another route to.
    fn misrouted(plan: &Plan<'_>, one: &(&Endpoint<'_>, IpAddr, Option<u32>)) -> Self {
        let (who, address, towards) = one;
        let through = match towards.and_then(|index| plan.link(index)) {
            Some(link) => format!("through {}", link.name),
            None => "nowhere".into(),
        };
        Self {
            harm: Harm::Broken,
            network: who.network().clone(),
            direction: Direction::Container,
            subject: format!("packets of the host to {}", who.entry.at.title(who.network())),
            packets: vec![address.to_string()],
            reason: format!(
                "go {through}, not through {}; `ip route get {address}` shows the route",
                who.gateway_link().name
            ),
            why: "No answer and no other packet reaches the container.",
            fix: String::new(),
        }
    }

    fn add_to(self, found: &mut Findings) {
        let what = format!("{} ({}) {}", self.subject, self.packets.join(", "), self.reason);
        found.add(self.harm, what, self.why, self.fix);
    }
}

fn why(direction: Direction, harm: Harm) -> &'static str {
    match (harm, direction) {
        (Harm::Note, _) => {
            "The rule drops some packets and not others: those of the probe can have reached a limit."
        }
        (Harm::Broken, Direction::World) => "Containers do not reach other networks.",
        (Harm::Broken, Direction::Port) => {
            "Clients of other hosts do not reach the published port."
        }
        (Harm::Broken, Direction::Container) => {
            "Containers of the network do not reach each other."
        }
        (Harm::Broken, Direction::Gateway) => {
            "Containers cannot resolve names with the server of the host."
        }
        (_, Direction::Port) => {
            "Other networks do not reach the published port. If they should, the command opens it."
        }
        _ => "Packets of other containers pass, or the configuration wants it.",
    }
}

fn packet_text(question: &Question<'_>) -> String {
    let packet = &question.packet;
    let family = family_text(IpFamily::of(packet.from));
    format!("{} {} over {family}", packet.transport.name(), packet.port)
}

impl Report {
    fn of(nft: &Nft, plan: &Plan<'_>, question: &Question<'_>, answer: &Answer) -> Result<Self> {
        let direction = question.direction;
        let is_port = direction == Direction::Port;
        // For other networks, a port can be closed on purpose.
        let of_filter = match question.is_first && (!is_port || plan.publishes_for_all(question)) {
            true => Harm::Broken,
            false => Harm::May,
        };
        let (way, end, fault) = match answer {
            Answer::Passed(way) if is_port && way.end == "input" => {
                let reason = "are not translated: they go to the host itself".into();
                let fix = "cnibox reconcile".into();
                (way, "the host itself".into(), Some((Harm::Broken, reason, fix)))
            }
            Answer::Passed(way) if is_port => {
                let fault = missed(question, way).map(|it| (Harm::Broken, it, String::new()));
                let end = if fault.is_some() { "not the container" } else { "passes" };
                (way, end.into(), fault)
            }
            Answer::Passed(way) => (way, "passes".into(), None),
            Answer::Dropped(way, trace) => {
                let drop = Drop::of(nft, way, trace)?;
                let own = own_link(plan, question, way);
                let outside = match direction {
                    Direction::Port => Some(&question.receiver),
                    _ => way.oif.and_then(|index| plan.link(index)),
                };
                let reason = format!("are dropped by {}", drop.text());
                let (harm, fix) = match (drop.manager, drop.is_by_chance) {
                    // The tables of cnibox drop what the configuration says.
                    (Manager::Cnibox, _) => (Harm::May, drop.fix(question, own, outside)),
                    (_, true) => (Harm::Note, String::new()),
                    _ => (of_filter, drop.fix(question, own, outside)),
                };
                let is_wanted =
                    drop.manager == Manager::Cnibox && direction == Direction::Container;
                (way, drop.hop(), Some((harm, reason, fix)).filter(|_| !is_wanted))
            }
            Answer::Lost(way, at) => {
                let (reason, fix) = lost(plan, question, way, at);
                let harm = if *at == LostAt::Forwarding { of_filter } else { Harm::Broken };
                (way, "lost".into(), Some((harm, reason, fix)))
            }
        };
        let fault = fault.map(|(harm, reason, fix)| Fault {
            harm,
            network: question.who.network().clone(),
            direction,
            subject: subject(question),
            packets: vec![packet_text(question)],
            reason,
            why: why(direction, harm),
            fix,
        });
        let hops = hops(plan, question, way);
        let goal = match direction {
            Direction::World => "to other networks",
            Direction::Port => "from other networks",
            Direction::Container => "to another container",
            Direction::Gateway => "to the name server",
        };
        Ok(Self { line: format!("{goal}, {}: {hops} → {end}", packet_text(question)), fault })
    }
}

/// Why packets to a published port do not reach the container, though all rules let them pass.
fn missed(question: &Question<'_>, way: &Way) -> Option<String> {
    let (address, port) = question.goal?;
    if !way.arrives {
        return Some(format!(
            "go to another destination than {address} port {port}: `nft list ruleset` has the rule that translates them"
        ));
    }
    let link = question.who.gateway_link();
    (way.oif != Some(link.index)).then(|| {
        format!("do not leave through {}; `ip route get {address}` shows the route", link.name)
    })
}

/// The link of the host that the containers are behind.
fn own_link<'a>(plan: &'a Plan<'_>, question: &'a Question<'_>, way: &Way) -> &'a Link {
    let index = if question.direction == Direction::Port { way.oif } else { way.iif };
    let seen = index.and_then(|index| plan.link(index));
    seen.unwrap_or_else(|| question.who.gateway_link())
}

fn subject(question: &Question<'_>) -> String {
    let at = &question.who.entry.at;
    let network = question.who.network();
    match question.direction {
        Direction::World | Direction::Container | Direction::Gateway if !question.is_first => {
            format!("packets of {}", at.title(network))
        }
        Direction::World => format!("packets of network {network} to other networks"),
        Direction::Port => format!("packets to the published ports of {}", at.title(network)),
        Direction::Container => format!("packets between containers of network {network}"),
        Direction::Gateway => {
            format!("questions of network {network} to the name server {}", question.packet.to)
        }
    }
}

/// The links that the packet passed: `eth0 → veth26 → cni0 → wan`.
fn hops(plan: &Plan<'_>, question: &Question<'_>, way: &Way) -> String {
    let who = question.who;
    let mut hops = Vec::new();
    if question.direction == Direction::Port {
        hops.push(question.receiver.name.as_str());
    } else {
        hops.extend([&*who.entry.at.ifname, who.port.name.as_str()]);
        hops.extend(who.bridge.as_ref().map(|link| link.name.as_str()));
    }
    for index in [way.iif, way.oif].into_iter().flatten() {
        hops.extend(plan.link(index).map(|link| link.name.as_str()));
    }
    hops.dedup();
    hops.join(" → ")
}

/// The reason why no rule of nf_tables saw the packet at a hook, and the command that helps.
fn lost(plan: &Plan<'_>, question: &Question<'_>, way: &Way, at: &LostAt) -> (String, String) {
    let link = own_link(plan, question, way);
    let receiver = if question.direction == Direction::Port { &question.receiver } else { link };
    let name = &receiver.name;
    let reason = match at {
        LostAt::Receipt => format!(
            "are lost before the rules of nf_tables: a filter of traffic control, an XDP program or a chain of family netdev of {}",
            question.receiver.name
        ),
        LostAt::Bridge => format!("are lost in the bridge of port {}", question.receiver.name),
        LostAt::Routing(counters) if counters.iter().any(|counter| counter == REVERSE_PATH) => {
            let is_misrouted = |(who, ..): &(&Endpoint<'_>, _, _)| std::ptr::eq(*who, question.who);
            let key = sysctl::of_link(IpFamily::V4, name, "rp_filter");
            let reason =
                format!("are dropped by the reverse path filter of {name}: counter {REVERSE_PATH}");
            let fix = format!("sysctl -w {}=2", sysctl::dotted(&key));
            // Then the filter is right: the route is wrong.
            let is_right = plan.misrouted.iter().any(is_misrouted);
            return (reason, if is_right { String::new() } else { fix });
        }
        LostAt::Routing(counters) => {
            let counters = match counters.as_slice() {
                [] => "no counter of the kernel shows it".into(),
                some => format!("counter {}", some.join(", ")),
            };
            format!("are dropped by routing, after prerouting: {counters}")
        }
        LostAt::Forwarding => {
            let is_v6 = question.packet.from.is_ipv6();
            let tables = xtables::tables_with_rules(is_v6);
            if !tables.is_empty() {
                let program = if is_v6 { "ip6tables-legacy" } else { "iptables-legacy" };
                let reason = format!(
                    "are lost between the hooks forward and postrouting: {program} has rules in table {}; `{program}-save` shows them",
                    tables.join(", ")
                );
                let outside = match question.direction {
                    Direction::Port => Some(&question.receiver),
                    _ => way.oif.and_then(|index| plan.link(index)),
                };
                return (reason, Drop::legacy(question, link, outside));
            }
            "are lost between the hooks forward and postrouting: a BPF program or traffic control"
                .into()
        }
    };
    (reason, String::new())
}
