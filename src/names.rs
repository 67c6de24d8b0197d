//! Validated names: the constructors check the text, so a value of these types is always valid.

pub mod reserved;

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Code, Error, Result};

/// The longest name of a network interface, in bytes: IFNAMSIZ without its NUL (linux/if.h).
pub const IFNAME_BYTES_MAX: usize = 15;

/// The longest alternative name of a network interface, in bytes: ALTIFNAMSIZ without its NUL (linux/if.h).
const ALT_NAME_BYTES_MAX: usize = 127;

/// The name of a network interface: 1 to 15 bytes, not `.` or `..`, without `/`, `:`, `%`, NUL and white space.
///
/// Source: `dev_valid_name` and, for `%`, `dev_alloc_name` of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IfName(String);

/// A name that finds an existing network interface: its name, or an alternative name of up to 127 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkName(String);

/// The id of a container: an ASCII letter or digit, then letters, digits, `_`, `.` or `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerId(String);

/// The name of a network; the same characters as a container id, so it is also a safe file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkName(String);

/// One interface of one container: the owner of everything that its ADD makes.
///
/// Source: CNI specification 1.1.0, section 3, "Lifecycle & Ordering".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attachment {
    #[serde(rename = "containerID")]
    pub container_id: ContainerId,
    pub ifname: IfName,
}

impl Attachment {
    /// The attachment in words: `eth0 of container 3f2a in network dbnet`.
    pub fn title(&self, network: &NetworkName) -> String {
        format!("{} of container {} in network {network}", self.ifname, self.container_id)
    }
}

