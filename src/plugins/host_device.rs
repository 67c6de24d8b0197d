//! `host-device`: moves a network card, or another interface of the host, into a container.
//!
//! ```json
//! { "cniVersion": "1.1.0", "name": "uplink", "type": "host-device", "device": "enp3s0",
//!   "ipam": { "type": "host-local", "subnet": "192.168.7.0/24" } }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `device` | string | none | Name of the interface on the host, or an alternative name of up to 127 bytes. |
//! | `hwaddr` | string | none | MAC address of the interface. |
//! | `kernelpath` | string | none | Directory of the device below `/sys/devices`. |
//! | `pciBusID` | string | none | PCI address of the device. |
//! | `DPDKMode` | boolean | false | The device has no link, for a device that `pciBusID` does not name. |
//! | `runtimeConfig.deviceID` | string | none | Overrides `pciBusID` (capability `deviceID`). It may be a device of the auxiliary bus. |
//!
//! One of the keys that name a device is required. If there are several, the first in the order of the table counts.
//!
//! A PCI device that is bound to `vfio-pci`, `uio_pci_generic` or `igb_uio` has no link. ADD then only requests
//! addresses, for the program that drives the device.
//!
//! An alternative name of the link, `cnibox.…`, saves its state on the host: name, MTU, MAC address and flags. A file on the
//! host records the name as well, because the container can change the link. The alias has the name, too, as with the
//! reference, so that the DEL of the Go plugin can return a device that cnibox moved, and the other way round. An alias of the
//! administrator stays; the DEL of the Go plugin then cannot restore the name. A kernel before 5.5 has no alternative names;
//! DEL then finds the device only while the namespace exists.
//!
//! When a namespace ends, the kernel returns the device to the host, under its name in the container or as `devN`.
//! DEL, GC and the next ADD of the device find it by the saved state. A device in a namespace without a path cannot
//! be reached until the namespace ends; DEL then writes a warning to stderr.
//!
//! - **ADD** moves and renames the link in one request and configures it. Addresses, routes, master and settings that
//!   the link had on the host are lost.
//! - **CHECK** calls the CHECK of the IPAM plugin. It checks that the link exists, is up and has its saved state,
//!   and compares its MAC address, addresses and routes with `prevResult`. It checks no link for a device that has
//!   none.
//! - **DEL** returns the device to the host, restores its saved state, and releases the addresses. It finds the device by
//!   network, container and interface. It restores only a name that the host recorded or that `device` has. A device without a
//!   known name gets a new name, stays down, and DEL fails. If another link of the host now has the name of the device, DEL
//!   does everything else, leaves the device down and fails; the next DEL also fails until the name is free. ADD, DEL and
//!   STATUS fail if a file of a saved state is damaged.
//! - **GC** restores devices on the host of attachments that are not valid, and releases their addresses. DEL and GC
//!   remove the record of a virtual device that the kernel deleted with its namespace.
//! - **STATUS** fails if the device is not on the host, if its MTU is below 1280 and there are IPv6 addresses, or if the
//!   IPAM plugin fails.

mod records;
mod saved_state;
mod selector;
mod sysfs;
mod transfer;

use self::records::{DeviceRecord, Records};
use self::saved_state::SavedState;
use crate::attachments::owner::{Owner, Owners};
use crate::cni::json::keys;
use crate::cni::request::Verb;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;
use crate::netlink::rtnl::{Link, LinkChange, Rtnl};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::steps::delegate;
use crate::steps::link::chained;
use crate::steps::link::inside::{self, Inside};
use crate::steps::link::{interface, mtu, routes};
use crate::steps::state;
use crate::steps::undo::{Failures, Undo};

pub const ENTRY: Entry =
    Entry::plugin::<HostDevice>("host-device", "a link of the host, moved into the container");

keys! {
    /// The keys that name a device. The first one that is set has precedence, except that `deviceID` overrides `pciBusID`.
    pub struct HostDevice {
        "device" => device: String,
        "hwaddr" => hwaddr: String,
        "kernelpath" => kernelpath: String,
        "pciBusID" => pci_bus_id: String,
        /// The device has no link. Only for a device that neither `pciBusID` nor a `deviceID` of the PCI bus names.
        "DPDKMode" => dpdk_mode: bool,
        "runtimeConfig" => runtime_config: RuntimeConfig,
    }

    struct RuntimeConfig {
        "deviceID" => device_id: String,
    }
}

