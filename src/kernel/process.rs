//! Processes, as /proc shows them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error;
use crate::fault;
use crate::kernel::file;
use crate::kernel::sys;

/// The bytes of a process' arguments that are read. The arguments of conmon have some KiB.
const ARGUMENTS_BYTES_MAX: usize = 128 << 10;

/// The bytes of /proc/PID/cgroup that are read: the lines of all hierarchies of version 1 have some KiB.
const CGROUP_BYTES_MAX: usize = 64 << 10;

/// A process. A later one with the same id has another start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    /// The ticks from the boot to the start of the process. Source: proc_pid_stat(5), field 22.
    start: u64,
    /// The inodes of the PID namespace and of the time namespace in which the id and the time are valid. The second is 0 before
    /// Linux 5.6.
    observer: [u64; 2],
}

/// The `observer` of this process.
fn own_observer() -> io::Result<[u64; 2]> {
    let inode = |path| fs::metadata(path).map(|found| found.ino());
    let time = found(inode("/proc/self/ns/time"))?.unwrap_or_default();
    Ok([inode("/proc/self/ns/pid")?, time])
}

impl Serialize for Process {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { id, start, observer: [pid, time] } = self;
        serializer.serialize_str(&format!("{id} {start} {pid} {time}"))
    }
}

impl<'de> Deserialize<'de> for Process {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
        let process = match numbers[..] {
            [id, start, pid, time] => {
                id.try_into().ok().map(|id| Self { id, start, observer: [pid, time] })
            }
            _ => None,
        };
        process.ok_or_else(|| D::Error::custom("not a process"))
    }
}

impl Process {
    /// The process with this id. `None` if there is none.
    pub fn of(id: u32) -> io::Result<Option<Self>> {
        let observer = own_observer()?;
        let stat = found(file::read_lossy(format!("/proc/{id}/stat")))?;
        let stat = stat.as_deref().and_then(Stat::parse);
        Ok(stat.map(|Stat { start, .. }| Self { id, start, observer }))
    }

    /// The process that executed this one, or that took over its children.
    pub fn parent(&self) -> io::Result<Option<Self>> {
        let stat = found(file::read_lossy(format!("/proc/{}/stat", self.id)))?;
        let stat = stat.as_deref().and_then(Stat::parse).filter(|stat| stat.start == self.start);
        stat.map_or(Ok(None), |stat| Self::of(stat.parent))
    }

    /// The file name of its executable. `None` if it has none: it has ended or is just ending, or is a thread of the kernel.
    pub fn executable(&self) -> io::Result<Option<String>> {
        executable_of(self.id)
    }

    /// Whether its standard output is a pipe that no process reads any more. False if this is unknown: its standard output is no
    /// pipe, or this process cannot open it.
    pub fn has_no_reader(&self) -> bool {
        let path = format!("/proc/{}/fd/1", self.id);
        // An open of a device can have effects.
        if !fs::metadata(&path).is_ok_and(|file| file.file_type().is_fifo()) {
            return false;
        }
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK;
        let pipe = match file::open_any(path.as_ref(), flags, 0) {
            Ok(pipe) => pipe,
            // The kernel refuses it for a FIFO with a name that has no reader.
            Err(error) => return error.raw_os_error() == Some(Errno::ENXIO as i32),
        };
        // The kernel reports POLLERR for the end that writes when no process has the end that reads.
        let mut polled = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
        let polled = poll(&mut polled, PollTimeout::ZERO).map(|_| polled[0].revents());
        matches!(polled, Ok(Some(events)) if events.contains(PollFlags::POLLERR))
    }

    /// Whether the process has ended. A zombie has: it executes nothing. False if this is unknown, also because this process is in
    /// another PID namespace.
    pub fn has_ended(&self) -> bool {
        if !own_observer().is_ok_and(|own| own == self.observer) {
            return false;
        }
        match found(file::read_lossy(format!("/proc/{}/stat", self.id))) {
            Ok(None) => true,
            Ok(Some(text)) => {
                let stat = Stat::parse(&text);
                stat.is_some_and(|stat| stat.start != self.start || stat.state == "Z")
            }
            Err(_) => false,
        }
    }
}

