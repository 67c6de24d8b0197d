//! `vrf`: puts an interface of the container into a VRF. Interfaces in different VRFs may have the same subnets.
//!
//! ```json
//! { "type": "vrf", "vrfname": "blue", "table": 10 }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `vrfname` | string | required | Name of the VRF device in the container. |
//! | `table` | integer | first unused table | Routing table of the VRF. A VRF that exists must have this table. |
//!
//! The plugin follows another plugin that made an interface. A process in the container selects the VRF with
//! SO_BINDTODEVICE, as `ping -I blue` does.
//!
//! - **ADD** makes the VRF if it does not exist, and makes it the master of the interface. The kernel then removes the
//!   IPv6 addresses and most routes of the interface. ADD restores them in the same request: routes of the main table
//!   in the table of the VRF, all others where they were. It fails if `prevResult` has a route in the main table that rejects
//!   packets (`blackhole`, `unreachable`, `prohibit`): packets in the VRF would not reach it.
//! - **CHECK** fails if the VRF, the rule for VRFs, or an address or route that `prevResult` has for the interface is
//!   missing.
//! - **DEL** takes the interface out of the VRF, unless the interface belongs to another network, and restores its addresses
//!   and routes, except routes that another interface now has in the main table. It removes the VRF after its last interface.
//!   The rule that the kernel added with the first VRF stays.
//! - **GC** has nothing to do: the kernel removes the VRF with the namespace.
//! - **STATUS** fails if a key is wrong or the kernel has no VRF (CONFIG_NET_VRF).

mod interface;

use std::time::Duration;

use crate::cni::json::keys;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, IfName, IpFamily};
use crate::netlink::rtnl::{Batch, Link, LinkChange, LinkProperty, NewLink, Rtnl};
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::steps::link::routing_tables::{self, KERNEL_TABLES, MAIN, RoutingTables};
use crate::steps::link::{chained, host_link, kind, verify};
use crate::steps::undo::{Failures, Undo};
use interface::SavedRoutes;

/// The timeout until the kernel accepts packets to a restored IPv6 address. If the link is up, it takes microseconds.
const ADDRESSES_TIMEOUT: Duration = Duration::from_secs(5);
/// The first table in the search for an unused table. The reference begins its search at the same table.
const FIRST_TABLE: u32 = 1;
const KIND: &str = "vrf";
const OPTION: &str = "CONFIG_NET_VRF";

