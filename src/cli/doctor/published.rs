//! The ports that living containers publish.

use std::net::IpAddr;

use crate::cni::json::Json;
use crate::error::Result;
use crate::names::IpFamily;
use crate::plugins::portmap::{Mapping, Portmap};
use crate::runtime::cache::CacheEntry;

/// A published port, and the addresses of its container.
pub(super) struct Published {
    pub(super) mapping: Mapping,
    addresses: Vec<IpAddr>,
}

impl Published {
    /// Those of an attachment.
    pub(super) fn of(entry: &CacheEntry) -> Result<Vec<Self>> {
        let mappings = mappings(&entry.capability_args)?;
        if mappings.is_empty() {
            return Ok(Vec::new());
        }
        let nets = entry.success()?.unwrap_or_default().nets();
        let addresses: Vec<IpAddr> = nets.iter().map(|net| net.addr()).collect();
        let published = |mapping| Self { mapping, addresses: addresses.clone() };
        Ok(mappings.into_iter().map(published).collect())
    }

    /// The address of the container that gets the packets of a family.
    pub(super) fn address(&self, family: IpFamily) -> Option<IpAddr> {
        let mut addresses = self.addresses.iter().copied();
        addresses.find(|address| family.has(*address) && self.mapping.host_ip.is_in(family))
    }
}

/// The published ports in the capability arguments of ADD.
pub(super) fn mappings(arguments: &Json) -> Result<Vec<Mapping>> {
    let config = Json::object([("runtimeConfig", Some(arguments.clone()))]);
    Ok(config.read::<Portmap>("the published ports")?.settings()?.mappings)
}
