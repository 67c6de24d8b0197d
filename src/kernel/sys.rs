//! The few system calls that no safe crate offers. All of the project's unsafe code is here, in `allocator`, `socket`, `thread` and `unwind`.
#![allow(unsafe_code)]

#[cfg(target_env = "musl")]
pub(crate) mod allocator;
pub(crate) mod socket;
pub(crate) mod thread;
#[cfg(no_unwind)]
mod unwind;

#[cfg(target_env = "musl")]
use std::ffi::c_void;
use std::ffi::{CStr, OsStr, OsString, c_int};
use std::fmt::{self, Display};
use std::fs::{File, Metadata};
use std::io::{self, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
#[cfg(target_env = "musl")]
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, chdir, getpid, getppid, gettid, sethostname, setsid, unlink, write};

use crate::error::{Code, Error, Result};
use crate::kernel::terminal::printable;

/// The number of files that `raise_file_limit` asks for. On some systems the hard limit is a billion.
const FILES_MAX: rlim_t = 65_536;

/// The requests to /dev/net/tun that take a number and touch no memory. Source: linux/if_tun.h.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum TunRequest {
    /// TUNSETPERSIST: 1 keeps the interface when the file is closed.
    Persist = 0x4004_54cb,
    /// TUNSETOWNER: a user id.
    Owner = 0x4004_54cc,
    /// TUNSETGROUP: a group id.
    Group = 0x4004_54ce,
}

/// The SELinux context of the calling thread. Source: proc_pid_attr(5).
const OWN_CONTEXT: &CStr = c"/proc/thread-self/attr/current";

/// Makes the relocated data of this executable (PT_GNU_RELRO) read-only. The shipped executable relocates itself, and musl
/// protects the relocated data of shared libraries only.
#[cfg(target_env = "musl")]
pub fn protect_relocated_data() {
    extern "C" fn protect(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        // SAFETY: the C library gives the program headers of this executable. Nothing writes to the range any more.
        unsafe {
            let page = usize::try_from(libc::getauxval(libc::AT_PAGESZ)).unwrap_or(4096);
            let headers = slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum.into());
            for header in headers.iter().filter(|header| header.p_type == libc::PT_GNU_RELRO) {
                let begin = (*info).dlpi_addr as usize + header.p_vaddr as usize;
                let (first, end) = (begin & !(page - 1), begin + header.p_memsz as usize);
                // After an error the data stay writable.
                libc::mprotect(first as *mut c_void, (end & !(page - 1)) - first, libc::PROT_READ);
            }
        }
        1
    }
    // SAFETY: the callback has the type that the call requires, and keeps no pointer.
    unsafe { libc::dl_iterate_phdr(Some(protect), std::ptr::null_mut()) };
}

/// Makes writes fail instead of ending this process: to a pipe without a reader (SIGPIPE), to a file at its size limit
/// (SIGXFSZ).
///
/// The signals get a handler and are not ignored, because execve(2) resets handlers only.
pub fn survive_failed_writes() {
    extern "C" fn nothing(_: c_int) {}
    for kind in [Signal::SIGPIPE, Signal::SIGXFSZ] {
        // SAFETY: the handler does nothing, so it can run at any time.
        let _ = unsafe { signal(kind, SigHandler::Handler(nothing)) }; // it cannot fail for these signals
    }
}

/// Whether SIGINT, SIGTERM or SIGHUP has come: see `catch_interrupts`.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_interrupt(_: c_int) {
    IS_INTERRUPTED.store(true, Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP do not end this process: `is_interrupted` returns true after one of them. A signal
/// that is ignored stays ignored, except SIGCHLD: the kernel would reap children before this process waits for them. Programs
/// started later do not inherit a handler.
pub fn catch_interrupts() {
    // SAFETY: no handler is set.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    for number in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic variable. Calls for these signals cannot fail.
        unsafe {
            if let Ok(SigHandler::SigIgn) = signal(number, SigHandler::Handler(note_interrupt)) {
                let _ = signal(number, SigHandler::SigIgn);
            }
        }
    }
}

/// Whether an interrupt has come since `forget_interrupt`.
pub fn is_interrupted() -> bool {
    IS_INTERRUPTED.load(Relaxed)
}

/// The error of a wait that an interrupt has ended. Its kind is not `Interrupted`: callers repeat a call after an error of that
/// kind.
pub fn interrupted() -> io::Error {
    io::Error::other("interrupted")
}

