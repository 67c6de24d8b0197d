//! Constants of the nf_tables protocol that the crates lack.
//!
//! Source: linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h. All attributes are in network byte order,
//! except values of registers.

use nix::libc::c_int;

pub(super) const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
pub(super) const NFNL_MSG_BATCH_END: u16 = 0x11;
pub(super) const NFNL_BATCH_GENID: u16 = 1;

pub(super) const NFTA_LIST_ELEM: u16 = 1;

pub(super) const NFTA_GEN_ID: u16 = 1;

/// The name of the table, in each message about a table or an object of a table: NFTA_CHAIN_TABLE, NFTA_RULE_TABLE,
/// NFTA_SET_TABLE and NFTA_SET_ELEM_LIST_TABLE have the same number.
pub(super) const NFTA_TABLE_NAME: u16 = 1;
pub(super) const NFTA_TABLE_FLAGS: u16 = 2;
pub(super) const NFT_TABLE_F_DORMANT: c_int = 1;
pub(super) const NFT_TABLE_F_OWNER: c_int = 2;

pub(super) const NFTA_CHAIN_HANDLE: u16 = 2;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_CHAIN_HOOK: u16 = 4;
pub(super) const NFTA_CHAIN_POLICY: u16 = 5;
pub(super) const NFTA_CHAIN_USE: u16 = 6;
pub(super) const NFTA_CHAIN_TYPE: u16 = 7;
pub(super) const NFTA_CHAIN_USERDATA: u16 = 12;

pub(super) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(super) const NFTA_HOOK_PRIORITY: u16 = 2;
pub(super) const NFTA_HOOK_DEV: u16 = 3;
pub(super) const NFTA_HOOK_DEVS: u16 = 4;
pub(super) const NFTA_DEVICE_NAME: u16 = 1;

pub(super) const NFT_META_IIFKIND: c_int = 26;
pub(super) const NFT_META_OIFKIND: c_int = 27;

pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_RULE_HANDLE: u16 = 3;
pub(super) const NFTA_RULE_EXPRESSIONS: u16 = 4;
/// The protocol of the matches of iptables in the rule.
pub(super) const NFTA_RULE_COMPAT: u16 = 5;
pub(super) const NFTA_RULE_USERDATA: u16 = 7;
pub(super) const NFTA_RULE_COMPAT_PROTO: u16 = 1;
pub(super) const NFTA_RULE_COMPAT_FLAGS: u16 = 2;

pub(super) const NFTA_SET_NAME: u16 = 2;
pub(super) const NFTA_SET_FLAGS: u16 = 3;
pub(super) const NFTA_SET_KEY_TYPE: u16 = 4;
pub(super) const NFTA_SET_KEY_LEN: u16 = 5;
pub(super) const NFTA_SET_DATA_TYPE: u16 = 6;
pub(super) const NFTA_SET_DATA_LEN: u16 = 7;
pub(super) const NFTA_SET_ID: u16 = 10;
pub(super) const NFTA_SET_USERDATA: u16 = 13;

pub(super) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(super) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(super) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(super) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(super) const NFTA_SET_ELEM_USERDATA: u16 = 6;

pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
pub(super) const NFTA_VERDICT_CODE: u16 = 1;
pub(super) const NFTA_VERDICT_CHAIN: u16 = 2;

pub(super) const NFTA_EXPR_NAME: u16 = 1;
pub(super) const NFTA_EXPR_DATA: u16 = 2;

pub(super) const NFTA_IMMEDIATE_DREG: u16 = 1;
pub(super) const NFTA_IMMEDIATE_DATA: u16 = 2;

pub(super) const NFTA_BITWISE_SREG: u16 = 1;
pub(super) const NFTA_BITWISE_DREG: u16 = 2;
pub(super) const NFTA_BITWISE_LEN: u16 = 3;
pub(super) const NFTA_BITWISE_MASK: u16 = 4;
pub(super) const NFTA_BITWISE_XOR: u16 = 5;
/// The operation of a bitwise expression; absent before Linux 5.6. 0 is "mask and xor"; other values are other operations, such
/// as shifts.
pub(super) const NFTA_BITWISE_OP: u16 = 6;

pub(super) const NFTA_BYTEORDER_SREG: u16 = 1;
pub(super) const NFTA_BYTEORDER_DREG: u16 = 2;
pub(super) const NFTA_BYTEORDER_OP: u16 = 3;
pub(super) const NFTA_BYTEORDER_LEN: u16 = 4;
pub(super) const NFTA_BYTEORDER_SIZE: u16 = 5;

pub(super) const NFTA_CMP_SREG: u16 = 1;
pub(super) const NFTA_CMP_OP: u16 = 2;
pub(super) const NFTA_CMP_DATA: u16 = 3;
pub(super) const NFTA_RANGE_SREG: u16 = 1;
pub(super) const NFTA_RANGE_OP: u16 = 2;
pub(super) const NFTA_RANGE_FROM_DATA: u16 = 3;
pub(super) const NFTA_RANGE_TO_DATA: u16 = 4;

pub(super) const NFTA_LOOKUP_SET: u16 = 1;
pub(super) const NFTA_LOOKUP_SREG: u16 = 2;
pub(super) const NFTA_LOOKUP_DREG: u16 = 3;
pub(super) const NFTA_LOOKUP_FLAGS: u16 = 5;

