//! Nothing assumes that a process makes one call.

use std::path::Path;

use crate::world::{EXECUTABLE, World};

/// The program of tests/threads.rs, which cargo builds beside the executable.
fn program() -> String {
    let built = Path::new(EXECUTABLE).with_file_name("examples").join("threads");
    std::env::var("CNIBOX_THREADS").unwrap_or_else(|_| built.to_str().unwrap().into())
}

#[test]
fn many_threads_add_and_delete_in_one_process() {
    let world = World::new();
    world.host(["mkdir", "-p", "/run/netns"]);
    let program = program();
    let said = world.tool(&[&program, "32", "100"], None).run();
    assert!(said.status == 0, "{}", said.report());
    // What stays is what always stays.
    let links = world.links();
    assert!(!links.iter().any(|link| link.starts_with("veth")), "{links:?}");
    let rules = world.host(["nft", "list", "ruleset"]);
    assert!(!rules.contains("many c"), "{rules}");
    let files = world.host(["ls", "/var/lib/cni/networks/many"]);
    assert!(!files.contains("10.9.0.") && !files.contains("fd09"), "{files}");
}
