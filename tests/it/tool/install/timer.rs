//! `--timer`: the units of systemd that call `cnibox gc --confirm`, on this host or on one below another root directory.

use std::fs;
use std::path::Path;

use super::{NEW, Node};
use crate::world::{Outcome, parse};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/systemd");
/// The root directory of a host, with the directory of its units.
const ROOT: &str = "/run/node/host";
const PLUGINS: &str = "/run/node/host/opt/cni/plugins";
const UNITS: &str = "/run/node/host/etc/systemd/system";

fn node() -> Node {
    let node = Node::new();
    node.sh(&format!("mkdir -p {PLUGINS} {UNITS}"));
    node
}

impl Node {
    fn timer(&self, words: &[&str]) -> Outcome {
        let words = [&[NEW], words, &["--timer", ROOT, PLUGINS]].concat();
        self.world.tool(&words, None).run()
    }

    fn units(&self) -> Vec<String> {
        let find = format!("cd {UNITS}; find . -not -type d | sort");
        self.sh(&find).lines().map(str::to_owned).collect()
    }
}

const ALL: [&str; 4] = [
    "./cnibox-gc.service",
    "./cnibox-gc.timer",
    "./cnibox-reconcile.service",
    "./timers.target.wants/cnibox-gc.timer",
];

#[test]
fn the_units_of_the_packages_are_placed_for_the_directory_of_the_host_and_taken_away() {
    let node = node();
    let dry = node.timer(&["install", "--only", "bridge", "--dry-run"]).output();
    assert!(dry.ends_with(
        "would create /etc/systemd/system/cnibox-gc.service: unit\n\
         would create /etc/systemd/system/cnibox-reconcile.service: unit\n\
         would create /etc/systemd/system/cnibox-gc.timer: unit\n\
         would create /etc/systemd/system/timers.target.wants/cnibox-gc.timer: unit\n"
    ));
    assert_eq!(node.units(), [""; 0]);
    let first = node.timer(&["install", "--only", "bridge"]);
    assert!(
        first.stderr.contains("note: the timer runs from the next boot on"),
        "{}",
        first.report()
    );
    assert!(first.output().contains("created /etc/systemd/system/cnibox-gc.timer: unit\n"));
    assert_eq!(node.units(), ALL);
    for name in ["cnibox-gc.service", "cnibox-gc.timer", "cnibox-reconcile.service"] {
        let ours = fs::read_to_string(format!("{PACKAGING}/{name}")).unwrap();
        // The path is that of the host.
        let expected = ours.replace("/opt/cni/bin", "/opt/cni/plugins");
        assert_eq!(node.world.read(&format!("{UNITS}/{name}")), expected);
    }
    let link = node.world.path(UNITS).join(ALL[3]);
    assert_eq!(fs::read_link(link).unwrap(), Path::new("/etc/systemd/system/cnibox-gc.timer"));
    let again = node.timer(&["install", "--only", "bridge"]);
    assert_eq!((again.status, &*again.stdout, &*again.stderr), (0, "", ""));
    // A version before has another text.
    node.sh(&format!("echo '#' >>{UNITS}/cnibox-gc.service"));
    let said = node.timer(&["install", "--only", "bridge"]).output();
    assert_eq!(said, "replaced /etc/systemd/system/cnibox-gc.service: unit\n");
    // An administrator enabled the watcher.
    let wants = format!("{UNITS}/multi-user.target.wants");
    node.sh(&format!("mkdir {wants}; ln -s /nowhere {wants}/cnibox-reconcile.service"));
    let removed = node.timer(&["uninstall"]).output();
    assert!(removed.contains("removed /etc/systemd/system/cnibox-gc.timer: unit\n"), "{removed}");
    assert_eq!(node.units(), [""; 0]);
    assert_eq!(node.timer(&["uninstall"]).output(), "");
}

#[test]
fn a_masked_unit_and_the_units_of_another_directory_stay() {
    let node = node();
    node.sh(&format!("ln -s /dev/null {UNITS}/cnibox-gc.timer"));
    let outcome = node.timer(&["install", "--only", "bridge", "--json"]);
    let left = &parse(&outcome.stdout)["left"];
    assert_eq!(left[0]["name"], "cnibox-gc.timer", "{left}");
    assert!(outcome.stderr.contains("stays: it is a symbolic link"), "{}", outcome.report());
    assert!(!node.units().contains(&ALL[3].to_owned()));
    node.sh(&format!("rm {UNITS}/cnibox-gc.timer"));
    node.timer(&["install", "--only", "bridge"]).output();
    let other = [NEW, "uninstall", "--timer", ROOT, "/run/node/host/opt/cni"];
    let outcome = node.world.tool(&other, None).run();
    assert!(outcome.stderr.contains("it is for another directory"), "{}", outcome.report());
    assert_eq!(node.units(), ALL);
}

#[test]
fn a_wrong_root_changes_nothing_and_a_host_without_systemd_has_its_plugins() {
    let node = node();
    let call = |root: &str, directory: &str| {
        let words = [NEW, "install", "--only", "bridge", "--timer", root, directory];
        node.world.tool(&words, None).run()
    };
    for (root, directory, text) in [
        ("/run/other", PLUGINS, "is not below it"),
        ("host", PLUGINS, "is not below it"),
        ("/run/node", "/run/node/a b", "no unit can have the path"),
    ] {
        let outcome = call(root, directory);
        assert!(outcome.status == 2 && outcome.stderr.contains(text), "{}", outcome.report());
    }
    assert_eq!(node.sh(&format!("ls {PLUGINS}")), "");
    let outcome = call("/run/node", PLUGINS);
    let text = "cannot enable cnibox-gc.timer: cannot write /run/node/etc/systemd/system/cnibox-gc.service: No such file";
    assert!(outcome.status == 1 && outcome.stderr.contains(text), "{}", outcome.report());
    assert!(node.sh(&format!("ls {PLUGINS}")).contains("bridge"));
}

#[test]
fn the_units_stay_if_it_cannot_be_read_whose_they_are() {
    let node = node();
    node.timer(&["install", "--only", "bridge"]).output();
    node.sh(&format!("truncate -s 100G {UNITS}/cnibox-gc.service"));
    let words = [NEW, "uninstall", "--timer", ROOT, PLUGINS];
    let outcome = node.world.tool(&words, None).under(&["prlimit", "--as=268435456"]).run();
    let reason = "cnibox-gc.service: it has more than 16777216 bytes";
    assert!(outcome.status == 1 && outcome.stderr.contains(reason), "{}", outcome.report());
    assert_eq!(node.units(), ALL);
    // The next installation repairs the file.
    let said = node.timer(&["install", "--only", "bridge"]).output();
    assert!(said.contains("replaced /etc/systemd/system/cnibox-gc.service: unit\n"), "{said}");
    node.timer(&["uninstall"]).output();
    assert_eq!(node.units(), [""; 0]);
}
