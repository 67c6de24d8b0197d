//! The driver of netavark does what the words of podman mean, with packets, in both families.

use serde_json::{Value, json};

use super::Host;
use super::netavark::{publishing, request, with_options};
use crate::firewall::{outside, set_br_netfilter};
use crate::portmap::{ask, ask_in_vain, serve};
use crate::world::{Container, World, with};

/// A network with the subnets 10.NUMBER.0.0/24 and fd00:NUMBER::/64.
fn created(host: &Host, number: u8, keys: Value, options: Value) -> Value {
    let subnets = [format!("10.{number}.0.0/24"), format!("fd00:{number}::/64")];
    let base = json!({"id": number.to_string().repeat(64), "ipv6_enabled": true,
        "subnets": subnets.map(|subnet| json!({"subnet": subnet}))});
    let object = with_options(&format!("net{number}"), options);
    host.created(&with(&with(&object, base), keys))
}

/// The addresses of the first container of a network.
fn addresses(number: u8) -> [String; 2] {
    [format!("10.{number}.0.2"), format!("fd00:{number}::2")]
}

/// A container on a bridge of another program, with the addresses of the network 8.
fn on_foreign_bridge(world: &World) -> Container<'_> {
    let other = world.container("other");
    let netns = other.netns();
    let script = format!(
        "ip link add podman0 type bridge && ip link set podman0 up &&
         ip address add 10.8.0.1/24 dev podman0 && ip address add fd00:8::1/64 dev podman0 nodad &&
         ip link add p0 master podman0 type veth peer name eth0 netns {netns} && ip link set p0 up &&
         nsenter --net={netns} sh -c '
             ip address add 10.8.0.2/24 dev eth0 && ip address add fd00:8::2/64 dev eth0 nodad &&
             ip link set eth0 up && ip route add default via 10.8.0.1 && ip route add default via fd00:8::1'"
    );
    world.host(["sh", "-c", &script]);
    other
}

/// Moves the addresses of the link to `outside` to a bridge, which the default routes lead to.
fn bridge_uplink(world: &World) {
    let script = "ip address flush dev wan0; ip link add up0 type bridge; ip link set up0 up; ip link set wan0 master up0
        ip address add 192.0.2.1/24 dev up0; ip address add fd02::1/64 dev up0 nodad
        ip route add default via 192.0.2.2; ip route add default via fd02::2";
    world.host(["sh", "-ec", script]);
}

/// The addresses, of those that are asked at once, that answer.
fn answering(from: &Container<'_>, asked: &[String]) -> Vec<String> {
    let list = asked.join(" ");
    let script =
        format!("for a in {list}; do (ping -nqc3 -i.3 -W1 $a >/dev/null && echo $a) & done; wait");
    let mut answers: Vec<String> =
        from.exec(["sh", "-c", &script]).lines().map(str::to_owned).collect();
    answers.sort_by_key(|answer| asked.iter().position(|address| address == answer));
    answers
}

fn tcp(host_port: u16) -> Value {
    json!([{"container_port": 80, "host_ip": "", "host_port": host_port, "protocol": "tcp", "range": 1}])
}

#[test]
fn strict_cuts_off_from_every_bridge_but_not_from_published_ports() {
    let host = Host::new();
    let world = &host.world;
    let outside = outside(world);
    bridge_uplink(world);
    let options = [
        json!({"isolate": "strict"}),
        json!({}),
        json!({"isolate": "true"}),
        json!({"type": "veth"}),
        json!({"plugins": "portmap"}),
    ];
    let containers = ["c1", "c2", "c3", "c4", "c5"].map(|name| world.container(name));
    let mut networks = Vec::new();
    for ((number, options), container) in (1..).zip(options).zip(&containers) {
        let network = created(&host, number, json!({}), options);
        let own = request(&container.name, &network);
        host.set_up(container, &publishing(&own, tcp(8080 + u16::from(number))));
        networks.push(network);
    }
    let strict = &networks[0];
    let [c1, c2, c3, ..] = &containers;
    let neighbour = world.container("neighbour");
    host.set_up(&neighbour, &request("neighbour", strict));
    let other = on_foreign_bridge(world);

    let out = ["192.0.2.2".to_owned(), "fd02::2".into()];
    let near = ["10.1.0.3".to_owned(), "fd00:1::3".into()];
    let others: Vec<String> = [2, 3, 4, 5, 8].into_iter().flat_map(addresses).collect();
    let asked = [&others[..], &near, &out].concat();
    assert_eq!(answering(c1, &asked), [near, out].concat());
    for from in containers[1..].iter().chain([&other]) {
        assert_eq!(answering(from, &addresses(1)), [""; 0], "{}", from.name);
    }
    for from in [&neighbour, &outside] {
        assert_eq!(answering(from, &addresses(1)), addresses(1), "{}", from.name);
    }
    // The other networks are as before.
    assert_eq!(answering(c2, &others), [3, 4, 5, 8].map(addresses).concat());

    for container in [c1, c2] {
        serve(container, "tcp", 80);
    }
    for (from, address, port, name) in [
        (c2, "10.2.0.1", 8081, "c1 "),
        (c2, "fd00:2::1", 8081, "c1 "),
        (c3, "10.3.0.1", 8081, "c1 "),
        (&other, "fd00:8::1", 8081, "c1 "),
        (&outside, "192.0.2.1", 8081, "c1 "),
        (c1, "10.1.0.1", 8082, "c2 "),
        (c1, "fd00:1::1", 8082, "c2 "),
    ] {
        let answer = ask(world, Some(&from.netns()), "tcp", address, port);
        assert!(answer.starts_with(name), "{} asks {address}: {answer}", from.name);
    }
    assert_eq!(ask_in_vain(world, Some(&c2.netns()), "tcp", "10.1.0.2", 80), "nothing");
    host.cnibox(&["check", "net1", &c1.netns(), "--container-id", "c1"]).run().silence();

    for container in [c1, &neighbour] {
        host.tear_down(&container.netns(), &request(&container.name, strict));
    }
    let left = world.host(["nft", "list", "set", "ip", "cnibox", "firewall-apart"]);
    assert!(!left.contains("elements"), "{left}");
}

