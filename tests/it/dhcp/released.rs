//! Each end of an attachment gives its address back, with one RELEASE.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::capture::{Capture, Packet, of_kind};
use super::scripted::{Scripted, plan};
use super::servers::{Kea, long_lease};
use super::{Daemon, LIMIT_S, SOCKET, Site, address, bridge, macvlan};
use crate::world::{Container, World, with};

/// After `end`, the server's table says that the address is released, and one RELEASE was sent.
#[track_caller]
fn is_released_once(
    site: &Site<'_>,
    config: &Value,
    end: impl Fn(&Container<'_>, &mut Daemon<'_>),
) -> Packet {
    let world = site.world;
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let capture = Capture::start(&site.outside);
    let mut daemon = Daemon::new(world);
    let plugin = config["type"].as_str().unwrap();
    let c1 = world.container("c1");
    let held = address(&c1.add(plugin, config));
    end(&c1, &mut daemon);
    kea.wait_for_release(&held);
    world.eventually("the daemon keeps no lease", || !site.has_records());
    // A DEL more, or a start more, sends nothing.
    c1.del(plugin, config);
    daemon.start_again();
    let packets = capture.finish();
    let releases = of_kind(&packets, "RELEASE");
    assert_eq!(releases.len(), 1, "{packets:?}");
    let release = releases[0].clone();
    assert_eq!(release.get("dhcp.ip.client"), held);
    assert_eq!(release.get("ip.dst"), "10.1.0.254");
    assert_eq!(release.option(54), Some("0a0100fe"));
    assert_eq!(release.option(50), None);
    release
}

/// Both kinds of attachments.
fn is_released_once_from_both(end: impl Fn(&Container<'_>, &mut Daemon<'_>, &str, &Value)) {
    let world = World::new();
    let config = bridge();
    is_released_once(&Site::with_bridge(&world), &config, |c1, daemon| {
        end(c1, daemon, "bridge", &config);
    });
    let world = World::new();
    let config = macvlan();
    is_released_once(&Site::new(&world), &config, |c1, daemon| {
        end(c1, daemon, "macvlan", &config);
    });
}

#[test]
fn by_a_del() {
    is_released_once_from_both(|c1, _, plugin, config| c1.del(plugin, config));
}

#[test]
fn by_a_del_while_the_server_answers_no_arp() {
    let world = World::new();
    let site = Site::new(&world);
    site.outside.exec(["sysctl", "-qw", "net.ipv4.conf.sw.arp_ignore=8"]);
    is_released_once(&site, &macvlan(), |c1, _| c1.del("macvlan", &macvlan()));
}

#[test]
fn by_a_del_while_the_daemon_is_down_and_its_start() {
    is_released_once_from_both(|c1, daemon, plugin, config| {
        daemon.kill();
        c1.del(plugin, config);
        c1.del(plugin, config);
        c1.destroy();
        daemon.start();
    });
}

#[test]
fn by_a_del_without_the_namespace() {
    is_released_once_from_both(|c1, daemon, plugin, config| {
        daemon.0.signal(Signal::SIGSTOP);
        c1.destroy();
        daemon.0.signal(Signal::SIGCONT);
        c1.del(plugin, config);
    });
}

#[test]
fn by_the_end_of_the_namespace() {
    is_released_once_from_both(|c1, _, _, _| c1.destroy());
}

#[test]
fn by_the_end_of_the_link() {
    is_released_once_from_both(|c1, _, _, _| {
        c1.exec(["ip", "link", "del", "eth0"]);
    });
}

#[test]
fn by_gc() {
    is_released_once_from_both(|c1, _, plugin, config| {
        let valid = json!([{"containerID": "other", "ifname": "eth0"}]);
        let config =
            with(config, json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}));
        c1.world.call(plugin, "GC", &config).run().silence();
    });
}

#[test]
fn gc_keeps_valid_attachments() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let _daemon = Daemon::new(&world);
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let kept = address(&c1.add("bridge", &bridge()));
    let collected = address(&c2.add("bridge", &bridge()));
    let other = with(&bridge(), json!({"name": "other"}));
    let c3 = world.container("c3");
    let foreign = address(&c3.add("bridge", &other));
    // More than 500 kB.
    let others = (0..5000).map(|n| format!("{n:064x}"));
    let valid: Vec<Value> = others
        .chain(["c1".into()])
        .map(|id| json!({"containerID": id, "ifname": "eth0"}))
        .collect();
    let config =
        with(&bridge(), json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}));
    let gc = world.call("bridge", "GC", &config).run();
    assert_eq!((gc.status, &*gc.stdout, &*gc.stderr), (0, "", ""));
    kea.wait_for_release(&collected);
    kea.wait_for_renewals(&kept, 1);
    let mut leased = kea.leased();
    leased.sort();
    let mut expected = vec![kept, foreign];
    expected.sort();
    assert_eq!(leased, expected);
}

#[test]
fn a_daemon_that_is_terminated_keeps_leases_and_removes_its_socket() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let mut daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = address(&c1.add("bridge", &bridge()));
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        daemon.0.end(signal);
        assert!(!world.path(SOCKET).exists(), "after {signal}");
        assert_eq!(kea.leased(), [held.as_str()]);
        daemon.start();
    }
    c1.del("bridge", &bridge());
    kea.wait_for_release(&held);
}

#[test]
fn a_namespace_with_a_lease_is_not_pinned() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = address(&c1.add("bridge", &bridge()));
    kea.wait_for_renewals(&held, 1);
    let host_end = world.ports_of("br0").into_iter().find(|name| name != "lan").unwrap();
    c1.destroy();
    // The pair ends with the namespace, and only with it.
    world.eventually("the namespace ends", || !world.links().contains(&host_end));
    kea.wait_for_release(&held);
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn a_namespace_that_ends_during_an_exchange_is_released_when_that_is_over() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &plan());
    let _daemon = Daemon::with(&world, &["-timeout", "3s"]);
    let c1 = world.container("c1");
    c1.add("bridge", &bridge());
    let host_end = world.ports_of("br0").into_iter().find(|name| name != "lan").unwrap();
    server.answer_by(&json!({}));
    server.wait_for_another("request");
    c1.destroy();
    server.wait_for("release", 1);
    world.within(LIMIT_S, "the namespace ends", || !world.links().contains(&host_end));
    world.eventually("the daemon keeps no lease", || !site.has_records());
    assert_eq!(server.count("release"), 1);
}

#[test]
fn a_link_of_the_host_with_the_index_of_a_master_elsewhere_is_no_uplink() {
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let netns = c1.netns();
    site.outside.exec(["sh", "-e", "-c", &format!(
        "ip link add cable index 77 type veth peer name plug
        ip link set plug master sw up; ip link set cable up
        ip link add over link cable type macvlan mode bridge; ip link set over netns {netns} name eth0"
    )]);
    site.script("ip link add other index 77 type bridge");
    let config =
        json!({"cniVersion": "1.0.0", "name": "net", "type": "dhcp", "ipam": {"type": "dhcp"}});
    let held = address(&c1.call("dhcp", "ADD", &config).run().success());
    let record = world.host(["sh", "-c", "cat /run/cnibox/dhcp/*/*.lease"]);
    assert!(record.contains(&held) && !record.contains("other"), "{record}");
    c1.call("dhcp", "DEL", &config).run().silence();
    kea.wait_for_release(&held);
}
