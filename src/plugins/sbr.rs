//! `sbr`, source based routing: packets from the addresses of an interface leave by that interface.
//!
//! ```json
//! { "type": "sbr", "gateways": ["10.1.0.254"], "addSourceHints": true }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `table` | integer | a new table | The rules lead to this table. The plugin then changes no routes. |
//! | `gateways` | list of strings | those of `prevResult` | Gateways, at most one per family. |
//! | `addSourceHints` | boolean | false | The subnet routes stay in the main table, with the interface's address as preferred source. |
//!
//! The plugin follows another plugin that made an interface. For each address there is a rule `from ADDRESS lookup
//! TABLE`. Its table is the first one from 100 on that no rule, route or VRF of the container uses. The table holds a
//! default route via the gateway of the address, and the routes of the interface except those that belong to another
//! of its addresses. These routes are removed from the main table, so a program that binds no address uses another
//! interface. Routes to link-local IPv6 addresses stay in both tables, because neighbour discovery needs them.
//!
//! - **ADD** adds the rules and moves the routes, in one request. Without `table` it fails if `prevResult` has a route in the main
//!   table that rejects packets (`blackhole`, `unreachable`, `prohibit`): packets of the interface would not reach it.
//! - **CHECK** fails with the name of the first rule or route that is missing.
//! - **DEL** removes the rules of the addresses in `prevResult` and on the interface, and the routes of their tables. It also
//!   removes the other rules with the routing protocol number of this plugin that lead to a table without routes of another
//!   interface. Rules of addresses that another attachment's interface has stay. If such an interface has lost its addresses,
//!   these other rules stay, too, because they can belong to that interface. DEL does not restore the main table: the interface
//!   is removed next.
//! - **GC** has nothing to do: the kernel removes rules and routes with the namespace.
//! - **STATUS** fails if a key is wrong or the kernel has no routing rules (CONFIG_IP_MULTIPLE_TABLES).

mod check;
mod plan;

use std::net::IpAddr;

use crate::cni::json::keys;
use crate::cni::success::{Ip, Success};
use crate::cni::text::parse_ip;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, IpFamily};
use crate::netlink::rtnl::{Batch, Route, Rtnl, Rule};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::steps::link::routes::Routes;
use crate::steps::link::routing_tables::{self, KERNEL_TABLES, MAIN, RoutingTables};
use crate::steps::link::{chained, host_link};
use crate::steps::undo::Undo;
use plan::{PROTOCOL, Plan, is_link_local};

pub const ENTRY: Entry = Entry {
    is_in_container: true,
    probes: &[("", "")],
    unreadable: Some("failed to parse network configuration"),
    ..Entry::chained::<Sbr>(
        "sbr",
        "routes packets by source: they leave by the interface that has their source address",
    )
};

keys! {
    pub struct Sbr {
        "table" => table: Option<u32>,
        "gateways" => gateways: Vec<String>,
        "addSourceHints" => add_source_hints: bool,
    }
}

/// The error text of the reference for a call without `prevResult`.
const WITHOUT_RESULT: &str = "This plugin must be called as chained plugin";

