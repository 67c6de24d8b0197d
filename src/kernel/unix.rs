//! Unix stream sockets with a deadline. It does not interpret the data.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::fault;

/// The name of a socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Endpoint {
    Path(PathBuf),
    /// In the abstract namespace, without the leading NUL.
    Abstract(Vec<u8>),
}

/// A stream. Reads and writes fail with `WouldBlock` after the deadline.
pub struct Stream {
    stream: UnixStream,
    pub deadline: Instant,
}

impl Stream {
    /// connect(2) waits if the queue of the listener is full, so the timeout is set before it.
    pub fn connect(endpoint: &Endpoint, deadline: Instant) -> io::Result<Self> {
        let address = match endpoint {
            Endpoint::Path(path) => UnixAddr::new(path),
            Endpoint::Abstract(name) => UnixAddr::new_abstract(name),
        }?;
        let flags = SockFlag::SOCK_CLOEXEC;
        let stream: UnixStream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?.into();
        let connected = Self { stream, deadline };
        connected.stream.set_write_timeout(Some(connected.left()?))?;
        fault::kernel_request()?;
        connect(connected.stream.as_raw_fd(), &address)?;
        Ok(connected)
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::WouldBlock.into()) } else { Ok(left) }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        fault::kernel_request()?;
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
