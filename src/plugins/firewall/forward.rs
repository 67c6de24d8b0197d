//! The rules in the chain FORWARD of iptables-nft. Only a rule in FORWARD, or in a chain that it jumps to, can accept a packet
//! that FORWARD drops. The table `filter` belongs to iptables, so the map in it has the name `cnibox`. If FORWARD is missing,
//! `add` creates it as iptables does, so the rules also work when a program sets the policy of FORWARD to DROP later.
//!
//! ```nft
//! table ip filter {
//!     map cnibox { type ipv4_addr : verdict; }
//!     chain FORWARD {
//!         type filter hook forward priority filter; policy drop;
//!         jump CNI-FORWARD comment "CNI firewall plugin rules"
//!     }
//!     chain CNI-FORWARD {
//!         jump CNI-ADMIN comment "CNI firewall plugin admin overrides"
//!         ct state related,established ip daddr vmap @cnibox comment "cnibox: accepts answers ..."
//!         ip saddr vmap @cnibox comment "cnibox: accepts ..."
//!     }
//!     chain CNI-ADMIN { }
//! }
//! ```
//!
//! iptables (tried: 1.8.9 and 1.8.11) prints and restores the rules with a map as rules without a target, and drops the map.
//! `add` finds that the map is missing, and restores it and the rules.
//!
//! The first rule with the map uses the match `conntrack` of iptables, because iptables calls a table with the expression
//! `ct state` of nft incompatible. If the kernel lacks the match, the rule has `ct state`.

use std::net::IpAddr;

use super::ruleset;
use crate::error::{Error, Result};
use crate::netlink::nft::{
    Base, Batch, ChainKind, Comment, Condition, CtState, Datum, Element, Expr, Family, Feature,
    Field, Hook, Lookup, NewChain, NewRule, NewSet, Nft, Object, Policy, Program, Rule, SetKind,
    Table, Type, Verdict, verdict_map, xt_ct_state,
};
use crate::plugin::owner::Owners;
use crate::steps::nft::shared_rules;
use crate::steps::nft::shared_set::accepted;

pub(super) const TABLE: &str = accepted(Family::Ip).table.name;
pub(super) const FORWARD: &str = "FORWARD";
const CNI_FORWARD: &str = "CNI-FORWARD";
const CNI_ADMIN: &str = "CNI-ADMIN";
const MAP: &str = accepted(Family::Ip).name;

/// The longest name of a chain in iptables, in bytes: XT_EXTENSION_MAXNAMELEN without its NUL
/// (linux/netfilter/x_tables.h).
const CHAIN_BYTES_MAX: usize = 28;

/// The base chain FORWARD as iptables creates it: at NF_IP_PRI_FILTER (linux/netfilter_ipv4.h), and its equivalent for IPv6.
const BASE: Base =
    Base { kind: ChainKind::Filter, hook: Hook::Forward, priority: 0, policy: Policy::Accept };

const fn table(family: Family) -> Table<'static> {
    accepted(family).table
}

/// Validates the configured name of the administrator's chain. Empty means the default.
pub(super) fn admin_chain(configured: &str) -> Result<&str> {
    let refused = |why: &str| {
        Err(Error::config(format_args!(
            "iptablesAdminChainName: {configured:?} cannot be a chain: {why}"
        )))
    };
    if configured.is_empty() {
        return Ok(CNI_ADMIN);
    }
    if configured.len() > CHAIN_BYTES_MAX {
        return refused("it is longer than 28 bytes");
    }
    if !configured.bytes().all(|byte| byte.is_ascii_graphic()) || configured.starts_with(['-', '!'])
    {
        return refused("iptables cannot read it");
    }
    match configured {
        FORWARD | CNI_FORWARD | "INPUT" | "OUTPUT" => refused("it is a chain of the host"),
        "ACCEPT" | "DROP" | "RETURN" | "QUEUE" | "REJECT" | "LOG" => refused("it is a target"),
        name => Ok(name),
    }
}

/// Which objects of the plugin exist in the table of iptables-nft.
struct Present {
    table: bool,
    forward: bool,
    cni_forward: bool,
    admin_chain: bool,
    map: bool,
    rules: PresentRules,
}

/// Which rules of the plugin exist in FORWARD and CNI-FORWARD.
struct PresentRules {
    jump: bool,
    admin_jump: bool,
    answers: bool,
    sources: bool,
}

impl Present {
    fn read(nft: &Nft, family: Family, admin_chain: &str) -> Result<Self> {
        let table = table(family);
        let there = nft.exist(&[
            Object::Table(table),
            Object::Chain(table, FORWARD),
            Object::Chain(table, CNI_FORWARD),
            Object::Chain(table, admin_chain),
            Object::Set(table, MAP),
        ])?;
        let rules_of = |chain| nft.rules_of(table, chain);
        Ok(Self {
            table: there[0],
            forward: there[1],
            cni_forward: there[2],
            admin_chain: there[3],
            map: there[4],
            rules: PresentRules::of(
                &rules_of(FORWARD)?,
                &rules_of(CNI_FORWARD)?,
                family,
                admin_chain,
            ),
        })
    }
}

