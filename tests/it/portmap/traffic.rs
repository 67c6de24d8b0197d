//! Connections to published ports.

use serde_json::json;

use super::{address, ask, ask_in_vain, attach, neighbours, network, portmap, serve, tcp, udp};
use crate::world::{World, with};

#[test]
fn a_published_port_answers_from_everywhere() {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let result = attach(&c1, &portmap(json!([tcp(8080, 80), udp(8053, 53)])));
    c2.add("bridge", &network());
    serve(&c1, "tcp", 80);
    serve(&c1, "udp", 53);
    let [own4, own6] = [0, 1].map(|index| address(&result, index));
    for (protocol, port) in [("tcp", 8080), ("udp", 8053)] {
        let asked =
            |netns: Option<&str>, address: &str| ask(&world, netns, protocol, address, port);
        // Those from outside keep their address; those who would be answered directly do not.
        for (host, client, expected) in [
            ("192.0.2.1", Some(&outside), "192.0.2.2"),
            ("198.51.100.1", Some(&outside), "192.0.2.2"),
            ("fd00:2::1", Some(&outside), "fd00:2::2"),
            ("192.0.2.1", None, "192.0.2.1"),
            ("10.1.0.1", None, "10.1.0.1"),
            ("127.0.0.1", None, "10.1.0.1"),
            ("127.0.0.9", None, "10.1.0.1"),
            ("fd00:2::1", None, "fd00:2::1"),
            ("192.0.2.1", Some(&c1), "10.1.0.1"),
            ("10.1.0.1", Some(&c1), "10.1.0.1"),
            ("fd00:2::1", Some(&c1), "fd00:1::1"),
            ("192.0.2.1", Some(&c2), "10.1.0.1"),
            ("fd00:2::1", Some(&c2), "fd00:1::1"),
        ] {
            let netns = client.map(|client| client.netns());
            let answer = asked(netns.as_deref(), host);
            let from = client.map_or("the host", |client| &client.name);
            assert_eq!(answer, format!("c1 {expected}"), "{protocol} {host} from {from}");
        }
        // The container's own port is not in the way.
        for own in [&own4, &own6] {
            assert_eq!(ask_in_vain(&world, None, protocol, own, port), "nothing");
        }
    }
}

#[test]
fn forwarded_packets_are_not_translated() {
    let world = World::new();
    let [outside, beyond] = neighbours(&world);
    let c1 = world.container("c1");
    attach(&c1, &portmap(json!([tcp(8080, 80), udp(8053, 53)])));
    serve(&c1, "tcp", 80);
    serve(&c1, "udp", 53);
    serve(&beyond, "tcp", 8080);
    serve(&beyond, "udp", 8053);
    for (protocol, port) in [("tcp", 8080), ("udp", 8053)] {
        for address in ["198.51.100.2", "fd00:3::2"] {
            for client in [Some(outside.netns()), Some(c1.netns()), None] {
                let answer = ask(&world, client.as_deref(), protocol, address, port);
                assert!(answer.starts_with("beyond "), "{protocol} {address} {client:?}: {answer}");
            }
        }
    }
}

#[test]
fn servers_on_127_0_0_1_stay_unreachable_from_outside() {
    let world = World::new();
    let c1 = world.container("c1");
    attach(&c1, &portmap(json!([tcp(8080, 80)])));
    assert_eq!(world.sysctl("net/ipv4/conf/cni0/route_localnet"), "1");
    assert_eq!(world.sysctl("net/ipv4/conf/all/route_localnet"), "0");
    // As in `serve`: it reads what it gets before it answers.
    let answer = "SYSTEM:read line; echo secret";
    world.tool(&["socat", "TCP4-LISTEN:9000,bind=127.0.0.1,fork", answer], None).start();
    world.eventually("the host's server listens", || {
        world.host(["ss", "-Hntl", "sport = :9000"]).lines().count() == 1
    });
    // A container that wants to get at it (CVE-2020-8558).
    c1.exec([
        "sh",
        "-ec",
        "echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet; ip route add 127.0.0.1/32 via 10.1.0.1",
    ]);
    let netns = c1.netns();
    assert_eq!(ask_in_vain(&world, Some(&netns), "tcp", "127.0.0.1", 9000), "nothing");
    // It is the rule that keeps it out, and nothing else.
    world.host(["nft", "flush", "chain", "ip", "cnibox", "portmap-localnet"]);
    assert_eq!(ask(&world, Some(&netns), "tcp", "127.0.0.1", 9000), "secret");
}

