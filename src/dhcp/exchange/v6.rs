//! The socket of the DHCPv6 client, and its probe: duplicate address detection.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ipnet::Ipv6Net;

use super::{PACKET_BYTES_MAX, POLL_INTERVAL, Probe, Sockets, cannot_send};
use crate::dhcp::site::{Site, SiteError};
use crate::dhcp::time::Time;
use crate::dhcp::v6::client::Client;
use crate::dhcp::v6::frame::{CLIENT_PORT, SERVER_PORT, SERVERS};
use crate::dhcp::v6::packet::MessageType;
use crate::kernel::clock;
use crate::kernel::inet::LinkUdp;
use crate::netlink::rtnl::{Address, Batch, NewAddress};

/// The wait for an answer after each RELEASE. Then a last RELEASE is sent without a wait.
const RELEASE_WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

#[derive(Default)]
pub struct Sockets6 {
    udp: Option<LinkUdp>,
}

impl Sockets for Sockets6 {
    type Client = Client;
    type Probe = AddressDetection;

    /// Whether the interface has a link-local address that is usable. Duplicate address detection delays it.
    fn are_ready(site: &Site<'_>) -> Result<bool, SiteError> {
        let addresses = site.open()?.rtnl()?.addresses(site.record.ifindex)?;
        let is_usable = |address: &Address| {
            address.net.addr().is_ipv6() && address.scope_link && address.is_usable()
        };
        Ok(addresses.iter().any(is_usable))
    }

    fn send(&mut self, payload: &Vec<u8>, site: &Site<'_>) -> Result<(), SiteError> {
        let udp = match &mut self.udp {
            Some(udp) => udp,
            none => none.insert(socket(site)?),
        };
        send(udp, payload, site)
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let Some(udp) = &self.udp else { return Ok(None) };
        let packet = udp.receive(buffer)?;
        Ok(packet.map(|(payload, from)| if is_on_link(from) { payload } else { &[] }))
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.udp.as_ref().map(AsFd::as_fd)
    }
}

/// Duplicate address detection for an address, by the kernel (RFC 4862, section 5.4).
pub struct AddressDetection {
    address: Ipv6Addr,
    next_at: Time,
}

impl Probe<Ipv6Addr> for AddressDetection {
    /// Adds the address to the interface, so that the kernel starts the detection. A free address stays on the interface: the
    /// plugin adds it anyway.
    fn begin(address: Ipv6Addr, site: &Site<'_>, now: Time) -> Result<Self, SiteError> {
        let net = Ipv6Net::from(address).into();
        let new = NewAddress { net, no_dad: false, no_prefix_route: false, may_exist: true };
        let mut batch = Batch::new();
        batch.add_address(site.record.ifindex, &site.record.request.key.at.ifname, &new);
        site.open()?.rtnl()?.commit(batch)?;
        Ok(Self { address, next_at: now + POLL_INTERVAL })
    }

    fn next_at(&self) -> Time {
        self.next_at
    }

    /// Deletes the address from the interface if another host has it.
    fn poll(&mut self, site: &Site<'_>, now: Time) -> Result<Option<bool>, SiteError> {
        if now < self.next_at {
            return Ok(None);
        }
        let rtnl = site.open()?.rtnl()?;
        let index = site.record.ifindex;
        let addresses = rtnl.addresses(index)?;
        let is_probed = |candidate: &&Address| candidate.net.addr() == self.address;
        let Some(found) = addresses.iter().find(is_probed) else { return Ok(Some(false)) };
        if found.dad_failed {
            let mut batch = Batch::new();
            batch.del_address(index, &site.record.request.key.at.ifname, found.net);
            rtnl.commit(batch)?;
            return Ok(Some(true));
        }
        self.next_at = now + POLL_INTERVAL;
        Ok((!found.tentative).then_some(false))
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
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
    site.run(|| LinkUdp::bind(&site.record.request.key.at.ifname, address))
}

/// Sends a message to all servers and relays of the link.
fn send(socket: &LinkUdp, payload: &[u8], site: &Site<'_>) -> Result<(), SiteError> {
    let servers = SocketAddrV6::new(SERVERS, SERVER_PORT, 0, site.record.ifindex);
    socket.send(payload, servers.into()).map_err(cannot_send)
}

/// Whether a packet was sent on this link: its source is link-local, and routers do not forward such packets. Servers and
/// relays answer a client's link-local address from their own link-local address.
fn is_on_link(from: IpAddr) -> bool {
    matches!(from, IpAddr::V6(from) if from.is_unicast_link_local())
}
