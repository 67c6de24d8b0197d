//! The identity of a network namespace: a later namespace at the same path has another one.

use crate::error::Result;
use crate::kernel::file;
use crate::kernel::netns::NetNs;

/// Numbers that tell one namespace from another.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// The boot id of the machine. Empty if it could not be read.
    boot: String,
    device: u64,
    /// The kernel gives the inode of a namespace that ended to a later one.
    pub inode: u64,
    /// When the inode was made, in seconds and nanoseconds. If only processes hold the namespace, each look at it can
    /// make a new inode, with a new time.
    since: (i64, i64),
    /// SO_NETNS_COOKIE (asm-generic/socket.h), unique until the next boot. `None` before Linux 5.14.
    cookie: Option<u64>,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Same {
    Yes,
    /// They have the same inode, and the kernel tells no more.
    Maybe,
    No,
}

impl Identity {
    /// `cookie` is that of the namespace.
    pub fn of(netns: &NetNs, cookie: Option<u64>) -> Result<Self> {
        let ((device, inode), since) = netns.identity_and_time()?;
        Ok(Self { boot: boot_id(), device, inode, since, cookie })
    }

    pub fn compare(&self, other: &Self) -> Same {
        if self.boot != other.boot || (self.device, self.inode) != (other.device, other.inode) {
            return Same::No;
        }
        match (self.cookie, other.cookie) {
            (Some(one), Some(two)) if one == two => Same::Yes,
            (Some(_), Some(_)) => Same::No,
            _ if self.since == other.since => Same::Yes,
            _ => Same::Maybe,
        }
    }

    /// Whether the namespace was there before the machine started for the last time. It has ended then.
    pub fn is_of_earlier_boot(&self) -> bool {
        let now = boot_id();
        !self.boot.is_empty() && !now.is_empty() && self.boot != now
    }

    /// One line, which `parse` reads.
    pub fn text(&self) -> String {
        let Self { boot, device, inode, since: (s, ns), cookie } = self;
        let cookie = cookie.map_or("-".into(), |cookie| cookie.to_string());
        format!("{boot} {device} {inode} {s}.{ns:09} {cookie}")
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.trim_end_matches('\n').split(' ');
        let boot = words.next()?.to_owned();
        let (device, inode) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (s, ns) = words.next()?.split_once('.')?;
        let since = (s.parse().ok()?, ns.parse().ok()?);
        let cookie = match words.next()? {
            "-" => None,
            cookie => Some(cookie.parse().ok()?),
        };
        words.next().is_none().then_some(Self { boot, device, inode, since, cookie })
    }
}

/// Empty without /proc.
fn boot_id() -> String {
    file::boot_id().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(inode: u64, since: i64, cookie: Option<u64>) -> Identity {
        Identity { boot: "b".into(), device: 4, inode, since: (since, 7), cookie }
    }

    #[test]
    fn the_cookie_decides_if_there_is_one() {
        let one = identity(9, 1, Some(3));
        for (other, expected) in [
            (identity(9, 2, Some(3)), Same::Yes),
            (identity(9, 1, Some(4)), Same::No),
            (identity(8, 1, Some(3)), Same::No),
            (identity(9, 1, None), Same::Yes),
            (identity(9, 2, None), Same::Maybe),
            (Identity { boot: "c".into(), ..one.clone() }, Same::No),
        ] {
            assert_eq!(one.compare(&other), expected, "{other:?}");
        }
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let unknown_boot = Identity { boot: String::new(), ..identity(9, 1, Some(3)) };
        for written in [identity(u64::MAX, -1, Some(u64::MAX)), identity(9, 1, None), unknown_boot]
        {
            assert_eq!(Identity::parse(&format!("{}\n", written.text())), Some(written));
        }
        for text in ["", "b 4 9 1.7", "b 4 9 1.7 - x", "b 4 x 1.7 3", "b 4 9 17 3"] {
            assert_eq!(Identity::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_a_known_boot_is_an_earlier_one() {
        let of = |boot: &str| Identity { boot: boot.into(), ..identity(9, 1, None) };
        assert!(of("another").is_of_earlier_boot());
        assert!(!of("").is_of_earlier_boot() && !of(&boot_id()).is_of_earlier_boot());
    }
}
