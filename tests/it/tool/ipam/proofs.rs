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
fn the_alias_of_a_link_of_the_host_is_a_sign_of_life() {
    let host = Host::new();
    let web = host.world.container("web");
    host.plugin_call("/run/plugins/bridge", "ADD", "web").run().output();
    assert_is(state(&host, "10.1.0.2"), "alive", "its address is in /run/netns/web");
    web.exec(["ip", "address", "flush", "dev", "eth0"]);
    assert_is(state(&host, "10.1.0.2"), "alive", "names its owner");
    web.exec(["ip", "link", "del", "eth0"]);
    assert_is(state(&host, "10.1.0.2"), "unknown", "");
}

#[test]
fn the_address_in_a_namespace_of_a_process_is_a_sign_of_life() {
    let host = Host::new();
    host.reserve_file("10.1.0.7", "hidden\r\neth0");
    let script = "ip address add 10.1.0.7/24 dev lo && echo >/run/ready && exec sleep 100";
    let process = host.world.tool(&["unshare", "--net", "sh", "-c", script], None).start();
    host.world.eventually("the address is there", || host.world.path("/run/ready").exists());
    assert_is(state(&host, "10.1.0.7"), "alive", "its address is in /proc/");
    host.world.host(["kill", &process.pid_in_world().to_string()]);
    process.finish();
    assert_is(state(&host, "10.1.0.7"), "unknown", "");
}

#[test]
fn a_living_entry_of_the_cache_is_a_sign_of_life() {
    let host = Host::new();
    let web = host.attached("web");
    web.exec(["ip", "address", "del", "10.1.0.2/24", "dev", "eth0"]);
    host.world.host(["ip", "link", "set", &host.world.ports_of("cni0")[0], "alias", "mine"]);
    web.exec(["ip", "link", "set", "eth0", "alias", "mine"]);
    assert_is(state(&host, "10.1.0.2"), "alive", "the cache has its attachment, which lives");
}

#[test]
fn the_ifb_of_a_dead_container_is_no_sign_of_life() {
    let host = Host::new();
    host.dead("web");
    host.world.host(["ip", "link", "add", "shaped", "type", "ifb"]);
    host.world.host(["ip", "link", "set", "shaped", "alias", "cnibox net web eth0"]);
    assert_is(state(&host, "10.1.0.2"), "gone", "there is no namespace");
}

#[test]
fn a_newer_reservation_than_the_stale_entry_is_of_an_add_in_progress() {
    let host = Host::new();
    host.dead("web");
    assert_is(state(&host, "10.1.0.2"), "gone", "there is no namespace at /run/netns/web");
    host.set_time("10.1.0.2", "+1 second");
    assert_is(state(&host, "10.1.0.2"), "unknown", "");
    host.set_time("10.1.0.2", "-1 hour");
    assert_is(state(&host, "10.1.0.2"), "gone", "there is no namespace");
    // The entry does not name this address.
    host.reserve_file("10.1.0.50", "web\r\neth0");
    assert_is(state(&host, "10.1.0.50"), "unknown", "");
}

