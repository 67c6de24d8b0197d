//! GC of several pairs: the kernel deletes them with one request, as one group, and no other link is in that group.

use std::cell::Cell;

use serde_json::{Value, json};

use crate::world::{Container, Outcome, State, World, all_at_once, at_every_change, with};

const PLUGINS: [&str; 2] = ["bridge", "veth"];

/// strace knows the protocol of a socket, and so the names of its messages, only after the first message.
const DELETE_LINK: [&str; 2] = ["type=RTM_DELLINK", "type=0x11 "];

fn config(plugin: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": plugin, "ipMasq": true,
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}})
}

fn gc(plugin: &str, keep: &[&str]) -> Value {
    let keep: Vec<Value> =
        keep.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
    with(&config(plugin), json!({"cni.dev/valid-attachments": keep}))
}

/// Containers `c1`, `c2`, …
fn containers(world: &World, count: u32) -> Vec<Container<'_>> {
    let containers: Vec<_> =
        (1..=count).map(|number| world.container(&format!("c{number}"))).collect();
    for container in &containers {
        // The kernel keeps 127.0.0.1 from now on.
        for state in ["up", "down"] {
            container.exec(["ip", "link", "set", "lo", state]);
        }
    }
    containers
}

/// The host ends of pairs.
fn pairs(world: &World) -> usize {
    world.links().iter().filter(|link| link.starts_with("veth")).count()
}

