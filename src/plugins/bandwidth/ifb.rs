//! The ifb of an attachment, to which the host end of its pair redirects the packets of the container.

use super::limits::Limit;
use crate::attachments::owner::Owner;
use crate::error::{Error, Result};
use crate::names::Attachment;
use crate::netlink::rtnl::{Link, LinkChange, NewLink, Rtnl, Traffic};
use crate::plugin::Context;
use crate::rules::compat::rules;
use crate::steps::link::kind;

pub const IFB: &str = "ifb";
pub const IFB_OPTION: &str = "CONFIG_IFB";
/// The length of the names that the reference gives to ifbs. It is also the maximum length of a link name.
const IFB_NAME_BYTES: usize = 15;
/// The kernel's default queue length of an Ethernet link.
const QUEUE_PACKETS: u32 = 1000;

/// Finds and makes the ifbs of one attachment.
pub struct Ifbs<'a> {
    pub host: &'a Rtnl,
    /// The two names that the ifb can have: the reference's, which all interfaces of the container share, and a name for this
    /// interface only.
    names: [String; 2],
    /// The alias with the owner.
    alias: String,
}

impl<'a> Ifbs<'a> {
    pub fn of(cx: &'a Context<'_>, at: &Attachment) -> Result<Self> {
        let network = &cx.request.network;
        let name = |texts: &[&str]| rules::hashed("bwp", texts, IFB_NAME_BYTES);
        let names =
            [name(&[network, &at.container_id]), name(&[network, &at.container_id, &at.ifname])];
        Ok(Self { host: cx.session.host()?, names, alias: Owner::new(network, at).alias() })
    }

    /// Makes the ifb for a limit and brings it up. It gets the reference's name, unless another interface of the container has
    /// an ifb with this name.
    pub fn make(&self, end: &Link, limit: &Limit) -> Result<Link> {
        let host = self.host;
        for name in &self.names {
            let new = NewLink { name, mtu: Some(end.mtu), ..NewLink::default() };
            match host.make_link(&new, IFB, &[]) {
                Ok(()) => {}
                Err(error) if error.is_exists() => continue,
                Err(error) => return Err(kind::with_option(error, IFB_OPTION)),
            }
            let ifb = host
                .link(name)?
                .ok_or_else(|| Error::internal(format_args!("cannot find link {name}")))?;
            let change = LinkChange {
                up: Some(true),
                alias: Some(&self.alias),
                // The queue of an htb class is as long as the queue of the link. The queue of tbf does not depend on the link.
                tx_queue_len: Some(if limit.selector.is_some() { QUEUE_PACKETS } else { 0 }),
                ..LinkChange::default()
            };
            host.change_link(ifb.index, name, &change)?;
            return Ok(ifb);
        }
        let name = &self.names[0];
        Err(Error::internal(format_args!("cannot add ifb link {name}: File exists")))
    }

    /// The existing ifbs. `end` is the host end of the attachment's pair, if it exists. An ifb without an alias was made by the
    /// reference, possibly for another interface of the container, or by an ADD that was killed. It belongs to the attachment
    /// unless another link redirects to it.
    pub fn find(&self, end: Option<&Link>) -> Result<Vec<Link>> {
        let mut found = Vec::new();
        for name in &self.names {
            let Some(link) = self.host.link(name)? else { continue };
            let is_ours = link.kind.as_deref() == Some(IFB)
                && match &link.alias {
                    Some(alias) => *alias == self.alias,
                    None => !self.is_used_by_another(&link, end)?,
                };
            found.extend(is_ours.then_some(link));
        }
        Ok(found)
    }

    fn is_used_by_another(&self, ifb: &Link, end: Option<&Link>) -> Result<bool> {
        for link in self.host.links_of_kind("veth")? {
            let is_end = end.is_some_and(|end| end.index == link.index);
            let leads_to_ifb = |filter: &Traffic| filter.redirects_to() == Some(ifb.index);
            if !is_end && self.host.incoming_filters(link.index)?.iter().any(leads_to_ifb) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
