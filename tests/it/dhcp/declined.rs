//! Which addresses a server may give. The rules of the host follow a lease, such as published ports: an address of the host, or of
//! another container, is declined.

use serde_json::{Value, json};

use super::renumbered::{Router, V4, at, via_host};
use super::scripted::{Scripted, answer, plan_with, plan6};
use super::{Daemon, LIMIT_S};
use crate::world::World;

/// Addresses that a first lease cannot have, each with the reason.
const OF_NOBODY: [(&str, &str); 5] = [
    // Of the bridge, and of another link.
    ("10.1.0.1", "the server offered an address of this host"),
    ("192.0.2.1", "the server offered an address of this host"),
    ("169.254.169.254", "the server offered an address that no container can have"),
    ("127.0.0.1", "the server offered an address that no interface can have"),
    ("224.0.0.5", "the server offered an address that no interface can have"),
];

fn giving(address: &str) -> Value {
    plan_with(via_host(json!({"yiaddr": address})))
}

#[test]
fn an_add_does_not_take_an_address_that_it_cannot_have() {
    for (address, why) in OF_NOBODY {
        let world = World::new();
        let router = Router::new(&world, &["4"]);
        let server = Scripted::start(&router.site.outside, &giving(address));
        let _daemon = Daemon::with(&world, &["-resendtimeout", "2s", "-timeout", "500ms"]);
        world.container("c1");
        let add = router.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run();
        assert!(add.status == 1 && add.stderr.contains(why), "{address}: {}", add.report());
        assert!(server.count("decline") > 0 || why.contains("interface"), "{}", server.0.log());
        let left = "find /var/lib/cni/attachments /run/cnibox/dhcp -mindepth 1 -name '*c1*'";
        assert_eq!(world.host(["sh", "-c", left]), "");
        assert!(!world.host(["nft", "list", "ruleset"]).contains(" comment \"net "));
    }
}

#[test]
fn a_renewal_with_an_address_of_the_host_moves_no_rule_there() {
    for (address, why) in [
        ("10.1.0.1", "an address of this host"),
        ("10.2.0.33", "an address outside of the subnets of the network"),
        ("169.254.169.254", "an address that no container can have"),
    ] {
        let world = World::new();
        let router = Router::new(&world, &["4"]);
        let server = Scripted::start(&router.site.outside, &giving("10.1.0.20"));
        let daemon = Daemon::new(&world);
        let c1 = router.attach("c1", 8080);
        server.answer_by(&giving(address));
        server.wait_for("decline", 1);
        let line = format!("net c1 eth0: the address is declined: the server offered {why}\n");
        world.within_or(LIMIT_S, || daemon.log().contains(&line), || daemon.log());
        assert!(!router.names(address), "{address}");
        // The lease that it has goes on.
        router.works(&c1, 8080, at(V4, "10.1.0.20"));
        router.detach(&c1);
        router.assert_clean();
    }
}

#[test]
fn the_address_of_a_living_container_goes_to_no_other() {
    let world = World::new();
    let router = Router::new(&world, &["4"]);
    let server = Scripted::start(&router.site.outside, &giving("10.1.0.20"));
    let daemon = Daemon::with(&world, &["-resendtimeout", "2s", "-timeout", "500ms"]);
    let c1 = router.attach("c1", 8080);
    world.container("c2");
    let add = || router.cnibox(&["add", "net", "c2", "--container-id", "c2"]).run();
    let refused = add();
    let why = "another container of this host has the offered address";
    assert!(refused.status == 1 && refused.stderr.contains(why), "{}", refused.report());
    // At a renewal, too.
    let mac = router.site.mac(&c1);
    let give = |own: &str, other: &str| {
        let offer = answer(2, via_host(json!({"yiaddr": other})));
        let own = answer(5, via_host(json!({"yiaddr": own, "only": mac})));
        let other = answer(5, via_host(json!({"yiaddr": other})));
        server.answer_by(&json!({"discover": [offer], "request": [own, other]}));
    };
    give("10.1.0.20", "10.1.0.21");
    add().success();
    give("10.1.0.21", "10.1.0.21");
    server.wait_for_another("decline");
    router.works(&c1, 8080, at(V4, "10.1.0.20"));
    // Its end makes it free.
    router.cnibox(&["del", "net", "c2", "--container-id", "c2"]).run().silence();
    give("10.1.0.21", "10.1.0.21");
    router.wait_for_move(&daemon, ["10.1.0.20", "10.1.0.21"]);
    router.works(&c1, 8080, at(V4, "10.1.0.21"));
}

#[test]
fn an_address_of_the_host_is_declined_over_ipv6() {
    for address in ["fd00:1::1", "fd00:9::33"] {
        let world = World::new();
        let router = Router::new(&world, &["6"]);
        let server = Scripted::start6(&router.site.outside, &plan6("fd00:1::20"));
        let daemon = Daemon::new(&world);
        let c1 = router.attach("c1", 8080);
        server.answer_by(&plan6(address));
        server.wait_for("decline", 1);
        let has = c1.addresses("eth0");
        assert!(has.iter().any(|one| one.starts_with("fd00:1::20/")), "{has:?} {}", daemon.log());
        assert!(router.names("fd00:1::20") && !router.names(address), "{address}");
    }
    let world = World::new();
    let router = Router::new(&world, &["6"]);
    let server = Scripted::start6(&router.site.outside, &plan6("fd00:1::1"));
    let _daemon = Daemon::with(&world, &["-resendtimeout", "8s", "-timeout", "500ms"]);
    world.container("c1");
    let add = router.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run();
    assert!(add.status == 1 && add.stderr.contains("an address of this host"), "{}", add.report());
    assert!(server.count("decline") > 0);
}