fn state(world: &World, containers: &[Container<'_>]) -> State {
    let containers: Vec<_> = containers.iter().collect();
    world.state_with(&containers).apart_from("cni0", "net")
}

/// How often the GC asks the kernel to delete something.
fn deletions(world: &World, plugin: &str, keep: &[&str]) -> usize {
    deletions_under(&[], world, plugin, keep)
}

/// The same under a program that runs programs.
fn deletions_under(program: &[&str], world: &World, plugin: &str, keep: &[&str]) -> usize {
    let strace = ["strace", "-qq", "-o", "/run/trace", "-e", "trace=sendto,sendmsg"];
    let words = [program, &strace].concat();
    world.call(plugin, "GC", &gc(plugin, keep)).under(&words).run().silence();
    let trace = world.read("/run/trace");
    trace.lines().filter(|line| DELETE_LINK.iter().any(|text| line.contains(text))).count()
}

#[test]
fn several_pairs_are_deleted_with_one_request_and_nothing_else_is() {
    for plugin in PLUGINS {
        let world = World::new();
        let containers = containers(&world, 9);
        containers.iter().for_each(|container| drop(container.add(plugin, &config(plugin))));
        let other = world.container("other");
        let subnet = json!({"type": "host-local", "subnet": "10.2.0.0/24"});
        other.add(plugin, &with(&config(plugin), json!({"name": "net2", "ipam": subnet})));
        let links = "ip link add one type veth peer name two; ip link set one group 1
            ip link set two group 2147483647";
        world.host(["sh", "-ec", links]);
        assert_eq!(pairs(&world), 10);

        assert_eq!(deletions(&world, plugin, &["c1", "c2", "c3", "c4"]), 1, "{plugin}, five");
        assert_eq!(pairs(&world), 5);
        assert_eq!(deletions(&world, plugin, &["c1", "c2"]), 1, "{plugin}, two");
        assert_eq!(deletions(&world, plugin, &["c1"]), 1, "{plugin}, one");
        assert_eq!(deletions(&world, plugin, &["c1"]), 0, "{plugin}, none");
        assert_eq!(pairs(&world), 2);
        for name in ["one", "two"] {
            world.host(["ip", "link", "show", "dev", name]);
        }
        containers[0].exec(["ip", "link", "show", "dev", "eth0"]);
        other.exec(["ip", "link", "show", "dev", "eth0"]);
        let groups = world.host(["ip", "-o", "link", "show", "group", "default"]);
        assert_eq!(groups.lines().filter(|line| line.contains(": veth")).count(), 2, "{groups}");
    }
}

#[test]
fn pairs_that_a_killed_gc_left_in_a_group_are_found() {
    for plugin in PLUGINS {
        let world = World::new();
        let containers = containers(&world, 5);
        containers.iter().for_each(|container| drop(container.add(plugin, &config(plugin))));
        let script = "for link in $(ip -o link | sed -n 's/^[0-9]*: \\(veth[^@]*\\)@.*/\\1/p')
            do ip link set $link group 77; done";
        world.host(["sh", "-ec", script]);
        containers[0].del(plugin, &config(plugin));
        assert_eq!(pairs(&world), 4);
        assert_eq!(deletions(&world, plugin, &["c2"]), 1);
        assert_eq!(pairs(&world), 1);
    }
}

#[test]
fn gcs_at_once_delete_their_own_pairs_only() {
    let world = World::new();
    let containers = containers(&world, 8);
    let of_network = |number: usize, config: Value| {
        with(&config, json!({"name": format!("net{number}"), "bridge": format!("cni{number}")}))
    };
    for (number, container) in containers.iter().enumerate() {
        container.add("bridge", &of_network(number % 2, config("bridge")));
    }
    let keep = [["c1"], ["c2"]];
    let calls = [0, 1]
        .map(|number| world.call("bridge", "GC", &of_network(number, gc("bridge", &keep[number]))));
    all_at_once(calls).into_iter().for_each(Outcome::silence);
    assert_eq!(pairs(&world), 2);
    containers[..2]
        .iter()
        .for_each(|container| drop(container.exec(["ip", "link", "show", "dev", "eth0"])));
}

#[test]
fn without_the_lock_of_the_namespace_pairs_are_deleted_one_by_one() {
    let world = World::new();
    let containers = containers(&world, 3);
    containers.iter().for_each(|container| drop(container.add("veth", &config("veth"))));
    let lock = ["flock", "-s", "/proc/self/ns/net"];
    assert_eq!(deletions_under(&lock, &world, "veth", &[]), 3);
    assert_eq!(pairs(&world), 0);
}

/// Needs a debug build.
mod faults {
    use super::{PLUGINS, config, containers, gc, state};
    use crate::faults::{Effect, fault_of_error, fault_of_state, for_every_fault};
    use crate::world::World;

    #[test]
    fn after_a_gc_of_several_that_fails_a_del_cleans_up() {
        let mut problems = Vec::new();
        for plugin in PLUGINS {
            let world = World::new();
            let containers = containers(&world, 3);
            let each = |verb: &str| {
                for container in &containers {
                    let outcome = container.call(plugin, verb, &config(plugin)).run();
                    assert_eq!(outcome.status, 0, "{}", outcome.report());
                }
            };
            each("ADD");
            each("DEL");
            let before = state(&world, &containers);
            for fault in ["CNIBOX_FAIL_KERNEL", "CNIBOX_FAIL_FILE"] {
                for_every_fault(|number| {
                    each("ADD");
                    let outcome = world
                        .call(plugin, "GC", &gc(plugin, &[]))
                        .env(fault, &number.to_string())
                        .run();
                    let effect = Effect::on(&outcome);
                    let mut found = Vec::new();
                    if effect == Effect::Failure {
                        found.extend(fault_of_error(outcome));
                    } else {
                        outcome.silence();
                        found.extend(fault_of_state(
                            &before,
                            &state(&world, &containers),
                            "after GC",
                        ));
                    }
                    each("DEL");
                    found.extend(fault_of_state(&before, &state(&world, &containers), "after DEL"));
                    let name = |problem| format!("{plugin} {fault}={number}: {problem}");
                    problems.extend(found.into_iter().map(name));
                    effect
                });
            }
        }
        assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    }
}

#[test]
fn a_gc_of_several_that_is_killed_is_finished_by_the_next() {
    for plugin in PLUGINS {
        let world = World::new();
        let containers = containers(&world, 3);
        let add =
            || containers.iter().for_each(|container| drop(container.add(plugin, &config(plugin))));
        let call = || world.call(plugin, "GC", &gc(plugin, &[]));
        add();
        call().run().silence();
        let before = state(&world, &containers);
        let in_group = Cell::new(false);
        let clean_up = |point: &str| {
            let groups = world.host(["ip", "-o", "link"]);
            let is_in_group =
                |line: &str| line.contains(": veth") && !line.contains("group default");
            in_group.set(in_group.get() || groups.lines().any(is_in_group));
            call().run().silence();
            before.assert_same(&state(&world, &containers), &format!("{point}, then GC"));
        };
        let killed = at_every_change(&world, call, add, clean_up);
        assert!(killed > 3, "{killed}");
        assert!(in_group.get(), "a GC is killed between the group and its deletion");
    }
}
