//! `cnibox doctor --probe`: asks the kernel which rule of the host drops packets of the containers.
//!
//! A packet of a living container is put into the receive path of its port, and one of another host into that of the uplink. The
//! kernel traces it through all rules; a table of the probe drops it behind the last hook. So nothing of it leaves the host or
//! reaches a program. Counters of rules, limits, quotas and rules with `log` see it.

mod accepted;
mod ask;
mod may;
mod mend;
mod packets;
mod plan;
mod risks;

use std::collections::BTreeSet;

use crate::attachments::life::Life;
use crate::error::Result;
use crate::kernel::sysctl;
use crate::names::IpFamily;
use crate::netlink::nft::{Nft, Trap};
use crate::netlink::rtnl::Link;
use crate::netlink::xtables;
use crate::runtime::cache::CacheEntry;

use super::counted;
use super::filter::Effect;
use super::finding::{Finding, Findings, Harm};
use super::host::Host;
use super::manager::Manager;
use accepted::Extent;
use ask::{Answer, Asker, LostAt, REVERSE_PATH, Way};
use mend::{Drop, Fix, Ruleset};
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
    let mut answers = Vec::new();
    let mut unknown = Vec::new();
    if !plan.questions.is_empty() {
        let asker = Asker::new(host, &plan.questions, bridges)?;
        for question in &plan.questions {
            match asker.ask(question)? {
                None => break,
                Some(Answer::Unknown(reason)) => unknown.push((question, reason)),
                Some(answer) => answers.push((question, answer)),
            }
        }
    }
    let late = plan.questions.len() - answers.len() - unknown.len();
    let translated = found.filters.iter().filter_map(|filter| match filter.effect {
        Effect::Translates(port) => Some(port),
        _ => None,
    });
    let asked = Answers { plan: &plan, all: &answers, translated: translated.collect() };
    let mut rules = Ruleset::new(&nft);
    let mut faults = Faults(Vec::new());
    let mut ways = Vec::new();
    for (question, answer) in &answers {
        let (line, fault) = asked.report(&mut rules, question, answer)?;
        ways.push(line);
        fault.into_iter().for_each(|fault| faults.add(fault));
    }
    let sent: Vec<&Question<'_>> = answers.iter().map(|(question, _)| *question).collect();
    let mut not_sent = plan.left_out_lines();
    not_sent.extend(plan::lines(
        unknown.iter().map(|(question, reason)| (question.who.title(), reason.as_str())),
    ));
    if late > 0 {
        not_sent.push(format!("{late} packets: the time for the others was too long"));
    }
    let arrived = answers.iter().filter_map(|(question, answer)| match answer {
        Answer::Passed(way) if way.arrives => Some(question.packet.port),
        _ => None,
    });
    may::forget(&mut found.filters, &plan, &sent, &arrived.collect::<Vec<_>>());
    faults.0.into_iter().for_each(|fault| fault.add_to(found));
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
    let (packets, networks) = (counted(sent.len(), "packet"), counted(networks.len(), "network"));
    if sent.is_empty() {
        return "no fault found in what was asked: no packet was sent".into();
    }
    format!("no fault found in what was asked: {packets} of {networks}")
}

/// Packets that do not pass, for one reason.
struct Fault {
    harm: Harm,
    direction: Direction,
    /// Whose packets, and where they go.
    subject: String,
    /// The packets: `udp 53 over IPv4`.
    packets: Vec<String>,
    reason: String,
    why: &'static str,
    fix: Fix,
}

/// The faults, one for each reason.
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, fault: Fault) {
        let is_same = |other: &&mut Fault| {
            (other.direction, other.harm, &other.subject, &other.reason)
                == (fault.direction, fault.harm, &fault.subject, &fault.reason)
        };
        match self.0.iter_mut().find(is_same) {
            Some(other) => {
                let new = fault.packets.into_iter().filter(|one| !other.packets.contains(one));
                let new: Vec<String> = new.collect();
                other.packets.extend(new);
                other.fix.join(fault.fix);
            }
            None => self.0.push(fault),
        }
    }
}

