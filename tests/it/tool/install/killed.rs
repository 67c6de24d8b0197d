//! SIGKILL at each system call that changes something. Between two of these the directory is the same.

use std::collections::BTreeMap;

use super::{DIR, NEW, Node, OLD};
use crate::world::at_every_change;

const NAMES: [&str; 3] = ["cnibox", "bridge", "portmap"];
const ONLY: [&str; 2] = ["--only", "bridge,portmap"];
const SWITCH: [&str; 4] = ["--force", "--backup", "--only", "bridge,portmap"];

type Files = BTreeMap<String, String>;

/// Kills a command at each change. After each, every name is the file before or the file after, and works. Then the commands
/// of `completions` end with these files, the manifest not counted.
pub(super) fn sweep(
    node: &Node,
    words: &[&str],
    prepare: &dyn Fn(),
    completions: &[(&[&str], &Files)],
) {
    prepare();
    let before = node.files();
    node.command(NEW, words).run().output();
    let after = node.files();
    assert_ne!(before, after);
    let killed = at_every_change(
        &node.world,
        || node.command(NEW, words),
        || {
            node.world.host(["rm", "-rf", DIR]);
            node.world.host(["mkdir", DIR]);
            prepare();
        },
        |point| {
            let files = node.files();
            for name in NAMES {
                let file = files.get(name);
                let is_whole = file == before.get(name) || file == after.get(name);
                assert!(is_whole, "{name} at {point}: {files:?}");
                if file.is_some() && name != "cnibox" {
                    node.version(name);
                }
            }
            for (words, expected) in completions {
                let outcome = node.command(NEW, words).run();
                assert_eq!(outcome.status, 0, "{words:?} at {point}: {}", outcome.report());
                assert_eq!(node.files(), **expected, "{words:?} at {point}");
            }
        },
    );
    assert!(killed > 5, "{killed}");
}

pub(super) fn files_after(node: &Node, prepare: &dyn Fn()) -> Files {
    prepare();
    let files = node.files();
    node.world.host(["rm", "-rf", DIR]);
    node.world.host(["mkdir", DIR]);
    files
}

fn install_of<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["install"], options].concat()
}

#[test]
fn an_installation_is_completed_by_the_next() {
    let node = Node::new();
    let install = install_of(&ONLY);
    let installed = files_after(&node, &|| drop(node.command(NEW, &install).run().output()));
    sweep(&node, &install, &|| {}, &[(&install, &installed), (&["uninstall"], &Files::new())]);
}

#[test]
fn an_installation_is_taken_back_by_uninstall() {
    let node = Node::new();
    let install = install_of(&["-s", "--only", "bridge,portmap"]);
    // Without a manifest no file has changed.
    sweep(&node, &install, &|| {}, &[(&["uninstall"], &Files::new())]);
}

#[test]
fn an_upgrade_is_completed_or_taken_back() {
    let node = Node::new();
    let install = install_of(&ONLY);
    let prepare = || drop(node.command(OLD, &install).run().output());
    sweep(&node, &install, &prepare, &[(&["uninstall"], &Files::new())]);
    let upgraded = files_after(&node, &|| drop(node.command(NEW, &install).run().output()));
    sweep(&node, &install, &prepare, &[(&install, &upgraded)]);
}

#[test]
fn a_switch_is_completed_and_taken_back() {
    let node = Node::new();
    let install = install_of(&SWITCH);
    let prepare = || node.foreign(&["bridge", "portmap"]);
    let foreign = files_after(&node, &prepare);
    let switched = files_after(&node, &|| {
        prepare();
        node.command(NEW, &install).run().output();
    });
    sweep(&node, &install, &prepare, &[(&install, &switched), (&["uninstall"], &foreign)]);
    sweep(&node, &install, &prepare, &[(&["uninstall"], &foreign)]);
}

#[test]
fn the_way_back_is_completed() {
    let node = Node::new();
    let install = install_of(&SWITCH);
    let foreign = files_after(&node, &|| node.foreign(&["bridge", "portmap"]));
    let prepare = || {
        node.foreign(&["bridge", "portmap"]);
        node.command(NEW, &install).run().output();
    };
    sweep(&node, &["uninstall"], &prepare, &[(&["uninstall"], &foreign)]);
}
