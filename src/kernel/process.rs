//! Processes, as /proc shows them.

#![cfg_attr(
    not(feature = "netavark"),
    expect(dead_code, reason = "the driver of netavark needs it")
)]

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::geteuid;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error;
use crate::kernel::file;
use crate::kernel::sys;

/// The bytes of a process' arguments that are read. The arguments of conmon have some KiB.
const ARGUMENTS_BYTES_MAX: usize = 128 << 10;

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
        let path = found(fs::read_link(format!("/proc/{}/exe", self.id)))?;
        Ok(path.map(|path| {
            let path = path.to_string_lossy();
            // After an update, the executable of a process that runs is a file without a name.
            let path = path.trim_end_matches(" (deleted)");
            path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned()
        }))
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

/// Device and inode of the network namespaces of all threads. Fails if one cannot be read.
pub fn network_namespaces() -> error::Result<Vec<(u64, u64)>> {
    let mut all = Vec::new();
    for process in ids("/proc").map_err(sys::failed("cannot read /proc"))? {
        let cannot = || format!("cannot read the network namespaces of {}", process.display());
        for thread in ids(process.join("task")).map_err(sys::failed(cannot()))? {
            let netns = match found(fs::metadata(thread.join("ns/net"))) {
                // The kernel also refuses it for a thread that has ended meanwhile.
                Err(_) if matches!(found(fs::metadata(&thread)), Ok(None)) => None,
                netns => netns.map_err(sys::failed(cannot()))?,
            };
            let found = netns.map(|netns| (netns.dev(), netns.ino()));
            all.extend(found.filter(|found| !all.contains(found)));
        }
    }
    Ok(all)
}

/// Whether a process other than this one has a text in its arguments, or more arguments than are read. Only processes of the
/// user and of the PID namespace of this one count: others choose their arguments, and can delay those that read them. Fails if
/// the arguments of one cannot be read.
pub fn is_in_arguments(text: &str) -> error::Result<bool> {
    let own = std::process::id().to_string();
    for process in ids("/proc").map_err(sys::failed("cannot read /proc"))? {
        if process.ends_with(&own) {
            continue;
        }
        let cannot = sys::failed(format!("cannot read the arguments of {}", process.display()));
        if has_in_arguments(&process, text).map_err(cannot)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has_in_arguments(process: &Path, text: &str) -> io::Result<bool> {
    let status = found(file::read_lossy(process.join("status")))?.unwrap_or_default();
    if !is_of_user_here(&status, geteuid().as_raw()) {
        return Ok(false);
    }
    match found(file::read_within(&process.join("cmdline"), ARGUMENTS_BYTES_MAX)) {
        Ok(found) => Ok(found.is_some_and(|found| String::from_utf8_lossy(&found).contains(text))),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => Ok(true),
        Err(error) => Err(error),
    }
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
    use std::process::{Command, Stdio};

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
        assert!(is_in_arguments("sleep\u{0}1000").unwrap());
        assert!(!is_in_arguments("no process has these").unwrap());
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
}
