//! `bridge`: a veth pair between host and container; the host end is a port of a bridge.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "dbnet", "type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
//!   "ipam": { "type": "host-local", "subnet": "10.1.0.0/16" }
//! }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `bridge` | string | `cni0` | Name of the bridge. ADD makes it if it does not exist. |
//! | `isGateway` | boolean | false | The bridge gets the gateway address of the subnet, and the host forwards packets. |
//! | `isDefaultGateway` | boolean | false | Implies `isGateway`. The container also gets default routes via the gateway. |
//! | `forceAddress` | boolean | false | Replaces another address of the bridge that conflicts with the gateway. Otherwise ADD fails. |
//! | `ipMasq` | boolean | false | Masquerades packets from the container to addresses outside its subnet. |
//! | `ipMasqBackend` | string | any | `iptables` or `nftables`. Both give the same nf_tables rules. |
//! | `mtu` | integer | kernel's | MTU in bytes of both ends of the pair and of a new bridge, 68 to 65535; at least 1280 with IPv6. 0 means the default. |
//! | `hairpinMode` | boolean | false | The port also sends frames back that it received. Not with `promiscMode`. |
//! | `promiscMode` | boolean | false | Puts the bridge into promiscuous mode. Not with `hairpinMode`. |
//! | `vlan` | integer | 0 (none) | VLAN of the port, untagged, 1 to 4094. |
//! | `vlanTrunk` | list of objects | none | VLANs of the port, tagged. An empty list makes a new bridge filter VLANs. |
//! | `vlanTrunk[].minID` | integer | none | First VLAN of a range. Needs `maxID`. |
//! | `vlanTrunk[].maxID` | integer | none | Last VLAN of a range. Needs `minID`. |
//! | `vlanTrunk[].id` | integer | none | A single VLAN, alone or beside a range. |
//! | `preserveDefaultVlan` | boolean | false | The port also stays in the default VLAN of the bridge (VLAN 1), untagged. |
//! | `macspoofchk` | boolean | false | Drops frames from the container with another source MAC address than that of its interface. |
//! | `enabledad` | boolean | false | Enables duplicate address detection for the IPv6 addresses of the container. |
//! | `disableContainerInterface` | boolean | false | The interface in the container stays down. Not with `ipam`. |
//! | `portIsolation` | boolean | false | Isolated ports of a bridge do not exchange frames. |
//! | `removeUnused` | boolean | false | DEL and GC remove the bridge with its last port. For a bridge that nobody else configures. |
//! | `internal` | boolean | false | The host forwards no packet from or to the bridge, see below. |
//! | `runtimeConfig.mac` | string | random | MAC address of the container's interface (capability `mac`). |
//! | `args.cni.mac` | string | random | The same, if `runtimeConfig.mac` is not set. |
//! | `CNI_ARGS: MAC` | string | random | The same, if neither of them is set. |
//!
//! **IPv6.** The kernel gives the bridge the smallest MTU of its ports, and removes the IPv6 addresses of a link with an
//! MTU below 1280. So ADD with such an `mtu` fails if the containers get IPv6 addresses or the bridge has one.
//!
//! **Gateway.** ADD fails with code 7 if another machine on the bridge answers for the gateway address, and always with
//! `isGateway` and the IPAM plugin `dhcp`, whose server names another machine as router.
//!
//! **Internal.** Containers reach each other, and whatever the host itself offers on any of its addresses, but no other host and
//! no other network, whatever routes they add; nobody else reaches them, also not at published ports. A drop in the tables
//! `cnibox` does this for the bridge, or with `vlan` for the link of the gateway, for both families, while the network has a
//! container. The host does not enable IP forwarding. Another port of the bridge that leads to other hosts is not cut off. ADD fails
//! with code 7 if the containers are in other VLANs, too: with `vlanTrunk`, or with `vlan` and `preserveDefaultVlan`. On the bridge
//! of an internal network, ADD of another network with a gateway fails with code 7, and CHECK of a container that was there before.
//!
//! **VLANs.** A port is in the listed VLANs only. A trunk without `vlan` therefore drops untagged frames. A bridge
//! that exists must have VLAN filtering enabled; a new one gets it. With `isGateway` the gateway of VLAN 10 on `cni0`
//! is a link `cni0.10`.
//!
//! - **ADD** makes the bridge, the gateway address, the pair and the nf_tables elements, and configures the
//!   container's interface. Without `ipam` the interface gets no addresses. The order is chosen so that no frame
//!   passes unfiltered. The result lists the bridge, both ends of the pair and, with `vlan`, the link of the gateway.
//!   For an address outside of the subnet of its gateway, the host gets a route of the protocol 205, which DEL and GC remove.
//! - **CHECK** calls the CHECK of the IPAM plugin. It compares the MAC address, addresses and routes of the interface
//!   with `prevResult`, and the bridge, its port, VLANs, gateway, masquerading and spoof check with the configuration.
//!   It also compares `mtu`; `tuning` may have set a smaller one. Rules of the reference are accepted.
//! - **DEL** removes the pair and its nf_tables elements, then releases the addresses. It also removes the link of a
//!   VLAN gateway when no container is in the VLAN. Without `removeUnused` the bridge and its address stay, as with the
//!   reference; IP forwarding always stays.
//! - **GC** does the same for all attachments that are not valid.
//! - **STATUS** fails if `bridge` names a link of another kind, if VLANs are configured and the bridge or the kernel
//!   cannot filter them, if the kernel lacks an nf_tables feature that `ipMasq` or `macspoofchk` needs, or if the IPAM
//!   plugin fails. With `isGateway` it also fails if the bridge has another address than the gateway's and
//!   `forceAddress` is false, if the host cannot enable IPv6 or the MTU of the bridge is below 1280 and there is an IPv6
//!   gateway, or if IP forwarding cannot be enabled.

