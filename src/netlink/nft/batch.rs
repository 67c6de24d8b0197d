//! A transaction as a value: all of its changes are made, or none.

use neli::consts::nl::NlmF;
use nix::libc::{self, c_int};

use super::chain::{ChainKind, NewChain};
use super::consts::{
    NFNL_BATCH_GENID, NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFT_TABLE_F_OWNER, NFTA_CHAIN_NAME,
    NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET,
    NFTA_SET_ID, NFTA_SET_NAME, NFTA_TABLE_FLAGS,
};
use super::feature::Feature;
use super::rule::{NewRule, Position};
use super::set::{Element, NewSet};
use super::wire::{self, be32, be64};
use super::{Family, Generation, Table};
use crate::netlink::message::Request;
use crate::netlink::{Attrs, Requests};

/// Changes that become one transaction. Nothing happens before `Nft::commit`.
///
/// A change can refer to an object that an earlier change of the batch adds. Deleting a missing object is an error, and so
/// is deleting an object in use: rules and elements of verdict maps are deleted before the chains that they lead to.
#[derive(Debug, Default)]
pub struct Batch {
    changes: Requests,
    /// The kernel features that the changes need.
    pub(super) features: Vec<(Family, Feature)>,
    /// The number of sets that the batch adds.
    sets: c_int,
    /// The kernel refuses the transaction (ERESTART) if the rules have another generation than this. `None`: no condition.
    expected: Option<Generation>,
}

impl Batch {
    /// A transaction without a condition on the generation.
    pub fn new() -> Self {
        Self::default()
    }

    /// A transaction that the kernel refuses if the rules have another generation than this; see `Nft::transact`.
    pub fn expecting(generation: Generation) -> Self {
        Self { expected: Some(generation), ..Self::default() }
    }

    /// Whether the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Adds a table. An existing table is no error.
    pub fn add_table(&mut self, table: Table<'_>) -> &mut Self {
        self.features.push((table.family, Feature::Tables));
        let doing = format!("cannot add table {table}");
        self.push(libc::NFT_MSG_NEWTABLE, NlmF::CREATE, table, doing, |_| {})
    }

