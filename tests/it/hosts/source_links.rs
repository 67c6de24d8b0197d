//! A policy drops a translated packet that does not come from the link of its source. The packets here do, or their link has no
//! policy, and their sources are addresses that no ADD had in its result.

use serde_json::{Value, json};

use super::published_ports::{Attached, ORDERS};
use super::routed;
use crate::firewall::set_br_netfilter;
use crate::portmap::{ask, neighbours, serve};
use crate::world::{Container, World, with};

/// A host with the published port 8080 of `c1` in the network 1, which has a policy. Also returns its neighbours `outside` and
/// `beyond`.
fn publishing(world: &World) -> ([Container<'_>; 2], Attached<'_>) {
    let neighbours = neighbours(world);
    let c1 = Attached::new(world, "c1", 1, ("same-bridge", &[8080]), ORDERS[0]);
    serve(&c1.container, "tcp", 80);
    serve(&c1.container, "udp", 80);
    (neighbours, c1)
}

/// A container without published ports in the network 2.
fn client<'w>(world: &'w World, name: &str, policy: &'static str) -> Attached<'w> {
    Attached::new(world, name, 2, (policy, &[]), ORDERS[0])
}

/// The configuration of `firewall` behind another plugin.
fn behind(network: &str, result: &Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": network, "type": "firewall", "ingressPolicy": "same-bridge",
        "prevResult": result})
}

/// The administrator's macvlan on the bridge of the network 2.
fn add_macvlan(world: &World, [v4, v6]: [&str; 2]) {
    let script = format!(
        "ip link add mv0 link cni2 type macvlan mode bridge
         ip address add {v4} dev mv0; ip address add {v6} dev mv0 nodad
         ip link set mv0 up"
    );
    world.host(["sh", "-ec", &script]);
}

/// Adds addresses to the client and makes them the sources of its default routes.
fn add_sources(client: &Container<'_>, [v4, v6]: [&str; 2], gateways: [&str; 2]) {
    let script = format!(
        "ip address add {v4} dev eth0; ip address add {v6} dev eth0 nodad
         ip route replace default via {} src {} dev eth0
         ip route replace default via {} src {} dev eth0",
        gateways[0],
        v4.split('/').next().unwrap(),
        gateways[1],
        v6.split('/').next().unwrap(),
    );
    client.exec(["sh", "-ec", &script]);
}

/// The client asks the port of the host at both of its addresses, with these sources.
#[track_caller]
fn assert_gets(client: &Container<'_>, sources: [&str; 2]) {
    for (host, source) in ["192.0.2.1", "fd00:2::1"].into_iter().zip(sources) {
        for protocol in ["tcp", "udp"] {
            let answer = ask(client.world, Some(&client.netns()), protocol, host, 8080);
            assert_eq!(answer, format!("c1 {source}"), "{} {protocol} {host}", client.name);
        }
    }
}

#[test]
fn an_address_of_no_result_gets_a_published_port_from_its_own_bridge() {
    let world = World::new();
    let (_neighbours, c1) = publishing(&world);
    let c2 = client(&world, "c2", "same-bridge");
    let c3 = client(&world, "c3", "isolated");
    let own = Attached::new(&world, "own", 1, ("same-bridge", &[]), ORDERS[0]);
    add_sources(&c2.container, ["10.2.0.77/24", "fd00:12::77/64"], ["10.2.0.1", "fd00:12::1"]);
    add_sources(&c3.container, ["10.2.0.78/24", "fd00:12::78/64"], ["10.2.0.1", "fd00:12::1"]);
    for br_netfilter in ["0", "1"] {
        set_br_netfilter(&world, br_netfilter);
        assert_gets(&c2.container, ["10.2.0.77", "fd00:12::77"]);
        assert_gets(&c3.container, ["10.2.0.78", "fd00:12::78"]);
        // Within the bridge the port is masqueraded.
        assert_gets(&own.container, ["10.1.0.1", "fd00:11::1"]);
    }
    drop(c1);
}

/// The host has a route to a network behind the client.
#[test]
fn a_network_behind_a_container_gets_a_published_port() {
    let world = World::new();
    let _published = publishing(&world);
    let c2 = client(&world, "c2", "same-bridge");
    add_sources(&c2.container, ["172.30.0.1/24", "fd30::1/64"], ["10.2.0.1", "fd00:12::1"]);
    world.host(["ip", "route", "add", "172.30.0.0/24", "via", "10.2.0.2"]);
    world.host(["ip", "route", "add", "fd30::/64", "via", "fd00:12::2"]);
    assert_gets(&c2.container, ["172.30.0.1", "fd30::1"]);
}

