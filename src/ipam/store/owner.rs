//! Who a reservation belongs to: what its file says. Knows nothing of files.

use super::digest::digest;
use crate::error::Error;
use crate::names::{Attachment, ContainerId, IfName};

const LINE_BREAK: &str = "\r\n";

/// What was found in the file of an address.
#[derive(Debug)]
pub(super) enum Owner {
    /// Not empty, without the white space around it.
    Text(String),
    /// Nothing that anyone would write: the power failed before the content was on disk, so nobody has the address.
    Torn,
    /// There is no file but a directory, or the like: nobody's reservation, and yet the address cannot be reserved.
    NoFile,
    /// Somebody may have the address.
    Unreadable(Error),
}

/// What is in the file: both parts of the attachment, without a line break at the end.
pub(super) fn content(at: &Attachment) -> String {
    format!("{}{LINE_BREAK}{}", at.container_id, at.ifname)
}

/// What an owner is found by, with or without an interface in its name.
pub(super) fn digest_of(owner: &str) -> u64 {
    digest(0, owner.as_bytes())
}

impl Owner {
    pub(super) fn parse(content: &[u8]) -> Self {
        // After a power failure a file has no content, or blocks of zeros. Text of somebody else, over several lines
        // perhaps, is a reservation all the same.
        let is_text = |byte: &u8| !byte.is_ascii_control() || matches!(byte, b'\r' | b'\n' | b'\t');
        let text = String::from_utf8_lossy(content);
        match text.trim() {
            "" => Self::Torn,
            text if content.iter().all(is_text) => Self::Text(text.to_owned()),
            _ => Self::Torn,
        }
    }

    /// What the address is found by: the owner, and where there is none, itself.
    pub(super) fn digest(&self, address: u128) -> u64 {
        match self {
            Self::Text(text) => digest_of(text),
            Self::Torn | Self::NoFile | Self::Unreadable(_) => digest(1, &address.to_le_bytes()),
        }
    }

    pub(super) fn is(&self, expected: &str) -> bool {
        matches!(self, Self::Text(text) if text == expected)
    }
}

/// The attachments that GC keeps, by the digests of the forms in which files name them. Two names that have one digest
/// would be kept together.
pub(super) struct KeepSet(Vec<u64>);

impl KeepSet {
    pub(super) fn new(keep: &[Attachment]) -> Self {
        let mut digests: Vec<u64> = keep
            .iter()
            .flat_map(|at| [digest_of(&content(at)), digest_of(&at.container_id)])
            .collect();
        digests.sort_unstable();
        Self(digests)
    }

    /// Whether an owner is one of them.
    pub(super) fn has(&self, owner: u64) -> bool {
        self.0.binary_search(&owner).is_ok()
    }

    /// Whether a reservation belongs to an attachment that is gone. What no CNI plugin can have written is left to
    /// whoever wrote it.
    pub(super) fn releases(&self, owner: &Owner) -> bool {
        let text = match owner {
            Owner::Text(text) => text,
            Owner::Torn => return true,
            Owner::NoFile | Owner::Unreadable(_) => return false,
        };
        let is_of_plugin = match text.split_once(LINE_BREAK) {
            Some((container_id, ifname)) => {
                ContainerId::new(container_id).is_ok() && IfName::new(ifname).is_ok()
            }
            // Old releases of the reference wrote the container id alone.
            None => ContainerId::new(text.as_str()).is_ok(),
        };
        is_of_plugin && !self.has(digest_of(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_told_apart() {
        let text = |content: &[u8]| match Owner::parse(content) {
            Owner::Text(text) => Some(text),
            _ => None,
        };
        assert_eq!(text(b"abc\r\neth0").as_deref(), Some("abc\r\neth0"));
        assert_eq!(text(b" abc\n").as_deref(), Some("abc"));
        assert_eq!(text(b"held by\nthe operator").as_deref(), Some("held by\nthe operator"));
        for torn in [&b""[..], b" \r\n\t", b"\0\0\0", b"abc\r\n\0\0\0\0", b"abc\x01"] {
            assert_eq!(text(torn), None, "{torn:?}");
        }
    }
}
