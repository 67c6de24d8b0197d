//! The kernel's reports on packets that a rule with `meta nftrace set 1` selected: each rule that matched, each policy, and the
//! verdict.

use super::Family;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockProtocol;

use super::consts::{
    NFT_TRACETYPE_POLICY, NFTA_TRACE_CHAIN, NFTA_TRACE_ID, NFTA_TRACE_IIF,
    NFTA_TRACE_NETWORK_HEADER, NFTA_TRACE_OIF, NFTA_TRACE_POLICY, NFTA_TRACE_RULE_HANDLE,
    NFTA_TRACE_TABLE, NFTA_TRACE_TRANSPORT_HEADER, NFTA_TRACE_TYPE, NFTA_TRACE_VERDICT,
    NFTA_VERDICT_CODE,
};
use super::wire::{attribute, attributes_of, be32_of, be64_of, message_type};
use crate::fault;
use crate::kernel::sys::socket::receive_from_kernel;
use crate::netlink::message::messages;
use crate::netlink::socket::subscribed;
use crate::netlink::{Error, fixed, octets, text};

/// One event of a traced packet in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The packet. A bridge gives a packet that it delivers to the host another number.
    pub id: u32,
    pub family: Family,
    pub table: String,
    pub chain: String,
    /// The rule of the event; `None` for the policy of a base chain.
    pub rule: Option<u64>,
    pub ended: Ended,
    /// The indexes of the links that received the packet and that it leaves through, if they are known at the hook.
    pub iif: Option<u32>,
    pub oif: Option<u32>,
    /// The headers of the packet, in the first event of each chain: IP, and the first bytes of the protocol above it.
    pub headers: Option<(Vec<u8>, Vec<u8>)>,
}

/// Whether a packet went on after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The next rule, or the next chain.
    GoesOn,
    Dropped,
    /// A program or another hook has taken the packet.
    Taken,
}

/// A subscription to the events of all traced packets in the namespace of the calling thread.
pub struct Traces(OwnedFd);

impl Traces {
    /// Reports every event from now on.
    pub fn open() -> Result<Self, Error> {
        let open = || {
            fault::kernel_request()?;
            subscribed(SockProtocol::NetlinkNetFilter, &[NFNLGRP_NFTRACE], &[])
        };
        open().map(Self).map_err(|error| Error::of("cannot subscribe to traces of packets", &error))
    }

