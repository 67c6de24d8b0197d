//! Network namespaces: opening, comparing, entering and locking them.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::flock::{self, Mode};
use crate::kernel::{file, sys};

/// An open network namespace, and the namespace that `run` returns to. A clone costs no system call.
#[derive(Clone, Debug)]
pub struct NetNs {
    file: Arc<File>,
    path: PathBuf,
    /// The namespace of the threads that use this value.
    origin: Arc<File>,
}

/// A lock on a network namespace. Dropping it releases the lock, and so does the end of the process. flock(2) belongs to
/// an open file, so a `NetNs` holds one lock at a time.
#[derive(Debug)]
pub struct Lock {
    netns: NetNs,
}

impl NetNs {
    /// The namespace of the calling thread.
    pub fn own() -> Result<Self> {
        let (family, kind) = (AddressFamily::Unix, SockType::Datagram);
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None);
        let file = socket.map_err(io::Error::from).and_then(|socket| sys::namespace_of(&socket));
        Self::of_thread(file)
    }

    /// The namespace of a socket, for a thread in the same namespace.
    pub fn of_socket(socket: &impl AsFd) -> Result<Self> {
        Self::of_thread(sys::namespace_of(socket))
    }

    /// `file` is the namespace of a socket. Before Linux 4.10, and without CAP_NET_ADMIN, the kernel does not return it. Then
    /// /proc is read, which takes twice as long.
    fn of_thread(file: io::Result<File>) -> Result<Self> {
        let file = file
            .or_else(|_| File::open(OWN))
            .map_err(|error| cannot_open(Path::new(OWN), &sys::reason(&error)))?;
        let file = Arc::new(file);
        Ok(Self { origin: Arc::clone(&file), file, path: OWN.into() })
    }

    /// Opens another namespace, which has to exist.
    pub fn open(&self, path: &Path) -> Result<Self> {
        match self.examine(file::open_any(path, file::READ, 0), path) {
            Ok(found) => found.map_err(|reason| cannot_open(path, reason)),
            Err(error) => Err(cannot_open(path, &sys::reason(&error))),
        }
    }

    /// Opens a namespace that may have ended. `None` also for the plain file that an unmounted namespace leaves.
    pub fn open_if_exists(&self, path: &Path) -> io::Result<Option<Self>> {
        self.of_file(file::open_any(path, file::READ, 0), path)
    }

    /// Whether a path leads to a network namespace.
    pub fn is_at(&self, path: &Path) -> Result<bool> {
        let found = self.open_if_exists(path);
        found.map(|netns| netns.is_some()).map_err(|error| cannot_open(path, &sys::reason(&error)))
    }

    /// Creates a namespace without a mount. Its path, below /proc, is valid as long as this value.
    pub fn make(&self) -> Result<Self> {
        let file = self.run(|| {
            let made = unshare(CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
            made.and_then(|()| File::open(OWN))
                .map_err(sys::failed("cannot create a network namespace"))
        })?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let origin = Arc::clone(&self.origin);
        Ok(Self { file: Arc::new(file), path: path.into(), origin })
    }

    /// This namespace, which `run` enters from another one and returns to that: the thread has moved to it.
    #[cfg(feature = "tool")]
    pub fn entered_from(self, origin: &Self) -> Self {
        Self { origin: Arc::clone(&origin.file), ..self }
    }

    /// Whether this and the other value are the same namespace.
    pub fn is(&self, other: &Self) -> Result<bool> {
        Ok(self.identity()? == other.identity()?)
    }

    /// The path at which the namespace was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Enters the namespace, runs the closure, and returns to `origin`, which has to be the namespace of this thread.
    /// Sockets and child processes of the closure stay in the entered namespace. The closure reads `/proc/thread-self`,
    /// because `/proc/self` shows the namespace of the main thread.
    ///
    /// If the return fails, the thread ends, and the main thread aborts the process: later changes would be made in the
    /// wrong namespace.
    pub fn run<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.enter()?;
        let result = f();
        self.leave();
        result
    }

    #[expect(clippy::disallowed_methods, reason = "this is where namespaces are changed")]
    fn enter(&self) -> Result<()> {
        debug_assert!(
            is_current(&self.origin),
            "the thread is in the namespace that `run` returns to"
        );
        let enter = || Ok(setns(&*self.file, CloneFlags::CLONE_NEWNET)?);
        let entered = fault::kernel_request().and_then(|()| enter());
        entered.map_err(|error| self.failed("enter", error))
    }

    #[expect(clippy::disallowed_methods, reason = "this is where namespaces are changed")]
    fn leave(&self) {
        if let Err(errno) = setns(&*self.origin, CloneFlags::CLONE_NEWNET) {
            sys::warn(format_args!("{}", self.failed("leave", errno.into())));
            sys::end_thread();
        }
    }

    /// Takes a shared lock of the namespace: while it is held, no other process gets an exclusive lock.
    ///
    /// Any process in the namespace can hold the lock for any time. So nothing may depend on the lock: the result is
    /// `None` after the timeout, and the caller continues without it.
    pub fn lock_shared(&self, timeout: Duration) -> Result<Option<Lock>> {
        self.lock(Mode::Shared, timeout)
    }

    /// Takes an exclusive lock of the namespace: no other process has a lock at the same time, not even a process of another
    /// program.
    pub fn lock_exclusive(&self, timeout: Duration) -> Result<Option<Lock>> {
        self.lock(Mode::Exclusive, timeout)
    }

    fn lock(&self, mode: Mode, timeout: Duration) -> Result<Option<Lock>> {
        Ok(self.try_lock(mode, timeout)?.then(|| Lock { netns: self.clone() }))
    }

    /// Locks the namespace, or changes the mode of its lock. False after the timeout.
    fn try_lock(&self, mode: Mode, timeout: Duration) -> Result<bool> {
        flock::lock(&self.file, mode, timeout).map_err(|error| self.failed("lock", error))
    }

    /// The device and the inode of the namespace. After its end, another namespace can get the same numbers.
    pub fn identity(&self) -> Result<(u64, u64)> {
        let metadata = self.file.metadata().map_err(|error| self.failed("examine", error))?;
        Ok((metadata.dev(), metadata.ino()))
    }

    fn failed(&self, verb: &str, error: io::Error) -> Error {
        let path = self.path.display();
        sys::failed(format_args!("cannot {verb} network namespace {path}"))(error)
    }

    /// The namespace of a file that was opened at a path. `None` if there is no file, or it is no network namespace.
    pub(super) fn of_file(&self, file: io::Result<File>, path: &Path) -> io::Result<Option<Self>> {
        Ok(self.examine(file, path)?.ok())
    }

    /// The namespace of a file. The inner error is the reason why there is none.
    fn examine(
        &self,
        file: io::Result<File>,
        path: &Path,
    ) -> io::Result<Result<Self, &'static str>> {
        const NO_NAMESPACE: &str = "not a network namespace";
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                return match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::ENOENT | Errno::ENOTDIR) => Ok(Err(Errno::ENOENT.desc())),
                    // Sockets, and device files without a device.
                    Some(Errno::ENXIO | Errno::ENODEV) => Ok(Err(NO_NAMESPACE)),
                    _ => Err(error),
                };
            }
        };
        if fstatfs(&file)?.filesystem_type() != NSFS_MAGIC
            || !sys::is_network_namespace(file.as_fd())
        {
            return Ok(Err(NO_NAMESPACE));
        }
        let origin = Arc::clone(&self.origin);
        Ok(Ok(Self { file: Arc::new(file), path: path.into(), origin }))
    }
}

