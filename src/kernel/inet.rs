//! UDP sockets of one link of the calling thread's namespace.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, setsockopt, socket, sockopt,
};

use crate::fault;
use crate::kernel::clock;
use crate::kernel::sys::socket::unsent_bytes;

/// The pause between two reads of the number of unsent bytes.
const UNSENT_PAUSE: Duration = Duration::from_millis(2);

/// A non-blocking socket that sends and receives through one link only.
pub struct LinkUdp(UdpSocket);

impl LinkUdp {
    /// Opens a socket that is bound to the link `device` and to `address`. Another socket with the same port may exist.
    pub fn bind(device: &str, address: SocketAddr) -> io::Result<Self> {
        fault::kernel_request()?;
        let family = match address.ip() {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(family, SockType::Datagram, flags, None)?;
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        setsockopt(&socket, sockopt::BindToDevice, &device.into())?;
        match address {
            SocketAddr::V4(address) => bind(socket.as_raw_fd(), &SockaddrIn::from(address))?,
            SocketAddr::V6(address) => bind(socket.as_raw_fd(), &SockaddrIn6::from(address))?,
        }
        Ok(Self(socket.into()))
    }

    pub fn send(&self, payload: &[u8], to: SocketAddr) -> io::Result<()> {
        fault::kernel_request()?;
        self.0.send_to(payload, to).map(drop)
    }

    /// The next datagram and its sender; `None` if no datagram is pending.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<(&'a [u8], IpAddr)>> {
        match self.0.recv_from(buffer) {
            Ok((length, from)) => Ok(Some((&buffer[..length], from.ip()))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Waits until the kernel has sent all datagrams of a socket. A datagram to a neighbor without a known MAC address waits for
/// ARP, and is lost if the link is removed meanwhile. False after the timeout.
pub fn wait_until_sent(socket: &impl AsFd, timeout: Duration) -> io::Result<bool> {
    let end = clock::since_boot() + timeout;
    loop {
        if unsent_bytes(socket.as_fd())? == 0 {
            return Ok(true);
        }
        if clock::since_boot() >= end {
            return Ok(false);
        }
        // The kernel reports no event for an empty send queue.
        clock::readable(&[], Some(UNSENT_PAUSE))?;
    }
}

impl AsFd for LinkUdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
