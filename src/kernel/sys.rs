//! The few system calls that no safe crate offers. All of the project's unsafe code is here and in `heap`.
#![allow(unsafe_code)]

// The allocator of the shipped build. The others have it for its tests.
#[cfg(any(test, target_env = "musl"))]
mod heap;

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{
    setsockopt,
    sockopt::{SndBuf, SndBufForce},
};
use nix::unistd::{getpid, gettid, write};

use crate::error::{Error, Result};

/// Source: linux/nsfs.h.
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
/// Source: linux/sockios.h.
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// Requests to /dev/net/tun that take a number. Source: linux/if_tun.h.
pub const TUNSETPERSIST: u32 = 0x4004_54cb;
pub const TUNSETOWNER: u32 = 0x4004_54cc;
pub const TUNSETGROUP: u32 = 0x4004_54ce;
const TUNSETIFF: u32 = 0x4004_54ca;

/// Makes `fn run(Vec<OsString>) -> u8` the program: it gets the arguments, and returns the exit code.
///
/// In place of std's own entry, which costs 19 system calls and 110 KB, for what we do without: a message when the stack
/// overflows, and ignoring SIGPIPE (see `ignore_broken_pipes`). Standard output has to be flushed.
#[macro_export]
macro_rules! entry_point {
    ($run:path) => {
        #[allow(unsafe_code)]
        // SAFETY: the C library calls the one function of this name, with these arguments.
        #[unsafe(no_mangle)]
        extern "C" fn main(
            count: std::ffi::c_int,
            values: *const *const std::ffi::c_char,
        ) -> std::ffi::c_int {
            // SAFETY: they are what the C library gave.
            let arguments = unsafe { $crate::kernel::sys::arguments(count, values) };
            $run(arguments).into()
        }
    };
}

/// The arguments of the program.
///
/// # Safety
///
/// They are those that the C library gives to `main`.
pub unsafe fn arguments(count: c_int, values: *const *const c_char) -> Vec<OsString> {
    let count = usize::try_from(count).unwrap_or_default();
    let argument = |index| {
        // SAFETY: the caller passes what the C library gave: `count` pointers to NUL-terminated strings, which last as long as the process.
        let argument = unsafe { CStr::from_ptr(*values.add(index)) };
        OsStr::from_bytes(argument.to_bytes()).to_owned()
    };
    (0..count).map(argument).collect()
}

/// Lets a write to a pipe that nobody reads fail, rather than end this process. Programs started later do not inherit it.
pub fn ignore_broken_pipes() {
    // SAFETY: no handler is installed, so nothing can run at the wrong time.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }; // it cannot fail for this signal
}

/// Writes everything, in one system call where the kernel takes it so: std's standard output cuts text at its last line.
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

/// Writes a line to stderr. One that cannot be written is dropped: no call depends on it.
pub fn warn(line: &str) {
    let _ = write_all(io::stderr().as_fd(), format!("{line}\n").as_bytes());
}

/// Ends the process by SIGABRT if this is its main thread, else this thread alone, without any clean-up.
pub fn end_thread() -> ! {
    if gettid() == getpid() {
        std::process::abort();
    }
    loop {
        // SAFETY: the thread never runs again. What it owns stays where it is.
        unsafe { libc::syscall(libc::SYS_exit, 1) };
    }
}

/// Device and inode of the executable that is running; `None` where that cannot be found out.
pub fn own_executable() -> Option<(u64, u64)> {
    let metadata = match std::fs::metadata("/proc/self/exe") {
        Ok(metadata) => metadata,
        // Without /proc there is still the path that we were started by.
        Err(_) => std::fs::metadata(started_by()?).ok()?,
    };
    Some((metadata.dev(), metadata.ino()))
}

/// The path that was given to execve(2).
fn started_by() -> Option<&'static OsStr> {
    // SAFETY: getauxval only reads the auxiliary vector, which is there for as long as the process.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) };
    if address == 0 {
        return None;
    }
    // SAFETY: the kernel puts a NUL-terminated string at AT_EXECFN's address, above the stack; nobody writes to it.
    let path = unsafe { CStr::from_ptr(address as *const libc::c_char) };
    Some(OsStr::from_bytes(path.to_bytes()))
}

/// Whether a namespace file is one of a network, rather than of mounts or users. True where the kernel cannot tell.
pub fn is_network_namespace(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the request takes no argument and returns a number.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    // Before Linux 4.11 there is no such request.
    kind < 0 || kind == libc::CLONE_NEWNET
}

