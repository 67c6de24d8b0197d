//! Which rules can concern the packets of a network. Only conditions on links, addresses, the state of the connection, the mark and
//! the protocol and port of a published port are compared; `doctor --probe` asks the kernel about all others.

use std::collections::BTreeMap;
use std::mem;

use ipnet::IpNet;

use crate::names::IpFamily;
use crate::netlink::nft::{
    Condition, CtState, Datum, Element, Expr, Field, Interval, Lookup, Rule, Transport, Verdict,
    XT_CT_STATE_DNAT, XtExtension,
};
use crate::netlink::rtnl::Link;
use crate::netlink::{octets, u16_at, u32_at};

use super::filter::Packets;

/// Packets of a network, as rules can select them.
#[derive(Clone)]
pub(super) struct Traffic<'a> {
    pub(super) packets: Packets,
    pub(super) family: IpFamily,
    pub(super) from: Side<'a>,
    pub(super) to: Side<'a>,
    pub(super) state: CtState,
    pub(super) is_dnat: bool,
    /// The bit of the mark with which the plugin `firewall` accepts the packets.
    pub(super) mark: u32,
    /// The protocol and port of the container that the packets are for. `None` if they are for several.
    pub(super) port: Option<(Transport, u16)>,
}

/// One end of the packets.
#[derive(Clone, Default)]
pub(super) struct Side<'a> {
    /// The link is one of these. Empty if it is unknown.
    pub(super) links: Vec<&'a Link>,
    /// The subnets of the containers. Empty for the rest of the world: any address that no rule names.
    pub(super) nets: Vec<IpNet>,
}

/// Whether a rule selects all, none, or some of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    None,
    Some,
    All,
}

impl Fit {
    fn of(selects_all: bool) -> Self {
        if selects_all { Self::All } else { Self::None }
    }

    fn not(self) -> Self {
        match self {
            Self::All => Self::None,
            Self::None => Self::All,
            Self::Some => Self::Some,
        }
    }

    /// Of the fits of several packets: `Some`, if they differ.
    fn joined(fits: impl IntoIterator<Item = Self>) -> Self {
        let mut fits = fits.into_iter();
        let Some(first) = fits.next() else { return Self::Some };
        if fits.all(|fit| fit == first) { first } else { Self::Some }
    }
}

/// The rules of a table, and the elements of its sets.
pub(super) struct Rules {
    pub(super) rules: Vec<Rule>,
    /// Without those that have intervals.
    pub(super) sets: BTreeMap<String, Vec<Element>>,
    pub(super) intervals: BTreeMap<String, Vec<Interval>>,
}

/// The first rule that decides about the packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It accepts all of them.
    Accepted,
    /// It is in this chain, and can drop them. `is_partial`: some of them, by conditions that are not compared.
    MayDrop { chain: String, is_partial: bool },
    /// No rule decides.
    None,
}

/// The most jumps one in the other: NFT_JUMP_STACK_SIZE.
const DEPTH_MAX: usize = 16;

impl Rules {
    pub(super) fn decide(&self, chain: &str, traffic: &Traffic<'_>) -> Decision {
        self.chain(chain, traffic, 0, &mut BTreeMap::new())
    }

    fn chain(
        &self,
        chain: &str,
        traffic: &Traffic<'_>,
        depth: usize,
        known: &mut BTreeMap<String, Decision>,
    ) -> Decision {
        if let Some(known) = known.get(chain) {
            return known.clone();
        }
        if depth > DEPTH_MAX {
            return Decision::None;
        }
        let decision = self.decide_in(chain, traffic, depth, known);
        known.insert(chain.into(), decision.clone());
        decision
    }

    fn decide_in(
        &self,
        chain: &str,
        traffic: &Traffic<'_>,
        depth: usize,
        known: &mut BTreeMap<String, Decision>,
    ) -> Decision {
        for rule in self.rules.iter().filter(|rule| rule.chain == chain) {
            let (fit, verdicts) = self.effect(rule, traffic);
            for verdict in verdicts.iter().filter(|_| fit != Fit::None) {
                let is_certain = fit == Fit::All;
                match verdict {
                    Verdict::Accept if is_certain => return Decision::Accepted,
                    Verdict::Drop => {
                        return Decision::MayDrop { chain: chain.into(), is_partial: !is_certain };
                    }
                    Verdict::Return if is_certain => return Decision::None,
                    Verdict::Jump(to) | Verdict::Goto(to) => {
                        match self.chain(to, traffic, depth + 1, known) {
                            Decision::Accepted if is_certain => return Decision::Accepted,
                            Decision::MayDrop { chain, is_partial } => {
                                let is_partial = is_partial || !is_certain;
                                return Decision::MayDrop { chain, is_partial };
                            }
                            _ if is_certain && matches!(verdict, Verdict::Goto(_)) => {
                                return Decision::None;
                            }
                            _ => {}
                        }
                    }
                    _ => {}
                }
            }
        }
        Decision::None
    }