/// Fails after an interrupt. Each loop with a wait that a signal does not end calls this.
pub fn fail_if_interrupted() -> io::Result<()> {
    if is_interrupted() { Err(interrupted()) } else { Ok(()) }
}

/// Runs a cleanup. An earlier interrupt does not stop it; a new one does. After it, `is_interrupted` reports the earlier one
/// again.
pub fn despite_interrupt<T>(cleanup: impl FnOnce() -> T) -> T {
    let was_interrupted = IS_INTERRUPTED.swap(false, Relaxed);
    let done = cleanup();
    IS_INTERRUPTED.fetch_or(was_interrupted, Relaxed);
    done
}

/// Blocks SIGINT and SIGTERM: they stay pending until `wait_for_interrupt`. If this process is process 1 of a PID namespace,
/// the kernel would discard them otherwise.
pub fn block_interrupts() -> SigSet {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    let _ = signals.thread_block(); // it fails for a wrong argument only
    signals
}

/// Waits for one of the signals.
pub fn wait_for_interrupt(signals: &SigSet) {
    let _ = signals.wait(); // it fails for an empty set only
}

/// Call this before a cleanup after an interrupt: another interrupt can then stop the cleanup.
pub fn forget_interrupt() {
    IS_INTERRUPTED.store(false, Relaxed);
}

/// The kernel kills the child when the thread that starts it ends: no process would wait for its later changes, or undo them.
/// The child blocks no signal, also if this process does.
pub fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let begin = move || {
        let _ = set_pdeathsig(Signal::SIGKILL); // a filter of system calls can refuse it
        SigSet::empty().thread_set_mask()?;
        // The parent may have ended before.
        if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
    };
    // SAFETY: between fork and exec the closure makes system calls only.
    unsafe { command.pre_exec(begin) };
}

/// Sends any signal, a real-time signal included. It fails only for a process that has ended.
pub fn send_signal(to: Pid, number: c_int) {
    // SAFETY: the call takes numbers only.
    unsafe { libc::kill(to.as_raw(), number) };
}

/// The child outlives its parent: it gets its own session, the root directory as its working directory, no signal mask,
/// and no descriptor except the three standard ones.
pub fn detach(command: &mut Command) {
    let begin = || {
        setsid()?;
        chdir(c"/")?;
        SigSet::empty().thread_set_mask()?;
        // SAFETY: the call takes numbers only. It marks the descriptors, since the standard library still needs one. A kernel
        // before 5.11 lacks CLOSE_RANGE_CLOEXEC; then only descriptors that another program left open are inherited.
        unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only.
    unsafe { command.pre_exec(begin) };
}

/// Raises the number of files that this process may open to its hard limit, but at most to `FILES_MAX`. A failure is ignored.
pub fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(FILES_MAX)), hard);
    }
}

/// Takes ownership of a descriptor that this process inherited, and sets FD_CLOEXEC. Call it once for each descriptor.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: this program opens its descriptors with FD_CLOEXEC, so this one is from outside and has no other owner. If it
    // is not open, the call below fails, and nothing is closed.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    match fcntl(&file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)) {
        Ok(_) => Ok(file),
        Err(errno) => {
            std::mem::forget(file);
            Err(errno.into())
        }
    }
}

/// The mounts and the host name that a child gets in place of those of its parent.
pub struct ChildSetup {
    /// A file that is mounted over /etc/resolv.conf, and then unlinked.
    pub resolv_conf: Option<PathBuf>,
    pub hostname: Option<OsString>,
    /// The paths of mounts that are unmounted for the child only.
    pub hidden: Vec<PathBuf>,
    /// An open file that the child keeps.
    pub inherited: Option<OwnedFd>,
}

