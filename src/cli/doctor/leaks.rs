//! Attachments, reservations, rules and links of containers that have ended, and their removal.

use crate::error::{Error, Result};
use crate::ipam::store::listed::Holder;
use crate::plugin::owner::Owner;
use crate::runtime::cache::{self, Entry};
use crate::runtime::gc::Options;
use crate::runtime::life::Life;
use crate::runtime::lifecycle::Runtime;
use crate::runtime::owners;
use crate::runtime::reservations::{Judged, Pool, State, Survey, title};

use super::host::Host;
use super::{Finding, Harm};

/// The owners on a host, and the signs of their life.
pub(super) struct Remains {
    pub(super) survey: Survey,
    /// The owners of rules and links without a cache entry that are gone.
    owners: Vec<String>,
}

impl Remains {
    pub(super) fn find(runtime: &Runtime) -> Result<Self> {
        // See `Survey::is_gone` for the order.
        let owners = owners::on_host()?;
        let survey = runtime.survey()?;
        let owners = owners.into_iter().filter(|owner| survey.is_gone(owner)).collect();
        Ok(Self { survey, owners })
    }

    fn attachments(&self) -> impl Iterator<Item = (&Entry, &str)> {
        self.survey.attachments.iter().filter_map(|(entry, life)| match life {
            Life::Stale(reason) => Some((entry, reason.as_str())),
            _ => None,
        })
    }

    /// The reservations of owners that are gone.
    fn reservations(&self) -> impl Iterator<Item = (&Pool, &Judged, &str)> {
        let pools = self.survey.pools.iter();
        let all = pools.flat_map(|pool| pool.reservations.iter().map(move |it| (pool, it)));
        all.filter_map(|(pool, it)| match &it.state {
            State::Gone(reason) => Some((pool, it, reason.as_str())),
            _ => None,
        })
    }
}

pub(super) fn leaks(host: &Host<'_>) -> Result<Vec<Finding>> {
    let remains = host.remains.as_ref().map_err(Clone::clone)?;
    let mut leaks = Leaks::default();
    for (entry, reason) in remains.attachments() {
        leaks.add(
            format!("{} is stale: {reason}", entry.title()),
            "Its addresses are out of use, and its published ports lead nowhere.",
            format!("cnibox gc {}", entry.network),
        );
    }
    for (pool, it, reason) in remains.reservations() {
        let holder = &it.reservation.holder;
        let is_of_stale = remains.attachments().any(|(entry, _)| {
            let is_its = matches!(holder, Holder::Container(id, _) if *id == entry.at.container_id);
            is_its && entry.network == pool.network
        });
        if !is_of_stale {
            let (address, title) = (it.reservation.address, title(&pool.network, holder));
            leaks.add(
                format!("{address} is reserved for {title}: {reason}"),
                "No other container gets the address.",
                format!("cnibox ipam release --leaks --network {}", pool.network),
            );
        }
    }
    for owner in &remains.owners {
        leaks.add(
            format!("rules or links name {}, which has ended", title_of(owner)),
            "They are about an address that another container can get.",
            "cnibox doctor --fix".into(),
        );
    }
    Ok(leaks.findings())
}

/// One finding for all leaks with the same command. It names the first.
#[derive(Default)]
struct Leaks(Vec<(Finding, usize)>);

impl Leaks {
    fn add(&mut self, what: String, why: &'static str, mend: String) {
        match self.0.iter_mut().find(|(it, _)| it.mend == mend) {
            Some((_, more)) => *more += 1,
            None => self.0.push((Finding { harm: Harm::Leaked, what, why, mend }, 0)),
        }
    }

    fn findings(mut self) -> Vec<Finding> {
        for (finding, more) in self.0.iter_mut().filter(|(_, more)| *more > 0) {
            finding.what.push_str(&format!(" (and {more} more)"));
        }
        self.0.into_iter().map(|(finding, _)| finding).collect()
    }
}

fn title_of(owner: &str) -> String {
    let Some([network, id, ifname]) = Owner::parts(owner) else { return owner.into() };
    format!("{ifname} of container {id} in network {network}")
}

/// Removes the remains. `say` gets a line for each, the errors go on stderr.
pub(super) fn fix(runtime: Runtime, is_dry_run: bool, say: &mut dyn FnMut(String)) -> Result<()> {
    let (removed, released) =
        if is_dry_run { ("would remove", "would release") } else { ("removed", "released") };
    let collected = runtime.gc(None, Options { is_dry_run, uncached: false })?;
    for it in &collected.removed {
        say(format!("{removed} {}", cache::title(&it.network, &it.at)));
    }
    let mut errors = collected.errors;
    let remains = Remains::find(&runtime)?;
    for (pool, it, _) in remains.reservations() {
        let done = if is_dry_run { Ok(true) } else { runtime.release(pool, &it.reservation) };
        match done {
            Ok(true) => say(format!("{released} {}", it.reservation.address)),
            // Another process did it.
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    let runtime = runtime.without_path();
    for owner in &remains.owners {
        match if is_dry_run { Ok(()) } else { runtime.remove_owner(owner) } {
            Ok(()) => say(format!("{removed} the rules and links of {}", title_of(owner))),
            Err(error) => errors.push(error),
        }
    }
    let errors = errors.into_iter();
    errors.reduce(|first: Error, error| first.also(&error)).map_or(Ok(()), Err)
}
