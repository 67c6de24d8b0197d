//! The probe for features of nf_tables, which changes nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::libc;

use super::batch::Batch;
use super::chain::{Base, Hook, NewChain};
use super::condition::{Condition, CtState};
use super::expr::{Expr, dnat_to, redirect_to, reject_prohibited};
use super::feature::Feature;
use super::rule::NewRule;
use super::value::Transport;
use super::xt::{xt_dport, xt_mark};
use super::{Family, Nft, Table};
use crate::netlink;

impl Nft {
    /// The kernel options that the features need and the kernel lacks. Takes about 10 ms; if a feature is missing, about 10 ms
    /// for each feature.
    pub fn missing(
        &self,
        features: &[(Family, Feature)],
    ) -> Result<Vec<&'static str>, netlink::Error> {
        if !self.is_supported()? {
            return Ok(vec![NF_TABLES]);
        }
        if self.has(features)? {
            return Ok(Vec::new());
        }
        let mut missing = Vec::new();
        for (family, feature) in features {
            let needed = [Feature::Tables, *feature];
            for feature in needed {
                let option = feature.option(*family);
                if missing.contains(&option) {
                    break;
                }
                if !self.has(&[(*family, feature)])? {
                    missing.push(option);
                    break;
                }
            }
        }
        Ok(missing)
    }

    /// Whether the kernel accepts a transaction that uses the features. The transaction is not committed.
    fn has(&self, features: &[(Family, Feature)]) -> Result<bool, netlink::Error> {
        let mut batch = Batch::new();
        for (family, feature) in features {
            let table = Table { family: *family, name: SCRATCH_TABLE };
            batch.add_table(table);
            batch.add_chain(table, NewChain { name: "rules", base: None, comment: None });
            use_in(&mut batch, table, *feature);
        }
        match self.check(batch) {
            Ok(()) => Ok(true),
            Err(error) if can_be_missing_feature(error.errno) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Adds the missing kernel option to an error, if it is the cause.
    pub(super) fn explained(
        &self,
        error: netlink::Error,
        features: &[(Family, Feature)],
    ) -> netlink::Error {
        if error.hint.is_none() && can_be_missing_feature(error.errno) {
            // If the probe fails, the first error is returned.
            let missing = self.missing(features).unwrap_or_default();
            if !missing.is_empty() {
                return error.with_hint(format!("the kernel lacks {}", missing.join(", ")));
            }
        }
        error
    }
}

/// Whether the error means that the kernel lacks nf_tables: nfnetlink returns EINVAL for an unknown subsystem.
pub(super) fn is_without_nf_tables(error: &netlink::Error) -> bool {
    error.errno == libc::EINVAL
}

pub(super) const NF_TABLES: &str = "CONFIG_NF_TABLES";

/// Whether the errno can be that of a missing feature: ENOENT for expressions and types of chains, EPROTO for conntrack in
/// bridges, EOPNOTSUPP and EAFNOSUPPORT for families.
fn can_be_missing_feature(errno: i32) -> bool {
    matches!(errno, libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTO)
}

/// The name of the table of the probe. This table exists only in transactions that are not committed.
const SCRATCH_TABLE: &str = "cnibox_probe";

/// Adds a rule or chain that needs the feature.
fn use_in(batch: &mut Batch, table: Table<'_>, feature: Feature) {
    let address: IpAddr = match table.family {
        Family::Ip6 => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    let rule = NewRule::last("rules");
    let rule = match feature {
        Feature::Tables => return,
        Feature::Nat => {
            let base = Some(Base::nat(Hook::Prerouting, 0));
            batch.add_chain(table, NewChain { name: "prerouting", base, comment: None });
            rule.with(dnat_to(address, 1))
        }
        Feature::Masquerade => rule.then(Expr::Masquerade),
        Feature::Redirect => rule.with(redirect_to(1)),
        Feature::Fib => rule.with(Condition::fib_daddr_type_local()),
        Feature::Conntrack => rule.with(Condition::ct_state(CtState::NEW)),
        Feature::XtMark => rule.then(xt_mark(1)),
        Feature::XtPorts => {
            rule.with(Condition::protocol(Transport::Udp)).then(xt_dport(Transport::Udp, 1))
        }
        Feature::Reject => rule.then(reject_prohibited(table.family)),
    };
    batch.add_rule(table, rule);
}
