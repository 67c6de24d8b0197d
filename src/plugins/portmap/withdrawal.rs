//! Taking back what attachments published, found by the names of their owners alone.

use std::net::IpAddr;

use super::attachment::{is_of, owner_key};
use super::ruleset::{self, Group, Side};
use crate::error::Result;
use crate::kernel::conntrack::Flows;
use crate::kernel::nft::{Batch, Datum, Element, Nft, Transport};
use crate::kernel::rtnl;
use crate::steps::netfilter;
use crate::steps::owner::{Owner, Owners};

/// What goes, in one family.
pub struct Withdrawal<'a> {
    pub nft: &'a Nft,
    pub side: Side,
    pub owners: &'a Owners,
    /// The group that is needed even if nothing is left in it.
    pub in_use: Option<&'a Group>,
}

/// Whether an attachment has anything in a family: one lookup, however much there is of others.
pub fn is_registered(nft: &Nft, side: Side, owner: &Owner) -> Result<bool> {
    let found = nft.elements_at(side.table(), ruleset::OWNERS, &[owner_key(owner)])?;
    Ok(found.iter().flatten().any(|element| is_of(element, owner)))
}

impl Withdrawal<'_> {
    /// Puts the removal into the batch. Returns the connections that were translated and must not be any longer.
    pub fn withdraw(&self, batch: &mut Batch) -> Result<Vec<Flows>> {
        let mut flows = Vec::new();
        for set in self.nft.sets(self.side.table())? {
            match Group::of_map(&set.name) {
                Some(group) => flows.extend(self.withdraw_from_group(&group, batch)?),
                // The other sets of groups are seen to with their maps.
                None if Group::owns(&set.name) => {}
                None if ruleset::is_ours(&set.name) => {
                    self.take_from(&set.name, batch)?;
                }
                None => {}
            }
        }
        Ok(flows)
    }

    fn withdraw_from_group(&self, group: &Group, batch: &mut Batch) -> Result<Vec<Flows>> {
        let table = self.side.table();
        let (mut gone, mut kept) = self.take_from(&group.published(), batch)?;
        let (gone_on, kept_on) = self.take_from(&group.published_on(), batch)?;
        if gone.is_empty() && gone_on.is_empty() {
            return Ok(Vec::new());
        }
        let ports_on = group.published_on_ports();
        let (gone_ports, _) = self.take_from(&ports_on, batch)?;
        for port in gone_ports {
            // Somebody else who has the port under another address stands for it from now on.
            if let Some(heir) = kept_on.iter().find(|element| element.key.ends_with(&port.key)) {
                let heir = Element { comment: heir.comment.clone(), ..port };
                batch.add_elements(table, &ports_on, &[heir]);
            }
        }
        gone.extend(gone_on);
        kept.extend(kept_on);
        if kept.is_empty() && !group.is_main() && self.in_use != Some(group) {
            self.remove_group(group, batch)?;
        }
        Ok(gone.iter().filter_map(|element| self.translated(element)).collect())
    }

    /// Deletes what goes; returns it, and what stays.
    fn take_from(&self, set: &str, batch: &mut Batch) -> Result<(Vec<Element>, Vec<Element>)> {
        let table = self.side.table();
        let elements = self.nft.elements(table, set)?;
        let (gone, kept): (Vec<Element>, _) =
            elements.into_iter().partition(|element| netfilter::is_of(element, self.owners));
        let keys: Vec<Vec<u8>> = gone.iter().map(|element| element.key.clone()).collect();
        batch.delete_elements(table, set, &keys);
        Ok((gone, kept))
    }

    /// One that nobody has anything in any more.
    fn remove_group(&self, group: &Group, batch: &mut Batch) -> Result<()> {
        let table = self.side.table();
        let (entrance, chain) = (Group::main().chain(), group.chain());
        for rule in self.nft.rules_of(table, &entrance)? {
            if rule.leads_to() == Some(chain.as_str()) {
                batch.delete_rule(table, &entrance, rule.handle);
            }
        }
        batch.delete_chain(table, &chain);
        for set in group.sets() {
            batch.delete_set(table, &set);
        }
        Ok(())
    }

    /// The connections of a published UDP port. Those of TCP end by themselves.
    fn translated(&self, element: &Element) -> Option<Flows> {
        // `protocol . port`, each filled up to four bytes, is what every key ends with.
        let (_, [protocol, _, _, _, high, low, _, _]) = element.key.split_last_chunk()?;
        if *protocol != Transport::Udp.number() {
            return None;
        }
        let Some(Datum::Value(target)) = &element.data else { return None };
        let (family, address): (_, IpAddr) = if self.side.has(ruleset::loopback().addr()) {
            (rtnl::Family::V4, (*target.first_chunk::<4>()?).into())
        } else {
            (rtnl::Family::V6, (*target.first_chunk::<16>()?).into())
        };
        let port = u16::from_be_bytes([*high, *low]);
        Some(Flows::to_port(family, Transport::Udp, port).answered_by(address))
    }
}