/// The file name of the executable of a process, see `Process::executable`.
pub fn executable_of(id: u32) -> io::Result<Option<String>> {
    let path = found(fs::read_link(format!("/proc/{id}/exe")))?;
    Ok(path.map(|path| {
        let path = path.to_string_lossy();
        // After an update, the executable of a process that runs is a file without a name.
        let path = path.trim_end_matches(" (deleted)");
        path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned()
    }))
}

/// A process that gets signals. It stays the one that was opened, whatever becomes of its id.
pub struct Opened {
    pidfd: OwnedFd,
    pub id: u32,
}

/// It becomes readable at the end of the process.
impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Opened {
    /// The process with this id in the PID namespace of this process. `None` if there is none. Needs Linux 5.3.
    pub fn open(id: u32) -> io::Result<Option<Self>> {
        let opened = sys::open_process(id).map(|pidfd| Self { pidfd, id });
        match opened {
            // The id of a thread (pidfd_open(2)).
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => Ok(None),
            opened => found(opened),
        }
    }

    /// Fails if this process cannot open processes: the kernel is older than Linux 5.3, or a filter of system calls refuses it.
    pub fn require() -> io::Result<()> {
        fault::kernel_request()?;
        sys::open_process(std::process::id()).map(drop)
    }

    /// The arguments that it was started with, each with a NUL behind it. Empty after its end, and for a process of another user.
    pub fn arguments(&self) -> io::Result<String> {
        match arguments_of(&Path::new("/proc").join(self.id.to_string()))? {
            Content::Text(arguments) => Ok(arguments),
            Content::Absent | Content::TooLong => Ok(String::new()),
        }
    }

    /// Sends SIGHUP. Returns false if the process has ended.
    pub fn hang_up(&self) -> io::Result<bool> {
        self.signal(Signal::SIGHUP)
    }

    /// Sends SIGTERM, and SIGKILL if the process has not ended within the limit. Fails if it does not end then.
    pub fn end(&self, limit: Duration) -> io::Result<()> {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            if !self.signal(signal)? || self.ends_within(limit)? {
                return Ok(());
            }
        }
        Err(ErrorKind::TimedOut.into())
    }

    fn signal(&self, signal: Signal) -> io::Result<bool> {
        fault::kernel_request()?;
        found(sys::signal_process(&self.pidfd, signal)).map(|sent| sent.is_some())
    }

    /// Waits for the end of the process. Returns false after the limit.
    pub fn ends_within(&self, limit: Duration) -> io::Result<bool> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)], timeout) {
                Err(Errno::EINTR) => {}
                ended => return Ok(ended? > 0),
            }
        }
    }
}

/// Fields of /proc/PID/stat.
#[derive(Debug, PartialEq)]
struct Stat<'a> {
    state: &'a str,
    parent: u32,
    start: u64,
}

impl<'a> Stat<'a> {
    /// Source: proc_pid_stat(5), fields 3, 4 and 22. The name before them can contain any character.
    fn parse(text: &'a str) -> Option<Self> {
        let words: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let (state, parent) = (words.first()?, words.get(1)?.parse().ok()?);
        Some(Self { state, parent, start: words.get(19)?.parse().ok()? })
    }
}

/// Whether a process is in the network namespace of the calling thread. `None` if this is unknown: /proc does not show the
/// process. `own_id` is the id of this process for the observer that knows the other one by `id`: /proc counts as that observer
/// only if both have the same id for this process.
///
/// A file of /proc/PID/net has another inode in each network namespace. Other than /proc/PID/ns/net, it is there also for a
/// process of another user, which a rootless container may not trace.
pub fn shares_network(id: u32, own_id: u32) -> Option<bool> {
    let device = |process: &str| {
        let file = fs::metadata(format!("/proc/{process}/net/dev")).ok()?;
        Some((file.dev(), file.ino()))
    };
    let self_link = fs::read_link("/proc/self").ok()?;
    if self_link != Path::new(&own_id.to_string()) {
        return None;
    }
    Some(device(&id.to_string())? == device("thread-self")?)
}

