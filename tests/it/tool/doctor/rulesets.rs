//! Rulesets of a host, judged by traffic: the doctor finds a fault if packets of a container are dropped, and none if they
//! pass. Each command that it names lets them pass, and adds nothing but its rules.

use std::collections::BTreeSet;

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
    /// A fault if packets are dropped, else nothing.
    AsTraffic,
    /// A note, because of this expression.
    CannotTell(&'static str),
    /// A fault, and these words in place of a command.
    Words(&'static str),
}

pub(super) const AS_TRAFFIC: Says = Says::AsTraffic;

/// A host with network `a`, a container with a published port, and a neighbour that knows the way to the container.
pub(super) struct Site<'w> {
    world: &'w World,
    outside: Container<'w>,
    container: Container<'w>,
    /// The plugins after `bridge`, with its result.
    chained: Vec<Value>,
    address: String,
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
        let address = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
        let serve = |at: &Container<'w>, port| at.tool(["python3", "-c", SERVER, port]).start();
        let servers = vec![serve(&outside, "7777"), serve(&container, "80")];
        for (at, port) in [(&outside, "7777"), (&container, "80")] {
            world.eventually("the server listens", || {
                at.exec(["ss", "-Hltn"]).contains(&format!(":{port} "))
            });
        }
        let address = address.into();
        let site = Self { world, outside, container, chained, address, _servers: servers };
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

    /// Whether a packet of a new connection from outside reaches the container itself.
    fn is_open(&self) -> bool {
        let refused = || {
            let lines = self.container.exec(["cat", "/proc/net/snmp"]);
            let numbers = lines.lines().filter(|line| line.starts_with("Udp: ")).nth(1);
            let refused = numbers.and_then(|line| line.split(' ').nth(2));
            refused.unwrap().parse::<u32>().unwrap()
        };
        let before = refused();
        // On one processor the packets of a link are received in their order, so the echos come last.
        let script = format!(
            "for i in 1 2 3; do echo >/dev/udp/{}/9; done; ping -qnc 1 -w 60 192.0.2.1",
            self.address
        );
        self.outside.exec(["taskset", "-c", "0", "bash", "-c", &script]);
        self.world.host(["taskset", "-c", "0", "ping", "-qnc", "1", "-w", "60", &self.address]);
        refused() > before
    }

    /// All rules, without the values of counters.
    fn rules(&self) -> Vec<String> {
        let script = "nft -s list ruleset; for ip in iptables ip6tables; do $ip-legacy -S; done";
        self.world.host(["sh", "-c", script]).lines().map(str::to_owned).collect()
    }

    /// The findings about the chains, faults first, then the notes.
    pub(super) fn findings(&self) -> [Vec<Value>; 2] {
        let outcome = doctor(self.world, &["--json"]);
        let document = parse(&outcome.stdout);
        let is_about =
            |finding: &&Value| finding["what"].as_str().unwrap().contains(" packets of a");
        let all = document["findings"].as_array().unwrap().iter();
        let (notes, faults): (Vec<Value>, Vec<Value>) =
            all.filter(is_about).cloned().partition(|finding| finding["kind"] == "note");
        [faults, notes]
    }

    /// The traffic is the expected one, the doctor says it, and its commands change it.
    pub(super) fn judge(&self, rules: &str, expected: Traffic, says: Says) {
        assert_eq!(self.traffic(expected), expected, "the traffic under {rules}");
        let [faults, notes] = self.findings();
        let about = format!("{rules}\n{faults:#?}\n{notes:#?}");
        if let Says::CannotTell(on) = says {
            let are_empty = notes.iter().all(|finding| finding["fix"] == "");
            let has = notes.iter().any(|finding| finding["what"].as_str().unwrap().ends_with(on));
            assert!(faults.is_empty() && are_empty && has, "{about}");
            return;
        }
        assert!(notes.is_empty(), "{about}");
        assert_eq!(faults.is_empty(), expected == FLOWS, "{about}");
        if faults.is_empty() {
            return;
        }
        if expected == UNPUBLISHED {
            assert!(faults[0]["what"].to_string().contains(" of a (published ports)"), "{about}");
        }
        let fixes: Vec<&str> =
            faults.iter().map(|finding| finding["fix"].as_str().unwrap()).collect();
        if let Says::Words(words) = says {
            assert_eq!(fixes, [words], "{about}");
            return;
        }
        let (before, was_open) = (self.rules(), self.is_open());
        let mut added = 0;
        for fix in fixes {
            added += fix.matches(" && ").count() + 1;
            self.world.host(["sh", "-c", fix]);
        }
        let about = format!("{about}\n{}", self.rules().join("\n"));
        assert_eq!(self.findings(), [[], []] as [[Value; 0]; 2], "after the fix: {about}");
        assert_eq!(self.traffic(FLOWS), FLOWS, "after the fix: {about}");
        self.assert_only_added(&before, added);
        assert_eq!(self.is_open(), was_open, "the way to the container: {about}");
    }

    /// The rules are those from before, in their order, with some more. Each added rule is about the container's own packets,
    /// answers, or published ports.
    fn assert_only_added(&self, before: &[String], added: usize) {
        let after = self.rules();
        let mut rest = before.iter().peekable();
        let mut new = Vec::new();
        for line in &after {
            if rest.next_if(|next| *next == line).is_none() {
                new.push(line.trim());
            }
        }
        assert!(rest.peek().is_none() && new.len() == added, "{new:?} of {added}: {after:#?}");
        let known: BTreeSet<&str> = BTreeSet::from([
            r#"iifname "cni-a" oifname "wan0" accept"#,
            "ct state established,related accept",
            "ct status dnat accept",
        ]);
        for rule in new {
            let rule = rule.replace("counter ", "").replace("packets 0 bytes 0 ", "");
            let is_of_iptables = [
                "-A FORWARD -i cni-a -o wan0 -j ACCEPT",
                "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
                "-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT",
            ];
            // nft prints the matches of iptables as `xt match "conntrack"`, or as `ct state`.
            let is_match = rule.starts_with("ct state related,established accept")
                || rule.starts_with(r#"xt match "conntrack""#)
                || rule.starts_with("ct state dnat")
                || rule.starts_with("ct status dnat");
            assert!(
                known.contains(rule.as_str())
                    || is_of_iptables.contains(&rule.as_str())
                    || is_match,
                "{rule}"
            );
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