impl Fault {
    fn add_to(self, found: &mut Findings) {
        let what = format!("{} ({}) {}", self.subject, self.packets.join(", "), self.reason);
        found.add(self.harm, what, self.why, self.fix.text());
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
        (Harm::Broken, Direction::Discovery) => {
            "Containers get no answer about the Ethernet address of their gateway: they have no IPv6."
        }
        (_, Direction::Port) => {
            "Other networks do not reach the published port. If they should, the command opens it."
        }
        _ => {
            "Other packets of the network pass, so the rule can be on purpose. If not, the command accepts these packets."
        }
    }
}

fn packet_text(question: &Question<'_>) -> String {
    let packet = &question.packet;
    let family = family_text(IpFamily::of(packet.from));
    if question.direction == Direction::Discovery {
        return "neighbour solicitation".into();
    }
    format!("{} {} over {family}", packet.transport.name(), packet.port)
}

/// The answers to all questions that were asked.
struct Answers<'a> {
    plan: &'a Plan<'a>,
    all: &'a [(&'a Question<'a>, Answer)],
    /// The published ports that rules of other programs translate.
    translated: Vec<u16>,
}

impl Answers<'_> {
    /// Which packets are dropped if this one is.
    fn extent(&self, question: &Question<'_>) -> Extent {
        let group = |question: &Question<'_>| {
            let packet = &question.packet;
            (question.direction, question.who.network().clone(), IpFamily::of(packet.from))
        };
        let port = |question: &Question<'_>| (question.packet.transport, question.packet.port);
        let passed = self.all.iter().filter(|(other, answer)| {
            matches!(answer, Answer::Passed(_)) && group(other) == group(question)
        });
        passed.fold(Extent::Network, |extent, (other, _)| {
            let is_other = port(other) == port(question);
            extent.max(if is_other { Extent::Container } else { Extent::Port })
        })
    }

    /// The way of a packet, in a line, and its fault.
    fn report(
        &self,
        rules: &mut Ruleset<'_>,
        question: &Question<'_>,
        answer: &Answer,
    ) -> Result<(String, Option<Fault>)> {
        let (plan, direction) = (self.plan, question.direction);
        let is_port = direction == Direction::Port;
        let extent = if is_port { Extent::Port } else { self.extent(question) };
        // For other networks, a port can be closed on purpose.
        let is_broken = match is_port {
            true => plan.publishes_for_all(question),
            false => extent == Extent::Network,
        };
        let of_filter = if is_broken { Harm::Broken } else { Harm::May };
        let (way, end, fault) = match answer {
            Answer::Unknown(_) => return Ok((String::new(), None)),
            Answer::Passed(way) if is_port && way.end == "input" => {
                let reason = "are not translated to the container: they go to the host itself";
                let is_of_other = self.translated.contains(&question.packet.port)
                    || plan.misrouted.iter().any(|who| std::ptr::eq(*who, question.who));
                let fix = if is_of_other { Fix::NONE } else { Fix::command("cnibox reconcile") };
                (way, "the host itself".into(), Some((Harm::Broken, reason.into(), fix)))
            }
            Answer::Passed(way) => {
                let fault = missed(question, way).map(|it| (Harm::Broken, it, Fix::NONE));
                let end = if fault.is_some() { "not the container" } else { "passes" };
                (way, end.into(), fault)
            }
            Answer::Dropped(way, trace) => {
                let drop = Drop::of(rules, way, trace)?;
                let fix = drop.fix(question, extent, sides(plan, question, way));
                let is_own = drop.manager == Manager::Cnibox;
                let (harm, fix) = match drop.is_by_chance {
                    // The tables of cnibox drop what the configuration says.
                    _ if is_own => (Harm::May, fix),
                    true => (Harm::Note, Fix::NONE),
                    false => (of_filter, fix),
                };
                let reason = format!("are dropped by {}", drop.text());
                let is_wanted = is_own && direction == Direction::Container;
                (way, drop.hop(), Some((harm, reason, fix)).filter(|_| !is_wanted))
            }
            Answer::Lost(way, at) => {
                let (reason, fix) = lost(plan, question, extent, (way, at));
                let harm = if *at == LostAt::Forwarding { of_filter } else { Harm::Broken };
                (way, "lost".into(), Some((harm, reason, fix)))
            }
        };
        let fault = fault.map(|(harm, reason, fix)| Fault {
            harm,
            direction,
            subject: subject(plan, question, extent),
            packets: vec![packet_text(question)],
            reason,
            why: why(direction, harm),
            fix,
        });
        let goal = match direction {
            Direction::World => "to other networks",
            Direction::Port => "from other networks",
            Direction::Container => "to another container",
            Direction::Gateway => "to the name server",
            Direction::Discovery => "to the gateway",
        };
        let hops = hops(plan, question, way);
        Ok((format!("{goal}, {}: {hops} → {end}", packet_text(question)), fault))
    }
}

