//! The content of sets and maps with their intervals, to evaluate lookups.

use nix::libc::{self, c_int};

use super::consts::{
    NFT_SET_ELEM_CATCHALL, NFTA_EXPR_NAME, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_EXPR,
    NFTA_SET_ELEM_EXPRESSIONS, NFTA_SET_ELEM_FLAGS, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_KEY_END,
    NFTA_SET_ELEM_LIST_SET,
};
use super::expr::Verdict;
use super::packet::{Byte, Fit, at_least, at_most};
use super::set::{Datum, Set};
use super::wire::{attribute, be32_of, data_of, set_elements};
use super::{Nft, Table};
use crate::error::Result;
use crate::netlink::{Attrs, attributes, text};

/// The content of a set or map.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    set: Set,
    intervals: Vec<Interval>,
    /// The element for all other keys (NFT_SET_ELEM_CATCHALL).
    catch_all: Option<Interval>,
}

/// The keys from `first` to `last`, both included. In a concatenation each part of the key is in the interval of that part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    first: Vec<u8>,
    last: Vec<u8>,
    data: Option<Datum>,
    /// The element has an expression that can end the rule, such as `limit`.
    is_limited: bool,
}

impl Nft {
    /// Reads the elements of a set or map.
    pub(super) fn contents(&self, table: Table<'_>, set: Set) -> Result<Contents> {
        let doing = format!("cannot list set {} of table {table}", set.name);
        let filter = |attrs: &mut Attrs| attrs.string(NFTA_SET_ELEM_LIST_SET, &set.name);
        let read = |list: &[u8]| Some(set_elements(list).map(Interval::read).collect::<Vec<_>>());
        let elements = self.list(table, libc::NFT_MSG_GETSETELEM, doing, filter, read)?.concat();
        Ok(Contents::of(set, elements))
    }
}

impl Interval {
    /// Reads the flags and the keys of an element.
    fn read(element: &[u8]) -> (c_int, Self) {
        let key = |kind| attribute(element, kind).and_then(data_of);
        let first = key(NFTA_SET_ELEM_KEY).unwrap_or_default();
        let mut is_limited = false;
        for (kind, value) in attributes(element) {
            let names = match kind {
                NFTA_SET_ELEM_EXPR => vec![attribute(value, NFTA_EXPR_NAME)],
                NFTA_SET_ELEM_EXPRESSIONS => {
                    attributes(value).map(|(_, expr)| attribute(expr, NFTA_EXPR_NAME)).collect()
                }
                _ => continue,
            };
            is_limited |= names.iter().any(|name| name.map(text).as_deref() != Some("counter"));
        }
        let last = key(NFTA_SET_ELEM_KEY_END).unwrap_or_else(|| first.clone());
        let data = attribute(element, NFTA_SET_ELEM_DATA).and_then(Datum::read);
        let flags = attribute(element, NFTA_SET_ELEM_FLAGS).and_then(be32_of).unwrap_or_default();
        (flags, Self { first, last, data, is_limited })
    }

    fn verdict(&self) -> Option<&Verdict> {
        match &self.data {
            Some(Datum::Verdict(verdict)) => Some(verdict),
            _ => None,
        }
    }
}

impl Contents {
    /// Makes intervals of the elements, which come with their flags. In a set with intervals an element begins an interval, and
    /// the next element ends it.
    fn of(set: Set, mut elements: Vec<(c_int, Interval)>) -> Self {
        let catch_all = elements.iter().position(|(flags, _)| flags & NFT_SET_ELEM_CATCHALL != 0);
        let catch_all = catch_all.map(|at| elements.remove(at).1);
        // The first key after an interval.
        let is_end = |flags: c_int| flags & libc::NFT_SET_ELEM_INTERVAL_END != 0;
        // With the same key, the end of an interval is sorted before the beginning of another one.
        elements.sort_by(|(a, one), (b, other)| {
            (&one.first, !is_end(*a)).cmp(&(&other.first, !is_end(*b)))
        });
        // In a concatenation each element has both ends.
        let has_intervals = set.flags & libc::NFT_SET_INTERVAL != 0 && set.parts.is_empty();
        let mut intervals = Vec::new();
        let mut elements = elements.into_iter().peekable();
        while let Some((flags, mut interval)) = elements.next() {
            if has_intervals {
                if is_end(flags) {
                    continue;
                }
                interval.last = match elements.peek() {
                    Some((_, next)) => before(&next.first),
                    None => vec![0xff; interval.first.len()],
                };
            }
            intervals.push(interval);
        }
        Self { set, intervals, catch_all }
    }

    pub(super) fn key_bytes(&self) -> usize {
        self.set.key_bytes
    }

    /// Whether any element has the key, and the verdict of each element that can have it.
    pub(super) fn matches(&self, key: &[Byte]) -> (Fit, Vec<Option<&Verdict>>) {
        let (mut matches, mut any) = (Vec::new(), Fit::No);
        for interval in &self.intervals {
            let fit = self.fit(interval, key);
            any = any.or(fit);
            if fit != Fit::No {
                matches.push(interval.verdict());
            }
        }
        if let Some(catch_all) = &self.catch_all {
            if any != Fit::Yes {
                matches.push(catch_all.verdict());
            }
            any = if catch_all.is_limited { any.or(Fit::Maybe) } else { Fit::Yes };
        }
        if self.is_changing() && (any == Fit::Yes || self.set.flags & libc::NFT_SET_EVAL != 0) {
            any = Fit::Maybe;
        }
        (any, matches)
    }

