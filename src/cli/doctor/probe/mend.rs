//! The command that makes the program of a rule accept the packets that the rule drops.

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::fixed;
use crate::netlink::nft::{
    Base, Chain, Condition, CtState, Expr, Family, Field, Hook, Nft, Rule, Table, Trace, Verdict,
};
use crate::netlink::rtnl::Link;

use super::super::finding::quoted;
use super::super::manager::{Manager, is_of_iptables};
use super::accepted::{Accepted, Extent, Stage};
use super::ask::Way;
use super::plan::{Direction, Question};

/// The chains that drop packets, with their rules. Each is read once: a chain can have thousands of rules.
pub(super) struct Ruleset<'a> {
    nft: &'a Nft,
    known: Vec<Known>,
}

struct Known {
    family: Family,
    table: String,
    chain: String,
    /// All chains of the table.
    chains: Vec<Chain>,
    rules: Vec<Rule>,
}

impl<'a> Ruleset<'a> {
    pub(super) fn new(nft: &'a Nft) -> Self {
        Self { nft, known: Vec::new() }
    }

    fn of(&mut self, trace: &Trace) -> Result<&Known> {
        let is_it = |known: &Known| {
            (known.family, &known.table, &known.chain) == (trace.family, &trace.table, &trace.chain)
        };
        let at = match self.known.iter().position(is_it) {
            Some(at) => at,
            None => {
                let table = Table { family: trace.family, name: &trace.table };
                self.known.push(Known {
                    family: trace.family,
                    table: trace.table.clone(),
                    chain: trace.chain.clone(),
                    chains: self.nft.chains(table)?,
                    rules: self.nft.rules_of(table, &trace.chain)?,
                });
                self.known.len() - 1
            }
        };
        Ok(&self.known[at])
    }
}

/// A rule, or the policy of a base chain, that drops packets.
pub(super) struct Drop {
    pub(super) manager: Manager,
    family: Family,
    /// The name of the table.
    table: String,
    chain: String,
    rule: Option<u64>,
    /// The number of the rule in its chain, from 1.
    number: Option<usize>,
    is_of_iptables: bool,
    /// The table has the chain for rules of Docker's administrator.
    has_docker_user: bool,
    /// The chain that the packet came from, if that is a base chain.
    base: Option<Base>,
    /// The rule drops by a limit, a count or at random: the next packet can pass.
    pub(super) is_by_chance: bool,
    /// The rule selects packets by their protocol or port.
    is_by_port: bool,
    /// A rule before it accepts the answers.
    accepts_answers: bool,
}

impl Drop {
    pub(super) fn of(rules: &mut Ruleset<'_>, way: &Way, trace: &Trace) -> Result<Self> {
        let Known { chains, rules, .. } = rules.of(trace)?;
        let number = rules.iter().position(|rule| Some(rule.handle) == trace.rule);
        let rule = number.and_then(|number| rules.get(number));
        let before = &rules[..number.unwrap_or(rules.len())];
        let of_table = way
            .chains
            .iter()
            .rev()
            .filter(|(family, table, _)| (*family, table) == (trace.family, &trace.table));
        let base_of =
            |name: &String| chains.iter().find(|chain| chain.name == *name).and_then(|it| it.base);
        let names = chains.iter().map(|chain| chain.name.as_str());
        let table = Table { family: trace.family, name: &trace.table };
        Ok(Self {
            manager: Manager::of(table, &trace.chain, names.clone()),
            family: trace.family,
            table: trace.table.clone(),
            chain: trace.chain.clone(),
            rule: trace.rule,
            number: number.map(|at| at + 1),
            is_of_iptables: is_of_iptables(table, names.clone()),
            has_docker_user: names.clone().any(|name| name == DOCKER_USER),
            base: of_table.filter_map(|(.., chain)| base_of(chain)).next(),
            is_by_chance: rule.is_some_and(|rule| rule.exprs.iter().any(is_of_chance)),
            is_by_port: rule.is_some_and(|rule| rule.exprs.iter().any(compares_more)),
            accepts_answers: before.iter().any(accepts_answers),
        })
    }

