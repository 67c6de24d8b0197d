//! DHCPv6 with a server that answers as a test says: foreign and broken answers, refusals, changes, kills.

use serde_json::{Value, json};

use super::scripted::Scripted;
use super::{Daemon, LIMIT_S, Site, asking, bridge};
use crate::world::{Container, World, with};

/// Status codes (RFC 8415, section 21.13).
const NO_ADDRS_AVAIL: u32 = 2;
const NO_BINDING: u32 = 3;
const NOT_ON_LINK: u32 = 4;

fn config() -> Value {
    asking(&bridge(), json!({"families": ["6"]}))
}

/// An ADVERTISE or a REPLY (`kind` 2 or 7) with fd00:1::20 for 600 s, and renewal after 1 s.
fn answer(kind: u8, more: Value) -> Value {
    with(&json!({"type": kind, "addresses": [["fd00:1::20", 500, 600]]}), more)
}

/// The plan of a server that gives one address.
fn plan_with(more: Value) -> Value {
    let reply = json!([answer(7, more.clone())]);
    let done = json!([{"type": 7, "top": 0, "without": ["ia"]}]);
    json!({"solicit": [answer(2, more)], "request": reply, "renew": reply, "rebind": reply, "confirm": done,
        "release": done, "decline": done})
}

fn plan() -> Value {
    plan_with(json!({}))
}

fn added(c1: &Container<'_>) -> String {
    let result = c1.add("bridge", &config());
    assert_eq!(result["ips"].as_array().unwrap().len(), 1, "{result}");
    result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned()
}

/// The global addresses of the container without the lengths of their prefixes.
fn addresses(c1: &Container<'_>) -> Vec<String> {
    let all = c1.addresses("eth0");
    all.iter().map(|address| address.split('/').next().unwrap().to_owned()).collect()
}

/// A site with a scripted server.
fn served<'w>(world: &'w World, plan: &Value) -> (Site<'w>, Scripted<'w>) {
    let site = Site::with_bridge(world);
    let server = Scripted::start6(&site.outside, plan);
    (site, server)
}

#[test]
fn foreign_and_broken_answers_are_skipped() {
    let world = World::new();
    let wrong = |kind: u8| {
        let other = json!({"addresses": [["fd00:1::66", 500, 600]]});
        let bad = |more: Value| answer(kind, with(&other, more));
        let mut answers = vec![
            bad(json!({"wrong": ["xid"]})),
            bad(json!({"wrong": ["client"]})),
            bad(json!({"without": ["client"]})),
            bad(json!({"without": ["server"]})),
            bad(json!({"cut": 3})),
            bad(json!({"cut": 30})),
            bad(json!({"cut": 60})),
            // Not from a host of this link.
            bad(json!({"from": "fd00:1::fe"})),
        ];
        // A server asks for no end of options: the IA_NA is in the second half of a long message.
        answers.push(answer(kind, json!({"options": {"65001": "00".repeat(900)}})));
        answers
    };
    let plan = with(&plan(), json!({"solicit": wrong(2), "request": wrong(7), "renew": wrong(7)}));
    let (_site, server) = served(&world, &plan);
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    assert_eq!(added(&c1), "fd00:1::20", "{}", daemon.log());
    server.wait_for("renew", 3);
    assert_eq!(addresses(&c1), ["fd00:1::20"], "{}", daemon.log());
    assert_eq!(server.transactions("solicit"), 1, "{}", server.0.log());
    c1.del("bridge", &config());
    server.wait_for("release", 1);
}

#[test]
fn a_release_without_an_answer_is_sent_again() {
    let world = World::new();
    let (_site, server) = served(&world, &plan());
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    added(&c1);
    server.answer_by(&with(&plan(), json!({"release": null})));
    c1.del("bridge", &config());
    server.wait_for("release", 3);
}

