//! Runs the client of one interface: sends its packets, passes received packets to it, and probes addresses. The sockets are
//! open only while an answer is expected.

pub mod v4;
pub mod v6;

use std::io;
use std::os::fd::BorrowedFd;

use crate::dhcp::admission;
use crate::dhcp::client::{Action, Client, Event};
use crate::dhcp::site::{Site, SiteError};
use crate::dhcp::time::Time;
use crate::error::Error;
use crate::kernel::sys;

/// The longest packet that is read. The client asks servers for at most 1500 bytes.
const PACKET_BYTES_MAX: usize = 9216;
/// The most packets that are read at once. Further packets wait in the socket, so that a flood to one interface does not delay
/// the clients of the others.
const PACKETS_AT_ONCE_MAX: u32 = 32;

/// A client that gave up after it had lost its lease starts again after this time.
const RESTART_AFTER: Time = Time::from_secs(60);
/// The longest wait until a new interface can send.
const READY_TIMEOUT: Time = Time::from_secs(5);
/// The pause between two reads of the addresses. To wait for an event, a socket in the namespace would have to stay open.
pub const POLL_INTERVAL: Time = Time::from_millis(100);

/// Why an address is declined: another host answered the probe.
const ADDRESS_IN_USE: &str = "another host has the offered address";

