//! The rules in the chain FORWARD of iptables-nft. Only a rule in FORWARD, or in a chain that it jumps to, can accept a packet
//! that FORWARD drops. The table `filter` belongs to iptables, so the rules are such that `iptables-save` prints them and
//! `iptables-restore` restores them: the table `cnibox` decides which packets get the bit of the mark, see `mark`. If FORWARD is
//! missing, `add` creates it as iptables does, so the rules also work when a program sets the policy of FORWARD to DROP later.
//!
//! ```nft
//! table ip filter {
//!     chain FORWARD {
//!         type filter hook forward priority filter; policy drop;
//!         jump CNI-FORWARD comment "CNI firewall plugin rules"
//!     }
//!     chain CNI-FORWARD {
//!         jump CNI-ADMIN comment "CNI firewall plugin admin overrides"
//!         mark and 0x1000 == 0x1000 accept comment "cnibox: accepts ..."
//!     }
//!     chain CNI-ADMIN { }
//! }
//! ```
//!
//! Up to release 0.2.0, CNI-FORWARD looked the addresses up in a map `cnibox` in the table `filter`. iptables prints and restores
//! such a rule without a target, and drops the map. `add` removes these rules, because `firewall-addresses` has the addresses
//! of the map, too. CHECK accepts them.

use std::collections::BTreeSet;

use super::mark::{ADDRESSES, Mark, PUBLISHED};
use super::ruleset::{self, Listing};
use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::nft::{
    Base, Batch, Comment, Datum, Expr, Family, Feature, Field, Hook, Lookup, NewChain, NewRule,
    Nft, Object, Rule, Table, Verdict,
};
use crate::rules::shared_rules::{self, SharedRules};
use crate::rules::shared_set::{SharedSet, accepted};

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

/// The map of accepted addresses of earlier releases.
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

/// The beginning of the comments of the rules that accept, also in earlier releases.
const OWN_COMMENT: &str = "cnibox: accepts";

/// The packets that the rules accept, and the chain of the administrator before them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accept<'a> {
    pub(super) admin_chain: &'a str,
    pub(super) mark: Mark,
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
    AcceptMarked(Mark),
}

/// The rules of the plugin, in their order. The two jumps have the comments of the Go plugin, so that the Go plugin and cnibox
/// find each other's rules.
fn own_rules<'a>(family: IpFamily, accept: &Accept<'a>) -> Result<[OwnRule<'a>; 3]> {
    let table = shared_rules::table(family);
    let marked = format!("{OWN_COMMENT} packets that nft table {table} marked");
    let rule = |chain, effect, comment: &str| {
        Comment::new(comment).map(|comment| OwnRule { chain, effect, comment })
    };
    Ok([
        rule(FORWARD, Effect::Jump(CNI_FORWARD), "CNI firewall plugin rules")?,
        rule(CNI_FORWARD, Effect::Jump(accept.admin_chain), "CNI firewall plugin admin overrides")?,
        rule(CNI_FORWARD, Effect::AcceptMarked(accept.mark), &marked)?,
    ])
}

impl OwnRule<'_> {
    /// The name of the rule in errors.
    fn title(&self) -> String {
        let chain = self.chain;
        match self.effect {
            Effect::Jump(to) => format!("the jump from {chain} to {to}"),
            Effect::AcceptMarked(_) => format!("the rule of {chain} that accepts marked packets"),
        }
    }

    fn is_in<'r>(&self, rules: impl IntoIterator<Item = &'r Rule>) -> bool {
        rules.into_iter().filter(|rule| rule.chain == self.chain).any(|rule| match self.effect {
            Effect::Jump(to) => jumps_to(rule, to),
            Effect::AcceptMarked(mark) => mark.is_accepted_by(rule),
        })
    }

    /// The rule for the kernel. `has_match`: it has the match `mark` of iptables.
    fn new_rule(&self, has_match: bool) -> NewRule<'_> {
        let rule = match self.effect {
            Effect::Jump(to) => NewRule::first(self.chain).then(Verdict::Jump(to.into())),
            Effect::AcceptMarked(mark) => {
                NewRule::last(self.chain).with(mark.condition(has_match)).then(Verdict::Accept)
            }
        };
        rule.comment(&self.comment)
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

/// Whether the comment is that of a rule of this plugin that accepts packets.
pub(super) fn is_accept(rule: &Rule) -> bool {
    rule.comment.as_deref().is_some_and(|comment| comment.starts_with(OWN_COMMENT))
}

/// Whether the rule is of an earlier release. If iptables saved and restored it, it has neither a lookup nor a verdict.
fn is_former(rule: &Rule) -> bool {
    let has_verdict = || rule.exprs.iter().any(|expr| matches!(expr, Expr::Verdict(_)));
    is_accept(rule) && !has_verdict()
}

/// Whether the rule looks up the field in the map of accepted addresses of an earlier release.
fn looks_up(rule: &Rule, wanted: Field) -> bool {
    let is_field = |expr: &Expr| matches!(expr, Expr::Load { field, .. } if *field == wanted);
    let is_map = |expr: &Expr| matches!(expr, Expr::Lookup { set, lookup: Lookup::Verdict, .. } if set == MAP);
    rule.exprs.iter().any(is_field) && rule.exprs.iter().any(is_map)
}

