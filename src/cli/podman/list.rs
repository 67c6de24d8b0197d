//! The list of plugins of a network of podman: that of a file, or one that is made from podman's network object.

use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ipnet::{IpNet, Ipv6Net};

use super::object::Object;
use crate::cli::manual::{self, Manual};
use crate::cli::parameters::{RequestedIp, set_capability};
use crate::cni::json::{Json, is_key};
use crate::cni::success::Route;
use crate::error::{Error, Result};
use crate::ipam::range::{self, RangeConf};
use crate::names::{IfName, LinkName, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::conf::{self, Network};
use crate::runtime::new_network::{self, Addresses, Kind, NewNetwork};
pub use crate::runtime::podman::NETWORK;
use crate::runtime::podman::{self, OfPodman};

/// The option with the DNS servers of a network. podman refuses `network_dns_servers` without DNS of its own.
pub const DNS: &str = "dns";
/// The word of `ipam_options` where the plugins choose the addresses. podman chooses none then.
pub const IPAM: &str = "cnibox";
const OPTIONS: &str = "known are network, type, parent, mode, mtu, vlan, isolate, metric, plugins, dns and PLUGIN.KEY";
/// The options of a network that a file configures.
const OF_FILE: [&str; 3] = [NETWORK, DNS, "metric"];
/// The metric of default routes, as netavark has it: of several networks, each has one.
const METRIC: u32 = 100;

/// A key of a plugin, by the option `PLUGIN.KEY=VALUE`.
pub struct Key {
    plugin: String,
    key: String,
    value: Json,
}

impl Key {
    fn new(plugin: &str, key: &str, value: Json) -> Self {
        Self { plugin: plugin.into(), key: key.into(), value }
    }
}

/// The network of an object that `create` accepted, for a container that asks for these addresses.
pub fn network(runtime: &Runtime, object: &Object, ips: &[IpAddr]) -> Result<Network> {
    match object.option(NETWORK) {
        Some(name) => of_file(runtime, object, name),
        None => {
            let (mut new, keys) = new_network(object)?;
            // Only addresses that nobody asked for are of the range of leases.
            if let Some(ip) = ips.iter().find(|ip| !is_in(&new.subnets, ip))
                && new.addresses == Addresses::HostLocal
            {
                return Err(cannot_give(ip, &object.name, &new.subnets));
            }
            let is_asked = |net: &IpNet| ips.iter().any(|ip| net.contains(ip));
            new.leases.retain(|(net, _)| !is_asked(net));
            of_new(object, &new, keys)
        }
    }
}

/// The network with these parameters and keys.
pub fn of_new(object: &Object, new: &NewNetwork, keys: Vec<Key>) -> Result<Network> {
    let bridge = new.bridge.as_ref().map_or("", |bridge| bridge);
    let name = NetworkName::new(object.name.as_str())?;
    let mut list = new.list(&name, &new.subnets, bridge)?;
    // podman does not say that a network was removed. A bridge that the user named can be somebody else's.
    if bridge == own_bridge(object, new.vlan) {
        set_keys(&mut list, vec![Key::new("bridge", "removeUnused", Json::Bool(true))])?;
    }
    set_keys(&mut list, keys)?;
    Network::of_list(list)
}

/// The network of a file, with the metric of its default routes.
fn of_file(runtime: &Runtime, object: &Object, name: &str) -> Result<Network> {
    for (key, _) in &object.options.0 {
        if !OF_FILE.contains(&key.as_str()) {
            let all = OF_FILE.join(", ");
            return Err(Error::config(format_args!(
                "option {key}: not one of {all}, the options beside network=NAME"
            )));
        }
    }
    let of_podman = [
        ("--subnet", !object.subnets.is_empty()),
        ("--interface-name", !object.interface.is_empty()),
        ("--route", !object.routes.is_empty()),
        ("--ipv6", object.has_ipv6),
        ("--internal", object.is_internal),
    ];
    if let Some((flag, _)) = of_podman.iter().find(|(_, is_set)| *is_set) {
        let msg = format!("{flag}: the file of network {name} decides that");
        return Err(Error::config(msg));
    }
    if name.contains('/') && !Path::new(name).is_absolute() {
        let reason = "a relative path, but podman calls the driver in any directory";
        return Err(wrong(format!("{NETWORK}={name}: {reason}")));
    }
    if name.is_empty() {
        return Err(Error::config("option network=: the name of a network is missing"));
    }
    if let Some(servers) = object.option(DNS) {
        addresses(words(servers))?;
    }
    let mut list = crate::cli::parameters::find(runtime, name)?.list;
    let metric = object.option("metric").map(|metric| parse("metric", metric, "a number"));
    set_metric(&mut list, metric.transpose()?.unwrap_or(METRIC));
    accept_addresses(&mut list);
    Network::of_list(list)
}

fn cannot_give(ip: &IpAddr, network: &str, nets: &[IpNet]) -> Error {
    let nets: Vec<String> = nets.iter().map(IpNet::to_string).collect();
    let nets = nets.join(", ");
    Error::config(format_args!("cannot give address {ip}: network {network} has {nets}"))
}

/// The addresses to ask the plugins of a network for. podman also asks for those that a container has already, when it reloads a
/// network: `static` gives those of its configuration, and a DHCP server those that it chooses.
pub fn asked(network: &Network, name: &str, ips: &[IpAddr]) -> Result<Vec<RequestedIp>> {
    let has_dhcp = network.plugins.iter().any(|plugin| conf::delegates(plugin)[1] == "dhcp");
    let configured: Vec<IpNet> = network.plugins.iter().flat_map(addresses_of_static).collect();
    let is_given = |ip: &IpAddr| configured.iter().any(|net| net.addr() == *ip);
    match ips.iter().find(|ip| !is_given(ip)) {
        Some(ip) if !configured.is_empty() => Err(cannot_give(ip, name, &configured)),
        Some(_) if !has_dhcp => Ok(ips.iter().copied().map(RequestedIp::Address).collect()),
        _ => Ok(Vec::new()),
    }
}

/// The addresses in the configuration of the IPAM plugin `static`.
fn addresses_of_static(plugin: &Json) -> Vec<IpNet> {
    let ipam = plugin.get("ipam").filter(|ipam| conf::kind(ipam) == "static");
    let Some(Json::Array(all)) = ipam.and_then(|ipam| ipam.get("addresses")) else {
        return Vec::new();
    };
    all.iter().filter_map(|one| one.text_at("address")?.parse().ok()).collect()
}

/// Lets `host-local` have the addresses that podman asks for, also several.
fn accept_addresses(list: &mut Json) {
    for plugin in plugins_of(list) {
        if conf::delegates(plugin)[1] == "host-local" {
            let mut all = plugin.get("capabilities").cloned().unwrap_or(Json::Null);
            set_capability(&mut all, "ips", Json::Bool(true));
            plugin.set("capabilities", all);
        }
    }
}

fn plugins_of(list: &mut Json) -> &mut [Json] {
    match list.get_mut("plugins") {
        Some(Json::Array(plugins)) => plugins,
        _ => &mut [],
    }
}

/// Sets the metric of default routes without one, in the routes of IPAM plugins.
fn set_metric(json: &mut Json, metric: u32) {
    match json {
        Json::Array(values) => values.iter_mut().for_each(|value| set_metric(value, metric)),
        Json::Object(entries) => {
            // A DHCP server gives the default route of its lease.
            let is_default = |(key, value): &(String, Json)| match (key.as_str(), value) {
                ("dst", Json::String(dst)) => dst.ends_with("/0"),
                ("type", Json::String(kind)) => kind == "dhcp",
                _ => false,
            };
            let has_metric = entries.iter().any(|(key, _)| key == "priority");
            if entries.iter().any(is_default) && !has_metric {
                entries.push(("priority".into(), metric.into()));
            }
            for (key, value) in entries {
                if ["plugins", "ipam", "routes"].contains(&key.as_str()) {
                    set_metric(value, metric);
                }
            }
        }
        _ => {}
    }
}

/// The parameters of a network that podman's object configures, and the keys of its plugins.
pub fn new_network(object: &Object) -> Result<(NewNetwork, Vec<Key>)> {
    let kind = match object.option("type") {
        None => Kind::Bridge,
        Some(word) => {
            let named = Kind::ALL.into_iter().find(|(name, _)| *name == word);
            named.map(|(_, kind)| kind).ok_or_else(|| {
                let all = Kind::ALL.map(|(name, _)| name).join(", ");
                Error::config(format_args!("option type={word}: not one of {all}"))
            })?
        }
    };
    let mut new = NewNetwork {
        kind,
        is_internal: object.is_internal,
        metric: Some(METRIC),
        dns: object.dns_servers.clone(),
        ..NewNetwork::default()
    };
    for subnet in &object.subnets {
        let net = subnet.subnet.trunc();
        if let Some(gateway) = subnet.gateway.filter(|gateway| !net.contains(gateway)) {
            return Err(Error::config(format_args!("--gateway {gateway}: not in subnet {net}")));
        }
        new.subnets.push(net);
        new.gateways.extend(subnet.gateway);
        new.leases.push((net, [subnet.lease.start, subnet.lease.end]));
    }
    for route in &object.routes {
        let (dst, kind) = (route.destination, route.kind);
        if let Some(gateway) = route.gateway.filter(|_| kind.rejects()) {
            let msg = format!("--route {dst},{gateway}: a {} route has no gateway", kind.text());
            return Err(Error::config(msg));
        }
        let priority = route.metric.unwrap_or_default();
        new.routes.push(Route { dst, gw: route.gateway, priority, kind, ..Route::default() });
    }
    new.addresses = match object.ipam_driver() {
        Some("none") => Addresses::Nobody,
        Some("dhcp") => Addresses::Dhcp,
        Some("" | "host-local" | IPAM) | None => Addresses::HostLocal,
        Some(word) => {
            return Err(Error::config(format_args!(
                "--ipam-driver {word}: not host-local, dhcp or none"
            )));
        }
    };
    new.has_names = object.has_names && new.obstacle_to_names().is_none();
    let mut keys = Vec::new();
    for (key, value) in &object.options.0 {
        set_option(&mut new, &mut keys, key, value)?;
    }
    if !object.interface.is_empty() {
        let name = object.interface.as_str();
        if new.parent.as_ref().is_some_and(|parent| **parent != *name) {
            return Err(Error::config("--interface-name and the option parent exclude each other"));
        }
        match kind {
            Kind::Bridge => new.bridge = Some(IfName::new(name)?),
            _ => new.parent = Some(LinkName::new(name)?),
        }
    }
    if new.isolate.is_some()
        && new.chained.as_ref().is_some_and(|kinds| kinds.iter().all(|kind| kind != "firewall"))
    {
        return Err(Error::config("option isolate: it needs the plugin firewall"));
    }
    if object.is_internal && matches!(kind, Kind::Veth | Kind::Ptp) {
        return Err(Error::config(format_args!(
            "--internal: type {} does not have it",
            kind.text()
        )));
    }
    if kind == Kind::Vlan && (new.parent.is_none() || new.vlan.is_none()) {
        return Err(Error::config("a vlan needs the options parent=LINK and vlan=ID"));
    }
    Ok((new, keys))
}

fn set_option(new: &mut NewNetwork, keys: &mut Vec<Key>, key: &str, value: &str) -> Result<()> {
    if new.set_option(key, value).map_err(wrong)? {
        return Ok(());
    }
    match key {
        "type" => {}
        DNS => new.dns = addresses(words(value))?,
        "metric" => new.metric = Some(parse(key, value, "a number")?),
        "plugins" => new.chained = Some(words(value).map(str::to_owned).collect()),
        "parent" | "mode" | "vlan" | "isolate" => {
            let kind = new.kind.text();
            return Err(wrong(format!("{key}={value}: type {kind} does not have it")));
        }
        _ => match key.split_once('.') {
            Some((_, path)) if is_of_podman(path) => {
                return Err(wrong(format!("{key}={value}: podman's other options say that")));
            }
            Some((plugin, path)) if path.split('.').all(|key| !key.is_empty()) => {
                let value = Json::parse(value.as_bytes()).unwrap_or_else(|_| value.into());
                keys.push(Key::new(plugin, path, value));
            }
            _ => return Err(wrong(format!("{key}={value}: unknown")).with_details(OPTIONS)),
        },
    }
    Ok(())
}

/// Whether other options of podman set a key of a plugin, or the object that has it.
fn is_of_podman(path: &str) -> bool {
    let (first, below) = path.split_once('.').unwrap_or((path, ""));
    let is_one_of = |key: &str, keys: &[&str]| keys.iter().any(|known| is_key(key, known));
    match below {
        below if is_key(first, "ipam") => {
            let next = below.split('.').next().unwrap_or_default();
            is_one_of(
                next,
                &["", "type", "subnet", "ranges", "rangeStart", "rangeEnd", "gateway", "routes"],
            )
        }
        _ => is_one_of(first, &["type", "bridge", "master", "capabilities"]),
    }
}

/// The error about an option with this `KEY=VALUE` and reason.
fn wrong(reason: String) -> Error {
    Error::config(format_args!("option {reason}"))
}

/// The addresses of DNS servers.
pub fn addresses<'a>(servers: impl Iterator<Item = &'a str>) -> Result<Vec<IpAddr>> {
    servers.map(|word| parse(DNS, word, "an IP address")).collect()
}

