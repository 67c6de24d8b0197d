//! Finds chains of hook forward that drop packets of containers: chains of the nf_tables families inet, ip and ip6, which
//! nftables, iptables-nft, firewalld, ufw and Docker use, and FORWARD of iptables-legacy, which the kernel evaluates in
//! addition.
//!
//! Each chain is evaluated for each packet of `packets`, together with the rules that ADD of the plugin `firewall` would add. A
//! packet that is certainly dropped is a fault. If the effect of a rule is unknown, the finding is a note without a command.
//! The tables of cnibox are not evaluated: they drop packets only as configured.

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{
    Chain, ChainKind, Doubt, DroppedBy, Family, Hook, Nft, Outcome, Packet, Policy, Program,
    RuleLocation, Table,
};
use crate::netlink::xtables;

use super::finding::{Findings, Harm};
use super::fixes::{self, DroppingChain, fix, manager_of};
use super::host::{ConfiguredNetwork, Host};
use super::packets::{Flow, Forwarded, TrafficKind, Uplinks, flows, with_foreign_address};
use crate::cli::output::NAME;
use crate::plugins::firewall::passage::{self, End};

pub(super) fn drops(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let uplinks = Uplinks::find(host)?;
    if let Some(nft) = Nft::open_if_supported()? {
        for family in [Family::Inet, Family::Ip, Family::Ip6] {
            let chains = nft.all_chains(family)?;
            for (index, (name, _)) in chains.iter().enumerate() {
                let is_new = !chains[..index].iter().any(|(other, _)| other == name);
                let table = Table { family, name };
                if is_new && name != NAME {
                    let of_table = chains.iter().filter(|(other, _)| other == name);
                    let of_table: Vec<&Chain> = of_table.map(|(_, chain)| chain).collect();
                    check_table(host, &uplinks, &nft, table, &of_table, found)?;
                }
            }
        }
    }
    for (family, program) in [(IpFamily::V4, "iptables-legacy"), (IpFamily::V6, "ip6tables-legacy")]
    {
        let Some(forward) = xtables::forward(family == IpFamily::V6) else { continue };
        let base = BaseChain {
            what: format!("FORWARD of {program}"),
            table: None,
            policy: forward.policy,
            families: &[family],
            target: DroppingChain {
                manager: fixes::Manager::Iptables(program),
                chain: "FORWARD",
                program: &forward.program,
            },
        };
        base.check_networks(host, &uplinks, found)?;
    }
    let mut unknown = host.networks.iter().filter_map(|net| net.passage.as_ref().err());
    unknown.next().map_or(Ok(()), |error| Err(error.clone()))
}

/// Checks the chains of a table that see forwarded packets.
fn check_table(
    host: &Host<'_>,
    uplinks: &Uplinks,
    nft: &Nft,
    table: Table<'_>,
    chains: &[&Chain],
    found: &mut Findings,
) -> Result<()> {
    let policy = |chain: &&Chain| {
        let base = chain.base?;
        let is_forward = base.hook == Hook::Forward && base.kind == ChainKind::Filter;
        is_forward.then_some(base.policy)
    };
    let bases = chains.iter().filter_map(|chain| Some((chain.name.as_str(), policy(chain)?)));
    let mut bases: Vec<(&str, Policy)> = bases.collect();
    bases.extend(passage::chain_of_add(table, chains).map(|chain| (chain, Policy::Accept)));
    if bases.is_empty() {
        return Ok(());
    }
    let flags = nft.table_flags(table)?;
    if flags.is_dormant {
        return Ok(());
    }
    let program = nft.program(table, chains)?;
    for (chain, policy) in bases {
        let manager = manager_of(table, chain, flags.has_owner, &program);
        let base = BaseChain {
            what: format!("chain {chain} of table {table}"),
            table: Some(table),
            policy,
            families: families(table),
            target: DroppingChain { manager, chain, program: &program },
        };
        base.check_networks(host, uplinks, found)?;
    }
    Ok(())
}

fn families(table: Table<'_>) -> &'static [IpFamily] {
    match table.family {
        Family::Ip => &[IpFamily::V4],
        Family::Ip6 => &[IpFamily::V6],
        _ => &IpFamily::ALL,
    }
}

/// The rules of a table after an ADD in a network, as packets of its containers pass them.
struct RulesAfterAdd {
    /// The rules that packets from the containers pass.
    from: Program,
    /// The rules that packets to the containers pass.
    to: Program,
}

impl RulesAfterAdd {
    fn of_end(&self, end: End) -> &Program {
        match end {
            End::Source => &self.from,
            End::Destination => &self.to,
        }
    }
}

/// A base chain to check.
struct BaseChain<'a> {
    /// The chain in messages.
    what: String,
    /// `None` for the table of iptables-legacy.
    table: Option<Table<'a>>,
    policy: Policy,
    families: &'a [IpFamily],
    target: DroppingChain<'a>,
}

/// The results of one chain for one network.
#[derive(Default)]
struct Results {
    dropped: Vec<(TrafficKind, DroppedBy)>,
    doubt: Option<(TrafficKind, Doubt)>,
    families: Vec<IpFamily>,
}

