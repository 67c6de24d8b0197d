//! Rules for which a packet of the probe would do more than count.

use crate::error::Result;
use crate::netlink::nft::{Expr, Hook, Nft, TRAP, Table};
use crate::netlink::xfrm;

use super::plan::Direction;
use crate::cli::output::NAME;

/// Why packets are not sent.
pub(super) struct Risk {
    pub(super) reason: String,
    /// The rule sees only packets for the host itself.
    is_about_input: bool,
}

impl Risk {
    pub(super) fn concerns(&self, direction: Direction) -> bool {
        !self.is_about_input || direction == Direction::Gateway
    }
}

/// The expressions of nf_tables that hand packets to programs, copy them, or store their addresses. `tproxy` hands them to a
/// socket.
const EXPRESSIONS: [&str; 5] = ["queue", "dup", "fwd", "tproxy", "dynset"];
/// The targets of iptables that do the same.
const TARGETS: [&str; 4] = ["NFQUEUE", "TEE", "TPROXY", "SET"];

/// The first risk of each kind.
pub(super) fn risks(nft: &Nft) -> Result<Vec<Risk>> {
    let mut risks = Vec::new();
    if xfrm::has_policy()? {
        let reason = "the host has policies of IPsec: a packet could make a program negotiate keys";
        risks.push(Risk { reason: reason.into(), is_about_input: false });
    }
    for (family, name) in nft.tables()? {
        if [NAME, TRAP].contains(&name.as_str()) {
            continue;
        }
        let table = Table { family, name: &name };
        for rule in nft.rules(table)? {
            let risk = rule.exprs.iter().find_map(|expr| match expr {
                Expr::Other(name) => EXPRESSIONS.iter().find(|known| *known == name),
                Expr::XtTarget(target) => TARGETS.iter().find(|known| **known == target.name),
                _ => None,
            });
            let Some(risk) = risk else { continue };
            let chain = nft.chains(table)?.into_iter().find(|chain| chain.name == rule.chain);
            let hook = chain.and_then(|chain| chain.base).map(|base| base.hook);
            let (handle, chain) = (rule.handle, rule.chain);
            let reason = format!("rule {handle} of chain {chain}, table {table}, has {risk}");
            match hook {
                // The probe sends no packets of the host.
                Some(Hook::Output) => {}
                hook => risks.push(Risk { reason, is_about_input: hook == Some(Hook::Input) }),
            }
        }
    }
    Ok(risks)
}
