//! Both at work on one host, as during an upgrade of a node: what one side made, the other removes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::reference;
use crate::world::{Container, LAN, PLUGIN_DIR, RECORDS, World, all_at_once, with};

fn ranges() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]})
}

fn configs() -> [(&'static str, Value); 6] {
    let config = json!({"cniVersion": "1.0.0", "name": "net"});
    [
        ("bridge", with(&config, json!({"isGateway": true, "ipam": ranges()}))),
        ("bridge", config.clone()),
        ("ptp", with(&config, json!({"ipam": ranges()}))),
        ("macvlan", with(&config, json!({"master": "lan", "mode": "private", "ipam": ranges()}))),
        ("macvlan", with(&config, json!({"ipam": ranges()}))),
        ("loopback", config),
    ]
}

/// A host with a link for interfaces to sit on.
fn world() -> World {
    let world = World::new();
    world.host(["sh", "-ec", LAN]);
    world
}

#[test]
fn each_removes_what_the_other_added() {
    let theirs = reference();
    for (plugin, config) in configs() {
        for (adder, remover) in [(theirs.as_str(), PLUGIN_DIR), (PLUGIN_DIR, theirs.as_str())] {
            let world = world();
            let c1 = world.container("c1");
            c1.exec(["sh", "-c", "ip link set lo up; ip link set lo down"]);
            let before = world.state_with(&[&c1]).apart_from("cni0", "net");
            let call =
                |verb: &str, dir: &str| c1.call(plugin, verb, &config).of_directory(dir).run();
            call("ADD", adder).success();
            call("DEL", remover).silence();
            let after = world.state_with(&[&c1]).apart_from("cni0", "net");
            // The reference does not know it. `cnibox gc` removes it (runtime::evidence).
            let is_left = remover != PLUGIN_DIR;
            let after = match is_left {
                true => after.without("file", RECORDS).without("link", RECORDS),
                false => after,
            };
            before.assert_same(&after, &format!("{plugin}: ADD by {adder}, DEL by {remover}"));
        }
    }
}

#[test]
fn check_accepts_what_the_reference_added() {
    let theirs = reference();
    for (plugin, config) in configs() {
        let world = world();
        let c1 = world.container("c1");
        let result = c1.call(plugin, "ADD", &config).of_directory(&theirs).run().success();
        c1.check(plugin, &config, &result);
    }
}

/// Rules of iptables and of nf_tables, which the reference makes for the same keys.
#[test]
fn check_accepts_rules_of_the_reference() {
    let theirs = reference();
    let masquerades =
        json!({"ipMasq": true, "isGateway": true, "macspoofchk": true, "ipam": ranges()});
    let base = json!({"cniVersion": "1.0.0", "name": "net"});
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    for (plugin, chained, keys) in [
        ("bridge", "", json!({})),
        ("ptp", "", json!({})),
        ("bridge", "portmap", json!({"runtimeConfig": {"portMappings": ports}})),
        ("bridge", "firewall", json!({})),
    ] {
        let world = world();
        let c1 = world.container("c1");
        let config = with(&base, masquerades.clone());
        let added = |plugin: &str, config: &Value| {
            let call = c1.call(plugin, "ADD", config).of_directory(&theirs);
            call.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").run().success()
        };
        let result = added(plugin, &config);
        let behind = with(&with(&base, keys), json!({"prevResult": result}));
        let (checked, config) =
            if chained.is_empty() { (plugin, config) } else { (chained, behind.clone()) };
        if !chained.is_empty() {
            added(chained, &behind);
        }
        c1.check(checked, &config, &result);
        for iptables in ["iptables", "ip6tables"] {
            for table in ["nat", "filter"] {
                world.host([iptables, "-t", table, "-F"]);
            }
        }
        let named = if chained.is_empty() { "masquerading of 10.1.0.2 is missing" } else { "" };
        c1.checking(checked, &config, &result).run().fails(999, &[named]);
    }
}

#[test]
fn the_reference_accepts_what_cnibox_added() {
    let theirs = reference();
    // It cannot CHECK a bridge without IPAM, even its own.
    for (plugin, config) in configs()
        .into_iter()
        .filter(|(plugin, config)| *plugin != "bridge" || config.get("ipam").is_some())
    {
        let world = world();
        let c1 = world.container("c1");
        let result = c1.add(plugin, &config);
        c1.checking(plugin, &config, &result).of_directory(&theirs).run().silence();
    }
}

#[test]
fn ipam_of_one_serves_the_bridge_of_the_other() {
    let theirs = reference();
    let (plugin, config) = configs()[0].clone();
    for (main, ipam) in [(theirs.as_str(), PLUGIN_DIR), (PLUGIN_DIR, theirs.as_str())] {
        let world = World::new();
        let c1 = world.container("c1");
        let before = world.state_with(&[&c1]).apart_from("cni0", "net");
        let call = |verb: &str, config: &Value| {
            c1.call(plugin, verb, config).of_directory(main).env("CNI_PATH", ipam).run()
        };
        let result = call("ADD", &config).success();
        call("CHECK", &with(&config, json!({"prevResult": result}))).silence();
        call("DEL", &config).silence();
        let after = world.state_with(&[&c1]).apart_from("cni0", "net");
        before.assert_same(&after, &format!("{main} with IPAM of {ipam}"));
    }
}

#[test]
fn containers_of_both_talk_to_one_another() {
    let theirs = reference();
    let (plugin, config) = configs()[0].clone();
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    c1.call(plugin, "ADD", &config).of_directory(&theirs).run().success();
    let ours = c2.add(plugin, &config);
    assert_eq!(ours["ips"][0]["address"], "10.1.0.3/24", "one goes on where the other was");
    c1.ping("10.1.0.3");
    c1.ping("fd00:1::3");
}

const EACH: usize = 16;

fn containers<'w>(world: &'w World, prefix: &str) -> Vec<Container<'w>> {
    (0..EACH).map(|number| world.container(&format!("{prefix}{number}"))).collect()
}

#[test]
fn both_at_once_in_one_directory_give_different_addresses() {
    let theirs = reference();
    for plugin in ["host-local", "bridge"] {
        let (_, config) = configs()[0].clone();
        let world = World::new();
        let (old, new) = (containers(&world, "old"), containers(&world, "new"));
        let mut calls = Vec::new();
        for (old, new) in old.iter().zip(&new) {
            calls.push(old.call(plugin, "ADD", &config).of_directory(&theirs));
            calls.push(new.call(plugin, "ADD", &config));
        }
        let mut given = BTreeSet::new();
        for outcome in all_at_once(calls) {
            let result = outcome.success();
            for ip in result["ips"].as_array().unwrap() {
                assert!(given.insert(ip["address"].to_string()), "{ip} was given twice");
            }
        }
        assert_eq!(given.len(), 4 * EACH);
        // And away again, each by the other side.
        for (old, new) in old.iter().zip(&new) {
            old.del(plugin, &config);
            new.call(plugin, "DEL", &config).of_directory(&theirs).run().silence();
        }
        let state = world.state();
        assert!(!state.has("file /var/lib/cni/networks/net/10."), "{state:?}");
        assert!(!state.has("file /var/lib/cni/networks/net/fd00"), "{state:?}");
    }
}