/// The ids of the processes with this file name of their executable. Those of other users are missing.
pub fn ids_of(executable: &str) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for process in ids("/proc")? {
        let id = process.file_name().and_then(|name| name.to_str()?.parse().ok());
        if let Some(id) = id
            && executable_of(id).is_ok_and(|name| name.as_deref() == Some(executable))
        {
            found.push(id);
        }
    }
    Ok(found)
}

/// Whether a process finds the same directory at this path. False after its end, and if one of them finds none.
pub fn shares_directory(id: u32, path: &Path) -> io::Result<bool> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let of_other = Path::new("/proc").join(id.to_string()).join("root").join(relative);
    let (Some(own), Some(other)) = (found(fs::metadata(path))?, found(fs::metadata(of_other))?)
    else {
        return Ok(false);
    };
    Ok((own.dev(), own.ino()) == (other.dev(), other.ino()))
}

/// A path of each network namespace with a thread. What cannot be read is missing.
pub fn network_namespaces() -> Vec<PathBuf> {
    let mut found = HashMap::new();
    for process in ids("/proc").unwrap_or_default() {
        for thread in ids(process.join("task")).unwrap_or_default() {
            let path = thread.join("ns/net");
            if let Ok(netns) = fs::metadata(&path) {
                found.entry((netns.dev(), netns.ino())).or_insert(path);
            }
        }
    }
    found.into_values().collect()
}

/// The use that processes make of network namespaces and containers, from two passes over /proc: one pass can miss a process
/// that takes the place of another one meanwhile.
#[derive(Debug, Default)]
pub struct Processes {
    /// Device and inode of the network namespaces of all threads.
    namespaces: HashSet<(u64, u64)>,
    /// The ids of the containers that a process names.
    named: HashSet<String>,
}

impl Processes {
    /// Reads /proc. `containers` are the ids of containers to look for. Fails if a file of a process that exists cannot be read.
    pub fn survey(containers: &[&str]) -> error::Result<Self> {
        let mut all = Self::default();
        for _ in 0..2 {
            all.pass(Path::new("/proc"), containers)?;
        }
        Ok(all)
    }

    /// Whether a thread of any process is in the network namespace with this device and inode.
    pub fn have_thread_in(&self, namespace: (u64, u64)) -> bool {
        self.namespaces.contains(&namespace)
    }

    /// Whether a process names a container: its control group has the id in its path, as those of podman have, or the process
    /// has the id in its arguments, as conmon has.
    ///
    /// Control groups of all users count. Arguments count only of other processes of the user and of the PID namespace of this
    /// one: other users choose their arguments, and can delay a process that reads them.
    pub fn name(&self, container: &str) -> bool {
        self.named.contains(container)
    }

    fn pass(&mut self, proc: &Path, containers: &[&str]) -> error::Result<()> {
        let own = std::process::id().to_string();
        for process in ids(proc).map_err(sys::failed("cannot read /proc"))? {
            self.add_namespaces(&process)?;
            if containers.is_empty() {
                continue;
            }
            let cannot = |object| format!("cannot read the {object} of {}", process.display());
            let group = content_of(&process.join("cgroup"), CGROUP_BYTES_MAX);
            self.add_named(group.map_err(sys::failed(cannot("control group")))?, containers);
            if !process.ends_with(&own) {
                let arguments = arguments_of(&process).map_err(sys::failed(cannot("arguments")))?;
                self.add_named(arguments, containers);
            }
        }
        Ok(())
    }

