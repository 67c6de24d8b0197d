//! The filter table of iptables-legacy. The kernel evaluates it in addition to nf_tables. This module reads it only.

use std::fs;
use std::mem::offset_of;
use std::net::IpAddr;

use ipnet::IpNet;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::kernel::netlink::{fixed, text};
use crate::kernel::sys;

/// A rule of iptables-legacy that accepts packets, or leads to another chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The names of the links that packets arrive and leave by. Empty: every link.
    pub links: [String; 2],
    /// The source and the destination.
    pub nets: [IpNet; 2],
}

/// Whether the FORWARD of iptables-legacy (or of ip6tables-legacy) has the policy DROP.
///
/// False without the rights or the module. The table is read only if it exists, because the kernel would create it.
pub fn drops_forwarded(is_v6: bool) -> bool {
    let table = if is_in_use(is_v6) { Filter::read(is_v6) } else { None };
    table.and_then(|table| table.policy()) == Some(VERDICT_DROP)
}

/// The same; if it drops, the rules that accept packets, except those of INPUT and OUTPUT, and those with addresses that are
/// negated or have no prefix. A rule can have further conditions. `None` if FORWARD does not drop, or has a rule that accepts
/// every packet.
pub fn accepted_if_dropped(is_v6: bool) -> Option<Vec<Accepted>> {
    let table = Filter::read(is_v6).filter(|_| is_in_use(is_v6))?;
    if table.policy() != Some(VERDICT_DROP) {
        return None;
    }
    table.accepted()
}

fn is_in_use(is_v6: bool) -> bool {
    let file = if is_v6 { "ip6_tables_names" } else { "ip_tables_names" };
    // The file is readable by root only, and missing without the module.
    let names = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    names.lines().any(|name| name == TABLE)
}

/// The table, and the offsets of its chains.
struct Filter {
    /// `struct ipt_getinfo`
    info: [u8; INFO_BYTES],
    /// `struct ipt_get_entries`
    entries: Vec<u8>,
    is_v6: bool,
}

impl Filter {
    /// Source: linux/netfilter_ipv4/ip_tables.h, `struct ipt_getinfo`, `struct ipt_get_entries`, `struct ipt_entry`, and the
    /// equivalents for IPv6.
    fn read(is_v6: bool) -> Option<Self> {
        let (family, level) = if is_v6 {
            (AddressFamily::Inet6, libc::SOL_IPV6)
        } else {
            (AddressFamily::Inet, libc::SOL_IP)
        };
        let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
        let ask = |option, answer: &mut [u8]| {
            answer[..TABLE.len()].copy_from_slice(TABLE.as_bytes());
            sys::socket_option(&socket, level, option, answer).ok()
        };
        let mut info = [0; INFO_BYTES];
        ask(SO_GET_INFO, &mut info)?;
        let size: [u8; 4] = fixed(&info, SIZE_AT)?;
        let mut entries = vec![0; ENTRIES_AT + u32::from_ne_bytes(size) as usize];
        entries[ENTRIES_SIZE_AT..ENTRIES_SIZE_AT + 4].copy_from_slice(&size);
        ask(SO_GET_ENTRIES, &mut entries)?;
        Some(Self { info, entries, is_v6 })
    }

    /// The offset in `info` of an offset of a hook.
    fn offset(&self, at: usize) -> Option<usize> {
        fixed(&self.info, at).map(|bytes| u32::from_ne_bytes(bytes) as usize)
    }

    fn entry(&self, at: usize) -> Option<&[u8]> {
        self.entries.get(ENTRIES_AT.checked_add(at)?..)
    }

    /// The offset of `target_offset` in an entry. `next_offset` follows.
    fn target_offset_at(&self) -> usize {
        if self.is_v6 { 140 } else { 88 }
    }

    /// The verdict of an entry with the standard target: a chain's offset, or below 0 a verdict.
    fn verdict(&self, entry: &[u8]) -> Option<i32> {
        let target_at = usize::from(u16::from_ne_bytes(fixed(entry, self.target_offset_at())?));
        // The standard target has an empty name.
        let is_standard = entry.get(target_at + 2) == Some(&0);
        let verdict = fixed(entry, target_at + TARGET_BYTES).map(i32::from_ne_bytes);
        verdict.filter(|_| is_standard)
    }

