//! A slow step of one lease delays no other: strace holds every open(2) of a namespace up.

use std::fs::DirEntry;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::servers::Kea;
use super::service::Service;
use super::{Daemon, LIMIT_S, Site, address, bridge};
use crate::world::{Container, World};

/// A delay of each open(2), in microseconds. The C libraries make it with different system calls.
const DELAY: &str = "inject=/^open(at)?$:delay_enter=600000000";
/// Less than one delay. An ADD takes 1 to 2 s, because it looks for another holder of the address.
const LIMIT: Duration = Duration::from_secs(300);

fn strace<'a>(slow: &'a [String], last: &[&'a str]) -> Vec<&'a str> {
    let paths = slow.iter().flat_map(|path| ["-P", path]);
    let words = ["strace", "-f", "-qq", "-o", "/run/trace", "-e", DELAY].into_iter();
    words.chain(paths).chain(last.iter().copied()).collect()
}

/// ADD, CHECK and DEL of a container.
fn serve(container: &Container<'_>) {
    let begin = Instant::now();
    let result = container.add("bridge", &bridge());
    container.check("bridge", &bridge(), &result);
    container.del("bridge", &bridge());
    assert!(begin.elapsed() < LIMIT, "{}: {:?}", container.name, begin.elapsed());
}

#[test]
fn a_slow_namespace_delays_only_its_own_lease() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({"renew-timer": 2}));
    let daemon = Daemon::new(&world);
    let [c1, c2, c3, c4, c5] = ["c1", "c2", "c3", "c4", "c5"].map(|name| world.container(name));
    let slow = address(&c1.add("bridge", &bridge()));
    let quick = address(&c2.add("bridge", &bridge()));

    let pid = daemon.0.pid_in_world().to_string();
    let paths = [c1.netns(), c4.netns()];
    let mut strace = Service::new(&world, "strace", None, &strace(&paths, &["-p", &pid]));
    strace.start_only();
    let tasks = format!("/proc/{}/task", daemon.0.pid());
    let is_traced = |task: std::io::Result<DirEntry>| {
        let status = std::fs::read_to_string(task.unwrap().path().join("status"));
        status.is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
    };
    let are_traced = || std::fs::read_dir(&tasks).unwrap().all(is_traced);
    world.within(LIMIT_S, "strace has all threads of the daemon", are_traced);
    // A renewal opens the namespace: that of c1 hangs now.
    let renewals = kea.given(&slow);
    kea.wait_for_renewals(&quick, 2);
    assert!(kea.given(&slow) <= renewals + 1, "nothing delays the renewal of c1");
    serve(&c3);
    // The daemon looks at the link of c4 before it has a lease.
    let hanging = c4.call("bridge", "ADD", &bridge()).start();
    serve(&c5);
    kea.wait_for_renewals(&quick, 1);
    let begin = Instant::now();
    c2.del("bridge", &bridge());
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());

    strace.end(Signal::SIGTERM);
    hanging.finish();
    for container in [&c1, &c4] {
        container.del("bridge", &bridge());
    }
    kea.wait_for_release(&slow);
    world.eventually("the daemon keeps no lease", || !site.has_records());
}

#[test]
fn a_slow_namespace_does_not_delay_the_start_of_the_daemon() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({"renew-timer": 2}));
    let mut daemon = Daemon::new(&world);
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    c1.add("bridge", &bridge());
    let result = c2.add("bridge", &bridge());
    let quick = address(&result);

    daemon.kill();
    let paths = [c1.netns()];
    let words = ["/run/plugins/dhcp", "daemon", "-timeout", "10s", "-resendtimeout", "60s"];
    let mut daemon = Daemon(Service::new(&world, "daemon", None, &strace(&paths, &words)));
    let begin = Instant::now();
    daemon.start();
    c2.check("bridge", &bridge(), &result);
    serve(&c3);
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    kea.wait_for_renewals(&quick, 2);
    c2.del("bridge", &bridge());
}
