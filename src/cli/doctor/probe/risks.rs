//! What would make a packet of the probe do more than count.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Result;
use crate::kernel::sys::{failed, tcx_programs};
use crate::names::IpFamily;
use crate::netlink::nft::{Expr, Family, Hook, Nft, TRAP, Table, Transport, XtExtension};
use crate::netlink::{u32_at, xfrm, xtables};

use super::super::host::Host;
use super::plan::{Direction, Question};
use crate::cli::output::NAME;

/// Why packets are not sent.
pub(super) struct Risk {
    pub(super) reason: String,
    what: About,
}

/// The packets that a risk concerns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    All,
    /// Those for the host itself. A published port is translated before.
    Input,
    Family(IpFamily),
    /// Segments of TCP that a bridge port receives.
    Reset,
    /// Those that this link receives.
    Link(u32),
}

impl Risk {
    pub(super) fn concerns(&self, question: &Question<'_>) -> bool {
        match self.what {
            About::All => true,
            About::Input => !matches!(question.direction, Direction::World | Direction::Container),
            About::Family(family) => family.has(question.packet.from),
            About::Reset => {
                question.packet.transport == Transport::Tcp
                    && question.direction != Direction::Port
                    && question.who.bridge.is_some()
            }
            About::Link(index) => question.links().any(|link| link.index == index),
        }
    }
}

/// The expressions of nf_tables that hand packets to programs, copy them, store their addresses, or answer them. `payload` here
/// writes into the packet: the tables of the probe would not know it again. Neither do they know a packet that is translated
/// without a connection.
const EXPRESSIONS: [&str; 9] =
    ["queue", "dup", "fwd", "tproxy", "dynset", "synproxy", "notrack", "log group", "payload"];
/// The targets of iptables that do the same.
const TARGETS: [&str; 13] = [
    // ebtables has names of its own.
    "nflog",
    "ulog",
    "NFQUEUE",
    "TEE",
    "TPROXY",
    "SET",
    "SYNPROXY",
    "NFLOG",
    "ULOG",
    "NOTRACK",
    "DNPT",
    "SNPT",
    "IDLETIMER",
];
/// The match that stores addresses.
const RECENT: &str = "recent";

/// The first bit in the data of the target `CT` (linux/netfilter/xt_CT.h: XT_CT_NOTRACK).
fn is_notrack(target: &XtExtension) -> bool {
    target.name == "CT" && target.info.first().is_some_and(|flags| flags & 1 != 0)
}

