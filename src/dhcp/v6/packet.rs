//! Packets of DHCPv6 (RFC 8415, sections 8 and 21): the client's messages and the server's replies.

use std::net::Ipv6Addr;

use crate::dhcp::domain;

/// A message type (RFC 8415, section 7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageType(pub u8);

impl MessageType {
    pub const SOLICIT: Self = Self(1);
    pub const ADVERTISE: Self = Self(2);
    pub const REQUEST: Self = Self(3);
    pub const CONFIRM: Self = Self(4);
    pub const RENEW: Self = Self(5);
    pub const REBIND: Self = Self(6);
    pub const REPLY: Self = Self(7);
    pub const RELEASE: Self = Self(8);
    pub const DECLINE: Self = Self(9);
}

/// A status code (RFC 8415, section 21.13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    pub const SUCCESS: Self = Self(0);
    pub const NO_ADDRS_AVAIL: Self = Self(2);
    pub const NO_BINDING: Self = Self(3);
    pub const NOT_ON_LINK: Self = Self(4);
}

const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;
const REQUEST_LIST: u16 = 6;
const PREFERENCE: u16 = 7;
const ELAPSED_TIME: u16 = 8;
const STATUS_CODE: u16 = 13;
const RAPID_COMMIT: u16 = 14;
const DNS: u16 = 23;
const DOMAIN_LIST: u16 = 24;
const SOL_MAX_RT: u16 = 82;

/// The longest DUID in bytes, with its type (RFC 8415, section 11.1).
const DUID_BYTES_MAX: usize = 130;

/// A message of the client.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub kind: MessageType,
    /// Only the lower 24 bits are sent.
    pub xid: u32,
    pub duid: &'a [u8],
    pub iaid: u32,
    pub server: Option<&'a [u8]>,
    pub address: Option<Ipv6Addr>,
    /// The time since the first message of the exchange, in hundredths of a second.
    pub elapsed_cs: u16,
}

impl Message<'_> {
    /// The payload of the UDP packet.
    pub fn encode(&self) -> Vec<u8> {
        let [_, a, b, c] = self.xid.to_be_bytes();
        let mut bytes = vec![self.kind.0, a, b, c];
        put(&mut bytes, CLIENT_ID, &[self.duid]);
        if let Some(server) = self.server {
            put(&mut bytes, SERVER_ID, &[server]);
        }
        let mut address = Vec::new();
        if let Some(value) = self.address {
            // Preferred and valid lifetime are 0: the server chooses them.
            put(&mut address, IA_ADDRESS, &[&value.octets(), &[0; 8]]);
        }
        // T1 and T2 are 0: the server chooses them, too.
        put(&mut bytes, IA_NA, &[&self.iaid.to_be_bytes(), &[0; 8], &address]);
        put(&mut bytes, ELAPSED_TIME, &[&self.elapsed_cs.to_be_bytes()]);
        if ![MessageType::CONFIRM, MessageType::RELEASE, MessageType::DECLINE].contains(&self.kind)
        {
            let codes = [DNS, DOMAIN_LIST, SOL_MAX_RT].map(u16::to_be_bytes);
            put(&mut bytes, REQUEST_LIST, &[codes.as_flattened()]);
        }
        if self.kind == MessageType::SOLICIT {
            put(&mut bytes, RAPID_COMMIT, &[]);
        }
        bytes
    }
}

/// Appends an option. Its value is much shorter than 64 KiB.
fn put(bytes: &mut Vec<u8>, code: u16, parts: &[&[u8]]) {
    let size = parts.iter().map(|part| part.len()).sum::<usize>();
    bytes.extend(code.to_be_bytes());
    bytes.extend(u16::try_from(size).unwrap_or(u16::MAX).to_be_bytes());
    parts.iter().for_each(|part| bytes.extend(*part));
}

/// A message of a server to this client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub kind: u8,
    /// The DUID of the server.
    pub server: Vec<u8>,
    pub preference: u8,
    /// The status of the message.
    pub status: Status,
    pub is_rapid: bool,
    /// The addresses of this client's IAID.
    pub ia: Option<Ia>,
    pub dns: Vec<Ipv6Addr>,
    pub search: Vec<String>,
    /// The longest time between two SOLICIT, in seconds (RFC 8415, section 21.24).
    pub sol_max_rt: Option<u32>,
}