#[test]
fn a_pair_without_a_bridge_gets_a_published_port() {
    let world = World::new();
    let _published = publishing(&world);
    let client = world.container("client");
    let result = client.add("ptp", &routed(7, json!({})));
    let firewall = behind("net7", &result);
    client.add("firewall", &firewall);
    assert_gets(&client, ["10.7.0.2", "fd00:7::2"]);
    let interfaces: Vec<Value> = result["interfaces"].as_array().unwrap().clone();
    let host_end = interfaces.iter().find(|interface| interface.get("sandbox").is_none());
    let host_end = host_end.and_then(|interface| interface["name"].as_str()).unwrap();
    world.host(["ip", "route", "add", "10.7.0.77", "dev", host_end]);
    world.host(["ip", "route", "add", "fd00:7::77", "dev", host_end]);
    add_sources(&client, ["10.7.0.77/32", "fd00:7::77/128"], ["10.7.0.1", "fd00:7::1"]);
    assert_gets(&client, ["10.7.0.77", "fd00:7::77"]);
}

/// The packets of `beyond` arrive by one uplink, and the replies leave by another one.
#[test]
fn a_host_with_two_uplinks_answers_by_the_other_one() {
    let world = World::new();
    let ([outside, beyond], _c1) = publishing(&world);
    route_by_the_other_uplink(&world, &outside, &beyond);
    assert_gets(&beyond, ["203.0.113.2", "fd00:4::2"]);
}

/// Only sources of the bridge of the strict network are checked. The uplink became a bridge after the ADD.
#[test]
fn a_strict_network_checks_no_sources_of_other_networks() {
    let world = World::new();
    let ([outside, beyond], _c1) = publishing(&world);
    let strict = Attached::new(&world, "strict", 3, ("strict", &[]), ORDERS[0]);
    let to_bridge = "ip link add br8 type bridge; echo 0 >/proc/sys/net/ipv6/conf/br8/accept_dad
        ip address flush dev wan1; ip link set wan1 master br8; ip link set br8 up
        ip address add 198.51.100.1/24 dev br8; ip address add fd00:3::1/64 dev br8 nodad";
    world.host(["sh", "-ec", to_bridge]);
    route_by_the_other_uplink(&world, &outside, &beyond);
    assert_gets(&beyond, ["203.0.113.2", "fd00:4::2"]);
    let rules =
        |family: &str| world.host(["nft", "list", "chain", family, "cnibox", "firewall-policy"]);
    assert!(["ip", "ip6"].iter().all(|family| rules(family).contains("cni3")));
    strict.container.del("firewall", &strict.config("firewall"));
    assert!(!["ip", "ip6"].iter().any(|family| rules(family).contains("cni3")));
    assert_gets(&beyond, ["203.0.113.2", "fd00:4::2"]);
}

