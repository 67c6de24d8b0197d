//! Deletion of conntrack entries. UDP has no end of a connection: an entry stays as long as packets arrive. These packets still
//! get the NAT of the entry after its rule was removed, and do not get the NAT of a rule that was added later.

use std::collections::BTreeSet;
use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use nix::libc;

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::Transport;
use crate::netlink::{
    self, AF_INET, AF_INET6, Attrs, REQUESTS_AT_ONCE, Requests, Socket, attribute, fixed, ip_of,
    u8_of,
};

/// A filter for connections. It always has a protocol and a port, so it never selects all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowFilter {
    family: IpFamily,
    transport: Transport,
    /// The destination of the first packet, before any NAT: `port` and `address`. `address: None` selects every address.
    port: u16,
    address: Option<IpAddr>,
    answers: Answers,
}

/// A condition on the source address of the replies: the destination of the first packet after NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answers {
    Any,
    By(IpAddr),
    NotBy(IpAddr),
}

impl Answers {
    fn address(self) -> Option<IpAddr> {
        match self {
            Self::Any => None,
            Self::By(address) | Self::NotBy(address) => Some(address),
        }
    }
}

/// A netlink socket for the conntrack entries of one network namespace.
pub struct Conntrack {
    socket: Socket,
}

impl FlowFilter {
    pub fn to_port(family: IpFamily, transport: Transport, port: u16) -> Self {
        Self { family, transport, port, address: None, answers: Answers::Any }
    }

    /// Selects only connections whose first packet has this destination address.
    pub fn at(self, address: IpAddr) -> Self {
        Self { address: Some(address), ..self }
    }

    /// Selects only connections with replies from this address.
    pub fn answered_by(self, address: IpAddr) -> Self {
        Self { answers: Answers::By(address), ..self }
    }

    /// Selects only connections with replies from another address than this one.
    pub fn not_answered_by(self, address: IpAddr) -> Self {
        Self { answers: Answers::NotBy(address), ..self }
    }

    /// Whether all addresses are of the filter's family. If not, no connection matches the filter, and the kernel would refuse
    /// it.
    fn has_one_family(self) -> bool {
        let addresses = self.address.into_iter().chain(self.answers.address());
        addresses.into_iter().all(|address| self.family.has(address))
    }

    /// Whether the kernel can evaluate the whole filter. The kernel inverts conditions on IPv6 addresses (up to 6.18 at least,
    /// `ctnetlink_filter_match_tuple`), so these conditions are not sent, and this module evaluates them. The kernel has no
    /// condition that an address differs.
    fn is_exact(self) -> bool {
        !matches!(self.answers, Answers::NotBy(_))
            && (self.family == IpFamily::V4
                || self.address.is_none() && self.answers.address().is_none())
    }

    /// Writes what the kernel can evaluate of the filter. Kernels before 5.8 ignore it.
    fn write(self, attrs: &mut Attrs) {
        let v4 = |address: Option<IpAddr>| address.filter(IpAddr::is_ipv4);
        let by = match self.answers {
            Answers::By(address) => Some(address),
            Answers::Any | Answers::NotBy(_) => None,
        };
        let (address, answered_by) = (v4(self.address), v4(by));
        attrs.nested(CTA_TUPLE_ORIG, |tuple| {
            if let Some(address) = address {
                tuple.nested(CTA_TUPLE_IP, |ip| ip.ip(CTA_IP_V4_DST, address));
            }
            tuple.nested(CTA_TUPLE_PROTO, |proto| {
                proto.u8(CTA_PROTO_NUM, self.transport.number());
                proto.bytes(CTA_PROTO_DST_PORT, &self.port.to_be_bytes());
            });
        });
        if let Some(address) = answered_by {
            attrs.nested(CTA_TUPLE_REPLY, |tuple| {
                tuple.nested(CTA_TUPLE_IP, |ip| ip.ip(CTA_IP_V4_SRC, address));
            });
        }
        attrs.nested(CTA_FILTER, |filter| {
            let address = address.map_or(0, |_| CTA_FILTER_F_CTA_IP_DST);
            let ports = CTA_FILTER_F_CTA_PROTO_NUM | CTA_FILTER_F_CTA_PROTO_DST_PORT;
            filter.u32(CTA_FILTER_ORIG_FLAGS, address | ports);
            if answered_by.is_some() {
                filter.u32(CTA_FILTER_REPLY_FLAGS, CTA_FILTER_F_CTA_IP_SRC);
            }
        });
    }
}

