//! Attachments, reservations, rules and links of containers that have ended, and their removal.

use crate::error::{Error, Result};
use crate::ipam::store::listed::{Holder, Reservation};
use crate::plugin::life::Life;
use crate::plugin::owner::Owner;
use crate::runtime::Runtime;
use crate::runtime::gc::Options;
use crate::runtime::reservations::title;

use super::finding::{Finding, Findings, Harm};
use super::host::Host;

pub(super) fn leaks(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let remains = host.remains.as_ref().map_err(Clone::clone)?;
    let mut leaks = Leaks::default();
    let mut gone = Vec::new();
    for (entry, life) in &remains.survey.attachments {
        let Life::Ended(reason) = life else { continue };
        gone.push((&entry.network, &entry.at.container_id));
        leaks.add(
            format!("{} has ended: {reason}", entry.title()),
            "Its addresses stay reserved, and connections to its published ports fail.",
            format!("cnibox gc {}", entry.network),
        );
    }
    for (pool, owned, reason) in remains.reservations() {
        let Reservation { address, holder, .. } = &owned.reservation;
        if let Holder::Container(id, _) = holder
            && !gone.contains(&(&pool.network, id))
        {
            leaks.add(
                format!("{address} is reserved for {}: {reason}", title(&pool.network, holder)),
                "No other container gets the address.",
                format!("cnibox ipam release --leaks --network {}", pool.network),
            );
        }
    }
    for owner in &remains.owners {
        let title =
            Owner::named(owner).map_or_else(|| owner.clone(), |(network, at)| at.title(&network));
        leaks.add(
            format!("rules or links name {title}, which has ended"),
            "Another container can get the address that they apply to.",
            "cnibox gc".into(),
        );
    }
    for (Finding { harm, what, why, fix, .. }, more) in &leaks.0 {
        let fix = format_args!("{fix}");
        match more {
            0 => found.add(*harm, format_args!("{what}"), why, fix),
            more => found.add(*harm, format_args!("{what} (and {more} more)"), why, fix),
        }
    }
    Ok(())
}

/// One finding for all leaks that the same command removes. The finding names the first leak; the number is that of the other
/// leaks.
#[derive(Default)]
struct Leaks(Vec<(Finding, usize)>);

impl Leaks {
    fn add(&mut self, what: String, why: &'static str, fix: String) {
        match self.0.iter_mut().find(|(finding, _)| finding.fix == fix) {
            Some((_, more)) => *more += 1,
            None => {
                let finding = Finding { harm: Harm::Leaked, what, why, fix, is_fixable: true };
                self.0.push((finding, 0));
            }
        }
    }
}

/// Runs `cnibox gc`: removes the leaks. `print` gets a line for each.
pub(super) fn fix(runtime: &Runtime, is_dry_run: bool, print: &mut dyn FnMut(&str)) -> Result<()> {
    let options = Options { is_dry_run, ..Options::default() };
    Error::joined(runtime.gc(None, options, print)?.errors)
}
