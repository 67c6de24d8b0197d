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

use super::ruleset::{self, Listing};
use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::nft::{
    Base, Batch, Comment, Condition, CtState, Datum, Element, Expr, Family, Feature, Field, Hook,
    Lookup, NewChain, NewRule, NewSet, Nft, Object, Program, Rule, Table, Type, Verdict,
    verdict_map, xt_ct_state,
};
use crate::steps::nft::shared_set::{SharedSet, accepted};

pub(super) const FORWARD: &str = "FORWARD";
const CNI_FORWARD: &str = "CNI-FORWARD";
const CNI_ADMIN: &str = "CNI-ADMIN";
const MAP: &str = accepted(Family::Ip).name;

/// The longest name of a chain in iptables, in bytes: XT_EXTENSION_MAXNAMELEN without its NUL
/// (linux/netfilter/x_tables.h).
const CHAIN_BYTES_MAX: usize = 28;

/// The base chain FORWARD as iptables creates it: at NF_IP_PRI_FILTER (linux/netfilter_ipv4.h), and its equivalent for IPv6.
const BASE: Base = Base::filter(Hook::Forward, 0);

pub(super) fn table(family: IpFamily) -> Table<'static> {
    map(family).table
}

/// The map of accepted addresses.
pub(super) fn map(family: IpFamily) -> SharedSet<'static> {
    accepted(family.into())
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

/// A rule of the plugin.
struct OwnRule<'a> {
    chain: &'static str,
    effect: Effect<'a>,
    comment: Comment,
}

enum Effect<'a> {
    /// Jumps to the chain. This is the first rule of its chain.
    Jump(&'a str),
    /// Looks up the source address in the map of accepted addresses.
    AcceptSource,
    /// Looks up the destination address of an answer.
    AcceptAnswer,
}

/// The rules of the plugin, in their order. The two jumps have the comments of the Go plugin, so that the Go plugin and cnibox
/// find each other's rules.
fn own_rules(family: IpFamily, admin_chain: &str) -> Result<[OwnRule<'_>; 4]> {
    let map = format!("map {MAP} of nft table {}", table(family));
    let answers = format!("cnibox: accepts answers to the addresses in {map}");
    let sources = format!("cnibox: accepts the addresses in {map}");
    let rule = |chain, effect, comment: &str| {
        Comment::new(comment).map(|comment| OwnRule { chain, effect, comment })
    };
    Ok([
        rule(FORWARD, Effect::Jump(CNI_FORWARD), "CNI firewall plugin rules")?,
        rule(CNI_FORWARD, Effect::Jump(admin_chain), "CNI firewall plugin admin overrides")?,
        rule(CNI_FORWARD, Effect::AcceptAnswer, &answers)?,
        rule(CNI_FORWARD, Effect::AcceptSource, &sources)?,
    ])
}

impl OwnRule<'_> {
    /// The name of the rule in errors.
    fn title(&self) -> String {
        let chain = self.chain;
        match self.effect {
            Effect::Jump(to) => format!("the jump from {chain} to {to}"),
            Effect::AcceptAnswer => format!("the rule of {chain} that accepts answers"),
            Effect::AcceptSource => {
                format!("the rule of {chain} that accepts the container's packets")
            }
        }
    }

    fn is_in<'r>(&self, family: IpFamily, rules: impl IntoIterator<Item = &'r Rule>) -> bool {
        let [source, destination] = Field::addresses(family);
        rules.into_iter().filter(|rule| rule.chain == self.chain).any(|rule| match self.effect {
            Effect::Jump(to) => jumps_to(rule, to),
            Effect::AcceptSource => looks_up(rule, source),
            Effect::AcceptAnswer => looks_up(rule, destination),
        })
    }

    /// The rule for the kernel. `is_answer` makes the condition for answers.
    fn new_rule(
        &self,
        family: IpFamily,
        is_answer: impl FnOnce() -> Result<Vec<Expr>>,
    ) -> Result<NewRule<'_>> {
        let [source, destination] = Field::addresses(family);
        let last = NewRule::last(self.chain);
        let rule = match self.effect {
            Effect::Jump(to) => NewRule::first(self.chain).then(Verdict::Jump(to.into())),
            Effect::AcceptSource => last.with(verdict_map(&[source], MAP)),
            Effect::AcceptAnswer => last.with(is_answer()?).with(verdict_map(&[destination], MAP)),
        };
        Ok(rule.comment(&self.comment))
    }
}

/// The rules of FORWARD and CNI-FORWARD.
fn present_rules(nft: &Nft, family: IpFamily) -> Result<Vec<Rule>> {
    let mut rules = nft.rules_of(table(family), FORWARD)?;
    rules.extend(nft.rules_of(table(family), CNI_FORWARD)?);
    Ok(rules)
}

