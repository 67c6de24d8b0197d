//! Addresses, options and system calls of packet and netlink sockets that nix lacks.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::sys::socket::{LinkAddr, SockaddrLike, setsockopt};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};

sockopt_impl!(
    /// The kernel leaves the refused request out of its error messages.
    CapAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, bool
);
sockopt_impl!(
    /// The socket gets the messages of all namespaces that have an id in its namespace.
    ListenAllNsid, SetOnly, libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID, bool
);
sockopt_impl!(
    /// A number of the namespace of the socket.
    NetnsCookie, GetOnly, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, u64
);
sockopt_impl!(AttachFilter, SetOnly, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, libc::sock_fprog);

/// The descriptor of a socket that has no other safe way to it.
pub fn descriptor_of(socket: &impl AsRawFd) -> BorrowedFd<'_> {
    // SAFETY: the owner of the open descriptor is borrowed as long as the descriptor.
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}

/// The broadcast address of a link, with an EtherType.
pub fn link_address(index: u32, ethertype: u16) -> io::Result<LinkAddr> {
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(|_| Errno::EAFNOSUPPORT)?,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: i32::try_from(index).map_err(|_| Errno::ENODEV)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    };
    // SAFETY: the address is a whole sockaddr_ll, as its family says.
    let address = unsafe { LinkAddr::from_raw(ptr::from_ref(&address).cast(), None) };
    Ok(address.ok_or(Errno::EAFNOSUPPORT)?)
}

/// Attaches a classic BPF program: the socket gets only the datagrams for which the program returns more than 0.
pub fn attach_filter(socket: &impl AsFd, program: &[libc::sock_filter]) -> io::Result<()> {
    // The kernel only reads the program, during the call.
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    Ok(setsockopt(socket, AttachFilter, &program)?)
}

/// Receives a netlink datagram into the capacity of a buffer, without waiting. Returns the length of the datagram; if that is
/// more than the capacity, the end of the datagram is lost. `None` if a process sent it.
///
/// Only the kernel sends from port 0: the kernel binds the socket of a process to another port before it sends.
pub fn receive_from_kernel(
    socket: &impl AsFd,
    datagram: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    datagram.clear();
    let room = datagram.spare_capacity_mut();
    // SAFETY: zero bytes are a valid address.
    let mut sender: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let mut sender_bytes = libc::socklen_t::try_from(size_of_val(&sender)).unwrap_or_default();
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the kernel writes at most `room.len()` bytes there, and at most `sender_bytes` bytes of the address.
    let length = unsafe {
        let (room_at, address) = (room.as_mut_ptr().cast(), (&raw mut sender).cast());
        let bytes = &raw mut sender_bytes;
        libc::recvfrom(socket.as_fd().as_raw_fd(), room_at, room.len(), flags, address, bytes)
    };
    let length = Errno::result(length)?.unsigned_abs();
    let written = length.min(room.len());
    // SAFETY: the kernel has written these bytes.
    unsafe { datagram.set_len(written) };
    let is_of_kernel = sender_bytes as usize == size_of_val(&sender) && sender.nl_pid == 0;
    Ok(is_of_kernel.then_some(length))
}

/// The bytes that a socket has accepted and the kernel has not sent yet, with the kernel's own overhead. A datagram that
/// waits for the answer to an ARP request counts.
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: c_int = 0;
    // SAFETY: the request writes one number, which outlives the call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or_default())
}
