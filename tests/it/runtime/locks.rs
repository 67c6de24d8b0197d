//! The locks of the runtime: their order, and their deadline.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::{Host, NOT_IGNORED, list, printing};
use crate::world::{Running, all_at_once};

const CONTAINER: &str = "/run/cnibox/locks/container-a";
const NETWORK: &str = "/run/cnibox/locks/network-net";

fn host() -> Host {
    let host = Host::new();
    host.recorder("one", &printing(&json!({"cniVersion": "1.1.0"})));
    host.configure("1.conflist", &list("1.1.0", &["one"]));
    host.world.container("c1");
    host.cnibox(&["add", "net", "c1", "--container-id", "a"]).run().success();
    host.seen();
    host
}

fn open(host: &Host, path: &str) -> File {
    host.world.write(path, "");
    File::open(host.world.path(path)).unwrap()
}

#[test]
fn after_30_s_the_holder_is_named_and_nothing_is_done() {
    let host = host();
    // As ADD, DEL and CHECK hold both.
    let script = "echo >/run/held; exec cat";
    let locks = ["flock", "-F", CONTAINER, "flock", "-F", "-s", NETWORK, "sh", "-c", script];
    let holder = host.world.tool(&locks, None).keeping_stdin_open().start();
    host.world.eventually("both are locked", || host.world.path("/run/held").exists());
    let id = ["--container-id", "a"];
    let add = host.cnibox(&[&["add", "net", "c1", "-i", "eth1"], &id[..]].concat());
    let del = host.cnibox(&[&["del", "net", "c1"], &id[..]].concat());
    let gc = host.cnibox(&["gc", "net", "--uncached"]);
    let holder = format!("process {} (", holder.pid_in_world());
    // Only a debug build reads the variable. The error names the usual limit.
    let calls = [add, del, gc].map(|call| call.env("CNIBOX_LIMIT_LOCK", "2"));
    let outcomes = all_at_once(calls);
    for (outcome, path) in outcomes.iter().zip([CONTAINER, CONTAINER, NETWORK]) {
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        let said = format!("cannot lock {path} within 30 s: ");
        assert!(outcome.stderr.contains(&said), "{}", outcome.report());
        // ADD and DEL hold the lock of the network, too.
        let names_us = path == NETWORK || outcome.stderr.contains(&holder);
        assert!(names_us, "{}", outcome.report());
    }
    assert_eq!(host.titles(), [""; 0]);
}

/// Returns when the process waits for the lock of the network.
fn waits(host: &Host, running: &Running) {
    let open = || fs::read_dir(format!("/proc/{}/fd", running.pid())).into_iter().flatten();
    let is_lock = |path: PathBuf| fs::read_link(path).is_ok_and(|to| to == Path::new(NETWORK));
    host.world
        .eventually("it waits for the lock", || open().flatten().any(|file| is_lock(file.path())));
    assert_eq!(host.titles(), [""; 0]);
}

#[test]
fn a_signal_ends_the_wait_for_a_lock() {
    let host = host();
    let network = open(&host, NETWORK);
    network.lock().unwrap();
    let run = ["run", "-n", "net", "--name", "web", "--", "true"];
    for words in [&run[..], &["gc", "net", "--uncached"]] {
        let running = host.cnibox(words).under(&NOT_IGNORED).start();
        waits(&host, &running);
        kill(running.pid(), Signal::SIGTERM).unwrap();
        let outcome = running.finish();
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        assert!(outcome.stderr.ends_with(": interrupted\n"), "{}", outcome.report());
    }
    assert!(!host.world.path("/run/netns/web").exists());
}

#[test]
fn gc_and_add_wait_for_each_other() {
    let host = host();
    let network = open(&host, NETWORK);
    network.lock_shared().unwrap();
    let gc = host.cnibox(&["gc", "net", "--uncached"]).start();
    waits(&host, &gc);
    network.unlock().unwrap();
    gc.finish().silence();
    assert_eq!(host.titles(), ["one GC"]);
    let network = open(&host, NETWORK);
    network.lock().unwrap();
    let add = host.cnibox(&["add", "net", "c1", "--container-id", "b"]).start();
    waits(&host, &add);
    network.unlock().unwrap();
    add.finish().success();
    assert_eq!(host.titles(), ["one ADD"]);
}

/// Another ADD can be removing the rules of the attachment. Without the file of the lock, an ADD of this name would not wait for it.
#[test]
fn a_del_waits_for_the_lock_of_the_record() {
    let host = host();
    let record = "/var/lib/cni/attachments/net+a+eth0";
    let locks = ["flock", "-F", record, "sh", "-c", "echo >/run/held; exec cat"];
    let holder = host.world.tool(&locks, None).keeping_stdin_open().start();
    host.world.eventually("it is locked", || host.world.path("/run/held").exists());
    let del = host.cnibox(&["del", "net", "c1", "--container-id", "a"]);
    let refused = del.env("CNIBOX_LIMIT_LOCK", "2").run();
    assert_eq!(refused.status, 1, "{}", refused.report());
    let said = format!("cannot lock {record}: another operation has it");
    assert!(refused.stderr.contains(&said), "{}", refused.report());
    assert_eq!(host.titles(), [""; 0]);
    assert!(host.world.path(record).exists());
    drop(holder);
    host.cnibox(&["del", "net", "c1", "--container-id", "a"]).run().silence();
    assert!(!host.world.path(record).exists());
}

/// While the ADD waits for the lock, the ADD of a later container replaces the record that was judged.
#[test]
fn an_add_that_waited_for_a_lock_deletes_nothing_that_came_meanwhile() {
    let host = host();
    host.world.host(["sh", "-c", "umount /run/netns/c1 && rm /run/netns/c1"]);
    let c1 = host.world.container("c1");
    let record = "/var/lib/cni/attachments/net+a+eth0";
    let locks = ["flock", "-F", record, "sh", "-c", "echo >/run/held; exec cat"];
    let holder = host.world.tool(&locks, None).keeping_stdin_open().start();
    host.world.eventually("it is locked", || host.world.path("/run/held").exists());
    let add = host.cnibox(&["add", "net", &c1.netns(), "--container-id", "a"]).start();
    let open = || fs::read_dir(format!("/proc/{}/fd", add.pid())).into_iter().flatten().flatten();
    let is_record = |path: PathBuf| fs::read_link(path).is_ok_and(|to| to == Path::new(record));
    host.world.eventually("it waits", || open().any(|file| is_record(file.path())));
    let other = host.world.read(record).replace("\"generation\":\"", "\"generation\":\"f");
    host.world.write("/var/lib/cni/other", other.as_str());
    host.world.host(["mv", "/var/lib/cni/other", record]);
    drop(holder);
    let outcome = add.finish();
    assert!(outcome.stderr.contains("another ADD has just attached it"), "{}", outcome.report());
    assert_eq!(host.world.read(record), other);
    assert_eq!(host.titles(), [""; 0]);
}