impl PresentRules {
    /// Finds the rules of the plugin among those of FORWARD and CNI-FORWARD.
    fn of(forward: &[Rule], cni_forward: &[Rule], family: Family, admin_chain: &str) -> Self {
        let has = |is_rule: &dyn Fn(&Rule) -> bool| cni_forward.iter().any(is_rule);
        Self {
            jump: forward.iter().any(|rule| jumps_to(rule, CNI_FORWARD)),
            admin_jump: has(&|rule| jumps_to(rule, admin_chain)),
            answers: has(&|rule| looks_up(rule, ruleset::addresses(family)[1])),
            sources: has(&|rule| looks_up(rule, ruleset::addresses(family)[0])),
        }
    }

    /// The missing rules, each with its chain and position. `answers` makes the rule for established packets.
    fn missing<'a>(
        &self,
        family: Family,
        admin_chain: &str,
        comments: &'a Comments,
        answers: impl FnOnce() -> Result<NewRule<'a>>,
    ) -> Result<Vec<NewRule<'a>>> {
        let mut missing = Vec::new();
        if !self.jump {
            let rule = NewRule::first(FORWARD).then(Verdict::Jump(CNI_FORWARD.into()));
            missing.push(rule.comment(&comments.jump));
        }
        if !self.admin_jump {
            let rule = NewRule::first(CNI_FORWARD).then(Verdict::Jump(admin_chain.into()));
            missing.push(rule.comment(&comments.admin));
        }
        if !self.answers {
            missing.push(answers()?.comment(&comments.answers));
        }
        if !self.sources {
            missing.push(accept_sources(family).comment(&comments.sources));
        }
        Ok(missing)
    }
}

/// Whether the rule is an unconditional jump to the chain.
fn jumps_to(rule: &Rule, chain: &str) -> bool {
    rule.leads_to() == Some(chain)
        && rule.exprs.iter().all(|expr| match expr {
            Expr::Verdict(_) | Expr::Counter => true,
            Expr::XtMatch { name, .. } => name == "comment",
            _ => false,
        })
}

/// Whether the rule looks up the field in the map of accepted addresses. If iptables saves the rule to a file and restores
/// it, the rule has no lookup.
fn looks_up(rule: &Rule, wanted: Field) -> bool {
    let is_field = |expr: &Expr| matches!(expr, Expr::Load { field, .. } if *field == wanted);
    let is_map = |expr: &Expr| matches!(expr, Expr::Lookup { set, lookup: Lookup::Verdict, .. } if set == MAP);
    rule.exprs.iter().any(is_field) && rule.exprs.iter().any(is_map)
}

/// Adds the missing chains and rules, and the addresses to the map. A new map gets the addresses of all containers.
pub(super) fn add(
    nft: &Nft,
    batch: &mut Batch,
    family: Family,
    addresses: &[IpAddr],
    admin_chain: &str,
    owner: &Comment,
) -> Result<()> {
    let present = Present::read(nft, family, admin_chain)?;
    ensure_chains(nft, batch, family, admin_chain, &present)?;
    let keys: Vec<Vec<u8>> = addresses.iter().copied().map(ruleset::key).collect();
    let mut wanted: Vec<Element> = keys.iter().map(|key| element(key.clone(), owner)).collect();
    if present.map {
        let put = accepted(family).put(nft, batch, owner, &keys, &wanted);
        return put.map(drop).map_err(|error| {
            let list = addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            error.context(format!("cannot accept {list} in map {MAP} of table {}", table(family)))
        });
    }
    let others = ruleset::set(family, ruleset::ADDRESSES).all_elements(nft)?.into_iter();
    wanted.extend(others.filter_map(|other| Some(element(other.key, &other.comment?))));
    accepted(family).add(nft, batch, &wanted)
}

fn element(key: Vec<u8>, owner: &Comment) -> Element {
    let data = Some(Datum::Verdict(Verdict::Accept));
    Element { key, data, comment: Some(owner.clone()) }
}

fn ensure_chains(
    nft: &Nft,
    batch: &mut Batch,
    family: Family,
    admin_chain: &str,
    present: &Present,
) -> Result<()> {
    let table = table(family);
    let comments = Comments::new(family)?;
    if !present.table {
        batch.add_table(table, None);
    }
    for (name, base, is_there) in [
        (FORWARD, Some(BASE), present.forward),
        (CNI_FORWARD, None, present.cni_forward),
        (admin_chain, None, present.admin_chain),
    ] {
        if !is_there {
            batch.add_chain(table, NewChain { name, base, comment: None });
        }
    }
    if !present.map {
        let address = [if family == Family::Ip6 { Type::Ipv6Addr } else { Type::Ipv4Addr }];
        let kind = SetKind::VerdictMap;
        batch.add_set(table, NewSet { name: MAP, key: &address, kind, comment: None });
    }
    let answers = || accept_answers(nft, family);
    for rule in present.rules.missing(family, admin_chain, &comments, answers)? {
        batch.add_rule(table, rule);
    }
    Ok(())
}

