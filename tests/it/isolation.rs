//! A world is private: what a test writes to /etc, /run and /var/lib does not reach the machine, and a world has its own
//! processes.

use std::path::Path;
use std::time::{Duration, Instant};

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

#[test]
fn a_world_shows_its_own_processes_only() {
    let world = World::new();
    assert_eq!(world.read("/proc/1/comm"), "cat\n", "process 1 is the keeper");
    let running = world.tool(&["cat"], None).keeping_stdin_open().start();
    // The shell executes `ls`, so it is one process.
    let shown = world.host(["sh", "-c", "echo $$; exec ls /proc"]);
    let mut shown: Vec<u32> = shown.lines().filter_map(|name| name.parse().ok()).collect();
    let own = shown.remove(0);
    let mut expected = [1, running.pid_in_world(), own];
    expected.sort_unstable();
    shown.sort_unstable();
    assert_eq!(shown, expected);
    assert!(!shown.contains(&std::process::id()), "the test process is not shown");
}

#[test]
fn commands_read_the_namespaces_and_the_root_of_process_1() {
    let world = World::new();
    let container = world.container("c1");
    let net = ["readlink", "/proc/1/ns/net"];
    let of_world = world.host(net);
    assert_eq!(of_world, world.host(["readlink", "/proc/self/ns/net"]));
    assert_eq!(of_world, container.exec(net));
    assert_ne!(of_world, container.exec(["readlink", "/proc/self/ns/net"]));
    let of_machine = std::fs::read_link("/proc/self/ns/net").unwrap();
    assert_ne!(of_world.trim(), of_machine.to_str().unwrap());
    world.write("/run/file", "text");
    assert_eq!(container.exec(["cat", "/proc/1/root/run/file"]), "text");
}

#[test]
fn an_orphan_is_reaped() {
    let world = World::new();
    let pid = world.host(["sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!"]);
    let path = world.path(Path::new("/proc").join(pid.trim()));
    assert!(path.exists(), "{}", path.display());
    world.host(["kill", pid.trim()]);
    world.eventually("the orphan is reaped", || !path.exists());
}

#[test]
fn a_command_in_a_world_ends_with_its_own_exit_status_or_signal() {
    let world = World::new();
    assert_eq!(world.tool(&["sh", "-c", "exit 77"], None).run().status, 77);
    for (name, number) in [("KILL", 9), ("TERM", 15), ("USR1", 10)] {
        let by_itself = format!("kill -{name} $$");
        assert_eq!(world.tool(&["sh", "-c", &by_itself], None).run().status, -number, "{name}");
        let running = world.tool(&["cat"], None).keeping_stdin_open().start();
        world.host(["kill", "-s", name, &running.pid_in_world().to_string()]);
        assert_eq!(running.finish().status, -number, "{name}");
    }
}

#[test]
fn no_process_outlives_its_world() {
    let world = World::new();
    let script = "setsid sleep 1000 & echo started >/run/started; exec cat";
    let running = world.tool(&["sh", "-c", script], None).keeping_stdin_open().start();
    world.eventually("both run", || world.path("/run/started").exists());
    drop(world);
    let ended = Instant::now();
    // The output ends when both have ended.
    assert_eq!(running.finish().status, -9);
    assert!(ended.elapsed() < Duration::from_secs(500));
}
