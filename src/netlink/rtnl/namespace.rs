//! The ids that the kernel gives to namespaces (nsid), and events for the end of a namespace or of a link in it. No file of the
//! namespace is open, because that would keep the namespace alive.

use std::fmt::{self, Display};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use neli::consts::nl::NlmF;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, NetlinkAddr, SockProtocol, recvmsg, setsockopt,
};
use serde::{Deserialize, Serialize};

use super::Rtnl;
use super::consts::AF_UNSPEC;
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::socket::ListenAllNsid;
use crate::netlink::message::messages;
use crate::netlink::socket::{filter_by_type, subscribed};
use crate::netlink::{self, Requests, attribute, found, u32_at, u32_of};

/// Attributes of RTM_NEWNSID, RTM_GETNSID and RTM_DELNSID (linux/net_namespace.h).
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// NETNSA_NSID_NOT_ASSIGNED. In a request it lets the kernel choose the id.
const NOT_ASSIGNED: u32 = u32::MAX;

/// struct rtgenmsg, padded.
const GENERAL_HEADER: [u8; 4] = [AF_UNSPEC, 0, 0, 0];

/// The lowest id that cnibox chooses. The ids that the kernel chooses are small.
const CHOSEN_MIN: u32 = 0x4000_0000;

/// The number of attempts to assign an id: another namespace can have it.
const ATTEMPTS_MAX: u32 = 100;

/// The id of a network namespace, valid in one other namespace only. The kernel keeps the id as long as the namespace with the
/// id exists, and refuses to change or remove the id.
///
/// Source: RTM_NEWNSID (linux/rtnetlink.h, linux/net_namespace.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nsid(u32);

impl Nsid {
    /// Whether no later namespace of this boot gets this id. The kernel reuses the ids that it chooses.
    pub fn is_unique(self) -> bool {
        self.0 >= CHOSEN_MIN
    }

    /// The id for the namespace with this cookie. Cookies count up, so the ids are dense: for each message about a link with a
    /// peer the kernel walks the tree of the ids, which takes 30 times as long with random ids.
    pub fn of_cookie(cookie: u64) -> Self {
        let low = cookie & u64::from(CHOSEN_MIN - 1);
        Self(CHOSEN_MIN | u32::try_from(low).unwrap_or_default())
    }

    /// The id in a message of the kernel; `None` for a namespace without an id.
    pub(super) fn of_reply(number: u32) -> Option<Self> {
        (number != NOT_ASSIGNED).then_some(Self(number))
    }

    /// Reads the text that `to_string` returns.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    fn next(self) -> Self {
        Self(CHOSEN_MIN | (self.0.wrapping_add(1) & (CHOSEN_MIN - 1)))
    }
}

impl Display for Nsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Rtnl {
    /// The id of a namespace in the namespace of this socket. If it has none, assigns the id for its cookie; without a cookie
    /// the kernel chooses the id. Needs CAP_NET_ADMIN to assign an id.
    pub fn ensure_nsid(&self, netns: &NetNs, cookie: Option<u64>) -> Result<Nsid> {
        let mut chosen = cookie.map(Nsid::of_cookie);
        for _ in 0..ATTEMPTS_MAX {
            match (self.assign_nsid(netns, chosen), chosen) {
                (Ok(()), Some(nsid)) => return Ok(nsid),
                (Err(error), _) if !error.is_exists() => return Err(error.into()),
                _ => {}
            }
            if let Some(nsid) = self.nsid_of(netns)? {
                return Ok(nsid);
            }
            // Another namespace has this id.
            chosen = chosen.map(Nsid::next);
        }
        Err(netlink::Error::new(CANNOT_NUMBER.into(), libc::EEXIST, None).into())
    }

    fn assign_nsid(&self, netns: &NetNs, nsid: Option<Nsid>) -> Result<(), netlink::Error> {
        self.change(Requests::one(libc::RTM_NEWNSID, NlmF::CREATE, CANNOT_NUMBER, |attrs| {
            attrs.raw(&GENERAL_HEADER);
            attrs.u32(NETNSA_FD, netns.as_fd().as_raw_fd().cast_unsigned());
            attrs.u32(NETNSA_NSID, nsid.map_or(NOT_ASSIGNED, |nsid| nsid.0));
        }))
    }

    /// Whether a namespace has this id. Fails on a kernel before 5.0, which lacks this query.
    pub fn has_nsid(&self, nsid: Nsid) -> Result<bool> {
        let doing = format!("cannot find network namespace {}", nsid.0);
        let request = Requests::one(libc::RTM_GETNSID, NlmF::empty(), doing, |attrs| {
            attrs.raw(&GENERAL_HEADER);
            attrs.u32(NETNSA_NSID, nsid.0);
        });
        let nsid = found(self.socket.get(request, nsid_in), |error| error.errno == libc::ENOENT)?;
        Ok(nsid.is_some())
    }

    /// Whether the namespace with this cookie exists and has the id for its cookie. False also if it has another id.
    pub fn has_nsid_of_cookie(&self, cookie: u64) -> Result<bool> {
        self.has_nsid(Nsid::of_cookie(cookie))
    }

    /// Waits until one of these ids has no namespace, or until the timeout. False if all have one.
    pub fn wait_for_end(&self, nsids: &[Nsid], timeout: Duration) -> Result<bool> {
        let has_ended = || -> Result<(bool, ())> {
            for nsid in nsids {
                if !self.has_nsid(*nsid)? {
                    return Ok((true, ()));
                }
            }
            Ok((false, ()))
        };
        Ok(self.wait(libc::RTNLGRP_NSID, timeout, has_ended)?.0)
    }

