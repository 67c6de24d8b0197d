//! A netlink socket: sends requests, reads what the kernel answers. Four lessons are kept here once for all: errors
//! have texts, an errno at the end of a dump is an error, an interrupted dump is repeated, a reader never hangs.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};
use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use neli::consts::socket::{Msg, NlFamily};
use neli::socket::NlSocket;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use super::message::{
    Message, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, Requests, messages,
};
use crate::fault;
use crate::kernel::sys;

/// What the kernel refused, why, and what it says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Parts>);

/// What an error says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// `cannot add link eth0`
    pub doing: String,
    pub errno: i32,
    /// The text of the extended acknowledgement.
    pub hint: Option<String>,
}

impl Error {
    /// What was to be added is there already.
    pub fn is_exists(&self) -> bool {
        self.errno == libc::EEXIST
    }

    /// What it is about is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno, libc::ENODEV | libc::ENOENT)
    }

    /// Something else has it.
    pub fn is_busy(&self) -> bool {
        self.errno == libc::EBUSY
    }

    /// The kernel was built without it, or its module is not there.
    pub fn is_unsupported(&self) -> bool {
        self.errno == libc::EOPNOTSUPP
    }

    /// There is no way to where something is to go, or it is forbidden.
    pub fn is_unreachable(&self) -> bool {
        matches!(self.errno, libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL)
    }

    #[cold]
    #[inline(never)]
    pub fn new(doing: String, errno: i32, hint: Option<String>) -> Self {
        Self(Box::new(Parts { doing, errno, hint }))
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn of(doing: &str, error: &io::Error) -> Self {
        Self::new(doing.into(), error.raw_os_error().unwrap_or(libc::EIO), None)
    }
}

impl Deref for Error {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl DerefMut for Error {
    fn deref_mut(&mut self) -> &mut Parts {
        &mut self.0
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, sys::errno_text(self.errno))?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

impl std::error::Error for Error {}

impl From<Error> for crate::error::Error {
    #[cold]
    fn from(error: Error) -> Self {
        Self::internal(error.to_string())
    }
}

/// Which part of the kernel is at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    Route,
    Netfilter,
}

/// One conversation with the kernel, in the namespace that it was opened in.
pub(crate) struct Socket {
    socket: NlSocket,
    /// The number of the next request.
    sequence: Cell<u32>,
    /// Whether the kernel was asked to filter dumps, and to refuse filters that it does not have.
    is_strict: Cell<bool>,
    datagram: RefCell<Vec<u8>>,
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// What an exchange ends with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The first answer to the last request, whatever it is.
    Answer,
    /// The acknowledgement of the last request.
    Acknowledged,
    /// The end of a dump.
    Done,
}

impl Socket {
    /// Without bind(2): the kernel does it with the first request.
    pub(crate) fn open(protocol: Protocol) -> Result<Self, Error> {
        let family = match protocol {
            Protocol::Route => NlFamily::Route,
            Protocol::Netfilter => NlFamily::Netfilter,
        };
        let failed = |error| Error::of("cannot open a netlink socket", &error);
        let socket = NlSocket::new(family).map_err(failed)?;
        socket.enable_ext_ack(true).map_err(failed)?;
        Ok(Self {
            socket,
            sequence: Cell::new(1),
            // Netfilter has no such switch; it filters always.
            is_strict: Cell::new(matches!(protocol, Protocol::Netfilter)),
            datagram: RefCell::new(vec![0; DATAGRAM_BYTES]),
        })
    }

    /// Sends changes and waits for the last one's acknowledgement. All of them are tried; the first failure is
    /// returned. `on` is called with what the kernel echoes.
    pub(crate) fn commit(
        &self,
        requests: Requests,
        mut on: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        if requests.is_empty() {
            return Ok(());
        }
        self.exchange(requests, NLM_F_ACK, Until::Acknowledged, &mut |message| on(message.payload))
    }

