//! Requests to the kernel and operations on files that fail once, in the plugin and in the daemon.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::servers::Kea;
use super::service::Service;
use super::{Daemon, LIMIT_S, Site, asking, listens, macvlan};
use crate::faults::{Effect, fault_of_error, for_every_fault};
use crate::world::{Container, World, with};

fn plain() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "dhcp", "ipam": {"type": "dhcp"}})
}

/// A container with eth0 on the switch of the server.
fn attached<'w>(site: &Site<'w>) -> Container<'w> {
    let c1 = site.world.container("c1");
    site.attach(&c1, "10.1.0.200/24");
    c1
}

#[test]
fn after_a_fault_in_the_plugin_a_del_leaves_nothing() {
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let _daemon = Daemon::new(&world);
    let c1 = attached(&site);
    let gc = with(&plain(), json!({"cni.dev/valid-attachments": []}));
    for fault in ["CNIBOX_FAIL_KERNEL", "CNIBOX_FAIL_FILE"] {
        for verb in ["ADD", "DEL", "GC"] {
            // A record that ADD cannot write is a warning; one that DEL and GC cannot remove is an error.
            let can_fail = (verb == "ADD") == (fault == "CNIBOX_FAIL_KERNEL");
            let failures = for_every_fault(|number| {
                if verb != "ADD" {
                    c1.add("dhcp", &plain());
                }
                let config = if verb == "GC" { &gc } else { &plain() };
                let call = c1.call("dhcp", verb, config).env(fault, &number.to_string());
                let outcome = call.run();
                let effect = Effect::on(&outcome);
                if effect == Effect::Failure {
                    assert!(can_fail, "{}", outcome.report());
                    assert_eq!(fault_of_error(outcome), None);
                }
                c1.del("dhcp", &plain());
                world.eventually("no lease is left", || {
                    kea.leased().is_empty() && !site.has_records()
                });
                effect
            });
            assert_eq!(failures > 0, can_fail, "{verb} {fault}");
        }
    }
}

/// Without its mark, the next daemon would adopt the lease of an attachment that was deleted.
#[test]
fn a_lease_that_a_del_cannot_mark_is_released_by_a_daemon_that_it_starts() {
    const NUMBERS: u32 = 8;
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let config = asking(&macvlan(), json!({"daemon": "auto"}));
    let mut unreadable = 0;
    for number in 1..=NUMBERS {
        let mut daemon = Daemon::new(&world);
        let c1 = world.container("c1");
        c1.add("macvlan", &config);
        daemon.kill();
        c1.destroy();
        let del = c1.call("macvlan", "DEL", &config).env("CNIBOX_FAIL_FILE", &number.to_string());
        let outcome = del.run();
        unreadable += u32::from(outcome.stderr.contains("cannot read /run/cnibox/dhcp/"));
        if outcome.status != 0 {
            c1.del("macvlan", &config);
        }
        world.within(LIMIT_S, &format!("{number}: no lease is left: {}", outcome.report()), || {
            kea.leased().is_empty() && !site.has_records()
        });
        world.within(LIMIT_S, "the daemon without a lease ends", || !listens(&world));
    }
    // The first read is for a RELEASE without a daemon, the second one for the mark.
    assert!(unreadable >= 2, "{unreadable}");
}

/// A daemon with a fault, which may fail to start.
fn faulty<'w>(world: &'w World, fault: &'static str, number: u32) -> Service<'w> {
    // The fault can be the loss of a packet, which is soon sent again.
    let flags = ["/run/plugins/dhcp", "daemon", "-timeout", "1s", "-resendtimeout", "60s"];
    let mut service =
        Service::new(world, "faulty", None, &flags).env(fault, number.to_string().leak());
    service.start_only();
    world.within(LIMIT_S, "the daemon listens or ends", || listens(world) || has_ended(&service));
    service
}

fn has_ended(service: &Service<'_>) -> bool {
    !Path::new("/proc").join(service.pid().to_string()).exists()
}

