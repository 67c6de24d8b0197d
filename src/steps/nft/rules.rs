//! What a veth pair has in nf_tables: masquerading for its addresses, and the MAC spoof check of its port. Both in one
//! transaction.
//!
//! `set` restores, too: called for a living attachment, it adds what others removed.

use ipnet::IpNet;

use crate::compat::{old_names, rules};
use crate::error::Result;
use crate::kernel::nft::{Batch, Nft};
use crate::names::{Attachment, IfName, Mac};
use crate::plugin::owner::{Owner, Owners};
use crate::plugin::{Context, Scope};
use crate::steps::nft::{masquerade, spoof_check};

/// What an attachment is to have.
pub struct Rules<'a> {
    pub owner: &'a Owner,
    pub masquerades: bool,
    /// The container's addresses, with the prefixes of their subnets.
    pub nets: &'a [IpNet],
    /// A port of a bridge, and the only MAC address that may send by it; None for any.
    pub checked: Option<(&'a str, Option<Mac>)>,
}

impl Rules<'_> {
    /// Whether anything is asked for.
    pub fn are_none(&self) -> bool {
        !self.masquerades && !matches!(self.checked, Some((_, Some(_))))
    }

    /// Makes it so: adds what is missing, and removes what an earlier owner of the port's name or of an address left.
    pub fn set(&self, cx: &Context<'_>) -> Result<()> {
        if self.are_none() && !self.are_there(cx)? {
            return Ok(());
        }
        let nft = cx.session.nft()?;
        old_names::migrate(nft)?;
        nft.transact(|nft, batch| self.put(nft, batch))
    }

    /// Whether the port or one of the addresses has rules already. Most have none, and that is one question.
    fn are_there(&self, cx: &Context<'_>) -> Result<bool> {
        let Some(nft) = cx.session.nft_if_any()? else { return Ok(false) };
        let mut places: Vec<_> = masquerade::places(self.nets).collect();
        let old: Vec<_> = places
            .iter()
            .filter_map(|(table, set, key)| Some((*table, old_names::old_set(set)?, key.clone())))
            .collect();
        places.extend(old);
        if let Some((port, _)) = self.checked {
            places.push(spoof_check::place(&IfName::new(port)?));
        }
        nft.is_any_there(&places)
    }

    fn put(&self, nft: &Nft, batch: &mut Batch) -> Result<()> {
        if let Some((port, mac)) = self.checked {
            let port = IfName::new(port)?;
            match mac {
                Some(mac) => spoof_check::add(nft, batch, self.owner, &port, mac)?,
                None => spoof_check::clear(nft, batch, &port)?,
            }
        }
        if self.masquerades {
            masquerade::add(nft, batch, self.owner, self.nets)
        } else {
            masquerade::clear(nft, batch, self.nets)
        }
    }

    /// Removes what belongs to the owners, and what the reference's plugins left for them.
    pub fn remove(nft: &Nft, batch: &mut Batch, owners: &Owners) -> Result<()> {
        old_names::migrate(nft)?;
        masquerade::remove(nft, batch, owners)?;
        spoof_check::remove(nft, batch, owners)?;
        rules::remove_masquerade(nft, batch, owners)?;
        rules::remove_spoof_check(nft, batch, owners)
    }

    /// The same, now, for an ADD that fails.
    pub fn take_back(cx: &Context<'_>, at: &Attachment) -> Result<()> {
        let owners = Owners::of(cx, Scope::One(at));
        cx.session.nft()?.transact(|nft, batch| {
            masquerade::remove(nft, batch, &owners)?;
            spoof_check::remove(nft, batch, &owners)
        })
    }
}
