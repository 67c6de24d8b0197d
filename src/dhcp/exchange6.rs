//! Runs the DHCPv6 client of one interface: sends its packets, passes received packets to it, and probes addresses by
//! duplicate address detection. The socket is open only while an answer is expected.

use crate::dhcp::time::Time;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv6Net;

use crate::dhcp::admission;
use crate::dhcp::exchange::{
    ADDRESS_IN_USE, ClientEvent, PACKET_BYTES_MAX, PACKETS_AT_ONCE_MAX, Pollable, RESTART_AFTER,
    cannot_send, failed,
};
use crate::dhcp::site::{Site, SiteError};
use crate::dhcp::v6::client::{Action, Client, Event, Settings};
use crate::dhcp::v6::frame::{CLIENT_PORT, SERVER_PORT, SERVERS};
use crate::dhcp::v6::packet::MessageType;
use crate::error::{Error, Result};
use crate::kernel::clock;
use crate::kernel::file::reason;
use crate::kernel::inet::LinkUdp;
use crate::kernel::sys;
use crate::netlink::rtnl::{Batch, NewAddress};

/// The longest wait for the link-local address of a new interface. Duplicate address detection delays it.
const LINK_LOCAL_TIMEOUT: Time = Time::from_secs(5);
/// The pause between two reads of the addresses. To wait for an event, a socket in the namespace would have to stay open.
pub const POLL_INTERVAL: Time = Time::from_millis(100);

/// The wait for an answer after each RELEASE. Then a last RELEASE is sent without a wait.
const RELEASE_WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// The DHCPv6 client of one interface, with its socket and its probe.
pub struct Exchange6 {
    pub client: Client,
    udp: Option<Arc<LinkUdp>>,
    /// Set while the client is not started yet.
    starts: Option<Start>,
    /// The address that duplicate address detection probes, and the time of the next poll.
    probe: Option<(Ipv6Addr, Time)>,
    /// The last error of the socket, for the text of `ClientEvent::Failed`.
    last_error: Option<Error>,
}

/// The client starts when the interface has a link-local address, at the latest at the deadline.
struct Start {
    next_poll: Time,
    deadline: Time,
}

impl Exchange6 {
    pub fn new(settings: Settings) -> Result<Self> {
        let seed = u64::from_ne_bytes(sys::random_bytes()?);
        let client = Client::new(settings, seed);
        Ok(Self { client, udp: None, starts: None, probe: None, last_error: None })
    }

    /// Starts the client as soon as the interface has a link-local address, or after 5 s without one.
    pub fn start(&mut self, now: Time) {
        self.starts = Some(Start { next_poll: now, deadline: now + LINK_LOCAL_TIMEOUT });
    }

    /// Passes an event to the client, and executes the actions that the client returns.
    pub fn step(
        &mut self,
        event: Event<'_>,
        site: &Site<'_>,
        now: Time,
        events: &mut Vec<ClientEvent>,
    ) {
        for action in self.client.step(event, now) {
            match action {
                Action::Send(payload) => {
                    let sent = self.send(&payload, site);
                    self.record_error(sent, events);
                }
                Action::Probe(address) => {
                    let problem = admission::problem(site, address.into());
                    events.extend(problem.map(ClientEvent::Declined));
                    if problem.is_some() || !site.record.request.settings.probe {
                        self.step(Event::Probed { problem }, site, now, events);
                        continue;
                    }
                    self.probe = Some((address, now + POLL_INTERVAL));
                    // If the address cannot be added, the next poll does not find it, and the address counts as free.
                    self.record_error(begin_probe(address, site), events);
                }
                Action::Bound => {
                    (self.last_error, self.probe) = (None, None);
                    events.push(ClientEvent::Bound);
                }
                Action::Lost(reason) => events.push(ClientEvent::Lost(reason)),
                Action::Failed(tried) => {
                    let next = now + RESTART_AFTER;
                    self.starts = Some(Start { next_poll: next, deadline: next });
                    events.push(failed(tried, self.last_error.take()));
                }
            }
        }
        if !self.client.is_listening() {
            self.udp = None;
        }
    }

    fn record_error(&mut self, done: Result<(), SiteError>, events: &mut Vec<ClientEvent>) {
        match done {
            Ok(()) => {}
            Err(SiteError::Gone(reason)) => events.push(ClientEvent::Gone(reason)),
            Err(SiteError::Failed(error)) => self.last_error = Some(error),
        }
    }

    /// The time of the next `tick`.
    pub fn deadline(&self) -> Option<Time> {
        let start = self.starts.as_ref().map(|start| start.next_poll);
        let probe = self.probe.map(|(_, next_poll)| next_poll);
        Time::first(self.client.deadline(), Time::first(start, probe))
    }

    /// Handles the deadlines that have passed: those of the start, of the probe and of the client.
    pub fn tick(&mut self, site: &Site<'_>, now: Time, events: &mut Vec<ClientEvent>) {
        if let Some(start) = self.starts.as_mut().filter(|start| start.next_poll <= now) {
            match has_link_local(site) {
                Ok(false) if now < start.deadline => start.next_poll = now + POLL_INTERVAL,
                Err(SiteError::Gone(reason)) => return events.push(ClientEvent::Gone(reason)),
                _ => {
                    self.starts = None;
                    return self.step(Event::Start, site, now, events);
                }
            }
        }
        if let Some((address, _)) = self.probe.filter(|(_, next_poll)| *next_poll <= now) {
            let taken = match is_taken(address, site) {
                Err(SiteError::Gone(reason)) => return events.push(ClientEvent::Gone(reason)),
                Ok(None) => {
                    self.probe = Some((address, now + POLL_INTERVAL));
                    return;
                }
                // If the addresses cannot be read, the address counts as free.
                result => matches!(result, Ok(Some(true))),
            };
            self.probe = None;
            let problem = taken.then_some(ADDRESS_IN_USE);
            return self.step(Event::Probed { problem }, site, now, events);
        }
        if self.client.deadline().is_some_and(|at| at <= now) {
            self.step(Event::Timeout, site, now, events);
        }
    }

