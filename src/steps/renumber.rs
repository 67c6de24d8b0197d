//! The change of an attachment's address by a DHCP server after ADD. The daemon changes the interface, and then has the rules
//! of the host and the cache entry updated.

use std::path::Path;

use ipnet::IpNet;

use crate::cni::success::Success;
use crate::error::Result;
use crate::names::{Attachment, NetworkName};

/// The change of one attachment's addresses.
pub struct Change {
    pub network: NetworkName,
    pub at: Attachment,
    /// Pairs of results: of an earlier lease, and of the current lease of the same family. Each has one address.
    pub leases: Vec<(Success, Success)>,
}

/// A function that updates the rules of the host and the cache entry after a change. Idempotent, also after a partial update.
/// Returns a text about the updated objects.
///
/// The first parameter is a prefix for all paths of the host.
pub type Follow = Box<dyn Fn(&Path, &Change) -> Result<String> + Send + Sync>;

impl Change {
    /// One pair of the earlier and the current address for each member of `leases`.
    pub fn address_pairs(&self) -> Vec<(IpNet, IpNet)> {
        let net = |success: &Success| success.ips.first().map(|ip| ip.address);
        self.leases.iter().filter_map(|(old, new)| Some((net(old)?, net(new)?))).collect()
    }
}
