//! The namespace of a container is gone without a DEL, and an ADD of the same container follows, with a key toggled. Its
//! packets pass as the new configuration says, and its DEL removes what either ADD made.

use serde_json::{Value, json};

use super::subject::{BRIDGE, NEIGHBOUR, Subject};
use crate::netfilter::{OUTSIDE, outside};
use crate::world::{Container, State, World, with};

/// A network with the host as its gateway. Both ADDs get the same addresses, from the IPAM plugin `static` unless `keys` name
/// another.
fn network(plugin: &str, keys: &Value) -> Value {
    let ips = [("10.1.0.5/24", "10.1.0.1"), ("fd00:1::5/64", "fd00:1::1")];
    let ips = ips.map(|(address, gateway)| json!({"address": address, "gateway": gateway}));
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin,
        "ipam": {"type": "static", "addresses": ips, "routes": routes},
    });
    let gateway = if plugin == "bridge" { json!({"isGateway": true}) } else { json!({}) };
    with(&with(&base, gateway), keys.clone())
}

fn state(world: &World, container: &Container<'_>) -> State {
    world.state_with(&[container]).apart_from(BRIDGE, "net")
}

/// Whether `target` answers one of several packets, where no answer is expected. A target that has no route to the container
/// needs masquerading.
fn is_answered(container: &Container<'_>, target: &str) -> bool {
    container.tool(["ping", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "1", target]).run().status
        == 0
}

/// The first ADD has the keys `first`; the second one, and the DEL, have `second`.
#[track_caller]
fn check(plugin: &'static str, first: &Value, second: &Value) {
    let subject = Subject { targets: &NEIGHBOUR, ..Subject::new(plugin, json!({}), Vec::new()) };
    let world = subject.world();
    outside(&world);
    let c1 = subject.container(&world);
    for keys in [first, second] {
        c1.add(plugin, &network(plugin, keys));
        c1.del(plugin, &network(plugin, keys));
    }
    let before = state(&world, &c1);
    let links = world.links();

    c1.add(plugin, &network(plugin, first));
    c1.destroy();
    // The kernel removes the pair some time after the namespace; the next one can then have the same name.
    world.eventually("the pair is gone", || world.links() == links);
    if first["ipam"]["type"] == "host-local" {
        // As after a boot of the host: an ADD of a container that has an address is refused.
        c1.del("host-local", &network(plugin, first));
    }
    let c1 = subject.container(&world);
    let when = format!("{plugin}: {first}, then {second}");
    c1.add(plugin, &network(plugin, second));
    for gateway in ["10.1.0.1", "fd00:1::1"] {
        let ping = c1.pinging(gateway).run();
        assert!(ping.status == 0, "{when}: {gateway} does not answer: {}", ping.report());
    }
    for target in OUTSIDE {
        let is_masqueraded = second["ipMasq"] == true;
        let is_answered = match is_masqueraded {
            true => c1.pinging(target).run().status == 0,
            false => is_answered(&c1, target),
        };
        assert_eq!(is_answered, is_masqueraded, "{when}: {target}");
    }
    c1.del(plugin, &network(plugin, second));
    before.assert_same(&state(&world, &c1), &when);
}

/// Both directions of a key.
#[track_caller]
fn check_both(plugin: &'static str, key: Value, beside: &Value) {
    let with_key = with(beside, key);
    check(plugin, beside, &with_key);
    check(plugin, &with_key, beside);
}

#[test]
fn toggling_the_spoof_check_of_a_bridge() {
    check_both("bridge", json!({"macspoofchk": true}), &json!({}));
}

#[test]
fn a_bridge_that_is_not_internal_any_more() {
    check("bridge", &json!({"ipMasq": true, "internal": true}), &json!({"ipMasq": true}));
}

#[test]
fn toggling_the_masquerading_of_a_bridge() {
    check_both("bridge", json!({"ipMasq": true}), &json!({}));
}

#[test]
fn toggling_the_masquerading_of_a_bridge_with_a_spoof_check() {
    check_both("bridge", json!({"ipMasq": true}), &json!({"macspoofchk": true}));
}

#[test]
fn toggling_the_spoof_check_of_a_bridge_with_masquerading() {
    check_both("bridge", json!({"macspoofchk": true}), &json!({"ipMasq": true}));
}

#[test]
fn toggling_the_port_isolation_of_a_bridge() {
    check_both("bridge", json!({"portIsolation": true}), &json!({}));
}

#[test]
fn toggling_the_masquerading_of_a_pair() {
    for plugin in ["veth", "ptp"] {
        check_both(plugin, json!({"ipMasq": true}), &json!({}));
    }
}

#[test]
fn toggling_the_keys_of_host_local_on_a_bridge() {
    let ipam = json!({"ipam": {
        "type": "host-local", "addresses": null,
        "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
    }});
    check_both("bridge", json!({"macspoofchk": true, "ipMasq": true}), &ipam);
}
