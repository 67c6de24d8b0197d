//! Servers of the host on its loopback and link-local addresses, and links that the administrator has opened to 127.0.0.0/8.

use serde_json::json;

use super::{published, routed};
use crate::portmap::{ask, ask_in_vain};
use crate::world::World;

/// A server of the host, as in `portmap::serve`.
fn listen(world: &World, address: &str) {
    world
        .tool(&["socat", &format!("{address},fork,reuseaddr"), "SYSTEM:read line; echo host"], None)
        .start();
}

#[test]
fn what_the_kernel_does_not_forward_reaches_the_host_itself() {
    let world = World::new();
    let lan = world.container("lan");
    world.host([
        "sh",
        "-ec",
        "ip link add lan0 type veth peer name lan netns lan
        ip link set lan0 up; ip address add fe80::77/64 dev lan0 nodad",
    ]);
    lan.exec([
        "sh",
        "-ec",
        "ip link set lo up; ip link set lan up; ip address add fe80::78/64 dev lan nodad",
    ]);
    let _c1 = published(&world, "c1", &routed(1, json!({})), 8080, json!({}));
    listen(&world, "TCP6-LISTEN:8080,ipv6only=1");
    world.eventually("it listens", || !world.host(["ss", "-Hntl6", "sport = :8080"]).is_empty());
    assert_eq!(ask(&world, None, "tcp", "::1", 8080), "host");
    assert_eq!(ask(&world, Some(&lan.netns()), "tcp", "fe80::77%lan", 8080), "host");
    assert_eq!(ask(&world, None, "tcp", "fd00:1::1", 8080), "c1 fd00:1::1");
    assert_eq!(ask(&world, None, "tcp", "127.0.0.1", 8080), "c1 10.1.0.1");
}

/// As WSL2 with mirrored networking: packets to 127.0.0.1 come from a link.
#[test]
fn a_link_that_the_administrator_has_opened_stays_open() {
    let world = World::new();
    let windows = world.container("windows");
    world.host(["sh", "-ec", "ip link add lo0 type veth peer name eth0 netns windows
        ip address add 192.0.2.1/24 dev lo0; ip link set lo0 up; echo 1 >/proc/sys/net/ipv4/conf/lo0/route_localnet"]);
    windows.exec(["sh", "-ec", "ip address add 192.0.2.2/24 dev eth0; ip link set eth0 up
        echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet; ip route add 127.0.0.1/32 via 192.0.2.1"]);
    listen(&world, "TCP4-LISTEN:9000,bind=127.0.0.1");
    world.eventually("it listens", || !world.host(["ss", "-Hntl", "sport = :9000"]).is_empty());
    let asked = || ask(&world, Some(&windows.netns()), "tcp", "127.0.0.1", 9000);
    assert_eq!(asked(), "host");
    let network = routed(1, json!({}));
    let (c1, config) = published(&world, "c1", &network, 8080, json!({}));
    assert_eq!(asked(), "host");
    // A container that wants to get at it (CVE-2020-8558).
    c1.exec(["sh", "-ec", "echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet; ip route add 127.0.0.1/32 via 10.1.0.1"]);
    assert_eq!(ask_in_vain(&world, Some(&c1.netns()), "tcp", "127.0.0.1", 9000), "nothing");
    c1.del("portmap", &config);
    assert_eq!(ask_in_vain(&world, Some(&c1.netns()), "tcp", "127.0.0.1", 9000), "nothing");
    c1.del("ptp", &network);
    assert_eq!(asked(), "host");
    assert!(!world.host(["nft", "list", "ruleset"]).contains("\"veth"));
}