impl Plugin for HostDevice {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        self.device_id()?;
        delegate::examine(cx)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let mut undo = Undo::new(cx);
        let Some(device) = self.device_id()? else {
            let success = delegate::add_ipam(cx, at, None, &mut undo)?;
            undo.keep();
            return Ok(interface::result(cx, &at.ifname, None, success));
        };
        let (host, container) = (cx.session.host()?, cx.session.container()?);
        let records = Records::open()?;
        let link = device.find(host, &records)?;
        // This check comes before any change: a move removes the addresses of the link, even if it is undone.
        if container.link(&at.ifname)?.is_some() {
            return Err(Error::internal(format_args!(
                "cannot create interface {} in the container: it already exists",
                at.ifname
            )));
        }
        let saved = SavedState::new(&cx.request.network, at, &link, records.of(&link));
        let saved = saved.moved_into(netns, (host, container), &link);
        undo.push("return the device", || self.return_device(cx, at, Some(netns)));
        records::record(at).write(saved.record_text().as_bytes())?;
        let change = LinkChange {
            netns: Some(netns),
            name: Some(&at.ifname),
            up: delegate::ipam_needs_link(cx).then_some(true),
            ..LinkChange::default()
        };
        transfer::to_container(host, &link, &saved, change)?;
        let moved = container.link(&at.ifname)?.ok_or_else(|| {
            Error::internal(format_args!("cannot find moved device {}", link.name))
        })?;
        records.remove_for_others(&link, at)?;
        let success = delegate::add_ipam(cx, at, None, &mut undo)?;
        routes::undo_rejecting(cx, &success, &mut undo)?;
        let success = interface::configure(cx, at, &moved, success, None)?;
        undo.keep();
        Ok(success)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        let device = self.device_id()?;
        delegate::call_ipam(cx, &Verb::Check(at.clone()))?;
        let result = cx.request.required_prev_result()?;
        if device.is_none() {
            return Ok(());
        }
        let inside = Inside::find(cx, at, &result)?;
        if self.state_of(records::find(at)?, &inside.link).is_none() {
            return Err(Error::internal(format_args!(
                "interface {} has lost its saved state",
                at.ifname
            )));
        }
        inside.reconcile(&mut Parts::to_check())
    }

    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        if self.device_id()?.is_some() { inside::reconcile(cx, at, parts) } else { Ok(()) }
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        interface::release(cx, scope, &|| match scope.one() {
            Some(at) => self.return_device(cx, at, netns),
            None => collect_garbage(cx.session.host()?, &cx.owners(scope)),
        })
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        let is_available = || {
            let Some(device) = self.device_id()? else { return Ok(()) };
            state::check_writable(records::DIR)?;
            let (host, records) = (cx.session.host()?, Records::open()?);
            match device.find(host, &records) {
                // A container has the device, so nothing is wrong on the host.
                Err(error)
                    if selector::is_missing(&error)
                        && records.not_on_host(host)?.iter().any(|saved| device.may_be(saved)) =>
                {
                    Ok(())
                }
                found => mtu::check_ipv6_of(cx, &found?),
            }
        };
        is_available().map_err(Error::into_not_available)?;
        delegate::call_ipam(cx, &Verb::Status)
    }
}

