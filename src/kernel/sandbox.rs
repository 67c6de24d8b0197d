//! New namespaces for tests and experiments, in which any user is root.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{getegid, geteuid};

use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::host_view;
use crate::kernel::netns::NetNs;

/// Moves this process into new network and mount namespaces. A user who is not root gets a user namespace, too, and is
/// root there. The process must have no other threads.
pub fn enter() -> Result<()> {
    let flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    match geteuid().is_root() {
        true => unshare_all(flags),
        false => unshare_all(flags | CloneFlags::CLONE_NEWUSER),
    }
}

/// `enter`, always with a user namespace.
pub fn enter_as_root() -> Result<()> {
    unshare_all(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUSER)
}

/// The capabilities that this process lacks for making namespaces, and networks for them.
pub fn missing_capabilities() -> Vec<&'static str> {
    // Source: linux/capability.h.
    const NEEDED: [(&str, u32); 2] = [("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21)];
    let status = file::read_lossy("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    let is_missing = |bit: u32| effective.is_some_and(|bits| bits & (1 << bit) == 0);
    NEEDED.into_iter().filter(|(_, bit)| is_missing(*bit)).map(|(name, _)| name).collect()
}

fn unshare_all(flags: CloneFlags) -> Result<()> {
    let (user, group) = (geteuid(), getegid());
    unshare(flags).map_err(|errno| {
        Error::internal(format_args!("cannot make namespaces: {}", errno.desc()))
            .with_details("root, or a kernel that allows user namespaces, is required")
    })?;
    if flags.contains(CloneFlags::CLONE_NEWUSER) {
        for (file, text) in [
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/uid_map", format!("0 {user} 1")),
            ("/proc/self/gid_map", format!("0 {group} 1")),
        ] {
            fs::write(file, text).map_err(|error| failed("write", Path::new(file), &error))?;
        }
    }
    // Shared mounts would propagate to the host.
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|errno| failed("make private", Path::new("/"), &errno.into()))
}

/// Mounts an empty tmpfs on a directory.
pub fn mount_memory(directory: &Path) -> Result<()> {
    mount(Some("cnibox"), directory, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755"))
        .map_err(|errno| failed("mount a tmpfs on", directory, &errno.into()))
}

/// Mounts private copies on directories: this process sees their files, and its changes end with its mount namespace. Where a
/// directory does not exist, the nearest existing one above it is copied. Files of mounts below a directory are not visible.
pub fn copy_directories(directories: &[PathBuf]) -> Result<()> {
    let mut copied: Vec<PathBuf> = Vec::new();
    for directory in directories {
        let found = directory.ancestors().find_map(|path| path.canonicalize().ok());
        let existing = found
            .filter(|path| path.parent().is_some())
            .ok_or_else(|| failed("copy", directory, &io::ErrorKind::NotFound.into()))?;
        if !copied.iter().any(|copied| existing.starts_with(copied)) {
            copy_directory(&existing)?;
            copied.push(existing);
        }
    }
    Ok(())
}

/// Mounts an overlay on a directory. Its changes are in memory.
fn copy_directory(directory: &Path) -> Result<()> {
    let cannot = |error: io::Error| failed("mount an overlay on", directory, &error);
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let lower = open(directory, flags, Mode::empty()).map_err(|errno| cannot(errno.into()))?;
    mount_memory(Path::new(SCRATCH))?;
    let mounted =
        ["upper", "work"].iter().try_for_each(|name| fs::create_dir(Path::new(SCRATCH).join(name)));
    let mounted = mounted.and_then(|()| {
        // The path of the directory can have characters that separate options.
        let options = format!(
            "lowerdir=/proc/self/fd/{},upperdir={SCRATCH}/upper,workdir={SCRATCH}/work",
            lower.as_raw_fd()
        );
        mount(Some("cnibox"), directory, Some("overlay"), MsFlags::empty(), Some(&*options))
            .map_err(io::Error::from)
    });
    // The overlay keeps the memory.
    let unmounted = umount2(SCRATCH, MntFlags::MNT_DETACH).map_err(io::Error::from);
    mounted.and(unmounted).map_err(cannot)
}

/// A directory of each host, on which the memory of an overlay is mounted until the overlay is.
const SCRATCH: &str = "/tmp";

/// Makes a network namespace that exists until its file is unmounted, like `ip netns add`.
pub fn new_namespace(path: &Path) -> Result<NetNs> {
    let own = NetNs::own()?;
    mount_at(&own.make()?, path)?;
    own.open(path)
}

/// `new_namespace`, which creates a missing directory, and fails if a namespace is mounted at the path. `prepare` is called
/// before the namespace is mounted.
pub fn new_named_namespace(path: &Path, prepare: &dyn Fn(&NetNs) -> Result<()>) -> Result<NetNs> {
    let own = NetNs::own()?;
    if own.is_at(path)? {
        return Err(failed("create", path, &io::ErrorKind::AlreadyExists.into()));
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(|error| failed("create", directory, &error))?;
    }
    let netns = own.make()?;
    prepare(&netns)?;
    mount_at(&netns, path)?;
    own.open(path)
}

/// Mounts a namespace at a path.
fn mount_at(netns: &NetNs, path: &Path) -> Result<()> {
    File::create(path).map_err(|error| failed("create", path, &error))?;
    let none: Option<&str> = None;
    // The path of `netns` has the id of this process, and /proc can be that of another PID namespace.
    let source = format!("/proc/self/fd/{}", netns.as_fd().as_raw_fd());
    mount(Some(source.as_str()), path, none, MsFlags::MS_BIND, none).map_err(|errno| {
        // If this fails, the next call can use the empty file. The error of the mount is reported.
        let _ = fs::remove_file(path);
        failed("mount a network namespace on", path, &errno.into())
    })
}

/// Removes the file of a namespace, as `ip netns del` does; the namespace exists as long as a process is in it. A missing
/// file is not an error.
///
/// A namespace can be mounted at the path more than once. Either all of these mounts and the file are removed, or the namespace
/// stays at its path: a file without its namespace would look like an end.
pub fn remove_namespace(path: &Path) -> Result<()> {
    let roots = host_view::mounts_at(path).map_err(|error| failed("examine", path, &error))?;
    if roots.iter().any(|root| *root != roots[0]) {
        let msg = format!("cannot remove {}: another file is mounted there, too", path.display());
        return Err(Error::internal(msg));
    }
    let netns = NetNs::own()?.open_if_exists(path).map_err(|error| failed("open", path, &error))?;
    let removed = unmount(path, roots.len()).and_then(|()| {
        file::found(fs::remove_file(path)).map(drop).map_err(|error| failed("remove", path, &error))
    });
    match (removed, netns) {
        (Err(error), Some(netns)) => Err(error.and(remount(&netns, path))),
        (removed, _) => removed,
    }
}

/// Removes mounts at a path. A mount can have been removed with another one, by propagation.
fn unmount(path: &Path, count: usize) -> Result<()> {
    for _ in 0..count {
        match umount2(path, MntFlags::MNT_DETACH) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(errno) => return Err(failed("unmount", path, &errno.into())),
        }
    }
    Ok(())
}

/// Mounts a namespace at its path again, unless it is still mounted there.
fn remount(netns: &NetNs, path: &Path) -> Result<()> {
    match NetNs::own()?.is_at(path)? {
        true => Ok(()),
        false => mount_at(netns, path),
    }
}

fn failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    Error::internal(format_args!("cannot {verb} {}: {error}", path.display()))
}
