//! Leases and their keys. All times are since boot on CLOCK_BOOTTIME, which goes on during suspend.

use std::fmt::{self, Display};

use ipnet::{IpNet, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::dhcp::time::Time;
use crate::names::{Attachment, NetworkName};

/// The owner of a lease: one interface of one container in one network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub network: NetworkName,
    #[serde(flatten)]
    pub at: Attachment,
}

impl Key {
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
        write!(f, "{}/{}/{}", self.at.container_id, self.network, self.at.ifname)
    }
}

/// The leases that an interface has at one time, one for each family.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Leases {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v4: Option<v4::Lease>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v6: Option<v6::Lease>,
}

impl Leases {
    /// Whether the leases of `self` and `other` configure the interface in the same way. Servers and times can differ.
    pub fn same_terms(&self, other: &Self) -> bool {
        let terms = |leases: &Self| {
            (leases.v4.as_ref().map(v4::Lease::terms), leases.v6.as_ref().map(v6::Lease::terms))
        };
        terms(self) == terms(other)
    }

    /// The IPv4 address with the prefix length of its subnet.
    pub fn v4_net(&self) -> Option<IpNet> {
        self.v4.as_ref().map(|lease| IpNet::V4(lease.address))
    }

    /// The IPv6 address with the prefix length 128.
    pub fn v6_net(&self) -> Option<IpNet> {
        self.v6.as_ref().map(|lease| Ipv6Net::from(lease.address).into())
    }

    /// The time of the first renewal. `None`: there is no lease.
    pub fn renew_at(&self) -> Option<Time> {
        let v4 = self.v4.as_ref().map(|lease| lease.renew_at);
        Time::first(v4, self.v6.as_ref().map(|lease| lease.renew_at))
    }

    /// The time of the first rebinding. `None`: there is no lease.
    pub fn rebind_at(&self) -> Option<Time> {
        let v4 = self.v4.as_ref().map(|lease| lease.rebind_at);
        Time::first(v4, self.v6.as_ref().map(|lease| lease.rebind_at))
    }

    /// The MTU in bytes, if the DHCPv4 server sent one.
    pub fn mtu(&self) -> Option<u32> {
        self.v4.as_ref()?.mtu.map(u32::from)
    }
}

pub mod v4 {
    //! A lease of an IPv4 address.

    use crate::dhcp::time::Time;
    use std::net::Ipv4Addr;

    use ipnet::Ipv4Net;
    use serde::{Deserialize, Serialize};

    /// A route to a destination via a router.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Route {
        pub dst: Ipv4Net,
        #[serde(rename = "gw")]
        pub router: Ipv4Addr,
    }

    /// An address with a lease time. `v4::grant` validates every value.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub struct Lease {
        /// The address with the prefix length of its subnet.
        pub address: Ipv4Net,
        /// The server identifier, to which renewals and the release go.
        pub server: Ipv4Addr,
        /// The first router (option 3).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub gateway: Option<Ipv4Addr>,
        /// All routes of the result in the order of the server, with the default route via the gateway if the server sent no
        /// classless routes. A router of 0.0.0.0 means that the destination is on the link.
        pub routes: Vec<Route>,
        /// The MTU in bytes, at least 576.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub mtu: Option<u16>,
        pub dns: Vec<Ipv4Addr>,
        /// A domain name of letters, digits, `-`, `_` and dots; can be empty.
        pub domain: String,
        pub search: Vec<String>,
        /// The time at which the client sent the request that the server granted.
        pub since: Time,
        /// T1 (RFC 2131, section 4.4.5).
        pub renew_at: Time,
        /// T2.
        pub rebind_at: Time,
        /// `None`: the lease is infinite. `renew_at` and `rebind_at` are 136 years away.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub ends_at: Option<Time>,
    }

    impl Lease {
        /// The lease without its server and its times: it configures the interface in the same way.
        pub fn terms(&self) -> Self {
            let (since, renew_at, rebind_at) = (Time::ZERO, Time::ZERO, Time::ZERO);
            let server = Ipv4Addr::UNSPECIFIED;
            Self { server, since, renew_at, rebind_at, ends_at: None, ..self.clone() }
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

    use serde::{Deserialize, Serialize};

    /// A non-temporary address with a time limit. The prefix length of the link comes from router advertisements.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub struct Lease {
        pub address: Ipv6Addr,
        /// The DUID of the server, at most 130 bytes.
        pub server: Vec<u8>,
        pub dns: Vec<Ipv6Addr>,
        pub search: Vec<String>,
        /// The time at which the client sent the request that the server granted.
        pub since: Time,
        /// T1 (RFC 8415, section 21.4).
        pub renew_at: Time,
        /// T2.
        pub rebind_at: Time,
        /// The end of the preferred lifetime. `None`: infinite.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub preferred_until: Option<Time>,
        /// The end of the valid lifetime. `None`: infinite.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub ends_at: Option<Time>,
    }

    impl Lease {
        /// The lease without its server and its times: it configures the interface in the same way.
        pub fn terms(&self) -> Self {
            let (since, renew_at, rebind_at) = (Time::ZERO, Time::ZERO, Time::ZERO);
            let (server, preferred_until, ends_at) = (Vec::new(), None, None);
            Self { server, since, renew_at, rebind_at, preferred_until, ends_at, ..self.clone() }
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
    use crate::names::{ContainerId, IfName};

    #[test]
    fn client_id_is_that_of_the_reference() {
        let key = |id: &str| Key {
            network: NetworkName::new("mynet").unwrap(),
            at: Attachment {
                container_id: ContainerId::new(id).unwrap(),
                ifname: IfName::new("eth0").unwrap(),
            },
        };
        assert_eq!(key("abc").client_id(), b"\0abc/mynet/eth0");
        assert_eq!(key(&"a".repeat(300)).client_id().len(), 255);
    }
}
