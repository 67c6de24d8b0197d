//! Signals that reach `cnibox run`, from processes and from a terminal.

use super::NOT_IGNORED;
use super::run::used_host;

#[test]
fn signals_reach_the_command_and_it_is_detached_then() {
    let (host, before) = used_host();
    for (signal, script, code) in [
        ("USR1", "trap 'exit 9' USR1", 9),
        ("INT", "trap 'exit 8' INT", 8),
        ("TERM", "true", 143),
        ("HUP", "true", 129),
        ("WINCH", "trap 'exit 10' WINCH", 10),
        ("RTMIN+3", "trap 'exit 11' RTMIN+3", 11),
    ] {
        let running = host.start(&["-n", "net", "-p", "8080:80"], script);
        host.signal(signal, &running);
        let outcome = running.finish();
        assert_eq!(outcome.status, code, "{signal}: {}", outcome.report());
        host.assert_nothing_left(&before, signal);
    }
}

#[test]
fn a_key_of_the_terminal_reaches_the_command_once() {
    let (host, before) = used_host();
    let script = r#"
import os, pty, signal
pid, terminal = pty.fork()
if pid == 0:
    os.execv("/run/bin/cnibox", ["cnibox", "run", "-n", "net", "--", "sh", "-c",
        "trap 'N=1$N; echo INT' INT; trap 'exit $N' TERM; echo ready; while :; do sleep 0.05; done"])
said = b""
def wait(text):
    global said
    while text not in said:
        said += os.read(terminal, 1000)
wait(b"ready")
os.write(terminal, b"\x03")
wait(b"INT")
os.kill(pid, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
    let python = host.cnibox(&[]).under(&[&NOT_IGNORED[..], &["python3", "-c", script]].concat());
    // Twice would be 11.
    assert_eq!(python.run().output(), "1\n");
    host.assert_nothing_left(&before, "after Ctrl-C");
}

#[test]
fn a_signal_while_the_networks_are_attached_detaches_them() {
    let (host, before) = used_host();
    let wait = ": > /run/adding; while [ ! -e /run/go ]; do sleep 0.05; done";
    host.recorder("slow", &format!("[ $CNI_COMMAND != ADD ] || {{ {wait}; }}"));
    let plugins = serde_json::json!([{"type": "slow"}]);
    let slow = serde_json::json!({"cniVersion": "1.0.0", "name": "slow", "plugins": plugins});
    host.configure("9.conflist", &slow);
    for signal in ["INT", "TERM", "HUP"] {
        let args = ["run", "-n", "net", "-n", "slow", "--name", "web", "--", "touch", "/run/ran"];
        let running = host.cnibox(&args).under(&NOT_IGNORED).start();
        host.world.eventually("slow adds", || host.world.path("/run/adding").exists());
        host.signal(signal, &running);
        let outcome = running.finish();
        assert_eq!(outcome.status, 1, "{signal}: {}", outcome.report());
        assert!(outcome.stderr.contains("interrupted"), "{signal}: {}", outcome.report());
        assert!(!host.world.path("/run/ran").exists(), "{signal}");
        assert!(!host.world.path("/run/netns/web").exists(), "{signal}");
        host.world.host(["rm", "/run/adding"]);
        host.seen();
        host.assert_nothing_left(&before, signal);
    }
}

#[test]
fn signals_that_the_parent_ignores_do_not_hang_the_run() {
    let (host, before) = used_host();
    let words = ["env", "--ignore-signal=CHLD,PIPE,HUP"];
    let outcome =
        host.cnibox(&["run", "-n", "net", "--", "sh", "-c", "exit 6"]).under(&words).run();
    assert_eq!(outcome.status, 6, "{}", outcome.report());
    let words = ["env", "--ignore-signal=CHLD"];
    let outcome = host.cnibox(&["run", "--", "sh", "-c", "exit 6"]).under(&words).run();
    assert_eq!(outcome.status, 6, "{}", outcome.report());
    host.assert_nothing_left(&before, "after the run");
}
