//! `tap`: an interface with a program as its cable. In the tests it is a small one in Python, which opens the interface as
//! a virtual machine would.

mod add;
mod check;
mod del;
mod traffic;

use serde_json::{Value, json};

use crate::world::{Container, with};

fn plain() -> Value {
    json!({"cniVersion": "1.1.0", "name": "vm", "type": "tap"})
}

fn config() -> Value {
    with(
        &plain(),
        json!({"ipam": {
            "type": "host-local", "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "10.6.0.0/24"}], [{"subnet": "fd06::/64"}]],
        }}),
    )
}

fn plain_with(more: Value) -> Value {
    with(&plain(), more)
}

/// `ip -d` about a link of the container.
fn link(container: &Container<'_>, name: &str) -> Value {
    container.json(["ip", "-j", "-d", "link", "show", "dev", name])[0].clone()
}
