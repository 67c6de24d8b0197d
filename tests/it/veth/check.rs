//! CHECK: what we set is there, and whatever of it is missing is named.

use serde_json::{Value, json};

use super::{NAMES, address, dual_stack, host_end, routed};
use crate::world::{World, with};

fn config() -> Value {
    let routes =
        json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.9.0.0/16", "table": 1000}]);
    with(&dual_stack(), json!({"mtu": 1400, "ipam": {"routes": routes}}))
}

/// Where (`c`ontainer or `h`ost) what is done, and what CHECK must name.
const CHANGES: [(char, &str, &str); 17] = [
    ('c', "ip address del IP4/24 dev eth0", "IP4"),
    ('c', "ip address del IP6/64 dev eth0", "IP6"),
    ('c', "ip link del eth0", "eth0"),
    ('c', "ip link set eth0 down", "eth0"),
    ('c', "ip link set eth0 address 02:00:00:00:00:99", "eth0"),
    ('c', "ip route del default", "0.0.0.0/0"),
    ('c', "ip -6 route del default", "::/0"),
    ('c', "ip route flush table 1000", "10.9.0.0/16"),
    ('h', "ip link set VETH down", "VETH"),
    ('h', "ip link set VETH mtu 1300", "VETH has mtu 1300, not 1400"),
    ('c', "ip link set eth0 mtu 1500", "eth0 has mtu 1500, not 1400"),
    ('c', "ip link set eth0 mtu 1380", "eth0 has mtu 1380, not 1400"),
    ('h', "echo 0 >/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
    ('h', "echo 0 >/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    ('h', "ip route del IP4 dev VETH", "IP4"),
    ('h', "ip -6 route del IP6 dev VETH", "IP6"),
    ('h', "rm /var/lib/cni/networks/p2p/IP4 /var/lib/cni/networks/p2p/IP6", "CONTAINER"),
];

#[test]
fn a_missing_setting_is_named() {
    for name in NAMES {
        for (place, script, named) in CHANGES {
            let world = World::new();
            let c1 = world.container("c1");
            let result = c1.add(name, &config());
            c1.check(name, &config(), &result);
            let real = |text: &str| {
                text.replace("IP4", &address(&result, 0))
                    .replace("IP6", &address(&result, 1))
                    .replace("VETH", &host_end(&result))
                    .replace("CONTAINER", &c1.name)
            };
            if place == 'h' {
                world.host(["sh", "-c", &real(script)]);
            } else {
                c1.exec(["sh", "-c", &real(script)]);
            }
            let outcome = c1.checking(name, &config(), &result).run();
            assert!(outcome.status != 0, "CHECK does not see: {script}\n{}", outcome.report());
            let error = outcome.error();
            let said = format!("{}: {}", error.msg, error.details);
            assert!(said.contains(&real(named)), "{script}\nnot named {}: {error:?}", real(named));
        }
    }
}

#[test]
fn a_full_prefix_is_checked_too() {
    let world = World::new();
    let c1 = world.container("c1");
    let addresses = json!([{"address": "10.9.0.5/32", "gateway": "10.9.0.1"}]);
    let config = with(
        &routed(),
        json!({"ipam": {"type": "static", "subnet": null, "addresses": addresses}}),
    );
    let result = c1.add("veth", &config);
    c1.check("veth", &config, &result);
    c1.ping("10.9.0.1");
    c1.exec(["ip", "address", "del", "10.9.0.5/32", "dev", "eth0"]);
    c1.checking("veth", &config, &result).run().fails(999, &["10.9.0.5"]);
}

#[test]
fn changes_by_other_programs_are_not_compared() {
    let world = World::new();
    let c1 = world.container("c1");
    let mut result = c1.add("veth", &config());
    c1.exec(["ip", "address", "add", "10.201.0.1/24", "dev", "eth0"]);
    c1.exec(["ip", "route", "add", "10.202.0.0/16", "via", "10.2.0.1"]);
    result["interfaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "ifb8", "mac": "02:00:00:00:00:08"}));
    let before = world.state_with(&[&c1]);
    c1.check("veth", &config(), &result);
    before.assert_same(&world.state_with(&[&c1]), "after CHECK");
}

#[test]
fn a_result_without_the_interfaces_is_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("veth", &config());
    let without_interfaces = crate::world::without(&result, "interfaces");
    c1.checking("veth", &config(), &without_interfaces).run().error();
}

/// The kernel joins the IPv6 routes of both interfaces to the subnet: one route with two nexthops.
#[test]
fn two_interfaces_in_one_subnet_are_both_sound() {
    let world = World::new();
    let c1 = world.container("c1");
    let call =
        |verb, ifname, config: &Value| c1.call("veth", verb, config).env("CNI_IFNAME", ifname);
    let results = ["eth0", "eth1"].map(|ifname| call("ADD", ifname, &dual_stack()).run().success());
    let joined = c1.exec(["ip", "-6", "route", "show", "fd00:2::/64"]);
    assert_eq!(joined.matches("nexthop").count(), 2, "{joined}");
    for (ifname, result) in ["eth0", "eth1"].into_iter().zip(&results) {
        let config = with(&dual_stack(), json!({"prevResult": result}));
        call("CHECK", ifname, &config).run().silence();
    }
    c1.exec(["ip", "-6", "route", "del", "fd00:2::/64", "via", "fd00:2::1", "dev", "eth1"]);
    let config = with(&dual_stack(), json!({"prevResult": results[1]}));
    call("CHECK", "eth1", &config).run().fails(999, &["route to fd00:2::/64 not found"]);
}
