//! The identity of a network namespace: a later namespace at the same path has another identity.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::kernel::boot;

/// The identity of a boot of the machine, and of a namespace in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The boot id of the machine. Empty if it could not be read.
    boot: String,
    /// SO_NETNS_COOKIE (asm-generic/socket.h), unique until the next boot. `None` before Linux 5.14.
    pub cookie: Option<u64>,
}

impl Identity {
    /// The identity of the namespace with this cookie, in this boot.
    pub fn of(cookie: Option<u64>) -> Self {
        // The boot id is empty without /proc.
        Self { boot: boot::id().unwrap_or_default().into(), cookie }
    }

    /// The identity of another namespace in the same boot.
    pub fn with_cookie(&self, cookie: Option<u64>) -> Self {
        Self { boot: self.boot.clone(), cookie }
    }

    /// Whether both are the identity of the same namespace. False if a boot id or the cookies are unknown.
    pub fn is(&self, other: &Self) -> bool {
        !self.boot.is_empty() && self.cookie.is_some() && self == other
    }

    /// Whether the two are different namespaces. False if this is unknown. A cookie is unique in a boot, and no namespace outlives
    /// its boot, so two cookies are two namespaces, also if the boots are unknown.
    pub fn is_another(&self, other: &Self) -> bool {
        let have_two_cookies =
            self.cookie.zip(other.cookie).is_some_and(|(one, other)| one != other);
        have_two_cookies || self.is_of_another_boot(other)
    }

    /// Whether the two are of different boots. False if a boot id is unknown, or if a mount covered it.
    pub fn is_of_another_boot(&self, other: &Self) -> bool {
        boot::are_different(&self.boot, &other.boot)
    }

    /// Whether the boot is known, and its id the kernel's.
    pub fn has_proven_boot(&self) -> bool {
        boot::is_proven(&self.boot)
    }

    /// The boot id and the cookie, in the format that `parse` reads.
    pub fn text(&self) -> String {
        let cookie = self.cookie.map_or_else(|| "-".into(), |cookie| cookie.to_string());
        format!("{} {cookie}", self.boot)
    }

    /// Reads the boot id and the cookie. Up to 0.2.0 three more words were between them: device, inode, and time of the inode.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.trim_end_matches('\n').split(' ').collect();
        let ([boot, cookie] | [boot, _, _, _, cookie]) = words[..] else { return None };
        let cookie = match cookie {
            "-" => None,
            cookie => Some(cookie.parse().ok()?),
        };
        Some(Self { boot: boot.into(), cookie })
    }
}

impl Serialize for Identity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Identity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom("not the identity of a namespace"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(boot: &str, cookie: Option<u64>) -> Identity {
        Identity { boot: boot.into(), cookie }
    }

    #[test]
    fn an_unknown_identity_is_not_the_same() {
        let one = identity("b", Some(3));
        assert!(one.is(&one.clone()));
        for (one, other) in [
            (identity("b", Some(3)), identity("b", Some(4))),
            (identity("b", Some(3)), identity("c", Some(3))),
            (identity("b", None), identity("b", None)),
            (identity("", Some(3)), identity("", Some(3))),
        ] {
            assert!(!one.is(&other), "{one:?} {other:?}");
        }
    }

    #[test]
    fn another_cookie_or_a_proven_boot_is_another_namespace() {
        for (one, other, expected) in [
            (("b", Some(3)), ("b", Some(3)), false),
            (("b", Some(3)), ("b", Some(4)), true),
            (("b", Some(3)), ("c", Some(3)), true),
            (("b", Some(3)), ("covered-c", Some(3)), false),
            (("b", Some(3)), ("covered-c", Some(4)), true),
            (("b", Some(3)), ("", Some(3)), false),
            (("b", None), ("b", Some(3)), false),
            (("b", None), ("c", None), true),
        ] {
            let is_another = identity(one.0, one.1).is_another(&identity(other.0, other.1));
            assert_eq!(is_another, expected, "{one:?} {other:?}");
        }
    }

    #[test]
    fn only_a_known_boot_is_another_one() {
        let of = |boot| identity(boot, None);
        assert!(of("b").is_of_another_boot(&of("c")));
        for (one, other) in [("b", "b"), ("", "b"), ("b", "")] {
            assert!(!of(one).is_of_another_boot(&of(other)), "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_text_is_read_as_it_was_written() {
        for written in [identity("b", Some(u64::MAX)), identity("b", None), identity("", Some(3))] {
            assert_eq!(Identity::parse(&format!("{}\n", written.text())), Some(written));
        }
        assert_eq!(Identity::parse("b 4 9 1.7 3"), Some(identity("b", Some(3))));
        for text in ["", "b", "b 4 9 1.7", "b x", "b 4 9 1.7 3 x"] {
            assert_eq!(Identity::parse(text), None, "{text:?}");
        }
    }
}
