//! `veth`, also called `ptp`: a veth pair between host and container, routed, without a bridge.
//!
//! ```json
//! { "cniVersion": "1.1.0", "name": "p2p", "type": "veth", "ipam": { "type": "host-local", "subnet": "10.1.1.0/24" } }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `mtu` | integer | kernel's | MTU in bytes of both ends of the pair, 68 to 65535; at least 1280 with IPv6. 0 means the default. |
//! | `ipMasq` | boolean | false | Masquerades packets from the container to addresses outside its subnet. |
//! | `ipMasqBackend` | string | any | `iptables` or `nftables`. Both give the same nf_tables rules. |
//! | `runtimeConfig.mac` | string | random | MAC address of the container's interface (capability `mac`). |
//! | `args.cni.mac` | string | random | The same, if `runtimeConfig.mac` is not set. |
//! | `CNI_ARGS: MAC` | string | random | The same, if neither of them is set. |
//!
//! The container reaches all addresses via the host, those of its own subnet included. In place of the kernel's subnet
//! route it has two routes: the gateway on the link, and the subnet via the gateway. The host end has the gateway
//! address and a route to the container. The IPAM plugin must return a gateway for every address.
//!
//! - **ADD** makes the pair, the addresses and routes of both ends and the masquerade elements, and enables IP
//!   forwarding. Without `ipam` it makes a plain pair, both ends up.
//! - **CHECK** calls the CHECK of the IPAM plugin. It compares the MAC address, addresses and routes of the interface
//!   with `prevResult`, and checks the host end, its address and routes, `mtu`, and masquerading. `tuning` may have set
//!   a smaller MTU. Rules of the reference are accepted.
//! - **DEL** removes the pair, and with it the addresses and routes of the host, and its nf_tables elements. Then it
//!   releases the addresses. IP forwarding stays enabled.
//! - **GC** does the same for all attachments that are not valid.
//! - **STATUS** fails if the kernel lacks an nf_tables feature that `ipMasq` needs, if the addresses of the IPAM plugin
//!   have no gateway, if there are IPv6 addresses and the host cannot enable IPv6, if IP forwarding cannot be enabled, or
//!   if the IPAM plugin fails.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::attachments::owner::Owner;
use crate::cni::json::keys;
use crate::cni::request::Verb;
use crate::cni::success::{Ip, Success};
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, IfName, Mac};
use crate::netlink::rtnl::{Batch, Link, LinkChange, NewAddress, Route, Rtnl};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Entry, Expected, Plugin, Scope};
use crate::rules::{localnet, masquerade};
use crate::steps::delegate;
use crate::steps::link::inside::Inside;
use crate::steps::link::routes::{self, Routes};
use crate::steps::link::verify;
use crate::steps::link::{chained, configure, forwarding, gateway, host_link, veth};
use crate::steps::rules::Rules;
use crate::steps::undo::Undo;

/// The scope of the routes of the host end: RT_SCOPE_HOST (linux/rtnetlink.h).
const SCOPE_HOST: u8 = 254;

/// The index of the container's interface in the result of ADD.
const CONTAINER: u32 = 1;

pub const ENTRY: Entry = Entry {
    has_own_subnets: true,
    // The DEL of `bridge` removes the same kinds of objects.
    leaves_owned: !cfg!(feature = "bridge"),
    kinds: &[Entry::VETH],
    probes: &[Entry::MASQUERADES],
    ..Entry::plugin::<Veth>(
        "veth",
        "a routed veth pair between host and container; without ipam a plain one",
    )
};

keys! {
    pub struct Veth {
        /// Values below 1 mean the kernel's default.
        "mtu" => mtu: i32,
        "ipMasq" => ip_masq: bool,
        "ipMasqBackend" => ip_masq_backend: String,
    }
}

impl Plugin for Veth {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        self.validate(cx)?;
        veth::requested_mac(cx)?;
        delegate::examine(cx)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        self.validate(cx)?;
        let mac = veth::requested_mac(cx)?;
        let host = cx.session.host()?;
        let mut undo = Undo::new(cx);
        // Claims without a link name are common to all pairs: the host has one route to an address, and it leads to one pair.
        let mut success = delegate::add_ipam(cx, at, Some(""), &mut undo)?;
        success.ips.iter().try_for_each(require_gateway)?;

        let owner = Owner::new(&cx.request.network, at);
        let new =
            veth::NewPair { owner: &owner, ifname: &at.ifname, mtu: self.mtu(), mac, master: None };
        let pair = veth::create(cx, netns, &new, &mut undo)?;
        success.ips.iter_mut().for_each(|ip| ip.interface = Some(CONTAINER));