    fn add_namespaces(&mut self, process: &Path) -> error::Result<()> {
        let cannot = || format!("cannot read the network namespaces of {}", process.display());
        for thread in ids(process.join("task")).map_err(sys::failed(cannot()))? {
            let netns = match found(fs::metadata(thread.join("ns/net"))) {
                // The kernel also refuses it for a thread that has ended meanwhile.
                Err(_) if matches!(found(fs::metadata(&thread)), Ok(None)) => None,
                netns => netns.map_err(sys::failed(cannot()))?,
            };
            self.namespaces.extend(netns.map(|netns| (netns.dev(), netns.ino())));
        }
        Ok(())
    }

    fn add_named(&mut self, content: Content, containers: &[&str]) {
        let is_named = |id: &&&str| match &content {
            Content::Absent => false,
            Content::Text(text) => text.contains(**id),
            Content::TooLong => true,
        };
        self.named.extend(containers.iter().filter(is_named).map(|id| (*id).to_owned()));
    }
}

/// The content of a file of a process.
enum Content {
    /// The process has ended, or its file does not count.
    Absent,
    Text(String),
    /// It has more bytes than are read, so it can name any container.
    TooLong,
}

fn content_of(path: &Path, bytes_max: usize) -> io::Result<Content> {
    match found(file::read_within(path, bytes_max)) {
        Ok(Some(bytes)) => Ok(Content::Text(String::from_utf8_lossy(&bytes).into_owned())),
        Ok(None) => Ok(Content::Absent),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => Ok(Content::TooLong),
        Err(error) => Err(error),
    }
}

fn arguments_of(process: &Path) -> io::Result<Content> {
    let status = found(file::read_lossy(process.join("status")))?.unwrap_or_default();
    if !is_of_user_here(&status, geteuid().as_raw()) {
        return Ok(Content::Absent);
    }
    content_of(&process.join("cmdline"), ARGUMENTS_BYTES_MAX)
}

/// Whether a process has this effective user id, and is in the PID namespace of /proc. Source: proc_pid_status(5).
fn is_of_user_here(status: &str, user: u32) -> bool {
    let numbers = |key: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    numbers("Uid:").get(1) == Some(&user) && numbers("NSpid:").len() == 1
}

/// The directories of processes or threads. Empty if their process has ended.
fn ids(directory: impl AsRef<Path>) -> io::Result<Vec<PathBuf>> {
    let Some(entries) = found(fs::read_dir(directory))? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for entry in entries {
        let Some(entry) = found(entry)? else { break };
        let is_id = entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        all.extend(is_id.then(|| entry.path()));
    }
    Ok(all)
}

