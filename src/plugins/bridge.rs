//! `bridge`: a veth pair whose host end is a port of a bridge on the host.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "dbnet", "type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
//!   "ipam": { "type": "host-local", "subnet": "10.1.0.0/16" }
//! }
//! ```
//!
//! It makes the bridge if there is none, and with `isGateway` puts the gateway's address on it. Without `ipam` the
//! container gets an interface with no address.
//!
//! `ipMasqBackend` may be "iptables" or "nftables": both are served by nf_tables.
//!
//! DEL removes the pair, then releases the addresses; GC does the same for what is not valid. The bridge, its address
//! and the host's forwarding stay, as with the reference: other containers use them.

mod gateway;
mod host;
mod port;

use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use crate::cni::conf::requested_mac;
use crate::cni::request::Verb;
use crate::cni::success::{Interface, Success};
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::rtnl::{Link, Rtnl};
use crate::kernel::sysctl;
use crate::names::{Attachment, IfName};
use crate::plugin::{Context, Plugin};
use crate::steps::netfilter::Stale;
use crate::steps::owner::Owner;
use crate::steps::undo::Undo;
use crate::steps::{
    configure, delegate, forwarding, masquerade, reference, spoof_check, verify, veth,
};

/// How long to wait for another ADD that takes back a bridge; that takes the kernel some 20 ms.
const LOCK_LIMIT: Duration = Duration::from_millis(250);

/// The index of the container's interface in our results.
const CONTAINER: u32 = 2;

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bridge {
    bridge: String,
    /// The bridge is the gateway of the containers.
    is_gateway: bool,
    /// It is, and they have their default route through it.
    is_default_gateway: bool,
    /// Another address of the same family on the bridge makes way for the gateway's.
    force_address: bool,
    ip_masq: bool,
    ip_masq_backend: String,
    /// Of both ends, and of a bridge that is made now, in bytes; 0 and less leave it to the kernel.
    mtu: i32,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: i32,
    vlan_trunk: Vec<VlanTrunk>,
    preserve_default_vlan: bool,
    macspoofchk: bool,
    /// Detect duplicates of IPv6 addresses in the container. The key is written in lower case.
    #[serde(rename = "enabledad")]
    enable_dad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
}

#[derive(Deserialize)]
struct VlanTrunk {}

impl Default for Bridge {
    fn default() -> Self {
        Self {
            bridge: "cni0".into(),
            is_gateway: false,
            is_default_gateway: false,
            force_address: false,
            ip_masq: false,
            ip_masq_backend: String::new(),
            mtu: 0,
            hairpin_mode: false,
            promisc_mode: false,
            vlan: 0,
            vlan_trunk: Vec::new(),
            preserve_default_vlan: false,
            macspoofchk: false,
            enable_dad: false,
            disable_container_interface: false,
            port_isolation: false,
        }
    }
}

impl Plugin for Bridge {
    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let bridge_name = self.validate(cx)?;
        let mac = requested_mac(&cx.request.json, &cx.request.args)?;
        let host = Rtnl::open()?;
        // As long as we hold it, nobody takes back a bridge that we are about to use.
        let in_use = NetNs::own()?.lock_shared(LOCK_LIMIT)?;
        let mut undo = Undo::default();

        let mut success = delegate::add_ipam(cx, at, &mut undo)?;
        let gateways = self.plan_gateways(&mut success);
        let bridge = host::ensure_bridge(
            &host,
            in_use.as_ref(),
            &bridge_name,
            &self.new_bridge(),
            &mut undo,
        )?;
        gateway::ensure_addresses(
            &host,
            in_use.as_ref(),
            &bridge,
            &gateways,
            self.force_address,
            &mut undo,
        )?;
        let owner = Owner::new(&cx.request.network, at);
        let new = veth::NewPair {
            owner: &owner,
            ifname: &at.ifname,
            mtu: self.mtu(),
            mac,
            master: Some(bridge.index),
        };
        let pair = veth::create(&host, netns, &new)?;
        let (host, host_index) = (&host, pair.host.index);
        undo.push("remove the veth pair", move || host.del_link(host_index));
        let stale = Stale::Of(owner.clone());
        if self.macspoofchk {
            // Before the port is up, so that not a single frame gets by.
            spoof_check::add(&owner, &IfName::new(pair.host.name.as_str())?, pair.container_mac)?;
            let stale = stale.clone();
            undo.push("remove the MAC spoof check", move || spoof_check::remove(&stale));
        }
        self.set_up_port(&owner, host, &pair.host)?;
        self.set_up_container(at, netns, pair.container_index, &success)?;
        if !self.disable_container_interface {
            port::wait_until_forwarding(host, &pair.host)?;
        }

        if self.masquerades(cx) {
            masquerade::add(&owner, &success.nets())?;
            undo.push("remove the masquerade", move || masquerade::remove(&stale));
        }
        // Last, since there is no taking it back.
        forwarding::enable(gateways.iter().map(IpNet::addr))?;

