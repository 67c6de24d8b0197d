//! Evaluates the rules of a table for a packet. A rule with an unknown expression, or with a condition on an unknown part of
//! the packet, has several possible effects, and the evaluation follows each.

use std::collections::BTreeMap;

use nix::libc;

use super::chain::{Chain, Policy};
use super::consts::{NFT_TABLE_F_DORMANT, NFT_TABLE_F_OWNER, NFTA_TABLE_FLAGS};
use super::contents::Contents;
use super::expr::{Expr, Verdict, XtExtension};
use super::meaning::{
    self, Action, Bits, Constraint, Origin, Step, SymbolicByte, is_without_effect,
};
use super::packet::{Byte, Fit, Packet, at_least, at_most, equal};
use super::rule::{NewRule, Position, Rule};
use super::wire::{attribute, be32_of};
use super::xt::{self, XtEffect};
use super::{Nft, Table};
use crate::error::Result;

/// The chains and sets of a table.
#[derive(Clone, Debug, Default)]
pub struct Program {
    chains: BTreeMap<String, Vec<Rule>>,
    sets: BTreeMap<String, Contents>,
}

/// The handle of a rule that `Program::add` added. The handles of the kernel begin with 1.
pub const NOT_IN_KERNEL: u64 = 0;

/// The result of a base chain for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    Dropped(DroppedBy),
    /// Some of the packets can be dropped. The doubt is the first rule with an unknown effect; if there is none, the rule that
    /// drops.
    Unknown(Doubt),
}

/// The rule, or the policy of a chain, that drops a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedBy {
    pub location: RuleLocation,
    /// The rule of the base chain that is, or leads to, the rule at `location`. If the policy drops: the first rule that
    /// returns, or else the policy.
    pub from: RuleLocation,
}

/// A rule with an unknown effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    pub location: RuleLocation,
    /// The name of the field or of the expression that is unknown.
    pub on: String,
}

/// The place of a rule: its chain and its handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLocation {
    pub chain: String,
    /// The handle of the rule; `None` for the policy of the chain.
    pub rule: Option<u64>,
}

/// Flags of a table that concern other programs than its owner.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableFlags {
    /// The chains of the table get no packets.
    pub is_dormant: bool,
    /// Only the process that made the table can change it.
    pub has_owner: bool,
}

impl Nft {
    /// The flags of a table; all are false if it is missing.
    pub fn table_flags(&self, table: Table<'_>) -> Result<TableFlags> {
        let doing = format!("cannot read table {table}");
        let read = |list: &[u8]| attribute(list, NFTA_TABLE_FLAGS).and_then(be32_of);
        let found = self.list(table, libc::NFT_MSG_GETTABLE, doing, |_| {}, read)?;
        let flags = found.first().copied().unwrap_or_default();
        Ok(TableFlags {
            is_dormant: flags & NFT_TABLE_F_DORMANT != 0,
            has_owner: flags & NFT_TABLE_F_OWNER != 0,
        })
    }

    /// All rules of a table with these chains, and the sets that they use.
    pub fn program(&self, table: Table<'_>, chains: &[&Chain]) -> Result<Program> {
        let names = chains.iter().map(|chain| (chain.name.clone(), Vec::new()));
        let mut program = Program { chains: names.collect(), sets: BTreeMap::new() };
        let declared = self.sets(table)?;
        for rule in self.rules(table)? {
            for expr in &rule.exprs {
                if let Expr::Lookup { set, .. } = expr
                    && !program.sets.contains_key(set)
                    && let Some(declared) = declared.iter().find(|declared| declared.name == *set)
                {
                    program.sets.insert(set.clone(), self.contents(table, declared.clone())?);
                }
            }
            if let Some(rules) = program.chains.get_mut(&rule.chain) {
                rules.push(rule);
            }
        }
        Ok(program)
    }
}

impl Program {
    pub(crate) fn of(chains: BTreeMap<String, Vec<Rule>>) -> Self {
        Self { chains, sets: BTreeMap::new() }
    }

