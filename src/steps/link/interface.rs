//! The verbs of plugins that create a single link in the container, under its final name. (Module `veth` is for pairs.)
//!
//! A failing ADD removes the link, DEL removes it, and the kernel removes it with the namespace. DEL and GC also remove a link
//! that another program has moved to the host.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::attachments::owner::Owner;
use crate::cni::conf;
use crate::cni::json::Read;
use crate::cni::request::Verb;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, Mac};
use crate::netlink;
use crate::netlink::rtnl::{Link, LinkChange, LinkProperty, NewLink, Rtnl};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Plugin, Scope};
use crate::steps::delegate;
use crate::steps::link::configure::{self, Announce, Options};
use crate::steps::link::host_link;
use crate::steps::link::inside::{self, Inside};
use crate::steps::link::parent::Parent;
use crate::steps::link::routes::{self, Routes};
use crate::steps::link::{kind, mtu, taken_mac, tuned};
use crate::steps::undo::{Failures, Undo};

/// The maximum wait until the kernel has removed the links of an ended namespace. A busy kernel needs some 100 ms.
const LINK_WAIT_MAX: Duration = Duration::from_secs(1);

/// The configuration of a plugin that creates a single link.
pub trait SingleLink: Read {
    /// The kernel's name of the kind of link.
    const KIND: &'static str;

    /// Checks the configuration, and returns the requested interface.
    fn interface(&self, cx: &Context<'_>) -> Result<NewInterface<'_>>;
}

impl<P: SingleLink> Plugin for P {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        examine(cx, &self.interface(cx)?)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        add(cx, at, netns, &self.interface(cx)?)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        check(cx, at, &self.interface(cx)?)
    }

    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        inside::reconcile(cx, at, parts)
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        clean(cx, scope, netns, P::KIND)
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        status(cx, &self.interface(cx)?)
    }
}

/// The interface that a configuration requests.
pub struct NewInterface<'a> {
    /// The kernel's name of the kind of link.
    pub kind: &'static str,
    /// The option of the kernel configuration that contains this kind, for example `CONFIG_DUMMY`.
    pub option: &'static str,
    pub properties: Vec<Property>,
    /// In bytes. 0 means the kernel's default.
    pub mtu: i64,
    /// The MTUs that the kernel accepts.
    pub mtu_range: RangeInclusive<u32>,
    pub mac: Option<Mac>,
    pub parent: Option<Parent<'a>>,
    /// Without `ipam`, ADD uses the addresses and routes of the previous result.
    pub uses_prev_result: bool,
}

/// A property that ADD sets and CHECK compares.
pub struct Property {
    /// The name in error messages, for example `mode private`.
    pub title: String,
    pub value: LinkProperty<'static>,
}

impl Property {
    /// The property that a key of the plugin `kind` names by a word. The first of `words` is the default.
    pub fn of_word<T: Copy>(
        (kind, key): (&str, &str),
        word: &str,
        words: &[(&str, T)],
        value: fn(T) -> LinkProperty<'static>,
    ) -> Result<Self> {
        let word = if word.is_empty() { words[0].0 } else { word };
        let Some((_, number)) = words.iter().find(|(known, _)| *known == word) else {
            return Err(Error::config(format_args!("unknown {kind} {key} {word:?}")));
        };
        Ok(Self { title: format!("{key} {word}"), value: value(*number) })
    }
}

/// The requested MAC address. The keys for one container override `mac` of the configuration.
pub fn requested_mac(cx: &Context<'_>, configured: &str) -> Result<Option<Mac>> {
    let requested = conf::requested_mac(&cx.request.json, &cx.request.parameters.args)?;
    let configured = Some(configured).filter(|mac| !mac.is_empty());
    let parse = |text: &str| match Mac::of_argument(text)? {
        mac if mac.is_unicast() => Ok(mac),
        _ => Err(Mac::invalid_argument(text)),
    };
    // An invalid address is an error even if another key overrides it.
    let configured = configured.map(parse).transpose()?;
    Ok(requested.as_deref().map(parse).transpose()?.or(configured))
}

