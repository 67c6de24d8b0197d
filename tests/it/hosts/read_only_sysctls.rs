//! /proc/sys is read-only, as in a container that is a node: what ADD has to set has to be set already.

use serde_json::json;

use super::{fails, network, subnets, works};
use crate::world::{World, with};

fn world(sysctls: &str) -> World {
    let world = World::new();
    world.host(["sysctl", "-q", "-w", "net/ipv4/ip_forward=0"]);
    let script = format!(
        "for sysctl in {sysctls}; do sysctl -q -w $sysctl; done
        mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"
    );
    world.host(["sh", "-ec", &script]);
    world
}

const NO_ADVERTISEMENTS: &str = "net/ipv6/conf/default/accept_ra=0";

#[test]
fn links_of_the_host_must_not_accept_router_advertisements() {
    for plugin in ["bridge", "ptp"] {
        let world = world("net/ipv4/ip_forward=1");
        let config = network(plugin, subnets(&["10.1.0.0/24"]));
        fails(&world.container("c1"), &config, [50, 999], &["accept_ra to 0", "Read-only"]);
    }
}

#[test]
fn a_gateway_needs_forwarding() {
    for plugin in ["bridge", "ptp"] {
        let config = network(plugin, with(&json!({"isGateway": true}), subnets(&["10.1.0.0/24"])));
        let closed = world(NO_ADVERTISEMENTS);
        fails(&closed.container("c1"), &config, [50, 999], &["ip_forward to 1", "Read-only"]);
        let open = world(&format!("{NO_ADVERTISEMENTS} net/ipv4/ip_forward=1"));
        let c1 = open.container("c1");
        works(&c1, &config);
        c1.ping("10.1.0.1");
    }
}

#[test]
fn a_bridge_without_gateway_needs_none() {
    let world = world(NO_ADVERTISEMENTS);
    works(&world.container("c1"), &network("bridge", subnets(&["10.1.0.0/24"])));
}

/// Forwarding of a link is not set by a file.
#[test]
fn a_gateway_forwards_whatever_the_default_is_and_needs_ipv6() {
    for plugin in ["bridge", "ptp"] {
        let open =
            format!("{NO_ADVERTISEMENTS} net/ipv4/ip_forward=1 net/ipv6/conf/all/forwarding=1");
        let config =
            |nets: &[&str]| network(plugin, with(&json!({"isGateway": true}), subnets(nets)));
        let hard = world(&format!("{open} net/ipv4/conf/default/forwarding=0"));
        let c1 = hard.container("c1");
        let result = works(&c1, &config(&["10.1.0.0/24"]));
        let link = result["interfaces"][0]["name"].as_str().unwrap();
        assert_eq!(hard.sysctl(&format!("net/ipv4/conf/{link}/forwarding")), "1");
        let without = world(&format!("{open} net/ipv6/conf/default/disable_ipv6=1"));
        let config = config(&["fd00:1::/64"]);
        fails(&without.container("c1"), &config, [50, 999], &["disable_ipv6 to 0", "Read-only"]);
    }
}
