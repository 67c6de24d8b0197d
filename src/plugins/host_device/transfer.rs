//! The transfer of a device into a container, and back to the host.
//!
//! One request moves and renames the link. The kernel brings the link down, moves it under its old name if that name is free
//! in the target, and then renames it. So if the new name is taken, the request fails although the link has moved.

use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::netlink::rtnl::{Batch, Link, LinkChange, Rtnl};
use crate::steps::undo::Failures;

use super::saved_state::{self, SavedState};

/// The name pattern for a link whose own name is taken on the host: the kernel chooses the number. The kernel uses the same
/// pattern for a link that it returns when a namespace ends.
const FALLBACK_NAME: &str = "dev%d";

/// Moves a link of the host into a container, with the other changes in `change`. `to_host` reverts the move, also after an
/// error.
pub fn to_container(
    host: &Rtnl,
    link: &Link,
    saved: &SavedState,
    change: LinkChange<'_>,
) -> Result<()> {
    let mut batch = Batch::new();
    // An earlier transfer can have left a saved state and the name of the device as alternative names.
    let is_stale = |name: &&String| saved_state::is_name(name) || **name == saved.name;
    let stale = link.alt_names.iter().filter(is_stale);
    stale.for_each(|name| batch.del_alt_name(&link.name, name));
    batch.add_alt_name(&link.name, &saved.to_string());
    let alias = saved.alias_is_name.then_some(saved.name.as_str());
    batch.change_link(link.index, &link.name, &LinkChange { alias, ..change });
    host.commit(batch)
}

/// Moves a link of a container to the host and restores its state.
pub fn to_host(
    container: &Rtnl,
    (host, host_netns): (&Rtnl, &NetNs),
    link: &Link,
    saved: &SavedState,
) -> Result<()> {
    let move_as = |name, change| {
        let mut batch = Batch::new();
        del_alt_name(&mut batch, link, saved);
        let change = LinkChange { netns: Some(host_netns), name: Some(name), ..change };
        batch.change_link(link.index, &link.name, &change);
        container.commit(batch)
    };
    // The request names the link even if the name is unchanged: without a name the kernel chooses another one if that
    // name is taken on the host.
    let Err(error) = move_as(saved.name.as_str(), saved.changes(link)) else {
        return remove_marks(host, saved);
    };
    // The link can have moved in spite of the error. If it did not move, the host has links with its present and its original
    // name.
    if container.link_at(link.index)?.is_some_and(|found| found.alias == link.alias) {
        move_as(FALLBACK_NAME, LinkChange::default()).map_err(|_| error.clone())?;
    }
    match saved.find(host)? {
        Some(link) => restore(host, &link, saved),
        None => Err(error),
    }
}

/// Moves a link of a container to the host under a name that the container cannot choose, and brings it down.
pub fn to_host_as(container: &Rtnl, host_netns: &NetNs, link: &Link, name: &str) -> Result<()> {
    let mut batch = Batch::new();
    del_saved_states(&mut batch, link);
    let change = LinkChange {
        netns: Some(host_netns),
        name: Some(name),
        up: Some(false),
        alias: Some(""),
        ..LinkChange::default()
    };
    batch.change_link(link.index, &link.name, &change);
    container.commit(batch)
}

/// Restores the state of a link that the kernel returned to the host when its namespace ended. After a failure, the other
/// attributes are still restored. The link then keeps its saved state, so that the next DEL or GC can retry. A link that does
/// not get its original name stays down.
pub fn restore(host: &Rtnl, link: &Link, saved: &SavedState) -> Result<()> {
    let LinkChange { name, mtu, mac, .. } = saved.changes(link);
    let mut batch = Batch::new();
    let mut change = |change| batch.change_link(link.index, &link.name, &change);
    if link.up && (name.is_some() || mac.is_some()) {
        change(LinkChange { up: Some(false), ..LinkChange::default() });
    }
    change(LinkChange { mtu, ..LinkChange::default() });
    change(LinkChange { mac, ..LinkChange::default() });
    if name.is_some() {
        del_alt_name(&mut batch, link, saved);
    }
    batch.change_link(link.index, &link.name, &LinkChange { name, ..LinkChange::default() });
    let mut failures = Failures::default();
    failures.note(host.commit(batch));

    let has_name = host.link(&saved.name)?.is_some_and(|now| now.index == link.index);
    let flags = LinkChange { name: None, mtu: None, mac: None, ..saved.changes(link) };
    let flags = LinkChange { up: Some(saved.up && has_name), ..flags };
    failures.note(host.change_link(link.index, &link.name, &flags));
    failures.into_result().map_err(|error| {
        let now = if has_name { &saved.name } else { &link.name };
        let name = &saved.name;
        error.context(format!("cannot restore device {name}, which is on the host as {now}"))
    })?;
    remove_marks(host, saved)
}

/// Removes the name of the device from the alternative names, because a link cannot have one name twice. udev can have added
/// it.
fn del_alt_name(batch: &mut Batch, link: &Link, saved: &SavedState) {
    if link.alt_names.contains(&saved.name) {
        batch.del_alt_name(&link.name, &saved.name);
    }
}

/// Removes saved states from the alternative names.
fn del_saved_states(batch: &mut Batch, link: &Link) {
    let states = link.alt_names.iter().filter(|name| saved_state::is_name(name));
    states.for_each(|state| batch.del_alt_name(&link.name, state));
}

/// Removes the saved state from the alternative names and the alias of a restored link.
fn remove_marks(host: &Rtnl, saved: &SavedState) -> Result<()> {
    let Some(link) = host.link(&saved.name)? else { return Ok(()) };
    let mut batch = Batch::new();
    if saved.alias_is_name && link.alias.is_some() {
        let change = LinkChange { alias: Some(""), ..LinkChange::default() };
        batch.change_link(link.index, &link.name, &change);
    }
    del_saved_states(&mut batch, &link);
    host.commit(batch)
}