/// What the expression does that is more than counting.
fn effect(table: Table<'_>, hook: Option<Hook>, expr: &Expr) -> Option<&'static str> {
    let known =
        |names: &[&'static str], name: &str| names.iter().find(|one| **one == name).copied();
    match expr {
        Expr::Other(name) if name == "payload" => Some("a change of the packet"),
        Expr::Other(name) => known(&EXPRESSIONS, name),
        // The answer leaves through the link without passing a hook.
        Expr::Reject { .. } if table.family == Family::Netdev || hook == Some(Hook::Ingress) => {
            Some("reject at ingress")
        }
        Expr::XtTarget(target) if is_notrack(target) => Some("notrack"),
        Expr::XtTarget(target) => known(&TARGETS, &target.name),
        Expr::XtMatch(extension) => known(&[RECENT], &extension.name),
        _ => None,
    }
}

/// Whether the rule refuses a segment of TCP by a reset. With br_netfilter the kernel sends it straight to the bridge port that the
/// segment came from, without a hook.
fn resets(table: Table<'_>, expr: &Expr) -> bool {
    // Source: linux/netfilter_ipv4/ipt_REJECT.h and linux/netfilter_ipv6/ip6t_REJECT.h.
    let with = if table.family == Family::Ip6 { 6 } else { 7 };
    match expr {
        Expr::Reject { kind, .. } => {
            *kind == NFT_REJECT_TCP_RST && !matches!(table.family, Family::Bridge | Family::Netdev)
        }
        Expr::XtTarget(target) => target.name == "REJECT" && u32_at(&target.info, 0) == Some(with),
        _ => false,
    }
}

/// linux/netfilter/nf_tables.h
const NFT_REJECT_TCP_RST: i32 = 1;

/// Whether rules for IP see the frames of bridges.
fn has_br_netfilter() -> bool {
    !matches!(Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").try_exists(), Ok(false))
}

/// All risks of the host for these questions.
pub(super) fn risks(host: &Host<'_>, nft: &Nft, questions: &[Question<'_>]) -> Result<Vec<Risk>> {
    let mut risks = Vec::new();
    if xfrm::has_policy()? {
        let reason = "the host has policies of IPsec: a packet could make a program negotiate keys";
        risks.push(Risk { reason: reason.into(), what: About::All });
    }
    for (family, name) in nft.tables()? {
        if [NAME, TRAP].contains(&name.as_str()) {
            continue;
        }
        rules(nft, Table { family, name: &name }, &mut risks)?;
    }
    for (family, program) in [(IpFamily::V4, "iptables-legacy"), (IpFamily::V6, "ip6tables-legacy")]
    {
        let extensions: Vec<&str> = TARGETS.into_iter().chain([RECENT, "CT"]).collect();
        if let Some(table) = xtables::table_that_has(family == IpFamily::V6, &extensions)? {
            let reason =
                format!("table {table} of {program} has a rule that does more than count and drop");
            risks.push(Risk { reason, what: About::Family(family) });
        }
        if has_br_netfilter()
            && let Some(table) = xtables::table_that_has(family == IpFamily::V6, &["REJECT"])?
        {
            let reason =
                format!("table {table} of {program} has REJECT, and br_netfilter is in use");
            risks.push(Risk { reason, what: About::Reset });
        }
    }
    let links: BTreeMap<u32, &str> = questions
        .iter()
        .flat_map(Question::links)
        .map(|link| (link.index, link.name.as_str()))
        .collect();
    for (index, name) in links {
        if tcx_programs(index, true).map_err(failed("cannot list the programs of tcx"))? > 0 {
            let reason = format!("a BPF program at the ingress of {name} (tcx): `bpftool net`");
            risks.push(Risk { reason, what: About::Link(index) });
        }
        if host.rtnl.can_send_received(index)? {
            let reason = format!(
                "a filter of traffic control on {name} can copy, redirect or change packets: `tc filter show dev {name} ingress`"
            );
            risks.push(Risk { reason, what: About::Link(index) });
        }
    }
    Ok(risks)
}

/// Adds the risks of the rules of a table.
fn rules(nft: &Nft, table: Table<'_>, risks: &mut Vec<Risk>) -> Result<()> {
    let mut chains = None;
    let has_br_netfilter = has_br_netfilter();
    for rule in nft.rules(table)? {
        if has_br_netfilter && rule.exprs.iter().any(|expr| resets(table, expr)) {
            let (handle, chain) = (rule.handle, &rule.chain);
            let reason = format!(
                "rule {handle} of chain {chain}, table {table}, has reject with tcp reset, and br_netfilter is in use"
            );
            risks.push(Risk { reason, what: About::Reset });
        }
        // Most rules have none of these expressions in any chain.
        let can = |expr: &Expr| effect(table, Some(Hook::Ingress), expr).is_some();
        if !rule.exprs.iter().any(can) {
            continue;
        }
        if chains.is_none() {
            chains = Some(nft.chains(table)?);
        }
        let of_rule = chains.iter().flatten().find(|chain| chain.name == rule.chain);
        let hook = of_rule.and_then(|chain| chain.base).map(|base| base.hook);
        let found = rule.exprs.iter().find_map(|expr| effect(table, hook, expr));
        let Some(found) = found else { continue };
        let what = if hook == Some(Hook::Input) { About::Input } else { About::All };
        let (handle, chain) = (rule.handle, &rule.chain);
        let reason = format!("rule {handle} of chain {chain}, table {table}, has {found}");
        risks.push(Risk { reason, what });
    }
    Ok(())
}
