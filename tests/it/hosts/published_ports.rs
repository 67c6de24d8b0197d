//! A published port is public, also where `ingressPolicy` keeps networks apart. Everything else behind a translation is not.

use serde_json::{Value, json};

use crate::firewall::set_br_netfilter;
use crate::portmap::{ask, ask_in_vain, elements, neighbours, serve};
use crate::world::{Container, World, with};

/// The order of the plugins in the list.
pub(super) const ORDERS: [[&str; 2]; 2] = [["portmap", "firewall"], ["firewall", "portmap"]];

fn bridge(number: u8) -> Value {
    let ranges = json!([[{"subnet": format!("10.{number}.0.0/24")}], [{"subnet": format!("fd00:1{number}::/64")}]]);
    json!({"cniVersion": "1.1.0", "name": format!("net{number}"), "type": "bridge", "bridge": format!("cni{number}"),
        "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": ranges}})
}

/// A container of a network with a policy, which publishes these ports of the host as its port 80.
pub(super) struct Attached<'w> {
    pub(super) container: Container<'w>,
    number: u8,
    policy: &'static str,
    ports: Vec<u16>,
    pub(super) result: Value,
}

impl<'w> Attached<'w> {
    pub(super) fn new(
        world: &'w World,
        name: &str,
        number: u8,
        (policy, ports): (&'static str, &[u16]),
        order: [&str; 2],
    ) -> Self {
        let container = world.container(name);
        let result = container.add("bridge", &bridge(number));
        let attached = Self { container, number, policy, ports: ports.into(), result };
        for plugin in order {
            attached.add(plugin);
        }
        attached.check();
        attached
    }

    pub(super) fn config(&self, plugin: &str) -> Value {
        let base = json!({"cniVersion": "1.1.0", "name": format!("net{}", self.number), "type": plugin,
            "prevResult": self.result});
        let publish = |transport: &'static str| move |port| json!({"hostPort": port, "containerPort": 80, "protocol": transport});
        let tcp = self.ports.iter().map(publish("tcp"));
        let ports: Vec<Value> = tcp.chain(self.ports.iter().map(publish("udp"))).collect();
        with(
            &base,
            match plugin {
                "portmap" => json!({"runtimeConfig": {"portMappings": ports}}),
                _ => json!({"ingressPolicy": self.policy}),
            },
        )
    }

    pub(super) fn add(&self, plugin: &str) {
        self.container.add(plugin, &self.config(plugin));
    }

    #[track_caller]
    pub(super) fn check(&self) {
        for plugin in ORDERS[0] {
            self.container.check(plugin, &self.config(plugin), &self.result);
        }
    }
}

/// What the host leads to c1 beside its published port: a service to the same port, and a port of the administrator to another.
const TRANSLATIONS: &str = "
table ip others {
    chain translate {
        type nat hook prerouting priority -100
        ip daddr 10.96.0.1 tcp dport 80 dnat to 10.1.0.2:80
        tcp dport 2222 dnat to 10.1.0.2:22
    }
}
table ip6 others {
    chain translate {
        type nat hook prerouting priority -100
        ip6 daddr fd96::1 tcp dport 80 dnat to [fd00:11::2]:80
        tcp dport 2222 dnat to [fd00:11::2]:22
    }
}
";

/// What a client gets from these addresses and ports, by TCP.
#[track_caller]
fn assert_answers(client: &Container<'_>, questions: &[(&str, u16, &str)]) {
    for (address, port, expected) in questions {
        let ask = if *expected == "nothing" { ask_in_vain } else { ask };
        let answer = ask(client.world, Some(&client.netns()), "tcp", address, *port);
        assert_eq!(answer, *expected, "{} asks {address} {port}", client.name);
    }
}

/// The published targets that nft lists, for example `ip 10.1.0.2 tcp 80 net1 c1 eth0`.
fn targets(world: &World) -> Vec<String> {
    let all = elements(world).into_iter();
    let is_target = |line: &String| line.contains(" portmap-targets ");
    all.filter(is_target).collect()
}

#[test]
fn a_published_port_answers_another_network_and_nothing_else_does() {
    for order in ORDERS {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let c1 = Attached::new(&world, "c1", 1, ("same-bridge", &[8080]), order);
        let c2 = Attached::new(&world, "c2", 2, ("same-bridge", &[]), order);
        let c3 = Attached::new(&world, "c3", 1, ("same-bridge", &[]), order);
        world.write("/run/others", TRANSLATIONS);
        world.host(["nft", "--file", "/run/others"]);
        for port in [80, 22] {
            serve(&c1.container, "tcp", port);
        }
        serve(&c1.container, "udp", 80);
        for br_netfilter in ["0", "1"] {
            set_br_netfilter(&world, br_netfilter);
            let (from4, from6) = ("c1 10.2.0.2", "c1 fd00:12::2");
            assert_answers(
                &c2.container,
                &[
                    ("10.2.0.1", 8080, from4),
                    ("fd00:12::1", 8080, from6),
                    ("192.0.2.1", 8080, from4),
                    ("10.96.0.1", 80, from4),
                    ("fd96::1", 80, from6),
                    ("10.2.0.1", 2222, "nothing"),
                    ("fd00:12::1", 2222, "nothing"),
                    ("10.1.0.2", 80, "nothing"),
                    ("fd00:11::2", 80, "nothing"),
                    ("10.1.0.2", 22, "nothing"),
                ],
            );
            for (address, from) in [("10.2.0.1", from4), ("fd00:12::1", from6)] {
                let netns = c2.container.netns();
                assert_eq!(ask(&world, Some(&netns), "udp", address, 8080), from);
            }
            // As before.
            assert_answers(&outside, &[("192.0.2.1", 8080, "c1 192.0.2.2")]);
            assert_answers(&outside, &[("fd00:2::1", 2222, "c1 fd00:2::2")]);
            assert_answers(
                &c3.container,
                &[("192.0.2.1", 8080, "c1 10.1.0.1"), ("10.1.0.2", 22, "c1 10.1.0.3")],
            );
        }
    }
}

#[test]
fn an_isolated_container_publishes_to_other_networks_and_not_within_its_bridge() {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    let c1 = Attached::new(&world, "c1", 1, ("isolated", &[8080]), ORDERS[0]);
    let c2 = Attached::new(&world, "c2", 1, ("isolated", &[]), ORDERS[0]);
    let other = Attached::new(&world, "other", 2, ("isolated", &[8081]), ORDERS[0]);
    for attached in [&c1, &other] {
        serve(&attached.container, "tcp", 80);
    }
    for br_netfilter in ["0", "1"] {
        set_br_netfilter(&world, br_netfilter);
        assert_answers(
            &other.container,
            &[("10.2.0.1", 8080, "c1 10.2.0.2"), ("fd00:12::1", 8080, "c1 fd00:12::2")],
        );
        assert_answers(&outside, &[("192.0.2.1", 8080, "c1 192.0.2.2")]);
        assert_answers(
            &c2.container,
            &[
                ("10.1.0.1", 8081, "other 10.1.0.3"),
                ("10.1.0.1", 8080, "nothing"),
                ("192.0.2.1", 8080, "nothing"),
                ("fd00:11::1", 8080, "nothing"),
                ("10.1.0.2", 80, "nothing"),
                ("10.2.0.2", 80, "nothing"),
            ],
        );
    }
}

#[test]
fn a_target_lives_as_long_as_its_port() {
    for order in ORDERS {
        let world = World::new();
        let c1 = Attached::new(&world, "c1", 1, ("same-bridge", &[8080, 8081]), order);
        // One element for each protocol and family, although two ports of the host lead there.
        assert_eq!(targets(&world).len(), 4, "{:?}", targets(&world));
        let mut c2 = Attached::new(&world, "c2", 2, ("same-bridge", &[9090]), order);
        assert_eq!(targets(&world).len(), 8, "{:?}", targets(&world));
        // An ADD that is repeated with other ports.
        c2.ports = Vec::new();
        c2.add("portmap");
        assert_eq!(targets(&world).len(), 4, "{:?}", targets(&world));
        c2.ports = vec![8081];
        let config = c2.config("portmap");
        c2.container.call("portmap", "ADD", &config).run().fails(999, &["net1", "c1"]);
        assert_eq!(targets(&world).len(), 4, "{:?}", targets(&world));
        c2.ports = vec![9090, 9091];
        c2.add("portmap");
        c2.check();
        // A lost element is found and comes back.
        world.host(["nft", "flush", "set", "ip", "cnibox", "portmap-targets"]);
        let checked = c1.container.checking("portmap", &c1.config("portmap"), &c1.result).run();
        checked.fails(999, &["portmap-targets"]);
        c1.add("portmap");
        c1.check();
        c1.container.del("portmap", &c1.config("portmap"));
        assert!(
            targets(&world).iter().all(|line| line.contains("net2 c2")),
            "{:?}",
            targets(&world)
        );
        let none = json!({"cni.dev/valid-attachments": []});
        world.call("portmap", "GC", &with(&c2.config("portmap"), none)).run().silence();
        assert_eq!(targets(&world), [] as [String; 0]);
    }
}

#[test]
fn without_a_policy_there_are_no_targets() {
    let world = World::new();
    for (name, number, port) in [("c1", 1, 8080), ("c2", 2, 8081)] {
        Attached::new(&world, name, number, ("open", &[port]), ORDERS[0]);
    }
    let rules = world.host(["nft", "list", "ruleset"]);
    assert!(!rules.contains("portmap-targets"), "{rules}");
}

#[test]
fn the_rules_are_the_same_after_nft_restored_them() {
    let world = World::new();
    let c1 = Attached::new(&world, "c1", 1, ("isolated", &[8080]), ORDERS[0]);
    let c2 = Attached::new(&world, "c2", 2, ("same-bridge", &[]), ORDERS[0]);
    serve(&c1.container, "tcp", 80);
    // The tables and the elements of a set can come in another order, and nft prints the match of iptables in its own words.
    let words = |rules: &str| {
        let rules =
            rules.replace("mark and 0x1000 == 0x1000", "meta mark & 0x00001000 == 0x00001000");
        let words = rules.split([' ', ',', '\n', '\t']).filter(|word| !word.is_empty());
        let mut words: Vec<String> = words.map(str::to_owned).collect();
        words.sort();
        words
    };
    let list = || world.host(["nft", "list", "ruleset"]);
    let before = list();
    world.write("/run/rules", &before);
    world.host(["nft", "flush", "ruleset"]);
    world.host(["nft", "--file", "/run/rules"]);
    assert_eq!(words(&list()), words(&before));
    c1.check();
    c2.check();
    c2.add("firewall");
    assert_eq!(words(&list()), words(&before));
    assert_answers(
        &c2.container,
        &[("10.2.0.1", 8080, "c1 10.2.0.2"), ("10.1.0.2", 80, "nothing")],
    );
}

/// Sends one UDP packet with the address of another container as source to the container's own published port, then asks that
/// container from the port: its question would be a reply.
const SPOOF: &str = r#"import socket, struct, sys
host, victim, own = sys.argv[1:]
family = socket.AF_INET6 if ':' in own else socket.AF_INET
source, target = (socket.inet_pton(family, address) for address in (victim, host))
client = socket.socket(family, socket.SOCK_DGRAM)
client.bind((own, 80))
client.settimeout(2)
datagram = struct.pack('!HHHH', 53, 8080, 9, 0) + b'x'
pseudo = struct.pack('!BBH', 0, 17, 9) if family == socket.AF_INET else struct.pack('!IHBB', 9, 0, 0, 17)
words = source + target + pseudo + datagram + b'\0'
total = sum(struct.unpack(f'!{len(words) // 2}H', words))
while total >> 16:
    total = (total & 0xffff) + (total >> 16)
datagram = datagram[:6] + struct.pack('!H', ~total & 0xffff) + datagram[8:]
if family == socket.AF_INET:
    packet = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 29, 1, 0, 64, 17, 0, source, target) + datagram
