//! The filter table of iptables-legacy. The kernel evaluates it in addition to nf_tables. This module only reads it.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::Range;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::kernel::{file, sys};
use crate::names::IpFamily;
use crate::netlink::nft::{Condition, Expr, Field, Policy, Program, Rule, Verdict, XtExtension};
use crate::netlink::{fixed, text, u16_at, u32_at};

/// The chain FORWARD of iptables-legacy or of ip6tables-legacy, as nf_tables rules. The handle of a rule is its number in its
/// chain.
#[derive(Debug)]
pub struct Forward {
    pub program: Program,
    pub policy: Policy,
}

/// Whether the chain FORWARD of iptables-legacy (or of ip6tables-legacy) has the policy DROP.
///
/// False without the permissions or the module. The table is read only if it exists, because the kernel would create it.
pub fn drops_forwarded(is_v6: bool) -> bool {
    Filter::read(is_v6).and_then(|table| table.policy()) == Some(VERDICT_DROP)
}

/// The chain FORWARD with the chains of the table. `None` without the table, the permissions or the module. See
/// `drops_forwarded`.
pub fn forward(is_v6: bool) -> Option<Forward> {
    Filter::read(is_v6)?.forward()
}

/// Whether the filter table of iptables-legacy exists.
fn is_in_use(is_v6: bool) -> bool {
    let file = if is_v6 { "ip6_tables_names" } else { "ip_tables_names" };
    // The file is readable by root only, and missing without the module.
    let names = file::read_lossy(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    names.lines().any(|name| name == TABLE)
}

/// The filter table, as the kernel returns it.
struct Filter {
    /// `struct ipt_getinfo`, with the offsets of the built-in chains.
    info: [u8; INFO_BYTES],
    /// `struct ipt_get_entries`
    entries: Vec<u8>,
    is_v6: bool,
}

impl Filter {
    /// Reads the table from the kernel. Source: linux/netfilter_ipv4/ip_tables.h, `struct ipt_getinfo`, `struct
    /// ipt_get_entries`, `struct ipt_entry`, and the equivalents for IPv6.
    fn read(is_v6: bool) -> Option<Self> {
        if !is_in_use(is_v6) {
            return None;
        }
        let (family, level) = if is_v6 {
            (AddressFamily::Inet6, libc::SOL_IPV6)
        } else {
            (AddressFamily::Inet, libc::SOL_IP)
        };
        let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
        let get = |option, buffer: &mut [u8]| {
            buffer[..TABLE.len()].copy_from_slice(TABLE.as_bytes());
            sys::socket_option(&socket, level, option, buffer).ok()
        };
        let mut info = [0; INFO_BYTES];
        get(SO_GET_INFO, &mut info)?;
        let size: [u8; 4] = fixed(&info, SIZE_AT)?;
        let mut entries = vec![0; ENTRIES_AT + u32::from_ne_bytes(size) as usize];
        entries[ENTRIES_SIZE_AT..ENTRIES_SIZE_AT + 4].copy_from_slice(&size);
        get(SO_GET_ENTRIES, &mut entries)?;
        Some(Self { info, entries, is_v6 })
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
    fn policy(&self) -> Option<i32> {
        self.verdict(self.entry(self.offset(UNDERFLOW_OF_FORWARD_AT)?)?)
    }

    fn forward(&self) -> Option<Forward> {
        let end = self.entries.len().checked_sub(ENTRIES_AT)?;
        let begin = self.offset(ENTRY_OF_FORWARD_AT)?;
        let policy_at = self.offset(UNDERFLOW_OF_FORWARD_AT)?;
        let policy = self.policy()?;
        // The user-defined chains follow OUTPUT. Each begins with an entry that has its name, and the last entry ends the
        // table.
        let mut chains = vec![("FORWARD".to_owned(), begin..policy_at)];
        let mut at = self.next(self.offset(UNDERFLOW_OF_FORWARD_AT + 4)?)?;
        while at < end {
            let next = self.next(at)?;
            if let Some(name) = self.chain_name(self.entry(at)?) {
                if let Some((_, before)) = chains.last_mut().filter(|_| at > policy_at) {
                    before.end = before.end.min(at).max(before.start);
                }
                chains.push((name, next..end));
            }
            at = next;
        }
        let mut found = BTreeMap::new();
        for (name, range) in &chains {
            let (mut rules, mut at) = (Vec::new(), range.start);
            while at < range.end && self.chain_name(self.entry(at)?).is_none() {
                let handle = u64::try_from(rules.len()).unwrap_or_default() + 1;
                let exprs = self.exprs(at, &chains)?;
                rules.push(Rule { chain: name.clone(), handle, comment: None, exprs });
                at = self.next(at)?;
            }
            found.insert(name.clone(), rules);
        }
        let policy = if policy == VERDICT_DROP { Policy::Drop } else { Policy::Accept };
        Some(Forward { program: Program::of(found), policy })
    }

    /// The offset of the entry after the entry at `at`.
    fn next(&self, at: usize) -> Option<usize> {
        let next = u16_at(self.entry(at)?, self.target_offset_at() + 2)?;
        at.checked_add(usize::from(next)).filter(|next| *next > at)
    }

    /// The name in an entry that begins a user-defined chain, or ends the table; `None` for a rule.
    fn chain_name(&self, entry: &[u8]) -> Option<String> {
        let target = self.extension(entry, self.target_at(entry)?)?;
        (target.name == "ERROR").then(|| text(&target.info).into_owned())
    }

    /// The offset of the target in an entry.
    fn target_at(&self, entry: &[u8]) -> Option<usize> {
        u16_at(entry, self.target_offset_at()).map(usize::from)
    }

    /// The name, the revision and the data of a match or target: `struct xt_entry_match`, `struct xt_entry_target`.
    fn extension(&self, entry: &[u8], at: usize) -> Option<XtExtension> {
        let size = usize::from(u16_at(entry, at)?);
        Some(XtExtension {
            name: text(entry.get(at + 2..at + TARGET_BYTES - 1)?).into_owned(),
            revision: u32::from(*entry.get(at + TARGET_BYTES - 1)?),
            info: entry.get(at + TARGET_BYTES..at.checked_add(size)?)?.to_vec(),
        })
    }

    /// Converts a rule to expressions of nf_tables.
    fn exprs(&self, at: usize, chains: &[(String, Range<usize>)]) -> Option<Vec<Expr>> {
        let (entry, next) = (self.entry(at)?, self.next(at));
        let mut exprs = Vec::new();
        self.header(entry, &mut exprs)?;
        let (mut at, target_at) = (self.matches_at(), self.target_at(entry)?);
        while at < target_at {
            exprs.push(Expr::XtMatch(self.extension(entry, at)?));
            at += usize::from(u16_at(entry, at)?).max(1);
        }
        let target = self.extension(entry, target_at)?;
        if !target.name.is_empty() {
            exprs.push(Expr::XtTarget(target));
            return Some(exprs);
        }
        exprs.push(match self.verdict(entry)? {
            VERDICT_DROP => Verdict::Drop.into(),
            VERDICT_ACCEPT => Verdict::Accept.into(),
            VERDICT_RETURN => Verdict::Return.into(),
            to => {
                let to = usize::try_from(to).ok();
                let chain = to.and_then(|to| chains.iter().find(|(_, chain)| chain.start == to));
                match chain {
                    Some((name, _)) if self.is_goto(entry)? => Verdict::Goto(name.clone()).into(),
                    Some((name, _)) => Verdict::Jump(name.clone()).into(),
                    // A rule without a target continues with the next rule.
                    None if to == next => Verdict::Continue.into(),
                    None => Expr::Other("queue".into()),
                }
            }
        });
        Some(exprs)
    }

    /// Appends the conditions in `struct ipt_ip` or `struct ip6t_ip6`: addresses, their masks, links, their masks, the
    /// protocol.
    fn header(&self, entry: &[u8], exprs: &mut Vec<Expr>) -> Option<()> {
        let bytes = if self.is_v6 { 16 } else { 4 };
        let inverted = *entry.get(if self.is_v6 { 132 } else { 83 })?;
        let flags = *entry.get(if self.is_v6 { 131 } else { 82 })?;
        let links = 4 * bytes;
        let [saddr, daddr] = Field::addresses(if self.is_v6 { IpFamily::V6 } else { IpFamily::V4 });
        for (field, at, mask_at, length, inverts) in [
            (saddr, 0, 2 * bytes, bytes, 0x08),
            (daddr, bytes, 3 * bytes, bytes, 0x10),
            (Field::Iifname, links, links + 32, NAME_OF_LINK_BYTES, 0x01),
            (Field::Oifname, links + 16, links + 48, NAME_OF_LINK_BYTES, 0x02),
        ] {
            let mut value = entry.get(at..at + length)?.to_vec();
            let mask = entry.get(mask_at..mask_at + length)?.to_vec();
            if at >= links {
                // The `+` of a name with a wildcard is in the value, but not in the mask.
                value.iter_mut().zip(&mask).for_each(|(byte, mask)| *byte &= mask);
            }
            let is_equal = inverted & inverts == 0;
            if !is_equal || mask.iter().any(|byte| *byte != 0) {
                exprs.extend(Condition { field, is_equal, mask, value }.into_masked());
            }
        }
        let [protocol, high] = fixed(entry, if self.is_v6 { 128 } else { 80 })?;
        let has_protocol = if self.is_v6 { flags & 0x1 != 0 } else { protocol != 0 };
        if has_protocol && high == 0 {
            let is_equal = inverted & 0x40 == 0;
            let (field, mask, value) = (Field::Protocol, vec![0xff], vec![protocol]);
            exprs.extend(Condition { field, is_equal, mask, value }.into_masked());
        }
        // Conditions on fragments and on the traffic class.
        let others = if self.is_v6 { 0x2 } else { 0x1 };
        if flags & others != 0 || inverted & 0x24 != 0 {
            exprs.push(Expr::Other("fragment".into()));
        }
        Some(())
    }

    fn is_goto(&self, entry: &[u8]) -> Option<bool> {
        Some(match self.is_v6 {
            true => entry.get(131)? & 0x4 != 0,
            false => entry.get(82)? & 0x2 != 0,
        })
    }

    /// The offset of the matches in an entry, which is the size of `struct ipt_entry`: `target_offset` and `next_offset` are
    /// followed by `comefrom` and two counters of 8 bytes.
    fn matches_at(&self) -> usize {
        (self.target_offset_at() + 8).next_multiple_of(align_of::<u64>()) + 16
    }
}

const TABLE: &str = "filter";

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
const ENTRY_OF_FORWARD_AT: usize = offset_of!(Info, hook_entry) + NF_INET_FORWARD * 4;
const SIZE_AT: usize = offset_of!(Info, size);
const ENTRIES_SIZE_AT: usize = offset_of!(Entries, size);
const ENTRIES_AT: usize = offset_of!(Entries, entries);
/// Source: linux/netfilter.h, `enum nf_inet_hooks`.
const NF_INET_FORWARD: usize = 2;
/// The size of `struct xt_entry_target`. The verdict follows.
const TARGET_BYTES: usize = 32;

/// `-NF_DROP - 1`, the encoding of DROP in rules.
const VERDICT_DROP: i32 = -1;
/// `-NF_ACCEPT - 1`, the encoding of ACCEPT in rules.
const VERDICT_ACCEPT: i32 = -2;
/// `-NF_REPEAT - 1`, the encoding of RETURN in rules.
const VERDICT_RETURN: i32 = -5;
/// IFNAMSIZ
const NAME_OF_LINK_BYTES: usize = 16;

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
