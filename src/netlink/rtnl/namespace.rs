//! The kernel's numbers of namespaces, and the ends of namespaces and of links in them, without a file in a namespace: an
//! open file would keep the namespace alive.

use std::fmt::{self, Display};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{self, sock_filter};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
};
use serde::{Deserialize, Serialize};

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

/// The numbers that cnibox chooses begin here: those that the kernel chooses are small.
const OWN: u32 = 0x4000_0000;

/// How many numbers are tried: those of other programs can be taken.
const ATTEMPTS_MAX: u32 = 100;

/// The number by which a network namespace knows another one. The kernel keeps it as long as the other namespace exists, and
/// nobody can change or remove it.
///
/// Source: RTM_NEWNSID (linux/rtnetlink.h, linux/net_namespace.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Number(u32);

impl Number {
    /// Whether no later namespace of this boot gets it. The kernel gives its own numbers again.
    pub fn is_unique(self) -> bool {
        self.0 >= OWN
    }

    /// The number for the namespace with this cookie. Cookies count up, so the numbers are dense: for each message about a link
    /// with a peer the kernel walks the tree of the numbers, which takes 30 times as long for random ones.
    fn of_cookie(cookie: u64) -> Self {
        let low = cookie & u64::from(OWN - 1);
        Self(OWN | u32::try_from(low).unwrap_or_default())
    }

    /// The number in a message of the kernel; `None` for a namespace that has none.
    pub(super) fn of_reply(number: u32) -> Option<Self> {
        (number != NOT_ASSIGNED).then_some(Self(number))
    }

    /// The number as text, which `to_string` makes.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    fn next(self) -> Self {
        Self(OWN | (self.0.wrapping_add(1) & (OWN - 1)))
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Rtnl {
    /// The number of a namespace, as the namespace of this socket knows it. Gives it a number if it has none; `cookie` is that of
    /// the namespace, and without it the kernel chooses. Needs CAP_NET_ADMIN to give a number.
    pub fn number_of(&self, netns: &NetNs, cookie: Option<u64>) -> Result<Number> {
        let mut wanted = cookie.map(Number::of_cookie);
        for _ in 0..ATTEMPTS_MAX {
            match (self.give_number(netns, wanted), wanted) {
                (Ok(()), Some(number)) => return Ok(number),
                (Err(error), _) if !error.is_exists() => return Err(error.into()),
                _ => {}
            }
            if let Some(number) = self.known_number_of(netns)? {
                return Ok(number);
            }
            // The number is another namespace's.
            wanted = wanted.map(Number::next);
        }
        Err(netlink::Error::new(CANNOT_NUMBER.into(), libc::EEXIST, None).into())
    }

    fn give_number(&self, netns: &NetNs, number: Option<Number>) -> Result<(), netlink::Error> {
        let mut requests = Requests::new();
        requests.push(libc::RTM_NEWNSID, NLM_F_CREATE, CANNOT_NUMBER.into(), |attrs| {
            attrs.raw(&GENERAL_HEADER);
            attrs.u32(NETNSA_FD, netns.as_fd().as_raw_fd().cast_unsigned());
            attrs.u32(NETNSA_NSID, number.map_or(NOT_ASSIGNED, |number| number.0));
        });
        self.change(requests)
    }

    /// Whether a namespace has this number. A kernel before 5.0 cannot tell, which is an error.
    pub fn has_number(&self, number: Number) -> Result<bool> {
        let mut request = Requests::new();
        let doing = format!("cannot find network namespace {}", number.0);
        request.push(libc::RTM_GETNSID, 0, doing, |attrs| {
            attrs.raw(&GENERAL_HEADER);
            attrs.u32(NETNSA_NSID, number.0);
        });
        match self.socket.get(request, number_in) {
            Ok(_) => Ok(true),
            Err(error) if error.errno == libc::ENOENT => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until no namespace has this number, or until the limit. Returns whether that is so.
    pub fn wait_for_end(&self, number: Number, limit: Duration) -> Result<bool> {
        let has_ended = || Ok((!self.has_number(number)?, ()));
        Ok(self.wait(libc::RTNLGRP_NSID, limit, has_ended)?.0)
    }

    /// The number of a namespace, if it has one.
    pub fn known_number_of(&self, netns: &NetNs) -> Result<Option<Number>> {
        let mut request = Requests::new();
        let doing = "cannot read the number of a network namespace".to_owned();
        request.push(libc::RTM_GETNSID, 0, doing, |attrs| {
            attrs.raw(&GENERAL_HEADER);
            attrs.u32(NETNSA_FD, netns.as_fd().as_raw_fd().cast_unsigned());
        });
        let number = self.socket.get(request, number_in)?;
        Ok(number.and_then(Number::of_reply))
    }
}

const CANNOT_NUMBER: &str = "cannot number a network namespace";

fn number_in(payload: &[u8]) -> Option<u32> {
    attribute(payload.get(GENERAL_HEADER.len()..)?, NETNSA_NSID).and_then(u32_of)
}

/// The end of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The namespace with this number.
    Namespace(Number),
    /// A link of another namespace: its number, and the index of the link.
    Link(Number, u32),
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
        (libc::RTM_DELNSID, None) => {
            number_in(payload).map(|number| End::Namespace(Number(number)))
        }
        // A port that leaves a bridge is reported in the family of bridges.
        (libc::RTM_DELLINK, Some(number)) if payload.first() == Some(&AF_UNSPEC) => {
            fixed(payload, 4).map(|index| End::Link(Number(number), u32::from_ne_bytes(index)))
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
    fn numbers_of_cookies_are_dense_and_unique() {
        let of = |cookie| Number::of_cookie(cookie);
        assert_eq!((of(1), of(1).next()), (Number(0x4000_0001), Number(0x4000_0002)));
        assert_eq!(of(u64::MAX), Number(0x7fff_ffff));
        // The next one is not negative.
        assert_eq!(of(u64::MAX).next(), Number(0x4000_0000));
        assert!(of(0).is_unique() && !Number(7).is_unique());
    }

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
            (libc::RTM_DELNSID, namespace, None, Some(End::Namespace(Number(7)))),
            // The number is one of another namespace.
            (libc::RTM_DELNSID, namespace, Some(2), None),
            (libc::RTM_DELNSID, &namespace[..6], None, None),
            (libc::RTM_DELLINK, &link, Some(2), Some(End::Link(Number(2), index))),
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
