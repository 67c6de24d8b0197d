//! `bandwidth`: limits the rate at which the interface of a container receives and sends.
//!
//! ```json
//! { "type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000 }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `ingressRate` | integer | 0 (no limit) | Rate into the container, in bits per second. |
//! | `ingressBurst` | integer | 0 (no limit) | Burst into the container, in bits. Required with `ingressRate`, and an error without it. |
//! | `egressRate` | integer | 0 (no limit) | Rate out of the container, in bits per second. |
//! | `egressBurst` | integer | 0 (no limit) | Burst out of the container, in bits. Required with `egressRate`, and an error without it. |
//! | `shapedSubnets` | list of strings | all | Only traffic with these subnets is limited. Not with `unshapedSubnets`. |
//! | `unshapedSubnets` | list of strings | none | Traffic with these subnets is not limited. |
//! | `latency` | integer | 25 | Time in milliseconds that a packet may wait before it is dropped. |
//! | `fairQueue` | boolean | false | Flows share the rate (fq_codel inside the token bucket), if the kernel has fq_codel. |
//! | `runtimeConfig.bandwidth.ingressRate` | integer | 0 | The runtime's value (capability `bandwidth`), used if the configuration has none of the four numbers. |
//! | `runtimeConfig.bandwidth.ingressBurst` | integer | 0 | The same for `ingressBurst`. |
//! | `runtimeConfig.bandwidth.egressRate` | integer | 0 | The same for `egressRate`. |
//! | `runtimeConfig.bandwidth.egressBurst` | integer | 0 | The same for `egressBurst`. |
//! | `runtimeConfig.bandwidth.shapedSubnets` | list of strings | the configuration's | The same for `shapedSubnets`. |
//! | `runtimeConfig.bandwidth.unshapedSubnets` | list of strings | the configuration's | The same for `unshapedSubnets`. |
//!
//! The plugin follows another plugin that made a veth pair. `latency`, `fairQueue` and the subnets are not in the current
//! reference.
//!
//! A burst should have room for a full frame: the MTU and 14 bytes, 12112 bits with MTU 1500. With a smaller burst the bucket
//! drops each full frame, so ADD writes a warning to stderr. With subnets a smaller burst is possible.
//!
//! - **ADD** gives the host end of the pair a token bucket (`tbf`) for traffic into the container. Traffic out of it
//!   is redirected to an ifb link with its own token bucket; the result lists the ifb. With subnets, the bucket
//!   is a class of `htb`. A second ADD with other limits replaces those of the first.
//! - **CHECK** compares the buckets, filters and queues of the kernel with the configuration.
//! - **DEL** removes the ifb, and the queueing disciplines of the host end unless the pair belongs to another network.
//! - **GC** removes the ifbs of attachments that are not valid. Their aliases name the owners.
//! - **STATUS** fails if the kernel lacks `tbf`, `htb` or `ifb`, as far as the configuration needs them.

mod ifb;
mod limits;
mod shaped;

use std::time::Duration;

#[cfg(feature = "tool")]
use crate::cni::json::Json;
use crate::cni::json::keys;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;
use crate::netlink::rtnl::{Link, Rtnl};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::steps::link::chained;
use crate::steps::link::{host_link, kind, veth};
use crate::steps::undo::{Failures, Undo};
use ifb::{IFB, IFB_OPTION, Ifbs};
use limits::{Limits, Rates};
use shaped::Shaped;

/// The default of `latency`.
const LATENCY_MS: u32 = 25;

pub const ENTRY: Entry = Entry {
    leaves_owned: true,
    leaves_links: Some("ifb"),
    probes: &[(
        "",
        r#""ingressRate":8000,"ingressBurst":8000,"egressRate":8000,"egressBurst":8000"#,
    )],
    unreadable: Some("failed to parse network configuration"),
    ..Entry::chained::<Bandwidth>(
        "bandwidth",
        "limits the rate at which a container receives and sends",
    )
};

