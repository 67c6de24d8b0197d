//! The rules of the Go plugin `firewall` in CNI-FORWARD of iptables-nft: two for each address. Its shared chains stay, as after
//! its own DEL.

use std::net::IpAddr;

use crate::error::Result;
use crate::netlink::nft::{Batch, Condition, Expr, Family, Nft, Rule, Table, Verdict};

const CHAIN: &str = "CNI-FORWARD";

pub fn remove(nft: &Nft, batch: &mut Batch, family: Family, addresses: &[IpAddr]) -> Result<()> {
    let table = Table { family, name: "filter" };
    for rule in nft.rules_of(table, CHAIN)? {
        if addresses.iter().any(|address| is_about(&rule, *address)) {
            batch.delete_rule(table, CHAIN, rule.handle);
        }
    }
    Ok(())
}

/// For CHECK: whether packets from each of the addresses and answers to it pass.
pub fn has(nft: &Nft, family: Family, addresses: &[IpAddr]) -> Result<bool> {
    let rules = nft.rules_of(Table { family, name: "filter" }, CHAIN)?;
    let count = |address: &IpAddr| rules.iter().filter(|rule| is_about(rule, *address)).count();
    Ok(addresses.iter().all(|address| count(address) >= 2))
}

/// `-s 10.1.0.5/32 -j ACCEPT`, or `-d 10.1.0.5/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`. A rule with a
/// comment or another condition belongs to the administrator.
fn is_about(rule: &Rule, address: IpAddr) -> bool {
    let conditions = rule.conditions();
    let [condition] = conditions.as_slice() else { return false };
    let is_plain = rule.exprs.iter().all(|expr| {
        matches!(
            expr,
            Expr::Load { .. }
                | Expr::Compare { .. }
                | Expr::Counter
                | Expr::XtMatch { .. }
                | Expr::Verdict(Verdict::Accept)
        )
    });
    let matches = rule.exprs.iter().filter(|expr| matches!(expr, Expr::XtMatch { .. })).count();
    let is_it = match matches {
        0 => *condition == Condition::saddr(address),
        1 => *condition == Condition::daddr(address) && rule.xt_match("conntrack").is_some(),
        _ => false,
    };
    is_it
        && is_plain
        && rule.comment.is_none()
        && rule.exprs.contains(&Expr::Verdict(Verdict::Accept))
}
