//! The result of a lease, and its changes on the interface. The plugin that called `dhcp` configures the interface after ADD;
//! the daemon applies only what a server changes later.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::cni::success::{Dns, Ip, Route, Success};
use crate::dhcp::journal::Record;
use crate::dhcp::lease::v4;
use crate::dhcp::site::{Site, Trouble};
use crate::error::Error;
use crate::kernel::packet::{Arp, PacketSocket};
use crate::kernel::rtnl::{self, Batch, LinkChange, NewAddress};
use crate::names::Mac;
use crate::steps::link::configure;

/// RT_SCOPE_LINK (linux/rtnetlink.h): the destination is on the link.
const SCOPE_LINK: u8 = 253;

/// The result of ADD for the leases of a record. An interface without a lease has an empty result.
pub fn success(record: &Record) -> Success {
    let mut success = Success::default();
    if let Some(lease) = &record.v4 {
        add_v4(&mut success, lease, record.ask.settings.priority);
    }
    success
}

fn add_v4(success: &mut Success, lease: &v4::Lease, priority: u32) {
    let gateway = lease.gateway.map(IpAddr::V4);
    success.ips.push(Ip { address: lease.address.into(), gateway, interface: None });
    let route = |(dst, router): &(ipnet::Ipv4Net, Ipv4Addr)| Route {
        dst: IpNet::V4(*dst),
        gw: Some(IpAddr::V4(*router)),
        mtu: lease.mtu.map_or(0, u32::from),
        advmss: 0,
        priority,
        table: None,
        // The gateway 0.0.0.0 stays, as in the reference.
        scope: router.is_unspecified().then_some(SCOPE_LINK),
    };
    success.routes.extend(lease.routes.iter().map(route));
    let Dns { nameservers, domain, search, .. } = &mut success.dns;
    nameservers.extend(lease.dns.iter().map(Ipv4Addr::to_string));
    domain.clone_from(&lease.domain);
    search.extend_from_slice(&lease.search);
}

/// All addresses of a record.
pub fn addresses(record: &Record) -> Vec<IpAddr> {
    let v4 = record.v4.iter().map(|lease| IpAddr::V4(lease.address.addr()));
    let v6 = record.v6.iter().map(|lease| IpAddr::V6(lease.address));
    v4.chain(v6).collect()
}

/// Whether the interface has to change for a new lease.
pub fn differs(old: &v4::Lease, new: &v4::Lease) -> bool {
    let applied = |lease: &v4::Lease| (lease.address, lease.gateway, lease.mtu);
    applied(old) != applied(new) || old.routes != new.routes
}

/// Replaces what an earlier lease set on the interface by what a new one says. `old` has the MAC address, the name and the
/// earlier lease.
pub fn change(
    site: &Site<'_>,
    old: Option<&v4::Lease>,
    new: Option<&v4::Lease>,
) -> Result<(), Trouble> {
    let record = site.record;
    let mut known = addresses(record);
    known.extend(old.iter().chain(&new).map(|lease| IpAddr::V4(lease.address.addr())));
    let (netns, rtnl, link) = site.link(&known)?;
    let (index, name) = (link.index, link.name.as_str());
    let routes = |lease: Option<&v4::Lease>| -> Vec<rtnl::Route> {
        let mut success = Success::default();
        if let Some(lease) = lease {
            add_v4(&mut success, lease, record.ask.settings.priority);
        }
        configure::routes(&success, index)
    };
    let address = |lease: Option<&v4::Lease>| lease.map(|lease| IpNet::V4(lease.address));
    let (old_routes, new_routes) = (routes(old), routes(new));
    let is_moved = address(old) != address(new);

    let mut batch = Batch::new();
    for route in old_routes.iter().filter(|route| !new_routes.contains(route)) {
        batch.del_route(route);
    }
    if is_moved {
        // The old address goes first: an address of the same prefix would be a secondary one, and go with it. The kernel
        // deletes routes with the address, so all of them are added again.
        if let Some(net) = address(old) {
            batch.del_address(index, name, net);
        }
        if let Some(net) = address(new) {
            let new = NewAddress { net, no_dad: false, no_prefix_route: false, may_exist: true };
            batch.add_address(index, name, &new);
        }
    }
    let mtu = |lease: Option<&v4::Lease>| lease.and_then(|lease| lease.mtu).map(u32::from);
    if old.is_some() && new.is_some() && mtu(old) != mtu(new) && mtu(new).is_some() {
        let change = LinkChange { mtu: mtu(new), ..LinkChange::default() };
        batch.change_link(index, name, &change);
    }
    for route in new_routes.iter().filter(|route| is_moved || !old_routes.contains(route)) {
        batch.add_route(route);
    }
    rtnl.commit(batch)?;
    if let (true, Some(lease)) = (is_moved, new) {
        let mac = link.mac.unwrap_or(record.mac);
        netns.run(|| announce(index, mac, lease.address.addr()))?;
    }
    Ok(())
}

/// Tells the neighbors the MAC address of an address. Runs in the container's namespace.
fn announce(index: u32, mac: Mac, address: Ipv4Addr) -> Result<(), Error> {
    let announcement = Arp::announcement(mac, address).encode();
    let sent = PacketSocket::for_arp(index).and_then(|socket| socket.broadcast(&announcement));
    sent.map_err(|error| Error::internal(format!("cannot announce {address}: {error}")))
}

/// What differs between two leases, for the log.
pub fn difference(old: &v4::Lease, new: &v4::Lease) -> String {
    let mut list = Vec::new();
    if old.address != new.address {
        list.push(format!("address {} replaces {}", new.address, old.address));
    }
    if old.gateway != new.gateway {
        let text = |gateway: Option<Ipv4Addr>| {
            gateway.map_or_else(|| "none".to_owned(), |gateway| gateway.to_string())
        };
        list.push(format!("gateway {} replaces {}", text(new.gateway), text(old.gateway)));
    }
    if old.mtu != new.mtu {
        let text = |mtu: Option<u16>| mtu.map_or_else(|| "none".to_owned(), |mtu| mtu.to_string());
        list.push(format!("MTU {} replaces {}", text(new.mtu), text(old.mtu)));
    }
    if old.routes != new.routes {
        list.push(format!("the server sent {} routes", new.routes.len()));
    }
    list.join(", ")
}
