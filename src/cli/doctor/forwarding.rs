//! Sysctls of the host that affect forwarded packets.

use crate::error::Result;
use crate::kernel::sysctl;
use crate::names::IpFamily;
use crate::netlink::nft::{Family, Nft, Object, Table};
use crate::netlink::rtnl::{Address, Link, Rtnl};

use super::finding::{Finding, Findings, Harm, quoted};
use super::host::{ConfiguredNetwork, Host};
use super::links;

/// Finds disabled IP forwarding. ADD enables it, so it is a fault only for networks in use, and a note for others.
pub(super) fn forwarding(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    for (family, key, dotted) in [
        (IpFamily::V4, "net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        (IpFamily::V6, "net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    ] {
        if value(key) != "0" {
            continue;
        }
        let networks = host.networks.iter();
        let routed = networks.filter(|net| net.is_routed && net.has_family(family));
        let (used, unused): (Vec<_>, Vec<_>) = routed.partition(|net| net.is_used);
        for (networks, harm, why) in [
            (used, Harm::Broken, "The host drops packets between containers and other networks."),
            (unused, Harm::Note, "The first ADD in the network sets it to 1."),
        ] {
            if !networks.is_empty() {
                let names: Vec<&str> = networks.iter().map(|net| &*net.network.name).collect();
                let what = format_args!("{dotted} is 0; it must be 1 for {}", names.join(", "));
                found.add(harm, what, why, format_args!("sysctl -w {dotted}=1"));
            }
        }
    }
    uplinks_without_forwarding(host, found)?;
    bridged_services(host, found)
}

/// Adds a note if networks in use are routed, and the host has no default route of their family: of IPv4, if they have it. Many
/// hosts have no IPv6 to other networks.
pub(super) fn default_route(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let mut with_route = Vec::new();
    for family in IpFamily::ALL {
        // VPNs replace the default route by two routes, each to a half of all addresses.
        if host.rtnl.routes(family)?.iter().any(|route| route.dst.prefix_len() <= 1) {
            with_route.push(family);
        }
    }
    let is_affected = |net: &&ConfiguredNetwork| {
        let has_ipv4 = net.has_family(IpFamily::V4);
        let family = if has_ipv4 { IpFamily::V4 } else { IpFamily::V6 };
        net.is_used && net.is_routed && !with_route.contains(&family)
    };
    let networks = host.networks.iter().filter(is_affected);
    let names: Vec<&str> = networks.map(|net| &*net.network.name).collect();
    if names.is_empty() {
        return Ok(());
    }
    let family = match with_route[..] {
        [] => "",
        [IpFamily::V6] => " of IPv4",
        _ => " of IPv6",
    };
    let uplinks = links::uplinks(host)?;
    let (fact, raise) = match uplinks.iter().find(|link| !link.up) {
        Some(link) => (
            format!(", and {} is down", link.name),
            format!("ip link set {} up && ", quoted(&link.name)),
        ),
        None => Default::default(),
    };
    found.add(
        Harm::Note,
        format_args!("the host has no default route{family}, for {}{fact}", names.join(", ")),
        "Their containers reach only networks to which the host has a route.",
        format_args!("{raise}ip route add default via GATEWAY"),
    );
    Ok(())
}

/// Finds uplinks whose packets the host does not forward, as with `net.ipv4.conf.default.forwarding` 0. ADD changes only the links
/// that it makes.
fn uplinks_without_forwarding(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let is_affected = |net: &&ConfiguredNetwork| net.is_routed && net.has_family(IpFamily::V4);
    let networks: Vec<_> = host.networks.iter().filter(is_affected).collect();
    if networks.is_empty() || value("net/ipv4/ip_forward") == "0" {
        return Ok(());
    }
    let harm = match networks.iter().any(|net| net.is_used) {
        true => Harm::Broken,
        false => Harm::Note,
    };
    for link in uplinks(host)?.iter().filter(|link| link.forwards_ipv4 == Some(false)) {
        let path = sysctl::of_link(IpFamily::V4, &link.name, "forwarding");
        found.add(
            harm,
            format_args!("{} is 0, and {} is an uplink", sysctl::dotted(&path), link.name),
            "The host drops the packets to containers that arrive on it, replies included.",
            format_args!("sysctl -w {}=1", quoted(path)),
        );
    }
    Ok(())
}

/// The links of IPv4 routes via a gateway, and of default routes.
fn uplinks(host: &Host<'_>) -> Result<Vec<Link>> {
    let mut uplinks: Vec<Link> = Vec::new();
    for route in host.rtnl.routes(IpFamily::V4)? {
        let nexthops = route.nexthops.iter().map(|hop| hop.dev);
        for dev in route.dev.into_iter().chain(nexthops) {
            let is_uplink =
                route.via.is_some() || route.dst.prefix_len() == 0 || !route.nexthops.is_empty();
            if is_uplink && !uplinks.iter().any(|link| link.index == dev) {
                uplinks.extend(host.rtnl.link_at(dev)?);
            }
        }
    }
    Ok(uplinks)
}

/// Finds kube-proxy without bridge-nf-call-iptables: its rules must also see the frames between two ports of a bridge.
fn bridged_services(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    if value(BRIDGED) == "1" || !host.networks.iter().any(|net| net.bridge.is_some()) {
        return Ok(());
    }
    let Some(nft) = Nft::open_if_supported()? else { return Ok(()) };
    let services = Object::Chain(Table { family: Family::Ip, name: "nat" }, "KUBE-SERVICES");
    if nft.exist(&[services])? == [true] {
        found.add(
            Harm::Broken,
            "net.bridge.bridge-nf-call-iptables is not 1, and kube-proxy runs",
            "A container does not reach a service with a container on the same bridge.",
            "modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1",
        );
    }
    Ok(())
}

/// The sysctl with which netfilter sees the frames between the ports of a bridge.
pub(super) const BRIDGED: &str = "net/bridge/bridge-nf-call-iptables";

/// Finds a strict reverse path filter on a host with several default routes: an answer can arrive by another link than that by
/// which the host routes to its source.
pub(super) fn reverse_path_filter(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let mut uplinks: Vec<u32> = Vec::new();
    for route in host.rtnl.routes(IpFamily::V4)? {
        if route.dst.prefix_len() == 0
            && let Some(dev) = route.dev
            && !uplinks.contains(&dev)
        {
            uplinks.push(dev);
        }
    }
    if uplinks.len() < 2 {
        return Ok(());
    }
    let of_link = |link: &str| value(&sysctl::of_link(IpFamily::V4, link, "rp_filter"));
    let all = of_link("all");
    for index in uplinks {
        let Some(link) = host.rtnl.link_at(index)? else { continue };
        // The kernel uses the larger of two values: that of `all` and that of the link.
        if all.clone().max(of_link(&link.name)) == "1" {
            let name = &link.name;
            found.add(
                Harm::Note,
                format_args!(
                    "rp_filter of {name} is 1 (strict), and the host has several default routes"
                ),
                "The host drops packets that arrive by another link than its answers leave by.",
                format_args!(
                    "sysctl -w {}",
                    quoted(format_args!("net/ipv4/conf/{name}/rp_filter=2"))
                ),
            );
        }
    }
    Ok(())
}

/// When ADD enables forwarding, it sets accept_ra=2 on the links that exist. This check finds links that appeared later, and
/// hosts on which another program enabled forwarding.
pub(super) fn advertisements(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    for name in ignoring_links(&host.rtnl)? {
        let what =
            format!("{name} ignores router advertisements: it forwards, and its accept_ra is 1");
        let why = "The host loses the IPv6 default route and the addresses that came from them.";
        let fix = format!("sysctl -w {}=2", quoted(accept_ra(&name)));
        let (harm, sets_sysctl) = (Harm::Broken, true);
        found.list.push(Finding { harm, what, why, fix, sets_sysctl, ..Finding::default() });
    }
    Ok(())
}

/// Sets accept_ra=2 on these links: the next router advertisement restores the default route. `print` gets a line for each
/// link.
pub(super) fn fix_advertisements(is_dry_run: bool, print: &mut dyn FnMut(&str)) -> Result<()> {
    for name in ignoring_links(&Rtnl::open()?)? {
        let key = accept_ra(&name);
        let set = if is_dry_run { "would set" } else { "set" };
        if !is_dry_run {
            sysctl::set(&key, "2")?;
        }
        print(&format!("{set} {key} to 2"));
    }
    Ok(())
}

/// The links that forward, have accept_ra=1, and have an address with a lifetime. Such an address came from an advertisement,
/// or from a DHCPv6 server, which gives no default route: the link needs advertisements. Static addresses have no lifetime.
fn ignoring_links(rtnl: &Rtnl) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let addresses = rtnl.addresses_by_link()?;
    let is_learned = |(_, address): &&(u32, Address)| {
        address.net.addr().is_ipv6() && !address.permanent && !address.scope_link
    };
    for link in rtnl.links()? {
        let forwarding = || value(&sysctl::of_link(IpFamily::V6, &link.name, "forwarding"));
        let mut learned = addresses.iter().filter(is_learned);
        if link.accept_ra == Some(1)
            && forwarding() == "1"
            && learned.any(|(index, _)| *index == link.index)
        {
            names.push(link.name.clone());
        }
    }
    Ok(names)
}

fn accept_ra(link: &str) -> String {
    sysctl::of_link(IpFamily::V6, link, "accept_ra")
}

/// The value of a sysctl. Empty if it does not exist.
pub(super) fn value(key: &str) -> String {
    sysctl::get(key).ok().flatten().unwrap_or_default()
}
