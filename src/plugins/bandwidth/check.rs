//! Compares the queueing disciplines, classes and filters of the kernel with the configured limits.

use ipnet::IpNet;

use super::limits::Limits;
use crate::error::Result;
use crate::names::Attachment;
use crate::netlink::rtnl::{AddressField, Link, Rtnl, TokenBucket, Traffic, TrafficSelector};

/// Describes the first difference from the state that ADD makes. `None` if there is no difference. `ifb` is the ifb of the
/// attachment, if it exists.
pub fn mismatch(
    host: &Rtnl,
    at: &Attachment,
    end: &Link,
    ifb: Option<&Link>,
    limits: &Limits,
) -> Result<Option<String>> {
    if let Some(bucket) = &limits.ingress {
        let found = shape_mismatch(
            host,
            end,
            bucket,
            limits.selector(AddressField::Source).as_ref(),
            limits,
        )?;
        if found.is_some() {
            return Ok(found);
        }
    }
    let Some(bucket) = &limits.egress else { return Ok(None) };
    let Some(ifb) = ifb else {
        return Ok(Some(format!("ifb of interface {} not found", at.ifname)));
    };
    if !ifb.up {
        return Ok(Some(format!("interface {} is down", ifb.name)));
    }
    let found = shape_mismatch(
        host,
        ifb,
        bucket,
        limits.selector(AddressField::Destination).as_ref(),
        limits,
    )?;
    if found.is_some() {
        return Ok(found);
    }
    redirection_mismatch(host, end, ifb)
}

/// Describes the difference if the host end does not redirect all received packets to the ifb.
pub(super) fn redirection_mismatch(host: &Rtnl, end: &Link, ifb: &Link) -> Result<Option<String>> {
    let leads_to_ifb = |filter: &Traffic| filter.redirects_all_to(ifb.index);
    let is_there = host.incoming_filters(end.index)?.iter().any(leads_to_ifb);
    let (end, ifb) = (&end.name, &ifb.name);
    let mismatch = || format!("interface {end} does not redirect its traffic to {ifb}");
    Ok((!is_there).then(mismatch))
}

/// Describes the first difference between the queueing discipline of a link and the configuration.
pub(super) fn shape_mismatch(
    host: &Rtnl,
    link: &Link,
    bucket: &TokenBucket,
    selector: Option<&TrafficSelector>,
    limits: &Limits,
) -> Result<Option<String>> {
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
            (limits.fair_queue && queue.is_fair())
                || ((limits.fair_queue || selector.is_some()) && queue.is_queue(bucket))
        }
        // The kernel does not list the inner queue of tbf.
        None => !limits.fair_queue && selector.is_none(),
    };
    if is_expected { Ok(None) } else { has("another queue than configured") }
}
