//! A runtime that is killed at any point leaves what the next `cnibox gc` removes; an ADD to a container that lives, what the next
//! ADD or DEL removes.

use serde_json::json;

use super::run::used_host;
use super::{Host, network};
use crate::world::{State, at_every_change, at_every_system_call};

fn host() -> (Host, State) {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.world.container("c1");
    let (add, del) =
        (host.cnibox(&["add", "net", "c1", "-p", "8080:80"]), host.cnibox(&["del", "net", "c1"]));
    add.run().success();
    del.run().silence();
    let before = host.state();
    (host, before)
}

/// The attachment is whole, or gone with all that it had.
fn assert_whole_or_nothing(host: &Host, before: &State, when: &str) -> bool {
    host.cnibox(&["gc"]).run().output();
    let kept = host.kept();
    let is_interrupted = host.has_interrupted();
    let is_whole = !kept.is_empty() && !is_interrupted;
    if is_whole {
        assert_eq!(kept.len(), 3, "{when}: {kept:?}");
        host.cnibox(&["check", "net", "c1"]).run().silence();
    }
    host.cnibox(&["del", "net", "c1", "--ignore"]).run().silence();
    assert_eq!(host.kept(), [""; 0], "{when}");
    before.assert_same(&host.state(), when);
    is_whole
}

#[test]
fn after_an_add_that_was_killed_del_leaves_nothing() {
    let (host, before) = host();
    let (whole, removed) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    at_every_system_call(
        &host.world,
        || host.cnibox(&["add", "net", "c1", "-p", "8080:80"]),
        || {},
        |when| {
            let is_whole = assert_whole_or_nothing(&host, &before, when);
            let count = if is_whole { &whole } else { &removed };
            count.set(count.get() + 1);
        },
    );
    // Whole are the one that was not killed, and those that were when all was done. Their number depends on the waits.
    assert!(whole.get() > 0 && removed.get() > 30, "{} {}", whole.get(), removed.get());
}

#[test]
fn after_a_del_that_was_killed_gc_leaves_nothing() {
    let (host, before) = host();
    at_every_system_call(
        &host.world,
        || host.cnibox(&["del", "net", "c1"]),
        || {
            host.cnibox(&["add", "net", "c1", "-p", "8080:80"]).run().success();
        },
        |when| {
            assert_whole_or_nothing(&host, &before, when);
        },
    );
}

/// Leaves a namespace with an attachment of an interrupted ADD: `add --create` is killed before its last plugin ends.
pub fn leave_a_namespace(host: &Host) {
    let add = host.cnibox(&["add", "net", "web", "--create", "-p", "8080:80"]);
    let inject = "inject=rename:signal=KILL:when=2";
    add.under(&["strace", "-qq", "-o", "/run/trace", "-e", inject]).run();
    assert!(host.world.path("/run/netns/web").exists());
    assert!(host.has_interrupted());
}

#[test]
fn after_a_gc_that_was_killed_the_next_one_leaves_nothing() {
    let (host, before) = host();
    let killed = at_every_change(
        &host.world,
        || host.cnibox(&["gc"]),
        || leave_a_namespace(&host),
        |when| {
            host.gc_until_nothing_is_kept();
            assert!(!host.world.path("/run/netns/web").exists(), "{when}");
            host.world
                .eventually("nothing is left", || before.difference(&host.state()).is_empty());
            before.assert_same(&host.state(), when);
        },
    );
    assert!(killed > 10, "{killed}");
}

#[test]
fn after_an_add_that_was_killed_gc_leaves_nothing_of_a_container_that_ended() {
    let (host, before) = host();
    let mut killed = 0;
    for number in (1..40).step_by(3) {
        let inject = format!("inject=sendto:signal=KILL:when={number}");
        let add = host.cnibox(&["add", "net", "c1", "-p", "8080:80"]);
        add.under(&["strace", "-qq", "-o", "/run/trace", "-e", &inject]).run();
        killed += u32::from(host.has_interrupted());
        host.cnibox(&["gc"]).run().silence();
        host.world.host(["umount", "/run/netns/c1"]);
        host.gc_until_nothing_is_kept();
        host.world.container("c1");
        host.world.eventually("nothing is left", || before.difference(&host.state()).is_empty());
    }
    assert!(killed > 3, "{killed}");
}