pub const ENTRY: Entry = Entry {
    is_in_container: true,
    probes: &[("", r#""vrfname":"probe""#)],
    ..Entry::chained::<Vrf>("vrf", "puts an interface of the container into a VRF")
};

keys! {
    pub struct Vrf {
        "vrfname" => vrfname: String,
        /// 0 means the first unused table.
        "table" => table: u32,
    }
}

/// The error text of the reference for a call without `prevResult`.
const WITHOUT_RESULT: &str = "missing prevResult from earlier plugin";

impl Plugin for Vrf {
    fn examine(&self, cx: &Context<'_>, at: &Attachment) -> Result<()> {
        self.name(&at.ifname)?;
        chained::prev_result(cx, WITHOUT_RESULT).map(drop)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let name = self.name(&at.ifname)?;
        let result = chained::prev_result(cx, WITHOUT_RESULT)?;
        chained::refuse_rejecting(cx.session.container()?, &result)?;
        self.join(cx, at, netns, &name).map_err(|error| error.in_front("cmdAdd failed"))?;
        Ok(result)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        let name = self.name(&at.ifname)?;
        let result = cx.request.required_prev_result()?;
        let rtnl = cx.session.container()?;
        let link = host_link::in_container(rtnl, at)?;
        let missing = || Error::difference(format_args!("VRF {name} not found in the container"));
        let vrf = self.find(rtnl, &name)?.ok_or_else(missing)?;
        verify::check_up(&vrf)?;
        if link.master != Some(vrf.index) {
            return Err(Error::difference(format_args!(
                "interface {} is not in VRF {name}",
                at.ifname
            )));
        }
        if !families_without_rule(rtnl)?.is_empty() {
            return Err(Error::difference(
                "rule `from all lookup [l3mdev-table]` not found in the container",
            ));
        }
        interface::check(rtnl, &link, &vrf, &result, at)
    }

    /// GC has nothing to do: the kernel removes the VRF with the container's namespace.
    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        let (Some(at), Some(netns)) = (scope.one(), netns) else { return Ok(()) };
        let rtnl = cx.session.container()?;
        let _lock = routing_tables::lock(netns)?;
        let link = rtnl.link(&at.ifname)?;
        if let Some(link) = &link
            && chained::is_of_another(cx, at, link)?
        {
            return Ok(());
        }
        // The configuration may have named another VRF at ADD.
        let vrf = match link.as_ref().and_then(|link| link.master) {
            Some(master) => rtnl.link_at(master)?.filter(is_vrf),
            None => match self.name(&at.ifname) {
                Ok(name) => rtnl.link(&name)?.filter(is_vrf),
                // An ADD with these keys failed, so it made no VRF.
                Err(_) => None,
            },
        };
        let Some(vrf) = vrf else { return Ok(()) };
        let mut failures = Failures::default();
        if let Some(link) = link.filter(|link| link.master == Some(vrf.index)) {
            failures.note(leave(cx, rtnl, &link, &vrf));
        }
        if rtnl.links_with_master(vrf.index)?.is_empty() {
            failures.note(rtnl.del_link_named(&vrf.name));
        }
        failures.into_result()
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        let is_possible =
            self.name("").and_then(|_| kind::require_kind(cx.session.host()?, KIND, OPTION));
        is_possible.map_err(Error::into_not_available)
    }
}

impl Vrf {
    /// Puts the interface into the VRF. Makes the VRF if it does not exist.
    fn join(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs, name: &IfName) -> Result<()> {
        let rtnl = cx.session.container()?;
        let _lock = routing_tables::lock(netns)?;
        let link = host_link::in_container(rtnl, at)?;
        let mut routing_tables = RoutingTables::read(rtnl)?;
        let found = self.find(rtnl, name)?;
        match (link.master, &found) {
            (None, _) => {}
            // An earlier ADD put the interface into the VRF.
            (Some(master), Some(vrf)) if master == vrf.index => return Ok(()),
            (Some(master), _) => {
                let master = rtnl.link_at(master)?.map_or_else(String::new, |master| master.name);
                let ifname = &at.ifname;
                return Err(Error::internal(format_args!(
                    "cannot put interface {ifname} into VRF {name}: it already has master {master}"
                )));
            }
        }

        let saved = SavedRoutes::of(rtnl, &link, &routing_tables)?;
        let is_new = found.is_none();
        let vrf = found.map_or_else(|| self.make(rtnl, name, &mut routing_tables), Ok)?;
        let table = vrf.vrf_table().unwrap_or_default();
        let mut undo = Undo::new(cx);
        undo.push("take the interface out of the VRF", || {
            let mut failures = Failures::default();
            let mut batch = Batch::new();
            interface::set_master(&mut batch, &link, 0);
            saved.restore(&mut batch, &link, table, MAIN);
            failures.note(rtnl.commit(batch));
            if is_new {
                failures.note(rtnl.del_link(vrf.index));
            }
            failures.into_result()
        });
        let mut batch = Batch::new();
        interface::set_master(&mut batch, &link, vrf.index);
        saved.restore(&mut batch, &link, MAIN, table);
        batch.change_link(
            vrf.index,
            &vrf.name,
            &LinkChange { up: Some(true), ..LinkChange::default() },
        );
        for family in families_without_rule(rtnl)? {
            batch.add_rule_for_vrfs(family);
        }
        rtnl.commit(batch)?;
        let addresses = saved.usable_v6();
        if !addresses.is_empty() && !rtnl.wait_for_local(table, &addresses, ADDRESSES_TIMEOUT)? {
            interface::require_no_carrier(rtnl, &link, ADDRESSES_TIMEOUT)?;
        }
        undo.keep();
        Ok(())
    }

    /// The name of the VRF. Fails if a key has an invalid value.
    fn name(&self, ifname: &str) -> Result<IfName> {
        if self.vrfname.is_empty() {
            return Err(Error::config("configuration is expected to have a valid vrf name")
                .with_details("vrfname"));
        }
        if self.vrfname == ifname {
            return Err(Error::config(format_args!(
                "vrfname: the interface has the name {ifname}"
            )));
        }
        if KERNEL_TABLES.contains(&self.table) {
            return Err(Error::config(format_args!("table: the kernel uses table {}", self.table)));
        }
        IfName::new(self.vrfname.as_str())
            .map_err(|error| Error::config("vrfname").with_details(error.to_string()))
    }

    /// The VRF, if it exists. Fails if the link is of another kind or has another table than the configured one.
    fn find(&self, rtnl: &Rtnl, name: &str) -> Result<Option<Link>> {
        let Some(link) = rtnl.link(name)? else { return Ok(None) };
        if !is_vrf(&link) {
            let kind = link.kind.as_deref().unwrap_or("physical");
            return Err(Error::internal(format_args!(
                "Netlink {name} is not a VRF: its kind is {kind}"
            )));
        }
        let table = link.vrf_table().unwrap_or_default();
        if self.table != 0 && self.table != table {
            let wanted = self.table;
            return Err(Error::internal(format_args!(
                "VRF {name} has table {table}, not {wanted}"
            )));
        }
        Ok(Some(link))
    }

    fn make(&self, rtnl: &Rtnl, name: &str, routing_tables: &mut RoutingTables) -> Result<Link> {
        let table = if self.table == 0 { routing_tables.reserve(FIRST_TABLE) } else { self.table };
        let new = NewLink { name, up: true, ..NewLink::default() };
        rtnl.add_link(&new, KIND, &[LinkProperty::VrfTable(table)])
            .map_err(|error| kind::with_option(error, OPTION))
    }
}

/// Takes the interface out of the VRF and restores its addresses and routes.
fn leave(cx: &Context<'_>, rtnl: &Rtnl, link: &Link, vrf: &Link) -> Result<()> {
    let routing_tables = RoutingTables::read(rtnl)?;
    let table = vrf.vrf_table().unwrap_or_default();
    let saved =
        SavedRoutes::of(rtnl, link, &routing_tables)?.without_conflicts(&routing_tables, table);
    let mut batch = Batch::new();
    interface::set_master(&mut batch, link, 0);
    saved.restore(&mut batch, link, table, MAIN);
    let Err(error) = rtnl.commit(batch) else { return Ok(()) };
    match rtnl.link_at(link.index)? {
        Some(link) if link.master == Some(vrf.index) => Err(error),
        // The interface is out of the VRF. A route failed because the interface changed in the meantime.
        _ => {
            cx.warn(error);
            Ok(())
        }
    }
}

fn is_vrf(link: &Link) -> bool {
    link.kind.as_deref() == Some(KIND)
}

/// The enabled families without the rule for VRFs. The kernel adds the rule only with the first VRF of a namespace.
fn families_without_rule(rtnl: &Rtnl) -> Result<Vec<IpFamily>> {
    let mut families = Vec::new();
    for family in IpFamily::ALL {
        let rules = rtnl.rules(family)?;
        // A family without any rules is disabled.
        if !rules.is_empty() && !rules.iter().any(|rule| rule.is_for_vrfs) {
            families.push(family);
        }
    }
    Ok(families)
}
