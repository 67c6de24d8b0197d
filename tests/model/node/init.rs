//! Process 1 of a node: it furnishes the node, and executes one request at a time.

#![allow(
    clippy::disallowed_methods,
    reason = "process 1 has one thread and waits for its children"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{CONFIGURATIONS, PLUGINS, TOOLS, sys};

/// The argument of this program with which it is the forger.
const FORGER: &str = "--forger";
/// The process id of the forger, or 0. There is at most one.
static RUNNING_FORGER: AtomicI32 = AtomicI32::new(0);
const POLL_INTERVAL: Duration = Duration::from_micros(300);
/// The boot id of the node, for the debug build.
const BOOT_ID: &str = "/mnt/boot_id";
/// A larger file is somebody's damage.
const FILE_MAX: u64 = 1 << 20;
/// Small enough to be filled at once.
const STATE_SIZE: &str = "mode=0755,size=16m";

/// `--node CNIBOX`: makes the namespaces and starts process 1.
pub fn node(cnibox: &str) -> io::Result<()> {
    sys::unshare_node()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--init", cnibox]);
    sys::end_with_parent(&mut command);
    command.status().map(drop)
}

/// `--init CNIBOX`: process 1.
pub fn serve(cnibox: &str) -> io::Result<()> {
    furnish(Path::new(cnibox).parent().expect("it is a path"))?;
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answer = answer(&request).unwrap_or_else(|error| json!({"error": error.to_string()}));
        let mut stdout = io::stdout().lock();
        stdout.write_all(format!("{answer}\n").as_bytes())?;
        stdout.flush()?;
    }
    Ok(())
}

fn answer(request: &Value) -> io::Result<Value> {
    match request["do"].as_str().unwrap_or_default() {
        "run" => run(request),
        "race" => race(request),
        "start" => start(request),
        "kill" => kill(request["pid"].as_i64().unwrap_or_default()),
        "netns" => netns(request["path"].as_str().unwrap_or_default()),
        "look" => look(request),
        "boot" => boot(request["id"].as_str().unwrap_or_default()),
        other => Err(io::Error::other(format!("unknown request {other:?}"))),
    }
}

fn tmpfs(path: &str, options: &str) -> io::Result<()> {
    Ok(mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(options))?)
}

fn bind(from: &Path, to: &str) -> io::Result<()> {
    let no = None::<&str>;
    Ok(mount(Some(from), to, no, MsFlags::MS_BIND | MsFlags::MS_REC, no)?)
}

fn furnish(executables: &Path) -> io::Result<()> {
    let no = None::<&str>;
    mount(no, "/", no, MsFlags::MS_REC | MsFlags::MS_PRIVATE, no)?;
    // The machine stays as it is, also if a step writes through a link.
    sys::make_read_only(c"/")?;
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), no)?;
    tmpfs("/mnt", "mode=0755")?;
    for directory in ["/mnt/bin", "/mnt/io", "/mnt/etc", PLUGINS, CONFIGURATIONS] {
        fs::create_dir(directory)?;
    }
    bind(executables, "/mnt/bin")?;
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/symlinks"))? {
        symlink("/mnt/bin/cnibox", Path::new(PLUGINS).join(entry?.file_name()))?;
    }
    bind(Path::new("/etc"), "/mnt/etc")?;
    let names: Vec<_> =
        fs::read_dir("/mnt/etc")?.flatten().map(|entry| entry.file_name()).collect();
    tmpfs("/etc", "mode=0755")?;
    for name in names.iter().filter(|name| *name != "cni") {
        symlink(Path::new("/mnt/etc").join(name), Path::new("/etc").join(name))?;
    }
    tmpfs("/var/lib", STATE_SIZE)?;
    tmpfs("/run", STATE_SIZE)?;
    boot("00000000-0000-4000-8000-000000000000").map(drop)
}

