//! The tables of iptables-legacy. The kernel evaluates them in addition to nf_tables. This module reads whether they have rules,
//! and the policy of FORWARD.

use std::io::{self, ErrorKind};
use std::mem::offset_of;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::error::{Error, Result};
use crate::kernel::{file, sys};
use crate::netlink::{fixed, u16_at, u32_at};

/// Whether the chain FORWARD of iptables-legacy (or of ip6tables-legacy) has the policy DROP.
///
/// False without the permissions or the module. The table is read only if it exists, because the kernel would create it.
pub fn drops_forwarded(is_v6: bool) -> bool {
    let names = tables(is_v6).unwrap_or_default();
    let filter = names.into_iter().find(|name| name == FILTER);
    let filter = filter.and_then(|name| LegacyTable::read(&name, is_v6).ok());
    filter.and_then(|table| table.policy_of_forward()) == Some(VERDICT_DROP)
}

/// The tables that have rules, or drop forwarded packets by a policy.
pub fn tables_with_rules(is_v6: bool) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in tables(is_v6)? {
        let table = LegacyTable::read(&name, is_v6)?;
        let drops = || name == FILTER && table.policy_of_forward() == Some(VERDICT_DROP);
        if table.has_rules() == Some(true) || drops() {
            found.push(name);
        }
    }
    Ok(found)
}

/// The first table with a rule that has one of these matches or targets.
pub fn table_that_has(is_v6: bool, extensions: &[&str]) -> Result<Option<String>> {
    // The name of an extension ends with a zero. The length of the extension, of two bytes, is before it.
    let names: Vec<Vec<u8>> =
        extensions.iter().map(|name| [name.as_bytes(), &[0]].concat()).collect();
    let is_length = |bytes: &[u8]| {
        u16_at(bytes, 0).is_some_and(|length| (TARGET_BYTES..4096).contains(&usize::from(length)))
    };
    let has = |table: &LegacyTable, name: &[u8]| {
        let mut places = table.entries.windows(name.len() + 2);
        places.any(|bytes| bytes[2..] == *name && is_length(bytes))
    };
    for name in tables(is_v6)? {
        let table = LegacyTable::read(&name, is_v6)?;
        if names.iter().any(|name| has(&table, name)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The tables that exist.
fn tables(is_v6: bool) -> Result<Vec<String>> {
    let path = format!("/proc/thread-self/net/ip{}_tables_names", if is_v6 { "6" } else { "" });
    // The file is readable by root only, and missing without the module.
    match file::read_lossy(&path) {
        Ok(names) => Ok(names.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::internal(format_args!("cannot read {path}: {error}"))),
    }
}

/// A table, as the kernel returns it.
struct LegacyTable {
    /// `struct ipt_getinfo`, with the offsets of the built-in chains.
    info: [u8; INFO_BYTES],
    /// `struct ipt_get_entries`
    entries: Vec<u8>,
    is_v6: bool,
}

impl LegacyTable {
    /// Reads the table from the kernel. Source: linux/netfilter_ipv4/ip_tables.h, `struct ipt_getinfo`, `struct
    /// ipt_get_entries`, `struct ipt_entry`, and the equivalents for IPv6.
    fn read(name: &str, is_v6: bool) -> Result<Self> {
        let program = if is_v6 { "ip6tables-legacy" } else { "iptables-legacy" };
        Self::get(name, is_v6).map_err(|error| {
            Error::internal(format_args!("cannot read table {name} of {program}: {error}"))
        })
    }

    fn get(name: &str, is_v6: bool) -> io::Result<Self> {
        let (family, level) = if is_v6 {
            (AddressFamily::Inet6, libc::SOL_IPV6)
        } else {
            (AddressFamily::Inet, libc::SOL_IP)
        };
        let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let get = |option, buffer: &mut [u8]| -> io::Result<()> {
            let place = buffer.get_mut(..name.len()).ok_or(ErrorKind::InvalidInput)?;
            place.copy_from_slice(name.as_bytes());
            sys::socket_option(&socket, level, option, buffer)?;
            Ok(())
        };
        let mut info = [0; INFO_BYTES];
        get(SO_GET_INFO, &mut info)?;
        let size: [u8; 4] = fixed(&info, SIZE_AT).ok_or(ErrorKind::InvalidData)?;
        let mut entries = vec![0; ENTRIES_AT + u32::from_ne_bytes(size) as usize];
        entries[ENTRIES_SIZE_AT..ENTRIES_SIZE_AT + 4].copy_from_slice(&size);
        get(SO_GET_ENTRIES, &mut entries)?;
        Ok(Self { info, entries, is_v6 })
    }

    /// Reads an offset in the table, from a field of `info`.
    fn offset(&self, at: usize) -> Option<usize> {
        u32_at(&self.info, at).map(|offset| offset as usize)
    }

    /// The bytes from the entry at an offset on.
    fn entry(&self, at: usize) -> Option<&[u8]> {
        self.entries.get(ENTRIES_AT.checked_add(at)?..)
    }

    /// The offset of `target_offset` in an entry. `next_offset` follows.
    fn target_offset_at(&self) -> usize {
        if self.is_v6 { 140 } else { 88 }
    }

    /// The verdict of an entry with the standard target: the offset of a chain, or a negative number for a verdict.
    fn verdict(&self, entry: &[u8]) -> Option<i32> {
        let target_at = self.target_at(entry)?;
        // The standard target has an empty name.
        let is_standard = entry.get(target_at + 2) == Some(&0);
        let verdict = fixed(entry, target_at + TARGET_BYTES).map(i32::from_ne_bytes);
        verdict.filter(|_| is_standard)
    }

    /// The policy of FORWARD: the verdict of its last rule.
    fn policy_of_forward(&self) -> Option<i32> {
        self.verdict(self.entry(self.offset(UNDERFLOW_OF_FORWARD_AT)?)?)
    }

    /// Whether the table has more entries than a policy for each of its hooks, and the entry that ends it.
    fn has_rules(&self) -> Option<bool> {
        let hooks = u32_at(&self.info, offset_of!(Info, valid_hooks))?.count_ones();
        Some(u32_at(&self.info, offset_of!(Info, num_entries))? > hooks + 1)
    }

    /// The offset of the target in an entry.
    fn target_at(&self, entry: &[u8]) -> Option<usize> {
        u16_at(entry, self.target_offset_at()).map(usize::from)
    }
}

const FILTER: &str = "filter";

/// IPT_SO_GET_INFO and IPT_SO_GET_ENTRIES; IPv6 has the same numbers.
const SO_GET_INFO: i32 = 64;
const SO_GET_ENTRIES: i32 = 65;

/// `struct ipt_getinfo`: the hooks, the offsets of the rules and policies of five hooks, the number of rules, their size. All
/// fields are aligned to at most 4 bytes, so the layout is the same on every architecture.
#[repr(C)]
struct Info {
    name: [u8; NAME_BYTES],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

/// `struct ipt_get_entries`, for the offset of the rules. The counters in the rules are u64, with an alignment of 4 on i386 and
/// of 8 elsewhere.
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
