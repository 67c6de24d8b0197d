//! The names that objects in the tables `cnibox` had before 0.1.0. `migrate` moves elements and rules to objects with the
//! present names, in one transaction, so that no other module knows the old names.
//!
//! A rule of the administrator moves with its chain. A rule that cannot be read is dropped, with a line on stderr.

use crate::error::Result;
use crate::kernel::nft::{
    Batch, Chain, Datum, Element, Expr, Family, NewChain, NewRule, NewSet, Nft, Object, Rule,
    SetKind, Table, Type, Verdict,
};
use crate::kernel::sys;

const TABLES: [Table<'static>; 3] = [table(Family::Ip), table(Family::Ip6), table(Family::Bridge)];

/// One of these exists if a plugin has objects with old names.
const SIGNS: [Object<'static>; 8] = [
    Object::Set(TABLES[0], "masq"),
    Object::Set(TABLES[0], "portmap_owners"),
    Object::Set(TABLES[0], "firewall"),
    Object::Set(TABLES[1], "masq"),
    Object::Set(TABLES[1], "portmap_owners"),
    Object::Set(TABLES[1], "firewall"),
    Object::Set(TABLES[2], "spoof-check"),
    Object::Chain(TABLES[2], "firewall"),
];

const fn table(family: Family) -> Table<'static> {
    Table { family, name: "cnibox" }
}

/// The old name of a set that `steps` looks into before it migrates.
pub fn old_set(name: &str) -> Option<&'static str> {
    (name == "masquerade-sources").then_some("masq")
}

fn new_set(old: &str) -> Option<String> {
    match old {
        "masq" => Some("masquerade-sources".into()),
        "spoof-check" => Some("spoof-check-allowed".into()),
        "firewall" => Some("firewall-addresses".into()),
        _ => of_portmap(old),
    }
}

fn new_chain(old: &str) -> Option<String> {
    match old {
        "masq" => Some("masquerade-postrouting".into()),
        "spoof-check" => Some("spoof-check-prerouting".into()),
        "firewall" => Some("firewall-forward".into()),
        _ => match old.strip_prefix("masq-") {
            Some(subnet) => Some(format!("masquerade-{subnet}")),
            None => of_portmap(old),
        },
    }
}

/// `published_on_ports_0123456789abcdef`, `portmap_owners`, `masqueraded_16`
fn of_portmap(old: &str) -> Option<String> {
    let name = old.strip_prefix("portmap_").unwrap_or(old);
    let is_ours = name != old || name.starts_with("published") || name.starts_with("masqueraded_");
    is_ours.then(|| format!("portmap-{}", name.replace("besides", "secondary").replace('_', "-")))
}

/// Renames the objects with old names, if there are any. The check takes one request for each session.
pub fn migrate(nft: &Nft) -> Result<()> {
    if nft.has_new_names.get() {
        return Ok(());
    }
    if nft.exist(&SIGNS)?.contains(&true) {
        nft.transact(|nft, batch| {
            TABLES.iter().try_for_each(|table| move_table(nft, batch, *table))
        })?;
    }
    nft.has_new_names.set(true);
    Ok(())
}

fn move_table(nft: &Nft, batch: &mut Batch, table: Table<'_>) -> Result<()> {
    let sets: Vec<String> = nft.sets(table)?.into_iter().map(|set| set.name).collect();
    let chains = nft.chains(table)?;
    let old_sets: Vec<(&String, String)> =
        sets.iter().filter_map(|old| Some((old, new_set(old)?))).collect();
    let old_chains: Vec<(&Chain, String)> =
        chains.iter().filter_map(|old| Some((old, new_chain(&old.name)?))).collect();
    for (old, new) in &old_sets {
        if !sets.contains(new) {
            declare(batch, table, old, new);
        }
    }
    for (old, name) in &old_chains {
        if chains.iter().all(|chain| chain.name != *name) {
            let comment = old.comment.as_ref();
            batch.add_chain(table, NewChain { name, base: old.base, comment });
        }
    }
    for (old, new) in &old_sets {
        move_elements(nft, batch, table, old, new)?;
    }
    move_rules(batch, table, &nft.rules(table)?);
    // Nothing may refer to an object when it is deleted.
    for (old, _) in &old_chains {
        batch.flush_chain(table, &old.name);
    }
    for (old, _) in &old_sets {
        batch.delete_set(table, old);
    }
    for (old, _) in &old_chains {
        batch.delete_chain(table, &old.name);
    }
    Ok(())
}

