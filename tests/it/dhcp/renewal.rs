//! Renewal and rebinding, with leases of seconds.

use std::collections::BTreeSet;

use serde_json::json;

use super::capture::{Capture, Packet, of_kind, transactions};
use super::scripted::{Scripted, answer, plan, plan_with};
use super::servers::{Dnsmasq, Kea, Udhcpd};
use super::{Daemon, LIMIT_S, Site, address, bridge};
use crate::world::World;

#[test]
fn a_renewal_is_unicast_to_the_server_and_takes_the_address_from_ciaddr() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = address(&c1.add("bridge", &bridge()));
    kea.wait_for_renewals(&held, 2);
    let mac = site.mac(&c1);
    let server = site.server_mac();
    c1.del("bridge", &bridge());
    kea.wait_for_release(&held);
    let packets = capture.finish();
    let requests = of_kind(&packets, "REQUEST");
    let is_renewal = |packet: &&&Packet| packet.xid() != requests[0].xid();
    let renewals: Vec<_> = requests.iter().filter(is_renewal).collect();
    assert!(renewals.len() >= 2, "each exchange has an id of its own: {packets:?}");
    for renewal in renewals {
        assert_eq!(renewal.get("eth.src"), mac);
        assert_eq!(renewal.get("eth.dst"), server, "not a broadcast");
        assert_eq!(renewal.get("ip.src"), held);
        assert_eq!(renewal.get("ip.dst"), "10.1.0.254");
        assert_eq!(renewal.get("dhcp.ip.client"), held);
        // RFC 2131, table 5: neither the requested address nor the server identifier.
        assert_eq!((renewal.option(50), renewal.option(54)), (None, None));
    }
    assert_eq!(transactions(&of_kind(&packets, "DISCOVER")), 1, "{packets:?}");
}

#[test]
fn another_server_takes_over_when_the_first_one_is_gone() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let times = json!({"renew-timer": 1, "rebind-timer": 3});
    let mut first = Kea::start(&site.outside, "sw", times.clone());
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = address(&c1.add("bridge", &bridge()));
    let capture = Capture::start(&site.outside);
    // The client asks all servers once, so the second one serves before the first one ends.
    let other = site.second_server();
    let second = Kea::start(&other, "eth0", times);
    first.kill();
    world.within(LIMIT_S, "the second server renews the lease", || second.given(&held) >= 3);
    assert_eq!(c1.addresses("eth0"), [format!("{held}/24")]);
    c1.ping("10.1.0.253");
    c1.del("bridge", &bridge());
    second.wait_for_release(&held);
    let packets = capture.finish();
    let requests = of_kind(&packets, "REQUEST");
    let rebinding = requests.iter().find(|packet| packet.get("eth.dst") == "ff:ff:ff:ff:ff:ff");
    let rebinding = rebinding.unwrap_or_else(|| panic!("no broadcast: {packets:?}"));
    assert_eq!(rebinding.get("ip.dst"), "255.255.255.255");
    assert_eq!(rebinding.get("dhcp.ip.client"), held);
    assert_eq!((rebinding.option(50), rebinding.option(54)), (None, None));
    let last = requests.last().unwrap();
    assert_eq!(last.get("ip.dst"), "10.1.0.253", "renewals go to the new server");
    assert_eq!(of_kind(&packets, "DISCOVER").len(), 0, "the lease never ended");
}

#[test]
fn after_a_nak_of_dnsmasq_the_container_gets_another_address() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let times = ["--dhcp-option=option:T1,3", "--dhcp-option=option:T2,5"];
    let serve = |range: &str| {
        let range = format!("--dhcp-range={range},2m");
        Dnsmasq::start(&site.outside, &[&range, times[0], times[1]])
    };
    let first = serve("10.1.0.10,10.1.0.10");
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    assert_eq!(address(&c1.add("bridge", &bridge())), "10.1.0.10");
    drop(first);
    world.host(["rm", "/run/dnsmasq.leases"]);
    let dnsmasq = serve("10.1.0.50,10.1.0.50");
    world.within_or(
        LIMIT_S,
        || c1.addresses("eth0") == ["10.1.0.50/24"],
        || format!("the new address is there: {}{}", daemon.log(), dnsmasq.0.log()),
    );
    assert!(dnsmasq.0.log().contains("DHCPNAK"), "{}", dnsmasq.0.log());
    c1.ping("10.1.0.254");
    c1.del("bridge", &bridge());
    world.eventually("the lease is released", || dnsmasq.leases().is_empty());
}