        success.interfaces = interfaces(cx, at, &bridge, &pair);
        success.dns = cx.request.conf.dns.or(success.dns);
        undo.keep();
        Ok(success)
    }

    fn del(&self, cx: &Context<'_>, at: &Attachment, netns: Option<&NetNs>) -> Result<()> {
        let network = &cx.request.network;
        veth::del(cx, at, netns, |failures| {
            let stale = Stale::Of(Owner::new(network, at));
            if self.masquerades(cx) {
                failures.note(masquerade::remove(&stale));
                failures.note(reference::remove_masquerade(network, reference::Stale::Of(at)));
            }
            if self.macspoofchk {
                failures.note(spoof_check::remove(&stale));
                failures.note(reference::remove_spoof_check(at));
            }
        })
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<()> {
        let bridge_name = self.validate(cx)?;
        delegate::call_ipam(cx, &Verb::Check(at.clone()))?;
        let result = cx.request.required_prev_result()?;
        let rtnl = netns.rtnl()?;
        let (index, link) = verify::interface(cx, at, &rtnl, &result)?;
        if !self.disable_container_interface {
            verify::is_up(&link)?;
        }
        verify::addresses(&rtnl, &link, &result, index)?;
        verify::routes(&rtnl, &result)?;

        let host = Rtnl::open()?;
        let bridge = host::existing_bridge(&host, &bridge_name)?
            .ok_or_else(|| Error::internal(format!("bridge {bridge_name} not found")))?;
        verify::is_up(&bridge)?;
        if self.promisc_mode && !bridge.promiscuous {
            return Err(Error::internal(format!(
                "bridge {bridge_name} is not in promiscuous mode"
            )));
        }
        self.check_port(&bridge, &veth::host_end(&host, &link, &at.ifname)?)?;
        let mut own =
            Success { ips: result.ips_of(index).cloned().collect(), ..Success::default() };
        verify::host_addresses(&host, &bridge, &self.plan_gateways(&mut own))?;
        let owner = Owner::new(&cx.request.network, at);
        if self.masquerades(cx) {
            masquerade::check(&owner, &own.nets())?;
        }
        if self.macspoofchk { spoof_check::check(&owner) } else { Ok(()) }
    }

    fn gc(&self, cx: &Context<'_>, keep: &[Attachment]) -> Result<()> {
        let network = &cx.request.network;
        veth::gc(cx, keep, |failures| {
            let stale = Stale::all_but(network, keep);
            if self.masquerades(cx) {
                failures.note(masquerade::remove(&stale));
                failures
                    .note(reference::remove_masquerade(network, reference::Stale::AllBut(keep)));
            }
            if self.macspoofchk {
                failures.note(spoof_check::remove(&stale));
            }
        })
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        let bridge_name = self.validate(cx)?;
        host::existing_bridge(&Rtnl::open()?, &bridge_name).map_err(Error::into_not_available)?;
        if self.masquerades(cx) {
            masquerade::status()?;
        }
        if self.macspoofchk {
            spoof_check::status()?;
        }
        delegate::call_ipam(cx, &Verb::Status)
    }
}

impl Bridge {
    fn validate(&self, cx: &Context<'_>) -> Result<IfName> {
        let is_l3 = !cx.request.conf.ipam.kind.is_empty();
        let refused = [
            (self.vlan != 0, "vlan is not supported yet"),
            (!self.vlan_trunk.is_empty(), "vlanTrunk is not supported yet"),
            (self.preserve_default_vlan, "preserveDefaultVlan: true is not supported yet"),
            (
                self.hairpin_mode && self.promisc_mode,
                "cannot set hairpinMode and promiscMode at the same time",
            ),
            (
                self.disable_container_interface && is_l3,
                "cannot use IPAM when disableContainerInterface is set",
            ),
        ];
        if let Some((_, why)) = refused.iter().find(|(is_refused, _)| *is_refused) {
            return Err(Error::config(*why));
        }
        if !matches!(self.ip_masq_backend.as_str(), "" | "iptables" | "nftables") {
            return Err(Error::config(format!(
                "ipMasqBackend: unknown backend {:?}",
                self.ip_masq_backend
            )));
        }
        IfName::new(self.bridge.as_str()).map_err(|error| Error::config(format!("bridge: {error}")))
    }

    fn mtu(&self) -> Option<u32> {
        u32::try_from(self.mtu).ok().filter(|mtu| *mtu > 0)
    }

    fn new_bridge(&self) -> host::NewBridge {
        host::NewBridge { mtu: self.mtu(), promiscuous: self.promisc_mode }
    }

    /// Without addresses there is nothing to masquerade.
    fn masquerades(&self, cx: &Context<'_>) -> bool {
        self.ip_masq && !cx.request.conf.ipam.kind.is_empty()
    }

    fn set_up_container(
        &self,
        at: &Attachment,
        netns: &NetNs,
        index: u32,
        success: &Success,
    ) -> Result<()> {
        if self.disable_container_interface {
            return Ok(());
        }
        if success.ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
            netns.run(|| self.set_sysctls(&at.ifname))?;
        }
        let interface =
            configure::Interface { netns, rtnl: &netns.rtnl()?, name: &at.ifname, index };
        let options = configure::Options {
            detect_duplicates: self.enable_dad,
            announce: true,
            ..configure::Options::default()
        };
        configure::apply(&interface, success, &configure::routes(success, index), options)
    }

    /// Runs inside of the container's namespace.
    fn set_sysctls(&self, ifname: &str) -> Result<()> {
        if self.enable_dad {
            sysctl::set_if_possible(&format!("net/ipv6/conf/{ifname}/enhanced_dad"), "1")?;
        }
        let accept_dad = if self.enable_dad { "1" } else { "0" };
        sysctl::set_if_possible(&format!("net/ipv6/conf/{ifname}/accept_dad"), accept_dad)
    }
}

fn interfaces(
    cx: &Context<'_>,
    at: &Attachment,
    bridge: &Link,
    pair: &veth::Pair,
) -> Vec<Interface> {
    let interface = |name: &str, mac: String, sandbox: String| Interface {
        name: name.into(),
        mac,
        sandbox,
        ..Interface::default()
    };
    let bridge_mac = bridge.mac.map_or_else(String::new, |mac| mac.to_string());
    vec![
        interface(&bridge.name, bridge_mac, String::new()),
        interface(&pair.host.name, pair.host_mac.to_string(), String::new()),
        interface(&at.ifname, pair.container_mac.to_string(), cx.request.sandbox()),
    ]
}
