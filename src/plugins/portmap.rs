//! `portmap`: publishes ports of a container on the host.
//!
//! ```json
//! { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `backend` | string | any | `iptables` or `nftables`. Both give the same nf_tables rules. Keys of the other backend are then refused. |
//! | `snat` | boolean | true | Packets from the subnet of the container and from 127.0.0.1 get the host's address as source, so that replies return through the host. Without it, 127.0.0.1 leads to the host itself. |
//! | `masqAll` | boolean | false | With `snat`, all packets to published ports get the host's address as source. |
//! | `markMasqBit` | integer | 13 | The bit (0 to 31) of the packet mark that marks packets whose source is to be replaced. Not with `externalSetMarkChain`. |
//! | `externalSetMarkChain` | string | none | Checked; the rules of cnibox replace the source, with bit 13, and do not use the chain of iptables. |
//! | `conditionsV4` | list of strings | none | Further conditions on IPv4 packets: arguments of iptables (`["!", "-s", "10.0.0.0/8"]`) or parts of an nft rule (`["iifname eth0"]`). An unknown condition is an error. |
//! | `conditionsV6` | list of strings | none | The same for IPv6 packets. |
//! | `runtimeConfig.portMappings` | list of objects | none | Ports to publish (capability `portMappings`). |
//! | `runtimeConfig.portMappings[].hostPort` | integer | required | Port on the host, 1 to 65535. |
//! | `runtimeConfig.portMappings[].containerPort` | integer | required | Port in the container, 1 to 65535. |
//! | `runtimeConfig.portMappings[].protocol` | string | `tcp` | `tcp`, `udp` or `sctp`, in upper or lower case. |
//! | `runtimeConfig.portMappings[].hostIP` | string | all addresses | Address of the host. `0.0.0.0` and `::` mean all addresses of one family. Not `::1`, nor a link-local IPv6, multicast or broadcast address; not 127.0.0.1 without `snat`. |
//!
//! The plugin follows a plugin that created an interface. It uses the first address of the container in each family; a port for
//! a family without an address is not published. ADD refuses a port that another container has at the same address, and names
//! that container. If that container has ended, also if it ended with an earlier boot and its ruleset was restored, ADD removes
//! all ports that it published. If it is unknown whether the container has ended, the error names the command that removes its
//! ports. Two attachments may have the same port if their conditions differ: the later ADD wins where both match. A container
//! in several networks may publish a port in each of them. If a program of the host waits on a port, ADD publishes it and names
//! the program in a warning, unless the program keeps the port for the container: it was started with the id of the container
//! among its arguments, as conmon of podman is. A build without the tool, such as `edge`, does not warn.
//!
//! Only packets to addresses of the host are translated. A published port answers to other hosts, to the host under
//! all of its addresses, to the container itself and to its neighbours. A container reaches itself only if its link
//! sends frames back: on a bridge this needs `hairpinMode`, unless `net.bridge.bridge-nf-call-iptables` is 0. Packets from and
//! to `::1` and fe80::/10 are not translated, because the kernel does not forward them: they reach the host itself.
//!
//! The rules come behind the rules of the administrator, of iptables and of firewalld: cnibox does not translate a port or a
//! source address that those rules translate. The source is replaced only in packets that the rules of cnibox have sent to a
//! container; a packet that another program sent to a container, for example from a ClusterIP, keeps its source. A packet whose
//! source is to be replaced has the bit of `markMasqBit` in its mark, and other packets to addresses of the host lose that bit.
//!
//! - **ADD** adds the elements for all ports in one transaction, and replaces those of an earlier ADD of the attachment. With
//!   `snat` it enables `route_localnet` on the link to the container, for 127.0.0.1; a rule drops packets to 127.0.0.0/8 that
//!   arrive on such a link (CVE-2020-8558). It deletes from conntrack the UDP connections to the ports that do not lead to the
//!   container. A port that the Go plugin has published for another container is refused, because the rules of the Go plugin come
//!   first. The error names the command that removes these rules if that container has ended.
//! - **CHECK** compares the elements and shared rules with the configuration.
//! - **DEL** removes the elements of the attachment and its UDP connections. It needs neither ports, `prevResult` nor
//!   namespace. It also removes the rules of the Go plugin for the attachment. Empty maps and `route_localnet` stay.
//! - **GC** does the same for all attachments that are not valid. It also closes 127.0.0.0/8 again on links to containers that
//!   were renamed, or whose element was lost in a flush of all rules.
//! - **STATUS** fails if the kernel lacks nf_tables, NAT, masquerading, `fib` or conntrack in a family that it has.

