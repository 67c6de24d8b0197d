//! `bandwidth`: rates are kept to, seen with real transfers, and what does it is as `tc` prints it.

mod check;
mod del;
mod faults;
mod queues;
mod refused;
mod results;
mod traffic;

use serde_json::{Value, json};

use crate::world::{Container, World, parse, with};

/// A network with both families; its bridge has 10.1.0.1 and fd00:1::1.
fn network() -> Value {
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br1", "isGateway": true,
        "ipam": {"type": "host-local", "ranges": ranges},
    })
}

/// 20 Mbit/s in and 10 out, each with a tenth of a second at once.
fn limits() -> Value {
    json!({
        "ingressRate": 20_000_000, "ingressBurst": 2_000_000, "egressRate": 10_000_000, "egressBurst": 1_000_000,
    })
}

fn bandwidth(keys: Value) -> Value {
    with(&json!({"cniVersion": "1.0.0", "name": "net", "type": "bandwidth"}), keys)
}

fn chained(keys: Value, result: &Value) -> Value {
    with(&bandwidth(keys), json!({"prevResult": result}))
}

/// A container on the bridge with these limits. Returns both results.
fn limited(container: &Container<'_>, keys: Value) -> (Value, Value) {
    let before = container.add("bridge", &network());
    let after = container.add("bandwidth", &chained(keys, &before));
    (before, after)
}

/// The name of the host's end in a result.
fn host_end(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().unwrap().into()
}

/// The name of the ifb, the last of a result.
fn ifb(result: &Value) -> String {
    result["interfaces"].as_array().unwrap().last().unwrap()["name"].as_str().unwrap().into()
}

/// All that the host shapes, in the words of `tc`: disciplines, classes, filters; and its ifbs.
fn shaping(world: &World) -> Vec<String> {
    let mut lines = Vec::new();
    for link in world.links() {
        for what in [&["qdisc", "show"][..], &["class", "show"], &["filter", "show"]] {
            for more in [&["dev", &link][..], &["dev", &link, "ingress"]] {
                if what[0] != "filter" && more.len() > 2 {
                    continue;
                }
                let words: Vec<&str> = ["tc"].iter().chain(what).chain(more).copied().collect();
                let said = world.tool(&words, None).output_of_success();
                let own = |line: &&str| !line.contains("qdisc noqueue") && !line.trim().is_empty();
                // The rest is a counter of packets, and a limit that does not depend on the configuration.
                let constant =
                    |line: &str| line.split(" direct_packets_stat").next().unwrap().to_owned();
                lines.extend(
                    said.lines().filter(own).map(constant).map(|line| format!("{link}: {line}")),
                );
            }
        }
        if link.starts_with("bwp") {
            lines.push(link);
        }
    }
    lines
}

/// The discipline at the root of a link.
fn root(world: &World, link: &str) -> Value {
    let all = parse(&world.host(["tc", "-j", "qdisc", "show", "dev", link]));
    let root = |qdisc: &&Value| qdisc["root"] == true;
    all.as_array().unwrap().iter().find(root).unwrap_or_else(|| panic!("{link}: {all}"))["options"]
        .clone()
}
