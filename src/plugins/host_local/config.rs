//! The configuration of `host-local`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::args::Args;
use crate::cni::json::Json;
use crate::cni::request::Request;
use crate::cni::success::{Dns, Route};
use crate::cni::text;
use crate::cni::version::Version;
use crate::error::{Code, Error, Result};
use crate::ipam::range::{self, RangeConf, RangeSet};
use crate::ipam::{StaleOnBoot, resolv_conf, store};
use crate::names::Attachment;
use crate::plugin::assignable;

use super::{HostLocal, IpamKeys};

/// The validated configuration, for ADD, CHECK and STATUS.
pub(super) struct Config {
    pub(super) sets: Vec<RangeSet>,
    /// The requested addresses in their order, without duplicates.
    pub(super) requested: Vec<IpAddr>,
    pub(super) routes: Vec<Route>,
    pub(super) stale_on_boot: StaleOnBoot,
    is_sticky: bool,
    resolv_conf: String,
}

impl HostLocal {
    pub(super) fn ipam(&self) -> Result<&IpamKeys> {
        self.ipam.as_ref().ok_or_else(|| Error::config("IPAM config missing 'ipam' key"))
    }

    /// Validates the keys and adds the values of CNI_ARGS. DEL and GC do not call this, because they must release addresses
    /// also if the configuration is invalid.
    pub(super) fn config(&self, request: &Request) -> Result<Config> {
        let (ipam, runtime_config, args) = (self.ipam()?, &self.runtime_config, &self.args);
        let mut requested = Vec::new();
        let from_env = requested_in_args(&request.parameters.args)?.into_iter();
        for ip in from_env.chain(args.cni.ips.clone()).chain(runtime_config.ips.clone()) {
            if !requested.contains(&ip) {
                requested.push(ip);
            }
        }
        let sets = self.sets(&request.json)?;
        let v4_count = sets.iter().filter(|set| set.is_ipv4()).count();
        if request.version < Version::V0_3_0 && (v4_count > 1 || sets.len() - v4_count > 1) {
            return Err(Error::config(format_args!(
                "CNI version {} does not support more than 1 address per family",
                request.version
            )));
        }
        Ok(Config {
            sets,
            requested,
            routes: ipam.routes.clone(),
            stale_on_boot: parse_stale_on_boot(&ipam.stale_on_boot)?,
            is_sticky: ipam.sticky,
            resolv_conf: ipam.resolv_conf.clone(),
        })
    }

    /// The range sets in the order of the reference. `plugin` is the configuration of the plugin that makes the interface.
    pub(super) fn sets(&self, plugin: &Json) -> Result<Vec<RangeSet>> {
        let ipam = self.ipam()?;
        let mut ranges = self.runtime_config.ip_ranges.clone();
        if !ipam.subnet.is_empty() {
            let IpamKeys { range_start, range_end, gateway, .. } = *ipam;
            let subnet = ipam.subnet.clone();
            let exclude = Vec::new(); // `ipam.exclude` applies to all sets
            ranges.push(vec![RangeConf { subnet, range_start, range_end, gateway, exclude }]);
        }
        ranges.extend(ipam.ranges.iter().cloned());
        let sets = range::parse(&ranges, &ipam.exclude)?;
        Ok(match assignable::has_broadcast(plugin) {
            true => sets.into_iter().map(RangeSet::with_broadcast).collect(),
            false => sets,
        })
    }
}

impl Config {
    /// The identity for `sticky`: a hash of the interface and the pod name, which all containers of a pod have in common.
    /// Without a pod name, it is a hash of the interface and the container id. `None` without `sticky`.
    pub(super) fn identity(&self, at: &Attachment, request: &Request) -> Result<Option<u64>> {
        if !self.is_sticky {
            return Ok(None);
        }
        let args = Args::parse(&request.parameters.args)?;
        let name = match (args.pod_namespace, args.pod_name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            _ => at.container_id.to_string(),
        };
        Ok(Some(store::identity(&name, &at.ifname)))
    }

    /// The requested addresses, with the prefix lengths of their subnets.
    pub(super) fn requested_nets(&self) -> impl Iterator<Item = IpNet> {
        self.requested.iter().filter_map(|ip| {
            let range = self.sets.iter().find_map(|set| set.range_of(*ip))?;
            IpNet::new(*ip, range.subnet.prefix_len()).ok()
        })
    }

    pub(super) fn dns(&self) -> Result<Dns> {
        match self.resolv_conf.as_str() {
            "" => Ok(Dns::default()),
            path => resolv_conf::read(path),
        }
    }
}

fn parse_stale_on_boot(text: &str) -> Result<StaleOnBoot> {
    match text {
        "" | "reclaim" => Ok(StaleOnBoot::Reclaim),
        "keep" => Ok(StaleOnBoot::Keep),
        other => {
            let msg = format!(r#"staleOnBoot must be "reclaim" or "keep", not {other:?}"#);
            Err(Error::config(msg))
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
