//! File systems that lack a kind of link, and hosts that cannot execute the new file.

use super::{DIR, NEW, Node, fails};
use crate::world::Outcome;

const LINKS: &str = "inject=link,linkat:error=EPERM";
const SYMBOLIC_LINKS: &str = "inject=symlink,symlinkat:error=EPERM";

/// A command on a file system that refuses some system calls.
fn without(node: &Node, refused: &[&str], words: &[&str]) -> Outcome {
    let mut under = vec!["strace", "-qq", "-o", "/dev/null"];
    for fault in refused {
        under.extend(["-e", fault]);
    }
    node.command(NEW, words).under(&under).run()
}

#[test]
fn without_hard_links_there_are_copies() {
    let node = Node::new();
    node.foreign(&["bridge"]);
    let words = ["install", "--force", "--backup", "--only", "bridge"];
    let outcome = without(&node, &[LINKS], &words);
    let note = "note: a copy for each hard link: Operation not permitted\n";
    assert_eq!(outcome.stderr, note, "{}", outcome.report());
    let said = outcome.output();
    assert!(said.contains("replaced bridge: copy, "), "{said}");
    assert_eq!(node.kind("bridge"), "copy");
    node.version("bridge");
    // Links are no longer refused.
    node.install(&[]).output();
    assert_eq!(node.kind("bridge"), "hard link");
    without(&node, &[LINKS], &["uninstall"]).output();
    assert_eq!(node.names(), ["bridge"]);
    assert_eq!(node.version("bridge")["of"], "bridge");
}

#[test]
fn without_symbolic_links_they_are_an_error_and_nothing_changes() {
    let node = Node::new();
    let outcome = without(&node, &[SYMBOLIC_LINKS], &["install", "-s", "--only", "bridge"]);
    fails(&outcome, 1, "/bridge: Operation not permitted");
    assert!(node.names().is_empty());
}

#[test]
fn an_executable_that_does_not_run_replaces_nothing() {
    let node = Node::new();
    node.foreign(&["bridge"]);
    node.world.host(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", DIR]);
    node.foreign(&["bridge"]);
    let before = node.files();
    let outcome = node.install(&["--force", "--backup", "--only", "bridge,portmap"]);
    fails(&outcome, 1, "cannot install into /run/node/bin: the new bridge does not work here");
    assert!(outcome.stderr.contains("Permission denied"), "{}", outcome.report());
    assert_eq!(node.files(), before);
}

#[test]
fn an_installation_needs_no_proc() {
    let node = Node::new();
    let script = format!(
        "mount -t tmpfs tmpfs /proc && {NEW} install --only bridge {DIR} && {NEW} install {DIR} && {NEW} uninstall {DIR}"
    );
    let words = ["unshare", "--mount", "sh", "-c", &script];
    let said = node.world.tool(&words, None).run().output();
    assert!(said.ends_with("removed bridge\nremoved cnibox\n"), "{said}");
}

#[test]
fn a_full_or_read_only_file_system_is_an_error_and_nothing_changes() {
    let node = Node::new();
    for (option, text) in
        [("size=512k", "No space left on device"), ("ro", "Read-only file system")]
    {
        node.world.host(["mount", "-t", "tmpfs", "-o", option, "tmpfs", DIR]);
        fails(&node.install(&[]), 1, text);
        assert!(node.names().is_empty());
        node.world.host(["umount", DIR]);
    }
}

#[test]
fn a_lower_layer_of_an_overlay_is_replaced_and_put_back() {
    let node = Node::new();
    node.foreign(&["bridge"]);
    let script = format!(
        "mkdir /run/node/upper /run/node/work && mount -t overlay -o lowerdir={DIR},upperdir=/run/node/upper,workdir=/run/node/work overlay {DIR}"
    );
    node.world.host(["sh", "-c", &script]);
    node.install(&["--force", "--backup", "--only", "bridge,portmap"]).output();
    assert_eq!(node.version("bridge").get("of"), None);
    node.uninstall().output();
    assert_eq!(node.version("bridge")["of"], "bridge");
    assert_eq!(node.names(), ["bridge"]);
}