#[test]
fn only_the_configured_address_of_the_host_answers() {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    let c1 = world.container("c1");
    let on = |ip: &str, port| with(&tcp(port, 80), json!({"hostIP": ip}));
    attach(
        &c1,
        &portmap(json!([
            on("192.0.2.1", 8001),
            on("0.0.0.0", 8002),
            on("::", 8003),
            on("127.0.0.1", 8004),
            on("fd00:3::1", 8005),
        ])),
    );
    serve(&c1, "tcp", 80);
    let netns = outside.netns();
    for (port, answering) in [
        (8001, &["192.0.2.1"][..]),
        (8002, &["192.0.2.1", "198.51.100.1"]),
        (8003, &["fd00:2::1", "fd00:3::1"]),
        (8004, &[]),
        (8005, &["fd00:3::1"]),
    ] {
        for host in ["192.0.2.1", "198.51.100.1", "fd00:2::1", "fd00:3::1"] {
            let answers = answering.contains(&host);
            let ask = if answers { ask } else { ask_in_vain };
            let answer = ask(&world, Some(&netns), "tcp", host, port);
            assert_eq!(answer != "nothing", answers, "{host} {port}: {answer}");
        }
    }
    assert_eq!(ask(&world, None, "tcp", "127.0.0.1", 8004), "c1 10.1.0.1");
    assert_eq!(ask_in_vain(&world, None, "tcp", "127.0.0.1", 8001), "nothing");
}

#[test]
fn sources_are_masqueraded_as_configured() {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let all = with(&portmap(json!([tcp(8080, 80)])), json!({"masqAll": true}));
    attach(&c1, &all);
    serve(&c1, "tcp", 80);
    let none = with(&portmap(json!([tcp(8081, 80)])), json!({"snat": false, "masqAll": true}));
    attach(&c2, &none);
    serve(&c2, "tcp", 80);
    let (from_outside, from_c1, from_c2) =
        (Some(outside.netns()), Some(c1.netns()), Some(c2.netns()));
    let asked =
        |netns: &Option<String>, host: &str, port| ask(&world, netns.as_deref(), "tcp", host, port);
    assert_eq!(asked(&from_outside, "192.0.2.1", 8080), "c1 10.1.0.1");
    assert_eq!(asked(&from_c1, "192.0.2.1", 8080), "c1 10.1.0.1");
    assert_eq!(asked(&from_c2, "192.0.2.1", 8080), "c1 10.1.0.1");
    assert_eq!(asked(&None, "127.0.0.1", 8080), "c1 10.1.0.1");
    assert_eq!(asked(&from_outside, "192.0.2.1", 8081), "c2 192.0.2.2");
    let answer = ask_in_vain(&world, from_c2.as_deref(), "tcp", "192.0.2.1", 8081);
    assert_eq!(answer, "nothing");
}

#[test]
fn requests_for_a_mark_are_served_without_one() {
    for more in [
        json!({"markMasqBit": 5}),
        json!({"externalSetMarkChain": "KUBE-MARK-MASQ"}),
        json!({"backend": "iptables", "markMasqBit": 31}),
        json!({"backend": "nftables"}),
    ] {
        let world = World::new();
        let c1 = world.container("c1");
        attach(&c1, &with(&portmap(json!([tcp(8080, 80)])), more));
        serve(&c1, "tcp", 80);
        assert_eq!(ask(&world, Some(&c1.netns()), "tcp", "10.1.0.1", 8080), "c1 10.1.0.1");
        assert_eq!(ask(&world, None, "tcp", "127.0.0.1", 8080), "c1 10.1.0.1");
    }
}

#[test]
fn routed_pairs_have_it_too() {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let veth = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "veth",
        "ipam": {"type": "host-local", "subnet": "10.2.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
    });
    let result = c1.add("veth", &veth);
    c2.add("veth", &veth);
    let config = super::chained(&portmap(json!([tcp(8080, 80)])), &result);
    c1.add("portmap", &config);
    serve(&c1, "tcp", 80);
    let host_end = result["interfaces"][0]["name"].as_str().unwrap();
    let setting = format!("net/ipv4/conf/{host_end}/route_localnet");
    assert_eq!(world.sysctl(&setting), "1");
    c1.check("portmap", &config, &result);
    world.host(["sh", "-c", &format!("echo 0 >/proc/sys/{setting}")]);
    let named = format!("route_localnet of {host_end} is 0");
    c1.checking("portmap", &config, &result).run().fails(999, &[&named]);
    world.host(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet"]);
    c1.check("portmap", &config, &result);
    world.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/conf/all/route_localnet"]);
    c1.add("portmap", &config);
    c1.check("portmap", &config, &result);
    for client in [Some(outside.netns()), Some(c1.netns()), Some(c2.netns()), None] {
        let answer = ask(&world, client.as_deref(), "tcp", "192.0.2.1", 8080);
        assert!(answer.starts_with("c1 "), "{client:?}: {answer}");
    }
    assert_eq!(ask(&world, None, "tcp", "127.0.0.1", 8080), "c1 10.2.0.1");
}