pub fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split([',', ' ']).filter(|word| !word.is_empty())
}

fn parse<T: FromStr>(key: &str, value: &str, what: &str) -> Result<T> {
    new_network::parse(key, value, what).map_err(wrong)
}

/// Sets keys of plugins. Fails for a plugin that the list does not have.
fn set_keys(list: &mut Json, keys: Vec<Key>) -> Result<()> {
    for Key { plugin: kind, key, value } in keys {
        let mut plugins = plugins_of(list).iter_mut();
        let Some(plugin) = plugins.find(|plugin| conf::kind(plugin) == kind) else {
            return Err(Error::config(format_args!(
                "option {kind}.{key}: the network has no plugin {kind}"
            )));
        };
        set_at(plugin, &kind, &key, value)
            .map_err(|reason| Error::config(format_args!("option {kind}.{key}: {reason}")))?;
    }
    Ok(())
}

/// Sets the key at a path, such as `ipam.exclude`. In an object with any keys, such as `sysctl`, the rest of the path is one key.
fn set_at(plugin: &mut Json, kind: &str, path: &str, value: Json) -> Result<(), String> {
    let rows = manual::of(kind).map(Manual::keys).unwrap_or_default();
    // The type of the object that has the rest of the path.
    let of_type = |rest: &str| {
        let above = path.strip_suffix(rest).unwrap_or_default().trim_end_matches('.');
        rows.iter().find(|row| row.path == above).map_or("", |row| row.of_type)
    };
    let (mut object, mut rest) = (plugin, path);
    while let Some((first, below)) = rest.split_once('.')
        && !of_type(rest).starts_with("object of ")
    {
        if object.get(first).is_none() {
            if is_key(first, "ipam") {
                return Err("the network has no ipam".into());
            }
            object.set(first, Json::Object(Vec::new()));
        }
        object = match object.get_mut(first) {
            Some(found @ Json::Object(_)) => found,
            _ => return Err(format!("{first} is not an object")),
        };
        rest = below;
    }
    let is_number = matches!(value, Json::Number(_) | Json::Bool(_));
    let is_text = is_number && of_type(rest) == "object of strings";
    object.set(rest, if is_text { value.to_compact().into() } else { value });
    Ok(())
}

