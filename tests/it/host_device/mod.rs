//! `host-device`: an interface of the host that goes into a container and comes back as it was. A veth end plays the
//! card, the other end its cable. The kernel would not bring that one back when its namespace ends, so the tests do
//! as the kernel does; that it does so with a real card is tested in the virtual machine.

mod add;
mod check;
mod del;
mod gc;
mod reference;
mod selectors;

use serde_json::{Value, json};

use crate::world::{Container, World, with};

const MAC: &str = "02:00:00:00:07:01";

/// A host with a card `nic0` and a cable that leads to 10.7.0.1 and fd07::1.
fn world() -> World {
    let world = World::new();
    let script = "ip link add nic0 address 02:00:00:00:07:01 mtu 1400 up type veth peer name wire0
        ip link set wire0 up
        ip address add 10.7.0.1/24 dev wire0
        ip address add fd07::1/64 dev wire0 nodad";
    world.host(["sh", "-ec", script]);
    world
}

fn config() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "uplink", "type": "host-device", "device": "nic0",
        "ipam": {
            "type": "host-local", "routes": [{"dst": "10.99.0.0/16", "gw": "10.7.0.1"}],
            "ranges": [
                [{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.10"}],
                [{"subnet": "fd07::/64", "rangeStart": "fd07::10"}],
            ],
        },
    })
}

fn config_with(more: Value) -> Value {
    with(&config(), more)
}

fn plain() -> Value {
    json!({"cniVersion": "1.1.0", "name": "uplink", "type": "host-device", "device": "nic0"})
}

/// All that is to be as before about a link of the host, as a text that can be compared.
fn card(world: &World, name: &str) -> String {
    describe(&world.host_json(["ip", "-j", "-d", "link", "show", "dev", name]))
}

fn describe(links: &Value) -> String {
    let link = &links[0];
    let flags: Vec<&str> =
        link["flags"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap()).collect();
    let has = |flag: &str| flags.contains(&flag);
    format!(
        "{} mac={} mtu={} up={} promisc={} allmulti={} alias={} altnames={}",
        link["ifname"],
        link["address"],
        link["mtu"],
        has("UP"),
        has("PROMISC"),
        has("ALLMULTI"),
        link["ifalias"],
        link["altnames"]
    )
}

/// The kernel moves a card to the host when its namespace ends: it is there again, down, under the name that it had in
/// the container, or as `devN` if that one is taken.
fn end_namespace(container: &Container<'_>, ifname: &str) {
    let world = container.world;
    let name = if world.links().iter().any(|link| link == ifname) { "dev7" } else { ifname };
    // A process of the host to name its namespace by.
    let script = format!(
        "sleep 100 & nsenter --net={} ip link set dev {ifname} netns $! name {name}; kill $!",
        container.netns()
    );
    world.host(["sh", "-ec", &script]);
    container.destroy();
}
