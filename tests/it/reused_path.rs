//! DEL of a container after its namespace ended, while its path is that of another container, which keeps everything.

use serde_json::{Value, json};

use crate::world::{Container, World, is_for_options, lan, runs_with, with};

/// Where both containers have their namespace, one after the other.
const NAME: &str = "pod";

/// The plugins of a network in their order.
type Chain = Vec<(&'static str, Value)>;

fn config(kind: &str, keys: Value) -> Value {
    let ipam = json!({"type": "host-local", "subnet": "10.1.0.0/24"});
    let base = json!({"cniVersion": "1.1.0", "name": "net", "type": kind});
    let is_chained = ["sbr", "tuning", "bandwidth", "vrf"].contains(&kind);
    with(&with(&base, if is_chained { json!({}) } else { json!({"ipam": ipam}) }), keys)
}

fn bridge() -> (&'static str, Value) {
    ("bridge", config("bridge", json!({"bridge": "br1", "isGateway": true})))
}

fn macvlan() -> (&'static str, Value) {
    ("macvlan", config("macvlan", json!({"master": "lan"})))
}

fn tuning() -> (&'static str, Value) {
    let sysctl = json!({"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "99"});
    ("tuning", config("tuning", json!({"mtu": 1300, "sysctl": sysctl})))
}

fn bandwidth() -> (&'static str, Value) {
    let rate = json!({"ingressRate": 20_000_000, "ingressBurst": 2_000_000,
        "egressRate": 10_000_000, "egressBurst": 1_000_000});
    ("bandwidth", config("bandwidth", rate))
}

fn sbr() -> (&'static str, Value) {
    ("sbr", config("sbr", json!({})))
}

/// A chain, and who answers its containers.
fn chains() -> Vec<(Chain, Option<&'static str>)> {
    vec![
        (vec![bridge()], Some("10.1.0.1")),
        (vec![("veth", config("veth", json!({})))], Some("10.1.0.1")),
        (vec![macvlan()], Some("10.1.0.254")),
        (vec![("macvlan", config("macvlan", json!({})))], Some("10.1.0.254")),
        (vec![("tap", config("tap", json!({})))], None),
        (vec![("host-device", config("host-device", json!({"device": "card"})))], None),
        (vec![bridge(), sbr()], Some("10.1.0.1")),
        (vec![bridge(), tuning()], Some("10.1.0.1")),
        (vec![bridge(), bandwidth()], Some("10.1.0.1")),
        (vec![macvlan(), sbr()], Some("10.1.0.254")),
        (vec![macvlan(), tuning()], Some("10.1.0.254")),
    ]
}

fn call(
    pod: &Container<'_>,
    id: &str,
    plugin: &str,
    verb: &str,
    config: &Value,
    result: &Value,
) -> Value {
    let config = with(config, json!({"prevResult": result}));
    let outcome = pod.call(plugin, verb, &config).env("CNI_CONTAINERID", id).run();
    if verb == "ADD" {
        return outcome.success();
    }
    outcome.silence();
    Value::Null
}

fn add(pod: &Container<'_>, id: &str, chain: &Chain) -> Value {
    if !pod.world.links().contains(&"card".into()) {
        pod.world.host(["ip", "link", "add", "card", "type", "veth", "peer", "name", "vethplug"]);
    }
    let each = chain.iter();
    each.fold(Value::Null, |result, (plugin, config)| call(pod, id, plugin, "ADD", config, &result))
}

fn del(pod: &Container<'_>, id: &str, chain: &Chain, result: &Value) {
    for (plugin, config) in chain.iter().rev() {
        call(pod, id, plugin, "DEL", config, result);
    }
}

fn is_reserved(world: &World, address: &str) -> bool {
    world.state().has(&format!("file /var/lib/cni/networks/net/{address} "))
}

/// DEL of `a` while `b` has the path.
fn spares(a: &Chain, b: &Chain, answers: Option<&str>) {
    let what = format!("{a:?}, {b:?}");
    let world = World::new();
    let _outside = lan(&world);
    world.host(["ip", "route", "add", "default", "dev", "lan"]);
    let pod = world.container(NAME);
    let result_of_a = add(&pod, "a", a);
    pod.destroy();
    world.eventually("the links of a are gone", || {
        let links = world.links();
        let has_card = links.contains(&"card".into());
        links.iter().all(|link| !link.starts_with("veth") || has_card && link == "vethplug")
    });
    let pod = world.container(NAME);
    let result = add(&pod, "b", b);
    let state = || {
        let mut lines = world.state_with(&[&pod]).lines().to_vec();
        lines.retain(|line| line.starts_with("pod "));
        lines
    };
    let before = state();
    del(&pod, "a", a, &result_of_a);
    assert_eq!(before, state(), "{what}");
    assert!(!is_reserved(&world, "10.1.0.2") && is_reserved(&world, "10.1.0.3"), "{what}");
    for (plugin, config) in b {
        call(&pod, "b", plugin, "CHECK", config, &result);
    }
    if let Some(address) = answers {
        // Where sbr is, nothing leads anywhere without a source.
        pod.pinging(address).args(&["-I", "10.1.0.3"]).output_of_success();
    }
    del(&pod, "b", b, &result);
    assert!(!is_reserved(&world, "10.1.0.3"), "{what}");
    assert_eq!(pod.exec(["ip", "-o", "link"]).lines().count(), 1, "{what}: b's own DEL removes it");
}

/// Chains with links that not every kernel has.
fn chains_of_options() -> [(&'static str, Chain, Option<&'static str>); 4] {
    let tag = json!({"master": "lan", "vlanId": 10});
    let master = json!({"master": "lan"});
    [
        ("CONFIG_DUMMY", vec![("dummy", config("dummy", json!({})))], None),
        ("CONFIG_VLAN_8021Q", vec![("vlan", config("vlan", tag))], None),
        ("CONFIG_IPVLAN", vec![("ipvlan", config("ipvlan", master))], Some("10.1.0.254")),
        (
            "CONFIG_NET_VRF",
            vec![bridge(), ("vrf", config("vrf", json!({"vrfname": "blue"})))],
            None,
        ),
    ]
}

#[test]
fn del_spares_the_container_that_has_the_path_now() {
    let always = if is_for_options() { Vec::new() } else { chains() };
    for (chain, answers) in always {
        spares(&chain, &chain, answers);
    }
    for (option, chain, answers) in chains_of_options() {
        if runs_with(option) {
            spares(&chain, &chain, answers);
        }
    }
}

#[test]
fn del_spares_a_container_of_another_plugin() {
    let tap = || vec![("tap", config("tap", json!({})))];
    let host_device = || vec![("host-device", config("host-device", json!({"device": "card"})))];
    spares(&vec![bridge()], &vec![macvlan()], Some("10.1.0.254"));
    spares(&vec![bridge()], &tap(), None);
    spares(&vec![macvlan()], &vec![bridge()], Some("10.1.0.1"));
    spares(&host_device(), &vec![bridge()], Some("10.1.0.1"));
    spares(&vec![bridge(), tuning()], &vec![macvlan()], Some("10.1.0.254"));
}

/// A link of the other container has an owner; `lo` has none.
#[test]
fn del_of_loopback_spares_lo_of_the_container_that_has_the_path_now() {
    for (plugin, config) in [bridge(), ("veth", config("veth", json!({}))), macvlan()] {
        let world = World::new();
        let _outside = lan(&world);
        let pod = world.container(NAME);
        let lo = json!({"cniVersion": "1.1.0", "name": "lo", "type": "loopback"});
        let is_up = || pod.exec(["ip", "link", "show", "lo"]).contains("LOOPBACK,UP");
        for call in [("loopback", &lo), (plugin, &config)] {
            self::call(&pod, "b", call.0, "ADD", call.1, &Value::Null);
        }
        self::call(&pod, "a", "loopback", "DEL", &lo, &Value::Null);
        assert!(is_up(), "{plugin}: DEL of a");
        self::call(&pod, "b", "loopback", "DEL", &lo, &Value::Null);
        assert!(!is_up(), "{plugin}: DEL of b");
        self::call(&pod, "b", plugin, "DEL", &config, &Value::Null);
        pod.exec(["ip", "link", "set", "lo", "up"]);
        self::call(&pod, "a", "loopback", "DEL", &lo, &Value::Null);
        assert!(!is_up(), "{plugin}: no link has an owner");
    }
}

/// As the reference makes them, which writes no owner.
#[test]
fn an_interface_that_names_no_owner_is_removed() {
    for chain in [vec![bridge()], vec![macvlan()], vec![("tap", config("tap", json!({})))]] {
        let world = World::new();
        let _outside = lan(&world);
        let pod = world.container(NAME);
        world.host(["ip", "link", "add", "br1", "type", "bridge"]);
        let result = add(&pod, "a", &chain);
        pod.exec(["ip", "link", "set", "eth0", "alias", ""]);
        for link in world.ports_of("br1") {
            let script = "ip link set LINK down; ip link set LINK name other alias ''";
            world.host(["sh", "-ec", &script.replace("LINK", &link)]);
        }
        del(&pod, "a", &chain, &result);
        assert_eq!(pod.exec(["ip", "-o", "link"]).lines().count(), 1, "{chain:?}");
    }
}
