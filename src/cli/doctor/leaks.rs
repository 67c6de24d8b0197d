//! Attachments, reservations, rules and links of containers that have ended, and their removal.

use crate::error::{Error, Result};
use crate::ipam::store::listed::{Holder, Reservation};
use crate::plugin::owner::Owner;
use crate::runtime::cache;
use crate::runtime::evidence::Life;
use crate::runtime::gc::Options;
use crate::runtime::lifecycle::Runtime;
use crate::runtime::owners;
use crate::runtime::reservations::{Judged, Pool, State, Survey, title};

use super::host::Host;
use super::{Finding, Findings, Harm};

/// The owners on a host, and the signs of their life.
pub(super) struct Remains {
    pub(super) survey: Survey,
    /// The owners of rules and links without a cache entry that are gone.
    owners: Vec<String>,
}

impl Remains {
    pub(super) fn find(runtime: &Runtime) -> Result<Self> {
        // See `Survey::is_gone` for the order.
        let mut owners = owners::on_host()?;
        let survey = runtime.survey()?;
        owners.retain(|owner| survey.is_gone(owner));
        Ok(Self { survey, owners })
    }

    /// The reservations of owners that are gone.
    fn reservations(&self) -> Vec<(&Pool, &Judged, &str)> {
        let mut gone = Vec::new();
        for pool in &self.survey.pools {
            for it in &pool.reservations {
                if let State::Gone(reason) = &it.state {
                    gone.push((pool, it, reason.as_str()));
                }
            }
        }
        gone
    }
}

pub(super) fn leaks(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let remains = host.remains.as_ref().map_err(Clone::clone)?;
    let mut leaks = Leaks::default();
    let mut gone = Vec::new();
    for (entry, life) in &remains.survey.attachments {
        let Life::Gone(reason) = life else { continue };
        gone.push((&entry.network, &entry.at.container_id));
        leaks.add(
            format!("{} has ended: {reason}", entry.title()),
            "Its addresses are out of use, and its published ports lead nowhere.",
            format!("cnibox gc {}", entry.network),
        );
    }
    for (pool, it, reason) in remains.reservations() {
        let Reservation { address, holder, .. } = &it.reservation;
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
        leaks.add(
            format!("rules or links name {}, which has ended", title_of(owner)),
            "They are about an address that another container can get.",
            "cnibox doctor --fix".into(),
        );
    }
    for (Finding { harm, what, why, mend }, more) in &leaks.0 {
        let mend = format_args!("{mend}");
        match more {
            0 => found.add(*harm, format_args!("{what}"), why, mend),
            more => found.add(*harm, format_args!("{what} (and {more} more)"), why, mend),
        }
    }
    Ok(())
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
    Error::joined(errors)
}
