//! System calls of packet and netlink sockets that nix lacks: with addresses of links, filters, senders and control messages.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;

/// Binds a packet socket to a link and to an EtherType.
pub fn bind_to_link(socket: BorrowedFd<'_>, index: u32, ethertype: u16) -> io::Result<()> {
    let (address, length) = link_address(index, ethertype)?;
    // SAFETY: the kernel reads `length` bytes of the address, which outlives the call.
    let status = unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), length) };
    Ok(Errno::result(status).map(drop)?)
}

/// Sends a frame through a link to the broadcast address. The kernel adds the header of the link.
pub fn send_to_link(
    socket: BorrowedFd<'_>,
    index: u32,
    ethertype: u16,
    frame: &[u8],
) -> io::Result<()> {
    let (address, length) = link_address(index, ethertype)?;
    // SAFETY: the kernel reads the bytes of the frame and of the address, which outlive the call.
    let sent = unsafe {
        let address = ptr::from_ref(&address).cast();
        libc::sendto(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, address, length)
    };
    Ok(Errno::result(sent).map(drop)?)
}

fn link_address(index: u32, ethertype: u16) -> io::Result<(libc::sockaddr_ll, libc::socklen_t)> {
    let family = u16::try_from(libc::AF_PACKET).map_err(|_| Errno::EAFNOSUPPORT)?;
    let address = libc::sockaddr_ll {
        sll_family: family,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: i32::try_from(index).map_err(|_| Errno::ENODEV)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    };
    let length = libc::socklen_t::try_from(size_of_val(&address)).map_err(|_| Errno::EINVAL)?;
    Ok((address, length))
}

/// Sets a socket option whose value is a number.
pub fn set_socket_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: c_int,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel reads one number, which outlives the call.
    let status = unsafe {
        let value = ptr::from_ref(&value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, option, value, length)
    };
    Ok(Errno::result(status).map(drop)?)
}

/// Attaches a classic BPF program: the socket gets only the datagrams for which the program returns more than 0.
pub fn attach_filter(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    let length = libc::socklen_t::try_from(size_of_val(&program)).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel only reads the program, `len` instructions, which outlive the call.
    let status = unsafe {
        let program = ptr::from_ref(&program).cast();
        let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
        libc::setsockopt(socket.as_raw_fd(), level, option, program, length)
    };
    Ok(Errno::result(status).map(drop)?)
}

/// Receives a netlink datagram into the capacity of a buffer, without waiting. Returns the length of the datagram; if that is
/// more than the capacity, the end of the datagram is lost. `None` if a process sent it.
pub fn receive_from_kernel(
    socket: &impl AsRawFd,
    datagram: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    datagram.clear();
    let room = datagram.spare_capacity_mut();
    let (mut sender, mut sender_bytes) = empty_address();
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the kernel writes at most `room.len()` bytes there, and at most `sender_bytes` bytes of the address.
    let length = unsafe {
        let (room_at, address) = (room.as_mut_ptr().cast(), (&raw mut sender).cast());
        libc::recvfrom(
            socket.as_raw_fd(),
            room_at,
            room.len(),
            flags,
            address,
            &raw mut sender_bytes,
        )
    };
    let length = Errno::result(length)?.unsigned_abs();
    let written = length.min(room.len());
    // SAFETY: the kernel has written these bytes.
    unsafe { datagram.set_len(written) };
    Ok(is_kernel(&sender, sender_bytes).then_some(length))
}

/// An empty netlink address for the kernel to write the sender to, and its length.
fn empty_address() -> (libc::sockaddr_nl, libc::socklen_t) {
    // SAFETY: zero bytes are a valid address.
    let sender: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let length = libc::socklen_t::try_from(size_of_val(&sender)).unwrap_or_default();
    (sender, length)
}

/// Whether the kernel sent a datagram with this sender. Only the kernel sends from port 0: the kernel binds the socket of a
/// process to another port before it sends.
fn is_kernel(sender: &libc::sockaddr_nl, length: libc::socklen_t) -> bool {
    length as usize == size_of_val(sender) && sender.nl_pid == 0
}

/// The bytes that a socket has accepted and the kernel has not sent yet, with the kernel's own overhead. A datagram that
/// waits for the answer to an ARP request counts.
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: c_int = 0;
    // SAFETY: the request writes one number, which outlives the call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or_default())
}
