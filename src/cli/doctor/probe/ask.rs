//! Sends packets into the receive path of links, and reads from the kernel's traces what became of them.
//!
//! The packets are sent on a link of the probe. A filter of traffic control redirects them to the link that should receive them,
//! so each hook sees them as received by that link. The tables of `Trap` drop what the rules of the host let pass.
//!
//! Everything of the probe belongs to this process: the other end of the link is in a namespace without a mount, and the tables
//! are owned by a socket. So the kernel removes all of it, also when the process is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::packet::FrameSocket;
use crate::kernel::sys::failed;
use crate::kernel::{clock, file, sysctl};
use crate::names::{IpFamily, Mac};
use crate::netlink::nft::{Ended, Family, Flow, TRAP, Trace, Traces, Trap};
use crate::netlink::rtnl::{Batch, LinkChange, LinkProperty, NewLink, Rtnl, VETH};

use super::super::host::Host;
use super::plan::Question;

/// What became of a packet.
#[derive(Debug)]
pub(super) enum Answer {
    /// The packet passed all rules, up to the end of this hook, `input` or `postrouting`.
    Passed(Way),
    /// This rule or policy dropped the packet.
    Dropped(Way, Trace),
    Lost(Way, LostAt),
    /// It is unknown, for this reason.
    Unknown(String),
}

/// The last hook that saw a packet which no rule of nf_tables dropped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LostAt {
    /// No table saw it.
    Receipt,
    Bridge,
    /// Prerouting saw it. With the counters of the kernel that increased.
    Routing(Vec<String>),
    /// Routing selected a link. No table saw it at postrouting.
    Forwarding,
}

/// The way that a packet took.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// The index of the link that received the packet for the host.
    pub(super) iif: Option<u32>,
    /// The index of the link that routing selected.
    pub(super) oif: Option<u32>,
    /// The chains that reported it: the family and the name of the table, and the chain.
    pub(super) chains: Vec<(Family, String, String)>,
    /// The packet has the destination that it should have at its end.
    pub(super) arrives: bool,
    /// The chain of the trap that the packet ended in.
    pub(super) end: String,
}

/// The link, the filters and the tables of the probe.
pub(super) struct Asker<'a> {
    rtnl: &'a Rtnl,
    link: u32,
    socket: FrameSocket,
    traces: Traces,
    trap: Option<Trap>,
    _other_end: NetNs,
    /// The time after boot at which no more packets are sent.
    end: Duration,
}

/// The name of the link.
const LINK: &str = TRAP;
const LINK_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// The time for the traces of one packet. They are there before the packet socket returns, unless the host is overloaded: so
/// the packet is sent again before it counts as lost.
const WAITS: [Duration; 2] = [Duration::from_millis(150), Duration::from_millis(700)];
/// The time for all packets. On a host that loses each packet, a packet takes most of a second.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Another probe has the link until its end. The kernel removes the link of a killed probe some time after its process.
const LINK_TIMEOUT: Duration = Duration::from_secs(30);
/// The time in which another processor could still have a copy of a packet.
const SETTLES: Duration = Duration::from_millis(1);

impl<'a> Asker<'a> {
    pub(super) fn new(
        host: &'a Host<'_>,
        questions: &[Question<'_>],
        bridges: bool,
    ) -> Result<Self> {
        let rtnl = &host.rtnl;
        let other_end = host.home.make()?;
        let peer = NewLink { name: LINK, netns: Some(&other_end), ..NewLink::default() };
        let new = NewLink { name: LINK, mac: Some(LINK_MAC), ..NewLink::default() };
        let properties = [LinkProperty::VethPeer(peer)];
        rtnl.make_link_when_free(&new, VETH, &properties, LINK_TIMEOUT, |error| {
            error.is_exists()
        })??;
        let made = rtnl.link(LINK)?;
        let link = made.ok_or_else(|| Error::internal(format_args!("cannot find link {LINK}")))?;
        // Removes the link after an error.
        let guard = RemovedLink(rtnl, link.index);
        // Without IPv6 the link gets no address, and sends no solicitations.
        sysctl::set_if_exists(&sysctl::of_link(IpFamily::V6, LINK, "disable_ipv6"), "1")?;
        let mut batch = Batch::new();
        batch.change_link(
            link.index,
            LINK,
            &LinkChange { up: Some(true), ..LinkChange::default() },
        );
        let mut receivers: Vec<(IpAddr, u32)> = Vec::new();
        for question in questions {
            let (from, to) = (question.packet.from, question.receiver.index);
            // Two networks with one subnet: `Plan` asks only the first one.
            if !receivers.iter().any(|(known, _)| *known == from) {
                receivers.push((from, to));
            }
        }
        batch.receive_sent(link.index, LINK, &receivers);
        rtnl.commit(batch)?;
        let trap = Some(Trap::add(bridges)?);
        let traces = Traces::open()?;
        let socket =
            FrameSocket::open(link.index).map_err(failed("cannot open a packet socket"))?;
        std::mem::forget(guard);
        let end = clock::since_boot() + TIME_MAX;
        Ok(Self { rtnl, link: link.index, socket, traces, trap, _other_end: other_end, end })
    }

    /// Sends the packet. `None` after the time for all packets.
    pub(super) fn ask(&self, question: &Question<'_>) -> Result<Option<Answer>> {
        if clock::since_boot() > self.end {
            return Ok(None);
        }
        let packet = &question.packet;
        // Traces of the packet before.
        self.traces.next(SETTLES)?;
        self.trap.as_ref().expect("it is there until the end").catch(Flow {
            transport: packet.transport,
            from: (packet.from, packet.source_port),
            to: (packet.to, packet.port),
        })?;
        let before = counters();
        let frame = packet.frame(question.from, question.to);
        let mut seen = Seen::default();
        for wait in WAITS {
            if let Err(error) = self.socket.send(packet.ethertype(), &frame) {
                return Ok(Some(Answer::Unknown(format!("cannot send the packet: {error}"))));
            }
            let end = clock::since_boot() + wait;
            while let Some(left) = end.checked_sub(clock::since_boot()) {
                let Some(traces) = self.traces.next(left)? else {
                    let reason = "traces were lost: a rule of the host traces too many packets";
                    return Ok(Some(Answer::Unknown(reason.into())));
                };
                for trace in traces {
                    if seen.is_of(question, &trace)
                        && let Some(answer) = seen.follow(question, trace)
                    {
                        return Ok(Some(answer));
                    }
                }
            }
        }
        Ok(Some(seen.lost(&before)))
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        // Another probe waits for the end of the link, and adds tables with these names.
        self.trap = None;
        RemovedLink(self.rtnl, self.link);
    }
}

/// A link that is removed on drop.
struct RemovedLink<'a>(&'a Rtnl, u32);

