//! The bytes of netlink messages: written as requests, read as replies.
//!
//! Source: include/uapi/linux/netlink.h. Numbers are in host byte order. Messages and attributes are aligned to four
//! bytes.

use std::borrow::Cow;
use std::net::IpAddr;

use neli::consts::nl::{NlmF, Nlmsg, NlmsgerrAttr};
use nix::libc;

use crate::names::IpFamily;

/// Requests in one datagram.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    pub(super) list: Vec<Request>,
    /// A message after the requests that the kernel does not answer: the end of an nf_tables transaction.
    pub(super) end: Option<Request>,
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    kind: u16,
    flags: NlmF,
    payload: Attrs,
    /// The beginning of the error message if the request fails: `cannot add link eth0`.
    pub(super) doing: String,
    /// An errno that the caller takes as success.
    pub(super) tolerated: Option<i32>,
}

impl Request {
    /// `write` writes the bytes after the header.
    pub(super) fn new(
        kind: u16,
        flags: NlmF,
        doing: impl Into<String>,
        write: impl FnOnce(&mut Attrs),
    ) -> Self {
        let mut payload = Attrs::default();
        write(&mut payload);
        Self { kind, flags, payload, doing: doing.into(), tolerated: None }
    }

    fn byte_count(&self) -> usize {
        HEADER_BYTES + self.payload.bytes.len()
    }

    /// Appends the message to a datagram.
    fn write(&self, sequence: u32, further_flags: NlmF, datagram: &mut Vec<u8>) {
        // The kernel refuses a datagram of this length.
        let length = u32::try_from(self.byte_count()).unwrap_or(u32::MAX);
        let flags = self.flags | NlmF::REQUEST | further_flags;
        datagram.extend(length.to_ne_bytes());
        datagram.extend(self.kind.to_ne_bytes());
        datagram.extend(flags.bits().to_ne_bytes());
        datagram.extend(sequence.to_ne_bytes());
        // The kernel takes the port from the socket.
        datagram.extend([0; 4]);
        datagram.extend_from_slice(&self.payload.bytes);
    }
}

impl Requests {
    /// A single request.
    pub fn one(
        kind: u16,
        flags: NlmF,
        doing: impl Into<String>,
        write: impl FnOnce(&mut Attrs),
    ) -> Self {
        Self { list: vec![Request::new(kind, flags, doing, write)], end: None }
    }

    /// A single request without attributes: a structure only.
    pub fn bare(kind: u16, flags: NlmF, doing: impl Into<String>, structure: &[u8]) -> Self {
        Self::one(kind, flags, doing, |attrs| attrs.raw(structure))
    }

    /// Appends a request; `write` writes the bytes after the header.
    pub fn push(&mut self, kind: u16, flags: NlmF, doing: String, write: impl FnOnce(&mut Attrs)) {
        self.list.push(Request::new(kind, flags, doing, write));
    }

