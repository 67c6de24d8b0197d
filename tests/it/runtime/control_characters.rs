//! What others choose, such as names, paths and messages, is printed and logged without control characters.

use serde_json::json;

use super::{CONFIGURATIONS, Host, network};
use crate::world::Outcome;

/// CSI in both forms, and a mark that turns the text after it. It fits in the name of an interface.
const HOSTILE: &str = "\u{1b}[2J\u{9b}m\u{202e}x";
/// What is printed of it.
const SHOWN: &str = "?[2J?m?x";

/// Whether each line has only what a terminal shows.
#[track_caller]
fn assert_printed(outcome: &Outcome, of: &str) {
    let is_hostile = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202a}'..='\u{202e}');
    let all = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(!all.contains(is_hostile), "{of}: {all:?}");
}

#[test]
fn names_of_interfaces_and_files_reach_no_terminal_as_they_are() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.world.container("c1");
    host.cnibox(&["add", "net", "c1", "-i", HOSTILE]).run().success();
    host.world.host(["ip", "link", "add", HOSTILE, "type", "veth", "peer", "name", "x"]);
    host.world.write(&format!("{CONFIGURATIONS}/2{HOSTILE}\n.conflist"), "{\u{7f}");
    host.world.write(&format!("/var/lib/cni/results/net-{HOSTILE}-eth0"), "{");
    for words in [
        &["networks"][..],
        &["attachments"],
        &["attachments", "--check"],
        &["ipam", "list"],
        &["lint", CONFIGURATIONS],
        &["doctor"],
        &["reconcile", "--dry-run"],
        &["explain", "net", "-i", HOSTILE],
        &["metrics"],
        &["add", "net", "c1", "-i", HOSTILE],
        &["del", "other", HOSTILE],
        &["gc", "--dry-run"],
        &["run", "-n", "net", "--", HOSTILE],
        &[HOSTILE],
        &["list", HOSTILE],
        &["completion", "words", "--", "add", ""],
    ] {
        assert_printed(&host.cnibox(words).run(), words[0]);
    }
    let rows = host.cnibox(&["attachments"]).run();
    assert!(rows.stdout.contains(&format!(" {SHOWN} ")), "{}", rows.report());
    let networks = host.cnibox(&["networks"]).run();
    let file = format!("warning: cannot read {CONFIGURATIONS}/2{SHOWN}?.conflist: ");
    assert!(networks.stderr.starts_with(&file), "{}", networks.report());
    host.world.host(["ip", "netns", "del", "c1"]);
    host.world.eventually("gc removes it", || {
        let outcome = host.cnibox(&["gc"]).run();
        assert_printed(&outcome, "gc");
        outcome.stdout.contains(&format!("removed {SHOWN} of container "))
    });
}

#[test]
fn what_an_executed_plugin_says_reaches_no_terminal_as_it_is() {
    let host = Host::new();
    let octal = r"\033[2J\302\233m\342\200\256x";
    let stderr = format!(r"printf 'a line\twith {octal}\nthe last' >&2");
    let refuses = r#"printf %s '{"code": 100, "msg": "bad \u001b[2J\u009bm\u202ex\nnext", "details": "x\ry"}'; exit 1"#;
    host.recorder("loud", &format!("{stderr}; [ $CNI_COMMAND = DEL ] || {{ {refuses}; }}"));
    let bridge = json!({"type": "bridge", "bridge": "cni0", "ipam": {"type": "loud"}});
    for plugins in [json!([{"type": "loud"}]), json!([bridge])] {
        let config = json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins});
        host.configure("1.conflist", &config);
        host.world.container("c1");
        let outcome = host.cnibox(&["add", "net", "c1"]).run();
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        assert_printed(&outcome, "add");
        let lines = format!("a line with {SHOWN}\nthe last\n");
        assert!(outcome.stderr.contains(&lines), "{}", outcome.report());
        let error = format!("bad {SHOWN}?next: x?y");
        assert!(outcome.stderr.contains(&error), "{}", outcome.report());
        host.world.host(["ip", "netns", "del", "c1"]);
    }
    let succeeds = host.cnibox(&["del", "net", "/run/netns/c1"]).run();
    assert_printed(&succeeds, "del");
}

#[test]
fn a_line_of_the_log_has_no_name_as_it_is() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.world.container("c1");
    let add = host.cnibox(&["add", "net", "c1", "-i", "a\u{202e}b"]);
    add.env("CNIBOX_LOG", "info,file:/run/log").run().success();
    let text = host.world.read("/run/log");
    assert!(text.contains(r#" ifname="a\u{202e}b" "#), "{text}");
}
