//! The filter table of iptables-legacy. The kernel evaluates it in addition to nf_tables. This module reads it only.

use std::fs;
use std::mem::offset_of;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::kernel::netlink::fixed;
use crate::kernel::sys;

/// Whether the FORWARD of iptables-legacy (or of ip6tables-legacy) has the policy DROP.
///
/// False without the rights or the module. The table is read only if it exists, because the kernel would create it.
pub fn drops_forwarded(is_v6: bool) -> bool {
    is_in_use(is_v6) && policy_verdict(is_v6) == Some(VERDICT_DROP)
}

fn is_in_use(is_v6: bool) -> bool {
    let file = if is_v6 { "ip6_tables_names" } else { "ip_tables_names" };
    // The file is readable by root only, and missing without the module.
    let names = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    names.lines().any(|name| name == TABLE)
}

/// Reads the policy of FORWARD: the verdict of its last rule.
///
/// Source: linux/netfilter_ipv4/ip_tables.h, `struct ipt_getinfo`, `struct ipt_get_entries`, `struct ipt_entry`, and the
/// equivalents for IPv6.
fn policy_verdict(is_v6: bool) -> Option<i32> {
    let (family, level, target_offset_at) = if is_v6 {
        (AddressFamily::Inet6, libc::SOL_IPV6, 140)
    } else {
        (AddressFamily::Inet, libc::SOL_IP, 88)
    };
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    let ask = |option, answer: &mut [u8]| {
        answer[..TABLE.len()].copy_from_slice(TABLE.as_bytes());
        sys::socket_option(&socket, level, option, answer).ok()
    };
    let mut info = [0; INFO_BYTES];
    ask(SO_GET_INFO, &mut info)?;
    let policy_at = u32::from_ne_bytes(fixed(&info, UNDERFLOW_OF_FORWARD_AT)?) as usize;
    let size: [u8; 4] = fixed(&info, SIZE_AT)?;

    let mut entries = vec![0; ENTRIES_AT + u32::from_ne_bytes(size) as usize];
    entries[ENTRIES_SIZE_AT..ENTRIES_SIZE_AT + 4].copy_from_slice(&size);
    ask(SO_GET_ENTRIES, &mut entries)?;
    let entry = entries.get(ENTRIES_AT.checked_add(policy_at)?..)?;
    let target_at = u16::from_ne_bytes(fixed(entry, target_offset_at)?);
    fixed(entry, usize::from(target_at) + TARGET_BYTES).map(i32::from_ne_bytes)
}

const TABLE: &str = "filter";

/// IPT_SO_GET_INFO and IPT_SO_GET_ENTRIES; IPv6 has the same numbers.
const SO_GET_INFO: i32 = 64;
const SO_GET_ENTRIES: i32 = 65;

/// `struct ipt_getinfo`: the hooks, the offsets of the rules and policies of five hooks, the number of rules, their size. All
/// fields have at most 4 bytes, so the layout is the same on every architecture.
#[repr(C)]
struct Info {
    name: [u8; NAME_BYTES],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

/// The offset of the rules in `struct ipt_get_entries`. Their counters are u64, with an alignment of 4 on i386 and of 8
/// elsewhere.
#[repr(C)]
struct Entries {
    name: [u8; NAME_BYTES],
    size: u32,
    entries: [u64; 0],
}

/// XT_TABLE_MAXNAMELEN (linux/netfilter/x_tables.h).
const NAME_BYTES: usize = 32;
const INFO_BYTES: usize = size_of::<Info>();
const UNDERFLOW_OF_FORWARD_AT: usize = offset_of!(Info, underflow) + NF_INET_FORWARD * 4;
const SIZE_AT: usize = offset_of!(Info, size);
const ENTRIES_SIZE_AT: usize = offset_of!(Entries, size);
const ENTRIES_AT: usize = offset_of!(Entries, entries);
/// Source: linux/netfilter.h, `enum nf_inet_hooks`.
const NF_INET_FORWARD: usize = 2;
/// The size of `struct xt_entry_target`. The verdict follows.
const TARGET_BYTES: usize = 32;

/// `-NF_DROP - 1`, the encoding of DROP in rules.
const VERDICT_DROP: i32 = -1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `offsetof` in C, with `-m32` for i386.
    #[test]
    fn structures_are_those_of_the_kernel() {
        let entries_at = if cfg!(target_arch = "x86") { 36 } else { 40 };
        assert_eq!((ENTRIES_SIZE_AT, ENTRIES_AT), (32, entries_at));
        assert_eq!((UNDERFLOW_OF_FORWARD_AT, SIZE_AT, INFO_BYTES), (64, 80, 84));
    }
}
