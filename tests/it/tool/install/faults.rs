//! Each operation on a file fails once: the same command again completes it.

use super::netavark::{BELOW, INSTALL, prepare as prepare_driver};
use super::{NEW, Node, OLD};
use crate::faults::{Effect, for_every_fault};

const OPERATIONS_MAX: u32 = 300;

/// A failed installation that did not write its manifest has changed nothing. The command again ends with the files that it makes
/// without a failure. Returns how often the command failed.
pub(super) fn sweep(words: &[&str], prepare: &dyn Fn(&Node)) -> u32 {
    let node = Node::new();
    let begin = || {
        node.sh("rm -rf ./* ./.cnibox*");
        prepare(&node);
    };
    begin();
    let before = node.files();
    let manifest = || node.sh("cat .cnibox.manifest 2>/dev/null || true");
    let old_manifest = manifest();
    node.command(NEW, words).run().output();
    let after = node.files();
    assert_ne!(before, after);
    for_every_fault(|number| {
        assert!(number < OPERATIONS_MAX, "more than {OPERATIONS_MAX} operations");
        begin();
        let outcome = node.command(NEW, words).env("CNIBOX_FAIL_FILE", &number.to_string()).run();
        let effect = Effect::on(&outcome);
        if effect == Effect::Failure {
            let stderr = &outcome.stderr;
            assert!(stderr.contains("cnibox: cannot ") && stderr.contains("I/O error"), "{stderr}");
            if words[0] == "install" && manifest() == old_manifest {
                assert_eq!(node.files(), before, "{number}: {stderr}");
            }
            node.command(NEW, words).run().output();
        }
        assert_eq!(node.files(), after, "{number}: {}", outcome.stderr);
        effect
    })
}

#[test]
fn a_failed_installation_is_completed_by_the_next() {
    for kind in
        [&["install", "--only", "bridge,portmap"][..], &["install", "-s", "--only", "bridge"]]
    {
        assert!(sweep(kind, &|_| {}) > 10);
    }
}

#[test]
fn a_failed_upgrade_is_completed_by_the_next() {
    let prepare = |node: &Node| {
        node.command(OLD, &["install", "--only", "bridge,portmap"]).run().output();
    };
    assert!(sweep(&["install", "--copy", "--only", "bridge"], &prepare) > 10);
}

#[test]
fn a_failed_switch_is_completed_by_the_next() {
    let prepare = |node: &Node| node.foreign(&["bridge", "portmap"]);
    let switch = ["install", "--force", "--backup", "--only", "bridge,portmap"];
    assert!(sweep(&switch, &prepare) > 15);
}

#[test]
fn a_failed_removal_is_completed_by_the_next() {
    let prepare = |node: &Node| {
        node.foreign(&["bridge"]);
        node.install(&["--force", "--backup", "--only", "bridge,portmap"]).output();
    };
    assert!(sweep(&["uninstall"], &prepare) > 4);
}

#[test]
fn a_failed_command_with_a_driver_is_completed_by_the_next() {
    let switch = [&INSTALL[..], &["--force", "--backup"], &BELOW].concat();
    assert!(sweep(&[&INSTALL[..], &BELOW].concat(), &|_| {}) > 10);
    assert!(sweep(&switch, &prepare_driver) > 15);
    let prepare = |node: &Node| {
        prepare_driver(node);
        node.command(NEW, &switch).run().output();
    };
    assert!(sweep(&[&["uninstall"], &BELOW[..]].concat(), &prepare) > 4);
}
