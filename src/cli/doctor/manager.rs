//! Whose a chain of nf_tables is.

use crate::cli::output::NAME;
use crate::netlink::nft::{Family, Table};

/// The program that a chain belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manager {
    Cnibox,
    /// The chain for rules of the administrator that the plugin `firewall` makes.
    Administrator,
    Firewalld,
    /// The firewall of OpenWrt.
    Fw4,
    Ufw,
    Docker,
    KubeProxy,
    KubeRouter,
    Libvirt,
    Podman,
    Iptables,
    /// Rules of the administrator, or of another program, in nf_tables.
    Nft,
}

/// The beginning of the names of chains.
const PREFIXES: [(&str, Manager); 8] = [
    ("CNI-ADMIN", Manager::Administrator),
    ("CNI-", Manager::Cnibox),
    ("DOCKER", Manager::Docker),
    ("KUBE-ROUTER", Manager::KubeRouter),
    ("KUBE-", Manager::KubeProxy),
    ("LIBVIRT_", Manager::Libvirt),
    ("NETAVARK", Manager::Podman),
    ("ufw", Manager::Ufw),
];

impl Manager {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Cnibox => NAME,
            Self::Administrator => "the administrator, for the plugin firewall",
            Self::Firewalld => "firewalld",
            Self::Fw4 => "fw4 of OpenWrt",
            Self::Ufw => "ufw",
            Self::Docker => "Docker",
            Self::KubeProxy => "kube-proxy",
            Self::KubeRouter => "kube-router",
            Self::Libvirt => "libvirt",
            Self::Podman => "podman",
            Self::Iptables => "iptables-nft",
            Self::Nft => "an nftables ruleset",
        }
    }

    /// The program of a chain, by the names of the table, of the chain, and of all chains of the table.
    pub(super) fn of<'a>(
        table: Table<'_>,
        chain: &str,
        mut all: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        let by_name = |name: &str| {
            let known = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
            known.map(|(_, manager)| *manager)
        };
        // ufw and Docker set the policies of the base chains.
        let is_of_policy = |manager: &Self| matches!(manager, Self::Ufw | Self::Docker);
        match table.name {
            NAME => Self::Cnibox,
            "firewalld" => Self::Firewalld,
            "fw4" => Self::Fw4,
            "kube-proxy" => Self::KubeProxy,
            _ => by_name(chain).unwrap_or_else(|| match is_of_iptables(table, all.clone()) {
                true => all
                    .find_map(|name| by_name(name).filter(is_of_policy))
                    .unwrap_or(Self::Iptables),
                false => Self::Nft,
            }),
        }
    }
}

/// Whether a table is one of iptables-nft, by the names of its chains.
pub(super) fn is_of_iptables<'a>(table: Table<'_>, mut all: impl Iterator<Item = &'a str>) -> bool {
    let builtin = ["INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING"];
    matches!(table.family, Family::Ip | Family::Ip6)
        && ["filter", "nat", "mangle", "raw", "security"].contains(&table.name)
        && all.any(|name| builtin.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_has_a_program() {
        let ufw = ["FORWARD", "ufw-before-forward"];
        for (family, table, chain, chains, expected) in [
            (Family::Inet, "firewalld", "filter_FORWARD", &[][..], Manager::Firewalld),
            (Family::Inet, "fw4", "forward", &[], Manager::Fw4),
            (Family::Ip, "filter", "FORWARD", &ufw, Manager::Ufw),
            (Family::Ip, "filter", "ufw-user-forward", &[], Manager::Ufw),
            (Family::Ip, "filter", "FORWARD", &["FORWARD", "DOCKER-USER"], Manager::Docker),
            (Family::Ip, "filter", "FORWARD", &["FORWARD"], Manager::Iptables),
            (Family::Ip6, "raw", "own", &["PREROUTING", "own"], Manager::Iptables),
            (Family::Ip, "filter", "DOCKER-USER", &[], Manager::Docker),
            (Family::Ip, "filter", "KUBE-FORWARD", &[], Manager::KubeProxy),
            (Family::Ip, "filter", "KUBE-ROUTER-FORWARD", &[], Manager::KubeRouter),
            (Family::Ip, "kube-proxy", "filter-forward", &[], Manager::KubeProxy),
            (Family::Ip, "filter", "CNI-ADMIN", &[], Manager::Administrator),
            (Family::Ip, "filter", "CNI-FORWARD", &[], Manager::Cnibox),
            (Family::Inet, "filter", "forward", &[], Manager::Nft),
            (Family::Ip, "filter", "forward", &[], Manager::Nft),
            (Family::Ip, NAME, "FORWARD", &[], Manager::Cnibox),
        ] {
            let table = Table { family, name: table };
            let found = Manager::of(table, chain, chains.iter().copied());
            assert_eq!(found, expected, "{table} {chain}");
        }
    }
}
