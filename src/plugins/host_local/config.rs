//! The keys of `host-local` that say which addresses there are.

use std::net::IpAddr;

use serde::Deserialize;

use crate::cni::args::Args;
use crate::cni::request::Request;
use crate::cni::success::{Dns, Route};
use crate::cni::text;
use crate::cni::version::Version;
use crate::error::{Code, Error, Result};
use crate::ipam::range::{self, RangeConf, RangeSet};
use crate::ipam::resolv_conf;

/// What ADD, CHECK and STATUS need, checked.
pub(super) struct Config {
    pub(super) sets: Vec<RangeSet>,
    /// Without duplicates, in the order in which they were asked for.
    pub(super) requested: Vec<IpAddr>,
    pub(super) routes: Vec<Route>,
    resolv_conf: String,
}

/// The keys as they are written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    ipam: IpamKeys,
    runtime_config: RuntimeConfig,
    args: ArgsKey,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct IpamKeys {
    subnet: String,
    #[serde(deserialize_with = "text::optional_ip")]
    range_start: Option<IpAddr>,
    #[serde(deserialize_with = "text::optional_ip")]
    range_end: Option<IpAddr>,
    #[serde(deserialize_with = "text::optional_ip")]
    gateway: Option<IpAddr>,
    ranges: Vec<Vec<RangeConf>>,
    routes: Vec<Route>,
    resolv_conf: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    ip_ranges: Vec<Vec<RangeConf>>,
    #[serde(deserialize_with = "text::ips_or_cidrs")]
    ips: Vec<IpAddr>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ArgsKey {
    cni: CniArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CniArgs {
    #[serde(deserialize_with = "text::ips_or_cidrs")]
    ips: Vec<IpAddr>,
}

impl Config {
    pub(super) fn read(request: &Request) -> Result<Self> {
        let Keys { ipam, runtime_config, args } = request.json.read("network configuration")?;
        let mut requested = Vec::new();
        let from_env = requested_in_args(&request.args)?.into_iter();
        for ip in from_env.chain(args.cni.ips).chain(runtime_config.ips) {
            if !requested.contains(&ip) {
                requested.push(ip);
            }
        }
        let mut ranges = runtime_config.ip_ranges;
        if !ipam.subnet.is_empty() {
            let IpamKeys { subnet, range_start, range_end, gateway, .. } = ipam;
            ranges.push(vec![RangeConf { subnet, range_start, range_end, gateway }]);
        }
        ranges.extend(ipam.ranges);
        let sets = range::parse(&ranges)?;
        let v4_count = sets.iter().filter(|set| set.is_ipv4()).count();
        if request.version < Version::V0_3_0 && (v4_count > 1 || sets.len() - v4_count > 1) {
            return Err(Error::config(format!(
                "CNI version {} does not support more than 1 address per family",
                request.version
            )));
        }
        Ok(Self { sets, requested, routes: ipam.routes, resolv_conf: ipam.resolv_conf })
    }

    pub(super) fn dns(&self) -> Result<Dns> {
        match self.resolv_conf.as_str() {
            "" => Ok(Dns::default()),
            path => resolv_conf::read(path),
        }
    }
}

fn requested_in_args(args: &str) -> Result<Option<IpAddr>> {
    let Some(ip) = Args::parse(args)?.ip else { return Ok(None) };
    text::parse_ip_or_cidr(ip).map(Some).map_err(|reason| {
        let msg = format!("ARGS: error parsing value of pair {:?}: {reason}", format!("IP={ip}"));
        Error::new(Code::INVALID_ENVIRONMENT, msg)
    })
}
