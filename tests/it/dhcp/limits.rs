//! Dead servers, full pools, a daemon that is down, many containers.

use std::time::{Duration, Instant};

use serde_json::json;

use super::capture::{Capture, kinds};
use super::servers::{Kea, long_lease};
use super::{Daemon, LIMIT_S, Site, address, asking, at_once, bridge, some_at_once};
use crate::world::{World, all_at_once, executable, with};

#[test]
fn a_dead_server_is_an_error_within_the_limits() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let capture = Capture::start(&site.outside);
    let limits = ["-timeout=500ms", "-resendmax=1s", "-resendtimeout=3s"];
    let _daemon = Daemon::with(&world, &limits);
    let before = world.state().apart_from("br0", "net");
    let c1 = world.container("c1");
    let begin = Instant::now();
    let error = c1.call("bridge", "ADD", &bridge()).run().error();
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
    let said = format!("{}: {}", error.msg, error.details);
    for word in ["net", "eth0", "no more tries: no server answered", "DISCOVER"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
    before.assert_same(&world.state().apart_from("br0", "net"), "after the failed ADD");
    assert!(!site.has_records());
    let packets = capture.finish();
    let discovers = kinds(&packets).len();
    // The time-outs allow three. A thread that the machine delays sends fewer, never more.
    assert!((2..=8).contains(&discovers), "{packets:?}");
    assert!(kinds(&packets).iter().all(|kind| *kind == "DISCOVER"));
}

#[test]
fn an_add_is_answered_when_another_one_replaces_its_link() {
    let world = World::new();
    let _daemon = Daemon::with(&world, &["-timeout=2s", "-resendmax=4s", "-resendtimeout=600s"]);
    let c1 = world.container("c1");
    c1.exec(["sh", "-e", "-c", "ip link add eth0 type veth peer name other; ip link set other up"]);
    let first = c1.call("dhcp", "ADD", &bridge()).start();
    let leases = || world.host(["/run/bin/cnibox", "dhcp", "leases"]);
    world.within(LIMIT_S, "the client searches", || leases().contains("searching"));
    c1.exec(["ip", "link", "set", "eth0", "address", "02:00:00:00:00:99"]);
    let second = c1.call("dhcp", "ADD", &bridge()).start();
    let error = first.finish().error();
    assert!(error.msg.contains("the interface was replaced by another link"), "{error:?}");
    c1.del("dhcp", &bridge());
    second.finish().error();
}

#[test]
fn a_full_pool_is_an_error_until_an_address_is_given_back() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let only = json!({"pools": [{"pool": "10.1.0.10 - 10.1.0.10"}]});
    let kea = Kea::start(&site.outside, "sw", only);
    let daemon = Daemon::new(&world);
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    c1.add("bridge", &bridge());
    drop(daemon);
    let limits = ["-timeout=500ms", "-resendmax=1s", "-resendtimeout=3s"];
    let daemon = Daemon::with(&world, &limits);
    let error = c2.call("bridge", "ADD", &bridge()).run().error();
    let said = format!("{}: {}", error.msg, error.details);
    assert!(said.contains("net") && said.contains("eth0"), "{said}");
    drop(daemon);
    let _daemon = Daemon::new(&world);
    c1.del("bridge", &bridge());
    kea.wait_for_release("10.1.0.10");
    assert_eq!(address(&c2.add("bridge", &bridge())), "10.1.0.10");
}

#[test]
fn del_does_not_wait_for_a_dead_server_and_check_takes_no_lease() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let mut kea = Kea::start(&site.outside, "sw", long_lease());
    let _daemon = Daemon::new(&world);
    let containers = ["c1", "c2", "c3"].map(|name| world.container(name));
    let [result, ..] = containers.each_ref().map(|c| c.add("bridge", &bridge()));
    kea.kill();
    let c1 = &containers[0];
    c1.check("bridge", &bridge(), &result);
    // Only the first DEL of a container has a lease to release.
    let mut others = containers.iter();
    at_once(|| others.next().expect("each DEL waits").del("bridge", &bridge()));
    let capture = Capture::start(&site.outside);
    let config = with(&bridge()["ipam"], json!({}));
    let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "dhcp", "ipam": config});
    c1.checking("dhcp", &config, &result).run().error();
    assert_eq!(kinds(&capture.finish()), [""; 0]);
}