    /// If the kernel answers the last request with this errno, the request counts as successful.
    pub fn tolerate(&mut self, errno: i32) {
        if let Some(last) = self.list.last_mut() {
            last.tolerated = Some(errno);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether an attribute is too long for its length field.
    fn is_too_long(&self) -> bool {
        self.list.iter().any(|request| request.payload.too_long)
    }

    /// Splits the requests into parts with at most that many requests and bytes. A longer request gets its own part.
    pub(super) fn parts(self, requests_max: usize, bytes_max: usize) -> Vec<Self> {
        // Then none is sent: see `datagram`.
        if self.is_too_long() {
            return vec![self];
        }
        let (mut parts, mut bytes): (Vec<Self>, _) = (Vec::new(), 0);
        for request in self.list {
            bytes += request.byte_count();
            let has_room = |part: &&mut Self| part.list.len() < requests_max && bytes <= bytes_max;
            match parts.last_mut().filter(has_room) {
                Some(part) => part.list.push(request),
                None => {
                    bytes = request.byte_count();
                    parts.push(Self { list: vec![request], end: None });
                }
            }
        }
        parts
    }

    /// The length of the datagram.
    pub(super) fn byte_count(&self) -> usize {
        self.list.iter().chain(&self.end).map(Request::byte_count).sum()
    }

    /// What the last request does, for messages about the whole datagram.
    pub(super) fn last_doing(&self) -> &str {
        self.list.last().map_or("", |request| request.doing.as_str())
    }

    /// The datagram, with consecutive sequence numbers and with further flags in the last request; `None` if an attribute is too
    /// long.
    pub(super) fn datagram(&self, first_sequence: u32, last_flags: NlmF) -> Option<Vec<u8>> {
        if self.is_too_long() {
            return None;
        }
        let mut datagram = Vec::with_capacity(self.byte_count());
        let mut sequence = first_sequence;
        for (index, request) in self.list.iter().enumerate() {
            let is_last = index + 1 == self.list.len();
            let flags = if is_last { last_flags } else { NlmF::empty() };
            request.write(sequence, flags, &mut datagram);
            sequence = sequence.wrapping_add(1);
        }
        self.end.iter().for_each(|end| end.write(0, NlmF::empty(), &mut datagram));
        Some(datagram)
    }
}

/// A list of attributes that is being written. Attributes can contain lists.
#[derive(Clone, Debug, Default)]
pub struct Attrs {
    bytes: Vec<u8>,
    /// An attribute is too long for its u16 length, so the list is not sent.
    too_long: bool,
}

impl Attrs {
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind, |attrs| attrs.raw(value));
    }

    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    pub fn u16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// The numbers that have a value.
    pub fn u32s(&mut self, numbers: &[(u16, Option<u32>)]) {
        for (kind, number) in numbers {
            if let Some(number) = number {
                self.u32(*kind, *number);
            }
        }
    }

    pub fn ip(&mut self, kind: u16, ip: IpAddr) {
        self.bytes(kind, &octets(ip));
    }

    /// A string with its NUL.
    pub fn string(&mut self, kind: u16, value: &str) {
        self.attribute(kind, |attrs| {
            attrs.bytes.extend_from_slice(value.as_bytes());
            attrs.bytes.push(0);
        });
    }

    pub fn nested(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        self.attribute(kind | NLA_F_NESTED, write);
    }

    /// Bytes without an attribute header: the structure at the beginning of many messages and of a few attributes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    fn attribute(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.raw(&[0, 0]);
        self.raw(&kind.to_ne_bytes());
        write(self);
        match u16::try_from(self.bytes.len() - at) {
            Ok(length) => self.bytes[at..at + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.too_long = true,
        }
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }
}

/// One message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: NlmF,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

impl<'a> Message<'a> {
    pub(super) fn is(&self, kind: Nlmsg) -> bool {
        self.kind == u16::from(kind)
    }

    /// For NLMSG_ERROR and NLMSG_DONE: the errno, 0 for success, and the text of the extended acknowledgement.
    pub(super) fn outcome(&self) -> (i32, Option<Cow<'a, str>>) {
        let Some(code) = fixed(self.payload, 0).map(i32::from_ne_bytes) else {
            // A DONE of very old kernels has no errno; an ERROR always has an errno.
            return (if self.is(Nlmsg::Done) { 0 } else { libc::EBADMSG }, None);
        };
        let errno = code.checked_neg().unwrap_or(libc::EBADMSG);
        if !self.flags.contains(NlmF::ACK_TLVS) {
            return (errno, None);
        }
        // In an error message the request, or only its header, is between the errno and the texts.
        let request_bytes = if self.is(Nlmsg::Done) {
            0
        } else if self.flags.contains(NlmF::CAPPED) {
            HEADER_BYTES
        } else {
            aligned(u32_at(self.payload, 4).unwrap_or_default() as usize)
        };
        let texts = self.payload.get(request_bytes.saturating_add(4)..).unwrap_or_default();
        (errno, attribute(texts, NlmsgerrAttr::Msg.into()).map(text))
    }
}