mod bindings;
mod conditions;
mod config;
mod noted;
#[cfg(feature = "tool")]
pub mod on_host;
mod ports;
mod removal;
pub mod return_path;
mod rules;
#[cfg(feature = "tool")]
pub mod shadowed;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;

use crate::attachments::owner::Owners;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sysctl;
use crate::names::{Attachment, IpFamily};
use crate::netlink::conntrack::{Conntrack, FlowFilter};
use crate::netlink::nft::{Batch, Family, Feature, Nft};
use crate::netlink::rtnl::Rtnl;
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::rules::compat::rules as rules_of_reference;
#[cfg(feature = "tool")]
use crate::rules::shared_set::OWNERS_OF;
use crate::rules::{localnet, shared_rules};
use crate::steps::link::chained;
use crate::steps::undo::Undo;
pub use config::{Mapping, Portmap};
use ports::Ports;
use removal::{Removal, udp_flows};

pub const ENTRY: Entry = Entry {
    leaves_owned: true,
    leaves_rules: true,
    probes: &[("", "")],
    unreadable: Some("failed to parse network configuration"),
    ..Entry::chained::<Portmap>("portmap", "publishes ports of the container on the host")
};

/// The error text of the reference for a call without `prevResult`.
const WITHOUT_RESULT: &str = "must be called as chained plugin";