impl Lock {
    /// Makes the lock exclusive if no other process holds it; false if another process holds a lock. In both cases another
    /// process may have had an exclusive lock meanwhile, so the caller must read again what it read before.
    pub fn try_make_exclusive(&self) -> Result<bool> {
        self.make_exclusive(Duration::ZERO)
    }

    /// Makes the lock exclusive as soon as no other process holds it; false after the timeout.
    pub fn make_exclusive(&self, timeout: Duration) -> Result<bool> {
        // flock(2) releases the shared lock first, so two processes that wait for each other both get the lock.
        self.netns.try_lock(Mode::Exclusive, timeout)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If this fails, the kernel releases the lock with the last descriptor.
        let _ = flock::unlock(&self.netns.file);
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn is_current(file: &File) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::metadata(OWN)) {
        (Ok(known), Ok(real)) => identity(known) == identity(real),
        // Without /proc, the namespace of the thread is unknown.
        _ => true,
    }
}

/// The namespace of the current thread. `/proc/self/ns/net` is the namespace of the main thread.
const OWN: &str = "/proc/thread-self/ns/net";

fn cannot_open(path: &Path, reason: &str) -> Error {
    Error::internal(format_args!("cannot open network namespace {}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_the_same_by_any_path() {
        let own = NetNs::own().unwrap();
        let same = own.open(Path::new("/proc/self/ns/net")).unwrap();
        assert_eq!(own.is(&same), Ok(true));
        let other = another();
        assert_eq!(own.is(&other), Ok(false));
    }

    #[test]
    fn a_path_without_a_file_is_no_namespace() {
        let own = NetNs::own().unwrap();
        for path in ["/nowhere/netns", "/proc/self/exe/x", ""] {
            let path = Path::new(path);
            assert!(own.open_if_exists(path).unwrap().is_none(), "{path:?}");
            let error = own.open(path).unwrap_err();
            assert!(error.msg.ends_with(": No such file or directory"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_no_namespace_counts_as_absent() {
        let own = NetNs::own().unwrap();
        let fifo = std::env::temp_dir().join(format!("cnibox-fifo-{}", std::process::id()));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [Path::new("/"), Path::new("/dev/null"), &fifo] {
            assert!(own.open_if_exists(path).unwrap().is_none(), "{path:?}");
            assert!(own.open(path).unwrap_err().msg.ends_with(": not a network namespace"));
        }
        std::fs::remove_file(fifo).unwrap();
    }

    /// The UTS namespace, in place of another network namespace.
    fn another() -> NetNs {
        let path = Path::new("/proc/self/ns/uts");
        let file = Arc::new(File::open(path).unwrap());
        NetNs { origin: Arc::clone(&file), file, path: path.into() }
    }

    #[test]
    fn a_lock_is_exclusive_only_if_it_has_no_other_holder() {
        let lock = || another().lock_shared(Duration::ZERO).unwrap();
        let (one, two) = (lock().unwrap(), lock().unwrap());
        assert!(!one.try_make_exclusive().unwrap());
        drop(two);
        assert!(one.try_make_exclusive().unwrap());
        assert!(lock().is_none());
        drop(one);
        let one = another().lock_exclusive(Duration::ZERO).unwrap();
        assert!(one.is_some() && lock().is_none());
        assert!(another().lock_exclusive(Duration::ZERO).unwrap().is_none());
    }

    #[test]
    fn two_holders_that_wait_for_an_exclusive_lock_both_get_it() {
        let timeout = Duration::from_secs(60);
        let locks = [(); 2].map(|()| another().lock_shared(timeout).unwrap().unwrap());
        std::thread::scope(|scope| {
            let make_exclusive = |lock: Lock| assert!(lock.make_exclusive(timeout).unwrap());
            let threads = locks.map(|lock| scope.spawn(move || make_exclusive(lock)));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