    /// Which of the packets the rule selects, and its verdicts.
    fn effect(&self, rule: &Rule, traffic: &Traffic<'_>) -> (Fit, Vec<Verdict>) {
        let conditions = rule.conditions();
        let compared = rule.exprs.iter().filter(|expr| matches!(expr, Expr::Compare { .. }));
        // Comparisons of other bytes are no conditions.
        let mut fit = if compared.count() > conditions.len() { Fit::Some } else { Fit::All };
        fit = conditions.iter().fold(fit, |fit, condition| fit.min(traffic.fit(condition)));
        // The fields that were loaded last: several are a concatenation. nft compares a field with the ends of a range one by one.
        let (mut verdicts, mut loaded, mut is_loading) = (Vec::new(), Vec::new(), false);
        for expr in &rule.exprs {
            let was_loading = mem::replace(&mut is_loading, matches!(expr, Expr::Load { .. }));
            if is_loading && !was_loading {
                loaded.clear();
            }
            match expr {
                Expr::Load { field, .. } => loaded.push(*field),
                Expr::Bitwise { .. } => loaded.clear(),
                Expr::Range { is_inside, first, last, .. } => {
                    let range = (first.clone(), after(last));
                    let inside = match *loaded {
                        [field] => traffic.fit_of_intervals(field, &[range]),
                        _ => Fit::Some,
                    };
                    fit = fit.min(if *is_inside { inside } else { inside.not() });
                }
                Expr::Lookup { set, lookup, .. } => {
                    let (selected, found) = self.look_up(set, *lookup, &loaded, traffic);
                    fit = fit.min(selected);
                    verdicts.extend(found);
                }
                Expr::XtMatch(extension) => fit = fit.min(traffic.fit_of_match(extension)),
                Expr::Verdict(verdict) => verdicts.push(verdict.clone()),
                Expr::Reject { .. } => verdicts.push(Verdict::Drop),
                Expr::XtTarget(target) => {
                    let drops = ["DROP", "REJECT", "NFQUEUE"].contains(&target.name.as_str());
                    verdicts.extend(drops.then_some(Verdict::Drop));
                }
                Expr::Other(name) => match name.as_str() {
                    "queue" | "synproxy" | "tproxy" | "fwd" => verdicts.push(Verdict::Drop),
                    "log" | "log group" | "last" | "notrack" | "meta set" | "ct set" => {}
                    // A reverse path filter. The check `reverse_path_filter` is about that of the kernel.
                    "fib" => fit = Fit::None,
                    _ => fit = fit.min(Fit::Some),
                },
                _ => {}
            }
        }
        (fit, verdicts)
    }

    /// Which packets a lookup selects, and the verdicts of a verdict map.
    fn look_up(
        &self,
        set: &str,
        lookup: Lookup,
        loaded: &[Field],
        traffic: &Traffic<'_>,
    ) -> (Fit, Vec<Verdict>) {
        let known = self.sets.get(set);
        let elements = known.map_or(&[][..], Vec::as_slice);
        let fit = |element: &Element| match loaded {
            [field] => {
                let mask = vec![0xff; element.key.len()];
                let value = element.key.clone();
                traffic.fit(&Condition { field: *field, is_equal: true, mask, value })
            }
            _ => Fit::Some,
        };
        let any = match loaded {
            [field] if self.intervals.contains_key(set) => {
                traffic.fit_of_intervals(*field, &self.intervals[set])
            }
            _ if known.is_none() => Fit::Some,
            _ => elements.iter().map(fit).max().unwrap_or(Fit::None),
        };
        match lookup {
            Lookup::Contains => (any, Vec::new()),
            Lookup::Lacks => (any.not(), Vec::new()),
            Lookup::Load(_) => (Fit::Some, Vec::new()),
            Lookup::Verdict => {
                let possible = elements.iter().filter(|element| fit(element) == any);
                let verdicts = possible.filter_map(|element| match &element.data {
                    Some(Datum::Verdict(verdict)) => Some(verdict.clone()),
                    _ => None,
                });
                (any, verdicts.collect())
            }
        }
    }
}

