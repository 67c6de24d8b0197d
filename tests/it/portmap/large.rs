//! Many ports of one container, many addresses of the host, and many connections: what is looked up costs time for each of them,
//! and not for each pair.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{chained, elements, portmap, result, tcp, udp};
use crate::world::{Call, Container, World, with};

/// In seconds, for a debug build on a machine with much load.
const LIMIT: [&str; 2] = ["timeout", "60"];

fn call<'w>(container: &Container<'w>, verb: &str, config: &Value) -> Call<'w> {
    let config = chained(config, &result(1, &container.netns()));
    container.call("portmap", verb, &config).under(&LIMIT)
}

/// Sends one packet to each port from 20000 to 59999 of an address.
const CONNECT: &str = "import socket
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.bind(('192.0.2.1', 9000))
for port in range(20000, 60000):
    try:
        client.sendto(b'x', ('192.0.2.13', port))
    except ConnectionRefusedError:
        client.sendto(b'x', ('192.0.2.13', port))";

#[test]
fn ten_thousand_udp_ports_are_published_beside_forty_thousand_connections() {
    let world = World::new();
    let mut script = "ip link add wan type bridge; ip link set wan up
        nft 'add table inet t; add chain inet t c { type filter hook output priority 0; }
             add rule inet t c ct state new counter'\n"
        .to_owned();
    for last in 1..=13 {
        writeln!(script, "ip address add 192.0.2.{last}/24 dev wan").unwrap();
    }
    world.host(["sh", "-ec", &script]);
    world.host(["python3", "-c", CONNECT]);
    let count = || {
        let all = world.host(["cat", "/proc/net/nf_conntrack"]);
        [20_000..30_000, 30_000..60_000].map(|ports: std::ops::Range<u32>| {
            let to = |line: &&str| {
                let port = line.split("dport=").nth(1).and_then(|rest| rest.split(' ').next());
                port.is_some_and(|port| ports.contains(&port.parse().unwrap()))
            };
            all.lines().filter(to).count()
        })
    };
    assert_eq!(count(), [10_000, 30_000]);
    let c1 = world.container("c1");
    let ports: Vec<Value> = (20_000..30_000).map(|port| udp(port, port)).collect();
    let config = portmap(json!(ports));
    call(&c1, "ADD", &config).run().success();
    assert_eq!(count(), [0, 30_000]);
    call(&c1, "DEL", &config).run().silence();
    assert_eq!(count(), [0, 30_000]);
}

#[test]
fn ten_thousand_ports_of_another_container_are_refused_or_replaced_in_time() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    for host_ip in [json!(""), json!("192.0.2.1")] {
        let ports = (1..=10_000).map(|port| with(&tcp(port, port), json!({"hostIP": host_ip})));
        let config = portmap(json!(ports.collect::<Vec<_>>()));
        call(&c1, "ADD", &config).run().success();
        call(&c2, "ADD", &config).run().fails(999, &["host port", "taken by", "container c1"]);
        call(&c1, "CHECK", &config).run().silence();
        // An ADD that is repeated replaces them.
        call(&c1, "ADD", &config).run().success();
        let gc = with(&config, json!({"cni.dev/valid-attachments": []}));
        call(&c1, "GC", &gc).run().silence();
        assert_eq!(elements(&world), [""; 0]);
    }
}
