//! Chains of hook forward that drop the packets of containers: those of the families inet, ip and ip6 in nf_tables, which
//! nftables, iptables-nft, firewalld, ufw and Docker use, and FORWARD of iptables-legacy, which the kernel evaluates in addition.
//!
//! Each chain is evaluated for each packet of `packets`. A packet that is surely dropped is a fault. If the effect of a rule is
//! not known, there is a note, and no command. The tables of cnibox drop packets by configuration, so they are not evaluated.

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{
    Chain, ChainKind, Doubt, DroppedBy, Family, Hook, Nft, Outcome, Packet, Policy, Program,
    RuleLocation, Table,
};
use crate::netlink::xtables;

use super::finding::{Findings, Harm};
use super::host::{Configured, Host};
use super::mends::{self, DroppingChain, FIREWALLD, manager_of, mend};
use super::packets::{Flow, Purpose, Uplinks, flows, with_foreign_address};
use crate::cli::output::NAME;

pub(super) fn drops(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let uplinks = Uplinks::find(host)?;
    if let Some(nft) = Nft::open_if_any()?
        && nft.is_supported()?
    {
        for family in [Family::Inet, Family::Ip, Family::Ip6] {
            let chains = nft.all_chains(family)?;
            for (index, (name, _)) in chains.iter().enumerate() {
                let is_new = !chains[..index].iter().any(|(other, _)| other == name);
                let table = Table { family, name };
                if is_new && name != NAME {
                    let of_table = chains.iter().filter(|(other, _)| other == name);
                    let of_table: Vec<&Chain> = of_table.map(|(_, chain)| chain).collect();
                    in_table(host, &uplinks, &nft, table, &of_table, found)?;
                }
            }
        }
    }
    for (family, program) in [(IpFamily::V4, "iptables-legacy"), (IpFamily::V6, "ip6tables-legacy")]
    {
        let Some(forward) = xtables::forward(family == IpFamily::V6) else { continue };
        let judge = Judge {
            what: format!("FORWARD of {program}"),
            program: &forward.program,
            policy: forward.policy,
            families: &[family],
            target: DroppingChain {
                manager: mends::Manager::Iptables(program),
                chain: "FORWARD",
                rules: forward.program.rules_of("FORWARD"),
            },
            is_firewalls: false,
        };
        judge.networks(host, &uplinks, found);
    }
    Ok(())
}