/// Declares the new set like the old one.
fn declare(batch: &mut Batch, table: Table<'_>, old: &str, name: &str) {
    let address = if table.family == Family::Ip6 { Type::Ipv6Addr } else { Type::Ipv4Addr };
    let target = [address, Type::InetService];
    let (key, kind): (Vec<Type>, _) = match old {
        "masq" => (vec![address], SetKind::VerdictMap),
        "spoof-check" => (vec![Type::IfName, Type::EtherAddr], SetKind::Set),
        "firewall" => (vec![address], SetKind::Set),
        "portmap_owners" => (vec![Type::Mark, Type::Mark], SetKind::Set),
        _ if old.starts_with("masqueraded_") => (vec![address, address], SetKind::Set),
        _ if old.starts_with("published_on_ports") => {
            (vec![Type::InetProto, Type::InetService], SetKind::Set)
        }
        _ if old.starts_with("published_on") => {
            (vec![address, Type::InetProto, Type::InetService], SetKind::Map(&target))
        }
        _ => (vec![Type::InetProto, Type::InetService], SetKind::Map(&target)),
    };
    batch.add_set(table, NewSet { name, key: &key, kind, comment: None });
}

/// Moves the elements. An element with a new name is younger than one with the same key and an old name, and stays.
fn move_elements(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    old: &str,
    new: &str,
) -> Result<()> {
    let mut elements = nft.elements(table, old)?;
    let keys: Vec<Vec<u8>> = elements.iter().map(|element| element.key.clone()).collect();
    batch.delete_elements(table, old, &keys);
    let known: Vec<Vec<u8>> = nft.elements(table, new)?.into_iter().map(|it| it.key).collect();
    elements.retain(|element| known.binary_search(&element.key).is_err());
    for Element { data, .. } in &mut elements {
        if let Some(Datum::Verdict(verdict)) = data {
            *verdict = with_new_chain(verdict);
        }
    }
    batch.add_elements(table, new, &elements);
    Ok(())
}

/// Adds the rules of old chains to the new ones, and renames in the rules of other chains.
fn move_rules(batch: &mut Batch, table: Table<'_>, rules: &[Rule]) {
    for rule in rules {
        let to = new_chain(&rule.chain);
        let exprs: Vec<Expr> = rule.exprs.iter().map(with_new_names).collect();
        if to.is_none() && exprs == rule.exprs {
            continue;
        }
        let chain = to.as_deref().unwrap_or(&rule.chain);
        let is_there = |other: &Rule| other.chain == chain && other.does(&exprs);
        if exprs.iter().any(|expr| matches!(expr, Expr::Other(_))) {
            sys::warn(format_args!(
                "cannot read rule {} of chain {} of table {table}: the rule is dropped",
                rule.handle, rule.chain
            ));
        } else if !rules.iter().any(is_there) {
            // A rule without conditions may be in the new chain already, so a jump goes before it.
            let is_jump = matches!(exprs.as_slice(), [Expr::Verdict(_)]);
            let is_new = rules.iter().all(|other| other.chain != chain);
            let position =
                if is_jump && !is_new { NewRule::first(chain) } else { NewRule::last(chain) };
            let position = position.with(exprs);
            match &rule.comment {
                Some(comment) => batch.add_rule(table, position.comment(comment)),
                None => batch.add_rule(table, position),
            };
        }
        if to.is_none() {
            batch.delete_rule(table, &rule.chain, rule.handle);
        }
    }
}

fn with_new_names(expr: &Expr) -> Expr {
    match expr {
        Expr::Verdict(verdict) => Expr::Verdict(with_new_chain(verdict)),
        Expr::Lookup { set, key, lookup } => {
            let set = new_set(set).unwrap_or_else(|| set.clone());
            Expr::Lookup { set, key: *key, lookup: *lookup }
        }
        other => other.clone(),
    }
}

fn with_new_chain(verdict: &Verdict) -> Verdict {
    let renamed = |old: &str| new_chain(old).unwrap_or_else(|| old.into());
    match verdict {
        Verdict::Jump(chain) => Verdict::Jump(renamed(chain)),
        Verdict::Goto(chain) => Verdict::Goto(renamed(chain)),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_have_new_names() {
        for (old, set, chain) in [
            ("masq", Some("masquerade-sources"), Some("masquerade-postrouting")),
            ("spoof-check", Some("spoof-check-allowed"), Some("spoof-check-prerouting")),
            ("spoof-check-ports", None, None),
            ("firewall", Some("firewall-addresses"), Some("firewall-forward")),
            ("firewall-zone-trusted", None, None),
            ("published", Some("portmap-published"), Some("portmap-published")),
            ("portmap_owners", Some("portmap-owners"), Some("portmap-owners")),
            ("masqueraded_16", Some("portmap-masqueraded-16"), Some("portmap-masqueraded-16")),
            (
                "published_on_ports_0123456789abcdef_besides_0123456789abcdef",
                Some("portmap-published-on-ports-0123456789abcdef-secondary-0123456789abcdef"),
                Some("portmap-published-on-ports-0123456789abcdef-secondary-0123456789abcdef"),
            ),
            ("masquerade-sources", None, None),
            ("portmap-published", None, None),
            ("other", None, None),
        ] {
            assert_eq!(new_set(old).as_deref(), set, "{old}");
            assert_eq!(new_chain(old).as_deref(), chain, "{old}");
        }
        assert_eq!(new_chain("masq-10.1.0.0/16").as_deref(), Some("masquerade-10.1.0.0/16"));
    }
}