    pub fn rules_of(&self, chain: &str) -> &[Rule] {
        self.chains.get(chain).map_or(&[], Vec::as_slice)
    }

    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.chains.values().flatten()
    }

    pub fn chain_names(&self) -> impl Iterator<Item = &str> {
        self.chains.keys().map(String::as_str)
    }

    pub fn rules_mut(&mut self) -> impl Iterator<Item = &mut Rule> {
        self.chains.values_mut().flatten()
    }

    /// Adds a rule that the kernel does not have, with the handle 0, and its chain if it is missing.
    pub fn add(&mut self, rule: NewRule<'_>) {
        let rules = self.add_chain(rule.chain);
        let at = if rule.position == Position::First { 0 } else { rules.len() };
        let (chain, handle) = (rule.chain.into(), NOT_IN_KERNEL);
        rules.insert(at, Rule { chain, handle, comment: rule.comment.cloned(), exprs: rule.exprs });
    }

    /// Adds a chain if it is missing. Returns its rules.
    pub fn add_chain(&mut self, chain: &str) -> &mut Vec<Rule> {
        self.chains.entry(chain.into()).or_default()
    }

    /// Evaluates a base chain for a packet.
    pub fn evaluate(&self, chain: &str, policy: Policy, packet: &Packet) -> Outcome {
        let (machine, results) = (Machine { program: self, packet }, BTreeMap::new());
        let mut evaluation = Evaluation { machine, results, depth: 0 };
        let mut results = evaluation.chain(chain);
        if results.continues {
            let location = RuleLocation { chain: chain.into(), rule: None };
            match policy {
                Policy::Accept => results.accepts = true,
                Policy::Drop => {
                    // A rule at the end of the chain would not get packets that return before it.
                    let from = results.first_return.clone().unwrap_or_else(|| location.clone());
                    results.drop = Some(DroppedBy { location, from });
                }
            }
        }
        match (results.drop, results.accepts) {
            (None, _) => Outcome::Accepted,
            (Some(drop), false) => Outcome::Dropped(drop),
            (Some(drop), true) => {
                let at_drop = || Doubt { location: drop.location.clone(), on: String::new() };
                Outcome::Unknown(results.doubt.unwrap_or_else(at_drop))
            }
        }
    }
}

/// The possible results of a chain for a packet.
#[derive(Clone, Debug, Default)]
struct ChainResults {
    accepts: bool,
    /// The last rule that drops packets: it drops those that the other rules pass on.
    drop: Option<DroppedBy>,
    /// The packet can reach the end of the chain, or return from the chain.
    continues: bool,
    /// The first rule that returns, or goes to a chain that returns.
    first_return: Option<RuleLocation>,
    doubt: Option<Doubt>,
}

/// The evaluation of a base chain, with the chains that it leads to.
struct Evaluation<'a> {
    machine: Machine<'a>,
    /// The results of the chains that were evaluated.
    results: BTreeMap<String, ChainResults>,
    depth: u32,
}

/// The possible effects of a rule.
struct Effects {
    /// `None`: an unknown verdict.
    verdicts: Vec<Option<Verdict>>,
    /// The expression with an unknown result.
    doubt: Option<String>,
}

impl Evaluation<'_> {
    /// The results of a chain. Each chain is evaluated only once.
    fn chain(&mut self, name: &str) -> ChainResults {
        if let Some(known) = self.results.get(name) {
            return known.clone();
        }
        if !self.machine.program.chains.contains_key(name) || self.depth == DEPTH_MAX {
            // Another program changed the rules while they were read.
            let location = RuleLocation { chain: name.into(), rule: None };
            let doubt = Some(Doubt { location: location.clone(), on: "jump".into() });
            let drop = Some(DroppedBy { location: location.clone(), from: location });
            return ChainResults {
                accepts: true,
                drop,
                continues: true,
                first_return: None,
                doubt,
            };
        }
        self.depth += 1;
        let results = self.rules(name);
        self.depth -= 1;
        self.results.insert(name.into(), results.clone());
        results
    }

    fn rules(&mut self, chain: &str) -> ChainResults {
        let (mut results, program) = (ChainResults::default(), self.machine.program);
        for rule in program.rules_of(chain) {
            let location = RuleLocation { chain: chain.into(), rule: Some(rule.handle) };
            let step = self.machine.effects(rule);
            if let (None, Some(on)) = (&results.doubt, step.doubt) {
                results.doubt = Some(Doubt { location: location.clone(), on });
            }
            let mut goes_on = false;
            for verdict in step.verdicts {
                let drop = Some(DroppedBy { location: location.clone(), from: location.clone() });
                match verdict {
                    Some(Verdict::Accept) => results.accepts = true,
                    Some(Verdict::Drop) => results.drop = drop,
                    Some(Verdict::Return) => {
                        results.continues = true;
                        results.first_return.get_or_insert_with(|| location.clone());
                    }
                    Some(Verdict::Continue) => goes_on = true,
                    Some(Verdict::Jump(to)) => goes_on |= self.enter(&mut results, &to, &location),
                    Some(Verdict::Goto(to)) => {
                        if self.enter(&mut results, &to, &location) {
                            results.continues = true;
                            results.first_return.get_or_insert_with(|| location.clone());
                        }
                    }
                    None => {
                        results.accepts = true;
                        results.drop = drop;
                    }
                }
            }
            if !goes_on {
                return results;
            }
        }
        ChainResults { continues: true, ..results }
    }

    /// Adds the results of `chain`, to which the rule at `from` leads. Returns whether the packet can come back from that
    /// chain.
    fn enter(&mut self, results: &mut ChainResults, chain: &str, from: &RuleLocation) -> bool {
        let entered = self.chain(chain);
        results.accepts |= entered.accepts;
        if let Some(DroppedBy { location, .. }) = entered.drop {
            results.drop = Some(DroppedBy { location, from: from.clone() });
        }
        if results.doubt.is_none() {
            results.doubt = entered.doubt;
        }
        entered.continues
    }
}

/// The greatest depth of jumps that is evaluated: more than the kernel allows (NFT_JUMP_STACK_SIZE).
const DEPTH_MAX: u32 = 64;