keys! {
    /// The keys of the configuration. The keys of `Rates` are also keys of the configuration itself.
    pub struct Bandwidth {
        "ingressRate" => ingress_rate: Option<u64>,
        "ingressBurst" => ingress_burst: Option<u64>,
        "egressRate" => egress_rate: Option<u64>,
        "egressBurst" => egress_burst: Option<u64>,
        "shapedSubnets" => shaped_subnets: Vec<String>,
        "unshapedSubnets" => unshaped_subnets: Vec<String>,
        /// In milliseconds.
        "latency" => latency: Option<u32>,
        "fairQueue" => fair_queue: bool,
        "runtimeConfig" => runtime_config: RuntimeConfig,
    }

    struct RuntimeConfig {
        "bandwidth" => bandwidth: Option<Rates>,
    }
}

/// The error text of the reference for a call without `prevResult`.
const WITHOUT_RESULT: &str = "must be called as chained plugin";

impl Plugin for Bandwidth {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        self.limits()?;
        chained::prev_result(cx, WITHOUT_RESULT).map(drop)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<Success> {
        let limits = self.limits()?;
        let mut result = chained::prev_result(cx, WITHOUT_RESULT)?;
        if limits.is_empty() {
            // An earlier ADD of the attachment may have set limits.
            clear_now(cx, at)?;
            return Ok(result);
        }
        let end = host_end(cx, at, &result)?;
        limits.burst_warnings(mtu(cx, at, &end)?).iter().for_each(|text| cx.warn(text));
        let shaped = shaped(cx, at, end, limits)?;
        let mut undo = Undo::new(cx);
        if shaped.is_unlimited()? {
            undo.push("remove the limits", || clear_now(cx, at));
        }
        // An earlier ADD may have set other limits. What it set and what stays is not changed.
        shaped.remove_unconfigured()?;
        let mut parts = Parts::to_put(Vec::new());
        shaped.reconcile(&mut parts)?;
        Error::joined(parts.errors)?;
        let ifbs = shaped.ifbs.find(Some(&shaped.end))?;
        result.interfaces.extend(ifbs.iter().map(host_link::result_interface));
        undo.keep();
        Ok(result)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        let limits = self.limits()?;
        let result = cx.request.required_prev_result()?;
        if limits.is_empty() {
            return Ok(());
        }
        shaped(cx, at, host_end(cx, at, &result)?, limits)?.reconcile(&mut Parts::to_check())
    }

    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        let limits = self.limits()?;
        let result = cx.request.required_prev_result()?;
        if limits.is_empty() {
            return Ok(());
        }
        shaped(cx, at, veth::host_end_of(cx, at, &result)?, limits)?.reconcile(parts)
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        let ifbs = match (scope.one(), netns) {
            (Some(at), Some(_)) => return clear(cx, at),
            // Without the namespace, the kernel has removed the veth pair with the limits, or will remove it soon.
            (Some(at), None) => Ifbs::of(cx, at)?.find(None)?,
            (None, _) => host_link::all_of(cx.session.host()?, IFB, &cx.owners(scope))?,
        };
        delete_later(cx, ifbs);
        Ok(())
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        // Limits in `runtimeConfig` are not known at STATUS. A network without limits is usable on any kernel.
        is_possible(cx.session.host()?, &self.limits()?).map_err(Error::into_not_available)
    }
}

impl Bandwidth {
    fn limits(&self) -> Result<Limits> {
        let own = Rates {
            ingress_rate: self.ingress_rate,
            ingress_burst: self.ingress_burst,
            egress_rate: self.egress_rate,
            egress_burst: self.egress_burst,
            shaped_subnets: self.shaped_subnets.clone(),
            unshaped_subnets: self.unshaped_subnets.clone(),
        };
        let latency = Duration::from_millis(self.latency.unwrap_or(LATENCY_MS).into());
        let by_runtime = self.runtime_config.bandwidth.clone().unwrap_or_default();
        own.or(by_runtime).limits(latency, self.fair_queue)
    }
}

