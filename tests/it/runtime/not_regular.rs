//! A FIFO, a device or a directory in place of a file of the runtime is refused at once.

use std::os::unix::net::UnixListener;

use serde_json::json;

use super::{CONFIGURATIONS, Host, list, printing};
use crate::world::RECORDS;

/// The file in its place. (A link to a device: a new one cannot be made without privileges.)
const INSTEAD: [&str; 4] = ["FIFO", "device", "socket", "directory"];
/// In seconds. A call takes milliseconds; the wait for a lock is 30 s.
const LIMIT: &str = "60";

/// A file of the attachment `a`, `eth0` in the network `net`, and the commands that fail. A cache entry or record that cannot be read
/// prevents no DEL; an ADD would replace an attachment that may live.
const FILES: [(&str, &[&str]); 5] = [
    ("/run/net.d/0.conflist", &[]),
    // `gc --uncached` would not keep its attachment.
    ("/var/lib/cni/results/net-a-eth0", &["add", "check", "gc"]),
    // The record of the namespace.
    (RECORDS, &["add", "check"]),
    ("/run/cnibox/locks/network-net", &["add", "check", "del", "gc"]),
    ("/run/cnibox/locks/container-a", &["add", "check", "del"]),
];

fn plant(host: &Host, what: &str, path: &str) {
    let make = match what {
        "FIFO" => "mkfifo \"$0\"",
        "device" => "ln -s /dev/zero \"$0\"",
        "directory" => "mkdir \"$0\"",
        _ => "true",
    };
    let script = format!("mkdir -p \"$(dirname \"$0\")\"; rm -rf \"$0\"; {make}");
    host.world.host(["sh", "-ec", &script, path]);
    if what == "socket" {
        drop(UnixListener::bind(host.world.path(path)).unwrap());
    }
}

#[test]
fn a_file_that_is_not_regular_is_refused_at_once() {
    let mut problems = Vec::new();
    for (path, failing) in FILES {
        for what in INSTEAD {
            // A directory is no configuration.
            if path.starts_with(CONFIGURATIONS) && what == "directory" {
                continue;
            }
            for command in ["add", "check", "del", "gc"] {
                let host = Host::new();
                host.recorder("one", &printing(&json!({"cniVersion": "1.1.0"})));
                host.configure("1.conflist", &list("1.1.0", &["one"]));
                host.world.container("c1");
                let id = ["net", "c1", "--container-id", "a"];
                if command != "add" {
                    host.cnibox(&[&["add"], &id[..]].concat()).run().success();
                }
                let record = host.record_of("net", "a");
                let path = if path == RECORDS { &record } else { path };
                plant(&host, what, path);
                // Without --uncached it locks only what it deletes.
                let words = if command == "gc" { &["net", "--uncached"] } else { &id[..] };
                let call = host.cnibox(&[&[command], words].concat());
                let outcome = call.under(&["timeout", "--signal=KILL", LIMIT]).run();
                // These files are opened for writing, which follows no symbolic link.
                let is_written = path.contains("/locks/") || path == record && command == "add";
                let kind = if what == "device" && is_written { "symbolic link" } else { what };
                let reason = format!("it is a {kind}, not a regular file");
                let is_named = outcome.stderr.contains(path) && outcome.stderr.contains(&reason);
                let is_right = match outcome.status {
                    _ if failing.contains(&command) => outcome.status == 1 && is_named,
                    // A directory in place of a file that it has to write or remove can fail it, too.
                    status => status == 0 || status == 1 && what == "directory",
                };
                if !is_right {
                    problems.push(format!("{path}, {what}, {command}: {}", outcome.report()));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}
