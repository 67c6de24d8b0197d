//! A netlink socket. Errors have the texts of extended acknowledgements, an errno at the end of a dump is an error, an
//! interrupted dump is repeated, and no read blocks. Messages of other processes are discarded.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use neli::consts::nl::{NlmF, Nlmsg};
use neli::consts::socket::{Msg, NlFamily};
use neli::socket::NlSocket;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, connect,
    getsockopt, recv, setsockopt, socket,
    sockopt::{SndBuf, SndBufForce},
};

use super::error::Error;
use super::message::{Message, Requests, messages};
use crate::fault;
use crate::kernel::sys::socket::{CapAck, attach_filter, descriptor_of, receive_from_kernel};

impl From<Error> for crate::error::Error {
    fn from(error: Error) -> Self {
        Self::internal(error.to_string())
    }
}

/// A socket in the namespace that it was opened in.
pub(crate) struct Socket {
    socket: NlSocket,
    /// The sequence number of the next request.
    sequence: Cell<u32>,
    /// Whether strict checking is on: the kernel filters dumps, and refuses unknown filters.
    is_strict: Cell<bool>,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        descriptor_of(&self.socket)
    }
}

/// The message that ends an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The first answer to the last request.
    Answer,
    /// The acknowledgement of the last request.
    Acknowledged,
    /// The end of a dump.
    Done,
}

impl Socket {
    /// Opens a socket that gets messages of the kernel only. In a container's namespace, each process with CAP_NET_ADMIN can
    /// send messages that look like answers, or so many that the answers find no room. So the socket is connected to the
    /// kernel, port 0, which also binds it: from then on the kernel refuses other senders (`netlink_getsockbyportid`).
    pub(crate) fn open(family: NlFamily) -> Result<Self, Error> {
        let failed = |error| Error::of("cannot open a netlink socket", &error);
        let socket = NlSocket::new(family).map_err(failed)?;
        let kernel = NetlinkAddr::new(0, 0);
        connect(socket.as_raw_fd(), &kernel).map_err(|errno| failed(errno.into()))?;
        socket.enable_ext_ack(true).map_err(failed)?;
        let is_netfilter = family == NlFamily::Netfilter;
        if is_netfilter {
            // The kernel leaves the refused request out of its error messages: with it, the errors of a large transaction would
            // not fit into the receive buffer.
            let capped = setsockopt(&descriptor_of(&socket), CapAck, &true);
            capped.map_err(|errno| failed(errno.into()))?;
        }
        // Netfilter always filters dumps, without strict checking.
        Ok(Self { socket, sequence: Cell::new(1), is_strict: Cell::new(is_netfilter) })
    }

    /// Sends changes and waits for the acknowledgement of the last one. The kernel tries all of them; the first error
    /// is returned. `on` gets the echoes of the kernel.
    pub(crate) fn commit(
        &self,
        requests: Requests,
        mut on: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        if requests.is_empty() {
            return Ok(());
        }
        self.exchange(&requests, NlmF::ACK, Until::Acknowledged, &mut |message| on(message.payload))
    }

    /// Reads one object.
    pub(crate) fn get<T>(
        &self,
        request: Requests,
        read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        Ok(self.get_each(request, read)?.pop().flatten())
    }

