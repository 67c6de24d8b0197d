//! Events of everything on a host that carries the packets of containers, in the namespace of the calling thread.

use nix::libc::{self, sock_filter};
use nix::sys::socket::SockProtocol;

use super::socket::{Error, Events, found};

/// Reports changes of links, addresses, routes, queueing disciplines and forwarding from now on.
///
/// A change of the parameters of a queueing discipline is not reported: its message, RTM_NEWQDISC, is also the answer of the
/// kernel to each process that reads one, and so to each CHECK of `bandwidth`. The other changes of a discipline have a
/// message RTM_DELQDISC.
pub(crate) fn of_links() -> Result<Events, Error> {
    Events::open(SockProtocol::NetlinkRoute, &GROUPS, &by_type(libc::RTM_NEWQDISC, DROP, ACCEPT))
}

/// Reports each transaction of nf_tables from now on. `None` if the kernel lacks netlink for netfilter.
///
/// The group also has messages about the objects of a transaction: 10,000 elements would overflow the queue.
pub(crate) fn of_rules() -> Result<Option<Events>, Error> {
    let filter = by_type(NEW_GENERATION, ACCEPT, DROP);
    let events = Events::open(SockProtocol::NetlinkNetFilter, &[NFNLGRP_NFTABLES], &filter);
    found(events, |error| error.errno == libc::EPROTONOSUPPORT)
}

const GROUPS: [u32; 8] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_TC,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV4_NETCONF,
    libc::RTNLGRP_IPV6_NETCONF,
];
/// Source: linux/netfilter/nfnetlink.h, `enum nfnetlink_groups`.
const NFNLGRP_NFTABLES: u32 = 7;
/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN`.
const NEW_GENERATION: u16 = 0x0a0f;

const ACCEPT: u32 = u32::MAX;
const DROP: u32 = 0;

/// A classic BPF program for the type of the first message in a datagram.
fn by_type(kind: u16, equal: u32, other: u32) -> [sock_filter; 4] {
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    // The program loads numbers in network byte order, and the type is in host byte order.
    let kind = u32::from(kind.to_be());
    [
        instruction(0x28, 0, 0, 4),     // ldh [4]: nlmsg_type
        instruction(0x15, 0, 1, kind),  // jeq
        instruction(0x06, 0, 0, equal), // ret
        instruction(0x06, 0, 0, other), // ret
    ]
}
