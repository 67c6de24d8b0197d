//! Plugins that take too long, and operations that are interrupted.

use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::{Host, NOT_IGNORED, list};
use crate::world::Outcome;

/// A plugin that never ends, with what it started, when its input says so; the first and the last of the list do nothing.
fn host() -> Host {
    let host = Host::new();
    host.recorder("first", "echo '{}'");
    host.recorder("last", "echo '{}'");
    let body = "if [ $CNI_COMMAND = $TEST_HANGS ]; then echo waiting >&2; sleep 1000 & touch /run/hangs; wait; fi; echo '{}'";
    host.recorder("hangs", body);
    host.configure("1.conflist", &list("1.1.0", &["first", "hangs", "last"]));
    host.world.container("c1");
    host
}

const UNDONE: [&str; 5] = ["first ADD", "hangs ADD", "last DEL", "hangs DEL", "first DEL"];

/// How many `sleep` there are in the world.
fn sleepers(host: &Host) -> usize {
    host.world
        .tool(&["pgrep", "-x", "--runstates", "D,R,S,T", "sleep"], None)
        .run()
        .stdout
        .lines()
        .count()
}

#[test]
fn a_plugin_that_takes_too_long_is_killed_and_the_list_is_undone() {
    let host = host();
    let add = host.cnibox(&["add", "net", "c1", "--timeout", "5"]).env("TEST_HANGS", "ADD");
    let outcome = add.run();
    assert_eq!(outcome.status, 1);
    for text in ["waiting\n", "/run/own/hangs was killed: it did not end within 5 s"] {
        assert!(outcome.stderr.contains(text), "{text}: {}", outcome.report());
    }
    assert_eq!((host.titles(), host.kept()), (UNDONE.map(str::to_owned).into(), vec![]));
    assert_eq!(sleepers(&host), 0, "what it started is killed, too");
}

#[test]
fn an_ipam_plugin_that_takes_too_long_is_killed_too() {
    let host = host();
    let bridge = json!({"type": "bridge", "bridge": "cni0", "ipam": {"type": "hangs"}});
    let network = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [bridge]});
    host.configure("1.conflist", &network);
    let add = host.cnibox(&["add", "net", "c1", "--timeout", "5"]).env("TEST_HANGS", "ADD");
    let outcome = add.run();
    assert_eq!(outcome.status, 1);
    assert!(outcome.stderr.contains("did not end within 5 s"), "{}", outcome.report());
    assert_eq!(host.titles()[..2], ["hangs ADD", "hangs DEL"]);
    assert_eq!((host.kept(), sleepers(&host)), (vec![], 0));
}

/// Like a plugin that starts a daemon without closing its stdout.
#[test]
fn a_plugin_that_leaves_a_process_on_its_stdout_has_ended_all_the_same() {
    let host = Host::new();
    let left = "sleep 1000 & echo $! >> /run/left";
    let address = r#"{"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.5/24"}]}"#;
    host.recorder("ipam", &format!("{left}; [ $CNI_COMMAND != ADD ] || echo '{address}'"));
    host.recorder("last", &format!("{left}; [ $CNI_COMMAND != ADD ] || echo '{address}'"));
    let bridge = json!({"type": "bridge", "bridge": "cni0", "ipam": {"type": "ipam"}});
    let plugins = [bridge, json!({"type": "last"})];
    host.configure(
        "1.conflist",
        &json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins}),
    );
    host.world.container("c1");
    for arguments in
        [&["add", "net", "c1", "--timeout", "60"][..], &["del", "net", "c1", "--timeout", "60"]]
    {
        let outcome = host.cnibox(arguments).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    assert_eq!(host.titles(), ["ipam ADD", "last ADD", "last DEL", "ipam DEL"]);
    assert_eq!((host.kept(), sleepers(&host)), (vec![], 4), "they run on");
    host.world.host(["sh", "-c", "kill $(cat /run/left)"]);
}

