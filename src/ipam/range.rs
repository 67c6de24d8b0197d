//! Validated ranges of addresses, and sets of ranges.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::Serialize;

use crate::cni::json::keys;
use crate::cni::text;
use crate::error::{Error, Result};
use crate::names::reserved;

keys! {
    /// A range in the configuration. [`parse`] fills in the defaults.
    #[derive(Clone, Debug)]
    pub struct RangeConf {
        "subnet" => pub subnet: String,
        "rangeStart" => pub range_start: Option<IpAddr>,
        "rangeEnd" => pub range_end: Option<IpAddr>,
        "gateway" => pub gateway: Option<IpAddr>,
        /// Addresses and prefixes that are never allocated.
        "exclude" => pub exclude: Vec<String>,
    }
}

impl RangeConf {
    /// Whether the range is a configured point-to-point link (RFC 3021, RFC 6164): a subnet of two addresses with all of
    /// rangeStart, rangeEnd and gateway. Such a subnet has no network address, so there are no defaults for them.
    fn is_point_to_point(&self, subnet: &IpNet) -> bool {
        let configured = [self.range_start, self.range_end, self.gateway];
        subnet.prefix_len() == subnet.max_prefix_len() - 1 && configured.iter().all(Option::is_some)
    }
}

/// The addresses from `first` to `last`, both included. All are in `subnet`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Range {
    pub subnet: IpNet,
    pub first: IpAddr,
    pub last: IpAddr,
    /// The gateway is never allocated. It can be outside of the subnet.
    #[serde(skip)]
    pub gateway: IpAddr,
    /// The prefixes whose addresses are never allocated.
    #[serde(skip)]
    excluded: Vec<IpNet>,
    /// The containers are on a link with broadcast, where the subnet has addresses that no host can have.
    #[serde(skip)]
    has_broadcast: bool,
}

/// A part of a range that the allocator searches, both ends included.
#[derive(Debug)]
pub struct Span<'a> {
    pub range: &'a Range,
    pub first: IpAddr,
    pub last: IpAddr,
}

/// One or more ranges of one family, without overlaps. An attachment gets one address from a set.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeSet(Vec<Range>);

/// Validates range sets in the order of the reference: of several mistakes, the error names the same one (code 7). `exclude`
/// applies to all sets; its entries can be outside of all ranges.
pub fn parse(configured: &[Vec<RangeConf>], exclude: &[String]) -> Result<Vec<RangeSet>> {
    if configured.is_empty() {
        return Err(Error::config("no IP ranges specified"));
    }
    let mut sets: Vec<RangeSet> = Vec::with_capacity(configured.len());
    let excluded = parse_excluded(exclude).map_err(Error::config)?;
    for (index, ranges) in configured.iter().enumerate() {
        let set = RangeSet::new(ranges, &excluded)
            .map_err(|reason| Error::config(format_args!("invalid range set {index}: {reason}")))?;
        sets.push(set);
    }
    for (index, set) in sets.iter().enumerate() {
        let overlaps = |other: &RangeSet| {
            set.0.iter().any(|range| other.0.iter().any(|other| range.overlaps(other)))
        };
        if let Some(distance) = sets[index + 1..].iter().position(overlaps) {
            let other = index + 1 + distance;
            return Err(Error::config(format_args!("range set {index} overlaps with {other}")));
        }
    }
    Ok(sets)
}

impl RangeSet {
    fn new(configured: &[RangeConf], excluded: &[IpNet]) -> Result<Self, String> {
        if configured.is_empty() {
            return Err("empty range set".into());
        }
        let mut ranges: Vec<Range> = Vec::with_capacity(configured.len());
        for conf in configured {
            let range = Range::new(conf, excluded)?;
            if ranges.first().is_some_and(|first| first.is_ipv4() != range.is_ipv4()) {
                return Err("mixed address families".into());
            }
            ranges.push(range);
        }
        for (index, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges[index + 1..].iter().find(|other| range.overlaps(other)) {
                return Err(format!("subnets {range} and {other} overlap"));
            }
        }
        Ok(Self(ranges))
    }

    /// The set for containers on a link with broadcast: the network's and the broadcast address are not allocated.
    pub fn with_broadcast(mut self) -> Self {
        self.0.iter_mut().for_each(|range| range.has_broadcast = true);
        self
    }

