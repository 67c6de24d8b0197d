//! `cnibox run` and `exec`: commands in network namespaces.

use serde_json::json;

use super::{Host, NOT_IGNORED, network};
use crate::world::{Call, Outcome, Running, Scratch, State, with};

/// The network `net` with a DNS server.
fn host() -> Host {
    let host = Host::new();
    let mut network = network();
    network["plugins"][0] = with(
        &network["plugins"][0],
        json!({"dns": {"nameservers": ["10.1.0.1"], "search": ["example.org"]}}),
    );
    host.configure("1.conflist", &network);
    host
}

/// The same after a first attachment, and what it leaves.
pub(super) fn used_host() -> (Host, State) {
    let host = host();
    host.run(&["-n", "net", "-p", "8080:80", "--", "true"]).output();
    let before = host.state();
    (host, before)
}

impl Host {
    pub(super) fn run(&self, args: &[&str]) -> Outcome {
        self.cnibox(&[&["run"], args].concat()).run()
    }

    /// Starts a run, with a script that creates /run/up.
    pub(super) fn start(&self, args: &[&str], script: &str) -> Running {
        let script = format!("{script}; : > /run/up; while :; do sleep 0.05; done");
        let words = [&["run"], args, &["--", "sh", "-c", &script]].concat();
        let running = self.cnibox(&words).under(&NOT_IGNORED).start();
        self.world.eventually("the command runs", || self.world.path("/run/up").exists());
        self.world.host(["rm", "/run/up"]);
        running
    }

    pub(super) fn signal(&self, name: &str, running: &Running) {
        self.world.host(["kill", "-s", name, &running.pid_in_world().to_string()]);
    }

    pub(super) fn assert_nothing_left(&self, before: &State, when: &str) {
        assert_eq!(self.kept(), [""; 0], "{when}");
        before.assert_same(&self.state(), when);
    }
}

#[test]
fn a_command_is_attached_while_it_runs() {
    let (host, before) = used_host();
    let script = "ip -o addr; cat /etc/resolv.conf; cat";
    let call = host.cnibox(&["run", "-n", "net", "-n", "net:up1", "--", "sh", "-c", script]);
    let text = call.stdin("from stdin").run().output();
    for part in [
        "127.0.0.1/8",
        "eth0    inet 10.1.0.",
        "up1    inet 10.1.0.",
        "nameserver 10.1.0.1\n",
        "search example.org\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(text.ends_with("from stdin"), "{text}");
    host.assert_nothing_left(&before, "after the command");
    let own = host.world.host(["cat", "/etc/resolv.conf"]);
    assert!(!own.contains("10.1.0.1"), "{own}");
}

#[test]
fn a_command_may_make_namespaces_itself() {
    let (host, before) = used_host();
    let unshare =
        ["-n", "net", "--", "unshare", "--pid", "--fork", "--mount-proc", "ip", "-o", "addr"];
    let text = host.run(&unshare).output();
    assert!(text.contains("eth0    inet 10.1.0."), "{text}");
    host.assert_nothing_left(&before, "after unshare");
}

#[test]
fn without_dns_and_without_networks_the_host_names_are_those_of_the_host() {
    let host = Host::new();
    let own = host.world.host(["sh", "-c", "cat /etc/resolv.conf; hostname"]);
    let text = host.run(&["--", "sh", "-c", "cat /etc/resolv.conf; hostname; ip -o link"]).output();
    assert!(text.starts_with(&own), "{text}");
    assert!(text.contains("1: lo: <LOOPBACK,UP,") && !text.contains("2: "), "{text}");
    assert_eq!(host.run(&["--hostname", "web", "--", "hostname"]).output(), "web\n");
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn the_exit_code_is_that_of_a_shell() {
    let (host, before) = used_host();
    for (words, code) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["/nowhere/command"], 127),
        (&["no-such-command"], 127),
        (&["/etc/passwd"], 126),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
    ] {
        let outcome = host.run(&[&["-n", "net", "--"], words].concat());
        assert_eq!(outcome.status, code, "{}", outcome.report());
        host.assert_nothing_left(&before, words[0]);
    }
    for (args, code) in [
        (&["-n", "net"][..], 2),
        (&["-n", "net", "-n", "net:eth0", "--", "true"], 2),
        (&["-p", "1:2", "--", "true"], 2),
        (&["-n", "other", "--", "true"], 1),
        (&["--name", "a/b", "--", "true"], 2),
    ] {
        let outcome = host.run(args);
        assert_eq!(outcome.status, code, "{args:?}: {}", outcome.report());
    }
}

#[test]
fn arguments_arrive_as_they_were_given() {
    let host = Host::new();
    let script = r#"/run/bin/cnibox run printf '%s|' -- a -n "$(printf '\377')" | od -An -tx1"#;
    let text = host.world.host(["sh", "-c", script]);
    assert_eq!(text.trim(), "2d 2d 7c 61 7c 2d 6e 7c ff 7c");
}

