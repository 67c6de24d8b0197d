//! DEL and GC of a network that a container is not in: all objects of another network for an interface of the same name
//! stay, on the host and in the container, and the DEL of that network then removes them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value, json};

use crate::world::state::assert_same;
use crate::world::{Container, World, with, without};

/// The network of the container.
const OWN: &str = "net0";
/// A network with the same plugins and addresses that the container is not in.
const OTHER: &str = "net1";

/// The keys of a plugin that makes the interface.
fn first(kind: &str, keys: Value) -> Value {
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}]});
    with(&json!({"type": kind, "ipam": ipam}), keys)
}

/// Each chained plugin, with everything that it changes.
fn chained() -> Vec<Value> {
    let sysctl = json!({"net.ipv4.conf.IFNAME.arp_notify": "1", "net.core.somaxconn": "77"});
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    vec![
        json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}}),
        json!({"type": "firewall", "ingressPolicy": "same-bridge"}),
        json!({"type": "tuning", "sysctl": sysctl, "mac": "02:00:00:00:00:77", "mtu": 1400,
            "promisc": true, "allmulti": true, "txQLen": 77}),
        json!({"type": "sbr"}),
        json!({"type": "bandwidth", "ingressRate": 20_000_000, "ingressBurst": 2_000_000,
            "egressRate": 10_000_000, "egressBurst": 1_000_000}),
    ]
}

/// The plugins of the networks. The first makes the interface.
fn chains() -> Vec<Vec<Value>> {
    let bridge = first(
        "bridge",
        json!({"bridge": "br1", "isGateway": true, "ipMasq": true, "macspoofchk": true}),
    );
    let macvlan = first("macvlan", json!({"master": "lan"}));
    let of = |plugin: Value, chained: Vec<Value>| [vec![plugin], chained].concat();
    let rules_only = json!({"type": "sbr", "table": 200});
    let tuning = json!({"type": "tuning", "mtu": 1400});
    vec![
        of(bridge.clone(), chained()),
        of(bridge, vec![rules_only.clone()]),
        of(first("veth", json!({"ipMasq": true})), chained().split_off(2)),
        of(macvlan, vec![json!({"type": "sbr"}), tuning.clone()]),
        of(first("tap", json!({})), vec![tuning]),
        of(first("host-device", json!({"device": "card"})), vec![rules_only]),
        vec![json!({"type": "flannel"})],
        vec![json!({"type": "loopback"})],
    ]
}

/// Each plugin as the other network has it.
fn strangers() -> Vec<Value> {
    let mut all: Vec<Value> = chains().concat();
    // A device of this kind is in the container.
    all.push(first("host-device", json!({"device": "card2"})));
    for kind in ["vlan", "ipvlan", "dummy", "vrf"] {
        all.push(first(kind, json!({"master": "lan", "vrfname": "blue", "vlanId": 7})));
    }
    let mut each: Vec<Value> = Vec::new();
    for plugin in all {
        if !each.contains(&plugin) {
            each.push(plugin);
        }
    }
    each
}

/// A host with all that the plugins need.
fn world() -> World {
    let world = World::new();
    let script = "ip link add lan up type bridge
        ip link add card up type veth peer name plug; ip link set plug up
        mkdir -p /run/flannel; cat >/run/flannel/subnet.env <<END
FLANNEL_NETWORK=10.1.0.0/16
FLANNEL_SUBNET=10.1.0.1/24
FLANNEL_MTU=1500
FLANNEL_IPMASQ=true
END";
    world.host(["sh", "-ec", script]);
    world
}

fn container(world: &World) -> Container<'_> {
    let container = world.container("c1");
    // The kernel keeps 127.0.0.1 from the first time that `lo` is up.
    container.exec(["sh", "-ec", "ip link set lo up; ip link set lo down"]);
    container
}

/// All that can be seen on the host and in the container.
fn look(container: &Container<'_>) -> Vec<String> {
    let world = container.world;
    let state = world.state_with(&[container]).apart_from("br1", OWN);
    let state = state.apart_from("cni0", OTHER);
    let mut lines: Vec<String> =
        state.lines().iter().flat_map(|entry| entry.split('\n')).map(str::to_owned).collect();
    let links = "ip -o -d link | sed 's/^[0-9]*: //; s/ qlen [0-9]*//' | sort";
    let settings = "cat /proc/sys/net/core/somaxconn /proc/sys/net/ipv4/conf/*/arp_notify; ip -o link show eth0 || true";
    let shaping = "tc qdisc; for link in $(ls /sys/class/net); do tc filter show dev $link parent ffff: || true; done";
    let outputs = [
        world.host(["sh", "-c", shaping]),
        container.exec(["sh", "-c", links]),
        container.exec(["sh", "-c", settings]),
    ];
    lines.extend(outputs.iter().flat_map(|output| output.lines()).map(str::to_owned));
    lines
}

