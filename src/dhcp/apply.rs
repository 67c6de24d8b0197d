//! Makes the result of ADD from leases, and changes the interface when a lease changes. The plugin that called `dhcp`
//! configures the interface after ADD; the daemon applies only the later changes.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::cni::success::{Dns, Ip, Route, Success};
use crate::dhcp::journal::LeaseRecord;
use crate::dhcp::lease::{Leases, v4};
use crate::dhcp::site::{Site, SiteError};
use crate::dhcp::source_routing::SourceRouting;
use crate::error::Error;
use crate::kernel::packet::{Arp, PacketSocket};
use crate::names::Mac;
use crate::netlink::rtnl::{Batch, LinkChange, NewAddress};
use crate::steps::link::routes::Routes;
use crate::steps::link::routing_tables::SCOPE_LINK;

/// The result of ADD for the leases of a record and the addresses from SLAAC.
pub fn success(record: &LeaseRecord, slaac: &[Ip]) -> Success {
    let mut success = of_leases(&record.leases, record.request.settings.priority);
    success.ips.extend_from_slice(slaac);
    success
}

/// The result of ADD for leases.
pub fn of_leases(leases: &Leases, priority: u32) -> Success {
    let mut success = Success::default();
    if let Some(lease) = &leases.v4 {
        add_v4(&mut success, lease, priority);
    }
    if let Some(lease) = &leases.v6 {
        // The address gets the prefix length 128 and no gateway: the prefixes of the link and the gateway come from router
        // advertisements (RFC 8415, section 18.2.10.1).
        let address = IpNet::V6(lease.address.into());
        success.ips.push(Ip { address, gateway: None, interface: None });
        success.dns.nameservers.extend(lease.dns.iter().map(Ipv6Addr::to_string));
        for domain in &lease.search {
            if !success.dns.search.contains(domain) {
                success.dns.search.push(domain.clone());
            }
        }
    }
    success
}

fn add_v4(success: &mut Success, lease: &v4::Lease, priority: u32) {
    let gateway = lease.gateway.map(IpAddr::V4);
    success.ips.push(Ip { address: lease.address.into(), gateway, interface: None });
    let route = |route: &v4::Route| Route {
        dst: IpNet::V4(route.dst),
        gw: Some(IpAddr::V4(route.router)),
        mtu: lease.mtu.map_or(0, u32::from),
        priority,
        // A route without a router keeps `gw` 0.0.0.0, as in the reference.
        scope: route.router.is_unspecified().then_some(SCOPE_LINK),
        ..Route::default()
    };
    success.routes.extend(lease.routes.iter().map(route));
    let Dns { nameservers, domain, search, .. } = &mut success.dns;
    nameservers.extend(lease.dns.iter().map(Ipv4Addr::to_string));
    domain.clone_from(&lease.domain);
    search.extend_from_slice(&lease.search);
}

