//! The daemon's process and its socket: start, end, rights, and clients that are not the plugin.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::{Daemon, LIMIT_S, SOCKET, at_once, listens, listens_at};
use crate::world::{Call, World, executable, parse};

const DHCP: &str = "/run/plugins/dhcp";

/// A connection to the daemon. A read fails after the limit.
fn connect(world: &World) -> UnixStream {
    let stream = UnixStream::connect(world.path(SOCKET)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(LIMIT_S))).unwrap();
    stream
}

/// The answer to these bytes, to its end.
fn answer(world: &World, bytes: &[u8]) -> String {
    let mut stream = connect(world);
    // The daemon may refuse the request before its end.
    let _ = stream.write_all(bytes);
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said);
    said
}

/// A daemon that fails at its start.
#[track_caller]
fn refused(world: &World, flags: &[&str], texts: &[&str]) {
    let words = [&[DHCP, "daemon"], flags].concat();
    let outcome = world.tool(&words, None).run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    for text in texts {
        assert!(outcome.stderr.contains(text), "{text:?}: {}", outcome.report());
    }
}

fn mode(world: &World, path: &str) -> u32 {
    fs::metadata(world.path(path)).unwrap().permissions().mode() & 0o7777
}

#[test]
fn socket_and_directory_are_of_root_only() {
    let world = World::new();
    let _daemon = Daemon::new(&world);
    assert_eq!((mode(&world, SOCKET), mode(&world, "/run/cni")), (0o600, 0o700));
    assert_eq!(mode(&world, "/run/cnibox/dhcp"), 0o700);
}

#[test]
fn a_directory_that_is_there_is_used_unless_others_can_write_to_it() {
    let world = World::new();
    for (bits, is_fine) in [(0o777, false), (0o775, false), (0o1777, false), (0o755, true)] {
        world.write("/run/cni/x", "");
        fs::set_permissions(world.path("/run/cni"), Permissions::from_mode(bits)).unwrap();
        if is_fine {
            let _daemon = Daemon::new(&world);
            assert_eq!(mode(&world, "/run/cni"), bits);
        } else {
            let text = format!("/run/cni is writable by other users (mode {bits:o})");
            refused(&world, &[], &["cannot listen at /run/cni/dhcp.sock", &text]);
        }
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_file_of_another_program_is_not() {
    let world = World::new();
    fs::create_dir(world.path("/run/cni")).unwrap();
    drop(UnixListener::bind(world.path(SOCKET)).unwrap());
    assert!(fs::metadata(world.path(SOCKET)).unwrap().file_type().is_socket());
    let mut daemon = Daemon::new(&world);
    daemon.kill();
    daemon.start();
    daemon.kill();
    fs::remove_file(world.path(SOCKET)).unwrap();
    let _other = UnixListener::bind(world.path(SOCKET)).unwrap();
    refused(&world, &[], &["another process listens there"]);
    fs::remove_file(world.path(SOCKET)).unwrap();
    world.write(SOCKET, "text");
    refused(&world, &[], &["a file that is no socket has this name"]);
    assert_eq!(world.read(SOCKET), "text");
}

#[test]
fn a_second_daemon_is_refused_and_names_the_first() {
    let world = World::new();
    let daemon = Daemon::new(&world);
    let pid = format!("process {} (", daemon.0.pid_in_world());
    refused(&world, &[], &["cannot start the DHCP daemon of /run/cni/dhcp.sock", &pid]);
    // Also when the file of the socket was removed.
    fs::remove_file(world.path(SOCKET)).unwrap();
    refused(&world, &[], &[&pid]);
}

#[test]
fn a_signal_removes_socket_and_pidfile_and_the_exit_code_is_0() {
    let world = World::new();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let call = world.tool(&[DHCP, "daemon", "-pidfile", "/run/dhcp.pid"], None).start();
        world.within(LIMIT_S, "the pidfile is there", || world.path("/run/dhcp.pid").exists());
        world.eventually("the daemon listens", || listens(&world));
        let pid = call.pid_in_world().to_string();
        world.eventually("the pidfile has the id", || world.read("/run/dhcp.pid") == pid);
        assert_eq!(mode(&world, "/run/dhcp.pid"), 0o644);
        kill(call.pid(), signal).unwrap();
        let outcome = call.finish();
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.report());
        assert!(!world.path("/run/dhcp.pid").exists() && !world.path(SOCKET).exists());
    }
}

