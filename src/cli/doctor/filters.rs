//! Lists the filters of other programs that may drop packets of the networks in use: base chains of nf_tables (iptables-nft,
//! firewalld, ufw, Docker and kube-proxy use them, too), translations of published ports, the tables of iptables-legacy, filters
//! of traffic control, XDP programs and policy rules.
//!
//! A base chain is listed if a rule that can concern the packets drops them, before a rule that accepts all of them, or if no
//! rule accepts them and its policy is to drop. So a chain with the accepting rules of the plugin `firewall`, or with rules of the
//! administrator for the network, is not listed. A rule that names another link, another address, or invalid connections only
//! does not concern the packets. `doctor --probe` asks the kernel what it drops.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Result;
use crate::kernel::sys::{failed, tcx_programs};
use crate::names::IpFamily;
use crate::netlink::nft::{
    Base, Chain, ChainKind, CtState, Expr, Family, Field, Hook, Lookup, Nat, Nft, Policy, Rule,
    TRAP, Table,
};
use crate::netlink::rtnl::Link;
use crate::netlink::{fixed, xtables};
use crate::plugins::firewall::passage::Passage;
use crate::plugins::portmap::Mapping;

use super::filter::{Effect, Filter, Packets};
use super::finding::Findings;
use super::host::{ConfiguredNetwork, Host};
use super::links::{self, of_network, ports};
use super::manager::Manager;
use super::published::Published;
use super::traffic::{Decision, Rules, Side, Traffic};
use crate::cli::output::NAME;

pub(super) fn filters(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let networks: Vec<_> = host.networks.iter().filter(|net| net.is_used).collect();
    if networks.is_empty() {
        return Ok(());
    }
    let (uplinks, filters) = (links::uplinks(host)?, Vec::new());
    let mut listing = Listing { host, networks, uplinks, filters };
    if let Some(nft) = Nft::open_if_supported()? {
        for family in [Family::Inet, Family::Ip, Family::Ip6, Family::Bridge, Family::Netdev] {
            let mut tables: BTreeMap<String, Vec<Chain>> = BTreeMap::new();
            for (table, chain) in nft.all_chains(family)? {
                tables.entry(table).or_default().push(chain);
            }
            // The tables of cnibox drop as configured, and `reconcile` compares them.
            tables.retain(|name, _| ![NAME, TRAP].contains(&name.as_str()));
            for (name, chains) in &tables {
                listing.table(&nft, Table { family, name }, chains)?;
            }
        }
    }
    listing.legacy_tables()?;
    listing.programs_of_links()?;
    listing.policy_rules()?;
    found.filters = listing.filters;
    unknown_passage(host)
}

/// Fails if it is unknown how a network accepts packets: the bus did not answer.
fn unknown_passage(host: &Host<'_>) -> Result<()> {
    let mut unknown = host.networks.iter().filter_map(|net| net.passage.as_ref().err());
    unknown.next().map_or(Ok(()), |error| Err(error.clone()))
}

struct Listing<'a> {
    host: &'a Host<'a>,
    /// The networks in use.
    networks: Vec<&'a ConfiguredNetwork>,
    uplinks: Vec<Link>,
    filters: Vec<Filter>,
}

/// The name of the nf_tables table of firewalld.
const FIREWALLD: &str = "firewalld";