#[test]
fn an_answer_that_no_interface_can_have_is_no_lease() {
    let world = World::new();
    let (_site, server) = served(&world, &json!({}));
    let daemon = Daemon::with(&world, &["-resendtimeout", "6s"]);
    let of = |address: &str| json!({"addresses": [[address, 500, 600]]});
    let cases = [
        of("::"),
        of("::1"),
        of("ff02::1"),
        of("fe80::5"),
        of("::ffff:10.1.0.5"),
        json!({"addresses": [["fd00:1::20", 600, 500]]}),
        json!({"addresses": [["fd00:1::20", 0, 0]]}),
        json!({"addresses": []}),
        json!({"without": ["ia"]}),
        json!({"wrong": ["iaid"]}),
    ];
    let answers = |kind| Value::from_iter(cases.iter().map(|more| answer(kind, more.clone())));
    // All of them as offers, and then all of them after an offer that the client can take.
    for offers in [answers(2), json!([answer(2, json!({}))])] {
        server.answer_by(&json!({"solicit": offers, "request": answers(7)}));
        let c1 = world.container("c1");
        let error = c1.call("bridge", "ADD", &config()).run().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.contains("net") && said.contains("eth0"), "{said}");
        assert_eq!(world.ports_of("br0"), ["lan"], "{}", daemon.log());
        c1.destroy();
    }
    assert!(server.count("request") > 0, "{}", server.0.log());
}

#[test]
fn a_server_without_addresses_is_named_in_the_error() {
    let world = World::new();
    let refusal = json!({"addresses": [], "status": NO_ADDRS_AVAIL});
    let (_site, _server) = served(&world, &plan_with(refusal));
    let _daemon = Daemon::with(&world, &["-resendtimeout", "10s"]);
    let c1 = world.container("c1");
    let error = c1.call("bridge", "ADD", &config()).run().error();
    let said = format!("{}: {}", error.msg, error.details);
    assert!(said.contains("NoAddrsAvail"), "{said}");
}

#[test]
fn another_address_in_a_renewal_replaces_the_old_one() {
    let world = World::new();
    let (_site, server) = served(&world, &plan());
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    assert_eq!(added(&c1), "fd00:1::20");
    let both = json!({"addresses": [["fd00:1::20", 0, 0], ["fd00:1::33", 500, 600]]});
    server.answer_by(&plan_with(both));
    let has_changed = || addresses(&c1) == ["fd00:1::33"];
    world.within_or(LIMIT_S, has_changed, || format!("the address changes: {}", daemon.log()));
    assert!(daemon.log().contains("fd00:1::33"), "{}", daemon.log());
    c1.del("bridge", &config());
    server.wait_for("release", 1);
}

#[test]
fn after_a_lost_binding_the_client_requests_the_address_again() {
    let world = World::new();
    let (_site, server) = served(&world, &plan());
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    assert_eq!(added(&c1), "fd00:1::20");
    let lost = json!([{"type": 7, "status": NO_BINDING}]);
    server.answer_by(&with(&plan(), json!({"renew": lost})));
    // RFC 8415, section 18.2.10.1: a REQUEST, and no new SOLICIT.
    server.wait_for("request", 3);
    assert_eq!(addresses(&c1), ["fd00:1::20"]);
    assert_eq!(server.transactions("solicit"), 1, "{}", server.0.log());
}

#[test]
fn an_address_leaves_the_interface_when_its_lease_ends() {
    let world = World::new();
    let (_site, server) = served(&world, &plan());
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    added(&c1);
    // A short lease that begins before the container has its address could end in the ADD.
    let short = json!({"addresses": [["fd00:1::20", 3, 5]], "t1": 1, "t2": 2});
    server.answer_by(&plan_with(short));
    server.wait_for_another("renew");
    server.wait_for_another("renew");
    server.answer_by(&json!({}));
    let is_gone = || addresses(&c1).is_empty();
    world.within_or(LIMIT_S, is_gone, || format!("the address is gone: {}", daemon.log()));
    server.answer_by(&plan_with(json!({"addresses": [["fd00:1::21", 500, 600]]})));
    let is_there = || addresses(&c1) == ["fd00:1::21"];
    world.within_or(LIMIT_S, is_there, || format!("the next address is there: {}", daemon.log()));
    c1.del("bridge", &config());
    server.wait_for("release", 1);
}