/// Replaces the addresses, routes and MTU of `old` and of the record's former leases by those of its current leases. Calls
/// `log` with the changes, if there are any.
pub fn change(site: &Site<'_>, old: &Leases, log: &dyn Fn(&str)) -> Result<(), SiteError> {
    let record = site.record;
    let new = &record.leases;
    let moves = [(old.v4_net(), new.v4_net()), (old.v6_net(), new.v6_net())];
    let changes = difference(old, record, &moves);
    if changes.is_empty() {
        return Ok(());
    }
    log(&changes);
    let mut expected = record.addresses();
    expected.extend(moves.iter().filter_map(|(old, _)| old.map(|net| net.addr())));
    let (netns, rtnl, link) = site.link(&expected)?;
    let routes = |leases: Vec<&v4::Lease>| {
        let mut success = Success::default();
        for lease in leases {
            add_v4(&mut success, lease, record.request.settings.priority);
        }
        Routes::on_link(&success, link.index).in_order().cloned().collect::<Vec<_>>()
    };
    let old_routes = routes(old.v4.iter().chain(&record.former_v4).collect());
    let new_routes = routes(new.v4.iter().collect());
    let is_moved = moves[0].0 != moves[0].1;
    let (index, name) = (link.index, link.name.as_str());
    let mut batch = Batch::new();
    for route in old_routes.iter().filter(|route| !new_routes.contains(route)) {
        batch.del_route(route);
    }
    let routing = SourceRouting::read(&rtnl, record, index, &new_routes)?;
    put_addresses(&mut batch, site, (index, name), &moves, routing.hides_subnet());
    let was_known = old.v4.is_some() || !record.former_v4.is_empty();
    if was_known && old.mtu() != new.mtu() && new.mtu().is_some() {
        let change = LinkChange { mtu: new.mtu(), ..LinkChange::default() };
        batch.change_link(index, name, &change);
    }
    let in_main = new_routes.iter().filter(|_| !routing.has_table);
    for route in in_main.filter(|route| is_moved || !old_routes.contains(route)) {
        batch.add_route(route);
    }
    routing.put(&mut batch);
    rtnl.commit(batch)?;
    if let (true, Some(lease)) = (is_moved, &new.v4) {
        let mac = link.mac.unwrap_or(record.mac);
        netns.run(|| announce(index, mac, lease.address.addr()))?;
    }
    Ok(())
}

/// Deletes the old addresses before it adds the new ones: a new address with the prefix of the old one would be a secondary
/// address, which the kernel deletes with the primary one. The kernel also deletes the routes of a deleted address, so the
/// caller adds all routes again.
fn put_addresses(
    batch: &mut Batch,
    site: &Site<'_>,
    (index, name): (u32, &str),
    moves: &[(Option<IpNet>, Option<IpNet>)],
    hides_subnet: bool,
) {
    let is_current = |net: &IpNet| moves.iter().any(|(_, new)| *new == Some(*net));
    for net in site.record.former_nets().filter(|net| !is_current(net)) {
        batch.del_address(index, name, net);
    }
    for (old, new) in moves.iter().filter(|(old, new)| old != new) {
        if let Some(net) = *old {
            batch.del_address(index, name, net);
        }
        if let Some(net) = *new {
            let no_prefix_route = hides_subnet && net.addr().is_ipv4();
            let new = NewAddress { net, no_dad: false, no_prefix_route, may_exist: true };
            batch.add_address(index, name, &new);
        }
    }
}

/// Sends an ARP announcement, from which the neighbours learn the MAC address of an IP address. Runs in the container's
/// namespace.
fn announce(index: u32, mac: Mac, address: Ipv4Addr) -> Result<(), Error> {
    let announcement = Arp::announcement(mac, address).encode();
    let sent = PacketSocket::for_arp(index).and_then(|socket| socket.broadcast(&announcement));
    sent.map_err(|error| Error::internal(format_args!("cannot announce {address}: {error}")))
}