#[test]
fn after_a_kill_the_command_is_dead_and_gc_leaves_nothing() {
    let (host, before) = used_host();
    for name in [&[][..], &["--name", "web"]] {
        let args = [&["-n", "net", "-p", "8080:80"], name].concat();
        let running = host.start(&args, "echo $$ > /run/pid");
        let pid = host.world.read("/run/pid");
        let process = host.world.path(format!("/proc/{}/ns/net", pid.trim()));
        assert!(process.exists(), "{}", process.display());
        host.signal("KILL", &running);
        running.finish();
        host.world.eventually("the command is dead", || !process.exists());
        // Until the kernel has ended its namespace, gc does not know whether the container lives.
        host.world.eventually("gc would remove the attachment", || {
            let text = host.cnibox(&["gc", "--dry-run"]).run().output();
            text.starts_with("would remove eth0 of container ")
        });
        let text = host.cnibox(&["gc"]).run().output();
        assert!(text.starts_with("removed eth0 of container "), "{text}");
        host.world.host(["rm", "/run/pid"]);
        assert!(!host.world.path("/run/netns/web").exists());
        host.assert_nothing_left(&before, "after gc");
    }
}

#[test]
fn gc_keeps_a_named_run_and_the_next_run_replaces_a_dead_one() {
    let (host, before) = used_host();
    let first = host.start(&["-n", "net", "--name", "web"], "true");
    assert_eq!(host.cnibox(&["gc"]).run().output(), "");
    let outcome = host.run(&["-n", "net", "--name", "web", "--", "true"]);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    host.cnibox(&["check", "net", "web"]).run().silence();
    host.signal("KILL", &first);
    first.finish();
    // The command dies with the first run, a moment later.
    let replaces = || host.run(&["-n", "net", "--name", "web", "--", "true"]).status == 0;
    host.world.eventually("the second run replaces the first", replaces);
    host.assert_nothing_left(&before, "after the second run");
}

#[test]
fn a_descendant_does_not_hold_the_lock_of_a_run_that_has_ended() {
    let (host, before) = used_host();
    let script = "unshare --net sleep 300 > /dev/null 2>&1 & echo $! > /run/inner";
    for _ in 0..2 {
        let args = ["-n", "net", "--name", "web", "--", "sh", "-c", script];
        host.run(&args).silence();
        host.assert_nothing_left(&before, "after the run");
        let pid = host.world.read("/run/inner");
        host.world.host(["rm", "/run/inner"]);
        assert!(host.world.path(format!("/proc/{}/ns/net", pid.trim())).exists());
    }
}

#[test]
fn others_enter_a_named_namespace() {
    let (host, before) = used_host();
    let running = host.start(&["-n", "net", "--name", "web"], "true");
    let rows = host.cnibox(&["attachments"]).run().output();
    assert!(rows.contains("alive") && rows.contains("/run/netns/web"), "{rows}");
    let id = rows.lines().nth(1).unwrap().split_whitespace().nth(1).unwrap();
    let script = "ip -o -4 addr show eth0; cat /etc/resolv.conf; exit 3";
    for target in ["web", "/run/netns/web", id] {
        let outcome = host.cnibox(&["exec", target, "--", "sh", "-c", script]).run();
        assert_eq!(outcome.status, 3, "{}", outcome.report());
        assert!(outcome.stdout.contains("10.1.0."), "{}", outcome.report());
        assert!(outcome.stdout.contains("nameserver 10.1.0.1"), "{}", outcome.report());
    }
    let pid = host.world.host(["pgrep", "-P", &running.pid_in_world().to_string()]);
    let text = host.cnibox(&["exec", pid.trim(), "ip", "-o", "addr"]).run().output();
    assert!(text.contains("10.1.0."), "{text}");
    for (words, code) in
        [(&["exec", "web", "no-such-command"][..], 127), (&["exec", "other", "true"], 1)]
    {
        let outcome = host.cnibox(words).run();
        assert_eq!(outcome.status, code, "{}", outcome.report());
    }
    host.signal("TERM", &running);
    running.finish();
    host.assert_nothing_left(&before, "after the run");
}

#[test]
fn a_network_that_fails_leaves_nothing_of_the_others() {
    let (host, before) = used_host();
    let answer = r#"{"cniVersion":"1.0.0","code":100,"msg":"it is broken"}"#;
    host.recorder("broken", &format!("[ $CNI_COMMAND != ADD ] || {{ echo '{answer}'; exit 1; }}"));
    host.configure("9.conflist", &with(&super::list("1.0.0", &["broken"]), json!({"name": "bad"})));
    let outcome = host.run(&["-n", "net", "-n", "bad", "--name", "web", "--", "true"]);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert!(outcome.stderr.contains("it is broken"), "{}", outcome.report());
    assert!(!host.world.path("/run/netns/web").exists());
    host.seen();
    host.assert_nothing_left(&before, "after the failure");
}

