//! A key that the driver does not honour is refused, and routes that reject packets are honoured.

use serde_json::{Value, json};

use super::{object, request};
use crate::runtime::Host;
use crate::world::with;

fn with_subnet(more: Value) -> Value {
    let subnet = with(&json!({"subnet": "10.5.0.0/24"}), more);
    with(&object("a"), json!({"subnets": [subnet, {"subnet": "fd05::/64"}]}))
}

fn with_route(more: Value) -> Value {
    let route = with(&json!({"destination": "10.99.0.0/24", "gateway": "10.5.0.7"}), more);
    with(&with_subnet(json!({})), json!({"routes": [route]}))
}

#[test]
fn a_key_that_is_not_honoured_is_refused_by_name() {
    let host = Host::new();
    for (object, reason) in [
        (with(&object("a"), json!({"vrf": "blue"})), "a: vrf: \"blue\": the driver has no such"),
        (with(&object("a"), json!({"limits": {"mbit": 5}})), "a: limits: "),
        (
            with(&object("a"), json!({"ipam_options": {"lease_time": "5"}})),
            ": ipam_options.lease_time: ",
        ),
        (with_subnet(json!({"vlan": 7})), ": subnets[0].vlan: 7: "),
        (
            with_subnet(json!({"lease_range": {"start_ip": "10.5.0.9", "exclude": ["10.5.0.10"]}})),
            ": subnets[0].lease_range.exclude: ",
        ),
        (with_route(json!({"scope": "link"})), ": routes[0].scope: "),
        (with_route(json!({"route_type": "throw"})), "not one of unicast, blackhole"),
        (
            with_route(json!({"route_type": "prohibit"})),
            "10.5.0.7: a prohibit route has no gateway",
        ),
    ] {
        let error = host.refusal(&object);
        assert!(error.contains(reason), "{object}: {error}");
    }
    // Such a value asks for nothing.
    for value in [json!(null), json!(false), json!(""), json!([]), json!({})] {
        host.created(&with(&object("a"), json!({"new": value})));
        host.created(&with_route(json!({"new": value, "route_type": "unicast"})));
    }
}

#[test]
fn routes_that_reject_packets_are_honoured() {
    let host = Host::new();
    let routes = json!([
        {"destination": "10.99.0.0/24", "route_type": "blackhole"},
        {"destination": "10.98.0.0/24", "route_type": "unreachable", "metric": 7},
        {"destination": "fd99::/64", "route_type": "prohibit"},
        {"destination": "10.97.0.0/24", "gateway": "10.5.0.7"},
    ]);
    let network = host.created(&with(&with_subnet(json!({})), json!({"routes": routes})));
    assert_eq!(network["routes"], routes);
    let c1 = host.world.container("c1");
    let request = request("c1", &network);
    host.set_up(&c1, &request);
    let shown = || c1.exec(["sh", "-c", "ip -4 route; ip -6 route"]);
    for route in [
        "blackhole 10.99.0.0/24",
        "unreachable 10.98.0.0/24 metric 7",
        "prohibit fd99::/64",
        "10.97.0.0/24 via 10.5.0.7",
    ] {
        assert!(shown().contains(route), "{route}: {}", shown());
    }
    host.cnibox(&["check", "a", &c1.netns(), "--container-id", "c1"]).run().silence();
    // `podman network disconnect`: the container goes on.
    host.tear_down(&c1.netns(), &request);
    assert!(!shown().contains("10.9") && !shown().contains("fd99"), "{}", shown());
}

#[test]
fn an_option_sets_the_key_at_its_path() {
    let host = Host::new();
    let options = json!({
        "bridge.ipam.exclude": r#"["10.5.0.2", "fd05::2"]"#,
        "bridge.ipam.sticky": "true",
        "tuning.sysctl.net.core.somaxconn": "500",
        "bridge.dns.search": r#"["a.test"]"#,
    });
    let network = host.created(&with(&with_subnet(json!({})), json!({"options": options})));
    let c1 = host.world.container("c1");
    let answer = host.set_up(&c1, &request("c1", &network));
    assert_eq!(c1.addresses("eth0"), ["10.5.0.3/24", "fd05::3/64"]);
    assert_eq!(c1.sysctl("net/core/somaxconn"), "500");
    assert_eq!(answer["dns_search_domains"], json!(["a.test"]));

    for (key, reason) in [
        ("bridge.ipam.type", "podman's other options say that"),
        ("bridge.ipam.ranges", "podman's other options say that"),
        ("bridge.IPAM.Routes", "podman's other options say that"),
        ("bridge.Bridge", "podman's other options say that"),
        ("portmap.capabilities.portMappings", "podman's other options say that"),
        ("bridge.hairpinMode.x", "option bridge.hairpinMode.x: hairpinMode is not an object"),
        ("bridge.ipam.nonsense", "has no key ipam.nonsense"),
        ("bridge..mtu", "unknown"),
        ("bridge.ipam.", "podman's other options say that"),
    ] {
        let error = host.refusal(&super::with_options("a", json!({key: "1"})));
        assert!(error.contains(reason), "{key}: {error}");
    }
    let without =
        json!({"ipam_options": {"driver": "none"}, "options": {"bridge.ipam.exclude": "[]"}});
    let error = host.refusal(&with(&object("a"), without));
    assert!(error.contains("option bridge.ipam.exclude: the network has no ipam"), "{error}");
}
