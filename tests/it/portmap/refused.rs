//! ADD refuses an invalid value before it changes anything, and names the key.

use serde_json::{Value, json};

use super::{chained, portmap, publish, result, tcp};
use crate::world::{World, with};

#[test]
fn invalid_keys_are_named() {
    let mapping =
        |more: Value| json!({"runtimeConfig": {"portMappings": [with(&tcp(8080, 80), more)]}});
    let cases: Vec<(Value, u64, &[&str])> = vec![
        (mapping(json!({"hostPort": 0})), 7, &["portMappings[0].hostPort", "0"]),
        (mapping(json!({"hostPort": -1})), 7, &["hostPort"]),
        (mapping(json!({"hostPort": 65536})), 7, &["hostPort", "65536"]),
        (mapping(json!({"hostPort": null})), 7, &["hostPort"]),
        (mapping(json!({"hostPort": "80"})), 6, &["hostPort"]),
        (mapping(json!({"containerPort": 0})), 7, &["containerPort"]),
        (mapping(json!({"containerPort": 65536})), 7, &["containerPort"]),
        (mapping(json!({"protocol": "icmp"})), 7, &["protocol", "icmp"]),
        (mapping(json!({"protocol": 6})), 6, &["protocol"]),
        (mapping(json!({"hostIP": "192.0.2"})), 7, &["hostIP", "192.0.2"]),
        (mapping(json!({"hostIP": "host"})), 7, &["hostIP", "host"]),
        (mapping(json!({"hostIP": "192.0.2.1/24"})), 7, &["hostIP"]),
        // No packet to these comes to a container.
        (mapping(json!({"hostIP": "::1"})), 7, &["portMappings[0].hostIP", "::1", "forward"]),
        (mapping(json!({"hostIP": "fe80::1"})), 7, &["hostIP", "fe80::1", "link-local"]),
        (mapping(json!({"hostIP": "ff02::1"})), 7, &["hostIP", "ff02::1", "multicast"]),
        (mapping(json!({"hostIP": "224.0.0.1"})), 7, &["hostIP", "224.0.0.1", "multicast"]),
        (mapping(json!({"hostIP": "255.255.255.255"})), 7, &["hostIP", "broadcast"]),
        (
            with(&mapping(json!({"hostIP": "127.0.0.1"})), json!({"snat": false})),
            7,
            &["hostIP", "127.0.0.1", "snat"],
        ),
        (json!({"runtimeConfig": {"portMappings": {}}}), 6, &["portMappings"]),
        (
            json!({"runtimeConfig": {"portMappings": [tcp(80, 80), tcp(80, 81)]}}),
            7,
            &["portMappings[1]", "80", "twice"],
        ),
        (json!({"backend": "ebtables"}), 7, &["backend", "ebtables"]),
        (json!({"backend": "nftables", "externalSetMarkChain": "X"}), 7, &["externalSetMarkChain"]),
        (json!({"backend": "nftables", "conditionsV4": ["-s", "10.0.0.1"]}), 7, &["conditionsV4"]),
        (json!({"backend": "iptables", "conditionsV6": ["iifname lo"]}), 7, &["conditionsV6"]),
        (json!({"markMasqBit": 32}), 7, &["markMasqBit", "32"]),
        (json!({"markMasqBit": -1}), 7, &["markMasqBit"]),
        (
            json!({"markMasqBit": 1, "externalSetMarkChain": "X"}),
            7,
            &["markMasqBit", "externalSetMarkChain"],
        ),
        (json!({"snat": "yes"}), 6, &["snat"]),
        (json!({"masqAll": 1}), 6, &["masqAll"]),
        (json!({"conditionsV4": "-s 10.0.0.1"}), 6, &["conditionsV4"]),
        (json!({"conditionsV4": ["-m", "limit"]}), 7, &["conditionsV4", "-m limit"]),
        (json!({"conditionsV4": ["-s", "host"]}), 7, &["conditionsV4", "host"]),
        (json!({"conditionsV4": ["-s", "fd00::1"]}), 7, &["conditionsV4", "fd00::1"]),
        (json!({"conditionsV6": ["ip", "saddr", "10.0.0.1"]}), 7, &["conditionsV6", "ip "]),
        (json!({"conditionsV6": ["limit rate 1/second"]}), 7, &["conditionsV6", "limit"]),
    ];
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state();
    for (more, code, named) in cases {
        let config = with(&portmap(json!([tcp(8080, 80)])), more);
        let config = chained(&config, &result(1, &c1.netns()));
        c1.call("portmap", "ADD", &config).run().fails(code, named);
        c1.call("portmap", "CHECK", &config).run().fails(code, named);
    }
    before.assert_same(&world.state(), "after refusals");
}