    /// Asks for one object.
    pub(crate) fn get<T>(
        &self,
        request: Requests,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut found = None;
        self.exchange(request, 0, Until::Answer, &mut |message| found = read(message.payload))?;
        Ok(found)
    }

    /// Asks for several objects at once, one per request; `None` where the answer is an error that is tolerated.
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
        self.exchange(requests, 0, Until::Answer, &mut |message| {
            if let Some(place) = found.get_mut(message.sequence.wrapping_sub(first) as usize) {
                *place = read(message.payload);
            }
        })?;
        Ok(found)
    }

    /// Asks for all objects, and keeps those that `read` returns. On kernels before 4.20 the request's filter has no
    /// effect, so `read` has to filter again.
    pub(crate) fn dump<T>(
        &self,
        request: impl Fn() -> Requests,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut list = Vec::new();
        self.dump_each(&request, &mut |payload| match payload {
            Some(payload) => list.extend(read(payload)),
            None => list.clear(),
        })?;
        Ok(list)
    }

    /// Calls `on` with each object; with `None` when all of them so far are void. (Not generic: it would be a kilobyte for
    /// each kind of object.)
    fn dump_each(
        &self,
        request: &dyn Fn() -> Requests,
        on: &mut dyn FnMut(Option<&[u8]>),
    ) -> Result<(), Error> {
        if !self.is_strict.replace(true) {
            // An old kernel refuses; then its dumps are longer, which `read` is prepared for.
            let _ = self.socket.enable_strict_checking(true);
        }
        for _ in 0..DUMP_ATTEMPTS_MAX {
            on(None);
            let mut is_whole = true;
            self.exchange(request(), NLM_F_DUMP, Until::Done, &mut |message| {
                is_whole &= message.flags & NLM_F_DUMP_INTR == 0;
                // The end comes here too, but only to be looked at.
                if message.kind != NLMSG_DONE {
                    on(Some(message.payload));
                }
            })?;
            if is_whole {
                return Ok(());
            }
        }
        let doing = request().list.pop().map(|request| request.doing).unwrap_or_default();
        let hint = format!("the list changed while it was read, {DUMP_ATTEMPTS_MAX} times");
        Err(Error::new(doing, libc::EINTR, Some(hint)))
    }

    /// Sends the requests in one datagram and reads answers up to the end that is asked for.
    ///
    /// The kernel answers before send(2) returns (dumps: before recv(2) does), so an empty queue means that nothing
    /// more will come. Answers to earlier requests, given up after an error, are told by their numbers; nobody else's
    /// messages come here, since the socket is in no group.
    fn exchange(
        &self,
        mut requests: Requests,
        last_flags: u16,
        until: Until,
        on: &mut dyn FnMut(&Message<'_>),
    ) -> Result<(), Error> {
        let first = self.sequence.get();
        let count = u32::try_from(requests.list.len()).unwrap_or(u32::MAX);
        self.sequence.set(first.wrapping_add(count));
        requests.seal(first, last_flags);
        let last_doing = requests.list.last().map_or("", |request| request.doing.as_str());
        self.send(&requests).map_err(|error| Error::of(last_doing, &error))?;

        let mut result = Ok(());
        let mut datagram = self.datagram.borrow_mut();
        loop {
            let length = match self.receive(&mut datagram) {
                Ok(length) => length,
                Err(error) if result.is_ok() => return Err(Error::of(last_doing, &error)),
                Err(_) => return result, // the first failure is what the caller has to know
            };
            for message in messages(&datagram[..length]) {
                let number = message.sequence.wrapping_sub(first);
                let Some(request) = requests.list.get(number as usize) else { continue };
                let is_outcome = matches!(message.kind, NLMSG_ERROR | NLMSG_DONE);
                if is_outcome {
                    let (errno, hint) = message.outcome();
                    if result.is_ok() && errno != 0 && request.tolerated != Some(errno) {
                        let hint = hint.map(|hint| hint.into_owned());
                        result = Err(Error::new(request.doing.clone(), errno, hint));
                    }
                }
                if message.kind != NLMSG_ERROR {
                    on(&message);
                }
                if number.wrapping_add(1) == count && (is_outcome || until == Until::Answer) {
                    return result;
                }
            }
        }
    }

    fn send(&self, requests: &Requests) -> io::Result<()> {
        if requests.attrs.too_long {
            return Err(Errno::EMSGSIZE.into());
        }
        fault::kernel_request()?;
        let send = || uninterrupted(|| self.socket.send(&requests.attrs.bytes, Msg::empty()));
        match send() {
            // More than net.core.wmem_default: a transaction about hundreds of things, which cannot be made in parts.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                sys::widen_send_buffer(&self.socket, requests.attrs.bytes.len())?;
                send().map(drop)
            }
            result => result.map(drop),
        }
    }