/// The filters of one family, sorted, for a search for each connection: the senders of packets determine the number of
/// connections, and a container can have 65,536 ports on each address of the host.
fn of_family(family: IpFamily, filters: &[FlowFilter]) -> BTreeSet<FlowFilter> {
    let is_of_family = |filter: &&FlowFilter| filter.has_one_family() && filter.family == family;
    filters.iter().filter(is_of_family).copied().collect()
}

/// Whether a filter selects the connection, also for kernels that ignore filters. Looks up each filter that can select it.
fn selects(filters: &BTreeSet<FlowFilter>, family: IpFamily, flow: &Flow<'_>) -> bool {
    let (to, from) = (flow.original, flow.reply);
    let (Some(transport), Some(port)) = (to.transport(), to.port()) else { return false };
    let source = from.source();
    [None, to.destination()].into_iter().any(|address| {
        let first = FlowFilter { address, ..FlowFilter::to_port(family, transport, port) };
        let mut same = filters
            .range(first..)
            .take_while(|filter| first == FlowFilter { answers: Answers::Any, ..**filter });
        same.any(|filter| match filter.answers {
            Answers::Any => true,
            Answers::By(address) => source == Some(address),
            Answers::NotBy(address) => source != Some(address),
        })
    })
}

impl Conntrack {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> Result<Self, netlink::Error> {
        Ok(Self { socket: Socket::open(NlFamily::Netfilter)? })
    }

    /// Deletes the connections that one of the filters selects. No such connection is no error.
    pub fn delete(&self, filters: &[FlowFilter]) -> Result<()> {
        for family in IpFamily::ALL {
            let filters = of_family(family, filters);
            // A dump takes about 20 ms even with few connections, so all filters of a family share one dump.
            let filter = match (filters.first(), filters.len()) {
                (None, _) => continue,
                // Kernels before 6.10 read the filter as the incomplete tuple of one connection, and return EINVAL.
                (Some(one), 1) if one.is_exact() && self.delete_at_once(*one).is_ok() => continue,
                (Some(one), 1) => Some(*one),
                _ => None,
            };
            self.delete_listed(family, filter, &|flow| selects(&filters, family, flow))?;
        }
        Ok(())
    }

    /// Deletes the connections from these addresses that have no reply yet and no translation. They can have begun while the rules
    /// for their translation were missing; then the kernel would never translate them.
    pub fn delete_unanswered(&self, sources: &BTreeSet<IpAddr>) -> Result<()> {
        for family in IpFamily::ALL {
            if sources.iter().any(|source| family.has(*source)) {
                self.delete_listed(family, None, &|flow| {
                    let source = flow.original.source();
                    !flow.has_reply
                        && !flow.is_translated()
                        && source.is_some_and(|source| sources.contains(&source))
                })?;
            }
        }
        Ok(())
    }

    /// Deletes the connections that the filter selects with one request, without listing them first.
    fn delete_at_once(&self, filter: FlowFilter) -> Result<(), netlink::Error> {
        let flags = NlmF::empty();
        let requests = Requests::one(IPCTNL_MSG_CT_DELETE, flags, CANNOT_DELETE, |attrs| {
            // The kernel evaluates the family only with version 1, for compatibility.
            attrs.raw(&[filter.family.number(), 1, 0, 0]);
            filter.write(attrs);
        });
        self.socket.commit(requests, |_| {})
    }