impl Plugin for Sbr {
    fn examine(&self, cx: &Context<'_>, at: &Attachment) -> Result<()> {
        self.check_keys()?;
        self.ips(&chained::prev_result(cx, WITHOUT_RESULT)?, at).map(drop)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        self.check_keys()?;
        let result = chained::prev_result(cx, WITHOUT_RESULT)?;
        let ips = self.ips(&result, at)?;
        let rtnl = cx.session.container()?;
        let lock = routing_tables::lock(netns)?;
        let mut routing_tables = RoutingTables::read(rtnl)?;
        let plan = match self.table {
            Some(table) => Plan::with_rules(&routing_tables, &ips, table),
            None => {
                chained::refuse_rejecting(rtnl, &result)?;
                let link = host_link::in_container(rtnl, at)?;
                Plan::with_tables(&mut routing_tables, &link, &ips, self.add_source_hints)
            }
        };
        let mut undo = Undo::new(cx);
        undo.push("restore rules and routes", || rtnl.commit(plan.revert()));
        rtnl.commit(plan.apply())?;
        undo.keep();
        drop(lock);
        Ok(result)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        let result = cx.request.required_prev_result()?;
        let ips = self.ips(&result, at)?;
        let rtnl = cx.session.container()?;
        let routing_tables = RoutingTables::read(rtnl)?;
        let link = match self.table {
            Some(_) => None,
            None => Some(host_link::in_container(rtnl, at)?),
        };
        let addresses = match &link {
            Some(link) => rtnl.addresses(link.index)?,
            None => Vec::new(),
        };
        let routes = expected_routes(&result, at);
        for ip in &ips {
            let source = ip.address.addr();
            let rule = plan::rule_of(&routing_tables, source, self.table).ok_or_else(|| {
                let table = self.table.map_or_else(String::new, |table| format!(" lookup {table}"));
                Error::difference(format_args!(
                    "rule from {source}{table} not found in the container"
                ))
            })?;
            if let Some(link) = &link {
                check::table(&routing_tables, rule.table, link, (ip, &ips), &addresses)?;
                check::routes(&routing_tables, rule.table, link, &ips, ip, &routes)?;
                if self.add_source_hints {
                    check::hint(&routing_tables, link, ip)?;
                }
            }
        }
        Ok(())
    }

    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        parts.in_container(|parts| {
            let netns = cx.session.required_netns()?;
            parts.ensure(&|| self.check(cx, at, netns), &mut || {
                self.restore_rules(cx, at, netns)?;
                self.add(cx, at, netns).map(drop)
            })
        })
    }

    /// GC has nothing to do: the kernel removes rules and routes with the container's namespace.
    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        let (Some(at), Some(netns)) = (scope.one(), netns) else { return Ok(()) };
        let rtnl = cx.session.container()?;
        let _lock = routing_tables::lock(netns)?;
        let attached = Attached::find(cx, at, rtnl)?;
        rtnl.commit(self.removal(&RoutingTables::read(rtnl)?, &attached))
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        self.check_keys().map_err(Error::into_not_available)?;
        if cx.session.host()?.rules(IpFamily::V4)?.is_empty() {
            // With CONFIG_IP_MULTIPLE_TABLES, every namespace has the rule for the main table.
            let missing = Error::internal(
                "cannot add routing rules: the kernel lacks CONFIG_IP_MULTIPLE_TABLES",
            );
            return Err(missing.into_not_available());
        }
        Ok(())
    }
}

/// The interface and the addresses that a DEL finds in the container.
struct Attached {
    /// The index of the interface, if it exists.
    index: Option<u32>,
    /// The addresses of the previous result and of the interface.
    sources: Vec<IpAddr>,
    /// The addresses of interfaces that name another owner.
    of_others: Vec<IpAddr>,
    /// An interface of another owner has lost its addresses, so a rule for an unknown address can belong to that interface.
    others_lack_addresses: bool,
}

impl Attached {
    fn find(cx: &Context<'_>, at: &Attachment, rtnl: &Rtnl) -> Result<Self> {
        let result = cx.prev_result_of_del();
        let sources = chained::ips(&result, at).map(|ip| ip.address.addr()).collect();
        let mut found =
            Self { index: None, sources, of_others: Vec::new(), others_lack_addresses: false };
        for link in rtnl.links()? {
            let is_of_another = chained::is_of_another(cx, at, &link)?;
            if !is_of_another && *link.name != *at.ifname {
                continue;
            }
            let addresses = rtnl.addresses(link.index)?;
            let addresses = addresses.iter().map(|address| address.net.addr());
            if is_of_another {
                found.others_lack_addresses |= addresses.clone().all(is_link_local);
                found.of_others.extend(addresses);
            } else {
                found.sources.extend(addresses);
                found.index = Some(link.index);
            }
        }
        Ok(found)
    }
}

/// The routes of the result that the previous plugins added to the main table. A route of the result without a gateway gets
/// the first gateway of the interface, because those plugins added it with that gateway.
fn expected_routes(result: &Success, at: &Attachment) -> Vec<Route> {
    let is_in_main = |route: &&Route| route.table.is_none_or(|table| table == 0 || table == MAIN);
    let own = Success {
        ips: chained::ips(result, at).cloned().collect(),
        routes: result.routes.clone(),
        ..Success::default()
    };
    // The callers do not compare the index of the link.
    Routes::on_link(&own, 0).in_order().filter(is_in_main).cloned().collect()
}

