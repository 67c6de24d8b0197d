//! An attachment with another address than at its ADD: a DHCP server replaced it. The daemon changes the interface; the rules
//! of the host and the cache entry follow.

use std::path::Path;

use ipnet::IpNet;

use crate::cni::success::Success;
use crate::error::Result;
use crate::names::{Attachment, NetworkName};

/// The change of one attachment.
pub struct Change {
    pub network: NetworkName,
    pub at: Attachment,
    /// The results of an earlier lease and of the lease of its family now. Each has one address.
    pub leases: Vec<(Success, Success)>,
}

/// Lets the host follow a change. It may be called again, also after it was made in part. Returns a text of all that was done.
///
/// The path stands in front of the paths of the host.
pub type Follow = Box<dyn Fn(&Path, &Change) -> Result<String> + Send + Sync>;

impl Change {
    /// The addresses of before, each with that of now.
    pub fn address_pairs(&self) -> Vec<(IpNet, IpNet)> {
        let net = |success: &Success| success.ips.first().map(|ip| ip.address);
        self.leases.iter().filter_map(|(old, new)| Some((net(old)?, net(new)?))).collect()
    }
}
