//! The queueing disciplines, classes and filters of an attachment: sets those of the configured limits, compares them, and
//! restores those that other programs removed. Each is restored separately, so that the others keep their queued packets.

use ipnet::IpNet;

use super::ifb::Ifbs;
use super::limits::{Limit, Limits};
use crate::error::{Error, Result};
use crate::names::IfName;
use crate::netlink::rtnl::{Batch, Link, LinkChange, Rtnl, Traffic};
use crate::plugin::restore::Parts;

/// An attachment with limits.
pub struct Shaped<'a> {
    pub host: &'a Rtnl,
    pub ifname: &'a IfName,
    pub ifbs: Ifbs<'a>,
    /// The host end of the pair.
    pub end: Link,
    pub limits: Limits,
}

impl Shaped<'_> {
    /// Describes the first difference from the state that ADD makes. `None` if there is no difference. `ifb` is the ifb of the
    /// attachment, if it exists.
    pub fn mismatch(&self, ifb: Option<&Link>) -> Result<Option<String>> {
        if let Some(limit) = &self.limits.ingress
            && let Some(found) = self.shape_mismatch(&self.end, limit)?
        {
            return Ok(Some(found));
        }
        let Some(limit) = &self.limits.egress else { return Ok(None) };
        let ifb = match self.up(ifb) {
            Ok(ifb) => ifb,
            Err(mismatch) => return Ok(Some(mismatch)),
        };
        match self.shape_mismatch(ifb, limit)? {
            None => self.redirection_mismatch(ifb),
            found => Ok(found),
        }
    }

    /// The ifb, or the reason why it cannot limit the traffic.
    fn up<'a>(&self, ifb: Option<&'a Link>) -> Result<&'a Link, String> {
        match ifb {
            Some(ifb) if ifb.up => Ok(ifb),
            Some(ifb) => Err(format!("interface {} is down", ifb.name)),
            None => Err(format!("ifb of interface {} not found", self.ifname)),
        }
    }

    /// Describes the difference if the host end does not redirect all received packets to the ifb.
    fn redirection_mismatch(&self, ifb: &Link) -> Result<Option<String>> {
        let leads_to_ifb = |filter: &Traffic| filter.redirects_all_to(ifb.index);
        let is_there = self.host.incoming_filters(self.end.index)?.iter().any(leads_to_ifb);
        let (end, ifb) = (&self.end.name, &ifb.name);
        Ok((!is_there).then(|| format!("interface {end} does not redirect its traffic to {ifb}")))
    }

    /// Describes the first difference between the queueing discipline of a link and the configuration.
    fn shape_mismatch(&self, link: &Link, limit: &Limit) -> Result<Option<String>> {
        let (host, Limit { bucket, selector, fair_queue }) = (self.host, limit);
        let selector = selector.as_ref();
        let has = |what: &str| Ok(Some(format!("interface {} has {what}", link.name)));
        let Some(root) = host.root_discipline(link.index)? else {
            return has("no queueing discipline that limits its rate");
        };
        let is_configured =
            selector.map_or_else(|| root.is_bucket(bucket), |selector| root.is_htb_for(selector));
        if !is_configured {
            return has(&format!("another queueing discipline than configured: {}", root.kind));
        }
        if let Some(selector) = selector {
            if !host.shaped_class(link.index)?.is_some_and(|class| class.is_bucket(bucket)) {
                return has("no class that limits its rate");
            }
            let filters = host.outgoing_filters(link.index)?;
            let is_missing =
                |net: &&IpNet| !filters.iter().any(|filter| filter.is_filter_for(**net, selector));
            if let Some(net) = selector.subnets.iter().find(is_missing) {
                return has(&format!("no filter for {net}"));
            }
        }
        let is_expected = match host.queue(link.index, selector)? {
            Some(queue) => {
                (*fair_queue && queue.is_fair())
                    || ((*fair_queue || selector.is_some()) && queue.is_queue(bucket))
            }
            // The kernel does not list the inner queue of tbf.
            None => !fair_queue && selector.is_none(),
        };
        if is_expected { Ok(None) } else { has("another queue than configured") }
    }

    /// Sets the queueing discipline of a link.
    pub fn shape(&self, link: &Link, limit: &Limit) -> Result<()> {
        let (host, Limit { bucket, selector, fair_queue }) = (self.host, limit);
        let selector = selector.as_ref();
        let mut batch = Batch::new();
        batch.shape(link.index, &link.name, bucket, selector);
        if *fair_queue && selector.is_none() {
            // `share_fairly` replaces this queue, if the kernel has fq_codel. CHECK accepts both queues. The kernel does not
            // list the inner queue of tbf, so CHECK could not compare it.
            batch.queue(link.index, &link.name, bucket, selector);
        }
        host.commit(batch)?;
        if *fair_queue { host.share_fairly(link.index, &link.name, selector) } else { Ok(()) }
    }

    /// Redirects the packets of the container to the ifb.
    pub fn redirect(&self, ifb: &Link) -> Result<()> {
        let mut batch = Batch::new();
        batch.redirect_incoming(self.end.index, &self.end.name, ifb.index);
        self.host.commit(batch)
    }

    pub fn restore(&self, parts: &mut Parts) -> Result<()> {
        if let Some(limit) = &self.limits.ingress {
            self.restore_shape(&self.end, limit, parts);
        }
        let Some(limit) = &self.limits.egress else { return Ok(()) };
        let find = || self.ifbs.find(Some(&self.end)).map(|all| all.into_iter().next());
        let compare = || self.up(find()?.as_ref()).map(drop).map_err(Error::internal);
        parts.ensure(&compare, &mut || match find()? {
            Some(ifb) => {
                let up = LinkChange { up: Some(true), ..LinkChange::default() };
                self.host.change_link(ifb.index, &ifb.name, &up)
            }
            None => self.ifbs.make(&self.end, limit).map(drop),
        });
        // The ifb is missing in a dry run, or if it could not be made.
        let Some(ifb) = find()? else { return Ok(()) };
        self.restore_shape(&ifb, limit, parts);
        parts.ensure(&|| fail_if(self.redirection_mismatch(&ifb)?), &mut || {
            self.host.unshape_received(self.end.index)?;
            self.redirect(&ifb)
        });
        Ok(())
    }

    fn restore_shape(&self, link: &Link, limit: &Limit, parts: &mut Parts) {
        parts.ensure(&|| fail_if(self.shape_mismatch(link, limit)?), &mut || {
            self.host.unshape_sent(link.index)?;
            self.shape(link, limit)
        });
    }
}

/// Converts a mismatch into an error.
pub fn fail_if(mismatch: Option<String>) -> Result<()> {
    mismatch.map_or(Ok(()), |mismatch| Err(Error::internal(mismatch)))
}
