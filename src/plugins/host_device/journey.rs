//! The way of a device into a container and back.
//!
//! Moving and renaming is one request. The kernel closes the link, moves it under its old name if that one is free
//! there, and then renames it; so when the new name is taken, the request fails although the link has been moved.

use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::rtnl::{Batch, Link, LinkChange, Rtnl};
use crate::steps::flow::undo::Failures;

use super::passport::{self, Passport};

/// What the kernel would call it that brings it back without us.
const NAME_OF_LAST_RESORT: &str = "dev%d";

/// Where a device goes.
pub struct Destination<'a> {
    pub netns: &'a NetNs,
    /// A socket in that namespace.
    pub rtnl: &'a Rtnl,
    /// What it is called there.
    pub name: &'a str,
    /// Whether it is up there from the start.
    pub up: bool,
}

/// Moves a link of the host into a container. Whatever fails, `come_home` knows what to do.
pub fn go(host: &Rtnl, link: &Link, passport: &Passport, to: &Destination<'_>) -> Result<Link> {
    let mut batch = Batch::new();
    // Left from its last journey.
    let is_old = |name: &&String| passport::is_one(name) || **name == passport.name;
    let olds = link.alt_names.iter().filter(is_old);
    olds.for_each(|old| batch.del_alt_name(&link.name, old));
    batch.add_alt_name(&link.name, &passport.to_string());
    let change = LinkChange {
        netns: Some(to.netns),
        name: Some(to.name),
        up: to.up.then_some(true),
        alias: passport.alias_is_name.then_some(passport.name.as_str()),
        ..LinkChange::default()
    };
    batch.change_link(link.index, &link.name, &change);
    host.commit(batch)?;
    let arrived = to.rtnl.link(to.name)?;
    arrived.ok_or_else(|| Error::internal(format!("cannot find {}, which was moved", link.name)))
}

/// Moves a link of a container to the host, and makes it what it was there.
pub fn come_home(
    there: &Rtnl,
    (host, home): (&Rtnl, &NetNs),
    link: &Link,
    passport: &Passport,
) -> Result<()> {
    let move_as = |name, change| {
        let mut batch = Batch::new();
        del_alt_name(&mut batch, link, passport);
        let change = LinkChange { netns: Some(home), name: Some(name), ..change };
        batch.change_link(link.index, &link.name, &change);
        there.commit(batch)
    };
    // Also if it has the name: the kernel would choose another one if that is taken on the host.
    let Err(error) = move_as(passport.name.as_str(), passport.restore(link)) else {
        return hand_in(host, passport);
    };
    // It may have been moved all the same. If not, both of its names are taken on the host.
    if there.link_at(link.index)?.is_some_and(|still| still.alias == link.alias) {
        move_as(NAME_OF_LAST_RESORT, LinkChange::default()).map_err(|_| error.clone())?;
    }
    match passport.find(host)? {
        Some(link) => settle(host, &link, passport),
        None => Err(error),
    }
}

/// Moves a link of a container to the host under a name that the container has no say in, and leaves it down.
pub fn evict(there: &Rtnl, home: &NetNs, link: &Link, name: &str) -> Result<()> {
    let mut batch = Batch::new();
    let claims = link.alt_names.iter().filter(|name| passport::is_one(name));
    claims.for_each(|claim| batch.del_alt_name(&link.name, claim));
    let change = LinkChange {
        netns: Some(home),
        name: Some(name),
        up: Some(false),
        alias: Some(""),
        ..LinkChange::default()
    };
    batch.change_link(link.index, &link.name, &change);
    there.commit(batch)
}

/// Makes a link that is on the host already what it was there: the kernel brought it, when its namespace ended. What
/// fails does not stop the rest, and it keeps its passport, so that the next DEL or GC can try again. Under another name
/// than its own it stays down.
pub fn settle(host: &Rtnl, link: &Link, passport: &Passport) -> Result<()> {
    let LinkChange { name, mtu, mac, .. } = passport.restore(link);
    let mut batch = Batch::new();
    let mut change = |change| batch.change_link(link.index, &link.name, &change);
    if link.up && (name.is_some() || mac.is_some()) {
        change(LinkChange { up: Some(false), ..LinkChange::default() });
    }
    change(LinkChange { mtu, ..LinkChange::default() });
    change(LinkChange { mac, ..LinkChange::default() });
    if name.is_some() {
        del_alt_name(&mut batch, link, passport);
    }
    batch.change_link(link.index, &link.name, &LinkChange { name, ..LinkChange::default() });
    let mut failures = Failures::default();
    failures.note(host.commit(batch));

    let has_name = host.link(&passport.name)?.is_some_and(|now| now.index == link.index);
    let mut batch = Batch::new();
    let flags = LinkChange { name: None, mtu: None, mac: None, ..passport.restore(link) };
    let flags = LinkChange { up: Some(passport.up && has_name), ..flags };
    batch.change_link(link.index, &link.name, &flags);
    failures.note(host.commit(batch));
    failures.into_result().map_err(|error| {
        let now = if has_name { &passport.name } else { &link.name };
        let name = &passport.name;
        error.context(format!("cannot restore device {name}, which is on the host as {now}"))
    })?;
    hand_in(host, passport)
}

/// A link cannot have one name twice, and udev may have given it its own back half-way.
fn del_alt_name(batch: &mut Batch, link: &Link, passport: &Passport) {
    if link.alt_names.contains(&passport.name) {
        batch.del_alt_name(&link.name, &passport.name);
    }
}

/// At home again, it needs no passport any more.
fn hand_in(host: &Rtnl, passport: &Passport) -> Result<()> {
    let Some(link) = host.link(&passport.name)? else { return Ok(()) };
    let mut batch = Batch::new();
    if passport.alias_is_name && link.alias.is_some() {
        let change = LinkChange { alias: Some(""), ..LinkChange::default() };
        batch.change_link(link.index, &link.name, &change);
    }
    let olds = link.alt_names.iter().filter(|name| passport::is_one(name));
    olds.for_each(|old| batch.del_alt_name(&link.name, old));
    host.commit(batch)
}
