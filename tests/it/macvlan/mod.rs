//! `macvlan`: containers in the network of a link of the host, here `lan`, which leads to the namespace `outside`. The
//! code that it shares with ipvlan, vlan and dummy is tested here, too, since every kernel has macvlan.

mod add;
mod check;
mod del;
mod master;
mod refused;
mod results;
mod taken_mac;
mod traffic;

use serde_json::{Value, json};

use crate::world::{Container, with};

fn plain() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "lan"})
}

fn plain_with(more: Value) -> Value {
    with(&plain(), more)
}

fn dual_stack() -> Value {
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    let routes = json!([{"dst": "10.9.0.0/16"}, {"dst": "fd09::/48"}]);
    plain_with(json!({"ipam": {"type": "host-local", "ranges": ranges, "routes": routes}}))
}

fn dual_stack_with(more: Value) -> Value {
    with(&dual_stack(), more)
}

/// `ip -d link` of the container's `eth0`.
fn eth0(container: &Container<'_>) -> Value {
    container.json(["ip", "-j", "-d", "link", "show", "dev", "eth0"])[0].clone()
}

fn address(result: &Value, index: usize) -> String {
    let text = result["ips"][index]["address"].as_str().unwrap();
    text.split('/').next().unwrap().to_owned()
}
