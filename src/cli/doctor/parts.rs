//! Compares what living attachments have with what their ADD made, as `cnibox reconcile --dry-run` does. An attachment with an
//! operation in progress is left out, because its objects change.

use std::collections::BTreeSet;

use crate::attachments::life::Life;
use crate::error::Result;
use crate::names::NetworkName;
use crate::plugin::parts::{InContainer, Parts};
use crate::plugins::dnsname;
use crate::runtime::cache::CacheEntry;
use crate::runtime::reconcile::{Busy, Difference, Failed};

use super::finding::{Findings, Harm};
use super::host::Host;
use super::interfaces::interfaces;
use super::routes::misrouted;

/// The differences of one plugin.
struct Group<'a> {
    first: &'a Difference,
    count: usize,
    attachments: BTreeSet<String>,
    networks: BTreeSet<&'a NetworkName>,
}

pub(super) fn parts(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let explained = interfaces(host, found)?;
    let inside = if host.options.is_inside { InContainer::Ensure } else { InContainer::Skip };
    let new = |_: &_, _: &_, _: &str| Parts::to_restore(true, inside);
    let is_chosen = |network: &_, at: &_| host.options.concerns(network, at);
    let mut reconciled = host.runtime.reconcile(Busy::Skip, &new, is_chosen)?;
    let mut groups: Vec<Group<'_>> = Vec::new();
    for restored in &reconciled.restored {
        let title = restored.at.title(&restored.network);
        match groups.iter_mut().find(|group| group.first.plugin == restored.plugin) {
            Some(group) => {
                group.count += 1;
                group.attachments.insert(title);
                group.networks.insert(&restored.network);
            }
            None => groups.push(Group {
                first: restored,
                count: 1,
                attachments: [title].into(),
                networks: [&restored.network].into(),
            }),
        }
    }
    let inside = if host.options.is_inside { " --inside" } else { "" };
    for Group { first, count, attachments, networks } in &groups {
        let names: Vec<&str> = networks.iter().map(|name| &***name).collect();
        let network = if let [name] = names[..] { format!(" {name}") } else { String::new() };
        let more = if *count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
        let (plugin, difference) = (&first.plugin, &first.title);
        let counted = match attachments.len() {
            1 => "1 attachment".into(),
            number => format!("{number} attachments"),
        };
        let why = match plugin == dnsname::ENTRY.name {
            true => "Another program changed it. Containers do not find each other by name.",
            false => {
                "Another program changed it. The containers do not reach other networks, or their ports do not answer."
            }
        };
        found.add(
            Harm::Broken,
            format_args!(
                "{plugin}: what it made for {counted} of {} is missing or different: {difference}{more}",
                names.join(", ")
            ),
            why,
            format_args!("cnibox reconcile{inside}{network}"),
        );
    }
    let attachments = host.survey.as_ref().map_or(&[][..], |survey| &survey.attachments);
    let is_new = |failed: &&Failed| {
        let is_it = |(entry, _): &&(CacheEntry, Life)| {
            (&entry.network, &entry.at) == (&failed.network, &failed.at)
        };
        !explained.contains(&failed.at.title(&failed.network))
            && attachments.iter().find(is_it).is_none_or(|(entry, _)| host.is_at_rest(entry))
    };
    for failed in reconciled.failed.iter().filter(is_new) {
        let why = "It is unknown whether something of the attachment is missing.";
        found.add(Harm::Broken, &failed.error, why, "cnibox reconcile --dry-run");
    }
    // Other checks report attachments that have ended, or may have.
    reconciled.skipped.retain(|skipped| skipped.plugin.is_some());
    for reason in reconciled.reasons() {
        found.add(Harm::Note, reason, "reconcile restores nothing of it.", "");
    }
    let restored = reconciled.restored.iter();
    let restored = restored.map(|restored| restored.at.title(&restored.network)).collect();
    misrouted(host, (&explained, &restored), found)
}