impl Traffic<'_> {
    /// The ranges of values that the packets have in a field, each from its first to its last. `None` if they are not known.
    fn values(&self, field: Field) -> Option<Vec<[Vec<u8>; 2]>> {
        let [saddr, daddr] = Field::addresses(self.family);
        let of = |side: &Side<'_>| {
            let nets = side.nets.iter();
            nets.map(|net| [octets(net.network()), octets(net.broadcast())]).collect()
        };
        let ports =
            |first: u16, last: u16| vec![[first, last].map(|port| port.to_be_bytes().into())];
        match field {
            field if field == saddr => Some(of(&self.from)),
            field if field == daddr => Some(of(&self.to)),
            // Those of the other family.
            Field::IpSaddr | Field::IpDaddr | Field::Ip6Saddr | Field::Ip6Daddr => Some(Vec::new()),
            Field::Dport => self.port.map(|(_, port)| ports(port, port)),
            // The ports that clients get from the kernel, whatever ip_local_port_range says.
            Field::Sport if self.state == CtState::NEW => Some(ports(1024, u16::MAX)),
            _ => None,
        }
    }

    /// Whether the field has a value in one of the intervals. The world has no address that a rule names.
    fn fit_of_intervals(&self, field: Field, intervals: &[Interval]) -> Fit {
        let Some(values) = self.values(field) else { return Fit::Some };
        if values.is_empty() {
            return Fit::None;
        }
        Fit::joined(values.iter().map(|[first, last]| {
            let fit = |(begin, end): &Interval| {
                let is_before = |value: &Vec<u8>| end.as_ref().is_none_or(|end| value < end);
                match (begin <= first, is_before(last)) {
                    (true, true) => Fit::All,
                    _ if is_before(first) && last >= begin => Fit::Some,
                    _ => Fit::None,
                }
            };
            intervals.iter().map(fit).max().unwrap_or(Fit::None)
        }))
    }

    /// Whether packets of TCP have these flags: `None` if no usual packet has them.
    fn fit_of_flags(&self, mask: u8, flags: u8) -> Fit {
        // FIN 1, SYN 2, RST 4, PSH 8, ACK 16: the first one is that of a new connection.
        let usual = [2_u8, 18, 16, 24, 17, 25, 4, 20];
        let count = if self.state == CtState::NEW { 1 } else { usual.len() };
        let mut usual = usual.iter().take(count);
        if usual.any(|packet| packet & mask == flags) { Fit::Some } else { Fit::None }
    }

    fn fit(&self, condition: &Condition) -> Fit {
        let Condition { field, is_equal, mask, value } = condition;
        let equal = self.equals(*field, mask, value);
        if *is_equal { equal } else { equal.not() }
    }

    /// Whether the field has the value in the bits of the mask.
    fn equals(&self, field: Field, mask: &[u8], value: &[u8]) -> Fit {
        let of_bytes = |bytes: &[u8]| {
            let masked = bytes.iter().zip(mask).map(|(byte, mask)| byte & mask);
            Fit::of(masked.eq(value.iter().zip(mask).map(|(byte, mask)| byte & mask)))
        };
        let of_links = |side: &Side<'_>, bytes: &dyn Fn(&Link) -> Vec<u8>| {
            Fit::joined(side.links.iter().map(|link| of_bytes(&bytes(link))))
        };
        let name = |link: &Link| padded(&link.name);
        let index = |link: &Link| link.index.to_ne_bytes().to_vec();
        let group = |link: &Link| link.group.to_ne_bytes().to_vec();
        let number = |number: u32| of_bytes(&number.to_ne_bytes());
        let [saddr, daddr] = Field::addresses(self.family);
        match field {
            Field::Iifname => of_links(&self.from, &name),
            Field::Oifname => of_links(&self.to, &name),
            Field::Iif => of_links(&self.from, &index),
            Field::Oif => of_links(&self.to, &index),
            Field::Iifgroup => of_links(&self.from, &group),
            Field::Oifgroup => of_links(&self.to, &group),
            Field::CtState => number(self.state.0.into()),
            Field::CtDirection => of_bytes(&[u8::from(self.state == CtState::ESTABLISHED)]),
            Field::CtStatus if value.iter().all(|byte| *byte == 0) => {
                let is_about_dnat = mask == IPS_DST_NAT.to_ne_bytes();
                if is_about_dnat { Fit::of(!self.is_dnat) } else { Fit::Some }
            }
            Field::Mark => number(self.mark),
            Field::CtMark => number(0),
            Field::FibDaddrType => number(RTN_UNICAST),
            Field::Protocol => {
                self.port.map_or(Fit::Some, |(transport, _)| of_bytes(&[transport.number()]))
            }
            Field::Dport => self.port.map_or(Fit::Some, |(_, port)| of_bytes(&port.to_be_bytes())),
            Field::Nfproto => of_bytes(&[self.family.number()]),
            // A packet passes the reverse path filter.
            Field::FibSaddrIif => number(1),
            Field::TcpFlags => self.fit_of_flags(mask[0], value[0]),
            Field::Sport if value.iter().all(|byte| *byte == 0) => Fit::None,
            field if field == saddr => Self::equals_address(&self.from, mask, value),
            field if field == daddr => Self::equals_address(&self.to, mask, value),
            Field::IpSaddr | Field::IpDaddr | Field::Ip6Saddr | Field::Ip6Daddr => Fit::None,
            _ => Fit::Some,
        }
    }

    fn equals_address(side: &Side<'_>, mask: &[u8], value: &[u8]) -> Fit {
        if mask.iter().all(|byte| *byte == 0) {
            return Fit::All;
        }
        if side.nets.is_empty() {
            return Fit::None;
        }
        Fit::joined(side.nets.iter().map(|net| {
            let (address, of_net) = (octets(net.network()), octets(net.netmask()));
            let bits = address.iter().zip(&of_net).zip(mask.iter().zip(value));
            bits.fold(Fit::All, |fit, ((address, of_net), (mask, value))| {
                let differs = (address ^ value) & mask & of_net != 0;
                let is_covered = mask & !of_net == 0;
                fit.min(if differs {
                    Fit::None
                } else if is_covered {
                    Fit::All
                } else {
                    Fit::Some
                })
            })
        }))
    }

    fn fit_of_ports(&self, extension: &XtExtension) -> Fit {
        let (Some((_, port)), Some(ports)) = (self.port, extension.destination_ports()) else {
            return Fit::Some;
        };
        match ports.has(port) {
            true if ports.is_only_condition => Fit::All,
            true => Fit::Some,
            false => Fit::None,
        }
    }

    fn fit_of_match(&self, extension: &XtExtension) -> Fit {
        if let Some((states, is_inverted)) = extension.ct_states() {
            let dnat = if self.is_dnat { XT_CT_STATE_DNAT } else { 0 };
            return Fit::of((states & (self.state.0 | dnat) != 0) != is_inverted);
        }
        match (extension.name.as_str(), extension.mark()) {
            ("comment", _) => Fit::All,
            ("mark", Some((value, mask))) => {
                // `invert` of `struct xt_mark_mtinfo1`.
                let is_inverted = extension.info.get(8) == Some(&1);
                Fit::of((self.mark & mask == value) != is_inverted)
            }
            // Usual packets have no such header.
            ("rpfilter" | "rt" | "ipv6header" | "frag" | "hbh" | "dst", _) => Fit::None,
            ("addrtype", _) => addrtype(&extension.info),
            // The first packet of a new flow is a question for an echo. Source: linux/netfilter_ipv4/ip_tables.h, `struct ipt_icmp`.
            ("icmp" | "icmp6", _) if self.state == CtState::NEW => {
                match extension.info.as_slice() {
                    [8 | 128 | 0xff, ..] => Fit::Some,
                    [_, _, _, inverted, ..] if *inverted != 0 => Fit::Some,
                    _ => Fit::None,
                }
            }
            ("tcp" | "udp" | "multiport", _) => self.fit_of_ports(extension),
            _ => Fit::Some,
        }
    }
}

