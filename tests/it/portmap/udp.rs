//! UDP connections, which have no end: after ADD and DEL they follow the present rules.

use serde_json::json;

use super::{ANSWER_LIMIT_S, asking_by_udp, attach, chained, neighbours, portmap, serve, tcp, udp};
use crate::world::{Container, World};

/// Asks always from the same port, as many clients do, so that it is always the same connection.
pub fn ask_again(world: &World, client: &Container<'_>, address: &str, port: u16) -> String {
    let netns = client.netns();
    let answer = asking_by_udp(ANSWER_LIMIT_S, world, Some(&netns), address, port, 40000).run();
    answer.stdout.trim().split(' ').next().unwrap().to_owned()
}

pub fn connections(world: &World) -> String {
    world.tool(&["conntrack", "-L"], None).run().stdout
}

#[test]
fn a_client_from_before_add_is_translated() {
    for host in ["192.0.2.1", "fd00:2::1"] {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let c1 = world.container("c1");
        // Conntrack is active already.
        world.host([
            "nft",
            "add table inet t; add chain inet t c { type filter hook input priority 0; }; \
                    add rule inet t c ct state new counter",
        ]);
        assert_eq!(ask_again(&world, &outside, host, 8053), "");
        assert!(connections(&world).contains("dport=8053"), "{}", connections(&world));
        attach(&c1, &portmap(json!([udp(8053, 53)])));
        serve(&c1, "udp", 53);
        assert_eq!(ask_again(&world, &outside, host, 8053), "c1");
    }
}

#[test]
fn a_port_that_moves_takes_its_clients_along() {
    for host in ["192.0.2.1", "fd00:2::1"] {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        let config = portmap(json!([udp(8053, 53)]));
        attach(&c1, &config);
        serve(&c1, "udp", 53);
        assert_eq!(ask_again(&world, &outside, host, 8053), "c1");
        c1.del("portmap", &portmap(json!(null)));
        assert!(!connections(&world).contains("dport=8053"), "{}", connections(&world));
        attach(&c2, &config);
        serve(&c2, "udp", 53);
        assert_eq!(ask_again(&world, &outside, host, 8053), "c2");
    }
}

#[test]
fn other_connections_go_on() {
    for [host, through] in [["192.0.2.1", "198.51.100.2"], ["fd00:2::1", "fd00:3::2"]] {
        let world = World::new();
        let [outside, beyond] = neighbours(&world);
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        serve(&beyond, "udp", 8053);
        let config = portmap(json!([udp(8053, 53)]));
        let result = attach(&c1, &portmap(json!([tcp(80, 80)])));
        attach(&c2, &portmap(json!([udp(9053, 53)])));
        serve(&c2, "udp", 53);
        assert_eq!(ask_again(&world, &outside, through, 8053), "beyond");
        assert_eq!(ask_again(&world, &outside, host, 9053), "c2");
        let ids = || -> Vec<String> {
            let family = if host.contains(':') { "ipv6" } else { "ipv4" };
            let all = world.host(["conntrack", "-L", "-p", "udp", "-f", family, "-o", "id"]);
            let of = |line: &str| line.split(" id=").nth(1).map(str::to_owned);
            let mut ids: Vec<String> =
                all.lines().filter(|line| line.contains("sport=40000")).filter_map(of).collect();
            ids.sort();
            ids
        };
        let before = ids();
        assert_eq!(before.len(), 2);
        c1.add("portmap", &chained(&config, &result));
        assert_eq!(ids(), before, "after ADD");
        c1.del("portmap", &config);
        assert_eq!(ids(), before, "after DEL");
    }
}

/// More than are kept in memory at once.
#[test]
fn del_ends_as_many_connections_as_strangers_have_opened() {
    const COUNT: u32 = 20_000;
    let world = World::new();
    let [outside, _] = neighbours(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    attach(&c1, &portmap(json!([udp(8053, 53), udp(8054, 54)])));
    attach(&c2, &portmap(json!([udp(9053, 53)])));
    let clients = "import socket, sys\n\
        for own in range(20000, 20000 + int(sys.argv[1])):\n \
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n \
        client.bind(('', own))\n \
        client.sendto(b'x', ('192.0.2.1', 8053))\n \
        client.close()";
    outside.exec(["python3", "-c", clients, &COUNT.to_string()]);
    assert_eq!(ask_again(&world, &outside, "192.0.2.1", 9053), "");
    let count = || {
        let all = connections(&world);
        let to = |port: &str| all.lines().filter(|line| line.contains(port)).count();
        [to("dport=8053"), to("dport=9053")]
    };
    let [before, others] = count();
    assert!(before > 17_000 && others == 1, "{before} {others}");
    c1.del("portmap", &portmap(json!(null)));
    assert_eq!(count(), [0, 1]);
}
