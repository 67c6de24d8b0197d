//! Faults of a host in tables. Each is made on a sound host and seen by its traffic. `cnibox doctor` finds it and prints a command,
//! which is executed as printed. After it the traffic passes, and the doctor is silent.

mod links;
mod lost;
mod programs;
mod routes;
mod rules;
mod sound;

mod state;
mod unseen;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::probe::{CONFIGURATIONS, Host};
use crate::world::{Call, Container, Outcome, PLUGIN_DIR, Running};

/// A fault of a host, which has the network `a`. `$one` and `$two` are the ports of its containers.
struct Fault {
    name: &'static str,
    /// The commands that make it.
    make: &'static str,
    breaks: Breaks,
    /// The calls that find it, each with words of what it prints. The last one prints the commands that mend it.
    found: &'static [(By, &'static [&'static str])],
    mend: Mend,
    /// The commands that remove what is left, such as a table with accepting rules.
    end: &'static str,
}

/// What shows that the fault is real.
enum Breaks {
    /// These connections fail.
    Traffic(&'static [Flow]),
    /// This command fails.
    Command(&'static str),
}

enum Mend {
    /// The printed commands.
    Printed,
    /// The printed commands, after which only this line of the doctor is left.
    PrintedExcept(&'static str),
    /// This command: no printed one can do it, for a reason.
    Undone(&'static str, &'static str),
}

/// A call of the doctor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Plain,
    Inside,
    One,
    Probe,
    ProbeOne,
}

impl By {
    fn args(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["doctor"],
            Self::Inside => &["doctor", "--inside"],
            Self::One => &["doctor", "one"],
            Self::Probe => &["doctor", "--probe"],
            Self::ProbeOne => &["doctor", "--probe", "one"],
        }
    }
}

/// Connections over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// From container one to a host behind the uplink, over IPv4 and IPv6.
    World,
    World6,
    /// From that host to the published port.
    Port,
    Port6,
    /// From container one to container two.
    Between,
    /// From the host to container one.
    Host,
}

impl Flow {
    const ALL: [Self; 6] =
        [Self::World, Self::World6, Self::Port, Self::Port6, Self::Between, Self::Host];

    /// The namespace that connects; the address and the port; the address that it connects from, if the kernel does not choose it.
    fn ends(self) -> (Option<&'static str>, [&'static str; 3]) {
        match self {
            Self::World => (Some("one"), ["198.41.0.4", "443", ""]),
            Self::World6 => (Some("one"), ["2001:503:ba3e::2:30", "443", ""]),
            Self::Port => (Some("outside"), ["198.18.0.1", "8080", "198.41.0.4"]),
            Self::Port6 => (Some("outside"), ["fd03::1", "8080", "2001:503:ba3e::2:30"]),
            Self::Between => (Some("one"), ["10.1.0.3", "80", ""]),
            Self::Host => (None, ["10.1.0.2", "80", ""]),
        }
    }
}

/// A host with servers in its containers and behind its uplink.
struct Site {
    host: Host,
    ports: [String; 2],
    sound: Vec<String>,
    servers: RefCell<Vec<Running>>,
}

/// Connections that are under way.
struct Connecting(Vec<(Running, Vec<Flow>)>);

impl Connecting {
    /// Those that succeed.
    fn finish(self) -> Vec<Flow> {
        let mut passing = Vec::new();
        for (call, group) in self.0 {
            let answers = call.finish().output();
            let answers = answers.lines().map(|line| line == "hello");
            passing.extend(group.iter().zip(answers).filter(|(_, passes)| *passes).map(|it| *it.0));
        }
        passing
    }
}

impl Site {
    fn new(host: Host) -> Self {
        let script = "ip address add fd03::9/64 dev port nodad && ip link set lo up &&
            ip address add 198.41.0.4/32 dev lo && ip address add 2001:503:ba3e::2:30/128 dev lo nodad";
        let at = |name: &str| Container { world: &host.world, name: name.into() };
        at("outside").exec(["sh", "-c", script]);
        let ports = ["one", "two"].map(|name| port_of(&host, name));
        let site = Self { host, ports, sound: Vec::new(), servers: RefCell::default() };
        site.serve();
        site.assert_flows("a sound host");
        Self { sound: site.state(), ..site }
    }

    /// Starts the servers.
    fn serve(&self) {
        let world = &self.host.world;
        let places = [("outside", "443"), ("one", "80"), ("two", "80")];
        for (name, port) in places {
            let netns = format!("/run/netns/{name}");
            let server = world.tool(&["python3", "-c", SERVER, port], Some(&netns)).start();
            self.servers.borrow_mut().push(server);
        }
        for (name, port) in places {
            let at = Container { world, name: name.into() };
            world.eventually("the server listens", || {
                at.exec(["ss", "-Hltn"]).contains(&format!(":{port} "))
            });
        }
    }

