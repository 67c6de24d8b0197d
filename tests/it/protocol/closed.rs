//! A caller that closes stdin, stdout or stderr: no file or socket of the call gets its number. Each is /dev/null then, as in
//! most programs.

use serde_json::{Value, json};

use crate::world::{Container, World, with};

/// A plugin that is executed: it fails unless it has its three pipes, and gives an address.
const DELEGATE: &str = r#"#!/bin/sh
set -e
for number in 0 1 2; do test -p /proc/self/fd/$number; done
if [ $CNI_COMMAND = VERSION ]; then
    echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}'
    exit
fi
grep -q my-ipam
echo "it notes $CNI_COMMAND" >&2
if [ $CNI_COMMAND = ADD ]; then
    echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]}'
fi
"#;

/// The standard files that a call lacks, one bit for each.
const NONE: u8 = 0;
const ALL: u8 = 7;
const STDIN: u8 = 1;
const STDOUT: u8 = 2;
const STDERR: u8 = 4;

fn world() -> World {
    let world = World::new();
    world.host(["mkdir", "-p", "/run/own", "/run/net.d"]);
    world.tool(&["tee", "/run/own/my-ipam"], None).stdin(DELEGATE).run().output();
    world.host(["chmod", "755", "/run/own/my-ipam"]);
    world
}

fn network(ipam: &Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "isGateway": true,
        "ipMasq": true, "macspoofchk": true, "ipam": ipam})
}

/// The program `$0` with its arguments and without some of its standard files.
fn without(closed: u8) -> String {
    let redirections = [(STDIN, " <&-"), (STDOUT, " >&-"), (STDERR, " 2>&-")];
    let of = redirections.iter().filter(|(bit, _)| closed & bit != 0).map(|(_, text)| *text);
    format!("exec \"$0\" \"$@\"{}", of.collect::<String>())
}

/// All that a DEL removes.
fn state(world: &World, c1: &Container<'_>) -> crate::world::State {
    world.state_with(&[c1]).apart_from("cni0", "net")
}

#[test]
fn a_plugin_with_closed_files_uses_none_of_their_numbers() {
    let world = world();
    let c1 = world.container("c1");
    let host_local = json!({"type": "host-local", "subnet": "10.1.0.0/24"});
    for ipam in [host_local, json!({"type": "my-ipam"})] {
        let config = network(&ipam);
        let call = |verb: &str, closed: u8| {
            let call = c1.call("bridge", verb, &config).under(&["sh", "-c", &without(closed)]);
            call.env("CNI_PATH", "/run/own:/run/plugins").run()
        };
        call("ADD", NONE).success();
        call("DEL", NONE).silence();
        let before = state(&world, &c1);
        for closed in NONE..=ALL {
            let add = call("ADD", closed);
            let what = format!("{ipam}, {closed}: {}", add.report());
            if closed & STDIN != 0 {
                assert_eq!(add.status, 1, "{what}");
                let has_error = closed & STDOUT == 0;
                assert!(!has_error || add.error().code == 6, "{what}: no configuration");
            } else {
                assert_eq!(add.status, 0, "{what}");
                if closed & STDOUT == 0 {
                    let check = with(&config, json!({"prevResult": add.success()}));
                    let check = c1.call("bridge", "CHECK", &check);
                    let check = check.under(&["sh", "-c", &without(closed | STDOUT)]);
                    check.env("CNI_PATH", "/run/own:/run/plugins").run().silence();
                }
                assert_eq!(call("DEL", closed | STDOUT).status, 0, "{what}");
            }
            before.assert_same(&state(&world, &c1), &what);
        }
    }
}

/// It needs no stdin, so its plugins get theirs whatever is closed.
#[test]
fn a_runtime_with_closed_files_uses_none_of_their_numbers() {
    let world = world();
    let c1 = world.container("c1");
    let list = |kind: &str| {
        let plugin = with(&network(&json!({"type": kind})), json!({"name": null}));
        json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]}).to_string()
    };
    world.write("/run/net.d/1.conflist", list("my-ipam"));
    let call = |verb: &str, closed: u8| {
        let words = ["sh", "-c", &without(closed), "/run/bin/cnibox", verb, "net", "c1"];
        let call = world.tool(&words, None).env("NETCONFPATH", "/run/net.d");
        call.env("CNI_PATH", "/run/own:/run/plugins").run()
    };
    call("add", NONE).success();
    call("del", NONE).silence();
    let before = state(&world, &c1);
    for closed in NONE..=ALL {
        let add = call("add", closed);
        let what = format!("{closed}: {}", add.report());
        assert_eq!(add.status, 0, "{what}");
        assert_eq!(call("check", closed | STDOUT).status, 0, "{what}");
        assert_eq!(call("del", closed | STDOUT).status, 0, "{what}");
        before.assert_same(&state(&world, &c1), &what);
    }
}