/// Adds the missing chains and rules, and the addresses whose published ports are accepted. Removes the elements of earlier
/// releases for these addresses.
pub(super) fn add(
    nft: &Nft,
    batch: &mut Batch,
    listing: &Listing<'_>,
    accept: &Accept<'_>,
) -> Result<()> {
    let family = listing.family;
    ensure_shared(nft, batch, family, accept)?;
    listing.put(nft, batch, map(family), &[])?;
    let published = if accept.mark.accepts_published { listing.elements(None) } else { Vec::new() };
    listing.put(nft, batch, SharedSet::new(family, PUBLISHED), &published).map(drop)
}

/// Adds the missing chains and rules, and removes the rules of earlier releases.
fn ensure_shared(
    nft: &Nft,
    batch: &mut Batch,
    family: IpFamily,
    accept: &Accept<'_>,
) -> Result<()> {
    let table = table(family);
    let chains = [(FORWARD, Some(BASE)), (CNI_FORWARD, None), (accept.admin_chain, None)];
    let mut objects = vec![Object::Table(table)];
    objects.extend(chains.map(|(name, _)| Object::Chain(table, name)));
    let is_there = nft.exist(&objects)?;
    let present = present_rules(nft, family)?;
    if !is_there[0] {
        batch.add_table(table);
    }
    for ((name, base), is_there) in chains.into_iter().zip(&is_there[1..]) {
        if !is_there {
            batch.add_chain(table, NewChain { name, base, comment: None });
        }
    }
    for own in own_rules(family, accept)?.iter().filter(|own| !own.is_in(&present)) {
        let mut has_match = false;
        if let Effect::AcceptMarked(mark) = own.effect {
            mark.check_unused(nft, &is_accept)?;
            has_match = nft.missing(&[(table.family, Feature::XtMark)])?.is_empty();
        }
        batch.add_rule(table, own.new_rule(has_match));
    }
    remove_former(nft, batch, family, &present)
}

/// Removes the rules of earlier releases, if the set `firewall-addresses` has all addresses that these rules accept. It lacks
/// some if another program removed the table `cnibox`.
fn remove_former(nft: &Nft, batch: &mut Batch, family: IpFamily, present: &[Rule]) -> Result<()> {
    let former: Vec<&Rule> = present.iter().filter(|rule| is_former(rule)).collect();
    if former.is_empty() {
        return Ok(());
    }
    let table = table(family);
    let listed = nft.elements(shared_rules::table(family), ADDRESSES)?;
    let listed: BTreeSet<&[u8]> = listed.iter().map(|element| element.key.as_slice()).collect();
    let accepted = nft.elements(table, MAP)?;
    if accepted.iter().all(|element| listed.contains(element.key.as_slice())) {
        for rule in former {
            batch.delete_rule(table, &rule.chain, rule.handle);
        }
    }
    Ok(())
}

/// Fails if a rule is missing, or an address whose published ports are accepted. Accepts the rules of earlier releases.
pub(super) fn check(nft: &Nft, listing: &Listing<'_>, accept: &Accept<'_>) -> Result<()> {
    let present = present_rules(nft, listing.family)?;
    let found = check_rules(nft, listing, accept, &present);
    if found.is_err() && is_accepted_by_former(nft, listing, accept, &present)? {
        return Ok(());
    }
    found
}

fn check_rules(
    nft: &Nft,
    listing: &Listing<'_>,
    accept: &Accept<'_>,
    present: &[Rule],
) -> Result<()> {
    let family = listing.family;
    if accept.mark.accepts_published {
        listing.check(nft, ("set", SharedSet::new(family, PUBLISHED)), &listing.elements(None))?;
    }
    let own = own_rules(family, accept)?;
    if let Some(missing) = own.iter().find(|own| !own.is_in(present)) {
        let (title, table) = (missing.title(), table(family));
        let msg = format!("{title} is missing in table {table}");
        return Err(Error::difference(msg).of_shared(format_args!("{title} of table {table}")));
    }
    let (table, chains) = (shared_rules::table(family), accept.mark.chains(family).into());
    SharedRules { table, sets: Vec::new(), chains }.check(nft)
}

/// Whether the rules and the map of an earlier release accept the attachment.
fn is_accepted_by_former(
    nft: &Nft,
    listing: &Listing<'_>,
    accept: &Accept<'_>,
    present: &[Rule],
) -> Result<bool> {
    let family = listing.family;
    let has_lookup = |field| present.iter().any(|rule| looks_up(rule, field));
    let [to_own, to_admin, _] = own_rules(family, accept)?;
    if accept.mark.accepts_published
        || !Field::addresses(family).into_iter().all(has_lookup)
        || !to_own.is_in(present)
        || !to_admin.is_in(present)
    {
        return Ok(false);
    }
    for element in listing.elements(Some(Datum::Verdict(Verdict::Accept))) {
        if !map(family).has(nft, &element)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Fails if the kernel would refuse the changes of an ADD. Changes nothing.
pub(super) fn is_possible(nft: &Nft, family: IpFamily, accept: &Accept<'_>) -> Result<()> {
    let mut batch = Batch::new();
    ruleset::ensure_shared(nft, &mut batch, family, None, Some(accept.mark))?;
    ensure_shared(nft, &mut batch, family, accept)?;
    nft.check(batch).map_err(|error| {
        Error::from(error).context(format!("cannot add rules to table {}", table(family)))
    })
}