/// An identity association (IA_NA).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ia {
    /// T1 and T2 in seconds. 0: the client chooses the value.
    pub t1: u32,
    pub t2: u32,
    pub status: Status,
    pub addresses: Vec<Address>,
}

/// An address with its lifetimes in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub address: Ipv6Addr,
    pub preferred: u32,
    pub valid: u32,
}

impl Reply {
    /// Parses a message with this xid to the client with this DUID. `None`: it is another message, or is malformed.
    pub fn parse(bytes: &[u8], xid: u32, duid: &[u8], iaid: u32) -> Option<Self> {
        let (&[kind, number @ ..], options) = bytes.split_first_chunk::<4>()?;
        if number != xid.to_be_bytes()[1..] {
            return None;
        }
        let mut reply = Self { kind, ..Self::default() };
        let mut is_for_this_client = false;
        each(options, |code, value| {
            match code {
                CLIENT_ID => is_for_this_client = value == duid,
                SERVER_ID => reply.server = value.to_vec(),
                PREFERENCE => reply.preference = *value.first()?,
                STATUS_CODE => reply.status = Status(u16::from_be_bytes(*value.first_chunk()?)),
                RAPID_COMMIT => reply.is_rapid = true,
                DNS => reply.dns = addresses(value)?,
                DOMAIN_LIST => reply.search = domain::list(value).unwrap_or_default(),
                SOL_MAX_RT => reply.sol_max_rt = Some(u32::from_be_bytes(*value.first_chunk()?)),
                IA_NA if reply.ia.is_none() => reply.ia = Ia::parse(value, iaid)?,
                _ => {}
            }
            Some(())
        })?;
        let is_valid = is_for_this_client && (1..=DUID_BYTES_MAX).contains(&reply.server.len());
        is_valid.then_some(reply)
    }
}

impl Ia {
    /// Parses an IA_NA. `Some(None)`: its IAID is another one, or T1 > T2. `None`: it is malformed.
    fn parse(bytes: &[u8], iaid: u32) -> Option<Option<Self>> {
        let (id, rest) = word(bytes)?;
        let (t1, rest) = word(rest)?;
        let (t2, options) = word(rest)?;
        let mut ia = Self { t1, t2, ..Self::default() };
        each(options, |code, value| {
            match code {
                STATUS_CODE => ia.status = Status(u16::from_be_bytes(*value.first_chunk()?)),
                IA_ADDRESS => {
                    let (address, rest) = value.split_first_chunk::<16>()?;
                    let address = Ipv6Addr::from(*address);
                    let (preferred, rest) = word(rest)?;
                    let (valid, _) = word(rest)?;
                    if is_host(address) && preferred <= valid {
                        ia.addresses.push(Address { address, preferred, valid });
                    }
                }
                _ => {}
            }
            Some(())
        })?;
        let is_consistent = t2 == 0 || t1 <= t2;
        Some((id == iaid && is_consistent).then_some(ia))
    }
}

/// Calls a function for each option. `None`: an option is longer than the rest of the field, or the function returned `None`.
fn each(field: &[u8], mut visit: impl FnMut(u16, &[u8]) -> Option<()>) -> Option<()> {
    let mut rest = field;
    while !rest.is_empty() {
        let (&[a, b, c, d], after) = rest.split_first_chunk()?;
        let (value, after) = after.split_at_checked(u16::from_be_bytes([c, d]).into())?;
        visit(u16::from_be_bytes([a, b]), value)?;
        rest = after;
    }
    Some(())
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*word), rest))
}

/// The addresses of name servers, which can be link-local.
fn addresses(value: &[u8]) -> Option<Vec<Ipv6Addr>> {
    let (addresses, []) = value.as_chunks::<16>() else { return None };
    let is_server = |address: &Ipv6Addr| !address.is_unspecified() && !address.is_multicast();
    Some(addresses.iter().map(|bytes| Ipv6Addr::from(*bytes)).filter(is_server).collect())
}

/// Whether a server can give the address to an interface.
fn is_host(address: Ipv6Addr) -> bool {
    let is_link_local = address.segments()[0] & 0xffc0 == 0xfe80;
    // The first 96 bits are zero in ::, ::1 and IPv4-compatible addresses.
    let is_special = address.segments()[..6] == [0; 6] || address.to_ipv4_mapped().is_some();
    !address.is_multicast() && !is_link_local && !is_special
}

#[cfg(test)]
pub mod tests;
