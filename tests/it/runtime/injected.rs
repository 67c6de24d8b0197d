//! A system call that fails is no proof: under EIO, ENOMEM, EMFILE and EACCES at each open, read and listing of a directory, gc,
//! `doctor --fix` and the ADD of another container change nothing of what lives.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Host, list};
use crate::world::{Call, Outcome, Running, parse};

/// Where strace writes, in the world.
const TRACE: &str = "/run/trace";
const CALLS: &str =
    "open,openat,openat2,read,pread64,getdents64,readlink,readlinkat,stat,lstat,statx,newfstatat";
const ERRORS: [&str; 4] = ["EIO", "ENOMEM", "EMFILE", "EACCES"];
/// The container that has ended.
const ENDED: &str = "ended";

/// Prints what is inside of the namespaces of these processes, and the checksums of the records and claims: a `State` has only a part
/// of a record.
const LOOK_INSIDE: &str = r#"
    find /var/lib/cni/attachments -type f ! -name '*ended*' -exec sha256sum {} +
    for pid; do
        nsenter --net=/proc/$pid/ns/net ip -o -d link
        nsenter --net=/proc/$pid/ns/net ip -o address show scope global
    done"#;

/// One way in which system calls fail.
struct Fault {
    name: String,
    options: Vec<String>,
}

/// A host with living containers, and with one that has ended.
struct Living {
    host: Host,
    processes: Vec<Running>,
    /// Everything of the living containers, without the ended one.
    tokens: Vec<String>,
}

fn static_macvlan() -> Value {
    let ipam = json!({"type": "static", "addresses": [{"address": "10.3.0.7/24"}]});
    json!({"type": "macvlan", "master": "lan0", "ipam": ipam})
}

fn configure(host: &Host) {
    host.world.host(["sh", "-ec", "ip link add lan0 type bridge; ip link set lan0 up"]);
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.2.0.0/24"}]]});
    let bridge = json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam});
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let card = json!({"type": "host-device", "device": "nic0", "ipam":
        {"type": "static", "addresses": [{"address": "10.7.0.7/24"}]}});
    for (name, plugins) in [
        ("net", json!([bridge, portmap])),
        ("one", json!([static_macvlan()])),
        ("card", json!([card])),
    ] {
        let mut network = list("1.1.0", &[]);
        network["name"] = name.into();
        network["plugins"] = plugins;
        host.configure(&format!("{name}.conflist"), &network);
    }
}

/// Attaches the container of the namespace `id`.
fn add(host: &Host, (network, id): (&str, &str), ports: &[&str]) {
    let add = ["add", network, id, "--container-id", id];
    host.cnibox(&[&add, ports].concat()).run().success();
}

impl Living {
    /// Each kind once with the file of its namespace, and once with a process only.
    fn new() -> Self {
        let host = Host::new();
        configure(&host);
        let mut processes = Vec::new();
        for (id, network, ports) in [
            ("c1", "net", &["-p", "8080:80"][..]),
            ("c2", "net", &["-p", "8082:80"]),
            ("c3", "one", &[]),
            ("c4", "card", &[]),
        ] {
            let container = host.world.container(id);
            processes.push(container.tool(["sleep", "10000"]).start());
            if network == "card" {
                host.world.host(["ip", "link", "add", "nic0", "type", "veth", "peer", "wire0"]);
            }
            add(&host, (network, id), ports);
            if id != "c1" {
                container.destroy();
            }
        }
        // podman, which made it, has ended. A process is in it.
        let container = host.world.container("netns-5256f61a");
        processes.push(container.tool(["sleep", "10000"]).start());
        let podman = host.podman(&container.netns(), "podman");
        host.kill(podman);
        host.cnibox(&["attachments"]).run().output();
        let mut living = Self { host, processes, tokens: Vec::new() };
        living.end();
        living.host.cnibox(&["gc"]).run().output();
        living.tokens = living.look();
        living.end();
        living
    }

    /// Attaches a container with a published port, and ends it.
    fn end(&self) {
        let container = self.host.world.container(ENDED);
        add(&self.host, ("net", ENDED), &["-p", "8099:99"]);
        container.destroy();
    }