    /// Reads several objects at once, one per request; `None` after a tolerated error.
    pub(crate) fn get_each<T>(
        &self,
        requests: Requests,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<Option<T>>, Error> {
        let mut found: Vec<_> = requests.list.iter().map(|_| None).collect();
        if requests.is_empty() {
            return Ok(found);
        }
        let first = self.sequence.get();
        self.exchange(&requests, NlmF::empty(), Until::Answer, &mut |message| {
            if let Some(object) = found.get_mut(message.sequence.wrapping_sub(first) as usize) {
                *object = read(message.payload);
            }
        })?;
        Ok(found)
    }

    /// Lists all objects and keeps those that `read` returns. Kernels before 4.20 ignore the filter of the request, so
    /// `read` has to filter again.
    pub(crate) fn dump<T>(
        &self,
        request: Requests,
        read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        self.dump_within(DUMP_BYTES_MAX, request, read)
    }

    fn dump_within<T>(
        &self,
        bytes_max: usize,
        request: Requests,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let (mut list, mut bytes) = (Vec::new(), 0);
        self.dump_each(&request, &mut |payload| {
            let Some(payload) = payload else {
                list.clear();
                bytes = 0;
                return;
            };
            // After the limit the dump is read to its end, since the answers to later requests come after it.
            if bytes <= bytes_max
                && let Some(object) = read(payload)
            {
                bytes += payload.len();
                list.push(object);
            }
        })?;
        if bytes > bytes_max {
            let hint = format!("the list has more than {bytes_max} bytes");
            return Err(Error::new(request.last_doing().into(), libc::EFBIG, Some(hint)));
        }
        Ok(list)
    }

    /// Reads only the first object of a list. Consumes the socket: the rest of the list would come before the answers to later
    /// requests.
    pub(crate) fn first<T>(
        self,
        request: &Requests,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let _ = self.socket.enable_strict_checking(true);
        let mut first = None;
        self.exchange(request, NlmF::DUMP, Until::Answer, &mut |message| {
            if first.is_none() && !message.is(Nlmsg::Done) {
                first = read(message.payload);
            }
        })?;
        Ok(first)
    }

    /// Calls `on` with each object, and with `None` when the list begins again. (A generic function would be compiled to a
    /// kilobyte for each type.)
    pub(crate) fn dump_each(
        &self,
        request: &Requests,
        on: &mut dyn FnMut(Option<&[u8]>),
    ) -> Result<(), Error> {
        if !self.is_strict.replace(true) {
            // An old kernel refuses strict checking. Its dumps are longer, and the caller filters them.
            let _ = self.socket.enable_strict_checking(true);
        }
        for _ in 0..DUMP_ATTEMPTS_MAX {
            on(None);
            let mut is_whole = true;
            self.exchange(request, NlmF::DUMP, Until::Done, &mut |message| {
                is_whole &= !message.flags.contains(NlmF::DUMP_INTR);
                // The end of the dump has no object.
                if !message.is(Nlmsg::Done) {
                    on(Some(message.payload));
                }
            })?;
            if is_whole {
                return Ok(());
            }
        }
        let hint = format!("the list changed while it was read, {DUMP_ATTEMPTS_MAX} times");
        Err(Error::new(request.last_doing().into(), libc::EINTR, Some(hint)))
    }

    /// Sends the requests in one datagram and reads answers up to `until`.
    ///
    /// The kernel answers before send(2) returns (dumps: before recv(2) returns), so an empty queue means that no more answers
    /// come. ENOBUFS means that later answers had no room in the queue; the earlier ones are still in it. After an error the
    /// answers to the other requests can stay in the queue; the next exchange skips them by their sequence numbers. The socket
    /// is in no group, so it gets no other messages.
    fn exchange(
        &self,
        requests: &Requests,
        last_flags: NlmF,
        until: Until,
        on: &mut dyn FnMut(&Message<'_>),
    ) -> Result<(), Error> {
        let first = self.sequence.get();
        let count = u32::try_from(requests.list.len()).unwrap_or(u32::MAX);
        self.sequence.set(first.wrapping_add(count));
        let last_doing = requests.last_doing();
        let datagram = requests.datagram(first, last_flags);
        let datagram =
            datagram.ok_or_else(|| Error::new(last_doing.into(), libc::EMSGSIZE, None))?;
        self.send(&datagram).map_err(|error| Error::of(last_doing, &error))?;

        let (mut result, mut has_overflowed) = (Ok(()), false);
        // Only the pages that the kernel writes to are faulted in. Those of a buffer of zeros are a tenth of the CPU time of a
        // CHECK.
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            match self.receive(&mut datagram) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) && !has_overflowed => {
                    has_overflowed = true;
                    continue;
                }
                Err(_) if result.is_err() => return result, // the caller gets the first error
                Err(_) if has_overflowed => {
                    return Err(Error::new(last_doing.into(), libc::ENOBUFS, None));
                }
                Err(error) => return Err(Error::of(last_doing, &error)),
            }
            for message in messages(&datagram) {
                let number = message.sequence.wrapping_sub(first);
                let Some(request) = requests.list.get(number as usize) else { continue };
                let is_outcome = message.is(Nlmsg::Error) || message.is(Nlmsg::Done);
                if is_outcome {
                    let (errno, hint) = message.outcome();
                    if result.is_ok() && errno != 0 && request.tolerated != Some(errno) {
                        let hint = hint.map(|hint| hint.into_owned());
                        result = Err(Error::new(request.doing.clone(), errno, hint));
                    }
                }
                if !message.is(Nlmsg::Error) {
                    on(&message);
                }
                if number.wrapping_add(1) == count && (is_outcome || until == Until::Answer) {
                    return result;
                }
            }
        }
    }

    /// The length of the longest datagram that the socket can send: `bytes`, or less if the system does not allow that.
    pub(crate) fn room_for(&self, bytes: usize) -> usize {
        let bytes = fault::send_limit(bytes);
        // Every system allows this length, so no system call is needed.
        if bytes <= SEND_BYTES_MIN {
            return bytes;
        }
        self.widen_send_buffer(bytes).map_or(SEND_BYTES_MIN, |room| room.min(bytes))
    }

    /// Enlarges the send buffer for a datagram of that length. Returns the length of the longest datagram that the socket can
    /// send. Root can exceed the system's limit, 2 x net.core.wmem_max; root of a user namespace cannot.
    fn widen_send_buffer(&self, bytes: usize) -> io::Result<usize> {
        let room = || Ok(getsockopt(self, SndBuf)?.saturating_sub(SEND_OVERHEAD_BYTES));
        if room()? < bytes {
            // The kernel replaces a larger number by its limit.
            let bytes = bytes + SEND_OVERHEAD_BYTES;
            setsockopt(self, SndBufForce, &bytes).or_else(|_| setsockopt(self, SndBuf, &bytes))?;
        }
        room()
    }

    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        fault::kernel_request()?;
        let send = || uninterrupted(|| self.socket.send(datagram, Msg::empty()));
        match send() {
            // The datagram is longer than the send buffer, net.core.wmem_default.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                self.widen_send_buffer(datagram.len())?;
                send().map(drop)
            }
            result => result.map(drop),
        }
    }

    /// Gets the next datagram of the kernel; ENOMSG if the queue is empty.
    fn receive(&self, datagram: &mut Vec<u8>) -> io::Result<()> {
        loop {
            match uninterrupted(|| receive_from_kernel(self, datagram)) {
                // A process sent this datagram before the socket was connected to the kernel, so there are few such datagrams.
                Ok(None) => {}
                Ok(Some(length)) if length > datagram.len() => {
                    return Err(Errno::EMSGSIZE.into());
                }
                Ok(Some(_)) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(Errno::ENOMSG.into());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Reports that an object of some multicast groups changed in the namespace of the socket, but not which change. The content of
/// the messages is not read, so a forged message does no harm: the caller reads the object from the kernel.
///
/// Uses nix, because neli's sockets cannot be polled without unsafe code.
pub(crate) struct Events {
    socket: OwnedFd,
}

impl Events {
    /// Reports every change from now on. The groups are some of RTNLGRP_*, up to 32.
    pub(crate) fn subscribe(groups: &[u32]) -> Result<Self, Error> {
        Self::open(SockProtocol::NetlinkRoute, groups, &[])
    }

    /// Reports the messages of some groups for which a classic BPF program returns more than 0; all without a program.
    pub(super) fn open(
        protocol: SockProtocol,
        groups: &[u32],
        filter: &[libc::sock_filter],
    ) -> Result<Self, Error> {
        let socket = subscribed(protocol, groups, filter)
            .map_err(|error| Error::of("cannot subscribe to changes", &error))?;
        Ok(Self { socket })
    }

    /// Returns after the next change or after the timeout. It can return early, so the caller has to read the object.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), Error> {
        // Rounded up: a timeout of 0 would make the last millisecond a busy loop.
        let timeout = timeout.saturating_add(Duration::from_millis(1));
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => self.discard().map(drop),
            Err(errno) => Err(Error::of("cannot wait for a change", &errno.into())),
        }
    }

    /// Discards the pending events without a wait. Returns whether there was one.
    pub(crate) fn discard(&self) -> Result<bool, Error> {
        for count in 0..EVENTS_AT_ONCE_MAX {
            match recv(self.socket.as_raw_fd(), &mut [0; 16], MsgFlags::MSG_DONTWAIT) {
                // ENOBUFS: the queue overflowed. One event is enough.
                Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => return Ok(count > 0),
                Err(errno) => {
                    return Err(Error::of("cannot wait for a change", &errno.into()));
                }
            }
        }
        Ok(true)
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Opens a socket for the messages of some groups, up to 32, that pass the filter.
pub(super) fn subscribed(
    protocol: SockProtocol,
    groups: &[u32],
    filter: &[libc::sock_filter],
) -> io::Result<OwnedFd> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let socket = socket(AddressFamily::Netlink, kind, flags, protocol)?;
    // The socket gets no message before it is bound, so the filter applies to every message.
    if !filter.is_empty() {
        attach_filter(&socket, filter)?;
    }
    let groups = groups.iter().fold(0, |groups, group| groups | 1 << (group - 1));
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

/// A classic BPF program for the type of the first message in a datagram: it passes these types only, or all others.
pub(super) fn filter_by_type(types: &[u16], passes: bool) -> Vec<libc::sock_filter> {
    let instruction = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let [of_types, of_others] = if passes { [u32::MAX, 0] } else { [0, u32::MAX] };
    let mut program = vec![instruction(0x28, 0, 4)]; // ldh [4]: nlmsg_type
    for kind in types {
        // The program loads numbers in network byte order, and the type is in host byte order.
        program.push(instruction(0x15, 1, kind.to_be().into())); // jeq, else skip one
        program.push(instruction(0x06, 0, of_types)); // ret
    }
    program.push(instruction(0x06, 0, of_others)); // ret
    program
}

/// The result of a request; `None` after an error for which `is_missing` is true.
pub(crate) fn found<T>(
    result: Result<T, Error>,
    is_missing: impl FnOnce(&Error) -> bool,
) -> Result<Option<T>, Error> {
    match result {
        Err(error) if is_missing(&error) => Ok(None),
        result => result.map(Some),
    }
}

fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// A datagram of this length fits into the kernel's smallest send buffer (SOCK_MIN_SNDBUF, sock.h).
const SEND_BYTES_MIN: usize = 4096;

/// The bytes of the send buffer that no datagram can use (`netlink_sendmsg`).
const SEND_OVERHEAD_BYTES: usize = 32;

/// The largest datagram that the kernel makes for a dump (NLMSG_GOODSIZE grows to what recv(2) offers, up to this).
const DATAGRAM_BYTES: usize = 32 * 1024;

/// The longest list, in bytes of messages that are kept: 30,000 links, or a million routes. A process with CAP_NET_ADMIN in a
/// container can create any number of objects there.
const DUMP_BYTES_MAX: usize = 64 << 20;

/// The number of attempts to read a list, because each change of a listed object interrupts the dump. On a host with so many
/// changes, a list cannot be read.
const DUMP_ATTEMPTS_MAX: u32 = 5;

/// The number of events that one `discard` reads: the caller reads the object once for all pending events. The maximum ends the
/// loop if events arrive faster than they are read.
const EVENTS_AT_ONCE_MAX: u32 = 256;

#[cfg(test)]
mod tests {
    use nix::sys::socket::{getsockname, sendto};

    use super::*;

    fn netlink(protocol: SockProtocol) -> (OwnedFd, NetlinkAddr) {
        let flags = SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol).unwrap();
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0)).unwrap();
        let address = getsockname(socket.as_raw_fd()).unwrap();
        (socket, address)
    }

    #[test]
    fn a_datagram_of_a_process_is_not_the_kernels() {
        // Each user may send to the sockets of this protocol.
        let (receiver, address) = netlink(SockProtocol::NetlinkUserSock);
        let (sender, _) = netlink(SockProtocol::NetlinkUserSock);
        sendto(sender.as_raw_fd(), b"forged", &address, MsgFlags::empty()).unwrap();
        let mut room = Vec::with_capacity(64);
        assert_eq!(receive_from_kernel(&receiver, &mut room).unwrap(), None);
        assert!(receive_from_kernel(&receiver, &mut room).is_err(), "it is received");
    }

    #[test]
    fn a_datagram_of_the_kernel_is_returned_with_its_length() {
        let (socket, _) = netlink(SockProtocol::NetlinkRoute);
        // NLMSG_NOOP with NLM_F_REQUEST and NLM_F_ACK: an acknowledgement of 36 bytes.
        let header = [16_u32.to_ne_bytes(), [1, 0, 5, 0], [0; 4], [0; 4]].concat();
        sendto(socket.as_raw_fd(), &header, &NetlinkAddr::new(0, 0), MsgFlags::empty()).unwrap();
        let mut room = Vec::with_capacity(20);
        assert_eq!(receive_from_kernel(&socket, &mut room).unwrap(), Some(36));
        assert_eq!(room.len(), 20);
    }

    #[test]
    fn an_error_has_its_reason_and_its_hint() {
        let error = Error::new("cannot add link eth0".into(), libc::EEXIST, None);
        assert_eq!(error.to_string(), "cannot add link eth0: File exists");
        let error = error.with_hint("because");
        assert_eq!(error.to_string(), "cannot add link eth0: File exists (because)");
        assert!(error.is_exists() && !error.is_not_found());
        let error = crate::error::Error::from(error);
        assert_eq!(error.code, crate::error::Code::INTERNAL);
    }

    #[test]
    fn a_list_has_a_limit_and_the_socket_can_be_used_after_it() {
        let socket = Socket::open(NlFamily::Route).unwrap();
        // RTM_GETLINK, with a `struct ifinfomsg`.
        let request = Requests::one(18, NlmF::empty(), "cannot list the links", |attrs| {
            attrs.raw(&[0; 16]);
        });
        let size = |payload: &[u8]| Some(payload.len());
        for _ in 0..2 {
            let error = socket.dump_within(16, request.clone(), size).unwrap_err();
            let reason = "cannot list the links: File too large (the list has more than 16 bytes)";
            assert_eq!(error.to_string(), reason);
            let sizes = socket.dump(request.clone(), size).unwrap();
            let all: usize = sizes.iter().sum();
            assert_eq!(socket.dump_within(all, request.clone(), size).unwrap(), sizes);
            assert!(socket.dump_within(16, request.clone(), |_| None::<()>).unwrap().is_empty());
        }
    }

    #[test]
    fn a_request_that_is_too_long_is_not_sent() {
        let socket = Socket::open(NlFamily::Route).unwrap();
        let requests = Requests::one(16, NlmF::empty(), "cannot do it", |attrs| {
            attrs.bytes(1, &[0; 70_000]);
        });
        let error = socket.commit(requests, |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "cannot do it: Message too long");
    }
}