/// Whether the rule is an unconditional jump to the chain.
fn jumps_to(rule: &Rule, chain: &str) -> bool {
    rule.leads_to() == Some(chain)
        && rule.exprs.iter().all(|expr| match expr {
            Expr::Verdict(_) | Expr::Counter => true,
            Expr::XtMatch(extension) => extension.name == "comment",
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
    listing: &Listing<'_>,
    admin_chain: &str,
) -> Result<()> {
    let Listing { family, addresses, .. } = listing;
    let map = map(*family);
    let had_map = ensure_shared(nft, batch, *family, admin_chain)?;
    let mut wanted = listing.elements(ACCEPT);
    if had_map {
        let put = listing.put(nft, batch, map, &wanted);
        return put.map(drop).map_err(|error| {
            let list = addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            error.context(format!("cannot accept {list} in map {MAP} of table {}", map.table))
        });
    }
    let others = SharedSet::new(*family, ruleset::ADDRESSES).all_elements(nft)?.into_iter();
    let owned = others.filter(|other| other.comment.is_some());
    wanted.extend(owned.map(|other| Element { data: ACCEPT, ..other }));
    map.change(nft, batch, &|_| false, &wanted).map(drop)
}

/// The data of an element in the map.
const ACCEPT: Option<Datum> = Some(Datum::Verdict(Verdict::Accept));

/// Adds the missing chains and rules, and the map if it is missing. Returns whether the map existed.
fn ensure_shared(
    nft: &Nft,
    batch: &mut Batch,
    family: IpFamily,
    admin_chain: &str,
) -> Result<bool> {
    let table = table(family);
    let chains = [(FORWARD, Some(BASE)), (CNI_FORWARD, None), (admin_chain, None)];
    let mut objects = vec![Object::Table(table), Object::Set(table, MAP)];
    objects.extend(chains.map(|(name, _)| Object::Chain(table, name)));
    let is_there = nft.exist(&objects)?;
    let (has_table, has_map) = (is_there[0], is_there[1]);
    let present = present_rules(nft, family)?;
    if !has_table {
        batch.add_table(table);
    }
    for ((name, base), is_there) in chains.into_iter().zip(&is_there[2..]) {
        if !is_there {
            batch.add_chain(table, NewChain { name, base, comment: None });
        }
    }
    if !has_map {
        batch.add_set(table, &NewSet::verdict_map(MAP, [Type::address(family.into())]));
    }
    // With the match `conntrack` of iptables, if the kernel has it.
    let is_answer = || {
        let has_match = nft.missing(&[(table.family, Feature::XtConntrack)])?.is_empty();
        Ok(if has_match { vec![xt_ct_state(ANSWER)] } else { is_answer() })
    };
    for own in own_rules(family, admin_chain)?.iter().filter(|own| !own.is_in(family, &present)) {
        batch.add_rule(table, own.new_rule(family, is_answer)?);
    }
    Ok(has_map)
}

const ANSWER: CtState = CtState::ESTABLISHED.or(CtState::RELATED);

/// `ct state related,established`
fn is_answer() -> Vec<Expr> {
    Condition::ct_state(ANSWER).into_iter().collect()
}

/// Adds the missing rules to `program`, a copy of the host's rules, as ADD adds them to the kernel.
pub(super) fn add_to_program(
    program: &mut Program,
    family: IpFamily,
    admin_chain: &str,
) -> Result<()> {
    for own in own_rules(family, admin_chain)? {
        if !own.is_in(family, program.rules_of(own.chain)) {
            program.add(own.new_rule(family, || Ok(is_answer()))?);
        }
    }
    program.add_chain(admin_chain);
    Ok(())
}

/// Replaces the lookups in the map by their result for one packet. `known` is the field of the packet whose address is in the
/// map: the source or the destination address. `None` if the map has neither address.
pub(super) fn resolve_map(program: &mut Program, family: IpFamily, known: Option<Field>) {
    let [source, destination] = Field::addresses(family);
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

pub(super) fn check(nft: &Nft, listing: &Listing<'_>, admin_chain: &str) -> Result<()> {
    let family = listing.family;
    // An element of the attachment is named before the rules: the rules can be left by the watcher.
    let elements = listing.check(nft, ("map", map(family)), &listing.elements(ACCEPT));
    if elements.as_ref().is_err_and(|missing| missing.shared.is_none()) {
        return elements;
    }
    let present = present_rules(nft, family)?;
    let own = own_rules(family, admin_chain)?;
    if let Some(missing) = own.iter().find(|own| !own.is_in(family, &present)) {
        let (title, table) = (missing.title(), table(family));
        let msg = format!("{title} is missing in table {table}");
        return Err(Error::difference(msg).of_shared(format_args!("{title} of table {table}")));
    }
    elements
}

/// Fails if the kernel would refuse the changes of an ADD. Changes nothing.
pub(super) fn is_possible(nft: &Nft, family: IpFamily, admin_chain: &str) -> Result<()> {
    let mut batch = Batch::new();
    ensure_shared(nft, &mut batch, family, admin_chain)?;
    nft.check(batch).map_err(|error| {
        Error::from(error).context(format!("cannot add rules to table {}", table(family)))
    })
}
