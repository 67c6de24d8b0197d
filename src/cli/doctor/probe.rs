//! `cnibox doctor --probe`: asks the kernel which rule of the host drops packets of the containers.
//!
//! A packet of a living container is put into the receive path of its port, and one of another host into that of the uplink. The
//! kernel traces it through all rules; a table of the probe drops it behind the last hook. So nothing of it leaves the host or
//! reaches a program. Counters of rules, limits, quotas and rules with `log` see it.

mod ask;
mod mend;
mod packets;
mod plan;
mod risks;

use crate::error::Result;
use crate::kernel::sysctl;
use crate::names::IpFamily;
use crate::netlink::nft::{Nft, Trap};
use crate::netlink::rtnl::Link;
use crate::plugin::life::Life;
use crate::runtime::cache::CacheEntry;

use super::finding::{Findings, Harm};
use super::host::Host;
use ask::{Answer, Asker, LostAt, REVERSE_PATH, Way};
use mend::{Drop, Manager};
use plan::{Direction, Endpoint, Plan, Question, family_text};

/// What the operator asks.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// Only this published port.
    pub(super) port: Option<u16>,
    /// Also where packets do more than count.
    pub(super) force: bool,
}

/// Sends the packets, and adds a finding for each rule that drops one. `all` has all attachments of the host. Returns the way of
/// each packet, in a line.
pub(super) fn probe(
    host: &Host<'_>,
    all: &[(CacheEntry, Life)],
    asked: Asked,
    found: &mut Findings,
) -> Result<Vec<String>> {
    let endpoints = Endpoint::all(host, all);
    let mut plan = Plan::make(host, asked, &endpoints)?;
    let nft = Nft::open()?;
    // The error of a kernel without nf_tables.
    nft.generation()?;
    let bridges = Trap::can_bridge()?;
    let mut ways = std::mem::take(&mut plan.left_out);
    ways.iter_mut().for_each(|line| *line = format!("not asked: {line}"));
    if !asked.force {
        leave_out_risks(&nft, &mut plan.questions, found)?;
    }
    if !bridges {
        // Without tables of bridges nothing stops a frame between two ports.
        plan.questions.retain(|question| question.direction != Direction::Container);
    }
    if plan.questions.is_empty() {
        return Ok(ways);
    }
    let asker = Asker::new(host, &plan.questions, bridges)?;
    let mut reports = Reports::default();
    for question in &plan.questions {
        let answer = asker.ask(question)?;
        let report = Report::of(&nft, &plan, question, &answer)?;
        ways.push(report.line.clone());
        reports.add(question, report);
    }
    reports.0.into_iter().for_each(|fault| fault.add_to(found));
    Ok(ways)
}

/// Removes the questions that are not harmless, with a note.
fn leave_out_risks(
    nft: &Nft,
    questions: &mut Vec<Question<'_>>,
    found: &mut Findings,
) -> Result<()> {
    for risk in risks::risks(nft)? {
        let before = questions.len();
        questions.retain(|question| !risk.concerns(question.direction));
        if questions.len() < before {
            let what =
                format!("{} packets were not sent: {}", before - questions.len(), risk.reason);
            let why =
                "The rule could hand a packet to a program, send a copy, or store its address.";
            found.add(Harm::Note, what, why, "cnibox doctor --probe --force");
        }
    }
    Ok(())
}

/// The result of one question.
struct Report {
    /// The way of the packet.
    line: String,
    fault: Option<Fault>,
}

/// Packets that do not pass, for one reason.
struct Fault {
    direction: Direction,
    /// Whose packets, and where they go.
    subject: String,
    /// The packets: `udp 53 over IPv4`.
    packets: Vec<String>,
    reason: String,
    fix: String,
}

/// The faults, one for each reason.
#[derive(Default)]
struct Reports(Vec<Fault>);

impl Reports {
    fn add(&mut self, question: &Question<'_>, report: Report) {
        let Some(fault) = report.fault else { return };
        let is_same =
            |other: &&mut Fault| other.subject == fault.subject && other.reason == fault.reason;
        match self.0.iter_mut().find(is_same) {
            Some(other) => other.packets.push(packet_text(question)),
            None => self.0.push(fault),
        }
    }
}

