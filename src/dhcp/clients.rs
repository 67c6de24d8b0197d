//! The clients of one interface: one for each family that the configuration names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::dhcp::exchange::{self, ClientEvent, Exchange, Pollable};
use crate::dhcp::exchange6::{self, Exchange6};
use crate::dhcp::journal::LeaseRecord;
use crate::dhcp::protocol::LeaseRequest;
use crate::dhcp::site::{Site, SiteError, prefixed};
use crate::dhcp::slaac::Slaac;
use crate::dhcp::time::Time;
use crate::dhcp::v4::client::{Action, Event, Via};
use crate::dhcp::v4::frame;
use crate::dhcp::v4::settings::{Settings, Times};
use crate::dhcp::v6::client::{Action as Action6, Event as Event6, Settings as Settings6};
use crate::dhcp::v6::{duid, frame as frame6};
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::inet::LinkUdp;
use crate::kernel::packet::PacketSocket;

/// The options of the daemon that its clients need.
#[derive(Default)]
pub struct DaemonOptions {
    pub times: Times,
    /// The prefix of the paths of namespaces (flag `-hostprefix`).
    pub prefix: PathBuf,
    /// Whether all DHCPv4 clients set the BROADCAST flag (flag `-broadcast`).
    pub broadcast: bool,
}

/// The longest wait for the server's MAC address when a lease is released.
const ARP_TIMEOUT: Duration = Duration::from_millis(500);

/// The file with the machine id (machine-id(5)). Without it, the boot id is used.
const MACHINE_ID: &str = "/etc/machine-id";

/// The clients of one interface.
pub struct Clients {
    pub v4: Option<Box<Exchange>>,
    pub v6: Option<Box<Exchange6>>,
    pub slaac: Option<Slaac>,
    limit: Time,
}

/// A RELEASE to send, of DHCPv4 or DHCPv6.
pub enum ReleasePacket {
    V4 { payload: Vec<u8>, from: Ipv4Addr, to: Ipv4Addr },
    V6 { payload: Vec<u8> },
}

impl Clients {
    /// Makes the clients of the requested families. They are not started.
    pub fn new(record: &LeaseRecord, options: &DaemonOptions) -> Result<Self> {
        let LeaseRequest { key, settings, .. } = &record.request;
        let times = options.times;
        let v4 = || {
            Exchange::new(Settings {
                mac: record.mac,
                client_id: key.client_id(),
                broadcast: settings.broadcast || options.broadcast,
                provide: settings.provide.clone(),
                request: settings.request.clone(),
                probe: settings.probe,
                times,
            })
        };
        let v6 = || {
            let id = machine_id(&options.prefix)?;
            let (duid, iaid) = duid::of(id.trim_end().as_bytes(), key);
            Exchange6::new(Settings6 {
                duid,
                iaid,
                probe: settings.probe,
                resend_timeout: times.resend_timeout,
            })
        };
        Ok(Self {
            v4: settings.families.v4.then(v4).transpose()?.map(Box::new),
            v6: settings.families.v6.then(v6).transpose()?.map(Box::new),
            slaac: settings.families.slaac.then(Slaac::default),
            limit: times.resend_timeout,
        })
    }

    /// Starts the clients without a lease, and resumes the clients with a lease.
    pub fn start(&mut self, site: &Site<'_>, now: Time) -> Vec<ClientEvent> {
        let mut events = Vec::new();
        if let Some(v4) = &mut self.v4 {
            let event = site.record.v4.clone().map_or(Event::Start, Event::Resume);
            v4.step(event, site, now, &mut events);
        }
        if let Some(v6) = &mut self.v6 {
            match site.record.v6.clone() {
                Some(lease) => v6.step(Event6::Resume(lease), site, now, &mut events),
                None => v6.start(now),
            }
        }
        if let Some(slaac) = &mut self.slaac {
            slaac.start(now, self.limit);
        }
        events
    }

    /// Puts the leases of a record into the clients, so that `release` can release them.
    pub fn resume_to_release(&mut self, record: &LeaseRecord, now: Time) {
        // The returned actions are dropped: no packet is sent to confirm the lease.
        if let (Some(v4), Some(lease)) = (&mut self.v4, &record.v4) {
            v4.client.step(Event::Resume(lease.clone()), now);
        }
        if let (Some(v6), Some(lease)) = (&mut self.v6, &record.v6) {
            v6.client.step(Event6::Resume(lease.clone()), now);
        }
    }

    /// Whether each client has a lease.
    pub fn are_bound(&self) -> bool {
        self.v4.as_ref().is_none_or(|v4| v4.client.lease().is_some())
            && self.v6.as_ref().is_none_or(|v6| v6.client.lease().is_some())
            && self.slaac.as_ref().is_none_or(|slaac| !slaac.ips.is_empty())
    }