    /// What is seen of all containers: links, rules, files, their insides, and what cnibox says of them.
    fn look(&self) -> Vec<String> {
        let world = &self.host.world;
        let state = world.state().without("file /var/lib/cni/networks/net/last_reserved", "");
        let state = state.without("dir /var/lib/cni", "").without("file /var/lib/cni/gc", "");
        let mut tokens: Vec<String> = Vec::new();
        for line in state.lines() {
            match line.strip_prefix("host nft") {
                Some(ruleset) => {
                    let parts = ruleset.split(['{', '}', ',', '\n', ';']);
                    tokens.extend(parts.map(|part| format!("nft {}", part.trim())));
                }
                None => tokens.push(line.clone()),
            }
        }
        let pids: Vec<String> =
            self.processes.iter().map(|process| process.pid_in_world().to_string()).collect();
        let mut words = vec!["sh", "-ec", LOOK_INSIDE, "sh"];
        words.extend(pids.iter().map(String::as_str));
        let inside = world.tool(&words, None).run().output();
        tokens.extend(inside.lines().map(|line| format!("inside {line}")));
        let said = parse(&self.host.cnibox(&["attachments", "--json"]).run().output());
        for entry in said["attachments"].as_array().unwrap() {
            tokens.push(format!("attachment {} {}", entry["containerId"], entry["state"]));
        }
        tokens.sort();
        tokens
    }

    /// Fails if something of the living containers is missing.
    #[track_caller]
    fn keeps(&self, outcome: &Outcome, fault: &str) {
        let mut counts = BTreeMap::new();
        for token in self.look() {
            *counts.entry(token).or_insert(0) += 1;
        }
        let mut missing = self.tokens.clone();
        missing.retain(|token| {
            let count = counts.entry(token.clone()).or_insert(0);
            *count -= 1;
            *count < 0
        });
        assert!(missing.is_empty(), "{fault}: {}\n{}", outcome.report(), missing.join("\n"));
    }

    fn has_ended_one(&self) -> bool {
        self.host.world.path(self.host.record_of("net", ENDED)).exists()
    }

    /// The next gc removes the rest of the ended one, and nothing else.
    #[track_caller]
    fn restore(&self, fault: &str) {
        self.host.world.eventually(&format!("{fault}: gc leaves the living only"), || {
            self.host.cnibox(&["gc"]).run();
            self.look() == self.tokens
        });
        self.end();
    }

    /// Runs a call with each fault that `choose` takes. `judge` sees the outcome.
    fn at_every_fault<'a>(
        &'a self,
        call: impl Fn() -> Call<'a>,
        choose: impl Fn(usize, &Fault) -> bool,
        judge: impl Fn(&Outcome, &str),
    ) {
        let traced = |options: &[String]| {
            let mut words = vec!["strace", "-f", "-qq", "-o", TRACE];
            words.extend(options.iter().map(String::as_str));
            call().under(&words).run()
        };
        traced(&["-e".to_owned(), format!("trace={CALLS}")]);
        let trace = self.host.world.read(TRACE);
        let mut faults = faults(&trace);
        faults.extend(faults_of_paths(&trace));
        self.restore("without a fault");
        let chosen = faults.iter().enumerate().filter(|(number, fault)| choose(*number, fault));
        let mut count = 0;
        for (_, fault) in chosen {
            let outcome = traced(&fault.options);
            self.keeps(&outcome, &fault.name);
            judge(&outcome, &fault.name);
            if !self.has_ended_one() {
                self.restore(&fault.name);
            }
            count += 1;
        }
        self.restore("after all faults");
        assert!(count > 10, "{count}");
    }
}

/// For each call of a trace and each error: the call fails alone, and it fails with all later ones.
fn faults(trace: &str) -> Vec<Fault> {
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    let mut faults = Vec::new();
    for line in trace.lines() {
        let Some((process, call)) = line.split_once(' ') else { continue };
        let Some((name, _)) = call.trim().split_once('(') else { continue };
        if !CALLS.split(',').any(|known| known == name) {
            continue;
        }
        let of_process = counts.entry(process).or_default();
        *of_process.entry(name).or_insert(0) += 1;
        let when = of_process[name];
        for error in ERRORS {
            let point = format!("inject={name}:error={error}:when={when}");
            let once = vec!["-e".to_owned(), point.clone()];
            faults.push(Fault { name: format!("{point} of {call}"), options: once });
            let mut all = Vec::new();
            for other in CALLS.split(',') {
                let past = of_process.get(other).copied().unwrap_or(0);
                let first = if other == name { when } else { past + 1 };
                all.extend([
                    "-e".to_owned(),
                    format!("inject={other}:error={error}:when={first}+"),
                ]);
            }
            faults.push(Fault { name: format!("{point}+ of {call}"), options: all });
        }
    }
    faults
}

