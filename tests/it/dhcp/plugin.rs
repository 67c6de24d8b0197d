//! The plugin without DHCP servers: a daemon that is down, another daemon, one that hangs, and wrong configurations.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Daemon, LIMIT_S, SOCKET, at_once};
use crate::world::{World, with};

fn plain() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "dhcp", "ipam": {"type": "dhcp"}})
}

fn gc() -> Value {
    with(&plain(), json!({"cni.dev/valid-attachments": []}))
}

#[test]
fn without_a_daemon_add_and_check_fail_and_del_and_gc_succeed_at_once() {
    let world = World::new();
    let c1 = world.container("c1");
    let text = "error dialing DHCP daemon: cannot connect to /run/cni/dhcp.sock: No such file";
    let add = || c1.call("dhcp", "ADD", &plain()).run();
    at_once(|| drop(add().fails(999, &[text, "dhcp daemon", "auto"])));
    let check = || c1.checking("dhcp", &plain(), &json!({"cniVersion": "1.1.0"})).run();
    at_once(|| drop(check().fails(999, &[text])));
    at_once(|| drop(world.call("dhcp", "STATUS", &plain()).run().fails(50, &[text])));
    for (verb, config) in [("DEL", plain()), ("GC", gc())] {
        at_once(|| {
            let outcome = c1.call("dhcp", verb, &config).run();
            assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.report());
        });
    }
    assert!(!world.path("/run/cnibox").exists(), "nothing is created");
}

#[test]
fn a_wrong_configuration_is_an_error_before_the_daemon_is_needed() {
    let world = World::new();
    let c1 = world.container("c1");
    for (ipam, expected) in [
        (json!(null), "IPAM config missing 'ipam' key"),
        (json!({"provide": [{"option": "speed"}]}), "Can not parse option: \"speed\""),
        (json!({"request": [{"option": "300"}]}), "Can not parse option: \"300\""),
        (json!({"provide": [{"option": "54", "value": "x"}]}), "cannot provide option 54"),
        (json!({"families": ["5"]}), "ipam.families: unknown family \"5\""),
        (json!({"daemon": "manual"}), "ipam.daemon: \"manual\" is not auto"),
        (json!({"daemonSocketPath": "x"}), "ipam.daemonSocketPath: \"x\" is not an absolute path"),
    ] {
        let config = with(&plain(), json!({"ipam": ipam}));
        for verb in ["ADD", "CHECK", "STATUS"] {
            let error = c1.call("dhcp", verb, &config).run().error();
            assert_eq!((error.code, error.msg.starts_with(expected)), (7, true), "{}", error.msg);
        }
        for verb in ["DEL", "GC"] {
            let config = with(&config, json!({"cni.dev/valid-attachments": []}));
            c1.call("dhcp", verb, &config).run().silence();
        }
    }
    let long =
        with(&plain(), json!({"ipam": {"provide": [{"option": "host-name", "fromArg": "NAME"}]}}));
    let args = format!("odd;NAME={}", "x".repeat(256));
    let call = c1.call("dhcp", "ADD", &long).env("CNI_ARGS", &args);
    call.run().fails(7, &["value too long for option \"host-name\"", "256 bytes"]);
}

#[test]
fn the_reference_daemon_gives_an_error_at_once_that_says_what_to_do() {
    let world = World::new();
    let _daemon = Daemon::of(&world, "/usr/lib/cni/dhcp", &[]);
    let c1 = world.container("c1");
    let expected = [
        "the process at /run/cni/dhcp.sock is not the DHCP daemon of cnibox",
        "stop the other daemon",
    ];
    for (verb, code) in [("ADD", 999), ("STATUS", 50)] {
        at_once(|| drop(c1.call("dhcp", verb, &plain()).run().fails(code, &expected)));
    }
    let auto = with(&plain(), json!({"ipam": {"daemon": "auto"}}));
    c1.call("dhcp", "ADD", &auto).run().fails(999, &expected);
    let outcome = c1.call("dhcp", "DEL", &plain()).run();
    assert!(outcome.stderr.contains(expected[0]), "{}", outcome.report());
    outcome.silence();
}

