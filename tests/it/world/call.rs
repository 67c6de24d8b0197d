//! One process: a plugin, or a tool to look at the world with. Its input, its output and its exit status.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::Arc;

use nix::unistd::Pid;
use serde_json::Value;

use super::sys::{self, Process};
use super::{BOOT_FILE, World};

/// Where the tools are that look at the world. A plugin gets no PATH unless the test says so.
const TOOL_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The time that D-Bus has for a reply, in seconds.
pub const BUS_LIMIT: &str = "CNIBOX_LIMIT_BUS";

/// The line of a debug build on stderr when it makes a request or an operation fail.
const INJECTED: &str = "cnibox: fault injected\n";

pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A process to be started, with an environment that holds what is named here and nothing else.
#[derive(Clone)]
pub struct Call<'w> {
    world: Option<&'w World>,
    netns: Option<String>,
    program: PathBuf,
    arg0: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    stdin: Vec<u8>,
    keep_stdin_open: bool,
}

/// A started process. Several can be under way at once.
pub struct Running {
    process: Process,
    /// Held open until the process has ended, after `keeping_stdin_open`.
    _stdin: Option<ChildStdin>,
    what: String,
}

/// Starts all before it waits for any.
pub fn all_at_once<'w>(calls: impl IntoIterator<Item = Call<'w>>) -> Vec<Outcome> {
    let running: Vec<Running> = calls.into_iter().map(Call::start).collect();
    running.into_iter().map(Running::finish).collect()
}

/// The exit status and the output of a process.
pub struct Outcome {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
    /// Whether the process, or one that it started, made a request or an operation fail. `stderr` is without that line.
    pub is_faulty: bool,
    /// The call as text, for the messages of failing tests.
    what: String,
}

/// The error object of the specification.
#[derive(Debug)]
pub struct CniError {
    pub cni_version: String,
    pub code: u64,
    pub msg: String,
    pub details: String,
}

impl<'w> Call<'w> {
    fn new(world: Option<&'w World>, program: impl Into<PathBuf>) -> Self {
        Self {
            world,
            netns: None,
            program: program.into(),
            arg0: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            stdin: Vec::new(),
            keep_stdin_open: false,
        }
    }

