//! What netavark writes to the stdin of a driver.
//!
//! Source: netavark, plugin-API.md; podman 5 leaves out or writes `null` for what is not set.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::json::{Map, keys};

keys! {
    /// The network, as podman keeps it.
    pub struct Object {
        "name" => pub name: String,
        "id" => pub id: String,
        "network_interface" => pub interface: String,
        "subnets" => pub subnets: Vec<Subnet>,
        "routes" => pub routes: Vec<Route>,
        "ipv6_enabled" => pub has_ipv6: bool,
        "internal" => pub is_internal: bool,
        "network_dns_servers" => pub dns_servers: Vec<String>,
        "options" => pub options: Map<String>,
        "ipam_options" => pub ipam_options: Map<String>,
    }

    pub struct Subnet requires "subnet" {
        "subnet" => pub subnet: IpNet,
        "gateway" => pub gateway: Option<IpAddr>,
        "lease_range" => pub lease: LeaseRange,
    }

    pub struct LeaseRange {
        "start_ip" => pub start: Option<IpAddr>,
        "end_ip" => pub end: Option<IpAddr>,
    }

    pub struct Route requires "destination" {
        "destination" => pub destination: IpNet,
        "gateway" => pub gateway: Option<IpAddr>,
        "metric" => pub metric: Option<u32>,
    }

    /// A container that joins or leaves a network.
    pub struct Call {
        "container_id" => pub container_id: String,
        "container_name" => pub container_name: String,
        "port_mappings" => pub port_mappings: Vec<PortMapping>,
        "network" => pub network: Object,
        "network_options" => pub own: OfContainer,
    }

    pub struct PortMapping {
        "container_port" => container_port: u16,
        "host_ip" => host_ip: String,
        "host_port" => host_port: u16,
        /// One or more protocols, separated by commas.
        "protocol" => protocol: String,
        /// The number of ports from the first ones on. 0 means 1.
        "range" => range: u16,
    }

    /// What `podman run --network NAME:OPTIONS` says for one network.
    pub struct OfContainer {
        "aliases" => pub aliases: Vec<String>,
        "interface_name" => pub ifname: String,
        "static_ips" => pub ips: Vec<String>,
        "static_mac" => pub mac: String,
        "options" => pub options: Map<String>,
    }
}

impl Object {
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.0.iter().rfind(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The subnets, without the bits of a host.
    pub fn nets(&self) -> impl Iterator<Item = IpNet> {
        self.subnets.iter().map(|subnet| subnet.subnet.trunc())
    }

    /// The word of `--ipam-driver`.
    pub fn ipam_driver(&self) -> Option<&str> {
        let mut options = self.ipam_options.0.iter();
        options.rfind(|(name, _)| name == "driver").map(|(_, value)| value.as_str())
    }
}

impl PortMapping {
    /// The options `--publish` of podman, one for each protocol.
    pub fn options(&self) -> impl Iterator<Item = String> {
        let ports = |first: u16| match self.range {
            0 | 1 => first.to_string(),
            // The parser of the option refuses a port above 65535.
            count => format!("{first}-{}", u32::from(first) + u32::from(count) - 1),
        };
        let host_ip = match self.host_ip.as_str() {
            "" => String::new(),
            ip if ip.contains(':') => format!("[{ip}]:"),
            ip => format!("{ip}:"),
        };
        let mapping = format!("{host_ip}{}:{}", ports(self.host_port), ports(self.container_port));
        self.protocol.split(',').map(str::trim).map(move |protocol| match protocol {
            "" => mapping.clone(),
            protocol => format!("{mapping}/{protocol}"),
        })
    }
}
