//! Features of nf_tables that a kernel can lack.

use super::Family;
use super::expr::Expr;

/// A feature that has its own kernel option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Tables of the family that is listed with the feature.
    Tables,
    /// Chains of the type nat, `snat` and `dnat`.
    Nat,
    Masquerade,
    Redirect,
    Fib,
    Conntrack,
    /// The match `mark` of iptables.
    XtMark,
    /// The matches `udp` and `tcp` of iptables.
    XtPorts,
    Reject,
}

impl Feature {
    /// The feature that an expression needs; `None` if the expression has no kernel option of its own.
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

    /// The name of the kernel option that adds the feature to tables of the family.
    pub(super) fn option(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Tables, Family::Ip) => "CONFIG_NF_TABLES_IPV4",
            (Self::Tables, Family::Ip6) => "CONFIG_NF_TABLES_IPV6",
            (Self::Tables, Family::Inet) => "CONFIG_NF_TABLES_INET",
            (Self::Tables, Family::Netdev) => "CONFIG_NF_TABLES_NETDEV",
            (Self::Tables, Family::Bridge) => "CONFIG_NF_TABLES_BRIDGE",
            (Self::Nat, _) => "CONFIG_NFT_NAT",
            (Self::Masquerade, _) => "CONFIG_NFT_MASQ",
            (Self::Redirect, _) => "CONFIG_NFT_REDIR",
            (Self::Fib, Family::Ip) => "CONFIG_NFT_FIB_IPV4",
            (Self::Fib, Family::Ip6) => "CONFIG_NFT_FIB_IPV6",
            (Self::Fib, _) => "CONFIG_NFT_FIB_INET",
            (Self::Conntrack, Family::Bridge) => "CONFIG_NF_CONNTRACK_BRIDGE",
            (Self::Conntrack, _) => "CONFIG_NFT_CT",
            (Self::XtMark, _) => "CONFIG_NETFILTER_XT_MARK",
            (Self::XtPorts, _) => "CONFIG_NFT_COMPAT",
            (Self::Reject, Family::Bridge) => "CONFIG_NFT_BRIDGE_REJECT",
            (Self::Reject, _) => "CONFIG_NFT_REJECT",
        }
    }
}
