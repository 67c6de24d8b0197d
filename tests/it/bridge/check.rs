//! CHECK: what we set is there, and whatever of it is missing is named.

use serde_json::{Value, json};

use super::{address, dbnet_with, dual_stack, host_end, host_link, layer2};
use crate::world::{Container, World, with, without};

fn full() -> Value {
    let ipam = json!({
        "subnet": null, "gateway": null,
        "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [
            {"dst": "0.0.0.0/0"}, {"dst": "::/0"},
            {"dst": "10.7.0.0/16", "gw": "10.1.0.250"}, {"dst": "fd07::/48", "gw": "fd00:1::fa"},
            {"dst": "10.9.0.0/16", "table": 1000}, {"dst": "fd09::/48", "table": 1000},
        ],
    });
    let keys = json!({
        "isGateway": true, "mtu": 1400, "hairpinMode": true, "portIsolation": true, "ipam": ipam,
    });
    dbnet_with(keys)
}

/// A change in the container, where `IP4`, `IP6` stand for its addresses, and what CHECK must name.
const IN_CONTAINER: [(&str, &str); 17] = [
    ("ip address del IP4/16 dev eth0", "IP4"),
    ("ip address del IP6/64 dev eth0", "IP6"),
    ("ip address del IP4/16 dev eth0; ip address add IP4/24 dev eth0", "IP4"),
    ("ip link del eth0", "eth0"),
    ("ip link set eth0 down", "eth0"),
    ("ip link set eth0 down; ip link set eth0 name eth7; ip link set eth7 up", "eth0"),
    ("ip link set eth0 address 02:00:00:00:00:99", "eth0"),
    ("ip route del default", "0.0.0.0/0"),
    ("ip -6 route del default", "::/0"),
    ("ip route del 10.7.0.0/16", "10.7.0.0/16"),
    ("ip route change 10.7.0.0/16 via 10.1.0.251", "10.7.0.0/16"),
    ("ip -6 route del fd07::/48", "fd07::/48"),
    ("ip -6 route del fd07::/48; ip -6 route add fd07::/48 via fd00:1::fb", "fd07::/48"),
    ("ip link set eth0 mtu 1500", "eth0 has mtu 1500, not 1400"),
    ("ip link set eth0 mtu 1380", "eth0 has mtu 1380, not 1400"),
    ("ip route flush table 1000", "10.9.0.0/16"),
    ("ip -6 route flush table 1000", "fd09::/48"),
];

/// The same on the host, where `VETH` stands for the host's end.
const ON_HOST: [(&str, &str); 12] = [
    ("ip link set VETH nomaster", "VETH"),
    (
        "ip link set VETH nomaster; ip link add other type bridge; ip link set VETH master other",
        "VETH",
    ),
    ("ip link set VETH down", "VETH"),
    ("rm /var/lib/cni/networks/dbnet/IP4 /var/lib/cni/networks/dbnet/IP6", "CONTAINER"),
    ("ip link del VETH", "eth0"),
    ("ip link del cni0", "cni0"),
    ("ip link set VETH mtu 1300", "VETH has mtu 1300, not 1400"),
    ("bridge link set dev VETH state 0", "VETH is disabled"),
    (
        "ip link set VETH type bridge_slave hairpin off",
        "VETH of bridge cni0 is not in hairpin mode",
    ),
    ("ip link set VETH type bridge_slave isolated off", "VETH of bridge cni0 is not isolated"),
    ("echo 0 >/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
    ("echo 0 >/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
];

/// Makes an attachment, changes one thing, and expects a CHECK that fails and names it.
fn perturb(world: &World, container: &Container<'_>, on_host: bool, script: &str, named: &str) {
    let result = container.add("bridge", &full());
    container.check("bridge", &full(), &result);
    let real = |text: &str| {
        text.replace("IP4", &address(&result, 0))
            .replace("IP6", &address(&result, 1))
            .replace("VETH", &host_end(&result))
            .replace("CONTAINER", &container.name)
    };
    let script = format!("set -e; {}", real(script));
    if on_host {
        world.host(["sh", "-c", &script]);
    } else {
        container.exec(["sh", "-c", &script]);
    }
    let outcome = container.checking("bridge", &full(), &result).run();
    assert!(outcome.status != 0, "CHECK does not see: {script}\n{}", outcome.report());
    let error = outcome.error();
    let said = format!("{}: {}", error.msg, error.details);
    assert!(said.contains(&real(named)), "{script}\nnot named {}: {error:?}", real(named));
    container.del("bridge", &full());
}

#[test]
fn missing_settings_in_the_container_are_named() {
    let world = World::new();
    for (number, (script, named)) in IN_CONTAINER.into_iter().enumerate() {
        perturb(&world, &world.container(&format!("c{number}")), false, script, named);
    }
}

#[test]
fn missing_settings_on_the_host_are_named() {
    let world = World::new();
    for (number, (script, named)) in ON_HOST.into_iter().enumerate() {
        perturb(&world, &world.container(&format!("c{number}")), true, script, named);
    }
}

#[test]
fn an_address_with_a_full_prefix_is_checked_too() {
    for (ip, family) in [("10.9.0.5/32", "-4"), ("fd00:9::5/128", "-6")] {
        let world = World::new();
        let c1 = world.container("c1");
        let ipam = json!({"type": "static", "addresses": [{"address": ip}]});
        let config = with(&layer2(), json!({"ipam": ipam}));
        let result = c1.add("bridge", &config);
        c1.check("bridge", &config, &result);
        c1.exec(["ip", family, "address", "del", ip, "dev", "eth0"]);
        let host = ip.split('/').next().unwrap();
        c1.checking("bridge", &config, &result).run().fails(999, &[host]);
    }
}

#[test]
fn a_plain_switch_is_checked() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &layer2());
    c1.check("bridge", &layer2(), &result);
    world.host(["ip", "link", "set", &host_end(&result), "nomaster"]);
    c1.checking("bridge", &layer2(), &result).run().fails(999, &[&host_end(&result)]);
}

