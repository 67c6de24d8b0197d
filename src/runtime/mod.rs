//! What a container runtime does: reads network configurations, runs their plugins in order, and remembers what is
//! attached. Source: CNI specification 1.1.0, sections 1 and 3.

pub mod cache;
pub mod chain;
pub mod conf;
pub mod gc;
pub mod life;
pub mod lifecycle;
mod lock;
mod request;

use std::path::Path;

use crate::error::Result;
use crate::names::ContainerId;
use crate::steps::reference::hashed;

/// The id that cnitool gives to the container whose namespace has this absolute path.
pub fn container_id_of(netns: &Path) -> Result<ContainerId> {
    ContainerId::new(hashed("cnitool-", &[&netns.to_string_lossy()], 28))
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
