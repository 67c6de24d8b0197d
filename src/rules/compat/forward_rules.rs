//! The rules of the Go plugin `firewall` in the chain CNI-FORWARD of iptables-nft: two for each address. The shared chains
//! stay, as after a DEL of the Go plugin.

use std::net::IpAddr;

use crate::error::Result;
use crate::netlink::nft::{Batch, Condition, Expr, Family, Field, Nft, Rule, Table, Verdict};

const CHAIN: &str = "CNI-FORWARD";

/// Adds the deletion of the rules for these addresses to the batch.
pub fn remove(nft: &Nft, batch: &mut Batch, family: Family, addresses: &[IpAddr]) -> Result<()> {
    let table = Table { family, name: "filter" };
    for rule in nft.rules_of(table, CHAIN)? {
        if addresses.iter().any(|address| is_about(&rule, *address)) {
            batch.delete_rule(table, CHAIN, rule.handle);
        }
    }
    Ok(())
}

/// For CHECK: whether each address has its two rules: one accepts packets from the address, one accepts replies to the address.
pub fn has(nft: &Nft, family: Family, addresses: &[IpAddr]) -> Result<bool> {
    let rules = nft.rules_of(Table { family, name: "filter" }, CHAIN)?;
    let count = |address: &IpAddr| rules.iter().filter(|rule| is_about(rule, *address)).count();
    Ok(addresses.iter().all(|address| count(address) >= 2))
}

/// Whether the rule is `-s ADDRESS/32 -j ACCEPT`, or `-d ADDRESS/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`. A
/// rule with a comment or another condition belongs to the administrator.
fn is_about(rule: &Rule, address: IpAddr) -> bool {
    let conditions = rule.conditions();
    let [condition] = conditions.as_slice() else { return false };
    let is_plain = rule.exprs.iter().all(|expr| match expr {
        Expr::Load { field, .. } => !matches!(field, Field::Payload(..)),
        Expr::Compare { .. } | Expr::Counter | Expr::XtMatch(_) => true,
        other => *other == Expr::Verdict(Verdict::Accept),
    });
    let matches = rule.exprs.iter().filter(|expr| matches!(expr, Expr::XtMatch(_))).count();
    let has_address = match matches {
        0 => *condition == Condition::saddr(address),
        1 => *condition == Condition::daddr(address) && rule.xt_match("conntrack").is_some(),
        _ => false,
    };
    has_address
        && is_plain
        && rule.comment.is_none()
        && rule.exprs.contains(&Expr::Verdict(Verdict::Accept))
}