/// Applies the setup between fork and exec, and then writes one byte to `ready`. An error without that byte is an error of the
/// setup; an error after it is an error of the exec.
pub fn set_up_child(command: &mut Command, setup: ChildSetup, mut ready: PipeWriter) {
    const NONE: Option<&CStr> = None;
    let begin = move || {
        let ChildSetup { resolv_conf, hostname, hidden, inherited } = &setup;
        if let Some(file) = inherited {
            fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        if resolv_conf.is_some() || !hidden.is_empty() {
            unshare(CloneFlags::CLONE_NEWNS)?;
            // Later mounts of the host propagate to the command; mounts of the command do not propagate to the host.
            mount(NONE, c"/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)?;
        }
        for path in hidden {
            umount2(path, MntFlags::MNT_DETACH)?;
        }
        if let Some(file) = resolv_conf {
            let to = c"/etc/resolv.conf";
            match mount(Some(file), to, NONE, MsFlags::MS_BIND, NONE) {
                // The host has no /etc/resolv.conf.
                Err(Errno::ENOENT) => {}
                mounted => mounted?,
            }
            unlink(file)?;
        }
        if let Some(name) = hostname {
            unshare(CloneFlags::CLONE_NEWUTS)?;
            sethostname(name)?;
        }
        ready.write_all(&[0])
    };
    // SAFETY: between fork and exec the closure makes system calls only, with the paths on its stack.
    unsafe { command.pre_exec(begin) };
}

/// Writes all bytes, in one system call if possible. The stdout of std would write the text after the last line end separately.
pub fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(file, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Whether stderr is a terminal: a person may wait.
pub fn has_terminal() -> bool {
    io::IsTerminal::is_terminal(&io::stderr())
}

/// Writes one line to stderr. A line end or another control character in it becomes `?`. Errors are ignored: no call depends on
/// the line.
pub fn warn(line: fmt::Arguments<'_>) {
    write_to_stderr(&[printable(&line.to_string()), "\n".into()].concat());
}

/// `warn` for each line of a text.
pub fn warn_lines(text: &str) {
    let mut lines = String::new();
    for line in text.lines() {
        lines.push_str(&printable(line));
        lines.push('\n');
    }
    write_to_stderr(&lines);
}

fn write_to_stderr(text: &str) {
    let _ = write_all(io::stderr().as_fd(), text.as_bytes());
}

/// A file that becomes readable when a child has ended. `None` if the kernel (before 5.3) or a filter of system calls has no
/// pidfd_open(2). The child must not have been reaped.
pub fn pidfd(child: &Child) -> Option<OwnedFd> {
    open_process(child.id()).ok()
}

/// pidfd_open(2) of a process of this PID namespace.
pub fn open_process(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the descriptor is new, so no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// pidfd_send_signal(2): fails with ESRCH after the process has ended, also if another one has its id.
pub fn signal_process(process: &OwnedFd, signal: Signal) -> io::Result<()> {
    let (fd, number) = (process.as_raw_fd(), signal as c_int);
    // SAFETY: the call takes numbers only: 0 is no siginfo_t, and no flag.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, number, 0_usize, 0) };
    Errno::result(sent).map(drop).map_err(io::Error::from)
}

/// Ends this thread without clean-up. The main thread ends the process, by SIGABRT.
pub fn end_thread() -> ! {
    if gettid() == getpid() {
        std::process::abort();
    }
    loop {
        // SAFETY: the thread never runs again. Its memory is not freed.
        unsafe { libc::syscall(libc::SYS_exit, 1) };
    }
}

/// Whether a file is the running executable, by device and inode.
///
/// The path from the auxiliary vector comes first: /proc takes three times as long, and may not be mounted.
pub fn is_own_executable(file: &Metadata) -> bool {
    let is_same = |path: &OsStr| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    };
    execve_path().is_some_and(is_same) || is_same(OsStr::new("/proc/self/exe"))
}

/// A path of the running executable. The path of its execve(2) counts only if /proc is not mounted: another file can have
/// that path now.
pub fn own_executable() -> &'static Path {
    let link = Path::new("/proc/self/exe");
    match execve_path() {
        Some(path) if !link.exists() => Path::new(path),
        _ => link,
    }
}

/// The path in the execve(2) of this process.
fn execve_path() -> Option<&'static OsStr> {
    // SAFETY: getauxval only reads the auxiliary vector, which lives as long as the process.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) };
    if address == 0 {
        return None;
    }
    // SAFETY: AT_EXECFN is the address of a NUL-terminated string above the stack, which never changes.
    let path = unsafe { CStr::from_ptr(address as *const libc::c_char) };
    Some(OsStr::from_bytes(path.to_bytes()))
}

/// Whether an open file is at the root of a mount. False before Linux 5.8, which does not report it.
pub fn is_mount_root(file: &File) -> io::Result<bool> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let (fd, flags) = (file.as_raw_fd(), libc::AT_EMPTY_PATH);
    // SAFETY: the path is an empty text with its NUL, and the kernel writes one statx to the memory of one.
    let result = unsafe { libc::statx(fd, c"".as_ptr(), flags, 0, found.as_mut_ptr()) };
    Errno::result(result)?;
    // SAFETY: all fields are integers, so zeros are a valid value, and the kernel has written the fields.
    let attributes = unsafe { found.assume_init() }.stx_attributes;
    Ok(attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0)
}