    /// A shell on the host, with cnibox in PATH.
    fn shell(&self, script: &str) -> Call<'_> {
        let call = self.host.world.tool(&["sh", "-c", script], None);
        let [one, two] = &self.ports;
        call.env("PATH", "/run/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("NETCONFPATH", CONFIGURATIONS)
            .env("CNI_PATH", PLUGIN_DIR)
            .env("one", one)
            .env("two", two)
    }

    #[track_caller]
    fn run(&self, script: &str) -> String {
        self.shell(script).output_of_success()
    }

    fn doctor(&self, by: By) -> Outcome {
        self.shell(&format!("cnibox {}", by.args().join(" "))).run()
    }

    /// Those that succeed within a limit in seconds.
    fn passing(&self, flows: &[Flow], limit_s: u8) -> Vec<Flow> {
        self.connect(flows, limit_s).finish()
    }

    fn connect(&self, flows: &[Flow], limit_s: u8) -> Connecting {
        let limit = limit_s.to_string();
        let mut calls = Vec::new();
        for from in [Some("one"), Some("outside"), None] {
            let group: Vec<Flow> =
                flows.iter().copied().filter(|flow| flow.ends().0 == from).collect();
            let mut words = vec!["python3", "-c", CLIENT, &limit];
            for flow in &group {
                words.extend(flow.ends().1);
            }
            let netns = from.map(|name| format!("/run/netns/{name}"));
            if !group.is_empty() {
                calls.push((self.host.world.tool(&words, netns.as_deref()).start(), group));
            }
        }
        Connecting(calls)
    }

    #[track_caller]
    fn assert_flows(&self, when: &str) {
        let mut passing = self.passing(&Flow::ALL, 60);
        passing.sort_by_key(|flow| *flow as u8);
        assert_eq!(passing, Flow::ALL, "{when}");
    }

    /// What a fault may not leave behind: links, addresses, routes, policy rules, rules and files.
    fn state(&self) -> Vec<String> {
        let state = self.host.world.state().without("host nft", "");
        let mut rules: Vec<String> =
            self.run("nft --stateless list ruleset").lines().map(str::to_owned).collect();
        rules.sort();
        [state.lines(), &rules].concat()
    }

    #[track_caller]
    fn assert_silent(&self, by: By, name: &str) {
        let outcome = self.doctor(by);
        let last = outcome.stdout.lines().last().unwrap_or_default();
        let is_silent =
            last.starts_with("no fault found in ") && !outcome.stdout.contains("\n    ");
        assert!(outcome.status == 0 && is_silent, "{name}, mended: {}", outcome.report());
    }

    /// There is no fault, and one line of the finding `may`.
    #[track_caller]
    fn assert_only(&self, by: By, line: &str, name: &str) {
        let outcome = self.doctor(by);
        let lines: Vec<&str> =
            outcome.stdout.lines().filter(|line| line.starts_with("    - ")).collect();
        let is_only = matches!(lines[..], [only] if only.contains(line));
        assert!(outcome.status == 0 && is_only, "{name}, mended: {}", outcome.report());
    }

    /// Makes the fault, lets the doctor find it, and mends it.
    fn judge(&self, fault: &Fault) {
        let name = fault.name;
        self.run(fault.make);
        // The doctor has its say while the connections fail.
        let cut = match fault.breaks {
            Breaks::Traffic(cut) => cut,
            Breaks::Command(command) => {
                let outcome = self.shell(command).run();
                assert_ne!(outcome.status, 0, "{name}: {}", outcome.report());
                &[]
            }
        };
        let connecting = self.connect(cut, 1);
        let mut last = String::new();
        for (by, words) in fault.found {
            let outcome = self.doctor(*by);
            let [one, two] = &self.ports;
            for word in *words {
                let word = word.replace("$one", one).replace("$two", two);
                let has =
                    [&outcome.stdout, &outcome.stderr].iter().any(|text| text.contains(&word));
                assert!(has, "{name}: {by:?} does not say {word}: {}", outcome.report());
            }
            last = outcome.stdout;
        }
        assert_eq!(connecting.finish(), [], "{name}: it cuts these");
        let (by, _) = fault.found.last().unwrap();
        match fault.mend {
            Mend::Printed | Mend::PrintedExcept(_) => self.execute(fault, *by, &last),
            Mend::Undone(command, _) => drop(self.run(command)),
        }
        self.assert_mended(fault);
        match fault.mend {
            Mend::PrintedExcept(line) => self.assert_only(*by, line, name),
            _ => self.assert_silent(*by, name),
        }
        self.run(fault.end);
    }

    #[track_caller]
    fn assert_same(&self, name: &str) {
        self.host.world.within_or(
            60,
            || self.state() == self.sound,
            || format!("{name} leaves something:\n{:#?}", difference(&self.sound, &self.state())),
        );
    }