/// A boot: no process but this one, a new network namespace as the host, an empty /run, and a new boot id.
fn boot(id: &str) -> io::Result<Value> {
    // All processes of the namespace but process 1, which is this one.
    nix::sys::signal::kill(Pid::from_raw(-1), Signal::SIGKILL).ok();
    while waitpid(None, None).is_ok() {}
    umount2("/run", MntFlags::MNT_DETACH)?;
    tmpfs("/run", STATE_SIZE)?;
    fs::create_dir("/run/netns")?;
    sys::unshare_network()?;
    fs::write(BOOT_ID, format!("{id}\n"))?;
    Ok(json!({}))
}

fn command_of(request: &Value) -> Command {
    let words = |key: &str| {
        let words = request[key].as_array().into_iter().flatten();
        words.map(|word| word.as_str().unwrap_or_default().to_owned())
    };
    let argv: Vec<String> = words("argv").collect();
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).env_clear().env("CNIBOX_BOOT_FILE", BOOT_ID);
    for (name, value) in request["env"].as_object().into_iter().flatten() {
        command.env(name, value.as_str().unwrap_or_default());
    }
    command.process_group(0);
    command
}

/// A process that was started, and the directory of its output.
struct Running {
    child: Child,
    files: [String; 3],
}

/// Runs a process to its end, or to its limit.
fn run(request: &Value) -> io::Result<Value> {
    let limit = Duration::from_millis(request["limit_ms"].as_u64().unwrap_or(10_000));
    let answer = begin(request, 0)?.map_or_else(Ok, |running| finish(running, limit));
    reap();
    answer
}

/// Runs several processes at the same time.
fn race(request: &Value) -> io::Result<Value> {
    let limit = Duration::from_millis(request["limit_ms"].as_u64().unwrap_or(10_000));
    let calls = request["calls"].as_array().cloned().unwrap_or_default();
    let begun: Vec<Begun> = calls
        .iter()
        .enumerate()
        .map(|(number, call)| begin(call, number))
        .collect::<io::Result<_>>()?;
    let answers = begun.into_iter().map(|begun| begun.map_or_else(Ok, |call| finish(call, limit)));
    let answers: Vec<Value> = answers.collect::<io::Result<_>>()?;
    reap();
    Ok(answers.into())
}

/// A process, or the answer if it cannot be executed.
type Begun = Result<Running, Value>;

fn begin(request: &Value, number: usize) -> io::Result<Begun> {
    let mut command = command_of(request);
    if let Some(netns) = request["netns"].as_str() {
        sys::enter(&mut command, netns)?;
    }
    let files = ["in", "out", "err"].map(|name| format!("/mnt/io/{name}{number}"));
    fs::write(&files[0], request["stdin"].as_str().unwrap_or_default())?;
    command.stdin(File::open(&files[0])?);
    command.stdout(File::create(&files[1])?).stderr(File::create(&files[2])?);
    Ok(match command.spawn() {
        Ok(child) => Ok(Running { child, files }),
        Err(error) => {
            let stderr = error.to_string();
            Err(json!({"status": 127, "stdout": "", "stderr": stderr, "late": false}))
        }
    })
}

fn finish(running: Running, limit: Duration) -> io::Result<Value> {
    let Running { mut child, files } = running;
    let begin = Instant::now();
    let mut late = false;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begin.elapsed() < limit => std::thread::sleep(POLL_INTERVAL),
            None => {
                late = true;
                killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL).ok();
                child.kill()?;
            }
        }
    };
    let text =
        |path: &str| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (stdout, stderr) = (text(&files[1])?, text(&files[2])?);
    Ok(json!({"status": code(status), "stdout": stdout, "stderr": stderr, "late": late}))
}

fn code(status: ExitStatus) -> i64 {
    status.code().map_or_else(|| -i64::from(status.signal().unwrap_or(0)), i64::from)
}

/// Collects processes that have lost their parent.
fn reap() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            break;
        }
    }
}

/// Starts a process that stays, in a network namespace of its own if `network` says so.
fn start(request: &Value) -> io::Result<Value> {
    let mut command = command_of(request);
    command.stdin(Stdio::null());
    command.stdout(File::create("/mnt/io/start")?).stderr(File::create("/mnt/io/start_err")?);
    if request["network"] == true {
        sys::with_new_network(&mut command, request["path"].as_str());
    } else if let Some(netns) = request["netns"].as_str() {
        sys::enter(&mut command, netns)?;
    }
    if let Some(pid) = request["pid"].as_u64() {
        // The kernel gives the next free number.
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())?;
    }
    let pid = command.spawn()?.id();
    if request["argv"][1] == FORGER {
        RUNNING_FORGER.store(pid.cast_signed(), Relaxed);
    }
    Ok(json!({"pid": pid}))
}

