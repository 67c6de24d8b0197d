//! The policy `strict`: a bridge that is cut off from all other bridges, also from those without a policy, and from all other
//! containers behind the plugin.
//!
//! ```nft
//! set firewall-apart { type ifname; }
//! set firewall-uplinks { type ifname; }
//! chain firewall-policy {
//!     ct status dnat ct direction original iifname != "br1" fib saddr oifname "br1" jump firewall-sources
//!     iifname @firewall-apart ip daddr @firewall-addresses goto firewall-between
//!     oifname @firewall-apart ip saddr @firewall-addresses goto firewall-between
//!     iifname @firewall-apart oifkind "bridge" oifname != @firewall-uplinks goto firewall-between
//!     oifname @firewall-apart iifkind "bridge" iifname != @firewall-uplinks goto firewall-between
//! }
//! ```
//!
//! The kind of the link decides, because other programs make bridges for containers at any time. The addresses decide for
//! networks whose link is no bridge, such as the gateway of a VLAN.
//!
//! The first rule is there for each bridge with the policy. A container on any other link could open a connection to its own
//! published port with an address of the bridge as source, and the replies would be accepted to that address. `iifname != "mv0"`
//! is added for each other link of the network, see `source_links`. The route to all other hosts can lead to an uplink, and
//! their packets can come from another one; so `ip saddr @firewall-addresses` is added for a bridge that is an uplink.

use super::ingress::{CHAIN, PolicyLinks};
use super::mark::ADDRESSES;
use super::source_links::{self, Bridges};
use crate::error::{Error, Result};
use crate::names::{IfName, IpFamily};
use crate::netlink::nft::{
    Batch, Condition, Element, Expr, Field, NewRule, NewSet, Nft, Rule, Table, Type, Value,
    Verdict, in_set, not_in_set, pack,
};
use crate::rules::shared_rules::rule;

/// The set of bridges with the policy.
pub(super) const APART: &str = "firewall-apart";
/// The set of bridges through which the host reaches other hosts.
const UPLINKS: &str = "firewall-uplinks";

pub(super) fn sets() -> [NewSet; 2] {
    [APART, UPLINKS].map(|name| NewSet::set(name, [Type::IfName]))
}

/// The rules of `firewall-policy` for all bridges, after those of the other policies. `between` is the chain that the rules
/// lead to.
pub(super) fn rules(family: IpFamily, between: &str) -> Vec<Vec<Expr>> {
    let [saddr, daddr] = Field::addresses(family);
    let to_between = |(own, other): (Field, Vec<Expr>)| {
        let conditions = in_set(&[own], APART).into_iter().chain(other);
        rule(conditions, Verdict::Goto(between.into()))
    };
    let others = [
        (Field::Iifname, in_set(&[daddr], ADDRESSES)),
        (Field::Oifname, in_set(&[saddr], ADDRESSES)),
        (Field::Iifname, other_bridge(Field::Oifkind, Field::Oifname)),
        (Field::Oifname, other_bridge(Field::Iifkind, Field::Iifname)),
    ];
    others.map(to_between).into()
}

fn other_bridge(kind: Field, name: Field) -> Vec<Expr> {
    Condition::is_bridge(kind).into_iter().chain(not_in_set(&[name], UPLINKS)).collect()
}

/// `ct status dnat ct direction original iifkind "bridge" iifname != @firewall-uplinks fib saddr . iif oif missing jump
/// firewall-sources`, which an earlier development version added in place of the rules for single bridges.
pub(super) fn check_all_bridges() -> Vec<Expr> {
    let to_sources = Verdict::Jump(source_links::CHAIN.into());
    source_links::spoofed(other_bridge(Field::Iifkind, Field::Iifname), to_sources)
}

/// The rule for packets that come from another link than the bridge, with a source that the host reaches over the bridge.
fn check_sources(family: IpFamily, links: &PolicyLinks) -> Vec<Expr> {
    let bridge = links.bridge(family);
    let [saddr, _] = Field::addresses(family);
    let is_uplink = links.uplinks.contains(bridge);
    let listed = if is_uplink { in_set(&[saddr], ADDRESSES) } else { Vec::new() };
    let is_not = |link| Condition { is_equal: false, ..Condition::iifname(link) };
    let others = [bridge].into_iter().chain(links.neighbours(family)).flat_map(is_not);
    let conditions = listed.into_iter().chain(others).chain(Condition::fib_saddr_oifname(bridge));
    source_links::translated(conditions, Verdict::Jump(source_links::CHAIN.into()))
}

fn elements(uplinks: &[IfName]) -> Vec<Element> {
    let key = |uplink| pack(&[Value::IfName(uplink)]);
    uplinks.iter().map(|uplink| Element { key: key(uplink), data: None, comment: None }).collect()
}

/// Sets the uplinks and the rule for sources of the bridge. The set and the chain are there, or `batch` adds them.
pub(super) fn put(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    family: IpFamily,
    links: &PolicyLinks,
) -> Result<()> {
    let wanted = elements(&links.uplinks);
    let mut stale = nft.elements(table, UPLINKS)?;
    stale.retain(|element| !wanted.contains(element));
    batch.delete_elements(table, UPLINKS, &stale);
    batch.ensure_elements(table, UPLINKS, &wanted);

    let wanted = check_sources(family, links);
    let of_bridge = Condition::fib_saddr_oifname(links.bridge(family));
    let present = nft.rules_of(table, CHAIN)?;
    let of_bridge = present.iter().filter(|rule| rule.conditions().contains(&of_bridge));
    let (whole, stale): (Vec<&Rule>, Vec<&Rule>) = of_bridge.partition(|rule| rule.is(&wanted));
    for rule in stale {
        batch.delete_rule(table, CHAIN, rule.handle);
    }
    if whole.is_empty() {
        batch.add_rule(table, NewRule::first(CHAIN).tagged(&wanted));
    }
    Ok(())
}

/// Removes the rules for sources of bridges that have the policy no more. `unused` are their names, as nf_tables keys.
pub(super) fn remove(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    unused: &Bridges,
) -> Result<()> {
    source_links::delete_rules_of(nft, batch, (table, CHAIN), Field::FibSaddrOifname, unused)
}

/// Fails if the set has other uplinks, or if the rule for sources of the bridge is missing.
pub(super) fn check(
    nft: &Nft,
    table: Table<'_>,
    family: IpFamily,
    links: &PolicyLinks,
) -> Result<()> {
    let (present, wanted) = (nft.elements(table, UPLINKS)?, elements(&links.uplinks));
    if present.len() != wanted.len() || wanted.iter().any(|uplink| !present.contains(uplink)) {
        let set = format!("set {UPLINKS} of table {table}");
        let msg = format!("{set} has not the uplinks of this host");
        return Err(Error::difference(msg).of_shared(set));
    }
    let wanted = check_sources(family, links);
    if nft.rules_of(table, CHAIN)?.iter().any(|rule| rule.is(&wanted)) {
        return Ok(());
    }
    let bridge = links.bridge(family);
    let rule = format!("the rule for sources of bridge {bridge} in chain {CHAIN} of table {table}");
    Err(Error::difference(format_args!("{rule} is missing")).of_shared(rule))
}