    /// All connections are possible, and the command succeeds.
    #[track_caller]
    fn assert_mended(&self, fault: &Fault) {
        let name = fault.name;
        self.assert_flows(&format!("{name}, mended"));
        if let Breaks::Command(command) = fault.breaks {
            // A daemon needs some time until it answers.
            let what = format!("{name} is mended: {command}");
            self.host.world.eventually(&what, || self.shell(command).run().status == 0);
        }
    }

    /// Executes the commands that the doctor printed, and those of the next output, until there are none.
    fn execute(&self, fault: &Fault, by: By, printed: &str) {
        let name = fault.name;
        let mut commands = fixes(printed);
        assert!(!commands.is_empty(), "{name}: no command is printed: {printed}");
        for _ in 0..ROUNDS_MAX {
            for command in std::mem::take(&mut commands) {
                // A daemon that the command starts keeps its output open.
                let script = format!("exec >{PRINTED} 2>&1 </dev/null\n{command}");
                let outcome = self.shell(&script).run();
                let output = self.host.world.read(PRINTED);
                assert_eq!(outcome.status, 0, "{name}: {command}: {output}");
                if command.starts_with("cnibox doctor --probe") {
                    commands = fixes(&output);
                }
            }
            if commands.is_empty() {
                if let Breaks::Command(_) = fault.breaks {
                    return;
                }
                commands = fixes(&self.doctor(by).stdout);
            }
            if commands.is_empty() {
                return;
            }
        }
        panic!("{name}: after {ROUNDS_MAX} rounds, there is still {commands:?}");
    }
}

/// The output of the last printed command.
const PRINTED: &str = "/run/printed";

/// A command of one finding can uncover the next finding: a packet that passes one chain is dropped by another.
const ROUNDS_MAX: u8 = 4;

/// The commands that an output prints, each once.
fn fixes(printed: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for line in printed.lines() {
        if let Some(command) = line.strip_prefix("    fix: ")
            && !commands.iter().any(|known| known == command)
        {
            commands.push(command.to_owned());
        }
    }
    commands
}

fn difference(before: &[String], after: &[String]) -> Vec<String> {
    let lost = before.iter().filter(|line| !after.contains(line)).map(|line| format!("- {line}"));
    let new = after.iter().filter(|line| !before.contains(line)).map(|line| format!("+ {line}"));
    lost.chain(new).collect()
}

/// The end of a container's veth on the host.
fn port_of(host: &Host, name: &str) -> String {
    let netns = format!("/run/netns/{name}");
    let script = "cat /sys/class/net/eth0/iflink";
    let words = ["sh", "-c", &format!("mount -t sysfs none /sys && {script}")];
    let index = host
        .world
        .tool(&[&["unshare", "-m"], &words[..]].concat(), Some(&netns))
        .output_of_success();
    let links = host.world.host(["ip", "-o", "link"]);
    let line = links.lines().find(|line| line.starts_with(&format!("{}: ", index.trim()))).unwrap();
    line.split(": ").nth(1).unwrap().split('@').next().unwrap().to_owned()
}

/// Judges each fault on one host. Reports all that fail; after one, the next is made on a new host.
#[track_caller]
fn judge(host: fn() -> Host, faults: &[Fault]) {
    let mut site = Site::new(host());
    let mut failed = Vec::new();
    for fault in faults {
        let judge = || {
            site.judge(fault);
            site.assert_same(fault.name);
        };
        if catch_unwind(AssertUnwindSafe(judge)).is_err() {
            failed.push(fault.name);
            site = Site::new(host());
        }
    }
    assert_eq!(failed, [""; 0]);
}

/// Judges each fault on a host of its own.
#[track_caller]
fn judge_apart(host: fn() -> Host, faults: &[Fault]) {
    faults.iter().for_each(|fault| Site::new(host()).judge(fault));
}

const SERVER: &str = "import socket, sys
server = socket.create_server(('::', int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    connection = server.accept()[0]
    try:
        connection.sendall(b'hello')
    except OSError:
        pass
    connection.close()";

/// All connections at once. Each is tried again after an error, and after 3 s: a neighbour may not answer the kernel in time, and the
/// kernel repeats the first segment only after 1, 3, 7, 15 and 31 s.
const CLIENT: &str = "import concurrent.futures, socket, sys, time
def connect(to):
    end = time.monotonic() + float(sys.argv[1])
    while True:
        try:
            limit = min(max(end - time.monotonic(), 0.1), 3)
            source = (to[2], 0) if to[2] else None
            return socket.create_connection((to[0], int(to[1])), limit, source).recv(9).decode()
        except OSError as error:
            if time.monotonic() > end:
                return 'no: %s' % error
            time.sleep(0.1)
words = sys.argv[2:]
targets = [words[at:at + 3] for at in range(0, len(words), 3)]
with concurrent.futures.ThreadPoolExecutor(9) as pool:
    print('\\n'.join(pool.map(connect, targets)))";