    /// The time of the next `tick`.
    pub fn deadline(&self) -> Option<Time> {
        let v4 = self.v4.as_ref().and_then(|v4| v4.deadline());
        let v6 = self.v6.as_ref().and_then(|v6| v6.deadline());
        let slaac = self.slaac.as_ref().and_then(Slaac::deadline);
        Time::first(v4, Time::first(v6, slaac))
    }

    /// Handles the deadlines of the clients that have passed.
    pub fn tick(&mut self, site: &Site<'_>, now: Time) -> Vec<ClientEvent> {
        let mut events = Vec::new();
        if let Some(v4) = &mut self.v4 {
            v4.tick(site, now, &mut events);
        }
        if let Some(v6) = &mut self.v6 {
            v6.tick(site, now, &mut events);
        }
        if let Some(slaac) = &mut self.slaac {
            slaac.tick(site, now, &mut events);
        }
        events
    }

    /// Adds the open sockets to a list. When one of them is readable, call `receive`.
    pub fn add_sockets(&self, list: &mut Vec<Pollable>) {
        self.v4.iter().for_each(|v4| v4.add_sockets(list));
        self.v6.iter().for_each(|v6| v6.add_sockets(list));
    }

    /// Reads the received packets and passes them to the clients.
    pub fn receive(&mut self, site: &Site<'_>, now: Time) -> Vec<ClientEvent> {
        let mut events = Vec::new();
        if let Some(v4) = &mut self.v4 {
            v4.receive(site, now, &mut events);
        }
        if let Some(v6) = &mut self.v6 {
            v6.receive(site, now, &mut events);
        }
        events
    }

    /// Returns the packets that release the leases. The clients are finished afterwards.
    pub fn release(&mut self, now: Time) -> Vec<ReleasePacket> {
        let mut packets = Vec::new();
        if let Some(v4) = &mut self.v4 {
            for action in v4.client.step(Event::Release, now) {
                if let Action::Send { payload, via: Via::Unicast { from, to } } = action {
                    packets.push(ReleasePacket::V4 { payload, from, to });
                }
            }
        }
        if let Some(v6) = &mut self.v6 {
            for action in v6.client.step(Event6::Release, now) {
                if let Action6::Send(payload) = action {
                    packets.push(ReleasePacket::V6 { payload });
                }
            }
        }
        packets
    }
}

/// The machine id; the boot id if the machine has none.
fn machine_id(prefix: &Path) -> Result<String> {
    let read = |path: &str| file::read_text(&prefixed(prefix, Path::new(path)));
    let machine_id = read(MACHINE_ID).ok().filter(|id| !id.trim().is_empty());
    machine_id.map_or_else(|| file::boot_id().map(str::to_owned), Ok).map_err(|error| {
        Error::internal(format_args!("cannot read the boot id: {}", file::reason(&error)))
    })
}

impl ReleasePacket {
    /// The packet with its IP and UDP headers. `local` is the link-local source address of an IPv6 packet.
    pub fn packet(&self, local: Ipv6Addr) -> Result<Vec<u8>> {
        let packet = match self {
            Self::V4 { payload, from, to } => frame::build(*from, *to, payload),
            Self::V6 { payload } => frame6::build(local, payload),
        };
        packet.ok_or_else(|| Error::internal("cannot send: the packet is too long"))
    }

    /// Sends the packet through the interface.
    pub fn send(&self, site: &Site<'_>) -> Result<(), SiteError> {
        let sent = match self {
            Self::V4 { payload, from, to } => {
                let server = (IpAddr::V4(*to), frame::SERVER_PORT).into();
                exchange::udp_socket(*from, site).and_then(|socket| {
                    socket.send(payload, server).map_err(exchange::cannot_send)?;
                    wait_until_sent(&socket)
                })
            }
            Self::V6 { payload } => exchange6::socket(site)
                .and_then(|socket| exchange6::release(&socket, payload, site)),
        };
        match sent {
            // The address is not on the interface, for example because a later step of ADD failed; or the server does not
            // answer ARP.
            Err(SiteError::Failed(_)) if matches!(self, Self::V4 { .. }) => {
                let packet = self.packet(Ipv6Addr::UNSPECIFIED)?;
                let socket = site.run(|| PacketSocket::for_sending(site.record.ifindex))?;
                socket.broadcast(&packet).map_err(exchange::cannot_send)
            }
            sent => sent,
        }
    }

    pub fn is_v6(&self) -> bool {
        matches!(self, Self::V6 { .. })
    }
}

/// Waits until the kernel has sent the packet. Fails if the server does not answer ARP within the timeout.
fn wait_until_sent(socket: &LinkUdp) -> Result<(), SiteError> {
    match socket.wait_until_sent(ARP_TIMEOUT).map_err(exchange::cannot_send)? {
        true => Ok(()),
        false => Err(Error::internal("cannot send: the server does not answer ARP").into()),
    }
}