/// Why packets do not reach the container, though all rules let them pass.
fn missed(question: &Question<'_>, way: &Way) -> Option<String> {
    let (address, port) = question.goal?;
    if !way.arrives {
        return Some(format!(
            "go to another destination than {address} port {port}: `nft list ruleset` has the rule that translates them"
        ));
    }
    let link = question.who.gateway_link();
    (question.direction == Direction::Port && way.oif != Some(link.index)).then(|| {
        format!("do not leave through {}; `ip route get {address}` shows the route", link.name)
    })
}

/// The link of the host that the containers are behind, and that to other networks.
fn sides<'q>(
    plan: &'q Plan<'_>,
    question: &'q Question<'_>,
    way: &Way,
) -> (&'q Link, Option<&'q Link>) {
    let is_port = question.direction == Direction::Port;
    let seen = |index: Option<u32>| index.and_then(|index| plan.link(index));
    let own = seen(if is_port { way.oif } else { way.iif });
    let outside = if is_port { Some(&question.receiver) } else { seen(way.oif) };
    (own.unwrap_or_else(|| question.who.gateway_link()), outside)
}

/// Whose packets, and where they go.
fn subject(plan: &Plan<'_>, question: &Question<'_>, extent: Extent) -> String {
    let who = question.who;
    let of = match extent == Extent::Container || plan.is_about_one() {
        true => who.title(),
        false => format!("network {}", who.network()),
    };
    match question.direction {
        Direction::World => format!("packets of {of} to other networks"),
        Direction::Port => format!("packets to the published ports of {}", who.title()),
        Direction::Container => format!("packets of {of} to other containers"),
        Direction::Gateway => {
            format!("questions of {of} to the name server {}", question.packet.to)
        }
        Direction::Discovery => format!("packets of {of} to the gateway {}", question.packet.to),
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
fn lost(
    plan: &Plan<'_>,
    question: &Question<'_>,
    extent: Extent,
    (way, at): (&Way, &LostAt),
) -> (String, Fix) {
    let (link, outside) = sides(plan, question, way);
    let receiver = if question.direction == Direction::Port { &question.receiver } else { link };
    let name = &receiver.name;
    let reason = match at {
        LostAt::Receipt => format!(
            "are lost before the rules of nf_tables: a filter of traffic control, an XDP program or a chain of family netdev of {}",
            question.receiver.name
        ),
        LostAt::Bridge => format!("are lost in the bridge of port {}", question.receiver.name),
        LostAt::Routing(counters) if counters.iter().any(|counter| counter == REVERSE_PATH) => {
            let is_misrouted = |who: &&Endpoint<'_>| std::ptr::eq(*who, question.who);
            let key = sysctl::of_link(IpFamily::V4, name, "rp_filter");
            let reason =
                format!("are dropped by the reverse path filter of {name}: counter {REVERSE_PATH}");
            let fix = Fix::command(format!("sysctl -w {}=2", sysctl::dotted(&key)));
            // Then the filter is right: the route is wrong.
            let is_right = plan.misrouted.iter().any(is_misrouted);
            return (reason, if is_right { Fix::NONE } else { fix });
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
            let tables = xtables::tables_with_rules(is_v6).unwrap_or_default();
            if !tables.is_empty() {
                let program = if is_v6 { "ip6tables-legacy" } else { "iptables-legacy" };
                let reason = format!(
                    "are lost between the hooks forward and postrouting: {program} has rules in table {}; `{program}-save` shows them",
                    tables.join(", ")
                );
                return (reason, Drop::legacy(question, extent, (link, outside)));
            }
            "are lost between the hooks forward and postrouting: a BPF program or traffic control"
                .into()
        }
    };
    (reason, Fix::NONE)
}