    /// Lists connections and deletes those for which `is_wanted` is true. A kernel that evaluates `filter` lists fewer.
    fn delete_listed(
        &self,
        family: IpFamily,
        filter: Option<FlowFilter>,
        is_wanted: &dyn Fn(&Flow<'_>) -> bool,
    ) -> Result<()> {
        let header = [family.number(), 0, 0, 0];
        let doing = "cannot list connections";
        let request = Requests::one(IPCTNL_MSG_CT_GET, NlmF::empty(), doing, |attrs| {
            attrs.raw(&header);
            if let Some(filter) = filter {
                filter.write(attrs);
            }
        });
        // The senders of packets determine the number of connections, so at most `FLOWS_AT_ONCE` of one list are kept and
        // deleted; then the rest is listed again.
        for _ in 0..LISTS_MAX {
            let mut found = Vec::new();
            let listed = self.socket.dump_each(&request, &mut |message| match message {
                None => found.clear(),
                Some(_) if found.len() == FLOWS_AT_ONCE => {}
                Some(message) => {
                    found.extend(Flow::read(message).filter(is_wanted).map(|_| message.to_vec()));
                }
            });
            listed.map_err(explained)?;
            self.delete_each(header, &found)?;
            if found.len() < FLOWS_AT_ONCE {
                return Ok(());
            }
        }
        let hint = "new connections arrive faster than they are deleted";
        Err(netlink::Error::new(CANNOT_DELETE.into(), libc::EBUSY, Some(hint.into())).into())
    }

    /// Deletes the connections in these messages of the kernel.
    fn delete_each(&self, header: [u8; 4], messages: &[Vec<u8>]) -> Result<()> {
        for part in messages.chunks(REQUESTS_AT_ONCE) {
            let mut requests = Requests::default();
            for flow in part.iter().filter_map(|message| Flow::read(message)) {
                requests.push(IPCTNL_MSG_CT_DELETE, NlmF::empty(), CANNOT_DELETE.into(), |attrs| {
                    attrs.raw(&header);
                    flow.write(attrs);
                });
                requests.tolerate(libc::ENOENT);
            }
            self.socket.commit(requests, |_| {})?;
        }
        Ok(())
    }
}

/// Adds the missing kernel option to an error: nfnetlink returns EINVAL for an unknown subsystem.
fn explained(error: netlink::Error) -> netlink::Error {
    let lacks = error.hint.is_none() && error.errno == libc::EINVAL;
    if lacks { error.with_hint("the kernel lacks CONFIG_NF_CT_NETLINK") } else { error }
}

/// The attributes of a conntrack entry that this module reads.
struct Flow<'a> {
    original: Tuple<'a>,
    reply: Tuple<'a>,
    has_reply: bool,
    id: &'a [u8],
    zone: Option<&'a [u8]>,
}

impl<'a> Flow<'a> {
    fn read(message: &'a [u8]) -> Option<Self> {
        let list = message.get(HEADER_BYTES..)?;
        Some(Self {
            original: Tuple(attribute(list, CTA_TUPLE_ORIG)?),
            reply: Tuple(attribute(list, CTA_TUPLE_REPLY)?),
            has_reply: attribute(list, CTA_STATUS)
                .and_then(|status| fixed(status, 0))
                .is_some_and(|status| u32::from_be_bytes(status) & IPS_SEEN_REPLY != 0),
            id: attribute(list, CTA_ID)?,
            zone: attribute(list, CTA_ZONE),
        })
    }

    /// Whether the addresses of the replies are others than those of the connection.
    fn is_translated(&self) -> bool {
        let (to, from) = (self.original, self.reply);
        (to.source(), to.destination()) != (from.destination(), from.source())
    }

    /// Writes the request that deletes the connection. The id excludes a newer connection with the same addresses.
    fn write(&self, attrs: &mut Attrs) {
        attrs.nested(CTA_TUPLE_ORIG, |tuple| tuple.raw(self.original.0));
        attrs.bytes(CTA_ID, self.id);
        if let Some(zone) = self.zone {
            attrs.bytes(CTA_ZONE, zone);
        }
    }
}

