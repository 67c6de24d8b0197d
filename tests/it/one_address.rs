//! An address has one container on a link: the ADD of a second one is refused with the name of the first, unless that has ended.

use serde_json::{Value, json};

use crate::world::{Container, World, with};

/// A plugin, a link that two of its containers share, and one that they do not share with the words for the first.
type Links = (&'static str, &'static str, Option<(&'static str, &'static str)>);

const LINKS: [Links; 3] = [
    ("bridge", r#"{"bridge": "cni0"}"#, Some((r#"{"bridge": "cni1"}"#, "on link cni0"))),
    ("macvlan", r#"{"master": "up0"}"#, Some((r#"{"master": "up1"}"#, "on link up0"))),
    // The host has one route to an address.
    ("ptp", "{}", None),
];

fn world() -> World {
    let world = World::new();
    for link in ["up0", "up1"] {
        world.host([
            "ip",
            "link",
            "add",
            link,
            "type",
            "veth",
            "peer",
            "name",
            &format!("{link}p"),
        ]);
        world.host(["ip", "link", "set", link, "up"]);
    }
    world
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A network in which each container has the same addresses.
fn network(name: &str, plugin: &str, link: &Value) -> Value {
    let addresses = json!([{"address": "10.1.0.7/24", "gateway": "10.1.0.1"},
        {"address": "fd00:1::7/64", "gateway": "fd00:1::1"}]);
    let config = json!({"cniVersion": "1.0.0", "name": name, "type": plugin,
        "ipam": {"type": "static", "addresses": addresses}});
    with(&config, link.clone())
}

fn is_refused(container: &Container<'_>, config: &Value, link: &str) {
    let before = container.world.state_with(&[container]);
    let plugin = config["type"].as_str().unwrap();
    let why = format!("cannot use 10.1.0.7{link}: eth0 of container c1 in network one has it");
    container.call(plugin, "ADD", config).run().fails(999, &[&why]);
    before.assert_same(&container.world.state_with(&[container]), "after the refused ADD");
}

#[test]
fn a_second_container_is_refused_with_the_name_of_the_first() {
    for (plugin, link, other) in LINKS {
        let world = world();
        let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
        let (one, two) =
            (network("one", plugin, &parse(link)), network("two", plugin, &parse(link)));
        let before = world.state();
        c1.add(plugin, &one);
        let title = other.map_or(String::new(), |(_, title)| format!(" {title}"));
        is_refused(&c2, &one, &title);
        is_refused(&c2, &two, &title);
        if let Some((other, _)) = other {
            let other = network("two", plugin, &parse(other));
            c2.add(plugin, &other);
            c2.del(plugin, &other);
        }
        // The same attachment once more, in another namespace.
        c1.del(plugin, &one);
        c2.add(plugin, &two);
        c2.del(plugin, &two);
        before.apart_from("cni0", "one").assert_same(
            &world.state().apart_from("cni0", "one").apart_from("cni1", "one"),
            plugin,
        );
    }
}

#[test]
fn the_address_of_a_container_that_has_ended_is_free() {
    for (plugin, link, _) in LINKS {
        let world = world();
        let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
        let config = network("one", plugin, &parse(link));
        c1.add(plugin, &config);
        c1.destroy();
        c2.add(plugin, &config);
        // The late DEL of the first one leaves what the second has.
        world
            .call(plugin, "DEL", &config)
            .env("CNI_CONTAINERID", "c1")
            .env("CNI_IFNAME", "eth0")
            .run()
            .silence();
        let c3 = world.container("c3");
        c3.call(plugin, "ADD", &config)
            .run()
            .fails(999, &["eth0 of container c2 in network one has it"]);
        c2.del(plugin, &config);
        let left = world.host(["find", "/var/lib/cni/attachments", "-mindepth", "1"]);
        assert_eq!(left, "", "{plugin}");
    }
}

/// Two networks with one subnet: `host-local` of each gives the same address, and the next one if a container on the bridge has it.
#[test]
fn networks_with_one_subnet_share_a_bridge_as_long_as_their_addresses_differ() {
    let world = world();
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    let network = |name: &str| {
        json!({"cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": "cni0",
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}})
    };
    c1.add("bridge", &network("one"));
    let asking = |address: &str| {
        let args = format!("IP={address}");
        c2.call("bridge", "ADD", &network("two")).env("CNI_ARGS", &args).run()
    };
    let why = "10.1.0.2 on link cni0: eth0 of container c1 in network one has it";
    asking("10.1.0.2").fails(999, &[why]);
    c2.add("bridge", &network("two"));
    assert_eq!(c2.addresses("eth0"), ["10.1.0.3/24"]);
    c1.ping("10.1.0.3");
    c3.add("bridge", &network("one"));
    assert_eq!(c3.addresses("eth0"), ["10.1.0.4/24"]);
    let reserved = world.host(["ls", "/var/lib/cni/networks/one"]);
    assert!(!reserved.contains("10.1.0.3"), "{reserved}");
    c3.del("bridge", &network("one"));
    c1.ping("10.1.0.3");
}

#[test]
fn two_interfaces_of_one_container_may_have_one_address() {
    let world = world();
    let c1 = world.container("c1");
    let config = network("one", "bridge", &json!({"bridge": "cni0"}));
    c1.add("bridge", &config);
    c1.call("bridge", "ADD", &config).env("CNI_IFNAME", "eth1").run().success();
}

/// Another program has removed it: the plugins of the reference, or the operator.
#[test]
fn the_address_of_an_interface_that_is_gone_is_free() {
    let world = world();
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let config = network("one", "bridge", &json!({"bridge": "cni0"}));
    c1.add("bridge", &config);
    c1.exec(["ip", "link", "set", "eth0", "down"]);
    c2.call("bridge", "ADD", &config)
        .run()
        .fails(999, &["eth0 of container c1 in network one has it"]);
    c1.exec(["ip", "link", "del", "eth0"]);
    c2.add("bridge", &config);
    c1.del("bridge", &config);
    c1.call("bridge", "ADD", &config)
        .run()
        .fails(999, &["eth0 of container c2 in network one has it"]);
}
