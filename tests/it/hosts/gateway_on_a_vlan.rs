//! The gateway of a bridge is a link of its own: that of a VLAN, or a pair that the administrator made. A policy is about the
//! networks of that link, and leaves each container its gateway.

use serde_json::{Value, json};

use super::subnets;
use crate::firewall::set_br_netfilter;
use crate::portmap::{ask, ask_in_vain, neighbours, serve};
use crate::world::{Container, World, runs_with, with};

/// How a bridge gets a gateway that is not the bridge.
#[derive(Clone, Copy, Debug)]
enum Gateway {
    /// `bridge` with `vlan` makes it.
    Vlan,
    /// The administrator made a pair, one end of which is a port. Without VLAN filtering, the bridge must not answer for it.
    Pair,
    /// The administrator made a link of a VLAN on the bridge.
    VlanLink,
}

/// Those that the kernel has.
fn gateways() -> Vec<Gateway> {
    let mut all = vec![Gateway::Pair];
    if runs_with("CONFIG_BRIDGE_VLAN_FILTERING") {
        all.push(Gateway::Vlan);
        all.extend(Some(Gateway::VlanLink).filter(|_| runs_with("CONFIG_VLAN_8021Q")));
    }
    all
}

impl Gateway {
    /// The network 1 on `br1`.
    fn network(self, world: &World) -> Value {
        let by_hand = match self {
            Self::Vlan => "",
            Self::Pair => {
                "ip link add br1 type bridge
                 ip link add gw1 type veth peer name port1
                 ip link set port1 up master br1; ip link set br1 up
                 ip address add 10.1.0.1/24 dev gw1
                 ip address add fd00:11::1/64 dev gw1 nodad
                 ip link set gw1 up
                 echo 1 >/proc/sys/net/ipv4/conf/br1/arp_ignore"
            }
            Self::VlanLink => {
                "ip link add br1 type bridge vlan_filtering 1
                 bridge vlan add dev br1 vid 10 self; ip link set br1 up
                 ip link add link br1 name br1.10 up type vlan id 10"
            }
        };
        world.host(["sh", "-ec", by_hand]);
        let keys = match self {
            Self::Pair => json!({}),
            _ => json!({"vlan": 10, "isGateway": true}),
        };
        let base =
            json!({"cniVersion": "1.1.0", "name": "net1", "type": "bridge", "bridge": "br1"});
        let mut network = with(&with(&base, keys), subnets(&["10.1.0.0/24", "fd00:11::/64"]));
        network["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        network
    }

    /// The values of br_netfilter with which translated packets arrive, also without a policy. With 1, a bridge without VLAN filtering
    /// takes them for itself, and a published port behind a VLAN link of the bridge does not answer.
    fn translates_with(self) -> &'static [&'static str] {
        if matches!(self, Self::Vlan) { &["0", "1"] } else { &["0"] }
    }

    /// The link that the addresses are on.
    fn link(self) -> &'static str {
        if matches!(self, Self::Pair) { "gw1" } else { "br1.10" }
    }
}

/// The network 2, with the bridge as gateway.
fn other() -> Value {
    let base = json!({"cniVersion": "1.1.0", "name": "net2", "type": "bridge", "bridge": "br2", "isDefaultGateway": true});
    with(&base, subnets(&["10.2.0.0/24", "fd00:12::/64"]))
}

/// A container behind the firewall, and the configuration of that.
struct Attached<'w> {
    container: Container<'w>,
    firewall: Value,
}

impl<'w> Attached<'w> {
    fn new(world: &'w World, name: &str, network: &Value, policy: &str) -> Self {
        let container = world.container(name);
        let result = container.add("bridge", network);
        let firewall = json!({"cniVersion": "1.1.0", "name": network["name"], "type": "firewall",
            "ingressPolicy": policy, "prevResult": result});
        container.add("firewall", &firewall);
        container.check("firewall", &firewall, &result);
        Self { container, firewall }
    }

    #[track_caller]
    fn assert_reaches(&self, addresses: &[&str]) {
        for address in addresses {
            self.container.ping(address);
        }
    }

