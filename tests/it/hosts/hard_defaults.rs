//! Hardened hosts, whose new links neither forward IPv4 nor have IPv6, and whose links answer ARP to few: the links that ADD makes
//! for its gateways do all of it.

use serde_json::{Value, json};

use super::{network, subnets, works};
use crate::world::{Call, Container, OUTSIDE, PLUGIN_DIR, World, lan, parse, runs_with, with};

const BOTH: [&str; 2] = ["10.9.0.0/24", "fd00:9::/64"];
const HARD: [&str; 3] = [
    "ipv4/conf/default/forwarding=0",
    "ipv6/conf/default/forwarding=0",
    "ipv6/conf/default/disable_ipv6=1",
];

fn set(world: &World, sysctl: &str) {
    world.host(["sysctl", "-q", "-w", &format!("net/{sysctl}")]);
}

/// A host between the LAN and its containers, with these defaults for new links. Its uplink, the link `lan`, forwards.
fn host<'w>(world: &'w World, defaults: &[&str]) -> Container<'w> {
    let outside = lan(world);
    world.host(["ip", "address", "add", "10.1.0.8/24", "dev", "lan"]);
    world.host(["ip", "address", "add", "fd00:1::8/64", "dev", "lan", "nodad"]);
    world.host(["ip", "route", "add", "default", "via", OUTSIDE[0]]);
    for sysctl in ["ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1"].iter().chain(defaults) {
        set(world, sysctl);
    }
    outside
}

/// A plugin with a gateway on the host, and the link that has it; `None` is that of a pair.
type Gateway = (Value, Option<&'static str>);

fn keys() -> Value {
    let mut keys = with(&subnets(&BOTH), json!({"isGateway": true, "ipMasq": true}));
    keys["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    keys
}

fn gateways() -> [Gateway; 2] {
    [(network("bridge", keys()), Some("cni0")), (network("ptp", keys()), None)]
}

/// Calls `check` with a gateway of a VLAN, if the kernel has them.
fn with_vlan(check: fn(Gateway)) {
    if runs_with("CONFIG_BRIDGE_VLAN_FILTERING") {
        check((network("bridge", with(&keys(), json!({"vlan": 7}))), Some("cni0.7")));
    }
}

fn is_online(container: &Container<'_>) {
    OUTSIDE.into_iter().for_each(|address| container.ping(address));
}

fn host_link(link: Option<&str>, result: &Value) -> String {
    link.unwrap_or_else(|| result["interfaces"][0]["name"].as_str().unwrap()).to_owned()
}

#[test]
fn containers_are_online_and_check_compares() {
    gateways().into_iter().for_each(is_online_and_compared);
}

#[test]
fn containers_with_a_vlan_gateway_are_online_and_check_compares() {
    with_vlan(is_online_and_compared);
}

#[test]
fn a_failed_add_leaves_a_bridge_that_does_not_forward() {
    let world = World::new();
    let _outside = host(&world, &HARD);
    world.host(["sh", "-ec", "ip link add cni0 type bridge; ip link set cni0 up"]);
    let c1 = world.container("c1");
    let config = network("bridge", keys());
    // The interface exists, so the ADD fails after it has the gateway addresses.
    c1.exec(["ip", "link", "add", "eth0", "type", "veth"]);
    c1.call("bridge", "ADD", &config).run().fails(999, &["already exists"]);
    assert_eq!(world.sysctl("net/ipv4/conf/cni0/forwarding"), "0");
    c1.exec(["ip", "link", "del", "eth0"]);
    c1.add("bridge", &config);
    is_online(&c1);
}

/// Each default alone, because IPv6 needs no forwarding of its link.
fn is_online_and_compared((config, link): Gateway) {
    for defaults in [&HARD[..1], &HARD[1..]] {
        let world = World::new();
        let _outside = host(&world, defaults);
        let c1 = world.container("c1");
        let result = works(&c1, &config);
        is_online(&c1);
        let link = host_link(link, &result);
        let plugin = config["type"].as_str().unwrap();
        assert_eq!(world.sysctl(&format!("net/ipv6/conf/{link}/accept_ra")), "0");
        // Another program hardens the links that exist.
        set(&world, &format!("ipv4/conf/{link}/forwarding=0"));
        let texts = [link.as_str(), "forwarding is 0"];
        c1.checking(plugin, &config, &result).run().fails(999, &texts);
        // The next ADD on a shared link, and that of a new pair.
        let c2 = world.container("c2");
        works(&c2, &config);
        is_online(&c2);
        for default in defaults {
            let (sysctl, value) = default.split_once('=').unwrap();
            assert_eq!(world.sysctl(&format!("net/{sysctl}")), value);
        }
    }
}

#[test]
fn a_bridge_without_gateway_stays_as_the_host_has_it() {
    let world = World::new();
    let _outside = host(&world, &HARD);
    works(&world.container("c1"), &network("bridge", subnets(&BOTH)));
    assert_eq!(world.sysctl("net/ipv4/conf/cni0/forwarding"), "0");
    assert_eq!(world.sysctl("net/ipv6/conf/cni0/disable_ipv6"), "1");
}

fn cnibox<'w>(world: &'w World, args: &[&str]) -> Call<'w> {
    let words = [&["/run/bin/cnibox"], args].concat();
    world.tool(&words, None).env("CNI_PATH", PLUGIN_DIR).env("NETCONFPATH", "/run/net.d")
}

