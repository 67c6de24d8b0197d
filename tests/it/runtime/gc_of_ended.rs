//! `cnibox gc`: what is dead goes, and nothing else.

use serde_json::json;

use super::{Host, list, network, printing};
use crate::world::{all_at_once, with};

#[test]
fn the_dead_go_and_the_living_stay() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let second = json!({"name": "second", "plugins": null});
    let mut second = with(&network(), second);
    second["plugins"] = network()["plugins"].clone();
    second["plugins"][0]["bridge"] = "cni1".into();
    second["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] = "10.2.0.0/24".into();
    host.configure("2.conflist", &second);
    let containers = ["c1", "c2", "c3"].map(|name| host.world.container(name));
    for container in &containers {
        host.cnibox(&["add", "net", &container.name, "-i", "eth0"]).run().success();
        host.cnibox(&["add", "second", &container.name, "-i", "eth1"]).run().success();
    }
    host.cnibox(&["gc"]).run().silence();
    containers[0].destroy();
    containers[1].unmount();
    let said = host.cnibox(&["gc", "net", "--json", "--dry-run"]).run().output();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (said["dryRun"].as_bool(), said["removed"].as_array().unwrap().len()),
        (Some(true), 2)
    );
    assert_eq!(host.kept().len(), 18);
    let said = host.cnibox(&["gc", "net"]).run().output();
    assert_eq!(said.lines().count(), 2, "{said}");
    assert_eq!(host.kept().len(), 12);
    let said = host.cnibox(&["gc", "--json"]).run().output();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["removed"][0]["network"], "second");
    assert_eq!(said["removed"][0]["ifname"], "eth1");
    assert_eq!(said["removed"].as_array().unwrap().len(), 2);
    // The first DEL gives back the setting of both.
    for verb in ["check", "del"] {
        for (name, ifname) in [("net", "eth0"), ("second", "eth1")] {
            host.cnibox(&[verb, name, "c3", "-i", ifname]).run().silence();
        }
    }
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn an_attachment_outside_of_the_cache_is_collected_with_uncached_only() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let foreign = host.world.container("foreign");
    let ours = host.world.container("ours");
    let mut config = network()["plugins"][0].clone();
    config["name"] = "net".into();
    config["cniVersion"] = "1.1.0".into();
    let result = foreign.add("bridge", &config);
    host.cnibox(&["add", "net", "ours"]).run().success();
    for name in ["net", ""] {
        let args = [&["gc"][..], &[name]].concat();
        let args: Vec<&str> = args.into_iter().filter(|arg| !arg.is_empty()).collect();
        host.cnibox(&args).run().silence();
        foreign.check("bridge", &config, &result);
    }
    host.cnibox(&["gc", "net", "--uncached"]).run().silence();
    assert!(!host.world.path("/var/lib/cni/networks/net/10.1.0.2").exists());
    host.cnibox(&["check", "net", "ours"]).run().silence();
    assert_eq!(ours.addresses("eth0"), ["10.1.0.3/24"]);
}

#[test]
fn a_gc_during_adds_takes_nothing_away() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let containers: Vec<_> = (0..8).map(|n| host.world.container(&format!("c{n}"))).collect();
    let adds = containers.iter().map(|container| host.cnibox(&["add", "net", &container.name]));
    let gcs = || (0..4).map(|_| host.cnibox(&["gc", "net", "--uncached"]));
    for outcome in all_at_once(gcs().chain(adds).chain(gcs())) {
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        assert!(!outcome.stdout.contains("removed"), "{}", outcome.report());
    }
    for container in &containers {
        host.cnibox(&["check", "net", &container.name]).run().silence();
    }
}

