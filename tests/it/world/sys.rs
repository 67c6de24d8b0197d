//! The steps of a child between fork and exec. This is the only place of the tests that enters or leaves a namespace, since the
//! test process has many threads and must stay where it is. Nothing here allocates: all strings are made before.

#![allow(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "a child between fork and exec has one thread and never comes back"
)]

use std::ffi::{CStr, CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, mkdir, symlinkat, write};

/// No command of a test takes longer than this; SIGALRM ends a command that hangs.
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
    let etc = names_in_etc();
    let executables = CString::new(executables.as_os_str().as_bytes()).unwrap();
    let users = CString::new(format!("0 {} 1", Uid::effective())).unwrap();
    let groups = CString::new(format!("0 {} 1", Gid::effective())).unwrap();
    let begin = move || {
        let new = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET;
        step(c"unshare users, mounts and network", unshare(new))?;
        fill(c"/proc/self/setgroups", c"deny")?;
        fill(c"/proc/self/uid_map", &users)?;
        fill(c"/proc/self/gid_map", &groups)?;
        furnish(&executables, &etc)
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

/// Where a world has the machine's /etc, read-only.
const ETC_OF_MACHINE: &str = "/run/etc";

/// For each entry of the machine's /etc except `cni`: a link in the world's /etc, and the entry to which it leads.
fn names_in_etc() -> Vec<(CString, CString)> {
    let entries = fs::read_dir("/etc").unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.filter(|name| name != "cni");
    let path = |dir: &str, name: &OsString| {
        CString::new(Path::new(dir).join(name).into_os_string().into_vec()).unwrap()
    };
    names.map(|name| (path("/etc", &name), path(ETC_OF_MACHINE, &name))).collect()
}

/// A world has its own /run, /var/lib and /etc, so nothing that a plugin writes there reaches the machine.
fn furnish(executables: &CStr, etc: &[(CString, CString)]) -> io::Result<()> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    step(c"make the mounts private", mount(NO, c"/", NO, private, NO))?;
    tmpfs(c"/run")?;
    for dir in [c"/run/bin", c"/run/netns", c"/run/etc"] {
        step(c"make a directory in /run", mkdir(dir, Mode::from_bits_truncate(0o755)))?;
    }
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    step(c"show the executable", mount(Some(executables), c"/run/bin", NO, bind, NO))?;
    step(c"show /etc of the machine", mount(Some(c"/etc"), c"/run/etc", NO, bind, NO))?;
    step(c"make /etc of the machine read-only", make_read_only(c"/run/etc"))?;
    tmpfs(c"/etc")?;
    for (link, target) in etc {
        step(c"make a link in /etc", symlinkat(target.as_c_str(), AT_FDCWD, link.as_c_str()))?;
    }
    tmpfs(c"/var/lib")
}

/// `mount_setattr` and not `mount`: a user namespace may not change the other flags of the mount, such as nodev, and
/// `mount` would have to know them.
fn make_read_only(path: &CStr) -> nix::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path ends with a NUL, the size is that of the attributes, and both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of_val(&attributes),
        )
    };
    Errno::result(result).map(drop)
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