/// The messages of one datagram, up to the first malformed one.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let message = Message {
            kind: u16_at(bytes, 4)?,
            flags: NlmF::from_bits_retain(u16_at(bytes, 6)?),
            sequence: u32_at(bytes, 8)?,
            payload: bytes.get(HEADER_BYTES..length)?,
        };
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes of a list, as kind and value, up to the first malformed one.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & NLA_TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a kind.
pub(crate) fn attribute(list: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(list).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// `N` bytes at an offset; `None` if the slice is too short.
pub(crate) fn fixed<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    fixed(bytes, at).map(u16::from_ne_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    fixed(bytes, at).map(u32::from_ne_bytes)
}

pub(crate) fn u8_of(value: &[u8]) -> Option<u8> {
    value.first().copied()
}

pub(crate) fn u16_of(value: &[u8]) -> Option<u16> {
    u16_at(value, 0)
}

pub(crate) fn u32_of(value: &[u8]) -> Option<u32> {
    u32_at(value, 0)
}

/// An address of a family, AF_INET or AF_INET6.
pub(crate) fn ip_of(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => fixed::<4>(value, 0).map(IpAddr::from),
        AF_INET6 => fixed::<16>(value, 0).map(IpAddr::from),
        _ => None,
    }
}

/// The address of a family at the start of some bytes.
pub(crate) fn address_in(family: IpFamily, bytes: &[u8]) -> Option<IpAddr> {
    ip_of(family.number(), bytes)
}

/// The bytes of an address.
pub(crate) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

/// A string up to its NUL. Names of links need not be UTF-8. Invalid bytes become U+FFFD, which no name in a
/// configuration has.
pub(crate) fn text(value: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default())
}

impl IpFamily {
    /// AF_INET or AF_INET6.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::V4 => AF_INET,
            Self::V6 => AF_INET6,
        }
    }

    pub(in crate::netlink) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }
}

fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

/// Address families (linux/socket.h) as u8: in most messages the family is one byte.
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;

/// The number of requests that callers put into one datagram: the receive buffer of a socket has room for about 256 answers.
pub(crate) const REQUESTS_AT_ONCE: usize = 128;

const NLA_F_NESTED: u16 = 0x8000;
/// The bits of an attribute's type, without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER_BYTES: usize = 16;

#[cfg(test)]
impl Requests {
    /// The datagram without sequence numbers.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for request in self.list.iter().chain(&self.end) {
            request.write(0, NlmF::empty(), &mut bytes);
        }
        bytes
    }
}

