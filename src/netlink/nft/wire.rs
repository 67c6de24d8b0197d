//! Parts of nf_tables messages: the header, numbers in network byte order, data.

use super::Family;
use super::consts::NFTA_DATA_VALUE;
use crate::netlink::{Attrs, attributes, fixed};

pub(super) use crate::netlink::attribute;

/// The size of `struct nfgenmsg`: family, version, and a resource that only transactions name.
///
/// Source: linux/netfilter/nfnetlink.h.
const HEADER_BYTES: usize = 4;

pub(super) fn header(family: Family) -> [u8; HEADER_BYTES] {
    [family.number(), 0, 0, 0]
}

/// The attributes of a message, after its header.
pub(super) fn attributes_of(message: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(message.get(HEADER_BYTES..).unwrap_or_default())
}

pub(super) fn be32(attrs: &mut Attrs, kind: u16, value: u32) {
    attrs.bytes(kind, &value.to_be_bytes());
}

pub(super) fn be64(attrs: &mut Attrs, kind: u16, value: u64) {
    attrs.bytes(kind, &value.to_be_bytes());
}

pub(super) fn be32_of(value: &[u8]) -> Option<u32> {
    fixed(value, 0).map(u32::from_be_bytes)
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