/// The 64-bit FNV-1a hash of a text or of bytes.
pub fn hash(bytes: impl AsRef<[u8]>) -> u64 {
    bytes.as_ref().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The hardware address of an Ethernet interface. Written and read as `02:00:5e:10:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// The type of a route, by the words of `ip route`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteType {
    #[default]
    Unicast,
    /// Packets are dropped.
    Blackhole,
    /// Packets are refused with "host unreachable".
    Unreachable,
    /// Packets are refused with "administratively prohibited".
    Prohibit,
}

impl RouteType {
    const ALL: [(&'static str, Self); 4] = [
        ("unicast", Self::Unicast),
        ("blackhole", Self::Blackhole),
        ("unreachable", Self::Unreachable),
        ("prohibit", Self::Prohibit),
    ];

    pub fn text(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(text, _)| text)
    }

    /// The word before the destination of a route, as `ip route` prints it.
    #[cfg(feature = "tool")]
    pub fn prefix(self) -> String {
        if self.rejects() { format!("{} ", self.text()) } else { String::new() }
    }

    /// Whether packets to the destination go nowhere. Such a route has no interface, so the kernel does not remove it with one.
    pub fn rejects(self) -> bool {
        self != Self::Unicast
    }
}

impl FromStr for RouteType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|(name, _)| *name == text);
        named.map(|(_, kind)| kind).ok_or_else(|| {
            let all = Self::ALL.map(|(name, _)| name).join(", ");
            format!("unknown type of a route {text:?}: not one of {all}")
        })
    }
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpFamily {
    V4,
    V6,
}

impl IfName {
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        check_name(&name, IFNAME_BYTES_MAX).map(|()| Self(name))
    }
}

impl LinkName {
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        check_name(&name, ALT_NAME_BYTES_MAX).map(|()| Self(name))
    }
}

/// Fails if an interface cannot have this name, which has `bytes_max` bytes at most.
fn check_name(name: &str, bytes_max: usize) -> Result<()> {
    let error = |msg: String| Error::new(Code::INVALID_ENVIRONMENT, msg);
    let invalid = |details: String| {
        error(format!("interface name {name:?} is invalid")).with_details(details)
    };
    if name.is_empty() {
        return Err(error("interface name is empty".into()));
    }
    if name.len() > bytes_max {
        let limit = bytes_max + 1;
        return Err(error(format!("interface name is too long: {name:?}"))
            .with_details(format_args!("interface name should be less than {limit} characters")));
    }
    if name == "." || name == ".." {
        return Err(invalid("it is a directory".into()));
    }
    // The kernel reads a name with `%` as a pattern and chooses another name: dev_alloc_name().
    let is_bad = |c: &char| matches!(c, '/' | ':' | '%' | '\0') || c.is_whitespace();
    match name.chars().find(is_bad) {
        Some(c) => Err(invalid(format!("it contains {c:?}"))),
        None => Ok(()),
    }
}

impl ContainerId {
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        if is_identifier(&id) {
            return Ok(Self(id));
        }
        Err(Error::new(Code::INVALID_ENVIRONMENT, "invalid characters in containerID")
            .with_details(id))
    }
}

impl NetworkName {
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if name.is_empty() {
            return Err(Error::config("missing network name"));
        }
        if is_identifier(&name) {
            return Ok(Self(name));
        }
        Err(Error::config("invalid characters found in network name").with_details(name))
    }
}

/// In JSON, a name is a string. Deserialization checks it.
macro_rules! strings {
    ($($name:ident: $read:expr;)+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $read(String::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }
    )+};
}
strings! {
    IfName: Self::new;
    ContainerId: Self::new;
    NetworkName: Self::new;
    Mac: |text: String| text.parse::<Self>();
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

impl Mac {
    /// Whether an interface can have the address: it is neither a group address nor zero.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }

    /// Parses a MAC address of a configuration or of CNI_ARGS. The error has the message of the reference.
    pub fn of_argument(text: &str) -> Result<Self> {
        text.parse().map_err(|_| Self::invalid_argument(text))
    }

    /// The error for a text that is no unicast MAC address.
    pub fn invalid_argument(text: &str) -> Error {
        Error::config(format_args!("invalid args {text} for MAC addr")).with_details("mac")
    }
}

impl IpFamily {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Whether the address is of this family.
    pub fn has(self, address: IpAddr) -> bool {
        Self::of(address) == self
    }

    /// The length of an address in bits.
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The prefix that contains all addresses of the family: `0.0.0.0/0` or `::/0`.
    pub fn everything(self) -> IpNet {
        match self {
            Self::V4 => Ipv4Net::default().into(),
            Self::V6 => Ipv6Net::default().into(),
        }
    }
}

impl FromStr for Mac {
    type Err = Error;

    /// Six bytes in hexadecimal: `aa:bb:cc:dd:ee:ff`, `aa-bb-cc-dd-ee-ff` or `aabb.ccdd.eeff`, in either case.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = || Error::config(format_args!("address {text}: invalid MAC address"));
        let separator = text.chars().find(|c| !c.is_ascii_hexdigit()).ok_or_else(invalid)?;
        let digits_per_group = match separator {
            ':' | '-' => 2,
            '.' => 4,
            _ => return Err(invalid()),
        };
        let groups: Vec<&str> = text.split(separator).collect();
        if groups.len() * digits_per_group != 12
            || groups.iter().any(|group| group.len() != digits_per_group)
        {
            return Err(invalid());
        }
        let value = u64::from_str_radix(&groups.concat(), 16).map_err(|_| invalid())?;
        let [_, _, bytes @ ..] = value.to_be_bytes();
        Ok(Self(bytes))
    }
}

impl Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.container_id, self.ifname)
    }
}

macro_rules! text {
    ($($name:ty),*) => {$(
        impl std::ops::Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
text!(IfName, LinkName, ContainerId, NetworkName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names() {
        for name in ["eth0", "a", "br-lan.100", "fifteen-bytes-x", "é"] {
            assert!(IfName::new(name).is_ok(), "{name}");
        }
        for name in
            ["", ".", "..", "a/b", "a:b", "a b", "a\u{a0}b", "a%d", "sixteen-bytes-xy", "éééééééé"]
        {
            assert_eq!(IfName::new(name).unwrap_err().code, Code::INVALID_ENVIRONMENT, "{name}");
        }
    }

    #[test]
    fn an_alternative_name_can_be_longer() {
        for (name, is_valid) in
            [("x".repeat(15), true), ("x".repeat(127), true), ("x".repeat(128), false)]
        {
            assert_eq!(LinkName::new(name.as_str()).is_ok(), is_valid, "{name}");
        }
    }

    #[test]
    fn identifiers() {
        for id in ["a", "0", "a_b.c-d", "1234567890abcdef"] {
            assert!(ContainerId::new(id).is_ok() && NetworkName::new(id).is_ok(), "{id}");
        }
        for id in ["", "-a", ".a", "_a", "a/b", "a\n", "ä", "a b"] {
            assert_eq!(ContainerId::new(id).unwrap_err().code, Code::INVALID_ENVIRONMENT, "{id}");
            assert_eq!(NetworkName::new(id).unwrap_err().code, Code::INVALID_CONFIG, "{id}");
        }
    }

    #[test]
    fn mac_addresses() {
        for text in ["02:00:5e:10:00:01", "02-00-5E-10-00-01", "0200.5e10.0001"] {
            let mac: Mac = text.parse().unwrap();
            assert_eq!(mac.to_string(), "02:00:5e:10:00:01");
        }
        for text in [
            "",
            "02",
            "02005e100001",
            "02:00:5e:10:00",
            "02:00:5e:10:00:01:02:03",
            "0g:00:5e:10:00:01",
            "02:00:5e-10:00:01",
            "+2:00:5e:10:00:01",
            "2:00:5e:10:00:001",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }
}
