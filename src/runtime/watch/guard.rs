//! The tables `cnibox-guard`, which keep the hooks of connection tracking and of NAT while another program removes all rules.
//!
//! The kernel translates the packets of an established connection as long as one chain of the type nat and one rule with
//! `ct` exist. `nft flush ruleset` leaves a table that has an owner, so established connections continue until the rules are
//! back: without the table, one packet in between gets a reset.

use crate::error::Result;
use crate::kernel::sys::warn;
use crate::netlink::nft::{
    Base, Batch, Condition, CtState, Family, Hook, NewChain, NewRule, Nft, Object, Table,
};
use crate::steps::nft::shared_rules;

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
}

impl Guard {
    /// Without nf_tables there are no rules to keep.
    pub(super) fn open() -> Result<Self> {
        Ok(Self { nft: Nft::open_if_supported()?, missing: Family::IP.into() })
    }

    /// Adds the table of each family that has the table `cnibox`: on another host, connection tracking may be unused. If the
    /// kernel refuses a table, it is not tried again.
    pub(super) fn ensure(&mut self) {
        let Some(nft) = &self.nft else { return };
        self.missing.retain(|family| match add(nft, *family) {
            Ok(is_added) => !is_added,
            Err(error) => {
                let table = Table { family: *family, name: NAME };
                warn(format_args!("note: connections may end with the rules: {table}: {error}"));
                false
            }
        });
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
