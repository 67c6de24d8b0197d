//! The list of a new network.

use std::fmt::Display;

use ipnet::IpNet;

use super::{Addresses, Kind, NewNetwork};
use crate::cni::json::Json;
use crate::cni::success::Route;
use crate::cni::version;
use crate::error::{Error, Result};
use crate::ipam::range::{self, RangeConf};
use crate::names::{IpFamily, NetworkName};
use crate::netlink::rtnl::Rtnl;
use crate::plugins::dnsname;
use crate::steps::link::{mtu, parent};

/// `cniVersion` of a new network, which old runtimes use, and `cniVersions`, of which new runtimes use the highest.
const VERSION: &str = "0.4.0";
const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];
/// The chained plugins of a network without a parent, as podman has them.
const USUAL: [&str; 3] = ["portmap", "firewall", "tuning"];
/// The MTU of a new link, in bytes: ETH_DATA_LEN (linux/if_ether.h).
const NEW_LINK: u32 = 1500;

impl NewNetwork {
    /// The list of the network. `bridge` is the name of its bridge.
    pub fn list(&self, name: &NetworkName, subnets: &[IpNet], bridge: &str) -> Result<Json> {
        let ipam = match self.addresses {
            Addresses::HostLocal => Some(self.ipam(subnets)?),
            Addresses::Dhcp => Some(Json::object([
                ("type", text("dhcp")),
                ("priority", self.metric.map(Json::from)),
                // The server shows the container by its name.
                (
                    "provide",
                    Some(Json::Array(vec![Json::object([
                        ("option", text("host-name")),
                        ("fromArg", text("K8S_POD_NAME")),
                    ])])),
                ),
            ])),
            Addresses::Nobody => None,
        };
        let mtu = match self.mtu {
            None if self.kind == Kind::Bridge => mtu_outside(subnets)?,
            given => given,
        };
        let mut plugins = vec![self.interface(bridge, ipam, mtu)];
        let usual = if self.kind.has_parent() { &[][..] } else { &USUAL[..] };
        let mut chained: Vec<&str> = match &self.chained {
            Some(chosen) => chosen.iter().map(String::as_str).collect(),
            // Nobody reaches a port of an internal network.
            None if self.is_internal => usual.iter().skip(1).copied().collect(),
            None => usual.to_vec(),
        };
        // Its DEL is the first: the bridge is still there.
        let names = dnsname::ENTRY.name;
        if self.has_names && !chained.contains(&names) {
            chained.push(names);
        }
        plugins.extend(chained.into_iter().map(|kind| self.chained(kind)));
        Ok(Json::object([
            ("cniVersion", Some(VERSION.into())),
            ("cniVersions", Some(Json::Array(VERSIONS.map(Json::from).into()))),
            ("name", text(name)),
            ("plugins", Some(Json::Array(plugins))),
        ]))
    }

    /// The configuration of a chained plugin.
    fn chained(&self, kind: &str) -> Json {
        let capability = match kind {
            "portmap" => Some("portMappings"),
            "bandwidth" => Some("bandwidth"),
            "dnsname" => Some("aliases"),
            _ => None,
        };
        let is_dnsname = kind == dnsname::ENTRY.name;
        let ingress_policy = self.isolate.filter(|_| kind == "firewall");
        Json::object([
            ("type", Some(kind.into())),
            ("capabilities", capability.map(|name| Json::object([(name, if_set(true))]))),
            ("ingressPolicy", ingress_policy.map(Json::from)),
            ("acceptPublished", if_set(kind == "firewall")),
            ("domainName", self.domain.as_deref().filter(|_| is_dnsname).map(Json::from)),
            ("internal", if_set(is_dnsname && self.is_internal)),
        ])
    }