#[test]
fn a_failed_del_is_reported_and_the_rest_is_collected() {
    let host = Host::new();
    host.recorder(
        "fails",
        "if [ $CNI_COMMAND = DEL ] && [ $CNI_CONTAINERID = a ]; then exit 1; fi; echo '{}'",
    );
    host.recorder("works", &printing(&json!({"cniVersion": "1.1.0"})));
    host.configure("1.conflist", &list("1.1.0", &["works", "fails"]));
    let container = host.world.container("c1");
    for id in ["a", "b"] {
        host.cnibox(&["add", "net", "c1", "--container-id", id]).run().success();
    }
    container.destroy();
    host.seen();
    let gc = host.cnibox(&["gc"]).run();
    assert_eq!(gc.status, 1, "{}", gc.report());
    assert!(gc.stderr.contains("cannot delete eth0 of container a"), "{}", gc.report());
    assert!(gc.stdout.starts_with("removed eth0 of container b"), "{}", gc.report());
    let seen = host.seen();
    let titles: Vec<_> = seen.iter().map(super::Seen::title).collect();
    assert_eq!(titles, ["fails DEL", "works DEL", "fails DEL", "works DEL"]);
    // There is nothing to go into.
    assert!(seen.iter().all(|call| call.variable("CNI_NETNS").is_none()));
    host.recorder("fails", "");
    let said = host.cnibox(&["gc"]).run().output();
    assert!(said.starts_with("removed eth0 of container a"), "{said}");
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn the_del_of_gc_has_the_parameters_of_the_add() {
    let host = Host::new();
    host.recorder("one", &printing(&json!({"cniVersion": "1.1.0"})));
    let plugin = json!({"type": "one", "capabilities": {"mac": true}});
    let network = with(&list("1.1.0", &[]), json!({"plugins": [plugin]}));
    host.configure("1.conflist", &network);
    let container = host.world.container("c1");
    let add = host.cnibox(&["add", "net", "c1", "--container-id", "a", "-i", "net1"]);
    add.env("CNI_ARGS", "A=b").env("CAP_ARGS", r#"{"mac":"aa"}"#).run().success();
    container.destroy();
    host.seen();
    // The configuration of the cache counts.
    host.configure("1.conflist", &list("1.1.0", &["other"]));
    host.cnibox(&["gc"]).run().output();
    let seen = host.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].title(), "one DEL");
    for (name, value) in [("CNI_CONTAINERID", "a"), ("CNI_IFNAME", "net1"), ("CNI_ARGS", "A=b")] {
        assert_eq!(seen[0].variable(name), Some(value));
    }
    assert_eq!(seen[0].config()["runtimeConfig"], json!({"mac": "aa"}));
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_plugin_that_hangs_in_gc_holds_up_only_its_own_container() {
    let host = Host::new();
    let body = "if [ $CNI_COMMAND = DEL ] && [ $CNI_CONTAINERID = slow ]; then echo >/run/hangs; exec sleep 1000; fi; echo '{}'";
    host.recorder("one", body);
    host.configure("1.conflist", &list("1.1.0", &["one"]));
    let (slow, gone) = (host.world.container("c1"), host.world.container("c2"));
    host.cnibox(&["add", "net", "c1", "--container-id", "slow"]).run().success();
    host.cnibox(&["add", "net", "c2", "--container-id", "gone"]).run().success();
    host.world.container("c3");
    slow.destroy();
    gone.destroy();
    let mut gc = host.cnibox(&["gc", "--timeout", "600"]).start();
    host.world.within(60, "the plugin hangs", || host.world.path("/run/hangs").exists());
    // The network is free meanwhile: this does not wait for the plugin.
    for command in ["add", "check", "del"] {
        host.cnibox(&[command, "net", "c3"]).run().output();
    }
    assert!(gc.is_running(), "the plugin hangs longer than the three calls");
    host.world.host(["pkill", "-x", "sleep"]);
    let gc = gc.finish();
    assert_eq!(gc.status, 1, "{}", gc.report());
    assert!(gc.stderr.contains("cannot delete eth0 of container slow"), "{}", gc.report());
    assert!(gc.stdout.starts_with("removed eth0 of container gone"), "{}", gc.report());
    let gc = host.cnibox(&["gc", "--timeout", "5"]).run();
    assert_eq!(gc.status, 1, "{}", gc.report());
    let why = "was killed: it did not end within 5 s";
    assert!(gc.stderr.contains("cannot delete eth0 of container slow"), "{}", gc.report());
    assert!(gc.stderr.contains(why), "{}", gc.report());
}

/// They are deleted at once, by one pass over the rules and links of the host.
#[test]
fn those_that_ended_together_leave_nothing_and_the_others_stay() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let attach = |number: u32| {
        let id = format!("c{number}");
        let container = host.world.container(&id);
        let (tcp, udp) = (format!("808{number}:80"), format!("808{number}:53/udp"));
        let add = ["add", "net", &id, "--container-id", &id, "-p", &tcp, "-p", &udp];
        host.cnibox(&add).run().success();
        container
    };
    let living = attach(0);
    let before = host.state();
    (1..6).map(attach).for_each(|container| container.unmount());
    let said = host.cnibox(&["gc"]).run().output();
    for number in 1..6 {
        let line = format!("removed eth0 of container c{number} from network net: ");
        assert!(said.contains(&line), "{said}");
    }
    assert_eq!(said.lines().count(), 5, "{said}");
    before.assert_same(&host.state(), "after gc");
    living.ping("10.1.0.1");
    host.cnibox(&["check", "net", "c0", "--container-id", "c0"]).run().silence();
}