    /// The id of a namespace in the namespace of this socket; `None` if it has none.
    pub fn nsid_of(&self, netns: &NetNs) -> Result<Option<Nsid>> {
        let doing = "cannot read the number of a network namespace";
        let request = Requests::one(libc::RTM_GETNSID, NlmF::empty(), doing, |attrs| {
            attrs.raw(&GENERAL_HEADER);
            attrs.u32(NETNSA_FD, netns.as_fd().as_raw_fd().cast_unsigned());
        });
        let number = self.socket.get(request, nsid_in)?;
        Ok(number.and_then(Nsid::of_reply))
    }
}

const CANNOT_NUMBER: &str = "cannot number a network namespace";

/// The number in the attribute NETNSA_NSID of a message.
fn nsid_in(payload: &[u8]) -> Option<u32> {
    attribute(payload.get(GENERAL_HEADER.len()..)?, NETNSA_NSID).and_then(u32_of)
}

/// A namespace or a link that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The namespace with this id.
    Namespace(Nsid),
    /// A link of another namespace: the id of the namespace, and the index of the link.
    Link(Nsid, u32),
    /// Events were lost: any namespace or link can have ended.
    Unknown,
}

/// Reports the ends of namespaces with an id, and of links in them.
pub struct Ends {
    socket: OwnedFd,
}

impl Ends {
    /// Reports every end from now on. Needs CAP_NET_BROADCAST.
    pub fn subscribe() -> Result<Self> {
        // Without the filter each change of a link in any container would wake this process.
        let deletions = filter_by_type(&[libc::RTM_DELLINK, libc::RTM_DELNSID], true);
        let groups = [libc::RTNLGRP_LINK, libc::RTNLGRP_NSID];
        let socket =
            subscribed(SockProtocol::NetlinkRoute, &groups, &deletions).and_then(|socket| {
                setsockopt(&socket, ListenAllNsid, &true)?;
                Ok(socket)
            });
        let doing = "cannot subscribe to the ends of network namespaces";
        let socket = socket.map_err(|error| netlink::Error::of(doing, &error))?;
        Ok(Self { socket })
    }

    /// The next event; `None` if no event is pending.
    pub fn next(&self) -> Option<End> {
        let (mut buffer, mut control) = ([0; 8192], cmsg_space!(u32));
        loop {
            let (fd, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let received = match recvmsg::<NetlinkAddr>(fd, &mut parts, Some(&mut control), flags) {
                // A process with CAP_NET_ADMIN in any container can send to the group. Only the kernel sends from port 0.
                Ok(received) if received.address.is_none_or(|sender| sender.pid() != 0) => continue,
                Ok(received) => received,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return None,
                // ENOBUFS: the queue was full.
                Err(_) => return Some(End::Unknown),
            };
            let sender =
                received.cmsgs().ok().and_then(|mut controls| controls.find_map(sender_in));
            let length = received.bytes;
            let datagram = buffer.get(..length).unwrap_or(&buffer);
            if let Some(end) = messages(datagram)
                .find_map(|message| end_in((message.kind, message.payload), sender))
            {
                return Some(end);
            }
        }
    }
}

/// The id of the sender's namespace, if that is not the namespace of the socket.
fn sender_in(control: ControlMessageOwned) -> Option<u32> {
    let ControlMessageOwned::Unknown(control) = control else { return None };
    let header = &control.cmsg_header;
    let is_nsid =
        (header.cmsg_level, header.cmsg_type) == (libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID);
    is_nsid.then(|| u32_of(control.data_bytes.get(..4)?)).flatten()
}

/// The event of a message. `sender` is the id of the namespace that sent the message; `None` is the namespace of the
/// socket.
fn end_in((kind, payload): (u16, &[u8]), sender: Option<u32>) -> Option<End> {
    match (kind, sender) {
        (libc::RTM_DELNSID, None) => nsid_in(payload).map(|number| End::Namespace(Nsid(number))),
        // A port that leaves a bridge is reported with the family AF_BRIDGE.
        (libc::RTM_DELLINK, Some(number)) if payload.first() == Some(&AF_UNSPEC) => {
            u32_at(payload, 4).map(|index| End::Link(Nsid(number), index))
        }
        _ => None,
    }
}

impl AsFd for Ends {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Attrs;

    #[test]
    fn ids_of_cookies_are_dense_and_unique() {
        let of = |cookie| Nsid::of_cookie(cookie);
        assert_eq!((of(1), of(1).next()), (Nsid(0x4000_0001), Nsid(0x4000_0002)));
        assert_eq!(of(u64::MAX), Nsid(0x7fff_ffff));
        // The next id is not negative.
        assert_eq!(of(u64::MAX).next(), Nsid(0x4000_0000));
        assert!(of(0).is_unique() && !Nsid(7).is_unique());
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
            (libc::RTM_DELNSID, namespace, None, Some(End::Namespace(Nsid(7)))),
            // The id is of another namespace.
            (libc::RTM_DELNSID, namespace, Some(2), None),
            (libc::RTM_DELNSID, &namespace[..6], None, None),
            (libc::RTM_DELLINK, &link, Some(2), Some(End::Link(Nsid(2), index))),
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
