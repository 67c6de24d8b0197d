//! The tables `cnibox-guard`, which keep the hooks of connection tracking and of NAT while another program removes all rules.
//!
//! The kernel translates the packets of an established connection as long as one chain of the type nat and one rule with
//! `ct` exist. `nft flush ruleset` leaves a table that has an owner, so established connections continue until the rules are
//! back: without the table, one packet in between gets a reset.

use std::time::Duration;

use super::backoff;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::netlink::nft::{
    Base, Batch, Condition, CtState, Family, Hook, NewChain, NewRule, Nft, Object, Table,
};
use crate::rules::shared_rules;

/// The name of the tables.
const NAME: &str = "cnibox-guard";

/// The chains that have the hooks of NAT: name, hook, priority. They have no rules.
const NAT: [(&str, Hook, i32); 4] = [
    ("prerouting", Hook::Prerouting, -100),
    ("input", Hook::Input, 100),
    ("output", Hook::Output, -100),
    ("postrouting", Hook::Postrouting, 100),
];
/// The chain of the rule that keeps connection tracking.
const TRACKING: &str = "tracking";

/// The tables of this process. The kernel deletes them when the socket is closed.
pub(super) struct Guard {
    nft: Option<Nft>,
    /// The families that have no table yet.
    missing: Vec<Family>,
    /// The number of failed tries in a row.
    failures: u32,
    /// The time of the next try after a failure, as time since boot.
    retry: Option<Duration>,
}

impl Guard {
    pub(super) fn new() -> Self {
        Self { nft: None, missing: Family::IP.into(), failures: 0, retry: None }
    }

    /// The time of the next try after a failure.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Adds the table of each family that has the table `cnibox`: on another host, connection tracking may be unused. After a
    /// failure, such as the table of another watcher, the pauses are those of an object that another program removes.
    pub(super) fn ensure(&mut self, now: Duration) {
        if self.retry.is_some_and(|retry| now < retry) {
            return;
        }
        let errors = self.try_once();
        self.retry = None;
        if errors.is_empty() {
            self.failures = 0;
            return;
        }
        if self.failures == 0 {
            for error in errors {
                warn(format_args!("note: connections may end with the rules: {error}"));
            }
        }
        self.retry = Some(now + backoff::pause(self.failures));
        self.failures = self.failures.saturating_add(1);
    }

    /// Without nf_tables there are no rules to keep.
    fn try_once(&mut self) -> Vec<Error> {
        let mut errors = Vec::new();
        if self.nft.is_none() {
            match Nft::open_if_supported() {
                Ok(nft) => self.nft = nft,
                Err(error) => errors.push(error.into()),
            }
        }
        let Some(nft) = &self.nft else { return errors };
        self.missing.retain(|family| match add(nft, *family) {
            Ok(is_added) => !is_added,
            Err(error) => {
                let table = Table { family: *family, name: NAME };
                errors.push(error.context(table));
                true
            }
        });
        errors
    }
}

/// Adds the table if the family has rules of cnibox. Returns whether it was added.
fn add(nft: &Nft, family: Family) -> Result<bool> {
    if nft.exist(&[Object::Table(shared_rules::table(family))])? != [true] {
        return Ok(false);
    }
    let table = Table { family, name: NAME };
    let mut batch = Batch::new();
    batch.add_owned_table(table);
    for (name, hook, priority) in NAT {
        let base = Some(Base::nat(hook, priority));
        batch.add_chain(table, NewChain { name, base, comment: None });
    }
    let base = Some(Base::filter(Hook::Prerouting, 0));
    batch.add_chain(table, NewChain { name: TRACKING, base, comment: None });
    // A rule without a verdict: it has no effect on packets.
    batch.add_rule(table, NewRule::last(TRACKING).with(Condition::ct_state(CtState::NEW)));
    nft.commit(batch)?;
    Ok(true)
}
