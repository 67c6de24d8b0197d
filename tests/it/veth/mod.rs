//! `veth`, which the reference calls `ptp`: one pair between host and container, routed, no bridge. One plugin with
//! two names; every scenario runs under both.

mod add;
mod check;
mod del;
mod plain;
mod results;

use serde_json::{Value, json};

use crate::world::{World, with};

const NAMES: [&str; 2] = ["veth", "ptp"];

fn routed() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "p2p", "type": "ptp",
        "ipam": {"type": "host-local", "subnet": "10.2.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
    })
}

fn dual_stack() -> Value {
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let ranges = json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]);
    with(&routed(), json!({"ipam": {"subnet": null, "ranges": ranges, "routes": routes}}))
}

fn routed_with(more: Value) -> Value {
    with(&routed(), more)
}

fn host_end(result: &Value) -> String {
    result["interfaces"][0]["name"].as_str().unwrap().to_owned()
}

fn address(result: &Value, index: usize) -> String {
    let text = result["ips"][index]["address"].as_str().unwrap();
    text.split('/').next().unwrap().to_owned()
}

fn host_link(world: &World, name: &str) -> Value {
    world.host_json(["ip", "-j", "-d", "link", "show", "dev", name])[0].clone()
}