/// Which packets the match `addrtype` selects: the sources here are unicast addresses.
///
/// Source: linux/netfilter/xt_addrtype.h, `struct xt_addrtype_info_v1`: the types of the source, a bit for each RTN_*; those of the
/// destination; and flags.
fn addrtype(info: &[u8]) -> Fit {
    let excludes =
        |at| u16_at(info, at).is_some_and(|types| types != 0 && types & 1 << RTN_UNICAST == 0);
    let is_inverted = u32_at(info, 4).is_some_and(|flags| flags & 3 != 0);
    if excludes(0) && !is_inverted { Fit::None } else { Fit::Some }
}

/// The value that follows. `None` after the greatest.
fn after(value: &[u8]) -> Option<Vec<u8>> {
    let mut next = value.to_vec();
    let last = next.iter().rposition(|byte| *byte != u8::MAX)?;
    next[last] += 1;
    next[last + 1..].fill(0);
    Some(next)
}

/// The name of a link as the kernel compares it.
fn padded(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(Field::Iifname.bytes().into(), 0);
    bytes
}

/// Source: linux/netfilter/nf_conntrack_common.h.
const IPS_DST_NAT: u32 = 1 << 5;
/// Source: linux/rtnetlink.h. It is the type of the destination of packets that are forwarded.
const RTN_UNICAST: u32 = 1;
