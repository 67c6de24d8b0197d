//! The objects of the kernel that an ADD makes, on the host and in the container, each as one line in the words of `ip`, `tc` and
//! `nft`.

use serde::Serialize;

use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::sysctl;
use crate::names::IpFamily;
use crate::netlink::nft::{Nft, Table};
use crate::netlink::rtnl::{Address, Link, RT_TABLE_MAIN, Route, Rtnl};
use crate::plugins::portmap;

/// An object of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Object {
    /// `host` or `container`.
    #[serde(rename = "where")]
    pub(super) side: &'static str,
    pub(super) object: String,
    /// The element that the host has under the same key, with other data: an ADD fails, or replaces it if its container has ended.
    #[serde(rename = "onHost", skip_serializing_if = "Option::is_none")]
    pub(super) on_host: Option<String>,
}

impl Object {
    /// Compares the object with the lines of `of_nft` for the host. `None` if the host has it, also with another owner.
    pub(super) fn compared_with(mut self, host: &[String]) -> Option<Self> {
        let (key, data) = without_owner(&self.object);
        let there = host.iter().find(|line| without_owner(line).0 == key);
        if there.is_some_and(|line| without_owner(line).1 == data) {
            return None;
        }
        self.on_host = there.cloned();
        Some(self)
    }

    /// Whether it is an element of a set by which a DEL finds others: its key has hashes of the owner.
    pub(super) fn is_index(&self) -> bool {
        let mut words = self.object.split(' ');
        words.next() == Some("element") && words.nth(2).is_some_and(portmap::is_index)
    }
}

/// The line up to the comment, and from the comment's end.
fn without_owner(line: &str) -> (&str, &str) {
    let (key, rest) = line.split_once(" comment \"").unwrap_or((line, ""));
    (key, rest.split_once("\" ").map_or("", |(_, data)| data))
}

/// The two network namespaces of an ADD.
pub(super) struct View {
    pub(super) host: Rtnl,
    /// `None` if the kernel lacks nf_tables.
    pub(super) nft: Option<Nft>,
    pub(super) netns: NetNs,
    pub(super) container: Rtnl,
    /// The paths of the parameters in the container that the configuration of a plugin names.
    pub(super) sysctls: Vec<String>,
}

impl View {
    /// All objects, in the order in which the kernel lists them.
    pub(super) fn objects(&self) -> Result<Vec<Object>> {
        let mut lines = of_links(&self.host)?;
        lines.extend(of_traffic(&self.host)?);
        for key in FORWARDING {
            lines.extend(of_sysctl(key));
        }
        if let Some(nft) = &self.nft {
            lines.extend(of_nft(nft)?);
        }
        let on = |side| move |object| Object { side, object, on_host: None };
        let mut objects: Vec<Object> = lines.into_iter().map(on("host")).collect();
        let mut lines = self.netns.run(|| of_links(&self.container))?;
        lines.extend(self.netns.run(|| {
            Ok(self.sysctls.iter().filter_map(|key| of_sysctl(key)).collect::<Vec<_>>())
        })?);
        objects.extend(lines.into_iter().map(on("container")));
        Ok(objects)
    }
}

/// The tables, chains and elements of nf_tables.
pub(super) fn of_nft(nft: &Nft) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (family, name) in &nft.tables()? {
        let table = Table { family: *family, name };
        lines.push(format!("table {table}"));
        let chains = nft.chains(table)?;
        lines.extend(chains.iter().map(|chain| format!("chain {table} {}", chain.name)));
        for set in nft.sets(table)? {
            for element in nft.elements(table, &set.name)? {
                let text = set.text_of(&element);
                lines.push(format!("element {table} {} {{ {text} }}", set.name));
            }
        }
    }
    Ok(lines)
}

/// The links of the namespace of this thread, with addresses, routes, policy rules and parameters.
fn of_links(rtnl: &Rtnl) -> Result<Vec<String>> {
    let links = rtnl.links()?;
    let name = |index: u32| {
        let link = links.iter().find(|link| link.index == index);
        link.map_or_else(|| index.to_string(), |link| link.name.clone())
    };
    let mut lines: Vec<String> = links.iter().map(|link| of_link(link, &name)).collect();
    for link in &links {
        for address in rtnl.addresses(link.index)? {
            if !is_link_local(&address) {
                lines.push(format!("address {} dev {}", address.net, link.name));
            }
        }
    }
    for family in families() {
        let mut routes = rtnl.routes(family)?;
        routes.extend(rtnl.rejecting_routes(family)?);
        lines.extend(
            routes.iter().filter(|route| !is_automatic(route)).map(|route| of_route(route, &name)),
        );
        lines.extend(rtnl.rules(family)?.iter().map(|rule| {
            format!("{} priority {}", rule.title(), rule.priority.unwrap_or_default())
        }));
    }
    for link in &links {
        for (family, key) in OF_LINK {
            let line = of_sysctl(&sysctl::of_link(family, &link.name, key));
            let default = sysctl::get(&sysctl::of_link(family, "default", key)).ok().flatten();
            lines.extend(line.filter(|line| {
                !default.is_some_and(|value| line.ends_with(&format!(" = {value}")))
            }));
        }
    }
    Ok(lines)
}