/// For golden tests: bytes in hexadecimal, in groups of four: `01000000 02000300`.
#[cfg(test)]
pub(crate) fn rows(bytes: &[u8]) -> String {
    let row = |row: &[u8]| row.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(4).map(row).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: Nlmsg, flags: NlmF, payload: &[u8]) -> Message<'_> {
        Message { kind: kind.into(), flags, sequence: 0, payload }
    }

    #[test]
    fn attributes_are_padded_and_nested_ones_have_their_length_and_flag() {
        let mut attrs = Attrs::default();
        attrs.u8(1, 0xaa);
        attrs.bytes(2, &[0x34, 0x12]);
        attrs.nested(3, |inner| {
            inner.raw(&[1, 2, 3, 4]);
            inner.string(4, "abc");
            inner.nested(5, |_| {});
        });
        attrs.string(6, "abcd");
        assert_eq!(
            rows(&attrs.bytes),
            "05000100 aa000000 06000200 34120000 14000380 01020304 08000400 61626300 04000580 \
             09000600 61626364 00000000"
        );
    }

    #[test]
    fn requests_are_numbered_and_the_last_one_requests_an_acknowledgement() {
        let mut requests = Requests::default();
        requests.push(16, NlmF::CREATE, "a".into(), |attrs| attrs.raw(&[7; 4]));
        requests.push(17, NlmF::empty(), "b".into(), |attrs| attrs.u32(1, 2));
        requests.tolerate(19);
        requests.end = Some(Request::new(18, NlmF::empty(), "", |_| {}));
        assert_eq!(
            rows(&requests.datagram(5, NlmF::ACK).unwrap()),
            "14000000 10000104 05000000 00000000 07070707 \
             18000000 11000500 06000000 00000000 08000100 02000000 \
             10000000 12000100 00000000 00000000"
        );
        assert_eq!((requests.list[0].tolerated, requests.list[1].tolerated), (None, Some(19)));
    }

    #[test]
    fn an_attribute_of_64_kib_is_too_long() {
        for (bytes, too_long) in [(65531, false), (65532, true)] {
            let mut attrs = Attrs::default();
            attrs.bytes(1, &vec![0; bytes]);
            assert_eq!(attrs.too_long, too_long, "{bytes}");
        }
        let mut attrs = Attrs::default();
        attrs.nested(1, |inner| (0..2).for_each(|_| inner.bytes(2, &[0; 40_000])));
        assert!(attrs.too_long);
    }

    #[test]
    fn written_attributes_are_read_back() {
        let mut attrs = Attrs::default();
        attrs.string(1, "eth0");
        attrs.nested(2, |inner| inner.u32(3, 9));
        let read: Vec<_> = attributes(&attrs.bytes).collect();
        assert_eq!(read, [(1, b"eth0\0".as_slice()), (2, &[8, 0, 3, 0, 9, 0, 0, 0])]);
        assert_eq!(text(read[0].1), "eth0");
        assert_eq!(attributes(read[1].1).next().and_then(|(_, value)| u32_of(value)), Some(9));
    }

    #[test]
    fn malformed_lists_end_early() {
        for bytes in [
            &[0, 0, 1, 0][..],      // no length
            &[3, 0, 1, 0],          // shorter than its header
            &[9, 0, 1, 0, 1, 2, 3], // longer than the list
            &[4, 0, 1],             // half a header
        ] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
        // The last attribute need not have padding.
        assert_eq!(attributes(&[5, 0, 1, 0, 7]).collect::<Vec<_>>(), [(1, &[7][..])]);
    }

    #[test]
    fn malformed_datagrams_end_early() {
        let mut requests = Requests::default();
        requests.push(16, NlmF::empty(), String::new(), |attrs| attrs.u32(1, 2));
        requests.push(17, NlmF::empty(), String::new(), |_| {});
        let bytes = &requests.bytes();
        assert_eq!(messages(bytes).map(|m| m.kind).collect::<Vec<_>>(), [16, 17]);
        for end in 0..bytes.len() {
            assert_eq!(messages(&bytes[..end]).count(), usize::from(end >= 24), "{end}");
        }
        for length in [0_u32, 15, 41, u32::MAX] {
            let mut bytes = bytes.clone();
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "{length}");
        }
    }

    #[test]
    fn outcomes() {
        let exists = (-libc::EEXIST).to_ne_bytes();
        let mut hint = Attrs::default();
        hint.u32(2, 20);
        hint.string(NlmsgerrAttr::Msg.into(), "because");
        let full = Requests::one(16, NlmF::empty(), "", |attrs| attrs.string(3, "eth0")).bytes();

        let capped = [&exists[..], &full[..16], &hint.bytes].concat();
        let whole = [&exists[..], &full[..], &hint.bytes].concat();
        let done = [&exists[..], &hint.bytes].concat();
        for (kind, flags, payload) in [
            (Nlmsg::Error, NlmF::ACK_TLVS | NlmF::CAPPED, &capped),
            (Nlmsg::Error, NlmF::ACK_TLVS, &whole),
            (Nlmsg::Done, NlmF::ACK_TLVS, &done),
        ] {
            let (errno, hint) = message(kind, flags, payload).outcome();
            assert_eq!((errno, hint.as_deref()), (libc::EEXIST, Some("because")));
            // A truncated message has an errno and does not panic.
            for end in 4..payload.len() {
                assert_eq!(message(kind, flags, &payload[..end]).outcome().0, libc::EEXIST);
            }
        }
        assert_eq!(message(Nlmsg::Error, NlmF::empty(), &[0; 20]).outcome(), (0, None));
        assert_eq!(message(Nlmsg::Done, NlmF::empty(), &[]).outcome(), (0, None));
        assert_eq!(message(Nlmsg::Error, NlmF::empty(), &[1]).outcome(), (libc::EBADMSG, None));
        assert_eq!(
            message(Nlmsg::Error, NlmF::empty(), &i32::MIN.to_ne_bytes()).outcome().0,
            libc::EBADMSG
        );
    }

    #[test]
    fn texts_end_at_the_nul_and_are_unicode() {
        for (bytes, expected) in
            [(&b"eth0\0x"[..], "eth0"), (b"eth0", "eth0"), (b"", ""), (b"a\xffb\0", "a\u{fffd}b")]
        {
            assert_eq!(text(bytes), expected);
        }
    }
}