#[test]
fn ports_are_published_by_the_first_network_that_can() {
    let host = host();
    let plain = json!({"cniVersion": "1.0.0", "name": "plain", "plugins": [{"type": "loopback"}]});
    host.configure("2.conflist", &plain);
    let running = host.start(&["-n", "plain:lo", "-n", "net", "-p", "8080:80"], "true");
    let rows = host.cnibox(&["attachments"]).run().output();
    let row = rows.lines().find(|row| row.contains("8080->80/tcp")).unwrap();
    assert!(row.starts_with("net ") && row.contains(" eth1 "), "{rows}");
    host.signal("TERM", &running);
    running.finish();
    let outcome = host.run(&["-n", "plain:lo", "-p", "8080:80", "--", "true"]);
    assert!(outcome.stderr.contains("portMappings"), "{}", outcome.report());
}

#[test]
fn without_privileges_only_networks_inside_the_container_are_possible() {
    let (host, before) = used_host();
    let plugins = json!([{"type": "loopback"}, {"type": "dummy"}, {"type": "tuning", "sysctl": {"net.core.somaxconn": "77"}}]);
    let inside = json!({"cniVersion": "1.0.0", "name": "inside", "plugins": plugins});
    host.configure("2.conflist", &inside);
    // Not every kernel has dummy links, and no plugin below /run is seen.
    let scratch = Scratch::new();
    let result = json!({"cniVersion": "1.0.0", "dns": {"nameservers": ["10.9.0.1"]}});
    scratch.write_text("dummy", &format!("#!/bin/sh\nif [ $CNI_COMMAND = VERSION ]; then echo '{{\"supportedVersions\":[\"1.0.0\"]}}'\nelse echo '{result}'; fi\n"));
    host.world.host(["chmod", "755", scratch.file("dummy").to_str().unwrap()]);
    let path = scratch.path().to_str().unwrap().to_owned();
    // The kernel lets root map itself only with this capability. Other users need none.
    let unprivileged = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"];
    let run = |args: &[&str]| {
        host.cnibox(&[&["run"], args].concat()).env("CNI_PATH", &path).under(&unprivileged).run()
    };
    let script = "ip -o addr; cat /etc/resolv.conf /proc/sys/net/core/somaxconn; ls /run; hostname";
    let text = run(&["-n", "inside:lo", "--hostname", "web", "--", "sh", "-c", script]).output();
    for part in ["127.0.0.1", "nameserver 10.9.0.1\n77\n", "net.d\n", "web\n"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    host.assert_nothing_left(&before, "without privileges");
}

#[test]
fn an_unprivileged_user_runs_a_command() {
    let inside = json!({
        "cniVersion": "1.0.0", "name": "inside", "plugins": [
            {"type": "loopback"}, {"type": "tuning", "sysctl": {"net.core.somaxconn": "77"}},
        ],
    });
    let script = "ip -o addr; cat /proc/sys/net/core/somaxconn; kill -TERM $$";
    let args = ["run", "-n", "/proc/self/fd/8:lo", "--hostname", "web", "--", "sh", "-c", script];
    let outcome = Call::unprivileged(&args).config(&inside).env("CNI_PATH", "/nowhere").run();
    assert_eq!(outcome.status, 143, "{}", outcome.report());
    assert!(outcome.stdout.contains("127.0.0.1"), "{}", outcome.report());
    assert!(outcome.stdout.ends_with("\n77\n"), "{}", outcome.report());
}

#[test]
fn a_missing_capability_is_named() {
    let (host, before) = used_host();
    for (set, missing) in [
        ("-all,+setfcap", "without CAP_NET_ADMIN and CAP_SYS_ADMIN"),
        ("-net_admin", "without CAP_NET_ADMIN"),
        ("-sys_admin", "without CAP_SYS_ADMIN"),
    ] {
        let bounding = format!("--bounding-set={set}");
        let under = ["setpriv", &bounding, "--inh-caps=-all"];
        for args in [&["-n", "net", "--", "true"][..], &["--name", "web", "--", "true"]] {
            let outcome = host.cnibox(&[&["run"], args].concat()).under(&under).run();
            assert_eq!(outcome.status, 1, "{}", outcome.report());
            let mut lines = outcome.stderr.lines();
            let is_named = |line: &str| line.split(": ").any(|part| part.ends_with(missing));
            assert!(lines.next().is_some_and(is_named), "{missing}: {}", outcome.report());
        }
    }
    host.assert_nothing_left(&before, "without privileges");
}
