//! The CNI part of a container runtime: it reads network configurations, runs their plugins in order, and caches the
//! attachments. Source: CNI specification 1.1.0, sections 1 and 3.

pub mod attached;
pub mod cache;
pub mod chain;
pub mod conf;
pub mod evidence;
pub mod gc;
pub mod group;
pub mod lifecycle;
mod lock;
pub mod named;
pub mod networks;
pub mod new_network;
#[cfg(feature = "tool")]
pub mod owners;
pub mod renumber;
mod request;
#[cfg(feature = "tool")]
pub mod reservations;
mod signs;

use std::path::Path;

use hmac_sha512::Hash;

use crate::error::Result;
use crate::names::{ContainerId, hex};

/// Where network namespaces with a name are.
pub const NAMED_NAMESPACES: &str = "/run/netns";

/// The container id of cnitool for the absolute path of a namespace.
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
