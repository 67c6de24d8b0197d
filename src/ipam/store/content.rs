//! The owner of a reservation, as the content of its file.

use std::collections::HashSet;

use crate::error::Error;
use crate::names::{Attachment, ContainerId, IfName};

pub(super) const LINE_BREAK: &str = "\r\n";

/// The content of an address's file.
#[derive(Debug)]
pub(super) enum Owner {
    /// The trimmed text, which is not empty.
    Text(String),
    /// The file is empty or has NUL bytes, because the power failed before the content was on disk. The address is free.
    Incomplete,
    /// Not a regular file: it is not a reservation, but the address cannot be reserved.
    NotRegular,
    /// The file cannot be read. The address may be in use.
    Unreadable(Error),
}

/// The content of an attachment's file: container id and interface, without a line break at the end.
pub(super) fn content(at: &Attachment) -> String {
    format!("{}{LINE_BREAK}{}", at.container_id, at.ifname)
}

/// The container id and the interface in the text of an owner. Old releases of the reference wrote the container id alone.
/// `None`: no CNI plugin can have written the text.
pub(super) fn attachment_in(text: &str) -> Option<(ContainerId, Option<IfName>)> {
    let (container_id, ifname) = match text.split_once(LINE_BREAK) {
        Some((container_id, ifname)) => (container_id, Some(IfName::new(ifname).ok()?)),
        None => (text, None),
    };
    Some((ContainerId::new(container_id).ok()?, ifname))
}

impl Owner {
    pub(super) fn parse(content: &[u8]) -> Self {
        // After a power failure a file is empty or has blocks of NUL bytes. All other text is a reservation: other programs
        // can write several lines, and an interface name can have any control byte except NUL and white space.
        let text = String::from_utf8_lossy(content);
        match text.trim() {
            "" => Self::Incomplete,
            _ if content.contains(&0) => Self::Incomplete,
            text => Self::Text(text.to_owned()),
        }
    }

    /// The text, which is empty for an incomplete file. `None` if there is none.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Incomplete => Some(""),
            Self::NotRegular | Self::Unreadable(_) => None,
        }
    }

    pub(super) fn is(&self, expected: &str) -> bool {
        self.text() == Some(expected)
    }
}

/// The owners that GC keeps: for each attachment both contents that a file can have.
pub(super) struct KeepSet(HashSet<String>);

impl KeepSet {
    pub(super) fn new(keep: &[Attachment]) -> Self {
        Self(keep.iter().flat_map(|at| [content(at), at.container_id.to_string()]).collect())
    }

    /// Whether GC releases the files of an owner: they are incomplete, or the owner is an attachment that is not in the set. Text
    /// that no CNI plugin can have written belongs to another program and stays.
    pub(super) fn releases(&self, owner: &str) -> bool {
        owner.is_empty() || attachment_in(owner).is_some() && !self.0.contains(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_owners_or_incomplete() {
        let text = |content: &[u8]| match Owner::parse(content) {
            Owner::Text(text) => Some(text),
            _ => None,
        };
        assert_eq!(text(b"abc\r\neth0").as_deref(), Some("abc\r\neth0"));
        assert_eq!(text(b" abc\n").as_deref(), Some("abc"));
        assert_eq!(text(b"held by\nthe operator").as_deref(), Some("held by\nthe operator"));
        assert_eq!(text(b"abc\r\na\x01b\x1f").as_deref(), Some("abc\r\na\x01b\x1f"));
        for incomplete in [&b""[..], b" \r\n\t", b"\0\0\0", b"abc\r\n\0\0\0\0", b"abc\x01\0"] {
            assert_eq!(text(incomplete), None, "{incomplete:?}");
        }
    }
}
