//! Leases and their keys. All times are since boot on CLOCK_BOOTTIME, which goes on during suspend.

use std::fmt::{self, Display};

use crate::names::{Attachment, ContainerId, IfName, NetworkName};

/// The owner of a lease: one interface of one container in one network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub network: NetworkName,
    pub container_id: ContainerId,
    pub ifname: IfName,
}

impl Key {
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.container_id.clone(), ifname: self.ifname.clone() }
    }

    /// The default value of option 61: a zero byte and `CONTAINER/NETWORK/INTERFACE`, as the reference sends it. The text
    /// is cut after 254 bytes.
    pub fn client_id(&self) -> Vec<u8> {
        let mut id = vec![0];
        id.extend_from_slice(self.to_string().as_bytes());
        id.truncate(255);
        id
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.container_id, self.network, self.ifname)
    }
}

pub mod v4 {
    //! A lease of an IPv4 address.

    use crate::dhcp::time::Time;
    use std::net::Ipv4Addr;

    use ipnet::Ipv4Net;

    /// An address with a time limit. Every value is checked: nothing here is out of range.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Lease {
        /// The address with the prefix length of its subnet.
        pub address: Ipv4Net,
        /// The server identifier, to which renewals and the release go.
        pub server: Ipv4Addr,
        /// The first router (option 3).
        pub gateway: Option<Ipv4Addr>,
        /// All routes of the result in the order of the server, with the default route via the gateway if the server sent no
        /// classless routes. A router of 0.0.0.0 means that the destination is on the link.
        pub routes: Vec<(Ipv4Net, Ipv4Addr)>,
        /// In bytes, at least 576.
        pub mtu: Option<u16>,
        pub dns: Vec<Ipv4Addr>,
        /// A domain name of letters, digits, `-`, `_` and dots; can be empty.
        pub domain: String,
        pub search: Vec<String>,
        /// The time of the request that the server granted.
        pub since: Time,
        pub renew_at: Time,
        pub rebind_at: Time,
        /// `None`: the lease is infinite. `renew_at` and `rebind_at` are 136 years away.
        pub ends_at: Option<Time>,
    }

    impl Lease {
        /// A lease to read the fields of another into.
        pub fn empty() -> Self {
            Self {
                address: Ipv4Net::default(),
                server: Ipv4Addr::UNSPECIFIED,
                gateway: None,
                routes: Vec::new(),
                mtu: None,
                dns: Vec::new(),
                domain: String::new(),
                search: Vec::new(),
                since: Time::ZERO,
                renew_at: Time::ZERO,
                rebind_at: Time::ZERO,
                ends_at: None,
            }
        }

        /// Whether both leases say the same about the interface. The server and the times can differ.
        pub fn says_the_same(&self, other: &Self) -> bool {
            let Self { server, since, renew_at, rebind_at, ends_at, .. } = *other;
            *other == Self { server, since, renew_at, rebind_at, ends_at, ..self.clone() }
        }

        /// Whether the lease has ended.
        pub fn is_over(&self, now: Time) -> bool {
            self.ends_at.is_some_and(|end| end <= now)
        }
    }
}

pub mod v6 {
    //! A lease of an IPv6 address (IA_NA).

    use crate::dhcp::time::Time;
    use std::net::Ipv6Addr;

    /// A non-temporary address with a time limit. The prefix length of the link comes from router advertisements.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Lease {
        pub address: Ipv6Addr,
        /// The DUID of the server, at most 130 bytes.
        pub server: Vec<u8>,
        pub dns: Vec<Ipv6Addr>,
        pub search: Vec<String>,
        /// The time of the request that the server granted.
        pub since: Time,
        pub renew_at: Time,
        pub rebind_at: Time,
        /// The end of the preferred lifetime. `None`: infinite.
        pub preferred_until: Option<Time>,
        /// The end of the valid lifetime. `None`: infinite.
        pub ends_at: Option<Time>,
    }

    impl Lease {
        /// A lease to read the fields of another into.
        pub fn empty() -> Self {
            Self {
                address: Ipv6Addr::UNSPECIFIED,
                server: Vec::new(),
                dns: Vec::new(),
                search: Vec::new(),
                since: Time::ZERO,
                renew_at: Time::ZERO,
                rebind_at: Time::ZERO,
                preferred_until: None,
                ends_at: None,
            }
        }

        /// Whether both leases say the same about the interface. The server and the times can differ.
        pub fn says_the_same(&self, other: &Self) -> bool {
            (self.address, &self.dns, &self.search) == (other.address, &other.dns, &other.search)
        }

        /// Whether the valid lifetime has ended.
        pub fn is_over(&self, now: Time) -> bool {
            self.ends_at.is_some_and(|end| end <= now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_id_is_that_of_the_reference() {
        let key = |id: &str| Key {
            network: NetworkName::new("mynet").unwrap(),
            container_id: ContainerId::new(id).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        };
        assert_eq!(key("abc").client_id(), b"\0abc/mynet/eth0");
        assert_eq!(key(&"a".repeat(300)).client_id().len(), 255);
    }
}