/// The text of the changes of the interface, for the log. Empty if nothing changes.
fn difference(
    old: &Leases,
    record: &LeaseRecord,
    moves: &[(Option<IpNet>, Option<IpNet>)],
) -> String {
    fn replaces(what: &str, new: Option<&dyn Display>, old: Option<&dyn Display>) -> String {
        let [new, old] = [new, old].map(|value| value.unwrap_or(&"none"));
        format!("{what} {new} replaces {old}")
    }
    fn text<T: Display>(value: &Option<T>) -> Option<&dyn Display> {
        value.as_ref().map(|value| value as &dyn Display)
    }
    let mut list = Vec::new();
    for (old, new) in moves {
        if old != new {
            list.push(replaces("address", text(new), text(old)));
        }
    }
    if let (Some(old), Some(new)) = (&old.v4, &record.leases.v4) {
        if old.gateway != new.gateway {
            list.push(replaces("gateway", text(&new.gateway), text(&old.gateway)));
        }
        if old.mtu != new.mtu {
            list.push(replaces("MTU", text(&new.mtu), text(&old.mtu)));
        }
        if old.routes != new.routes {
            list.push(format!("the server sent {} routes", new.routes.len()));
        }
    }
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use ipnet::Ipv4Net;

    use super::*;
    use crate::dhcp::lease::v6;
    use crate::dhcp::protocol;
    use crate::dhcp::time::Time;

    fn lease() -> v4::Lease {
        let time = Time::from_secs;
        v4::Lease {
            address: "10.1.0.20/24".parse().unwrap(),
            server: Ipv4Addr::new(10, 1, 0, 254),
            gateway: Some(Ipv4Addr::new(10, 1, 0, 1)),
            routes: vec![
                v4::Route { dst: "10.9.0.0/16".parse().unwrap(), router: Ipv4Addr::UNSPECIFIED },
                v4::Route { dst: Ipv4Net::default(), router: Ipv4Addr::new(10, 1, 0, 1) },
            ],
            mtu: Some(1400),
            dns: vec![Ipv4Addr::new(10, 1, 0, 2)],
            domain: "lan".into(),
            search: vec!["a.lan".into()],
            since: time(1),
            renew_at: time(2),
            rebind_at: time(3),
            ends_at: Some(time(4)),
        }
    }

    fn record(v4: Option<v4::Lease>) -> LeaseRecord {
        LeaseRecord {
            request: protocol::tests::lease_request("c1"),
            netns_id: (1, 2),
            netns_cookie: None,
            ifindex: 3,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            uplink: None,
            leases: Leases { v4, v6: None },
            subnets: Vec::new(),
            former_v4: Vec::new(),
            former_v6: Vec::new(),
            is_released: false,
        }
    }

    #[test]
    fn the_result_has_what_the_server_sent() {
        let v6 = v6::Lease {
            address: "fd00::5".parse().unwrap(),
            server: Vec::new(),
            dns: vec!["fd00::1".parse().unwrap()],
            search: vec!["a.lan".into(), "b.lan".into()],
            since: Time::ZERO,
            renew_at: Time::ZERO,
            rebind_at: Time::ZERO,
            preferred_until: None,
            ends_at: None,
        };
        let mut record = record(Some(lease()));
        record.leases.v6 = Some(v6);
        let made = Ip { address: "fd01::9/64".parse().unwrap(), gateway: None, interface: None };
        let success = success(&record, &[made]);
        let nets: Vec<String> = success.nets().iter().map(IpNet::to_string).collect();
        assert_eq!(nets, ["10.1.0.20/24", "fd00::5/128", "fd01::9/64"]);
        let routes: Vec<_> =
            success.routes.iter().map(|route| (route.scope, route.mtu, route.priority)).collect();
        assert_eq!(routes, [(Some(SCOPE_LINK), 1400, u32::MAX), (None, 1400, u32::MAX)]);
        assert_eq!(success.dns.nameservers, ["10.1.0.2", "fd00::1"]);
        assert_eq!(success.dns.domain, "lan");
        assert_eq!(success.dns.search, ["a.lan", "b.lan"]);
    }

    #[test]
    fn changes_are_named_and_times_are_none() {
        let later = v4::Lease { renew_at: Time::from_secs(9), ..lease() };
        let moved = v4::Lease {
            address: "10.1.0.21/16".parse().unwrap(),
            gateway: None,
            mtu: None,
            routes: Vec::new(),
            ..lease()
        };
        for (new, expected) in [
            (Some(later), ""),
            (None, "address none replaces 10.1.0.20/24"),
            (
                Some(moved),
                "address 10.1.0.21/16 replaces 10.1.0.20/24, gateway none replaces 10.1.0.1, \
                 MTU none replaces 1400, the server sent 0 routes",
            ),
        ] {
            let net = |lease: &v4::Lease| IpNet::V4(lease.address);
            let moves = [(Some(net(&lease())), new.as_ref().map(net))];
            let old = Leases { v4: Some(lease()), v6: None };
            assert_eq!(difference(&old, &record(new), &moves), expected);
        }
    }
}
