//! `dhcp` and its daemon against DHCP servers of others. The servers and the capture are in the namespace `outside`,
//! on the switch `sw`, which a cable joins to the host's link `lan`.

mod attached;
mod capture;
mod changed;
mod daemon;
mod declined;
mod faults;
mod hostile;
mod interrupted;
mod kept;
mod keys;
mod killed;
mod late_reports;
mod limits;
mod mapped;
mod names;
mod options;
mod plugin;
mod probe;
mod reference;
mod released;
mod renewal;
mod renumbered;
mod scripted;
mod servers;
mod service;
mod six;
mod six_hostile;
mod slow;
mod stopped;

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use self::service::Service;
use crate::world::{Call, Container, Outcome, World, all_at_once, lan, one_attempt_is, with};

/// Where the daemon listens by default.
const SOCKET: &str = "/run/cni/dhcp.sock";

/// The limit of a wait for another process, in seconds. It costs nothing unless the test fails, so a loaded machine does not
/// reach it.
const LIMIT_S: u64 = 180;

/// Less than any timeout of the plugin.
const AT_ONCE: Duration = Duration::from_secs(5);
const TRIES_MAX: usize = 10;

/// Repeats the calls until they take less than any timeout of the plugin. A loaded machine can delay some of the tries; a
/// plugin that waits for a timeout is slow in all of them.
#[track_caller]
fn at_once(mut calls: impl FnMut()) {
    let time = || {
        let begin = Instant::now();
        calls();
        begin.elapsed()
    };
    one_attempt_is(TRIES_MAX, "no try is fast", |time| *time < AT_ONCE, time);
}

/// A host with the link `lan` to the DHCP servers.
struct Site<'w> {
    world: &'w World,
    outside: Container<'w>,
}

impl<'w> Site<'w> {
    fn new(world: &'w World) -> Self {
        Self { world, outside: lan(world) }
    }

    /// The same with `lan` as a port of the host's bridge br0.
    fn with_bridge(world: &'w World) -> Self {
        let site = Self::new(world);
        site.script(
            "ip link add br0 type bridge; ip link set br0 up; ip link set lan master br0 up",
        );
        site
    }

    fn script(&self, script: &str) {
        self.world.host(["sh", "-e", "-c", script]);
    }

    /// Gives a namespace the link eth0 to the switch, with this address.
    fn attach(&self, place: &Container<'_>, address: &str) {
        let Container { name, .. } = place;
        let netns = place.netns();
        self.outside.exec(["sh", "-e", "-c", &format!(
            "ip link add {name} type veth peer name eth0 netns {netns}; ip link set {name} master sw up"
        )]);
        place.exec([
            "sh",
            "-e",
            "-c",
            &format!("ip link set lo up; ip link set eth0 up; ip address add {address} dev eth0"),
        ]);
        self.world.eventually("the switch forwards", || {
            self.outside.exec(["ip", "-d", "link", "show", name]).contains("state forwarding")
        });
    }

    /// A namespace for another server, with the address 10.1.0.253.
    fn second_server(&self) -> Container<'w> {
        let place = self.world.container("outside2");
        self.attach(&place, "10.1.0.253/24");
        place
    }

    /// The MAC of a container's eth0.
    fn mac(&self, container: &Container<'_>) -> String {
        let links = container.json(["ip", "-j", "link", "show", "eth0"]);
        links[0]["address"].as_str().unwrap().to_owned()
    }

    /// The MAC of the servers' link.
    fn server_mac(&self) -> String {
        let links = self.outside.json(["ip", "-j", "link", "show", "sw"]);
        links[0]["address"].as_str().unwrap().to_owned()
    }

    /// Whether the journal of the daemon has a lease.
    fn has_records(&self) -> bool {
        let script = "find /run/cnibox/dhcp -type f ! -name '.*' ! -name lock 2>/dev/null || true";
        !self.world.host(["sh", "-c", script]).is_empty()
    }
}

/// A network of containers on the host's bridge, with addresses from a DHCP server.
fn bridge() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "ipam": {"type": "dhcp"}})
}

/// The same on macvlan links.
fn macvlan() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "master": "lan", "ipam": {"type": "dhcp"}})
}

/// `config` with more in its `ipam`.
fn asking(config: &Value, more: Value) -> Value {
    with(config, json!({"ipam": more}))
}

/// The daemon.
struct Daemon<'w>(Service<'w>);

impl<'w> Daemon<'w> {
    /// Starts the daemon `program`, with these flags, and waits until it listens.
    fn of(world: &'w World, program: &str, flags: &[&str]) -> Self {
        let words = [&[program, "daemon"], flags].concat();
        let mut daemon = Self(Service::new(world, "daemon", None, &words));
        daemon.start();
        daemon
    }

    /// Our daemon, for tests with a server that answers each packet. The answer may come late.
    fn new(world: &'w World) -> Self {
        Self::with(world, &["-timeout", "10s", "-resendmax", "4s", "-resendtimeout", "60s"])
    }

    /// The same for tests with a server that is silent for a time: a packet is soon sent again.
    fn resending(world: &'w World) -> Self {
        Self::with(world, &["-timeout", "1s", "-resendmax", "2s", "-resendtimeout", "60s"])
    }

    fn with(world: &'w World, flags: &[&str]) -> Self {
        Self::of(world, "/run/plugins/dhcp", flags)
    }

    /// Our daemon in a host that has no more threads for it.
    fn with_threads(world: &'w World, most: &str) -> Self {
        let words = ["/run/plugins/dhcp", "daemon", "-timeout", "10s", "-resendtimeout", "60s"];
        let daemon = Service::new(world, "daemon", None, &words);
        let mut daemon = Self(daemon.env("CNIBOX_LIMIT_THREADS", most));
        daemon.start();
        daemon
    }

    fn start(&mut self) {
        self.0.start_only();
        let world = self.0.world;
        world.within_or(
            LIMIT_S,
            || listens(world),
            || format!("the daemon listens: {}", self.0.log()),
        );
    }

    fn kill(&mut self) {
        self.0.end(Signal::SIGKILL);
    }

    fn start_again(&mut self) {
        self.kill();
        self.start();
    }

    fn log(&self) -> String {
        self.0.log()
    }

    /// A number in /proc/PID/status, for example of `Threads`.
    fn status(&self, name: &str) -> u64 {
        let status = self.proc("status");
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }

    /// A file of the process below /proc.
    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0.pid())).unwrap()
    }

    /// The processor time of the process, in hundredths of a second.
    fn ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

/// Runs the calls, at most eight at once.
fn some_at_once<'w>(calls: impl IntoIterator<Item = Call<'w>>) -> Vec<Outcome> {
    let mut calls = calls.into_iter().peekable();
    let mut outcomes = Vec::new();
    while calls.peek().is_some() {
        outcomes.extend(all_at_once(calls.by_ref().take(8)));
    }
    outcomes
}

/// Whether a process listens at the daemon's socket.
fn listens(world: &World) -> bool {
    listens_at(world, SOCKET)
}

/// Whether a process listens at the socket `path`. Its file is there a little earlier.
fn listens_at(world: &World, path: &str) -> bool {
    world.host(["ss", "-xlH"]).lines().any(|line| line.contains(path))
}

/// The only address of a result, without the length of its prefix.
fn address(result: &Value) -> String {
    let ips = result["ips"].as_array().unwrap_or_else(|| panic!("no ips: {result}"));
    assert_eq!(ips.len(), 1, "{result}");
    ips[0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned()
}