    /// Adds a table that only the socket of this transaction can change. `nft flush ruleset` leaves such a table, and the kernel
    /// deletes it when the socket is closed. Needs Linux 5.12.
    pub fn add_owned_table(&mut self, table: Table<'_>) -> &mut Self {
        self.features.push((table.family, Feature::Tables));
        let doing = format!("cannot add table {table} with an owner");
        self.push(libc::NFT_MSG_NEWTABLE, NlmF::CREATE, table, doing, |attrs| {
            be32(attrs, NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
        })
    }

    /// Deletes a table with all that it has.
    pub fn delete_table(&mut self, table: Table<'_>) -> &mut Self {
        let doing = format!("cannot delete table {table}");
        self.push(libc::NFT_MSG_DELTABLE, NlmF::empty(), table, doing, |_| {})
    }

    /// Adds a chain. An existing equal chain is no error, but then the close of the socket takes milliseconds. So callers read
    /// first whether the chain exists.
    pub fn add_chain(&mut self, table: Table<'_>, chain: NewChain<'_>) -> &mut Self {
        if chain.base.is_some_and(|base| base.kind == ChainKind::Nat) {
            self.features.push((table.family, Feature::Nat));
        }
        let doing = format!("cannot add chain {} to table {table}", chain.name);
        self.push(libc::NFT_MSG_NEWCHAIN, NlmF::CREATE, table, doing, |attrs| {
            attrs.string(NFTA_CHAIN_NAME, chain.name);
            chain.write(attrs);
        })
    }

    /// Deletes a chain with its rules.
    pub fn delete_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Self {
        // The kernel refuses to delete a chain with rules (EBUSY).
        self.flush_chain(table, chain);
        let doing = format!("cannot delete chain {chain} of table {table}");
        self.push(libc::NFT_MSG_DELCHAIN, NlmF::empty(), table, doing, |attrs| {
            attrs.string(NFTA_CHAIN_NAME, chain);
        })
    }

    /// Deletes the rules of a chain.
    pub fn flush_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Self {
        let doing = format!("cannot flush chain {chain} of table {table}");
        self.push(libc::NFT_MSG_DELRULE, NlmF::empty(), table, doing, |attrs| {
            attrs.string(NFTA_RULE_CHAIN, chain);
        })
    }

    pub fn add_rule(&mut self, table: Table<'_>, rule: NewRule<'_>) -> &mut Self {
        let features = rule.exprs.iter().filter_map(Feature::of);
        self.features.extend(features.map(|feature| (table.family, feature)));
        let doing = format!("cannot add a rule to chain {} of table {table}", rule.chain);
        let flags = match rule.position {
            Position::First => NlmF::CREATE,
            Position::Last => NlmF::CREATE | NlmF::APPEND,
        };
        self.push(libc::NFT_MSG_NEWRULE, flags, table, doing, |attrs| {
            rule.write(attrs);
        })
    }

    pub fn delete_rule(&mut self, table: Table<'_>, chain: &str, handle: u64) -> &mut Self {
        let doing = format!("cannot delete rule {handle} of chain {chain} of table {table}");
        self.push(libc::NFT_MSG_DELRULE, NlmF::empty(), table, doing, |attrs| {
            attrs.string(NFTA_RULE_CHAIN, chain);
            be64(attrs, NFTA_RULE_HANDLE, handle);
        })
    }

    /// Adds a set. An existing equal set is no error.
    pub fn add_set(&mut self, table: Table<'_>, set: &NewSet) -> &mut Self {
        self.sets += 1;
        // The id of the set, unique in the transaction.
        let id = self.sets;
        let doing = format!("cannot add set {} to table {table}", set.name);
        self.push(libc::NFT_MSG_NEWSET, NlmF::CREATE, table, doing, |attrs| {
            attrs.string(NFTA_SET_NAME, &set.name);
            be32(attrs, NFTA_SET_ID, id);
            set.write(attrs);
        })
    }

    pub fn delete_set(&mut self, table: Table<'_>, set: &str) -> &mut Self {
        let doing = format!("cannot delete set {set} of table {table}");
        self.push(libc::NFT_MSG_DELSET, NlmF::empty(), table, doing, |attrs| {
            attrs.string(NFTA_SET_NAME, set);
        })
    }

    /// Adds elements. An existing key is an error (EEXIST), also with equal data.
    pub fn add_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Self {
        self.push_elements(NlmF::CREATE | NlmF::EXCL, table, set, elements)
    }

    /// Adds those of these elements whose key the set lacks. An existing key is an error only if its data differs; the existing
    /// element keeps its comment.
    pub fn ensure_elements(
        &mut self,
        table: Table<'_>,
        set: &str,
        elements: &[Element],
    ) -> &mut Self {
        self.push_elements(NlmF::CREATE, table, set, elements)
    }

    fn push_elements(
        &mut self,
        flags: NlmF,
        table: Table<'_>,
        set: &str,
        elements: &[Element],
    ) -> &mut Self {
        for part in elements.chunks(ELEMENTS_PER_MESSAGE) {
            let doing = format!("cannot add to set {set} of table {table}");
            self.push(libc::NFT_MSG_NEWSETELEM, flags, table, doing, |attrs| {
                write_elements(attrs, set, |attrs| {
                    part.iter().for_each(|element| element.write(attrs));
                });
            });
        }
        self
    }

    /// Deletes the elements that have the keys of `elements`.
    pub fn delete_elements(
        &mut self,
        table: Table<'_>,
        set: &str,
        elements: &[Element],
    ) -> &mut Self {
        for part in elements.chunks(ELEMENTS_PER_MESSAGE) {
            let doing = format!("cannot delete from set {set} of table {table}");
            self.push(libc::NFT_MSG_DELSETELEM, NlmF::empty(), table, doing, |attrs| {
                write_elements(attrs, set, |attrs| {
                    part.iter().for_each(|element| Element::write_key(&element.key, attrs));
                });
            });
        }
        self
    }

    /// The length of the datagram of the whole batch.
    pub(super) fn byte_count(&self) -> usize {
        BEGIN_BYTES + self.changes.byte_count() + END_BYTES
    }

    /// The changes as consecutive transactions with at most `bytes_max` bytes each. If the batch expects a generation, each
    /// transaction expects the generation after the previous one, so that no other program makes a change in between.
    pub(super) fn transactions(self, bytes_max: usize) -> Vec<Requests> {
        let mut expected = self.expected;
        let mut all =
            self.changes.parts(usize::MAX, bytes_max.saturating_sub(BEGIN_BYTES + END_BYTES));
        for requests in &mut all {
            requests.list.insert(0, begin(expected));
            requests.end = Some(Request::new(NFNL_MSG_BATCH_END, NlmF::empty(), "", |attrs| {
                attrs.raw(&batch_header());
            }));
            expected = expected.map(Generation::next);
        }
        all
    }

    /// The changes without the end of the transaction: the kernel validates them, but does not make them.
    pub(super) fn validation(self) -> Requests {
        let mut requests = self.changes;
        requests.list.insert(0, begin(self.expected));
        requests
    }

    fn push(
        &mut self,
        message: c_int,
        flags: NlmF,
        table: Table<'_>,
        doing: String,
        write: impl FnOnce(&mut Attrs),
    ) -> &mut Self {
        wire::push(&mut self.changes, message, flags, table, doing, write);
        self
    }
}

/// Writes a message about elements, after the table: the set, and the list that `write` appends.
pub(super) fn write_elements(attrs: &mut Attrs, set: &str, write: impl FnOnce(&mut Attrs)) {
    attrs.string(NFTA_SET_ELEM_LIST_SET, set);
    attrs.nested(NFTA_SET_ELEM_LIST_ELEMENTS, write);
}

/// The first message of a transaction.
fn begin(expected: Option<Generation>) -> Request {
    let doing = "cannot change the rules of nf_tables";
    Request::new(NFNL_MSG_BATCH_BEGIN, NlmF::empty(), doing, |attrs| {
        attrs.raw(&batch_header());
        if let Some(generation) = expected {
            be32(attrs, NFNL_BATCH_GENID, generation.0.cast_signed());
        }
    })
}

/// `struct nfgenmsg` of the messages that begin and end a transaction: `res_id` is the number of the subsystem, in network byte
/// order.
fn batch_header() -> [u8; 4] {
    let [.., high, low] = libc::NFNL_SUBSYS_NFTABLES.to_be_bytes();
    [0, 0, high, low]
}

/// The most elements in one message: their list is one attribute, of at most 65,535 bytes; an element takes up to about 450
/// bytes, with the longest comment and the longest name of a chain.
const ELEMENTS_PER_MESSAGE: usize = 128;

/// The length of the first message of a batch, NFNL_MSG_BATCH_BEGIN, with a generation.
const BEGIN_BYTES: usize = 28;
/// The length of the last message of a batch, NFNL_MSG_BATCH_END.
const END_BYTES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::rows;

