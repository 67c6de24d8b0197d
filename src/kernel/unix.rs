//! Unix stream sockets with a deadline, and a datagram to the service manager. This module does not interpret the data.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, socket,
};

use crate::fault;
use crate::kernel::sys;

/// The longest timeout of one system call, because a signal right before the call does not end it. `child` has the same value.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The address of a listening socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Endpoint {
    Path(PathBuf),
    /// In the abstract namespace, without the leading NUL.
    Abstract(Vec<u8>),
}

/// A stream. Reads and writes fail with `WouldBlock` after the deadline, and at once after an interrupt: see
/// `sys::catch_interrupts`.
pub struct Stream {
    pub(super) stream: UnixStream,
    pub deadline: Instant,
}

impl Stream {
    /// Connects to a listener. connect(2) waits if the queue of the listener is full, so the timeout is set before it.
    pub fn connect(endpoint: &Endpoint, deadline: Instant) -> io::Result<Self> {
        let address = match endpoint {
            Endpoint::Path(path) => UnixAddr::new(path),
            Endpoint::Abstract(name) => UnixAddr::new_abstract(name),
        }?;
        let flags = SockFlag::SOCK_CLOEXEC;
        let stream: UnixStream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?.into();
        let connected = Self { stream, deadline };
        fault::kernel_request()?;
        connected.repeat(UnixStream::set_write_timeout, |stream| {
            Ok(connect(stream.as_raw_fd(), &address)?)
        })?;
        Ok(connected)
    }

    /// A connection that a listener accepted.
    pub(super) fn accepted(stream: UnixStream, deadline: Instant) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        Ok(Self { stream, deadline })
    }

    /// Whether the peer has closed the connection. Does not wait.
    pub fn is_closed(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        matches!(recv(self.stream.as_raw_fd(), &mut [0], flags), Ok(0))
    }

    /// Repeats a call until it does not end by a timeout or a signal. `set_timeout` sets the timeout of each call.
    fn repeat<T>(
        &self,
        set_timeout: impl Fn(&UnixStream, Option<Duration>) -> io::Result<()>,
        mut call: impl FnMut(&UnixStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            sys::fail_if_interrupted()?;
            set_timeout(&self.stream, Some(self.left()?.min(WAIT_MAX)))?;
            match call(&self.stream) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                done => return done,
            }
        }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::WouldBlock.into()) } else { Ok(left) }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.repeat(UnixStream::set_read_timeout, |mut stream| stream.read(buffer))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        fault::kernel_request()?;
        self.repeat(UnixStream::set_write_timeout, |mut stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Sends a datagram to the service manager. `socket` is the value of NOTIFY_SOCKET: a path, or `@` and a name in the abstract
/// namespace. Source: sd_notify(3).
pub fn notify(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    fault::kernel_request()?;
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(socket),
    }?;
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_with_an_abstract_address_is_notified() {
        let name = format!("cnibox-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        notify(format!("@{name}").as_ref(), b"READY=1").unwrap();
        let mut text = [0; 16];
        let length = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1");
        assert!(notify("/nowhere/notify".as_ref(), b"READY=1").is_err());
    }
}
