//! The chain `firewall-sources`: translated packets whose source is not on the link that they come from.
//!
//! The chain drops them, except those from another link of the same network: an administrator's macvlan on a bridge, and the
//! bridge itself, answer for the addresses of each other. For each such pair of links there is a rule at the start of the chain:
//!
//! ```nft
//! iifname "br1" fib saddr oifname "mv0" return
//! ```
//!
//! These are rules and not elements of a set, because nft (tried: 1.0.6) refuses `iifname . fib saddr oifname` and
//! `fib saddr oifname @SET`.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::names::IfName;
use crate::netlink::nft::{Batch, Condition, Expr, Field, NewRule, Nft, Rule, Table, Verdict};
use crate::netlink::rtnl::{Link, Rtnl};
use crate::rules::shared_rules::{Chain, rule};

pub(super) const CHAIN: &str = "firewall-sources";

/// The names of bridges, as nf_tables keys.
pub(super) type Bridges = BTreeSet<Vec<u8>>;

const MACVLAN: &str = "macvlan";

/// The macvlans of the host whose lower links are also in this network namespace.
pub(super) fn macvlans(host: &Rtnl) -> Result<Vec<Link>> {
    let mut links = host.links_of_kind(MACVLAN)?;
    links.retain(is_macvlan);
    Ok(links)
}

fn is_macvlan(link: &Link) -> bool {
    link.kind.as_deref() == Some(MACVLAN) && !link.peer_is_elsewhere
}

/// The other links of the network that a link of the host is in: the macvlans on the same lower link, and that link.
///
/// A VLAN link is not one of them: it has packets of another network.
pub(super) fn neighbours(host: &Rtnl, link: &Link, macvlans: &[Link]) -> Result<Vec<IfName>> {
    let lower = if is_macvlan(link) { link.peer } else { Some(link.index) };
    let of_lower = macvlans.iter().filter(|other| other.peer == lower && other.index != link.index);
    let mut names: Vec<&str> = of_lower.map(|other| other.name.as_str()).collect();
    let lower = lower.filter(|index| *index != link.index);
    let lower = lower.map(|index| host.link_at(index)).transpose()?.flatten();
    names.extend(lower.iter().map(|lower| lower.name.as_str()));
    names.into_iter().map(IfName::new).collect()
}

/// The chain without the rules for pairs of links.
pub(super) fn chain() -> Chain {
    Chain::regular(CHAIN, vec![vec![Verdict::Drop.into()]])
}

/// The verdict on translated packets that come from `origin` and whose source is not on the link that they come from.
pub(super) fn spoofed(origin: impl IntoIterator<Item = Expr>, verdict: Verdict) -> Vec<Expr> {
    translated(origin.into_iter().chain(Condition::fib_saddr_not_iif()), verdict)
}

/// The verdict on translated packets that meet the conditions, from the side that opened the connection.
pub(super) fn translated(
    conditions: impl IntoIterator<Item = Expr>,
    verdict: Verdict,
) -> Vec<Expr> {
    let translated = [Condition::ct_status_dnat(), Condition::ct_direction_original()];
    rule(translated.into_iter().flatten().chain(conditions), verdict)
}

/// `iifname "LINK" fib saddr oifname "NEIGHBOUR" return`
fn exception(link: &IfName, neighbour: &IfName) -> Vec<Expr> {
    let pair = [Condition::iifname(link), Condition::fib_saddr_oifname(neighbour)];
    rule(pair.into_iter().flatten(), Verdict::Return)
}

/// Adds the missing rules for packets from the link, and removes those of former neighbours. The chain is there, or `batch`
/// adds it.
pub(super) fn put(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    link: &IfName,
    neighbours: &[IfName],
) -> Result<()> {
    let present = nft.rules_of(table, CHAIN)?;
    let wanted: Vec<Vec<Expr>> = neighbours.iter().map(|other| exception(link, other)).collect();
    let is_wanted = |rule: &Rule| wanted.iter().any(|exprs| rule.is(exprs));
    let of_link = Condition::iifname(link);
    let stale = present.iter().filter(|rule| rule.conditions().contains(&of_link));
    for rule in stale.filter(|rule| !is_wanted(rule)) {
        batch.delete_rule(table, CHAIN, rule.handle);
    }
    for exprs in &wanted {
        if !present.iter().any(|rule| rule.is(exprs)) {
            batch.add_rule(table, NewRule::first(CHAIN).tagged(exprs));
        }
    }
    Ok(())
}

/// Fails if a rule for packets from the link is missing.
pub(super) fn check(
    nft: &Nft,
    table: Table<'_>,
    link: &IfName,
    neighbours: &[IfName],
) -> Result<()> {
    if neighbours.is_empty() {
        return Ok(());
    }
    let present = nft.rules_of(table, CHAIN)?;
    let is_missing = |neighbour: &&IfName| {
        let wanted = exception(link, neighbour);
        !present.iter().any(|rule| rule.is(&wanted))
    };
    match neighbours.iter().find(is_missing) {
        Some(neighbour) => Err(Error::difference(format_args!(
            "the rule for sources on {neighbour} and packets from {link} is missing in chain {CHAIN} of table {table}"
        ))),
        None => Ok(()),
    }
}

/// Removes the rules for packets from links that no attachment needs any more. `unused` are their names, as nf_tables keys.
pub(super) fn remove(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    unused: &Bridges,
) -> Result<()> {
    delete_rules_of(nft, batch, (table, CHAIN), Field::Iifname, unused)
}

/// Deletes the rules of a chain that compare a field with the name of one of these bridges, for equality.
pub(super) fn delete_rules_of(
    nft: &Nft,
    batch: &mut Batch,
    (table, chain): (Table<'_>, &str),
    field: Field,
    bridges: &Bridges,
) -> Result<()> {
    if bridges.is_empty() {
        return Ok(());
    }
    let is_of_one = |condition: &Condition| {
        condition.field == field && condition.is_equal && bridges.contains(&condition.value)
    };
    for rule in nft.rules_of(table, chain)? {
        if rule.conditions().iter().any(is_of_one) {
            batch.delete_rule(table, chain, rule.handle);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::nft::{Value, pack};

    #[test]
    fn a_condition_on_a_name_has_the_value_of_its_key() {
        let name = IfName::new("br1").unwrap();
        assert_eq!(Condition::iifname(&name).value, pack(&[Value::IfName(&name)]));
    }
}