    /// The policy of FORWARD: the verdict of its last rule.
    fn policy(&self) -> Option<i32> {
        self.verdict(self.entry(self.offset(UNDERFLOW_OF_FORWARD_AT)?)?)
    }

    /// See `accepted_if_dropped`. The chains of users follow OUTPUT.
    fn accepted(&self) -> Option<Vec<Accepted>> {
        let end = self.entries.len().checked_sub(ENTRIES_AT)?;
        let forward = [
            self.offset(ENTRY_OF_FORWARD_AT)?..self.offset(UNDERFLOW_OF_FORWARD_AT)?,
            self.offset(UNDERFLOW_OF_FORWARD_AT + 4)?..end,
        ];
        let mut accepted = Vec::new();
        for (index, mut range) in forward.into_iter().enumerate() {
            while range.start < range.end {
                let entry = self.entry(range.start)?;
                let next = u16::from_ne_bytes(fixed(entry, self.target_offset_at() + 2)?);
                let target_at = u16::from_ne_bytes(fixed(entry, self.target_offset_at())?);
                let verdict = self.verdict(entry);
                if verdict.is_some_and(|verdict| verdict >= 0 || verdict == VERDICT_ACCEPT)
                    && let Some(rule) = self.accepted_by(entry)
                {
                    let is_all = rule.links == [const { String::new() }; 2]
                        && rule.nets.iter().all(|net| net.prefix_len() == 0)
                        && usize::from(target_at) < self.target_offset_at() + MATCHES_AT_LEAST;
                    if is_all && index == 0 && verdict == Some(VERDICT_ACCEPT) {
                        return None;
                    }
                    accepted.extend((!is_all).then_some(rule));
                }
                range.start += usize::from(next).max(1);
            }
        }
        Some(accepted)
    }

    /// The addresses and links of an entry: `struct ipt_ip` and `struct ip6t_ip6` begin with source, destination and their
    /// masks, and the names of links.
    fn accepted_by(&self, entry: &[u8]) -> Option<Accepted> {
        let bytes = if self.is_v6 { 16 } else { 4 };
        let address = |index: usize| -> Option<IpAddr> {
            let at = index * bytes;
            Some(match self.is_v6 {
                true => fixed::<16>(entry, at)?.into(),
                false => fixed::<4>(entry, at)?.into(),
            })
        };
        let net = |index| {
            let net = IpNet::with_netmask(address(index)?, address(index + 2)?).ok();
            net.map(|net| net.trunc())
        };
        let link = |index: usize| -> Option<String> {
            Some(text(&fixed::<16>(entry, 4 * bytes + index * 16)?).into_owned())
        };
        let inverted_at = if self.is_v6 { 132 } else { 83 };
        let is_inverted = *entry.get(inverted_at)? != 0;
        let rule = Accepted { links: [link(0)?, link(1)?], nets: [net(0)?, net(1)?] };
        (!is_inverted).then_some(rule)
    }
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
const ENTRY_OF_FORWARD_AT: usize = offset_of!(Info, hook_entry) + NF_INET_FORWARD * 4;
const SIZE_AT: usize = offset_of!(Info, size);
const ENTRIES_SIZE_AT: usize = offset_of!(Entries, size);
const ENTRIES_AT: usize = offset_of!(Entries, entries);
/// Source: linux/netfilter.h, `enum nf_inet_hooks`.
const NF_INET_FORWARD: usize = 2;
/// From `target_offset` to a target with a match before it, at least: 24 or 28 bytes of `struct ipt_entry`, and 32 of
/// `struct xt_entry_match`.
const MATCHES_AT_LEAST: usize = 24 + 32;
/// The size of `struct xt_entry_target`. The verdict follows.
const TARGET_BYTES: usize = 32;

/// `-NF_DROP - 1`, the encoding of DROP in rules.
const VERDICT_DROP: i32 = -1;
/// `-NF_ACCEPT - 1`
const VERDICT_ACCEPT: i32 = -2;

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
