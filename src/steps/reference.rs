//! What the Go reference plugins left in the kernel for an attachment, so that a node can be switched over with its
//! containers running: DEL and GC remove it, too.
//!
//! It is in nf_tables even where iptables made it, if that was the flavour for nf_tables; rules of the legacy flavour
//! cannot be reached from here.

use std::net::IpAddr;

use hmac_sha512::Hash;

use crate::error::Result;
use crate::kernel::nft::{Batch, Chain, Expr, Family, Nft, Rule, Table};
use crate::names::{Attachment, NetworkName};

const IP_FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

/// Whose things are to be removed.
#[derive(Clone, Copy)]
pub enum Stale<'a> {
    Of(&'a Attachment),
    /// Those of the network but these.
    AllBut(&'a [Attachment]),
}

/// Removes the rules of `ipMasq`, of both backends.
pub fn remove_masquerade(network: &NetworkName, stale: Stale<'_>) -> Result<()> {
    transact(|nft, batch| {
        masquerade_of_nft(nft, batch, network, stale)?;
        for family in IP_FAMILIES {
            let table = Table { family, name: "nat" };
            let is_stale = |rule: &Rule| match stale {
                Stale::Of(at) => rule.leads_to() == Some(&masquerade_chain(network, at)),
                Stale::AllBut(keep) => {
                    let comment = rule.comment.as_deref().unwrap_or_default();
                    let leads_to = rule.leads_to().unwrap_or_default();
                    leads_to.starts_with("CNI-")
                        && belongs_to_none(comment, "name: ", network, keep)
                }
            };
            remove_chains(nft, batch, table, "POSTROUTING", is_stale)?;
        }
        Ok(())
    })
}

/// Removes the mappings of `portmap`, of both backends. Those of its nftables backend name only the container, so where
/// the container's addresses are known, only what leads there is removed.
pub fn remove_portmap(network: &NetworkName, stale: Stale<'_>, addresses: &[IpAddr]) -> Result<()> {
    transact(|nft, batch| {
        for family in IP_FAMILIES {
            let nat = Table { family, name: "nat" };
            for (entry, prefix) in
                [("CNI-HOSTPORT-DNAT", "CNI-DN-"), ("CNI-HOSTPORT-SNAT", "CNI-SN-")]
            {
                let is_stale = |rule: &Rule| match stale {
                    Stale::Of(at) => {
                        rule.leads_to() == Some(&hashed(prefix, &[network, &at.container_id], 28))
                    }
                    Stale::AllBut(keep) => {
                        let comment = rule.comment.as_deref().unwrap_or_default();
                        belongs_to_none(comment, "dnat name: ", network, keep)
                    }
                };
                remove_chains(nft, batch, nat, entry, is_stale)?;
            }
            // There is nothing in these rules that tells their network, so GC cannot judge them.
            let Stale::Of(at) = stale else { continue };
            let table = Table { family, name: "cni_hostport" };
            for rule in nft.rules(table)? {
                let is_of_container = rule.comment.as_deref() == Some(&*at.container_id);
                if is_of_container && (addresses.is_empty() || is_about(&rule, addresses)) {
                    batch.delete_rule(table, &rule.chain, rule.handle);
                }
            }
        }
        Ok(())
    })
}

/// Removes the chains of `macspoofchk`. They name container and interface but no network, so only DEL can tell.
pub fn remove_spoof_check(at: &Attachment) -> Result<()> {
    let table = Table::bridge("nat");
    let id = format!("{}-{}", at.container_id, at.ifname);
    let chains = [format!("cni-br-iface-{id}"), format!("cni-br-iface-{id}-mac")];
    transact(|nft, batch| {
        for rule in nft.rules_of(table, "PREROUTING")? {
            if rule.leads_to() == Some(&chains[0]) {
                batch.delete_rule(table, &rule.chain, rule.handle);
            }
        }
        let there = nft.chains(table)?;
        for chain in chains.iter().filter(|name| there.iter().any(|chain| chain.name == **name)) {
            batch.flush_chain(table, chain);
        }
        for chain in chains.iter().filter(|name| there.iter().any(|chain| chain.name == **name)) {
            batch.delete_chain(table, chain);
        }
        Ok(())
    })
}

fn transact(build: impl FnMut(&Nft, &mut Batch) -> Result<()>) -> Result<()> {
    match Nft::open_if_supported()? {
        Some(nft) => nft.transact(build),
        None => Ok(()),
    }
}

/// `table inet cni_plugins_masquerade`, whose rules begin their comments with two hashes: of the network, and of the
/// interface and its container.
fn masquerade_of_nft(
    nft: &Nft,
    batch: &mut Batch,
    network: &NetworkName,
    stale: Stale<'_>,
) -> Result<()> {
    let table = Table::inet("cni_plugins_masquerade");
    let of_network = hashed("", &[network], 16);
    let prefix = |at: &Attachment| {
        format!("{of_network}-{}", hashed("", &[&at.ifname, ":", &at.container_id], 16))
    };
    for rule in nft.rules_of(table, "masq_checks")? {
        let comment = rule.comment.as_deref().unwrap_or_default();
        let is_stale = match stale {
            Stale::Of(at) => comment.starts_with(&prefix(at)),
            Stale::AllBut(keep) => {
                comment.starts_with(&format!("{of_network}-"))
                    && !keep.iter().any(|at| comment.starts_with(&prefix(at)))
            }
        };
        if is_stale {
            batch.delete_rule(table, &rule.chain, rule.handle);
        }
    }
    Ok(())
}

/// Removes the rules of a chain of iptables that are stale, and the chains that they lead to.
fn remove_chains(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    entry: &str,
    is_stale: impl Fn(&Rule) -> bool,
) -> Result<()> {
    let rules: Vec<Rule> = nft.rules_of(table, entry)?.into_iter().filter(is_stale).collect();
    if rules.is_empty() {
        return Ok(());
    }
    let mut chains: Vec<&str> = rules.iter().filter_map(Rule::leads_to).collect();
    chains.sort_unstable();
    chains.dedup();
    for rule in &rules {
        batch.delete_rule(table, entry, rule.handle);
    }
    let there = nft.chains(table)?;
    let is_there = |name: &&str| there.iter().any(|chain: &Chain| chain.name == **name);
    for chain in chains.into_iter().filter(is_there) {
        batch.delete_chain(table, chain);
    }
    Ok(())
}

/// Whether a comment of iptables, `name: "NET" id: "CID"`, is of the network and of no container that is kept.
fn belongs_to_none(
    comment: &str,
    before: &str,
    network: &NetworkName,
    keep: &[Attachment],
) -> bool {
    let of = |id: &str| format!("{before}\"{network}\" id: \"{id}");
    comment.starts_with(&of(""))
        && !keep.iter().any(|at| comment.starts_with(&of(&format!("{}\"", at.container_id))))
}

/// Whether a rule translates to, or matches, one of the addresses.
fn is_about(rule: &Rule, addresses: &[IpAddr]) -> bool {
    let is_one = |value: &[u8]| {
        addresses.iter().any(|address| match address {
            IpAddr::V4(address) => address.octets() == value,
            IpAddr::V6(address) => address.octets() == value,
        })
    };
    rule.exprs.iter().any(|expr| match expr {
        Expr::Put { value, .. } | Expr::Compare { value, .. } => is_one(value),
        _ => false,
    })
}

fn masquerade_chain(network: &NetworkName, at: &Attachment) -> String {
    hashed("CNI-", &[network, &at.container_id], 28)
}

/// The prefix, and SHA-512 of the texts one after the other in hexadecimal, cut to a length in bytes.
pub fn hashed(prefix: &str, texts: &[&str], length: usize) -> String {
    let mut hash = Hash::new();
    texts.iter().for_each(|text| hash.update(text));
    let digits = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut name = format!("{prefix}{digits}");
    name.truncate(length);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{ContainerId, IfName};

    fn attachment() -> (NetworkName, Attachment) {
        let container_id = ContainerId::new("abc").unwrap();
        let at = Attachment { container_id, ifname: IfName::new("eth0").unwrap() };
        (NetworkName::new("mynet").unwrap(), at)
    }

    #[test]
    fn names_are_those_of_the_reference() {
        let (network, at) = attachment();
        assert_eq!(masquerade_chain(&network, &at), "CNI-e88f49d94512ff752ebe6070");
        let texts: [&str; 2] = [&network, &at.container_id];
        assert_eq!(hashed("CNI-DN-", &texts, 28), "CNI-DN-e88f49d94512ff752ebe6");
        assert_eq!(hashed("", &[&network], 16), "d23676b4f2d9fe04");
        assert_eq!(hashed("", &[&at.ifname, ":", &at.container_id], 16), "e65086f8a75535c6");
    }

    #[test]
    fn comments_of_iptables_tell_network_and_container() {
        let (network, at) = attachment();
        let keep = [at];
        for (comment, expected) in [
            ("name: \"mynet\" id: \"abc\"", false),
            ("name: \"mynet\" id: \"abcd\"", true),
            ("name: \"other\" id: \"abcd\"", false),
            ("dnat name: \"mynet\" id: \"abcd\"", false),
            ("", false),
        ] {
            assert_eq!(belongs_to_none(comment, "name: ", &network, &keep), expected, "{comment}");
        }
    }
}
