//! The steps of a child between fork and exec, and what else needs namespaces of a single thread.

#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "these processes have one thread")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// The namespaces of a node, with this user as root.
pub fn unshare_node() -> io::Result<()> {
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    unshare(
        CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWPID,
    )?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Makes all mounts at and below a path read-only. `mount` would have to know the flags that a user namespace may not change.
pub fn make_read_only(path: &CStr) -> io::Result<()> {
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
    Ok(Errno::result(result).map(drop)?)
}

/// A new network namespace of this process, which the host of a rebooted node is.
pub fn unshare_network() -> io::Result<()> {
    Ok(unshare(CloneFlags::CLONE_NEWNET)?)
}

/// The command starts in the network namespace at a path.
pub fn enter(command: &mut Command, netns: &str) -> io::Result<()> {
    let file = File::open(netns)?;
    let begin = move || Ok(setns(&file, CloneFlags::CLONE_NEWNET)?);
    // SAFETY: the closure makes one system call on a descriptor.
    unsafe { command.pre_exec(begin) };
    Ok(())
}

/// The command starts in a new network namespace, bound to a path if there is one.
pub fn with_new_network(command: &mut Command, path: Option<&str>) {
    let path = path.map(|path| CString::new(path).expect("paths have no NUL"));
    let begin = move || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        if let Some(path) = &path {
            let no = None::<&str>;
            let own = Some(c"/proc/self/ns/net");
            mount(own, path.as_c_str(), no, MsFlags::MS_BIND, no)?;
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only, on memory that was allocated before the fork.
    unsafe { command.pre_exec(begin) };
}

/// The command dies with its parent.
pub fn end_with_parent(command: &mut Command) {
    let begin = || {
        // SAFETY: the call takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(begin) };
}

/// Connects from one namespace to a port that a listener in another one serves, and tells whether that one answered:
/// `--probe FROM ADDRESS:PORT TO PORT`.
pub fn probe(args: &[String]) -> Result<(), String> {
    let [from, to_address, to, port] = args else { return Err("four arguments".into()) };
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let enter = |path: &str| {
        let file = File::open(Path::new(path)).map_err(|error| text(&error))?;
        setns(file, CloneFlags::CLONE_NEWNET).map_err(|error| text(&error))
    };
    let address: SocketAddr = to_address.parse().map_err(|error| text(&error))?;
    let port: u16 = port.parse().map_err(|error| text(&error))?;
    enter(to)?;
    let any: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
    let listener = TcpListener::bind((any, port)).map_err(|error| text(&error))?;
    enter(from)?;
    let connected = TcpStream::connect_timeout(&address, PROBE_LIMIT);
    let mut client = connected.map_err(|error| format!("connect: {error}"))?;
    listener.set_nonblocking(true).map_err(|error| text(&error))?;
    let (mut server, _) = listener.accept().map_err(|error| format!("accept: {error}"))?;
    server.write_all(b"ok").map_err(|error| text(&error))?;
    client.set_read_timeout(Some(PROBE_LIMIT)).map_err(|error| text(&error))?;
    let mut answer = [0; 2];
    client.read_exact(&mut answer).map_err(|error| format!("read: {error}"))
}
