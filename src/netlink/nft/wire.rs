//! Parts of nf_tables messages: the header, numbers in network byte order, data.

use neli::consts::nl::NlmF;
use nix::libc::{self, c_int};

use super::consts::{
    NFTA_DATA_VALUE, NFTA_LIST_ELEM, NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_TABLE_NAME,
};
use super::{Family, Table};
use crate::netlink::{Attrs, Requests, attributes, fixed, text};

pub(super) use crate::netlink::attribute;

/// The size of `struct nfgenmsg`: family, version, and a resource that only transactions name.
///
/// Source: linux/netfilter/nfnetlink.h.
const HEADER_BYTES: usize = 4;

/// The header of a message about a family.
pub(super) fn header(family: Family) -> [u8; HEADER_BYTES] {
    [family.number(), 0, 0, 0]
}

/// The type of a message: the subsystem in the upper byte, NFT_MSG_* in the lower byte.
pub(super) fn message_type(message: c_int) -> u16 {
    u16::try_from(libc::NFNL_SUBSYS_NFTABLES << 8 | message).expect("both fit into a byte")
}

/// Appends a request about a table, or about an object of the table, which `write` names.
pub(super) fn push(
    requests: &mut Requests,
    message: c_int,
    flags: NlmF,
    table: Table<'_>,
    doing: String,
    write: impl FnOnce(&mut Attrs),
) {
    requests.push(message_type(message), flags, doing, |attrs| {
        attrs.raw(&header(table.family));
        attrs.string(NFTA_TABLE_NAME, table.name);
        write(attrs);
    });
}

/// The attributes of a message, after its header.
pub(super) fn attributes_of(message: &[u8]) -> &[u8] {
    message.get(HEADER_BYTES..).unwrap_or_default()
}

/// The attributes of a message about this table; `None` if it is about another table.
pub(super) fn attributes_about<'a>(table: &str, message: &'a [u8]) -> Option<&'a [u8]> {
    let list = attributes_of(message);
    (text(attribute(list, NFTA_TABLE_NAME)?) == table).then_some(list)
}

/// The elements of a list in an attribute: expressions, or elements of a set.
pub(super) fn elements_of(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    attributes(list).filter(|(kind, _)| *kind == NFTA_LIST_ELEM).map(|(_, element)| element)
}

/// The elements of a set in the attributes of a message.
pub(super) fn set_elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    elements_of(attribute(list, NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or_default())
}

pub(super) fn be32(attrs: &mut Attrs, kind: u16, value: c_int) {
    attrs.bytes(kind, &value.to_be_bytes());
}

pub(super) fn be64(attrs: &mut Attrs, kind: u16, value: u64) {
    attrs.bytes(kind, &value.to_be_bytes());
}

pub(super) fn be32_of(value: &[u8]) -> Option<c_int> {
    fixed(value, 0).map(c_int::from_be_bytes)
}

pub(super) fn be64_of(value: &[u8]) -> Option<u64> {
    fixed(value, 0).map(u64::from_be_bytes)
}

/// Writes a value of an expression or an element.
pub(super) fn data(attrs: &mut Attrs, kind: u16, value: &[u8]) {
    attrs.nested(kind, |data| data.bytes(NFTA_DATA_VALUE, value));
}

/// Reads a value of an expression or an element.
pub(super) fn data_of(value: &[u8]) -> Option<Vec<u8>> {
    attribute(value, NFTA_DATA_VALUE).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_about_one_table() {
        let mut attrs = Attrs::default();
        attrs.raw(&header(Family::Ip));
        attrs.string(NFTA_TABLE_NAME, "cnibox");
        let message = attrs.as_slice();
        assert_eq!(attributes_about("cnibox", message), Some(&message[HEADER_BYTES..]));
        assert_eq!(attributes_about("other", message), None);
        for end in 0..HEADER_BYTES {
            assert_eq!(attributes_about("cnibox", &message[..end]), None, "{end}");
        }
    }
}
