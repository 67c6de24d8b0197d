//! Hosts and containers that are more than a container host: an administrator's own addresses, rules, routes and VPNs.

mod advertisements;
mod after_a_reboot;
mod bridge_of_another;
mod cleaned;
mod gateway_on_a_vlan;
mod gateway_outside;
mod hard_defaults;
mod link_local_gateway;
mod link_of_two;
mod loopback_of_host;
mod own_addresses;
mod own_namespace;
mod own_rules;
mod published_ports;
mod read_only_sysctls;
mod reverse_path;
mod services;
mod small_mtu;
mod source_links;
mod virtual_service;
mod without_ipv6;

use serde_json::{Value, json};

use crate::parity::reference;
use crate::portmap::serve;
use crate::world::{Container, World, with};

/// Containers of one subnet in each family, each on a link of its own: `NAME 10.NUMBER.0.2`, `fd00:NUMBER::2` and so on.
fn routed(number: u8, more: Value) -> Value {
    let ranges = json!([[{"subnet": format!("10.{number}.0.0/24")}], [{"subnet": format!("fd00:{number}::/64")}]]);
    let config = json!({"cniVersion": "1.0.0", "name": format!("net{number}"), "type": "ptp",
        "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}});
    with(&config, more)
}

/// Whose plugins attach a container. Where both do the same, a test runs with both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Cnibox,
    /// The reference, which knows versions up to 1.0.0.
    Go,
}

impl By {
    const BOTH: [Self; 2] = [Self::Cnibox, Self::Go];

    #[track_caller]
    fn add(self, container: &Container<'_>, config: &Value) -> Value {
        let call = container.call(config["type"].as_str().unwrap(), "ADD", config);
        let call = match self {
            Self::Cnibox => call,
            Self::Go => {
                call.of_directory(&reference()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            }
        };
        call.run().success()
    }
}

/// A container with a server on port 80, and the configuration of `portmap` that publishes it.
fn published<'w>(
    world: &'w World,
    name: &str,
    network: &Value,
    port: u16,
    keys: Value,
) -> (Container<'w>, Value) {
    published_by(By::Cnibox, world, name, network, port, keys)
}

#[track_caller]
fn published_by<'w>(
    by: By,
    world: &'w World,
    name: &str,
    network: &Value,
    port: u16,
    keys: Value,
) -> (Container<'w>, Value) {
    let container = world.container(name);
    let result = by.add(&container, network);
    let ports = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let config = json!({"cniVersion": "1.0.0", "name": network["name"], "type": "portmap",
        "runtimeConfig": {"portMappings": ports}, "prevResult": result});
    let config = with(&config, keys);
    by.add(&container, &config);
    if by == By::Cnibox {
        container.check("portmap", &config, &result);
    }
    serve(&container, "tcp", 80);
    (container, config)
}

fn network(plugin: &str, keys: Value) -> Value {
    with(&json!({"cniVersion": "1.1.0", "name": "net", "type": plugin}), keys)
}

/// A key `ipam` with one address of each subnet.
fn subnets(subnets: &[&str]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({"ipam": {"type": "host-local", "ranges": ranges}})
}

/// STATUS and ADD agree that a container can be attached, and CHECK with them.
#[track_caller]
fn works(container: &Container<'_>, config: &Value) -> Value {
    let plugin = config["type"].as_str().unwrap();
    container.world.call(plugin, "STATUS", config).run().silence();
    let result = container.add(plugin, config);
    container.check(plugin, config, &result);
    result
}

/// STATUS fails with the first code and ADD with the second one, both with the texts, and neither changes anything.
#[track_caller]
fn fails(container: &Container<'_>, config: &Value, codes: [u64; 2], texts: &[&str]) {
    let plugin = config["type"].as_str().unwrap();
    let before = container.world.state();
    container.world.call(plugin, "STATUS", config).run().fails(codes[0], texts);
    before.assert_same(&container.world.state(), "STATUS changes nothing");
    container.call(plugin, "ADD", config).run().fails(codes[1], texts);
}