    fn table(&self) -> Table<'_> {
        Table { family: self.family, name: &self.table }
    }

    /// The end of a line of hops: `forward: rule 7 of inet fw4 drops`.
    pub(super) fn hop(&self) -> String {
        format!("{}: {} of {} drops", self.chain, self.rule_text(), self.table())
    }

    fn rule_text(&self) -> String {
        self.rule.map_or_else(|| "the policy".into(), |handle| format!("rule {handle}"))
    }

    /// The rule with its program, and the command that shows it.
    pub(super) fn text(&self) -> String {
        let (table, chain) = (self.table(), quoted(&self.chain));
        let remove = match self.rule {
            Some(handle) if self.manager == Manager::Cnibox => format!(
                "; if another program added it, `nft delete rule {table} {chain} handle {handle}` removes it"
            ),
            _ => String::new(),
        };
        format!(
            "{} of chain {}, table {table} ({}); `nft -a list chain {table} {chain}` shows it{remove}",
            self.rule_text(),
            self.chain,
            self.manager.text(),
        )
    }

    /// The commands that accept the packet, and those that the extent adds. `own` is the link of the host that the containers
    /// are behind, `outside` that to other networks.
    pub(super) fn fix(
        &self,
        question: &Question<'_>,
        extent: Extent,
        (own, outside): (&Link, Option<&Link>),
    ) -> Fix {
        let extent = if self.is_by_port { extent.max(Extent::Port) } else { extent };
        let rule = Accepted::of(question, extent, (own, outside), self.base);
        // The rules of these programs are in the chains of routed packets, and of those to the host.
        let is_late = match question.direction {
            Direction::Gateway | Direction::Discovery => self.has_hook(Hook::Input),
            _ => self.has_hook(Hook::Forward),
        };
        match self.manager {
            _ if !rule.has_conditions() || !self.has_plain_name() => self.in_words(question),
            Manager::Cnibox => Fix::command("cnibox reconcile"),
            // A source of a zone would open more than the port.
            Manager::Firewalld
                if question.direction == Direction::Port || extent != Extent::Network =>
            {
                self.in_words(question)
            }
            Manager::Firewalld | Manager::Ufw | Manager::Fw4
                if !is_late || question.direction == Direction::Discovery =>
            {
                self.in_words(question)
            }
            // It comes before the rules of the administrator.
            Manager::Ufw if self.chain.contains("-before-") => self.in_words(question),
            Manager::Firewalld => Fix::Commands(rule.firewalld()),
            Manager::Ufw => Fix::command(rule.ufw()),
            Manager::Fw4 => self.fw4(&rule, question.direction),
            // It would remove an added rule.
            Manager::KubeProxy => self.in_words(question),
            _ if !self.is_of_iptables => self.nft(&rule),
            // iptables knows no incoming link at POSTROUTING.
            _ if rule.stage == Stage::Leaving && question.direction != Direction::Port => {
                self.in_words(question)
            }
            _ => self.iptables(&rule, question),
        }
    }

    fn in_words(&self, question: &Question<'_>) -> Fix {
        let Question { packet, who, .. } = question;
        let (address, port) = question.goal.unwrap_or((packet.to, packet.port));
        let transport = packet.transport.name();
        let what = match question.direction {
            Direction::Port => format!("to {address}, {transport} port {port}, and their answers"),
            Direction::Discovery => "of neighbour discovery".into(),
            _ => format!("of {} to {transport} port {port}", who.entry.network),
        };
        let (chain, table) = (&self.chain, self.table());
        Fix::Words(format!("chain {chain} of table {table} has to accept packets {what}"))
    }

    /// Whether the answers pass the chain, and no rule is there that accepts them.
    fn needs_answers(&self) -> bool {
        self.has_hook(Hook::Forward) && !self.accepts_answers
    }

    fn has_hook(&self, hook: Hook) -> bool {
        self.base.is_some_and(|base| base.hook == hook)
    }

    /// Whether nft takes the name of the chain as a word. iptables takes others, too.
    fn has_plain_name(&self) -> bool {
        self.chain.chars().all(|c| c.is_ascii_alphanumeric() || "_-/\\.".contains(c))
    }

    fn nft(&self, rule: &Accepted) -> Fix {
        let (verb, position) = match self.rule {
            Some(handle) => ("insert", format!(" handle {handle}")),
            None => ("add", String::new()),
        };
        let is_by_link = !matches!(self.family, Family::Bridge | Family::Netdev);
        let mut conditions = vec![rule.nft(is_by_link)];
        if is_by_link && self.needs_answers() {
            conditions.push("ct state established,related".into());
        }
        if !is_by_link && rule.direction == Direction::Container {
            conditions.extend(rule.answers());
        }
        let command = |condition: &String| {
            let (table, chain) = (self.table(), &self.chain);
            let text = format!("{verb} rule {table} {chain}{position} {condition} accept");
            format!("nft {}", quoted(text))
        };
        Fix::Commands(conditions.iter().map(command).collect())
    }

    /// Rules in the chain that drops the packet; in the chain of the administrator if the chain is Docker's.
    fn iptables(&self, rule: &Accepted, question: &Question<'_>) -> Fix {
        let program = if self.family == Family::Ip6 { "ip6tables-nft" } else { "iptables-nft" };
        let place = match (self.has_docker_user, self.rule, self.number) {
            (true, _, _) if self.has_hook(Hook::Forward) => format!("-I {DOCKER_USER} 1"),
            (_, Some(_), Some(number)) => format!("-I {} {number}", quoted(&self.chain)),
            (_, Some(_), None) => return self.in_words(question),
            (_, None, _) => format!("-A {}", quoted(&self.chain)),
        };
        let table = match self.table.as_str() {
            "filter" => String::new(),
            name => format!("-t {name} "),
        };
        let mut conditions = vec![rule.iptables()];
        if self.needs_answers() {
            conditions.push("-m conntrack --ctstate RELATED,ESTABLISHED".into());
        }
        let command =
            |condition: &String| format!("{program} {table}{place} {condition} -j ACCEPT");
        Fix::Commands(conditions.iter().map(command).collect())
    }

    /// The commands for the tables of iptables-legacy, whose rules are not traced.
    pub(super) fn legacy(
        question: &Question<'_>,
        extent: Extent,
        links: (&Link, Option<&Link>),
    ) -> Fix {
        let rule = Accepted::of(question, extent, links, None);
        let program = match rule.family {
            IpFamily::V4 => "iptables-legacy",
            IpFamily::V6 => "ip6tables-legacy",
        };
        let conditions = [rule.iptables(), "-m conntrack --ctstate RELATED,ESTABLISHED".into()];
        let command = |condition| format!("{program} -I FORWARD 1 {condition} -j ACCEPT");
        Fix::Commands(conditions.map(command).into())
    }

    /// fw4 includes the files of this directory at the beginning of its chain.
    fn fw4(&self, rule: &Accepted, direction: Direction) -> Fix {
        let chain = if direction == Direction::Gateway { "input" } else { "forward" };
        let directory = format!("/usr/share/nftables.d/chain-pre/{chain}");
        let line = quoted(format!("{} accept", rule.nft(true)));
        Fix::Commands(vec![
            format!("mkdir -p {directory}"),
            format!("echo {line} >> {directory}/cnibox.nft"),
            "fw4 reload".into(),
        ])
    }
}

