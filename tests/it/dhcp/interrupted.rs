//! Signals to `add`, `run` and `oci-hook` while they wait for the daemon.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::scripted::{Scripted, plan};
use super::service::Service;
use super::{Daemon, Site, address};
use crate::world::{Call, Running, World};

/// A shell starts background processes with SIGINT ignored, and cnibox keeps that.
const NOT_IGNORED: [&str; 2] = ["env", "--default-signal"];
/// The daemon gives an exchange 300 s, so a loaded machine cannot take as long as an ADD that does not react.
const LIMIT: Duration = Duration::from_secs(120);

/// A site with the network `lan` for the runtime.
fn site(world: &World) -> Site<'_> {
    let site = Site::with_bridge(world);
    let plugins =
        json!([{"type": "bridge", "bridge": "br0", "ipam": {"type": "dhcp"}}, {"type": "tuning"}]);
    let list = json!({"cniVersion": "1.0.0", "name": "lan", "plugins": plugins});
    world.write("/run/net.d/lan.conflist", list.to_string());
    site
}

fn cnibox<'w>(world: &'w World, args: &[&str]) -> Call<'w> {
    let words = [&["/run/bin/cnibox"], args].concat();
    let call = world.tool(&words, None).env("NETCONFPATH", "/run/net.d");
    call.env("CNI_PATH", "/run/plugins").under(&NOT_IGNORED)
}

/// Sends the signal. The command fails long before the daemon gives up.
#[track_caller]
fn interrupt(running: Running, signal: Signal) {
    let begin = Instant::now();
    kill(running.pid(), signal).unwrap();
    let outcome = running.finish();
    let time = begin.elapsed();
    assert!(time < LIMIT, "{signal}: {time:?}: {}", outcome.report());
    assert_eq!(outcome.status, 1, "{signal}: {}", outcome.report());
    let reason = "cannot ask the DHCP daemon at /run/cni/dhcp.sock: interrupted";
    assert!(outcome.stderr.contains(reason), "{signal}: {}", outcome.report());
    assert!(!outcome.stderr.contains("marked leases"), "{signal}: {}", outcome.report());
}

#[track_caller]
fn assert_nothing_left(site: &Site<'_>) {
    let world = site.world;
    assert_eq!(world.ports_of("br0"), ["lan"]);
    let find =
        "find /run/cnibox /var/lib/cni -type f ! -path '/run/cnibox/dhcp/*' ! -name 'network-*'";
    assert_eq!(world.tool(&["sh", "-c", find], None).run().stdout, "");
    let leases = || world.host_json(["/run/bin/cnibox", "dhcp", "leases", "--json"]);
    world.eventually("the daemon has no exchange", || leases()["leases"] == json!([]));
    assert!(!site.has_records());
}

#[test]
fn a_signal_while_the_daemon_has_no_answer_ends_each_command_and_leaves_nothing() {
    let world = World::new();
    let site = site(&world);
    let server = Scripted::start(&site.outside, &json!({}));
    let _daemon = Daemon::with(&world, &["-timeout=1s", "-resendtimeout=300s"]);
    world.container("c1");
    world.container("c2");
    let script = "mkdir -p /run/ran; exec sleep 1000";
    let words = ["ip", "netns", "exec", "c2", "sh", "-c", script];
    let mut container = Service::new(&world, "container", None, &words);
    container.start_only();
    world.eventually("the container runs", || world.path("/run/ran").exists());
    let state = json!({"ociVersion": "1.0.2", "id": "c2", "status": "creating",
        "pid": container.pid_in_world(), "bundle": "/", "annotations": {"cnibox.networks": "lan"}});
    let run = ["run", "-n", "lan", "--name", "web", "--", "touch", "/run/command"];
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        for call in [
            cnibox(&world, &["add", "lan", "c1"]),
            cnibox(&world, &run),
            cnibox(&world, &["oci-hook"]).stdin(state.to_string()),
        ] {
            let count = server.count("discover");
            let running = call.start();
            server.wait_for("discover", count + 1);
            interrupt(running, signal);
            assert_nothing_left(&site);
        }
    }
    assert!(!world.path("/run/command").exists() && !world.path("/run/netns/web").exists());
    server.answer_by(&plan());
    let result = cnibox(&world, &["add", "lan", "c1"]).run().success();
    assert_eq!(address(&result), "10.1.0.20");
    cnibox(&world, &["del", "lan", "c1"]).run().silence();
    server.wait_for("release", 1);
    world.eventually("the daemon keeps no lease", || !site.has_records());
}
