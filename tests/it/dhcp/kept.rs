//! An address and its connectivity outlive everything that can restart, and a DEL gives the address back.

use std::time::Duration;

use serde_json::{Value, json};

use super::servers::{Kea, long_lease};
use super::service::Service;
use super::{Daemon, LIMIT_S, Site, address, bridge, macvlan};
use crate::world::{COVERED_BOOT, Container, World};

/// The container has the address, and only that one, and reaches the server.
#[track_caller]
fn is_connected(c1: &Container<'_>, address: &str, when: &str) {
    assert_eq!(c1.addresses("eth0"), [format!("{address}/24")], "{when}");
    c1.ping("10.1.0.254");
}

#[track_caller]
fn keeps_its_address_through_everything(site: &Site<'_>, plugin: &str, config: &Value) {
    let world = site.world;
    let mut kea = Kea::start(&site.outside, "sw", json!({"rebind-timer": 10}));
    let mut daemon = Daemon::new(world);
    let before = world.state().apart_from("br0", "net");
    let c1 = world.container("c1");
    let result = c1.add(plugin, config);
    let held = address(&result);
    is_connected(&c1, &held, "after ADD");
    c1.check(plugin, config, &result);

    kea.wait_for_renewals(&held, 10);
    is_connected(&c1, &held, "after ten renewals");

    daemon.start_again();
    kea.wait_for_renewals(&held, 2);
    is_connected(&c1, &held, "after the daemon was killed");
    c1.check(plugin, config, &result);

    kea.kill();
    kea.start_again();
    kea.wait_for_renewals(&held, 2);
    is_connected(&c1, &held, "after the server was killed");

    let changed = json!([{"name": "routers", "data": "10.1.0.253"}, {"name": "interface-mtu", "data": "1400"}]);
    kea.change(json!({"option-data": changed}));
    world.within_or(
        LIMIT_S,
        || {
            c1.exec(["ip", "link", "show", "eth0"]).contains("mtu 1400")
                && c1.exec(["ip", "route"]).contains("default via 10.1.0.253 ")
        },
        || format!("the lease is applied: {}", daemon.log()),
    );
    is_connected(&c1, &held, "after a changed lease");

    daemon.kill();
    c1.del(plugin, config);
    daemon.start();
    kea.wait_for_release(&held);
    assert_eq!(kea.leased(), [""; 0]);
    world.eventually("the daemon keeps no lease", || !site.has_records());
    before.assert_same(&world.state().apart_from("br0", "net"), "after DEL");
}

#[test]
fn a_bridge_container_keeps_its_address_through_everything() {
    let world = World::new();
    keeps_its_address_through_everything(&Site::with_bridge(&world), "bridge", &bridge());
}

#[test]
fn a_container_whose_path_was_unmounted_keeps_its_lease_to_its_end() {
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let daemon = Daemon::new(&world);
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let [held, other] = [&c1, &c2].map(|container| address(&container.add("macvlan", &macvlan())));
    let holder = c1.tool(["cat"]).keeping_stdin_open().start();
    world.host(["umount", &c1.netns()]);
    // The renewals of c1 are due at the same times.
    kea.wait_for_renewals(&other, 4);
    let mut leased = kea.leased();
    leased.sort();
    let mut expected = [held.clone(), other];
    expected.sort();
    assert_eq!(leased, expected, "{}", daemon.log());

    world.host(["kill", &holder.pid_in_world().to_string()]);
    holder.finish();
    kea.wait_for_release(&held);
}

/// The daemon is a later one than that of the ADD, so it has not seen the path.
#[test]
#[expect(clippy::disallowed_methods, reason = "there is no event for a client that asks no more")]
fn the_end_of_a_container_whose_path_was_unmounted_ends_its_lease_at_once() {
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let mut daemon = Daemon::resending(&world);
    let c1 = world.container("c1");
    let held = address(&c1.add("macvlan", &macvlan()));
    let holder = c1.tool(["cat"]).keeping_stdin_open().start();
    world.host(["umount", &c1.netns()]);
    daemon.start_again();
    let is_adopted = || daemon.log().contains("the lease is adopted");
    world.within_or(LIMIT_S, is_adopted, || daemon.log());
    // It asks the server for a second, and next after the renewal time. Each attempt would see an end.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(kea.leased(), std::slice::from_ref(&held), "{}", daemon.log());

    world.host(["kill", &holder.pid_in_world().to_string()]);
    holder.finish();
    kea.wait_for_release(&held);
}

#[test]
fn a_macvlan_container_keeps_its_address_through_everything() {
    let world = World::new();
    keeps_its_address_through_everything(&Site::new(&world), "macvlan", &macvlan());
}

/// As one that a container of systemd-nspawn with the network of the host starts.
#[test]
fn a_daemon_with_another_boot_id_costs_no_lease() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", json!({"rebind-timer": 10}));
    let mut daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let held = address(&c1.add("bridge", &bridge()));
    daemon.kill();
    let words = [&COVERED_BOOT[..], &["/run/plugins/dhcp", "daemon"]].concat();
    let mut other = Daemon(Service::new(&world, "other-daemon", None, &words));
    other.start();
    assert!(site.has_records(), "{}", other.log());
    other.kill();
    daemon.start();
    kea.wait_for_renewals(&held, 2);
    is_connected(&c1, &held, "after the other daemon");
}