/// `ct state related,established ip daddr vmap @cnibox`, with the match `conntrack` of iptables if the kernel has it
fn accept_answers(nft: &Nft, family: Family) -> Result<NewRule<'static>> {
    let (state, rule) = (answer_states(), NewRule::last(CNI_FORWARD));
    let rule = if nft.missing(&[(family, Feature::XtConntrack)])?.is_empty() {
        rule.then(xt_ct_state(state))
    } else {
        rule.with(Condition::ct_state(state))
    };
    Ok(rule.with(verdict_map(&[ruleset::addresses(family)[1]], MAP)))
}

fn answer_states() -> CtState {
    CtState::ESTABLISHED.or(CtState::RELATED)
}

/// `ip saddr vmap @cnibox`
fn accept_sources(family: Family) -> NewRule<'static> {
    NewRule::last(CNI_FORWARD).with(verdict_map(&[ruleset::addresses(family)[0]], MAP))
}

/// The comments of the rules. The two jumps have the comments of the Go plugin, so that the Go plugin and cnibox find each
/// other's rules.
struct Comments {
    jump: Comment,
    admin: Comment,
    answers: Comment,
    sources: Comment,
}

impl Comments {
    fn new(family: Family) -> Result<Self> {
        let map = format!("map {MAP} of nft table {}", table(family));
        Ok(Self {
            jump: Comment::new("CNI firewall plugin rules")?,
            admin: Comment::new("CNI firewall plugin admin overrides")?,
            answers: Comment::new(format!("cnibox: accepts answers to the addresses in {map}"))?,
            sources: Comment::new(format!("cnibox: accepts the addresses in {map}"))?,
        })
    }
}

/// Adds the missing rules to `program`, a copy of the host's rules, as ADD adds them to the kernel.
pub(super) fn add_to_program(
    program: &mut Program,
    family: Family,
    admin_chain: &str,
) -> Result<()> {
    let [forward, cni_forward] = [FORWARD, CNI_FORWARD].map(|chain| program.rules_of(chain));
    let present = PresentRules::of(forward, cni_forward, family, admin_chain);
    let comments = Comments::new(family)?;
    let answers = || {
        let rule = NewRule::last(CNI_FORWARD).with(Condition::ct_state(answer_states()));
        Ok(rule.with(verdict_map(&[ruleset::addresses(family)[1]], MAP)))
    };
    for rule in present.missing(family, admin_chain, &comments, answers)? {
        program.add(rule);
    }
    program.add_chain(admin_chain);
    Ok(())
}

/// Replaces the lookups in the map by their result for one packet. `known` is the field of the packet whose address is in the
/// map: the source or the destination address. `None` if the map has neither address.
pub(super) fn resolve_map(program: &mut Program, family: Family, known: Option<Field>) {
    let [source, destination] = ruleset::addresses(family);
    for rule in program.rules_mut() {
        for field in [source, destination] {
            if !looks_up(rule, field) {
                continue;
            }
            rule.exprs.retain(|expr| {
                !matches!(expr, Expr::Lookup { set, .. } if set == MAP)
                    && !matches!(expr, Expr::Load { field: loaded, .. } if *loaded == field)
            });
            if known == Some(field) {
                rule.exprs.push(Verdict::Accept.into());
            }
        }
    }
}

pub(super) fn remove(nft: &Nft, batch: &mut Batch, family: Family, owners: &Owners) -> Result<()> {
    let is_stale = |element: &Element| shared_rules::is_of(element, owners);
    accepted(family).remove(nft, batch, &is_stale).map(drop)
}

pub(super) fn check(
    nft: &Nft,
    family: Family,
    addresses: &[IpAddr],
    admin_chain: &str,
    owner: &Comment,
) -> Result<()> {
    let present = Present::read(nft, family, admin_chain)?;
    let table = table(family);
    for (what, is_there) in [
        (format!("the jump from {FORWARD} to {CNI_FORWARD}"), present.rules.jump),
        (format!("the jump from {CNI_FORWARD} to {admin_chain}"), present.rules.admin_jump),
        (format!("the rule of {CNI_FORWARD} that accepts answers"), present.rules.answers),
        (
            format!("the rule of {CNI_FORWARD} that accepts the container's packets"),
            present.rules.sources,
        ),
    ] {
        if !is_there {
            return Err(Error::internal(format_args!("{what} is missing in table {table}")));
        }
    }
    for address in addresses {
        if !accepted(family).has(nft, &element(ruleset::key(*address), owner))? {
            return Err(Error::internal(format_args!(
                "address {address} is missing from map {MAP} of table {table}"
            )));
        }
    }
    Ok(())
}

/// Fails if the kernel would refuse the changes of an ADD. Changes nothing.
pub(super) fn is_possible(nft: &Nft, family: Family, admin_chain: &str) -> Result<()> {
    let present = Present::read(nft, family, admin_chain)?;
    let mut batch = Batch::new();
    ensure_chains(nft, &mut batch, family, admin_chain, &present)?;
    nft.check(batch).map_err(|error| {
        Error::from(error).context(format!("cannot add rules to table {}", table(family)))
    })
}
