//! Network namespaces: opening, comparing, entering and locking them. Knows nothing of what is inside.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::statfs::{NSFS_MAGIC, PROC_SUPER_MAGIC, fstatfs};

use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::flock::{self, Mode};
use crate::kernel::rtnl::Rtnl;
use crate::kernel::sys;

/// An open network namespace, and the one that `run` goes back to. Cloning it costs no system call.
#[derive(Clone, Debug)]
pub struct NetNs {
    file: Arc<File>,
    path: PathBuf,
    /// The namespace of the threads that use this value.
    home: Arc<File>,
}

/// A lock on a network namespace; given back when dropped, and by the kernel when the process dies. flock(2) belongs to
/// what open(2) made, so a `NetNs` holds one lock at a time.
#[derive(Debug)]
pub struct Lock {
    netns: NetNs,
}

impl NetNs {
    /// The namespace that the calling thread is in.
    pub fn own() -> Result<Self> {
        let (family, kind) = (AddressFamily::Unix, SockType::Datagram);
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None);
        let file = socket.map_err(io::Error::from).and_then(|socket| sys::namespace_of(&socket));
        Self::at_home(file)
    }

    /// The namespace that a socket lives in, for a thread that lives there, too.
    pub(super) fn of_socket(socket: &impl AsRawFd) -> Result<Self> {
        Self::at_home(sys::namespace_of(socket))
    }

    /// Before Linux 4.10, and without CAP_NET_ADMIN, no socket tells its namespace. /proc does, for twice the time.
    fn at_home(file: io::Result<File>) -> Result<Self> {
        let file = file.or_else(|_| File::open(OWN)).map_err(|error| {
            Error::internal(format!("{}: {}", cannot_open(Path::new(OWN)), sys::reason(&error)))
        })?;
        let file = Arc::new(file);
        Ok(Self { home: Arc::clone(&file), file, path: OWN.into() })
    }

    /// Opens another namespace, which has to be there.
    pub fn open(&self, path: &Path) -> Result<Self> {
        match self.find(path)? {
            Found::Namespace(netns) => Ok(netns),
            // The text is in lower case since runtimes look for it in this form.
            Found::Nothing => {
                Err(Error::internal(format!("{}: no such file or directory", cannot_open(path))))
            }
            Found::SomethingElse => {
                Err(Error::internal(format!("{}: this is not a namespace", cannot_open(path))))
            }
        }
    }

    /// Opens a namespace that may be gone: `None` also for what a removed bind mount leaves behind, a plain file.
    pub fn open_if_exists(&self, path: &Path) -> Result<Option<Self>> {
        match self.find(path)? {
            Found::Namespace(netns) => Ok(Some(netns)),
            Found::Nothing | Found::SomethingElse => Ok(None),
        }
    }

    /// Makes a namespace without a name. Its path holds as long as this value.
    pub fn make(&self) -> Result<Self> {
        let file = self.run(|| {
            let made = unshare(CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
            made.and_then(|()| File::open(OWN)).map_err(|error| {
                Error::internal(format!(
                    "cannot create a network namespace: {}",
                    sys::reason(&error)
                ))
            })
        })?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let home = Arc::clone(&self.home);
        Ok(Self { file: Arc::new(file), path: path.into(), home })
    }

    /// Whether both are the same namespace, whatever their paths.
    pub fn is(&self, other: &Self) -> Result<bool> {
        Ok(self.identity()? == other.identity()?)
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Enters the namespace, runs the closure, and goes back, all on this thread, which has to be at home. What the
    /// closure starts stays there: sockets, and child processes. Inside read `/proc/thread-self`: `/proc/self` shows the
    /// main thread's namespace.
    ///
    /// If the way back fails, the process aborts in its main thread, and only the thread ends in another one: whatever it
    /// did next would happen to the wrong host.
    #[expect(clippy::disallowed_methods, reason = "this is where namespaces are changed")]
    pub fn run<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        debug_assert!(is_current(&self.home), "a thread enters a namespace from its own only");
        let enter = || Ok(setns(&*self.file, CloneFlags::CLONE_NEWNET)?);
        fault::kernel_request().and_then(|()| enter()).map_err(|error| {
            Error::internal(format!("cannot enter {}: {}", self.title(), sys::reason(&error)))
        })?;
        let result = f();
        if let Err(errno) = setns(&*self.home, CloneFlags::CLONE_NEWNET) {
            sys::warn(&format!("cannot leave {}: {}", self.title(), sys::errno_text(errno as i32)));
            sys::end_thread();
        }
        result
    }

    /// A socket that lives in this namespace and can be used from outside.
    pub fn rtnl(&self) -> Result<Rtnl> {
        Ok(self.run(Rtnl::open)?.living_in(self.clone()))
    }

    /// Locks the namespace against `Lock::try_make_exclusive` of others.
    ///
    /// Any process in the namespace can hold the lock, for as long as it likes. So it only ever guards what is better
    /// not done at the same time: `None` after the limit, and the caller goes on without.
    pub fn lock_shared(&self, limit: Duration) -> Result<Option<Lock>> {
        self.lock(Mode::Shared, limit)
    }

    /// The same against everybody, the reference's `sbr` among them.
    pub fn lock_exclusive(&self, limit: Duration) -> Result<Option<Lock>> {
        self.lock(Mode::Exclusive, limit)
    }

    fn lock(&self, mode: Mode, limit: Duration) -> Result<Option<Lock>> {
        Ok(self.try_lock(mode, limit)?.then(|| Lock { netns: self.clone() }))
    }

    /// False when the limit comes first.
    fn try_lock(&self, mode: Mode, limit: Duration) -> Result<bool> {
        flock::lock(&self.file, mode, limit).map_err(|error| {
            let reason = sys::reason(&error);
            Error::internal(format!("cannot lock {}: {reason}", self.title()))
        })
    }

    /// Device and inode. Another namespace can have them when this one has ended.
    pub fn identity(&self) -> Result<(u64, u64)> {
        let metadata = self.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// When the kernel made the inode, in seconds and nanoseconds. A namespace that nothing but a process holds gets a new
    /// inode whenever it is opened.
    pub fn inode_time(&self) -> Result<(i64, i64)> {
        let metadata = self.metadata()?;
        Ok((metadata.ctime(), metadata.ctime_nsec()))
    }

    fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().map_err(|error| {
            Error::internal(format!("cannot examine {}: {}", self.title(), sys::reason(&error)))
        })
    }

    fn title(&self) -> String {
        format!("network namespace {}", self.path.display())
    }

    fn find(&self, path: &Path) -> Result<Found> {
        let failed = |reason: &str| Error::internal(format!("{}: {reason}", cannot_open(path)));
        // Not to wait for a writer, should there be a FIFO in the place.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                return match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::ENOENT | Errno::ENOTDIR) => Ok(Found::Nothing),
                    // Sockets, and device files without a device.
                    Some(Errno::ENXIO | Errno::ENODEV) => Ok(Found::SomethingElse),
                    _ => Err(failed(&sys::reason(&error))),
                };
            }
        };
        let filesystem = fstatfs(&file)
            .map_err(|errno| failed(sys::errno_text(errno as i32)))?
            .filesystem_type();
        // Before Linux 3.19 namespaces were files of /proc.
        if filesystem != NSFS_MAGIC && filesystem != PROC_SUPER_MAGIC {
            return Ok(Found::SomethingElse);
        }
        if !sys::is_network_namespace(file.as_fd()) {
            return Ok(Found::SomethingElse);
        }
        let home = Arc::clone(&self.home);
        Ok(Found::Namespace(Self { file: Arc::new(file), path: path.into(), home }))
    }
}