    /// Adds the open socket to a list. When it is readable, call `receive`.
    pub fn add_sockets(&self, list: &mut Vec<Pollable>) {
        list.extend(self.udp.iter().map(|socket| Arc::clone(socket) as Pollable));
    }

    /// Reads the received packets and passes them to the client.
    pub fn receive(&mut self, site: &Site<'_>, now: Time, events: &mut Vec<ClientEvent>) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        for _ in 0..PACKETS_AT_ONCE_MAX {
            let Some(socket) = self.udp.clone() else { break };
            match socket.receive(&mut buffer) {
                Ok(Some((payload, from))) if is_on_link(from) => {
                    self.step(Event::Received(payload), site, now, events);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => self.last_error = Some(Error::internal(reason(&error))),
            }
        }
    }

    fn send(&mut self, payload: &[u8], site: &Site<'_>) -> Result<(), SiteError> {
        if self.udp.is_none() {
            self.udp = Some(Arc::new(socket(site)?));
        }
        self.udp.as_ref().map_or(Ok(()), |socket| send(socket, payload, site))
    }
}

/// Whether a packet was sent on this link: its source is link-local, and routers do not forward such packets. Servers and
/// relays answer a client's link-local address from their own link-local address.
fn is_on_link(from: IpAddr) -> bool {
    matches!(from, IpAddr::V6(from) if from.is_unicast_link_local())
}

/// Whether the interface has a link-local address that is usable.
fn has_link_local(site: &Site<'_>) -> Result<bool, SiteError> {
    let addresses = site.open()?.rtnl()?.addresses(site.record.ifindex)?;
    let is_usable = |address: &crate::netlink::rtnl::Address| {
        address.net.addr().is_ipv6()
            && address.scope_link
            && !address.tentative
            && !address.dad_failed
    };
    Ok(addresses.iter().any(is_usable))
}

/// Adds the address to the interface, so that the kernel starts duplicate address detection (RFC 4862, section 5.4). A free
/// address stays on the interface: the plugin adds it anyway.
fn begin_probe(address: Ipv6Addr, site: &Site<'_>) -> Result<(), SiteError> {
    let net = Ipv6Net::from(address).into();
    let new = NewAddress { net, no_dad: false, no_prefix_route: false, may_exist: true };
    let mut batch = Batch::new();
    batch.add_address(site.record.ifindex, &site.record.request.key.ifname, &new);
    Ok(site.open()?.rtnl()?.commit(batch)?)
}

/// Whether duplicate address detection found another host with the address. If so, deletes the address from the interface.
/// `None`: the detection still runs.
fn is_taken(address: Ipv6Addr, site: &Site<'_>) -> Result<Option<bool>, SiteError> {
    let rtnl = site.open()?.rtnl()?;
    let index = site.record.ifindex;
    let addresses = rtnl.addresses(index)?;
    let Some(found) = addresses.iter().find(|candidate| candidate.net.addr() == address) else {
        return Ok(Some(false));
    };
    if found.dad_failed {
        let mut batch = Batch::new();
        batch.del_address(index, &site.record.request.key.ifname, found.net);
        rtnl.commit(batch)?;
        return Ok(Some(true));
    }
    Ok((!found.tentative).then_some(false))
}

/// Sends a RELEASE until the server answers it (RFC 8415, section 18.2.7). It sends fewer packets than the RFC, because a DEL
/// waits. A server that does not answer is not an error.
pub fn release(socket: &LinkUdp, payload: &[u8], site: &Site<'_>) -> Result<(), SiteError> {
    for timeout in RELEASE_WAITS {
        send(socket, payload, site)?;
        if is_answered(socket, payload, timeout).map_err(cannot_send)? {
            return Ok(());
        }
    }
    send(socket, payload, site)
}

/// Waits for the REPLY to a packet. Returns false after the timeout.
fn is_answered(socket: &LinkUdp, payload: &[u8], timeout: Duration) -> io::Result<bool> {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let end = clock::since_boot() + timeout;
    loop {
        let left = end.saturating_sub(clock::since_boot());
        if left.is_zero() {
            return Ok(false);
        }
        clock::readable(&[socket.as_fd()], Some(left))?;
        if let Some((answer, from)) = socket.receive(&mut buffer)? {
            let is_reply = answer.first() == Some(&MessageType::REPLY.0);
            if is_on_link(from) && is_reply && answer.get(1..4) == payload.get(1..4) {
                return Ok(true);
            }
        }
    }
}

/// Opens a UDP socket on port 546 of the interface.
pub fn socket(site: &Site<'_>) -> Result<LinkUdp, SiteError> {
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), CLIENT_PORT);
    site.run(|| LinkUdp::bind(&site.record.request.key.ifname, address))
}

/// Sends a message to all servers and relays of the link.
pub fn send(socket: &LinkUdp, payload: &[u8], site: &Site<'_>) -> Result<(), SiteError> {
    let servers = SocketAddrV6::new(SERVERS, SERVER_PORT, 0, site.record.ifindex);
    socket.send(payload, servers.into()).map_err(cannot_send)
}
