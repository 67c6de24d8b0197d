//! Each operation on a file fails once: the directory is then as it was, or as it should be.

use super::{NEW, Node, OLD};

const OPERATIONS_MAX: u32 = 300;
/// So many successes one after the other mean that no operation is left to fail.
const SUCCESSES_MIN: u32 = 4;

/// The command fails and changes nothing, or succeeds. Returns how often it failed.
fn sweep(words: &[&str], prepare: &dyn Fn(&Node), may_be_partial: bool) -> u32 {
    let node = Node::new();
    let (mut failures, mut successes) = (0, 0);
    prepare(&node);
    let before = node.files();
    for number in 1..OPERATIONS_MAX {
        let call = node.command(NEW, words).env("CNIBOX_FAIL_FILE", &number.to_string());
        let outcome = call.run();
        if outcome.status == 0 {
            successes += 1;
            node.sh("rm -rf ./* ./.cnibox*");
            prepare(&node);
        } else {
            (failures, successes) = (failures + 1, 0);
            let stderr = &outcome.stderr;
            assert!(
                stderr.contains("cnibox: cannot ") && stderr.contains("Input/output"),
                "{stderr}"
            );
            if may_be_partial {
                node.command(NEW, words).run().output();
                node.sh("rm -rf ./* ./.cnibox*");
                prepare(&node);
            }
            assert_eq!(node.files(), before, "{number}: {stderr}");
        }
        if successes == SUCCESSES_MIN {
            return failures;
        }
    }
    panic!("more than {OPERATIONS_MAX} operations");
}

#[test]
fn a_failed_installation_is_rolled_back() {
    for kind in
        [&["install", "--only", "bridge,portmap"][..], &["install", "-s", "--only", "bridge"]]
    {
        assert!(sweep(kind, &|_| {}, false) > 10);
    }
}

#[test]
fn a_failed_upgrade_is_rolled_back() {
    let prepare = |node: &Node| {
        node.command(OLD, &["install", "--only", "bridge,portmap"]).run().output();
    };
    let copies = ["install", "--copy", "--only", "bridge"];
    assert!(sweep(&copies, &prepare, false) > 10);
}

#[test]
fn a_failed_switch_is_rolled_back() {
    let prepare = |node: &Node| node.foreign(&["bridge", "portmap"]);
    let switch = ["install", "--force", "--backup", "--only", "bridge,portmap"];
    assert!(sweep(&switch, &prepare, false) > 15);
}

#[test]
fn a_failed_removal_is_completed_by_the_next() {
    let prepare = |node: &Node| {
        node.foreign(&["bridge"]);
        node.install(&["--force", "--backup", "--only", "bridge,portmap"]).output();
    };
    assert!(sweep(&["uninstall"], &prepare, true) > 4);
}
