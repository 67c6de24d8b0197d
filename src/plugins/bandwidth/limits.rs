//! What the configuration asks for: how fast, in which direction, and for whom.

use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use crate::cni::text::parse_cidr;
use crate::error::{Error, Result};
use crate::kernel::rtnl::{AddressField, TokenBucket, TrafficSelector};

/// The configuration as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Keys {
    /// In bits per second, and in bits: what goes into the container.
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    /// What comes out of it.
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    shaped_subnets: Vec<String>,
    unshaped_subnets: Vec<String>,
    /// In milliseconds.
    latency: Option<u32>,
    fair_queue: bool,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    bandwidth: Option<Shape>,
}

/// The keys that may stand in `runtimeConfig.bandwidth`, too.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Shape {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    shaped_subnets: Vec<String>,
    unshaped_subnets: Vec<String>,
}

/// How long a packet may wait, where nobody says.
const LATENCY_MS: u32 = 25;
/// The largest burst, in bytes: the kernel counts them in 32 bits.
const BURST_MAX: u64 = u32::MAX as u64;

/// A configuration that has been found to be sound.
#[derive(Debug, PartialEq, Eq)]
pub struct Limits {
    /// What goes into the container: sent by the host's end of its pair.
    pub ingress: Option<TokenBucket>,
    /// What comes out of it: sent by the ifb.
    pub egress: Option<TokenBucket>,
    /// Flows share the rate, where the kernel can do that.
    pub fair_queue: bool,
    /// Of the other side; without any, everything is shaped.
    subnets: Vec<IpNet>,
    /// It is these that are shaped; else all others.
    shapes_subnets: bool,
}

impl Keys {
    /// What they mean.
    pub fn limits(&self) -> Result<Limits> {
        let own = Shape {
            ingress_rate: self.ingress_rate,
            ingress_burst: self.ingress_burst,
            egress_rate: self.egress_rate,
            egress_burst: self.egress_burst,
            shaped_subnets: self.shaped_subnets.clone(),
            unshaped_subnets: self.unshaped_subnets.clone(),
        };
        // As in the reference, what the runtime says counts only where the configuration says nothing.
        let mut by_runtime = self.runtime_config.bandwidth.clone().unwrap_or_default();
        if by_runtime.names_no_subnets() {
            // Runtimes know rates only.
            (by_runtime.shaped_subnets, by_runtime.unshaped_subnets) =
                (own.shaped_subnets.clone(), own.unshaped_subnets.clone());
        }
        let keys = if own.says_nothing() { by_runtime } else { own };
        let latency = Duration::from_millis(self.latency.unwrap_or(LATENCY_MS).into());
        let shapes_subnets = !keys.shaped_subnets.is_empty();
        if shapes_subnets && !keys.unshaped_subnets.is_empty() {
            return Err(Error::config(
                "unshapedSubnets and shapedSubnets cannot be both specified",
            ));
        }
        let subnets = if shapes_subnets {
            nets("shapedSubnets", &keys.shaped_subnets)?
        } else {
            nets("unshapedSubnets", &keys.unshaped_subnets)?
        };
        Ok(Limits {
            ingress: bucket("ingress", keys.ingress_rate, keys.ingress_burst, latency)?,
            egress: bucket("egress", keys.egress_rate, keys.egress_burst, latency)?,
            fair_queue: self.fair_queue,
            subnets,
            shapes_subnets,
        })
    }
}

impl Limits {
    pub fn are_none(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }

    /// What part of a direction is shaped; None is all of it. The subnets are those of the other side, so packets into
    /// the container come from them.
    pub fn selector(&self, field: AddressField) -> Option<TrafficSelector> {
        let selector = TrafficSelector {
            subnets: self.subnets.clone(),
            shapes_subnets: self.shapes_subnets,
            field,
        };
        (!selector.subnets.is_empty()).then_some(selector)
    }
}

impl Shape {
    fn names_no_subnets(&self) -> bool {
        self.shaped_subnets.is_empty() && self.unshaped_subnets.is_empty()
    }

    fn says_nothing(&self) -> bool {
        let numbers = [self.ingress_rate, self.ingress_burst, self.egress_rate, self.egress_burst];
        numbers.iter().all(Option::is_none)
    }
}

fn nets(key: &str, texts: &[String]) -> Result<Vec<IpNet>> {
    let parse =
        |text: &String| parse_cidr(text).map_err(|why| Error::config(format!("{key}: {why}")));
    texts.iter().map(parse).collect()
}

/// A direction; bits become bytes. Both numbers or none, and 0 is none.
fn bucket(
    direction: &str,
    rate_bits: Option<u64>,
    burst_bits: Option<u64>,
    latency: Duration,
) -> Result<Option<TokenBucket>> {
    let refuse =
        |key: &str, why: &str| Err(Error::config(why).with_details(format!("{direction}{key}")));
    let (rate_bits, burst_bits) = (rate_bits.unwrap_or(0), burst_bits.unwrap_or(0));
    let (rate, burst) = (rate_bits / 8, burst_bits / 8);
    match (rate_bits, burst_bits) {
        (0, 0) => return Ok(None),
        (_, 0) => return refuse("Burst", "if rate is set, burst must also be set"),
        (0, _) => return refuse("Rate", "if burst is set, rate must also be set"),
        _ if burst >= BURST_MAX => return refuse("Burst", "burst cannot be more than 4GB"),
        _ if rate == 0 => return refuse("Rate", "fewer than 8 bits per second cannot be kept to"),
        _ if burst == 0 => return refuse("Burst", "fewer than 8 bits let nothing pass"),
        _ => {}
    }
    let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    let waiting = u128::from(rate) * u128::from(latency_us) / 1_000_000;
    let limit = u32::try_from(waiting + u128::from(burst)).unwrap_or(u32::MAX);
    let burst = u32::try_from(burst).unwrap_or(u32::MAX);
    Ok(Some(TokenBucket { rate, burst, limit }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(rate: u64, burst: u64) -> Result<Option<TokenBucket>> {
        bucket("ingress", Some(rate), Some(burst), Duration::from_millis(25))
    }

    #[test]
    fn rates_and_bursts_become_bytes() {
        let expected = TokenBucket { rate: 1_000_000, burst: 10_000, limit: 35_000 };
        assert_eq!(limits(8_000_000, 80_000), Ok(Some(expected)));
        assert_eq!(limits(0, 0), Ok(None));
        // What containerd and CRI-O send with every rate.
        let expected = TokenBucket { rate: 125_000, burst: 536_870_911, limit: 536_874_036 };
        assert_eq!(limits(1_000_000, u32::MAX.into()), Ok(Some(expected)));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_its_key() {
        for (rate, burst, key) in [
            (1000, 0, "ingressBurst"),
            (0, 1000, "ingressRate"),
            (7, 1000, "ingressRate"),
            (1000, 7, "ingressBurst"),
            (1000, 8 * u64::from(u32::MAX), "ingressBurst"),
        ] {
            let error = limits(rate, burst).unwrap_err();
            assert_eq!(error.code, crate::error::Code::INVALID_CONFIG);
            assert_eq!(error.details, key, "{error}");
        }
    }
}