/// The result of an operation on a file of a process. `None` if the process has ended.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn the_fields_of_a_process_are_read_after_its_name() {
        let text = "33 (a) b) S 7 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9000 20 21";
        assert_eq!(Stat::parse(text), Some(Stat { state: "S", parent: 7, start: 9000 }));
        assert_eq!(Stat::parse("33 (a) S 7"), None);
    }

    #[test]
    fn processes_of_others_do_not_count() {
        let status =
            |uid: &str, pids: &str| format!("Name:\tconmon\nUid:\t{uid}\t0\t0\nNSpid:\t{pids}\n");
        assert!(is_of_user_here(&status("5\t0", "77"), 0));
        assert!(!is_of_user_here(&status("0\t5", "77"), 0));
        assert!(!is_of_user_here(&status("0\t0", "77\t1"), 0));
        assert!(!is_of_user_here("", 0));
    }

    #[test]
    fn a_process_has_ended_when_it_is_a_zombie_or_another_has_its_id() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let process = Process::of(child.id()).unwrap().unwrap();
        assert!(!process.has_ended());
        assert!(process.executable().unwrap().is_some());
        let later = Process { start: process.start + 1, ..process };
        assert!(later.has_ended());
        let text = serde_json::to_string(&later).unwrap();
        assert_eq!(serde_json::from_str::<Process>(&text).unwrap(), later, "{text}");
        assert!(serde_json::from_str::<Process>("\"1 2 3\"").is_err());
        assert!(
            !Process { observer: [1, process.observer[1]], ..later }.has_ended(),
            "it is not known"
        );
        assert_eq!(process.parent().unwrap().unwrap().id, std::process::id());
        let (argument, none) = ("sleep\u{0}1000", "no process has these");
        let mut processes = Processes::default();
        // The kernel lets `spawn` return a moment before the new program has its arguments.
        let arguments = loop {
            let found = arguments_of(Path::new(&format!("/proc/{}", child.id()))).unwrap();
            if !matches!(&found, Content::Text(text) if text.is_empty()) {
                break found;
            }
            std::thread::yield_now();
        };
        processes.add_named(arguments, &[argument, none]);
        assert!(processes.name(argument) && !processes.name(none));
        child.kill().unwrap();
        while !process.has_ended() {
            std::thread::yield_now();
        }
        assert!(Process::of(child.id()).unwrap().is_some(), "a zombie is there");
        assert_eq!(process.executable().unwrap(), None);
        child.wait().unwrap();
        assert!(process.has_ended());
        assert_eq!(Process::of(child.id()).unwrap(), None);
    }

    /// A directory that is removed with this value.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("cnibox-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// A directory like /proc with one process, whose files have these contents.
    fn surveyed(files: &[(&str, &str)], containers: &[&str]) -> error::Result<Processes> {
        let directory = Scratch::new("surveyed");
        let process = directory.0.join("7");
        fs::create_dir_all(process.join("task/7/ns")).unwrap();
        for (name, content) in files {
            fs::write(process.join(name), content).unwrap();
        }
        let mut processes = Processes::default();
        processes.pass(&directory.0, containers).map(|()| processes)
    }

    #[test]
    fn a_process_names_the_container_of_its_control_group() {
        let containers = ["9f2c", "77aa"];
        let named = |files: &[(&str, &str)]| {
            let processes = surveyed(files, &containers).unwrap();
            containers.map(|id| processes.name(id))
        };
        let group = "0::/machine.slice/libpod-9f2c.scope/container\n";
        assert_eq!(named(&[("cgroup", group)]), [true, false]);
        assert_eq!(named(&[("cgroup", "0::/system.slice\n")]), [false, false]);
        let long = "x".repeat(CGROUP_BYTES_MAX + 1);
        assert_eq!(named(&[("cgroup", &long)]), [true, true], "it is not known");
        let of_another = "Uid:\t0\t4294967294\nNSpid:\t7\n";
        let others = [("status", of_another), ("cmdline", "conmon 77aa"), ("cgroup", group)];
        assert_eq!(named(&others), [true, false], "the group of any user counts");
    }

    #[test]
    fn a_process_whose_files_cannot_be_read_is_an_error() {
        let directory = Scratch::new("unreadable");
        let process = directory.0.join("7");
        // A directory in place of a file: a read fails with another error than that for a process that has ended.
        fs::create_dir_all(process.join("cgroup")).unwrap();
        let survey = |containers: &[&str]| {
            let mut processes = Processes::default();
            processes.pass(&directory.0, containers).map_err(|error| error.to_string())
        };
        assert_eq!(survey(&[]), Ok(()), "nothing of it is needed");
        let error = survey(&["9f2c"]).unwrap_err();
        assert!(error.starts_with("cannot read the control group of "), "{error}");
        fs::write(process.join("task"), "").unwrap();
        let error = survey(&[]).unwrap_err();
        assert!(error.starts_with("cannot read the network namespaces of "), "{error}");
    }

    #[test]
    fn the_end_of_the_reader_of_a_standard_output_is_seen() {
        let of = |child: &Child| Process::of(child.id()).unwrap().unwrap();
        let sleep = |stdout: Stdio| {
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(Stdio::null()).stdout(stdout).spawn().unwrap()
        };
        let mut read = sleep(Stdio::piped());
        assert!(!of(&read).has_no_reader());
        drop(read.stdout.take());
        assert!(of(&read).has_no_reader());
        let mut silent = sleep(Stdio::null());
        assert!(!of(&silent).has_no_reader(), "no pipe");
        for child in [&mut read, &mut silent] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
