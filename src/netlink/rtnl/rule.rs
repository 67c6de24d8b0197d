//! Policy rules that select a routing table: reading, adding and deleting them.

use std::net::IpAddr;

use ipnet::IpNet;
use neli::consts::nl::NlmF;
use nix::libc;

use super::consts::{
    FR_ACT_TO_TBL, FRA_IIFNAME, FRA_L3MDEV, FRA_PRIORITY, FRA_PROTOCOL, FRA_SRC,
    FRA_SUPPRESS_IFGROUP, FRA_SUPPRESS_PREFIXLEN, FRA_TABLE,
};
use super::{Batch, Rtnl};
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::{
    Attrs, Requests, attribute, attributes, fixed, found, ip_of, text, u8_of, u32_at, u32_of,
};

/// A rule that selects the table for packets from an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The source address. `None` for a rule that was read and has another condition, or more conditions.
    pub source: Option<IpAddr>,
    pub table: u32,
    /// Rules with lower numbers come first. `None` in a new rule: before all others except that of the local table.
    pub priority: Option<u32>,
    /// RTPROT_*, the origin. Kernels before 4.17 do not store it.
    pub protocol: Option<u8>,
    /// The rule selects the table of the VRF (FRA_L3MDEV).
    pub is_for_vrfs: bool,
}

/// The packets that a policy rule selects, for messages: `from 10.1.0.0/16 iif eth0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSelector {
    pub source: Option<IpNet>,
    pub incoming: Option<String>,
    pub priority: u32,
    /// The rule has no destination, and rejects the packets that it selects: `prohibit`.
    pub rejects: Option<&'static str>,
}

impl Rtnl {
    /// The packets that each rule of a family selects by their source address or incoming link.
    pub fn rule_selectors(&self, family: IpFamily) -> Result<Vec<RuleSelector>> {
        self.list_rules(family, RuleSelector::parse)
    }

    /// The rules of a family. The list is empty if the kernel lacks CONFIG_IP_MULTIPLE_TABLES or the family.
    pub fn rules(&self, family: IpFamily) -> Result<Vec<Rule>> {
        self.list_rules(family, Rule::parse)
    }

    fn list_rules<T>(
        &self,
        family: IpFamily,
        parse: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let (doing, mut header) = ("cannot list rules", [0; HEADER_BYTES]);
        header[0] = family.number();
        let request = Requests::bare(libc::RTM_GETRULE, NlmF::empty(), doing, &header);
        let rules = found(self.socket.dump(request, parse), |error| {
            matches!(error.errno, libc::EAFNOSUPPORT | libc::EOPNOTSUPP)
        })?;
        Ok(rules.unwrap_or_default())
    }
}

impl Batch {
    pub fn add_rule(&mut self, rule: &Rule) {
        let doing = format!("cannot add {}", rule.title());
        let flags = NlmF::CREATE | NlmF::EXCL;
        self.requests.push(libc::RTM_NEWRULE, flags, doing, |attrs| rule.encode(attrs));
    }

    /// Adds the rule for VRFs, which the kernel adds with the first VRF. An existing rule is no error.
    pub fn add_rule_for_vrfs(&mut self, family: IpFamily) {
        let doing = "cannot add the rule for VRFs".into();
        self.requests.push(libc::RTM_NEWRULE, NlmF::CREATE | NlmF::EXCL, doing, |attrs| {
            let mut header = [0; HEADER_BYTES];
            (header[0], header[7]) = (family.number(), FR_ACT_TO_TBL);
            attrs.raw(&header);
            attrs.u8(FRA_L3MDEV, 1);
            attrs.u32(FRA_PRIORITY, PRIORITY_FOR_VRFS);
        });
        self.requests.tolerate(libc::EEXIST);
    }

    /// Deletes a rule. A missing rule is no error.
    pub fn del_rule(&mut self, rule: &Rule) {
        let doing = format!("cannot delete {}", rule.title());
        self.requests.push(libc::RTM_DELRULE, NlmF::empty(), doing, |attrs| rule.encode(attrs));
        self.requests.tolerate(libc::ENOENT);
    }
}

impl RuleSelector {
    fn parse(payload: &[u8]) -> Option<Self> {
        let [family, to_len, from_len, _, _, _, _, action] = fixed(payload, 0)?;
        let list = payload.get(HEADER_BYTES..)?;
        let source = attribute(list, FRA_SRC).and_then(|source| ip_of(family, source));
        // A host with VRFs has such a rule for packets of VRFs without a route.
        let is_for_vrfs = attribute(list, FRA_L3MDEV).is_some();
        // FR_ACT_* of linux/fib_rules.h.
        let rejects = match action {
            _ if to_len != 0 || is_for_vrfs => None,
            6 => Some("blackhole"),
            7 => Some("unreachable"),
            8 => Some("prohibit"),
            _ => None,
        };
        Some(Self {
            source: source.and_then(|source| IpNet::new(source, from_len).ok()),
            incoming: attribute(list, FRA_IIFNAME).map(|name| text(name).into_owned()),
            priority: attribute(list, FRA_PRIORITY).and_then(u32_of).unwrap_or_default(),
            rejects,
        })
    }
}

impl Rule {
    /// `rule from 10.1.0.2 lookup 100`
    pub fn title(&self) -> String {
        let source = self.source.map_or_else(|| "all".into(), |source| source.to_string());
        format!("rule from {source} lookup {}", self.table)
    }

