//! Features of nf_tables that a kernel can lack, and the probe for them, which changes nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::libc;

use super::batch::Batch;
use super::chain::{Base, ChainKind, Hook, NewChain, Policy};
use super::condition::{Condition, CtState};
use super::expr::{Expr, dnat_to, redirect_to, reject_prohibited};
use super::rule::NewRule;
use super::xt::xt_ct_state;
use super::{Family, Nft, Table};
use crate::kernel::netlink;

/// A feature with a kernel option of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Tables of the family.
    Tables,
    /// Chains of the type nat, `snat` and `dnat`.
    Nat,
    Masquerade,
    Redirect,
    Fib,
    Conntrack,
    /// The match `conntrack` of iptables.
    XtConntrack,
    Reject,
}

impl Feature {
    /// The feature that an expression needs, if it is optional.
    pub(super) fn of(expr: &Expr) -> Option<Self> {
        match expr.name() {
            "nat" => Some(Self::Nat),
            "masq" => Some(Self::Masquerade),
            "redir" => Some(Self::Redirect),
            "fib" => Some(Self::Fib),
            "ct" => Some(Self::Conntrack),
            "reject" => Some(Self::Reject),
            _ => None,
        }
    }

    /// The name of the kernel's option.
    fn option(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Tables, Family::Ip) => "CONFIG_NF_TABLES_IPV4",
            (Self::Tables, Family::Ip6) => "CONFIG_NF_TABLES_IPV6",
            (Self::Tables, Family::Inet) => "CONFIG_NF_TABLES_INET",
            (Self::Tables, Family::Bridge) => "CONFIG_NF_TABLES_BRIDGE",
            (Self::Nat, _) => "CONFIG_NFT_NAT",
            (Self::Masquerade, _) => "CONFIG_NFT_MASQ",
            (Self::Redirect, _) => "CONFIG_NFT_REDIR",
            (Self::Fib, Family::Ip) => "CONFIG_NFT_FIB_IPV4",
            (Self::Fib, Family::Ip6) => "CONFIG_NFT_FIB_IPV6",
            (Self::Fib, _) => "CONFIG_NFT_FIB_INET",
            (Self::Conntrack, Family::Bridge) => "CONFIG_NF_CONNTRACK_BRIDGE",
            (Self::Conntrack, _) => "CONFIG_NFT_CT",
            (Self::XtConntrack, _) => "CONFIG_NETFILTER_XT_MATCH_CONNTRACK",
            (Self::Reject, Family::Bridge) => "CONFIG_NFT_BRIDGE_REJECT",
            (Self::Reject, _) => "CONFIG_NFT_REJECT",
        }
    }

    /// Adds a rule or chain that needs the feature.
    fn use_in(self, table: Table<'_>, batch: &mut Batch) {
        let address: IpAddr = match table.family {
            Family::Ip6 => Ipv6Addr::LOCALHOST.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        };
        let rule = NewRule::last("rules");
        let rule = match self {
            Self::Tables => return,
            Self::Nat => {
                let base = Base {
                    kind: ChainKind::Nat,
                    hook: Hook::Prerouting,
                    priority: 0,
                    policy: Policy::Accept,
                };
                batch.add_chain(
                    table,
                    NewChain { name: "prerouting", base: Some(base), comment: None },
                );
                rule.with(dnat_to(address, 1))
            }
            Self::Masquerade => rule.then(Expr::Masquerade),
            Self::Redirect => rule.with(redirect_to(1)),
            Self::Fib => rule.with(Condition::fib_daddr_type_local()),
            Self::Conntrack => rule.with(Condition::ct_state(CtState::NEW)),
            Self::XtConntrack => rule.then(xt_ct_state(CtState::NEW)),
            Self::Reject => rule.then(reject_prohibited(table.family)),
        };
        batch.add_rule(table, rule);
    }
}

impl Nft {
    /// The options that the features need and the kernel lacks. Takes about 10 ms, and as long for each feature if one is
    /// missing.
    pub fn missing(
        &self,
        features: &[(Family, Feature)],
    ) -> Result<Vec<&'static str>, netlink::Error> {
        match self.generation() {
            Ok(_) => {}
            Err(error) if is_without_nf_tables(&error) => return Ok(vec![NF_TABLES]),
            Err(error) => return Err(error),
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

    /// Whether the kernel accepts a transaction that uses the features. It is not committed.
    fn has(&self, features: &[(Family, Feature)]) -> Result<bool, netlink::Error> {
        let mut batch = Batch::new();
        for (family, feature) in features {
            let table = Table { family: *family, name: SCRATCH_TABLE };
            batch.add_table(table, None);
            batch.add_chain(table, NewChain { name: "rules", base: None, comment: None });
            feature.use_in(table, &mut batch);
        }
        match self.check(batch) {
            Ok(()) => Ok(true),
            Err(error) if is_lack(error.errno) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Adds the missing kernel option to an error, if it is the cause.
    pub(super) fn explained(
        &self,
        mut error: netlink::Error,
        features: &[(Family, Feature)],
    ) -> netlink::Error {
        if error.hint.is_none() && is_lack(error.errno) {
            // If the probe fails, the first error is returned.
            let missing = self.missing(features).unwrap_or_default();
            if !missing.is_empty() {
                error.hint = Some(format!("the kernel lacks {}", missing.join(", ")));
            }
        }
        error
    }
}

/// nfnetlink returns EINVAL for a message of an unknown subsystem.
pub(super) fn is_without_nf_tables(error: &netlink::Error) -> bool {
    error.errno == libc::EINVAL
}

pub(super) const NF_TABLES: &str = "CONFIG_NF_TABLES";

/// The errors for missing features: ENOENT for expressions and types of chains, EPROTO for conntrack in bridges, the others
/// for families.
fn is_lack(errno: i32) -> bool {
    matches!(errno, libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTO)
}

/// The table exists only in transactions that are not committed.
const SCRATCH_TABLE: &str = "cnibox_probe";