impl BaseChain<'_> {
    fn check_networks(
        &self,
        host: &Host<'_>,
        uplinks: &Uplinks,
        found: &mut Findings,
    ) -> Result<()> {
        for net in host.networks.iter().filter(|net| net.passage.is_ok()) {
            let passed = |end| passage::passed(self.target.program, self.table, net.passage(), end);
            let rules = RulesAfterAdd { from: passed(End::Source)?, to: passed(End::Destination)? };
            let mut results = Results::default();
            for family in self.families.iter().copied() {
                for flow in flows(net, family, uplinks) {
                    self.check_flow(&flow, &rules, family, &mut results);
                }
            }
            self.report(net, &results, uplinks, found);
        }
        Ok(())
    }

    /// Evaluates the chain for a packet. If the result depends on the address of the other end, and all addresses outside of
    /// the container's subnet have the same kind of result, returns that result.
    fn outcome(&self, forwarded: &Forwarded, rules: &RulesAfterAdd) -> Outcome {
        let (packet, program) = (&forwarded.packet, rules.of_end(forwarded.container));
        let evaluate = |packet: &Packet| program.evaluate(self.target.chain, self.policy, packet);
        let outcome = evaluate(packet);
        if !matches!(outcome, Outcome::Unknown(_)) {
            return outcome;
        }
        let mut parts: Vec<Outcome> = with_foreign_address(packet).iter().map(evaluate).collect();
        let kind = std::mem::discriminant;
        match parts.pop() {
            Some(last) if parts.iter().all(|outcome| kind(outcome) == kind(&last)) => last,
            _ => outcome,
        }
    }

    /// Evaluates the packets of a flow. The flow is dropped if a packet is dropped on every path.
    fn check_flow(
        &self,
        flow: &Flow,
        rules: &RulesAfterAdd,
        family: IpFamily,
        results: &mut Results,
    ) {
        let (mut drop, mut doubt, mut are_all_dropped) = (None, None, true);
        for path in &flow.paths {
            let mut is_dropped = false;
            for packet in path {
                match self.outcome(packet, rules) {
                    Outcome::Accepted => {}
                    Outcome::Dropped(by) => {
                        is_dropped = true;
                        drop.get_or_insert(by);
                    }
                    Outcome::Unknown(reason) => {
                        doubt.get_or_insert(reason);
                    }
                }
            }
            are_all_dropped &= is_dropped;
        }
        let traffic = flow.traffic;
        match drop {
            Some(by) if are_all_dropped => {
                if !results.dropped.iter().any(|(other, _)| *other == traffic) {
                    results.dropped.push((traffic, by));
                }
                if !results.families.contains(&family) {
                    results.families.push(family);
                }
            }
            drop => {
                let on_path = |by: DroppedBy| Doubt { location: by.location, on: "oifname".into() };
                let doubt = drop.map(on_path).or(doubt).map(|doubt| (traffic, doubt));
                results.doubt = results.doubt.take().or(doubt);
            }
        }
    }

    fn report(
        &self,
        net: &ConfiguredNetwork,
        results: &Results,
        uplinks: &Uplinks,
        found: &mut Findings,
    ) {
        let name = &net.network.name;
        if let Some((_, by)) = results.dropped.first() {
            let kinds: Vec<&str> =
                results.dropped.iter().map(|(traffic, _)| traffic.text()).collect();
            let location = |by| fixes::location_of_accept(by, net.passage());
            let to_accept: Vec<_> =
                results.dropped.iter().map(|(traffic, by)| (*traffic, location(by))).collect();
            let links = results.families.iter().flat_map(|family| uplinks.of(*family));
            let mut links: Vec<_> = links.collect();
            links.dedup_by_key(|link| link.index);
            let fix = fix(&self.target, &to_accept, net, &results.families, &links);
            let what = format_args!(
                "{} drops the packets of {name} ({}): {}",
                self.what,
                kinds.join(", "),
                self.rule_title(&by.location)
            );
            found.add(Harm::Broken, what, WHY, fix);
        } else if let Some((traffic, doubt)) = &results.doubt {
            let what = format_args!(
                "cannot tell whether {} drops packets of {name} ({}): {} decides by {}",
                self.what,
                traffic.text(),
                self.rule_title(&doubt.location),
                doubt.on
            );
            found.add(Harm::Note, what, WHY_DOUBT, "");
        }
    }

    /// A rule or the policy of a chain, for messages.
    fn rule_title(&self, location: &RuleLocation) -> String {
        let number = match self.target.manager {
            fixes::Manager::Iptables(program) if program.ends_with("legacy") => "number",
            _ => "handle",
        };
        match location.rule {
            None => "its policy".into(),
            Some(rule) if location.chain == self.target.chain => {
                format!("its rule with {number} {rule}")
            }
            Some(rule) => format!("the rule with {number} {rule} of chain {}", location.chain),
        }
    }
}

const WHY: &str = "Containers do not reach other networks, or their published ports do not answer.";
const WHY_DOUBT: &str = "cnibox does not know the effect of the rule on each packet.";