#[test]
fn a_link_that_the_server_refuses_after_the_restart_starts_over() {
    let world = World::new();
    let (_site, server) = served(&world, &plan());
    let mut daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    added(&c1);
    daemon.kill();
    let other = plan_with(json!({"addresses": [["fd00:1::21", 500, 600]]}));
    let refusal = json!([{"type": 7, "top": NOT_ON_LINK, "without": ["ia"]}]);
    server.answer_by(&with(&other, json!({"confirm": refusal})));
    daemon.start();
    let is_there = || addresses(&c1) == ["fd00:1::21"];
    world.within_or(LIMIT_S, is_there, || format!("the next address is there: {}", daemon.log()));
}

#[test]
fn an_address_that_another_host_has_is_given_back_by_an_add_that_looks_for_it() {
    let world = World::new();
    let (site, server) = served(&world, &plan());
    let other = world.container("other");
    site.attach(&other, "fd00:1::20/64");
    other.wait_for_link_local("eth0");
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let config = with(&config(), json!({"enabledad": true}));
    let error = c1.call("bridge", "ADD", &config).run().error();
    let said = format!("{}: {}", error.msg, error.details);
    assert!(said.contains("fd00:1::20"), "{said}");
    c1.del("bridge", &config);
    let is_back = || server.transactions("decline") + server.transactions("release") == 1;
    world.within_or(LIMIT_S, is_back, || format!("it is given back: {}", server.0.log()));
    world.eventually("the daemon keeps no lease", || !site.has_records());
}

/// The daemon is killed when the first `message` of an ADD has come, and the next ADD succeeds.
#[track_caller]
fn killed_in_an_add(until: &Value, message: &str) {
    let world = World::new();
    let (site, server) = served(&world, until);
    let mut daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let running = c1.call("bridge", "ADD", &config()).start();
    server.wait_for(message, 1);
    daemon.kill();
    running.finish().error();
    c1.del("bridge", &config());
    server.answer_by(&plan());
    daemon.start();
    assert_eq!(added(&c1), "fd00:1::20");
    c1.del("bridge", &config());
    server.wait_for("release", 1);
    world.eventually("the daemon keeps no lease", || !site.has_records());
}

#[test]
fn killed_while_soliciting() {
    killed_in_an_add(&json!({}), "solicit");
}

#[test]
fn killed_while_requesting() {
    killed_in_an_add(&json!({"solicit": [answer(2, json!({}))]}), "request");
}

/// The daemon is killed while the server does not answer `message`; the next one goes on with the lease.
#[track_caller]
fn killed_in_a_lease(more: Value, message: &str) {
    let world = World::new();
    let plan = plan_with(more);
    let (_site, server) = served(&world, &plan);
    let mut daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = added(&c1);
    server.answer_by(&json!({}));
    server.wait_for_another(message);
    daemon.kill();
    server.answer_by(&plan);
    daemon.start();
    server.wait_for("confirm", 1);
    server.wait_for_another("renew");
    assert_eq!(addresses(&c1), [held], "{}", daemon.log());
    assert_eq!(server.transactions("solicit"), 1, "{}", server.0.log());
    c1.del("bridge", &config());
    server.wait_for("release", 1);
}

#[test]
fn killed_while_renewing() {
    killed_in_a_lease(json!({}), "renew");
}

#[test]
fn killed_while_rebinding() {
    killed_in_a_lease(json!({"t1": 1, "t2": 2}), "rebind");
}

#[test]
fn one_family_without_a_server_gives_the_address_of_the_other_back() {
    let world = World::new();
    let (site, server) = served(&world, &plan());
    let _daemon = Daemon::with(&world, &["-timeout", "500ms", "-resendtimeout", "6s"]);
    let c1 = world.container("c1");
    let both = asking(&bridge(), json!({"families": ["4", "6"]}));
    let error = c1.call("bridge", "ADD", &both).run().error();
    let said = format!("{}: {}", error.msg, error.details);
    assert!(said.contains("DISCOVER"), "{said}");
    server.wait_for("release", server.count("request").min(1));
    world.eventually("the daemon keeps no lease", || !site.has_records());
    assert_eq!(world.ports_of("br0"), ["lan"]);
}