mod device;
mod gateway;
mod host_routes;
mod on_host;
mod port;
mod vlan;
mod vlan_gateway;

use std::time::Duration;

use ipnet::IpNet;

use crate::attachments::owner::Owner;
use crate::cni::json::keys;
use crate::cni::request::Verb;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::{Lock, NetNs};
use crate::kernel::sysctl;
use crate::names::{Attachment, IfName, IpFamily};
use crate::netlink::rtnl::{Link, Rtnl};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::rules::{internal, masquerade, spoof_check};
use crate::steps::delegate;
use crate::steps::link::inside::Inside;
use crate::steps::link::routes::{self, Routes};
use crate::steps::link::verify;
use crate::steps::link::{configure, host_link, veth};
use crate::steps::rules::Rules;
use crate::steps::undo::{Failures, Undo};
use vlan::{Trunk, Vlans};

/// The timeout of the lock that calls hold while they use or remove a bridge or a VLAN gateway. The kernel needs about 20 ms
/// to remove a link.
const LOCK_TIMEOUT: Duration = Duration::from_millis(250);

/// The timeout of the lock before a bridge is removed. Every ADD of any bridge holds it, and no later DEL may come.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The index of the container's interface in the result of ADD.
const CONTAINER: u32 = 2;

/// The default of the key `bridge`.
pub const DEFAULT: &str = "cni0";