impl HostDevice {
    /// Returns the attachment's device to the host from the container's namespace, and restores its state. Also restores a
    /// device that is on the host already. Idempotent.
    fn return_device(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        netns: Option<&NetNs>,
    ) -> Result<()> {
        let (host, host_netns) = (cx.session.host()?, cx.session.host_netns()?);
        let container = netns.map(|_| cx.session.container()).transpose()?;
        let recorded = records::find(at)?;
        match &recorded {
            // Another network moved the device. The DEL or GC of that network returns it.
            Some(saved) if !saved.is_of(&cx.request.network, at) => return Ok(()),
            Some(_) => {}
            None => records::record(at).remove_aside(),
        }
        if let Some(saved) = &recorded {
            if let Some(container) = container
                && let Some(link) = saved.find(container)?
            {
                transfer::to_host(container, (host, host_netns), &link, saved)?;
                return records::record(at).remove();
            }
            if restore(host, saved)? {
                return records::record(at).remove();
            }
        }
        let link = container.map(|rtnl| rtnl.link(&at.ifname)).transpose()?.flatten();
        match (container, link, &recorded) {
            (Some(container), Some(link), _) => {
                self.return_unmarked(cx, at, container, &link, recorded)
            }
            (_, _, Some(saved)) if saved.is_gone(host) => records::record(at).remove(),
            (_, _, Some(SavedState { name, .. })) => {
                cx.warn(format_args!(
                    "cannot return device {name} of {at}: it is in an unknown namespace"
                ));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns a link of the container to the host if it can be the device. The link has the name of the interface, but not the
    /// recorded state as an alternative name: the reference moved it, the container changed it, or it is another link.
    fn return_unmarked(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        container: &Rtnl,
        link: &Link,
        recorded: Option<SavedState>,
    ) -> Result<()> {
        let (network, ifname) = (&cx.request.network, &at.ifname);
        let (host, host_netns) = (cx.session.host()?, cx.session.host_netns()?);
        if let Some(saved) = self.state_of(recorded.clone(), link) {
            transfer::to_host(container, (host, host_netns), link, &saved)?;
            return records::record(at).remove();
        }
        let may_be_device = match &recorded {
            // The link has the state of another attachment's record, or names another owner.
            _ if Records::open()?.of(link).is_some() => false,
            _ if chained::is_of_another(cx, at, link)? => false,
            Some(saved) => saved.may_be_of(link),
            None => {
                let has_name = SavedState::of_reference(link).is_some();
                SavedState::is_marked(network, at, link)
                    || !saved_state::has_mark(link) && has_name && self.name().is_none()
            }
        };
        if !may_be_device {
            cx.warn(format_args!("interface {ifname} is not a device of {at}: it stays unchanged"));
            return Ok(());
        }
        let name = format!("dev{}", Owner::new(network, at).short());
        transfer::to_host_as(container, host_netns, link, &name)?;
        records::record(at).remove()?;
        let msg =
            format!("cannot restore the name of device {ifname}: it is on the host as {name}");
        Err(Error::internal(msg)
            .with_details("the host has no record of it, or the container has changed it"))
    }

    /// The state that a link of the container had on the host. `None` if the container may have forged it.
    fn state_of(&self, recorded: Option<SavedState>, link: &Link) -> Option<SavedState> {
        // The state in the alias is used if the reference moved the device, or if the kernel has no alternative names.
        let named = SavedState::of_reference(link).filter(|_| !saved_state::has_mark(link));
        match recorded {
            Some(saved) => {
                let has_alias = named.is_some_and(|named| named.name == saved.name);
                let is_device = saved.is_on(link) || has_alias && saved.may_be_of(link);
                Some(saved).filter(|_| is_device)
            }
            None => named.filter(|named| self.name() == Some(&named.name)),
        }
    }
}

/// Restores a device that is on the host. Returns false if the device is not on the host.
fn restore(host: &Rtnl, saved: &SavedState) -> Result<bool> {
    if let Some(link) = saved.find(host)? {
        transfer::restore(host, &link, saved)?;
        return Ok(true);
    }
    Ok(host.link(&saved.name)?.is_some_and(|link| saved.is_unmoved(&link)))
}

/// Restores devices that the kernel returned when their namespace ended.
fn collect_garbage(host: &Rtnl, owners: &Owners) -> Result<()> {
    let mut failures = Failures::default();
    for DeviceRecord { record, saved } in records::readable(&mut failures)? {
        if saved.belongs_to(owners) {
            let restored = restore(host, &saved);
            let is_done = matches!(restored, Ok(is_on_host) if is_on_host || saved.is_gone(host));
            failures.note(restored.map(drop));
            failures.note(if is_done { record.remove() } else { Ok(()) });
        }
    }
    failures.into_result()
}