else:
    packet = struct.pack('!IHBB16s16s', 6 << 28, 9, 17, 64, source, target) + datagram
raw = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
raw.sendto(packet, (host, 0) if family == socket.AF_INET else (host, 0, 0, 0))
try:
    client.recvfrom(9)
except TimeoutError:
    pass
client.sendto(b'question\n', (victim, 53))
try:
    print('open:', client.recvfrom(99))
except TimeoutError:
    print('closed')
"#;

#[test]
fn a_container_opens_no_port_of_another_with_its_address() {
    for policy in ["same-bridge", "isolated"] {
        let world = World::new();
        let _outside = neighbours(&world);
        // As systemd sets it; 1 would drop the packet in IPv4.
        world.host([
            "sh",
            "-c",
            "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 2 >$f; done",
        ]);
        let c1 = Attached::new(&world, "c1", 1, ("same-bridge", &[8080]), ORDERS[0]);
        // Alone in its network, an isolated container reaches its own port as little as its neighbours.
        let victim = Attached::new(&world, "victim", 2, (policy, &[]), ["firewall", "firewall"]);
        serve(&victim.container, "udp", 53);
        // Addresses that no ADD had in its result, as those of a virtual router or of SLAAC.
        victim.container.exec(["ip", "address", "add", "10.2.0.77/24", "dev", "eth0"]);
        victim.container.exec(["ip", "address", "add", "fd00:12::77/64", "dev", "eth0", "nodad"]);
        // With br_netfilter, the bridge would have to send the packet back to its port.
        set_br_netfilter(&world, "0");
        for addresses in [
            ["192.0.2.1", "10.2.0.2", "10.1.0.2"],
            ["fd00:2::1", "fd00:12::2", "fd00:11::2"],
            ["192.0.2.1", "10.2.0.77", "10.1.0.2"],
            ["fd00:2::1", "fd00:12::77", "fd00:11::2"],
        ] {
            let [host, of_victim, own] = addresses;
            let said = c1.container.exec(["python3", "-c", SPOOF, host, of_victim, own]);
            assert_eq!(said, "closed\n", "{policy} {addresses:?}");
        }
    }
}