/// Listens at the daemon's socket, and answers the first connection like this.
fn answering(world: &World, bytes: &'static [u8]) -> thread::JoinHandle<()> {
    std::fs::create_dir_all(world.path("/run/cni")).unwrap();
    let listener = UnixListener::bind(world.path(SOCKET)).unwrap();
    let path = world.path(SOCKET);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        stream.write_all(bytes).unwrap();
        drop(stream);
        std::fs::remove_file(path).unwrap();
    })
}

#[test]
fn answers_that_are_none_are_errors() {
    let world = World::new();
    let c1 = world.container("c1");
    for (bytes, expected) in [
        (&b"{\"within\":1000}\n"[..], "it closed the connection"),
        (b"{\"within\":1000}\n{\"within\":1000}\n", "it gave two time limits"),
        (b"{\"within\":\"x\"}\n", "invalid type: string \"x\""),
        (b"{\"ok\"\n", "cannot ask the DHCP daemon at /run/cni/dhcp.sock"),
        (b"{\"ok\":{\"ips\":5}}\n", "cannot read result"),
        (b"{\"error\":{\"code\":11}}\n", "missing field `msg`"),
        (b"hello\n", "is not the DHCP daemon of cnibox"),
    ] {
        let listener = answering(&world, bytes);
        let error = c1.call("dhcp", "ADD", &plain()).run().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.contains(expected), "{said}");
        listener.join().unwrap();
    }
    let listener = answering(
        &world,
        b"{\"within\":1000}\n{\"error\":{\"code\":999,\"msg\":\"no more tries\",\"details\":\"d\"}}\n",
    );
    let error = c1.call("dhcp", "ADD", &plain()).run().error();
    assert_eq!(
        (error.msg.as_str(), error.details.as_str()),
        ("error calling DHCP.Allocate: no more tries", "d")
    );
    listener.join().unwrap();
}

#[test]
fn a_daemon_that_hangs_does_not_stop_a_del() {
    let world = World::new();
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    daemon.0.signal(Signal::SIGSTOP);
    let outcome = c1.call("dhcp", "DEL", &plain()).run();
    assert!(outcome.stderr.contains("it did not answer in time"), "{}", outcome.report());
    outcome.silence();
    let error = c1.call("dhcp", "ADD", &plain()).run().error();
    assert!(error.msg.ends_with("it did not answer in time"), "{}", error.msg);
    daemon.0.signal(Signal::SIGCONT);
    c1.call("dhcp", "DEL", &plain()).run().silence();
}

#[test]
fn several_adds_at_once_start_one_daemon() {
    let world = World::new();
    let config = with(&plain(), json!({"ipam": {"daemon": "auto"}}));
    let c1 = world.container("c1");
    // The interface is missing: each ADD reaches the daemon and fails.
    let calls =
        (0..8).map(|at| c1.call("dhcp", "ADD", &config).env("CNI_IFNAME", &format!("none{at}")));
    for outcome in crate::world::all_at_once(calls) {
        outcome.fails(999, &["error calling DHCP.Allocate: ", "it does not exist"]);
    }
    let sockets = world.host(["ss", "-xlH", "src", SOCKET]);
    assert!(sockets.lines().count() <= 1, "{sockets}");
    world.within(LIMIT_S, "the daemon without a lease ends", || !super::listens(&world));
    assert!(!world.path(SOCKET).exists());
    // A socket file that a killed daemon left is no obstacle.
    drop(UnixListener::bind(world.path(SOCKET)).unwrap());
    c1.call("dhcp", "ADD", &config).env("CNI_IFNAME", "none").run().fails(999, &["does not exist"]);
    world.within(LIMIT_S, "the daemon without a lease ends", || !super::listens(&world));
}

#[test]
fn a_daemon_that_cannot_start_is_an_error_with_its_reason() {
    let world = World::new();
    world.write("/run/cni/x", "");
    world.host(["chmod", "777", "/run/cni"]);
    let config = with(&plain(), json!({"ipam": {"daemon": "auto"}}));
    let c1 = world.container("c1");
    let texts =
        ["cannot start the DHCP daemon of /run/cni/dhcp.sock", "is writable by other users"];
    c1.call("dhcp", "ADD", &config).run().fails(999, &texts);
    world.call("dhcp", "STATUS", &config).run().silence();
    c1.call("dhcp", "DEL", &config).run().silence();
}
