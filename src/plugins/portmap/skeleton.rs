//! What all published ports share: the table, the maps and sets, the chains and their rules. An ADD adds what is missing
//! of it, and nothing else, since adding a chain again costs the kernel milliseconds.

use super::conditions::Conditions;
use super::config::{Settings, Source};
use super::ruleset::{self, Group, Side, masqueraded_set};
use crate::error::{Error, Result};
use crate::kernel::nft::{
    Base, Batch, COMMENT_BYTES_MAX_IN_NFT, Comment, Expr, NewChain, NewRule, Nft, Object, Rule,
    Table,
};

/// One family's skeleton, as far as a network needs it.
pub struct Skeleton<'a> {
    pub side: Side,
    pub settings: &'a Settings,
    /// The one that it needs besides the main one.
    pub group: &'a Group,
    /// The lengths of the prefixes that are masqueraded.
    pub lengths: Vec<u8>,
}

/// A chain as it has to be. Other rules in it are other networks' or the administrator's.
struct Wanted {
    name: String,
    base: Option<Base>,
    comment: Option<Comment>,
    /// A rule that goes before all others.
    first: Option<Vec<Expr>>,
    rules: Vec<Vec<Expr>>,
}

impl Skeleton<'_> {
    fn conditions(&self) -> &Conditions {
        self.settings.conditions(self.side.family())
    }

    /// Adds what is missing.
    pub fn ensure(&self, nft: &Nft, batch: &mut Batch) -> Result<()> {
        let table = self.side.table();
        let (sets, chains) = (self.sets(), self.chains()?);
        let mut objects = vec![Object::Table(table)];
        objects.extend(sets.iter().map(|set| Object::Set(table, set)));
        objects.extend(chains.iter().map(|chain| Object::Chain(table, &chain.name)));
        let mut is_there = nft.exist(&objects)?.into_iter();
        if !is_there.next().unwrap_or_default() {
            batch.add_table(table, None);
        }
        for set in &sets {
            if !is_there.next().unwrap_or_default() {
                self.side.with_set(set, |set| batch.add_set(table, set).is_empty());
            }
        }
        for chain in &chains {
            let mut present = Vec::new();
            if is_there.next().unwrap_or_default() {
                present = nft.rules_of(table, &chain.name)?;
            } else {
                let (name, comment) = (chain.name.as_str(), chain.comment.as_ref());
                batch.add_chain(table, NewChain { name, base: chain.base, comment });
            }
            chain.ensure_rules(table, &present, batch);
        }
        Ok(())
    }

    /// Fails if anything is missing.
    pub fn check(&self, nft: &Nft) -> Result<()> {
        let table = self.side.table();
        let sets = self.sets();
        let objects: Vec<Object<'_>> = sets.iter().map(|set| Object::Set(table, set)).collect();
        if let Some((set, _)) = sets.iter().zip(nft.exist(&objects)?).find(|(_, there)| !there) {
            return Err(Error::internal(format!("set {set} not found in table {table}")));
        }
        let present = nft.chains(table)?;
        for chain in self.chains()? {
            let name = &chain.name;
            let found = present.iter().find(|found| found.name == *name);
            if found.is_none_or(|found| found.base != chain.base) {
                return Err(Error::internal(format!("chain {name} not found in table {table}")));
            }
            let rules = nft.rules_of(table, name)?;
            let is_whole = chain.in_order(&rules) == chain.rules.len()
                && chain.first.iter().all(|first| rules.iter().any(|rule| rule.exprs == *first));
            if !is_whole {
                return Err(Error::internal(format!(
                    "chain {name} of table {table} lacks a rule of its own"
                )));
            }
        }
        Ok(())
    }

    fn sets(&self) -> Vec<String> {
        let mut groups = vec![Group::main()];
        groups.extend(Some(self.group.clone()).filter(|group| !group.is_main()));
        let mut sets = vec![ruleset::OWNERS.to_owned()];
        sets.extend(groups.iter().flat_map(Group::sets));
        sets.extend(self.lengths.iter().map(|length| masqueraded_set(*length)));
        sets
    }

    /// Where a jump leads to comes before where it starts.
    fn chains(&self) -> Result<Vec<Wanted>> {
        let (side, group, main) = (self.side, self.group, Group::main());
        let mut chains = vec![Wanted::regular(&main, side.published(&main, &Conditions::none()))];
        if !group.is_main() {
            // Before those without conditions, who would leave nothing over.
            chains[0].first = Some(side.to_group(group));
            let conditions = self.conditions();
            let mut chain = Wanted::regular(group, side.published(group, conditions));
            if !conditions.are_none() {
                chain.comment = Some(Comment::new(shortened(conditions.text()))?);
            }
            chains.insert(0, chain);
        }
        let to_this_host = vec![side.to_this_host()];
        let base = ruleset::DSTNAT_PREROUTING;
        chains.push(Wanted::base(ruleset::PREROUTING, base, to_this_host.clone()));
        chains.push(Wanted::base(ruleset::OUTPUT, ruleset::DSTNAT_OUTPUT, to_this_host));
        if self.settings.source != Source::Kept {
            let rules = self.lengths.iter().map(|length| side.masqueraded(*length)).collect();
            chains.push(Wanted::base(ruleset::POSTROUTING, ruleset::SRCNAT, rules));
            if side.has(ruleset::loopback().addr()) {
                let rules = vec![side.not_from_outside()];
                chains.push(Wanted::base(ruleset::LOOPBACK, ruleset::RAW, rules));
            }
        }
        Ok(chains)
    }
}

impl Wanted {
    fn base(name: &str, base: Base, rules: Vec<Vec<Expr>>) -> Self {
        Self { name: name.into(), base: Some(base), comment: None, first: None, rules }
    }

    fn regular(group: &Group, rules: Vec<Vec<Expr>>) -> Self {
        Self { name: group.chain(), base: None, comment: None, first: None, rules }
    }

    fn ensure_rules(&self, table: Table<'_>, present: &[Rule], batch: &mut Batch) {
        let has = |exprs: &[Expr]| present.iter().find(|rule| rule.exprs == *exprs);
        if let Some(first) = self.first.as_ref().filter(|first| has(first).is_none()) {
            batch.add_rule(table, NewRule::first(&self.name).with(first.iter().cloned()));
        }
        // Rules that are independent of one another are none the worse for being added again at the end.
        for rule in &self.rules[self.in_order(present)..] {
            if let Some(misplaced) = has(rule) {
                batch.delete_rule(table, &self.name, misplaced.handle);
            }
            batch.add_rule(table, NewRule::last(&self.name).with(rule.iter().cloned()));
        }
    }

    /// How many of the rules are there, one after the other.
    fn in_order(&self, present: &[Rule]) -> usize {
        let mut present = present.iter();
        let is_next = |rule: &&Vec<Expr>| present.any(|found| found.exprs == **rule);
        self.rules.iter().take_while(is_next).count()
    }
}

/// What nft can read back, too.
fn shortened(text: &str) -> String {
    let mut end = text.len().min(COMMENT_BYTES_MAX_IN_NFT - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
