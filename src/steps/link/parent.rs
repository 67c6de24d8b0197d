//! The parent of a macvlan, ipvlan or vlan interface: a link of the host, or of the container.
//!
//! Without `master` in the configuration, it is the interface of the previous plugin, or that of the default route. Routes
//! change, so the alias of the new interface then records the parent for CHECK.

use crate::attachments::owner::Owner;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::names::{IpFamily, LinkName};
use crate::netlink::rtnl::{Link, Route, Rtnl};
use crate::plugin::Context;
use crate::steps::link::routing_tables;

/// The parent that a configuration requests.
pub struct Parent<'a> {
    /// Empty if the configuration has no `master`.
    pub master: &'a str,
    /// The parent is a link of the container; if false, a link of the host.
    pub in_container: bool,
    /// The MTU of an interface cannot exceed the MTU of the parent.
    pub limits_mtu: bool,
    /// An interface cannot come up while the parent is down.
    pub must_be_up: bool,
    /// The kernel delivers received frames of the parent to the interfaces first, so the parent cannot be the port of a bridge.
    pub takes_frames: bool,
}

impl Parent<'_> {
    /// Finds the link. `rtnl` is in the namespace of the parent.
    pub fn find(&self, cx: &Context<'_>, rtnl: &Rtnl) -> Result<Link> {
        match (self.master, cx.request.prev_result()?) {
            ("", Some(result)) => named(rtnl, &self.chained(&result)?),
            ("", None) => of_default_route(rtnl),
            (master, _) => named(rtnl, master),
        }
    }

    /// The name of the only interface of the previous result.
    fn chained(&self, result: &Success) -> Result<String> {
        let failure =
            |why: String| Err(Error::config(format_args!("chained master failure: {why}")));
        match result.interfaces.as_slice() {
            [only] if !only.name.is_empty() => {
                if !only.sandbox.is_empty() && !self.in_container {
                    return failure(format!(
                        "interface {} of prevResult is in a container, and linkInContainer is false",
                        only.name
                    ));
                }
                Ok(only.name.clone())
            }
            _ => failure("prevResult lacks a single named interface; master can name one".into()),
        }
    }

    /// The alias of the interface: its owner, and the parent if the configuration does not name it.
    pub fn alias(&self, owner: &Owner, parent: &Link) -> String {
        if self.master.is_empty() { prefix(owner) + &parent.name } else { owner.alias() }
    }

    /// CHECK: fails if the interface was made on another parent.
    pub fn check(
        &self,
        cx: &Context<'_>,
        owner: &Owner,
        rtnl: &Rtnl,
        interface: &Link,
    ) -> Result<()> {
        let alias = interface.alias.as_deref().unwrap_or_default();
        let parent = match (self.master, alias.strip_prefix(&prefix(owner))) {
            ("", Some(recorded)) => named(rtnl, recorded)?,
            // The alias of the reference's interface does not record the parent.
            ("", None) => of_default_route(rtnl)?,
            (master, _) => named(rtnl, master)?,
        };
        // The kernel omits the index of the parent if it equals the index of the interface.
        let index = interface.peer.unwrap_or(interface.index);
        let is_in_namespace = interface.peer_is_elsewhere != self.in_container;
        if index == parent.index && (is_in_namespace || cx.request.parameters.netns_override) {
            return Ok(());
        }
        Err(Error::internal(format_args!("interface {} is not on {}", interface.name, parent.name)))
    }

    /// STATUS: the parent, or `None` if the parent is in the container, because STATUS has no container. Fails if ADD could not
    /// make an interface on the parent: if the parent is missing, is down, or is the port of a bridge.
    pub fn status(&self, cx: &Context<'_>) -> Result<Option<Link>> {
        if self.in_container {
            return Ok(None);
        }
        let host = cx.session.host()?;
        let link = match self.master {
            "" => of_default_route(host),
            master => named(host, master),
        }?;
        let name = &link.name;
        if self.must_be_up && !link.up {
            return Err(Error::internal(format_args!("master: interface {name} is down")));
        }
        if self.takes_frames && link.port.is_some() {
            return Err(Error::internal(format_args!(
                "master: interface {name} is the port of a bridge"
            )));
        }
        Ok(Some(link))
    }
}

/// The start of an alias that records the parent; the name of the parent follows.
fn prefix(owner: &Owner) -> String {
    format!("{} on ", owner.alias())
}

fn named(rtnl: &Rtnl, name: &str) -> Result<Link> {
    let name =
        LinkName::new(name).map_err(|error| Error::config(format_args!("master: {error}")))?;
    rtnl.link(&name)?.ok_or_else(|| Error::config(format_args!("Link not found: master {name}")))
}

/// The IPv4 default route with the lowest metric, or else the IPv6 one, and its interface.
pub fn default_route(rtnl: &Rtnl) -> Result<Option<(Route, Link)>> {
    for family in IpFamily::ALL {
        let mut routes = rtnl.routes(family)?;
        routes.retain(|route| {
            route.dst.prefix_len() == 0 && route.table == Some(routing_tables::MAIN)
        });
        let best = routes.into_iter().min_by_key(|route| route.metric.unwrap_or(0));
        let Some(route) = best else { continue };
        let index = route.dev.or_else(|| Some(route.nexthops.first()?.dev));
        if let Some(index) = index
            && let Some(link) = rtnl.link_at(index)?
        {
            return Ok(Some((route, link)));
        }
    }
    Ok(None)
}

fn of_default_route(rtnl: &Rtnl) -> Result<Link> {
    let missing = || {
        Error::config("no default route interface found")
            .with_details("the configuration has no master")
    };
    default_route(rtnl)?.map(|(_, link)| link).ok_or_else(missing)
}