impl Listing<'_> {
    fn table(&mut self, nft: &Nft, table: Table<'_>, chains: &[Chain]) -> Result<()> {
        let bases: Vec<(&Chain, Base)> =
            chains.iter().filter_map(|chain| Some((chain, chain.base?))).collect();
        let is_listed =
            |(chain, base): &&(&Chain, Base)| base.policy == Policy::Drop || chain.uses > 0;
        if !bases.iter().any(|base| is_listed(&base)) || nft.is_dormant(table)? {
            return Ok(());
        }
        let mut rules =
            Rules { rules: nft.rules(table)?, sets: BTreeMap::new(), intervals: BTreeMap::new() };
        let lookups = rules.rules.iter().flat_map(|rule| &rule.exprs);
        let is_used = |name: &str| {
            lookups.clone().any(|expr| matches!(expr, Expr::Lookup { set, .. } if set == name))
        };
        let sets = nft.sets(table)?.into_iter();
        for set in sets.filter(|set| is_used(&set.name)) {
            if !set.has_intervals() {
                rules.sets.insert(set.name.clone(), nft.elements(table, &set.name)?);
            } else if !set.is_map() && !set.has_parts() {
                rules.intervals.insert(set.name.clone(), nft.intervals(table, &set.name)?);
            }
        }
        for (chain, base) in bases.iter().filter(|(_, base)| base.kind == ChainKind::Filter) {
            self.base_chain(table, chain, *base, &rules);
        }
        let translates = |base: &Base| {
            base.kind == ChainKind::Nat && matches!(base.hook, Hook::Prerouting | Hook::Output)
        };
        if let Some((_, base)) = bases.iter().find(|(_, base)| translates(base)) {
            self.translations(table, *base, &rules);
        }
        Ok(())
    }

    fn base_chain(&mut self, table: Table<'_>, chain: &Chain, base: Base, rules: &Rules) {
        let mut filters = Vec::new();
        for net in &self.networks {
            let is_of_firewalld = matches!(net.passage(), Some(Passage::Zone(_)));
            if table.name == FIREWALLD && is_of_firewalld {
                continue;
            }
            let dropping = |traffic: &Traffic<'_>| match rules.decide(&chain.name, traffic) {
                Decision::MayDrop { chain, is_partial } => Some((chain, is_partial)),
                Decision::None if base.policy == Policy::Drop => Some((chain.name.clone(), false)),
                Decision::None | Decision::Accepted => None,
            };
            let (mut packets, mut first, mut is_partial) = (Vec::new(), None, false);
            for traffic in self.traffic(net, table, base, chain) {
                let mut drop = dropping(&traffic);
                if drop.is_some()
                    && let Some(ports) = traffic.to_each_port(net, base)
                {
                    drop = ports.iter().find_map(dropping);
                }
                let Some((chain, is_of_some)) = drop else { continue };
                is_partial |= is_of_some;
                if !packets.contains(&traffic.packets) {
                    packets.push(traffic.packets);
                }
                first.get_or_insert(chain);
            }
            let Some(dropped_in) = first else { continue };
            let from = match dropped_in == chain.name {
                true => String::new(),
                false => format!(", from {}", chain.name),
            };
            let is_of_bridge = table.family == Family::Bridge;
            filters.push(Filter {
                place: place(table, base.hook, &dropped_in, &from, rules),
                effect: Effect::Drops { packets, is_of_bridge, is_partial },
                networks: [net.network.name.to_string()].into(),
            });
        }
        self.filters.extend(filters);
    }

    /// The packets of a network that a base chain gets.
    fn traffic(
        &self,
        net: &ConfiguredNetwork,
        table: Table<'_>,
        base: Base,
        chain: &Chain,
    ) -> Vec<Traffic<'_>> {
        let mut all = Vec::new();
        for family in families(table).iter().copied().filter(|family| net.has_family(*family)) {
            let is_bridge = table.family == Family::Bridge;
            let host = self.host;
            let links = if is_bridge { ports(host, net) } else { of_network(host, net) };
            let nets = net.subnets.iter().copied().filter(|subnet| family.has(subnet.addr()));
            let own = Side { links, nets: nets.collect() };
            let world = match is_bridge {
                true => Side::default(),
                false => Side { links: self.uplinks.iter().collect(), nets: Vec::new() },
            };
            let (mark, accepts_published) = match net.passage() {
                Some(Passage::Forward { mark_bit, accepts_published }) => {
                    (1 << mark_bit, *accepts_published)
                }
                _ => (0, false),
            };
            let (from, to, state) = (own.clone(), world.clone(), CtState::NEW);
            let packets = Packets::New;
            let (is_dnat, port) = (false, None);
            let out = Traffic { packets, family, from, to, state, is_dnat, mark, port };
            let (from, to, state) = (world.clone(), own.clone(), CtState::ESTABLISHED);
            let back = Traffic { packets: Packets::Answers, from, to, state, ..out.clone() };
            let (mark, state) = (if accepts_published { mark } else { 0 }, CtState::NEW);
            let (packets, is_dnat) = (Packets::Published, true);
            let published = Traffic { packets, state, is_dnat, mark, ..back.clone() };
            let publishes = net.published.as_ref().is_none_or(|all| !all.is_empty());
            let published = Some(published).filter(|_| publishes);
            let here = Side::default();
            let is_on =
                |side: &Side<'_>| side.links.iter().any(|link| chain.links.contains(&link.name));
            match (base.hook, table.family) {
                (Hook::Prerouting, Family::Netdev) | (Hook::Ingress, Family::Inet) => {
                    let host_ends = Side {
                        links: self.host.links.iter().filter(|link| net.owns(link)).collect(),
                        ..own.clone()
                    };
                    if is_on(&own) || is_on(&host_ends) {
                        all.push(out);
                    }
                    if is_on(&world) {
                        all.push(back);
                        all.extend(published);
                    }
                }
                (Hook::Forward | Hook::Prerouting, Family::Bridge) if net.bridge.is_some() => {
                    all.push(out);
                }
                // Frames between the containers and the host.
                (Hook::Input, Family::Bridge) if net.is_gateway => {
                    all.push(Traffic { to: here, ..out });
                }
                (Hook::Output | Hook::Postrouting, Family::Bridge) if net.is_gateway => {
                    all.push(Traffic { from: here, to: own, ..back });
                }
                (Hook::Forward | Hook::Prerouting | Hook::Postrouting, _)
                    if net.is_routed && !is_bridge =>
                {
                    all.extend([out, back]);
                    all.extend(published);
                }
                (Hook::Output, _) if !is_bridge => {
                    all.push(Traffic {
                        packets: Packets::FromHost,
                        from: here,
                        to: own,
                        mark: 0,
                        ..out
                    });
                }
                (Hook::Input, _) if self.host.options.is_verbose && !is_bridge => {
                    all.push(Traffic { packets: Packets::ToHost, to: here, ..out });
                }
                _ => {}
            }
        }
        all
    }

    /// Adds the rules of a table with this base chain of nat that translate a published port. Those of cnibox and the Go plugins are left out.
    fn translations(&mut self, table: Table<'_>, base: Base, rules: &Rules) {
        let ports: Vec<u16> = self.networks.iter().flat_map(|net| net.host_ports()).collect();
        let is_of_plugins = |rule: &&Rule| {
            rule.chain.starts_with("CNI-") || table.name.starts_with("cni_") || table.name == NAME
        };
        for rule in rules.rules.iter().filter(|rule| !is_of_plugins(rule)) {
            let mut published = ports.iter().filter(|port| translates(rule, **port));
            let Some(port) = published.next() else { continue };
            let filter = Filter {
                place: place(table, base.hook, &rule.chain, "", rules),
                effect: Effect::Translates(*port),
                networks: self.names(|net| net.host_ports().any(|published| published == *port)),
            };
            if !self.filters.contains(&filter) {
                self.filters.push(filter);
            }
        }
    }

    /// Adds a filter, unless it concerns no network.
    fn other(&mut self, place: String, networks: BTreeSet<String>) {
        if !networks.is_empty() {
            self.filters.push(Filter { place, effect: Effect::Other, networks });
        }
    }

    /// The names of the networks that are concerned.
    fn names(&self, is_concerned: impl Fn(&ConfiguredNetwork) -> bool) -> BTreeSet<String> {
        let networks = self.networks.iter().filter(|net| is_concerned(net));
        networks.map(|net| net.network.name.to_string()).collect()
    }

    fn legacy_tables(&mut self) -> Result<()> {
        for (family, program) in
            [(IpFamily::V4, "iptables-legacy"), (IpFamily::V6, "ip6tables-legacy")]
        {
            let tables = xtables::tables_with_rules(family == IpFamily::V6)?;
            if !tables.is_empty() {
                let place = format!("{program}: table {} has rules", tables.join(", "));
                self.other(place, self.names(|net| net.has_family(family)));
            }
        }
        Ok(())
    }

    /// Adds the links of the networks, and the uplinks, that have a filter of traffic control or an XDP program.
    fn programs_of_links(&mut self) -> Result<()> {
        for link in &self.host.links {
            let networks = self.names(|net| {
                net.owns(link)
                    || of_network(self.host, net).contains(&link)
                    || self.uplinks.contains(link)
            });
            if networks.is_empty() {
                continue;
            }
            if link.has_xdp {
                self.other(format!("XDP: a program on {}", link.name), networks.clone());
            }
            let tcx = |is_ingress| {
                tcx_programs(link.index, is_ingress)
                    .map_err(failed("cannot list the programs of tcx"))
            };
            if tcx(true)? + tcx(false)? > 0 {
                self.other(format!("tcx: a BPF program on {}", link.name), networks.clone());
            }
            if self.host.rtnl.has_dropping_filter(link.index)? {
                self.other(format!("tc: a filter on {}", link.name), networks);
            }
        }
        Ok(())
    }

    /// Adds the policy rules that select packets of containers by their source or link. They can lead to another table.
    fn policy_rules(&mut self) -> Result<()> {
        for family in IpFamily::ALL {
            for rule in self.host.rtnl.rule_selectors(family)? {
                let concerns = |net: &ConfiguredNetwork| {
                    let overlaps = |source: &ipnet::IpNet| {
                        let nets = net.subnets.iter();
                        nets.clone().any(|net| net.contains(source) || source.contains(net))
                    };
                    let links = of_network(self.host, net);
                    let is_link = |name: &String| links.iter().any(|link| link.name == *name);
                    match (&rule.source, &rule.incoming) {
                        (Some(source), _) => overlaps(source),
                        (None, Some(incoming)) => is_link(incoming),
                        (None, None) => rule.rejects.is_some() && net.has_family(family),
                    }
                };
                let networks = self.names(concerns);
                let source = rule.source.map_or_else(|| "all".into(), |source| source.to_string());
                let link = rule.incoming.map_or(String::new(), |name| format!(" iif {name}"));
                let action = match rule.rejects {
                    Some(action) => format!("{action}: can reject packets of"),
                    None => "selects another routing table for packets of".into(),
                };
                let names = networks.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                let place =
                    format!("ip rule {}: from {source}{link}: {action} {names}", rule.priority);
                self.other(place, networks);
            }
        }
        Ok(())
    }
}