/// Fails if the configuration is wrong or does not fit the host.
pub fn examine(cx: &Context<'_>, new: &NewInterface<'_>) -> Result<()> {
    let of_host = new.parent.as_ref().filter(|parent| !parent.in_container);
    let parent = of_host.map(|parent| parent.find(cx, cx.session.host()?)).transpose()?;
    valid_mtu(cx, new, parent.as_ref())?;
    delegate::examine(cx)
}

fn add(
    cx: &Context<'_>,
    at: &Attachment,
    netns: &NetNs,
    new: &NewInterface<'_>,
) -> Result<Success> {
    let uses_prev_result = new.uses_prev_result && cx.request.conf.ipam.kind.is_empty();
    let prev_result = if uses_prev_result { cx.request.prev_result()? } else { None };
    let container = cx.session.container()?;
    let on_host = new.parent.as_ref().is_some_and(|parent| !parent.in_container);
    let rtnl = if on_host { cx.session.host()? } else { container };
    let parent = new.parent.as_ref().map(|parent| parent.find(cx, rtnl)).transpose()?;
    let link = NewLink {
        name: &at.ifname,
        mtu: valid_mtu(cx, new, parent.as_ref())?,
        mac: new.mac,
        parent: parent.as_ref().map(|parent| parent.index),
        netns: on_host.then_some(netns),
        ..NewLink::default()
    };

    let mut undo = Undo::new(cx);
    let link = make(rtnl, container, new, &link, delegate::ipam_needs_link(cx), &mut undo)?;

    let success = match prev_result {
        Some(success) => success,
        None => {
            let shared = new.parent.as_ref().filter(|wanted| on_host && wanted.takes_frames);
            let link = shared.and(parent.as_ref()).map(|parent| parent.name.as_str());
            delegate::add_ipam(cx, at, link, &mut undo)?
        }
    };
    let owner = Owner::new(&cx.request.network, at);
    let alias = match (&new.parent, &parent) {
        (Some(wanted), Some(parent)) => wanted.alias(&owner, parent),
        _ => owner.alias(),
    };
    routes::undo_rejecting(cx, &success, &mut undo)?;
    let configured = configure(cx, at, &link, success, Some(&alias));
    let success = configured.map_err(|error| match &parent {
        Some(parent) if !parent.up => {
            error.with_details(format_args!("master {} is down", parent.name))
        }
        _ => error,
    })?;
    undo.keep();
    Ok(success)
}

/// Creates the link in the container through `rtnl`, a socket in the namespace of the parent. The link stays down unless the
/// IPAM plugin needs it up.
fn make<'a>(
    rtnl: &Rtnl,
    container: &'a Rtnl,
    new: &NewInterface<'_>,
    wanted: &NewLink<'a>,
    ipam_needs_link: bool,
    undo: &mut Undo<'a>,
) -> Result<Link> {
    let name = wanted.name;
    let properties: Vec<_> = new.properties.iter().map(|property| property.value).collect();
    // The kernel removes the links of a namespace some time after the last process left it. Until then the VLAN id of an ended
    // container is in use, so ADD waits.
    let is_taken_elsewhere = |error: &netlink::Error| {
        error.is_exists() && container.link(name).is_ok_and(|link| link.is_none())
    };
    rtnl.make_link_when_free(wanted, new.kind, &properties, LINK_WAIT_MAX, is_taken_elsewhere)?
        .map_err(|error| cannot_make(error, container, new, name))?;
    undo.push("remove the interface", move || container.del_link_named(name).map(drop));
    let mut link = container
        .link(name)?
        .ok_or_else(|| Error::internal(format_args!("cannot find the new interface {name}")))?;
    // The kernel compares the MAC addresses on the parent when a macvlan comes up.
    let checked = wanted.mac.filter(|_| new.kind == "macvlan");
    let change = LinkChange {
        // The kernel gives a macvlan in mode passthru the address of its parent.
        mac: wanted.mac.filter(|_| wanted.mac != link.mac),
        up: (ipam_needs_link && checked.is_none()).then_some(true),
        ..LinkChange::default()
    };
    if change.mac.is_some() || change.up.is_some() {
        container.change_link(link.index, name, &change)?;
        link.mac = wanted.mac.or(link.mac);
    }
    if let Some(mac) = checked {
        let set_up = |up| LinkChange { up: Some(up), ..LinkChange::default() };
        taken_mac::change_when_free(container, &link, mac, &set_up(true))?;
        if !ipam_needs_link {
            container.change_link(link.index, name, &set_up(false))?;
        }
    }
    Ok(link)
}