/// The network namespace that a socket lives in. Needs CAP_NET_ADMIN there.
pub fn namespace_of(socket: &impl AsRawFd) -> io::Result<File> {
    // SAFETY: the request takes no argument and returns a new descriptor.
    let file = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nobody else has that descriptor yet. The kernel makes it with FD_CLOEXEC.
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
    // getrandom would block early after boot, before the pool is ready. The device never does, and names and
    // addresses only have to differ from others, not to be secrets.
    File::open("/dev/urandom").and_then(|mut device| device.read_exact(&mut bytes)).map_err(
        |error| Error::internal(format!("cannot read random bytes: {}", reason(&error))),
    )?;
    Ok(bytes)
}

/// Asks a socket for an option whose question and answer share a buffer: iptables-legacy's are so.
pub fn socket_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    answer: &mut [u8],
) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(answer.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel reads and writes at most `length` bytes, all of the buffer, which outlives the call.
    let status = unsafe {
        let answer = answer.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, answer, &mut length)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The text of an error alone: std's appends " (os error 17)".
pub(crate) fn reason(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |errno| errno_text(errno).into())
}

/// The text of an error number as glibc has it, which is what people search for. Not asked of the C library, since musl
/// has others.
pub(crate) fn errno_text(errno: i32) -> &'static str {
    match Errno::from_raw(errno) {
        Errno::EIO => "Input/output error",
        Errno::EOPNOTSUPP => "Operation not supported",
        Errno::ERANGE => "Numerical result out of range",
        other => other.desc(),
    }
}

/// Connects an open /dev/net/tun with the interface of that name, and makes it if there is none.
pub fn tun_set_name(tun: BorrowedFd<'_>, name: &str, flags: u16) -> io::Result<()> {
    /// struct ifreq: a name, and a union of which the flags are a member.
    const BYTES: usize = size_of::<libc::ifreq>();

    let mut request = [0; BYTES];
    // The last byte of the name's place stays a NUL.
    let place = request.get_mut(..name.len()).filter(|_| name.len() < libc::IFNAMSIZ);
    place.ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(name.as_bytes());
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the kernel reads and writes one ifreq, which is as long as the array, and the array outlives the call.
    let status =
        unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF as libc::Ioctl, request.as_mut_ptr()) };
    Ok(Errno::result(status).map(drop)?)
}

/// One of the requests above.
pub fn tun_set(tun: BorrowedFd<'_>, request: u32, value: u32) -> io::Result<()> {
    // SAFETY: these requests take a number, of the width of a pointer, and touch no memory.
    let status =
        unsafe { libc::ioctl(tun.as_raw_fd(), request as libc::Ioctl, libc::c_ulong::from(value)) };
    Ok(Errno::result(status).map(drop)?)
}

/// Runs the closure in a child, for what a process can do to itself only once. What it fails with has to have come from
/// the kernel.
pub fn in_child(run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: this process has one thread, so that the child finds no lock that is taken for ever.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let errno = run().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        // SAFETY: it never returns. What the parent wants done at its end is not done here.
        unsafe { libc::_exit(errno) }
    }
    let pid = Errno::result(pid)?;
    let mut status = 0;
    loop {
        // SAFETY: the pointer is that of a variable that outlives the call.
        match Errno::result(unsafe { libc::waitpid(pid, &mut status, 0) }) {
            Err(Errno::EINTR) => {}
            result => break result.map(drop)?,
        };
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, errno) => Err(io::Error::from_raw_os_error(errno)),
        (false, _) => Err(Errno::EINTR.into()),
    }
}

/// Lets a socket take a datagram of that length, whatever the limit of the system is; where we are root only of a user
/// namespace, as far as it allows (net.core.wmem_max, twice).
pub fn widen_send_buffer(socket: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    // SAFETY: the socket is borrowed for as long as the descriptor is.
    let fd = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    // The kernel keeps some bytes for itself.
    let bytes = bytes + 4096;
    Ok(setsockopt(&fd, SndBufForce, &bytes).or_else(|_| setsockopt(&fd, SndBuf, &bytes))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_and_the_auxiliary_vector_name_the_same_executable() {
        let by_path = std::fs::metadata(started_by().unwrap()).unwrap();
        assert_eq!(own_executable(), Some((by_path.dev(), by_path.ino())));
    }

    #[test]
    fn a_child_returns_what_it_failed_with() {
        assert!(in_child(|| Ok(())).is_ok());
        let error = in_child(|| Err(io::Error::from_raw_os_error(libc::EBUSY))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes::<16>().unwrap(), random_bytes::<16>().unwrap());
    }

    #[test]
    fn reason_is_the_bare_text() {
        assert_eq!(reason(&io::Error::from_raw_os_error(libc::EEXIST)), "File exists");
        assert_eq!(errno_text(libc::EOPNOTSUPP), "Operation not supported");
    }
}
