//! The administrator has rules of his own: a source address for some container, a port of the host that leads elsewhere.

use serde_json::json;

use super::{By, published_by, routed};
use crate::portmap::{ask, neighbours, serve};
use crate::world::World;

/// As iptables has them, before the plugins are called.
const RULES: [[&str; 2]; 2] = [["iptables", "192.0.2"], ["ip6tables", "fd00:2:"]];

#[test]
fn a_source_that_the_administrator_sets_comes_before_masquerade() {
    By::BOTH.into_iter().for_each(a_source_comes_before_masquerade);
}

fn a_source_comes_before_masquerade(by: By) {
    let world = World::new();
    let [outside, beyond] = neighbours(&world);
    for [iptables, net] in RULES {
        let (source, address) = if iptables == "iptables" {
            ("10.1.0.2", format!("{net}.99"))
        } else {
            ("fd00:1::2", format!("{net}:99"))
        };
        // Nothing but the rule chooses this address.
        let add = ["ip", "address", "add", &address, "dev", "wan0", "nodad", "preferred_lft", "0"];
        world.host(add);
        world.host([
            iptables,
            "-t",
            "nat",
            "-A",
            "POSTROUTING",
            "-s",
            source,
            "-o",
            "wan0",
            "-j",
            "SNAT",
            "--to-source",
            &address,
        ]);
    }
    serve(&outside, "tcp", 80);
    serve(&beyond, "tcp", 80);
    let network = routed(1, json!({"ipMasq": true}));
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    for container in [&c1, &c2] {
        by.add(container, &network);
    }
    for (container, address, source) in [
        (&c1, "192.0.2.2", "outside 192.0.2.99"),
        (&c2, "192.0.2.2", "outside 192.0.2.1"),
        (&c1, "198.51.100.2", "beyond 198.51.100.1"),
        (&c1, "fd00:2::2", "outside fd00:2::99"),
        (&c2, "fd00:2::2", "outside fd00:2::1"),
    ] {
        assert_eq!(
            ask(&world, Some(&container.netns()), "tcp", address, 80),
            source,
            "{}",
            container.name
        );
    }
}

#[test]
fn a_port_that_the_administrator_leads_elsewhere_stays_there() {
    By::BOTH.into_iter().for_each(a_port_leads_elsewhere);
}

fn a_port_leads_elsewhere(by: By) {
    let world = World::new();
    let [outside, beyond] = neighbours(&world);
    for [iptables, net] in RULES {
        let is_v4 = iptables == "iptables";
        let (host, to) = if is_v4 {
            (format!("{net}.1"), "198.51.100.2:80")
        } else {
            (format!("{net}:1"), "[fd00:3::2]:80")
        };
        world.host([
            iptables,
            "-t",
            "nat",
            "-A",
            "PREROUTING",
            "-d",
            &host,
            "-p",
            "tcp",
            "--dport",
            "8080",
            "-j",
            "DNAT",
            "--to-destination",
            to,
        ]);
    }
    serve(&beyond, "tcp", 80);
    let network = routed(1, json!({}));
    let _c1 = published_by(by, &world, "c1", &network, 8080, json!({}));
    let asked = |address| ask(&world, Some(&outside.netns()), "tcp", address, 8080);
    assert_eq!(asked("192.0.2.1"), "beyond 192.0.2.2");
    assert_eq!(asked("198.51.100.1"), "c1 192.0.2.2");
    assert_eq!(asked("fd00:2::1"), "beyond fd00:2::2");
    assert_eq!(asked("fd00:3::1"), "c1 fd00:2::2");
}