#[test]
fn an_interface_out_of_sight_can_be_in_use_by_a_process_that_names_the_container() {
    let host = Host::new();
    let web = host.attached("f00d42");
    // As if another runtime had made it: containerd keeps no identity of the namespace.
    host.world.host(["sh", "-c", "rm /var/lib/cni/identities/*/*"]);
    web.exec(["ip", "link", "del", "eth0"]);
    let list = |script: &str| judged(host.ipam_beside(script, &["list", "--json"]), "10.1.0.2");
    assert_is(list(r#""$@""#), "unknown", "its interface is not in /run/netns/f00d42");
    web.destroy();
    let monitor = r#"sh -c 'sleep 100; exit' monitor --id=f00d42 >/dev/null 2>&1 & "$@""#;
    assert_is(list(monitor), "unknown", "a process names its container");
    assert_is(list(r#""$@""#), "gone", "there is no namespace at /run/netns/f00d42");
}

#[test]
fn a_pending_record_is_a_doubt() {
    let host = Host::new();
    host.dead("web");
    host.world.host(["cp", "-r", "/var/lib/cni/results/.", "/run/cnibox/operations"]);
    assert_is(state(&host, "10.1.0.2"), "unknown", "its ADD or DEL has not ended");
    let outcome = host.ipam(&["release", "10.1.0.2"]);
    assert!(
        outcome.status == 1
            && outcome.stderr.contains("may be alive: its ADD or DEL has not ended"),
        "{}",
        outcome.report()
    );
}

#[test]
fn an_owner_without_any_sign_is_gone_after_a_minute() {
    let host = Host::new();
    // Our plugins have worked with the directory, in this PID namespace only.
    host.attached("web");
    host.reserve_file("10.1.0.7", "f00d42\r\neth0");
    let list = |script: &str| judged(host.ipam_beside(script, &["list", "--json"]), "10.1.0.7");
    let alone = r#""$@""#;
    assert_is(list(alone), "unknown", "its ADD can be in progress for 60 s");
    host.set_time("10.1.0.7", "tomorrow");
    assert_is(list(alone), "unknown", "its ADD can be in progress");
    host.set_time("10.1.0.7", "-2 minutes");
    let blind = host.cnibox(&["ipam", "list", "--json"]).under(&WITHOUT_PTRACE).run();
    assert_is(judged(blind, "10.1.0.7"), "unknown", "this process has no view of the host");
    let no_sign = "no process, namespace or cache entry has its container";
    assert_is(state(&host, "10.1.0.7"), "gone", no_sign);
    assert_is(list(alone), "gone", no_sign);
    // Until the child executes its program, it has the command line of the shell.
    let call = r#"CNI_COMMAND=ADD CNI_CONTAINERID=f00d42 sleep 100 &
        until grep -q sleep /proc/$!/comm; do :; done
        "$@""#;
    assert_is(list(call), "unknown", "is a plugin that is called for it");
    let named = r#"sh -c 'sleep 100; exit' monitor --id=f00d42 >/dev/null 2>&1 & "$@""#;
    assert_is(
        list(named),
        "unknown",
        "the command line or the control group of a process names it",
    );
    // Other calls and other names are no sign.
    let others = r#"CNI_COMMAND=ADD CNI_CONTAINERID=f00d43 sleep 100 & "$@""#;
    assert_is(list(others), "gone", "");
    host.world.write("/var/lib/cni/results/net-f00d42-eth0", "{");
    assert_is(list(alone), "unknown", "its cache entry or pending record is damaged");
    host.world.host(["rm", "/var/lib/cni/results/net-f00d42-eth0"]);
    host.configure("net", &json!([[{"subnet": "10.1.0.0/24"}]]), json!({"staleOnBoot": "keep"}));
    assert_is(list(alone), "unknown", "it can be a reservation of another host");
}

#[test]
fn nothing_is_proven_in_a_container_that_does_not_see_the_host() {
    let host = Host::new();
    host.dead("web");
    host.set_time("10.1.0.2", "-1 hour");
    let list = |script: &str| judged(host.ipam_beside(script, &["list", "--json"]), "10.1.0.2");
    assert_is(list(r#""$@""#), "gone", "");
    let volume = r#"unshare --mount --pid --fork --mount-proc sh -c 'mount --bind /var/lib/cni /var/lib/cni && "$@"' sh "$@""#;
    assert_is(list(volume), "unknown", "this process does not see the processes of the host");
}

#[test]
fn an_owner_of_an_earlier_boot_is_gone() {
    let host = Host::new();
    let boot = |number: u32| {
        host.world.write("/run/boot_id", format!("{number:08}-e6cd-4471-bb46-39adcacd0000\n"));
    };
    boot(1);
    host.world.host(["mount", "--bind", "/run/boot_id", "/proc/sys/kernel/random/boot_id"]);
    let web = host.world.container("web");
    host.plugin_call("/run/plugins/bridge", "ADD", "web").run().output();
    boot(2);
    // The container lives, so the boot counts for nothing.
    assert_is(state(&host, "10.1.0.2"), "alive", "");
    host.destroy(&web);
    assert_is(state(&host, "10.1.0.2"), "gone", "an earlier boot of this host made it");
    boot(1);
    assert_is(state(&host, "10.1.0.2"), "unknown", "");
    boot(2);
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