    pub fn is_ipv4(&self) -> bool {
        self.0[0].is_ipv4()
    }

    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// The range that an address is in.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// The parts of the set in the order of the search, which begins after the last allocated address. So a released address
    /// is reused as late as possible: other hosts can still have the MAC address of the old container for it.
    pub fn spans(&self, last_reserved: Option<IpAddr>) -> Vec<Span<'_>> {
        let whole = |range| Span { range, first: range.first, last: range.last };
        let mut spans: Vec<Span<'_>> = self.0.iter().map(whole).collect();
        let last_reserved = last_reserved
            .and_then(|ip| Some((ip, self.0.iter().position(|range| range.contains(ip))?)));
        if let Some((last_reserved, index)) = last_reserved {
            // This range is searched in two parts: first the part after the last allocated address, at the end the part up to
            // that address.
            spans.rotate_left(index);
            let range = &self.0[index];
            spans.push(Span { range, first: range.first, last: last_reserved });
            match next(last_reserved).filter(|ip| *ip <= range.last) {
                Some(first) => spans[0].first = first,
                None => drop(spans.remove(0)),
            }
        }
        spans
    }

    /// Whether the address is in a range, and no rule keeps it from being allocated.
    pub fn may_allocate(&self, ip: IpAddr) -> bool {
        self.range_of(ip).is_some_and(|range| range.may_allocate(ip))
    }
}

impl Span<'_> {
    /// The first allocatable address from `ip` on.
    pub fn first_allocatable(&self, mut ip: IpAddr) -> Option<IpAddr> {
        while ip <= self.last {
            let next = match self.range.excluding(ip) {
                None if !self.range.is_kept_back(ip) => return Some(ip),
                None => self::next(ip),
                Some(net) => self::next(net.broadcast()),
            };
            // The highest address of the family has no next address.
            ip = next?;
        }
        None
    }

    /// Whether the address is in the span, and is neither excluded nor the gateway.
    pub fn may_allocate(&self, ip: IpAddr) -> bool {
        (self.first..=self.last).contains(&ip) && self.range.may_allocate(ip)
    }

    /// The address after `ip`, if it is in the span.
    pub fn after(&self, ip: IpAddr) -> Option<IpAddr> {
        next(ip).filter(|ip| *ip <= self.last)
    }
}

impl Range {
    fn new(conf: &RangeConf, excluded: &[IpNet]) -> Result<Self, String> {
        let subnet = parse_subnet(&conf.subnet)?;
        if subnet.prefix_len() > subnet.max_prefix_len() - 2 && !conf.is_point_to_point(&subnet) {
            return Err(format!("Network {subnet} too small to allocate from"));
        }
        if subnet.addr() != subnet.network() {
            return Err(format!(
                "Network has host bits set. For a subnet mask of length {} the network address is {}",
                subnet.prefix_len(),
                subnet.network()
            ));
        }
        let not_in_network =
            |what: &str, ip: IpAddr| format!("Range{what} {ip} not in network {subnet}");
        let after_network = next(subnet.network()).expect("a subnet has two addresses or more");
        let first = conf.range_start.unwrap_or(after_network);
        if !subnet.contains(&first) || conf.range_end.is_some_and(|last| first > last) {
            // Without rangeStart, rangeEnd is the mistake: it is before the first address of the range.
            return Err(match (conf.range_start, conf.range_end) {
                (None, Some(last)) => not_in_network("End", last),
                _ => not_in_network("Start", first),
            });
        }
        let last = conf.range_end.unwrap_or_else(|| match subnet {
            // The last address of an IPv4 subnet is its broadcast address.
            IpNet::V4(subnet) => Ipv4Addr::from_bits(subnet.broadcast().to_bits() - 1).into(),
            IpNet::V6(_) => subnet.broadcast(),
        });
        if !subnet.contains(&last) {
            return Err(not_in_network("End", last));
        }
        if first > last {
            return Err(format!(
                "{}: without a RangeEnd the range ends at {last}",
                not_in_network("Start", first)
            ));
        }
        let own = parse_excluded(&conf.exclude)?;
        if let Some(stray) = own.iter().find(|net| !subnet.contains(*net)) {
            return Err(format!("exclude {stray} not in network {subnet}"));
        }
        let of_all = excluded.iter().filter(|net| net.addr().is_ipv4() == first.is_ipv4());
        let excluded = own.iter().chain(of_all).copied().collect();
        let gateway = conf.gateway.unwrap_or(after_network);
        Ok(Self { subnet, first, last, gateway, excluded, has_broadcast: false })
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        // Addresses are ordered by family first, so an address of the other family is never in the range.
        self.first <= ip && ip <= self.last
    }