/// An event of a client, for the table of leases.
#[derive(Debug)]
pub enum ClientEvent {
    /// The client has a new lease, or a renewed one.
    Bound,
    /// The lease was lost for this reason: its address must be removed from the interface.
    Lost(&'static str),
    /// The client declined an address, for this reason.
    Declined(&'static str),
    /// The client gave up. The text lists the attempts.
    Failed(String),
    /// The namespace or the link is gone.
    Gone(&'static str),
}

/// The sockets of a client of one family. They are opened when they are needed.
pub trait Sockets: Default {
    type Client: Client;
    type Probe: Probe<<Self::Client as Client>::Address>;

    /// Whether the interface has what the sockets need.
    fn are_ready(site: &Site<'_>) -> Result<bool, SiteError>;

    fn send(
        &mut self,
        packet: &<Self::Client as Client>::Packet,
        site: &Site<'_>,
    ) -> Result<(), SiteError>;

    /// The payload of the next packet; empty if the packet is not of a server. `None` if no packet is pending.
    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>>;

    /// The socket that receives packets.
    fn pollable(&self) -> Option<BorrowedFd<'_>>;
}

/// A look for another host with an address of type `A`.
pub trait Probe<A>: Sized {
    fn begin(address: A, site: &Site<'_>, now: Time) -> Result<Self, SiteError>;

    /// The time of the next `poll`.
    fn next_at(&self) -> Time;

    /// Whether another host has the address. `None`: the probe still runs.
    fn poll(&mut self, site: &Site<'_>, now: Time) -> Result<Option<bool>, SiteError>;

    /// The socket that receives answers, if the probe has one.
    fn pollable(&self) -> Option<BorrowedFd<'_>>;
}

/// The client of one interface, with its sockets and its probe.
pub struct Exchange<S: Sockets> {
    pub client: S::Client,
    /// The events that the caller has not taken yet.
    pub events: Vec<ClientEvent>,
    sockets: S,
    probe: Option<S::Probe>,
    /// Set while the client is not started yet.
    start: Option<Start>,
    /// The last error of a socket, for the text of `ClientEvent::Failed`.
    last_error: Option<Error>,
}

/// The client starts when the sockets are ready, at the latest at the deadline.
struct Start {
    next_poll: Time,
    deadline: Time,
}

impl<S: Sockets> Exchange<S> {
    pub fn new(client: S::Client) -> Self {
        Self {
            client,
            events: Vec::new(),
            sockets: S::default(),
            probe: None,
            start: None,
            last_error: None,
        }
    }

    /// Resumes the client with a lease. Without one, starts it as soon as the sockets are ready, or after 5 s.
    pub fn start(
        &mut self,
        lease: Option<&<S::Client as Client>::Lease>,
        site: &Site<'_>,
        now: Time,
    ) {
        if let Some(lease) = lease {
            return self.step(Event::Resume(lease.clone()), site, now);
        }
        self.start = Some(Start { next_poll: now, deadline: now + READY_TIMEOUT });
        self.tick(site, now);
    }

    /// Passes an event to the client, and executes the actions that the client returns.
    fn step(&mut self, event: Event<'_, <S::Client as Client>::Lease>, site: &Site<'_>, now: Time) {
        for action in self.client.step(event, now) {
            match action {
                Action::Send(packet) => {
                    let sent = self.sockets.send(&packet, site);
                    sent.unwrap_or_else(|error| self.record_error(error));
                }
                Action::Probe(address) => self.check_address(address, site, now),
                Action::Bound => {
                    (self.last_error, self.probe) = (None, None);
                    self.events.push(ClientEvent::Bound);
                }
                Action::Lost(reason) => self.events.push(ClientEvent::Lost(reason)),
                Action::Failed(mut tried) => {
                    let next = now + RESTART_AFTER;
                    self.start = Some(Start { next_poll: next, deadline: next });
                    if let Some(error) = self.last_error.take() {
                        tried.push_str(&format!("; {error}"));
                    }
                    self.events.push(ClientEvent::Failed(tried));
                }
            }
        }
        if !self.client.is_listening() {
            self.sockets = S::default();
        }
    }

    /// Checks an offered address. Passes `Event::Probed` to the client at once, or starts a probe, at whose end `poll_probe`
    /// passes it.
    fn check_address(
        &mut self,
        address: <S::Client as Client>::Address,
        site: &Site<'_>,
        now: Time,
    ) {
        let problem = admission::problem(site, address.into());
        self.events.extend(problem.map(ClientEvent::Declined));
        if problem.is_none() && site.record.request.settings.probe {
            match S::Probe::begin(address, site, now) {
                Ok(probe) => {
                    self.probe = Some(probe);
                    return;
                }
                // If the probe cannot start, the address counts as free.
                Err(error) => self.record_error(error),
            }
        }
        self.step(Event::Probed { problem }, site, now);
    }

    fn record_error(&mut self, error: SiteError) {
        match error {
            SiteError::Gone(reason) => self.events.push(ClientEvent::Gone(reason)),
            SiteError::Failed(error) => self.last_error = Some(error),
        }
    }

    /// The time of the next `run`.
    pub fn deadline(&self) -> Option<Time> {
        let start = self.start.as_ref().map(|start| start.next_poll);
        let probe = self.probe.as_ref().map(Probe::next_at);
        Time::first(self.client.deadline(), Time::first(start, probe))
    }

    /// Handles the received packets, and the deadlines that have passed.
    pub fn run(&mut self, site: &Site<'_>, now: Time) {
        self.receive(site, now);
        self.tick(site, now);
    }

    /// Reads the received packets and passes them to the client. Then polls the probe.
    fn receive(&mut self, site: &Site<'_>, now: Time) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        for _ in 0..PACKETS_AT_ONCE_MAX {
            match self.sockets.receive(&mut buffer) {
                Ok(Some(payload)) => self.step(Event::Received(payload), site, now),
                Ok(None) => break,
                // ENETDOWN: the link is down or gone. The kernel reports this error once.
                Err(error) => self.last_error = Some(Error::internal(sys::reason(&error))),
            }
        }
        self.poll_probe(site, now);
    }

    /// Handles the deadlines of the start and of the client that have passed.
    fn tick(&mut self, site: &Site<'_>, now: Time) {
        if let Some(start) = self.start.as_mut().filter(|start| start.next_poll <= now) {
            match S::are_ready(site) {
                Ok(false) if now < start.deadline => start.next_poll = now + POLL_INTERVAL,
                Err(SiteError::Gone(reason)) => return self.events.push(ClientEvent::Gone(reason)),
                _ => {
                    self.start = None;
                    return self.step(Event::Start, site, now);
                }
            }
        }
        if self.client.deadline().is_some_and(|at| at <= now) {
            self.step(Event::Timeout, site, now);
        }
    }

    fn poll_probe(&mut self, site: &Site<'_>, now: Time) {
        let Some(probe) = &mut self.probe else { return };
        let is_taken = match probe.poll(site, now) {
            Err(SiteError::Gone(reason)) => return self.events.push(ClientEvent::Gone(reason)),
            Ok(None) => return,
            Ok(Some(is_taken)) => is_taken,
            // If the answer cannot be read, the address counts as free.
            Err(SiteError::Failed(_)) => false,
        };
        self.probe = None;
        let problem = is_taken.then_some(ADDRESS_IN_USE);
        self.step(Event::Probed { problem }, site, now);
    }

    /// Adds the open sockets to a list. When one of them is readable, call `run`.
    pub fn add_sockets<'a>(&'a self, list: &mut Vec<BorrowedFd<'a>>) {
        list.extend(self.sockets.pollable());
        list.extend(self.probe.as_ref().and_then(Probe::pollable));
    }
}

pub fn cannot_send(error: io::Error) -> SiteError {
    sys::failed("cannot send")(error).into()
}