/// A tuple of a conntrack entry: addresses, protocol and port of the packets in one direction.
#[derive(Clone, Copy)]
struct Tuple<'a>(&'a [u8]);

impl<'a> Tuple<'a> {
    fn transport(self) -> Option<Transport> {
        Transport::of(u8_of(self.proto(CTA_PROTO_NUM)?)?)
    }

    fn port(self) -> Option<u16> {
        fixed(self.proto(CTA_PROTO_DST_PORT)?, 0).map(u16::from_be_bytes)
    }

    fn source(self) -> Option<IpAddr> {
        self.address(CTA_IP_V4_SRC, CTA_IP_V6_SRC)
    }

    fn destination(self) -> Option<IpAddr> {
        self.address(CTA_IP_V4_DST, CTA_IP_V6_DST)
    }

    fn proto(self, kind: u16) -> Option<&'a [u8]> {
        attribute(attribute(self.0, CTA_TUPLE_PROTO)?, kind)
    }

    fn address(self, v4: u16, v6: u16) -> Option<IpAddr> {
        let ip = attribute(self.0, CTA_TUPLE_IP)?;
        match attribute(ip, v4) {
            Some(v4) => ip_of(AF_INET, v4),
            None => ip_of(AF_INET6, attribute(ip, v6)?),
        }
    }
}

const CANNOT_DELETE: &str = "cannot delete connections";

/// The number of connections of one list that are kept in memory, with a few hundred bytes each.
const FLOWS_AT_ONCE: usize = 16 << 10;
/// The number of lists in one deletion: enough to delete four million connections.
const LISTS_MAX: u32 = 256;

/// The size of `struct nfgenmsg` (linux/netfilter/nfnetlink.h).
const HEADER_BYTES: usize = 4;

/// Source: linux/netfilter/nfnetlink_conntrack.h. Ports, addresses and CTA_STATUS are in network byte order, the
/// flags of a filter are not.
const IPCTNL_MSG_CT_GET: u16 = 0x101;
const IPCTNL_MSG_CT_DELETE: u16 = 0x102;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;

/// A flag in CTA_STATUS (linux/netfilter/nf_conntrack_common.h).
const IPS_SEEN_REPLY: u32 = 1 << 1;

