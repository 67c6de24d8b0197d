//! The bit of the packet mark with which the table `cnibox` tells CNI-FORWARD which packets it accepts. iptables saves and
//! restores a rule with a mark, but no rule with a set or a map. `ruleset` documents the chains.
//!
//! The first rule of `firewall-mark` clears the bit of every packet, so a bit that another program set accepts nothing.
//! `firewall-unmark` clears it after the chains of iptables.

use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::nft::{
    Base, Condition, CtState, Expr, Field, Hook, Nft, Rule, Table, Verdict, change_mark, in_set,
    xt_mark,
};
use crate::rules::shared_rules::{self, Chain};
use crate::rules::targets;

/// The number of the bit without `markAcceptBit`. `portmap` uses 13, kube-proxy 14 and 15, Calico and Tailscale 16 and more.
const BIT: i64 = 12;

/// The set of the addresses of all containers.
pub(super) const ADDRESSES: &str = "firewall-addresses";
/// The set of the addresses whose published ports are accepted.
pub(super) const PUBLISHED: &str = "firewall-published";

const MARK: &str = "firewall-mark";
const UNMARK: &str = "firewall-unmark";
/// The beginning of the names of the chains of this plugin in the tables `cnibox`.
const OWN_CHAIN: &str = "firewall-";
/// The priorities of the two chains: before and after `filter` (0), which FORWARD of iptables has.
const PRIORITY_MARK: i32 = -10;
const PRIORITY_UNMARK: i32 = 10;

pub(super) const ANSWER: CtState = CtState::ESTABLISHED.or(CtState::RELATED);

/// The packets that get the bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The number of the bit, 0 to 31.
    pub(super) bit: u8,
    /// Also packets to published ports of the addresses in `firewall-published`.
    pub(super) accepts_published: bool,
}

impl Mark {
    pub(super) fn parse(bit: Option<i64>, accepts_published: bool) -> Result<Self> {
        let bit = bit.unwrap_or(BIT);
        let bit = u8::try_from(bit).ok().filter(|bit| *bit < 32).ok_or_else(|| {
            Error::config(format_args!("markAcceptBit must be between 0 and 31: it is {bit}"))
        })?;
        Ok(Self { bit, accepts_published })
    }

    fn value(self) -> u32 {
        1 << self.bit
    }

    /// The chains that set and clear the bit.
    pub(super) fn chains(self, family: IpFamily) -> [Chain; 2] {
        let [saddr, daddr] = Field::addresses(family);
        let clear: Vec<Expr> = change_mark(!self.value(), 0).into();
        let set = |conditions: Vec<Expr>| {
            conditions.into_iter().chain(change_mark(!self.value(), self.value())).collect()
        };
        let answers = Condition::ct_state(ANSWER).into_iter();
        let mut rules = vec![
            clear.clone(),
            set(answers.chain(in_set(&[daddr], ADDRESSES)).collect()),
            set(in_set(&[saddr], ADDRESSES)),
        ];
        if self.accepts_published {
            let published = Condition::ct_status_dnat().into_iter();
            let published = published.chain(in_set(&[daddr], PUBLISHED));
            let target = in_set(&[daddr, Field::Protocol, Field::Dport], targets::SET);
            rules.push(set(published.chain(target).collect()));
        }
        [
            Chain::base(MARK, Base::filter(Hook::Forward, PRIORITY_MARK), rules),
            Chain::base(UNMARK, Base::filter(Hook::Forward, PRIORITY_UNMARK), vec![clear]),
        ]
    }

    /// The condition of the rule in CNI-FORWARD. `has_match`: the kernel has the match `mark` of iptables. iptables before 1.8.8
    /// prints the rule without that match as one that accepts every packet.
    pub(super) fn condition(self, has_match: bool) -> Vec<Expr> {
        if has_match {
            vec![xt_mark(self.value())]
        } else {
            Condition::mark(self.value(), self.value()).into_masked().into()
        }
    }

    /// Whether the rule accepts all packets with the bit. iptables 1.8.8 and later restores the match as an expression of nft.
    pub(super) fn is_accepted_by(self, rule: &Rule) -> bool {
        let has_effect = |expr: &&Expr| match expr {
            Expr::XtMatch(extension) => extension.name != "comment",
            Expr::Counter => false,
            _ => true,
        };
        let plain: Vec<Expr> = rule.exprs.iter().filter(has_effect).cloned().collect();
        [true, false].iter().any(|has_match| {
            let mut accepts = self.condition(*has_match);
            accepts.push(Verdict::Accept.into());
            plain == accepts
        })
    }

    /// Fails if a rule of another program, or of another plugin, uses the bit. `is_own` says which rules of FORWARD and
    /// CNI-FORWARD are of this plugin.
    pub(super) fn check_unused(self, nft: &Nft, is_own: &dyn Fn(&Rule) -> bool) -> Result<()> {
        for (family, name) in nft.tables()? {
            let table = Table { family, name: &name };
            let is_own_table = name == shared_rules::TABLE;
            for rule in nft.rules(table)? {
                let is_own = is_own_table && rule.chain.starts_with(OWN_CHAIN) || is_own(&rule);
                if rule.uses_mark(self.value()) && !is_own {
                    let (bit, chain) = (self.bit, &rule.chain);
                    return Err(Error::config(format_args!(
                        "markAcceptBit: a rule of chain {chain} of table {table} uses bit {bit} of the packet mark"
                    ))
                    .with_details("set markAcceptBit to a bit that no other program uses"));
                }
            }
        }
        Ok(())
    }
}