/// Ends a child of this process.
fn kill(pid: i64) -> io::Result<Value> {
    let pid = Pid::from_raw(i32::try_from(pid).map_err(io::Error::other)?);
    nix::sys::signal::kill(pid, Signal::SIGKILL)?;
    waitpid(pid, None)?;
    let _ = RUNNING_FORGER.compare_exchange(pid.as_raw(), 0, Relaxed, Relaxed);
    Ok(json!({}))
}

/// A network namespace at a path.
fn netns(path: &str) -> io::Result<Value> {
    if !Path::new(path).exists() {
        File::create(path)?;
    }
    let mut command = Command::new("/bin/true");
    sys::with_new_network(&mut command, Some(path));
    command.status()?;
    Ok(json!({}))
}

/// The host, the namespaces at `paths`, the ruleset, and the files of `directories`.
fn look(request: &Value) -> io::Result<Value> {
    let _stopped = StoppedForger::stop()?;
    let texts = |key: &str| {
        let texts = request[key].as_array().into_iter().flatten();
        texts.filter_map(|text| text.as_str().map(str::to_owned))
    };
    let mut spaces = serde_json::Map::new();
    spaces.insert("host".into(), ip(None)?.into());
    for path in texts("paths") {
        // It can be gone, and then nothing is in it.
        let text = ip(Some(&path)).unwrap_or_default();
        spaces.insert(path, text.into());
    }
    let nft = tool(&["nft", "-j", "list", "ruleset"], None, "")?;
    let mut files = BTreeMap::new();
    for directory in texts("directories") {
        collect(Path::new(&directory), &mut files);
    }
    Ok(json!({"spaces": spaces, "nft": nft, "files": files}))
}

const BATCH: &str = "link show\naddress show\nroute show table all\nrule show\n";

/// The forger, stopped: its errors would end `ip`, and what `ip` had not listed by then would seem to be missing.
struct StoppedForger(Option<Pid>);

impl StoppedForger {
    fn stop() -> io::Result<Self> {
        let pid = RUNNING_FORGER.load(Relaxed);
        let pid = (pid != 0).then(|| Pid::from_raw(pid));
        if let Some(pid) = pid {
            nix::sys::signal::kill(pid, Signal::SIGSTOP)?;
            waitpid(pid, Some(WaitPidFlag::WUNTRACED))?;
        }
        Ok(Self(pid))
    }
}

impl Drop for StoppedForger {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            nix::sys::signal::kill(pid, Signal::SIGCONT).expect("the forger is stopped");
        }
    }
}

fn ip(netns: Option<&str>) -> io::Result<String> {
    let all = tool(&["ip", "-j", "-d", "-batch", "-"], netns, BATCH)?;
    // A line of a batch has no options, and a rule has no default family but IPv4.
    Ok(all + &tool(&["ip", "-6", "-j", "rule", "show"], netns, "")?)
}

/// The output of a tool.
fn tool(argv: &[&str], netns: Option<&str>, stdin: &str) -> io::Result<String> {
    let request = json!({"argv": argv, "env": {"PATH": TOOLS}, "netns": netns, "stdin": stdin});
    let answer = run(&request)?;
    let output = answer["stdout"].as_str().unwrap_or_default().to_owned();
    assert_eq!(answer["status"], 0, "{argv:?}: {answer}");
    Ok(output)
}

/// The regular files below a directory with their content.
fn collect(directory: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            collect(&path, files);
        } else if kind.is_file() {
            let is_small = entry.metadata().is_ok_and(|metadata| metadata.len() < FILE_MAX);
            let content = if is_small { fs::read(&path).unwrap_or_default() } else { Vec::new() };
            let content = String::from_utf8_lossy(&content).into_owned();
            files.insert(path.to_string_lossy().into_owned(), content);
        }
    }
}
