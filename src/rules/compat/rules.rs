//! The rules of the Go plugins for an attachment. DEL and GC remove them.
//!
//! iptables-nft stores its rules in nf_tables, so they are found here. Rules of iptables-legacy are not in nf_tables and stay.

use std::net::IpAddr;

use hmac_sha512::Hash;

use super::host_ports::{self, DNAT};
use crate::attachments::owner::{Owner, Owners};
use crate::error::Result;
use crate::names::{Attachment, NetworkName, hex};
use crate::netlink::nft::{Batch, Expr, Family, Nft, Rule, Table};
use crate::netlink::octets;

/// The table of the nftables backend of `ipMasq`.
const MASQUERADE: Table<'static> = Table::inet("cni_plugins_masquerade");

/// Removes the rules of `ipMasq`, of both backends. A chain of iptables is shared by all interfaces of a container in the
/// network: if the addresses of the attachment are known, only the rules with these addresses are removed.
pub fn remove_masquerade(
    nft: &Nft,
    batch: &mut Batch,
    owners: &Owners,
    addresses: &[IpAddr],
) -> Result<()> {
    remove_masquerade_of_nft(nft, batch, owners)?;
    let is_stale = |rule: &Rule| match owners.one() {
        Some((at, _)) => {
            rule.leads_to() == Some(&masquerade_chain(owners.network(), at))
                && (addresses.is_empty() || is_about(rule, addresses))
        }
        None => {
            let comment = rule.comment.as_deref().unwrap_or_default();
            let leads_to = rule.leads_to().unwrap_or_default();
            leads_to.starts_with("CNI-") && is_outside_keep_set(comment, "name: ", owners)
        }
    };
    Family::IP.into_iter().try_for_each(|family| {
        remove_chains(nft, batch, Table { family, name: "nat" }, "POSTROUTING", is_stale)
    })
}

/// For CHECK: whether a rule of `ipMasq`, of either backend, masquerades the attachment in this family.
pub fn has_masquerade(
    nft: &Nft,
    family: Family,
    network: &NetworkName,
    at: &Attachment,
) -> Result<bool> {
    let chain = masquerade_chain(network, at);
    if has_jump(nft, Table { family, name: "nat" }, "POSTROUTING", &chain)? {
        return Ok(true);
    }
    let id = [of_network(network), of_interface(at)].concat();
    let of_nft = nft.rules_of(MASQUERADE, "masq_checks")?;
    let has_id =
        |rule: &Rule| rule.comment.as_deref().is_some_and(|comment| comment.starts_with(&id));
    Ok(of_nft.iter().any(has_id))
}

/// Whether rules of the Go plugins name an attachment: a Go plugin may have attached it again.
pub fn have_attachment(nft: &Nft, network: &NetworkName, at: &Attachment) -> Result<bool> {
    for family in Family::IP {
        if has_masquerade(nft, family, network, at)? {
            return Ok(true);
        }
    }
    Ok(has_spoof_check(nft, at)? || host_ports::has(nft, network, at)?)
}

/// Removes the mappings of `portmap`, of both backends. Rules of its nftables backend name only the container. If the addresses
/// of the container are known, of the nftables backend only the rules with these addresses are removed.
pub fn remove_portmap(
    nft: &Nft,
    batch: &mut Batch,
    owners: &Owners,
    addresses: &[IpAddr],
) -> Result<()> {
    Family::IP
        .into_iter()
        .try_for_each(|family| remove_portmap_of_family(nft, batch, family, owners, addresses))
}

fn remove_portmap_of_family(
    nft: &Nft,
    batch: &mut Batch,
    family: Family,
    owners: &Owners,
    addresses: &[IpAddr],
) -> Result<()> {
    let nat = Table { family, name: "nat" };
    let network = owners.network();
    for (entry, prefix) in [(DNAT, "CNI-DN-"), ("CNI-HOSTPORT-SNAT", "CNI-SN-")] {
        let is_stale = |rule: &Rule| match owners.one() {
            Some((at, _)) => rule.leads_to() == Some(&port_chain(prefix, network, at)),
            None => {
                let comment = rule.comment.as_deref().unwrap_or_default();
                is_outside_keep_set(comment, "dnat name: ", owners)
            }
        };
        remove_chains(nft, batch, nat, entry, is_stale)?;
    }
    // The rules of the table `cni_hostport` do not name their network, so GC of a network leaves them.
    if !owners.are_listed() {
        return Ok(());
    }
    let table = Table { family, name: "cni_hostport" };
    for rule in nft.rules(table)? {
        let names_container =
            |at: &Attachment, _: &Owner| rule.comment.as_deref() == Some(&*at.container_id);
        let is_of_container = owners.has(names_container);
        if is_of_container && (addresses.is_empty() || is_about(&rule, addresses)) {
            batch.delete_rule(table, &rule.chain, rule.handle);
        }
    }
    Ok(())
}