    #[track_caller]
    fn assert_never_reaches(&self, addresses: &[&str]) {
        for address in addresses {
            let ping = ["ping", "-n", "-q", "-c", "1", "-W", "1", address];
            let name = &self.container.name;
            assert_ne!(self.container.tool(ping).run().status, 0, "{name} reaches {address}");
        }
    }
}

const GATEWAY: [&str; 2] = ["10.1.0.1", "fd00:11::1"];
/// The first two containers of the network 1, and the first one of the network 2.
const C1: [&str; 2] = ["10.1.0.2", "fd00:11::2"];
const C2: [&str; 2] = ["10.1.0.3", "fd00:11::3"];
const C3: [&str; 2] = ["10.2.0.2", "fd00:12::2"];
const OUTSIDE: [&str; 2] = ["192.0.2.2", "fd00:2::2"];

#[test]
fn same_bridge_keeps_its_network_apart_from_others() {
    for gateway in gateways() {
        let world = World::new();
        let _outside = neighbours(&world);
        let network = gateway.network(&world);
        let [c1, c2] =
            ["c1", "c2"].map(|name| Attached::new(&world, name, &network, "same-bridge"));
        let c3 = Attached::new(&world, "c3", &other(), "same-bridge");
        for br_netfilter in ["0", "1"] {
            set_br_netfilter(&world, br_netfilter);
            c1.assert_reaches(&[GATEWAY, C2, OUTSIDE].concat());
            c2.assert_reaches(&C1);
            c3.assert_reaches(&OUTSIDE);
            c1.assert_never_reaches(&C3);
            c3.assert_never_reaches(&C1);
        }
    }
}

#[test]
fn isolated_leaves_each_container_its_gateway() {
    for gateway in gateways() {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let network = gateway.network(&world);
        let [c1, c2] = ["c1", "c2"].map(|name| Attached::new(&world, name, &network, "isolated"));
        let c3 = Attached::new(&world, "c3", &other(), "same-bridge");
        for br_netfilter in ["0", "1"] {
            set_br_netfilter(&world, br_netfilter);
            for container in [&c1, &c2] {
                container.assert_reaches(&[GATEWAY, OUTSIDE].concat());
                container.assert_never_reaches(&C3);
            }
            c1.assert_never_reaches(&C2);
            c2.assert_never_reaches(&C1);
            c3.assert_never_reaches(&C2);
            C1.iter().for_each(|address| outside.ping(address));
            C1.iter().for_each(|address| drop(world.pinging(address, None).output_of_success()));
        }
    }
}

/// Containers that talk by way of the host, as with proxy ARP or a route for each address.
#[test]
fn isolated_drops_what_the_host_forwards_by_the_gateway() {
    for gateway in gateways() {
        let world = World::new();
        let network = gateway.network(&world);
        let [c1, c2] = ["c1", "c2"].map(|name| Attached::new(&world, name, &network, "isolated"));
        set_br_netfilter(&world, "0");
        for (from, to) in [(&c1, C2), (&c2, C1)] {
            for (address, by) in to.iter().zip(GATEWAY) {
                from.container.exec(["ip", "route", "add", address, "via", by]);
            }
        }
        c1.assert_never_reaches(&C2);
    }
}

#[test]
fn an_isolated_neighbour_does_not_get_a_published_port() {
    for gateway in gateways() {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let network = gateway.network(&world);
        let [c1, c2] = ["c1", "c2"].map(|name| Attached::new(&world, name, &network, "isolated"));
        let c3 = Attached::new(&world, "c3", &other(), "isolated");
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let portmap = json!({"cniVersion": "1.1.0", "name": "net1", "type": "portmap",
            "runtimeConfig": {"portMappings": ports}, "prevResult": c1.firewall["prevResult"]});
        c1.container.add("portmap", &portmap);
        serve(&c1.container, "tcp", 80);
        for br_netfilter in gateway.translates_with() {
            set_br_netfilter(&world, br_netfilter);
            for (client, address, expected) in [
                (&outside, "192.0.2.1", "c1 192.0.2.2"),
                (&c3.container, "10.2.0.1", "c1 10.2.0.2"),
                (&c3.container, "fd00:12::1", "c1 fd00:12::2"),
                (&c2.container, "10.1.0.1", "nothing"),
                (&c2.container, "fd00:11::1", "nothing"),
            ] {
                let ask = if expected == "nothing" { ask_in_vain } else { ask };
                let answer = ask(&world, Some(&client.netns()), "tcp", address, 8080);
                assert_eq!(
                    answer, expected,
                    "{gateway:?} {br_netfilter} {} {address}",
                    client.name
                );
            }
        }
    }
}

