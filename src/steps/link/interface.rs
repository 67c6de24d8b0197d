//! The interface of a container where it is a single link: made in the container's namespace under its final name, with
//! addresses of the IPAM plugin or without. (A veth pair has another end, on the host, and is in `veth`.)
//!
//! Who removes it: the failing ADD that made it, DEL, and the kernel with the container's namespace. Nothing of it is on
//! the host, so GC cannot find it: of attachments that are not valid it releases the addresses.

use crate::cni::conf::requested_mac;
use crate::cni::request::Verb;
use crate::cni::success::{self, Success};
use crate::error::{Error, Result};
use crate::kernel::netlink;
use crate::kernel::netns::NetNs;
use crate::kernel::rtnl::{Batch, Link, LinkChange, NewLink, Rtnl};
use crate::names::{Attachment, Mac};
use crate::plugin::owner::{Owner, Owners};
use crate::plugin::{Context, Scope};
use crate::steps::flow::undo::{Failures, Undo};
use crate::steps::flow::{delegate, verify};
use crate::steps::link::configure::{self, Announce, Options};
use crate::steps::link::{host_link, parent};

/// What a plugin's configuration asks for.
pub struct NewInterface<'a> {
    /// As the kernel calls it.
    pub kind: &'static str,
    /// What a kernel has to have for it: `CONFIG_DUMMY (module dummy)`.
    pub needs: &'static str,
    pub properties: Vec<Property>,
    /// In bytes; 0 leaves it to the kernel.
    pub mtu: i64,
    pub mac: Option<Mac>,
    pub parent: Option<parent::Wanted<'a>>,
}

/// Something that the kernel is told when the link is made, and tells CHECK.
pub struct Property {
    /// `mode private`
    pub what: String,
    /// The attribute inside IFLA_INFO_DATA.
    pub attribute: u16,
    pub value: Vec<u8>,
}

/// The MAC address that is asked for. The configuration's `mac` comes after all that is about this one container.
pub fn wanted_mac(cx: &Context<'_>, configured: &str) -> Result<Option<Mac>> {
    let requested = requested_mac(&cx.request.json, &cx.request.args)?;
    let configured = Some(configured).filter(|mac| !mac.is_empty());
    let parse = |text: &str| match Mac::of_argument(text)? {
        mac if mac.is_unicast() => Ok(mac),
        _ => Err(Mac::invalid_argument(text)),
    };
    // One that is overridden has to be right, too.
    let configured = configured.map(parse).transpose()?;
    Ok(requested.as_deref().map(parse).transpose()?.or(configured))
}

/// What is wrong with the configuration, also in view of the host.
pub fn examine(cx: &Context<'_>, new: &NewInterface<'_>) -> Result<()> {
    let of_host = new.parent.as_ref().filter(|parent| !parent.in_container);
    let parent = of_host.map(|parent| parent.find(cx, cx.session.host()?)).transpose()?;
    valid_mtu(new, parent.as_ref())?;
    delegate::examine(cx)
}

/// ADD of a plugin whose interface this is. The addresses are the IPAM plugin's unless they are `given`.
pub fn add(
    cx: &Context<'_>,
    at: &Attachment,
    netns: &NetNs,
    new: &NewInterface<'_>,
    given: Option<Success>,
) -> Result<Success> {
    let there = cx.session.container()?;
    let in_host = new.parent.as_ref().is_some_and(|parent| !parent.in_container);
    let home = if in_host { cx.session.host()? } else { there };
    let parent = new.parent.as_ref().map(|parent| parent.find(cx, home)).transpose()?;
    let link = NewLink {
        name: &at.ifname,
        mtu: valid_mtu(new, parent.as_ref())?,
        mac: new.mac,
        parent: parent.as_ref().map(|parent| parent.index),
        netns: in_host.then_some(netns),
        ..NewLink::default()
    };

    let mut undo = Undo::new(cx);
    let link = make(home, there, new, &link, delegate::ipam_needs_link(cx), &mut undo)?;

    let success = match given {
        Some(success) => success,
        None => delegate::add_ipam(cx, at, &mut undo)?,
    };
    let owner = Owner::new(&cx.request.network, at);
    let alias = match (&new.parent, &parent) {
        (Some(wanted), Some(parent)) => wanted.alias(&owner, parent),
        _ => host_link::alias(&owner),
    };
    let interface =
        configure::Interface { netns, rtnl: there, name: &at.ifname, index: link.index };
    let options = Options { announce: Announce::WhenUp, alias: Some(&alias), ..Options::default() };
    let success =
        equip(cx, &interface, link.mac, success, options).map_err(|error| match &parent {
            Some(Link { name, up: false, .. }) => {
                error.with_details(format!("master {name} is down"))
            }
            _ => error,
        })?;
    undo.keep();
    Ok(success)
}