/// For CHECK: whether a rule of `portmap`, of either backend, leads to the address of the attachment.
pub fn has_portmap(
    nft: &Nft,
    family: Family,
    network: &NetworkName,
    at: &Attachment,
    address: IpAddr,
) -> Result<bool> {
    let chain = port_chain("CNI-DN-", network, at);
    if has_jump(nft, Table { family, name: "nat" }, DNAT, &chain)? {
        return Ok(true);
    }
    let leads_to_address = |rule: &Rule| {
        rule.comment.as_deref() == Some(&*at.container_id) && is_about(rule, &[address])
    };
    Ok(nft.rules(Table { family, name: "cni_hostport" })?.iter().any(leads_to_address))
}

fn port_chain(prefix: &str, network: &NetworkName, at: &Attachment) -> String {
    hashed(prefix, &[network, &at.container_id], 28)
}

/// Removes the two chains of `macspoofchk`, and the rule that jumps to the first. The names of the chains contain the container
/// and the interface, but no network, so GC leaves the chains.
pub fn remove_spoof_check(nft: &Nft, batch: &mut Batch, owners: &Owners) -> Result<()> {
    let Some((at, _)) = owners.one() else { return Ok(()) };
    let table = Table::bridge("nat");
    let entry = spoof_check_chain(at);
    let chains = [entry.clone(), format!("{entry}-mac")];
    for rule in nft.rules_of(table, "PREROUTING")? {
        if rule.leads_to() == Some(&chains[0]) {
            batch.delete_rule(table, &rule.chain, rule.handle);
        }
    }
    delete_existing(nft, batch, table, &chains)
}

/// For CHECK: whether the rules of `macspoofchk` exist.
pub fn has_spoof_check(nft: &Nft, at: &Attachment) -> Result<bool> {
    has_jump(nft, Table::bridge("nat"), "PREROUTING", &spoof_check_chain(at))
}

fn spoof_check_chain(at: &Attachment) -> String {
    format!("cni-br-iface-{}-{}", at.container_id, at.ifname)
}

/// Removes the rules of the owners from `table inet cni_plugins_masquerade`. Their comments begin with two hashes: of the
/// network, and of the interface and container.
fn remove_masquerade_of_nft(nft: &Nft, batch: &mut Batch, owners: &Owners) -> Result<()> {
    let of_network = of_network(owners.network());
    for rule in nft.rules_of(MASQUERADE, "masq_checks")? {
        let comment = rule.comment.as_deref().unwrap_or_default();
        let Some(rest) = comment.strip_prefix(&of_network) else { continue };
        let names_interface = |at: &Attachment, _: &Owner| rest.starts_with(&of_interface(at));
        if owners.has(names_interface) {
            batch.delete_rule(MASQUERADE, &rule.chain, rule.handle);
        }
    }
    Ok(())
}

fn of_network(network: &NetworkName) -> String {
    format!("{}-", hashed("", &[network], 16))
}

fn of_interface(at: &Attachment) -> String {
    hashed("", &[&at.ifname, ":", &at.container_id], 16)
}

/// Removes the stale rules of an iptables chain, and the chains that only stale rules jump to.
fn remove_chains(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    entry: &str,
    is_stale: impl Fn(&Rule) -> bool,
) -> Result<()> {
    let rules = nft.rules_of(table, entry)?;
    let (rules, others): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(|rule| is_stale(rule));
    if rules.is_empty() {
        return Ok(());
    }
    let is_used = |chain: &&str| others.iter().any(|rule| rule.leads_to() == Some(*chain));
    let mut chains: Vec<&str> = rules.iter().filter_map(|rule| rule.leads_to()).collect();
    chains.retain(|chain| !is_used(chain));
    chains.sort_unstable();
    chains.dedup();
    for rule in &rules {
        batch.delete_rule(table, entry, rule.handle);
    }
    delete_existing(nft, batch, table, &chains)
}

