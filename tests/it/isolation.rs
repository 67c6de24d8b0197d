//! A world is private: what a test writes to /etc, /run and /var/lib does not reach the machine.

use std::path::Path;

use crate::world::World;

#[test]
fn a_file_that_a_world_writes_is_not_on_the_machine() {
    let world = World::new();
    for dir in ["/etc/cni", "/run/cni", "/var/lib/cni"] {
        let path = format!("{dir}/written-by-a-test-{}", std::process::id());
        world.host(["mkdir", "-p", dir]);
        world.host(["touch", &path]);
        assert!(world.path(&path).exists(), "{path}");
        assert!(!Path::new(&path).exists(), "{path} is on the machine");
    }
}

#[test]
fn a_world_reads_the_files_of_the_machine_in_etc_and_cannot_write_them() {
    let world = World::new();
    assert_eq!(world.host(["cat", "/etc/passwd"]), std::fs::read_to_string("/etc/passwd").unwrap());
    let outcome = world.tool(&["touch", "/etc/passwd"], None).run();
    assert!(outcome.status != 0, "{}", outcome.report());
    assert!(outcome.stderr.contains("Read-only file system"), "{}", outcome.report());
}

#[test]
fn a_world_does_not_have_the_cni_configuration_of_the_machine() {
    assert!(!World::new().path("/etc/cni").exists());
}
