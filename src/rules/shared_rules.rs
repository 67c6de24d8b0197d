//! The tables `cnibox`, one for each family, and their shared rules.
//!
//! Objects are named `<plugin>-<object>`. ADD adds the chains, sets and maps that it needs and that are missing; DEL leaves
//! them. The comment of an element is its owner, and DEL removes the element. The comment of a rule is a hash of its expressions, by
//! which it is recognized later.

use std::collections::BTreeSet;

use crate::attachments::owner::{Owner, Owners};
use crate::attachments::record::orphans;
use crate::error::{Code, Error, Result};
use crate::netlink::nft::{
    self, Base, Batch, Comment, Element, Expr, Family, Feature, NewChain, NewRule, NewSet, Nft,
    Object, Rule, Table, Verdict,
};

/// The name of the tables.
pub const TABLE: &str = orphans::TABLE;

/// The table `cnibox` of a family.
pub fn table(family: impl Into<Family>) -> Table<'static> {
    Table { family: family.into(), name: TABLE }
}

/// The comment of an owner's elements.
pub fn comment(owner: &Owner) -> Result<Comment> {
    Comment::new(owner.to_string())
}

/// The objects that all attachments share in a table. ADD adds only those that are missing, because adding an existing chain
/// takes milliseconds.
pub struct SharedRules {
    pub table: Table<'static>,
    pub sets: Vec<NewSet>,
    /// In an order in which the target of a jump comes before the chain that jumps to it.
    pub chains: Vec<Chain>,
}

/// A chain and the rules that it needs. Other rules in it belong to other networks or to the administrator.
#[derive(Clone, Default)]
pub struct Chain {
    pub name: String,
    pub base: Option<Base>,
    pub comment: Option<Comment>,
    /// A rule that is added at the start of the chain, before the rules of others.
    pub first: Option<Vec<Expr>>,
    pub rules: Vec<Vec<Expr>>,
    /// Rules that earlier versions added to this chain. ADD removes them.
    pub obsolete: Vec<Vec<Expr>>,
    /// The corresponding chain of earlier releases. ADD removes its rules, and the chain if it has no other rules; CHECK
    /// accepts it.
    pub former: Option<Box<Self>>,
}

/// The expressions of a rule: conditions, and a verdict for the packets that meet them.
pub fn rule(conditions: impl IntoIterator<Item = Expr>, verdict: Verdict) -> Vec<Expr> {
    conditions.into_iter().chain([verdict.into()]).collect()
}

impl SharedRules {
    /// Adds objects and rules that are missing.
    pub fn ensure(&self, nft: &Nft, batch: &mut Batch) -> Result<()> {
        let table = self.table;
        let mut objects = vec![Object::Table(table)];
        objects.extend(self.sets.iter().map(|set| Object::Set(table, &set.name)));
        objects.extend(self.chains.iter().map(|chain| Object::Chain(table, &chain.name)));
        let mut former: Vec<&Chain> =
            self.chains.iter().filter_map(|chain| chain.former.as_deref()).collect();
        let mut names = BTreeSet::new();
        former.retain(|chain| names.insert(&chain.name));
        objects.extend(former.iter().map(|chain| Object::Chain(table, &chain.name)));
        let mut is_there = nft.exist(&objects)?.into_iter();
        let mut is_there = || is_there.next().unwrap_or_default();
        if !is_there() {
            batch.add_table(table);
        }
        for set in &self.sets {
            if !is_there() {
                batch.add_set(table, set);
            }
        }
        for chain in &self.chains {
            let mut present = Vec::new();
            if is_there() {
                present = nft.rules_of(table, &chain.name)?;
            } else {
                let (name, comment) = (chain.name.as_str(), chain.comment.as_ref());
                batch.add_chain(table, NewChain { name, base: chain.base, comment });
            }
            chain.ensure_rules(table, &present, batch);
        }
        for chain in former {
            if is_there() {
                chain.remove(nft, table, batch)?;
            }
        }
        Ok(())
    }

    /// Fails if a set, a map, a chain or a rule is missing.
    pub fn check(&self, nft: &Nft) -> Result<()> {
        let table = self.table;
        let objects: Vec<Object<'_>> =
            self.sets.iter().map(|set| Object::Set(table, &set.name)).collect();
        if let Some((set, _)) =
            self.sets.iter().zip(nft.exist(&objects)?).find(|(_, exists)| !exists)
        {
            let msg = format!("set {} not found in table {table}", set.name);
            return Err(missing_in_set(nft, table, &set.name, Error::difference(msg))?);
        }
        let present = nft.chains(table)?;
        for chain in &self.chains {
            let found = chain.check(nft, table, &present);
            match &chain.former {
                Some(former) if found.is_err() && former.check(nft, table, &present).is_ok() => {}
                _ => found?,
            }
        }
        Ok(())
    }
}

impl Chain {
    pub fn base(name: &str, base: Base, rules: Vec<Vec<Expr>>) -> Self {
        Self { base: Some(base), ..Self::regular(name, rules) }
    }

    pub fn regular(name: &str, rules: Vec<Vec<Expr>>) -> Self {
        Self { name: name.into(), rules, ..Self::default() }
    }

    /// Sets the chain of earlier releases that this chain replaces.
    pub fn replacing(self, former: Self) -> Self {
        Self { former: Some(Box::new(former)), ..self }
    }