/// Deletes those of these chains that exist. A chain that jumps to another one comes before it.
fn delete_existing(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    chains: &[impl AsRef<str>],
) -> Result<()> {
    let existing = nft.chains(table)?;
    let exists = |name: &&str| existing.iter().any(|chain| chain.name == **name);
    for chain in chains.iter().map(AsRef::as_ref).filter(exists) {
        batch.delete_chain(table, chain);
    }
    Ok(())
}

/// Whether a rule of the chain `entry` jumps to `chain`.
fn has_jump(nft: &Nft, table: Table<'_>, entry: &str, chain: &str) -> Result<bool> {
    Ok(nft.rules_of(table, entry)?.iter().any(|rule| rule.leads_to() == Some(chain)))
}

/// For GC: whether a comment of iptables, `name: "NET" id: "CID"`, names the network and a container outside the keep set.
/// `prefix` is the text before the name of the network.
fn is_outside_keep_set(comment: &str, prefix: &str, owners: &Owners) -> bool {
    let beginning = |id: &str| format!("{prefix}\"{}\" id: \"{id}", owners.network());
    let names_container = |at: &Attachment, _: &Owner| {
        comment.starts_with(&beginning(&format!("{}\"", at.container_id)))
    };
    comment.starts_with(&beginning("")) && owners.has(names_container)
}

/// Whether a rule matches one of the addresses, or translates packets to one of them.
fn is_about(rule: &Rule, addresses: &[IpAddr]) -> bool {
    let is_listed = |value: &[u8]| addresses.iter().any(|address| octets(*address) == value);
    rule.exprs.iter().any(|expr| match expr {
        Expr::Immediate { value, .. } | Expr::Compare { value, .. } => is_listed(value),
        _ => false,
    })
}

fn masquerade_chain(network: &NetworkName, at: &Attachment) -> String {
    hashed("CNI-", &[network, &at.container_id], 28)
}

/// The prefix and the SHA-512 of the concatenated texts in hexadecimal, cut to a length in bytes.
pub fn hashed(prefix: &str, texts: &[&str], length: usize) -> String {
    let mut hash = Hash::new();
    texts.iter().for_each(|text| hash.update(text));
    let mut name = format!("{prefix}{}", hex(&hash.finalize()));
    name.truncate(length);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{ContainerId, IfName};
    use crate::plugin::Scope;

    fn attachment() -> (NetworkName, Attachment) {
        let container_id = ContainerId::new("abc").unwrap();
        let at = Attachment { container_id, ifname: IfName::new("eth0").unwrap() };
        (NetworkName::new("mynet").unwrap(), at)
    }

    #[test]
    fn names_equal_those_of_the_go_plugins() {
        let (network, at) = attachment();
        assert_eq!(masquerade_chain(&network, &at), "CNI-e88f49d94512ff752ebe6070");
        let texts: [&str; 2] = [&network, &at.container_id];
        assert_eq!(hashed("CNI-DN-", &texts, 28), "CNI-DN-e88f49d94512ff752ebe6");
        assert_eq!(hashed("", &[&network], 16), "d23676b4f2d9fe04");
        assert_eq!(hashed("", &[&at.ifname, ":", &at.container_id], 16), "e65086f8a75535c6");
    }

    #[test]
    fn comments_of_iptables_name_network_and_container() {
        let (network, at) = attachment();
        let owners = Owners::of(&network, Scope::AllExcept(&[at]));
        for (comment, expected) in [
            ("name: \"mynet\" id: \"abc\"", false),
            ("name: \"mynet\" id: \"abcd\"", true),
            ("name: \"other\" id: \"abcd\"", false),
            ("dnat name: \"mynet\" id: \"abcd\"", false),
            ("", false),
        ] {
            assert_eq!(is_outside_keep_set(comment, "name: ", &owners), expected, "{comment}");
        }
    }
}