/// Whether a namespace is a network namespace. True for any namespace before Linux 4.11, which lacks the request.
pub fn is_network_namespace(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the request takes no argument and returns a number.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), libc::NS_GET_NSTYPE) };
    kind < 0 || kind == libc::CLONE_NEWNET
}

/// The network namespace of a socket. This needs CAP_NET_ADMIN in that namespace.
pub fn namespace_of(socket: &impl AsFd) -> io::Result<File> {
    // SAFETY: the request takes no argument and returns a new descriptor.
    let file = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGSKNS as libc::Ioctl) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner. The kernel sets FD_CLOEXEC.
    Ok(unsafe { File::from_raw_fd(file) })
}

/// Random bytes for names and hardware addresses.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the pointer and the length are those of one array that outlives the call.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, libc::GRND_NONBLOCK) };
    if usize::try_from(count) == Ok(N) {
        return Ok(bytes);
    }
    // Soon after boot getrandom would block, until the pool is ready. The device never blocks. Names and addresses have to
    // be unique, not secret.
    let read = File::open("/dev/urandom").and_then(|mut device| device.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(failed("cannot read random bytes"))
}

/// Reads an option of a socket into the buffer. The kernel reads the buffer first: iptables-legacy takes the name of the table
/// from it.
pub fn socket_option(
    socket: &impl AsRawFd,
    level: c_int,
    option: c_int,
    buffer: &mut [u8],
) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel reads and writes at most `length` bytes, all of the buffer, which outlives the call.
    let status = unsafe {
        let buffer = buffer.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, buffer, &mut length)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The number of BPF programs that are attached to a link by links of BPF, at its ingress or at its egress (tcx, Linux 6.6). Netlink
/// does not list them. 0 on earlier kernels, and in a user namespace: the kernel tells the root of the host only, who alone can attach
/// them.
///
/// Source: linux/bpf.h, `BPF_PROG_QUERY` and the member `query` of `union bpf_attr`.
#[cfg(feature = "tool")]
pub fn tcx_programs(link: u32, is_ingress: bool) -> io::Result<u32> {
    const BPF_PROG_QUERY: c_int = 16;
    const BPF_TCX_INGRESS: u32 = 46;
    #[repr(C)]
    #[derive(Default)]
    struct Query {
        link: u32,
        attach_type: u32,
        flags: u32,
        attach_flags: u32,
        program_ids: u64,
        count: u32,
        padding: u32,
        more: [u64; 4],
    }
    let attach_type = BPF_TCX_INGRESS + u32::from(!is_ingress);
    let mut query = Query { link, attach_type, ..Query::default() };
    let bytes = size_of::<Query>();
    // SAFETY: the kernel reads and writes at most `bytes` bytes of the structure, which outlives the call, and no others:
    // `program_ids` is null.
    let status = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, &raw mut query, bytes) };
    match Errno::last() {
        _ if status == 0 => Ok(query.count),
        // Without programs; without tcx; without BPF; in a user namespace.
        Errno::ENOENT | Errno::EINVAL | Errno::ENOSYS | Errno::EPERM => Ok(0),
        errno => Err(errno.into()),
    }
}

/// The text of an error without std's " (os error 17)": the words of nix, which are the same with each C library.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => Errno::from_raw(errno).desc().to_owned(),
        None => error.to_string(),
    }
}

/// Makes the internal error `DOING: REASON` of a failed call. For `map_err`.
pub(crate) fn failed<E: Into<io::Error>>(doing: impl Display) -> impl FnOnce(E) -> Error {
    failed_with(Code::INTERNAL, doing)
}

/// `failed` with another code.
pub(crate) fn failed_with<E: Into<io::Error>>(
    code: Code,
    doing: impl Display,
) -> impl FnOnce(E) -> Error {
    move |error| Error::new(code, format_args!("{doing}: {}", reason(&error.into())))
}

