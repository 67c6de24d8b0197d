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
//! The link is moved and renamed in one request. What it was on the host it carries with it, see `passport`: DEL and GC
//! give it back its name, MTU, MAC address, and whether it was up; its addresses, routes, master and settings on the
//! host are lost. Its name there is in the alias, too, as in the reference, so that either's DEL can bring home what the
//! other's ADD has taken. An alias that it has already stays; then only ours can.
//!
//! A namespace that ends gives the device back to the host, under the name that it had in there, or as `devN`. DEL, GC,
//! and the next ADD of the device, find it by its passport. One that is in a namespace that nobody names any more is
//! out of reach until that ends.
//!
//! A kernel before 5.5 has no place for a passport: then, as with the reference, DEL gives it back its name alone, and
//! only while there is the namespace.
//!
//! Where its name is somebody else's by now, DEL does everything else and fails; so does the next one, until the name
//! is free.

mod journey;
mod passport;
mod selector;

use serde::Deserialize;

use self::journey::Destination;
use self::passport::Passport;
use self::selector::{Selector, Target};
use crate::cni::request::Verb;
use crate::cni::success::{Interface, Success};
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;
use crate::plugin::{Context, Plugin, Scope};
use crate::steps::configure::{self, Announce, Options};
use crate::steps::interface;
use crate::steps::owner::Owners;
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
        let link = wanted.find(host)?;
        // Before anything is touched: a link that has been moved, if only for a moment, has lost its addresses.
        if there.link(&at.ifname)?.is_some() {
            return Err(Error::internal(format!(
                "cannot create interface {} in the container: it already exists",
                at.ifname
            )));
        }
        let passport = Passport::issue(&cx.request.network, at, &link);
        undo.push("bring the device home", || self.bring_home(cx, at, Some(netns)));
        let to =
            Destination { netns, rtnl: there, name: &at.ifname, up: delegate::ipam_needs_link(cx) };
        let link = journey::go(host, &link, &passport, &to)?;
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
        let mine = Passport::find(there, &cx.request.network, at)?;
        if mine.is_none_or(|(mine, _)| mine.index != link.index)
            && (Passport::of(&link).is_some() || Passport::of_reference(&link).is_none())
        {
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
            None => collect_garbage(cx, &Owners::of(cx, scope)),
        })
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        if let Target::Link(wanted) = self.selector.target().map_err(Error::into_not_available)? {
            wanted.find(cx.session.host()?).map_err(Error::into_not_available)?;
        }
        delegate::call_ipam(cx, &Verb::Status)
    }
}

impl HostDevice {
    /// Brings the device of an attachment home, from wherever it is. That it is there already is fine.
    fn bring_home(&self, cx: &Context<'_>, at: &Attachment, netns: Option<&NetNs>) -> Result<()> {
        let network = &cx.request.network;
        let (host, home) = (cx.session.host()?, cx.session.home()?);
        let there = netns.map(|_| cx.session.container()).transpose()?;
        if let Some(there) = there
            && let Some((link, passport)) = Passport::find(there, network, at)?
        {
            return journey::come_home(there, (host, home), &link, &passport);
        }
        if let Some((link, passport)) = Passport::find(host, network, at)? {
            return journey::settle(host, &link, &passport);
        }
        let Some(there) = there else { return Ok(()) };
        // The reference's, or taken by a kernel without alternative names.
        match there.link(&at.ifname)? {
            Some(link) if Passport::of(&link).is_none() => match Passport::of_reference(&link) {
                Some(passport) if self.selector.may_mean(&passport.name) => {
                    journey::come_home(there, (host, home), &link, &passport)
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// Devices that the kernel brought back when their namespace ended.
fn collect_garbage(cx: &Context<'_>, owners: &Owners) -> Result<()> {
    let host = cx.session.host()?;
    let mut failures = Failures::default();
    for (link, passport) in Passport::all(host)? {
        if passport.belongs_to(owners) {
            failures.note(journey::settle(host, &link, &passport));
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
