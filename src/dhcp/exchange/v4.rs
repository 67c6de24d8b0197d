//! The sockets of the DHCPv4 client, and its ARP probe.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use super::{PACKET_BYTES_MAX, PACKETS_AT_ONCE_MAX, Probe, Sockets, cannot_send};
use crate::dhcp::site::{Site, SiteError};
use crate::dhcp::time::Time;
use crate::dhcp::v4::client::{Client, Packet};
use crate::dhcp::v4::frame::{self, CLIENT_PORT, SERVER_PORT};
use crate::error::Error;
use crate::kernel::inet::LinkUdp;
use crate::kernel::packet::{Arp, PacketSocket};

/// The number of ARP probes for a new address. RFC 5227, section 1.1, has 1 to 2 s between the probes; here the interval is
/// about a fifth of that, because the links are virtual.
const PROBES: u32 = 3;
const PROBE_INTERVAL: Time = Time::from_millis(300);
/// The wait for an answer after the last probe.
const ANNOUNCE_WAIT: Time = Time::from_millis(400);

#[derive(Default)]
pub struct Sockets4 {
    packet: Option<PacketSocket>,
    /// Sends unicast packets to the server. Answers are read from `packet`, because a server can broadcast them, and
    /// broadcasts each NAK. While this socket is open, the kernel does not reply to unicast answers with ICMP "port
    /// unreachable".
    udp: Option<LinkUdp>,
}

impl Sockets for Sockets4 {
    type Client = Client;
    type Probe = ArpProbe;

    fn are_ready(_: &Site<'_>) -> Result<bool, SiteError> {
        Ok(true)
    }

    fn send(&mut self, packet: &Packet, site: &Site<'_>) -> Result<(), SiteError> {
        let Self { packet: socket, udp } = self;
        let socket = match socket {
            Some(socket) => socket,
            none => none.insert(site.run(|| PacketSocket::for_dhcp(site.record.ifindex))?),
        };
        if !packet.to.is_broadcast() {
            match send_unicast(udp, packet, site) {
                // The address is not on the interface, or a program in the container uses port 68: send the packet through the
                // packet socket.
                Err(SiteError::Failed(_)) => {}
                done => return done,
            }
        }
        socket.broadcast(&with_headers(packet)?).map_err(cannot_send)
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let Some(socket) = &self.packet else { return Ok(None) };
        let packet = socket.receive(buffer)?;
        Ok(packet.map(|packet| frame::payload(packet).unwrap_or_default()))
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.packet.as_ref().map(AsFd::as_fd)
    }
}

fn send_unicast(
    socket: &mut Option<LinkUdp>,
    packet: &Packet,
    site: &Site<'_>,
) -> Result<(), SiteError> {
    let socket = match socket {
        Some(socket) => socket,
        none => none.insert(udp_socket(packet.from, site)?),
    };
    socket.send(&packet.payload, (packet.to, SERVER_PORT).into()).map_err(cannot_send)
}

/// A running ARP probe of an address (RFC 5227).
pub struct ArpProbe {
    address: Ipv4Addr,
    socket: PacketSocket,
    left: u32,
    next_at: Time,
}

impl Probe<Ipv4Addr> for ArpProbe {
    fn begin(address: Ipv4Addr, site: &Site<'_>, now: Time) -> Result<Self, SiteError> {
        let socket = site.run(|| PacketSocket::for_arp(site.record.ifindex))?;
        let mut probe = Self { address, socket, left: PROBES, next_at: now };
        probe.send(site, now);
        Ok(probe)
    }

    fn next_at(&self) -> Time {
        self.next_at
    }

    fn poll(&mut self, site: &Site<'_>, now: Time) -> Result<Option<bool>, SiteError> {
        if self.is_answered(site) {
            return Ok(Some(true));
        }
        if self.next_at <= now {
            if self.left == 0 {
                return Ok(Some(false));
            }
            self.send(site, now);
        }
        Ok(None)
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

impl ArpProbe {
    fn is_answered(&self, site: &Site<'_>) -> bool {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        for _ in 0..PACKETS_AT_ONCE_MAX {
            match self.socket.receive(&mut buffer) {
                Ok(Some(frame)) => {
                    let arp = Arp::parse(frame);
                    if arp.is_some_and(|arp| arp.claims(self.address, site.record.mac)) {
                        return true;
                    }
                }
                Ok(None) => break,
                Err(_) => {}
            }
        }
        false
    }

    fn send(&mut self, site: &Site<'_>, now: Time) {
        let probe = Arp::probe(site.record.mac, self.address);
        // An error is ignored: without a carrier, no other host can answer.
        let _ = self.socket.broadcast(&probe.encode());
        self.left = self.left.saturating_sub(1);
        self.next_at = now + if self.left == 0 { ANNOUNCE_WAIT } else { PROBE_INTERVAL };
    }
}

/// The packet with its IP and UDP headers.
pub fn with_headers(packet: &Packet) -> Result<Vec<u8>, Error> {
    frame::build(packet.from, packet.to, &packet.payload)
        .ok_or_else(|| Error::internal("cannot send: the packet is too long"))
}

/// Opens a UDP socket on port 68 of the interface.
pub fn udp_socket(from: Ipv4Addr, site: &Site<'_>) -> Result<LinkUdp, SiteError> {
    let address = SocketAddr::new(IpAddr::V4(from), CLIENT_PORT);
    site.run(|| LinkUdp::bind(&site.record.request.key.at.ifname, address))
}
