//! `firewall`: packets of containers pass where the host drops forwarded packets, and bridges are isolated. Tested with packets,
//! iptables and nft.

mod bus;
mod check;
mod del;
mod faults;
pub mod firewalld;
mod forward;
mod ingress;
mod many;
mod mark;
mod published;
mod reference;
mod refused;
mod results;
mod ruleset;

use serde_json::{Value, json};

use crate::world::{Container, World, with};

/// A network with both families; its bridge is the gateway.
fn bridge(name: &str, number: u8) -> Value {
    let ranges = json!([
        [{"subnet": format!("10.{number}.0.0/24")}],
        [{"subnet": format!("fd00:{number}::/64")}],
    ]);
    json!({
        "cniVersion": "1.1.0", "name": name, "type": "bridge", "bridge": format!("br{number}"),
        "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": ranges},
    })
}

/// The firewall behind that plugin in a chain.
fn firewall(network: &str, keys: Value, result: &Value) -> Value {
    let base = json!({"cniVersion": "1.1.0", "name": network, "type": "firewall"});
    with(&with(&base, keys), json!({"prevResult": result}))
}

/// A container on a bridge, behind the firewall. Returns the result.
fn attach(container: &Container<'_>, network: &Value, keys: Value) -> Value {
    let result = container.add("bridge", network);
    let chained = container.add("firewall", &firewall(name(network), keys, &result));
    assert_eq!(chained, result, "the result is handed on");
    result
}

/// A DEL with nothing but names: no namespace, no result.
fn forget(container: &Container<'_>, network: &str) {
    let config = firewall(network, json!({}), &Value::Null);
    container.call("firewall", "DEL", &config).without("CNI_NETNS").run().silence();
}

fn name(network: &Value) -> &str {
    network["name"].as_str().unwrap()
}

/// The address of a result without its prefix length.
fn address(result: &Value, index: usize) -> String {
    let text = result["ips"][index]["address"].as_str().unwrap();
    text.split('/').next().unwrap().to_owned()
}

/// Drops forwarded packets, as Docker does.
pub fn drop_forwarded(world: &World) {
    for iptables in ["iptables", "ip6tables"] {
        world.host([iptables, "-P", "FORWARD", "DROP"]);
    }
}

/// Keeps what the bridge forwards away from iptables, or does not.
pub fn set_br_netfilter(world: &World, value: &str) {
    for name in ["iptables", "ip6tables"] {
        let file = format!("/proc/sys/net/bridge/bridge-nf-call-{name}");
        world.host(["sh", "-c", &format!("echo {value} > {file}")]);
    }
}

/// A neighbour of the host, 192.0.2.2 and fd02::2, who knows the way to all networks here.
pub fn outside(world: &World) -> Container<'_> {
    let outside = world.container("outside");
    let netns = outside.netns();
    let script = format!(
        "ip link add wan0 type veth peer name wan1 &&
         ip link set wan1 netns {netns} &&
         ip address add 192.0.2.1/24 dev wan0 && ip address add fd02::1/64 dev wan0 nodad &&
         ip link set wan0 up &&
         nsenter --net={netns} sh -c '
             ip address add 192.0.2.2/24 dev wan1 && ip address add fd02::2/64 dev wan1 nodad &&
             ip link set wan1 up && ip link set lo up &&
             ip route add 10.0.0.0/8 via 192.0.2.1 && ip route add fd00::/16 via fd02::1'"
    );
    world.host(["sh", "-c", &script]);
    outside
}

const OUTSIDE: [&str; 2] = ["192.0.2.2", "fd02::2"];

/// One echo there and back; or none within a second.
fn reaches(from: &Container<'_>, address: &str) -> bool {
    from.tool(["ping", "-n", "-q", "-c", "1", "-W", "1", address]).run().status == 0
}

#[track_caller]
fn assert_reaches(from: &Container<'_>, addresses: &[&str]) {
    for address in addresses {
        from.ping(address);
    }
}

#[track_caller]
fn assert_does_not_reach(from: &Container<'_>, addresses: &[&str]) {
    for address in addresses {
        assert!(!reaches(from, address), "{} reaches {address}", from.name);
    }
}

/// Everything that nft sees.
fn rules(world: &World) -> String {
    world.host(["nft", "list", "ruleset"])
}
