//! The host as its process 1 sees it. A process in another mount or PID namespace, or without /proc, sees a part of it, and
//! must not take what it does not see for gone.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;

use crate::kernel::netns::NetNs;
use crate::kernel::{clock, sys};

/// PROC_PID_INIT_INO (linux/proc_ns.h): the inode of the first PID namespace of the machine.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// A line of 52 numbers and a name of 64 bytes has less.
const STAT_BYTES_MAX: usize = 2048;

/// USER_HZ (asm-generic/param.h): the clock of /proc/PID/stat.
const TICKS_PER_S: u64 = 100;

/// The proof that /proc shows process 1 of this PID namespace, and that this process may look at it.
#[derive(Debug)]
pub struct HostView {
    /// The root directory of process 1, if it is not that of this process.
    root: Option<File>,
    /// The network namespace of this process, which is that of process 1.
    home: NetNs,
    /// `None` for the first PID namespace of the machine, which sees all processes. Else a name for this one, of its inode and
    /// of the start of its process 1: a later one has another name.
    pub nested: Option<String>,
}

impl HostView {
    /// Fails with the reason if this process has no view of the host.
    pub fn look() -> Result<Self, String> {
        let own = fs::read_link("/proc/self").map_err(|error| cannot_read("/proc/self", &error))?;
        if own.to_str() != Some(&std::process::id().to_string()) {
            return Err("/proc shows another PID namespace".into());
        }
        let home = NetNs::own().map_err(|error| error.to_string())?;
        let of_first = home.open(Path::new("/proc/1/ns/net")).map_err(|error| error.to_string())?;
        if home.is(&of_first) != Ok(true) {
            return Err("this process is in another network namespace than process 1".into());
        }
        Ok(Self { root: root_of_first()?, home, nested: nested()? })
    }

    /// The network namespace at a path, as process 1 resolves it. `None` also for the plain file that an unmounted namespace
    /// leaves.
    pub fn namespace_at(&self, path: &Path) -> io::Result<Option<NetNs>> {
        let Some(root) = self.root.as_ref().filter(|_| !path.starts_with("/proc")) else {
            return self.home.open_if_exists(path);
        };
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        let path_in_root = path.strip_prefix("/").unwrap_or(path);
        let file = openat2(root, path_in_root, how).map(|file: OwnedFd| file.into());
        self.home.of_file(file.map_err(io::Error::from), path)
    }
}

/// `None` if the root of process 1 is that of this process.
fn root_of_first() -> Result<Option<File>, String> {
    let metadata = |path: &str| fs::metadata(path).map_err(|error| cannot_read(path, &error));
    let is_same = |one: Metadata, two: Metadata| (one.dev(), one.ino()) == (two.dev(), two.ino());
    if is_same(metadata("/proc/self/ns/mnt")?, metadata("/proc/1/ns/mnt")?)
        && is_same(metadata("/")?, metadata("/proc/1/root/")?)
    {
        return Ok(None);
    }
    let root = File::open("/proc/1/root").map_err(|error| cannot_read("/proc/1/root", &error))?;
    // Linux before 5.6 cannot resolve links in another root.
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    match openat2(&root, ".", how.resolve(ResolveFlag::RESOLVE_IN_ROOT)) {
        Ok(_) => Ok(Some(root)),
        Err(errno) => Err(cannot_read("/proc/1/root", &errno.into())),
    }
}

/// The PID namespace of this process, as `HostView::nested` has it. Costs one system call in the first one.
pub fn nested() -> Result<Option<String>, String> {
    let path = "/proc/self/ns/pid";
    let inode = fs::metadata(path).map_err(|error| cannot_read(path, &error))?.ino();
    if inode == FIRST_PID_NAMESPACE {
        return Ok(None);
    }
    let start = start_ticks(1).map_err(|error| cannot_read("/proc/1/stat", &error))?;
    Ok(Some(format!("{inode}-{start}")))
}

/// When a process began. Fails with ESRCH or "not found" without a process of this id.
pub fn began(process: u32) -> io::Result<SystemTime> {
    let ticks = start_ticks(process)?;
    let after_boot = Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_S));
    let ago = clock::since_boot().saturating_sub(after_boot);
    Ok(SystemTime::now() - ago)
}

/// The time of the start of a process after boot: proc_pid_stat(5), field 22.
fn start_ticks(process: u32) -> io::Result<u64> {
    let mut text = [0; STAT_BYTES_MAX];
    let count = File::open(format!("/proc/{process}/stat"))?.read(&mut text)?;
    let text = String::from_utf8_lossy(&text[..count]);
    // The name of the program, field 2, can have any character.
    let after_name = text.rfind(')').map_or("", |end| &text[end..]);
    let ticks = after_name.split(' ').nth(20).and_then(|ticks| ticks.parse().ok());
    ticks.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The process of a path below /proc.
pub fn process_of(path: &Path) -> Option<u32> {
    let process = path.strip_prefix("/proc").ok()?.components().next()?;
    process.as_os_str().to_str()?.parse().ok()
}

/// Whether an error of a file below /proc/PID says that the process has ended. ESRCH: it ended after the open.
pub fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// The mounts of this process: roots and paths of the lines of mountinfo (proc_pid_mountinfo(5), fields 4 and 5).
pub fn mounts(text: &str) -> Vec<(&str, PathBuf)> {
    let mut mounts = Vec::new();
    for line in text.lines() {
        let mut fields = line.split(' ');
        if let (Some(root), Some(path)) = (fields.nth(3), fields.next()) {
            mounts.push((root, unescaped(path)));
        }
    }
    mounts
}

/// Spaces, tabs, line ends and backslashes are three octal digits after a backslash.
fn unescaped(path: &str) -> PathBuf {
    let mut text = path.to_owned();
    for (escaped, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(escaped, plain);
    }
    text.into()
}

fn cannot_read(path: &str, error: &io::Error) -> String {
    format!("cannot read {path}: {}", sys::reason(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_began_before_now_and_after_its_parent() {
        let own = began(std::process::id()).unwrap();
        let slack = Duration::from_millis(100);
        assert!(own <= SystemTime::now() + slack && began(1).unwrap() <= own + slack);
        assert!(has_ended(&began(u32::MAX).unwrap_err()));
    }

    #[test]
    fn a_path_below_proc_names_its_process() {
        for (path, expected) in [
            ("/proc/12/ns/net", Some(12)),
            ("/proc/12", Some(12)),
            ("/proc/self/ns/net", None),
            ("/run/netns/12", None),
        ] {
            assert_eq!(process_of(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn mounts_have_a_root_and_a_path() {
        let text =
            "36 35 0:4 net:[4026532345] /run/netns/a\\040b rw shared:5 - nsfs nsfs rw\n\n1 2\n";
        assert_eq!(mounts(text), [("net:[4026532345]", PathBuf::from("/run/netns/a b"))]);
    }
}