        set_up_host_end(&owner, host, &pair, &success)?;
        let container = configure::Interface {
            netns,
            rtnl: cx.session.container()?,
            name: &at.ifname,
            index: pair.container_index,
        };
        let routes = Routes::via_gateways(&success, pair.container_index);
        let nets = success.nets();
        let rules =
            Rules { masquerades: self.masquerades(cx), nets: &nets, checked: None, internal: None };
        // The rules must exist before the container can send.
        rules.add(cx, at, &mut undo)?;
        routes::undo_rejecting(cx, &success, &mut undo)?;
        let neighbours = neighbours(&success, pair.host_mac);
        let options =
            configure::Options { neighbours: &neighbours, ..configure::Options::default() };
        configure::apply(&container, &success, &routes, options)?;
        // The last step: a failing ADD does not disable IP forwarding again.
        forwarding::enable(host, success.ips.iter().map(|ip| ip.address.addr()))?;

        success.interfaces = pair.interfaces(cx, at).into();
        success.dns = cx.request.conf.dns.or(success.dns);
        undo.keep();
        Ok(success)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        self.validate(cx)?;
        delegate::call_ipam(cx, &Verb::Check(at.clone()))?;
        let result = cx.request.required_prev_result()?;
        let own = own(&result, at);
        let inside = inside(cx, at, &result, (&own, None))?;
        let host_end = veth::host_end(cx.session.host()?, &inside.link, &at.ifname)?;
        veth::check_mtu(at, &host_end, &inside.link, self.mtu())?;
        inside.reconcile(&mut Parts::to_check())?;
        if cx.request.conf.ipam.kind.is_empty() {
            return Ok(());
        }
        self.reconcile_on_host(cx, at, (&host_end, &own), &mut Parts::to_check())
    }

    /// A missing pair is not restored: only a new ADD can connect the container again.
    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        self.validate(cx)?;
        let result = cx.request.required_prev_result()?;
        if cx.request.conf.ipam.kind.is_empty() {
            return Ok(());
        }
        let end = veth::host_end_of(cx, at, &result)?;
        let own = own(&result, at);
        self.reconcile_on_host(cx, at, (&end, &own), parts)?;
        parts.in_container(|parts| inside(cx, at, &result, (&own, end.mac))?.reconcile(parts))
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        let owners = cx.owners(scope);
        if let Some((_, owner)) = owners.one() {
            // `portmap` added the link to the set. Its DEL does not remove it, because it runs while the link still exists.
            let link = IfName::new(veth::host_name(owner))?;
            cx.defer(
                move |nft, batch| localnet::remove_links(nft, batch, std::slice::from_ref(&link)),
                || Ok(()),
            );
        }
        veth::clean(cx, scope, netns, &owners)
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        self.validate(cx)?;
        check_gateways(&delegate::expected(cx)?)?;
        if self.masquerades(cx) {
            masquerade::status(cx.session.nft().map_err(Error::into_not_available)?)?;
        }
        delegate::call_ipam(cx, &Verb::Status)
    }
}

impl Veth {
    fn mtu(&self) -> Option<u32> {
        u32::try_from(self.mtu).ok().filter(|mtu| *mtu > 0)
    }

    fn masquerades(&self, cx: &Context<'_>) -> bool {
        self.ip_masq && !cx.request.conf.ipam.kind.is_empty()
    }

    fn validate(&self, cx: &Context<'_>) -> Result<()> {
        veth::validate(cx, self.mtu(), &self.ip_masq_backend)
    }

    /// Addresses and routes of the host end, forwarding and masquerading.
    fn reconcile_on_host(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        (end, own): (&Link, &Success),
        parts: &mut Parts,
    ) -> Result<()> {
        let host = cx.session.host()?;
        host_link::reconcile_accept_ra(host, &end.name, parts)?;
        let addresses: Vec<IpAddr> = own.ips.iter().map(|ip| ip.address.addr()).collect();
        // First: a link without IPv6 has no IPv6 addresses and routes.
        forwarding::reconcile(host, &end.name, &addresses, parts)?;
        for net in gateways(own) {
            let make = &mut || {
                let mut batch = Batch::new();
                batch.add_address(end.index, &end.name, &gateway_address(net));
                host.commit(batch)
            };
            parts.ensure(&|| verify::has_addresses(host, end, &[net]), make)?;
        }
        for route in host_routes(own, end.index) {
            let route = std::slice::from_ref(&route);
            parts.ensure(&|| verify::kernel_routes(host, route), &mut || {
                configure::add_routes(host, route)
            })?;
        }
        let nets = own.nets();
        let rules =
            Rules { masquerades: self.masquerades(cx), nets: &nets, checked: None, internal: None };
        rules.reconcile(cx, at, parts)
    }
}

