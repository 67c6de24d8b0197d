//! The configured limits: rate and burst of each direction, and the subnets that they apply to.

use std::time::Duration;

use ipnet::IpNet;

use crate::cni::json::keys;
use crate::cni::text::parse_cidr;
use crate::error::{Error, Result};
use crate::netlink::rtnl::{AddressField, TokenBucket, TrafficSelector};

keys! {
    /// The keys that the configuration and `runtimeConfig.bandwidth` have in common. Rates are in bits per second, bursts in
    /// bits.
    #[derive(Clone)]
    pub struct Rates {
        "ingressRate" => pub(super) ingress_rate: Option<u64>,
        "ingressBurst" => pub(super) ingress_burst: Option<u64>,
        "egressRate" => pub(super) egress_rate: Option<u64>,
        "egressBurst" => pub(super) egress_burst: Option<u64>,
        "shapedSubnets" => pub(super) shaped_subnets: Vec<String>,
        "unshapedSubnets" => pub(super) unshaped_subnets: Vec<String>,
    }
}

/// A burst in bytes must be less than this: the kernel stores it in 32 bits.
const BURST_MAX: u64 = u32::MAX as u64;

/// The length of the Ethernet header, which the bucket counts as a part of the frame (ETH_HLEN in linux/if_ether.h).
const HEADER_BYTES: u32 = 14;

/// The validated configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of the traffic into the container, which the host end of the pair sends.
    pub ingress: Option<Limit>,
    /// The limit of the traffic out of the container, which the ifb sends.
    pub egress: Option<Limit>,
}

/// The limit of one direction.
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    pub bucket: TokenBucket,
    /// Selects the limited packets by the address of the container's remote host: the source of packets into the container, the
    /// destination of packets out of it. `None` means all packets.
    pub selector: Option<TrafficSelector>,
    /// Flows share the rate, if the kernel has fq_codel.
    pub fair_queue: bool,
}

impl Rates {
    /// The rates that apply: those of the configuration, or those of the runtime if the configuration has none (as in the
    /// reference).
    pub fn or(self, mut by_runtime: Self) -> Self {
        let rates = [self.ingress_rate, self.ingress_burst, self.egress_rate, self.egress_burst];
        if rates.iter().any(Option::is_some) {
            return self;
        }
        if by_runtime.shaped_subnets.is_empty() && by_runtime.unshaped_subnets.is_empty() {
            // Runtimes send rates without subnets, so the subnets of the configuration apply.
            by_runtime.shaped_subnets = self.shaped_subnets;
            by_runtime.unshaped_subnets = self.unshaped_subnets;
        }
        by_runtime
    }

    pub fn limits(&self, latency: Duration, fair_queue: bool) -> Result<Limits> {
        let shapes_subnets = !self.shaped_subnets.is_empty();
        if shapes_subnets && !self.unshaped_subnets.is_empty() {
            return Err(Error::config(
                "unshapedSubnets and shapedSubnets cannot be both specified",
            ));
        }
        let subnets = if shapes_subnets {
            nets("shapedSubnets", &self.shaped_subnets)?
        } else {
            nets("unshapedSubnets", &self.unshaped_subnets)?
        };
        let limit = |bucket: Option<TokenBucket>, field: AddressField| {
            let subnets = subnets.clone();
            let selector = TrafficSelector { subnets, shapes_subnets, field };
            let selector = Some(selector).filter(|selector| !selector.subnets.is_empty());
            bucket.map(|bucket| Limit { bucket, selector, fair_queue })
        };
        let ingress = bucket("ingress", self.ingress_rate, self.ingress_burst, latency)?;
        let egress = bucket("egress", self.egress_rate, self.egress_burst, latency)?;
        Ok(Limits {
            ingress: limit(ingress, AddressField::Source),
            egress: limit(egress, AddressField::Destination),
        })
    }
}

impl Limits {
    pub fn is_empty(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }

    /// A warning for each burst that is smaller than a full frame: tbf drops such frames. With subnets there is no warning,
    /// because a class of htb does not drop them.
    pub fn burst_warnings(&self, mtu: u32) -> Vec<String> {
        let frame = mtu.saturating_add(HEADER_BYTES);
        let directions = [("ingressBurst", &self.ingress), ("egressBurst", &self.egress)];
        let mut texts = Vec::new();
        for (key, limit) in directions {
            if let Some(Limit { bucket: TokenBucket { burst, .. }, selector: None, .. }) = limit
                && *burst < frame
            {
                let bits = 8 * u64::from(frame);
                texts.push(format!(
                    "{key} of {burst} bytes drops full frames: with mtu {mtu} they have {frame} bytes, {bits} bits"
                ));
            }
        }
        texts
    }
}

fn nets(key: &str, texts: &[String]) -> Result<Vec<IpNet>> {
    let parse =
        |text: &String| parse_cidr(text).map_err(|why| Error::config(format_args!("{key}: {why}")));
    texts.iter().map(parse).collect()
}

/// The limit of one direction, in bytes. A value of 0 means no value.
fn bucket(
    direction: &str,
    rate_bits: Option<u64>,
    burst_bits: Option<u64>,
    latency: Duration,
) -> Result<Option<TokenBucket>> {
    let refuse = |key: &str, why: &str| {
        Err(Error::config(why).with_details(format_args!("{direction}{key}")))
    };
    let (rate_bits, burst_bits) = (rate_bits.unwrap_or(0), burst_bits.unwrap_or(0));
    let (rate, burst) = (rate_bits / 8, burst_bits / 8);
    match (rate_bits, burst_bits) {
        (0, 0) => return Ok(None),
        (_, 0) => return refuse("Burst", "if rate is set, burst must also be set"),
        (0, _) => return refuse("Rate", "if burst is set, rate must also be set"),
        _ if burst >= BURST_MAX => return refuse("Burst", "burst cannot be more than 4GB"),
        _ if rate == 0 => return refuse("Rate", "cannot limit to fewer than 8 bits per second"),
        _ if burst == 0 => {
            return refuse("Burst", "cannot use a burst of fewer than 8 bits: no packet fits");
        }
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
        // containerd and CRI-O send this burst with every rate.
        let expected = TokenBucket { rate: 125_000, burst: 536_870_911, limit: 536_874_036 };
        assert_eq!(limits(1_000_000, u32::MAX.into()), Ok(Some(expected)));
    }

    #[test]
    fn a_burst_that_is_smaller_than_a_full_frame_gives_a_warning() {
        let warnings = |burst, shaped_subnets: &[&str]| {
            let shaped_subnets = shaped_subnets.iter().map(|net| (*net).to_owned()).collect();
            let rates = Rates {
                egress_rate: Some(8_000_000),
                egress_burst: Some(burst),
                shaped_subnets,
                ..Rates::default()
            };
            rates.limits(Duration::ZERO, false).unwrap().burst_warnings(1500)
        };
        assert_eq!(
            warnings(12_111, &[]),
            [
                "egressBurst of 1513 bytes drops full frames: with mtu 1500 they have 1514 bytes, 12112 bits"
            ]
        );
        assert!(warnings(12_112, &[]).is_empty() && warnings(8, &["10.0.0.0/8"]).is_empty());
    }

    #[test]
    fn an_error_names_the_invalid_key() {
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