    #[test]
    fn a_transaction() {
        let mut batch = Batch::expecting(Generation(7));
        assert!(batch.is_empty());
        let table = Table { family: Family::Ip, name: "cnibox" };
        batch.add_table(table).delete_rule(table, "c", 4);
        assert!(!batch.is_empty());
        let [transaction] = &batch.transactions(usize::MAX)[..] else { panic!("it is one") };
        assert_eq!(
            rows(&transaction.bytes()),
            "1c000000 10000100 00000000 00000000 0000000a 08000100 00000007 \
             20000000 000a0104 00000000 00000000 02000000 0b000100 636e6962 6f780000 \
             34000000 080a0100 00000000 00000000 02000000 0b000100 636e6962 6f780000 \
             06000200 63000000 0c000300 00000000 00000004 \
             14000000 11000100 00000000 00000000 0000000a"
        );
    }

    #[test]
    fn many_elements_are_several_messages() {
        let element =
            |number: u32| Element { key: number.to_be_bytes().to_vec(), data: None, comment: None };
        let elements: Vec<Element> = (0..300).map(element).collect();
        let mut batch = Batch::new();
        batch.delete_elements(Table::inet("cnibox"), "addresses", &elements);
        assert_eq!(batch.changes.list.len(), 3);
    }

    #[test]
    fn a_batch_is_split_between_its_changes() {
        let table = Table::inet("cnibox");
        let batch = || {
            let mut batch = Batch::expecting(Generation(u32::MAX));
            (1..=5).for_each(|handle| _ = batch.delete_rule(table, "c", handle));
            batch
        };
        let change_bytes = (batch().byte_count() - BEGIN_BYTES - END_BYTES) / 5;
        for (bytes_max, sizes) in [
            (BEGIN_BYTES + END_BYTES + 5 * change_bytes, vec![5]),
            (BEGIN_BYTES + END_BYTES + 2 * change_bytes, vec![2, 2, 1]),
            (0, vec![1; 5]),
        ] {
            let parts = batch().transactions(bytes_max);
            let found: Vec<usize> = parts.iter().map(|part| part.list.len() - 1).collect();
            assert_eq!(found, sizes, "{bytes_max}");
            assert!(bytes_max == 0 || parts.iter().all(|part| part.byte_count() <= bytes_max));
            let next = [Generation(u32::MAX), Generation(1), Generation(2)];
            let mut changes = Vec::new();
            for (index, part) in parts.iter().map(Requests::bytes).enumerate() {
                if let Some(Generation(expected)) = next.get(index) {
                    assert_eq!(part[BEGIN_BYTES - 4..BEGIN_BYTES], expected.to_be_bytes());
                }
                changes.extend_from_slice(&part[BEGIN_BYTES..part.len() - END_BYTES]);
            }
            assert_eq!(changes, batch().changes.bytes());
        }
    }
}
