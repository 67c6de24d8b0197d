//! Nothing assumes that a process makes one call.

use std::path::Path;

use crate::world::{World, executable, is_full};

/// The program of tests/threads.rs, built as the executable under test is: by `cargo test` in the directory `examples`
/// beside it, by `packaging/release --threads` beside it.
fn program() -> String {
    let beside = Path::new(executable()).with_file_name("threads");
    let of_cargo = Path::new(executable()).with_file_name("examples").join("threads");
    let program = if of_cargo.exists() { of_cargo } else { beside };
    assert!(program.exists(), "{}: cargo build --example threads", program.display());
    program.to_str().unwrap().into()
}

#[test]
fn many_threads_add_and_delete_in_one_process() {
    let world = World::new();
    world.host(["mkdir", "-p", "/run/netns"]);
    let program = program();
    let [threads, rounds] = if is_full() { ["32", "100"] } else { ["8", "40"] };
    let outcome = world.tool(&[&program, threads, rounds], None).run();
    assert!(outcome.status == 0, "{}", outcome.report());
    // Only the shared rules stay.
    let links = world.links();
    assert!(!links.iter().any(|link| link.starts_with("veth")), "{links:?}");
    let rules = world.host(["nft", "list", "ruleset"]);
    assert!(!rules.contains("many c"), "{rules}");
    let files = world.host(["ls", "/var/lib/cni/networks/many"]);
    assert!(!files.contains("10.9.0.") && !files.contains("fd09"), "{files}");
}

#[test]
fn a_refused_change_of_one_plugin_does_not_stop_another() {
    let world = World::new();
    let program = program();
    let outcome = world.tool(&[&program, "transaction"], None).run();
    assert!(outcome.status == 0, "{}", outcome.report());
}

/// The list with a bridge fewer times, since the kernel needs 50 ms to delete a link.
#[test]
fn the_runtime_adds_and_deletes_in_one_process() {
    let [with_links, without] = if is_full() { ["300", "10000"] } else { ["40", "1000"] };
    for words in [["runtime", with_links], ["addresses", without]] {
        let world = World::new();
        let outcome = world.tool(&[&program(), words[0], words[1]], None).run();
        assert!(outcome.status == 0, "{}", outcome.report());
    }
}
