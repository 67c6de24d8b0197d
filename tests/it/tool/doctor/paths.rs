//! What the packets of containers need besides filters: parents, bridges, routes and reservations.

use serde_json::{Value, json};

use super::attachments::{call, host, on_this_host};
use super::{doctor, faults, healthy, is_mended_by, network, only_fault};

const STORE: &str = "/var/lib/cni/networks/a";

#[test]
fn a_port_that_left_its_bridge_gets_its_settings_back() {
    let mut network = network("a", 1);
    network["plugins"][0]["hairpinMode"] = true.into();
    network["plugins"][0]["portIsolation"] = true.into();
    let world = healthy(&[network]);
    assert_eq!(call(&world, &["add", "a", "c1", "--create"]).status, 0);
    let port = world.ports_of("cni-a").pop().unwrap();
    world.host(["ip", "link", "set", &port, "nomaster"]);
    let fix = only_fault(&world, "broken", &["is not in bridge cni-a"]);
    assert!(fix.starts_with(&format!("ip link set {port} master cni-a && ")), "{fix}");
    is_mended_by(&world, &fix);
    let checked = call(&world, &["attachments", "--check"]);
    assert_eq!(checked.status, 0, "{}", checked.report());
}

#[test]
fn a_parent_that_is_down_is_found() {
    let ipam = json!({"type": "host-local", "subnet": "10.5.0.0/16"});
    let plugin = json!({"type": "macvlan", "master": "up0", "ipam": ipam});
    let world = healthy(&[json!({"cniVersion": "1.0.0", "name": "lan", "plugins": [plugin]})]);
    world.host(["ip", "link", "add", "up0", "up", "type", "veth", "peer", "name", "w0"]);
    let added = call(&world, &["add", "lan", "c1", "--create"]);
    assert_eq!(added.status, 0, "{}", added.report());
    assert_eq!(faults(&world), [] as [Value; 0]);
    world.host(["ip", "link", "set", "up0", "down"]);
    let fix = only_fault(&world, "broken", &["up0, the parent of its interface, is down"]);
    assert_eq!(fix, "ip link set up0 up");
    assert_eq!(doctor(&world, &["c1"]).status, 1);
    is_mended_by(&world, &fix);
}

#[test]
fn a_host_without_default_route_is_a_note() {
    let world = host();
    let has_note = |text: &str| {
        let outcome = doctor(&world, &[]);
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        outcome.stderr.contains(text)
    };
    let text = "note: the host has no default route, for a";
    assert!(!has_note(text));
    world.host(["ip", "route", "delete", "default"]);
    assert!(has_note(&format!("{text}\n")));
    world.host(["ip", "route", "add", "0.0.0.0/1", "via", "198.18.0.254"]);
    assert!(!has_note(text), "a VPN adds two routes");
    world.host(["ip", "link", "set", "wan", "down"]);
    assert!(has_note(&format!("{text}, and wan is down\n")));
}

#[test]
fn a_default_route_by_another_gateway_is_found() {
    let world = host();
    // A VPN in the container has a route of its own.
    let other = ["ip", "-n", "c1", "route", "add", "default", "via", "10.1.0.9", "metric", "50"];
    world.host(other);
    assert_eq!(faults(&world), [] as [Value; 0]);
    world.host(["ip", "-n", "c1", "route", "delete", "default", "metric", "50"]);
    world.host(["ip", "-n", "c1", "route", "replace", "default", "via", "10.1.0.9"]);
    let text = "its default route of IPv4 is via 10.1.0.9, not via 10.1.0.1";
    let fix = only_fault(&world, "broken", &[text]);
    assert!(fix.ends_with("ip route replace default via 10.1.0.1 dev eth0"), "{fix}");
    is_mended_by(&world, &fix);
}

#[test]
fn lost_reservations_are_found_and_written_again() {
    let world = host();
    for (loss, count, text) in [
        (format!("rm -r {STORE}"), 4, " is not reserved"),
        (format!("echo garbage >{STORE}/10.1.0.2"), 1, " is reserved for another owner"),
    ] {
        world.host(["sh", "-c", &loss]);
        let faults = faults(&world);
        assert_eq!(faults.len(), count, "{loss}: {faults:#?}");
        for fault in &faults {
            let what = fault["what"].as_str().unwrap();
            assert!(what.ends_with(text), "{what}");
        }
        let fixes: Vec<&str> = faults.iter().map(|fault| fault["fix"].as_str().unwrap()).collect();
        is_mended_by(&world, &on_this_host(&fixes.join(" && ")));
    }
    let deleted = call(&world, &["del", "a", "c1", "--delete"]);
    assert_eq!(deleted.status, 0, "{}", deleted.report());
    assert!(!world.path(STORE).join("10.1.0.2").exists());
    assert!(world.path(STORE).join("10.1.0.3").exists());
}
