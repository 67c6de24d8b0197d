//! The kernel reports the end of a namespace by its number. A daemon that reads the report late must not take it for the end of
//! a later namespace, which has the number by then.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::json;

use super::servers::{Kea, long_lease};
use super::{Daemon, Site, address, macvlan};
use crate::world::{Container, World};

/// Stops one thread of a process until this value is dropped.
struct StoppedThread(Child);

impl StoppedThread {
    /// Stops the thread of the daemon that reads the reports of the kernel.
    fn reader_of(daemon: &Daemon<'_>) -> Self {
        const STOP: &str = r#"
import ctypes, os, sys
PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
tasks = "/proc/%s/task" % sys.argv[1]
thread, = [int(id) for id in os.listdir(tasks) if open("%s/%s/comm" % (tasks, id)).read() == "ends\n"]
for request in PTRACE_SEIZE, PTRACE_INTERRUPT:
    if ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
os.waitpid(thread, WALL)
print("stopped", flush=True)
sys.stdin.read()
"#;
        let pid = daemon.0.pid().to_string();
        let mut tracer = Command::new("python3")
            .args(["-c", STOP, &pid])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(tracer.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "stopped\n");
        Self(tracer)
    }
}

impl Drop for StoppedThread {
    /// The kernel lets the thread go on when its tracer ends.
    fn drop(&mut self) {
        self.0.stdin.take().unwrap().flush().unwrap();
        self.0.wait().unwrap();
    }
}

/// A container whose number the kernel chose before any plugin ran.
fn numbered<'w>(world: &'w World, name: &str) -> (Container<'w>, String) {
    let container = world.container(name);
    let number = container.number();
    (container, number)
}

#[test]
fn a_late_report_does_not_end_the_lease_of_a_later_namespace_with_the_number() {
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", json!({"rebind-timer": 10}));
    let daemon = Daemon::new(&world);
    let (c1, first) = numbered(&world, "c1");
    let ended = address(&c1.add("macvlan", &macvlan()));
    let reader = StoppedThread::reader_of(&daemon);
    c1.destroy();
    world.eventually("the number is free", || {
        !world.host(["ip", "netns", "list-id"]).contains(&format!("nsid {first} "))
    });
    let (c2, second) = numbered(&world, "c2");
    assert_eq!(first, second, "the kernel uses the number again");
    let living = address(&c2.add("macvlan", &macvlan()));
    drop(reader);
    kea.wait_for_release(&ended);
    kea.wait_for_renewals(&living, 2);
    assert_eq!(kea.leased(), std::slice::from_ref(&living), "{}", daemon.log());
    assert_eq!(c2.addresses("eth0"), [format!("{living}/24")]);
    c2.del("macvlan", &macvlan());
    kea.wait_for_release(&living);
}

#[test]
fn a_daemon_that_was_stopped_ends_the_leases_of_ended_namespaces_only() {
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let daemon = Daemon::new(&world);
    let (c1, _) = numbered(&world, "c1");
    let (c2, _) = numbered(&world, "c2");
    let ended = address(&c1.add("macvlan", &macvlan()));
    let living = address(&c2.add("macvlan", &macvlan()));
    daemon.0.signal(Signal::SIGSTOP);
    c1.destroy();
    // One has the path of c1, and some have numbers that were free.
    let later: Vec<_> = ["c1", "c3", "c4"].iter().map(|name| numbered(&world, name)).collect();
    let add = later[1].0.call("macvlan", "ADD", &macvlan()).start();
    daemon.0.signal(Signal::SIGCONT);
    let third = address(&add.finish().success());
    kea.wait_for_release(&ended);
    let mut leased = kea.leased();
    leased.sort();
    let mut expected = [living, third];
    expected.sort();
    assert_eq!(leased, expected, "{}", daemon.log());
}
