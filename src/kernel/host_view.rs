//! The paths and network namespaces of the host, as its process 1 resolves them. A process in another mount or PID namespace,
//! or without /proc, sees only a part of the host. It must not conclude that an object that it does not see does not exist.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::kernel::file;
use crate::kernel::netns::NetNs;
use crate::kernel::sys;

/// PROC_PID_INIT_INO (linux/proc_ns.h): the inode of the initial PID namespace of the machine.
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

const MOUNTS: &str = "/proc/self/mountinfo";

/// A value exists only if /proc shows process 1 of the host, and this process may read its namespaces and its root directory.
#[derive(Debug)]
pub struct HostView {
    /// The root directory of process 1, if it is not that of this process.
    root: Option<File>,
    /// The network namespace of this process, which is that of process 1.
    home: NetNs,
    /// This process is in the initial PID namespace of the machine. Another PID namespace can be that of a container that is a
    /// node of a cluster, or that of a part of the host.
    is_in_initial_pid_namespace: bool,
}

impl HostView {
    /// Fails, with the reason, if this process has no view of the host. `state` is the directory with the records of
    /// attachments. A container that is a node has such a directory of its own. If the directory is mounted into this
    /// container, it belongs to the host around this container, and this container does not see the processes of that host.
    pub fn open(state: &Path) -> Result<Self, String> {
        let own = fs::read_link("/proc/self").map_err(|error| cannot_read("/proc/self", &error))?;
        if own.to_str() != Some(&std::process::id().to_string()) {
            return Err("/proc shows another PID namespace".into());
        }
        let is_in_initial_pid_namespace =
            metadata("/proc/self/ns/pid")?.ino() == INITIAL_PID_NAMESPACE;
        if !is_in_initial_pid_namespace && is_mounted_from_outside(state)? {
            return Err("it does not see the processes of the host".into());
        }
        let home = NetNs::own().map_err(|error| error.to_string())?;
        let of_process_1 =
            home.open(Path::new("/proc/1/ns/net")).map_err(|error| error.to_string())?;
        if home.is(&of_process_1) != Ok(true) {
            return Err("it is in another network namespace than process 1".into());
        }
        Ok(Self { root: root_of_process_1()?, home, is_in_initial_pid_namespace })
    }

    /// The network namespace at a path, as process 1 resolves it. `None` also for the plain file that an unmounted namespace
    /// leaves.
    pub fn namespace_at(&self, path: &Path) -> io::Result<Option<NetNs>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
        match self.open_below_root(path, flags) {
            Some(file) => self.home.of_file(file, path),
            None => self.home.open_if_exists(path),
        }
    }

    /// Whether this process resolves paths as process 1 does.
    #[cfg(feature = "netavark")]
    pub fn has_own_root(&self) -> bool {
        self.root.is_none()
    }

    /// Whether the host can have an object at a path that this process does not see. A PID namespace other than the initial one
    /// can be that of a node, which this process sees completely. It can also be a part of the host: then the host has more
    /// processes, and other directories.
    pub fn may_miss(&self, path: &Path) -> bool {
        let has_directory = || path.parent().is_some_and(|parent| !self.is_absent(parent));
        !self.is_in_initial_pid_namespace && (path.starts_with("/proc") || !has_directory())
    }

    /// Whether no object has the path: no namespace, no plain file and no symbolic link.
    pub fn is_absent(&self, path: &Path) -> bool {
        let found = match self.open_below_root(path, OFlag::O_PATH | OFlag::O_NOFOLLOW) {
            Some(file) => file.map(drop),
            None => fs::symlink_metadata(path).map(drop),
        };
        found.is_err_and(|error| {
            [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind())
        })
    }

    /// Opens a path in the root directory of process 1. `None` if this process resolves the path in the same way.
    fn open_below_root(&self, path: &Path, flags: OFlag) -> Option<io::Result<File>> {
        let root = self.root.as_ref().filter(|_| !path.starts_with("/proc"))?;
        let how =
            OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        let path_in_root = path.strip_prefix("/").unwrap_or(path);
        Some(openat2(root, path_in_root, how).map(File::from).map_err(io::Error::from))
    }
}