#[test]
fn the_prefix_of_the_host_stands_before_the_socket() {
    let world = World::new();
    let flags = ["-hostprefix", "/run/host", "--socketpath=/run/x-y/d.sock"];
    let call = world.tool(&[&[DHCP, "daemon"][..], &flags].concat(), None).start();
    let path = world.path("/run/host/run/x-y/d.sock");
    world.within(LIMIT_S, "the daemon listens", || UnixStream::connect(&path).is_ok());
    assert!(world.path("/run/host/run/cnibox/dhcp/run-x--y-d.sock").is_dir());
    kill(call.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(call.finish().status, 0);
}

#[test]
fn systemd_passes_exactly_one_socket() {
    let world = World::new();
    let status = json!({"cniVersion": "1.1.0", "name": "net", "type": "dhcp",
        "ipam": {"type": "dhcp", "daemonSocketPath": "/run/passed.sock"}});
    let activate = ["systemd-socket-activate", "-l", "/run/passed.sock", DHCP, "daemon"];
    let running = world.tool(&activate, None).start();
    let path = world.path("/run/passed.sock");
    world.within(LIMIT_S, "systemd listens", || listens_at(&world, "/run/passed.sock"));
    world.call("dhcp", "STATUS", &status).run().silence();
    assert!(world.path("/run/cnibox/dhcp/run-passed.sock").is_dir());
    kill(running.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(running.finish().status, 0);
    assert!(path.exists(), "the socket is the service manager's");

    let two = ["-l", "/run/a.sock", "-l", "/run/b.sock", DHCP, "daemon"];
    let running = world.tool(&[&["systemd-socket-activate"], &two[..]].concat(), None).start();
    world.within(LIMIT_S, "systemd listens", || {
        UnixStream::connect(world.path("/run/a.sock")).is_ok()
    });
    let outcome = running.finish();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    let expected = "cannot use the sockets of LISTEN_FDS: there are 2, not exactly one";
    assert!(outcome.stderr.contains(expected), "{}", outcome.report());
    // Variables that were meant for the parent are ignored.
    let env = ["env", "LISTEN_PID=1", "LISTEN_FDS=2"];
    let mut daemon = Daemon(super::Service::new(
        &world,
        "daemon",
        None,
        &[&env[..], &[DHCP, "daemon"]].concat(),
    ));
    daemon.start();
}

#[test]
fn the_reference_client_gets_an_error_at_once_that_says_what_to_do() {
    let world = World::new();
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let config =
        json!({"cniVersion": "1.0.0", "name": "net", "type": "dhcp", "ipam": {"type": "dhcp"}});
    let expected = "400 the DHCP daemon here is that of cnibox and needs the plugin dhcp of cnibox";
    at_once(|| {
        let outcome = c1.call("dhcp", "ADD", &config).of_directory("/usr/lib/cni").run();
        assert!(outcome.status == 1 && outcome.stdout.contains(expected), "{}", outcome.report());
    });
    let said = answer(&world, b"CONNECT /_goRPC_ HTTP/1.0\n\n");
    assert!(said.starts_with("HTTP/1.0 400 ") && said.ends_with("\r\n\r\n"), "{said}");
}

#[test]
fn wrong_requests_get_an_error_and_the_daemon_goes_on() {
    let world = World::new();
    let _daemon = Daemon::new(&world);
    let long = [&b"{\"verb\":\""[..], &vec![b'x'; 300 << 10]].concat();
    assert_eq!(answer(&world, &long), "", "the connection is closed");
    let deep = [&b"{\"verb\":"[..], &vec![b'['; 200 << 10], b"\n"].concat();
    for (bytes, expected) in [
        (&b"{}\n"[..], "cannot read the request: missing field `verb`"),
        (b"{\"verb\":\"stop\"}\n", "cannot read the request: unknown variant `stop`"),
        (
            b"{\"verb\":\"check\",\"network\":\"n\",\"containerID\":\"../x\",\"ifname\":\"e\"}\n",
            "cannot read the request: invalid characters in containerID",
        ),
        (b"{\"verb\"\n", "cannot read the request: "),
        (&deep, "cannot read the request: "),
    ] {
        let said = answer(&world, bytes);
        assert!(said.ends_with('\n') && said.matches('\n').count() == 1, "{said}");
        let error = &parse(&said)["error"];
        assert!(error["msg"].as_str().unwrap().starts_with(expected), "{said}");
    }
    // A request without a newline ends with the stream.
    let mut stream = connect(&world);
    stream.write_all(b"{\"verb\":\"status\"}").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "{\"within\":10000}\n{\"ok\":null}\n");
}

#[test]
fn a_client_of_another_user_is_refused() {
    let world = World::new();
    // In a user namespace without a map the daemon sees each user of the host as user 65534, so it can only use a socket that
    // another process opened.
    let words = ["-l", "/run/passed.sock", "unshare", "--user", DHCP, "daemon"];
    let running = world.tool(&[&["systemd-socket-activate"], &words[..]].concat(), None).start();
    let path = world.path("/run/passed.sock");
    world.within(LIMIT_S, "systemd listens", || listens_at(&world, "/run/passed.sock"));
    for verb in ["status", "leases"] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(LIMIT_S))).unwrap();
        // The daemon closes the connection and does not read the request.
        let _ = stream.write_all(format!("{{\"verb\":\"{verb}\"}}\n").as_bytes());
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        let error = &parse(&said)["error"];
        let expected = "cannot serve the request: the client does not run as root";
        assert_eq!(error["msg"], expected, "{said}");
    }
    kill(running.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(running.finish().status, 0);
}

