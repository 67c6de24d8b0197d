//! Chains that drop the packets of containers: a policy, or a last rule, that drops all packets that no other rule accepts.
//! nftables, iptables-nft, firewalld, ufw and Docker have their chains in nf_tables; the kernel evaluates iptables-legacy in
//! addition.
//!
//! A rule that names the bridge or an address of a network counts as its exception; its other conditions are not evaluated.

use crate::error::Result;
use crate::kernel::nft::{
    Chain, ChainKind, Condition, Element, Expr, Family, Hook, Lookup, Nft, Policy, Rule, Table,
    Verdict,
};
use crate::kernel::xtables;
use crate::names::{IfName, IpFamily};

use super::forwarding::{BRIDGED, value};
use super::host::{Configured, Host};
use super::{Finding, Harm, quoted};

pub(super) fn drops(host: &Host<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if let Some(nft) = Nft::open_if_any()?
        && nft.is_supported()?
    {
        for family in [Family::Inet, Family::Ip, Family::Ip6] {
            let chains = nft.all_chains(family)?;
            for (name, chain) in &chains {
                let table = Table { family, name };
                let what = format!("chain {} of table {table}", chain.name);
                let in_table = chains.iter().filter(|(of, _)| of == name);
                let names: Vec<&str> = in_table.map(|(_, it)| it.name.as_str()).collect();
                for net in dropped_by(host, &nft, table, chain)? {
                    findings.push(finding(&what, net, mend(table, chain, &names, net)));
                }
            }
        }
    }
    for (family, program) in [(IpFamily::V4, "iptables-legacy"), (IpFamily::V6, "ip6tables-legacy")]
    {
        let Some(rules) = xtables::accepted_if_dropped(family == IpFamily::V6) else { continue };
        let is_named = |net: &Configured| {
            rules.iter().any(|rule| {
                net.bridge.as_ref().is_some_and(|bridge| rule.links.contains(bridge))
                    || net.subnets.iter().any(|subnet| {
                        rule.nets.iter().any(|it| it.prefix_len() > 0 && it.contains(subnet))
                    })
            })
        };
        let what = format!("FORWARD of {program}");
        for net in forwarded(host, family).filter(|net| !is_named(net)) {
            findings.push(finding(&what, net, accept(program, "FORWARD", &[family], net)));
        }
    }
    Ok(findings)
}

/// The networks with packets that the chain FORWARD of a family sees.
fn forwarded<'h>(host: &'h Host<'_>, family: IpFamily) -> impl Iterator<Item = &'h Configured> {
    let key = if family == IpFamily::V4 { BRIDGED } else { BRIDGED_V6 };
    let is_bridged = value(key) == "1";
    let networks = host.networks.iter().filter(move |net| net.has_family(family));
    networks.filter(move |net| net.is_routed || is_bridged && net.bridge.is_some())
}

const BRIDGED_V6: &str = "net/bridge/bridge-nf-call-ip6tables";

/// The networks without an exception; none if the chain drops nothing.
fn dropped_by<'h>(
    host: &'h Host<'_>,
    nft: &Nft,
    table: Table<'_>,
    chain: &Chain,
) -> Result<Vec<&'h Configured>> {
    let Some(base) = chain.base else { return Ok(Vec::new()) };
    if base.hook != Hook::Forward || base.kind != ChainKind::Filter {
        return Ok(Vec::new());
    }
    let rules = nft.rules(table)?;
    // The first rule without a condition decides, else the policy.
    let of_rule = |rule: &Rule| match rule.drops_all() {
        true => Some(true),
        false => rule.accepts_all().then_some(false),
    };
    let drops = rules.iter().filter(|rule| rule.chain == chain.name).find_map(of_rule);
    if !drops.unwrap_or(base.policy == Policy::Drop) {
        return Ok(Vec::new());
    }
    // The plugin firewall adds its rules there.
    let is_firewalls =
        table.family != Family::Inet && table.name == "filter" && chain.name == "FORWARD"
            || table.name == FIREWALLD;
    let mut dropped: Vec<&Configured> = Vec::new();
    for net in families(table).iter().flat_map(|family| forwarded(host, *family)) {
        if is_firewalls && net.has("firewall") || dropped.iter().any(|it| std::ptr::eq(*it, net)) {
            continue;
        }
        let marks = Marks::of(net);
        let mut is_exception = false;
        for rule in rules.iter().filter(|rule| lets_through(rule)) {
            is_exception |= marks.are_in(nft, table, rule)?;
        }
        if !is_exception {
            dropped.push(net);
        }
    }
    Ok(dropped)
}

const FIREWALLD: &str = "firewalld";

