//! docs/tool.md: the keys of JSON documents are those that the commands print.

use serde_json::json;

use super::ipam::host::Host;
use crate::world::{leaves, parse};

const DOCUMENT: &str = include_str!("../../../docs/tool.md");

/// The keys of a command, and whether free keys are below each.
fn documented(command: &str) -> Vec<(String, bool)> {
    let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix(&format!("| `{command}` | ")));
    let row = |row: &str| {
        let (keys, of_type) = row.split_once(" | ")?;
        let has_free = of_type.starts_with("object");
        let key = move |key: &str| (key.trim_matches('`').replace('?', ""), has_free);
        Some(keys.split(", ").map(key).collect::<Vec<_>>())
    };
    rows.filter_map(row).flatten().collect()
}

#[test]
fn each_key_that_a_command_prints_is_documented() {
    let host = Host::new();
    let _web = host.attached("web");
    host.reserve_file("10.1.0.7", "not an owner");
    let faulty = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "brigde"}]});
    host.world.write("/run/faulty.conflist", faulty.to_string());
    host.dead("dead");
    let installed = ["install", "--force", "--backup", "--only", "bridge", "/run/installed"];
    host.world.write("/run/installed/bridge", "another file");
    host.cnibox(&installed).run().output();
    host.world.write("/run/installed/cnibox", "another file");
    let commands: [(&str, &[&str]); 14] = [
        ("install", &["install", "--force", "--backup", "--dry-run", "/run/installed"]),
        ("uninstall", &["uninstall", "--dry-run", "/run/installed"]),
        ("networks", &["networks"]),
        ("attachments", &["attachments"]),
        ("attachments", &["attachments", "--check"]),
        ("ipam list", &["ipam", "list"]),
        ("ipam leaks", &["ipam", "leaks"]),
        ("ipam reserve", &["ipam", "reserve", "10.1.0.99"]),
        ("lint", &["lint", "/run/faulty.conflist"]),
        ("doctor", &["doctor"]),
        ("gc", &["gc", "--dry-run"]),
        ("gc", &["gc", "--confirm"]),
        ("reconcile", &["reconcile", "--dry-run"]),
        ("explain", &["explain", "net"]),
    ];
    for (command, args) in commands {
        let document = parse(&host.cnibox(&[args, &["--json"]].concat()).run().stdout);
        let (known, found) = (documented(command), leaves(&document));
        assert!(!found.is_empty() && !known.is_empty(), "{command}: {document}");
        for key in found {
            let is_it = |(known, has_free): &(String, bool)| {
                *known == key || *has_free && key.starts_with(&format!("{known}."))
            };
            assert!(known.iter().any(is_it), "{command}: docs/tool.md does not have {key}");
        }
    }
}
