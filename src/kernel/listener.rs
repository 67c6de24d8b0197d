//! The listening unix socket of a daemon, and the wait for connections and signals. This module does not interpret the data.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::sockopt::{AcceptConn, PeerCredentials, SockType as TypeOf};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockopt, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::clock;
use crate::kernel::file;
use crate::kernel::sys;
use crate::kernel::unix::{Endpoint, Stream};

/// The number of the first descriptor from the service manager. Source: sd_listen_fds(3).
const LISTEN_FDS_START: i32 = 3;
/// The timeout of the test for another daemon: a `connect` to a listener with a full queue waits.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// A listening socket with a path.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the file that this process created; None for an inherited socket.
    file: Option<(u64, u64)>,
}

/// The signals that end a daemon: SIGTERM, SIGINT and SIGHUP.
pub struct Signals(SignalFd);

/// The event that ended a wait.
pub enum Arrival {
    Connection(Stream),
    /// The daemon has to end.
    Signal,
    Timeout,
}

impl Signals {
    /// Blocks the signals in this thread, and in threads that it starts later. They stay pending until `Listener::wait` reports
    /// them, or another wait for this file.
    pub fn block() -> Result<Self> {
        let mask: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        block_signals(&mask, SfdFlags::SFD_NONBLOCK).map(Self)
    }
}

/// Readable while one of the signals is pending.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks signals in this thread, and returns a file that reports them.
pub(super) fn block_signals(mask: &SigSet, flags: SfdFlags) -> Result<SignalFd> {
    let signals = mask.thread_block();
    signals
        .and_then(|()| SignalFd::with_flags(mask, flags | SfdFlags::SFD_CLOEXEC))
        .map_err(sys::failed("cannot wait for signals"))
}

impl Listener {
    /// Creates the socket with mode 0600, and its directory with mode 0700. A socket file without a listener is replaced.
    /// An existing directory must belong to root, and be writable by root only.
    pub fn create(path: &Path) -> Result<Self> {
        prepare_directory(path)?;
        remove_stale(path)?;
        let create = || {
            fault::kernel_request()?;
            let (kind, flags) =
                (SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
            let socket = socket(AddressFamily::Unix, kind, flags, None)?;
            // bind(2) creates the file with the mode of the socket, so no other user can connect before a chmod.
            fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
            bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
            listen(&socket, Backlog::MAXCONN)?;
            let file = fs::symlink_metadata(path)?;
            let file = Some((file.dev(), file.ino()));
            Ok(Self { socket: socket.into(), path: path.into(), file })
        };
        create().map_err(|error: io::Error| cannot_listen(path, &sys::reason(&error)))
    }

    /// The listening socket from the service manager. `count` is the number of descriptors that it passed: there must be one.
    ///
    /// Source: sd_listen_fds(3). Call it once.
    pub fn inherited(count: u32) -> Result<Self> {
        if count != 1 {
            return Err(Error::config(format_args!(
                "cannot use the sockets of LISTEN_FDS: there are {count}, not exactly one"
            )));
        }
        let refused = |reason: &str| {
            Error::config(format_args!("cannot use the socket of LISTEN_FDS: {reason}"))
        };
        let socket =
            sys::inherited(LISTEN_FDS_START).map_err(|error| refused(&sys::reason(&error)))?;
        let is_stream = matches!(getsockopt(&socket, TypeOf), Ok(SockType::Stream));
        if !is_stream || !matches!(getsockopt(&socket, AcceptConn), Ok(true)) {
            return Err(refused("it is no listening stream socket"));
        }
        let socket = UnixListener::from(socket);
        let address = socket.local_addr().map_err(|error| refused(&sys::reason(&error)))?;
        let Some(path) = address.as_pathname().map(Path::to_owned) else {
            return Err(refused("it has no path"));
        };
        socket.set_nonblocking(true).map_err(|error| refused(&sys::reason(&error)))?;
        Ok(Self { socket, path, file: None })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a connection or a signal. `read_timeout` limits all reads from the connection together.
    pub fn wait(
        &self,
        signals: &Signals,
        timeout: Option<Duration>,
        read_timeout: Duration,
    ) -> Result<Arrival> {
        let path = self.path.display();
        let failed =
            |error| sys::failed_with(Code::IO, format_args!("cannot accept at {path}"))(error);
        let files = [signals.as_fd(), self.socket.as_fd()];
        match clock::readable(&files, timeout).map_err(failed)?[..] {
            [true, _] => return Ok(Arrival::Signal),
            [_, true] => {}
            _ => return Ok(Arrival::Timeout),
        }
        match self.socket.accept() {
            Ok((stream, _)) => {
                let deadline = Instant::now() + read_timeout;
                Stream::accepted(stream, deadline).map(Arrival::Connection).map_err(failed)
            }
            // The peer has closed the connection, or another process with this socket has accepted it.
            Err(error) if has_no_connection(&error) => Ok(Arrival::Timeout),
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes the file of the socket, unless another process owns it: an inherited socket stays for the next start.
    pub fn remove(self) {
        let is_ours = |file: fs::Metadata| Some((file.dev(), file.ino())) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            // If this fails, the next start replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Stream {
    /// Whether the process at the other end runs as root. Source: unix(7), SO_PEERCRED.
    pub fn is_of_root(&self) -> bool {
        getsockopt(&self.stream, PeerCredentials).is_ok_and(|peer| peer.uid() == 0)
    }
}

fn has_no_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted
    )
}

fn cannot_listen(path: &Path, reason: &str) -> Error {
    Error::new(Code::IO, format_args!("cannot listen at {}: {reason}", path.display()))
}

/// Creates the directory of the socket. It must belong to root, because a user who can write to it could replace the socket.
fn prepare_directory(path: &Path) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    let refused = |reason: &str| cannot_listen(path, reason);
    let created = file::make_directory(directory, 0o700);
    let metadata = created.and_then(|()| fs::metadata(directory)).map_err(|error| {
        refused(&format!("cannot create {}: {}", directory.display(), sys::reason(&error)))
    })?;
    if metadata.uid() != 0 {
        return Err(refused(&format!("{} does not belong to root", directory.display())));
    }
    if metadata.mode() & 0o022 != 0 {
        let mode = metadata.mode() & 0o7777;
        return Err(refused(&format!(
            "{} is writable by other users (mode {mode:o})",
            directory.display()
        )));
    }
    Ok(())
}

/// Removes the file of a socket that no process listens at.
fn remove_stale(path: &Path) -> Result<()> {
    let refused = |reason: &str| cannot_listen(path, reason);
    let found = file::found(fs::symlink_metadata(path));
    let Some(found) = found.map_err(|error| refused(&sys::reason(&error)))? else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(refused("a file that is no socket has this name"));
    }
    let deadline = Instant::now() + PROBE_MAX;
    match Stream::connect(&Endpoint::Path(path.into()), deadline) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| refused(&sys::reason(&error)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        _ => Err(refused("another process listens there")),
    }
}

/// Writes a file that all users may read, such as one with the id of this process.
pub fn write_public(path: &Path, content: &str) -> io::Result<()> {
    fault::file_operation()?;
    let file = file::open(path, file::REWRITE | file::CREATE)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    (&file).write_all(content.as_bytes())
}
