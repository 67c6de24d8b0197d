//! The host's part of an attachment to a bridge: gateway addresses, forwarding, masquerading, and the MAC spoof check. A
//! missing bridge or port is not restored: only a new ADD can connect the container again.

use ipnet::IpNet;

use super::{Bridge, HostState, LOCK_TIMEOUT, Validated, vlan_gateway};
use crate::attachments::owner::Owner;
use crate::cni::success::{Interface, Success};
use crate::error::{Error, Result};
use crate::names::{Attachment, IfName, Mac};
use crate::netlink::rtnl::Link;
use crate::plugin::Context;
use crate::plugin::parts::Parts;
use crate::rules::internal;
use crate::steps::link::{chained, forwarding, host_link, verify};
use crate::steps::rules::Rules;
use crate::steps::undo::Undo;

impl Bridge {
    pub(super) fn reconcile_on_host(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        (validated, bridge, port): (&Validated, &Link, &Link),
        parts: &mut Parts,
    ) -> Result<()> {
        let result = cx.request.required_prev_result()?;
        let host = cx.session.host()?;
        // While this call holds the lock, no other call removes the VLAN gateway.
        let lock = match parts.is_check() {
            true => None,
            false => cx.session.host_netns()?.lock_shared(LOCK_TIMEOUT)?,
        };
        let state = HostState { host, lock: lock.as_ref(), validated };
        let mut own =
            Success { ips: chained::ips(&result, at).cloned().collect(), ..Success::default() };
        let gateways = self.complete_result(&mut own);
        let compare = || check_gateway(&state, bridge, &gateways);
        parts.ensure(&compare, &mut || {
            let mut undo = Undo::new(cx);
            self.ensure_gateway(&state, bridge, &gateways, &mut undo)?;
            undo.keep();
            Ok(())
        })?;
        let addresses: Vec<_> = gateways.iter().map(IpNet::addr).collect();
        let gateway = validated.vlan_gateway.as_deref().unwrap_or(&bridge.name);
        if !self.internal {
            forwarding::reconcile(host, gateway, &addresses, parts)?;
        }
        if let Some(link) = self.ordinary_link(cx, validated, bridge)
            && let Some(nft) = cx.session.nft_if_any()?
        {
            let (link, owner) = (IfName::new(link)?, Owner::new(&cx.request.network, at));
            let compare = || internal::check_released(nft, &link, &owner);
            parts.ensure(&compare, &mut || internal::release(nft, &link, &owner))?;
        }
        self.reconcile_host_routes(host, gateway, &own, parts)?;
        host_link::reconcile_accept_ra(host, &port.name, parts)?;
        let mac = if self.macspoofchk { Some(mac_of(&result, at)?) } else { None };
        let gateway = validated.vlan_gateway.as_ref().filter(|_| self.internal);
        let gateway = gateway.map_or(Ok(None), |name| host.link(name))?;
        let internal = self.internal_link(bridge, gateway.as_ref())?;
        let rules = Rules {
            masquerades: self.masquerades(cx),
            nets: &own.nets(),
            checked: Some((&port.name, mac)),
            internal: internal.as_ref(),
        };
        rules.reconcile(cx, at, parts)
    }
}

/// All attachments to the bridge share the gateway.
fn check_gateway(state: &HostState<'_>, bridge: &Link, gateways: &[IpNet]) -> Result<()> {
    let HostState { host, validated, .. } = *state;
    let of_gateway = |name: &str| format!("gateway on {name}");
    match &validated.vlan_gateway {
        Some(name) => {
            let ports = host.bridge_ports()?;
            vlan_gateway::check(host, bridge, name, validated.vlans.access, &ports)
                .and_then(|link| verify::has_addresses(host, &link, gateways))
                .map_err(|error| error.of_shared(of_gateway(name)))
        }
        None => verify::has_addresses(host, bridge, gateways)
            .map_err(|error| error.of_shared(of_gateway(&bridge.name))),
    }
}

/// The MAC address of the container's interface in the result. The container may have changed the address of the link.
fn mac_of(result: &Success, at: &Attachment) -> Result<Mac> {
    let is_own =
        |own: &&Interface| own.name == *at.ifname && !own.sandbox.is_empty() && !own.mac.is_empty();
    let missing =
        || Error::config(format_args!("prevResult has no MAC address of interface {}", at.ifname));
    result.interfaces.iter().find(is_own).ok_or_else(missing)?.mac.parse()
}
