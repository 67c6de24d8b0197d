//! `host-device`: a network card, or any other interface of the host, given to a container as it is.
//!
//! ```json
//! { "cniVersion": "1.1.0", "name": "uplink", "type": "host-device", "device": "enp3s0",
//!   "ipam": { "type": "host-local", "subnet": "192.168.7.0/24" } }
//! ```
//!
//! `device` is its name, `hwaddr` its MAC address, `kernelpath` its directory below /sys/devices, `pciBusID` its PCI
//! address; one is needed, and the first of them counts. `runtimeConfig.deviceID`, from a device plugin, goes before
//! `pciBusID`, and may be of the auxiliary bus. A PCI device that is bound to vfio-pci, uio_pci_generic or igb_uio has no
//! link: then only addresses are asked for, for the program that drives it.
//!
//! The link is moved and renamed in one request. What it was on the host it carries with it, see `passport`, and the host
//! records it, see `journal`: DEL and GC give it back its name, MTU, MAC address, and whether it was up; its addresses,
//! routes, master and settings on the host are lost. Its name there is in the alias, too, as in the reference, so that
//! either's DEL can bring home what the other's ADD has taken. An alias that it has already stays; then only ours can.
//!
//! A namespace that ends gives the device back to the host, under the name that it had in there, or as `devN`. DEL, GC,
//! and the next ADD of the device, find it by its passport. One that is in a namespace that nobody names any more is
//! out of reach until that ends; DEL says so on stderr.
//!
//! DEL finds the device by container and interface, whatever the network is called by then. Only a name that is known to
//! have been the device's on the host is restored: one that the host has recorded, or the `device` of the configuration.
//! A device of which neither is known comes home down, as `dev` with eight digits, and DEL fails.
//!
//! A kernel before 5.5 has no place for a passport: then DEL finds the device only while there is the namespace.
//!
//! Where its name is taken on the host by now, DEL does everything else, leaves it down, and fails; so does the next
//! one, until the name is free.

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
use crate::plugin::{Context, Plugin, Scope};
use crate::steps::configure::{self, Announce, Options};
use crate::steps::interface;
use crate::steps::owner::{Owner, Owners};
use crate::steps::undo::{Failures, Undo};
use crate::steps::{delegate, verify};

#[derive(Deserialize)]
#[serde(transparent)]
pub struct HostDevice {
    selector: Selector,
}

impl Plugin for HostDevice {
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
        let success = interface::equip(cx, &interface, link.mac, success, options)?;
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