/// The clients of a program reach the container instead. The program of podman that keeps a port for its container has none.
#[test]
fn a_program_on_a_published_port_is_named_in_a_warning() {
    let mappings = portmap(json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"},
        {"hostPort": 5353, "containerPort": 53, "protocol": "udp"}
    ]));
    for (socket, name) in [
        ("TCP4-LISTEN:8080", Some("tcp port 8080")),
        ("TCP6-LISTEN:8080", Some("tcp port 8080")),
        ("TCP6-LISTEN:8080,ipv6only=1", None),
        ("TCP4-LISTEN:8080,bind=127.0.0.1", None),
        ("TCP4-LISTEN:8081", None),
        ("UDP4-RECVFROM:5353,bind=127.0.0.1", Some("udp port 5353")),
        ("UDP6-RECVFROM:5353", Some("udp port 5353")),
    ] {
        for (command, is_named) in [("cat", name.is_some()), ("echo c1", false)] {
            let world = World::new();
            let c1 = world.container("c1");
            let config = chained(&mappings, &result(1, &c1.netns()));
            let server = world.tool(&["socat", socket, &format!("SYSTEM:{command}")], None).start();
            let pid = server.pid_in_world();
            let port = format!(":{} ", &socket[socket.find(':').unwrap() + 1..][..4]);
            world.eventually("the program waits", || world.host(["ss", "-Hlntu"]).contains(&port));
            let added = c1.call("portmap", "ADD", &config).run();
            let warning = name.map(|name| {
                format!("{name}: the program socat, process {pid}, uses it; its clients reach ")
            });
            let has_warning = warning.is_some_and(|warning| added.stderr.contains(&warning));
            assert_eq!(has_warning, is_named, "{socket}: {}", added.report());
            assert_eq!(added.stderr.contains(" uses it"), is_named, "{socket}: {}", added.report());
            added.success();
        }
    }
}

#[test]
fn add_and_check_need_a_previous_result() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = portmap(json!([tcp(8080, 80)]));
    let texts = ["must be called as chained plugin", "required prevResult missing"];
    c1.call("portmap", "ADD", &config).run().fails(7, &texts);
    c1.call("portmap", "ADD", &portmap(json!([]))).run().fails(7, &texts);
    c1.call("portmap", "CHECK", &config).run().fails(7, &["required prevResult missing"]);
}

#[test]
fn nothing_to_publish_touches_nothing() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state().apart_from("none", "none");
    for mappings in [json!(null), json!([])] {
        publish(&c1, 1, &portmap(mappings.clone()));
        c1.check("portmap", &portmap(mappings), &result(1, &c1.netns()));
    }
    publish(
        &c1,
        1,
        &json!({"cniVersion": "1.1.0", "name": "net", "type": "portmap", "runtimeConfig": null}),
    );
    // No address of that family, or none that is the container's.
    let v6 = with(&tcp(8080, 80), json!({"hostIP": "fd00:2::1"}));
    let mut only_v4 = result(1, &c1.netns());
    only_v4["ips"].as_array_mut().unwrap().pop();
    c1.add("portmap", &chained(&portmap(json!([v6])), &only_v4));
    only_v4["ips"][0]["interface"] = 0.into();
    c1.add("portmap", &chained(&portmap(json!([tcp(8080, 80)])), &only_v4));
    // An ADD records the namespace, and the DEL removes that.
    c1.del("portmap", &chained(&portmap(json!([tcp(8080, 80)])), &only_v4));
    before.assert_same(&world.state().apart_from("none", "none"), "after nothing");
}
