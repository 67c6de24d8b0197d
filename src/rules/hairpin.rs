//! Masquerading for published ports: packets from the subnet of a container to its own published port, and from 127.0.0.1,
//! get the address of the host as source. Otherwise a neighbour of the container would get the reply directly from the
//! container, from an address to which it did not send.
//!
//! Only packets that `portmap` translated are masqueraded. Packets that another program translated to the same container keep
//! their source. So a packet from these sources gets a mark before the translation, and loses it if `portmap` does not
//! translate it:
//!
//! ```nft
//! set portmap-sources-16 { type ipv4_addr; elements = { 10.1.0.0 comment "net c1 eth0" } }
//! set portmap-masqueraded-16 { type ipv4_addr . ipv4_addr; elements = { 10.1.0.0 . 10.1.0.5 comment "net c1 eth0" } }
//! chain portmap-mark {
//!     ip saddr & 255.255.0.0 @portmap-sources-16 meta mark set meta mark | 0x2000
//! }
//! chain portmap-unmark {
//!     meta mark set meta mark & 0xffffdfff
//! }
//! chain portmap-srcnat {
//!     type nat hook postrouting priority 99; policy accept;
//!     meta mark & 0x2000 == 0x2000 ip saddr & 255.255.0.0 . ip daddr @portmap-masqueraded-16 masquerade
//! }
//! ```
//!
//! Each prefix length in use has its own two sets and two rules. Another `markMasqBit` has its own set of sources
//! (`portmap-sources-16-bit-14`). `portmap` adds the elements. The comment of a source names one container that uses the
//! source. Its DEL passes the element on to another such container, or deletes it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{
    Base, Batch, Condition, Element, Expr, Field, Hook, Lookup, NewSet, Nft, Register, Table, Type,
    Value, Verdict, change_mark, pack,
};
use crate::netlink::octets;
use crate::rules::shared_rules::Chain;
use crate::rules::shared_set::SharedSet;

/// The bit (0x2000) of the packet mark with which the reference marks packets for masquerading.
pub const MARK_BIT: u8 = 13;

const SET: &str = "portmap-masqueraded-";
const SOURCES: &str = "portmap-sources-";
const WITH_BIT: &str = "-bit-";
const MARK: &str = "portmap-mark";
const UNMARK: &str = "portmap-unmark";
const SRCNAT: &str = "portmap-srcnat";
/// The name of the chain `portmap-srcnat` up to release 0.2.0.
const FORMER_SRCNAT: &str = "portmap-postrouting";
/// The priority of the chain `portmap-srcnat`: before `srcnat` (100), as in the reference.
const PRIORITY: i32 = 99;
const FORMER_PRIORITY: i32 = 100;

/// The set of sources of one prefix length, whose packets get one bit of the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sources {
    pub prefix_length: u8,
    /// The number of the bit, 0 to 31.
    pub bit: u8,
}

/// The name of the set of pairs of source and container, for a prefix length.
pub fn set(prefix_length: u8) -> String {
    format!("{SET}{prefix_length}")
}

/// The prefix length in the name of a set of pairs. `None` if the name is not that of a set of pairs.
pub fn length(set: &str) -> Option<u8> {
    set.strip_prefix(SET)?.parse().ok()
}

/// The key of a pair: packets from this subnet to this address of a container.
pub fn key(source: &IpNet, address: IpAddr) -> Vec<u8> {
    pack(&[Value::Address(source.network()), Value::Address(address)])
}

impl Sources {
    /// Parses the name of a set of sources.
    pub fn of(set: &str) -> Option<Self> {
        let text = set.strip_prefix(SOURCES)?;
        let (length, bit) =
            text.split_once(WITH_BIT).map_or((text, None), |(length, bit)| (length, Some(bit)));
        Some(Self {
            prefix_length: length.parse().ok()?,
            bit: bit.map_or(Ok(MARK_BIT), str::parse).ok()?,
        })
    }

    /// The sets of sources that a table needs. `sets` are the names of its sets: a set of pairs of an earlier release has no
    /// set of sources yet.
    pub fn of_table<'a>(sets: impl Iterator<Item = &'a str> + Clone) -> Vec<Self> {
        let mut all: Vec<Self> = sets.clone().filter_map(Self::of).collect();
        for prefix_length in sets.filter_map(length) {
            if !all.iter().any(|sources| sources.prefix_length == prefix_length) {
                all.push(Self { prefix_length, bit: MARK_BIT });
            }
        }
        all
    }

    pub fn set(self) -> String {
        let Self { prefix_length, bit } = self;
        let suffix = if bit == MARK_BIT { String::new() } else { format!("{WITH_BIT}{bit}") };
        format!("{SOURCES}{prefix_length}{suffix}")
    }

    fn mark(self) -> u32 {
        1 << self.bit
    }

    /// `ip saddr & 255.255.0.0 @portmap-sources-16 meta mark set meta mark | 0x2000`
    fn set_mark(self, family: IpFamily) -> Vec<Expr> {
        let mut exprs = source(family, self.prefix_length).0;
        let (set, key) = (self.set(), Register::FIRST);
        exprs.push(Expr::Lookup { set, key, lookup: Lookup::Contains });
        exprs.extend(change_mark(!self.mark(), self.mark()));
        exprs
    }

    /// `meta mark & 0x2000 == 0x2000 ip saddr & 255.255.0.0 . ip daddr @portmap-masqueraded-16 masquerade`
    fn masquerade(self, family: IpFamily) -> Vec<Expr> {
        let is_marked = Condition::mark(self.mark(), self.mark()).into_masked();
        is_marked.into_iter().chain(masquerade(family, self.prefix_length)).collect()
    }
}