/// Chooses what the object leaves open: the bridge, and subnets.
pub fn complete(runtime: &Runtime, object: &Object, new: &mut NewNetwork) -> Result<()> {
    if new.kind == Kind::Bridge && new.bridge.is_none() {
        new.bridge = Some(IfName::new(own_bridge(object, new.vlan))?);
    }
    if new.subnets.is_empty() && new.kind == Kind::Macvlan && object.ipam_driver().is_none() {
        new.addresses = Addresses::Dhcp;
    }
    new.refuse_unusable()?;
    if new.addresses != Addresses::HostLocal {
        return refuse_addresses(object, new);
    }
    let mut others = podman::networks(&runtime.of_podman);
    others.retain(|other| other.id != object.id);
    new.refuse_taken(&others)?;
    let taken: Vec<IpNet> = others.iter().flat_map(OfPodman::nets).collect();
    new.subnets = runtime.free_subnets(new, &taken)?;
    if object.has_ipv6 && !new.subnets.iter().any(|net| matches!(net, IpNet::V6(_))) {
        new.subnets.push(unique_local(&object.id));
    }
    for Route { dst, gw, .. } in &new.routes {
        if let Some(gateway) = gw.filter(|gateway| !is_in(&new.subnets, gateway)) {
            let msg = format!("--route {dst},{gateway}: {gateway} is in no subnet of it");
            return Err(Error::config(msg));
        }
    }
    Ok(())
}

