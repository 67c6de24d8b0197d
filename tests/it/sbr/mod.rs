//! `sbr`: what is sent from the addresses of an interface leaves by that interface.

mod add;
mod check;
mod del;
mod faults;
mod reference;
mod refused;
mod traffic;

use serde_json::{Value, json};

use crate::world::{Container, World, with};

/// A container with two interfaces, as plugins before left them; the second one is ours.
fn container(world: &World) -> Container<'_> {
    let c1 = world.container("c1");
    let script = "
        ip link set lo up
        for n in 0 1; do
            name=$([ $n = 0 ] && echo eth0 || echo net1)
            ip link add $name type veth peer name peer$n
            ip link set peer$n up; ip link set $name addrgenmode none; ip link set $name up
            ip address add 10.$n.0.2/24 dev $name; ip address add fd00:$n::2/64 dev $name nodad
        done
        ip address add fe80::2/64 dev net1 nodad
        ip route add default via 10.0.0.1; ip route add default via fd00:0::1
        ip route add default via 10.1.0.1 metric 10
        ip route add 10.9.0.0/16 via 10.1.0.1 mtu 1400; ip route add fd09::/48 via fd00:1::1
        ip route add 10.8.0.0/16 dev net1 scope link; ip route add fd08::/48 via fe80::1 dev net1";
    c1.exec(["sh", "-ec", script]);
    // The kernel adds it a moment after both ends are up.
    let local_routes = || c1.exec(["ip", "-6", "route", "show", "fe80::/64"]);
    world.eventually("each peer has its route", || {
        ["peer0", "peer1"].iter().all(|peer| local_routes().contains(peer))
    });
    c1
}

/// The result of the plugin before, with net1 and another interface.
fn result(container: &Container<'_>) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "veth1"}, {"name": "net1", "sandbox": container.netns()}],
        "ips": [
            {"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 1},
            {"address": "fd00:1::2/64", "gateway": "fd00:1::1", "interface": 1},
            {"address": "10.1.0.1/24", "interface": 0},
        ],
        "routes": [{"dst": "10.9.0.0/16"}, {"dst": "fd09::/48", "gw": "fd00:1::1"}],
    })
}

fn sbr(keys: Value, result: &Value) -> Value {
    let base = json!({"cniVersion": "1.1.0", "name": "net", "type": "sbr"});
    with(&with(&base, keys), json!({"prevResult": result}))
}

fn call<'w>(container: &Container<'w>, verb: &str, config: &Value) -> crate::world::Call<'w> {
    container.call("sbr", verb, config).env("CNI_IFNAME", "net1")
}

/// All rules and routes but the kernel's own, as `ip` prints them.
fn routing(container: &Container<'_>) -> String {
    let script = "for f in -4 -6; do ip $f rule | grep -v 'lookup \\(local\\|main\\|default\\)'
        ip $f route show table all | grep -v 'table local\\|^ff00\\|^multicast'; done; true";
    let lines = container.exec(["sh", "-c", script]);
    lines.lines().map(|line| line.trim().to_owned() + "\n").collect()
}

/// By which interface packets leave, `ip route get` says.
fn way(container: &Container<'_>, to: &str, from: &str) -> String {
    let found = container.exec(["ip", "route", "get", to, "from", from]);
    let mut words = found.split_whitespace();
    words.find(|word| *word == "dev").and_then(|_| words.next()).unwrap().into()
}
