//! A container with CAP_NET_ADMIN sends messages that look like the kernel's to all sockets in its namespace.

use serde_json::{Value, json};

use crate::world::{Container, Running, World};

const FLOOD: &str = include_str!("flood.py");

/// Enough for the flood to hit each of the few requests that a call makes in the container.
const ROUNDS: u32 = 60;

fn config() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}})
}

/// Starts the flood in a container, and waits until it works.
fn flood(container: &Container<'_>) -> Running {
    let file = format!("/run/flood-{}", container.name);
    let flood = container.tool(["python3", "-c", FLOOD, &file]).start();
    container.world.eventually("a flood", || container.world.path(&file).exists());
    flood
}

#[test]
fn forged_errors_from_a_container_fail_no_call() {
    let world = World::new();
    let container = world.container("c1");
    let mut flood = flood(&container);
    for _ in 0..ROUNDS {
        let result = container.add("bridge", &config());
        container.check("bridge", &config(), &result);
        container.del("bridge", &config());
    }
    assert!(flood.is_running());
}
