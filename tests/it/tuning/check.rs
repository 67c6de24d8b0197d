//! CHECK: it names each changed setting, and accepts another spelling of the same value.

use serde_json::json;

use super::{all, container, tuning};
use crate::world::World;

#[test]
fn a_changed_setting_is_named() {
    let world = World::new();
    let (c1, result) = container(&world);
    let config = tuning(all(), &result);
    for (command, text) in [
        (
            "ip link set eth0 address 02:00:00:00:00:fe",
            "has MAC address 02:00:00:00:00:fe, not 02:00:00:00:00:ff",
        ),
        ("ip link set eth0 mtu 1401", "has MTU 1401, not 1400"),
        ("ip link set eth0 promisc off", "has promisc off, not on"),
        ("ip link set eth0 allmulticast off", "has allmulti off, not on"),
        ("ip link set eth0 txqueuelen 78", "has txQLen 78, not 77"),
        (
            "echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_notify",
            "net/ipv4/conf/eth0/arp_notify is 0, not 1",
        ),
        ("echo 78 >/proc/sys/net/core/somaxconn", "net/core/somaxconn is 78, not 77"),
        ("echo 2000 3001 >/proc/sys/net/ipv4/ip_local_port_range", "ip_local_port_range is"),
        ("ip link set eth0 name eth1", "interface eth0 not found"),
    ] {
        let added = c1.add("tuning", &config);
        c1.check("tuning", &config, &added);
        c1.exec(["sh", "-c", command]);
        c1.checking("tuning", &config, &added).run().fails(999, &[text]);
    }
}

#[test]
fn allmulti_that_is_wanted_off_has_to_be_off() {
    let world = World::new();
    let (c1, result) = container(&world);
    let config = tuning(json!({"allmulti": false}), &result);
    let added = c1.add("tuning", &config);
    c1.check("tuning", &config, &added);
    c1.exec(["ip", "link", "set", "eth0", "allmulticast", "on"]);
    c1.checking("tuning", &config, &added).run().fails(999, &["has allmulti on, not off"]);
}

#[test]
fn another_spelling_of_the_kernel_is_the_same_value() {
    for (key, value) in [
        ("net.core.somaxconn", "0077"),
        ("net.core.somaxconn", " 0x4D\n"),
        ("net.ipv4.tcp_rmem", "4096  131072\t6291456"),
        ("net.ipv4.ip_local_reserved_ports", ""),
        ("net.ipv4.ip_local_reserved_ports", "8080,9000-9010"),
    ] {
        let world = World::new();
        let (c1, result) = container(&world);
        let config = tuning(json!({"sysctl": {key: value}}), &result);
        let added = c1.add("tuning", &config);
        c1.check("tuning", &config, &added);
    }
}

#[test]
fn unset_keys_are_not_compared() {
    let world = World::new();
    let (c1, result) = container(&world);
    let config = tuning(json!({"mtu": 1400}), &result);
    let added = c1.add("tuning", &config);
    c1.exec(["sh", "-c", "ip link set eth0 address 02:00:00:00:00:33 promisc on txqueuelen 3"]);
    c1.check("tuning", &config, &added);
}

/// A damaged file says neither that `tuning` set the MTU nor that it did not.
#[test]
fn the_plugin_that_made_the_interface_names_a_damaged_file() {
    for plugin in ["veth", "macvlan"] {
        let world = World::new();
        world.host(["ip", "link", "add", "lan", "up", "type", "bridge"]);
        let c1 = world.container("c1");
        let first = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin, "master": "lan", "mtu": 1400});
        let result = c1.add(plugin, &first);
        let result = c1.add("tuning", &tuning(json!({"mtu": 1300}), &result));
        world.write(super::FILE, "{\"mtu\": 1400}}");
        c1.checking(plugin, &first, &result).run().fails(6, &[super::FILE]);
        // The reference writes it in place before it sets a value.
        world.write(super::FILE, "{\"mtu\": 1");
        c1.checking(plugin, &first, &result).run().fails(999, &["eth0 has mtu 1300, not 1400"]);
    }
}

/// CHECK of the plugin before it leaves the MTU to tuning.
#[test]
fn the_plugin_that_made_the_interface_accepts_the_mtu_of_tuning() {
    for plugin in ["bridge", "veth", "macvlan", "tap"] {
        let world = World::new();
        world.host(["ip", "link", "add", "lan", "up", "type", "bridge"]);
        let c1 = world.container("c1");
        let first = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin, "master": "lan", "mtu": 1400});
        let result = c1.add(plugin, &first);
        let config = tuning(json!({"mtu": 1300}), &result);
        let result = c1.add("tuning", &config);
        c1.check(plugin, &first, &result);
        c1.check("tuning", &config, &result);
        c1.exec(["ip", "link", "set", "eth0", "mtu", "1280"]);
        c1.checking("tuning", &config, &result).run().fails(999, &["MTU 1280, not 1300"]);
        c1.del("tuning", &config);
        c1.check(plugin, &first, &result);
        c1.exec(["ip", "link", "set", "eth0", "mtu", "1280"]);
        c1.checking(plugin, &first, &result).run().fails(999, &["eth0 has mtu 1280, not 1400"]);
    }
}
