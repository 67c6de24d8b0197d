//! What netavark writes to the stdin of a driver.
//!
//! Source: netavark, plugin-API.md; podman 5 leaves out or writes `null` for what is not set.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cli::parameters::Published;
use crate::cni::json::{Json, Map, is_key, keys};
use crate::error::{Error, Result};
use crate::names::{Mac, RouteType};
use crate::netlink::nft::Transport;

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
        "dns_enabled" => pub has_names: bool,
        "network_dns_servers" => pub dns_servers: Vec<IpAddr>,
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
        "host_ip" => host_ip: Option<IpAddr>,
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
        "static_ips" => pub ips: Vec<IpAddr>,
        "static_mac" => pub mac: Option<Mac>,
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
const WITHOUT_MEANING: [&str; 3] = ["driver", "created", "labels"];
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
    /// The ports to publish, for each protocol.
    pub fn published(&self) -> Result<Vec<Published>> {
        let Self { container_port, host_ip: ip, host_port, protocol, range } = self;
        let of_protocol = |name: &str| {
            let last = |first: u16| first.checked_add(range.max(&1) - 1).filter(|_| first > 0);
            let name = if name.trim().is_empty() { "tcp" } else { name.trim() };
            Some(Published {
                ip: *ip,
                host: *host_port..=last(*host_port)?,
                container: *container_port..=last(*container_port)?,
                transport: Transport::named(name)?,
            })
        };
        let all: Option<_> = protocol.split(',').map(of_protocol).collect();
        all.ok_or_else(|| {
            let ports = format!("{host_port}:{container_port}/{protocol}, range {range}");
            let reason = "a port is from 1 to 65535, and its protocol tcp, udp or sctp";
            Error::config(format_args!("cannot publish {ports}: {reason}"))
        })
    }
}
