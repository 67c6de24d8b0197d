//! Input without an end is refused, on stdin and from an executed plugin. A name that can be foretold is no temporary file.

use serde_json::{Value, json};

use super::{Host, list};

/// In seconds.
const LIMIT: &str = "60";
const REASON: &str = "more than 4194304 bytes";

/// Runs `SOURCE | COMMAND` with a limit on its time.
fn fed(host: &Host, source: &str, command: &str, env: &[(&str, &str)]) -> crate::world::Outcome {
    let script = format!("{source} | timeout {LIMIT} {command}");
    let mut call = host.world.tool(&["bash", "-c", &script], None);
    for (name, value) in env {
        call = call.env(name, value);
    }
    call.run()
}

#[test]
fn stdin_has_a_limit() {
    let host = Host::new();
    let env = [
        ("CNI_COMMAND", "STATUS"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/run/plugins"),
    ];
    for source in ["cat /dev/zero", "yes"] {
        let plugin = fed(&host, source, "/run/plugins/loopback", &env);
        assert_eq!(plugin.status, 1, "{}", plugin.report());
        let error: Value = serde_json::from_str(&plugin.stdout).unwrap();
        assert_eq!(error["code"], 5, "{error}");
        assert!(error["details"].as_str().unwrap().ends_with(REASON), "{error}");
        let hook = fed(&host, source, "/run/bin/cnibox oci-hook", &[]);
        assert_eq!(hook.status, 1, "{}", hook.report());
        assert!(hook.stderr.trim_end().ends_with(REASON), "{}", hook.report());
    }
}

#[test]
fn a_plugin_that_does_not_stop_writing_is_killed() {
    let host = Host::new();
    host.recorder("one", "sleep 1000 & echo $! > /run/sleeper; exec cat /dev/zero");
    host.configure("1.conflist", &list("1.1.0", &["one"]));
    host.world.container("c1");
    let outcome = host.cnibox(&["add", "net", "c1"]).under(&["timeout", LIMIT]).run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    let reason = format!("plugin /run/own/one was killed: its output has {REASON}");
    assert!(outcome.stderr.contains(&reason), "{}", outcome.report());
    let is_gone = || {
        let script = "! kill -0 $(cat /run/sleeper) 2>/dev/null";
        host.world.tool(&["sh", "-c", script], None).run().status == 0
    };
    host.world.eventually("what the plugin has started is gone", is_gone);

    // As the delegate of a plugin that no runtime limits, and on stderr, where it is only repeated.
    host.recorder("ipam", "exec cat /dev/zero");
    let bridge =
        json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": "ipam"}});
    let c2 = host.world.container("c2");
    let path = format!("{}:/run/plugins", super::OWN);
    let call = c2.call("bridge", "ADD", &bridge).env("CNI_PATH", &path);
    let outcome = call.under(&["timeout", LIMIT]).run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert!(outcome.stdout.contains("plugin /run/own/ipam was killed"), "{}", outcome.report());
}

#[test]
fn a_long_text_on_stderr_is_cut() {
    let host = Host::new();
    let result = json!({"cniVersion": "1.1.0", "interfaces": []});
    host.recorder("one", &format!("head -c 9000000 /dev/zero | tr '\\0' x >&2; echo '{result}'"));
    host.configure("1.conflist", &list("1.1.0", &["one"]));
    host.world.container("c1");
    let outcome = host.cnibox(&["add", "net", "c1"]).under(&["timeout", LIMIT]).run();
    assert_eq!(outcome.status, 0, "{}", outcome.stdout);
    let count = outcome.stderr.bytes().filter(|byte| *byte == b'x').count();
    assert_eq!(count, 4 << 20);
}

/// A FIFO, a link or a file with a name that an earlier build wrote to stops no operation, and no link is followed.
#[test]
fn a_file_with_a_name_of_a_temporary_file_stops_nothing_and_no_link_is_followed() {
    let commands = [
        ("/run/cnibox/.net-a-eth0", "add net c1 --container-id a"),
        ("/var/lib/cni/.net-a-eth0", "add net c1 --container-id a"),
        // The shell becomes cnibox, which keeps its process id.
        ("/run/cnibox/.resolv.conf-$$", "run -n net -- grep 10.8.0.53 /etc/resolv.conf"),
        ("/run/.cnibox.prom.$$", "metrics /run/cnibox.prom"),
    ];
    for make in ["mkfifo $name", "ln -s /run/precious $name", "echo half > $name"] {
        for (name, command) in commands {
            let host = Host::new();
            let bridge = json!({
                "type": "bridge", "bridge": "cni8", "dns": {"nameservers": ["10.8.0.53"]},
                "ipam": {"type": "host-local", "subnet": "10.8.0.0/24"},
            });
            let config = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [bridge]});
            host.configure("1.conflist", &config);
            host.world.container("c1");
            host.world.write("/run/precious", "precious");
            let script = format!(
                "mkdir -p /run/cnibox /var/lib/cni; name={name}; {make}; exec /run/bin/cnibox {command}"
            );
            let words = ["timeout", LIMIT, "bash", "-ec", &script];
            let call = host.world.tool(&words, None).env("NETCONFPATH", super::CONFIGURATIONS);
            let outcome = call.env("CNI_PATH", "/run/plugins").run();
            assert_eq!(outcome.status, 0, "{make}, {name}: {}", outcome.report());
            assert_eq!(host.world.read("/run/precious"), "precious", "{make}, {name}");
        }
    }
}
