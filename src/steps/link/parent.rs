//! What a macvlan, ipvlan or vlan interface sits on, and cannot change: a link of the host, or of the container itself.
//!
//! Where nobody names it, it is the interface that the previous plugin made, or the one of the default route. Then the
//! new interface remembers it in its alias, for CHECK: routes come and go.

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::rtnl::{Link, Rtnl};
use crate::names::{IfName, IpFamily};
use crate::plugin::Context;
use crate::plugin::owner::Owner;
use crate::steps::link::{host_link, routing_tables};

/// What the configuration says of it.
pub struct Wanted<'a> {
    /// Empty where it is left to us.
    pub master: &'a str,
    /// It is a link of the container.
    pub in_container: bool,
    /// No interface on it has a larger MTU.
    pub limits_mtu: bool,
    /// No interface on it comes up while it is down.
    pub must_be_up: bool,
    /// It is given all frames first, so it cannot be the port of a bridge.
    pub takes_frames: bool,
}

impl Wanted<'_> {
    /// Finds it. `home` is a socket where it has to be.
    pub fn find(&self, cx: &Context<'_>, home: &Rtnl) -> Result<Link> {
        match (self.master, cx.request.prev_result()?) {
            ("", Some(result)) => named(home, &self.chained(&result)?),
            ("", None) => of_default_route(home),
            (master, _) => named(home, master),
        }
    }

    /// The one interface of the result that came in.
    fn chained(&self, result: &Success) -> Result<String> {
        let failure = |why: String| Err(Error::config(format!("chained master failure: {why}")));
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

    /// What the interface is to remember: its owner, and where the configuration does not say it, what it sits on.
    pub fn alias(&self, owner: &Owner, parent: &Link) -> String {
        if self.master.is_empty() { prefix(owner) + &parent.name } else { host_link::alias(owner) }
    }

    /// For CHECK: the container's interface sits on it.
    pub fn check(
        &self,
        cx: &Context<'_>,
        owner: &Owner,
        home: &Rtnl,
        interface: &Link,
    ) -> Result<()> {
        let alias = interface.alias.as_deref().unwrap_or_default();
        let parent = match (self.master, alias.strip_prefix(&prefix(owner))) {
            ("", Some(remembered)) => named(home, remembered)?,
            // The reference remembers nothing.
            ("", None) => of_default_route(home)?,
            (master, _) => named(home, master)?,
        };
        // The kernel leaves out an index that is the interface's own.
        let index = interface.peer.unwrap_or(interface.index);
        let is_here = interface.peer_is_elsewhere != self.in_container;
        if index == parent.index && (is_here || cx.request.netns_override) {
            return Ok(());
        }
        Err(Error::internal(format!(
            "interface {} does not sit on {}",
            interface.name, parent.name
        )))
    }

    /// For STATUS, when there is no container to look into: None if it would be there.
    pub fn status(&self, cx: &Context<'_>) -> Result<Option<Link>> {
        if self.in_container {
            return Ok(None);
        }
        let host = cx.session.host()?;
        let found = match self.master {
            "" => of_default_route(host),
            master => named(host, master),
        };
        let link = found?;
        let Link { name, .. } = &link;
        if self.must_be_up && !link.up {
            return Err(Error::internal(format!("master: interface {name} is down")));
        }
        if self.takes_frames && link.port.is_some() {
            return Err(Error::internal(format!(
                "master: interface {name} is the port of a bridge"
            )));
        }
        Ok(Some(link))
    }
}

fn prefix(owner: &Owner) -> String {
    format!("{} on ", host_link::alias(owner))
}

fn named(home: &Rtnl, name: &str) -> Result<Link> {
    let name = IfName::new(name).map_err(|error| Error::config(format!("master: {error}")))?;
    home.link(&name)?.ok_or_else(|| Error::config(format!("Link not found: master {name}")))
}

/// The interface of the default route: of IPv4 before that of IPv6, and of several the one with the lowest metric.
fn of_default_route(home: &Rtnl) -> Result<Link> {
    for family in IpFamily::ALL {
        let mut routes = home.routes(family)?;
        routes.retain(|route| {
            route.dst.prefix_len() == 0 && route.table == Some(routing_tables::MAIN)
        });
        let best = routes.iter().min_by_key(|route| route.metric.unwrap_or(0));
        let index = best.and_then(|route| route.dev.or_else(|| Some(route.nexthops.first()?.dev)));
        if let Some(index) = index
            && let Some(link) = home.link_at(index)?
        {
            return Ok(link);
        }
    }
    Err(Error::config("no default route interface found").with_details("master names no interface"))
}