#[test]
fn a_broadcast_nak_to_a_unicast_renewal_starts_over() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &plan());
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    c1.add("bridge", &bridge());
    // RFC 2131, section 4.3.2: a server without relay broadcasts each NAK.
    let other = answer(2, json!({"yiaddr": "10.1.0.21"}));
    server.answer_by(&json!({"discover": [other], "request": [{"type": 6}]}));
    server.wait_for_another("discover");
    server.answer_by(&plan_with(json!({"yiaddr": "10.1.0.21"})));
    let has_another = || c1.addresses("eth0") == ["10.1.0.21/24"];
    world.within_or(LIMIT_S, has_another, || format!("the new address is there: {}", daemon.log()));
    c1.ping("10.1.0.254");
}

#[test]
fn an_address_leaves_the_interface_when_its_lease_ends() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &plan());
    let daemon = Daemon::resending(&world);
    let c1 = world.container("c1");
    c1.add("bridge", &bridge());
    // A short lease that begins before the container has its address could end in the ADD.
    let short = json!({"options": {"51": "00000005", "58": "00000001", "59": "00000002"}});
    server.answer_by(&plan_with(short));
    server.wait_for_another("request");
    server.wait_for_another("request");
    server.answer_by(&json!({}));
    world.within_or(
        LIMIT_S,
        || c1.addresses("eth0").is_empty(),
        || format!("the address is gone: {}", daemon.log()),
    );
    assert_eq!(c1.exec(["ip", "route"]), "", "its routes are gone with it");
    // The client goes on asking, and the next server has another address.
    let next = json!({"yiaddr": "10.1.0.21"});
    server.answer_by(&plan_with(next));
    world.within_or(
        LIMIT_S,
        || c1.addresses("eth0") == ["10.1.0.21/24"],
        || format!("the address is there: {}", daemon.log()),
    );
    assert!(c1.exec(["ip", "route"]).contains("default via 10.1.0.254 "));
    c1.ping("10.1.0.254");
    c1.del("bridge", &bridge());
    server.wait_for("release", 1);
}

#[test]
fn a_lease_of_udhcpd_that_sends_no_times_is_renewed_at_half_of_it() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let udhcpd = Udhcpd::start(&site.outside, "opt lease 16");
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = address(&c1.add("bridge", &bridge()));
    let acks = || udhcpd.0.log().matches("sending ACK").count();
    world.within(LIMIT_S, "two renewals", || acks() >= 3);
    assert_eq!(c1.addresses("eth0"), [format!("{held}/24")]);
    c1.ping("10.1.0.254");
    c1.del("bridge", &bridge());
    world.eventually("the lease is released", || udhcpd.leases().contains("expired"));
    let packets = capture.finish();
    let requests = of_kind(&packets, "REQUEST");
    let gap_s = requests[2].time_s() - requests[1].time_s();
    assert!((6.0..16.0).contains(&gap_s), "{gap_s} s between two renewals");
    assert_eq!(of_kind(&packets, "RELEASE").len(), 1);
}

#[test]
fn a_lease_of_dnsmasq_is_renewed_and_released() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let range = "--dhcp-range=10.1.0.10,10.1.0.12,2m";
    let times = ["--dhcp-option=option:T1,3", "--dhcp-option=option:T2,5"];
    let dnsmasq = Dnsmasq::start(&site.outside, &[range, times[0], times[1]]);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = address(&c1.add("bridge", &bridge()));
    let acks = || dnsmasq.0.log().matches("DHCPACK").count();
    world.within_or(LIMIT_S, || acks() >= 3, || format!("two renewals: {}", dnsmasq.0.log()));
    assert!(dnsmasq.leases()[0].contains(&held));
    c1.ping("10.1.0.254");
    c1.del("bridge", &bridge());
    world.eventually("the lease is released", || dnsmasq.leases().is_empty());
}

#[test]
fn an_endless_lease_is_not_renewed() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let endless = json!({"options": {"51": "ffffffff"}, "without": [58, 59]});
    let server = Scripted::start(&site.outside, &plan_with(endless));
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge());
    c1.check("bridge", &bridge(), &result);
    // Another container with short times shows that time passes.
    server.answer_by(&json!({"discover": [answer(2, json!({"yiaddr": "10.1.0.21"}))],
        "request": [answer(5, json!({"yiaddr": "10.1.0.21"}))]}));
    let c2 = world.container("c2");
    c2.add("bridge", &bridge());
    server.wait_for("request", 4);
    let mac = site.mac(&c1);
    let log = server.0.log();
    let of_c1 = log.lines().filter(|line| line.contains(&mac));
    let ids: BTreeSet<_> = of_c1.map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(ids.len(), 1, "a DISCOVER, and a REQUEST with its id: {log}");
    server.answer_by(&plan());
}