/// The container's side of the pair. CHECK does not compare the MAC address of the host end as a neighbour: earlier releases and the
/// reference did not set it.
fn inside<'a>(
    cx: &'a Context<'_>,
    at: &Attachment,
    result: &'a Success,
    (own, host_mac): (&Success, Option<Mac>),
) -> Result<Inside<'a>> {
    let mut inside = Inside::find(cx, at, result)?;
    let own = Success { routes: result.routes.clone(), ..own.clone() };
    inside.routes = Routes::via_gateways(&own, inside.link.index);
    inside.neighbours = host_mac.map(|mac| neighbours(&own, mac)).unwrap_or_default();
    Ok(inside)
}

/// The IPv4 gateways with the MAC address of the host end. With `net.ipv4.conf.all.arp_ignore` 2 the host answers ARP only for
/// addresses in the subnet of the sender, and the gateway on the host end has a subnet of its own.
fn neighbours(success: &Success, host_mac: Mac) -> Vec<(IpAddr, Mac)> {
    let gateways = gateways(success).into_iter().map(|net| net.addr());
    gateways.filter(IpAddr::is_ipv4).map(|gateway| (gateway, host_mac)).collect()
}

/// The addresses of the interface with their gateways, without those that have none.
fn own(result: &Success, at: &Attachment) -> Success {
    let ips = chained::ips(result, at).filter(|ip| ip.gateway.is_some());
    Success { ips: ips.cloned().collect(), ..Success::default() }
}

/// Fails if an address has no gateway of its family: the container sends every packet to a gateway.
fn require_gateway(ip: &Ip) -> Result<()> {
    let address = ip.address;
    match ip.gateway {
        Some(gateway) if gateway.is_ipv4() == address.addr().is_ipv4() => Ok(()),
        Some(gateway) => Err(Error::config(format_args!(
            "cannot use gateway {gateway} for address {address}: the families differ"
        ))),
        None => Err(Error::config(format_args!(
            "cannot route address {address}: the IPAM plugin returned no gateway for it"
        ))),
    }
}

/// For STATUS: fails if an address has no gateway, or if a new link of the host cannot have such addresses.
fn check_gateways(expected: &Expected) -> Result<()> {
    for choices in &expected.choices {
        if let Some(Err(error)) = choices.iter().map(require_gateway).min_by_key(Result::is_err) {
            return Err(error);
        }
    }
    let addresses: Vec<IpAddr> =
        expected.choices.iter().flatten().map(|ip| ip.address.addr()).collect();
    let is_possible = host_link::check_accept_ra_settable()
        .and_then(|()| gateway::check_possible(None, &addresses));
    is_possible.map_err(Error::into_not_available)
}

/// The routes of the host: `IP dev vethX scope host` for each address of the container.
fn host_routes(success: &Success, index: u32) -> Vec<Route> {
    let to_container = |ip: &Ip| Route {
        dev: Some(index),
        scope: Some(SCOPE_HOST),
        ..Route::to(IpNet::from(ip.address.addr()))
    };
    success.ips.iter().map(to_container).collect()
}

/// The gateway addresses of the host end, with full prefix lengths, because all host ends have the same addresses.
fn gateways(success: &Success) -> Vec<IpNet> {
    let mut gateways: Vec<IpAddr> = success.ips.iter().filter_map(|ip| ip.gateway).collect();
    gateways.sort_unstable();
    gateways.dedup();
    gateways.into_iter().map(IpNet::from).collect()
}

fn gateway_address(net: IpNet) -> NewAddress {
    NewAddress { net, no_dad: true, no_prefix_route: false, may_exist: false }
}

fn set_up_host_end(owner: &Owner, host: &Rtnl, pair: &veth::Pair, success: &Success) -> Result<()> {
    let name = &pair.host.name;
    host_link::refuse_router_advertisements(&pair.host)?;
    if success.ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        host_link::skip_duplicate_detection(name)?;
        forwarding::enable_ipv6(&pair.host)?;
    }
    let alias = owner.alias();
    let mut batch = Batch::new();
    let change = LinkChange {
        up: Some(true),
        alias: Some(&alias),
        forward_ipv4: success.ips.iter().any(|ip| ip.address.addr().is_ipv4()),
        ..LinkChange::default()
    };
    batch.change_link(pair.host.index, name, &change);
    for net in gateways(success) {
        batch.add_address(pair.host.index, name, &gateway_address(net));
    }
    for route in host_routes(success, pair.host.index) {
        batch.add_route(&route);
    }
    host.commit(batch)
}
