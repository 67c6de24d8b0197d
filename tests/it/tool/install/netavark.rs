//! `--netavark`: the link in a directory of netavark's drivers, each file of which podman shows as a driver.

use std::fs;
use std::path::Path;

use super::killed::files_after;
use super::{DIR, NEW, Node, OLD, fails, killed};
use crate::world::{Outcome, parse};

const DRIVERS: &str = "/run/node/libexec/netavark";
const DRIVER: &str = "/run/node/libexec/netavark/cnibox";
const TARGET: &str = "../../bin/cnibox";

impl Node {
    fn driver(&self, words: &[&str]) -> Outcome {
        self.command(NEW, &[words, &["--netavark", DRIVERS]].concat()).run()
    }

    fn drivers(&self) -> String {
        self.world.host(["sh", "-c", &format!("ls -A {DRIVERS} 2>&1 || true")])
    }

    /// A driver of another program.
    fn foreign_driver(&self) {
        self.world.host(["mkdir", "-p", DRIVERS]);
        self.foreign(&["../libexec/netavark/cnibox"]);
    }

    #[track_caller]
    fn answers(&self, driver: &str) {
        let info = parse(&self.world.host([driver, "info"]));
        assert_eq!(info["api_version"], "1.0.0", "{info}");
    }
}

pub(super) const INSTALL: [&str; 3] = ["install", "--only", "bridge"];

#[test]
fn the_link_is_the_only_file_and_netavark_can_execute_it() {
    let node = Node::new();
    let dry = node.driver(&[&INSTALL[..], &["--dry-run"]].concat()).output();
    assert!(dry.ends_with(&format!("\nwould create {DRIVER}: symbolic link\n")), "{dry}");
    assert!(!node.world.path(DRIVERS).exists());
    // The link is the same, whatever the names of the plugins are.
    for method in ["-s", "--copy"] {
        let said = node.driver(&[&INSTALL[..], &[method]].concat()).output();
        assert!(said.ends_with(&format!("created {DRIVER}: symbolic link\n")), "{said}");
        assert_eq!(node.drivers(), "cnibox\n");
        assert_eq!(fs::read_link(node.world.path(DRIVER)).unwrap(), Path::new(TARGET));
        node.answers(DRIVER);
        assert_eq!(node.driver(&[&INSTALL[..], &[method]].concat()).output(), "");
        let dry = node.driver(&["uninstall", "--dry-run"]).output();
        assert!(dry.ends_with(&format!("would remove {DRIVER}\n")), "{dry}");
        assert_eq!(node.drivers(), "cnibox\n");
        let said = node.driver(&["uninstall"]).output();
        assert!(said.ends_with(&format!("removed {DRIVER}\n")), "{said}");
        assert_eq!(node.drivers(), "");
        assert!(node.names().is_empty());
    }
    assert_eq!(node.driver(&["uninstall"]).output(), "");
}

#[test]
fn an_upgrade_of_the_plugins_upgrades_the_driver() {
    let node = Node::new();
    node.command(OLD, &[&INSTALL[..], &["--netavark", DRIVERS]].concat()).run().output();
    node.install(&INSTALL[1..]).output();
    assert_eq!(node.drivers(), "cnibox\n");
    node.world.host(["cmp", DRIVER, NEW]);
}

#[test]
fn the_link_is_right_in_an_image_and_behind_symbolic_links() {
    let node = Node::new();
    let script = "mkdir -p image/var/local image/usr && ln -s ../var/local image/usr/local";
    node.world.host(["sh", "-c", &format!("cd /run/node; {script}")]);
    let image = |path: &str| format!("/run/node/image/{path}");
    let (drivers, plugins) = (image("usr/local/libexec/netavark"), image("opt/cni/bin"));
    let words = [&[NEW][..], &INSTALL, &["--netavark", &drivers, &plugins]].concat();
    node.world.tool(&words, None).run().output();
    node.world.host(["mv", "/run/node/image", "/run/node/root"]);
    node.answers("/run/node/root/usr/local/libexec/netavark/cnibox");
}

