//! What is there, against what was asked for.

use ipnet::IpNet;

use super::limits::Limits;
use crate::error::Result;
use crate::kernel::rtnl::{AddressField, Link, Rtnl, TokenBucket, Traffic, TrafficSelector};
use crate::names::Attachment;

/// The first thing that is not as an ADD makes it, in words. `ifb` is the attachment's, if there is one.
pub fn of(
    host: &Rtnl,
    at: &Attachment,
    end: &Link,
    ifb: Option<&Link>,
    limits: &Limits,
) -> Result<Option<String>> {
    if let Some(bucket) = &limits.ingress {
        let found =
            of_shape(host, end, bucket, limits.selector(AddressField::Source).as_ref(), limits)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    let Some(bucket) = &limits.egress else { return Ok(None) };
    let Some(ifb) = ifb else {
        return Ok(Some(format!("the ifb of {} not found", at.ifname)));
    };
    if !ifb.up {
        return Ok(Some(format!("interface {} is down", ifb.name)));
    }
    let found =
        of_shape(host, ifb, bucket, limits.selector(AddressField::Destination).as_ref(), limits)?;
    if found.is_some() {
        return Ok(found);
    }
    let leads_there = |filter: &Traffic| filter.redirects_all_to(ifb.index);
    if !host.incoming_filters(end.index)?.iter().any(leads_there) {
        let (end, ifb) = (&end.name, &ifb.name);
        return Ok(Some(format!("what {end} receives is not sent on to {ifb}")));
    }
    Ok(None)
}

fn of_shape(
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
    let is_asked_for =
        selector.map_or_else(|| root.is_bucket(bucket), |selector| root.is_htb_for(selector));
    if !is_asked_for {
        return has(&format!("another queueing discipline than asked for: {}", root.kind));
    }
    if let Some(selector) = selector {
        if !host.shaped_class(link.index)?.is_some_and(|class| class.is_bucket(bucket)) {
            return has("no class that limits its rate");
        }
        let filters = host.outgoing_filters(link.index)?;
        let is_missing =
            |net: &&IpNet| !filters.iter().any(|filter| filter.is_for(**net, selector));
        if let Some(net) = selector.subnets.iter().find(is_missing) {
            return has(&format!("no filter for {net}"));
        }
    }
    let is_as_made = match host.queue(link.index, selector)? {
        Some(queue) => {
            (limits.fair_queue && queue.is_fair())
                || ((limits.fair_queue || selector.is_some()) && queue.is_queue(bucket))
        }
        // Without either, the queue is tbf's own.
        None => !limits.fair_queue && selector.is_none(),
    };
    if is_as_made { Ok(None) } else { has("another queue before its limit than asked for") }
}