/// Asks `home`, where the parent is, for a link in the container. It is down, unless IPAM needs it.
fn make<'a>(
    home: &Rtnl,
    there: &'a Rtnl,
    new: &NewInterface<'_>,
    wanted: &NewLink<'a>,
    is_needed_by_ipam: bool,
    undo: &mut Undo<'a>,
) -> Result<Link> {
    let name = wanted.name;
    let properties = new.properties.iter().map(|it| (it.attribute, it.value.as_slice()));
    home.make_link(wanted, new.kind, properties)
        .map_err(|error| cannot_make(error, there, new, name))?;
    undo.push("remove the interface", move || there.del_link_named(name).map(drop));
    let mut link = there.link(name)?.ok_or_else(|| {
        Error::internal(format!("cannot find interface {name}, which was just made"))
    })?;
    let change = LinkChange {
        // A macvlan in mode passthru begins with its master's.
        mac: wanted.mac.filter(|_| wanted.mac != link.mac),
        up: is_needed_by_ipam.then_some(true),
        ..LinkChange::default()
    };
    if change.mac.is_some() || change.up.is_some() {
        let mut batch = Batch::new();
        batch.change_link(link.index, name, &change);
        there.commit(batch)?;
        link.mac = wanted.mac.or(link.mac);
    }
    Ok(link)
}

/// Gives an interface that is in the container its addresses and routes, and brings it up. Returns the result of the ADD.
pub fn equip(
    cx: &Context<'_>,
    interface: &configure::Interface<'_>,
    mac: Option<Mac>,
    mut success: Success,
    options: Options<'_>,
) -> Result<Success> {
    success.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
    let routes = configure::routes(&success, interface.index);
    configure::apply(interface, &success, &routes, options)?;
    success.interfaces = vec![success::Interface {
        name: interface.name.into(),
        mac: mac.map_or_else(String::new, |mac| mac.to_string()),
        sandbox: cx.request.sandbox(),
        ..success::Interface::default()
    }];
    success.dns = cx.request.conf.dns.or(success.dns);
    Ok(success)
}

/// DEL and GC. They need neither the configuration nor what the interface sits on. An interface of another kind is not ours,
/// and stays; so does one that names another owner, since the path of the namespace can be another container's by now. One
/// that names no owner is of the reference, or its ADD was killed. GC releases the addresses alone: the interfaces are in containers.
pub fn clean(
    cx: &Context<'_>,
    scope: Scope<'_>,
    netns: Option<&NetNs>,
    kind: &'static str,
) -> Result<()> {
    release(cx, scope, &|| {
        let (Some(at), Some(_)) = (scope.one(), netns) else { return Ok(()) };
        let there = cx.session.container()?;
        let owners = Owners::of(cx, scope);
        let is_ours = |link: &Link| {
            link.kind.as_deref() == Some(kind) && !host_link::is_of_another(link, &owners)
        };
        match there.link(&at.ifname)?.filter(is_ours) {
            Some(link) => there.del_link(link.index),
            None => Ok(()),
        }
    })
}

/// DEL and GC of a plugin that has its own way to remove the interface.
pub fn release(cx: &Context<'_>, scope: Scope<'_>, remove: &dyn Fn() -> Result<()>) -> Result<()> {
    let release = || delegate::clean_ipam(cx, scope);
    // The interface first: an address must not be given to the next container while this one still uses it.
    let mut steps: [&dyn Fn() -> Result<()>; 2] = [remove, &release];
    if delegate::ipam_needs_link(cx) {
        steps.reverse();
    }
    let mut failures = Failures::default();
    steps.iter().for_each(|step| failures.note(step()));
    failures.into_result()
}