/// The bridge of a network without `network_interface`. Other networks of podman may have a bridge that does not exist yet, so
/// its name is from the id of the network. The gateway of a VLAN is a link with the name `BRIDGE.NUMBER`.
fn own_bridge(object: &Object, vlan: Option<u32>) -> String {
    let length = if vlan.is_some() { 7 } else { 12 };
    let id: String = object.id.chars().take(length).collect();
    format!("cnb{id}")
}

/// Fails for flags about addresses, if a DHCP server chooses them, or nobody.
fn refuse_addresses(object: &Object, new: &NewNetwork) -> Result<()> {
    let is_dhcp = new.addresses == Addresses::Dhcp;
    let flags = [
        ("--subnet", !object.subnets.is_empty()),
        ("--route", !object.routes.is_empty()),
        ("--ipv6", object.has_ipv6),
        ("--internal", object.is_internal && is_dhcp),
    ];
    match flags.iter().find(|(_, is_set)| *is_set) {
        Some((flag, _)) if is_dhcp => {
            Err(Error::config(format_args!("{flag}: a DHCP server decides that")))
        }
        Some((flag, _)) => Err(Error::config(format_args!("{flag}: there are no addresses"))),
        None => Ok(()),
    }
}

fn is_in(subnets: &[IpNet], address: &IpAddr) -> bool {
    subnets.iter().any(|net| net.contains(address))
}