const DOCKER_USER: &str = "DOCKER-USER";

/// What makes a rule let packets pass.
#[derive(PartialEq, Eq)]
pub(super) enum Fix {
    Commands(Vec<String>),
    /// No command can.
    Words(String),
}

impl Fix {
    pub(super) const NONE: Self = Self::Commands(Vec::new());

    pub(super) fn command(command: impl Into<String>) -> Self {
        Self::Commands(vec![command.into()])
    }

    /// Adds the commands of another one.
    pub(super) fn join(&mut self, other: Self) {
        if let (Self::Commands(commands), Self::Commands(others)) = (&mut *self, other) {
            for other in others {
                if let Some(at) = commands.iter().position(|known| *known == other) {
                    commands.remove(at);
                }
                commands.push(other);
            }
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Commands(commands) => commands.join(" && "),
            Self::Words(words) => words.clone(),
        }
    }
}

/// An expression by which a rule matches one packet and not another one that is equal.
fn is_of_chance(expr: &Expr) -> bool {
    match expr {
        Expr::Other(name) => {
            ["limit", "connlimit", "numgen", "quota", "objref"].contains(&name.as_str())
        }
        Expr::XtMatch(one) => ["limit", "hashlimit", "connlimit", "statistic", "quota", "recent"]
            .contains(&one.name.as_str()),
        _ => false,
    }
}

/// Whether an expression selects packets by more than their links, addresses, and the state of the connection.
fn compares_more(expr: &Expr) -> bool {
    match expr {
        // The type of a frame is its family.
        Expr::Load { field: Field::Payload(Field::LINK_HEADER, _), .. } => false,
        Expr::Load { field, .. } => {
            matches!(
                field,
                Field::Protocol
                    | Field::Sport
                    | Field::Dport
                    | Field::TcpFlags
                    | Field::Payload(..)
            )
        }
        Expr::XtMatch(one) => {
            !["conntrack", "state", "comment", "mark", "addrtype"].contains(&one.name.as_str())
        }
        _ => false,
    }
}

/// Whether a rule accepts the packets of all connections that exist.
fn accepts_answers(rule: &Rule) -> bool {
    let conditions = rule.conditions();
    let has_state = |expr: &Expr| match expr {
        Expr::XtMatch(one) => one
            .ct_states()
            .is_some_and(|(states, inverted)| states & CtState::ESTABLISHED.0 != 0 && !inverted),
        _ => false,
    };
    let is_established = |condition: &Condition| {
        let bits = fixed(&condition.mask, 0).map_or(0, u32::from_ne_bytes);
        condition.field == Field::CtState
            && !condition.is_equal
            && bits & u32::from(CtState::ESTABLISHED.0) != 0
    };
    let is_accept = |expr: &Expr| match expr {
        Expr::Verdict(verdict) => *verdict == Verdict::Accept,
        Expr::XtTarget(target) => target.name == "ACCEPT",
        _ => false,
    };
    let matches = rule.exprs.iter().filter(|expr| matches!(expr, Expr::XtMatch(_))).count();
    let of_state = rule.exprs.iter().filter(|expr| has_state(expr)).count();
    conditions.iter().all(is_established)
        && matches == of_state
        && conditions.len() + of_state > 0
        && rule.exprs.iter().any(is_accept)
}
