//! Runs the DHCPv4 client of one interface: sends its packets, passes received packets to it, and probes addresses by ARP.
//! The sockets are open only while an answer is expected.

use crate::dhcp::admission;
use crate::dhcp::time::Time;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::dhcp::lease::Key;
use crate::dhcp::site::{Site, SiteError};
use crate::dhcp::v4::client::{Action, Client, Event, Via};
use crate::dhcp::v4::frame::{self, CLIENT_PORT, SERVER_PORT};
use crate::dhcp::v4::settings::Settings;
use crate::error::{Error, Result};
use crate::kernel::inet::LinkUdp;
use crate::kernel::packet::{Arp, PacketSocket};
use crate::kernel::sys;

/// The longest packet that is read. The client asks servers for at most 1500 bytes.
pub const PACKET_BYTES_MAX: usize = 9216;
/// The most packets that are read at once. Further packets wait in the socket, so that a flood to one interface does not delay
/// the clients of the others.
pub const PACKETS_AT_ONCE_MAX: u32 = 32;

/// The number of ARP probes for a new address. RFC 5227, section 1.1, has 1 to 2 s between the probes; here the interval is
/// about a fifth of that, because the links are virtual.
const PROBES: u32 = 3;
const PROBE_INTERVAL: Time = Time::from_millis(300);
/// The wait for an answer after the last probe.
const ANNOUNCE_WAIT: Time = Time::from_millis(400);

/// A client that gave up after it had lost its lease starts again after this time.
pub const RESTART_AFTER: Time = Time::from_secs(60);

/// Why an address is declined: another host answered the probe.
pub const ADDRESS_IN_USE: &str = "another host has the offered address";

/// A socket that the thread of `table::events` polls until it is readable.
pub type Pollable = Arc<dyn AsFd + Send + Sync>;

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

/// The DHCPv4 client of one interface, with its sockets and its ARP probe.
pub struct Exchange {
    pub client: Client,
    packet: Option<Arc<PacketSocket>>,
    /// Sends unicast packets to the server. Answers are read from `packet`, because a server can broadcast them, and
    /// broadcasts each NAK. While this socket is open, the kernel does not reply to unicast answers with ICMP "port
    /// unreachable".
    udp: Option<LinkUdp>,
    probe: Option<Probe>,
    restart_at: Option<Time>,
    /// The last error of a socket, for the text of `ClientEvent::Failed`.
    last_error: Option<Error>,
}

/// A running ARP probe of an address (RFC 5227).
struct Probe {
    address: Ipv4Addr,
    socket: Arc<PacketSocket>,
    left: u32,
    next_at: Time,
}

