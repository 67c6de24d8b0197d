//! Kernel constants in the width of the messages. `libc` has some of them in other widths.

pub(super) use nix::libc::{
    IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_ALT_IFNAME, IFLA_EXT_MASK, IFLA_GROUP, IFLA_IFALIAS,
    IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND,
    IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_NET_NS_FD,
    IFLA_NUM_TX_QUEUES, IFLA_OPERSTATE, IFLA_PROP_LIST, IFLA_TXQLEN, IFLA_XDP,
};

/// An attribute in IFLA_XDP: how a program is attached, 0 if there is none (linux/if_link.h).
pub(super) const IFLA_XDP_ATTACHED: u16 = 2;

/// Requests for alternative names of a link (linux/rtnetlink.h).
pub(super) const RTM_NEWLINKPROP: u16 = 108;
pub(super) const RTM_DELLINKPROP: u16 = 109;

/// Address families other than those of IP (linux/socket.h).
pub(super) const AF_UNSPEC: u8 = 0;
pub(super) const AF_BRIDGE: u8 = 7;

/// The value of IFLA_OPERSTATE if the link can carry traffic (linux/if.h).
pub(super) const IF_OPER_UP: u8 = 6;

/// In IFLA_AF_SPEC of AF_INET: the parameters `net.ipv4.conf.LINK.*`, one attribute for each in a request, an array of 32-bit
/// numbers from the first on in an answer (linux/ip.h).
pub(super) const IFLA_INET_CONF: u16 = 1;
pub(super) const IPV4_DEVCONF_FORWARDING: u16 = 1;
pub(super) const IPV4_DEVCONF_ARP_NOTIFY: u16 = 22;
pub(super) const IPV4_DEVCONF_ROUTE_LOCALNET: usize = 26;
/// In IFLA_AF_SPEC of AF_INET6: the parameters `net.ipv6.conf.LINK.*`, an array of 32-bit numbers, and indexes in it
/// (linux/ipv6.h).
pub(super) const IFLA_INET6_CONF: u16 = 2;
pub(super) const DEVCONF_ACCEPT_RA: usize = 3;
pub(super) const DEVCONF_DISABLE_IPV6: usize = 26;
/// Attributes in IFLA_INFO_SLAVE_DATA of a port of a bridge.
pub(super) const IFLA_BRPORT_STATE: u16 = 1;
pub(super) const IFLA_BRPORT_MODE: u16 = 4;
pub(super) const IFLA_BRPORT_ISOLATED: u16 = 33;
/// An attribute in IFLA_INFO_DATA of a bridge.
pub(super) const IFLA_BR_VLAN_PROTOCOL: u16 = 8;
/// An attribute in IFLA_AF_SPEC of a bridge's port, and the flags in this attribute (linux/if_bridge.h).
pub(super) const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
pub(super) const BRIDGE_VLAN_INFO_PVID: u16 = 0x2;
pub(super) const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 0x4;
pub(super) const BRIDGE_VLAN_INFO_RANGE_BEGIN: u16 = 0x8;
pub(super) const BRIDGE_VLAN_INFO_RANGE_END: u16 = 0x10;
/// Bits of IFLA_EXT_MASK. The first adds the VLANs of bridges, as ranges; the second omits the counters of IPv6, a fifth of the
/// answer (linux/rtnetlink.h).
pub(super) const RTEXT_FILTER_BRVLAN_COMPRESSED: u32 = 0x4;
pub(super) const RTEXT_FILTER_SKIP_STATS: u32 = 0x8;

/// The main routing table (linux/rtnetlink.h).
pub const RT_TABLE_MAIN: u32 = 254;
/// A flag of a route: the gateway need not be in a prefix of the link (linux/rtnetlink.h).
pub(super) const RTNH_F_ONLINK: u32 = 0x4;
/// Attributes of a policy rule, and the action that selects a table (linux/fib_rules.h).
pub(super) const FRA_SRC: u16 = 2;
pub(super) const FRA_IIFNAME: u16 = 3;
pub(super) const FRA_PRIORITY: u16 = 6;
pub(super) const FRA_SUPPRESS_IFGROUP: u16 = 13;
pub(super) const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub(super) const FRA_TABLE: u16 = 15;
pub(super) const FRA_L3MDEV: u16 = 19;
pub(super) const FRA_PROTOCOL: u16 = 21;
pub(super) const FR_ACT_TO_TBL: u8 = 1;
/// Two attributes in RTA_METRICS, and an attribute of a route that `libc` lacks for musl (linux/rtnetlink.h).
pub(super) const RTAX_MTU: u16 = 2;
pub(super) const RTAX_ADVMSS: u16 = 8;
pub(super) const RTA_VIA: u16 = 18;
/// A flag of RTM_GETROUTE: return the entry of the table, not the result of the look-up (linux/rtnetlink.h, Linux 4.13).
pub(super) const RTM_F_FIB_MATCH: u32 = 0x2000;
