//! The policy `strict`: a bridge that is cut off from all other bridges, also from those without a policy, and from all other
//! containers behind the plugin.
//!
//! ```nft
//! set firewall-apart { type ifname; }
//! set firewall-uplinks { type ifname; }
//! chain firewall-policy {
//!     ct status dnat ct direction original iifkind "bridge" iifname != @firewall-uplinks fib saddr . iif oif missing jump firewall-sources
//!     iifname @firewall-apart ip daddr @firewall-addresses goto firewall-between
//!     oifname @firewall-apart ip saddr @firewall-addresses goto firewall-between
//!     iifname @firewall-apart oifkind "bridge" oifname != @firewall-uplinks goto firewall-between
//!     oifname @firewall-apart iifkind "bridge" iifname != @firewall-uplinks goto firewall-between
//! }
//! ```
//!
//! The kind of the link decides, because other programs make bridges for containers at any time. The addresses decide for
//! networks whose link is no bridge, such as the gateway of a VLAN. The first rule is that for sources of other bridges with a
//! policy, see `ruleset`.

use super::source_links;
use crate::error::{Error, Result};
use crate::names::{IfName, IpFamily};
use crate::netlink::nft::{
    Batch, Condition, Element, Expr, Field, NewSet, Nft, Table, Type, Value, Verdict, in_set,
    not_in_set, pack,
};
use crate::steps::nft::shared_rules::rule;

/// The set of bridges with the policy.
pub(super) const APART: &str = "firewall-apart";
/// The set of bridges through which the host reaches other hosts.
const UPLINKS: &str = "firewall-uplinks";

pub(super) fn sets() -> [NewSet; 2] {
    [APART, UPLINKS].map(|name| NewSet::set(name, [Type::IfName]))
}

/// The rules of `firewall-policy`, after those of the other policies. `addresses` is the set of all
/// containers, and `between` the chain that the rules lead to.
pub(super) fn rules(family: IpFamily, addresses: &str, between: &str) -> Vec<Vec<Expr>> {
    let [saddr, daddr] = Field::addresses(family);
    let bridge = |kind: Field, name: Field| {
        Condition::is_bridge(kind).into_iter().chain(not_in_set(&[name], UPLINKS))
    };
    let (from, to) = (
        bridge(Field::Iifkind, Field::Iifname).collect::<Vec<_>>(),
        bridge(Field::Oifkind, Field::Oifname).collect::<Vec<_>>(),
    );
    let sources = Verdict::Jump(source_links::CHAIN.into());
    let mut rules = vec![source_links::spoofed(from.clone(), sources)];
    for (own, other) in [
        (Field::Iifname, in_set(&[daddr], addresses)),
        (Field::Oifname, in_set(&[saddr], addresses)),
        (Field::Iifname, to),
        (Field::Oifname, from),
    ] {
        let conditions = in_set(&[own], APART).into_iter().chain(other);
        rules.push(rule(conditions, Verdict::Goto(between.into())));
    }
    rules
}

fn elements(uplinks: &[IfName]) -> Vec<Element> {
    let key = |uplink| pack(&[Value::IfName(uplink)]);
    uplinks.iter().map(|uplink| Element { key: key(uplink), data: None, comment: None }).collect()
}

/// Sets the uplinks. The set is there, or `batch` adds it.
pub(super) fn put(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    uplinks: &[IfName],
) -> Result<()> {
    let wanted = elements(uplinks);
    let mut stale = nft.elements(table, UPLINKS)?;
    stale.retain(|element| !wanted.contains(element));
    batch.delete_elements(table, UPLINKS, &stale);
    batch.ensure_elements(table, UPLINKS, &wanted);
    Ok(())
}

/// Fails if the set has other uplinks.
pub(super) fn check(nft: &Nft, table: Table<'_>, uplinks: &[IfName]) -> Result<()> {
    let (present, wanted) = (nft.elements(table, UPLINKS)?, elements(uplinks));
    if present.len() == wanted.len() && wanted.iter().all(|uplink| present.contains(uplink)) {
        return Ok(());
    }
    let set = format!("set {UPLINKS} of table {table}");
    Err(Error::difference(format_args!("{set} has not the uplinks of this host")).of_shared(set))
}