impl Fault {
    fn add_to(self, found: &mut Findings) {
        let what = format!("{} ({}) {}", self.subject, self.packets.join(", "), self.reason);
        let why = match self.direction {
            Direction::World => "Containers do not reach other networks.",
            Direction::Port => "Clients of other hosts do not reach the published port.",
            Direction::Container => "Containers of the network do not reach each other.",
            Direction::Gateway => "Containers cannot resolve names with the server of the host.",
        };
        found.add(Harm::Broken, what, why, self.fix);
    }
}

fn packet_text(question: &Question<'_>) -> String {
    let packet = &question.packet;
    let family = family_text(IpFamily::of(packet.from));
    format!("{} {} over {family}", packet.transport.name(), packet.port)
}

impl Report {
    fn of(nft: &Nft, plan: &Plan<'_>, question: &Question<'_>, answer: &Answer) -> Result<Self> {
        let is_port = question.direction == Direction::Port;
        let (way, end, fault) = match answer {
            Answer::Passed(way) if is_port && way.end == "input" => {
                let reason = "are not translated: they go to the host itself";
                (way, "the host itself".into(), Some((reason.into(), "cnibox reconcile".into())))
            }
            Answer::Passed(way) => (way, "passes".into(), None),
            Answer::Dropped(way, trace) => {
                let drop = Drop::of(nft, trace)?;
                let own = own_link(plan, question, way);
                // The tables of cnibox drop what the configuration says.
                let is_fault = drop.manager != Manager::Cnibox;
                let reason = format!("are dropped by {}", drop.text());
                let fix = is_fault.then(|| (reason, drop.fix(question, own)));
                (way, drop.hop(), fix)
            }
            Answer::Lost(way, at) => {
                let (reason, fix) = lost(plan, question, way, at);
                (way, "lost".into(), Some((reason, fix)))
            }
        };
        let fault = fault.map(|(reason, fix)| Fault {
            direction: question.direction,
            subject: subject(question),
            packets: vec![packet_text(question)],
            reason,
            fix,
        });
        let hops = hops(plan, question, way);
        let goal = match question.direction {
            Direction::World => "to other networks",
            Direction::Port => "from other networks",
            Direction::Container => "to another container",
            Direction::Gateway => "to the name server",
        };
        Ok(Self { line: format!("{goal}, {}: {hops} → {end}", packet_text(question)), fault })
    }
}

/// The link of the host that the containers are behind.
fn own_link<'a>(plan: &'a Plan<'_>, question: &'a Question<'_>, way: &Way) -> &'a Link {
    let index = if question.direction == Direction::Port { way.oif } else { way.iif };
    let seen = index.and_then(|index| plan.link(index));
    seen.unwrap_or_else(|| question.who.gateway_link())
}

fn subject(question: &Question<'_>) -> String {
    let at = &question.who.entry.at;
    let network = &question.who.entry.network;
    match question.direction {
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
            "are lost before the rules of nf_tables: a filter of traffic control or an XDP program of {}",
            question.receiver.name
        ),
        LostAt::Bridge => format!("are lost in the bridge of port {}", question.receiver.name),
        LostAt::Routing(counters) if counters.iter().any(|counter| counter == REVERSE_PATH) => {
            let key = sysctl::of_link(IpFamily::V4, name, "rp_filter");
            let reason = format!("are dropped by the reverse path filter of {name}: counter {REVERSE_PATH}");
            return (reason, format!("sysctl -w {}=2", sysctl::dotted(&key)));
        }
        LostAt::Routing(counters) => {
            let counters = match counters.as_slice() {
                [] => "no counter of the kernel shows it".into(),
                some => format!("counter {}", some.join(", ")),
            };
            format!("are dropped by routing, after prerouting: {counters}")
        }
        LostAt::Forwarding => {
            "are lost between the hooks forward and postrouting: iptables-legacy, a BPF program or traffic control"
                .into()
        }
    };
    (reason, String::new())
}