impl Plugin for Portmap {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        chained::prev_result(cx, WITHOUT_RESULT)?;
        self.settings().map(drop).map_err(|error| error.in_front("failed to parse config"))
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let success = chained::prev_result(cx, WITHOUT_RESULT)?;
        let settings = self.settings().map_err(|error| error.in_front("failed to parse config"))?;
        let ports = Ports::new(cx, at, &success, settings)?;
        if ports.is_empty() {
            // An earlier ADD of the attachment may have published ports.
            match ports.noted() {
                Some([]) => {}
                noted => ports.remove(noted)?,
            }
            return Ok(success);
        }
        let nft = cx.session.nft()?;
        ports.replace_reference_rules(nft)?;
        let mut undo = Undo::new(cx);
        let published = ports.publish(nft);
        if !ports.had_ports.get() && (published.is_ok() || nft.is_partial()) {
            undo.push("remove the port bindings", || ports.remove(None));
        }
        published?;
        ports.allow_loopback()?;
        // An error is only a warning: the ports are published, and the kernel translates an older UDP connection after a pause
        // in its packets.
        cx.or_warn(ports.delete_untranslated());
        undo.keep();
        ports.warn_of_return_path(netns);
        #[cfg(feature = "tool")]
        ports.warn_of_shadowed();
        Ok(success)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        self.reconcile(cx, at, &mut Parts::to_check())
    }

    /// Elements, rules and `route_localnet`. Connections to the container stay.
    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        let result = cx.request.required_prev_result()?;
        let ports = Ports::new(cx, at, &result, self.settings()?)?;
        if ports.is_empty() {
            return Ok(());
        }
        let nft = cx.session.nft()?;
        for bindings in ports.all() {
            parts.ensure(&|| ports.check(nft, &bindings), &mut || {
                ports.publish(nft)?;
                ports.delete_answered_by_host()
            })?;
        }
        // Also if the ports lead to the new address already: the deletion can have failed before.
        ports.delete_answered_by(&parts.former)?;
        // If the route to the container is missing, the host routes its address to an uplink, which must not get
        // `route_localnet`.
        let has_link = ports.loopback_link.as_ref().is_some_and(|link| {
            result.interfaces.is_empty() || result.interface_index(&link.name, "").is_some()
        });
        if !has_link && !parts.is_check() {
            return Ok(());
        }
        parts.ensure(&|| ports.check_loopback(nft), &mut || {
            ports.publish(nft)?;
            ports.allow_loopback()
        })
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, _: Option<&NetNs>) -> Result<()> {
        let addresses: Vec<IpAddr> = scope.one().map_or_else(Vec::new, |at| {
            let result = cx.prev_result_of_del();
            let address = |family| container_address(family, at, &result);
            IpFamily::ALL.into_iter().filter_map(address).map(|net| net.addr()).collect()
        });
        // `record::mark` warns of an unreadable record. Without the record, the maps are read.
        let record = |at| cx.session.record(&cx.request.network, at).ok().flatten();
        let noted = scope.one().and_then(record).and_then(|record| record.ports);
        let owners = cx.owners(scope);
        let flows = Rc::new(RefCell::new(Vec::new()));
        let found = Rc::clone(&flows);
        let build = move |nft: &Nft, batch: &mut Batch| {
            *found.borrow_mut() = remove(nft, batch, &owners, noted.as_deref())?;
            // `cnibox gc`, which lists the ended attachments, does it once at its end.
            if !owners.are_listed() {
                localnet::refresh(nft, &Rtnl::open()?, batch)?;
            }
            rules_of_reference::remove_portmap(nft, batch, &owners, &addresses)
        };
        // The UDP connections to the removed ports end after the commit.
        cx.defer(build, move || delete_flows(&flows.take()));
        Ok(())
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        self.settings()?;
        let possible = cx.session.nft().and_then(|nft| {
            // A host without IPv6 needs no IPv6 rules.
            let is_present = |family: &Family| *family == Family::Ip || sysctl::exists("net/ipv6");
            let all = Family::IP.into_iter().filter(is_present);
            let features: Vec<(Family, Feature)> =
                all.flat_map(|family| FEATURES.map(|feature| (family, feature))).collect();
            shared_rules::require(nft, &features, "publish ports")
        });
        possible.map_err(Error::into_not_available)
    }
}

/// The kernel features that the rules need.
const FEATURES: [Feature; 5] =
    [Feature::Tables, Feature::Nat, Feature::Masquerade, Feature::Fib, Feature::Conntrack];

/// Whether a set has hashes of owners as keys: by them a DEL finds the elements of an owner in the other sets.
#[cfg(feature = "tool")]
pub fn is_index(set: &str) -> bool {
    set.starts_with(OWNERS_OF)
}

/// The first address of the family on the container's interface.
fn container_address(family: IpFamily, at: &Attachment, result: &Success) -> Option<IpNet> {
    chained::ips(result, at).map(|ip| ip.address).find(|net| family.has(net.addr()))
}

/// Adds the deletions of the port bindings to the batch. `noted` are the ports in the record of a single owner. Returns conntrack
/// filters for the UDP connections to these ports.
fn remove(
    nft: &Nft,
    batch: &mut Batch,
    owners: &Owners,
    noted: Option<&[String]>,
) -> Result<Vec<FlowFilter>> {
    let mut flows = Vec::new();
    for family in IpFamily::ALL {
        let removed = Removal { nft, family, owners, noted, kept_group: None }.remove(batch)?;
        flows.extend(removed.iter().filter_map(|published| udp_flows(family, published)));
    }
    Ok(flows)
}

fn delete_flows(flows: &[FlowFilter]) -> Result<()> {
    if flows.is_empty() { Ok(()) } else { Conntrack::open()?.delete(flows) }
}