impl Lock {
    /// Turns the lock into an exclusive one if nobody else has it now; false when somebody does. Either way others may
    /// have had it in between: what was known has to be looked at again.
    pub fn try_make_exclusive(&self) -> Result<bool> {
        self.make_exclusive(Duration::ZERO)
    }

    /// The same, as soon as nobody else has it; false when that takes longer than the limit.
    pub fn make_exclusive(&self, limit: Duration) -> Result<bool> {
        // After the first attempt, ours is given back: two who wait for one another both get their turn.
        self.netns.try_lock(Mode::Exclusive, limit)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The kernel gives it back with the last descriptor at the latest.
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
        // Without /proc it cannot be told.
        _ => true,
    }
}

/// What is at a path.
enum Found {
    Namespace(NetNs),
    Nothing,
    SomethingElse,
}

/// Not `/proc/self`, which shows the main thread's.
const OWN: &str = "/proc/thread-self/ns/net";

fn cannot_open(path: &Path) -> String {
    format!("failed to open netns {path:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_namespace_is_itself_under_any_path() {
        let own = NetNs::own().unwrap();
        let same = own.open(Path::new("/proc/self/ns/net")).unwrap();
        assert_eq!(own.is(&same), Ok(true));
        let other = another();
        assert_eq!(own.is(&other), Ok(false));
    }

    #[test]
    fn absent_paths() {
        let own = NetNs::own().unwrap();
        for path in ["/nowhere/netns", "/proc/self/exe/x", ""] {
            let path = Path::new(path);
            assert!(own.open_if_exists(path).unwrap().is_none(), "{path:?}");
            let error = own.open(path).unwrap_err();
            assert!(error.msg.ends_with(": no such file or directory"), "{error}");
        }
    }

    #[test]
    fn leftovers_are_as_good_as_absent_and_yet_no_namespace() {
        let own = NetNs::own().unwrap();
        let fifo = std::env::temp_dir().join(format!("cnibox-fifo-{}", std::process::id()));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [Path::new("/"), Path::new("/dev/null"), &fifo] {
            assert!(own.open_if_exists(path).unwrap().is_none(), "{path:?}");
            assert!(own.open(path).unwrap_err().msg.ends_with(": this is not a namespace"));
        }
        std::fs::remove_file(fifo).unwrap();
    }

    /// Some other namespace, which not even has to be one of a network.
    fn another() -> NetNs {
        let path = Path::new("/proc/self/ns/uts");
        let file = Arc::new(File::open(path).unwrap());
        NetNs { home: Arc::clone(&file), file, path: path.into() }
    }

    #[test]
    fn a_lock_is_exclusive_only_when_nobody_shares_it() {
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
    fn of_two_that_wait_to_be_alone_both_are() {
        let limit = Duration::from_secs(60);
        let locks = [(); 2].map(|()| another().lock_shared(limit).unwrap().unwrap());
        std::thread::scope(|scope| {
            let alone = |lock: Lock| assert!(lock.make_exclusive(limit).unwrap());
            let threads = locks.map(|lock| scope.spawn(move || alone(lock)));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