#[test]
fn explain_shows_it_and_reconcile_restores_it() {
    gateways().into_iter().for_each(is_shown_and_restored);
}

#[test]
fn it_is_shown_and_restored_for_a_vlan_gateway() {
    with_vlan(is_shown_and_restored);
}

fn is_shown_and_restored((config, link): Gateway) {
    let world = World::new();
    let _outside = host(&world, &HARD);
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [config]});
    world.write("/run/net.d/net.conflist", list.to_string());
    let shown = cnibox(&world, &["explain", "net"]).run().output();
    let sysctls = ["net.ipv4.conf", "net.ipv6.conf"].map(|directory| match link {
        Some(link) => format!("sysctl {directory}.{}.", link.replace('.', "/")),
        None => format!("sysctl {directory}.veth"),
    });
    for (sysctl, value) in sysctls.iter().zip(["forwarding = 1", "disable_ipv6 = 0"]) {
        let is_shown = |line: &str| line.contains(sysctl) && line.ends_with(value);
        assert!(shown.lines().any(is_shown), "{sysctl} {value} in\n{shown}");
    }
    let c1 = world.container("c1");
    let result = parse(&cnibox(&world, &["add", "net", "c1"]).run().output());
    let link = host_link(link, &result);
    set(&world, &format!("ipv4/conf/{link}/forwarding=0"));
    let said = cnibox(&world, &["reconcile"]).run().output();
    assert!(said.contains("forwarding is 0"), "{said}");
    set(&world, &format!("ipv6/conf/{link}/disable_ipv6=1"));
    cnibox(&world, &["reconcile"]).run().output();
    cnibox(&world, &["reconcile"]).run().silence();
    cnibox(&world, &["check", "net", "c1"]).run().silence();
    is_online(&c1);
}

#[test]
fn an_uplink_is_a_finding_of_doctor() {
    let world = World::new();
    let _outside = host(&world, &HARD);
    let [(config, _), _] = gateways();
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [config]});
    world.write("/run/net.d/net.conflist", list.to_string());
    let found = || {
        let document = parse(&cnibox(&world, &["doctor", "--json"]).run().stdout);
        let all = document["findings"].as_array().unwrap().clone().into_iter();
        let text = |finding: &Value| finding["what"].as_str().unwrap().to_owned();
        all.filter(|finding| text(finding).contains("conf.lan.forwarding")).collect::<Vec<_>>()
    };
    assert_eq!(found(), [] as [Value; 0]);
    set(&world, "ipv4/conf/lan/forwarding=0");
    let c1 = world.container("c1");
    assert_eq!(found()[0]["kind"], "note");
    cnibox(&world, &["add", "net", "c1"]).run().success();
    let findings = found();
    assert_eq!(findings[0]["kind"], "broken", "{findings:?}");
    // The command is right.
    let fix = findings[0]["fix"].as_str().unwrap();
    world.host(["sh", "-ec", fix]);
    assert_eq!(found(), [] as [Value; 0]);
    is_online(&c1);
}

/// The gateway on the host end of a pair has a prefix of its own, so with `arp_ignore` 2 the host does not answer for it.
#[test]
fn a_routed_pair_does_without_arp() {
    let single = json!({"ipam": {"type": "static",
        "addresses": [{"address": "10.9.0.2/32", "gateway": "10.9.0.1"}, {"address": "fd00:9::2/128", "gateway": "fd00:9::1"}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}});
    for keys in [subnets(&BOTH), single] {
        let world = World::new();
        let _outside = host(&world, &[]);
        set(&world, "ipv4/conf/all/arp_ignore=2");
        let mut config = network("ptp", with(&keys, json!({"ipMasq": true})));
        config["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [config]});
        world.write("/run/net.d/net.conflist", list.to_string());
        let c1 = world.container("c1");
        cnibox(&world, &["add", "net", "c1"]).run().success();
        c1.ping("10.9.0.1");
        is_online(&c1);
        c1.exec(["ip", "neighbour", "del", "10.9.0.1", "dev", "eth0"]);
        // The reference does not set it.
        cnibox(&world, &["check", "net", "c1"]).run().silence();
        let said = cnibox(&world, &["reconcile", "--inside"]).run().output();
        assert!(said.contains("neighbour 10.9.0.1"), "{said}");
        is_online(&c1);
        cnibox(&world, &["reconcile", "--inside"]).run().silence();
    }
}
