//! Rulesets of a host, judged by traffic: the doctor lists the filter if packets of a container are dropped, and is silent if
//! they pass, except for rules that it cannot compare with the packets.

use serde_json::{Value, json};

use super::{doctor, healthy};
use crate::firewall::outside;
use crate::world::{Container, Running, World, parse, with};

/// The traffic under a ruleset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    /// From the container over IPv4 and IPv6.
    pub(super) out: [bool; 2],
    /// From outside to the published port.
    pub(super) published: bool,
}

pub(super) const FLOWS: Traffic = Traffic { out: [true, true], published: true };
pub(super) const DROPPED: Traffic = Traffic { out: [false, false], published: false };
pub(super) const V4_DROPPED: Traffic = Traffic { out: [false, true], published: false };
pub(super) const UNPUBLISHED: Traffic = Traffic { out: [true, true], published: false };

/// The answer of the doctor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// It lists a filter if packets are dropped, else nothing.
    AsTraffic,
    /// It lists a filter, also if packets pass.
    MayDrop,
}

pub(super) const MAY_DROP: Says = Says::MayDrop;
pub(super) const AS_TRAFFIC: Says = Says::AsTraffic;

/// A host with network `a`, a container with a published port, and a neighbour that knows the way to the container.
pub(super) struct Site<'w> {
    world: &'w World,
    outside: Container<'w>,
    container: Container<'w>,
    /// The plugins after `bridge`, with its result.
    chained: Vec<Value>,
    _servers: Vec<Running>,
}

/// A network with both families and published ports.
pub(super) fn network() -> Value {
    let ranges = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]);
    let bridge = json!({
        "type": "bridge", "bridge": "cni-a", "isDefaultGateway": true,
        "ipam": {"type": "host-local", "ranges": ranges},
    });
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    json!({"cniVersion": "1.0.0", "name": "a", "plugins": [bridge, portmap]})
}

/// Rules, the traffic that they let through, and what the doctor says of them.
pub(super) type Case<'a> = (&'a str, Traffic, Says);

/// Judges each ruleset. `load` makes it that of the world, and returns it in full.
pub(super) fn judge_each(cases: &[Case<'_>], load: impl Fn(&World, &str, Traffic) -> String) {
    let world = host();
    let site = Site::new(&world);
    for (rules, traffic, says) in cases {
        let rules = load(&world, rules, *traffic);
        site.judge(&rules, *traffic, *says);
    }
}

pub(super) fn host() -> World {
    healthy(&[network()])
}

impl<'w> Site<'w> {
    pub(super) fn new(world: &'w World) -> Self {
        Self::of(world, &network())
    }

    /// The host has the network already.
    pub(super) fn of(world: &'w World, network: &Value) -> Self {
        let outside = outside(world);
        for gateway in ["192.0.2.2", "fd02::2"] {
            world.host(["ip", "route", "add", "default", "via", gateway]);
        }
        let container = world.container("one");
        let common = json!({"cniVersion": "1.0.0", "name": "a"});
        let mut plugins = network["plugins"].as_array().unwrap().iter();
        let result = container.add("bridge", &with(plugins.next().unwrap(), common.clone()));
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let keys =
            with(&common, json!({"runtimeConfig": {"portMappings": ports}, "prevResult": result}));
        let chained = plugins.map(|plugin| with(plugin, keys.clone())).collect();
        let serve = |at: &Container<'w>, port| at.tool(["python3", "-c", SERVER, port]).start();
        let servers = vec![serve(&outside, "7777"), serve(&container, "80")];
        for (at, port) in [(&outside, "7777"), (&container, "80")] {
            world.eventually("the server listens", || {
                at.exec(["ss", "-Hltn"]).contains(&format!(":{port} "))
            });
        }
        let site = Self { world, outside, container, chained, _servers: servers };
        site.add();
        site
    }

    /// The ADDs of the plugins after `bridge`, for the first time or after `flush`.
    pub(super) fn add(&self) {
        for plugin in &self.chained {
            self.container.add(plugin["type"].as_str().unwrap(), plugin);
        }
    }

    /// Removes all rules, those of the plugins, too.
    pub(super) fn flush(&self) {
        self.world.host(["nft", "flush ruleset"]);
    }

    /// Whether connections succeed: for an expected one there is more time.
    pub(super) fn traffic(&self, expected: Traffic) -> Traffic {
        let limit = |is_expected| if is_expected { "60" } else { "1" };
        let out = connects(
            &self.container,
            [
                ["192.0.2.2", "7777", limit(expected.out[0])],
                ["fd02::2", "7777", limit(expected.out[1])],
            ],
        );
        let published = connects(&self.outside, [["192.0.2.1", "8080", limit(expected.published)]]);
        Traffic { out: [out[0], out[1]], published: published[0] }
    }

    /// The lines about filters. They are no fault.
    pub(super) fn lines(&self) -> Vec<Value> {
        let outcome = doctor(self.world, &["--json"]);
        let document = parse(&outcome.stdout);
        let all = document["findings"].as_array().unwrap();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        let found: Vec<&Value> = all.iter().filter(|finding| finding["kind"] == "may").collect();
        assert!(found.len() < 2, "{found:#?}");
        assert!(found.iter().all(|finding| finding["fix"] == "cnibox doctor --probe"));
        found.iter().flat_map(|finding| finding["lines"].as_array().unwrap().clone()).collect()
    }

    /// The traffic is the expected one, and the doctor lists filters.
    pub(super) fn judge(&self, rules: &str, expected: Traffic, says: Says) {
        assert_eq!(self.traffic(expected), expected, "the traffic under {rules}");
        let lines = self.lines();
        let is_listed = says == MAY_DROP || expected != FLOWS;
        assert_eq!(!lines.is_empty(), is_listed, "{rules}\n{lines:#?}");
        if expected == UNPUBLISHED && says == AS_TRAFFIC {
            assert!(lines[0].to_string().contains("published ports of a"), "{rules}\n{lines:#?}");
        }
    }
}

/// Whether connections to these addresses and ports are answered within a limit in seconds.
fn connects<const N: usize>(from: &Container<'_>, to: [[&str; 3]; N]) -> Vec<bool> {
    let words = [&["python3", "-c", CLIENT][..], to.as_flattened()].concat();
    let netns = from.netns();
    let answers = from.world.tool(&words, Some(&netns)).output_of_success();
    answers.lines().map(|line| line == "hello").collect()
}

const SERVER: &str = "import socket, sys
server = socket.create_server(('::', int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    connection = server.accept()[0]
    connection.sendall(b'hello')
    connection.close()";

/// All connections at once. After an ICMP error each goes on: a neighbour may not answer the kernel in time.
const CLIENT: &str = "import concurrent.futures, socket, sys, time
def connect(to):
    end = time.monotonic() + float(to[2])
    while True:
        try:
            limit = max(end - time.monotonic(), 0.1)
            connection = socket.create_connection((to[0], int(to[1])), limit)
            return connection.recv(9).decode()
        except OSError as error:
            if time.monotonic() > end:
                return 'no: %s' % error
            time.sleep(0.1)
arguments = sys.argv[1:]
targets = [arguments[at:at + 3] for at in range(0, len(arguments), 3)]
with concurrent.futures.ThreadPoolExecutor(9) as pool:
    print('\\n'.join(pool.map(connect, targets)))";
