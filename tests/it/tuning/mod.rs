//! `tuning`: sysctls of a container, and properties of an interface that another plugin has made.

mod allowlist;
mod check;
mod del;
mod keys;
mod reference;
mod refused;

use serde_json::{Value, json};

use crate::world::{Container, State, World, with};

const FILE: &str = "/run/cni/tuning/c1_eth0.json";

/// A container with an interface, as a plugin before left it, and that plugin's result.
fn container<'w>(world: &'w World) -> (Container<'w>, Value) {
    let c1 = world.container("c1");
    c1.exec(["sh", "-c", "ip link add eth0 address 02:00:00:00:00:01 type veth peer name peer"]);
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "eth0", "mac": "02:aa:aa:aa:aa:aa"},
            {"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500, "sandbox": c1.netns()},
        ],
        "ips": [{"address": "10.1.0.2/24", "interface": 1}],
    });
    (c1, result)
}

fn tuning(keys: Value, result: &Value) -> Value {
    let base = json!({"cniVersion": "1.1.0", "name": "net", "type": "tuning"});
    with(&with(&base, keys), json!({"prevResult": result}))
}

/// Everything that can be tuned.
fn all() -> Value {
    json!({
        "mac": "02-00-00-00-00-FF", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77,
        "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1", "net/core/somaxconn": "77",
            "net.ipv4.ip_local_port_range": "2000 3000"},
    })
}

fn link(container: &Container<'_>) -> Value {
    container.json(["ip", "-j", "-d", "link", "show", "dev", "eth0"])[0].clone()
}

/// MAC, MTU, queue length, flags of the interface, and the sysctls that `all` sets.
fn tuned(container: &Container<'_>) -> String {
    let link = link(container);
    let is_set = |flag: &str| link["flags"].as_array().unwrap().contains(&flag.into());
    let sysctls =
        ["net/ipv4/conf/eth0/arp_notify", "net/core/somaxconn", "net/ipv4/ip_local_port_range"];
    format!(
        "{} {} {} {} {} {:?}",
        link["address"].as_str().unwrap(),
        link["mtu"],
        link["txqlen"],
        is_set("PROMISC"),
        is_set("ALLMULTI"),
        sysctls.map(|name| container.sysctl(name)),
    )
}

const AFTERWARDS: &str = r#"02:00:00:00:00:ff 1400 77 true true ["1", "77", "2000\t3000"]"#;

/// All files that there may be, in a state.
fn files(world: &World) -> Vec<String> {
    let state: State = world.state();
    state.lines().iter().filter(|line| line.starts_with("file /run/cni")).cloned().collect()
}