    pub fn may_allocate(&self, ip: IpAddr) -> bool {
        self.contains(ip) && !self.is_kept_back(ip) && self.excluding(ip).is_none()
    }

    /// Whether the address is the gateway, or one that no host on a link with broadcast can have.
    fn is_kept_back(&self, ip: IpAddr) -> bool {
        let address = || IpNet::new(ip, self.subnet.prefix_len()).ok();
        ip == self.gateway
            || self.has_broadcast && address().is_some_and(|ip| reserved::in_subnet(&ip).is_some())
    }

    /// The number of addresses that can be allocated, at most `u64::MAX`.
    pub fn size(&self) -> u64 {
        // The number of all IPv6 addresses is one more than u128::MAX.
        let count = |first: IpAddr, last: IpAddr| (number(last) - number(first)).saturating_add(1);
        let is_counted = |(index, net): &(usize, &IpNet)| {
            let contains = |(other, wider): (usize, &IpNet)| {
                wider.contains(*net) && (wider != *net || other < *index)
            };
            !self.excluded.iter().enumerate().any(|other| other.0 != *index && contains(other))
        };
        let mut size = count(self.first, self.last);
        for (_, net) in self.excluded.iter().enumerate().filter(is_counted) {
            let (first, last) = (net.network().max(self.first), net.broadcast().min(self.last));
            if first <= last {
                size -= count(first, last);
            }
        }
        let mut single = vec![self.gateway, self.subnet.network(), self.subnet.broadcast()];
        single.sort_unstable();
        single.dedup();
        single.retain(|ip| {
            self.contains(*ip) && self.is_kept_back(*ip) && self.excluding(*ip).is_none()
        });
        u64::try_from(size - single.len() as u128).unwrap_or(u64::MAX)
    }

    /// The excluded prefix that contains an address.
    pub fn excluding(&self, ip: IpAddr) -> Option<&IpNet> {
        self.excluded.iter().find(|net| net.contains(&ip))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }
}

fn parse_subnet(text: &str) -> Result<IpNet, String> {
    if text.is_empty() {
        return Err("IP <nil> not v4 nor v6: the range has no subnet".into());
    }
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    if address.parse::<Ipv6Addr>().is_ok_and(|ip| ip.to_ipv4_mapped().is_some()) {
        return Err("IPNet IP and Mask version mismatch".into());
    }
    text::parse_cidr(text)
}

/// Parses addresses and prefixes. Refuses a prefix with host bits: the user may have meant a single address.
fn parse_excluded(texts: &[String]) -> Result<Vec<IpNet>, String> {
    let parse = |text: &String| {
        if !text.contains('/') {
            return text::parse_ip(text).map(IpNet::from);
        }
        let net = text::parse_cidr(text)?;
        if net.addr() == net.network() {
            return Ok(net);
        }
        Err(format!("{text} has host bits set: write {} or {}", net.addr(), net.trunc()))
    };
    let named = |text| parse(text).map_err(|reason| format!("exclude: {reason}"));
    texts.iter().map(named).collect()
}

