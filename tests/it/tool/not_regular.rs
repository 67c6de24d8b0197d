//! A damaged file among those that a command finds by itself: it is named, nothing waits, and the command goes on with the
//! others.

use std::os::unix::net::UnixListener;

use super::ipam::host::Host;

/// The file in its place, and why it cannot be used.
const INSTEAD: [(&str, &str); 5] = [
    ("FIFO", "it is a FIFO, not a regular file"),
    ("device", "it is a device, not a regular file"),
    ("socket", "it is a socket, not a regular file"),
    ("sparse file", "it has more than "),
    ("link to a directory", "it is a directory, not a regular file"),
];
/// In seconds. A command takes milliseconds. timeout(1) ends with 124, the allocation of too much memory by SIGABRT.
const LIMIT: &str = "60";
const CONFIGURATION: &str = "/run/net.d/00-damaged.conflist";
const ENTRY: &str = "/var/lib/cni/results/net-damaged-eth0";
const RESERVATION: &str = "/var/lib/cni/networks/net/10.1.0.200";

/// Each command, the damaged files that it names, and a text about the rest.
const COMMANDS: [(&str, &[&str], &str); 6] = [
    ("lint", &[CONFIGURATION], "a fault of the other file"),
    ("doctor", &[CONFIGURATION, ENTRY, RESERVATION], "another.conflist"),
    ("attachments", &[ENTRY], "c1"),
    ("gc", &[ENTRY], "two"),
    ("ipam list", &[CONFIGURATION, ENTRY, RESERVATION], "10.1.0.2"),
    ("metrics", &[CONFIGURATION, ENTRY, RESERVATION], "cnibox_attachments{network=\"net\""),
];

fn plant(host: &Host, what: &str, path: &str) {
    let make = match what {
        "FIFO" => "mkfifo \"$0\"",
        "device" => "ln -s /dev/zero \"$0\"",
        "sparse file" => "truncate -s 100G \"$0\"",
        "link to a directory" => "ln -s /etc \"$0\"",
        _ => "true",
    };
    host.world.host(["sh", "-ec", &format!("rm -f \"$0\"; {make}"), path]);
    if what == "socket" {
        drop(UnixListener::bind(host.world.path(path)).unwrap());
    }
}

#[test]
fn a_command_names_a_damaged_file_and_goes_on() {
    let mut problems = Vec::new();
    for (what, reason) in INSTEAD {
        let host = Host::new();
        host.world.write(
            "/run/net.d/another.conflist",
            r#"{"cniVersion":"1.0.0","name":"a fault of the other file","plugins":[{"type":"bridge"}]}"#,
        );
        let _c1 = host.attached("c1");
        host.dead("two");
        for path in [CONFIGURATION, ENTRY, RESERVATION] {
            plant(&host, what, path);
        }
        for (command, paths, rest) in COMMANDS {
            let words: Vec<&str> = command.split(' ').collect();
            let outcome = host.cnibox(&words).under(&["timeout", LIMIT]).run();
            let text = format!("{}{}", outcome.stdout, outcome.stderr);
            let is_named = |path: &&str| {
                text.lines().any(|line| line.contains(*path) && line.contains(reason))
            };
            if ![0, 1].contains(&outcome.status)
                || !paths.iter().all(is_named)
                || !text.contains(rest)
            {
                problems.push(format!("{what}, {command}: {}", outcome.report()));
            }
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn lint_reads_the_fifo_that_it_is_given_up_to_its_limit() {
    let host = Host::new();
    let lint = |input: &str| {
        let script = format!("exec timeout {LIMIT} /run/bin/cnibox lint <({input})");
        host.world.tool(&["bash", "-c", &script], None).env("CNI_PATH", "/run/plugins").run()
    };
    lint(r#"echo '{"cniVersion":"1.0.0","name":"a","type":"loopback"}'"#).silence();
    let fault = lint("echo '{'");
    assert_eq!(fault.status, 1, "{}", fault.report());
    assert!(fault.stdout.contains("cannot read JSON"), "{}", fault.report());
    for endless in ["cat /dev/zero", "yes"] {
        let outcome = lint(endless);
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        let reason = "it has more than 4194304 bytes\n";
        assert!(outcome.stderr.ends_with(reason), "{}", outcome.report());
    }
    host.world.write("/run/net.d/20-torn.conflist", "{");
    let zero = host.cnibox(&["lint", "/dev/zero", "/run/net.d"]).under(&["timeout", LIMIT]).run();
    assert_eq!(zero.status, 1, "{}", zero.report());
    let reason = "cannot read /dev/zero: it has more than 4194304 bytes\n";
    let is_right = zero.stderr.ends_with(reason) && zero.stdout.contains("20-torn.conflist");
    assert!(is_right, "{}", zero.report());
}