#[test]
fn status_is_50_while_the_daemon_is_down() {
    let world = World::new();
    let _site = Site::with_bridge(&world);
    let config = with(&bridge(), json!({"cniVersion": "1.1.0"}));
    let status = || world.call("bridge", "STATUS", &config).run();
    status().fails(50, &["/run/cni/dhcp.sock"]);
    let auto = asking(&config, json!({"daemon": "auto"}));
    world.call("bridge", "STATUS", &auto).run().silence();
    let mut daemon = Daemon::new(&world);
    status().silence();
    daemon.kill();
    status().fails(50, &["/run/cni/dhcp.sock"]);
    let c1 = world.container("c1");
    at_once(|| {
        let error = c1.call("bridge", "ADD", &bridge()).run().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.contains("/run/cni/dhcp.sock"), "{said}");
    });
    at_once(|| c1.del("bridge", &bridge()));
}

#[test]
fn daemon_auto_starts_one_that_ends_with_its_last_lease() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let config = asking(&bridge(), json!({"daemon": "auto"}));
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let calls = [&c1, &c2].map(|c| c.call("bridge", "ADD", &config));
    let results: Vec<_> = all_at_once(calls).into_iter().map(|outcome| outcome.success()).collect();
    assert!(super::listens(&world));
    kea.wait_for_renewals(&address(&results[0]), 1);
    c1.del("bridge", &config);
    kea.wait_for_release(&address(&results[0]));
    assert!(super::listens(&world), "c2 has a lease");
    c2.del("bridge", &config);
    kea.wait_for_release(&address(&results[1]));
    world.within(LIMIT_S, "the daemon ends", || !super::listens(&world));
}

#[test]
fn adds_of_one_attachment_at_once_share_a_lease() {
    let world = World::new();
    let site = Site::new(&world);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    site.attach(&c1, "10.1.0.99/24");
    let config =
        json!({"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": {"type": "dhcp"}});
    let add = || c1.call("dhcp", "ADD", &config);
    // The caller of one is gone before there is a server.
    let gone = add().start();
    let others: Vec<_> = (0..3).map(|_| add().start()).collect();
    nix::sys::signal::kill(gone.pid(), nix::sys::signal::Signal::SIGKILL).unwrap();
    gone.finish();
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let results: Vec<_> = others.into_iter().map(|other| other.finish().success()).collect();
    let addresses: Vec<String> = results.iter().map(address).collect();
    assert!(addresses.iter().all(|one| *one == addresses[0]), "{addresses:?}");
    assert_eq!(kea.leased(), addresses[..1]);
    c1.del("dhcp", &config);
    kea.wait_for_release(&addresses[0]);
}

/// A pool for many.
fn large() -> serde_json::Value {
    let pools = json!([{"pool": "10.1.1.0 - 10.1.8.255"}]);
    with(&long_lease(), json!({"subnet": "10.1.0.0/16", "pools": pools}))
}

#[test]
fn two_hundred_containers_at_once_are_served() {
    const COUNT: usize = 200;
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", large());
    let _daemon = Daemon::with(&world, &["-timeout", "10s", "-resendtimeout", "300s"]);
    let containers: Vec<_> = (0..COUNT).map(|at| world.container(&format!("c{at}"))).collect();
    let adds = containers.iter().map(|c| c.call("bridge", "ADD", &bridge()));
    let results: Vec<_> = all_at_once(adds).into_iter().map(|outcome| outcome.success()).collect();
    let mut addresses: Vec<String> = results.iter().map(address).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), COUNT);
    let mut leased = kea.leased();
    leased.sort();
    assert_eq!(leased, addresses);
    for outcome in some_at_once(containers.iter().map(|c| c.call("bridge", "DEL", &bridge()))) {
        outcome.silence();
    }
    world.within(LIMIT_S, "all are released", || kea.leased().is_empty());
    world.eventually("the daemon keeps no lease", || !site.has_records());
}

/// Makes a hundred macvlan links in the namespace `$0`, and calls the plugin for all of them, four at once.
const HUNDRED: &str = r#"
for i in $(seq 0 99); do echo "link add l$i link lan netns $0 type macvlan mode bridge"; done |
    ip -batch -