fn next(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(1).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(ip) => ip.to_bits().checked_add(1).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{range}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::cni::json::Json;
    use crate::error::Code;

    use super::*;

    /// The range sets of a configuration.
    fn sets(text: &str) -> Result<Vec<RangeSet>> {
        let json = Json::parse(text.as_bytes())?;
        parse(&json.read::<Vec<Vec<RangeConf>>>("ranges")?, &[])
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn addresses(set: &RangeSet, last_reserved: Option<&str>, count: usize) -> Vec<String> {
        candidates(set, last_reserved.map(ip)).take(count).map(|ip| ip.to_string()).collect()
    }

    /// The addresses in the order of their allocation, if none is reserved.
    fn candidates(set: &RangeSet, last_reserved: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        set.spans(last_reserved).into_iter().flat_map(|span| {
            std::iter::successors(span.first_allocatable(span.first), move |ip| {
                span.first_allocatable(span.after(*ip)?)
            })
        })
    }

    #[test]
    fn defaults_are_filled_in() {
        let cases = [
            (r#"[[{"subnet":"10.1.0.0/16"}]]"#, "10.1.0.1-10.1.255.254", "10.1.0.1", Some(65_533)),
            (r#"[[{"subnet":"10.1.0.0/30"}]]"#, "10.1.0.1-10.1.0.2", "10.1.0.1", Some(1)),
            (r#"[[{"subnet":"fd00::/126","gateway":""}]]"#, "fd00::1-fd00::3", "fd00::1", Some(2)),
            (
                r#"[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.0","rangeEnd":"10.1.0.255"}]]"#,
                "10.1.0.0-10.1.0.255",
                "10.1.0.1",
                Some(255),
            ),
            (
                r#"[[{"subnet":"10.1.0.0/24","rangeStart":"::ffff:10.1.0.9","gateway":"fd00::1"}]]"#,
                "10.1.0.9-10.1.0.254",
                "fd00::1",
                Some(246),
            ),
            (
                r#"[[{"subnet":"10.1.0.0/24","rangeEnd":"10.1.0.9"},{"subnet":"10.2.0.0/30"}]]"#,
                "10.1.0.1-10.1.0.9,10.2.0.1-10.2.0.2",
                "10.1.0.1",
                Some(9),
            ),
            (
                r#"[[{"subnet":"::/0","rangeStart":"::","gateway":"10.0.0.1"}]]"#,
                "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                "10.0.0.1",
                None,
            ),
        ];
        for (text, shown, gateway, size) in cases {
            let set = sets(text).unwrap().remove(0);
            assert_eq!(set.to_string(), shown, "{text}");
            let counted: u64 = set.ranges().iter().map(Range::size).sum();
            assert_eq!(counted, size.unwrap_or(u64::MAX), "{text}");
            if let Ok(size) = usize::try_from(counted)
                && size < 100_000
            {
                assert_eq!(candidates(&set, None).count(), size, "{text}");
            }
            assert_eq!(set.0[0].gateway, ip(gateway), "{text}");
        }
    }

    #[test]
    fn no_host_on_a_link_with_broadcast_gets_the_edges_of_a_subnet() {
        let cases = [
            (r#""10.1.0.0/29","rangeStart":"10.1.0.0","rangeEnd":"10.1.0.7""#, "2 3 4 5 6"),
            (r#""10.1.0.0/29","rangeStart":"10.1.0.6","rangeEnd":"10.1.0.7""#, "6"),
            (r#""10.1.0.0/30","rangeStart":"10.1.0.0","rangeEnd":"10.1.0.3""#, "2"),
            (r#""10.1.0.0/29","rangeStart":"10.1.0.7","rangeEnd":"10.1.0.7""#, ""),
            (r#""10.1.0.0/29","rangeStart":"10.1.0.0","gateway":"10.1.0.0""#, "1 2 3 4 5 6"),
            (
                r#""10.1.0.0/31","rangeStart":"10.1.0.0","rangeEnd":"10.1.0.0","gateway":"10.1.0.1""#,
                "0",
            ),
            (
                r#""10.1.0.0/29","rangeStart":"10.1.0.0","rangeEnd":"10.1.0.7","exclude":["10.1.0.4/30"]"#,
                "2 3",
            ),
            (r#""fd00::/126","rangeStart":"fd00::""#, "2 3"),
        ];
        for (range, expected) in cases {
            let set = sets(&format!(r#"[[{{"subnet":{range}}}]]"#)).unwrap().remove(0);
            let set = set.with_broadcast();
            let all: Vec<IpAddr> = candidates(&set, None).collect();
            let last = |ip: &IpAddr| (number(*ip) & 7).to_string();
            assert_eq!(all.iter().map(last).collect::<Vec<_>>().join(" "), expected, "{range}");
            assert_eq!(set.0[0].size(), all.len() as u64, "{range}");
            assert!(all.iter().all(|ip| set.may_allocate(*ip)), "{range}");
        }
    }

    #[test]
    fn a_link_between_two_hosts_is_a_subnet() {
        for (subnet, host, gateway) in
            [("10.1.0.0/31", "10.1.0.1", "10.1.0.0"), ("fd00::/127", "fd00::", "fd00::1")]
        {
            let text = format!(
                r#"[[{{"subnet":"{subnet}","rangeStart":"{host}","rangeEnd":"{host}","gateway":"{gateway}"}}]]"#
            );
            let set = sets(&text).unwrap().remove(0);
            assert_eq!(candidates(&set, None).collect::<Vec<_>>(), [ip(host)], "{text}");
            assert_eq!((set.0[0].size(), set.0[0].gateway), (1, ip(gateway)));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let empty = "empty range set";
        let not_in = |what: &str| format!("{what} not in network 10.1.0.0/24");
        let in_one_set = [
            ("", empty),
            (r#"{"rangeStart":"10.1.0.1"}"#, "IP <nil> not v4 nor v6: the range has no subnet"),
            (r#"{"subnet":"10.1.0.0"}"#, "invalid CIDR address: 10.1.0.0"),
            (r#"{"subnet":"10.1.0.0/31"}"#, "Network 10.1.0.0/31 too small to allocate from"),
            (r#"{"subnet":"fd00::/127"}"#, "Network fd00::/127 too small to allocate from"),
            (r#"{"subnet":"::ffff:10.1.0.0/112"}"#, "IPNet IP and Mask version mismatch"),
            (
                r#"{"subnet":"10.1.2.3/16"}"#,
                "Network has host bits set. For a subnet mask of length 16 the network address is 10.1.0.0",
            ),
            (r#"{"subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"}"#, &not_in("RangeStart 10.2.0.1")),
            (r#"{"subnet":"10.1.0.0/24","rangeStart":"fd00::1"}"#, &not_in("RangeStart fd00::1")),
            (
                r#"{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.8"}"#,
                &not_in("RangeStart 10.1.0.9"),
            ),
            (r#"{"subnet":"10.1.0.0/24","rangeEnd":"10.1.1.0"}"#, &not_in("RangeEnd 10.1.1.0")),
            (r#"{"subnet":"10.1.0.0/24","rangeEnd":"10.1.0.0"}"#, &not_in("RangeEnd 10.1.0.0")),
            (
                r#"{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.255"}"#,
                &format!(
                    "{}: without a RangeEnd the range ends at 10.1.0.254",
                    not_in("RangeStart 10.1.0.255")
                ),
            ),
            (r#"{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}"#, "mixed address families"),
            (
                r#"{"subnet":"10.1.0.0/24"},{"subnet":"10.0.0.0/8"}"#,
                "subnets 10.1.0.1-10.1.0.254 and 10.0.0.1-10.255.255.254 overlap",
            ),
        ];
        let check = |text: &str, expected: &str| {
            let error = sets(text).unwrap_err();
            assert_eq!(
                (error.code, error.msg.as_str()),
                (Code::INVALID_CONFIG, expected),
                "{text}"
            );
        };
        for (ranges, reason) in in_one_set {
            check(&format!("[[{ranges}]]"), &format!("invalid range set 0: {reason}"));
        }
        check("[]", "no IP ranges specified");
        check(r#"[[{"subnet":"10.1.0.0/16"}],[]]"#, &format!("invalid range set 1: {empty}"));
        check(
            r#"[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}],[{"subnet":"10.1.0.0/25"}]]"#,
            "range set 0 overlaps with 2",
        );
    }

    #[test]
    fn candidates_begin_after_the_last_allocated_address() {
        let set = sets(r#"[[{"subnet":"10.0.0.0/29"}]]"#).unwrap().remove(0);
        let cases: [(Option<&str>, [&str; 5]); 5] = [
            (None, ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]),
            (Some("10.0.0.3"), ["10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.2", "10.0.0.3"]),
            (Some("10.0.0.6"), ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]),
            (Some("10.0.0.1"), ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]),
            (Some("10.9.0.1"), ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]),
        ];
        for (last_reserved, expected) in cases {
            assert_eq!(addresses(&set, last_reserved, 9), expected, "{last_reserved:?}");
        }
    }

    #[test]
    fn candidates_skip_only_the_gateway_of_their_own_range() {
        let text = r#"[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.2","rangeEnd":"10.0.0.4","gateway":"10.0.1.2"},
            {"subnet":"10.0.1.0/24","rangeEnd":"10.0.1.3"}]]"#;
        let set = sets(text).unwrap().remove(0);
        let all = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.1.2", "10.0.1.3"];
        assert_eq!(addresses(&set, None, 9), all);
        assert_eq!(addresses(&set, Some("10.0.0.4"), 2), ["10.0.1.2", "10.0.1.3"]);
        assert_eq!(addresses(&set, Some("10.0.1.3"), 9), all);
        assert!(
            set.may_allocate(ip("10.0.1.2"))
                && !set.may_allocate(ip("10.0.1.1"))
                && !set.may_allocate(ip("::1"))
        );
    }

    #[test]
    fn the_cost_does_not_depend_on_the_size_of_the_range() {
        let set = sets(r#"[[{"subnet":"fd00::/64"}]]"#).unwrap().remove(0);
        assert_eq!(addresses(&set, None, 2), ["fd00::2", "fd00::3"]);
        assert_eq!(addresses(&set, Some("fd00::ffff:ffff:ffff:ffff"), 1), ["fd00::2"]);
        let set = sets(r#"[[{"subnet":"::/0"}]]"#).unwrap().remove(0);
        assert_eq!(addresses(&set, Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), 1), ["::2"]);
    }
}