#[test]
fn changes_by_other_programs_are_not_compared() {
    let world = World::new();
    let c1 = world.container("c1");
    let mut result = c1.add("bridge", &full());
    for words in [
        "ip link set cni0 promisc on",
        "ip address add 10.200.0.1/24 dev cni0",
        "ip link add ifb9 type ifb",
    ] {
        world.host(["sh", "-c", words]);
    }
    for words in [
        "ip address add 10.201.0.1/24 dev eth0",
        "ip route add 10.202.0.0/16 via 10.1.0.1",
        "ip route add default via 10.1.0.9 metric 50",
    ] {
        c1.exec(["sh", "-c", words]);
    }
    // A later plugin of the chain reports a link on the host, which need not be there any more.
    let interfaces = result["interfaces"].as_array_mut().unwrap();
    interfaces.push(json!({"name": "ifb8", "mac": "02:00:00:00:00:08"}));
    interfaces.push(json!({"name": "ifb9"}));
    c1.check("bridge", &full(), &result);
}

#[test]
fn a_later_plugin_of_the_chain_may_change_the_mac() {
    let world = World::new();
    let c1 = world.container("c1");
    let mut result = c1.add("bridge", &full());
    c1.exec(["ip", "link", "set", "eth0", "address", "00:11:22:33:44:66"]);
    result["interfaces"][2]["mac"] = "00:11:22:33:44:66".into();
    c1.check("bridge", &full(), &result);
}

#[test]
fn configured_promiscuous_mode_is_checked() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = with(&layer2(), json!({"promiscMode": true}));
    let result = c1.add("bridge", &config);
    c1.check("bridge", &config, &result);
    world.host(["ip", "link", "set", "cni0", "promisc", "off"]);
    c1.checking("bridge", &config, &result).run().fails(999, &["cni0"]);
}

/// Spanning tree takes its time with a new port, and forwards in the end.
#[test]
fn a_port_that_does_not_forward_yet_is_no_error() {
    let world = World::new();
    world.host(["ip", "link", "add", "cni0", "type", "bridge", "stp_state", "1"]);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dual_stack());
    let state =
        || host_link(&world, &host_end(&result))["linkinfo"]["info_slave_data"]["state"].clone();
    assert_ne!(state(), "forwarding");
    c1.check("bridge", &dual_stack(), &result);
    assert_ne!(state(), "forwarding", "CHECK waits for it");
}

#[test]
fn forwarding_is_checked_where_the_bridge_is_the_gateway() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let plain = dbnet_with(json!({"name": "plain", "bridge": "plain0"}));
    let result = c1.add("bridge", &plain);
    let v4 = dbnet_with(json!({"isGateway": true}));
    let result_of_v4 = c2.add("bridge", &v4);
    world.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/all/forwarding"]);
    c2.check("bridge", &v4, &result_of_v4);
    world.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]);
    c1.check("bridge", &plain, &result);
    let named = ["net.ipv4.ip_forward"];
    c2.checking("bridge", &v4, &result_of_v4).run().fails(999, &named);
    // An ADD turns it on again.
    world.container("c3").add("bridge", &v4);
    c2.check("bridge", &v4, &result_of_v4);
}

/// Its end in the container is down, and so the port is disabled.
#[test]
fn the_port_of_an_interface_that_stays_down_is_not_waited_for() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = with(&layer2(), json!({"disableContainerInterface": true}));
    let result = c1.add("bridge", &config);
    c1.check("bridge", &config, &result);
    // The addresses of the result are compared nevertheless.
    let ips = json!({"ips": [{"address": "10.1.0.9/16", "interface": 2}]});
    let named = ["address 10.1.0.9/16 is not on interface eth0"];
    c1.checking("bridge", &config, &with(&result, ips)).run().fails(999, &named);
}

#[test]
fn a_result_without_the_interfaces_is_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &full());
    for broken in [
        json!({"cniVersion": "1.0.0"}),
        without(&result, "interfaces"),
        with(&result, json!({"interfaces": [result["interfaces"][0], result["interfaces"][1]]})),
    ] {
        c1.checking("bridge", &full(), &broken).run().error();
    }
}

#[test]
fn a_result_of_another_family_of_versions_is_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dual_stack());
    let other = with(&result, json!({"cniVersion": "0.4.0"}));
    c1.checking("bridge", &dual_stack(), &other).run().fails(999, &["0.4.0"]);
    let same = with(&result, json!({"cniVersion": "1.1.0"}));
    c1.check("bridge", &dual_stack(), &same);
    c1.check("bridge", &dual_stack(), &without(&result, "cniVersion"));
}

#[test]
fn checks_change_nothing() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &full());
    let before = world.state_with(&[&c1]);
    c1.check("bridge", &full(), &result);
    before.assert_same(&world.state_with(&[&c1]), "after CHECK");
}