#[test]
fn a_plugin_does_not_outlive_a_runtime_that_is_killed() {
    let host = host();
    host.recorder(
        "hangs",
        "if [ $CNI_COMMAND = ADD ]; then touch /run/hangs; exec sleep 1000; fi; echo '{}'",
    );
    let running = host.cnibox(&["add", "net", "c1"]).start();
    let hangs = host.world.path("/run/hangs");
    host.world.eventually("the plugin hangs", || hangs.exists());
    kill(running.pid(), Signal::SIGKILL).unwrap();
    assert_eq!(running.finish().status, -9);
    host.world.eventually("the plugin ends", || sleepers(&host) == 0);
    // The container lives, so the caller decides.
    host.cnibox(&["gc"]).run().silence();
    host.cnibox(&["del", "net", "c1"]).run().silence();
    assert_eq!((host.titles(), host.kept()), (UNDONE.map(str::to_owned).into(), vec![]));
}

/// Sends a signal when the plugin hangs.
fn interrupted(host: &Host, verb: &str, signal: Signal) -> Outcome {
    let call = host.cnibox(&[verb, "net", "c1"]).env("TEST_HANGS", &verb.to_uppercase());
    let running = call.under(&NOT_IGNORED).start();
    let hangs = host.world.path("/run/hangs");
    host.world.eventually("the plugin hangs", || hangs.exists());
    kill(running.pid(), signal).unwrap();
    let outcome = running.finish();
    std::fs::remove_file(hangs).unwrap();
    outcome
}

#[test]
fn an_interrupted_add_is_undone() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let host = host();
        let outcome = interrupted(&host, "add", signal);
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        assert!(outcome.stderr.contains("killed: interrupted"), "{}", outcome.report());
        assert_eq!((host.titles(), host.kept()), (UNDONE.map(str::to_owned).into(), vec![]));
        assert_eq!(sleepers(&host), 0);
    }
}

#[test]
fn an_ipam_plugin_of_an_interrupted_add_gets_its_del() {
    let host = host();
    let bridge = json!({"type": "bridge", "bridge": "cni0", "ipam": {"type": "hangs"}});
    let network = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [bridge]});
    host.configure("1.conflist", &network);
    let outcome = interrupted(&host, "add", Signal::SIGTERM);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert!(!outcome.stderr.contains("cannot undo"), "{}", outcome.report());
    // The second DEL is that of the whole list.
    assert_eq!(host.titles(), ["hangs ADD", "hangs DEL", "hangs DEL"]);
    assert_eq!((host.kept(), sleepers(&host)), (vec![], 0));
}

#[test]
fn an_interrupted_del_keeps_the_entry_and_can_be_repeated() {
    let host = host();
    host.cnibox(&["add", "net", "c1"]).env("TEST_HANGS", "-").run().success();
    host.seen();
    let outcome = interrupted(&host, "del", Signal::SIGTERM);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert_eq!(host.titles(), ["last DEL", "hangs DEL"]);
    host.cnibox(&["del", "net", "c1"]).env("TEST_HANGS", "-").run().silence();
    assert_eq!(host.titles(), ["last DEL", "hangs DEL", "first DEL"]);
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn add_is_undone_if_its_result_cannot_be_written() {
    let host = host();
    let script = "exec /run/bin/cnibox add net c1 > /dev/full";
    let add = host.world.tool(&["sh", "-c", script], None).env("TEST_HANGS", "-");
    let add = add.env("NETCONFPATH", super::CONFIGURATIONS).env("CNI_PATH", super::OWN);
    let outcome = add.run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    let all = ["first ADD", "hangs ADD", "last ADD", "last DEL", "hangs DEL", "first DEL"];
    assert_eq!((host.titles(), host.kept()), (all.map(str::to_owned).into(), vec![]));
}

#[test]
fn a_plugin_does_not_have_to_read_its_configuration() {
    let host = host();
    // Longer than what a pipe holds, so that the write ends only with the plugin.
    let long = "x".repeat(200_000);
    let plugin = json!({"type": "deaf", "keyA": long});
    host.configure(
        "1.conflist",
        &json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]}),
    );
    let answer = r#"{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}"#;
    let script = format!("#!/bin/sh\nexec <&-\nsleep 0.2\necho '{answer}'\n");
    host.world.tool(&["tee", "/run/own/deaf"], None).stdin(script).run().output();
    host.world.host(["chmod", "755", "/run/own/deaf"]);
    for command in
        [&["status", "net"][..], &["gc", "net"], &["add", "net", "c1"], &["del", "net", "c1"]]
    {
        let outcome = host.cnibox(command).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
}
