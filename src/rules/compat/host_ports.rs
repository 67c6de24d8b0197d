//! Host ports that the Go plugin `portmap` has published, with either backend. Packets reach the rules of the Go plugin before
//! the rules of cnibox.

use std::net::IpAddr;

use crate::error::Result;
use crate::names::{Attachment, IpFamily, NetworkName};
use crate::netlink::nft::{Condition, Field, Nft, Rule, Table, Transport};
use crate::netlink::{AF_INET, AF_INET6, fixed, ip_of, u16_at};

/// The chain of iptables with one rule for each container. The rule jumps to the chain with the published ports of the
/// container.
pub(super) const DNAT: &str = "CNI-HOSTPORT-DNAT";

/// A published port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// `None`: the rule is of the nftables backend, which does not name the network.
    pub network: Option<String>,
    pub container_id: String,
    pub transport: Transport,
    pub port: u16,
    /// `None`: all addresses of the host.
    pub host_ip: Option<IpAddr>,
    /// The mapping has `conditionsV4` or `conditionsV6`.
    pub has_conditions: bool,
}

/// The published ports of one family, from the tables of both backends, iptables and nftables.
pub fn all(nft: &Nft, family: IpFamily) -> Result<Vec<HostPort>> {
    let mut all = of_iptables(nft, Table { family: family.into(), name: "nat" })?;
    let table = Table { family: family.into(), name: "cni_hostport" };
    all.extend(nft.rules(table)?.iter().filter_map(|rule| {
        let container_id = rule.comment.as_deref()?;
        HostPort::of(rule, None, container_id, false)
    }));
    Ok(all)
}

/// Whether the attachment may have a published port. A rule of the nftables backend does not name the network, so only its
/// container id is compared.
pub fn has(nft: &Nft, network: &NetworkName, at: &Attachment) -> Result<bool> {
    let mut ports = Vec::new();
    for family in IpFamily::ALL {
        ports.extend(all(nft, family)?);
    }
    let may_be_of_attachment = |port: &HostPort| {
        port.container_id == *at.container_id
            && port.network.as_deref().is_none_or(|name| name == &**network)
    };
    Ok(ports.iter().any(may_be_of_attachment))
}

/// The ports of the iptables backend. A rule of the chain `DNAT` names the container in its comment and jumps to the chain with
/// its ports. Only these chains are read: kube-proxy can have thousands of rules in the same table.
fn of_iptables(nft: &Nft, nat: Table<'_>) -> Result<Vec<HostPort>> {
    let mut all = Vec::new();
    for entry in nft.rules_of(nat, DNAT)? {
        let named = entry.comment.as_deref().and_then(names);
        let (Some((network, container_id)), Some(chain)) = (named, entry.leads_to()) else {
            continue;
        };
        let is_further = |condition: &Condition| condition.field != Field::Protocol;
        let has_conditions = entry.conditions().iter().any(is_further);
        let port = |rule: &Rule| HostPort::of(rule, Some(network), container_id, has_conditions);
        all.extend(nft.rules_of(nat, chain)?.iter().filter_map(port));
    }
    Ok(all)
}

/// The network and the container in `dnat name: "NETWORK" id: "CONTAINER"`.
fn names(comment: &str) -> Option<(&str, &str)> {
    comment.strip_prefix("dnat name: \"")?.strip_suffix('"')?.split_once("\" id: \"")
}

impl HostPort {
    /// The published port of a rule. `None` if the rule has no condition on a protocol and a port, as a rule that masquerades.
    fn of(
        rule: &Rule,
        network: Option<&str>,
        container_id: &str,
        has_conditions: bool,
    ) -> Option<Self> {
        let conditions = rule.conditions();
        let value = |field: Field| {
            let found = conditions.iter().find(|condition| condition.field == field)?;
            found.is_equal.then_some(found.value.as_slice())
        };
        let transport = Transport::of(*value(Field::Protocol)?.first()?)?;
        let port = value(Field::Dport).and_then(|value| Some(u16::from_be_bytes(fixed(value, 0)?)));
        let host_ip = [(AF_INET, Field::IpDaddr), (AF_INET6, Field::Ip6Daddr)]
            .into_iter()
            .find_map(|(family, field)| ip_of(family, value(field)?));
        Some(Self {
            network: network.map(str::to_owned),
            container_id: container_id.to_owned(),
            transport,
            port: port.or_else(|| xt_port(rule))?,
            host_ip,
            has_conditions,
        })
    }
}

/// The destination port in the xtables match `sctp`, or in `tcp` or `udp`, which earlier releases of iptables use. `None` if
/// the match has a range of ports.
///
/// Source: linux/netfilter/xt_tcpudp.h: `spts[2]`, `dpts[2]`; xt_sctp.h: `dpts[2]`, `spts[2]`; in the byte order of the host.
fn xt_port(rule: &Rule) -> Option<u16> {
    let offsets = [("tcp", 4), ("udp", 4), ("sctp", 0)];
    let (info, at) = offsets.into_iter().find_map(|(name, at)| Some((rule.xt_match(name)?, at)))?;
    let [first, last] = [at, at + 2].map(|at| u16_at(info, at));
    first.filter(|_| first == last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_names_network_and_container() {
        assert_eq!(names("dnat name: \"net\" id: \"abc\""), Some(("net", "abc")));
        for other in ["name: \"net\" id: \"abc\"", "dnat name: \"net\"", ""] {
            assert_eq!(names(other), None, "{other}");
        }
    }
}