for i in $(seq 0 99); do echo "link set l$i up"; done | ip -n $0 -batch -
for i in $(seq 0 99); do echo $0 l$i; done |
    xargs -P 4 -L 1 sh -c 'CNI_COMMAND=ADD CNI_CONTAINERID=$0 CNI_IFNAME=$1 CNI_NETNS=/run/netns/$0 CNI_PATH=/run/plugins \
        /run/plugins/dhcp </run/config >/dev/null || { echo "no lease for $0 $1" >&2; exit 255; }'
"#;

#[test]
fn five_hundred_leases_need_less_than_14_mib_and_no_processor_time() {
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", large());
    let daemon = Daemon::with(&world, &["-timeout", "10s", "-resendtimeout", "300s"]);
    let containers: Vec<_> = (0..5).map(|at| world.container(&format!("c{at}"))).collect();
    let config =
        json!({"cniVersion": "1.0.0", "name": "net", "type": "dhcp", "ipam": {"type": "dhcp"}});
    world.write("/run/config", config.to_string());
    for container in &containers {
        world.host(["sh", "-e", "-c", HUNDRED, &container.name]);
    }
    assert_eq!(kea.leased().len(), 500);
    // Each lease has a thread with an alarm, and no socket. The threads of the last requests end after the answer.
    world.within(LIMIT_S, "the daemon has few threads", || daemon.status("Threads") < 510);
    let descriptors = || world.host(["ls", &format!("/proc/{}/fd", daemon.0.pid_in_world())]);
    world.within_or(LIMIT_S, || descriptors().lines().count() < 532, descriptors);
    // The pages of the executable are not counted. Most are of stacks: four pages for each lease, and a debug build needs more.
    let is_debug = executable() == env!("CARGO_BIN_EXE_cnibox");
    let kib_max = if is_debug { 44 << 10 } else { 13 << 10 };
    assert!(daemon.status("RssAnon") < kib_max, "{}", daemon.proc("status"));
    let ticks_of_3_s = |_| {
        let before = daemon.ticks();
        world.host(["sleep", "3"]);
        daemon.ticks() - before
    };
    // 100 ticks are a second of a processor. The least of five measurements counts; one is enough on an idle machine.
    assert!((0..5).map(ticks_of_3_s).any(|ticks| ticks <= 3), "more than 1 % of a processor");
    drop(containers);
}

#[test]
fn an_add_for_which_no_thread_starts_fails_alone() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    // Those of the daemon, of the lease of c1, and of one request.
    let daemon = Daemon::with_threads(&world, "4");
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let result = c1.add("bridge", &bridge());
    let before = world.state();
    c2.call("bridge", "ADD", &bridge()).run().fails(11, &["cannot start a thread"]);
    before.assert_same(&world.state(), "after the failed ADD");
    c1.check("bridge", &bridge(), &result);
    kea.wait_for_renewals(&address(&result), 1);
    c1.del("bridge", &bridge());
    kea.wait_for_release(&address(&result));
    c2.add("bridge", &bridge());
    assert!(!daemon.0.log().contains("panicked"), "{}", daemon.0.log());
}

#[test]
fn a_lease_without_a_thread_is_adopted_when_another_lease_has_ended() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let daemon = Daemon::new(&world);
    let containers = ["c1", "c2"].map(|name| world.container(name));
    let addresses = containers.each_ref().map(|c| address(&c.add("bridge", &bridge())));
    drop(daemon);
    // Those of the daemon, and of one lease: none is left for a request.
    let daemon = Daemon::with_threads(&world, "3");
    let is_adopted = |name: &str| {
        daemon.0.log_of_now().contains(&format!("dhcp: net {name} eth0: the lease is adopted"))
    };
    let waits = || daemon.0.log_of_now().contains("; the daemon tries again");
    world.within(LIMIT_S, "one is adopted, and one waits", || {
        (is_adopted("c1") || is_adopted("c2")) && waits()
    });
    let [first, second] = if is_adopted("c1") { [0, 1] } else { [1, 0] };
    let c3 = world.container("c3");
    c3.call("bridge", "ADD", &bridge()).run().fails(11, &["cannot start a thread"]);
    assert_eq!(containers[first].call("bridge", "DEL", &bridge()).run().status, 0);
    kea.wait_for_release(&addresses[first]);
    world.within(LIMIT_S, "the other is adopted", || is_adopted(&containers[second].name));
    kea.wait_for_renewals(&addresses[second], 1);
}