/// CHECK: the interface is what was asked for, and has what the result says.
pub fn check(cx: &Context<'_>, at: &Attachment, new: &NewInterface<'_>) -> Result<()> {
    delegate::call_ipam(cx, &Verb::Check(at.clone()))?;
    let result = cx.request.required_prev_result()?;
    let there = cx.session.container()?;
    let (index, link) = verify::interface(cx, at, there, &result)?;
    let ifname = &at.ifname;
    if link.kind.as_deref() != Some(new.kind) {
        return Err(Error::internal(format!("interface {ifname} is not of kind {}", new.kind)));
    }
    let differs = |it: &&Property| !link.has_property(it.attribute, &it.value);
    if let Some(Property { what, .. }) = new.properties.iter().find(differs) {
        return Err(Error::internal(format!("interface {ifname} does not have {what}")));
    }
    if new.mtu != 0 && i64::from(link.mtu) != new.mtu {
        return Err(Error::internal(format!(
            "interface {ifname} has mtu {}, not {}",
            link.mtu, new.mtu
        )));
    }
    if let Some(parent) = &new.parent {
        let home = if parent.in_container { there } else { cx.session.host()? };
        parent.check(cx, &Owner::new(&cx.request.network, at), home, &link)?;
    }
    verify::is_up(&link)?;
    verify::addresses(there, &link, &result, index)?;
    verify::routes(there, &result)
}

/// STATUS of what a whole ADD needs: the kernel's part, the parent's, and that of IPAM.
pub fn status(cx: &Context<'_>, new: &NewInterface<'_>) -> Result<()> {
    let is_possible = || {
        let parent = match &new.parent {
            Some(parent) => parent.status(cx)?,
            None => None,
        };
        valid_mtu(new, parent.as_ref()).map(drop)
    };
    is_possible().map_err(Error::into_not_available)?;
    delegate::call_ipam(cx, &Verb::Status)?;
    require_kind(cx.session.host()?, new).map_err(Error::into_not_available)
}

/// Asks for a link that cannot be: with this MAC address, and without a parent. It matters only why it cannot.
fn require_kind(host: &Rtnl, new: &NewInterface<'_>) -> Result<()> {
    let probe = NewLink { name: "cnibox-probe", mac: Some(Mac([0; 6])), ..NewLink::default() };
    match host.make_link(&probe, new.kind, std::iter::empty()) {
        Err(error) if error.is_unsupported() => Err(cannot_make(error, host, new, probe.name)),
        _ => Ok(()),
    }
}

/// What is sent in frames that its parent cannot carry would be lost.
pub fn valid_mtu(new: &NewInterface<'_>, parent: Option<&Link>) -> Result<Option<u32>> {
    let is_limited = new.parent.as_ref().is_some_and(|parent| parent.limits_mtu);
    match (u32::try_from(new.mtu), parent.filter(|_| is_limited)) {
        (Ok(0), _) => Ok(None),
        (Ok(mtu), None) => Ok(Some(mtu)),
        (Ok(mtu), Some(parent)) if mtu <= parent.mtu => Ok(Some(mtu)),
        (_, parent) => {
            let range = parent.map(|it| format!(", must be [0, master MTU({})]", it.mtu));
            let range = range.unwrap_or_default();
            Err(Error::config(format!("invalid MTU {}{range}", new.mtu)).with_details("mtu"))
        }
    }
}

fn cannot_make(error: netlink::Error, there: &Rtnl, new: &NewInterface<'_>, name: &str) -> Error {
    if error.is_exists() && there.link(name).is_ok_and(|link| link.is_some()) {
        return Error::internal(format!(
            "cannot create interface {name} in the container: it already exists"
        ));
    }
    if error.is_unsupported() {
        return Error::from(error).with_details(format!("the kernel has to have {}", new.needs));
    }
    if error.is_busy() {
        let why = "its master is the port of a bridge, or has interfaces of another kind";
        return Error::from(error).with_details(why);
    }
    error.into()
}