    /// Any program outside of any world, with an empty environment.
    pub fn program(program: &Path) -> Call<'static> {
        Call::new(None, program)
    }

    /// cnibox outside of any world, as user 65534 if the tests run as root. That user need not have the right to
    /// reach the executable by its path. It may open /proc/self/fd/8, a copy of stdin.
    pub fn unprivileged(args: &[&str]) -> Call<'static> {
        let script = r#"exec 9<"$EXECUTABLE"
            [ "$(id -u)" != 0 ] || set -- setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all "$@"
            exec "$@""#;
        let own = [
            "-c",
            script,
            "sh",
            "bash",
            "-c",
            r#"exec 8< <(cat); exec -a cnibox /proc/self/fd/9 "$@""#,
            "bash",
        ];
        let call = Call::program("/bin/sh".as_ref()).args(&own).args(args);
        call.env("PATH", TOOL_PATH).env("EXECUTABLE", super::executable())
    }

    pub(super) fn plugin_of_world(world: &'w World, name: &str) -> Self {
        let call = Self::new(Some(world), Path::new(&world.cni_path).join(name))
            .env("CNI_PATH", &world.cni_path)
            .in_boot_of(world);
        // firewalld may need more time than the plugin gives it. Only a debug build reads the variable.
        if name == "firewall" { call.env(BUS_LIMIT, "60") } else { call }
    }

    pub(super) fn tool(world: &'w World, words: &[&str], netns: Option<&str>) -> Self {
        let call = Self::new(Some(world), words[0]).env("PATH", TOOL_PATH).args(&words[1..]);
        Self { netns: netns.map(str::to_owned), ..call.in_boot_of(world) }
    }

    /// Tells a debug build the boot id of a world that has booted.
    fn in_boot_of(self, world: &World) -> Self {
        let has_booted = world.path(BOOT_FILE).exists();
        if has_booted { self.env("CNIBOX_BOOT_FILE", BOOT_FILE) } else { self }
    }

    pub fn world(&self) -> Option<&'w World> {
        self.world
    }

    /// The plugin of the same name in another directory, which is also where it looks for others.
    pub fn of_directory(mut self, dir: &str) -> Self {
        let name = self.program.file_name().unwrap().to_owned();
        self.program = Path::new(dir).join(name);
        self.env("CNI_PATH", dir)
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// The argv[0] of the process, if it is not its path.
    pub fn arg0(mut self, arg0: &str) -> Self {
        self.arg0 = Some(arg0.into());
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.env.remove(name);
        self
    }

    pub fn config(self, config: &Value) -> Self {
        self.stdin(config.to_string())
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// The process gets its input, but no end of it.
    pub fn keeping_stdin_open(mut self) -> Self {
        self.keep_stdin_open = true;
        self
    }

    /// The same call under a program that runs programs, `strace` for example.
    pub fn under(mut self, words: &[&str]) -> Self {
        let program = self.program.to_str().unwrap().to_owned();
        let args = words[1..].iter().map(|&word| word.to_owned());
        self.args = args.chain([program]).chain(self.args).collect();
        self.program = words[0].into();
        self.env.entry("PATH".into()).or_insert_with(|| TOOL_PATH.into());
        self
    }

    /// Starts a service, or one of several commands. It has no time limit, and ends with the world.
    pub fn start(self) -> Running {
        let command = self.command();
        self.spawn(command)
    }

    pub fn run(self) -> Outcome {
        let mut command = self.command();
        sys::limit_time(&mut command);
        self.spawn(command).finish()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(&self.env);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(arg0) = &self.arg0 {
            std::os::unix::process::CommandExt::arg0(&mut command, arg0);
        }
        sys::end_with_parent(&mut command);
        command
    }

    fn spawn(self, mut command: Command) -> Running {
        let what = self.describe();
        let netns = self.netns.map(|path| CString::new(path).unwrap());
        let started = match self.world {
            Some(world) => sys::start_in(Arc::clone(&world.namespaces), command, netns),
            None => Process::outside(&mut command),
        };
        let mut process = started.unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut stdin = process.child.stdin.take().unwrap();
        match stdin.write_all(&self.stdin) {
            // A process need not read what it does not want.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written.unwrap(),
        }
        Running { process, _stdin: self.keep_stdin_open.then_some(stdin), what }
    }

    #[track_caller]
    pub fn output_of_success(self) -> String {
        self.run().output()
    }

    fn describe(&self) -> String {
        let env: Vec<String> =
            self.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let stdin = String::from_utf8_lossy(&self.stdin);
        let (env, args) = (env.join(" "), self.args.join(" "));
        format!("{env} {} {args} <<< '{stdin}'", self.program.display())
    }
}

impl Running {
    pub fn finish(self) -> Outcome {
        let Self { process, _stdin, what } = self;
        Outcome::new(process.child.wait_with_output().unwrap(), what)
    }

    /// The process id on the machine, for the test.
    pub fn pid(&self) -> Pid {
        self.process.pid
    }

    /// The process id in the world, for the commands there. The process still runs.
    #[track_caller]
    pub fn pid_in_world(&self) -> u32 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let mut fields = status.lines().filter_map(|line| line.strip_prefix("NSpid:"));
        let pids = fields.next().unwrap();
        // The first is that on the machine.
        pids.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn is_running(&mut self) -> bool {
        self.process.child.try_wait().unwrap().is_none()
    }
}

impl Outcome {
    fn new(output: Output, what: String) -> Self {
        // Ended by a signal: a number that no exit status has.
        let status = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0));
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        let is_faulty = stderr.contains(INJECTED);
        Self { status, stdout, stderr: stderr.replace(INJECTED, ""), is_faulty, what }
    }

    /// Everything, for a person to read.
    pub fn report(&self) -> String {
        let Self { status, stdout, stderr, what, .. } = self;
        format!("{what}\n  exit {status}\n  stdout: {stdout}\n  stderr: {stderr}")
    }

    /// A tool's output; it must have succeeded.
    #[track_caller]
    pub fn output(self) -> String {
        assert!(self.status == 0, "{}", self.report());
        self.stdout
    }

    /// The time in milliseconds until the answer to the only packet of a `ping -q -c 1`. It must have come.
    #[track_caller]
    pub fn round_trip_ms(self) -> f64 {
        let output = self.output();
        let times = output.rsplit(" = ").next().unwrap();
        times.split('/').next().unwrap().parse().unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// The result of an ADD, or of a VERSION: exit 0 and exactly one JSON object.
    #[track_caller]
    pub fn success(self) -> Value {
        assert!(self.status == 0, "{}", self.report());
        let value = self.only_object();
        assert!(value.get("code").is_none(), "{}", self.report());
        value
    }

    /// The success of every other verb: exit 0 and nothing on stdout.
    #[track_caller]
    pub fn silence(self) {
        assert!(self.status == 0 && self.stdout.is_empty(), "{}", self.report());
    }

    /// The failure of a plugin: exit 1 and exactly one JSON object, of the shape that the specification gives.
    #[track_caller]
    pub fn error(self) -> CniError {
        assert!(self.status == 1, "{}", self.report());
        self.error_object()
    }

    /// The error object of a failure with whatever exit status.
    #[track_caller]
    pub fn error_object(&self) -> CniError {
        let value = self.only_object();
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let error = CniError {
            cni_version: text("cniVersion"),
            code: value["code"].as_u64().unwrap_or_else(|| panic!("no code: {}", self.report())),
            msg: text("msg"),
            details: text("details"),
        };
        let known = ["cniVersion", "code", "msg", "details"];
        let keys = value.as_object().unwrap().keys();
        let stray: Vec<_> = keys.filter(|key| !known.contains(&key.as_str())).collect();
        assert!(stray.is_empty(), "unknown keys {stray:?}: {}", self.report());
        assert!(VERSIONS.contains(&error.cni_version.as_str()), "cniVersion: {}", self.report());
        assert!(!error.msg.is_empty(), "no msg: {}", self.report());
        assert!(value.get("details") != Some(&Value::from("")), "empty details: {}", self.report());
        assert!(!self.stdout.ends_with('\n'), "ends with a newline: {}", self.report());
        error
    }

    /// Fails with this code, and with these texts in its message or details.
    #[track_caller]
    pub fn fails(self, code: u64, texts: &[&str]) -> CniError {
        let report = self.report();
        let error = self.error();
        assert!(error.code == code, "expected code {code}: {report}");
        let said = format!("{}: {}", error.msg, error.details);
        for text in texts {
            assert!(said.contains(text), "expected {text:?}: {report}");
        }
        error
    }

    #[track_caller]
    fn only_object(&self) -> Value {
        let value: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            panic!("not exactly one JSON document ({error}): {}", self.report())
        });
        assert!(value.is_object(), "{}", self.report());
        value
    }
}