/// Removes all limits of an attachment: the queueing disciplines of the host end, and the ifb.
fn clear(cx: &Context<'_>, at: &Attachment) -> Result<()> {
    let host = cx.session.host()?;
    let mut failures = Failures::default();
    // The redirection to the ifb is removed first: packets that are redirected to a removed link are lost.
    let end = chained::interface_of_del(cx, at).and_then(|link| peer_of(host, link));
    let end = failures.note(end);
    if let Some(end) = &end {
        failures.note(host.unshape(end.index));
    }
    let ifbs = Ifbs::of(cx, at).and_then(|ifbs| ifbs.find(end.as_ref()));
    delete_later(cx, failures.note(ifbs));
    failures.into_result()
}

/// Removes all limits without waiting for the end of the session.
fn clear_now(cx: &Context<'_>, at: &Attachment) -> Result<()> {
    let mut failures = Failures::default();
    failures.note(clear(cx, at));
    failures.note(cx.session.delete_links(Vec::new()));
    failures.into_result()
}

/// Leaves the deletion of the ifbs to the session: if a later plugin in the DEL of the chain deletes the veth pair, one request
/// deletes all, and the kernel waits only once.
fn delete_later(cx: &Context<'_>, ifbs: Vec<Link>) {
    ifbs.into_iter().for_each(|ifb| cx.session.delete_link_later(ifb));
}

/// Fails if the kernel lacks a feature that these limits need.
fn is_possible(host: &Rtnl, limits: &Limits) -> Result<()> {
    let Some(limit) = limits.ingress.as_ref().or(limits.egress.as_ref()) else { return Ok(()) };
    host.require_discipline(if limit.selector.is_some() { "htb" } else { "tbf" })?;
    if limits.egress.is_none() {
        return Ok(());
    }
    kind::require_kind(host, IFB, IFB_OPTION)
}

/// The peer of the container's interface, if the interface is a veth and the peer is on the host.
fn peer_of(host: &Rtnl, link: Option<Link>) -> Result<Option<Link>> {
    link.map_or(Ok(None), |link| veth::peer(host, &link))
}

/// The error text of the reference for an interface without a veth peer on the host.
const NO_PEER: &str = "no veth peer of container interface found in host ns";

/// The host end of the pair. Fails if the previous result does not list it.
fn host_end(cx: &Context<'_>, at: &Attachment, result: &Success) -> Result<Link> {
    let link = cx.session.container()?.link(&at.ifname)?;
    let end = peer_of(cx.session.host()?, link)?.ok_or_else(|| {
        Error::internal(NO_PEER).with_details(format_args!(
            "interface {} is not a veth with a peer on the host",
            at.ifname
        ))
    })?;
    // Results before version 0.3.0 have no interfaces.
    if result.interfaces.is_empty() || result.interface_index(&end.name, "").is_some() {
        return Ok(end);
    }
    let missing = format_args!("prevResult has no interface {}", end.name);
    Err(Error::config(NO_PEER).with_details(missing))
}

fn shaped<'a>(
    cx: &'a Context<'_>,
    at: &'a Attachment,
    end: Link,
    limits: Limits,
) -> Result<Shaped<'a>> {
    let ifbs = Ifbs::of(cx, at)?;
    Ok(Shaped { host: ifbs.host, ifname: &at.ifname, ifbs, end, limits })
}

/// The smaller MTU of the two ends of the pair. `tuning` can have set the MTU of the container's end.
fn mtu(cx: &Context<'_>, at: &Attachment, end: &Link) -> Result<u32> {
    Ok(host_link::in_container(cx.session.container()?, at)?.mtu.min(end.mtu))
}

/// For lint: the warnings of ADD if the pair has this MTU.
#[cfg(feature = "tool")]
pub fn warnings(plugin: &Json, mtu: u32) -> Vec<String> {
    let limits =
        plugin.read::<Bandwidth>("network configuration").and_then(|plugin| plugin.limits());
    limits.map_or_else(|_| Vec::new(), |limits| limits.burst_warnings(mtu))
}