    /// The next events; empty after the timeout. `None` if events were lost, because too many packets are traced.
    pub fn next(&self, timeout: Duration) -> Result<Option<Vec<Trace>>, Error> {
        let failed = |error| Error::of("cannot read traces of packets", &error);
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) => return Ok(Some(Vec::new())),
            Ok(_) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
        match receive_from_kernel(&self.0, &mut datagram) {
            Ok(Some(_)) => {
                let traces = messages(&datagram)
                    .filter(|message| message.kind == message_type(libc::NFT_MSG_TRACE))
                    .filter_map(|message| Trace::read(message.payload));
                Ok(Some(traces.collect()))
            }
            Ok(None) => Ok(Some(Vec::new())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(Vec::new())),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Trace {
    fn read(message: &[u8]) -> Option<Self> {
        let list = attributes_of(message);
        let number = |kind| attribute(list, kind).and_then(be32_of);
        let name = |kind| attribute(list, kind).map(|name| text(name).into_owned());
        let is_policy = number(NFTA_TRACE_TYPE)? == NFT_TRACETYPE_POLICY;
        let verdict = match is_policy {
            true => number(NFTA_TRACE_POLICY),
            false => attribute(list, NFTA_TRACE_VERDICT)
                .and_then(|verdict| attribute(verdict, NFTA_VERDICT_CODE))
                .and_then(be32_of),
        };
        let header = |kind| attribute(list, kind).map(<[u8]>::to_vec);
        Some(Self {
            id: number(NFTA_TRACE_ID)?.cast_unsigned(),
            family: Family::of(*message.first()?)?,
            table: name(NFTA_TRACE_TABLE)?,
            chain: name(NFTA_TRACE_CHAIN)?,
            rule: attribute(list, NFTA_TRACE_RULE_HANDLE).and_then(be64_of),
            ended: Ended::after(verdict),
            iif: number(NFTA_TRACE_IIF).map(c_int::cast_unsigned),
            oif: number(NFTA_TRACE_OIF).map(c_int::cast_unsigned),
            headers: header(NFTA_TRACE_NETWORK_HEADER).zip(header(NFTA_TRACE_TRANSPORT_HEADER)),
        })
    }

    /// The packet has this source in its headers.
    pub fn is_from(&self, address: IpAddr, port: u16) -> bool {
        self.has(address, if address.is_ipv4() { 12 } else { 8 }, port, 0)
    }

    /// The packet has this destination in its headers.
    pub fn is_to(&self, address: IpAddr, port: u16) -> bool {
        self.has(address, if address.is_ipv4() { 16 } else { 24 }, port, 2)
    }

    fn has(&self, address: IpAddr, address_at: usize, port: u16, port_at: usize) -> bool {
        let address = octets(address);
        self.headers.as_ref().is_some_and(|(ip, transport)| {
            ip.get(address_at..address_at + address.len()) == Some(&address)
                && fixed(transport, port_at).map(u16::from_be_bytes) == Some(port)
        })
    }
}

impl Ended {
    /// A verdict of the kernel (not negative) without the number of a queue or the errno of a drop in its upper bits.
    fn code(verdict: c_int) -> c_int {
        if verdict < 0 { verdict } else { verdict & libc::NF_VERDICT_MASK }
    }

    fn after(verdict: Option<c_int>) -> Self {
        match verdict.map(Self::code) {
            Some(libc::NF_DROP) => Self::Dropped,
            Some(libc::NF_STOLEN | libc::NF_QUEUE) => Self::Taken,
            _ => Self::GoesOn,
        }
    }
}

/// Source: linux/netfilter/nfnetlink.h, `enum nfnetlink_groups`.
const NFNLGRP_NFTRACE: u32 = 9;
const DATAGRAM_BYTES: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Attrs;

    fn message(kind: c_int, verdict: c_int) -> Vec<u8> {
        let mut attrs = Attrs::default();
        attrs.raw(&[1, 0, 0, 0]);
        attrs.bytes(NFTA_TRACE_ID, &7_u32.to_be_bytes());
        attrs.bytes(NFTA_TRACE_TYPE, &kind.to_be_bytes());
        attrs.string(NFTA_TRACE_TABLE, "fw4");
        attrs.string(NFTA_TRACE_CHAIN, "forward");
        if kind == NFT_TRACETYPE_POLICY {
            attrs.bytes(NFTA_TRACE_POLICY, &verdict.to_be_bytes());
        } else {
            attrs.bytes(NFTA_TRACE_RULE_HANDLE, &9_u64.to_be_bytes());
            attrs.nested(NFTA_TRACE_VERDICT, |data| {
                data.bytes(NFTA_VERDICT_CODE, &verdict.to_be_bytes());
            });
            attrs.bytes(
                NFTA_TRACE_NETWORK_HEADER,
                &[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 5, 1, 1, 1, 1],
            );
            attrs.bytes(NFTA_TRACE_TRANSPORT_HEADER, &[0x4e, 0x21, 0, 53]);
        }
        attrs.as_slice().to_vec()
    }

    #[test]
    fn the_end_of_a_packet_is_read() {
        let rule = Trace::read(&message(3, libc::NF_DROP)).unwrap();
        assert_eq!((rule.id, rule.family, rule.chain.as_str()), (7, Family::Inet, "forward"));
        assert_eq!((rule.rule, rule.ended), (Some(9), Ended::Dropped));
        let [here, there] = ["10.1.0.5", "1.1.1.1"].map(|text| text.parse().unwrap());
        assert!(rule.is_from(here, 20001) && !rule.is_from(here, 20002));
        assert!(rule.is_to(there, 53) && !rule.is_to(here, 53) && !rule.is_from(there, 20001));
        let policy = Trace::read(&message(NFT_TRACETYPE_POLICY, libc::NF_ACCEPT)).unwrap();
        assert_eq!((policy.rule, policy.ended, policy.headers), (None, Ended::GoesOn, None));
        for (verdict, ended) in [
            (libc::NF_QUEUE | 7 << 16, Ended::Taken),
            (libc::NFT_JUMP, Ended::GoesOn),
            (libc::NFT_CONTINUE, Ended::GoesOn),
            (libc::NF_DROP, Ended::Dropped),
        ] {
            assert_eq!(Trace::read(&message(3, verdict)).unwrap().ended, ended, "{verdict}");
        }
    }

    #[test]
    fn truncated_events_are_ignored() {
        let message = message(3, libc::NF_DROP);
        for end in 0..message.len() {
            Trace::read(&message[..end]);
        }
        assert_eq!(Trace::read(&message[..20]), None);
    }
}
