//! What a child does between fork and exec: the one place of the tests that enters or leaves a namespace, since the
//! test process has many threads and must stay where it is. Nothing here allocates: all strings are made before.

#![allow(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "a child between fork and exec has one thread and never comes back"
)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, mkdir, write};

/// No command of a test takes longer than this; one that hangs is ended by SIGALRM.
const COMMAND_LIMIT_S: libc::c_uint = 120;

/// The namespaces of a world, held open.
pub struct Namespaces {
    user: OwnedFd,
    mount: OwnedFd,
    net: OwnedFd,
}

impl Namespaces {
    pub fn of(pid: u32) -> io::Result<Self> {
        let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}")).map(OwnedFd::from);
        Ok(Self { user: open("user")?, mount: open("mnt")?, net: open("net")? })
    }

    fn enter(&self) -> io::Result<()> {
        step(c"enter the world's users", setns(&self.user, CloneFlags::CLONE_NEWUSER))?;
        step(c"enter the world's mounts", setns(&self.mount, CloneFlags::CLONE_NEWNS))?;
        step(c"enter the world's network", setns(&self.net, CloneFlags::CLONE_NEWNET))
    }
}

/// The command starts in new namespaces that show `executables` as /run/bin.
pub fn make_namespaces(command: &mut Command, executables: &Path) {
    let executables = CString::new(executables.as_os_str().as_bytes()).unwrap();
    let users = CString::new(format!("0 {} 1", Uid::effective())).unwrap();
    let groups = CString::new(format!("0 {} 1", Gid::effective())).unwrap();
    let begin = move || {
        let new = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET;
        step(c"unshare users, mounts and network", unshare(new))?;
        fill(c"/proc/self/setgroups", c"deny")?;
        fill(c"/proc/self/uid_map", &users)?;
        fill(c"/proc/self/gid_map", &groups)?;
        furnish(&executables)
    };
    // SAFETY: the closure makes system calls only, on memory that was allocated before the fork.
    unsafe { command.pre_exec(begin) };
}

/// The command starts in the world; with `netns` (a path in the world) in that container's network.
pub fn enter(command: &mut Command, world: Arc<Namespaces>, netns: Option<CString>) {
    let begin = move || {
        world.enter()?;
        let Some(netns) = &netns else { return Ok(()) };
        let file =
            step(c"open the container", open(netns.as_c_str(), OFlag::O_RDONLY, Mode::empty()))?;
        step(c"enter the container", setns(file.as_fd(), CloneFlags::CLONE_NEWNET))
    };
    // SAFETY: as above; the descriptor that `begin` opens is closed by it, too.
    unsafe { command.pre_exec(begin) };
}

/// The command makes a network namespace and binds it to `path` (an existing file in the world).
pub fn make_netns(command: &mut Command, world: Arc<Namespaces>, path: CString) {
    let begin = move || {
        world.enter()?;
        step(c"unshare the network", unshare(CloneFlags::CLONE_NEWNET))?;
        let (from, to) = (c"/proc/self/ns/net", path.as_c_str());
        step(c"bind the container", mount(Some(from), to, NO, MsFlags::MS_BIND, NO))
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(begin) };
}

/// The command dies with the thread that started it, and does not outlive its time.
pub fn leash(command: &mut Command) {
    let begin = || {
        // SAFETY: both calls take numbers only.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(COMMAND_LIMIT_S);
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(begin) };
}

const NO: Option<&CStr> = None;

/// Nothing that a plugin writes reaches the machine: /run and /var/lib are empty and our own.
fn furnish(executables: &CStr) -> io::Result<()> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    step(c"make the mounts private", mount(NO, c"/", NO, private, NO))?;
    tmpfs(c"/run")?;
    for dir in [c"/run/bin", c"/run/netns"] {
        step(c"make a directory in /run", mkdir(dir, Mode::from_bits_truncate(0o755)))?;
    }
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    step(c"show the executable", mount(Some(executables), c"/run/bin", NO, bind, NO))?;
    tmpfs(c"/var/lib")
}

fn tmpfs(path: &CStr) -> io::Result<()> {
    let mounted = mount(Some(c"tmpfs"), path, Some(c"tmpfs"), MsFlags::empty(), Some(c"mode=0755"));
    step(c"mount a tmpfs", mounted)
}

fn fill(path: &CStr, text: &CStr) -> io::Result<()> {
    let file = step(path, open(path, OFlag::O_WRONLY, Mode::empty()))?;
    step(path, write(file, text.to_bytes())).map(drop)
}

/// `spawn` reports an errno and nothing else, so the name of the step goes to stderr.
fn step<T>(what: &CStr, result: nix::Result<T>) -> io::Result<T> {
    result.map_err(|errno| {
        for part in [c"cannot ".to_bytes(), what.to_bytes(), b"\n"] {
            // If stderr is gone, the errno still arrives.
            write(io::stderr(), part).ok();
        }
        io::Error::from(errno)
    })
}
