//! The steps of a child between fork and exec. This is the only place of the tests that enters or leaves a namespace, since the
//! test process has many threads and must stay where it is. No step allocates: all strings are made before.
//!
//! A process cannot change its own PID namespace, only that of its children. So a command in a world is a grandchild of the
//! test process. The child between them stays outside, and ends as the command does.

#![allow(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "a child between fork and exec has one thread and never comes back"
)]

use std::ffi::{CStr, CString, OsString};
use std::fs::{self, File};
use std::io::{self, PipeWriter, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{ForkResult, Gid, Pid, Uid, fork, mkdir, symlinkat, write};

/// No command for which a test waits takes longer than this; SIGALRM ends a command that hangs.
const COMMAND_LIMIT_S: libc::c_uint = 900;

/// The namespaces of a world, held open.
pub struct Namespaces {
    user: OwnedFd,
    pid: OwnedFd,
    mount: OwnedFd,
    net: OwnedFd,
}

impl Namespaces {
    pub fn of(pid: Pid) -> io::Result<Self> {
        let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}")).map(OwnedFd::from);
        Ok(Self { user: open("user")?, pid: open("pid")?, mount: open("mnt")?, net: open("net")? })
    }

    fn enter(&self, pids: &PipeWriter) -> io::Result<()> {
        step(c"enter the world's users", setns(&self.user, CloneFlags::CLONE_NEWUSER))?;
        step(c"enter the world's processes", setns(&self.pid, CloneFlags::CLONE_NEWPID))?;
        go_on_in_a_child(pids)?;
        step(c"enter the world's mounts", setns(&self.mount, CloneFlags::CLONE_NEWNS))?;
        step(c"enter the world's network", setns(&self.net, CloneFlags::CLONE_NEWNET))
    }
}

/// A started command.
pub struct Process {
    /// The command, or, if that is in a world, its parent.
    pub child: Child,
    /// The command's own process id on the machine.
    pub pid: Pid,
}

/// Starts process 1 of new namespaces that show `executables` as /run/bin.
pub fn make_namespaces(executables: &Path) -> io::Result<Process> {
    let etc = names_in_etc();
    let executables = CString::new(executables.as_os_str().as_bytes()).unwrap();
    let users = CString::new(format!("0 {} 1", Uid::effective())).unwrap();
    let groups = CString::new(format!("0 {} 1", Gid::effective())).unwrap();
    let mut command = Command::new("cat");
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    start(command, move |pids| {
        let new = CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET;
        step(c"unshare", unshare(new))?;
        fill(c"/proc/self/setgroups", c"deny")?;
        fill(c"/proc/self/uid_map", &users)?;
        fill(c"/proc/self/gid_map", &groups)?;
        go_on_in_a_child(pids)?;
        // The kernel then reaps the orphans of the world, which are children of process 1.
        // SAFETY: the process has one thread, and no handler is installed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        furnish(&executables, &etc)
    })
}

/// Starts the command in the world; with `netns` (a path in the world) in that container's network.
pub fn start_in(
    world: Arc<Namespaces>,
    command: Command,
    netns: Option<CString>,
) -> io::Result<Process> {
    start(command, move |pids| {
        world.enter(pids)?;
        let Some(netns) = &netns else { return Ok(()) };
        let file =
            step(c"open the container", open(netns.as_c_str(), OFlag::O_RDONLY, Mode::empty()))?;
        step(c"enter the container", setns(file.as_fd(), CloneFlags::CLONE_NEWNET))
    })
}

/// Makes a network namespace and binds it to `path` (an existing file in the world).
pub fn make_netns(world: Arc<Namespaces>, path: CString) -> io::Result<Process> {
    start(Command::new("true"), move |pids| {
        world.enter(pids)?;
        step(c"unshare the network", unshare(CloneFlags::CLONE_NEWNET))?;
        let (from, to) = (c"/proc/self/ns/net", path.as_c_str());
        step(c"bind the container", mount(Some(from), to, NO, MsFlags::MS_BIND, NO))
    })
}

impl Process {
    /// Starts a command that is in no world.
    pub fn outside(command: &mut Command) -> io::Result<Self> {
        let child = command.spawn()?;
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        Ok(Self { child, pid })
    }
}

/// Starts the command after the steps of `begin`, one of which is `go_on_in_a_child`.
fn start(
    mut command: Command,
    begin: impl Fn(&PipeWriter) -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<Process> {
    let (mut reader, writer) = io::pipe()?;
    // SAFETY: `begin` makes system calls only, on memory that was allocated before the fork, and what it opens it closes.
    unsafe { command.pre_exec(move || begin(&writer)) };
    let child = command.spawn()?;
    // It holds the writer: if the child wrote nothing, the pipe has an end now.
    drop(command);
    let mut pid = [0; size_of::<libc::pid_t>()];
    reader.read_exact(&mut pid)?;
    Ok(Process { child, pid: Pid::from_raw(libc::pid_t::from_ne_bytes(pid)) })
}

/// Returns in a child only, which is in the PID namespace that was entered or made. The parent writes the child's id to
/// `pids`, and ends as the child does.
fn go_on_in_a_child(pids: &PipeWriter) -> io::Result<()> {
    // SAFETY: the process has one thread.
    match step(c"fork", unsafe { fork() })? {
        ForkResult::Child => {
            // SAFETY: the call takes numbers only.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            Ok(())
        }
        ForkResult::Parent { child } => {
            // If the reader is gone, the test is over.
            write(pids, &child.as_raw().to_ne_bytes()).ok();
            // SAFETY: the process uses no descriptor from here on. A pipe of the child has no other holder then.
            unsafe { libc::close_range(0, libc::c_uint::MAX, 0) };
            end_as(child)
        }
    }
}

/// Waits for the end of the child, and ends with the same exit status or by the same signal.
fn end_as(child: Pid) -> ! {
    let mut status = 0;
    // SAFETY: the calls take numbers and the address of a local variable.
    unsafe {
        while libc::waitpid(child.as_raw(), &raw mut status, 0) == -1 {}
        if libc::WIFSIGNALED(status) {
            libc::signal(libc::WTERMSIG(status), libc::SIG_DFL);
            libc::raise(libc::WTERMSIG(status));
        }
        libc::_exit(libc::WEXITSTATUS(status))
    }
}

/// The child dies with the thread that started it. A command in a world dies with the child.
pub fn end_with_parent(command: &mut Command) {
    let begin = || {
        // SAFETY: the call takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: the closure makes a system call only.
    unsafe { command.pre_exec(begin) };
}

/// The child dies after COMMAND_LIMIT_S. A service has no limit: it ends with the world.
pub fn limit_time(command: &mut Command) {
    let begin = || {
        // SAFETY: the call takes a number only.
        unsafe { libc::alarm(COMMAND_LIMIT_S) };
        Ok(())
    };
    // SAFETY: the closure makes a system call only.
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

/// A world has its own /run, /var/lib and /etc, so nothing that a plugin writes there reaches the machine. Its /proc shows
/// its own processes.
fn furnish(executables: &CStr, etc: &[(CString, CString)]) -> io::Result<()> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    step(c"make the mounts private", mount(NO, c"/", NO, private, NO))?;
    let proc = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    step(c"mount /proc", mount(Some(c"proc"), c"/proc", Some(c"proc"), proc, NO))?;
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
