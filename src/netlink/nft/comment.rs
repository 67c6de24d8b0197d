//! Comments of objects. The kernel keeps them as user data, and nft shows them.

use std::fmt::{self, Display};
use std::ops::Deref;

use super::consts::{
    NFTNL_UDATA_COMMENT, NFTNL_UDATA_SET_COMMENT, NFTNL_UDATA_SET_DATABYTEORDER,
    NFTNL_UDATA_SET_KEYBYTEORDER,
};
use crate::error::{Error, Result};
use crate::netlink::{Attrs, text};

/// The longest comment, in bytes: the kernel keeps 256 bytes of user data (NFT_USERDATA_MAXLEN), three of which are kind,
/// length and NUL.
pub const COMMENT_BYTES_MAX: usize = 253;

/// The longest comment, in bytes, that nft reads: `nft list ruleset` prints longer ones, `nft -f` refuses them.
///
/// Source: libnftnl's NFTNL_UDATA_COMMENT_MAXLEN.
pub const COMMENT_BYTES_MAX_IN_NFT: usize = 128;

/// The comment of a table, chain, rule, set or element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Comment(String);

impl Comment {
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        if text.len() > COMMENT_BYTES_MAX || text.contains('\0') {
            return Err(Error::internal(format_args!(
                "cannot keep {text:?} as a comment: more than {COMMENT_BYTES_MAX} bytes, or a NUL in it"
            )));
        }
        Ok(Self(text))
    }

    /// Writes the comment of an object other than a set.
    pub(super) fn write(comment: Option<&Self>, attrs: &mut Attrs, kind: u16) {
        if let Some(comment) = comment {
            attrs.bytes(kind, &comment.entry(NFTNL_UDATA_COMMENT));
        }
    }

    /// Writes the user data of a set: the byte orders of its keys and of its data, without which nft shows numbers reversed
    /// and names empty, and the comment.
    pub(super) fn write_for_set(
        comment: Option<&Self>,
        [of_keys, of_data]: [Option<u32>; 2],
        attrs: &mut Attrs,
        kind: u16,
    ) {
        let mut data = Vec::new();
        for (kind, byte_order) in
            [(NFTNL_UDATA_SET_KEYBYTEORDER, of_keys), (NFTNL_UDATA_SET_DATABYTEORDER, of_data)]
        {
            if let Some(byte_order) = byte_order {
                data.extend_from_slice(&[kind, 4]);
                data.extend_from_slice(&byte_order.to_ne_bytes());
            }
        }
        if let Some(comment) = comment {
            data.extend(comment.entry(NFTNL_UDATA_SET_COMMENT));
        }
        if !data.is_empty() {
            attrs.bytes(kind, &data);
        }
    }

    pub(super) fn read(user_data: &[u8]) -> Option<Self> {
        Self::find(user_data, NFTNL_UDATA_COMMENT)
    }

    pub(super) fn read_for_set(user_data: &[u8]) -> Option<Self> {
        Self::find(user_data, NFTNL_UDATA_SET_COMMENT)
    }

    /// The comment in the data of the iptables match `comment`: the text up to the first NUL.
    pub(super) fn from_text(value: &[u8]) -> Self {
        Self(text(value).into_owned())
    }

    /// An entry of the user data: kind, length, text, NUL.
    fn entry(&self, kind: u8) -> Vec<u8> {
        let length = u8::try_from(self.0.len() + 1).expect("`new` limits the length");
        [&[kind, length], self.0.as_bytes(), &[0]].concat()
    }

    fn find(mut user_data: &[u8], wanted: u8) -> Option<Self> {
        loop {
            let [kind, length, rest @ ..] = user_data else { return None };
            let (value, rest) = rest.split_at_checked(usize::from(*length))?;
            if *kind == wanted {
                return Some(Self::from_text(value));
            }
            user_data = rest;
        }
    }
}

impl Deref for Comment {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Display for Comment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{attributes, rows};

    #[test]
    fn a_comment_is_an_entry_of_the_user_data() {
        let mut attrs = Attrs::default();
        Comment::write(Some(&Comment::new("net eth0").unwrap()), &mut attrs, 7);
        assert_eq!(rows(attrs.as_slice()), "0f000700 00096e65 74206574 68300000");
        let (_, data) = attributes(attrs.as_slice()).next().unwrap();
        assert_eq!(Comment::read(data).as_deref(), Some("net eth0"));
        assert_eq!(Comment::read_for_set(data), None);
    }

    #[test]
    fn the_comment_of_a_set_is_found_among_other_entries() {
        let mut attrs = Attrs::default();
        let comment = Comment::new("c").unwrap();
        Comment::write_for_set(Some(&comment), [Some(1), Some(1)], &mut attrs, 13);
        let (_, data) = attributes(attrs.as_slice()).next().unwrap();
        assert_eq!(Comment::read_for_set(data), Some(comment));
        // A shorter message has no comment, and causes no panic.
        for end in 0..data.len() {
            assert_eq!(Comment::read_for_set(&data[..end]), None, "{end}");
        }
    }

    #[test]
    fn the_longest_comment_fits() {
        let longest = Comment::new("x".repeat(COMMENT_BYTES_MAX)).unwrap();
        let mut attrs = Attrs::default();
        Comment::write(Some(&longest), &mut attrs, 7);
        let (_, data) = attributes(attrs.as_slice()).next().unwrap();
        assert_eq!((data.len(), Comment::read(data)), (256, Some(longest)));
        assert!(Comment::new("x".repeat(COMMENT_BYTES_MAX + 1)).is_err());
        assert!(Comment::new("a\0b").is_err());
    }
}
