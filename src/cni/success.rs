//! The result of an ADD, in the format of the newest version.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::cni::json::keys;
use crate::names::RouteType;

keys! {
    /// Source: CNI specification 1.1.0, section 5, "Add Success". Fields that are empty or 0 are left out when printed.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Success {
        "interfaces" => pub interfaces: Vec<Interface>,
        "ips" => pub ips: Vec<Ip>,
        "routes" => pub routes: Vec<Route>,
        "dns" => pub dns: Dns,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub struct Interface {
        "name" => pub name: String,
        /// The text of the MAC address as the plugin wrote it, not normalized.
        "mac" => pub mac: String,
        "mtu" => pub mtu: u32,
        /// The path of the interface's namespace; empty on the host.
        "sandbox" => pub sandbox: String,
        "socketPath" => pub socket_path: String,
        "pciID" => pub pci_id: String,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub struct Ip requires "address" {
        "address" => pub address: IpNet,
        "gateway" => pub gateway: Option<IpAddr>,
        /// The index of the address's interface in `interfaces`.
        "interface" => pub interface: Option<u32>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub struct Route requires "dst" {
        "dst" => pub dst: IpNet,
        "gw" => pub gw: Option<IpAddr>,
        /// In bytes, as is `advmss`. 0 means that the kernel chooses.
        "mtu" => pub mtu: u32,
        "advmss" => pub advmss: u32,
        "priority" => pub priority: u32,
        /// `None` is the main table.
        "table" => pub table: Option<u32>,
        /// The scope as in linux/rtnetlink.h: 0 universe, 253 link, 254 host.
        "scope" => pub scope: Option<u8>,
        /// A key of cnibox. A route that rejects packets has neither a gateway nor an interface.
        "type" => pub kind: RouteType,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub struct Dns {
        "nameservers" => pub nameservers: Vec<String>,
        "domain" => pub domain: String,
        "search" => pub search: Vec<String>,
        "options" => pub options: Vec<String>,
    }

    /// The result of versions 0.1.0 and 0.2.0: at most one address per family, and no interfaces.
    pub(super) struct LegacyResult {
        "ip4" => pub(super) ip4: Option<LegacyIp>,
        "ip6" => pub(super) ip6: Option<LegacyIp>,
        "dns" => pub(super) dns: Dns,
    }

    pub(super) struct LegacyIp requires "ip" {
        "ip" => pub(super) ip: IpNet,
        "gateway" => pub(super) gateway: Option<IpAddr>,
        "routes" => pub(super) routes: Vec<Route>,
    }
}

impl Route {
    /// A default route via a gateway, of the gateway's family.
    pub fn default_via(gateway: IpAddr) -> Self {
        let dst = match gateway {
            IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
        };
        Self { dst, gw: Some(gateway), ..Self::default() }
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
    /// The index of the interface with this name and `sandbox`. If several match, the last one counts.
    pub fn interface_index(&self, name: &str, sandbox: &str) -> Option<usize> {
        self.interfaces
            .iter()
            .rposition(|interface| interface.name == name && interface.sandbox == sandbox)
    }

    /// All addresses, with the prefix lengths of their subnets.
    pub fn nets(&self) -> Vec<IpNet> {
        self.ips.iter().map(|ip| ip.address).collect()
    }

    /// The addresses of the interface with this index. An address without an interface belongs to each interface.
    pub fn ips_of(&self, index: usize) -> impl Iterator<Item = &Ip> {
        self.ips
            .iter()
            .filter(move |ip| ip.interface.is_none_or(|interface| interface as usize == index))
    }
}
