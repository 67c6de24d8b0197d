//! The reference's daemon with the same servers: the harness shows what is there. (Debian's release of it sends no
//! RELEASE.)

use super::capture::{Capture, kinds};
use super::scripted::{Scripted, plan};
use super::servers::{Dnsmasq, Kea, Udhcpd, long_lease};
use super::{Daemon, Site, address, bridge};
use crate::world::World;

const REFERENCE: &str = "/usr/lib/cni";

#[test]
fn the_harness_shows_the_lease_of_the_reference_at_each_server() {
    let world = World::with_plugins(REFERENCE);
    let site = Site::with_bridge(&world);
    let _daemon = Daemon::of(&world, "/usr/lib/cni/dhcp", &[]);
    let capture = Capture::start(&site.outside);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let c1 = world.container("c1");
    assert_eq!(address(&c1.add("bridge", &bridge())), "10.1.0.10");
    assert_eq!(kea.leased(), ["10.1.0.10"]);
    assert_eq!(c1.addresses("eth0"), ["10.1.0.10/24"]);
    c1.ping("10.1.0.254");
    drop(kea);
    assert_eq!(kinds(&capture.finish()), ["DISCOVER", "OFFER", "REQUEST", "ACK"]);

    let range = "--dhcp-range=10.1.0.13,10.1.0.15,2m";
    let dnsmasq = Dnsmasq::start(&site.outside, &[range]);
    let c2 = world.container("c2");
    let given = address(&c2.add("bridge", &bridge()));
    assert!(dnsmasq.leases()[0].contains(&given), "{:?}", dnsmasq.leases());
    drop(dnsmasq);

    let udhcpd = Udhcpd::start(&site.outside, "opt lease 30");
    let c3 = world.container("c3");
    let given = address(&c3.add("bridge", &bridge()));
    world.eventually("the lease is there", || udhcpd.leases().contains(&given));
}

#[test]
fn the_scripted_server_serves_the_reference_and_another_host_answers() {
    let world = World::with_plugins(REFERENCE);
    let site = Site::with_bridge(&world);
    let _daemon = Daemon::of(&world, "/usr/lib/cni/dhcp", &[]);
    let server = Scripted::start(&site.outside, &plan());
    let other = site.second_server();
    let c1 = world.container("c1");
    assert_eq!(address(&c1.add("bridge", &bridge())), "10.1.0.20");
    // The first renewal is due after a second.
    assert_eq!(server.transactions("discover"), 1, "{}", server.0.log());
    assert!(server.count("request") >= 1, "{}", server.0.log());
    other.ping("10.1.0.20");
    c1.ping("10.1.0.253");
    server.wait_for_another("request");
}