impl Sbr {
    /// Fails if a key has an invalid value.
    fn check_keys(&self) -> Result<()> {
        if self.table == Some(0) {
            return Err(Error::config("table: invalid routing table 0"));
        }
        self.gateways().map(drop)
    }

    fn gateways(&self) -> Result<Vec<IpAddr>> {
        let parse = |text: &String| {
            parse_ip(text).map_err(|error| Error::config("gateways").with_details(error))
        };
        let gateways = self.gateways.iter().map(parse).collect::<Result<Vec<_>>>()?;
        let of_v4 = gateways.iter().filter(|gateway| gateway.is_ipv4()).count();
        if of_v4 > 1 || gateways.len() - of_v4 > 1 {
            return Err(Error::config("gateways: more than one gateway of a family"));
        }
        Ok(gateways)
    }

    /// The addresses of the interface, with the configured gateways.
    fn ips(&self, result: &Success, at: &Attachment) -> Result<Vec<Ip>> {
        let gateways = self.gateways()?;
        let with_gateway = |ip: &Ip| {
            let family = IpFamily::of(ip.address.addr());
            let configured = gateways.iter().find(|gateway| family.has(**gateway));
            Ip { gateway: configured.copied().or(ip.gateway), ..ip.clone() }
        };
        let ips: Vec<Ip> = chained::ips(result, at).map(with_gateway).collect();
        if ips.is_empty() {
            let ifname = &at.ifname;
            return Err(Error::config(format_args!(
                "No IP addresses supplied: prevResult has none of {ifname}"
            )));
        }
        Ok(ips)
    }

    /// Adds the rules that lead to the tables of an earlier ADD, if they are missing. Without them, a new ADD would look for the
    /// routes of these tables in the main table.
    fn restore_rules(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<()> {
        if self.table.is_some() {
            return Ok(());
        }
        let result = cx.request.required_prev_result()?;
        let rtnl = cx.session.container()?;
        let link = host_link::in_container(rtnl, at)?;
        let _lock = routing_tables::lock(netns)?;
        let lost = plan::lost_rules(
            RoutingTables::read(rtnl)?,
            &link,
            &self.ips(&result, at)?,
            &result.routes,
        );
        let mut batch = Batch::new();
        lost.iter().for_each(|rule| batch.add_rule(rule));
        rtnl.commit(batch)
    }

    /// The changes that DEL makes. The manual at the head of this file describes which rules are removed.
    fn removal(&self, routing_tables: &RoutingTables, attached: &Attached) -> Batch {
        let Attached { index, sources, of_others, others_lack_addresses } = attached;
        let index = *index;
        let others_use = |table: u32| {
            let mut routes = routing_tables.routes.iter();
            routes.any(|route| route.table == Some(table) && route.dev != index)
        };
        let is_ours = |rule: &&Rule| {
            // Neither this plugin nor the reference chooses a table of the kernel, so another program made such a rule.
            let is_foreign = KERNEL_TABLES.contains(&rule.table) && self.table != Some(rule.table);
            let is_stale = rule.protocol == Some(PROTOCOL)
                && !others_use(rule.table)
                && !others_lack_addresses;
            rule.source.is_some_and(|source| {
                !of_others.contains(&source)
                    && (sources.contains(&source) && !is_foreign || is_stale)
            })
        };
        let (ours, others): (Vec<_>, Vec<_>) = routing_tables.rules.iter().partition(is_ours);
        let mut batch = Batch::new();
        for rule in &ours {
            batch.del_rule(rule);
        }
        let is_unused = |table: Option<u32>| {
            let is_lookup = |rule: &&Rule| Some(rule.table) == table;
            let was_chosen = |rule: &&Rule| is_lookup(rule) && rule.protocol == Some(PROTOCOL);
            ours.iter().any(was_chosen) && !others.iter().any(is_lookup)
        };
        let routes = routing_tables.routes.iter();
        for route in routes.filter(|route| route.dev == index && is_unused(route.table)) {
            batch.del_route(route);
        }
        batch
    }
}