/// With the address of another network as source, a container would open a connection to its own published port, and its
/// answers would reach that network.
#[test]
fn nothing_reaches_a_strict_network_by_a_forged_source() {
    let host = Host::new();
    let world = &host.world;
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    let strict = created(&host, 1, json!({}), json!({"isolate": "strict"}));
    host.set_up(&c1, &request("c1", &strict));
    let open = created(&host, 2, json!({}), json!({}));
    host.set_up(&c2, &publishing(&request("c2", &open), tcp(8080)));
    // Its link is no bridge.
    let pair = created(&host, 3, json!({}), json!({"type": "veth"}));
    host.set_up(&c3, &publishing(&request("c3", &pair), tcp(8081)));
    let counters = "nft add table inet seen; nft add chain inet seen forward '{ type filter hook forward priority 200; }'
        nft add rule inet seen forward meta l4proto tcp counter";
    world.host(["sh", "-ec", counters]);
    for (client, number, port) in [(&c2, 2, 8080), (&c3, 3, 8081)] {
        serve(client, "tcp", 80);
        for (source, gateway) in
            [("10.1.0.2", format!("10.{number}.0.1")), ("fd00:1::2", format!("fd00:{number}::1"))]
        {
            client.exec(["ip", "address", "add", source, "dev", "lo"]);
            let (bind, target) = match source.contains(':') {
                true => (format!("[{source}]"), format!("TCP6:[{gateway}]:{port}")),
                false => (source.to_owned(), format!("TCP4:{gateway}:{port}")),
            };
            let connect = format!("{target},bind={bind},connect-timeout=1");
            assert_ne!(client.tool(["socat", "-u", "/dev/null", &connect]).run().status, 0);
        }
    }
    let seen = world.host(["nft", "list", "chain", "inet", "seen", "forward"]);
    assert!(seen.contains("counter packets 0 "), "{seen}");
}

/// A default route of both families with this MTU, over the link `wan` with an MTU of 1400.
fn route_out(world: &World, mtu: &str) {
    let script = format!(
        "ip link del wan 2>/dev/null || true; ip link add wan mtu 1400 type veth peer name far; ip link set wan up; ip link set far up
         ip address add 192.0.2.1/24 dev wan; ip address add fd02::1/64 dev wan nodad
         ip route add default via 192.0.2.9 {mtu}; ip route add default via fd02::9 {mtu}"
    );
    world.host(["sh", "-ec", &script]);
}

#[test]
fn the_mtu_of_a_bridge_is_that_of_the_way_out_unless_it_is_given() {
    let host = Host::new();
    let world = &host.world;
    let c1 = world.container("c1");
    let given = json!({"mtu": "1350"});
    for (mtu, options, expected) in [
        ("", json!({}), 1400),
        ("mtu 1300", json!({}), 1300),
        // IPv6 needs 1280.
        ("mtu 1000", json!({}), 1280),
        ("mtu 9000", json!({}), 1400),
        ("mtu 1300", given, 1350),
    ] {
        route_out(world, mtu);
        let network = created(&host, 1, json!({}), options);
        host.set_up(&c1, &request("c1", &network));
        for links in [
            c1.json(["ip", "-j", "link", "show", "eth0"]),
            world.host_json(["ip", "-j", "link", "show", "cnb111111111111"]),
        ] {
            assert_eq!(links[0]["mtu"], expected, "{mtu}: {network}");
        }
        host.tear_down(&c1.netns(), &request("c1", &network));
    }
    host.cnibox(&["networks", "create", "web"]).run().output();
    let file = std::fs::read_to_string(world.path("/run/net.d/web.conflist")).unwrap();
    assert!(file.contains("\"mtu\": 1300"), "{file}");
    // An IPv6 default route alone.
    world.host(["ip", "-4", "route", "del", "default"]);
    let network = created(&host, 2, json!({}), json!({}));
    host.set_up(&c1, &request("c1", &network));
    assert_eq!(c1.json(["ip", "-j", "link", "show", "eth0"])[0]["mtu"], 1300);
}