/// The families of the kernel.
pub(super) fn families() -> impl Iterator<Item = IpFamily> {
    let has = |family: &IpFamily| *family == IpFamily::V4 || sysctl::exists("net/ipv6");
    IpFamily::ALL.into_iter().filter(has)
}

/// The kernel adds a link-local address to each link, and derives it from the MAC address, which is random.
pub(super) fn is_link_local(address: &Address) -> bool {
    address.scope_link && address.net.addr().is_ipv6()
}

fn of_link(link: &Link, name: &dyn Fn(u32) -> String) -> String {
    let mut line = format!("link {} {}", link.name, link.kind.as_deref().unwrap_or("device"));
    line.push_str(&format!(" mtu {}", link.mtu));
    if let Some(master) = link.master {
        line.push_str(&format!(" master {}", name(master)));
    }
    let port = link.port.unwrap_or_default();
    for (is_set, flag) in [
        (port.hairpin, " hairpin"),
        (port.isolated, " isolated"),
        (link.promiscuous, " promisc"),
        (link.all_multicast, " allmulticast"),
    ] {
        line.push_str(if is_set { flag } else { "" });
    }
    line + if link.up { " up" } else { " down" }
}

/// The kernel makes these routes for each IPv6 link.
fn is_automatic(route: &Route) -> bool {
    matches!(route.dst.addr(), std::net::IpAddr::V6(dst) if dst.is_unicast_link_local() || dst.is_multicast())
}

fn of_route(route: &Route, name: &dyn Fn(u32) -> String) -> String {
    let dst = match route.dst.prefix_len() {
        0 => "default".to_owned(),
        length if length == route.dst.max_prefix_len() => route.dst.addr().to_string(),
        _ => route.dst.to_string(),
    };
    let mut line = format!("route {}{dst}", route.kind.prefix());
    let words = [
        ("via", route.via.map(|via| via.to_string())),
        ("dev", route.dev.map(name)),
        (
            "proto",
            route.protocol.filter(|protocol| *protocol == RTPROT_KERNEL).map(|_| "kernel".into()),
        ),
        ("src", route.src.map(|src| src.to_string())),
        ("metric", route.metric.map(|metric| metric.to_string())),
        (
            "table",
            route.table.filter(|table| *table != RT_TABLE_MAIN).map(|table| table.to_string()),
        ),
    ];
    for (word, value) in words {
        line.push_str(&value.map_or_else(String::new, |value| format!(" {word} {value}")));
    }
    line
}

/// The queueing disciplines that were added to links, and the redirection of received packets.
fn of_traffic(rtnl: &Rtnl) -> Result<Vec<String>> {
    let links = rtnl.links()?;
    let mut lines = Vec::new();
    for link in &links {
        // The discipline that the kernel adds itself has no handle.
        if let Some(root) = rtnl.root_discipline(link.index)?.filter(|root| root.handle != 0) {
            lines.push(format!("qdisc {} dev {} root", root.kind, link.name));
        }
        for filter in rtnl.incoming_filters(link.index)? {
            let to =
                filter.redirects_to().and_then(|to| links.iter().find(|link| link.index == to));
            lines.extend(
                to.map(|to| format!("filter dev {} ingress redirect dev {}", link.name, to.name)),
            );
        }
    }
    Ok(lines)
}

/// `None` if the parameter cannot be read.
fn of_sysctl(path: &str) -> Option<String> {
    let value = sysctl::get(path).ok().flatten()?;
    Some(format!("sysctl {} = {value}", sysctl::dotted(path)))
}

/// The parameters of the host that an ADD turns on.
pub(super) const FORWARDING: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];
/// The parameters of a link that an ADD sets.
pub(super) const OF_LINK: [(IpFamily, &str); 4] = [
    (IpFamily::V4, "forwarding"),
    (IpFamily::V4, "route_localnet"),
    (IpFamily::V6, "disable_ipv6"),
    (IpFamily::V6, "accept_ra"),
];
/// linux/rtnetlink.h
const RTPROT_KERNEL: u8 = 2;
