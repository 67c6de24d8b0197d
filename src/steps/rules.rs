//! The nf_tables rules of a veth pair, in one transaction: masquerading for its addresses, the MAC spoof check of its port, and
//! the drop for an internal network.
//!
//! An ADD that is repeated for an attachment restores the rules that other programs removed.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::attachments::owner::{Owner, Owners};
use crate::error::Result;
use crate::names::{Attachment, IfName, IpFamily, Mac};
use crate::netlink::nft::{Batch, Nft};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Scope};
use crate::rules::compat::rules;
use crate::rules::internal::{self, Internal};
use crate::rules::{masquerade, spoof_check};
use crate::steps::undo::Undo;

/// The rules that an attachment needs.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub masquerades: bool,
    /// The addresses of the container, with the prefix lengths of their subnets.
    pub nets: &'a [IpNet],
    /// A port of a bridge, and the only source MAC address that it accepts; `None` for any address.
    pub checked: Option<(&'a str, Option<Mac>)>,
    /// The link of the port's network, if the network is internal.
    pub internal: Option<&'a IfName>,
}

impl Rules<'_> {
    /// Whether the attachment needs no rules.
    fn is_empty(&self) -> bool {
        !self.masquerades && self.internal.is_none() && !matches!(self.checked, Some((_, Some(_))))
    }

    /// For ADD: `set`, with an undo step that removes the rules.
    pub fn add<'a>(
        &self,
        cx: &'a Context<'a>,
        at: &'a Attachment,
        undo: &mut Undo<'a>,
    ) -> Result<()> {
        if !self.is_empty() {
            undo.push("remove the rules", || Self::undo_add(cx, at));
        }
        self.set(cx, at, &[])
    }

    /// The masquerading and the MAC spoof check of an attachment, if it has them.
    pub fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        let network = &cx.request.network;
        let former = parts.former.clone();
        for family in IpFamily::ALL.into_iter().filter(|_| self.masquerades) {
            let nets: Vec<IpNet> =
                self.nets.iter().copied().filter(|net| family.has(net.addr())).collect();
            if nets.is_empty() {
                continue;
            }
            let nft = cx.session.nft()?;
            let compare = || masquerade::check(nft, network, at, &nets);
            let rules = Rules { checked: None, internal: None, nets: &nets, ..*self };
            let mut is_made = false;
            parts.ensure(&compare, &mut || {
                is_made = true;
                rules.set(cx, at, &former)
            })?;
            if is_made {
                parts.masqueraded.extend(nets.iter().map(IpNet::addr));
            }
        }
        if matches!(self.checked, Some((_, Some(_)))) {
            let nft = cx.session.nft()?;
            let compare = || spoof_check::check(nft, network, at);
            parts.ensure(&compare, &mut || self.set(cx, at, &former))?;
        }
        if let (Some(link), Some((port, _))) = (self.internal, self.checked) {
            let (nft, port) = (cx.session.nft()?, IfName::new(port)?);
            let internal = Internal { port: &port, link };
            let owner = Owner::new(network, at);
            let compare = || internal.check(nft, &owner);
            parts.ensure(&compare, &mut || self.set(cx, at, &former))?;
        }
        Ok(())
    }

    /// Adds rules that are missing, and removes the rules that an earlier owner of the port's name or of an address left.
    /// `former` are the addresses that the container no longer has.
    fn set(&self, cx: &Context<'_>, at: &Attachment, former: &[IpAddr]) -> Result<()> {
        if self.is_empty() && !self.exist(cx)? {
            return Ok(());
        }
        let owner = Owner::new(&cx.request.network, at);
        cx.session.nft()?.transact(|nft, batch| self.put(nft, batch, &owner, former))
    }

    /// Whether the port or one of the addresses has rules already. If there are none, which is common, this takes one request.
    fn exist(&self, cx: &Context<'_>) -> Result<bool> {
        let Some(nft) = cx.session.nft_if_any()? else { return Ok(false) };
        let mut elements: Vec<_> = masquerade::address_elements(self.nets).collect();
        if let Some((port, _)) = self.checked {
            let port = IfName::new(port)?;
            elements.extend([spoof_check::port_element(&port), internal::port_element(&port)]);
        }
        nft.has_any_element(&elements)
    }

    fn put(&self, nft: &Nft, batch: &mut Batch, owner: &Owner, former: &[IpAddr]) -> Result<()> {
        if let Some((port, mac)) = self.checked {
            let port = IfName::new(port)?;
            let known = [spoof_check::port_element(&port), internal::port_element(&port)];
            // One request for both: in most calls nothing is to be removed.
            let has_any =
                mac.is_some() || self.internal.is_some() || nft.has_any_element(&known)?;
            match mac {
                Some(mac) => spoof_check::add(nft, batch, owner, &port, mac)?,
                None if has_any => spoof_check::clear(nft, batch, &port, None)?,
                None => {}
            }
            match self.internal {
                Some(link) => Internal { port: &port, link }.add(nft, batch, owner)?,
                None if has_any => internal::clear(nft, batch, &port)?,
                None => {}
            }
        }
        if self.masquerades {
            masquerade::add(nft, batch, owner, (self.nets, former))
        } else {
            masquerade::clear(nft, batch, owner, self.nets)
        }
    }

    /// Removes the rules of the owners, and the rules of the Go plugins for these owners. For a DEL, `addresses` are the known
    /// addresses of its attachment; else they are empty.
    pub fn remove(
        nft: &Nft,
        batch: &mut Batch,
        owners: &Owners,
        addresses: &[IpAddr],
    ) -> Result<()> {
        masquerade::remove(nft, batch, owners)?;
        spoof_check::remove(nft, batch, owners)?;
        internal::remove(nft, batch, owners)?;
        rules::remove_masquerade(nft, batch, owners, addresses)?;
        rules::remove_spoof_check(nft, batch, owners)
    }

    /// Removes the rules of an attachment immediately, in a failing ADD.
    fn undo_add(cx: &Context<'_>, at: &Attachment) -> Result<()> {
        let owners = cx.owners(Scope::One(at));
        cx.session.nft()?.transact(|nft, batch| {
            masquerade::remove(nft, batch, &owners)?;
            spoof_check::remove(nft, batch, &owners)?;
            internal::remove(nft, batch, &owners)
        })
    }
}
