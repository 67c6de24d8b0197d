//! The change of an attachment's addresses by a DHCP server after ADD. The daemon changes the interface, and then has the host
//! and the cache entry follow.

use std::path::Path;

use ipnet::IpNet;

use crate::cni::success::Success;
use crate::error::Result;
use crate::names::{Attachment, NetworkName};

/// The change of one attachment's addresses.
pub struct LeaseChange {
    pub network: NetworkName,
    pub at: Attachment,
    /// Pairs of results: of an earlier lease, and of the current lease of the same family. Each has one address.
    pub leases: Vec<(Success, Success)>,
}

/// A function that makes the host and the cache entry follow a change. Idempotent, also after a partial update. Returns a text
/// about what was changed.
///
/// The first parameter is a prefix for all paths of the host.
pub type Follow = Box<dyn Fn(&Path, &LeaseChange) -> Result<String> + Send + Sync>;

impl LeaseChange {
    /// One pair of the earlier and the current address for each member of `leases`.
    pub fn address_pairs(&self) -> Vec<(IpNet, IpNet)> {
        let net = |success: &Success| success.ips.first().map(|ip| ip.address);
        self.leases.iter().filter_map(|(old, new)| Some((net(old)?, net(new)?))).collect()
    }
}