    /// The length of the next datagram; ENOMSG when there is none.
    fn receive(&self, datagram: &mut [u8]) -> io::Result<usize> {
        // With TRUNC the length is the real one, also where the buffer was too small.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        match uninterrupted(|| Ok(recv(self.as_raw_fd(), &mut *datagram, flags)?)) {
            Ok(length) if length > datagram.len() => Err(Errno::EMSGSIZE.into()),
            Ok(length) => Ok(length),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(Errno::ENOMSG.into()),
            Err(error) => Err(error),
        }
    }
}

/// Says that something changed in the namespace that it was opened in; what, has to be asked for.
///
/// Made with nix, since neli's sockets cannot be polled without unsafe code.
pub(crate) struct Events {
    socket: OwnedFd,
}

impl Events {
    /// From here on no change goes unnoticed. `group` is one of RTNLGRP_*, up to 32.
    pub(crate) fn subscribe(group: u32) -> Result<Self, Error> {
        let failed = |errno: Errno| Error::of("cannot listen to the kernel", &errno.into());
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )
        .map_err(failed)?;
        let port = NetlinkAddr::new(0, 1 << (group - 1));
        bind(socket.as_raw_fd(), &port).map_err(failed)?;
        Ok(Self { socket })
    }

    /// Returns after the next change, or when the time is over. It may also return early: ask and see.
    pub(crate) fn wait(&self, limit: Duration) -> Result<(), Error> {
        let failed = |errno: Errno| Error::of("cannot wait for the kernel", &errno.into());
        // Rounded up, so as not to ask in a tight loop for the last millisecond.
        let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX).saturating_add(1);
        let timeout = PollTimeout::try_from(limit_ms).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        for _ in 0..EVENTS_AT_ONCE_MAX {
            match recv(self.socket.as_raw_fd(), &mut [0; 16], MsgFlags::MSG_DONTWAIT) {
                // ENOBUFS: there were more events than the queue holds. One is enough for us.
                Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
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

/// The largest datagram that the kernel makes for a dump (NLMSG_GOODSIZE grows to what recv(2) offers, up to this).
const DATAGRAM_BYTES: usize = 32 * 1024;

/// A dump is interrupted by any change to what it lists; five in a row mean a host that never rests.
const DUMP_ATTEMPTS_MAX: u32 = 5;

/// Changes that came together are answered by asking once. Where they come faster than we read, ask in between.
const EVENTS_AT_ONCE_MAX: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sentences() {
        let mut error = Error::new("cannot add link eth0".into(), libc::EEXIST, None);
        assert_eq!(error.to_string(), "cannot add link eth0: File exists");
        error.hint = Some("because".into());
        assert_eq!(error.to_string(), "cannot add link eth0: File exists (because)");
        assert!(error.is_exists() && !error.is_not_found());
        let error = crate::error::Error::from(error);
        assert_eq!(error.code, crate::error::Code::INTERNAL);
    }

    #[test]
    fn too_long_a_request_is_not_sent() {
        let socket = Socket::open(Protocol::Route).unwrap();
        let mut requests = Requests::new();
        requests.push(16, 0, "cannot do it".into(), |attrs| attrs.bytes(1, &[0; 70_000]));
        let error = socket.commit(requests, |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "cannot do it: Message too long");
    }
}
