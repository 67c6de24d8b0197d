//! Another program translates to a container that has published ports: a ClusterIP of kube-proxy. Its clients keep their sources.

use serde_json::json;

use super::{By, published, published_by, routed};
use crate::portmap::{ask, neighbours};
use crate::world::World;

/// 10.96.0.1 and fd96::1, port 80, lead to the first container of network 1.
const CLUSTER_IP: &str = "
table ip kube {
    chain services {
        type nat hook prerouting priority -100
        ip daddr 10.96.0.1 tcp dport 80 dnat to 10.1.0.2:80
    }
}
table ip6 kube {
    chain services {
        type nat hook prerouting priority -100
        ip6 daddr fd96::1 tcp dport 80 dnat to [fd00:1::2]:80
    }
}
";

fn with_cluster_ip(world: &World) {
    world.write("/run/kube", CLUSTER_IP);
    world.host(["nft", "--file", "/run/kube"]);
}

/// With the port number of the service published, too.
#[test]
fn a_neighbour_that_asks_the_service_keeps_its_source() {
    By::BOTH.into_iter().for_each(a_neighbour_keeps_its_source);
}

fn a_neighbour_keeps_its_source(by: By) {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    with_cluster_ip(&world);
    let network = routed(1, json!({}));
    let _c1 = published_by(by, &world, "c1", &network, 80, json!({}));
    let c2 = world.container("c2");
    by.add(&c2, &network);
    let ask_from = |client: &str, address| {
        ask(&world, Some(&format!("/run/netns/{client}")), "tcp", address, 80)
    };
    assert_eq!(ask_from("c2", "10.96.0.1"), "c1 10.1.0.3");
    assert_eq!(ask_from("c2", "fd96::1"), "c1 fd00:1::3");
    // By the published port the answer has to come back through the host.
    assert_eq!(ask_from("c2", "192.0.2.1"), "c1 10.1.0.1");
    assert_eq!(ask_from("c2", "fd00:2::1"), "c1 fd00:1::1");
    assert_eq!(ask(&world, None, "tcp", "127.0.0.1", 80), "c1 10.1.0.1");
    for (address, source) in
        [("10.96.0.1", "192.0.2.2"), ("fd96::1", "fd00:2::2"), ("192.0.2.1", "192.0.2.2")]
    {
        assert_eq!(
            ask(&world, Some(&outside.netns()), "tcp", address, 80),
            format!("c1 {source}"),
            "{address}"
        );
    }
}

#[test]
fn masq_all_hides_the_clients_of_published_ports_only() {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    with_cluster_ip(&world);
    let network = routed(1, json!({}));
    let _c1 = published(&world, "c1", &network, 80, json!({"masqAll": true}));
    for (address, source) in [
        ("10.96.0.1", "192.0.2.2"),
        ("fd96::1", "fd00:2::2"),
        ("192.0.2.1", "10.1.0.1"),
        ("fd00:2::1", "fd00:1::1"),
    ] {
        assert_eq!(
            ask(&world, Some(&outside.netns()), "tcp", address, 80),
            format!("c1 {source}"),
            "{address}"
        );
    }
}

#[test]
fn networks_with_different_marks_serve_their_neighbours() {
    let world = World::new();
    let mut kept = Vec::new();
    for (number, keys) in [
        (1, json!({})),
        (2, json!({"markMasqBit": 14})),
        (3, json!({"externalSetMarkChain": "KUBE-MARK-MASQ"})),
    ] {
        let network = routed(number, json!({}));
        let port = 8080 + u16::from(number);
        kept.push(published(&world, &format!("server{number}"), &network, port, keys));
        let client = world.container(&format!("client{number}"));
        client.add("ptp", &network);
        let asked = |address: &str| ask(&world, Some(&client.netns()), "tcp", address, port);
        assert_eq!(asked(&format!("10.{number}.0.1")), format!("server{number} 10.{number}.0.1"));
        assert_eq!(asked(&format!("fd00:{number}::1")), format!("server{number} fd00:{number}::1"));
        assert_eq!(
            ask(&world, None, "tcp", "127.0.0.1", port),
            format!("server{number} 10.{number}.0.1")
        );
    }
    // A mark of its own goes with its last container.
    let sources = |bit: &str| world.host(["nft", "list", "ruleset"]).matches(bit).count();
    assert!(sources("portmap-sources-24-bit-14") > 0);
    for (container, config) in &kept {
        container.del("portmap", config);
    }
    let rules = world.host(["nft", "-j", "list", "ruleset"]);
    assert!(!rules.contains("\"10.1.0.0\"") && !rules.contains("\"10.2.0.0\""), "{rules}");
}
