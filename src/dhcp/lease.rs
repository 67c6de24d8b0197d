//! Leases and their keys. All times are since boot on CLOCK_BOOTTIME, which goes on during suspend.

use std::fmt::{self, Display};

use ipnet::{IpNet, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::names::{Attachment, ContainerId, IfName, NetworkName};

/// The owner of a lease: one interface of one container in one network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub network: NetworkName,
    #[serde(rename = "containerID")]
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

/// The leases that an interface has at one time, one for each family.
#[derive(Clone, Default)]
pub struct Leases {
    pub v4: Option<v4::Lease>,
    pub v6: Option<v6::Lease>,
}

impl Leases {
    /// Whether the leases of `self` and `other` configure the interface in the same way. Servers and times can differ.
    pub fn same_terms(&self, other: &Self) -> bool {
        let v4 = match (&self.v4, &other.v4) {
            (Some(one), Some(other)) => one.same_terms(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let v6 = match (&self.v6, &other.v6) {
            (Some(one), Some(other)) => one.same_terms(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        v4 && v6
    }

    /// The IPv4 address with the prefix length of its subnet.
    pub fn v4_net(&self) -> Option<IpNet> {
        self.v4.as_ref().map(|lease| IpNet::V4(lease.address))
    }

    /// The IPv6 address with the prefix length 128.
    pub fn v6_net(&self) -> Option<IpNet> {
        self.v6.as_ref().map(|lease| Ipv6Net::from(lease.address).into())
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
        #[serde(with = "super::routes")]
        pub routes: Vec<(Ipv4Net, Ipv4Addr)>,
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
        /// Whether both leases configure the interface in the same way. The server and the times can differ.
        pub fn same_terms(&self, other: &Self) -> bool {
            let Self { server, since, renew_at, rebind_at, ends_at, .. } = *other;
            *other == Self { server, since, renew_at, rebind_at, ends_at, ..self.clone() }
        }

        /// Whether the lease has ended.
        pub fn is_over(&self, now: Time) -> bool {
            self.ends_at.is_some_and(|end| end <= now)
        }
    }
}

/// Serializes routes as JSON objects with a destination and a gateway.
mod routes {
    use std::net::Ipv4Addr;

    use ipnet::Ipv4Net;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Route {
        dst: Ipv4Net,
        gw: Ipv4Addr,
    }

    pub(super) fn serialize<S: Serializer>(
        routes: &[(Ipv4Net, Ipv4Addr)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(routes.iter().map(|(dst, gw)| Route { dst: *dst, gw: *gw }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(Ipv4Net, Ipv4Addr)>, D::Error> {
        let routes = Vec::<Route>::deserialize(deserializer)?.into_iter();
        Ok(routes.map(|route| (route.dst, route.gw)).collect())
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
        /// Whether both leases configure the interface in the same way. The server and the times can differ.
        pub fn same_terms(&self, other: &Self) -> bool {
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