pub const ENTRY: Entry = Entry {
    has_own_subnets: true,
    leaves_owned: true,
    kinds: &[("bridge", "CONFIG_BRIDGE"), Entry::VETH],
    probes: &[
        ("vlan", r#""vlan":5"#),
        Entry::MASQUERADES,
        ("macspoofchk", r#""macspoofchk":true"#),
        ("internal", r#""internal":true"#),
    ],
    ..Entry::plugin::<Bridge>("bridge", "a veth pair with its host end on a bridge")
};

keys! {
    pub struct Bridge {
        "bridge" => bridge: String = DEFAULT.into(),
        "isGateway" => is_gateway: bool,
        "isDefaultGateway" => is_default_gateway: bool,
        "forceAddress" => force_address: bool,
        "ipMasq" => ip_masq: bool,
        "ipMasqBackend" => ip_masq_backend: String,
        /// Values below 1 mean the kernel's default.
        "mtu" => mtu: i32,
        "hairpinMode" => hairpin_mode: bool,
        "promiscMode" => promisc_mode: bool,
        /// 0 means no VLAN.
        "vlan" => vlan: i32,
        "vlanTrunk" => vlan_trunk: Option<Vec<Trunk>>,
        "preserveDefaultVlan" => preserve_default_vlan: bool,
        "macspoofchk" => macspoofchk: bool,
        "enabledad" => enable_dad: bool,
        "disableContainerInterface" => disable_container_interface: bool,
        "portIsolation" => port_isolation: bool,
        "removeUnused" => remove_unused: bool,
        "internal" => internal: bool,
    }
}

/// The validated configuration.
struct Validated {
    bridge: IfName,
    vlans: Vlans,
    /// The link that gets the gateway addresses. `None` if the bridge gets them, or if the network has no gateway.
    vlan_gateway: Option<IfName>,
}

/// The host objects that an ADD uses.
struct HostState<'a> {
    host: &'a Rtnl,
    /// Every call that uses a bridge holds this lock. `None` after a timeout.
    lock: Option<&'a Lock>,
    validated: &'a Validated,
}

/// The result of the IPAM plugin with gateways and default routes added, the gateway addresses that were set on the host, and
/// the VLAN gateway that has them.
#[derive(Default)]
struct Addressing {
    success: Success,
    gateways: Vec<IpNet>,
    vlan_gateway: Option<Link>,
}

impl Plugin for Bridge {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        self.validate(cx)?;
        veth::requested_mac(cx)?;
        delegate::examine(cx)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let validated = self.validate(cx)?;
        let mac = veth::requested_mac(cx)?;
        let host = cx.session.host()?;
        // While this call holds the lock, no other call removes the bridge.
        let lock = cx.session.host_netns()?.lock_shared(LOCK_TIMEOUT)?;
        let host_state = HostState { host, lock: lock.as_ref(), validated: &validated };
        let mut undo = Undo::new(cx);

        let bridge = self.ensure_bridge(&host_state, &mut undo)?;
        let owner = Owner::new(&cx.request.network, at);
        if let Some(link) = self.ordinary_link(cx, &validated, &bridge)
            && let Some(nft) = cx.session.nft_if_any()?
        {
            internal::release(nft, &IfName::new(link)?, &owner)?;
        }
        let mut addressing = Addressing::default();
        let needs_link = delegate::ipam_needs_link(cx);
        if !needs_link {
            // Before the pair is made: if the IPAM plugin fails, there is no link to remove.
            addressing = self.allocate(cx, at, &host_state, &bridge, &mut undo)?;
        }
        let new = veth::NewPair {
            owner: &owner,
            ifname: &at.ifname,
            mtu: self.mtu(),
            mac,
            master: Some(bridge.index),
        };
        let pair = veth::create(cx, netns, &new, &mut undo)?;
        // The port must not be up before the rules exist. Otherwise frames pass unfiltered.
        self.set_rules(cx, at, (&bridge, &pair), &addressing, &mut undo)?;
        self.set_up_port(&owner, host, &bridge, &validated.vlans, &pair.host)?;
        if needs_link {
            veth::bring_up(cx, &pair, &at.ifname)?;
            port::wait_until_forwarding(host, &bridge, &pair.host)?;
            addressing = self.allocate(cx, at, &host_state, &bridge, &mut undo)?;
            self.set_rules(cx, at, (&bridge, &pair), &addressing, &mut undo)?;
        }
        if !self.disable_container_interface {
            routes::undo_rejecting(cx, &addressing.success, &mut undo)?;
            self.set_up_container(cx, at, netns, &bridge, &pair, &addressing.success)?;
        }
        let success = self.finish(cx, at, &bridge, &pair, addressing)?;
        undo.keep();
        Ok(success)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        let validated = self.validate(cx)?;
        delegate::call_ipam(cx, &Verb::Check(at.clone()))?;
        let result = cx.request.required_prev_result()?;
        let inside = self.inside(cx, at, &result)?;
        let link = &inside.link;
        inside.reconcile(&mut Parts::to_check())?;
        let host = cx.session.host()?;
        let bridge = device::require_bridge(host, &validated.bridge)?;
        verify::check_up(&bridge)?;
        if self.promisc_mode && !bridge.promiscuous {
            let msg = format!("bridge {} is not in promiscuous mode", bridge.name);
            return Err(Error::internal(msg));
        }
        let port = port::find(host, link, &bridge)?;
        veth::check_mtu(at, &port, link, self.mtu())?;
        self.check_port(host, &bridge, &port)?;
        if !validated.vlans.is_empty() {
            vlan::require_filtering(&bridge)?;
            validated.vlans.check(&bridge, &port, &host.bridge_ports()?)?;
        }
        self.reconcile_on_host(cx, at, (&validated, &bridge, &port), &mut Parts::to_check())
    }

    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        let host = cx.session.host()?;
        let validated = self.validate(cx)?;
        let bridge = device::require_bridge(host, &validated.bridge)?;
        let result = cx.request.required_prev_result()?;
        let port = veth::host_end_of(cx, at, &result)?;
        if port.master != Some(bridge.index) {
            let msg = format!("interface {} is not a port of bridge {}", port.name, bridge.name);
            return Err(Error::internal(msg).with_details("only a new ADD connects it again"));
        }
        self.reconcile_on_host(cx, at, (&validated, &bridge, &port), parts)?;
        parts.in_container(|parts| self.inside(cx, at, &result)?.reconcile(parts))
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        let owners = cx.owners(scope);
        let mut failures = Failures::default();
        failures.note(veth::clean(cx, scope, netns, &owners));
        failures.note(self.remove_host_routes(cx));
        failures.note(self.remove_unused_gateways(cx));
        failures.note(self.remove_unused_bridge(cx));
        failures.into_result()
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        let Validated { bridge: bridge_name, vlans, vlan_gateway } = self.validate(cx)?;
        let host = cx.session.host()?;
        let bridge =
            device::existing_bridge(host, &bridge_name).map_err(Error::into_not_available)?;
        let filtering = match &bridge {
            Some(bridge) if !vlans.is_empty() => vlan::require_filtering(bridge),
            None if self.configures_vlans() => vlan::require_kernel(host),
            _ => Ok(()),
        };
        filtering.map_err(Error::into_not_available)?;
        if let Some(bridge) = &bridge {
            device::check_port_mtu(host, bridge, self.mtu()).map_err(Error::into_not_available)?;
        }
        self.check_gateway(cx, bridge.as_ref(), vlan_gateway.as_ref())?;
        if self.masquerades(cx) {
            masquerade::status(cx.session.nft().map_err(Error::into_not_available)?)?;
        }
        if self.macspoofchk {
            spoof_check::status(cx.session.nft().map_err(Error::into_not_available)?)?;
        }
        if self.internal {
            internal::status(cx.session.nft().map_err(Error::into_not_available)?)?;
        }
        delegate::call_ipam(cx, &Verb::Status)
    }
}