/// Default routes through the host, as a container adds them.
fn add_default_routes(container: &Container<'_>) {
    for gateway in ["10.1.0.1", "fd00:1::1"] {
        container.exec(["ip", "route", "add", "default", "via", gateway]);
    }
}

#[test]
fn nothing_leaves_or_enters_an_internal_network() {
    let host = Host::new();
    let world = &host.world;
    let outside = outside(world);
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    let internal = created(&host, 1, json!({"internal": true}), json!({}));
    let own = publishing(&request("c1", &internal), tcp(8080));
    let outcome = host.driver(&["setup", &c1.netns()], &own);
    let note = "note: network net1 does not publish port 8080:80/tcp: it is internal";
    assert!(outcome.status == 0 && outcome.stderr.contains(note), "{}", outcome.report());
    host.set_up(&c2, &request("c2", &internal));
    let open = created(&host, 2, json!({}), json!({}));
    host.set_up(&c3, &request("c3", &open));
    for container in [&c1, &c2] {
        assert!(!container.exec(["ip", "route"]).contains("default"));
        add_default_routes(container);
    }
    let within = ["10.1.0.3".to_owned(), "fd00:1::3".into()];
    let of_host = ["10.1.0.1", "fd00:1::1", "192.0.2.1"].map(str::to_owned);
    let out = ["192.0.2.2".to_owned(), "fd02::2".into()];
    let asked = [&within[..], &of_host, &addresses(2), &out].concat();
    let assert_is_cut_off = || {
        assert_eq!(answering(&c1, &asked), [&within[..], &of_host].concat());
        for from in [&outside, &c3] {
            assert_eq!(answering(from, &addresses(1)), [""; 0], "{}", from.name);
        }
    };
    assert_is_cut_off();
    set_br_netfilter(world, "1");
    let toggle = "sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0
        sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1";
    world.host(["sh", "-ec", toggle]);
    assert_is_cut_off();
    assert_eq!(answering(&c3, &out), out);

    host.cnibox(&["check", "net1", &c1.netns(), "--container-id", "c1"]).run().silence();
    for broken in ["flush set ip6 cnibox internal-links", "flush chain ip cnibox internal-policy"] {
        world.host(["nft", broken]);
        let outcome = host.cnibox(&["check", "net1", &c1.netns(), "--container-id", "c1"]).run();
        assert!(outcome.status != 0 && outcome.stderr.contains("internal"), "{}", outcome.report());
        host.cnibox(&["reconcile"]).run().output();
        host.cnibox(&["check", "net1", &c1.netns(), "--container-id", "c1"]).run().silence();
    }
    for (container, links) in [(&c1, true), (&c2, false)] {
        host.tear_down(&container.netns(), &request(&container.name, &internal));
        for family in ["ip", "ip6"] {
            let left = world.host(["nft", "list", "set", family, "cnibox", "internal-links"]);
            assert_eq!(left.contains("elements"), links, "{left}");
        }
    }
}

#[test]
fn an_internal_network_of_a_file_is_one_too() {
    let host = Host::new();
    let world = &host.world;
    let outside = outside(world);
    let create = [
        "networks",
        "create",
        "net1",
        "--internal",
        "--subnet",
        "10.1.0.0/24",
        "--subnet",
        "fd00:1::/64",
    ];
    host.cnibox(&create).run().output();
    let printed = host.cnibox(&[&create[..], &["--podman"]].concat()).run();
    assert!(printed.stdout.contains(" --internal ") || printed.status != 0, "{}", printed.report());
    let c1 = world.container("c1");
    host.cnibox(&["add", "net1", "c1"]).run().success();
    assert_eq!(world.sysctl("net/ipv4/ip_forward"), "0");
    world.host(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    add_default_routes(&c1);
    assert_eq!(answering(&outside, &addresses(1)), [""; 0]);
    assert_eq!(answering(&c1, &["192.0.2.2".into(), "fd02::2".into()]), [""; 0]);
    host.cnibox(&["del", "net1", "c1"]).run().silence();

    let usage = ["networks", "create", "routed", "--type", "veth", "--internal"];
    assert!(host.cnibox(&usage).run().stderr.contains("--internal: only a bridge has it"));
    let routed = with(&with_options("a", json!({"type": "veth"})), json!({"internal": true}));
    let refused = host.driver(&["create"], &routed);
    assert!(
        refused.stdout.contains("--internal: type veth does not have it"),
        "{}",
        refused.report()
    );
}
