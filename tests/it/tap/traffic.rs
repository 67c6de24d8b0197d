//! Frames between the container and the program at the other end.

use serde_json::json;

use super::{config, plain, plain_with};
use crate::world::{Container, World, with};

const CABLE: &str = include_str!("cable.py");

fn cable(c: &Container<'_>, words: &[&str]) -> crate::world::Outcome {
    c.tool(["python3", "-c", CABLE]).args(words).run()
}

const PING: &str = "ping -n -q -c 1 -w 40 -i 0.2";

#[test]
fn the_container_talks_to_a_program() {
    // As a VPN opens it, and as a virtual machine does.
    for header in ["", "header"] {
        let world = World::new();
        let c1 = world.container("c1");
        c1.add("tap", &config());
        let ping = format!("{PING} 10.6.0.99");
        assert_eq!(cable(&c1, &["answer", &ping, header]).status, 0, "on the subnet");
        // The program that was there is gone; another one comes.
        let ping = format!("{PING} 192.0.2.1");
        assert_eq!(cable(&c1, &["answer", &ping, header]).status, 0, "beyond the gateway");
    }
}

#[test]
fn a_program_reaches_the_bridge_that_the_tap_is_a_port_of() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.exec([
        "sh",
        "-ec",
        "ip link add k6t0 address 02:00:00:00:00:bb type bridge
        ip link set k6t0 up; ip address add 10.6.0.1/24 dev k6t0",
    ]);
    let config = plain_with(json!({"bridge": "k6t0", "mac": "02:00:00:00:00:cc"}));
    let result = c1.add("tap", &config);
    assert_eq!(cable(&c1, &["ask"]).output().trim(), "02:00:00:00:00:bb");
    c1.check("tap", &config, &result);
}

#[test]
fn only_a_tap_with_many_queues_can_be_opened_with_many() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    c1.add("tap", &plain_with(json!({"multiQueue": true})));
    assert_eq!(cable(&c1, &["open", "4"]).output().trim(), "4");
    c2.add("tap", &plain());
    assert_eq!(cable(&c2, &["open", "1"]).output().trim(), "1");
    let refused = cable(&c2, &["open", "2"]);
    assert!(refused.stderr.contains("Invalid argument"), "{}", refused.report());
}

#[test]
fn del_removes_a_tap_that_a_program_has_open() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = with(&config(), json!({"name": "open"}));
    c1.add("tap", &config);
    let program = c1.tool(["python3", "-c", CABLE, "ask"]).start();
    world.eventually("it is open", || c1.exec(["ip", "link", "show", "eth0"]).contains("LOWER_UP"));
    c1.del("tap", &config);
    assert_eq!(c1.json(["ip", "-j", "link"]).as_array().unwrap().len(), 1, "lo alone is left");
    let outcome = program.finish();
    // EBADFD, or EFAULT if it was reading.
    let is_removed = ["File descriptor in bad state", "Bad address"]
        .iter()
        .any(|reason| outcome.stderr.contains(reason));
    assert!(is_removed, "{}", outcome.report());
}
