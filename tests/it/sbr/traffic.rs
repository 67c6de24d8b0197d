//! With two interfaces, an answer leaves by the interface of its question.

use serde_json::{Value, json};

use super::sbr;
use crate::world::{Container, World, with};

fn network(number: u8) -> Value {
    let ranges = json!([[{"subnet": format!("10.{number}.0.0/24")}], [{"subnet": format!("fd00:{number}::/64")}]]);
    json!({"cniVersion": "1.1.0", "name": format!("net{number}"), "type": "bridge", "bridge": format!("br{number}"),
        "isDefaultGateway": number == 1, "isGateway": true, "ipam": {"type": "host-local", "ranges": ranges}})
}

fn sent(container: &Container<'_>, link: &str) -> u64 {
    let stats = container.json(["ip", "-j", "-s", "link", "show", "dev", link]);
    stats[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

#[test]
fn answers_leave_by_the_interface_of_the_question() {
    let world = World::new();
    let (c1, outside) = (world.container("c1"), world.container("outside"));
    let netns = outside.netns();
    world.host(["sh", "-ec", &format!(
        "ip link add wan0 type veth peer name wan1; ip link set wan1 netns {netns}
         ip address add 192.0.2.1/24 dev wan0; ip address add fd02:2::1/64 dev wan0 nodad; ip link set wan0 up
         nsenter --net={netns} sh -ec '
             ip address add 192.0.2.2/24 dev wan1; ip address add fd02:2::2/64 dev wan1 nodad; ip link set wan1 up
             ip route add default via 192.0.2.1; ip route add default via fd02:2::1'")]);
    c1.add("bridge", &network(1));
    let second = c1.call("bridge", "ADD", &network(2)).env("CNI_IFNAME", "net1").run().success();
    let addresses = ["10.2.0.2", "fd00:2::2"];
    // Without sbr they take the way of the default route.
    let (eth0, net1) = (sent(&c1, "eth0"), sent(&c1, "net1"));
    addresses.iter().for_each(|address| outside.ping(address));
    assert!(sent(&c1, "eth0") >= eth0 + 2);

    let config = with(&sbr(json!({}), &second), json!({"name": "net2"}));
    let call = |verb: &str| c1.call("sbr", verb, &config).env("CNI_IFNAME", "net1").run();
    call("ADD").success();
    call("CHECK").silence();
    let (eth0_before, net1_before) = (sent(&c1, "eth0"), sent(&c1, "net1"));
    for address in addresses {
        for _ in 0..10 {
            outside.ping(address);
        }
    }
    assert!(sent(&c1, "net1") >= net1_before + 20, "{net1} {net1_before} {}", sent(&c1, "net1"));
    // Neighbour discovery may say something there.
    assert!(sent(&c1, "eth0") < eth0_before + 10, "{eth0_before} {}", sent(&c1, "eth0"));
    // Both interfaces go on, in the container's own words and to their neighbours.
    for address in ["192.0.2.2", "fd02:2::2", "10.1.0.1", "fd00:1::1", "10.2.0.1", "fd00:2::1"] {
        c1.ping(address);
    }
    outside.ping("10.1.0.2");
    c1.pinging("192.0.2.2").args(&["-I", "10.2.0.2"]).output_of_success();
    c1.pinging("fd02:2::2").args(&["-I", "fd00:2::2"]).output_of_success();
}