/// Flags in a filter: the parts of a tuple that the kernel compares. Source: net/netfilter/nf_internals.h, `enum
/// ctattr_filter`.
const CTA_FILTER_F_CTA_IP_SRC: u32 = 1 << 0;
const CTA_FILTER_F_CTA_IP_DST: u32 = 1 << 1;
const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
const CTA_FILTER_F_CTA_PROTO_DST_PORT: u32 = 1 << 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::rows;

    fn dns() -> FlowFilter {
        FlowFilter::to_port(IpFamily::V4, Transport::Udp, 53)
    }

    fn written(flows: FlowFilter) -> String {
        let mut attrs = Attrs::default();
        flows.write(&mut attrs);
        rows(attrs.as_slice())
    }

    #[test]
    fn a_filter_has_flags_for_its_conditions() {
        assert_eq!(
            written(dns()),
            "18000180 14000280 05000100 11000000 06000300 00350000 0c001980 08000100 28000000"
        );
        let narrow = dns().at([192, 0, 2, 1].into()).answered_by([10, 1, 0, 5].into());
        assert_eq!(
            written(narrow),
            "24000180 0c000180 08000200 c0000201 14000280 05000100 11000000 06000300 00350000 \
             10000280 0c000180 08000100 0a010005 14001980 08000100 2a000000 08000200 01000000"
        );
    }

    /// The entry of a packet from 192.0.2.9 to 192.0.2.1:53, which was translated to 10.1.0.5.
    fn message(reply: &[u8]) -> Vec<u8> {
        let tuple = |tuple: &mut Attrs, source: &[u8], destination: &[u8], port: u16| {
            tuple.nested(CTA_TUPLE_IP, |ip| {
                ip.bytes(CTA_IP_V4_SRC, source);
                ip.bytes(CTA_IP_V4_DST, destination);
            });
            tuple.nested(CTA_TUPLE_PROTO, |proto| {
                proto.u8(CTA_PROTO_NUM, 17);
                proto.bytes(CTA_PROTO_DST_PORT, &port.to_be_bytes());
            });
        };
        let mut attrs = Attrs::default();
        attrs.raw(&[2, 0, 0, 0]);
        attrs.nested(CTA_TUPLE_ORIG, |to| tuple(to, &[192, 0, 2, 9], &[192, 0, 2, 1], 53));
        attrs.nested(CTA_TUPLE_REPLY, |from| tuple(from, reply, &[192, 0, 2, 9], 4000));
        attrs.bytes(CTA_ID, &[0, 0, 0, 7]);
        attrs.as_slice().to_vec()
    }

    #[test]
    fn old_kernels_connections_are_filtered_here() {
        let message = message(&[10, 1, 0, 5]);
        let flow = Flow::read(&message).unwrap();
        let other = FlowFilter::to_port(IpFamily::V4, Transport::Udp, 54);
        for (flows, expected) in [
            (dns(), true),
            (dns().at([192, 0, 2, 1].into()), true),
            (dns().answered_by([10, 1, 0, 5].into()), true),
            (dns().at([192, 0, 2, 2].into()), false),
            (dns().answered_by([192, 0, 2, 1].into()), false),
            (dns().not_answered_by([192, 0, 2, 1].into()), true),
            (dns().not_answered_by([10, 1, 0, 5].into()), false),
            (FlowFilter::to_port(IpFamily::V4, Transport::Tcp, 53), false),
            (other, false),
        ] {
            assert_eq!(
                selects(&of_family(IpFamily::V4, &[flows]), IpFamily::V4, &flow),
                expected,
                "{flows:?}"
            );
        }
    }

    #[test]
    fn a_connection_is_looked_up_among_many_filters() {
        let message = message(&[10, 1, 0, 5]);
        let flow = Flow::read(&message).unwrap();
        let others = |port: u16| {
            let to_port = FlowFilter::to_port(IpFamily::V4, Transport::Udp, port);
            (1..14).map(move |last| to_port.at([192, 0, 2, last + 1].into()))
        };
        let many: Vec<FlowFilter> = (1..=10_000).rev().flat_map(others).collect();
        assert!(!selects(&of_family(IpFamily::V4, &many), IpFamily::V4, &flow));
        for one in [dns(), dns().at([192, 0, 2, 1].into()), dns().answered_by([10, 1, 0, 5].into())]
        {
            let all = of_family(IpFamily::V4, &[&many[..], &[one]].concat());
            // Compared one by one, these are five billion comparisons.
            assert!((0..40_000).all(|_| selects(&all, IpFamily::V4, &flow)), "{one:?}");
        }
    }

    #[test]
    fn truncated_messages_have_no_connection() {
        let message = message(&[10, 1, 0, 5]);
        for end in 0..message.len() {
            assert!(Flow::read(&message[..end]).is_none(), "{end}");
        }
        for at in 0..message.len() {
            let mut message = message.clone();
            message[at] = 0xff;
            let filters = of_family(IpFamily::V4, &[dns()]);
            Flow::read(&message).map(|flow| selects(&filters, IpFamily::V4, &flow));
        }
    }

    #[test]
    fn no_connection_has_addresses_of_two_families() {
        assert!(dns().has_one_family() && dns().at([1, 2, 3, 4].into()).has_one_family());
        assert!(!dns().at([0_u16; 8].into()).has_one_family());
        assert!(
            !FlowFilter::to_port(IpFamily::V6, Transport::Udp, 1)
                .answered_by([1; 4].into())
                .has_one_family()
        );
    }
}