/// Evaluates the conditions and actions of a rule for a packet.
struct Machine<'a> {
    program: &'a Program,
    packet: &'a Packet,
}

impl Machine<'_> {
    /// The possible effects of a rule.
    fn effects(&self, rule: &Rule) -> Effects {
        let (mut fit, mut doubt) = (Fit::Yes, None);
        let mut verdicts = Vec::new();
        for (step, name) in meaning::steps(&rule.exprs) {
            let (of_step, found) = match step {
                Step::Require(condition) => (self.fit(&condition), Vec::new()),
                Step::Act(action) => self.effect(&action),
            };
            if of_step == Fit::Maybe || found.len() > 1 || found.contains(&None) {
                doubt.get_or_insert_with(|| name.to_owned());
            }
            fit = fit.and(of_step);
            verdicts = found;
            if fit == Fit::No || !verdicts.is_empty() {
                break;
            }
        }
        // A rule without a verdict has no effect, whether it matches or not.
        if fit == Fit::No || verdicts.is_empty() {
            return Effects { verdicts: vec![Some(Verdict::Continue)], doubt: None };
        }
        if fit == Fit::Maybe {
            verdicts.push(Some(Verdict::Continue));
        }
        Effects { verdicts, doubt }
    }

    fn fit(&self, condition: &Constraint) -> Fit {
        match condition {
            Constraint::Is(bits) => self.has(bits),
            Constraint::IsNot(all) => {
                all.iter().fold(Fit::Yes, |fit, bits| fit.and(self.has(bits))).not()
            }
            Constraint::AtLeast(bytes, value) => at_least(&self.bytes(bytes), value),
            Constraint::AtMost(bytes, value) => at_most(&self.bytes(bytes), value),
            Constraint::Outside(bytes, first, last) => {
                let bytes = self.bytes(bytes);
                at_least(&bytes, first).and(at_most(&bytes, last)).not()
            }
            Constraint::In(key, set) => self.look_up(key, set).0,
            Constraint::NotIn(key, set) => self.look_up(key, set).0.not(),
            Constraint::Never => Fit::No,
        }
    }

    /// Whether the packet passes the action, and its possible verdicts. Without a verdict the rule continues.
    fn effect(&self, action: &Action) -> (Fit, Vec<Option<Verdict>>) {
        let verdict = |verdict| (Fit::Yes, vec![verdict]);
        let passes = |fit| (fit, Vec::new());
        match action {
            Action::VerdictMap(key, map) => self.look_up(key, map),
            Action::SetMark(_) => passes(Fit::Yes),
            Action::Other(Expr::Verdict(found)) => verdict(Some(found.clone())),
            Action::Other(Expr::Reject { .. }) => verdict(Some(Verdict::Drop)),
            Action::Other(Expr::XtMatch(XtExtension { name, revision, info })) => {
                passes(xt::fit(name, *revision, info, self.packet))
            }
            Action::Other(Expr::XtTarget(extension)) => match xt::effect(&extension.name) {
                XtEffect::GoesOn => passes(Fit::Yes),
                XtEffect::Drops => verdict(Some(Verdict::Drop)),
                XtEffect::Unknown => verdict(None),
            },
            Action::Other(Expr::Other(name)) => match name.as_str() {
                name if is_without_effect(name) => passes(Fit::Yes),
                "immediate" | "queue" | "synproxy" | "tproxy" | "fwd" => verdict(None),
                // The expression can end the rule.
                _ => passes(Fit::Maybe),
            },
            // The kernel accepts these expressions, and `masquerade`, in chains of the type nat only.
            Action::Nat(..) | Action::Redirect(_) | Action::Other(_) => verdict(None),
        }
    }

    /// Whether a set or map has the key, and the verdicts that it can have for the key.
    fn look_up(&self, key: &[SymbolicByte], set: &str) -> (Fit, Vec<Option<Verdict>>) {
        let Some(contents) = self.program.sets.get(set) else { return (Fit::Maybe, Vec::new()) };
        let mut key = self.bytes(key);
        key.resize(contents.key_bytes(), Byte::UNKNOWN);
        let (any, matches) = contents.matches(&key);
        let mut verdicts: Vec<_> = matches.into_iter().map(Option::<&Verdict>::cloned).collect();
        verdicts.dedup();
        (any, verdicts)
    }

    fn has(&self, bits: &Bits) -> Fit {
        equal(&[self.byte(&bits.origin).masked(bits.mask, 0)], &[bits.value])
    }

    fn bytes(&self, bytes: &[SymbolicByte]) -> Vec<Byte> {
        bytes.iter().map(|byte| self.byte(&byte.origin).masked(byte.mask, byte.xor)).collect()
    }

    fn byte(&self, origin: &Origin) -> Byte {
        match origin {
            Origin::Field(source, at) => {
                self.packet.load(*source, at + 1).pop().unwrap_or(Byte::UNKNOWN)
            }
            Origin::Unknown | Origin::Map(..) => Byte::UNKNOWN,
        }
    }
}