/// A port of the administrator that leads to a port that is not published.
#[test]
fn another_translation_does_not_open_the_networks() {
    for gateway in gateways() {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let network = gateway.network(&world);
        let [c1, c2] =
            ["c1", "c2"].map(|name| Attached::new(&world, name, &network, "same-bridge"));
        let c3 = Attached::new(&world, "c3", &other(), "same-bridge");
        for (family, [one, three]) in
            [("ip", ["10.1.0.2", "10.2.0.2"]), ("ip6", ["[fd00:11::2]", "[fd00:12::2]"])]
        {
            let rules = format!(
                "table {family} others {{ chain translate {{
                    type nat hook prerouting priority -100
                    tcp dport 2221 dnat to {one}:22
                    tcp dport 2223 dnat to {three}:22
                }}
                }}"
            );
            world.write("/run/others", rules);
            world.host(["nft", "--file", "/run/others"]);
        }
        for server in [&c1, &c3] {
            serve(&server.container, "tcp", 22);
        }
        for br_netfilter in gateway.translates_with() {
            set_br_netfilter(&world, br_netfilter);
            for (client, address, port, expected) in [
                (&outside, "192.0.2.1", 2221, "c1 192.0.2.2"),
                (&outside, "fd00:2::1", 2223, "c3 fd00:2::2"),
                (&c3.container, "10.2.0.1", 2221, "nothing"),
                (&c3.container, "fd00:12::1", 2221, "nothing"),
                (&c2.container, "10.1.0.1", 2223, "nothing"),
                (&c2.container, "fd00:11::1", 2223, "nothing"),
            ] {
                let ask = if expected == "nothing" { ask_in_vain } else { ask };
                let answer = ask(&world, Some(&client.netns()), "tcp", address, port);
                let name = &client.name;
                assert_eq!(answer, expected, "{gateway:?} {br_netfilter} {name} {address} {port}");
            }
        }
    }
}

#[test]
fn del_removes_the_exception() {
    for gateway in gateways() {
        let world = World::new();
        let network = gateway.network(&world);
        let c1 = Attached::new(&world, "c1", &network, "isolated");
        let rules = || world.host(["nft", "list", "ruleset"]);
        assert!(rules().contains(&format!("\"{}\"", gateway.link())), "{}", rules());
        c1.container.del("firewall", &c1.firewall);
        assert!(!rules().contains("elements"), "{}", rules());
    }
}

/// A network without a VLAN on the same bridge, which is its gateway.
#[test]
fn isolated_containers_of_the_bridge_itself_leave_others_their_gateway() {
    for gateway in gateways() {
        let world = World::new();
        let _outside = neighbours(&world);
        let c1 = Attached::new(&world, "c1", &gateway.network(&world), "isolated");
        let base = json!({"cniVersion": "1.1.0", "name": "net3", "type": "bridge", "bridge": "br1", "isDefaultGateway": true});
        let untagged = with(&base, subnets(&["10.3.0.0/24", "fd00:13::/64"]));
        let [c3, c4] = ["c3", "c4"].map(|name| Attached::new(&world, name, &untagged, "isolated"));
        for br_netfilter in ["0", "1"] {
            set_br_netfilter(&world, br_netfilter);
            c1.assert_reaches(&[GATEWAY, OUTSIDE].concat());
            for (own, neighbour) in
                [(&c3, ["10.3.0.3", "fd00:13::3"]), (&c4, ["10.3.0.2", "fd00:13::2"])]
            {
                own.assert_reaches(&[["10.3.0.1", "fd00:13::1"], OUTSIDE].concat());
                own.assert_never_reaches(&neighbour);
                own.assert_never_reaches(&C1);
                // By the host.
                for (address, by) in neighbour.iter().zip(["10.3.0.1", "fd00:13::1"]) {
                    own.container.exec(["ip", "route", "replace", address, "via", by]);
                }
                own.assert_never_reaches(&neighbour);
            }
        }
    }
}
