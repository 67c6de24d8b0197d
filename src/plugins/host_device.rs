//! `host-device`: moves a network card, or another interface of the host, into a container.
//!
//! ```json
//! { "cniVersion": "1.1.0", "name": "uplink", "type": "host-device", "device": "enp3s0",
//!   "ipam": { "type": "host-local", "subnet": "192.168.7.0/24" } }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `device` | string | none | Name of the interface on the host. |
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
//! An alternative name of the link, `cnibox.…`, saves its state on the host: name, MTU, MAC address and flags. A file
//! on the host records the name as well, because the container can change the link. The alias has the name, too, as
//! with the reference, so that the DEL of either plugin can return a device that the other one moved. An alias of the
//! administrator stays; the reference's DEL then does not know the name. A kernel before 5.5 has no alternative names;
//! DEL then finds the device only while the namespace exists.
//!
//! When a namespace ends, the kernel returns the device to the host, under its name in the container or as `devN`.
//! DEL, GC and the next ADD of the device find it by the saved state. A device in a namespace without a path is out of
//! reach until that ends; DEL then says so on stderr.
//!
//! - **ADD** moves and renames the link in one request and configures it. Addresses, routes, master and settings that
//!   the link had on the host are lost.
//! - **CHECK** calls the CHECK of the IPAM plugin. It checks that the link is there, is up and has its saved state,
//!   and compares its MAC address, addresses and routes with `prevResult`. It checks no link for a device that has
//!   none.
//! - **DEL** returns the device to the host, restores its saved state, and releases the addresses. It finds the device
//!   by container and interface. It restores only a name that the host recorded or that `device` has. A device without
//!   a known name gets a new one, stays down, and DEL fails. If another link has the name by then, DEL does everything
//!   else, leaves the device down and fails, and so does the next DEL until the name is free.
//! - **GC** restores devices on the host of attachments that are not valid, and releases their addresses.
//! - **STATUS** fails if the device is not on the host, or if the IPAM plugin fails.

mod journal;
mod journey;
mod passport;
mod selector;

use serde::Deserialize;

use self::journal::{Entry, Journal};
use self::journey::Destination;
use self::passport::Passport;
use self::selector::{Selector, Target};
use crate::cni::request::Verb;
use crate::cni::success::{Interface, Success};
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::rtnl::{Link, Rtnl};
use crate::names::Attachment;
use crate::plugin::owner::{Owner, Owners};
use crate::plugin::{Context, Plugin, Scope};
use crate::steps::flow::undo::{Failures, Undo};
use crate::steps::flow::{chained, delegate, verify};
use crate::steps::link::configure::{self, Announce, Options};
use crate::steps::link::interface;

#[derive(Deserialize)]
#[serde(transparent)]
pub struct HostDevice {
    selector: Selector,
}

impl Plugin for HostDevice {
    const UNREADABLE: &'static str = "failed to load netconf";

    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        self.selector.target()?;
        delegate::examine(cx)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let mut undo = Undo::new(cx);
        let Target::Link(wanted) = self.selector.target()? else {
            let success = add_without_link(cx, at, &mut undo)?;
            undo.keep();
            return Ok(success);
        };
        let (host, there) = (cx.session.host()?, cx.session.container()?);
        let journal = Journal::open()?;
        let link = wanted.find(host, &journal)?;
        // Before anything is touched: a link that has been moved, if only for a moment, has lost its addresses.
        if there.link(&at.ifname)?.is_some() {
            return Err(Error::internal(format!(
                "cannot create interface {} in the container: it already exists",
                at.ifname
            )));
        }
        let passport = Passport::issue(&cx.request.network, at, &link, &journal);
        undo.push("bring the device home", || self.bring_home(cx, at, Some(netns)));
        journal::record(at).write(passport.to_string().as_bytes())?;
        let to =
            Destination { netns, rtnl: there, name: &at.ifname, up: delegate::ipam_needs_link(cx) };
        let moved = journey::go(host, &link, &passport, &to)?;
        journal.hand_over(&link, at)?;
        let link = moved;
        let success = delegate::add_ipam(cx, at, &mut undo)?;
        let interface =
            configure::Interface { netns, rtnl: there, name: &at.ifname, index: link.index };
        let options = Options { announce: Announce::WhenUp, ..Options::default() };
        let success = interface::configure(cx, &interface, link.mac, success, options)?;
        undo.keep();
        Ok(success)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        let target = self.selector.target()?;
        delegate::call_ipam(cx, &Verb::Check(at.clone()))?;
        let result = cx.request.required_prev_result()?;
        if matches!(target, Target::Dpdk) {
            return Ok(());
        }
        let there = cx.session.container()?;
        let (index, link) = verify::interface(cx, at, there, &result)?;
        let ifname = &at.ifname;
        if self.origin(journal::find(at)?, &link).is_none() {
            return Err(Error::internal(format!(
                "interface {ifname} does not know any more what it was on the host"
            )));
        }
        verify::is_up(&link)?;
        verify::addresses(there, &link, &result, index)?;
        verify::routes(there, &result)
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        interface::release(cx, scope, &|| match scope.one() {
            Some(at) => self.bring_home(cx, at, netns),
            None => collect_garbage(cx.session.host()?, &Owners::of(cx, scope)),
        })
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        let is_there = || {
            let Target::Link(wanted) = self.selector.target()? else { return Ok(()) };
            journal::check_writable()?;
            let (host, journal) = (cx.session.host()?, Journal::open()?);
            match wanted.find(host, &journal) {
                // A device that a container has is no fault of the host.
                Err(_) if journal.away(host)?.iter().any(|away| wanted.may_be(away)) => Ok(()),
                found => found.map(drop),
            }
        };
        is_there().map_err(Error::into_not_available)?;
        delegate::call_ipam(cx, &Verb::Status)
    }
}

