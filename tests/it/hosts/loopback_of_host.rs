//! Servers of the host on its loopback and link-local addresses, and links that the administrator has opened to 127.0.0.0/8.

use serde_json::json;

use super::{published, routed};
use crate::portmap::{ask, ask_in_vain, neighbours, serve};
use crate::world::{World, with, without};

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

/// Without `snat` a packet from 127.0.0.1 would come to the container with that source, and the kernel forwards none.
#[test]
fn without_snat_127_0_0_1_is_the_host_itself() {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    for protocol in ["TCP4-LISTEN", "UDP4-RECVFROM"] {
        listen(&world, &format!("{protocol}:8080,bind=127.0.0.1"));
    }
    world.eventually("it listens", || {
        world.host(["ss", "-Hntul", "sport = :8080"]).lines().count() == 2
    });
    let network = routed(1, json!({}));
    let ports = ["tcp", "udp"]
        .map(|protocol| json!({"hostPort": 8080, "containerPort": 80, "protocol": protocol}));
    let keys = json!({"snat": false, "runtimeConfig": {"portMappings": ports}});
    let (c1, config) = published(&world, "c1", &network, 8080, keys);
    serve(&c1, "udp", 80);
    let answers = || {
        let of_protocol = |protocol| {
            [
                ask(&world, None, protocol, "127.0.0.1", 8080),
                ask(&world, Some(&outside.netns()), protocol, "192.0.2.1", 8080),
                ask(&world, None, protocol, "192.0.2.1", 8080),
            ]
        };
        ["tcp", "udp"].map(of_protocol)
    };
    let expected = ["host", "c1 192.0.2.2", "c1 192.0.2.1"];
    assert_eq!(answers(), [expected; 2]);
    // A host with the rules of a release that had no such set.
    let check = || c1.check("portmap", &config, &config["prevResult"]);
    let handles = world.host(["nft", "-a", "list", "chain", "ip", "cnibox", "portmap-published"]);
    let rule = handles.lines().find(|line| line.contains("@portmap-unmasqueraded return")).unwrap();
    let (_, handle) = rule.split_once("# handle ").unwrap();
    world.host(["nft", "delete", "rule", "ip", "cnibox", "portmap-published", "handle", handle]);
    world.host(["nft", "delete", "set", "ip", "cnibox", "portmap-unmasqueraded"]);
    check();
    let (c2, config_of_c2) = published(&world, "c2", &network, 8082, json!({}));
    check();
    assert_eq!(answers(), [expected; 2]);
    assert_eq!(ask(&world, None, "tcp", "127.0.0.1", 8082), "c2 10.1.0.1");
    for (container, config) in [(&c1, &config), (&c2, &config_of_c2)] {
        container.del("portmap", config);
    }
    let set = world.host(["nft", "list", "set", "ip", "cnibox", "portmap-unmasqueraded"]);
    assert!(!set.contains("elements"), "{set}");
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

/// The setting goes with the link, and the set has its name.
#[test]
fn a_renamed_bridge_stays_closed() {
    let world = World::new();
    listen(&world, "TCP4-LISTEN:9000,bind=127.0.0.1");
    world.eventually("it listens", || !world.host(["ss", "-Hntl", "sport = :9000"]).is_empty());
    let bridged = |number: u8| {
        with(
            &routed(number, json!({})),
            json!({"type": "bridge", "bridge": "cni0", "isGateway": true}),
        )
    };
    let (c1, config) = published(&world, "c1", &bridged(1), 8080, json!({}));
    c1.exec(["sh", "-ec", "echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet; ip route add 127.0.0.1/32 via 10.1.0.1"]);
    let asked = || ask_in_vain(&world, Some(&c1.netns()), "tcp", "127.0.0.1", 9000);
    let rename = |from: &str, to: &str| {
        let script = "ip link set $0 down; ip link set $0 name $1; ip link set $1 up";
        world.host(["sh", "-ec", script, from, to]);
    };
    assert_eq!(asked(), "nothing");
    rename("cni0", "lan0");
    // The test itself: it is open until a GC.
    assert_eq!(asked(), "host");
    let (_c2, _) = published(&world, "c2", &bridged(2), 8082, json!({}));
    assert_eq!(asked(), "host");
    world.host(["/run/bin/cnibox", "gc"]);
    assert_eq!(asked(), "nothing");
    rename("lan0", "lan1");
    let valid = ["c1", "c2"].map(|id| json!({"containerID": id, "ifname": "eth0"}));
    let gc = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid});
    let gc = with(&without(&config, "prevResult"), gc);
    world.call("portmap", "GC", &gc).run().silence();
    assert_eq!(asked(), "nothing");
    let set = world.host(["nft", "list", "set", "ip", "cnibox", "portmap-localnet"]);
    assert!(
        set.contains("\"cni0\"") && set.contains("\"lan1\"") && !set.contains("\"lan0\""),
        "{set}"
    );
    // Nothing tells of the links any more but the links.
    world.host(["nft", "flush", "ruleset"]);
    assert_eq!(asked(), "host");
    let (_c3, _) = published(&world, "c3", &routed(3, json!({})), 8083, json!({}));
    assert_eq!(asked(), "nothing");
}
