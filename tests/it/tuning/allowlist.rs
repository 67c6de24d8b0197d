//! The administrator's list of sysctls.

use serde_json::{Value, json};

use super::{container, tuning};
use crate::world::{World, with};

const FILE: &str = "/etc/cni/tuning/allowlist.conf";

fn world(list: &str) -> World {
    let world = World::new();
    world.write(FILE, list);
    world
}

fn somaxconn() -> Value {
    json!({"sysctl": {"net.core.somaxconn": "77"}})
}

#[test]
fn one_line_has_to_match() {
    for (list, is_allowed) in [
        ("^net\\.core\\.somaxconn$\n", true),
        ("\n  ^net.ipv4.ip_forward$  \n\n net.core.* \n", true),
        ("somax", true),
        ("^net\\.(ipv4|core)\\.[a-z]+$", true),
        ("", false),
        ("^net\\.ipv4\\.", false),
        ("# net.core.somaxconn", false),
        ("^net/core/somaxconn$", false),
    ] {
        let world = world(list);
        let (c1, result) = container(&world);
        let status = world.call("tuning", "STATUS", &tuning(somaxconn(), &result)).run();
        let outcome = c1.call("tuning", "ADD", &tuning(somaxconn(), &result)).run();
        if is_allowed {
            outcome.success();
            status.silence();
        } else {
            outcome.fails(7, &["Sysctl net.core.somaxconn is not allowed"]);
            status.fails(50, &["Sysctl net.core.somaxconn is not allowed"]);
            assert_eq!(c1.sysctl("net/core/somaxconn"), "4096", "{list}");
        }
    }
}

#[test]
fn the_key_counts_as_it_is_written() {
    let world = world("^net.ipv4.conf.IFNAME.[a-z_]*$");
    let (c1, result) = container(&world);
    for (key, is_allowed) in [
        ("net.ipv4.conf.IFNAME.arp_notify", true),
        ("net/ipv4/conf/IFNAME/arp_notify", true),
        ("net.ipv4.conf.eth0.arp_notify", false),
    ] {
        for keys in
            [json!({"sysctl": {key: "1"}}), json!({"args": {"cni": {"sysctl": {key: "1"}}}})]
        {
            let outcome = c1.call("tuning", "ADD", &tuning(keys, &result)).run();
            if is_allowed { drop(outcome.success()) } else { drop(outcome.fails(7, &[key])) }
        }
    }
}

#[test]
fn a_pattern_that_cannot_be_read_allows_nothing() {
    let world = world("net.core.somaxconn\nnet(\n");
    let (c1, result) = container(&world);
    let config = tuning(somaxconn(), &result);
    c1.call("tuning", "ADD", &config)
        .run()
        .fails(7, &["cannot read pattern net( of /etc/cni/tuning/allowlist.conf"]);
    world.call("tuning", "STATUS", &config).run().fails(50, &["net("]);
    // Without sysctls the plugin does not read it.
    c1.add("tuning", &tuning(json!({"mtu": 1400}), &result));
    world.host(["sh", "-c", &format!("rm {FILE}; mkdir {FILE}")]);
    c1.call("tuning", "ADD", &config)
        .run()
        .fails(5, &["cannot read /etc/cni/tuning/allowlist.conf"]);
}

#[test]
fn a_sysctl_that_was_allowed_at_add_can_be_checked_and_removed() {
    let world = world("net.core.somaxconn");
    let (c1, result) = container(&world);
    let config = with(&tuning(somaxconn(), &result), json!({"mtu": 1400}));
    let added = c1.add("tuning", &config);
    world.write(FILE, "");
    c1.check("tuning", &config, &added);
    c1.del("tuning", &config);
    assert_eq!(c1.sysctl("net/core/somaxconn"), "4096");
}

#[test]
fn the_notation_of_the_list_is_that_of_the_key() {
    let key = "net.ipv4.conf.eth0/100.medium_id";
    for (list, is_allowed) in [
        (r"^net\.ipv4\.conf\.eth0/100\.medium_id$", true),
        (r"^net/ipv4/conf/eth0\.100/medium_id$", false),
    ] {
        let world = world(list);
        let (c1, result) = container(&world);
        c1.exec(["ip", "link", "add", "eth0.100", "type", "veth", "peer", "name", "peer.100"]);
        let added = c1.call("tuning", "ADD", &tuning(json!({"sysctl": {key: "7"}}), &result)).run();
        if is_allowed {
            added.success();
        } else {
            added.fails(7, &["is not allowed"]);
        }
        let value = if is_allowed { "7" } else { "0" };
        assert_eq!(c1.sysctl("net/ipv4/conf/eth0.100/medium_id"), value);
    }
}