/// Sets addresses, routes and alias of an interface in the container and brings it up. Returns the result of the ADD.
pub fn configure(
    cx: &Context<'_>,
    at: &Attachment,
    link: &Link,
    success: Success,
    alias: Option<&str>,
) -> Result<Success> {
    let (netns, rtnl) = (cx.session.required_netns()?, cx.session.container()?);
    let interface = configure::Interface { netns, rtnl, name: &at.ifname, index: link.index };
    let options = Options { announce: Announce::WhenUp, alias, ..Options::default() };
    configure::apply(&interface, &success, &Routes::on_link(&success, link.index), options)?;
    Ok(result(cx, &at.ifname, link.mac, success))
}

/// The result of an ADD with one interface. `success` is the result of the IPAM plugin.
pub fn result(cx: &Context<'_>, name: &str, mac: Option<Mac>, mut success: Success) -> Success {
    success.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
    success.interfaces = vec![host_link::interface(name, mac, cx.request.sandbox())];
    success.dns = cx.request.conf.dns.or(success.dns);
    success
}

/// DEL and GC. They need neither the configuration nor the parent. An interface of another kind or with another owner
/// stays: another network made it, or the path now leads to the namespace of another container. An interface without an owner
/// was made by the reference, or by an ADD that was killed, and is removed.
pub fn clean(
    cx: &Context<'_>,
    scope: Scope<'_>,
    netns: Option<&NetNs>,
    kind: &'static str,
) -> Result<()> {
    release(cx, scope, &|| {
        if let (Some(at), Some(_)) = (scope.one(), netns) {
            let container = cx.session.container()?;
            let owner = Owner::new(&cx.request.network, at);
            let is_ours = |link: &Link| {
                link.kind.as_deref() == Some(kind) && !host_link::is_of_another(link, &owner)
            };
            if let Some(link) = container.link(&at.ifname)?.filter(is_ours) {
                return container.del_link(link.index);
            }
        }
        let host = cx.session.host()?;
        let moved = host_link::all_of(host, kind, &cx.owners(scope))?;
        moved.iter().try_for_each(|link| host.del_link(link.index))
    })
}

/// Removes the interface with `remove`, and releases the addresses of the IPAM plugin, in the correct order.
pub fn release(cx: &Context<'_>, scope: Scope<'_>, remove: &dyn Fn() -> Result<()>) -> Result<()> {
    let release = || delegate::clean_ipam(cx, scope);
    // Remove the interface first, so that no other container gets an address that is still in use.
    let mut steps: [&dyn Fn() -> Result<()>; 2] = [remove, &release];
    if delegate::ipam_needs_link(cx) {
        steps.reverse();
    }
    let mut failures = Failures::default();
    steps.iter().for_each(|step| failures.note(step()));
    if let Some(at) = scope.one() {
        failures.note(routes::remove_rejecting(cx, at));
    }
    failures.into_result()
}

