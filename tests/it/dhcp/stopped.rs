//! A daemon that hangs, plugins that are killed, and the prefix of the host.

use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::capture::{Capture, of_kind};
use super::scripted::{Scripted, plan};
use super::servers::{Kea, long_lease};
use super::service::Service;
use super::{Daemon, LIMIT_S, Site, address, bridge, some_at_once};
use crate::world::{World, all_at_once, with};

#[test]
fn a_del_does_not_hang_with_a_daemon_that_hangs() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let capture = Capture::start(&site.outside);
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = address(&c1.add("bridge", &bridge()));
    daemon.0.signal(Signal::SIGSTOP);
    let outcome = c1.call("bridge", "DEL", &bridge()).run();
    assert!(outcome.stderr.contains("it did not answer in time"), "{}", outcome.report());
    outcome.silence();
    assert_eq!(c1.exec(["ip", "-o", "link", "show", "type", "veth"]), "");
    daemon.0.signal(Signal::SIGCONT);
    kea.wait_for_release(&held);
    world.eventually("the daemon keeps no lease", || !site.has_records());
    assert_eq!(of_kind(&capture.finish(), "RELEASE").len(), 1);
}

/// A read-only journal: the daemon cannot remove the lease, and the DEL cannot mark it.
#[test]
fn a_del_fails_if_nothing_remembers_the_lease() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let gc = with(&bridge(), json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}));
    for (verb, config) in [("DEL", &bridge()), ("GC", &gc)] {
        let held = address(&c1.add("bridge", &bridge()));
        site.script(
            "mount --bind /run/cnibox/dhcp /run/cnibox/dhcp; mount -o remount,bind,ro /run/cnibox/dhcp",
        );
        let texts = ["cannot remove ", ".released", "Read-only file system"];
        c1.call("bridge", verb, config).run().fails(5, &texts);
        assert!(site.has_records(), "{verb}");
        site.script("umount /run/cnibox/dhcp");
        c1.call("bridge", verb, config).run().silence();
        kea.wait_for_release(&held);
        world.eventually("the daemon keeps no lease", || !site.has_records());
    }
}

#[test]
fn a_status_and_an_add_do_not_hang_with_a_daemon_that_hangs() {
    let world = World::new();
    let _site = Site::with_bridge(&world);
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    daemon.0.signal(Signal::SIGSTOP);
    let config = with(&bridge(), json!({"cniVersion": "1.1.0"}));
    let texts = ["/run/cni/dhcp.sock", "it did not answer in time"];
    world.call("bridge", "STATUS", &config).run().fails(50, &texts);
    c1.call("bridge", "ADD", &bridge()).run().fails(999, &texts);
    daemon.0.signal(Signal::SIGCONT);
}

#[test]
fn an_add_that_is_killed_leaves_no_lease_after_its_del() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &json!({}));
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let running = c1.call("bridge", "ADD", &bridge()).start();
    server.wait_for("discover", 1);
    kill(running.pid(), Signal::SIGKILL).unwrap();
    running.finish();
    c1.del("bridge", &bridge());
    server.answer_by(&plan());
    let result = c1.add("bridge", &bridge());
    c1.check("bridge", &bridge(), &result);
    c1.del("bridge", &bridge());
    server.wait_for("release", 1);
    world.eventually("the daemon keeps no lease", || !site.has_records());
    assert_eq!(world.ports_of("br0"), ["lan"]);
}

#[test]
fn a_del_during_an_add_ends_the_exchange() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &json!({}));
    let _daemon = Daemon::with(&world, &["-timeout=1s", "-resendtimeout=300s"]);
    let c1 = world.container("c1");
    let running = c1.call("bridge", "ADD", &bridge()).start();
    server.wait_for("discover", 1);
    c1.del("bridge", &bridge());
    running.finish().fails(999, &["it was released meanwhile"]);
    assert!(!site.has_records());
}

#[test]
fn two_adds_of_one_interface_at_once_have_one_lease() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    site.attach(&c1, "10.1.0.99/24");
    let config =
        json!({"cniVersion": "1.0.0", "name": "net", "type": "dhcp", "ipam": {"type": "dhcp"}});
    let calls = (0..4).map(|_| c1.call("dhcp", "ADD", &config));
    let results: Vec<_> = all_at_once(calls).into_iter().map(|outcome| outcome.success()).collect();
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
    assert_eq!(kea.leased(), [address(&results[0])]);
}

#[test]
fn the_daemon_finds_namespaces_and_its_socket_below_the_prefix_of_the_host() {
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let c1 = world.container("c1");
    // As in a container of the daemon: the host's /run is below /var/lib/host, and its own is empty.
    let script = "mkdir -p /var/lib/host/run; mount --rbind /run /var/lib/host/run; mount -t tmpfs tmpfs /run
        exec /var/lib/host/run/bin/cnibox dhcp daemon -hostprefix /var/lib/host";
    let words = ["unshare", "-m", "sh", "-e", "-c", script];
    let mut daemon = Daemon(Service::new(&world, "daemon", None, &words));
    daemon.start();
    let config = super::macvlan();
    let held = address(&c1.add("macvlan", &config));
    kea.wait_for_renewals(&held, 2);
    c1.del("macvlan", &config);
    kea.wait_for_release(&held);
}

#[test]
fn the_leases_of_a_hundred_containers_survive_a_kill_and_a_restart_with_none_left_over() {
    const COUNT: usize = 100;
    let world = World::new();
    let site = Site::with_bridge(&world);
    let pools = json!([{"pool": "10.1.1.0 - 10.1.2.255"}]);
    let long = with(&long_lease(), json!({"subnet": "10.1.0.0/16", "pools": pools}));
    let kea = Kea::start(&site.outside, "sw", long);
    let mut daemon = Daemon::with(&world, &["-timeout", "10s", "-resendtimeout", "300s"]);
    let containers: Vec<_> = (0..COUNT).map(|at| world.container(&format!("c{at}"))).collect();
    let adds = containers.iter().map(|c| c.call("bridge", "ADD", &bridge()));
    let results: Vec<_> = some_at_once(adds).into_iter().map(|outcome| outcome.success()).collect();
    daemon.kill();
    // Ten end while the daemon is down.
    for container in &containers[..10] {
        container.destroy();
    }
    daemon.start();
    world.within(LIMIT_S, "ten leases are released", || kea.leased().len() == COUNT - 10);
    let both = containers.iter().zip(&results).skip(10);
    let checks = both.map(|(c, result)| c.checking("bridge", &bridge(), result));
    for outcome in some_at_once(checks) {
        outcome.silence();
    }
    daemon.kill();
    for outcome in some_at_once(containers.iter().map(|c| c.call("bridge", "DEL", &bridge()))) {
        outcome.silence();
    }
    daemon.start();
    world.within(LIMIT_S, "all are released", || kea.leased().is_empty());
    world.eventually("the daemon keeps no lease", || !site.has_records());
}