/// The chains with the rules for these sets of sources. `portmap-mark` and `portmap-unmark` are regular chains, see `jumps`.
pub fn chains(family: IpFamily, all: &[Sources]) -> [Chain; 3] {
    let mut bits: Vec<u8> = all.iter().map(|sources| sources.bit).collect();
    bits.sort_unstable();
    bits.dedup();
    let unmark = |bit: &u8| change_mark(!(1 << bit), 0).into();
    let former = |sources: &Sources| {
        let translated = Condition::ct_status_dnat().into_iter();
        translated.chain(masquerade(family, sources.prefix_length)).collect()
    };
    let former = Chain::base(
        FORMER_SRCNAT,
        Base::nat(Hook::Postrouting, FORMER_PRIORITY),
        all.iter().map(former).collect(),
    );
    let masquerade = all.iter().map(|sources| sources.masquerade(family)).collect();
    [
        Chain::regular(MARK, all.iter().map(|sources| sources.set_mark(family)).collect()),
        Chain::regular(UNMARK, bits.iter().map(unmark).collect()),
        Chain::base(SRCNAT, Base::nat(Hook::Postrouting, PRIORITY), masquerade),
    ]
    .map(|chain| chain.replacing(former.clone()))
}

/// The jump to `portmap-mark`, which comes before the translation, and the jump to `portmap-unmark`, which comes after it.
pub fn jumps() -> [Verdict; 2] {
    [MARK, UNMARK].map(|chain| Verdict::Jump(chain.into()))
}

/// The set of pairs of source and container.
pub fn new_pairs(family: IpFamily, prefix_length: u8) -> NewSet {
    NewSet::set(set(prefix_length), [Type::address(family.into()); 2])
}

/// The set of sources.
pub fn new_sources(family: IpFamily, sources: Sources) -> NewSet {
    NewSet::set(sources.set(), [Type::address(family.into())])
}

/// The element of a set of sources for the source of a pair. It has the owner of the pair.
pub fn source_of(element: &Element) -> Element {
    let key = element.key[..element.key.len() / 2].to_vec();
    Element { key, data: None, comment: element.comment.clone() }
}

/// Deletes the elements `leaving` from the set of sources. If a pair with the same source stays, adds the source again with the
/// owner of the last such pair. `is_gone` is true for the pairs that do not stay.
pub fn pass_on(
    nft: &Nft,
    batch: &mut Batch,
    (table, sources): (Table<'_>, Sources),
    leaving: &[Element],
    is_gone: &dyn Fn(&Element) -> bool,
) -> Result<()> {
    if leaving.is_empty() {
        return Ok(());
    }
    let pairs = SharedSet { table, name: &set(sources.prefix_length) }.all_elements(nft)?;
    let left: BTreeSet<&[u8]> = leaving.iter().map(|source| source.key.as_slice()).collect();
    let has_left = |pair: &Element| left.contains(&pair.key[..pair.key.len() / 2]);
    let staying = pairs.iter().filter(|pair| has_left(pair) && !is_gone(pair)).map(source_of);
    let heirs: BTreeMap<Vec<u8>, Element> =
        staying.map(|source| (source.key.clone(), source)).collect();
    batch.delete_elements(table, &sources.set(), leaving);
    let passed = leaving.iter().filter_map(|source| heirs.get(&source.key)).cloned();
    batch.add_elements(table, &sources.set(), &passed.collect::<Vec<_>>());
    Ok(())
}

/// `ip saddr & 255.255.0.0`, the next free register, and the length of an address in bytes
fn source(family: IpFamily, prefix_length: u8) -> (Vec<Expr>, Register, u8) {
    let [saddr, _] = Field::addresses(family);
    let (bytes, mask) = match IpNet::new(family.everything().addr(), prefix_length) {
        Ok(net) => (saddr.bytes(), octets(net.netmask())),
        Err(_) => (0, Vec::new()),
    };
    let first = Register::FIRST;
    let exprs = vec![
        Expr::Load { field: saddr, bytes, to: first },
        Expr::Bitwise { register: first, xor: vec![0; mask.len()], mask },
    ];
    (exprs, first.after(bytes), bytes)
}

/// `ip saddr & 255.255.0.0 . ip daddr @portmap-masqueraded-16 masquerade`
fn masquerade(family: IpFamily, prefix_length: u8) -> Vec<Expr> {
    let [_, daddr] = Field::addresses(family);
    let (mut exprs, second, bytes) = source(family, prefix_length);
    let (set, key) = (set(prefix_length), Register::FIRST);
    exprs.extend([
        Expr::Load { field: daddr, bytes, to: second },
        Expr::Lookup { set, key, lookup: Lookup::Contains },
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
        for name in [SET, "portmap-masqueraded-999", "masquerade-sources", "portmap-sources-16"] {
            assert_eq!(length(name), None, "{name}");
        }
        for (sources, name) in [
            (Sources { prefix_length: 16, bit: MARK_BIT }, "portmap-sources-16"),
            (Sources { prefix_length: 0, bit: 14 }, "portmap-sources-0-bit-14"),
        ] {
            assert_eq!((sources.set().as_str(), Sources::of(name)), (name, Some(sources)));
        }
        assert_eq!(Sources::of("portmap-sources-16-bit-"), None);
    }

    #[test]
    fn a_set_of_an_earlier_release_gets_sources() {
        let sets = ["portmap-masqueraded-8", "portmap-masqueraded-24", "portmap-sources-24-bit-3"];
        let of = |prefix_length, bit| Sources { prefix_length, bit };
        assert_eq!(Sources::of_table(sets.into_iter()), [of(24, 3), of(8, MARK_BIT)]);
    }
}