#[test]
fn silent_clients_do_not_keep_others_waiting() {
    let world = World::new();
    let daemon = Daemon::new(&world);
    let mut silent: Vec<UnixStream> = (0..200).map(|_| connect(&world)).collect();
    assert_eq!(answer(&world, b"{\"verb\":\"status\"}\n").lines().last(), Some("{\"ok\":null}"));
    // Each is closed after 10 s, and its thread ends.
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    world.eventually("the threads have ended", || daemon.status("Threads") < 10);
}

#[test]
fn flags_are_those_of_the_reference_and_a_wrong_flag_is_not_understood() {
    let world = World::new();
    for (args, expected) in [
        (&["daemon", "-speed", "5"][..], "cannot use -speed: flag provided but not defined"),
        (&["daemon", "-timeout", "5"], "cannot use -timeout: \"5\" is no duration"),
        (&["daemon", "now"], "cannot use now: it is not a flag"),
        (&["leases", "--speed"], "Unrecognized argument: --speed"),
    ] {
        let outcome = world.tool(&[&[DHCP], args].concat(), None).run();
        assert_eq!(outcome.status, 2, "{}", outcome.report());
        assert!(outcome.stderr.contains(expected), "{}", outcome.report());
    }
    let help =
        Call::program(executable().as_ref()).args(&["dhcp", "daemon", "-help"]).run().output();
    for flag in [
        "pidfile",
        "hostprefix",
        "socketpath",
        "broadcast",
        "timeout",
        "resendmax",
        "resendtimeout",
    ] {
        assert!(help.contains(&format!("  -{flag}")), "{flag}");
    }
    let outcome = world.tool(&["/run/bin/cnibox", "dhcp", "leases"], None).run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert!(
        outcome.stderr.contains("cannot connect to /run/cni/dhcp.sock"),
        "{}",
        outcome.report()
    );
}

#[test]
fn the_list_of_no_leases_is_empty() {
    let world = World::new();
    let _daemon = Daemon::new(&world);
    let list = |args: &[&str]| {
        let words = [&["/run/bin/cnibox", "dhcp", "leases"], args].concat();
        world.tool(&words, None).output_of_success()
    };
    assert_eq!(parse(&list(&["--json"])), json!({"leases": Value::Array(Vec::new())}));
    assert_eq!(list(&["--socket", SOCKET]).lines().count(), 1, "the header");
}
