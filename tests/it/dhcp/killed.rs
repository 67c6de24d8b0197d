//! `kill -9` of the daemon in every state of a lease (RFC 2131, figure 5), and what the next daemon finds.

use serde_json::{Value, json};

use super::capture::{Capture, kinds, of_kind};
use super::scripted::{Scripted, answer, plan, plan_with};
use super::servers::{Kea, long_lease};
use super::{Daemon, LIMIT_S, Site, address, asking, bridge};
use crate::world::World;

/// The daemon is killed when the first `message` of an ADD has come, and the next ADD succeeds.
#[track_caller]
fn killed_in_an_add(until: &Value, message: &str, config: &Value) {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, until);
    let mut daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let is_killed = |_| {
        let count = server.count(message);
        let running = c1.call("bridge", "ADD", config).start();
        server.wait_for(message, count + 1);
        daemon.kill();
        let outcome = running.finish();
        let is_killed = outcome.status != 0;
        if is_killed {
            outcome.error();
        } else {
            daemon.start();
        }
        c1.del("bridge", config);
        is_killed
    };
    // A probe takes a second. Another try is needed if this process is slower.
    assert!((0..10).any(is_killed), "each ADD ends before the daemon is killed");
    assert_eq!(world.ports_of("br0"), ["lan"]);
    server.answer_by(&plan());
    daemon.start();
    let result = c1.add("bridge", config);
    assert_eq!(address(&result), "10.1.0.20");
    c1.check("bridge", config, &result);
    let releases = server.count("release");
    c1.del("bridge", config);
    server.wait_for("release", releases + 1);
    world.eventually("the daemon keeps no lease", || !site.has_records());
}

#[test]
fn killed_while_selecting() {
    killed_in_an_add(&json!({}), "discover", &bridge());
}

#[test]
fn killed_while_requesting() {
    let offers = json!({"discover": [answer(2, json!({}))]});
    killed_in_an_add(&offers, "request", &bridge());
}

#[test]
fn killed_while_probing() {
    killed_in_an_add(&plan(), "request", &asking(&bridge(), json!({"probe": true})));
}

/// The daemon is killed when the server does not answer any more and `requests` have come; the next one goes on.
#[track_caller]
fn killed_in_a_lease(options: &Value, requests: usize) {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let whole = plan_with(json!({"options": options}));
    let server = Scripted::start(&site.outside, &whole);
    let mut daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge());
    if requests > 0 {
        server.answer_by(&json!({}));
        server.wait_for("request", server.count("request") + requests);
    }
    daemon.kill();
    assert_eq!(c1.addresses("eth0"), ["10.1.0.20/24"]);
    let capture = Capture::start(&site.outside);
    let before = server.count("request");
    server.answer_by(&whole);
    daemon.start();
    server.wait_for("request", before + 1);
    assert_eq!(c1.addresses("eth0"), ["10.1.0.20/24"], "{}", daemon.log());
    c1.check("bridge", &bridge(), &result);
    c1.ping("10.1.0.254");
    c1.del("bridge", &bridge());
    server.wait_for("release", 1);
    let packets = capture.finish();
    assert_eq!(of_kind(&packets, "DISCOVER").len(), 0, "{packets:?}");
    let first = of_kind(&packets, "REQUEST")[0].clone();
    // INIT-REBOOT: RFC 2131, section 4.3.2.
    assert_eq!(first.get("eth.dst"), "ff:ff:ff:ff:ff:ff");
    assert_eq!(first.get("dhcp.ip.client"), "0.0.0.0");
    assert_eq!((first.option(50), first.option(54)), (Some("0a010014"), None));
    assert_eq!(of_kind(&packets, "RELEASE").len(), 1);
}

#[test]
fn killed_while_bound() {
    killed_in_a_lease(&json!({"58": "0000001e", "59": "00000028"}), 0);
}

#[test]
fn killed_while_renewing() {
    killed_in_a_lease(&json!({"58": "00000001", "59": "0000001e"}), 1);
}

#[test]
fn killed_while_rebinding() {
    killed_in_a_lease(&json!({"58": "00000001", "59": "00000002"}), 2);
}

#[test]
fn killed_with_a_lease_that_ends_before_the_next_daemon_starts() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &plan());
    let mut daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    c1.add("bridge", &bridge());
    // A short lease that begins before the container has its address could end in the ADD.
    let short = json!({"options": {"51": "00000003", "58": "00000001", "59": "00000002"}});
    server.answer_by(&plan_with(short));
    server.wait_for_another("request");
    server.wait_for_another("request");
    daemon.kill();
    server.answer_by(&plan_with(json!({"yiaddr": "10.1.0.21"})));
    // The kernel counts the time: the tool ends after the lease.
    world.host(["sleep", "4"]);
    daemon.start();
    world.within_or(
        LIMIT_S,
        || c1.addresses("eth0") == ["10.1.0.21/24"],
        || format!("the next lease is there: {}", daemon.log()),
    );
    c1.ping("10.1.0.254");
    c1.del("bridge", &bridge());
    server.wait_for("release", 1);
}

#[test]
fn a_nak_after_the_restart_starts_over() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &plan());
    let mut daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    c1.add("bridge", &bridge());
    daemon.kill();
    let refusal = json!({"type": 6, "yiaddr": "0.0.0.0"});
    server.answer_by(
        &json!({"discover": [answer(2, json!({"yiaddr": "10.1.0.21"}))], "request": [refusal]}),
    );
    daemon.start();
    server.wait_for_another("discover");
    server.answer_by(&plan_with(json!({"yiaddr": "10.1.0.21"})));
    world.within_or(
        LIMIT_S,
        || c1.addresses("eth0") == ["10.1.0.21/24"],
        || format!("the next lease is there: {}", daemon.log()),
    );
    c1.ping("10.1.0.254");
}

#[test]
fn attachments_that_ended_while_the_daemon_was_down_are_released() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let mut daemon = Daemon::new(&world);
    let [gone, cut, reused] = ["gone", "cut", "reused"].map(|name| world.container(name));
    let add = |c: &crate::world::Container<'_>| address(&c.add("bridge", &bridge()));
    let held = [add(&gone), add(&cut), add(&reused)];
    assert_eq!(kea.leased().len(), 3);
    let capture = Capture::start(&site.outside);
    daemon.kill();
    gone.destroy();
    cut.exec(["ip", "link", "del", "eth0"]);
    reused.destroy();
    let again = world.container("reused");
    again.exec(["ip", "link", "add", "eth0", "type", "bridge"]);
    daemon.start();
    for address in &held {
        kea.wait_for_release(address);
    }
    assert_eq!(again.addresses("eth0"), [""; 0], "it is another namespace");
    world.eventually("the daemon keeps no lease", || !site.has_records());
    let packets = capture.finish();
    assert_eq!(kinds(&packets), ["RELEASE"; 3], "{packets:?}");
}
