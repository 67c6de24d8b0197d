//! A stdout or a file that cannot be written: the call fails with exit code 1, and nothing is left of it.

use serde_json::{Value, json};

use crate::world::{Bare, Outcome, World, with};

/// `$0` with a stdout that is a pipe without a reader. The shell ends it only when it has started.
const BROKEN_PIPE: &str = "mkfifo /run/pipe; exec 3<>/run/pipe 4>/run/pipe 3<&-; exec \"$0\" >&4";
/// `$0` with a stdout that is a file, while no file may have a byte.
const NO_BYTE: &str = "ulimit -f 0; exec \"$0\" >/run/stdout";
/// `$0` with a stdout that is always full.
const FULL: &str = "exec \"$0\" >/dev/full";
const UNWRITABLE: [&str; 3] = [BROKEN_PIPE, NO_BYTE, FULL];

fn network() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "ipMasq": true,
        "macspoofchk": true, "ipam": {"type": "static", "addresses": [{"address": "10.1.0.5/24"}]}})
}

fn chained(plugin: &str, result: &Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": plugin, "prevResult": result, "mtu": 1400,
        "ingressRate": 1000, "ingressBurst": 8000,
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}})
}

/// Ended by itself, and not by a signal.
fn has_failed(outcome: &Outcome) {
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{}", outcome.report());
    assert!(outcome.stderr.contains("cannot write to stdout"), "{}", outcome.report());
}

#[test]
fn an_add_that_cannot_write_its_result_is_undone() {
    let world = World::new();
    let c1 = world.container("c1");
    // This makes what stays after a DEL.
    let result = c1.add("bridge", &network());
    c1.del("bridge", &network());
    let state = || world.state_with(&[&c1]).apart_from("cni0", "net");
    let before = state();
    for script in UNWRITABLE {
        let script = format!("rm -f /run/pipe /run/stdout; {script}");
        has_failed(&c1.call("bridge", "ADD", &network()).under(&["sh", "-c", &script]).run());
        before.assert_same(&state(), &format!("after {script}"));
    }
    c1.add("bridge", &network());
    for plugin in ["portmap", "firewall", "bandwidth", "tuning"] {
        let config = chained(plugin, &result);
        c1.add(plugin, &config);
        c1.del(plugin, &config);
        let before = state();
        for script in UNWRITABLE {
            let script = format!("rm -f /run/pipe /run/stdout; {script}");
            has_failed(&c1.call(plugin, "ADD", &config).under(&["sh", "-c", &script]).run());
            before.assert_same(&state(), &format!("{plugin} after {script}"));
        }
    }
}

#[test]
fn a_state_file_that_cannot_be_written_is_an_error_object() {
    let world = World::new();
    let c1 = world.container("c1");
    let host_local = json!({"ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}});
    let network = with(&network(), host_local);
    let no_byte = ["sh", "-c", "ulimit -f 0; exec \"$0\""];
    let state = || world.state_with(&[&c1]).apart_from("cni0", "net");
    let before = state();
    c1.call("bridge", "ADD", &network).under(&no_byte).run().fails(5, &["File too large"]);
    before.assert_same(&state(), "without a reservation");
    let result = c1.add("bridge", &network);
    let tuning = chained("tuning", &result);
    // The directory stays.
    c1.add("tuning", &tuning);
    c1.del("tuning", &tuning);
    let before = state();
    c1.call("tuning", "ADD", &tuning)
        .under(&no_byte)
        .run()
        .fails(5, &["/c1_eth0.json: File too large"]);
    before.assert_same(&state(), "without a backup");
    c1.add("tuning", &tuning);
}

#[test]
fn a_plugin_that_is_not_there_needs_no_stderr() {
    let bare = Bare::new();
    bare.scratch.link("nothing");
    for stderr in ["2>/dev/full", "2>&-"] {
        let script = format!("exec \"$0\" {stderr}");
        let call = bare.call("nothing", "ADD", &network()).under(&["sh", "-c", &script]);
        let outcome = call.run();
        assert_eq!(outcome.status, 127, "{}", outcome.report());
        assert_eq!(outcome.error_object().code, 4);
    }
}
