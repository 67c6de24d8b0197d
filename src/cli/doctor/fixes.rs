//! The commands that add accept rules to a chain which drops packets of containers. The rules accept no new connection to a
//! container except to its published ports.

use crate::names::IpFamily;
use crate::netlink::nft::{
    DroppedBy, Expr, Family, Field, NOT_IN_KERNEL, Program, Rule, RuleLocation, Table,
};
use crate::netlink::rtnl::Link;
use crate::plugins::firewall::passage::Passage;

use super::finding::quoted;
use super::host::ConfiguredNetwork;
use super::packets::{TrafficKind, gateway_link};

/// A base chain that drops packets of containers.
pub(super) struct DroppingChain<'a> {
    pub(super) manager: Manager<'a>,
    pub(super) chain: &'a str,
    /// The rules of the table.
    pub(super) program: &'a Program,
}

/// The program that can change the rules of a table.
#[derive(Clone, Copy)]
pub(super) enum Manager<'a> {
    Nft(Table<'a>),
    /// A table with an owner (`NFT_TABLE_F_OWNER`): the kernel refuses changes by other processes.
    Owned(Table<'a>),
    /// firewalld restores its rules after changes by others. The plugin `firewall` gives it the addresses of containers.
    Firewalld,
    /// The iptables program that manages the chain FORWARD, such as `iptables-nft`.
    Iptables(&'static str),
}

/// The traffic to accept, and the rule before which the accept rule is inserted. Without a rule: at the end of the chain.
pub(super) type PacketsToAccept = (TrafficKind, RuleLocation);

/// The location for an accept rule: in the base chain, before the rule that drops the packet or jumps to the drop. There are
/// two exceptions, in which it is before the drop itself. First, the drop is in the chain for the administrator of Docker or of
/// the plugin `firewall`: both insert their jumps at the beginning of the base chain, so a rule there would come too late.
/// Second, the kernel does not have the rule of the base chain yet: the next ADD adds it.
pub(super) fn location_of_accept(by: &DroppedBy, passage: Option<&Passage>) -> RuleLocation {
    let is_admin_chain = match passage {
        Some(Passage::Forward { admin_chain, .. }) => by.location.chain == *admin_chain,
        _ => false,
    };
    let is_inside = by.location.rule.is_some()
        && (is_admin_chain
            || by.location.chain == DOCKER_USER
            || by.from.rule == Some(NOT_IN_KERNEL));
    if is_inside { by.location.clone() } else { by.from.clone() }
}

/// The chain whose rules Docker leaves to the administrator.
const DOCKER_USER: &str = "DOCKER-USER";

/// The commands that accept the traffic of a network; instructions in words if no command can.
pub(super) fn fix(
    target: &DroppingChain<'_>,
    to_accept: &[PacketsToAccept],
    net: &ConfiguredNetwork,
    families: &[IpFamily],
    uplinks: &[&Link],
) -> String {
    // A command that inserts a rule changes the numbers of the rules after it. So the command for the last rule is the first.
    let mut to_accept = to_accept.to_vec();
    to_accept.sort_by_key(|(_, before)| std::cmp::Reverse(target.number(before)));
    let mut commands = Vec::new();
    for (traffic, before) in &to_accept {
        let Some(rules) = conditions(*traffic, net, families, uplinks) else {
            return in_words(target, &before.chain, net);
        };
        for rule in rules {
            match target.command(&rule, before) {
                Some(command) => commands.push(command),
                None => return in_words(target, &before.chain, net),
            }
        }
    }
    commands.join(" && ")
}

fn in_words(target: &DroppingChain<'_>, chain: &str, net: &ConfiguredNetwork) -> String {
    let name = &net.network.name;
    let table = match target.manager {
        Manager::Firewalld => return in_words_of_firewalld(net),
        Manager::Nft(table) | Manager::Owned(table) => table.to_string(),
        Manager::Iptables(program) => format!("filter of {program}"),
    };
    format!("edit chain {chain} of table {table}: accept the packets of network {name}")
}

/// The fix for a chain of firewalld, in words or as a command. firewalld accepts packets from the sources of its zones. While
/// firewalld runs, the plugin `firewall` adds containers as sources.
fn in_words_of_firewalld(net: &ConfiguredNetwork) -> String {
    let (name, file) = (&net.network.name, quoted(net.network.file.display()));
    let backend = net.network.plugin("firewall").map(|plugin| plugin.text_at("backend"));
    match (backend, net.passage()) {
        (None, _) => format!("add the plugin firewall to {file}"),
        (_, Some(Passage::Zone(_))) => {
            format!("edit the rules of firewalld: accept the packets of network {name}")
        }
        (Some(Some("iptables")), _) => {
            format!("set backend to firewalld in the plugin firewall of {file}")
        }
        _ => "systemctl start firewalld".into(),
    }
}

/// The conditions of an accept rule.
enum Accept {
    /// Packets from the link or subnet of the containers to this link: an uplink, or the bridge itself if the host does not
    /// route.
    Out(Source, String),
    Answers,
    Published,
}

enum Source {
    Link(String),
    /// The family, and the subnet.
    Subnet(IpFamily, String),
}

/// The accept rules for one kind of traffic. `None` if a name cannot be part of a command, or if there is no uplink.
fn conditions(
    traffic: TrafficKind,
    net: &ConfiguredNetwork,
    families: &[IpFamily],
    uplinks: &[&Link],
) -> Option<Vec<Accept>> {
    match traffic {
        TrafficKind::Answers => return Some(vec![Accept::Answers]),
        TrafficKind::Published => return Some(vec![Accept::Published]),
        TrafficKind::Out => {}
    }
    let link = gateway_link(net);
    let to: Vec<&str> = match &link {
        Some(own) if !net.is_routed => vec![own],
        _ => uplinks.iter().map(|link| link.name.as_str()).collect(),
    };
    let mut rules = Vec::new();
    for to in to.iter().copied().filter(|to| is_plain(to)) {
        match &link {
            Some(own) if is_plain(own) => {
                rules.push(Accept::Out(Source::Link(own.clone()), to.into()));
            }
            Some(_) => return None,
            None => {
                for subnet in &net.subnets {
                    let family = IpFamily::of(subnet.addr());
                    if families.contains(&family) {
                        let source = Source::Subnet(family, subnet.to_string());
                        rules.push(Accept::Out(source, to.into()));
                    }
                }
            }
        }
    }
    let are_plain = to.iter().all(|to| is_plain(to));
    (are_plain && !rules.is_empty()).then_some(rules)
}

/// Whether nft and iptables read the text as a plain name: `*` and `+` make patterns, and a quote ends a name.
fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

impl DroppingChain<'_> {
    /// The number of a rule in its chain, from 1. For the end of the chain: the number of rules plus 1.
    fn number(&self, location: &RuleLocation) -> Option<usize> {
        let rules = self.program.rules_of(&location.chain);
        match location.rule {
            Some(handle) => rules.iter().position(|rule| rule.handle == handle).map(|at| at + 1),
            None => Some(rules.len() + 1),
        }
    }

    fn command(&self, accept: &Accept, before: &RuleLocation) -> Option<String> {
        match self.manager {
            Manager::Owned(_) | Manager::Firewalld => None,
            Manager::Nft(table) => nft(table, accept, before),
            Manager::Iptables(program) => {
                let (chain, number) = (quoted(&before.chain), self.number(before)?);
                let position = match before.rule {
                    Some(_) => format!("-I {chain} {number}"),
                    None => format!("-A {chain}"),
                };
                let conditions = match accept {
                    Accept::Out(Source::Link(own), to) => {
                        format!("-i {} -o {}", quoted(own), quoted(to))
                    }
                    Accept::Out(Source::Subnet(_, subnet), to) => {
                        format!("-s {subnet} -o {}", quoted(to))
                    }
                    Accept::Answers => "-m conntrack --ctstate RELATED,ESTABLISHED".into(),
                    Accept::Published => "-m conntrack --ctstate DNAT".into(),
                };
                Some(format!("{program} {position} {conditions} -j ACCEPT"))
            }
        }
    }
}

fn nft(table: Table<'_>, accept: &Accept, before: &RuleLocation) -> Option<String> {
    let chain = &before.chain;
    if !is_plain(table.name) || !is_plain(chain) {
        return None;
    }
    let (verb, position) = match before.rule {
        Some(handle) => ("insert", format!(" handle {handle}")),
        None => ("add", String::new()),
    };
    let conditions = match accept {
        Accept::Out(Source::Link(own), to) => format!(r#"iifname "{own}" oifname "{to}""#),
        Accept::Out(Source::Subnet(family, subnet), to) => {
            let ip = if *family == IpFamily::V4 { "ip" } else { "ip6" };
            format!(r#"{ip} saddr {subnet} oifname "{to}""#)
        }
        Accept::Answers => "ct state established,related".into(),
        Accept::Published => "ct status dnat".into(),
    };
    let rule = format!("{verb} rule {table} {chain}{position} {conditions} accept");
    Some(format!("nft {}", quoted(rule)))
}

/// The program that can change a chain of nf_tables. iptables-nft refuses a table that has expressions which iptables does not
/// use.
pub(super) fn manager_of<'a>(
    table: Table<'a>,
    chain: &str,
    has_owner: bool,
    program: &Program,
) -> Manager<'a> {
    if table.name == FIREWALLD {
        return Manager::Firewalld;
    }
    if has_owner {
        return Manager::Owned(table);
    }
    let is_foreign = |expr: &Expr| match expr {
        Expr::Load { field, .. } => {
            matches!(field, Field::CtState | Field::CtStatus | Field::CtMark | Field::FibDaddrType)
        }
        Expr::Other(name) => !matches!(name.as_str(), "limit" | "log"),
        _ => false,
    };
    let is_foreign = |rule: &Rule| rule.exprs.iter().any(is_foreign);
    match table.family {
        Family::Ip | Family::Ip6
            if (table.name, chain) == ("filter", "FORWARD") && !program.rules().any(is_foreign) =>
        {
            let is_v6 = table.family == Family::Ip6;
            Manager::Iptables(if is_v6 { "ip6tables-nft" } else { "iptables-nft" })
        }
        _ => Manager::Nft(table),
    }
}

/// The name of the nf_tables table of firewalld.
pub(super) const FIREWALLD: &str = "firewalld";