fn families(table: Table<'_>) -> &'static [IpFamily] {
    match table.family {
        Family::Ip => &[IpFamily::V4],
        Family::Ip6 => &[IpFamily::V6],
        _ => &IpFamily::ALL,
    }
}

/// The command for the program that made the chain.
fn mend(table: Table<'_>, chain: &Chain, chains: &[&str], net: &Configured) -> String {
    let families = families(table);
    let has = |prefix: &str| chains.iter().any(|name| name.starts_with(prefix));
    let iptables = if table.family == Family::Ip6 { "ip6tables" } else { "iptables" };
    match (table.name, chain.name.as_str()) {
        (FIREWALLD, _) => {
            let add = for_each(net, families, |mark| {
                let option = if mark.is_link { "interface" } else { "source" };
                format!("firewall-cmd --permanent --zone=trusted --add-{option}={}", mark.value)
            });
            add + " && firewall-cmd --reload"
        }
        ("filter", "FORWARD") if has("ufw") => for_each(net, families, |mark| {
            let [from, to] = if mark.is_link { ["in on", "out on"] } else { ["from", "to"] };
            let value = &mark.value;
            format!("ufw route allow {from} {value} && ufw route allow {to} {value}")
        }),
        ("filter", "FORWARD") => {
            let chain = if has("DOCKER-USER") { "DOCKER-USER" } else { "FORWARD" };
            accept(iptables, chain, families, net)
        }
        (_, chain) => for_each(net, families, |mark| {
            let [from, to] = match (mark.is_link, mark.value.contains(':')) {
                (true, _) => ["iifname", "oifname"],
                (_, false) => ["ip saddr", "ip daddr"],
                (_, true) => ["ip6 saddr", "ip6 daddr"],
            };
            let insert = format!("insert rule {table} {chain}");
            let value = &mark.value;
            format!("nft '{insert} {from} {value} accept; {insert} {to} {value} accept'")
        }),
    }
}

fn accept(iptables: &str, chain: &str, families: &[IpFamily], net: &Configured) -> String {
    for_each(net, families, |mark| {
        let [from, to] = if mark.is_link { ["-i", "-o"] } else { ["-s", "-d"] };
        let [from, to] =
            [from, to].map(|side| format!("{iptables} -I {chain} {side} {} -j ACCEPT", mark.value));
        format!("{from} && {to}")
    })
}

/// The bridge or a subnet of a network.
struct Mark {
    is_link: bool,
    value: String,
}

/// The commands for the bridge of a network, or without one for its subnets.
fn for_each(net: &Configured, families: &[IpFamily], command: impl Fn(Mark) -> String) -> String {
    if let Some(bridge) = &net.bridge {
        return command(Mark { is_link: true, value: quoted(bridge) });
    }
    let subnets = net.subnets.iter().filter(|it| families.contains(&IpFamily::of(it.addr())));
    let commands = subnets.map(|it| command(Mark { is_link: false, value: it.to_string() }));
    match commands.collect::<Vec<_>>().join(" && ") {
        // An IPAM plugin of another program knows the subnets.
        none if none.is_empty() => command(Mark { is_link: false, value: "SUBNET".into() }),
        commands => commands,
    }
}

fn finding(what: &str, net: &Configured, mend: String) -> Finding {
    Finding {
        harm: Harm::Broken,
        what: format!("{what} drops the packets of {}", net.network.name),
        why: match value(BRIDGED).as_str() {
            "1" => "Containers reach neither other networks nor each other on a bridge.",
            _ => "Containers do not reach other networks, and published ports do not answer.",
        },
        mend,
    }
}

/// It accepts, or leads to another chain or map.
fn lets_through(rule: &Rule) -> bool {
    rule.exprs.iter().any(|expr| match expr {
        Expr::Verdict(verdict) => {
            matches!(verdict, Verdict::Accept | Verdict::Jump(_) | Verdict::Goto(_))
        }
        Expr::Lookup { lookup, .. } => *lookup == Lookup::Verdict,
        _ => false,
    })
}

/// The values by which a rule can name a network.
struct Marks {
    conditions: Vec<Condition>,
}

impl Marks {
    fn of(net: &Configured) -> Self {
        let bridge = net.bridge.as_ref().and_then(|name| IfName::new(name.as_str()).ok());
        let mut conditions = Vec::new();
        conditions.extend(
            bridge.iter().flat_map(|name| [Condition::iifname(name), Condition::oifname(name)]),
        );
        for subnet in &net.subnets {
            conditions.extend([Condition::saddr(*subnet), Condition::daddr(*subnet)]);
        }
        Self { conditions }
    }

    fn are_in(&self, nft: &Nft, table: Table<'_>, rule: &Rule) -> Result<bool> {
        let includes = |wide: &Condition, own: &Condition| {
            let masked = |value: &[u8]| -> Vec<u8> {
                value.iter().zip(&wide.mask).map(|(byte, mask)| byte & mask).collect()
            };
            wide.is_equal && wide.field == own.field && masked(&own.value) == masked(&wide.value)
        };
        let conditions = rule.conditions();
        if conditions.iter().any(|wide| self.conditions.iter().any(|own| includes(wide, own))) {
            return Ok(true);
        }
        for expr in &rule.exprs {
            let Expr::Lookup { set, lookup, .. } = expr else { continue };
            if *lookup == Lookup::Lacks {
                continue;
            }
            let is_own = |element: &Element| {
                self.conditions.iter().any(|own| element.key.starts_with(&own.value))
            };
            if nft.elements(table, set)?.iter().any(is_own) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
