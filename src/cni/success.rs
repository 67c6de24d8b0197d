//! The result of ADD, in the shape of the newest version.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;

use crate::cni::text;

/// Source: CNI specification 1.1.0, section 5, "Add Success". Fields that are empty or 0 are left out when printed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Success {
    pub interfaces: Vec<Interface>,
    pub ips: Vec<Ip>,
    pub routes: Vec<Route>,
    pub dns: Dns,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    pub name: String,
    /// In the spelling of the plugin that wrote it.
    pub mac: String,
    pub mtu: u32,
    /// The path of the interface's namespace; empty on the host.
    pub sandbox: String,
    pub socket_path: String,
    #[serde(rename = "pciID")]
    pub pci_id: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Ip {
    #[serde(deserialize_with = "text::cidr")]
    pub address: IpNet,
    #[serde(default, deserialize_with = "text::optional_ip")]
    pub gateway: Option<IpAddr>,
    /// Index into `interfaces`.
    #[serde(default)]
    pub interface: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Route {
    #[serde(deserialize_with = "text::cidr")]
    pub dst: IpNet,
    #[serde(default, deserialize_with = "text::optional_ip")]
    pub gw: Option<IpAddr>,
    /// In bytes, like `advmss`. 0 means that the kernel chooses.
    #[serde(default)]
    pub mtu: u32,
    #[serde(default)]
    pub advmss: u32,
    #[serde(default)]
    pub priority: u32,
    /// `None` is the main table.
    #[serde(default)]
    pub table: Option<u32>,
    /// As in linux/rtnetlink.h: 0 universe, 253 link, 254 host.
    #[serde(default)]
    pub scope: Option<u8>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Dns {
    pub nameservers: Vec<String>,
    pub domain: String,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

/// The result of versions 0.1.0 and 0.2.0: at most one address per family, and no interfaces.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct LegacyResult {
    pub(super) ip4: Option<LegacyIp>,
    pub(super) ip6: Option<LegacyIp>,
    pub(super) dns: Dns,
}

#[derive(Deserialize)]
pub(super) struct LegacyIp {
    #[serde(deserialize_with = "text::cidr")]
    pub(super) ip: IpNet,
    #[serde(default, deserialize_with = "text::optional_ip")]
    pub(super) gateway: Option<IpAddr>,
    #[serde(default)]
    pub(super) routes: Vec<Route>,
}

impl Route {
    /// The default route of the gateway's family.
    pub fn default_via(gateway: IpAddr) -> Self {
        let dst = match gateway {
            IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
        };
        Self { dst, gw: Some(gateway), mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

impl Dns {
    pub fn is_empty(&self) -> bool {
        self.nameservers.is_empty()
            && self.domain.is_empty()
            && self.search.is_empty()
            && self.options.is_empty()
    }
}

impl Success {
    /// The index of an interface in a namespace. The last one counts if several match.
    pub fn interface_index(&self, name: &str, sandbox: &str) -> Option<usize> {
        self.interfaces.iter().rposition(|it| it.name == name && it.sandbox == sandbox)
    }

    /// All addresses, with the prefix lengths of their subnets.
    pub fn nets(&self) -> Vec<IpNet> {
        self.ips.iter().map(|ip| ip.address).collect()
    }

    /// The addresses of one interface. An address without an interface belongs to all.
    pub fn ips_of(&self, index: usize) -> impl Iterator<Item = &Ip> {
        self.ips.iter().filter(move |ip| ip.interface.is_none_or(|it| it as usize == index))
    }
}
