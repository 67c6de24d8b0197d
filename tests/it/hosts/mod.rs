//! Hosts and containers that are more than a container host: an administrator's own addresses, rules, routes and VPNs.

mod link_local_gateway;
mod link_of_two;
mod loopback_of_host;
mod own_rules;
mod services;
mod virtual_service;

use serde_json::{Value, json};

use crate::portmap::serve;
use crate::world::{Container, World, with};

/// Containers of one subnet in each family, each on a link of its own: `NAME 10.NUMBER.0.2`, `fd00:NUMBER::2` and so on.
fn routed(number: u8, more: Value) -> Value {
    let ranges = json!([[{"subnet": format!("10.{number}.0.0/24")}], [{"subnet": format!("fd00:{number}::/64")}]]);
    let config = json!({"cniVersion": "1.1.0", "name": format!("net{number}"), "type": "ptp",
        "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}});
    with(&config, more)
}

/// A container with a server on port 80, and the configuration of `portmap` that publishes it.
fn published<'w>(
    world: &'w World,
    name: &str,
    network: &Value,
    port: u16,
    keys: Value,
) -> (Container<'w>, Value) {
    let container = world.container(name);
    let plugin = network["type"].as_str().unwrap();
    let result = container.add(plugin, network);
    let ports = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let config = json!({"cniVersion": "1.1.0", "name": network["name"], "type": "portmap",
        "runtimeConfig": {"portMappings": ports}, "prevResult": result});
    let config = with(&config, keys);
    container.add("portmap", &config);
    container.check("portmap", &config, &result);
    serve(&container, "tcp", 80);
    (container, config)
}