impl Drop for RemovedLink<'_> {
    fn drop(&mut self) {
        // If this fails, the kernel removes the link with the namespace of its other end.
        let _ = self.0.del_link(self.1);
    }
}

/// What the traces of one packet have shown.
#[derive(Default)]
struct Seen {
    /// The numbers of the packet.
    ids: BTreeSet<u32>,
    way: Way,
    by_bridge: bool,
    at_prerouting: bool,
    at_forward: bool,
}

impl Seen {
    fn is_of(&mut self, question: &Question<'_>, trace: &Trace) -> bool {
        let packet = &question.packet;
        if trace.is_from(packet.from, packet.source_port) {
            self.ids.insert(trace.id);
        }
        // A packet whose source was translated has its number.
        self.ids.contains(&trace.id)
    }

    /// The answer, if the trace is the end of the packet.
    fn follow(&mut self, question: &Question<'_>, trace: Trace) -> Option<Answer> {
        if !matches!(trace.family, Family::Bridge | Family::Netdev) {
            self.way.iif = trace.iif.or(self.way.iif);
            self.way.oif = trace.oif.or(self.way.oif);
        }
        self.way.chains.push((trace.family, trace.table.clone(), trace.chain.clone()));
        let is_ours = trace.table == TRAP;
        match (is_ours && trace.family == Family::Bridge, is_ours, trace.chain.as_str()) {
            (true, _, _) => self.by_bridge = true,
            (_, true, "prerouting") => self.at_prerouting = true,
            (_, true, "forward") => self.at_forward = true,
            _ => {}
        }
        match trace.ended {
            Ended::GoesOn => None,
            Ended::Dropped if is_ours => {
                self.way.arrives = question.goal.is_some_and(|(to, port)| trace.is_to(to, port));
                self.way.end = trace.chain;
                Some(Answer::Passed(std::mem::take(&mut self.way)))
            }
            Ended::Dropped | Ended::Taken => {
                Some(Answer::Dropped(std::mem::take(&mut self.way), trace))
            }
        }
    }

    fn lost(self, before: &BTreeMap<&'static str, u64>) -> Answer {
        let at = match self {
            Self { at_forward: true, .. } => LostAt::Forwarding,
            Self { at_prerouting: true, .. } => {
                let after = counters();
                let has_grown = |name: &&str| after.get(name) > before.get(name);
                let grown = COUNTERS.into_iter().filter(has_grown);
                LostAt::Routing(grown.map(str::to_owned).collect())
            }
            Self { by_bridge: true, .. } => LostAt::Bridge,
            _ => LostAt::Receipt,
        };
        Answer::Lost(self.way, at)
    }
}

/// The counter of packets that the reverse path filter drops.
pub(super) const REVERSE_PATH: &str = "IPReversePathFilter";

/// The counters of packets that routing drops.
const COUNTERS: [&str; 7] = [
    REVERSE_PATH,
    "InAddrErrors",
    "InNoRoutes",
    "InDiscards",
    "Ip6InAddrErrors",
    "Ip6InNoRoutes",
    "Ip6InDiscards",
];

/// The present values of the counters.
fn counters() -> BTreeMap<&'static str, u64> {
    let read =
        |name: &str| file::read_lossy(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let (netstat, snmp, snmp6) = (read("netstat"), read("snmp"), read("snmp6"));
    let mut values = BTreeMap::new();
    let mut add = |name: &str, value: &str| {
        if let (Some(name), Ok(value)) =
            (COUNTERS.iter().find(|known| **known == name), value.parse::<u64>())
        {
            *values.entry(*name).or_insert(0) += value;
        }
    };
    // A line with the names of the counters, then a line with their values.
    let lines: Vec<&str> = netstat.lines().chain(snmp.lines()).collect();
    for [names, numbers] in lines.as_chunks::<2>().0 {
        let pairs = names.split_ascii_whitespace().zip(numbers.split_ascii_whitespace());
        pairs.for_each(|(name, value)| add(name, value));
    }
    for line in snmp6.lines() {
        if let Some((name, value)) = line.split_once(char::is_whitespace) {
            add(name, value.trim());
        }
    }
    values
}
