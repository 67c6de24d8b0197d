//! nf_tables rules of several plugins: masquerading, the spoof check, and rules of the Go plugins and of older builds.

mod alone;
mod masquerade;
mod restored;
mod spelled;
mod spoof_check;
mod switch_over;

use serde_json::{Value, json};

use crate::world::{Container, World};

/// Both families, so many keys as `more` has.
fn network(plugin: &str, more: Value) -> Value {
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin, "isDefaultGateway": true,
        "ipam": {
            "type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
        },
    });
    let routed = json!({"ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}});
    let config = if plugin == "bridge" { config } else { crate::world::with(&config, routed) };
    crate::world::with(&config, more)
}

/// Another host without routes to the containers: it replies only to masqueraded packets.
pub fn outside(world: &World) -> Container<'_> {
    let outside = world.container("outside");
    world.host([
        "ip", "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", "outside",
    ]);
    for address in ["192.0.2.1/24", "2001:db8::1/64"] {
        world.host(["ip", "address", "add", address, "dev", "up0", "nodad"]);
    }
    world.host(["ip", "link", "set", "up0", "up"]);
    for address in ["192.0.2.2/24", "2001:db8::2/64"] {
        outside.exec(["ip", "address", "add", address, "dev", "eth0", "nodad"]);
    }
    outside.exec(["ip", "link", "set", "eth0", "up"]);
    outside
}

pub const OUTSIDE: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

/// The rules that a host has, as nft writes them, which nft must also be able to read again.
fn ruleset(world: &World) -> String {
    let text = world.host(["nft", "list", "ruleset"]);
    world.write("/run/ruleset", &text);
    world.host(["nft", "--check", "--file", "/run/ruleset"]);
    text
}

/// How many elements of sets and maps have an owner.
fn owned(world: &World) -> usize {
    ruleset(world);
    crate::portmap::elements(world).iter().filter(|line| line.contains(", net ")).count()
}