/// The root directory of process 1. `None` if this process has the same root directory.
fn root_of_process_1() -> Result<Option<File>, String> {
    let is_same = |one: Metadata, two: Metadata| (one.dev(), one.ino()) == (two.dev(), two.ino());
    if is_same(metadata("/proc/self/ns/mnt")?, metadata("/proc/1/ns/mnt")?)
        && is_same(metadata("/")?, metadata("/proc/1/root/")?)
    {
        return Ok(None);
    }
    let root = File::open("/proc/1/root").map_err(|error| cannot_read("/proc/1/root", &error))?;
    // Linux before 5.6 lacks openat2(2), and cannot resolve symbolic links in another root.
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    match openat2(&root, ".", how.resolve(ResolveFlag::RESOLVE_IN_ROOT)) {
        Ok(_) => Ok(Some(root)),
        Err(errno) => Err(cannot_read("/proc/1/root", &errno.into())),
    }
}

fn metadata(path: &str) -> Result<Metadata, String> {
    fs::metadata(path).map_err(|error| cannot_read(path, &error))
}

fn cannot_read(path: &str, error: &io::Error) -> String {
    format!("cannot read {path}: {}", sys::reason(error))
}

/// Whether the directory can be from a host around this container. A mount at or below /var/lib/cni, or at the directory, shows
/// this, and so does a mount of a parent of the directory at its own path. A volume for all of /var has another path in its
/// file system, and belongs to this container.
fn is_mounted_from_outside(directory: &Path) -> Result<bool, String> {
    let text = file::read_lossy(MOUNTS).map_err(|error| cannot_read(MOUNTS, &error))?;
    Ok(mounts(&text).iter().any(|(root, path)| {
        let root = root.trim_start_matches('/');
        path.starts_with("/var/lib/cni")
            || path == directory
            || (!root.is_empty() && directory.starts_with(path) && path.ends_with(root))
    }))
}

/// The roots of the mounts at a path, in the mount namespace of this process. That of a namespace is its type and inode. Empty if
/// there is no file.
pub fn mounts_at(path: &Path) -> io::Result<Vec<String>> {
    let Some(path) = file::found(path.canonicalize())? else { return Ok(Vec::new()) };
    let text = file::read_lossy(MOUNTS)?;
    let at_path = mounts(&text).into_iter().filter(|(_, mount)| *mount == path);
    Ok(at_path.map(|(root, _)| root.to_owned()).collect())
}

/// The paths of the mounts of network namespaces, as process 1 of the host sees them; without a view as this process does.
pub fn mounted_namespaces(view: Option<&HostView>) -> io::Result<Vec<PathBuf>> {
    let text = file::read_lossy(if view.is_some() { "/proc/1/mountinfo" } else { MOUNTS })?;
    let of_namespaces = mounts(&text).into_iter().filter(|(root, _)| root.starts_with("net:["));
    Ok(of_namespaces.map(|(_, path)| path).collect())
}

/// The mounts of a process: roots and paths of the lines of mountinfo (proc_pid_mountinfo(5), fields 4 and 5).
fn mounts(text: &str) -> Vec<(&str, PathBuf)> {
    let mut mounts = Vec::new();
    for line in text.lines() {
        let mut fields = line.split(' ');
        if let (Some(root), Some(path)) = (fields.nth(3), fields.next()) {
            mounts.push((root, unescaped(path)));
        }
    }
    mounts
}

/// Decodes a path in mountinfo: a space, tab, newline or backslash is written as a backslash and three octal digits.
fn unescaped(path: &str) -> PathBuf {
    let mut text = path.to_owned();
    for (escaped, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(escaped, plain);
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_have_a_root_and_a_path() {
        let text =
            "36 35 0:4 net:[4026532345] /run/netns/a\\040b rw shared:5 - nsfs nsfs rw\n\n1 2\n";
        assert_eq!(mounts(text), [("net:[4026532345]", PathBuf::from("/run/netns/a b"))]);
    }
}
