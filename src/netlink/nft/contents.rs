//! The content of sets and maps with their intervals, to evaluate lookups.

use nix::libc::{self, c_int};

use super::consts::{
    NFT_SET_ELEM_CATCHALL, NFTA_EXPR_NAME, NFTA_SET_DESC, NFTA_SET_DESC_CONCAT, NFTA_SET_ELEM_DATA,
    NFTA_SET_ELEM_EXPR, NFTA_SET_ELEM_EXPRESSIONS, NFTA_SET_ELEM_FLAGS, NFTA_SET_ELEM_KEY,
    NFTA_SET_ELEM_KEY_END, NFTA_SET_ELEM_LIST_SET, NFTA_SET_FIELD_LEN, NFTA_SET_FLAGS,
    NFTA_SET_KEY_LEN, NFTA_SET_NAME,
};
use super::expr::Verdict;
use super::packet::{Byte, Fit, at_least, at_most};
use super::set::Datum;
use super::value::WORD_BYTES;
use super::wire::{attribute, be32_of, data_of, set_elements};
use super::{Nft, Table};
use crate::error::Result;
use crate::netlink::{Attrs, attributes, text};

/// The content of a set or map.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    declaration: Declaration,
    intervals: Vec<Interval>,
    /// The element for all other keys (NFT_SET_ELEM_CATCHALL).
    catch_all: Option<Interval>,
}

/// The declaration of a set or map.
#[derive(Clone, Debug, Default)]
struct Declaration {
    flags: c_int,
    key_bytes: usize,
    /// For a concatenation with intervals: the lengths of the parts of a key.
    parts: Vec<usize>,
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
    /// Reads a set or map. Empty if it is missing.
    pub(super) fn contents(&self, table: Table<'_>, set: &str) -> Result<Contents> {
        let doing = || format!("cannot list set {set} of table {table}");
        let filter = |attrs: &mut Attrs| attrs.string(NFTA_SET_NAME, set);
        let read = |list: &[u8]| Declaration::read(set, list);
        let declarations = self.list(table, libc::NFT_MSG_GETSET, doing(), filter, read)?;
        let Some(declaration) = declarations.into_iter().next() else {
            return Ok(Contents::default());
        };
        let filter = |attrs: &mut Attrs| attrs.string(NFTA_SET_ELEM_LIST_SET, set);
        let read = |list: &[u8]| Some(RawElement::read_all(list));
        let raw = self.list(table, libc::NFT_MSG_GETSETELEM, doing(), filter, read)?.concat();
        Ok(Contents::of(declaration, raw))
    }
}

impl Declaration {
    /// Reads the declaration of the set from the attributes of a message; `None` if it is about another set.
    fn read(set: &str, list: &[u8]) -> Option<Self> {
        if text(attribute(list, NFTA_SET_NAME)?) != set {
            return None;
        }
        let concat = attribute(list, NFTA_SET_DESC)
            .and_then(|description| attribute(description, NFTA_SET_DESC_CONCAT));
        let part_bytes = |part| length(attribute(part, NFTA_SET_FIELD_LEN)?);
        let parts = attributes(concat.unwrap_or_default()).map(|(_, part)| part_bytes(part));
        Some(Self {
            // The kernel sends no flags if there are none.
            flags: attribute(list, NFTA_SET_FLAGS).and_then(be32_of).unwrap_or_default(),
            key_bytes: attribute(list, NFTA_SET_KEY_LEN).and_then(length)?,
            parts: parts
                .map(|bytes| Some(bytes?.next_multiple_of(WORD_BYTES)))
                .collect::<Option<_>>()?,
        })
    }

    /// Whether each element of the set is either the begin or the end of an interval. In a concatenation each element has both
    /// ends.
    fn has_intervals(&self) -> bool {
        self.flags & libc::NFT_SET_INTERVAL != 0 && self.parts.is_empty()
    }
}

fn length(value: &[u8]) -> Option<usize> {
    usize::try_from(be32_of(value)?).ok()
}

/// An element as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RawElement {
    flags: c_int,
    interval: Interval,
}

impl RawElement {
    fn read_all(list: &[u8]) -> Vec<Self> {
        set_elements(list).map(Self::read).collect()
    }

    fn read(element: &[u8]) -> Self {
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
        let flags = attribute(element, NFTA_SET_ELEM_FLAGS).and_then(be32_of);
        Self {
            flags: flags.unwrap_or_default(),
            interval: Interval { first, last, data, is_limited },
        }
    }
}

impl Interval {
    fn verdict(&self) -> Option<&Verdict> {
        match &self.data {
            Some(Datum::Verdict(verdict)) => Some(verdict),
            _ => None,
        }
    }
}

impl Contents {
    /// Makes intervals of the elements. In a set with intervals an element begins an interval, and the next element ends it.
    fn of(declaration: Declaration, mut raw: Vec<RawElement>) -> Self {
        let mut found = Self { declaration, ..Self::default() };
        if let Some(at) = raw.iter().position(|element| element.flags & NFT_SET_ELEM_CATCHALL != 0)
        {
            found.catch_all = Some(raw.remove(at).interval);
        }
        // The first key after an interval.
        let is_end = |element: &RawElement| element.flags & libc::NFT_SET_ELEM_INTERVAL_END != 0;
        // With the same key, the end of an interval is sorted before the beginning of another one.
        raw.sort_by(|a, b| (&a.interval.first, !is_end(a)).cmp(&(&b.interval.first, !is_end(b))));
        for (index, element) in raw.iter().enumerate() {
            let mut interval = element.interval.clone();
            if found.declaration.has_intervals() {
                if is_end(element) {
                    continue;
                }
                interval.last = match raw.get(index + 1) {
                    Some(next) => before(&next.interval.first),
                    None => vec![0xff; interval.first.len()],
                };
            }
            found.intervals.push(interval);
        }
        found
    }

    pub(super) fn key_bytes(&self) -> usize {
        self.declaration.key_bytes
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
        if self.is_changing()
            && (any == Fit::Yes || self.declaration.flags & libc::NFT_SET_EVAL != 0)
        {
            any = Fit::Maybe;
        }
        (any, matches)
    }

    /// Whether elements can be removed at any time, by rules or by a timeout.
    fn is_changing(&self) -> bool {
        self.declaration.flags & (libc::NFT_SET_EVAL | libc::NFT_SET_TIMEOUT) != 0
    }

    /// Whether the key is in the interval.
    fn fit(&self, interval: &Interval, key: &[Byte]) -> Fit {
        let limited = if interval.is_limited { Fit::Maybe } else { Fit::Yes };
        let whole = [interval.first.len()];
        let parts =
            if self.declaration.parts.is_empty() { &whole[..] } else { &self.declaration.parts };
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

    fn raw(flags: c_int, first: &[u8], verdict: Option<Verdict>) -> RawElement {
        let (first, last) = (first.to_vec(), first.to_vec());
        let data = verdict.map(Datum::Verdict);
        RawElement { flags, interval: Interval { first, last, data, is_limited: false } }
    }

    fn known(key: &[u8]) -> Vec<Byte> {
        key.iter().copied().map(Byte::known).collect()
    }

    fn declaration(flags: c_int, parts: &[usize]) -> Declaration {
        Declaration { flags, key_bytes: 2, parts: parts.into() }
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
        element.interval.last = vec![0, 3, 0, 0, 6, 0, 0, 0];
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
