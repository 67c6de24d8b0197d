//! Chains that drop the packets of containers: a policy, or a last rule, that drops all packets that no other rule accepts.
//! nftables, iptables-nft, firewalld, ufw and Docker have their chains in nf_tables; the kernel evaluates iptables-legacy in
//! addition.
//!
//! A rule that names the bridge or an address of a network counts as its exception; its other conditions are not evaluated.

use crate::error::Result;
use crate::kernel::nft::{
    Chain, ChainKind, Condition, Expr, Family, Hook, Lookup, Nft, Policy, Rule, Table, Verdict,
};
use crate::kernel::xtables::{self, Accepted};
use crate::names::{IfName, IpFamily};

use super::forwarding::{BRIDGED, value};
use super::host::{Configured, Host};
use super::{Findings, Harm, quoted};

pub(super) fn drops(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    if let Some(nft) = Nft::open_if_any()?
        && nft.is_supported()?
    {
        for family in [Family::Inet, Family::Ip, Family::Ip6] {
            let chains = nft.all_chains(family)?;
            for (name, chain) in &chains {
                let table = Table { family, name };
                let mut names = Vec::new();
                for net in dropped_by(host, &nft, table, chain)? {
                    names.extend(chains.iter().map(|(_, it)| it.name.as_str()));
                    let what = format!("chain {} of table {table}", chain.name);
                    add(&what, net, &mend(table, chain, &names, net), found);
                }
            }
        }
    }
    for (family, program) in [(IpFamily::V4, "iptables-legacy"), (IpFamily::V6, "ip6tables-legacy")]
    {
        let Some(rules) = xtables::accepted_if_dropped(family == IpFamily::V6) else { continue };
        for net in forwarded(host, family) {
            if !rules.iter().any(|rule| accepts(rule, net)) {
                let what = format!("FORWARD of {program}");
                add(&what, net, &accept(program, "FORWARD", &[family], net), found);
            }
        }
    }
    Ok(())
}

fn accepts(rule: &Accepted, net: &Configured) -> bool {
    if let Some(bridge) = &net.bridge
        && rule.links.contains(bridge)
    {
        return true;
    }
    net.subnets
        .iter()
        .any(|subnet| rule.nets.iter().any(|it| it.prefix_len() > 0 && it.contains(subnet)))
}

/// The networks with packets that the chain FORWARD of a family sees.
fn forwarded<'h>(host: &'h Host<'_>, family: IpFamily) -> Vec<&'h Configured> {
    let key = if family == IpFamily::V4 { BRIDGED } else { BRIDGED_V6 };
    let is_bridged = value(key) == "1";
    let mut networks: Vec<&Configured> = host.networks.iter().collect();
    networks.retain(|net| {
        net.has_family(family) && (net.is_routed || is_bridged && net.bridge.is_some())
    });
    networks
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
    let decides =
        |rule: &&Rule| rule.chain == chain.name && (rule.drops_all() || rule.accepts_all());
    let drops = match rules.iter().find(decides) {
        Some(rule) => rule.drops_all(),
        None => base.policy == Policy::Drop,
    };
    if !drops {
        return Ok(Vec::new());
    }
    // The plugin firewall adds its rules there.
    let is_firewalls =
        table.family != Family::Inet && table.name == "filter" && chain.name == "FORWARD"
            || table.name == FIREWALLD;
    let mut dropped: Vec<&Configured> = Vec::new();
    for family in families(table) {
        for net in forwarded(host, *family) {
            let is_known = dropped.iter().any(|it| std::ptr::eq(*it, net));
            if is_known || is_firewalls && net.has("firewall") {
                continue;
            }
            if !has_exception(nft, table, &rules, net)? {
                dropped.push(net);
            }
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
    match (table.name, chain.name.as_str()) {
        (FIREWALLD, _) => {
            let add = "firewall-cmd --permanent --zone=trusted --add-$ && firewall-cmd --reload";
            commands(net, families, add, ["interface=", "", "source=", ""])
        }
        ("filter", "FORWARD") if has("ufw") => {
            commands(net, families, "ufw route allow $", ["in on ", "out on ", "from ", "to "])
        }
        ("filter", "FORWARD") => {
            let iptables = if table.family == Family::Ip6 { "ip6tables" } else { "iptables" };
            let chain = if has("DOCKER-USER") { "DOCKER-USER" } else { "FORWARD" };
            accept(iptables, chain, families, net)
        }
        (_, chain) => {
            let insert = format!("nft insert rule {table} {chain} $ accept");
            let sides = ["iifname ", "oifname ", "ip saddr ", "ip daddr "];
            commands(net, families, &insert, sides)
        }
    }
}

fn accept(iptables: &str, chain: &str, families: &[IpFamily], net: &Configured) -> String {
    let insert = format!("{iptables} -I {chain} $ -j ACCEPT");
    commands(net, families, &insert, ["-i ", "-o ", "-s ", "-d "])
}

/// The template for the bridge of a network, with the first two words in place of `$`; without a bridge for its subnets, with
/// the last two.
fn commands(net: &Configured, families: &[IpFamily], template: &str, words: [&str; 4]) -> String {
    let mut commands = Vec::new();
    let mut values = Vec::new();
    let words_of_value = match &net.bridge {
        Some(bridge) => {
            values.push(quoted(bridge));
            &words[..2]
        }
        None => &words[2..],
    };
    for subnet in &net.subnets {
        if net.bridge.is_none() && families.contains(&IpFamily::of(subnet.addr())) {
            values.push(subnet.to_string());
        }
    }
    for value in &values {
        for word in words_of_value {
            if !word.is_empty() {
                let ip = if value.contains(':') { "ip6 " } else { "ip " };
                let word = word.replacen("ip ", ip, 1);
                commands.push(template.replace('$', &(word + value)));
            }
        }
    }
    match commands.is_empty() {
        // Another program knows the subnets.
        true => template.replace('$', &(words[2].to_owned() + "SUBNET")),
        false => commands.join(" && "),
    }
}

fn add(what: &str, net: &Configured, mend: &str, found: &mut Findings) {
    let why = match value(BRIDGED).as_str() {
        "1" => "Containers reach neither other networks nor each other on a bridge.",
        _ => "Containers do not reach other networks, and published ports do not answer.",
    };
    let what = format_args!("{what} drops the packets of {}", net.network.name);
    found.add(Harm::Broken, what, why, format_args!("{mend}"));
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

/// Whether a rule that lets packets through names the bridge or a subnet of a network.
fn has_exception(nft: &Nft, table: Table<'_>, rules: &[Rule], net: &Configured) -> Result<bool> {
    let mut marks = Vec::new();
    if let Some(Ok(bridge)) = net.bridge.as_ref().map(|name| IfName::new(name.as_str())) {
        marks.push(Condition::iifname(&bridge));
        marks.push(Condition::oifname(&bridge));
    }
    for subnet in &net.subnets {
        marks.push(Condition::saddr(*subnet));
        marks.push(Condition::daddr(*subnet));
    }
    for rule in rules {
        if !lets_through(rule) {
            continue;
        }
        if rule.conditions().iter().any(|wide| marks.iter().any(|own| wide.includes(own))) {
            return Ok(true);
        }
        for expr in &rule.exprs {
            let Expr::Lookup { set, lookup, .. } = expr else { continue };
            if *lookup == Lookup::Lacks {
                continue;
            }
            for element in nft.elements(table, set)? {
                if marks.iter().any(|own| element.key.starts_with(&own.value)) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}
