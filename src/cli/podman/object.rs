//! What netavark writes to the stdin of a driver.
//!
//! Source: netavark, plugin-API.md; podman 5 leaves out or writes `null` for what is not set.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::json::{Json, Map, is_key, keys};
use crate::error::{Error, Result};
use crate::names::RouteType;

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
        "route_type" => pub kind: RouteType,
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

    /// The word of `--ipam-driver`.
    pub fn ipam_driver(&self) -> Option<&str> {
        let mut options = self.ipam_options.0.iter();
        options.rfind(|(name, _)| name == "driver").map(|(_, value)| value.as_str())
    }
}

/// The keys of a network that say nothing about its containers' interfaces, besides those of `Object`.
const WITHOUT_MEANING: [&str; 4] = ["driver", "created", "dns_enabled", "labels"];
const OF_IPAM: [&str; 1] = ["driver"];

/// Fails if the network has a key that this driver does not honour. A key with the value null, false or empty asks for nothing.
pub fn refuse_unknown(network: &Json) -> Result<()> {
    let items = |key: &str| match network.get(key) {
        Some(Json::Array(items)) => items.iter().enumerate().collect(),
        _ => Vec::new(),
    };
    known(network, "", &[Object::KEYS, &WITHOUT_MEANING].concat())?;
    if let Some(ipam) = network.get("ipam_options") {
        known(ipam, "ipam_options.", &OF_IPAM)?;
    }
    for (index, subnet) in items("subnets") {
        known(subnet, &format!("subnets[{index}]."), Subnet::KEYS)?;
        if let Some(lease) = subnet.get("lease_range") {
            known(lease, &format!("subnets[{index}].lease_range."), LeaseRange::KEYS)?;
        }
    }
    let mut routes = items("routes").into_iter();
    routes.try_for_each(|(at, route)| known(route, &format!("routes[{at}]."), Route::KEYS))
}

/// Fails if an object has another key than these. `prefix` is the path of the object.
fn known(object: &Json, prefix: &str, keys: &[&str]) -> Result<()> {
    let Json::Object(entries) = object else { return Ok(()) };
    let is_unknown = |(name, value): &&(String, Json)| {
        let is_empty = match value {
            Json::Null | Json::Bool(false) => true,
            Json::String(text) => text.is_empty(),
            Json::Array(items) => items.is_empty(),
            Json::Object(entries) => entries.is_empty(),
            _ => false,
        };
        !is_empty && !keys.iter().any(|key| is_key(name, key))
    };
    match entries.iter().find(is_unknown) {
        Some((name, value)) => {
            let value = value.to_compact();
            Err(Error::config(format_args!("{prefix}{name}: {value}: the driver has no such key")))
        }
        None => Ok(()),
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
