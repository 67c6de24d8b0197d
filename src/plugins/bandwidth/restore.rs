//! Restores limits that other programs removed: the queueing disciplines, the ifb, and the redirection to it. Each is restored
//! separately, so that the others keep their queued packets.

use super::limits::Limits;
use super::{QUEUE_PACKETS, check, ifbs, make_ifb, shape};
use crate::error::{Error, Result};
use crate::names::{Attachment, NetworkName};
use crate::netlink::rtnl::{AddressField, Batch, Link, LinkChange, Rtnl, TokenBucket};
use crate::plugin::owner::Owner;
use crate::plugin::restore::Parts;

/// An attachment with limits, and its host end.
pub(super) struct Shaped<'a> {
    pub(super) host: &'a Rtnl,
    pub(super) network: &'a NetworkName,
    pub(super) at: &'a Attachment,
    /// The host end of the pair.
    pub(super) end: &'a Link,
    pub(super) limits: &'a Limits,
}

impl Shaped<'_> {
    pub(super) fn restore(&self, parts: &mut Parts) -> Result<()> {
        if let Some(bucket) = &self.limits.ingress {
            self.restore_bucket(self.end, bucket, AddressField::Source, parts);
        }
        match &self.limits.egress {
            Some(bucket) => self.restore_egress(bucket, parts),
            None => Ok(()),
        }
    }

    fn restore_egress(&self, bucket: &TokenBucket, parts: &mut Parts) -> Result<()> {
        let Self { host, network, at, end, limits } = *self;
        let owner = Owner::new(network, at);
        let find = || ifbs(host, network, at, &owner, Some(end)).map(|all| all.into_iter().next());
        let compare = || match find()? {
            Some(ifb) if ifb.up => Ok(()),
            Some(ifb) => Err(Error::internal(format_args!("interface {} is down", ifb.name))),
            None => Err(Error::internal(format_args!("ifb of interface {} not found", at.ifname))),
        };
        parts.ensure(&compare, &mut || match find()? {
            Some(ifb) => {
                let mut batch = Batch::new();
                let up = LinkChange { up: Some(true), ..LinkChange::default() };
                batch.change_link(ifb.index, &ifb.name, &up);
                host.commit(batch)
            }
            None => {
                let has_classes = limits.selector(AddressField::Destination).is_some();
                let queue_len = if has_classes { QUEUE_PACKETS } else { 0 };
                make_ifb(host, network, at, &owner, (end.mtu, queue_len)).map(drop)
            }
        });
        // The ifb is missing in a dry run, or if it could not be made.
        let Some(ifb) = find()? else { return Ok(()) };
        self.restore_bucket(&ifb, bucket, AddressField::Destination, parts);
        parts.ensure(&|| fail_if(check::redirection_mismatch(host, end, &ifb)?), &mut || {
            host.unshape_received(end.index)?;
            let mut batch = Batch::new();
            batch.redirect_incoming(end.index, &end.name, ifb.index);
            host.commit(batch)
        });
        Ok(())
    }

    /// Restores the queueing discipline of one link.
    fn restore_bucket(
        &self,
        link: &Link,
        bucket: &TokenBucket,
        field: AddressField,
        parts: &mut Parts,
    ) {
        let Self { host, limits, .. } = *self;
        let selector = limits.selector(field);
        let compare =
            || fail_if(check::shape_mismatch(host, link, bucket, selector.as_ref(), limits)?);
        parts.ensure(&compare, &mut || {
            host.unshape_sent(link.index)?;
            shape(host, link, bucket, selector.as_ref(), limits.fair_queue)
        });
    }
}

/// Converts a mismatch into an error.
fn fail_if(mismatch: Option<String>) -> Result<()> {
    mismatch.map_or(Ok(()), |mismatch| Err(Error::internal(mismatch)))
}