fn of(network: &str, plugin: &Value) -> Value {
    with(plugin, json!({"cniVersion": "1.1.0", "name": network}))
}

fn kind(plugin: &Value) -> &str {
    plugin["type"].as_str().unwrap()
}

/// ADD of the chain; returns the result of the last plugin.
fn add(container: &Container<'_>, network: &str, chain: &[Value]) -> Value {
    chain.iter().fold(Value::Null, |result, plugin| {
        let config = with(&of(network, plugin), json!({"prevResult": result}));
        container.add(kind(plugin), &config)
    })
}

fn del(container: &Container<'_>, network: &str, chain: &[Value], result: &Value) {
    for plugin in chain.iter().rev() {
        container.del(kind(plugin), &with(&of(network, plugin), json!({"prevResult": result})));
    }
}

/// Runs the test for each chain in a world of its own, and reports all that fail.
fn for_each_chain(test: impl Fn(&Container<'_>, &[Value])) {
    let mut problems = Vec::new();
    for chain in chains() {
        let run = || {
            let world = world();
            let container = container(&world);
            // This makes the objects that outlive every DEL.
            let result = add(&container, OWN, &chain);
            del(&container, OWN, &chain, &result);
            test(&container, &chain);
        };
        if let Err(why) = catch_unwind(AssertUnwindSafe(run)) {
            let kinds: Vec<&str> = chain.iter().map(kind).collect();
            let why = why.downcast_ref::<String>().map_or("?", String::as_str);
            problems.push(format!("{kinds:?}: {why}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// As without libcni: the plugin is called with whatever result it gets.
#[test]
fn each_plugin_spares_what_another_network_has() {
    for_each_chain(|container, chain| {
        let without_any = look(container);
        let result = add(container, OWN, chain);
        let before = look(container);
        let mut problems = Vec::new();
        for plugin in strangers() {
            let config = of(OTHER, &plugin);
            let with_result = with(&config, json!({"prevResult": result}));
            for config in [&config, &with_result] {
                let call = || {
                    container.del(kind(&plugin), config);
                    assert_same(&before, &look(container), &format!("DEL of {config}"));
                };
                if let Err(why) = catch_unwind(AssertUnwindSafe(call)) {
                    problems.push(why.downcast_ref::<String>().unwrap().clone());
                }
            }
            let gc = with(&config, json!({"cni.dev/valid-attachments": []}));
            container.world.call(kind(&plugin), "GC", &gc).run().silence();
            let after = look(container);
            if problems.is_empty() {
                assert_same(&before, &after, &format!("GC of {config}"));
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        for plugin in chain {
            container.check(kind(plugin), &of(OWN, plugin), &result);
        }
        del(container, OWN, chain, &result);
        if !chain.iter().any(|plugin| kind(plugin) == "sbr") {
            assert_same(&without_any, &look(container), "DEL of the network");
        }
        assert_eq!(container.exec(["ip", "-o", "link"]).lines().count(), 1);
    });
}

/// The list of a network. `portMappings` come from the command.
fn list(network: &str, chain: &[Value]) -> Value {
    let plugin = |plugin: &Value| {
        let capabilities = json!({"capabilities": {"portMappings": true}});
        without(&with(plugin, capabilities), "runtimeConfig")
    };
    let plugins: Vec<Value> = chain.iter().map(plugin).collect();
    json!({"cniVersion": "1.1.0", "name": network, "plugins": plugins})
}

#[test]
fn the_runtime_spares_what_another_network_has() {
    for_each_chain(|container, chain| {
        let world = container.world;
        for network in [OWN, OTHER] {
            let path = format!("/run/net.d/{network}.conflist");
            world.write(&path, list(network, chain).to_string());
        }
        let cnibox = |args: &[&str]| {
            let call = world.tool(&[&["/run/bin/cnibox"], args].concat(), None);
            call.env("NETCONFPATH", "/run/net.d").env("CNI_PATH", "/run/plugins").run()
        };
        cnibox(&["add", OWN, "c1", "-p", "8080:80"]).success();
        let before = look(container);
        for _ in 0..2 {
            cnibox(&["del", OTHER, "c1", "--ignore"]).silence();
            assert_same(&before, &look(container), "DEL");
        }
        cnibox(&["gc", "--uncached", OTHER]).silence();
        assert_same(&before, &look(container), "GC");
        cnibox(&["check", OWN, "c1"]).silence();
        cnibox(&["del", OWN, "c1"]).silence();
        assert_eq!(container.exec(["ip", "-o", "link"]).lines().count(), 1);
    });
}

/// The container renamed its interface, and another network has the name since.
#[test]
fn a_renamed_interface_keeps_its_del_and_the_new_one_is_spared() {
    let world = world();
    let container = container(&world);
    let bridge = |number: u8| {
        let [ip, gateway] = [format!("10.{number}.0.2/24"), format!("10.{number}.0.1")];
        let ipam = json!({"type": "static", "addresses": [{"address": ip, "gateway": gateway}]});
        json!({"type": "bridge", "bridge": "br1", "ipam": ipam})
    };
    let chain = [&[bridge(1)], &chained()[2..]].concat();
    let result = add(&container, OWN, &chain);
    let rename = "ip link set eth0 down; ip link set eth0 name old; ip link set old up";
    container.exec(["sh", "-ec", rename]);
    let later = [&[bridge(2)], &chained()[3..]].concat();
    let later_result = add(&container, OTHER, &later);
    container.exec(["sysctl", "-qw", "net.ipv4.conf.eth0.arp_notify=1"]);

    let end = later_result["interfaces"][1]["name"].as_str().unwrap();
    let shaping = format!("tc qdisc show dev {end}; tc filter show dev {end} parent ffff:");
    let interface = || {
        let in_container = "ip -d address show dev eth0; ip route show table all dev eth0
            ip rule show from 10.2.0.2; cat /proc/sys/net/ipv4/conf/eth0/arp_notify";
        container.exec(["sh", "-ec", in_container]) + &world.host(["sh", "-ec", &shaping])
    };
    world.eventually("the link-local address is usable", || {
        container.exec(["ip", "-o", "address", "show", "dev", "eth0", "tentative"]).is_empty()
    });
    let before = interface();
    del(&container, OWN, &chain[1..], &result);
    assert_eq!(interface(), before);
    for plugin in &later {
        container.check(kind(plugin), &of(OTHER, plugin), &later_result);
    }
    assert_eq!(container.sysctl("net/core/somaxconn"), "4096");
    assert_eq!(container.exec(["ip", "rule", "show", "from", "10.1.0.2"]), "");
    del(&container, OWN, &chain[..1], &result);
    del(&container, OTHER, &later, &later_result);
    assert_eq!(container.exec(["ip", "-o", "link"]).lines().count(), 1);
    assert!(!world.links().iter().any(|link| link.starts_with("bwp") || link.starts_with("veth")));
}

/// `tuning` of the reference, behind a plugin that names the owner of the interface.
#[test]
fn a_file_without_an_owner_goes_with_its_interface() {
    let world = world();
    let container = container(&world);
    let chain =
        [first("macvlan", json!({"master": "lan"})), json!({"type": "tuning", "mtu": 1400})];
    let result = add(&container, OWN, &chain);
    world.write("/run/cni/tuning/c1_eth0.json", "{\n \"mtu\": 1500\n}");
    let before = look(&container);
    container.del("tuning", &of(OTHER, &chain[1]));
    assert_same(&before, &look(&container), "DEL");
    container.del("tuning", &with(&of(OWN, &chain[1]), json!({"prevResult": result})));
    assert!(container.exec(["ip", "link", "show", "eth0"]).contains("mtu 1500"));
    assert!(!world.path("/run/cni/tuning/c1_eth0.json").exists());
}

/// The Go plugins name no owner.
#[test]
fn an_interface_without_an_owner_is_removed_by_its_name() {
    let world = world();
    let container = container(&world);
    container.exec([
        "sh",
        "-ec",
        "ip link add eth0 type dummy || ip link add eth0 type veth peer name peer0",
    ]);
    container.exec(["sh", "-ec", "ip link set lo up"]);
    container.del("loopback", &of(OTHER, &json!({"type": "loopback"})));
    container.del("veth", &of(OTHER, &json!({"type": "veth"})));
    assert_eq!(container.exec(["ip", "-o", "link"]).lines().count(), 1);
    assert!(!container.exec(["ip", "link", "show", "lo"]).contains("LOOPBACK,UP"));
}
