//! The kernel's numbers of namespaces, and the ends of namespaces and of links in them, without a file in a namespace: an
//! open file would keep the namespace alive.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc::{self, sock_filter};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
};

use super::Rtnl;
use super::consts::{AF_UNSPEC, NLM_F_CREATE};
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::socket::{
    attach_filter, receive_from_kernel_with_control, set_socket_option,
};
use crate::netlink::{self, Requests, attribute, datagram_messages, fixed, u32_of};

/// Attributes (linux/net_namespace.h).
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// NETNSA_NSID_NOT_ASSIGNED; in a request the kernel chooses the number.
const NOT_ASSIGNED: u32 = u32::MAX;

/// struct rtgenmsg, padded.
const GENERAL_HEADER: [u8; 4] = [AF_UNSPEC, 0, 0, 0];

impl Rtnl {
    /// The number of a namespace, as the namespace of this socket knows it. Gives it a number if it has none.
    pub fn number_of(&self, netns: &NetNs) -> Result<u32> {
        if let Some(number) = self.known_number_of(netns)? {
            return Ok(number);
        }
        let mut requests = Requests::new();
        let doing = "cannot number a network namespace".to_owned();
        requests.push(libc::RTM_NEWNSID, NLM_F_CREATE, doing, |attrs| {
            attrs.raw(&GENERAL_HEADER);
            attrs.u32(NETNSA_FD, netns.as_fd().as_raw_fd().cast_unsigned());
            attrs.u32(NETNSA_NSID, NOT_ASSIGNED);
        });
        // Another process was faster.
        requests.tolerate(libc::EEXIST);
        self.change(requests)?;
        self.known_number_of(netns)?.ok_or_else(|| {
            netlink::Error::new("cannot number a network namespace".into(), libc::ENOENT, None)
                .into()
        })
    }

    /// Whether a namespace has this number. A kernel before 5.0 cannot tell, which is an error.
    pub fn has_number(&self, number: u32) -> Result<bool> {
        let mut request = Requests::new();
        let doing = format!("cannot find network namespace {number}");
        request.push(libc::RTM_GETNSID, 0, doing, |attrs| {
            attrs.raw(&GENERAL_HEADER);
            attrs.u32(NETNSA_NSID, number);
        });
        match self.socket.get(request, number_in) {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn known_number_of(&self, netns: &NetNs) -> Result<Option<u32>> {
        let mut request = Requests::new();
        let doing = "cannot read the number of a network namespace".to_owned();
        request.push(libc::RTM_GETNSID, 0, doing, |attrs| {
            attrs.raw(&GENERAL_HEADER);
            attrs.u32(NETNSA_FD, netns.as_fd().as_raw_fd().cast_unsigned());
        });
        let number = self.socket.get(request, number_in)?;
        Ok(number.filter(|number| *number != NOT_ASSIGNED))
    }
}

fn number_in(payload: &[u8]) -> Option<u32> {
    attribute(payload.get(GENERAL_HEADER.len()..)?, NETNSA_NSID).and_then(u32_of)
}

/// The end of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The namespace with this number.
    Namespace(u32),
    /// A link of another namespace: its number, and the index of the link.
    Link(u32, u32),
    /// Events were lost: any object can be gone.
    Unknown,
}

/// Reports the ends of namespaces that have a number, and of links in them.
pub struct Ends {
    socket: OwnedFd,
}

impl Ends {
    /// Needs CAP_NET_BROADCAST.
    pub fn subscribe() -> Result<Self> {
        Self::open().map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let doing = "cannot subscribe to the ends of network namespaces".into();
            netlink::Error::new(doing, errno, None).into()
        })
    }

    fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (family, protocol) = (AddressFamily::Netlink, SockProtocol::NetlinkRoute);
        let socket = socket(family, SockType::Raw, flags, protocol)?;
        set_socket_option(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID, 1)?;
        // Without the filter each change of a link in any container would wake this process.
        attach_filter(socket.as_fd(), &deletions())?;
        let groups = 1 << (libc::RTNLGRP_LINK - 1) | 1 << (libc::RTNLGRP_NSID - 1);
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(Self { socket })
    }

    /// The next event; `None` if no event waits.
    pub fn next(&self) -> Option<End> {
        let mut buffer = [0; 8192];
        loop {
            let received = receive_from_kernel_with_control(self.socket.as_fd(), &mut buffer);
            let (length, control) = match received {
                Ok(Some(received)) => received,
                // A process with CAP_NET_ADMIN in any container can send to the group.
                Ok(None) => continue,
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EINTR) => continue,
                    Some(Errno::EAGAIN) => return None,
                    // ENOBUFS: the queue was full.
                    _ => return Some(End::Unknown),
                },
            };
            // Its value is the number of the sender's namespace.
            let control = control.filter(|(level, kind, _)| {
                *level == libc::SOL_NETLINK && *kind == libc::NETLINK_LISTEN_ALL_NSID
            });
            let sender = control.and_then(|(_, _, data)| u32_of(&data));
            let datagram = buffer.get(..length).unwrap_or(&buffer);
            if let Some(end) =
                datagram_messages(datagram).find_map(|message| end_in(message, sender))
            {
                return Some(end);
            }
        }
    }
}

/// The event of a message from a namespace, which has no number if it is that of the socket.
fn end_in((kind, payload): (u16, &[u8]), sender: Option<u32>) -> Option<End> {
    match (kind, sender) {
        (libc::RTM_DELNSID, None) => number_in(payload).map(End::Namespace),
        // A port that leaves a bridge is reported in the family of bridges.
        (libc::RTM_DELLINK, Some(number)) if payload.first() == Some(&AF_UNSPEC) => {
            fixed(payload, 4).map(|index| End::Link(number, u32::from_ne_bytes(index)))
        }
        _ => None,
    }
}

impl AsFd for Ends {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Passes RTM_DELLINK and RTM_DELNSID: the 16 bits at offset 4 of struct nlmsghdr.
fn deletions() -> [sock_filter; 5] {
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    // The program reads numbers in network byte order.
    let value = |kind: u16| u32::from(u16::from_be_bytes(kind.to_ne_bytes()));
    [
        instruction(0x28, 0, 0, 4),
        instruction(0x15, 1, 0, value(libc::RTM_DELLINK)),
        instruction(0x15, 0, 1, value(libc::RTM_DELNSID)),
        instruction(0x06, 0, 0, 0xffff),
        instruction(0x06, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Attrs;

    #[test]
    fn ends_are_read() {
        let mut namespace = Attrs::default();
        namespace.raw(&GENERAL_HEADER);
        namespace.u32(NETNSA_NSID, 7);
        let namespace = namespace.as_slice();
        let link = [0, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let index = u32::from_ne_bytes([3, 0, 0, 0]);
        let of_bridge = [7, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (kind, payload, sender, expected) in [
            (libc::RTM_DELNSID, namespace, None, Some(End::Namespace(7))),
            // The number is one of another namespace.
            (libc::RTM_DELNSID, namespace, Some(2), None),
            (libc::RTM_DELNSID, &namespace[..6], None, None),
            (libc::RTM_DELLINK, &link, Some(2), Some(End::Link(2, index))),
            // A link of the host.
            (libc::RTM_DELLINK, &link, None, None),
            (libc::RTM_DELLINK, &of_bridge, Some(2), None),
            (libc::RTM_DELLINK, &link[..6], Some(2), None),
            (libc::RTM_NEWLINK, &link, Some(2), None),
        ] {
            assert_eq!(end_in((kind, payload), sender), expected, "{kind} {sender:?}");
        }
    }
}