impl HostDevice {
    /// Brings the device of an attachment home, from wherever it is. That it is there already is fine.
    fn bring_home(&self, cx: &Context<'_>, at: &Attachment, netns: Option<&NetNs>) -> Result<()> {
        let (host, home) = (cx.session.host()?, cx.session.home()?);
        let there = netns.map(|_| cx.session.container()).transpose()?;
        let recorded = journal::find(at)?;
        if recorded.is_none() {
            journal::record(at).remove_aside();
        }
        if let Some(passport) = &recorded {
            if let Some(there) = there
                && let Some(link) = passport.find(there)?
            {
                journey::come_home(there, (host, home), &link, passport)?;
                return journal::record(at).remove();
            }
            if settle(host, passport)? {
                return journal::record(at).remove();
            }
        }
        let link = there.map(|there| there.link(&at.ifname)).transpose()?.flatten();
        match (there, link, &recorded) {
            (Some(there), Some(link), _) => {
                self.bring_home_unmarked(cx, at, there, &link, recorded)
            }
            (_, _, Some(Passport { name, .. })) => {
                cx.warn(format_args!("device {name} of {at} is in no namespace that is known"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The interface of that name in the container has no passport that the host has recorded. It may be the
    /// reference's device, one that the container has changed, or no device at all.
    fn bring_home_unmarked(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        there: &Rtnl,
        link: &Link,
        recorded: Option<Passport>,
    ) -> Result<()> {
        let (network, ifname) = (&cx.request.network, &at.ifname);
        let (host, home) = (cx.session.host()?, cx.session.home()?);
        let may_be_device = match &recorded {
            // The host has recorded it for another attachment, or it names another owner.
            _ if Journal::open()?.of(link).is_some() => false,
            _ if chained::is_in_another_container(cx, at, Some(link))? => false,
            Some(passport) => passport.may_be_of(link),
            None => {
                let has_name = Passport::of_reference(link).is_some();
                let is_unmarked = !link.alt_names.iter().any(|name| passport::is_one(name));
                Passport::is_claimed(network, at, link)
                    || is_unmarked && has_name && self.selector.name().is_none()
            }
        };
        if let Some(passport) = self.origin(recorded, link) {
            journey::come_home(there, (host, home), link, &passport)?;
            return journal::record(at).remove();
        }
        if !may_be_device {
            cx.warn(format_args!(
                "interface {ifname} is not a device of {at}: it stays where it is"
            ));
            return Ok(());
        }
        let name = format!("dev{}", Owner::new(network, at).short());
        journey::evict(there, home, link, &name)?;
        journal::record(at).remove()?;
        let msg =
            format!("cannot restore the name of device {ifname}: it is on the host as {name}");
        Err(Error::internal(msg)
            .with_details("the host has no record of it, or the container has changed it"))
    }

    /// What an interface of the container was on the host, as far as the container cannot have made that up.
    fn origin(&self, recorded: Option<Passport>, link: &Link) -> Option<Passport> {
        let is_unmarked = !link.alt_names.iter().any(|name| passport::is_one(name));
        // The reference's device, or taken by a kernel without alternative names.
        let named = Passport::of_reference(link).filter(|_| is_unmarked);
        match recorded {
            Some(passport) => {
                let has_alias = named.is_some_and(|named| named.name == passport.name);
                let is_it = passport.is_on(link) || has_alias && passport.may_be_of(link);
                Some(passport).filter(|_| is_it)
            }
            None => named.filter(|named| self.selector.name() == Some(&named.name)),
        }
    }
}

/// Whether the device is on the host; then it is what it was.
fn settle(host: &Rtnl, passport: &Passport) -> Result<bool> {
    if let Some(link) = passport.find(host)? {
        journey::settle(host, &link, passport)?;
        return Ok(true);
    }
    Ok(host.link(&passport.name)?.is_some_and(|link| passport.is_at_home_as(&link)))
}

/// Devices that the kernel brought back when their namespace ended.
fn collect_garbage(host: &Rtnl, owners: &Owners) -> Result<()> {
    let mut failures = Failures::default();
    for Entry { record, passport } in Journal::open()?.0 {
        if passport.belongs_to(owners) {
            let settled = settle(host, &passport);
            let is_home = matches!(settled, Ok(true));
            failures.note(settled.map(drop));
            failures.note(if is_home { record.remove() } else { Ok(()) });
        }
    }
    failures.into_result()
}

/// A program of the container drives the device; it only needs to know its addresses.
fn add_without_link<'a>(
    cx: &'a Context<'a>,
    at: &'a Attachment,
    undo: &mut Undo<'a>,
) -> Result<Success> {
    let mut success = delegate::add_ipam(cx, at, undo)?;
    success.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
    success.interfaces = vec![Interface {
        name: at.ifname.to_string(),
        sandbox: cx.request.sandbox(),
        ..Interface::default()
    }];
    success.dns = cx.request.conf.dns.or(success.dns);
    Ok(success)
}