    fn encode(&self, attrs: &mut Attrs) {
        let mut header = [0; HEADER_BYTES];
        if let Some(source) = &self.source {
            let family = IpFamily::of(*source);
            (header[0], header[2]) = (family.number(), family.bits());
        }
        header[7] = FR_ACT_TO_TBL;
        attrs.raw(&header);
        if let Some(source) = self.source {
            attrs.ip(FRA_SRC, source);
        }
        attrs.u32s(&[(FRA_TABLE, Some(self.table)), (FRA_PRIORITY, self.priority)]);
        if let Some(protocol) = self.protocol {
            attrs.u8(FRA_PROTOCOL, protocol);
        }
    }

    fn parse(payload: &[u8]) -> Option<Self> {
        let [family, to_len, from_len, tos, table, _, _, action] = fixed(payload, 0)?;
        let flags = u32_at(payload, 8)?;
        let mut rule = Self {
            source: None,
            table: table.into(),
            priority: Some(0),
            protocol: None,
            is_for_vrfs: false,
        };
        let mut is_plain = to_len == 0 && tos == 0 && flags == 0 && action == FR_ACT_TO_TBL;
        for (kind, value) in attributes(payload.get(HEADER_BYTES..)?) {
            match kind {
                FRA_SRC => rule.source = ip_of(family, value),
                FRA_TABLE => rule.table = u32_of(value)?,
                FRA_PRIORITY => rule.priority = u32_of(value),
                FRA_PROTOCOL => rule.protocol = u8_of(value),
                FRA_L3MDEV => {
                    rule.is_for_vrfs = u8_of(value) == Some(1);
                    is_plain = false;
                }
                // The kernel always sends these two attributes; -1 means unused.
                FRA_SUPPRESS_PREFIXLEN | FRA_SUPPRESS_IFGROUP => {
                    is_plain &= u32_of(value) == Some(u32::MAX);
                }
                _ => is_plain = false,
            }
        }
        let is_one = rule.source.is_some_and(|source| IpNet::from(source).prefix_len() == from_len);
        if !is_plain || !is_one {
            rule.source = None;
        }
        Some(rule)
    }
}

/// The priority of the rule that the kernel adds with the first VRF (drivers/net/vrf.c: FIB_RULE_PREF).
const PRIORITY_FOR_VRFS: u32 = 1000;

/// struct fib_rule_hdr: family, lengths of destination and source, TOS, table, two reserved bytes, action, flags.
const HEADER_BYTES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::rows;

    fn rule(source: &str) -> Rule {
        let source = Some(source.parse().unwrap());
        let protocol = Some(99);
        Rule { source, table: 1000, priority: Some(32765), protocol, is_for_vrfs: false }
    }

    fn encoded(rule: &Rule) -> Attrs {
        let mut attrs = Attrs::default();
        rule.encode(&mut attrs);
        attrs
    }

    #[test]
    fn rules_are_written_and_read_back() {
        for (rule, expected) in [
            (
                rule("10.1.0.2"),
                "02002000 00000001 00000000 08000200 0a010002 08000f00 e8030000 08000600 fd7f0000 \
                 05001500 63000000",
            ),
            (
                rule("fd00::2"),
                "0a008000 00000001 00000000 14000200 fd000000 00000000 00000000 00000002 \
                 08000f00 e8030000 08000600 fd7f0000 05001500 63000000",
            ),
        ] {
            let attrs = encoded(&rule);
            assert_eq!(rows(attrs.as_slice()), expected);
            assert_eq!(Rule::parse(attrs.as_slice()), Some(rule));
            for end in 0..attrs.as_slice().len() {
                assert_eq!(Rule::parse(&attrs.as_slice()[..end]).is_some(), end >= HEADER_BYTES);
            }
        }
    }

    #[test]
    fn a_rule_with_more_conditions_has_no_source() {
        let with = |kind: u16, value: &[u8]| {
            let mut attrs = encoded(&rule("10.1.0.2"));
            attrs.bytes(kind, value);
            Rule::parse(attrs.as_slice()).unwrap().source.is_some()
        };
        let minus_one = u32::MAX.to_ne_bytes();
        assert!(with(FRA_SUPPRESS_PREFIXLEN, &minus_one) && with(FRA_SUPPRESS_IFGROUP, &minus_one));
        assert!(!with(FRA_SUPPRESS_PREFIXLEN, &[0; 4]));
        assert!(!with(10, &[1, 0, 0, 0]), "a mark of the firewall");
        let mut attrs = Attrs::default();
        attrs.raw(&[2, 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0]);
        attrs.u8(FRA_L3MDEV, 1);
        assert!(
            Rule::parse(attrs.as_slice())
                .is_some_and(|rule| rule.is_for_vrfs && rule.source.is_none())
        );
        // Each byte makes it another rule: a source prefix, a destination, a TOS, `not`, another action.
        for (at, value) in [(2, 24), (1, 32), (3, 8), (8, 2), (7, 6)] {
            let mut bytes = encoded(&rule("10.1.0.2")).as_slice().to_vec();
            bytes[at] = value;
            let read = Rule::parse(&bytes).unwrap();
            assert_eq!((read.source, read.table), (None, 1000), "{at}");
        }
    }
}
