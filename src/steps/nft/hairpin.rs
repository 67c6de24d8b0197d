//! Masquerading for published ports: packets from the subnet of a container to its own published port, and from 127.0.0.1,
//! get the address of the host as source. A neighbour of the container would get the reply directly, from an address that it
//! did not send to.
//!
//! There is one set for each prefix length in use, and one rule for each set. `portmap` adds the elements.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{
    Base, Batch, ChainKind, Condition, Expr, Field, Hook, Lookup, NewSet, Nft, Policy, Register,
    SetKind, Type, Value, pack,
};
use crate::steps::nft::shared_rules::{self, Chain, SharedRules};

const SET: &str = "portmap-masqueraded-";
const CHAIN: &str = "portmap-postrouting";
/// `srcnat`
const SRCNAT: Base =
    Base { kind: ChainKind::Nat, hook: Hook::Postrouting, priority: 100, policy: Policy::Accept };

/// The set of sources with a prefix length.
pub fn set(prefix_length: u8) -> String {
    format!("{SET}{prefix_length}")
}

/// The prefix length in the name of a set.
pub fn length(set: &str) -> Option<u8> {
    set.strip_prefix(SET)?.parse().ok()
}

/// The key for packets from a net to a container.
pub fn key(source: &IpNet, address: IpAddr) -> Vec<u8> {
    pack(&[Value::Address(source.network()), Value::Address(address)])
}

/// The chain with the rules for these prefix lengths.
pub fn chain(family: IpFamily, lengths: &[u8]) -> Chain {
    Chain::base(CHAIN, SRCNAT, lengths.iter().map(|length| masquerade(family, *length)).collect())
}

/// Adds the set and the rule for a prefix length if they are missing.
pub fn ensure(nft: &Nft, batch: &mut Batch, family: IpFamily, length: u8) -> Result<()> {
    let address = match family {
        IpFamily::V4 => Type::Ipv4Addr,
        IpFamily::V6 => Type::Ipv6Addr,
    };
    let table = shared_rules::table(family.into());
    let shared =
        SharedRules { table, sets: vec![set(length)], chains: vec![chain(family, &[length])] };
    shared.ensure(nft, batch, |batch, name| {
        let key = &[address, address];
        batch.add_set(table, NewSet { name, key, kind: SetKind::Set, comment: None });
    })
}

/// `ct status dnat ip saddr & 255.255.0.0 . ip daddr @portmap-masqueraded-16 masquerade`
fn masquerade(family: IpFamily, prefix_length: u8) -> Vec<Expr> {
    let [saddr, daddr] = Field::addresses(family);
    let (bytes, mask) =
        match IpNet::new(family.everything().addr(), prefix_length).map(|net| net.netmask()) {
            Ok(IpAddr::V6(mask)) => (16, mask.octets().to_vec()),
            Ok(IpAddr::V4(mask)) => (4, mask.octets().to_vec()),
            Err(_) => (0, Vec::new()),
        };
    let (first, second) = (Register::FIRST, Register::FIRST.after(bytes));
    let mut exprs: Vec<Expr> = Condition::ct_status_dnat().into_iter().collect();
    exprs.extend([
        Expr::Load { field: saddr, bytes, to: first },
        Expr::Bitwise { register: first, xor: vec![0; mask.len()], mask },
        Expr::Load { field: daddr, bytes, to: second },
        Expr::Lookup { set: set(prefix_length), key: first, lookup: Lookup::Contains },
        Expr::Masquerade,
    ]);
    exprs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_set_has_its_prefix_length() {
        assert_eq!(length(&set(16)), Some(16));
        for name in [SET, "portmap-masqueraded-999", "masquerade-sources"] {
            assert_eq!(length(name), None, "{name}");
        }
    }
}
