//! Changes of a lease are applied to the interface, announced and logged.

use serde_json::{Value, json};

use super::capture::{Capture, Packet};
use super::scripted::{Scripted, answer, plan};
use super::{Daemon, LIMIT_S, Site, bridge, macvlan};
use crate::world::{Container, World};

/// `10.0.0.0/8 via 10.1.0.250` and the default route, as in RFC 3442.
const CLASSLESS: &str = "080a0a0100fa000a0100fe";

/// The container after a renewal with `more` in the ACK; `applied` is then true.
#[track_caller]
fn renewed_with(more: Value, applied: impl Fn(&Container<'_>) -> bool) -> String {
    let world = World::new();
    let site = Site::new(&world);
    let server = Scripted::start(&site.outside, &plan());
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let result = c1.add("macvlan", &macvlan());
    assert_eq!(result["ips"][0]["address"], "10.1.0.20/24");
    server.answer_by(&json!({"request": [answer(5, more.clone())]}));
    world.within_or(LIMIT_S, || applied(&c1), || format!("{more} is applied: {}", daemon.log()));
    // The container can have the change a little earlier than the log. A renewal waits for the end of it.
    server.wait_for_another("request");
    let log = daemon.log();
    server.wait_for_another("request");
    server.wait_for_another("request");
    assert_eq!(daemon.log(), log, "an unchanged lease is not applied again");
    assert!(applied(&c1));
    c1.ping("10.1.0.254");
    c1.del("macvlan", &macvlan());
    server.wait_for("release", 1);
    log
}

fn routes(c1: &Container<'_>) -> String {
    c1.exec(["ip", "-4", "route"])
}

#[test]
fn another_address_replaces_the_old_one() {
    let log = renewed_with(json!({"yiaddr": "10.1.0.33"}), |c1| {
        c1.addresses("eth0") == ["10.1.0.33/24"] && routes(c1).contains("default via 10.1.0.254 ")
    });
    assert!(log.contains("10.1.0.20") && log.contains("10.1.0.33"), "{log}");
}

#[test]
fn another_mask_replaces_the_old_one() {
    let log = renewed_with(json!({"options": {"1": "ffff0000"}}), |c1| {
        c1.addresses("eth0") == ["10.1.0.20/16"]
            && routes(c1).contains("10.1.0.0/16 ")
            && !routes(c1).contains("10.1.0.0/24 ")
            && routes(c1).contains("default via 10.1.0.254 ")
    });
    assert!(log.contains("10.1.0.20/16"), "{log}");
}

#[test]
fn another_gateway_replaces_the_old_one() {
    let log = renewed_with(json!({"options": {"3": "0a0100fb"}}), |c1| {
        routes(c1).contains("default via 10.1.0.251 ") && !routes(c1).contains("10.1.0.254")
    });
    assert!(log.contains("10.1.0.251"), "{log}");
}

#[test]
fn other_routes_replace_the_old_ones() {
    renewed_with(json!({"options": {"121": CLASSLESS}}), |c1| {
        let routes = routes(c1);
        routes.contains("10.0.0.0/8 via 10.1.0.250 ") && routes.contains("default via 10.1.0.254 ")
    });
}

#[test]
fn a_gateway_that_the_server_leaves_out_leaves_the_container() {
    renewed_with(json!({"without": [3]}), |c1| {
        !routes(c1).contains("default") && c1.addresses("eth0") == ["10.1.0.20/24"]
    });
}

#[test]
fn another_mtu_is_set() {
    let log = renewed_with(json!({"options": {"26": "0514"}}), |c1| {
        c1.exec(["ip", "link", "show", "eth0"]).contains("mtu 1300 ")
    });
    assert!(log.contains("1300"), "{log}");
}

#[test]
fn a_new_address_is_announced() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &plan());
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    c1.add("bridge", &bridge());
    let mac = site.mac(&c1);
    let capture = Capture::start(&site.outside);
    server.answer_by(&json!({"request": [answer(5, json!({"yiaddr": "10.1.0.33"}))]}));
    world.within(LIMIT_S, "the address changes", || c1.addresses("eth0") == ["10.1.0.33/24"]);
    server.wait_for_another("request");
    let packets = capture.finish();
    let announces = |packet: &&Packet| {
        packet.get("arp.src.proto_ipv4") == "10.1.0.33"
            && packet.get("arp.dst.proto_ipv4") == "10.1.0.33"
            && packet.get("eth.dst") == "ff:ff:ff:ff:ff:ff"
            && packet.get("eth.src") == mac
    };
    assert!(packets.iter().any(|packet| announces(&packet)), "{packets:?}");
}
