//! The queueing disciplines, classes and filters of an attachment: sets those of the configured limits, compares them, and
//! restores those that other programs removed. Each is restored separately, so that the others keep their queued packets.

use ipnet::IpNet;

use super::ifb::Ifbs;
use super::limits::{Limit, Limits};
use crate::error::{Error, Result};
use crate::names::IfName;
use crate::netlink::rtnl::{Batch, Link, LinkChange, Rtnl, Traffic};
use crate::plugin::parts::Parts;
use crate::steps::link::verify;

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
    /// Whether no ADD has set limits.
    pub fn is_unlimited(&self) -> Result<bool> {
        let root = self.host.root_discipline(self.end.index)?;
        let is_shaped = root.as_ref().is_some_and(Traffic::is_shaper);
        Ok(!is_shaped && self.ifbs.find(Some(&self.end))?.is_empty())
    }

    /// Removes the limits of a direction for which none is configured, and further ifbs.
    pub fn remove_unconfigured(&self) -> Result<()> {
        let (host, end) = (self.host, &self.end);
        if self.limits.ingress.is_none() {
            host.unshape_sent(end.index)?;
        }
        let mut ifbs = self.ifbs.find(Some(end))?;
        if self.limits.egress.is_none() && !ifbs.is_empty() {
            host.unshape_received(end.index)?;
        } else if !ifbs.is_empty() {
            ifbs.remove(0);
        }
        ifbs.iter().try_for_each(|ifb| host.del_link(ifb.index))
    }

    /// Fails if the ifb cannot limit the traffic.
    fn check_up(&self, ifb: Option<&Link>) -> Result<()> {
        match ifb {
            Some(ifb) => verify::check_up(ifb),
            None => {
                Err(Error::difference(format_args!("ifb of interface {} not found", self.ifname)))
            }
        }
    }

    /// Fails if the host end does not redirect all received packets to the ifb.
    fn check_redirection(&self, ifb: &Link) -> Result<()> {
        let leads_to_ifb = |filter: &Traffic| filter.redirects_all_to(ifb.index);
        if self.host.incoming_filters(self.end.index)?.iter().any(leads_to_ifb) {
            return Ok(());
        }
        let (end, ifb) = (&self.end.name, &ifb.name);
        let msg = format!("interface {end} does not redirect its traffic to {ifb}");
        Err(Error::difference(msg))
    }

    /// Fails at the first difference between the queueing discipline of a link and the configuration.
    fn check_shape(&self, link: &Link, limit: &Limit) -> Result<()> {
        let (host, Limit { bucket, selector, fair_queue }) = (self.host, limit);
        let selector = selector.as_ref();
        let has =
            |what: &str| Err(Error::difference(format_args!("interface {} has {what}", link.name)));
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
        if is_expected { Ok(()) } else { has("another queue than configured") }
    }

    /// Sets the queueing discipline of a link.
    fn shape(&self, link: &Link, limit: &Limit) -> Result<()> {
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

    /// The parts in the order in which packets need them.
    pub fn reconcile(&self, parts: &mut Parts) -> Result<()> {
        if let Some(limit) = &self.limits.ingress {
            self.reconcile_shape(&self.end, limit, parts)?;
        }
        let Some(limit) = &self.limits.egress else { return Ok(()) };
        let find = || self.ifbs.find(Some(&self.end)).map(|all| all.into_iter().next());
        parts.ensure(&|| self.check_up(find()?.as_ref()), &mut || match find()? {
            Some(ifb) => {
                let up = LinkChange { up: Some(true), ..LinkChange::default() };
                self.host.change_link(ifb.index, &ifb.name, &up)
            }
            None => self.ifbs.make(&self.end, limit).map(drop),
        })?;
        // The ifb is missing in a dry run, or if it could not be made.
        let Some(ifb) = find()? else { return Ok(()) };
        self.reconcile_shape(&ifb, limit, parts)?;
        parts.ensure(&|| self.check_redirection(&ifb), &mut || {
            self.host.unshape_received(self.end.index)?;
            let mut batch = Batch::new();
            batch.redirect_incoming(self.end.index, &self.end.name, ifb.index);
            self.host.commit(batch)
        })
    }

    fn reconcile_shape(&self, link: &Link, limit: &Limit, parts: &mut Parts) -> Result<()> {
        parts.ensure(&|| self.check_shape(link, limit), &mut || {
            self.host.unshape_sent(link.index)?;
            self.shape(link, limit)
        })
    }
}