impl Bridge {
    fn inside<'a>(
        &self,
        cx: &'a Context<'_>,
        at: &Attachment,
        result: &'a Success,
    ) -> Result<Inside<'a>> {
        let mut inside = Inside::find(cx, at, result)?;
        inside.is_up = !self.disable_container_interface;
        Ok(inside)
    }

    /// Gets addresses from the IPAM plugin, and sets the gateway addresses on the host.
    fn allocate<'a>(
        &self,
        cx: &'a Context<'a>,
        at: &'a Attachment,
        state: &HostState<'a>,
        bridge: &Link,
        undo: &mut Undo<'a>,
    ) -> Result<Addressing> {
        let vlan = state.validated.vlans.access.map_or_else(String::new, |vlan| format!(".{vlan}"));
        let link = format!("{}{vlan}", bridge.name);
        let mut success = delegate::add_ipam(cx, at, Some(&link), undo)?;
        let gateways = self.complete_result(&mut success);
        let vlan_gateway = self.ensure_gateway(state, bridge, &gateways, undo)?;
        let addressing = Addressing { success, gateways, vlan_gateway };
        self.add_host_routes(state.host, bridge, &addressing, undo)?;
        Ok(addressing)
    }

    /// Enables IP forwarding and returns the result of the ADD.
    fn finish(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        bridge: &Link,
        pair: &veth::Pair,
        Addressing { mut success, gateways, vlan_gateway }: Addressing,
    ) -> Result<Success> {
        let mut bridge = bridge.clone();
        if (gateways.is_empty() || vlan_gateway.is_some())
            && let Some(now) = cx.session.host()?.link_at(bridge.index)?
        {
            // A bridge that another program made may have taken over the MAC address of the new port.
            bridge = now;
        }
        // The last step: a failing ADD does not disable IP forwarding again.
        let link = vlan_gateway.as_ref().unwrap_or(&bridge);
        self.enable_forwarding(cx.session.host()?, link, &gateways)?;
        success.interfaces = vec![host_link::result_interface(&bridge)];
        success.interfaces.extend(pair.interfaces(cx, at));
        success.interfaces.extend(vlan_gateway.as_ref().map(host_link::result_interface));
        success.dns = cx.request.conf.dns.or(success.dns);
        Ok(success)
    }

    fn validate(&self, cx: &Context<'_>) -> Result<Validated> {
        let is_l3 = !cx.request.conf.ipam.kind.is_empty();
        if self.hairpin_mode && self.promisc_mode {
            let msg = "cannot set hairpin mode and promiscuous mode at the same time";
            return Err(Error::config(msg).with_details("hairpinMode, promiscMode"));
        }
        if self.disable_container_interface && is_l3 {
            let msg = "cannot use IPAM when DisableContainerInterface flag is set";
            return Err(Error::config(msg).with_details("disableContainerInterface"));
        }
        if self.is_gateway() && cx.request.conf.ipam.kind == "dhcp" {
            let msg = "cannot be the gateway of a network with dhcp: its router is another machine";
            let keys =
                [(self.is_gateway, "isGateway"), (self.is_default_gateway, "isDefaultGateway")];
            let key = keys.iter().find(|(is_set, _)| *is_set).map_or("", |(_, key)| key);
            return Err(Error::config(msg).with_details(key));
        }
        let trunk = self.vlan_trunk.as_deref().unwrap_or_default();
        for (key, has_others) in [
            ("vlanTrunk", !trunk.is_empty()),
            ("preserveDefaultVlan", self.vlan != 0 && self.preserve_default_vlan),
        ] {
            if self.internal && has_others {
                let msg =
                    "cannot separate an internal network: its containers are in other VLANs, too";
                return Err(Error::config(msg).with_details(key));
            }
        }
        veth::validate(cx, self.mtu(), &self.ip_masq_backend)?;
        let bridge = IfName::new(self.bridge.as_str())
            .map_err(|error| Error::config(format_args!("bridge: {error}")))?;
        let vlans = Vlans::new(self.vlan, trunk, self.preserve_default_vlan)?;
        Ok(Validated { bridge, vlans, vlan_gateway: self.vlan_gateway(is_l3)? })
    }

    fn mtu(&self) -> Option<u32> {
        u32::try_from(self.mtu).ok().filter(|mtu| *mtu > 0)
    }

    /// Whether a new bridge gets VLAN filtering. An empty `vlanTrunk` also enables it, but adds no VLAN to the port.
    fn configures_vlans(&self) -> bool {
        self.vlan != 0 || self.vlan_trunk.is_some()
    }

    /// The link through which the host would route the packets of an internal network, by the kernel's name. `None` for other networks.
    fn internal_link(&self, bridge: &Link, vlan_gateway: Option<&Link>) -> Result<Option<IfName>> {
        let link = match (vlan_gateway, self.vlan) {
            (Some(link), _) => link.name.clone(),
            (None, 0) => bridge.name.clone(),
            (None, vlan) => format!("{}.{vlan}", bridge.name),
        };
        self.internal.then(|| IfName::new(link)).transpose()
    }

    /// The link through which the host forwards the packets of a network that is not internal. `None` if it forwards none.
    fn ordinary_link<'a>(
        &self,
        cx: &Context<'_>,
        validated: &'a Validated,
        bridge: &'a Link,
    ) -> Option<&'a str> {
        let is_forwarded =
            !self.internal && self.is_gateway() && !cx.request.conf.ipam.kind.is_empty();
        is_forwarded.then(|| validated.vlan_gateway.as_deref().unwrap_or(&bridge.name))
    }

    fn masquerades(&self, cx: &Context<'_>) -> bool {
        self.ip_masq && !cx.request.conf.ipam.kind.is_empty()
    }

    fn set_up_container(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        netns: &NetNs,
        bridge: &Link,
        pair: &veth::Pair,
        success: &Success,
    ) -> Result<()> {
        if success.ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
            netns.run(|| self.set_sysctls(&at.ifname))?;
        }
        let (rtnl, index) = (cx.session.container()?, pair.container_index);
        let interface = configure::Interface { netns, rtnl, name: &at.ifname, index };
        let options = configure::Options {
            detect_duplicates: self.enable_dad,
            // The port does not forward yet, so an announcement would be lost.
            announce: configure::Announce::Later,
            ..configure::Options::default()
        };
        configure::apply(&interface, success, &Routes::on_link(success, index), options)?;
        port::wait_until_forwarding(cx.session.host()?, bridge, &pair.host)?;
        configure::announce(&interface, success, pair.container_mac)
    }

    /// Adds the nf_tables elements for masquerading and the MAC spoof check, as configured, and removes other elements of the
    /// owner.
    fn set_rules<'a>(
        &self,
        cx: &'a Context<'a>,
        at: &'a Attachment,
        (bridge, pair): (&Link, &veth::Pair),
        addressing: &Addressing,
        undo: &mut Undo<'a>,
    ) -> Result<()> {
        let mac = self.macspoofchk.then_some(pair.container_mac);
        let internal = self.internal_link(bridge, addressing.vlan_gateway.as_ref())?;
        let rules = Rules {
            masquerades: self.masquerades(cx),
            nets: &addressing.success.nets(),
            checked: Some((&pair.host.name, mac)),
            internal: internal.as_ref(),
        };
        rules.add(cx, at, undo)?;
        if self.internal && self.vlan == 0 {
            let ports = cx.session.host()?.links_with_master(bridge.index)?;
            let others = internal::count_others(cx.session.nft()?, &ports)?;
            if others > 0 {
                cx.warn(format_args!(
                    "internal: the host forwards no packet of bridge {}: it has {others} ports of other networks",
                    bridge.name
                ));
            }
        }
        Ok(())
    }

    /// Enables or disables duplicate address detection of the interface. Must run in the container's namespace.
    fn set_sysctls(&self, ifname: &str) -> Result<()> {
        if self.enable_dad {
            sysctl::set_if_possible(&sysctl::of_link(IpFamily::V6, ifname, "enhanced_dad"), "1")?;
        }
        let accept_dad = if self.enable_dad { "1" } else { "0" };
        sysctl::set_if_possible(&sysctl::of_link(IpFamily::V6, ifname, "accept_dad"), accept_dad)
    }
}
