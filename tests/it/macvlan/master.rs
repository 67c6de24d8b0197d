//! The master without the key, and its record.

use serde_json::{Value, json};

use super::{dual_stack, eth0, plain};
use crate::world::{Container, World, lan, with, without};

fn anywhere() -> Value {
    without(&dual_stack(), "master")
}

/// The host's link that the container's interface sits on.
fn parent(world: &World, container: &Container<'_>) -> String {
    let index = eth0(container)["link_index"].clone();
    let links = world.host_json(["ip", "-j", "link"]);
    let mut links = links.as_array().unwrap().iter();
    links.find(|link| link["ifindex"] == index).unwrap()["ifname"].as_str().unwrap().into()
}

const LINKS: &str = "for n in da db; do ip link add $n type bridge; ip link set $n up; done
    ip address add 10.20.0.1/24 dev da; ip address add 10.30.0.1/24 dev db
    ip address add fd20::1/64 dev da nodad; ip address add fd30::1/64 dev db nodad; ";

#[test]
fn the_default_master_is_the_interface_of_the_default_route() {
    for (routes, expected) in [
        ("ip route add default via 10.20.0.9", "da"),
        (
            "ip route add default via 10.20.0.9 metric 20; ip route add default via 10.30.0.9 metric 10",
            "db",
        ),
        ("ip route add default via 10.20.0.9 metric 9; ip route add default via 10.30.0.9", "db"),
        (
            "ip -6 route add default via fd30::9; ip route add default via 10.20.0.9 metric 5000",
            "da",
        ),
        ("ip -6 route add default via fd30::9 dev db", "db"),
        ("ip route add default via 10.20.0.9 table 7; ip route add default via 10.30.0.9", "db"),
        ("ip route add default nexthop via 10.30.0.9 nexthop via 10.20.0.9", "db"),
        ("ip route add unreachable default; ip -6 route add default via fd20::9 dev da", "da"),
    ] {
        let world = World::new();
        let c1 = world.container("c1");
        world.host(["sh", "-ec", &format!("{LINKS}{routes}")]);
        let result = c1.add("macvlan", &anywhere());
        assert_eq!(parent(&world, &c1), expected, "{routes}");
        c1.check("macvlan", &anywhere(), &result);
        let status = world.call("macvlan", "STATUS", &anywhere());
        status.run().silence();
    }
}

#[test]
fn the_default_master_is_recorded_when_the_route_changes() {
    let world = World::new();
    let c1 = world.container("c1");
    world.host(["sh", "-ec", &format!("{LINKS} ip route add default via 10.20.0.9")]);
    let result = c1.add("macvlan", &anywhere());
    for routes in ["ip route replace default via 10.30.0.9", "ip route del default"] {
        world.host(["sh", "-c", routes]);
        c1.check("macvlan", &anywhere(), &result);
    }
    // Another interface is put in its place, with the same address, on the other link.
    let mac = result["interfaces"][0]["mac"].as_str().unwrap();
    let alias = eth0(&c1)["ifalias"].as_str().unwrap().to_owned();
    assert_eq!(alias, "cnibox net c1 eth0 on da");
    c1.exec(["ip", "link", "del", "eth0"]);
    let script = format!(
        "ip link add link db name eth0 netns {} address {mac} type macvlan mode bridge",
        c1.netns()
    );
    world.host(["sh", "-ec", &script]);
    c1.exec(["ip", "link", "set", "eth0", "alias", &alias]);
    let outcome = c1.checking("macvlan", &anywhere(), &result).run();
    outcome.fails(999, &["interface eth0 is not on da"]);
    c1.del("macvlan", &anywhere());
    assert_eq!(c1.exec(["ip", "-o", "link"]).lines().count(), 1);
}

#[test]
fn without_a_default_route_add_fails_and_status_is_50() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    let said = ["master", "no default route interface found"];
    c1.call("macvlan", "ADD", &anywhere()).run().fails(7, &said);
    world.call("macvlan", "STATUS", &anywhere()).run().fails(50, &said);
    let named = ["Link not found: master lan"];
    c1.call("macvlan", "ADD", &dual_stack()).run().fails(7, &named);
    world.call("macvlan", "STATUS", &dual_stack()).run().fails(50, &named);
    before.assert_same(&world.state_with(&[&c1]), "after failed ADDs");
}

#[test]
fn the_previous_plugins_interface_goes_before_the_default_route() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    world.host(["sh", "-ec", &format!("{LINKS} ip route add default via 10.20.0.9")]);
    let interfaces = |interfaces: Value| {
        let prev = json!({"cniVersion": "1.1.0", "interfaces": interfaces});
        with(&anywhere(), json!({"prevResult": prev}))
    };
    let result = c1.add("macvlan", &interfaces(json!([{"name": "lan"}])));
    assert_eq!(parent(&world, &c1), "lan");
    // The previous result does not name it any more.
    c1.check("macvlan", &anywhere(), &result);
    c1.del("macvlan", &anywhere());

    for (refused, says) in [
        (json!([]), "chained master failure"),
        (json!([{"name": "lan"}, {"name": "da"}]), "chained master failure"),
        (json!([{"name": ""}]), "chained master failure"),
        (json!([{"name": "lan", "sandbox": "/run/netns/c1"}]), "linkInContainer"),
        (json!([{"name": "none"}]), "Link not found: master none"),
    ] {
        c1.call("macvlan", "ADD", &interfaces(refused)).run().fails(7, &[says]);
    }
    let named = with(&interfaces(json!([])), json!({"master": "lan"}));
    c1.add("macvlan", &named);
    // The configuration remembers the master.
    assert_eq!(eth0(&c1)["ifalias"], "cnibox net c1 eth0");
}

#[test]
fn in_the_container_the_containers_default_route_counts() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.exec(["sh", "-ec", &format!("{LINKS} ip route add default via 10.30.0.9")]);
    let config = with(&without(&plain(), "master"), json!({"linkInContainer": true}));
    let result = c1.add("macvlan", &config);
    assert_eq!(eth0(&c1)["link"], "db", "{}", eth0(&c1));
    c1.check("macvlan", &config, &result);
    // There is no container that STATUS could look into.
    world.call("macvlan", "STATUS", &config).run().silence();
}

#[test]
fn an_alternative_name_is_a_name_of_the_master() {
    let world = World::new();
    let _outside = lan(&world);
    let longest = "x".repeat(127);
    world.host(["ip", "link", "property", "add", "dev", "lan", "altname", &longest]);
    world.host(["ip", "link", "property", "add", "dev", "lan", "altname", "short"]);
    for name in [longest.as_str(), "short"] {
        let config = with(&dual_stack(), json!({"master": name}));
        let c1 = world.container(&format!("c{}", name.len()));
        world.call("macvlan", "STATUS", &config).run().silence();
        let result = c1.add("macvlan", &config);
        assert_eq!(parent(&world, &c1), "lan");
        c1.check("macvlan", &config, &result);
        c1.del("macvlan", &config);
    }
}
