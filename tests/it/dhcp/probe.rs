//! `"probe": true`: an address that another host has is declined.

use serde_json::json;

use super::capture::{Capture, Packet, kinds6, of_kind, of_kind6, transactions};
use super::servers::{Kea, radvd};
use super::{Daemon, Site, address, asking, bridge};
use crate::world::World;

#[test]
fn a_taken_address_is_declined_and_the_next_one_is_used() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    // Another host has the first address of the pool, and the server does not know it.
    let other = world.container("other");
    site.attach(&other, "10.1.0.10/24");
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let config = asking(&bridge(), json!({"probe": true}));
    let result = c1.add("bridge", &config);
    let held = address(&result);
    assert_ne!(held, "10.1.0.10");
    let declined: Vec<_> = kea.table().into_iter().filter(|row| row.state == 1).collect();
    assert_eq!(declined.len(), 1, "{:?}", kea.table());
    assert_eq!(declined[0].address, "10.1.0.10");
    c1.del("bridge", &config);
    kea.wait_for_release(&held);
    let packets = capture.finish();
    let declines = of_kind(&packets, "DECLINE");
    assert_eq!(declines.len(), 1, "{packets:?}");
    // RFC 2131, table 5.
    assert_eq!(declines[0].option(50), Some("0a01000a"));
    assert_eq!(declines[0].option(54), Some("0a0100fe"));
    assert_eq!(declines[0].get("dhcp.ip.client"), "0.0.0.0");
    let is_probe = |packet: &&Packet| {
        // RFC 5227, section 2.1.1: the sender's address is zero, so no cache is changed.
        packet.get("arp.src.proto_ipv4") == "0.0.0.0" && packet.get("arp.opcode") == "1"
    };
    assert!(packets.iter().filter(is_probe).count() >= 2, "{packets:?}");
}

#[test]
fn a_taken_ipv6_address_is_declined_and_the_next_one_is_used() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    // Another host has two of the three addresses of the pool, and the server does not know it.
    let other = world.container("other");
    site.attach(&other, "fd00:1::10/64");
    other.exec(["ip", "address", "add", "fd00:1::11/64", "dev", "eth0"]);
    other.wait_for_link_local("eth0");
    let _router = radvd(&site.outside, "AdvManagedFlag on;", "AdvAutonomous off;");
    let kea = Kea::start6(&site.outside, "sw", json!({}));
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let config = asking(&bridge(), json!({"probe": true, "families": ["6"]}));
    let result = c1.add("bridge", &config);
    let held = address(&result);
    assert_eq!(held, "fd00:1::12");
    let declined: Vec<_> = kea.table().into_iter().filter(|row| row.state == 1).collect();
    assert!(!declined.is_empty(), "{:?}", kea.table());
    assert_eq!(c1.addresses("eth0"), ["fd00:1::12/128"]);
    c1.check("bridge", &config, &result);
    c1.ping("fd00:1::fe");
    c1.del("bridge", &config);
    kea.wait_for_release(&held);
    let packets = capture.finish();
    let kinds = kinds6(&packets);
    assert_eq!(transactions(&of_kind6(&packets, "DECLINE")), declined.len(), "{kinds:?}");
    assert_eq!(transactions(&of_kind6(&packets, "RELEASE")), 1, "{kinds:?}");
}

#[test]
fn without_probe_no_probe_is_sent() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let _kea = Kea::start(&site.outside, "sw", json!({}));
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    c1.add("bridge", &bridge());
    c1.ping("10.1.0.254");
    let packets = capture.finish();
    assert!(packets.iter().all(|packet| packet.get("arp.src.proto_ipv4") != "0.0.0.0"));
}
