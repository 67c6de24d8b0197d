//! `bridge`: containers on a switch in the host.

mod add;
mod check;
mod del;
mod failures;
mod faults;
mod gateway;
mod internal;
mod many;
mod results;
mod session;
pub mod traffic;
mod vlan;

use serde_json::{Value, json};

use crate::world::{World, with};

/// The specification's own example.
fn dbnet() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "dbnet", "type": "bridge", "bridge": "cni0",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "gateway": "10.1.0.1"},
    })
}

/// Both families, with the bridge as gateway and default routes to it.
fn dual_stack() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "dual", "type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]},
    })
}

/// A switch and nothing else.
fn layer2() -> Value {
    json!({"cniVersion": "1.0.0", "name": "l2", "type": "bridge", "bridge": "cni0"})
}

fn dbnet_with(more: Value) -> Value {
    with(&dbnet(), more)
}

/// The name of the host's end of the pair in a result.
fn host_end(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

/// The address of a result without its prefix length.
fn address(result: &Value, index: usize) -> String {
    let text = result["ips"][index]["address"].as_str().unwrap();
    text.split('/').next().unwrap().to_owned()
}

/// `ip -d` about one link of the host.
fn host_link(world: &World, name: &str) -> Value {
    world.host_json(["ip", "-j", "-d", "link", "show", "dev", name])[0].clone()
}
