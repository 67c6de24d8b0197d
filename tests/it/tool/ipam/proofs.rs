//! The signs of life of an owner, and the proofs of its death.

use serde_json::{Value, json};

use super::host::{DATA, Host, find};
use crate::world::{Outcome, WITHOUT_PTRACE, all_at_once, parse};

/// State and reason of an address in the output of `list --json`.
fn judged(outcome: Outcome, address: &str) -> (String, String) {
    let found = find(&parse(&outcome.output()), address);
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

fn state(host: &Host, address: &str) -> (String, String) {
    judged(host.ipam(&["list", "--json"]), address)
}

#[track_caller]
fn assert_is((state, reason): (String, String), expected: &str, why: &str) {
    assert!(state == expected && reason.contains(why), "{state}: {reason}, not {expected}: {why}");
}

#[test]
fn an_address_is_in_use_as_long_as_the_namespace_of_its_add_exists() {
    let host = Host::new();
    let web = host.world.container("web");
    host.plugin_call("/run/plugins/bridge", "ADD", "web").run().output();
    assert_is(state(&host, "10.1.0.2"), "alive", "its network namespace exists");
    web.exec(["ip", "link", "del", "eth0"]);
    assert_is(state(&host, "10.1.0.2"), "alive", "its network namespace exists");
    web.destroy();
    assert_is(state(&host, "10.1.0.2"), "gone", "its network namespace has ended");
}

#[test]
fn the_ipam_plugin_of_another_bridge_records_the_namespace() {
    let host = Host::new();
    let web = host.world.container("web");
    let go = |verb| host.plugin_call("/usr/lib/cni/bridge", verb, "web").run();
    go("ADD").output();
    assert_is(state(&host, "10.1.0.2"), "alive", "its network namespace exists");
    go("DEL").output();
    assert!(!host.world.path("/var/lib/cni/attachments/net+web+eth0").exists());
    go("ADD").output();
    web.destroy();
    assert_is(state(&host, "10.1.0.3"), "gone", "its network namespace has ended");
}

#[test]
fn what_strangers_show_neither_proves_an_end_nor_a_life() {
    let host = Host::new();
    host.reserve_file("10.1.0.7", "f00d42\r\neth0");
    host.set_time("10.1.0.7", "-2 minutes");
    let list = |script: &str| judged(host.ipam_beside(script, &["list", "--json"]), "10.1.0.7");
    let unknown = "no record of its attachment tells whether it has ended";
    for script in [
        r#""$@""#,
        // Its address, a plugin that is called for it, and a process that names it.
        r#"unshare --net sh -c 'ip address add 10.1.0.7/24 dev lo; sleep 100' & "$@""#,
        r#"CNI_COMMAND=ADD CNI_CONTAINERID=f00d42 sleep 100 & "$@""#,
        r#"sh -c 'sleep 100; exit' monitor --id=f00d42 >/dev/null 2>&1 & "$@""#,
    ] {
        assert_is(list(script), "unknown", unknown);
    }
    host.dead("web");
    let ended = r#"CNI_COMMAND=ADD CNI_CONTAINERID=web sleep 100 & "$@""#;
    let ended = judged(host.ipam_beside(ended, &["list", "--json"]), "10.1.0.2");
    assert_is(ended, "gone", "its network namespace has ended");
}

#[test]
fn without_sys_ptrace_the_kernel_tells_the_same() {
    let host = Host::new();
    host.dead("web");
    let blind = host.cnibox(&["ipam", "list", "--json"]).under(&WITHOUT_PTRACE).run();
    assert_is(judged(blind, "10.1.0.2"), "gone", "its network namespace has ended");
}

#[test]
fn the_ifb_of_a_dead_container_is_no_sign_of_life() {
    let host = Host::new();
    host.dead("web");
    host.world.host(["ip", "link", "add", "shaped", "type", "ifb"]);
    host.world.host(["ip", "link", "set", "shaped", "alias", "cnibox net web eth0"]);
    assert_is(state(&host, "10.1.0.2"), "gone", "its network namespace has ended");
}

#[test]
fn an_interface_that_was_moved_on_keeps_its_address() {
    let host = Host::new();
    let web = host.attached("web");
    let other = host.world.container("other");
    web.exec(["ip", "link", "set", "eth0", "netns", "/run/netns/other"]);
    web.destroy();
    assert_is(state(&host, "10.1.0.2"), "unknown", "the peer of link veth");
    host.cnibox(&["gc"]).run().silence();
    host.destroy(&other);
    assert_is(state(&host, "10.1.0.2"), "gone", "its network namespace has ended");
}

#[test]
fn a_newer_reservation_than_the_stale_entry_is_of_another_add() {
    let host = Host::new();
    host.dead("web");
    assert_is(state(&host, "10.1.0.2"), "gone", "its network namespace has ended");
    host.set_time("10.1.0.2", "+1 second");
    assert_is(state(&host, "10.1.0.2"), "unknown", "");
    host.set_time("10.1.0.2", "-1 hour");
    assert_is(state(&host, "10.1.0.2"), "gone", "its network namespace has ended");
    // The entry does not name this address.
    host.reserve_file("10.1.0.50", "web\r\neth0");
    assert_is(state(&host, "10.1.0.50"), "unknown", "");
}

#[test]
fn a_damaged_entry_or_another_host_is_a_doubt() {
    let host = Host::new();
    host.reserve_file("10.1.0.7", "f00d42\r\neth0");
    host.world.host(["mkdir", "-p", "/var/lib/cni/results"]);
    host.world.write("/var/lib/cni/results/net-f00d42-eth0", "{");
    assert_is(state(&host, "10.1.0.7"), "unknown", "its cache entry is damaged");
    host.world.host(["rm", "/var/lib/cni/results/net-f00d42-eth0"]);
    host.configure("net", &json!([[{"subnet": "10.1.0.0/24"}]]), json!({"staleOnBoot": "keep"}));
    assert_is(state(&host, "10.1.0.7"), "unknown", "it can be a reservation of another host");
}

#[test]
fn nothing_is_proven_in_another_network_namespace() {
    let host = Host::new();
    host.dead("web");
    let list = |script: &str| judged(host.ipam_beside(script, &["list", "--json"]), "10.1.0.2");
    assert_is(list(r#""$@""#), "gone", "");
    let elsewhere = "its record was made in another network namespace of a node";
    assert_is(list(r#"unshare --net "$@""#), "unknown", elsewhere);
}

#[test]
fn an_owner_from_before_a_reboot_is_gone() {
    let host = Host::new();
    host.world.boot(1);
    let web = host.world.container("web");
    host.plugin_call("/run/plugins/bridge", "ADD", "web").run().output();
    host.world.boot(2);
    // The container lives, so the boot counts for nothing.
    assert_is(state(&host, "10.1.0.2"), "alive", "");
    web.destroy();
    assert_is(state(&host, "10.1.0.2"), "gone", "an earlier boot of this host made it");
    // Without the record the store tells it.
    host.world.host(["rm", "/var/lib/cni/attachments/net+web+eth0"]);
    assert_is(state(&host, "10.1.0.2"), "gone", "an earlier boot of this host made it");
    host.configure("net", &json!([[{"subnet": "10.1.0.0/24"}]]), json!({"staleOnBoot": "keep"}));
    assert_is(state(&host, "10.1.0.2"), "unknown", "it can be a reservation of another host");
}

#[test]
fn a_release_beside_many_adds_frees_nothing_that_lives() {
    let host = Host::new();
    let names: Vec<String> = (0..20).map(|number| format!("many{number}")).collect();
    let containers: Vec<_> = names.iter().map(|name| host.world.container(name)).collect();
    let adds = names.iter().map(|name| host.plugin_call("/run/plugins/bridge", "ADD", name));
    let releases = (0..20).map(|_| host.cnibox(&["ipam", "release", "--leaks"]));
    let calls = adds.zip(releases).flat_map(|(add, release)| [add, release]);
    for (index, outcome) in all_at_once(calls).into_iter().enumerate() {
        assert!(index % 2 == 0 || outcome.stdout.is_empty(), "{}", outcome.report());
        outcome.output();
    }
    let document = host.list();
    let found = document["networks"][0]["reservations"].as_array().unwrap();
    assert!(found.len() == 40 && found.iter().all(|entry| entry["state"] == "alive"), "{document}");
    let owners: Vec<&Value> = found.iter().map(|entry| &entry["containerID"]).collect();
    assert!(names.iter().all(|name| owners.contains(&&json!(name))), "{owners:?}");
    assert_eq!(containers.len(), host.world.ports_of("cni0").len());
    assert!(host.world.path(format!("{DATA}/net/lock")).exists());
}