pub(super) const NFTA_PAYLOAD_DREG: u16 = 1;
pub(super) const NFTA_PAYLOAD_BASE: u16 = 2;
pub(super) const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub(super) const NFTA_PAYLOAD_LEN: u16 = 4;

pub(super) const NFTA_META_DREG: u16 = 1;
pub(super) const NFTA_META_KEY: u16 = 2;
pub(super) const NFTA_META_SREG: u16 = 3;

pub(super) const NFTA_CT_DREG: u16 = 1;
pub(super) const NFTA_CT_KEY: u16 = 2;
pub(super) const NFTA_CT_DIRECTION: u16 = 3;
pub(super) const NFTA_LOG_GROUP: u16 = 1;
pub(super) const NFTA_CT_SREG: u16 = 4;
/// Source: linux/netfilter/nf_conntrack_tuple_common.h.
pub(super) const IP_CT_DIR_ORIGINAL: u8 = 0;

pub(super) const NFTA_FIB_DREG: u16 = 1;
pub(super) const NFTA_FIB_RESULT: u16 = 2;
pub(super) const NFTA_FIB_FLAGS: u16 = 3;
pub(super) const NFT_FIB_RESULT_OIF: c_int = 1;
pub(super) const NFT_FIB_RESULT_OIFNAME: c_int = 2;
pub(super) const NFT_FIB_RESULT_ADDRTYPE: c_int = 3;
pub(super) const NFTA_FIB_F_SADDR: c_int = 1;
pub(super) const NFTA_FIB_F_DADDR: c_int = 2;
pub(super) const NFTA_FIB_F_IIF: c_int = 8;
pub(super) const NFTA_FIB_F_PRESENT: c_int = 32;

pub(super) const NFTA_NAT_TYPE: u16 = 1;
pub(super) const NFTA_NAT_FAMILY: u16 = 2;
pub(super) const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
pub(super) const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
pub(super) const NFTA_NAT_FLAGS: u16 = 7;
pub(super) const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
pub(super) const NFTA_REDIR_FLAGS: u16 = 3;
/// Source: linux/netfilter/nf_nat.h.
pub(super) const NF_NAT_RANGE_PROTO_SPECIFIED: c_int = 2;

pub(super) const NFTA_REJECT_TYPE: u16 = 1;
pub(super) const NFTA_REJECT_ICMP_CODE: u16 = 2;
pub(super) const NFT_REJECT_ICMPX_ADMIN_PROHIBITED: u8 = 3;
/// Source: linux/icmp.h.
pub(super) const ICMP_PKT_FILTERED: u8 = 13;
/// Source: linux/icmpv6.h.
pub(super) const ICMPV6_ADM_PROHIBITED: u8 = 1;

/// Attributes of the expressions `match` and `target`, which contain extensions of iptables.
pub(super) const NFTA_TARGET_NAME: u16 = 1;
pub(super) const NFTA_TARGET_REV: u16 = 2;
pub(super) const NFTA_TARGET_INFO: u16 = 3;

/// Types by which nft prints values. The kernel does not use them. Source: nftables' include/datatype.h.
pub(super) const TYPE_IPADDR: c_int = 7;
pub(super) const TYPE_IP6ADDR: c_int = 8;
pub(super) const TYPE_ETHERADDR: c_int = 9;
pub(super) const TYPE_INET_PROTOCOL: c_int = 12;
pub(super) const TYPE_INET_SERVICE: c_int = 13;
pub(super) const TYPE_MARK: c_int = 19;
pub(super) const TYPE_IFNAME: c_int = 41;
/// The number of bits of each type in the type number of a concatenation.
pub(super) const TYPE_BITS: c_int = 6;

/// Attributes of NFT_MSG_TRACE, `enum nft_trace_attributes`, and the types of its events, `enum nft_trace_types`.
pub(super) const NFTA_OBJREF_IMM_TYPE: u16 = 1;
pub(super) const NFT_OBJECT_COUNTER: c_int = 1;
pub(super) const NFTA_TRACE_TABLE: u16 = 1;
pub(super) const NFTA_TRACE_CHAIN: u16 = 2;
pub(super) const NFTA_TRACE_RULE_HANDLE: u16 = 3;
pub(super) const NFTA_TRACE_TYPE: u16 = 4;
pub(super) const NFTA_TRACE_VERDICT: u16 = 5;
pub(super) const NFTA_TRACE_ID: u16 = 6;
pub(super) const NFTA_TRACE_NETWORK_HEADER: u16 = 8;
pub(super) const NFTA_TRACE_TRANSPORT_HEADER: u16 = 9;
pub(super) const NFTA_TRACE_IIF: u16 = 10;
pub(super) const NFTA_TRACE_OIF: u16 = 12;
pub(super) const NFTA_TRACE_POLICY: u16 = 16;
pub(super) const NFT_TRACETYPE_POLICY: c_int = 1;

/// User data, which the kernel keeps for nft: kind and length of a byte each, then the value.
///
/// Source: libnftnl's include/libnftnl/udata.h. The comments of tables, chains, rules and elements have the same kind.
pub(super) const NFTNL_UDATA_COMMENT: u8 = 0;
pub(super) const NFTNL_UDATA_SET_KEYBYTEORDER: u8 = 0;
pub(super) const NFTNL_UDATA_SET_DATABYTEORDER: u8 = 1;
/// Source: nftables' include/datatype.h.
pub(super) const BYTEORDER_HOST_ENDIAN: u32 = 1;