/// Judges the chains of a table that see forwarded packets.
fn in_table(
    host: &Host<'_>,
    uplinks: &Uplinks,
    nft: &Nft,
    table: Table<'_>,
    chains: &[&Chain],
    found: &mut Findings,
) -> Result<()> {
    let is_forward = |base: &crate::netlink::nft::Base| {
        base.hook == Hook::Forward && base.kind == ChainKind::Filter
    };
    if !chains.iter().any(|chain| chain.base.as_ref().is_some_and(is_forward)) {
        return Ok(());
    }
    let flags = nft.table_flags(table)?;
    if flags.is_dormant {
        return Ok(());
    }
    let program = nft.program(table, chains)?;
    for chain in chains {
        let Some(base) = chain.base.filter(is_forward) else { continue };
        let rules = program.rules_of(&chain.name);
        let judge = Judge {
            what: format!("chain {} of table {table}", chain.name),
            program: &program,
            policy: base.policy,
            families: families(table),
            target: DroppingChain {
                manager: manager_of(table, &chain.name, flags.has_owner, &program),
                chain: &chain.name,
                rules,
            },
            is_firewalls: table.family != Family::Inet
                && (table.name, chain.name.as_str()) == ("filter", "FORWARD")
                || table.name == FIREWALLD,
        };
        judge.networks(host, uplinks, found);
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

/// A base chain.
struct Judge<'a> {
    what: String,
    program: &'a Program,
    policy: Policy,
    families: &'a [IpFamily],
    target: DroppingChain<'a>,
    /// The plugin firewall accepts its containers there, from the first ADD on.
    is_firewalls: bool,
}

/// The results for a network.
#[derive(Default)]
struct Results {
    dropped: Vec<(Purpose, DroppedBy)>,
    doubt: Option<(Purpose, Doubt)>,
    families: Vec<IpFamily>,
}

impl Judge<'_> {
    fn networks(&self, host: &Host<'_>, uplinks: &Uplinks, found: &mut Findings) {
        for net in &host.networks {
            let mut results = Results::default();
            for family in self.families.iter().copied() {
                for flow in flows(net, family, uplinks) {
                    let is_accepted = self.is_firewalls && net.has("firewall");
                    if !is_accepted || flow.purpose == Purpose::Published {
                        self.flow(&flow, family, &mut results);
                    }
                }
            }
            self.report(net, &results, uplinks, found);
        }
    }

    fn packet(&self, packet: &Packet) -> Outcome {
        let judge = |packet| self.program.judge(self.target.chain, self.policy, packet);
        let outcome = judge(packet);
        if !matches!(outcome, Outcome::Unknown(_)) {
            return outcome;
        }
        let mut parts: Vec<Outcome> = with_foreign_address(packet).iter().map(judge).collect();
        let kind = std::mem::discriminant;
        match parts.pop() {
            Some(last) if parts.iter().all(|outcome| kind(outcome) == kind(&last)) => last,
            _ => outcome,
        }
    }

    /// A packet is dropped if it is dropped on the way to each uplink.
    fn flow(&self, flow: &Flow, family: IpFamily, results: &mut Results) {
        let (mut drop, mut doubt, mut are_all_dropped) = (None, None, true);
        for way in &flow.ways {
            let mut is_dropped = false;
            for packet in way {
                match self.packet(packet) {
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
        let purpose = flow.purpose;
        match drop {
            Some(by) if are_all_dropped => {
                if !results.dropped.iter().any(|(other, _)| *other == purpose) {
                    results.dropped.push((purpose, by));
                }
                if !results.families.contains(&family) {
                    results.families.push(family);
                }
            }
            Some(by) => {
                let on = "oifname".into();
                results.doubt.get_or_insert((purpose, Doubt { location: by.location, on }));
            }
            None => {
                if let Some(doubt) = doubt {
                    results.doubt.get_or_insert((purpose, doubt));
                }
            }
        }
    }

    fn report(&self, net: &Configured, results: &Results, uplinks: &Uplinks, found: &mut Findings) {
        let name = &net.network.name;
        if let Some((_, by)) = results.dropped.first() {
            let purposes: Vec<&str> =
                results.dropped.iter().map(|(purpose, _)| purpose.text()).collect();
            let wanted: Vec<_> =
                results.dropped.iter().map(|(purpose, by)| (*purpose, by.from.rule)).collect();
            let links = results.families.iter().flat_map(|family| uplinks.of(*family));
            let mut links: Vec<_> = links.collect();
            links.dedup_by_key(|link| link.index);
            let mend = mend(&self.target, &wanted, net, &results.families, &links);
            let what = format_args!(
                "{} drops the packets of {name} ({}): {}",
                self.what,
                purposes.join(", "),
                self.site(&by.location)
            );
            found.add(Harm::Broken, what, WHY, format_args!("{mend}"));
        } else if let Some((purpose, doubt)) = &results.doubt {
            let what = format_args!(
                "cannot tell whether {} drops packets of {name} ({}): {} decides by {}",
                self.what,
                purpose.text(),
                self.site(&doubt.location),
                doubt.on
            );
            found.add(Harm::Note, what, WHY_DOUBT, format_args!(""));
        }
    }

    /// A rule or the policy, for messages.
    fn site(&self, location: &RuleLocation) -> String {
        let number = match self.target.manager {
            mends::Manager::Iptables(program) if program.ends_with("legacy") => "number",
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
