//! The common part of every plugin: environment, stdin, versions, errors, names.

mod closed;
mod config;
mod environment;
mod lenient;
mod links;
mod long_ids;
mod long_input;
mod namespace;
mod not_regular;
mod percent;
mod tool;
mod unreadable;
mod unwritable;
mod versions;

use serde_json::{Value, json};

use crate::world::Bare;

/// A network that host-local can serve without touching anything but its data directory.
fn host_local(bare: &Bare) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": bare.data_dir(), "subnet": "10.1.0.0/24"},
    })
}
