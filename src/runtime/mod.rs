//! The CNI part of a container runtime: it reads network configurations, runs their plugins in order, and caches the
//! attachments. Source: CNI specification 1.1.0, sections 1 and 3.

#[cfg(feature = "netavark")]
mod abandoned;
pub(crate) mod attachments;
pub(crate) mod cache;
pub mod chain;
pub mod conf;
mod confirm;
pub(crate) mod gc;
pub(crate) mod host_objects;
mod in_use;
pub(crate) mod lease_change;
pub mod lifecycle;
mod lock;
pub(crate) mod multi_attach;
pub(crate) mod netns_lock;
pub(crate) mod networks;
pub(crate) mod new_network;
pub(crate) mod podman;
pub(crate) mod reconcile;
pub mod request;
#[cfg(feature = "tool")]
pub(crate) mod reservations;
mod stale;
#[cfg(feature = "tool")]
pub(crate) mod watch;

use std::path::{Path, PathBuf};

use hmac_sha512::Hash;

use crate::attachments::record::{self, Records};
use crate::error::Result;
use crate::kernel::file;
use crate::kernel::process::Process;
use crate::names::{ContainerId, hex};

use cache::Cache;
use chain::CallSettings;
use conf::Network;

/// The directory of named network namespaces, as `ip netns` uses it.
pub const NAMED_NAMESPACES: &str = "/run/netns";

/// The directory of the files that only this runtime reads. They are valid until the next boot.
const STATE: &str = "/run/cnibox";

/// The network part of a container runtime: its directories, and the settings of its plugin calls.
pub struct Runtime {
    pub settings: CallSettings,
    cache: Cache,
    records: Records,
    locks: PathBuf,
    /// /run/cnibox: the files that only this runtime reads.
    pub state: PathBuf,
    /// The directory of network configurations.
    pub configurations: PathBuf,
    /// The process that starts containers in the namespaces of its ADDs, for `Record::starter`.
    pub starter: Option<Process>,
    /// The networks that no file of `configurations` has, for commands that list and compare networks.
    pub others: Vec<Network>,
    /// The directories in which podman keeps its networks.
    pub of_podman: Vec<PathBuf>,
}

impl Runtime {
    pub fn new(settings: CallSettings, configurations: PathBuf) -> Self {
        Self::below(Path::new(""), settings, configurations)
    }

    /// The runtime of the host whose files this process sees below `prefix`.
    fn below(prefix: &Path, settings: CallSettings, configurations: PathBuf) -> Self {
        let below = |path: &Path| file::below(prefix, path);
        let state = below(Path::new(STATE));
        Self {
            settings,
            cache: Cache::new(below(cache::DIRECTORY.path())),
            records: Records::in_directory(below(record::DIRECTORY.path())),
            locks: state.join("locks"),
            state,
            configurations,
            starter: None,
            others: Vec::new(),
            of_podman: Vec::new(),
        }
    }
}

/// The container id that cnitool derives from the absolute path of a namespace.
pub fn container_id_of(netns: &Path) -> Result<ContainerId> {
    let hash = Hash::hash(netns.as_os_str().as_encoded_bytes());
    ContainerId::new(format!("cnitool-{}", hex(&hash[..10])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids_are_those_of_cnitool() {
        let id = container_id_of(Path::new("/run/netns/c1")).unwrap();
        assert_eq!(&*id, "cnitool-20b4ff582526573bbe7d");
    }
}
