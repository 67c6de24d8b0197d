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
use crate::names::IpFamily;
use crate::netlink::nft::{
    Base, Chain, ChainKind, CtState, Expr, Family, Field, Hook, Lookup, Nat, Nft, Policy, Rule,
    Table,
};
use crate::netlink::rtnl::Link;
use crate::netlink::{fixed, xtables};
use crate::plugins::firewall::passage::Passage;

use super::finding::Findings;
use super::host::{ConfiguredNetwork, Host};
use super::links::{self, of_network, ports};
use super::traffic::{Decision, Rules, Side, Traffic};
use crate::cli::output::NAME;

pub(super) fn filters(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let networks: Vec<_> = host.networks.iter().filter(|net| net.is_used).collect();
    if networks.is_empty() {
        return Ok(());
    }
    let (uplinks, lines, concerned) = (links::uplinks(host)?, Vec::new(), BTreeSet::new());
    let mut listing = Listing { host, networks, uplinks, lines, concerned };
    if let Some(nft) = Nft::open_if_supported()? {
        for family in [Family::Inet, Family::Ip, Family::Ip6, Family::Bridge, Family::Netdev] {
            let mut tables: BTreeMap<String, Vec<Chain>> = BTreeMap::new();
            for (table, chain) in nft.all_chains(family)? {
                tables.entry(table).or_default().push(chain);
            }
            // The tables of cnibox drop as configured, and `reconcile` compares them.
            tables.retain(|name, _| name != NAME);
            for (name, chains) in &tables {
                listing.table(&nft, Table { family, name }, chains)?;
            }
        }
    }
    listing.legacy_tables();
    listing.programs_of_links()?;
    listing.policy_rules()?;
    let names: Vec<&str> = listing.concerned.into_iter().collect();
    found.may_drop(format!("filters may drop packets of {}", names.join(", ")), listing.lines);
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
    lines: Vec<String>,
    /// The names of the networks that the lines concern.
    concerned: BTreeSet<&'a str>,
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
        let mut rules = Rules { rules: nft.rules(table)?, sets: BTreeMap::new() };
        let lookups = rules.rules.iter().flat_map(|rule| &rule.exprs);
        let is_used = |name: &str| {
            lookups.clone().any(|expr| matches!(expr, Expr::Lookup { set, .. } if set == name))
        };
        let sets = nft.sets(table)?.into_iter();
        for set in sets.filter(|set| !set.has_intervals() && is_used(&set.name)) {
            let elements = nft.elements(table, &set.name)?;
            rules.sets.insert(set.name, elements);
        }
        for (chain, base) in bases {
            match base.kind {
                ChainKind::Filter => self.base_chain(table, chain, base, &rules),
                ChainKind::Nat if matches!(base.hook, Hook::Prerouting | Hook::Output) => {
                    self.translations(table, base, &rules);
                }
                ChainKind::Nat | ChainKind::Route => {}
            }
        }
        Ok(())
    }

    fn base_chain(&mut self, table: Table<'_>, chain: &Chain, base: Base, rules: &Rules) {
        let mut lines = Vec::new();
        for net in &self.networks {
            let is_of_firewalld = matches!(net.passage(), Some(Passage::Zone(_)));
            if table.name == FIREWALLD && is_of_firewalld {
                continue;
            }
            let (mut kinds, mut dropped_in) = (Vec::new(), None);
            for traffic in self.traffic(net, table, base, chain) {
                let chain_of_drop = match rules.decide(&chain.name, &traffic) {
                    Decision::MayDrop(dropped_in) => Some(dropped_in),
                    Decision::None if base.policy == Policy::Drop => Some(chain.name.clone()),
                    Decision::None | Decision::Accepted => None,
                };
                if chain_of_drop.is_some() && !kinds.contains(&traffic.text) {
                    kinds.push(traffic.text);
                }
                dropped_in = dropped_in.or(chain_of_drop);
            }
            let Some(dropped_in) = dropped_in else { continue };
            self.concerned.insert(&*net.network.name);
            let whose = whose(table, &dropped_in, rules);
            let chain = match dropped_in == chain.name {
                true => format!("chain {dropped_in}"),
                false => format!("chain {dropped_in}, from {}", chain.name),
            };
            lines.push(format!(
                "{}: {chain}, table {table} ({whose}): {} of {}",
                hook_text(table, base.hook),
                kinds.join(", "),
                net.network.name
            ));
        }
        self.lines.extend(lines);
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
            let text = "new connections";
            let out = Traffic { text, family, from, to, state, is_dnat: false, mark };
            let (from, to, state) = (world.clone(), own.clone(), CtState::ESTABLISHED);
            let back = Traffic { text: "answers", from, to, state, ..out.clone() };
            let (mark, state) = (if accepts_published { mark } else { 0 }, CtState::NEW);
            let (text, is_dnat) = ("published ports", true);
            let published = Traffic { text, state, is_dnat, mark, ..back.clone() };
            let published = Some(published).filter(|_| net.publishes);
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
                (Hook::Forward | Hook::Prerouting | Hook::Postrouting, _)
                    if net.is_routed && !is_bridge =>
                {
                    all.extend([out, back]);
                    all.extend(published);
                }
                (Hook::Output, _) if !is_bridge => {
                    all.push(Traffic {
                        text: "packets of the host",
                        from: here,
                        to: own,
                        mark: 0,
                        ..out
                    });
                }
                (Hook::Input, _) if self.host.options.is_verbose && !is_bridge => {
                    all.push(Traffic { text: "packets to the host", to: here, ..out });
                }
                _ => {}
            }
        }
        all
    }

    /// Adds the rules of a base chain of nat that translate a published port. Those of cnibox and the Go plugins are left out.
    fn translations(&mut self, table: Table<'_>, base: Base, rules: &Rules) {
        let ports: Vec<u16> =
            self.networks.iter().flat_map(|net| net.published.iter().copied()).collect();
        let is_of_plugins = |rule: &&Rule| {
            rule.chain.starts_with("CNI-") || table.name.starts_with("cni_") || table.name == NAME
        };
        for rule in rules.rules.iter().filter(|rule| !is_of_plugins(rule)) {
            let mut published = ports.iter().filter(|port| translates(rule, **port));
            let Some(port) = published.next() else { continue };
            let publishes = |net: &&&ConfiguredNetwork| net.published.contains(port);
            self.concerned.extend(self.networks.iter().filter(publishes).map(name));
            let (chain, whose) = (&rule.chain, whose(table, &rule.chain, rules));
            let line = format!(
                "{}: chain {chain}, table {table} ({whose}): translates the published port {port}",
                hook_text(table, base.hook)
            );
            // A chain can be entered from both hooks.
            let end = line.split_once(": ").map_or("", |(_, end)| end).to_owned();
            if !self.lines.iter().any(|known| known.ends_with(&end)) {
                self.lines.push(line);
            }
        }
    }

    fn legacy_tables(&mut self) {
        for (family, program) in
            [(IpFamily::V4, "iptables-legacy"), (IpFamily::V6, "ip6tables-legacy")]
        {
            let tables = xtables::tables_with_rules(family == IpFamily::V6);
            let has_family = |net: &&&ConfiguredNetwork| net.has_family(family);
            if !tables.is_empty() && self.networks.iter().any(|net| net.has_family(family)) {
                self.concerned.extend(self.networks.iter().filter(has_family).map(name));
                self.lines.push(format!("{program}: table {} has rules", tables.join(", ")));
            }
        }
    }

    /// Adds the links of the networks, and the uplinks, that have a filter of traffic control or an XDP program.
    fn programs_of_links(&mut self) -> Result<()> {
        let is_of_networks = |link: &&Link| {
            self.networks
                .iter()
                .any(|net| net.owns(link) || of_network(self.host, net).contains(link))
        };
        let own = self.host.links.iter().filter(is_of_networks);
        let mut lines = Vec::new();
        for link in own.chain(&self.uplinks) {
            let count = lines.len();
            if link.has_xdp {
                lines.push(format!("XDP: a program on {}", link.name));
            }
            if self.host.rtnl.has_dropping_filter(link.index)? {
                lines.push(format!("tc: a filter on {}", link.name));
            }
            if lines.len() > count {
                let concerns = |net: &&&ConfiguredNetwork| {
                    self.uplinks.contains(link)
                        || net.owns(link)
                        || of_network(self.host, net).contains(&link)
                };
                self.concerned.extend(self.networks.iter().filter(concerns).map(name));
            }
        }
        self.lines.extend(lines);
        Ok(())
    }

    /// Adds the policy rules that select packets of containers by their source or link. They can lead to another table.
    fn policy_rules(&mut self) -> Result<()> {
        for family in IpFamily::ALL {
            for rule in self.host.rtnl.rule_selectors(family)? {
                let concerns = |net: &&&ConfiguredNetwork| {
                    let overlaps = |source: &ipnet::IpNet| {
                        let nets = net.subnets.iter();
                        nets.clone().any(|net| net.contains(source) || source.contains(net))
                    };
                    let is_source = rule.source.as_ref().is_some_and(overlaps);
                    let links = of_network(self.host, net);
                    let is_link = |name: &String| links.iter().any(|link| link.name == *name);
                    let selects_all = rule.incoming.is_none() && rule.rejects.is_some();
                    let is_of_family = net.has_family(family);
                    let is_selected =
                        selects_all && is_of_family || rule.incoming.as_ref().is_some_and(is_link);
                    is_source || rule.source.is_none() && is_selected
                };
                let Some(net) = self.networks.iter().find(concerns) else { continue };
                self.concerned.insert(&*net.network.name);
                let source = rule.source.map_or_else(|| "all".into(), |source| source.to_string());
                let link = rule.incoming.map_or(String::new(), |name| format!(" iif {name}"));
                let action = match rule.rejects {
                    Some(action) => format!("{action}: can reject packets of"),
                    None => "selects another routing table for packets of".into(),
                };
                let name = &net.network.name;
                self.lines.push(format!(
                    "ip rule {}: from {source}{link}: {action} {name}",
                    rule.priority
                ));
            }
        }
        Ok(())
    }
}

