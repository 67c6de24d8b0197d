//! The note that no timer calls gc on a host with attachments of other runtimes.

use serde_json::Value;

use super::{CONFIGURATIONS, configure, doctor, healthy, network};
use crate::tool::cnibox;
use crate::world::{PLUGIN_DIR, World, parse};

/// The command of the note; empty without the note.
fn fix(world: &World) -> String {
    let outcome = doctor(world, &["--json"]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    let findings = parse(&outcome.stdout)["findings"].clone();
    let is_it = |found: &&Value| found["what"].as_str().unwrap().starts_with("no timer calls gc");
    let all = findings.as_array().unwrap();
    all.iter().find(is_it).map_or_else(String::new, |found| found["fix"].as_str().unwrap().into())
}

/// A host with an attachment of `cnibox add`. The record without its last key is that of a call by another runtime.
fn host() -> World {
    let world = healthy(&[network("a", 1)]);
    configure(&world, "a", &network("a", 1));
    world.container("web");
    let add = cnibox(&world, &["add", "a", "web", "--container-id", "web"]);
    add.env("CNI_PATH", PLUGIN_DIR).env("NETCONFPATH", CONFIGURATIONS).run().output();
    // The world shares /etc with the machine.
    for directory in ["/etc/systemd/system", "/etc/init.d"] {
        world.host(["mount", "-t", "tmpfs", "tmpfs", directory]);
    }
    world
}

#[test]
fn only_attachments_of_other_runtimes_need_a_timer() {
    let world = host();
    assert_eq!(fix(&world), "");
    world.host([
        "sh",
        "-c",
        "sed -i 's/\"maker\":\"cnibox\"/\"maker\":\"plugin\"/' /var/lib/cni/attachments/*",
    ]);
    assert_eq!(fix(&world), "call cnibox gc --confirm every 15 minutes, by init or crond");
    let note = doctor(&world, &[]);
    let text = "note: no timer calls gc, and other runtimes have attachments here: 1\n";
    assert!(note.stderr.contains(text), "{}", note.report());
    world.host(["mkdir", "-p", "/run/systemd/system"]);
    let start = "systemctl enable --now cnibox-gc.timer";
    let install =
        format!("cnibox install --timer / {PLUGIN_DIR} && systemctl daemon-reload && {start}");
    assert!([install.clone(), install.replace(PLUGIN_DIR, "/opt/cni/bin")].contains(&fix(&world)));
    world.host(["touch", "/etc/systemd/system/cnibox-gc.timer"]);
    assert_eq!(fix(&world), start);
}

#[test]
fn an_enabled_timer_or_a_recent_run_is_enough() {
    let world = host();
    world.host([
        "sh",
        "-c",
        "sed -i 's/\"maker\":\"cnibox\"/\"maker\":\"plugin\"/' /var/lib/cni/attachments/*",
    ]);
    for file in [
        "/etc/systemd/system/timers.target.wants/cnibox-gc.timer",
        "/etc/systemd/system/multi-user.target.wants/cnibox-reconcile.service",
        "/etc/init.d/S70cnibox-gc",
    ] {
        assert_ne!(fix(&world), "", "{file}");
        let make = format!("mkdir -p $(dirname {file}); ln -s /nowhere {file}");
        world.host(["sh", "-c", &make]);
        assert_eq!(fix(&world), "", "{file}");
        world.host(["rm", file]);
    }
    world.host(["touch", "/etc/init.d/cnibox-gc"]);
    assert_ne!(fix(&world), "");
    // Another program calls it, crond for example.
    let gc = cnibox(&world, &["gc", "--confirm"]);
    gc.env("CNI_PATH", PLUGIN_DIR).env("NETCONFPATH", CONFIGURATIONS).run().silence();
    assert_eq!(fix(&world), "");
}

#[test]
fn an_inittab_that_is_a_fifo_is_passed_over() {
    let world = host();
    world.host([
        "sh",
        "-c",
        "sed -i 's/\"maker\":\"cnibox\"/\"maker\":\"plugin\"/' /var/lib/cni/attachments/*; mkfifo /etc/inittab",
    ]);
    // The open of a FIFO waits for its writer.
    let call = cnibox(&world, &["doctor"]).env("NETCONFPATH", CONFIGURATIONS);
    let outcome = call.env("CNI_PATH", PLUGIN_DIR).under(&["timeout", "60"]).run();
    assert!(outcome.stderr.contains("note: no timer calls gc"), "{}", outcome.report());
}
