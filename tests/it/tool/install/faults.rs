//! Each operation on a file fails once: the same command again completes it.

use super::{NEW, Node, OLD};

const OPERATIONS_MAX: u32 = 300;
/// So many successes one after the other mean that no operation is left to fail.
const SUCCESSES_MIN: u32 = 4;

/// A failed installation that did not write its manifest has changed nothing. The command again ends with the files that it makes
/// without a failure. Returns how often the command failed.
fn sweep(words: &[&str], prepare: &dyn Fn(&Node)) -> u32 {
    let node = Node::new();
    let begin = || {
        node.sh("rm -rf ./* ./.cnibox*");
        prepare(&node);
    };
    begin();
    let before = node.files();
    let manifest = || node.sh("cat .cnibox.manifest 2>/dev/null || true");
    let (old_manifest, mut failures, mut successes) = (manifest(), 0, 0);
    node.command(NEW, words).run().output();
    let after = node.files();
    assert_ne!(before, after);
    for number in 1..OPERATIONS_MAX {
        begin();
        let outcome = node.command(NEW, words).env("CNIBOX_FAIL_FILE", &number.to_string()).run();
        if outcome.status == 0 {
            successes += 1;
        } else {
            (failures, successes) = (failures + 1, 0);
            let stderr = &outcome.stderr;
            assert!(
                stderr.contains("cnibox: cannot ") && stderr.contains("Input/output"),
                "{stderr}"
            );
            if words[0] == "install" && manifest() == old_manifest {
                assert_eq!(node.files(), before, "{number}: {stderr}");
            }
            node.command(NEW, words).run().output();
        }
        assert_eq!(node.files(), after, "{number}: {}", outcome.stderr);
        if successes == SUCCESSES_MIN {
            return failures;
        }
    }
    panic!("more than {OPERATIONS_MAX} operations");
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