    /// Whether elements can be removed at any time, by rules or by a timeout.
    fn is_changing(&self) -> bool {
        self.set.flags & (libc::NFT_SET_EVAL | libc::NFT_SET_TIMEOUT) != 0
    }

    /// Whether the key is in the interval.
    fn fit(&self, interval: &Interval, key: &[Byte]) -> Fit {
        let limited = if interval.is_limited { Fit::Maybe } else { Fit::Yes };
        let whole = [interval.first.len()];
        let parts = if self.set.parts.is_empty() { &whole[..] } else { &self.set.parts };
        let (mut fit, mut at) = (limited, 0);
        for bytes in parts {
            let part = at..at + bytes;
            let (Some(key), Some(first), Some(last)) =
                (key.get(part.clone()), interval.first.get(part.clone()), interval.last.get(part))
            else {
                return Fit::Maybe;
            };
            fit = fit.and(at_least(key, first)).and(at_most(key, last));
            at += bytes;
        }
        fit
    }
}

/// The key minus 1, as a number in network byte order. The key must not be 0.
fn before(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    for byte in key.iter_mut().rev() {
        let (less, borrows) = byte.overflowing_sub(1);
        *byte = less;
        if !borrows {
            break;
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(flags: c_int, first: &[u8], verdict: Option<Verdict>) -> (c_int, Interval) {
        let (first, last) = (first.to_vec(), first.to_vec());
        let data = verdict.map(Datum::Verdict);
        (flags, Interval { first, last, data, is_limited: false })
    }

    fn known(key: &[u8]) -> Vec<Byte> {
        key.iter().copied().map(Byte::known).collect()
    }

    fn declaration(flags: c_int, parts: &[usize]) -> Set {
        let (name, parts) = ("keys".into(), parts.into());
        Set { name, flags, key_bytes: 2, parts, types: [0; 2] }
    }

    #[test]
    fn elements_and_their_ends_are_intervals() {
        let end = libc::NFT_SET_ELEM_INTERVAL_END;
        let elements = vec![
            raw(end, &[0, 0], None),
            raw(0, &[0, 80], Some(Verdict::Accept)),
            raw(end, &[0, 90], None),
            raw(0, &[0, 90], Some(Verdict::Drop)),
            raw(end, &[1, 0], None),
            raw(0, &[255, 0], Some(Verdict::Return)),
        ];
        let contents = Contents::of(declaration(libc::NFT_SET_INTERVAL, &[]), elements);
        for (key, expected) in [
            ([0, 79], None),
            ([0, 80], Some(&Verdict::Accept)),
            ([0, 89], Some(&Verdict::Accept)),
            ([0, 90], Some(&Verdict::Drop)),
            ([0, 255], Some(&Verdict::Drop)),
            ([1, 0], None),
            ([255, 255], Some(&Verdict::Return)),
        ] {
            let (any, matches) = contents.matches(&known(&key));
            let verdicts: Vec<_> = matches.into_iter().flatten().collect();
            assert_eq!(verdicts, Vec::from_iter(expected), "{key:?}");
            assert_eq!(any, Fit::of(expected.is_some()), "{key:?}");
        }
        let unknown = contents.matches(&[Byte::UNKNOWN; 2]);
        assert_eq!((unknown.1.len(), unknown.0), (3, Fit::Maybe));
    }

    #[test]
    fn the_element_for_all_other_keys_matches_last() {
        let elements = vec![
            raw(NFT_SET_ELEM_CATCHALL, &[], Some(Verdict::Drop)),
            raw(0, &[0, 1], Some(Verdict::Accept)),
        ];
        let contents = Contents::of(declaration(0, &[]), elements);
        let only = |key: &[u8]| contents.matches(&known(key)).1;
        assert_eq!(only(&[0, 1]), [Some(&Verdict::Accept)]);
        assert_eq!(only(&[0, 2]), [Some(&Verdict::Drop)]);
        assert_eq!(contents.matches(&[Byte::UNKNOWN; 2]).0, Fit::Yes);
    }

    #[test]
    fn the_elements_of_a_changing_set_are_unknown() {
        for (flags, fits) in [
            (libc::NFT_SET_EVAL, [Fit::Maybe, Fit::Maybe]),
            (libc::NFT_SET_TIMEOUT, [Fit::Maybe, Fit::No]),
        ] {
            let contents = Contents::of(declaration(flags, &[]), vec![raw(0, &[0, 1], None)]);
            for (key, fit) in [[0, 1], [0, 2]].iter().zip(fits) {
                assert_eq!(contents.matches(&known(key)).0, fit);
            }
        }
    }

    #[test]
    fn a_concatenation_has_an_interval_for_each_part() {
        let mut element = raw(0, &[0, 1, 0, 0, 5, 0, 0, 0], None);
        element.1.last = vec![0, 3, 0, 0, 6, 0, 0, 0];
        let contents = Contents::of(declaration(libc::NFT_SET_INTERVAL, &[4, 4]), vec![element]);
        for (key, fit) in [
            ([0, 2, 0, 0, 5, 0, 0, 0], Fit::Yes),
            ([0, 2, 0, 0, 7, 0, 0, 0], Fit::No),
            ([0, 4, 0, 0, 5, 0, 0, 0], Fit::No),
        ] {
            assert_eq!(contents.matches(&known(&key)).0, fit, "{key:?}");
        }
    }
}
