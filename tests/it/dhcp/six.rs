//! DHCPv6 and stateless configuration, with kea and radvd.

use serde_json::{Value, json};

use super::capture::{Capture, kinds6, of_kind, of_kind6, transactions};
use super::servers::{Kea, long_lease, radvd};
use super::{Daemon, LIMIT_S, Site, asking, bridge, macvlan};
use crate::world::{Container, World, with};

/// `families` in a network.
fn families(config: &Value, families: Value) -> Value {
    asking(config, json!({"families": families}))
}

/// The addresses of a result without the lengths of their prefixes.
fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap_or_else(|| panic!("no ips: {result}"));
    let address =
        |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    ips.iter().map(address).collect()
}

/// Whether the container has the address.
fn has(c1: &Container<'_>, address: &str) -> bool {
    c1.addresses("eth0").iter().any(|net| net.split('/').next() == Some(address))
}

#[track_caller]
fn keeps_its_address(site: &Site<'_>, plugin: &str, config: &Value) {
    let world = site.world;
    let _router = radvd(&site.outside, "AdvManagedFlag on;", "AdvAutonomous off;");
    let mut kea = Kea::start6(&site.outside, "sw", json!({"rebind-timer": 10}));
    let capture = Capture::start(&site.outside);
    let mut daemon = Daemon::new(world);
    let c1 = world.container("c1");
    let result = c1.add(plugin, config);
    let held = addresses(&result);
    assert_eq!(held.len(), 1, "{result}");
    let held = &held[0];
    assert_eq!(kea.leased(), [held.as_str()]);
    assert!(has(&c1, held));
    c1.ping("fd00:1::fe");
    kea.wait_for_renewals(held, 3);
    daemon.start_again();
    kea.wait_for_renewals(held, 2);
    c1.check(plugin, config, &result);
    kea.kill();
    kea.start_again();
    kea.wait_for_renewals(held, 2);
    assert!(has(&c1, held));
    c1.ping("fd00:1::fe");
    daemon.kill();
    c1.del(plugin, config);
    daemon.start();
    kea.wait_for_release(held);
    world.eventually("the daemon keeps no lease", || !site.has_records());
    let packets = capture.finish();
    for kind in ["SOLICIT", "CONFIRM", "RELEASE"] {
        assert_eq!(transactions(&of_kind6(&packets, kind)), 1, "{kind}: {:?}", kinds6(&packets));
    }
    let solicit = of_kind6(&packets, "SOLICIT")[0];
    assert_eq!(solicit.get("ipv6.dst"), "ff02::1:2");
    assert_eq!(solicit.get("dhcpv6.duid.type"), "4", "a UUID (RFC 6355)");
}

#[test]
fn a_bridge_container_keeps_its_address_through_everything() {
    let world = World::new();
    let config = families(&bridge(), json!(["6"]));
    keeps_its_address(&Site::with_bridge(&world), "bridge", &config);
}

#[test]
fn a_macvlan_container_keeps_its_address_through_everything() {
    let world = World::new();
    let config = families(&macvlan(), json!(["6"]));
    keeps_its_address(&Site::new(&world), "macvlan", &config);
}

#[test]
fn both_families_have_one_lease_each() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let kea6 = Kea::start6(&site.outside, "sw", json!({}));
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::new(&world);
    let config = families(&bridge(), json!(["4", "6"]));
    let c1 = world.container("c1");
    let result = c1.add("bridge", &config);
    let held = addresses(&result);
    assert_eq!(held.len(), 2, "{result}");
    kea.wait_for_renewals(&held[0], 2);
    kea6.wait_for_renewals(&held[1], 2);
    c1.check("bridge", &config, &result);
    c1.ping("10.1.0.254");
    c1.del("bridge", &config);
    kea.wait_for_release(&held[0]);
    kea6.wait_for_release(&held[1]);
    let packets = capture.finish();
    assert_eq!(of_kind(&packets, "RELEASE").len(), 1);
    assert_eq!(transactions(&of_kind6(&packets, "RELEASE")), 1, "{:?}", kinds6(&packets));
}

#[test]
fn a_server_with_rapid_commit_answers_at_once() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let _kea = Kea::start6(&site.outside, "sw", with(&long_lease(), json!({"rapid-commit": true})));
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    c1.add("bridge", &families(&bridge(), json!(["6"])));
    let packets = capture.finish();
    // If the answer is late, both packets come twice.
    assert_eq!(transactions(&of_kind6(&packets, "SOLICIT")), 1, "{:?}", kinds6(&packets));
    let mut kinds = kinds6(&packets);
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, ["REPLY", "SOLICIT"]);
}

#[test]
fn another_server_takes_over_when_the_first_one_is_gone() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let times = json!({"renew-timer": 1, "rebind-timer": 3});
    let mut first = Kea::start6(&site.outside, "sw", times.clone());
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let config = families(&bridge(), json!(["6"]));
    let held = addresses(&c1.add("bridge", &config)).remove(0);
    let capture = Capture::start(&site.outside);
    let other = site.second_server();
    let second = Kea::start6(&other, "eth0", times);
    first.kill();
    world.within(LIMIT_S, "the second server renews the lease", || second.given(&held) >= 3);
    assert!(has(&c1, &held));
    c1.del("bridge", &config);
    second.wait_for_release(&held);
    let packets = capture.finish();
    assert!(!of_kind6(&packets, "REBIND").is_empty(), "{:?}", kinds6(&packets));
    assert!(of_kind6(&packets, "SOLICIT").is_empty(), "{:?}", kinds6(&packets));
}

#[test]
fn a_namespace_that_ends_gives_its_address_back() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start6(&site.outside, "sw", json!({}));
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = addresses(&c1.add("bridge", &families(&bridge(), json!(["6"])))).remove(0);
    c1.destroy();
    kea.wait_for_release(&held);
}

#[test]
fn a_dead_server_is_an_error_within_the_limits() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let _daemon = Daemon::with(&world, &["-timeout=500ms", "-resendmax=1s", "-resendtimeout=3s"]);
    let c1 = world.container("c1");
    let error = c1.call("bridge", "ADD", &families(&bridge(), json!(["6"]))).run().error();
    let said = format!("{}: {}", error.msg, error.details);
    for word in ["net", "eth0", "SOLICIT"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
    assert!(!site.has_records());
}

#[test]
fn slaac_reports_what_the_kernel_configured() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let _router = radvd(&site.outside, "AdvDefaultLifetime 600;", "AdvAutonomous on;");
    let _daemon = Daemon::new(&world);
    let config = families(&bridge(), json!(["slaac"]));
    let c1 = world.container("c1");
    let result = c1.add("bridge", &config);
    let held = result["ips"][0]["address"].as_str().unwrap().to_owned();
    assert!(held.starts_with("fd00:1:") && held.ends_with("/64"), "{result}");
    assert_eq!(c1.addresses("eth0"), [held]);
    c1.check("bridge", &config, &result);
    c1.ping("fd00:1::fe");
    c1.del("bridge", &config);
}

#[test]
fn slaac_without_a_router_is_an_error_within_the_limits() {
    let world = World::new();
    let _site = Site::with_bridge(&world);
    let _daemon = Daemon::with(&world, &["-timeout=500ms", "-resendmax=1s", "-resendtimeout=3s"]);
    let c1 = world.container("c1");
    let error = c1.call("bridge", "ADD", &families(&bridge(), json!(["slaac"]))).run().error();
    let said = format!("{}: {}", error.msg, error.details);
    assert!(said.contains("router") && said.contains("eth0"), "{said}");
}
