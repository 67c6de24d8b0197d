//! A node: a process in user, mount, network and PID namespaces of its own, that executes requests.
//!
//! `--node` makes the namespaces, `--init` is process 1 in them. Both are this executable.

pub mod dhcp_server;
pub mod forger;
pub mod init;
mod sys;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

pub use sys::probe;

/// Where a node has this executable, cnibox, the links of the plugins, and the configurations.
pub const PLUGINS: &str = "/mnt/plugins";
pub const CNIBOX: &str = "/mnt/bin/cnibox";
pub const CONFIGURATIONS: &str = "/mnt/net.d";
/// The plugins of Debian, written in Go.
pub const GO_PLUGINS: &str = "/usr/lib/cni";
pub const TOOLS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A call takes no longer than this on a loaded machine.
pub const LIMIT_MS: u64 = 60_000;

pub struct Node {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// A process to run in a node.
#[derive(Clone, Debug, Default)]
pub struct Call {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: String,
    pub netns: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    /// A negative number is that of a signal.
    pub status: i64,
    pub stdout: String,
    pub stderr: String,
    pub is_late: bool,
    pub what: String,
}

impl Call {
    pub fn new<S: AsRef<str>>(argv: &[S]) -> Self {
        let argv: Vec<String> = argv.iter().map(|word| word.as_ref().to_owned()).collect();
        Self { argv, ..Self::default() }.env("PATH", TOOLS)
    }

    pub fn shell(script: &str) -> Self {
        Self::new(&["sh", "-c", script])
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    pub fn stdin(mut self, text: impl Into<String>) -> Self {
        self.stdin = text.into();
        self
    }

    pub fn netns(mut self, path: &str) -> Self {
        self.netns = Some(path.into());
        self
    }

    /// The same under a program that runs programs.
    pub fn under<S: AsRef<str>>(mut self, words: &[S]) -> Self {
        let words = words.iter().map(|word| word.as_ref().to_owned());
        self.argv = words.chain(self.argv).collect();
        self
    }

    fn request(&self) -> Value {
        json!({"argv": self.argv, "env": self.env, "stdin": self.stdin, "netns": self.netns})
    }

    pub fn describe(&self) -> String {
        let env = self.env.iter().filter(|(name, _)| *name != "PATH");
        let env: Vec<String> = env.map(|(name, value)| format!("{name}={value}")).collect();
        format!("{} {} <<< '{}'", env.join(" "), self.argv.join(" "), self.stdin)
    }
}

impl Outcome {
    fn new(answer: &Value, call: &Call) -> Self {
        let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
        let status = answer["status"].as_i64();
        Self {
            status: status.unwrap_or_else(|| panic!("{answer}: {}", call.describe())),
            stdout: text("stdout"),
            stderr: text("stderr"),
            is_late: answer["late"] == true,
            what: call.describe(),
        }
    }

    pub fn report(&self) -> String {
        let Self { status, stdout, stderr, what, .. } = self;
        format!("{what}\n  exit {status}\n  stdout: {stdout}\n  stderr: {stderr}")
    }
}

/// The executable under test: that of CNIBOX_EXECUTABLE, or the debug build, which has the fail points.
#[expect(clippy::disallowed_methods, reason = "it is asked of the caller of the tests")]
fn executable() -> String {
    std::env::var("CNIBOX_EXECUTABLE").unwrap_or_else(|_| env!("CARGO_BIN_EXE_cnibox").into())
}

impl Node {
    pub fn start() -> Self {
        let exe = std::env::current_exe().expect("this process has an executable");
        let mut child = Command::new(exe)
            .args(["--node", &executable()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this executable can be executed");
        let requests = child.stdin.take().expect("it is piped");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, requests, answers }
    }

    /// Sends a request to process 1 and returns the answer.
    pub fn ask(&mut self, request: &Value) -> Value {
        let line = format!("{request}\n");
        self.requests.write_all(line.as_bytes()).expect("the node reads requests");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the node answers");
        serde_json::from_str(&answer)
            .unwrap_or_else(|error| panic!("{error}: {answer:?} to {line}"))
    }

    pub fn run(&mut self, call: &Call) -> Outcome {
        let mut request = call.request();
        request["do"] = "run".into();
        request["limit_ms"] = LIMIT_MS.into();
        let answer = self.ask(&request);
        Outcome::new(&answer, call)
    }

    /// Runs all calls at the same time.
    pub fn race(&mut self, calls: &[Call]) -> Vec<Outcome> {
        let requests: Vec<Value> = calls.iter().map(Call::request).collect();
        let answer = self.ask(&json!({"do": "race", "limit_ms": LIMIT_MS, "calls": requests}));
        let answers = answer.as_array().unwrap_or_else(|| panic!("{answer}"));
        answers.iter().zip(calls).map(|(answer, call)| Outcome::new(answer, call)).collect()
    }

    /// A tool of the harness: it must succeed.
    pub fn must(&mut self, call: &Call) -> String {
        let outcome = self.run(call);
        assert!(outcome.status == 0, "{}", outcome.report());
        outcome.stdout
    }

    pub fn shell(&mut self, script: &str) -> Outcome {
        self.run(&Call::shell(script))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Process 1 ends with its stdin, or now; all others of the namespace end with it.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
