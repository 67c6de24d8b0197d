//! The plugins that ask for an address, and the runtime.

use serde_json::{Value, json};

use super::capture::{Capture, of_kind};
use super::servers::{Kea, Udhcpd};
use super::{Daemon, Site, address, asking, bridge};
use crate::world::{World, not_run};

/// A container gets an address, keeps it through renewals and a kill of the daemon, and gives it back.
#[track_caller]
fn works(site: &Site<'_>, config: &Value) {
    let world = site.world;
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let mut daemon = Daemon::new(world);
    let plugin = config["type"].as_str().unwrap();
    let c1 = world.container("c1");
    let result = c1.add(plugin, config);
    let held = address(&result);
    assert_eq!(c1.addresses("eth0"), [format!("{held}/24")]);
    c1.ping("10.1.0.254");
    kea.wait_for_renewals(&held, 2);
    daemon.start_again();
    kea.wait_for_renewals(&held, 2);
    c1.check(plugin, config, &result);
    c1.ping("10.1.0.254");
    c1.del(plugin, config);
    kea.wait_for_release(&held);
}

#[test]
fn host_device() {
    let world = World::new();
    let site = Site::new(&world);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "host-device", "device": "lan",
        "ipam": {"type": "dhcp"}});
    works(&site, &config);
    assert!(world.links().contains(&"lan".to_owned()));
}

/// Whether this kernel can make links of a kind on top of `lan`.
fn has(world: &World, words: &str) -> bool {
    let script = format!("ip link add link lan name probe {words} && ip link del probe");
    world.tool(&["sh", "-c", &script], None).run().status == 0
}

#[test]
fn ipvlan_l2_with_the_broadcast_flag() {
    let world = World::new();
    let site = Site::new(&world);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "ipvlan", "master": "lan",
        "ipam": {"type": "dhcp"}});
    if has(&world, "type ipvlan mode l2") {
        // All links of the master have its MAC: the client identifier tells them apart.
        works(&site, &asking(&config, json!({"broadcast": true})));
    } else {
        not_run("the kernel lacks CONFIG_IPVLAN");
        let c1 = world.container("c1");
        c1.call("ipvlan", "ADD", &config).run().fails(999, &["the kernel lacks CONFIG_IPVLAN"]);
    }
}

#[test]
fn vlan() {
    let world = World::new();
    let site = Site::new(&world);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "vlan", "master": "lan", "vlanId": 5,
        "ipam": {"type": "dhcp"}});
    if has(&world, "type vlan id 5") {
        site.outside.exec([
            "sh",
            "-e",
            "-c",
            "ip link add link port name port.5 type vlan id 5
            ip link set port.5 master sw up",
        ]);
        works(&site, &config);
    } else {
        not_run("the kernel lacks CONFIG_VLAN_8021Q");
        let c1 = world.container("c1");
        c1.call("vlan", "ADD", &config).run().fails(999, &["the kernel lacks CONFIG_VLAN_8021Q"]);
    }
}

#[test]
fn two_interfaces_of_a_container_have_leases_of_their_own() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let first = address(&c1.add("bridge", &bridge()));
    let call = |verb| c1.call("bridge", verb, &bridge()).env("CNI_IFNAME", "eth1");
    let other = address(&call("ADD").run().success());
    assert_ne!(first, other);
    kea.wait_for_renewals(&first, 2);
    kea.wait_for_renewals(&other, 2);
    call("DEL").run().silence();
    kea.wait_for_release(&other);
    assert_eq!(kea.leased(), [first.as_str()]);
    assert_eq!(c1.addresses("eth0"), [format!("{first}/24")]);
}

#[test]
fn the_runtime_attaches_a_command_to_the_lan() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::new(&world);
    let list = json!({"cniVersion": "1.0.0", "name": "lan", "plugins": [
        {"type": "bridge", "bridge": "br0", "ipam": {"type": "dhcp"}}]});
    world.write("/run/net.d/lan.conflist", list.to_string());
    let script = "ip -o -4 address show dev eth0; exec ping -n -q -c 2 -i 1.5 10.1.0.254";
    let words = ["/run/bin/cnibox", "run", "-n", "lan", "--", "sh", "-e", "-c", script];
    let call = world.tool(&words, None).env("NETCONFPATH", "/run/net.d");
    let text = call.env("CNI_PATH", "/run/plugins").run().output();
    assert!(text.contains("inet 10.1.0.10/24 "), "{text}");
    kea.wait_for_release("10.1.0.10");
    assert_eq!(of_kind(&capture.finish(), "RELEASE").len(), 1);
}

/// podman's driver on a bridge of the LAN: the router keeps its address, and answers for it.
#[test]
fn a_bridge_of_podman() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let _server = Udhcpd::start(&site.outside, "");
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let driver = |words: &[&str], input: &Value| {
        let words = [&["/run/bin/cnibox"], words].concat();
        let call = world.tool(&words, None).env("HOME", "/run/home");
        call.stdin(input.to_string()).run().output()
    };
    let object = json!({"name": "lan", "id": "1".repeat(64), "driver": "cnibox", "network_interface": "br0",
        "ipam_options": {"driver": "dhcp"}});
    let network: Value = serde_json::from_str(&driver(&["create"], &object)).unwrap();
    let request = json!({"container_id": "c1", "container_name": "c1", "network": network,
        "network_options": {"interface_name": "eth0"}});
    driver(&["setup", &c1.netns()], &request);
    assert!(c1.addresses("eth0")[0].starts_with("10.1.0.2"), "{:?}", c1.addresses("eth0"));
    c1.ping("10.1.0.254");
    let neighbour = c1.exec(["ip", "neighbour", "show", "10.1.0.254"]);
    assert!(neighbour.contains(&site.server_mac()), "{neighbour}");
    let host = world.host(["ip", "-4", "address", "show", "dev", "br0"]);
    assert_eq!(host, "");
    let rules = world.host(["nft", "list", "ruleset"]);
    assert!(!rules.contains("masquerade"), "{rules}");
    driver(&["teardown", &c1.netns()], &request);
}