impl Exchange {
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        let seed = u64::from_ne_bytes(sys::random_bytes()?);
        Ok(Self {
            client: Client::new(settings, seed),
            packet: None,
            udp: None,
            probe: None,
            restart_at: None,
            last_error: None,
        })
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
                Action::Send { payload, via } => {
                    if let Err(error) = self.send(&payload, via, site) {
                        self.record_error(error, events);
                    }
                }
                Action::Probe(address) => self.check_address(address, site, now, events),
                Action::Bound => {
                    self.last_error = None;
                    events.push(ClientEvent::Bound);
                }
                Action::Lost(reason) => events.push(ClientEvent::Lost(reason)),
                Action::Failed(tried) => {
                    self.restart_at = Some(now + RESTART_AFTER);
                    events.push(failed(tried, self.last_error.take()));
                }
            }
        }
        if !self.client.is_listening() {
            (self.packet, self.udp) = (None, None);
        }
    }

    /// Checks an offered address. Passes `Event::Probed` to the client at once, or starts an ARP probe, at whose end `tick`
    /// or `receive` passes it.
    fn check_address(
        &mut self,
        address: Ipv4Addr,
        site: &Site<'_>,
        now: Time,
        events: &mut Vec<ClientEvent>,
    ) {
        let problem = admission::problem(site, address.into());
        events.extend(problem.map(ClientEvent::Declined));
        if problem.is_none() && site.record.request.settings.probe {
            match self.begin_probe(address, site, now) {
                Ok(probe) => {
                    self.probe = Some(probe);
                    return;
                }
                // If the probe cannot start, the address counts as free.
                Err(error) => self.record_error(error, events),
            }
        }
        self.step(Event::Probed { problem }, site, now, events);
    }

    fn record_error(&mut self, error: SiteError, events: &mut Vec<ClientEvent>) {
        match error {
            SiteError::Gone(reason) => events.push(ClientEvent::Gone(reason)),
            SiteError::Failed(error) => self.last_error = Some(error),
        }
    }

    /// The time of the next `tick`.
    pub fn deadline(&self) -> Option<Time> {
        let probe = self.probe.as_ref().map(|probe| probe.next_at);
        Time::first(self.client.deadline(), Time::first(probe, self.restart_at))
    }

    /// Handles the deadlines that have passed: those of the restart, of the probe and of the client.
    pub fn tick(&mut self, site: &Site<'_>, now: Time, events: &mut Vec<ClientEvent>) {
        if self.restart_at.is_some_and(|at| at <= now) {
            self.restart_at = None;
            return self.step(Event::Start, site, now, events);
        }
        if let Some(probe) = self.probe.as_mut().filter(|probe| probe.next_at <= now) {
            if probe.left == 0 {
                self.probe = None;
                return self.step(Event::Probed { problem: None }, site, now, events);
            }
            probe.send(site, now);
        }
        if self.client.deadline().is_some_and(|at| at <= now) {
            self.step(Event::Timeout, site, now, events);
        }
    }

    /// Adds the open sockets to a list. When one of them is readable, call `receive`.
    pub fn add_sockets(&self, list: &mut Vec<Pollable>) {
        list.extend(self.packet.iter().map(|socket| Arc::clone(socket) as Pollable));
        list.extend(self.probe.iter().map(|probe| Arc::clone(&probe.socket) as Pollable));
    }

    /// Reads the received packets and passes them to the client.
    pub fn receive(&mut self, site: &Site<'_>, now: Time, events: &mut Vec<ClientEvent>) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        for _ in 0..PACKETS_AT_ONCE_MAX {
            let Some(socket) = self.packet.clone() else { break };
            match socket.receive(&mut buffer) {
                Ok(Some(packet)) => {
                    if let Some(payload) = frame::payload(packet) {
                        self.step(Event::Received(payload), site, now, events);
                    }
                }
                Ok(None) => break,
                // ENETDOWN: the link is down or gone. The kernel reports this error once.
                Err(error) => self.last_error = Some(Error::internal(reason(&error))),
            }
        }
        if self.is_taken(site, &mut buffer) {
            self.probe = None;
            self.step(Event::Probed { problem: Some(ADDRESS_IN_USE) }, site, now, events);
        }
    }

    fn send(&mut self, payload: &[u8], via: Via, site: &Site<'_>) -> Result<(), SiteError> {
        let (from, to) = match via {
            Via::Broadcast => (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST),
            Via::BroadcastFrom(from) => (from, Ipv4Addr::BROADCAST),
            Via::Unicast { from, to } => match self.send_unicast(payload, from, to, site) {
                // The address is not on the interface, or a program in the container uses port 68: send the packet through the
                // packet socket.
                Err(SiteError::Failed(_)) => (from, to),
                result => return result,
            },
        };
        let packet = frame::build(from, to, payload)
            .ok_or_else(|| Error::internal("cannot send: the packet is too long"))?;
        self.packet_socket(site)?.broadcast(&packet).map_err(cannot_send)
    }

    fn send_unicast(
        &mut self,
        payload: &[u8],
        from: Ipv4Addr,
        to: Ipv4Addr,
        site: &Site<'_>,
    ) -> Result<(), SiteError> {
        self.packet_socket(site)?;
        if self.udp.is_none() {
            self.udp = Some(udp_socket(from, site)?);
        }
        let Some(socket) = &self.udp else { return Ok(()) };
        socket.send(payload, (to, SERVER_PORT).into()).map_err(cannot_send)
    }

    fn packet_socket(&mut self, site: &Site<'_>) -> Result<Arc<PacketSocket>, SiteError> {
        if self.packet.is_none() {
            let socket = site.run(|| PacketSocket::for_dhcp(site.record.ifindex))?;
            self.packet = Some(Arc::new(socket));
        }
        self.packet.clone().ok_or_else(|| Error::internal("no packet socket").into())
    }

    fn begin_probe(
        &self,
        address: Ipv4Addr,
        site: &Site<'_>,
        now: Time,
    ) -> Result<Probe, SiteError> {
        let socket = Arc::new(site.run(|| PacketSocket::for_arp(site.record.ifindex))?);
        let mut probe = Probe { address, socket, left: PROBES, next_at: now };
        probe.send(site, now);
        Ok(probe)
    }

    fn is_taken(&self, site: &Site<'_>, buffer: &mut [u8]) -> bool {
        let Some(probe) = &self.probe else { return false };
        for _ in 0..PACKETS_AT_ONCE_MAX {
            match probe.socket.receive(buffer) {
                Ok(Some(frame)) => {
                    let arp = Arp::parse(frame);
                    if arp.is_some_and(|arp| arp.claims(probe.address, site.record.mac)) {
                        return true;
                    }
                }
                Ok(None) => break,
                Err(_) => {}
            }
        }
        false
    }
}

impl Probe {
    fn send(&mut self, site: &Site<'_>, now: Time) {
        let probe = Arp::probe(site.record.mac, self.address);
        // An error is ignored: without a carrier, no other host can answer.
        let _ = self.socket.broadcast(&probe.encode());
        self.left = self.left.saturating_sub(1);
        self.next_at = now + if self.left == 0 { ANNOUNCE_WAIT } else { PROBE_INTERVAL };
    }
}

/// Opens a UDP socket on port 68 of the interface.
pub fn udp_socket(from: Ipv4Addr, site: &Site<'_>) -> Result<LinkUdp, SiteError> {
    let Key { ifname, .. } = &site.record.request.key;
    site.run(|| LinkUdp::bind(ifname, SocketAddr::new(IpAddr::V4(from), CLIENT_PORT)))
}

/// The event for a client that gave up, with the last error of its socket.
pub fn failed(mut tried: String, error: Option<Error>) -> ClientEvent {
    if let Some(error) = error {
        tried.push_str("; ");
        tried.push_str(&error.to_string());
    }
    ClientEvent::Failed(tried)
}

fn reason(error: &io::Error) -> String {
    crate::kernel::file::reason(error)
}

pub fn cannot_send(error: io::Error) -> SiteError {
    Error::internal(format_args!("cannot send: {}", reason(&error))).into()
}