    /// Sets the rules that earlier versions added to this chain.
    pub fn without(self, obsolete: Vec<Vec<Expr>>) -> Self {
        Self { obsolete, ..self }
    }

    fn check(&self, nft: &Nft, table: Table<'_>, present: &[nft::Chain]) -> Result<()> {
        let name = &self.name;
        let found = present.iter().find(|found| found.name == *name);
        if found.is_none_or(|found| found.base != self.base) {
            let msg = format!("chain {name} not found in table {table}");
            let object = format!("chain {name} of table {table}");
            return Err(missing_in_table(nft, table, Error::difference(msg).of_shared(object))?);
        }
        let rules = nft.rules_of(table, name)?;
        let is_whole = self.in_order(&rules) == self.rules.len()
            && self.first.iter().all(|first| rules.iter().any(|rule| rule.is(first)));
        if !is_whole {
            let msg = format!("rules of chain {name} of table {table} are missing");
            return Err(
                Error::difference(msg).of_shared(format_args!("chain {name} of table {table}"))
            );
        }
        Ok(())
    }

    /// Deletes `rules` from the chain in the kernel. Deletes the chain if no other rules remain in it.
    fn remove(&self, nft: &Nft, table: Table<'_>, batch: &mut Batch) -> Result<()> {
        let present = nft.rules_of(table, &self.name)?;
        let (own, others): (Vec<&Rule>, Vec<&Rule>) =
            present.iter().partition(|rule| self.rules.iter().any(|exprs| rule.is(exprs)));
        for rule in own {
            batch.delete_rule(table, &self.name, rule.handle);
        }
        if others.is_empty() {
            batch.delete_chain(table, &self.name);
        }
        Ok(())
    }

    fn ensure_rules(&self, table: Table<'_>, present: &[Rule], batch: &mut Batch) {
        let has = |exprs: &[Expr]| present.iter().find(|rule| rule.is(exprs));
        for obsolete in self.obsolete.iter().filter_map(|rule| has(rule)) {
            batch.delete_rule(table, &self.name, obsolete.handle);
        }
        if let Some(first) = self.first.as_ref().filter(|first| has(first).is_none()) {
            batch.add_rule(table, NewRule::first(&self.name).tagged(first));
        }
        // Add the first missing rule and all rules after it at the end of the chain again, so that their order is correct.
        for rule in &self.rules[self.in_order(present)..] {
            if let Some(misplaced) = has(rule) {
                batch.delete_rule(table, &self.name, misplaced.handle);
            }
            batch.add_rule(table, NewRule::last(&self.name).tagged(rule));
        }
    }

    /// The number of rules at the start of `rules` that `present` has in the same order. Counting stops at the first rule that
    /// is missing or misplaced.
    fn in_order(&self, present: &[Rule]) -> usize {
        let mut present = present.iter();
        let is_next = |rule: &&Vec<Expr>| present.any(|found| found.is(rule));
        self.rules.iter().take_while(is_next).count()
    }
}

/// The difference that an element is missing. Without the set or the table, it is of the set or the table, which attachments share.
pub fn missing_in_set(nft: &Nft, table: Table<'_>, set: &str, missing: Error) -> Result<Error> {
    if nft.exist(&[Object::Set(table, set)])? == [true] {
        return Ok(missing);
    }
    missing_in_table(nft, table, missing.of_shared(format_args!("set {set} of table {table}")))
}

/// The difference that an object is missing. Without the table, it is of the table.
fn missing_in_table(nft: &Nft, table: Table<'_>, missing: Error) -> Result<Error> {
    let exists = nft.exist(&[Object::Table(table)])? == [true];
    Ok(if exists { missing } else { missing.of_shared(format_args!("table {table}")) })
}

/// For STATUS: fails with code 50 if the kernel lacks a feature. `doing` is what needs the features.
pub fn require(nft: &Nft, needed: &[(Family, Feature)], doing: &str) -> Result<()> {
    let missing = nft.missing(needed)?;
    if missing.is_empty() {
        return Ok(());
    }
    let msg = format!("cannot {doing}: the kernel lacks {}", missing.join(", "));
    Err(Error::new(Code::NOT_AVAILABLE, msg))
}

/// Adds an element whose key is the name of a link of the owner. Replaces the element of another owner, whose link no longer
/// exists.
pub fn put(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    set: &str,
    wanted: Element,
) -> Result<()> {
    let key = std::slice::from_ref(&wanted.key);
    match nft.elements_at(table, set, key)?.pop().flatten() {
        Some(found) if found == wanted => return Ok(()),
        Some(found) => {
            batch.delete_elements(table, set, &[found]);
        }
        None => {}
    }
    batch.add_elements(table, set, &[wanted]);
    Ok(())
}

/// Whether the element belongs to one of the owners.
pub fn is_of(element: &Element, owners: &Owners) -> bool {
    element.comment.as_deref().is_some_and(|comment| owners.contain(comment))
}

/// Deletes the elements of the owners from the sets.
pub fn delete(
    nft: &Nft,
    batch: &mut Batch,
    (table, sets): (Table<'_>, &[&str]),
    owners: &Owners,
) -> Result<()> {
    for set in sets {
        let mut elements = nft.elements(table, set)?;
        elements.retain(|element| is_of(element, owners));
        batch.delete_elements(table, set, &elements);
    }
    Ok(())
}
