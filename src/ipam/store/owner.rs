//! Who a reservation belongs to: what its file says. Knows nothing of files.

use std::collections::BTreeSet;

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
    /// There is no file but a directory: nobody's reservation, and yet the address cannot be reserved.
    Directory,
    /// Somebody may have the address.
    Unreadable(Error),
}

/// What is in the file: both parts of the attachment, without a line break at the end.
pub(super) fn content(at: &Attachment) -> String {
    format!("{}{LINE_BREAK}{}", at.container_id, at.ifname)
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

    pub(super) fn is(&self, expected: &str) -> bool {
        matches!(self, Self::Text(text) if text == expected)
    }
}

/// The attachments that GC keeps, in the form in which files name them.
pub(super) struct Kept {
    contents: BTreeSet<String>,
    container_ids: BTreeSet<String>,
}

impl Kept {
    pub(super) fn new(keep: &[Attachment]) -> Self {
        Self {
            contents: keep.iter().map(content).collect(),
            container_ids: keep.iter().map(|at| at.container_id.to_string()).collect(),
        }
    }

    /// Whether a reservation belongs to an attachment that is gone. What no CNI plugin can have written is left to
    /// whoever wrote it.
    pub(super) fn lets_go(&self, owner: &Owner) -> bool {
        let text = match owner {
            Owner::Text(text) => text,
            Owner::Torn => return true,
            Owner::Directory | Owner::Unreadable(_) => return false,
        };
        match text.split_once(LINE_BREAK) {
            Some((container_id, ifname)) => {
                ContainerId::new(container_id).is_ok()
                    && IfName::new(ifname).is_ok()
                    && !self.contents.contains(text)
            }
            // Old releases of the reference wrote the container id alone.
            None => ContainerId::new(text).is_ok() && !self.container_ids.contains(text),
        }
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
