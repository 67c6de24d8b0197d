//! Events of everything on a host that carries the packets of containers, in the namespace of the calling thread.

use nix::libc;
use nix::sys::socket::SockProtocol;

use super::error::Error;
use super::socket::{Events, filter_by_type, found};

/// Reports changes of links, addresses, routes, queueing disciplines and forwarding from now on.
///
/// A change of the parameters of a queueing discipline is not reported: its message, RTM_NEWQDISC, is also the answer of the
/// kernel to each process that reads one, and so to each CHECK of `bandwidth`. The other changes of a discipline have a
/// message RTM_DELQDISC.
pub(crate) fn of_links() -> Result<Events, Error> {
    let all_others = filter_by_type(&[libc::RTM_NEWQDISC], false);
    Events::open(SockProtocol::NetlinkRoute, &GROUPS, &all_others)
}

/// Reports each transaction of nf_tables from now on. `None` if the kernel lacks netlink for netfilter.
///
/// The group also has messages about the objects of a transaction: 10,000 elements would overflow the queue.
pub(crate) fn of_rules() -> Result<Option<Events>, Error> {
    let filter = filter_by_type(&[NEW_GENERATION], true);
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