#[test]
fn a_driver_of_another_program_stays() {
    let node = Node::new();
    node.foreign_driver();
    let before = node.world.read(DRIVER);
    for force in [&[][..], &["--force", "--backup"]] {
        let outcome = node.driver(&[&INSTALL[..], force].concat());
        fails(&outcome, 1, &format!("cannot replace {DRIVER}: it is another program"));
        assert!(node.names().is_empty());
    }
    let outcome = node.driver(&["uninstall"]);
    let text = format!("note: {DRIVER} stays: it is another program");
    assert!(outcome.status == 0 && outcome.stderr.contains(&text), "{}", outcome.report());
    assert_eq!(node.world.read(DRIVER), before);
}

#[test]
fn the_plugins_are_reported_where_the_driver_cannot_be_placed() {
    let node = Node::new();
    let script = "mkdir /run/node/libexec; mount -t tmpfs -o ro tmpfs /run/node/libexec";
    node.world.host(["sh", "-ec", script]);
    let outcome = node.driver(&INSTALL);
    let reason = format!("cannot place the driver: cannot make {DRIVERS}");
    assert!(outcome.status == 1 && outcome.stderr.contains(&reason), "{}", outcome.report());
    assert!(outcome.stdout.contains("created bridge"), "{}", outcome.report());
}

#[test]
fn the_link_of_a_package_stays() {
    let node = Node::new();
    node.driver(&INSTALL).output();
    node.world.host(["sh", "-c", &format!("rm {DIR}/.cnibox*")]);
    fails(&node.driver(&["uninstall"]), 1, "another program installed it");
    node.answers(DRIVER);
}

#[test]
fn the_link_of_another_installation_stays_at_uninstall() {
    let node = Node::new();
    node.driver(&INSTALL).output();
    let other = [NEW, "uninstall", "--netavark", DRIVERS, "/run/node/other"];
    let outcome = node.world.tool(&other, None).run();
    let text = format!("note: {DRIVER} stays: it is of another installation");
    assert!(outcome.status == 0 && outcome.stderr.contains(&text), "{}", outcome.report());
    node.answers(DRIVER);
    // An installation replaces it, and a link that leads to no file: an uninstall had no --netavark.
    let words = [&[NEW][..], &INSTALL, &["--netavark", DRIVERS, "/run/node/other"]].concat();
    let said = node.world.tool(&words, None).run().output();
    let replaced = "symbolic link, in place of another link or copy of cnibox\n";
    assert!(said.ends_with(&format!("replaced {DRIVER}: {replaced}")), "{said}");
    node.world.tool(&[NEW, "uninstall", "/run/node/other"], None).run().output();
    assert_eq!(node.drivers(), "cnibox\n");
    let said = node.driver(&INSTALL).output();
    assert!(said.starts_with(&format!("replaced {DRIVER}: symbolic link")), "{said}");
    node.uninstall().output();
    assert_eq!(node.driver(&["uninstall"]).output(), format!("removed {DRIVER}\n"));
}

#[test]
fn the_plugin_directory_is_no_directory_of_drivers() {
    let node = Node::new();
    node.world.host(["ln", "-s", "bin", "/run/node/link"]);
    node.world.host(["ln", "-s", ".", "/run/node/later"]);
    for directory in [DIR, "/run/node/link", "/run/node/later/bin"] {
        let outcome = node.install(&["--netavark", directory]);
        fails(&outcome, 2, &format!("--netavark {directory}: it is the plugin directory"));
        assert!(node.names().is_empty());
    }
}

/// In the plugin directory, whose files the sweeps compare.
pub(super) const BELOW: [&str; 2] = ["--netavark", "/run/node/bin/netavark"];

pub(super) fn prepare(node: &Node) {
    node.sh("mkdir -p netavark");
    node.foreign(&["bridge"]);
}

#[test]
fn a_killed_command_is_completed_or_taken_back() {
    let node = Node::new();
    let switch = [&INSTALL[..], &["--force", "--backup"], &BELOW].concat();
    let uninstall = [&["uninstall"], &BELOW[..]].concat();
    let prepare = || prepare(&node);
    let foreign = files_after(&node, &prepare);
    let switch_over = || {
        prepare();
        node.command(NEW, &switch).run().output();
    };
    let switched = files_after(&node, &switch_over);
    killed::sweep(&node, &switch, &prepare, &[(&switch, &switched), (&uninstall, &foreign)]);
    killed::sweep(&node, &uninstall, &switch_over, &[(&uninstall, &foreign)]);
}