/// Attaches an open /dev/net/tun to the interface of that name, and creates the interface if it does not exist.
pub fn tun_set_name(tun: BorrowedFd<'_>, name: &str, flags: u16) -> io::Result<()> {
    let mut request = interface_request(name, flags)?;
    // SAFETY: the kernel reads and writes one ifreq, which is as long as the array, and the array outlives the call.
    let status = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    Ok(Errno::result(status).map(drop)?)
}

/// `tun_set_name` in an SELinux context, which the interface keeps. The context of this process does not change.
///
/// A child process changes its context and creates the interface. A thread cannot: the kernel refuses a new context to a
/// process with several threads, unless the policy bounds it by the old one. Source: setcon(3).
pub fn tun_set_name_in_context(
    tun: BorrowedFd<'_>,
    name: &str,
    flags: u16,
    context: &str,
) -> io::Result<()> {
    let mut request = interface_request(name, flags)?;
    // SAFETY: this process may have other threads. So the child calls only async-signal-safe functions, on memory from
    // before the fork. It never returns, so no destructor and no exit handler runs twice.
    let pid = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let file = libc::open(OWN_CONTEXT.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            let is_done = file >= 0
                && libc::write(file, context.as_ptr().cast(), context.len()) >= 0
                && libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) >= 0;
            libc::_exit(if is_done { 0 } else { Errno::last_raw() });
        }
        Errno::result(pid)?
    };
    errno_of_child(Pid::from_raw(pid))
}

/// Waits for a child that exits with 0 or an errno. Returns the errno as an error.
fn errno_of_child(pid: Pid) -> io::Result<()> {
    loop {
        match waitpid(pid, None) {
            Ok(WaitStatus::Exited(_, 0)) => return Ok(()),
            Ok(WaitStatus::Exited(_, errno)) => return Err(io::Error::from_raw_os_error(errno)),
            Ok(_) => return Err(Errno::EINTR.into()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A struct ifreq: a name, and a union of which the flags are a member. Source: netdevice(7).
fn interface_request(name: &str, flags: u16) -> io::Result<[u8; size_of::<libc::ifreq>()]> {
    let mut request = [0; size_of::<libc::ifreq>()];
    // The last byte of the name stays NUL.
    let field = request.get_mut(..name.len()).filter(|_| name.len() < libc::IFNAMSIZ);
    field.ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(name.as_bytes());
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
    Ok(request)
}

/// Sends a request to an open /dev/net/tun that is attached to an interface.
pub fn tun_set(tun: BorrowedFd<'_>, request: TunRequest, value: u32) -> io::Result<()> {
    // SAFETY: every `TunRequest` takes a number, of the width of a pointer, and touches no memory.
    let status = unsafe {
        libc::ioctl(tun.as_raw_fd(), request as u32 as libc::Ioctl, libc::c_ulong::from(value))
    };
    Ok(Errno::result(status).map(drop)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn proc_and_the_auxiliary_vector_name_the_same_executable() {
        for path in [execve_path().unwrap(), OsStr::new("/proc/self/exe")] {
            assert!(is_own_executable(&std::fs::metadata(path).unwrap()), "{path:?}");
        }
        assert!(!is_own_executable(&std::fs::metadata("/dev/null").unwrap()));
    }

    #[test]
    fn a_child_fails_with_the_errno_of_the_kernel_while_other_threads_allocate() {
        let is_done = std::sync::atomic::AtomicBool::new(false);
        let no_tun = File::open("/dev/null").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::black_box(vec![1_u8; 5000]);
                    }
                });
            }
            for _ in 0..50 {
                let result = tun_set_name_in_context(no_tun.as_fd(), "tap0", 0, "no context");
                // Without SELinux the context is refused, and /dev/null is no tun anyway.
                assert!(result.unwrap_err().raw_os_error().is_some());
            }
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let error = tun_set_name_in_context(no_tun.as_fd(), "a-name-too-long-", 0, "").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes::<16>().unwrap(), random_bytes::<16>().unwrap());
    }

    #[test]
    fn reason_is_the_bare_text() {
        assert_eq!(reason(&io::Error::from_raw_os_error(libc::EEXIST)), "File exists");
        assert_eq!(reason(&io::Error::other("it is closed")), "it is closed");
    }
}