impl<'a> Traffic<'a> {
    /// The packets to each published port, if this is all of them and rules can tell them apart by the container's port: before
    /// its translation a packet has that of the host.
    fn to_each_port(&self, net: &ConfiguredNetwork, base: Base) -> Option<Vec<Self>> {
        let is_translated = matches!(base.hook, Hook::Forward | Hook::Postrouting);
        if self.packets != Packets::Published || !is_translated {
            return None;
        }
        let of_port = |published: &Published| {
            let nets = vec![published.address(self.family)?.into()];
            let Mapping { transport, container_port, .. } = published.mapping;
            let port = Some((transport, container_port));
            Some(Self { to: Side { nets, ..self.to.clone() }, port, ..self.clone() })
        };
        Some(net.published.as_ref()?.iter().filter_map(of_port).collect())
    }
}

/// Whether a rule is about this destination port and translates packets, or leads to a chain that can.
fn translates(rule: &Rule, port: u16) -> bool {
    let of_nft = |condition: &crate::netlink::nft::Condition| {
        condition.field == Field::Dport
            && condition.is_equal
            && fixed(&condition.value, 0).map(u16::from_be_bytes) == Some(port)
    };
    let of_iptables = |expr: &Expr| match expr {
        Expr::XtMatch(extension) => {
            extension.destination_ports().is_some_and(|ports| ports.has(port))
        }
        _ => false,
    };
    let is_target = |expr: &Expr| match expr {
        Expr::Nat { nat, .. } => *nat == Nat::Destination,
        Expr::Redirect { .. } => true,
        Expr::XtTarget(target) => ["DNAT", "REDIRECT"].contains(&target.name.as_str()),
        Expr::Lookup { lookup, .. } => *lookup == Lookup::Verdict,
        _ => false,
    };
    let is_about = rule.conditions().iter().any(of_nft) || rule.exprs.iter().any(of_iptables);
    is_about && (rule.leads_to().is_some() || rule.exprs.iter().any(is_target))
}

fn families(table: Table<'_>) -> &'static [IpFamily] {
    match table.family {
        Family::Ip => &[IpFamily::V4],
        Family::Ip6 => &[IpFamily::V6],
        _ => &IpFamily::ALL,
    }
}

/// `forward: chain c, table inet t (ufw)`. `from` is what follows the name of the chain.
fn place(table: Table<'_>, hook: Hook, chain: &str, from: &str, rules: &Rules) -> String {
    let all = rules.rules.iter().map(|rule| rule.chain.as_str()).chain([chain]);
    let whose = Manager::of(table, chain, all).text();
    format!("{}: chain {chain}{from}, table {table} ({whose})", hook_text(table, hook))
}

fn hook_text(table: Table<'_>, hook: Hook) -> &'static str {
    match (table.family, hook) {
        (Family::Netdev, _) | (_, Hook::Ingress) => "ingress",
        (_, Hook::Prerouting) => "prerouting",
        (_, Hook::Input) => "input",
        (_, Hook::Forward) => "forward",
        (_, Hook::Output) => "output",
        (_, Hook::Postrouting) => "postrouting",
    }
}