#[test]
fn after_a_fault_in_the_daemon_the_next_one_leaves_nothing() {
    const NUMBERS: u32 = 24;
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let c1 = world.container("c1");
    let mut problems = 0;
    for fault in ["CNIBOX_FAIL_KERNEL", "CNIBOX_FAIL_FILE"] {
        for number in 1..=NUMBERS {
            let service = faulty(&world, fault, number);
            let outcome = c1.call("macvlan", "ADD", &macvlan()).run();
            let failed = outcome.status != 0;
            problems += u32::from(failed);
            if failed {
                assert_eq!(fault_of_error(outcome), None, "{fault}={number}");
            }
            // A daemon that cannot write the journal releases the lease at once; it forgets that if it is killed first.
            c1.del("macvlan", &macvlan());
            drop(service);
            let _daemon = Daemon::new(&world);
            c1.del("macvlan", &macvlan());
            world.within(LIMIT_S, &format!("{fault}={number}: no lease is left"), || {
                kea.leased().is_empty() && !site.has_records()
            });
        }
    }
    assert!(problems > 4, "{problems}");
}

/// While the same daemon runs on.
#[test]
fn a_file_that_could_not_be_removed_goes_with_the_next_del_or_gc() {
    const NUMBERS: u32 = 20;
    let world = World::new();
    let site = Site::new(&world);
    let _kea = Kea::start(&site.outside, "sw", json!({}));
    let c1 = world.container("c1");
    let config = with(&macvlan(), json!({"cniVersion": "1.1.0"}));
    let gc = with(&config, json!({"cni.dev/valid-attachments": []}));
    for (verb, last) in [("DEL", &config), ("GC", &gc)] {
        let mut left = 0;
        for number in 1..=NUMBERS {
            let service = faulty(&world, "CNIBOX_FAIL_FILE", number);
            if has_ended(&service) || c1.call("macvlan", "ADD", &config).run().status != 0 {
                continue;
            }
            c1.exec(["ip", "link", "del", "eth0"]);
            world.eventually("the lease ends", || service.log_of_now().contains("is released"));
            let leases = ["/run/bin/cnibox", "dhcp", "leases"];
            assert_eq!(world.host(leases).lines().count(), 1, "the header");
            left += u32::from(site.has_records());
            c1.call("macvlan", verb, last).run().silence();
            assert!(!site.has_records(), "{verb} {number}: {}", service.log_of_now());
        }
        assert!(left > 0, "{verb}: no removal failed");
    }
}

#[test]
fn an_add_that_is_killed_while_it_waits_gives_its_lease_back() {
    let world = World::new();
    let site = Site::new(&world);
    let _daemon = Daemon::with(&world, &["-timeout", "1s", "-resendmax", "1s"]);
    let c1 = attached(&site);
    let add = c1.call("dhcp", "ADD", &plain()).start();
    let leases = ["/run/bin/cnibox", "dhcp", "leases"];
    world.eventually("the daemon searches a server", || {
        world.tool(&leases, None).output_of_success().contains("searching")
    });
    kill(add.pid(), Signal::SIGKILL).unwrap();
    add.finish();
    let kea = Kea::start(&site.outside, "sw", json!({}));
    world.within(LIMIT_S, "the lease is released", || kea.released().len() == 1);
    world.eventually("no lease is left", || kea.leased().is_empty() && !site.has_records());
}

#[test]
fn an_add_that_is_killed_takes_no_lease_from_another_one_of_its_attachment() {
    let world = World::new();
    let site = Site::new(&world);
    let daemon = Daemon::with(&world, &["-timeout", "1s", "-resendmax", "1s"]);
    let c1 = attached(&site);
    let threads = || daemon.status("Threads");
    let idle = threads();
    let first = c1.call("dhcp", "ADD", &plain()).start();
    world.eventually("the daemon serves a request and has a lease", || threads() == idle + 2);
    let second = c1.call("dhcp", "ADD", &plain()).start();
    world.eventually("the daemon serves both requests", || threads() == idle + 3);
    kill(first.pid(), Signal::SIGKILL).unwrap();
    first.finish();
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let result = second.finish().success();
    world.eventually("both requests are served", || threads() == idle + 1);
    assert_eq!(kea.leased(), [super::address(&result)]);
    c1.checking("dhcp", &plain(), &result).run().silence();
}