/// A subnet of unique local addresses (RFC 4193). The id of the network is random.
fn unique_local(id: &str) -> IpNet {
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    for (octet, digits) in octets[1..8].iter_mut().zip(id.as_bytes().chunks(2).skip(1)) {
        let digits = str::from_utf8(digits).unwrap_or_default();
        *octet = u8::from_str_radix(digits, 16).unwrap_or_default();
    }
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::from(octets), 64))
}

/// The networks of podman whose lists this driver makes, each with its file. A network that cannot be made is left out.
pub fn of_podman(runtime: &Runtime) -> Vec<Network> {
    let list = |(file, json): (PathBuf, Json)| {
        let of_podman: OfPodman = json.read("a network").ok()?;
        let object = of_podman.is_only_here().then(|| json.read("a network").ok()).flatten()?;
        Some(Network { file, ..network(runtime, &object, &[]).ok()? })
    };
    podman::documents(&runtime.of_podman).into_iter().filter_map(list).collect()
}

/// The subnets of a network, as podman keeps them. `None` without subnets.
pub fn subnets(new: &NewNetwork) -> Option<Json> {
    let subnets = new.subnets.iter().map(|subnet| {
        let lease = new.leases.iter().find(|(net, _)| net == subnet).map(|(_, range)| *range);
        let text = |address: Option<IpAddr>| address.map(|address| Json::from(address.to_string()));
        let [start, end] = lease.unwrap_or_default().map(text);
        let has_range = start.is_some() || end.is_some();
        let range = || Json::object([("start_ip", start), ("end_ip", end)]);
        Json::object([
            ("subnet", Some(subnet.to_string().into())),
            ("gateway", text(gateway_of(new, subnet))),
            ("lease_range", has_range.then(range)),
        ])
    });
    (!new.subnets.is_empty()).then(|| Json::Array(subnets.collect()))
}

/// The gateway of a subnet, as the plugins will have it.
pub fn gateway_of(new: &NewNetwork, subnet: &IpNet) -> Option<IpAddr> {
    let given = new.gateways.iter().copied().find(|gateway| subnet.contains(gateway));
    given.or_else(|| {
        let conf = RangeConf { subnet: subnet.to_string(), ..RangeConf::default() };
        let sets = range::parse(&[vec![conf]], &[]).ok()?;
        Some(sets.first()?.ranges().first()?.gateway)
    })
}