/// For each absolute path of a trace and each error: every call with the path fails, as on a damaged disk.
fn faults_of_paths(trace: &str) -> Vec<Fault> {
    let quoted = trace.lines().filter_map(|line| line.split('"').nth(1));
    let paths: BTreeSet<&str> = quoted.filter(|path| path.starts_with('/')).collect();
    let of_path = |path: &str, error: &str| {
        let point = format!("inject={CALLS}:error={error}:when=1+");
        let options = ["-P", path, "-e", &point].map(str::to_owned).to_vec();
        Fault { name: format!("{error} at {path}"), options }
    };
    paths.iter().flat_map(|path| ERRORS.map(|error| of_path(path, error))).collect()
}

fn is_of(fault: &Fault, error: &str) -> bool {
    let is_error = |option: &String| option.contains(&format!("error={error}:"));
    !is_of_path(fault) && fault.options.iter().any(is_error)
}

fn is_of_path(fault: &Fault) -> bool {
    fault.options[0] == "-P"
}

fn sweep(words: &[&str], choose: impl Fn(usize, &Fault) -> bool) {
    let living = Living::new();
    living.at_every_fault(|| living.host.cnibox(words), choose, |_, _| ());
}

#[test]
fn gc_spares_the_living_at_each_seventh_eio() {
    // Eight faults of each call, of which the first is one EIO. And each record that cannot be read.
    sweep(&["gc"], |number, fault| match is_of_path(fault) {
        true => fault.name.starts_with("EIO at /var/lib/cni/attachments/"),
        false => number % (8 * 7) == 0,
    });
}

/// The second look of gc at an attachment fails as the first.
#[test]
fn gc_spares_the_living_at_every_path_that_fails() {
    sweep(&["gc"], |_, fault| is_of_path(fault));
}

#[test]
fn doctor_spares_the_living_at_every_path_that_fails() {
    sweep(&["doctor", "--fix", "--yes"], |_, fault| is_of_path(fault));
}

#[test]
fn gc_spares_the_living_at_every_eio() {
    sweep(&["gc"], |_, fault| is_of(fault, "EIO"));
}

#[test]
fn gc_spares_the_living_at_every_enomem() {
    sweep(&["gc"], |_, fault| is_of(fault, "ENOMEM"));
}

#[test]
fn gc_spares_the_living_at_every_emfile() {
    sweep(&["gc"], |_, fault| is_of(fault, "EMFILE"));
}

#[test]
fn gc_spares_the_living_at_every_eacces() {
    sweep(&["gc"], |_, fault| is_of(fault, "EACCES"));
}

#[test]
fn doctor_spares_the_living_at_every_fault() {
    // Every fifth of the eight faults of a call: two calls that follow one another meet different ones.
    sweep(&["doctor", "--fix", "--yes"], |number, fault| !is_of_path(fault) && number % 5 == 0);
}

/// It asks for the address and the port of living containers.
#[test]
fn an_add_takes_nothing_from_the_living_at_any_fault() {
    let living = Living::new();
    let host = &living.host;
    host.world.container("other");
    for words in [
        &["add", "one", "other", "--container-id", "other"][..],
        &["add", "net", "other", "--container-id", "other", "-p", "8080:80"],
    ] {
        let del = ["del", words[1], "other", "--container-id", "other", "--ignore"];
        let judge = |outcome: &Outcome, fault: &str| {
            assert!(outcome.status != 0, "{fault}: {}", outcome.report());
            // If the calls that follow fail, too, the ADD cannot undo what it did, and leaves it to a DEL.
            host.cnibox(&del).run().silence();
        };
        living.at_every_fault(
            || host.cnibox(words),
            |number, fault| is_of_path(fault) || number % 3 == 0,
            judge,
        );
    }
}