    /// The configuration of the plugin that makes the interface.
    fn interface(&self, bridge: &str, ipam: Option<Json>, mtu: Option<u32>) -> Json {
        // The router of a DHCP server's network is another machine.
        let is_router = self.addresses == Addresses::HostLocal;
        let is_bridge = self.kind == Kind::Bridge;
        // An ipvlan and a vlan have the MAC address of their parent.
        let has_mac = !matches!(self.kind, Kind::Ipvlan | Kind::Vlan);
        let capabilities = [("ips", if_set(is_router)), ("mac", if_set(has_mac))];
        Json::object([
            ("type", Some(self.kind.text().into())),
            ("bridge", is_bridge.then(|| bridge.into())),
            ("master", self.parent.as_ref().and_then(text)),
            ("isGateway", if_set(is_bridge && is_router)),
            ("ipMasq", if_set(!self.kind.has_parent() && is_router && !self.is_internal)),
            ("internal", if_set(is_bridge && self.is_internal)),
            ("hairpinMode", if_set(is_bridge)),
            ("mode", self.mode.as_deref().map(Json::from)),
            ("mtu", mtu.map(Json::from)),
            ("vlan", self.vlan.filter(|_| is_bridge).map(Json::from)),
            ("vlanId", self.vlan.filter(|_| !is_bridge).map(Json::from)),
            ("capabilities", Some(Json::object(capabilities))),
            (
                "dns",
                (!self.dns.is_empty())
                    .then(|| Json::object([("nameservers", Some(list(&self.dns)))])),
            ),
            ("ipam", ipam),
        ])
    }

    /// The configuration of host-local: a range set for each subnet, and a default route for each family.
    fn ipam(&self, subnets: &[IpNet]) -> Result<Json> {
        for gateway in &self.gateways {
            if !subnets.iter().any(|subnet| subnet.contains(gateway)) {
                return Err(Error::config(format_args!(
                    "gateway {gateway} is in none of the subnets"
                )));
            }
        }
        let mut configured = Vec::new();
        for subnet in subnets {
            let mut gateway = None;
            for address in &self.gateways {
                if subnet.contains(address) && gateway.replace(*address).is_some() {
                    return Err(Error::config(format_args!(
                        "subnet {subnet} has several gateways"
                    )));
                }
            }
            let [range_start, range_end] = self
                .leases
                .iter()
                .find(|(leased, _)| leased == subnet)
                .map_or([None; 2], |(_, range)| *range);
            let subnet = subnet.to_string();
            let range =
                RangeConf { subnet, gateway, range_start, range_end, ..RangeConf::default() };
            configured.push(vec![range]);
        }
        let sets = range::parse(&configured, &[])?;
        let ranges = sets.iter().flat_map(|set| set.ranges()).zip(configured.iter().flatten());
        let ranges = ranges.map(|(range, given)| {
            Json::Array(vec![Json::object([
                ("subnet", text(range.subnet)),
                ("rangeStart", given.range_start.and_then(text)),
                ("rangeEnd", given.range_end.and_then(text)),
                ("gateway", text(range.gateway)),
            ])])
        });
        let has_family =
            |family: &IpFamily| sets.iter().any(|set| set.is_ipv4() == (*family == IpFamily::V4));
        let families =
            IpFamily::ALL.into_iter().filter(|family| !self.is_internal && has_family(family));
        let priority = self.metric.unwrap_or_default();
        let default =
            |family: IpFamily| Route { dst: family.everything(), priority, ..Route::default() };
        let routes = families.map(default).chain(self.routes.iter().cloned());
        let routes = routes.map(|route| version::route(&route));
        Ok(Json::object([
            ("type", text("host-local")),
            ("ranges", Some(Json::Array(ranges.collect()))),
            ("routes", Some(Json::Array(routes.collect()))),
        ]))
    }
}

/// The MTU of packets to other hosts: that of the default route and its link. `None` without a default route, or if it is that
/// of each new link.
fn mtu_outside(subnets: &[IpNet]) -> Result<Option<u32>> {
    let Some((route, link)) = parent::default_route(&Rtnl::open()?)? else { return Ok(None) };
    let mtu = route.mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu)).min(*mtu::ETHERNET.end());
    let has_v6 = subnets.iter().any(|subnet| matches!(subnet, IpNet::V6(_)));
    let mtu = if has_v6 { mtu.max(mtu::IPV6_MIN) } else { mtu };
    Ok(Some(mtu).filter(|mtu| *mtu != NEW_LINK))
}

fn list(values: &[impl Display]) -> Json {
    Json::Array(values.iter().map(|value| value.to_string().into()).collect())
}

fn text(value: impl Display) -> Option<Json> {
    Some(value.to_string().into())
}

fn if_set(is_set: bool) -> Option<Json> {
    is_set.then_some(Json::Bool(true))
}