#[test]
fn an_add_that_was_killed_can_be_repeated_at_once() {
    let (host, before) = host();
    let add = || host.cnibox(&["add", "net", "c1", "-p", "8080:80"]);
    for point in
        ["sendmsg:signal=KILL:when=6", "rename:signal=KILL:when=2", "write:signal=KILL:when=4"]
    {
        let inject = format!("inject={point}");
        add().under(&["strace", "-qq", "-o", "/run/trace", "-e", &inject]).run();
        if host.has_interrupted() {
            add().run().success();
        }
        host.cnibox(&["del", "net", "c1"]).run().silence();
        before.assert_same(&host.state(), point);
    }
}

#[test]
fn after_a_run_that_was_killed_gc_leaves_nothing() {
    let (host, before) = used_host();
    for name in [&[][..], &["--name", "web"]] {
        let args = [&["run", "-n", "net", "-p", "8080:80"], name, &["--", "true"]].concat();
        let run = || host.cnibox(&args);
        run().run().output();
        let killed = at_every_change(
            &host.world,
            run,
            || {},
            |when| {
                host.gc_until_nothing_is_kept();
                assert_eq!(host.world.host(["ls", "/run/netns"]), "", "{when}");
                // The kernel removes the links of a namespace after the namespace.
                host.world
                    .eventually("nothing is left", || before.difference(&host.state()).is_empty());
                before.assert_same(&host.state(), when);
            },
        );
        assert!(killed > 25, "{killed}");
    }
}

#[test]
fn after_an_add_with_create_that_was_killed_gc_leaves_nothing() {
    let (host, before) = host();
    let del = || host.cnibox(&["del", "net", "web", "--delete"]).run().silence();
    let killed = at_every_change(
        &host.world,
        || host.cnibox(&["add", "net", "web", "--create", "-p", "8080:80"]),
        || {},
        |when| {
            host.cnibox(&["gc"]).run().output();
            // The attachment is complete, and so the namespace stays.
            if host.world.path("/run/netns/web").exists() {
                host.cnibox(&["check", "net", "web"]).run().silence();
                del();
                host.cnibox(&["gc"]).run().silence();
            }
            host.gc_until_nothing_is_kept();
            assert!(!host.world.path("/run/netns/web").exists(), "{when}");
            // The kernel removes the links of a namespace after the namespace.
            host.world
                .eventually("nothing is left", || before.difference(&host.state()).is_empty());
            before.assert_same(&host.state(), when);
        },
    );
    assert!(killed > 20, "{killed}");
}

#[test]
fn after_a_hook_that_was_killed_gc_leaves_nothing() {
    let (host, before) = host();
    let holder = host.world.tool(&["cat"], Some("/run/netns/c1")).keeping_stdin_open().start();
    let state = |status: &str| {
        let annotations = json!({"cnibox.networks": "net", "cnibox.ports": "8080:80"});
        let pid = holder.pid_in_world();
        json!({"id": "c1", "status": status, "pid": pid, "annotations": annotations}).to_string()
    };
    let hook = |status: &str| host.cnibox(&["oci-hook"]).stdin(state(status));
    for (status, prepare) in [("created", false), ("stopped", true)] {
        let killed = at_every_change(
            &host.world,
            || hook(status),
            || {
                if prepare {
                    hook("created").run().silence();
                }
            },
            |when| {
                host.cnibox(&["gc"]).run().output();
                hook("stopped").run().silence();
                assert_eq!(host.kept(), [""; 0], "{when}");
                before.assert_same(&host.state(), when);
            },
        );
        assert!(killed > 10, "{killed}");
    }
}