/// The source of the packets of `beyond` is an address that the host reaches by `outside`.
fn route_by_the_other_uplink(world: &World, outside: &Container<'_>, beyond: &Container<'_>) {
    let script = "for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$file; done
        for file in /proc/sys/net/ipv?/conf/*/forwarding; do echo 1 >$file; done";
    world.host(["sh", "-ec", script]);
    outside.exec(["sh", "-ec", script]);
    // `outside` is also a neighbour of `beyond`, and the host routes to this network by `outside`.
    let netns = beyond.netns();
    outside.exec([
        "ip", "link", "add", "side", "type", "veth", "peer", "name", "side", "netns", &netns,
    ]);
    for (container, host) in [(outside, "1"), (beyond, "2")] {
        let script = format!(
            "ip address add 203.0.113.{host}/24 dev side
             ip address add fd00:4::{host}/64 dev side nodad
             ip link set side up"
        );
        container.exec(["sh", "-ec", &script]);
    }
    world.host(["ip", "route", "add", "203.0.113.0/24", "via", "192.0.2.2"]);
    world.host(["ip", "route", "add", "fd00:4::/64", "via", "fd00:2::2"]);
    let sources = "ip route replace default via 198.51.100.1 src 203.0.113.2
        ip route replace default via fd00:3::1 src fd00:4::2";
    beyond.exec(["sh", "-ec", sources]);
}

#[test]
fn multicast_within_a_bridge_passes() {
    const LISTEN: &str = "import socket
group = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
group.bind(('', 5000))
group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton('239.1.2.3') + socket.inet_aton('10.1.0.3'))
print(group.recv(99).decode())";
    let world = World::new();
    let (_neighbours, c1) = publishing(&world);
    let c2 = Attached::new(&world, "c2", 1, ("same-bridge", &[]), ORDERS[0]);
    let address = ["ip", "address", "add", "172.30.0.1/24", "dev", "eth0"];
    c1.container.exec(address);
    for br_netfilter in ["0", "1"] {
        set_br_netfilter(&world, br_netfilter);
        let listener = c2.container.tool(["python3", "-c", LISTEN]).start();
        world.eventually("the group is joined", || {
            c2.container.exec(["ip", "maddress"]).contains("239.1.2.3")
        });
        let send = "socat - UDP4-DATAGRAM:239.1.2.3:5000,bind=172.30.0.1";
        c1.container.tool(["sh", "-c", send]).stdin("hello").run().output();
        assert_eq!(listener.finish().stdout, "hello\n");
    }
}

/// The administrator's link on the bridge has a network of its own. The bridge answers for the addresses of that link, too.
#[test]
fn a_network_of_a_macvlan_on_the_bridge_gets_a_published_port() {
    let world = World::new();
    let _published = publishing(&world);
    let c2 = client(&world, "c2", "same-bridge");
    add_macvlan(&world, ["10.9.0.1/24", "fd00:19::1/64"]);
    add_sources(&c2.container, ["10.9.0.2/24", "fd00:19::2/64"], ["10.2.0.1", "fd00:12::1"]);
    let config = c2.config("firewall");
    let checked = || c2.container.checking("firewall", &config, &c2.result).run();
    checked().fails(999, &["sources on mv0 and packets from cni2", "firewall-sources"]);
    c2.add("firewall");
    c2.check();
    assert_gets(&c2.container, ["10.9.0.2", "fd00:19::2"]);
    // The rules can be restored, and an ADD changes nothing in them.
    let rules = || world.host(["nft", "list", "ruleset"]);
    let exceptions =
        || rules().matches("iifname \"cni2\" fib saddr oifname \"mv0\" return").count();
    world.write("/run/rules", rules());
    world.host(["sh", "-ec", "nft flush ruleset; nft --file /run/rules"]);
    c2.check();
    c2.add("firewall");
    assert_eq!(exceptions(), 2, "{}", rules());
    world.host(["nft", "flush", "chain", "ip6", "cnibox", "firewall-sources"]);
    checked().fails(999, &["firewall-sources"]);
    c2.add("firewall");
    c2.check();
    assert_gets(&c2.container, ["10.9.0.2", "fd00:19::2"]);
    world.host(["ip", "link", "delete", "mv0"]);
    c2.check();
    c2.add("firewall");
    assert_eq!(exceptions(), 0, "{}", rules());
}

/// The gateway of the network 3 is the administrator's macvlan on the bridge of the network 2, and each of both links gets packets
/// for the other one.
#[test]
fn the_exceptions_of_a_bridge_end_with_its_policy() {
    let world = World::new();
    let _published = publishing(&world);
    let c2 = client(&world, "c2", "same-bridge");
    add_macvlan(&world, ["10.3.0.1/24", "fd00:13::1/64"]);
    let ranges = json!([[{"subnet": "10.3.0.0/24"}], [{"subnet": "fd00:13::/64"}]]);
    let network = json!({"cniVersion": "1.1.0", "name": "net3", "type": "bridge", "bridge": "cni2",
        "ipam": {"type": "host-local", "ranges": ranges}});
    let c3 = world.container("c3");
    let result = c3.add("bridge", &network);
    let firewall = behind("net3", &result);
    c3.add("firewall", &firewall);
    c2.add("firewall");
    let rules = || world.host(["nft", "list", "ruleset"]);
    let of = |link: &str| rules().matches(&format!("iifname \"{link}\" fib saddr oifname")).count();
    assert_eq!([of("cni2"), of("mv0")], [2, 2], "{}", rules());
    let routes = "ip route add default via 10.2.0.1 onlink dev eth0
        ip route add default via fd00:12::1 onlink dev eth0";
    c3.exec(["sh", "-ec", routes]);
    assert_gets(&c3, ["10.3.0.2", "fd00:13::2"]);
    c3.del("firewall", &firewall);
    assert_eq!([of("cni2"), of("mv0")], [2, 0], "{}", rules());
    let none = json!({"cni.dev/valid-attachments": []});
    world.call("firewall", "GC", &with(&c2.config("firewall"), none)).run().silence();
    assert_eq!([of("cni2"), of("mv0")], [0, 0], "{}", rules());
}

/// The rule of a development version, which asked for the addresses of ADDs only.
#[test]
fn an_add_replaces_the_rule_for_listed_addresses() {
    let world = World::new();
    let (_neighbours, c1) = publishing(&world);
    let list = || world.host(["nft", "list", "ruleset"]);
    let before = list();
    for family in ["ip", "ip6"] {
        let rules = format!(
            "flush chain {family} cnibox firewall-policy
             delete chain {family} cnibox firewall-sources
             table {family} cnibox {{ chain firewall-policy {{
                 ct status dnat ct direction original {family} saddr @firewall-addresses fib saddr . iif oif missing drop
                 iifname . oifname @firewall-within goto firewall-alone
                 iifname @firewall-bridges oifname @firewall-bridges goto firewall-between
             }}
             }}"
        );
        world.write("/run/rules", rules);
        world.host(["nft", "--file", "/run/rules"]);
    }
    let config = c1.config("firewall");
    let checked = c1.container.checking("firewall", &config, &c1.result).run();
    checked.fails(999, &["firewall-sources"]);
    c1.add("firewall");
    c1.check();
    // A chain that is added again is the last of its table.
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&list()), lines(&before));
}
