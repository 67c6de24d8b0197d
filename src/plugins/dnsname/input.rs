//! The rules in the chain INPUT of iptables-nft: where the host drops packets to itself, they accept the queries of the containers.
//!
//! ```nft
//! table ip filter {
//!     chain INPUT {
//!         ip saddr 10.71.0.0/24 ip daddr 10.71.0.1 udp dport 53 accept comment "cnibox: names of network dbnet"
//!         ip saddr 10.71.0.0/24 ip daddr 10.71.0.1 tcp dport 53 accept comment "cnibox: names of network dbnet"
//!     }
//! }
//! ```
//!
//! Only a rule of the table that drops a packet can accept it. Without the chain nothing is made. The rules are made from the names of
//! each network, as the files of the engine are, and the last name takes them away. `iptables-save` prints them, and `iptables-restore`
//! restores them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::engine::{PORT, SERVED};
use super::named::{Named, Network};
use crate::attachments::owner::shortened;
use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::nft::{
    Comment, Condition, Expr, Feature, NewRule, Nft, Object, Rule, Table, Transport, Verdict,
    xt_dport,
};

const INPUT: &str = "INPUT";
/// The beginning of the comment of each rule. The name of the network follows.
const COMMENT: &str = "cnibox: names of network ";
/// The longest name of a network in a comment, of which nft reads 128 bytes. A longer one is replaced by its hash.
const NAME_BYTES_MAX: usize = 90;

/// The queries that one rule accepts.
struct Queries {
    from: IpNet,
    to: IpAddr,
    transport: Transport,
}

impl Queries {
    /// Those of all containers in one family.
    fn of(all: &[Named], family: IpFamily) -> Vec<Self> {
        let mut pairs = Vec::new();
        for named in all {
            for from in named.addresses.iter().map(IpNet::trunc) {
                pairs.extend(named.listen.iter().map(|to| (from, *to)));
            }
        }
        pairs.retain(|(from, to)| family.has(from.addr()) && family.has(*to));
        pairs.sort_unstable();
        pairs.dedup();
        let queries = |(from, to)| SERVED.map(|transport| Self { from, to, transport });
        pairs.into_iter().flat_map(queries).collect()
    }

    fn conditions(&self) -> [Condition; 3] {
        [
            Condition::saddr(self.from),
            Condition::daddr(self.to),
            Condition::protocol(self.transport),
        ]
    }

    /// The rule for the kernel. `has_match`: it has the matches `udp` and `tcp` of iptables. iptables before 1.8.8 prints a rule with the
    /// condition of nft as one for every port.
    fn rule(&self, has_match: bool) -> NewRule<'static> {
        let conditions = self.conditions().into_iter().flatten();
        let rule = NewRule::first(INPUT).with(conditions);
        let rule = match has_match {
            true => rule.then(xt_dport(self.transport, PORT)),
            false => rule.with(Condition::dport(PORT)),
        };
        rule.then(Verdict::Accept)
    }

    fn are_accepted_by(&self, rule: &Rule) -> bool {
        let (mut found, port) = (rule.conditions(), Condition::dport(PORT));
        let has_match = rule.exprs.contains(&xt_dport(self.transport, PORT));
        let has_condition = found.contains(&port);
        found.retain(|condition| *condition != port);
        let wanted = self.conditions();
        (has_match || has_condition)
            && found.len() == wanted.len()
            && wanted.iter().all(|condition| found.contains(condition))
            && rule.exprs.contains(&Expr::Verdict(Verdict::Accept))
    }

    /// The rule in the words of nft.
    #[cfg(feature = "tool")]
    fn text(&self, family: IpFamily) -> String {
        let Self { from, to, transport } = self;
        let (ip, transport) = (if family == IpFamily::V4 { "ip" } else { "ip6" }, transport.name());
        format!("{ip} saddr {from} {ip} daddr {to} {transport} dport {PORT} accept")
    }
}

fn table(family: IpFamily) -> Table<'static> {
    Table { family: family.into(), name: "filter" }
}

fn comment(network: &str) -> Result<Comment> {
    Comment::new(format!("{COMMENT}{}", shortened(network, NAME_BYTES_MAX)))
}

/// The rules of all networks in the chain. `None` if there is no such chain.
fn present(nft: &Nft, family: IpFamily) -> Result<Option<Vec<Rule>>> {
    if nft.exist(&[Object::Chain(table(family), INPUT)])? != [true] {
        return Ok(None);
    }
    let mut rules = nft.rules_of(table(family), INPUT)?;
    rules.retain(|rule| rule.comment.as_deref().is_some_and(|text| text.starts_with(COMMENT)));
    Ok(Some(rules))
}

/// Adds the missing rules of these networks for what is served, and removes others of them. `are_all`: no other network has names.
pub(super) fn put(nft: &Nft, networks: &[Network], are_all: bool) -> Result<()> {
    nft.transact(|nft, batch| {
        for family in IpFamily::ALL {
            let Some(mut left) = present(nft, family)? else { continue };
            let mut comments = Vec::new();
            for network in networks {
                let comment = comment(&network.key)?;
                let mut all = Queries::of(&network.names, family);
                all.retain(|queries| network.served.contains(&queries.to));
                for queries in all {
                    let is_present = |rule: &Rule| {
                        rule.comment.as_ref() == Some(&comment) && queries.are_accepted_by(rule)
                    };
                    if let Some(at) = left.iter().position(is_present) {
                        left.swap_remove(at);
                        continue;
                    }
                    let needed = (family.into(), Feature::XtPorts);
                    let has_match = nft.missing(&[needed])?.is_empty();
                    batch.add_rule(table(family), queries.rule(has_match).comment(&comment));
                }
                comments.push(Some(comment));
            }
            for rule in left.iter().filter(|rule| are_all || comments.contains(&rule.comment)) {
                batch.delete_rule(table(family), INPUT, rule.handle);
            }
        }
        Ok(())
    })
}

/// Fails if the chain is there and lacks a rule for an attachment.
pub(super) fn check(nft: &Nft, network: &str, named: &Named) -> Result<()> {
    let comment = comment(network)?;
    for family in IpFamily::ALL {
        let Some(mut rules) = present(nft, family)? else { continue };
        rules.retain(|rule| rule.comment.as_ref() == Some(&comment));
        for queries in Queries::of(std::slice::from_ref(named), family) {
            if !rules.iter().any(|rule| queries.are_accepted_by(rule)) {
                let (to, table) = (queries.to, table(family));
                let title = format!("the rule of {INPUT} that accepts queries to {to}");
                let msg = format!("{title} is missing in table {table}");
                let object = format!("{title} of table {table}");
                return Err(Error::difference(msg).of_shared(object));
            }
        }
    }
    Ok(())
}

/// The rules of an attachment, in the words of nft, each behind the chain in which it is made.
#[cfg(feature = "tool")]
pub(super) fn texts(named: &Named) -> Vec<(String, String)> {
    let of_family = |family: IpFamily| {
        let chain = format!("{} {INPUT}", table(family));
        let all = Queries::of(std::slice::from_ref(named), family).into_iter();
        all.map(move |queries| (chain.clone(), queries.text(family)))
    };
    IpFamily::ALL.into_iter().flat_map(of_family).collect()
}
