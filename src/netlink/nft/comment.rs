//! Comments of objects. The kernel keeps them as user data, and nft shows them.

use std::fmt::{self, Display};
use std::ops::Deref;

use super::consts::NFTNL_UDATA_COMMENT;
use crate::error::{Error, Result};
use crate::netlink::{Attrs, text};

/// The longest comment, in bytes: the kernel keeps 256 bytes of user data (NFT_USERDATA_MAXLEN), three of which are kind,
/// length and NUL.
pub const COMMENT_BYTES_MAX: usize = 253;

/// The longest comment, in bytes, that nft reads: `nft list ruleset` prints longer ones, `nft -f` refuses them.
///
/// Source: libnftnl's NFTNL_UDATA_COMMENT_MAXLEN.
pub const COMMENT_BYTES_MAX_IN_NFT: usize = 128;

/// The comment of a chain, rule or element.
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

    /// Writes the comment as user data, an entry of kind, length, text and NUL.
    pub(super) fn write(comment: Option<&Self>, attrs: &mut Attrs, kind: u16) {
        if let Some(Self(text)) = comment {
            let length = u8::try_from(text.len() + 1).expect("`new` limits the length");
            attrs.bytes(kind, &[&[NFTNL_UDATA_COMMENT, length], text.as_bytes(), &[0]].concat());
        }
    }

    /// The comment among the entries of the user data.
    pub(super) fn read(mut user_data: &[u8]) -> Option<Self> {
        loop {
            let [kind, length, rest @ ..] = user_data else { return None };
            let (value, rest) = rest.split_at_checked(usize::from(*length))?;
            if *kind == NFTNL_UDATA_COMMENT {
                return Some(Self::from_text(value));
            }
            user_data = rest;
        }
    }

    /// The comment in the data of the iptables match `comment`: the text up to the first NUL.
    pub(super) fn from_text(value: &[u8]) -> Self {
        Self(text(value).into_owned())
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
    }

    #[test]
    fn a_comment_is_found_among_other_entries() {
        let data = [1, 4, 1, 0, 0, 0, NFTNL_UDATA_COMMENT, 2, b'c', 0];
        assert_eq!(Comment::read(&data).as_deref(), Some("c"));
        // A shorter message has no comment, and causes no panic.
        for end in 0..data.len() {
            assert_eq!(Comment::read(&data[..end]), None, "{end}");
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