/// CHECK: compares the interface with the configuration and with the previous result.
pub fn check(cx: &Context<'_>, at: &Attachment, new: &NewInterface<'_>) -> Result<()> {
    delegate::call_ipam(cx, &Verb::Check(at.clone()))?;
    let result = cx.request.required_prev_result()?;
    let container = cx.session.container()?;
    let inside = Inside::find(cx, at, &result)?;
    let (ifname, link) = (&at.ifname, &inside.link);
    if link.kind.as_deref() != Some(new.kind) {
        return Err(Error::internal(format_args!(
            "interface {ifname} is not of kind {}",
            new.kind
        )));
    }
    let differs = |property: &&Property| !link.has_property(&property.value);
    if let Some(Property { title, .. }) = new.properties.iter().find(differs) {
        return Err(Error::internal(format_args!("interface {ifname} does not have {title}")));
    }
    if new.mtu != 0 && i64::from(link.mtu) != new.mtu && !tuned::has_mtu(at)? {
        return Err(Error::internal(format_args!(
            "interface {ifname} has mtu {}, not {}",
            link.mtu, new.mtu
        )));
    }
    if let Some(parent) = &new.parent {
        let rtnl = if parent.in_container { container } else { cx.session.host()? };
        parent.check(cx, &Owner::new(&cx.request.network, at), rtnl, link)?;
    }
    inside.reconcile(&mut Parts::to_check())
}

/// STATUS: fails if the kernel lacks the kind of link, the parent cannot have such an interface, or STATUS of the IPAM plugin
/// fails.
fn status(cx: &Context<'_>, new: &NewInterface<'_>) -> Result<()> {
    // In a chain, the plugin before this one makes the parent.
    let is_chained = new.uses_prev_result && cx.request.conf.ipam.kind.is_empty();
    let is_possible = || {
        let parent = match &new.parent {
            Some(parent) if !(is_chained && parent.master.is_empty()) => parent.status(cx)?,
            _ => None,
        };
        match (valid_mtu(cx, new, parent.as_ref())?, &parent) {
            // The interface inherits the MTU of the parent.
            (None, Some(parent)) => mtu::check_ipv6_of(cx, parent),
            _ => Ok(()),
        }
    };
    valid_mtu(cx, new, None)?;
    is_possible().map_err(Error::into_not_available)?;
    delegate::call_ipam(cx, &Verb::Status)?;
    kind::require_kind(cx.session.host()?, new.kind, new.option).map_err(Error::into_not_available)
}

/// Checks the configured MTU. Returns `None` for the kernel's default. A parent drops frames that are longer than its own MTU.
pub fn valid_mtu(
    cx: &Context<'_>,
    new: &NewInterface<'_>,
    parent: Option<&Link>,
) -> Result<Option<u32>> {
    let (wanted, range) = (new.mtu, &new.mtu_range);
    let limit = parent.filter(|_| new.parent.as_ref().is_some_and(|parent| parent.limits_mtu));
    match (u32::try_from(wanted), limit.map(|parent| parent.mtu)) {
        (Ok(0), _) => Ok(None),
        (Ok(mtu), limit) if range.contains(&mtu) && limit.is_none_or(|limit| mtu <= limit) => {
            mtu::check_ipv6(cx, Some(mtu))?;
            Ok(Some(mtu))
        }
        (wanted_bytes, Some(limit)) if wanted_bytes.is_ok_and(|mtu| mtu < *range.start()) => {
            Err(mtu::invalid(wanted, &(*range.start()..=limit)))
        }
        (_, Some(limit)) => {
            let msg = format_args!("invalid MTU {wanted}, must be [0, master MTU({limit})]");
            Err(Error::config(msg).with_details("mtu"))
        }
        (_, None) => Err(mtu::invalid(wanted, range)),
    }
}

fn cannot_make(error: netlink::Error, rtnl: &Rtnl, new: &NewInterface<'_>, name: &str) -> Error {
    if error.is_exists() && rtnl.link(name).is_ok_and(|link| link.is_some()) {
        return Error::internal(format_args!(
            "cannot create interface {name} in the container: it already exists"
        ));
    }
    if error.is_busy() {
        let why = "its master is the port of a bridge, or has interfaces of another kind";
        return Error::from(error).with_details(why);
    }
    kind::with_option(error, new.option)
}