fn name<'a>(net: &&'a ConfiguredNetwork) -> &'a str {
    &net.network.name
}

/// Whether a rule is about this destination port and translates packets, or leads to a chain that can.
fn translates(rule: &Rule, port: u16) -> bool {
    let of_nft = |condition: &crate::netlink::nft::Condition| {
        condition.field == Field::Dport
            && condition.is_equal
            && fixed(&condition.value, 0).map(u16::from_be_bytes) == Some(port)
    };
    let of_iptables = |expr: &Expr| match expr {
        Expr::XtMatch(extension) => extension
            .destination_ports()
            .is_some_and(|(first, last)| (first..=last).contains(&port)),
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

/// The program that made a chain, by the names that it uses.
fn whose(table: Table<'_>, chain: &str, rules: &Rules) -> &'static str {
    const PREFIXES: [(&str, &str); 7] = [
        ("CNI-ADMIN", "the administrator, for the plugin firewall"),
        ("DOCKER", "Docker"),
        ("KUBE-ROUTER", "kube-router"),
        ("KUBE-", "kube-proxy"),
        ("LIBVIRT_", "libvirt"),
        ("NETAVARK", "podman"),
        ("ufw", "ufw"),
    ];
    let by_name = |name: &str| PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
    match (table.family, table.name) {
        (_, FIREWALLD) => "firewalld",
        (Family::Inet, "fw4") => "fw4 of OpenWrt",
        (Family::Ip | Family::Ip6, "filter" | "mangle" | "nat" | "raw" | "security") => {
            // ufw and Docker set the policies of the base chains.
            let all = rules.rules.iter().map(|rule| rule.chain.as_str());
            let of_table = || all.filter_map(by_name).map(|(_, program)| *program);
            let of_policy = || of_table().find(|program| ["ufw", "Docker"].contains(program));
            let own = by_name(chain).map(|(_, program)| *program);
            own.or_else(of_policy).unwrap_or("iptables-nft")
        }
        _ => by_name(chain).map_or("an nftables ruleset", |(_, program)| program),
    }
}
