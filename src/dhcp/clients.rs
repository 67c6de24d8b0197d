//! The clients of one interface: one for each family that the configuration names.

use std::mem;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use crate::dhcp::client::{Action, Client, Event};
use crate::dhcp::exchange::v4::Sockets4;
use crate::dhcp::exchange::v6::Sockets6;
use crate::dhcp::exchange::{self, ClientEvent, Exchange};
use crate::dhcp::flags::Flags;
use crate::dhcp::journal::LeaseRecord;
use crate::dhcp::protocol::LeaseRequest;
use crate::dhcp::site::{Site, SiteError};
use crate::dhcp::slaac::Slaac;
use crate::dhcp::time::Time;
use crate::dhcp::v4::client::{Client as Client4, Packet};
use crate::dhcp::v4::frame;
use crate::dhcp::v4::settings::Settings as Settings4;
use crate::dhcp::v6::client::{Client as Client6, Settings as Settings6};
use crate::dhcp::v6::{duid, frame as frame6};
use crate::error::{Code, Error, Result};
use crate::kernel::inet::{self, LinkUdp};
use crate::kernel::netns::NetNs;
use crate::kernel::packet::{ETH_P_IP, PacketSocket};
use crate::kernel::sys;
use crate::kernel::{boot, file};

/// The longest wait for the server's MAC address when a lease is released.
const ARP_TIMEOUT: Duration = Duration::from_millis(500);

/// The file with the machine id (machine-id(5)). Without it, the boot id is used.
const MACHINE_ID: &str = "/etc/machine-id";

/// The clients of one interface.
pub struct Clients {
    /// In a box, as most interfaces have a client of one family only.
    pub v4: Option<Box<Exchange<Sockets4>>>,
    pub v6: Option<Box<Exchange<Sockets6>>>,
    pub slaac: Option<Box<Slaac>>,
    limit: Time,
}

/// A RELEASE to send, of DHCPv4 or DHCPv6.
pub enum ReleasePacket {
    V4(Packet),
    V6(Vec<u8>),
}

impl Clients {
    /// Makes the clients of the requested families. They are not started.
    pub fn new(record: &LeaseRecord, flags: &Flags) -> Result<Self> {
        let LeaseRequest { key, settings, .. } = &record.request;
        let seed = || sys::random_bytes().map(u64::from_ne_bytes);
        let v4 = || -> Result<_> {
            let settings = Settings4 {
                mac: record.mac,
                client_id: key.client_id(),
                broadcast: settings.broadcast || flags.broadcast,
                provide: settings.provide.clone(),
                request: settings.request.clone(),
                probe: settings.probe,
                times: flags.times,
            };
            settings.check()?;
            Ok(Exchange::new(Client4::new(settings, seed()?)))
        };
        let v6 = || -> Result<_> {
            let id = machine_id(&flags.hostprefix)?;
            let (duid, iaid) = duid::of(id.trim_end().as_bytes(), key);
            let resend_timeout = flags.times.resend_timeout;
            let settings = Settings6 { duid, iaid, probe: settings.probe, resend_timeout };
            Ok(Exchange::new(Client6::new(settings, seed()?)))
        };
        Ok(Self {
            v4: settings.families.v4.then(v4).transpose()?.map(Box::new),
            v6: settings.families.v6.then(v6).transpose()?.map(Box::new),
            slaac: settings.families.slaac.then(Box::default),
            limit: flags.times.resend_timeout,
        })
    }

    /// Starts the clients without a lease, and resumes the clients with a lease.
    pub fn start(&mut self, site: &Site<'_>, now: Time) {
        if let Some(v4) = &mut self.v4 {
            v4.start(site.record.leases.v4.as_ref(), site, now);
        }
        if let Some(v6) = &mut self.v6 {
            v6.start(site.record.leases.v6.as_ref(), site, now);
        }
        if let Some(slaac) = &mut self.slaac {
            slaac.start(now, self.limit);
        }
    }

    /// Handles the received packets, and the deadlines that have passed.
    pub fn run(&mut self, site: &Site<'_>, now: Time) {
        self.v4.iter_mut().for_each(|v4| v4.run(site, now));
        self.v6.iter_mut().for_each(|v6| v6.run(site, now));
        self.slaac.iter_mut().for_each(|slaac| slaac.run(site, now));
    }

    /// Returns the events since the last call.
    pub fn take_events(&mut self) -> Vec<ClientEvent> {
        let v4 = self.v4.iter_mut().flat_map(|v4| mem::take(&mut v4.events));
        let v6 = self.v6.iter_mut().flat_map(|v6| mem::take(&mut v6.events));
        let slaac = self.slaac.iter_mut().filter_map(|slaac| slaac.event.take());
        v4.chain(v6).chain(slaac).collect()
    }

    /// Puts the leases of a record into the clients, so that `release` can release them.
    pub fn resume_to_release(&mut self, record: &LeaseRecord, now: Time) {
        // The returned actions are dropped: no packet is sent to confirm the lease.
        if let (Some(v4), Some(lease)) = (&mut self.v4, &record.leases.v4) {
            v4.client.step(Event::Resume(lease.clone()), now);
        }
        if let (Some(v6), Some(lease)) = (&mut self.v6, &record.leases.v6) {
            v6.client.step(Event::Resume(lease.clone()), now);
        }
    }

    /// Whether each client has a lease.
    pub fn are_bound(&self) -> bool {
        self.v4.as_ref().is_none_or(|v4| v4.client.lease().is_some())
            && self.v6.as_ref().is_none_or(|v6| v6.client.lease().is_some())
            && self.slaac.as_ref().is_none_or(|slaac| !slaac.ips.is_empty())
    }

    /// The time of the next `run`.
    pub fn deadline(&self) -> Option<Time> {
        let v4 = self.v4.as_ref().and_then(|v4| v4.deadline());
        let v6 = self.v6.as_ref().and_then(|v6| v6.deadline());
        let slaac = self.slaac.as_ref().and_then(|slaac| slaac.deadline());
        Time::first(v4, Time::first(v6, slaac))
    }

    /// Adds the open sockets to a list. When one of them is readable, call `run`.
    pub fn add_sockets<'a>(&'a self, list: &mut Vec<BorrowedFd<'a>>) {
        self.v4.iter().for_each(|v4| v4.add_sockets(list));
        self.v6.iter().for_each(|v6| v6.add_sockets(list));
    }

    /// Returns the packets that release the leases. The clients are finished afterwards.
    pub fn release(&mut self, now: Time) -> Vec<ReleasePacket> {
        let mut packets = Vec::new();
        for action in self.v4.iter_mut().flat_map(|v4| v4.client.step(Event::Release, now)) {
            if let Action::Send(packet) = action {
                packets.push(ReleasePacket::V4(packet));
            }
        }
        for action in self.v6.iter_mut().flat_map(|v6| v6.client.step(Event::Release, now)) {
            if let Action::Send(payload) = action {
                packets.push(ReleasePacket::V6(payload));
            }
        }
        packets
    }
}

/// Releases the leases of a record from the plugin itself: in a DEL, while no daemon runs. Returns false if the interface does
/// not exist any more.
pub fn release(own_netns: &NetNs, record: &LeaseRecord) -> Result<bool> {
    let site = Site { own_netns, prefix: Path::new(""), record };
    let mut clients = Clients::new(record, &Flags::default())?;
    let now = Time::now();
    clients.resume_to_release(record, now);
    let mut release = || {
        site.verify()?;
        clients.release(now).iter().try_for_each(|packet| packet.send(&site))
    };
    match release() {
        Ok(()) => Ok(true),
        Err(SiteError::Gone(_)) => Ok(false),
        Err(SiteError::Failed(error)) => {
            Err(error.in_front(format_args!("cannot release the lease of {}", record.request.key)))
        }
    }
}

/// The machine id; the boot id if the machine has none. Fails if the machine id cannot be read: with another identifier, the
/// server would give another address.
fn machine_id(prefix: &Path) -> Result<String> {
    let path = file::below(prefix, Path::new(MACHINE_ID));
    let machine_id = file::found(file::read_text(&path))
        .map_err(sys::failed_with(Code::IO, format_args!("cannot read {}", path.display())))?;
    let machine_id = machine_id.filter(|id| !id.trim().is_empty());
    let boot_id = || boot::id().map(str::to_owned);
    machine_id.map_or_else(boot_id, Ok).map_err(sys::failed("cannot read the boot id"))
}

impl ReleasePacket {
    /// The packet with its IP and UDP headers. `local` is the link-local source address of an IPv6 packet.
    pub fn with_headers(&self, local: Ipv6Addr) -> Result<Vec<u8>> {
        match self {
            Self::V4(packet) => exchange::v4::with_headers(packet),
            Self::V6(payload) => frame6::build(local, payload)
                .ok_or_else(|| Error::internal("cannot send: the packet is too long")),
        }
    }

    /// Sends the packet through the interface.
    pub fn send(&self, site: &Site<'_>) -> Result<(), SiteError> {
        let packet = match self {
            Self::V4(packet) => packet,
            Self::V6(payload) => {
                return exchange::v6::release(&exchange::v6::socket(site)?, payload, site);
            }
        };
        let server = (packet.to, frame::SERVER_PORT).into();
        let sent = exchange::v4::udp_socket(packet.from, site).and_then(|socket| {
            socket.send(&packet.payload, server).map_err(exchange::cannot_send)?;
            wait_until_sent(&socket)
        });
        match sent {
            // The address is not on the interface, for example because a later step of ADD failed; or the server does not
            // answer ARP.
            Err(SiteError::Failed(_)) => {
                let packet = exchange::v4::with_headers(packet)?;
                let socket =
                    site.run(|| PacketSocket::for_sending(site.record.ifindex, ETH_P_IP))?;
                socket.broadcast(&packet).map_err(exchange::cannot_send)
            }
            sent => sent,
        }
    }

    pub fn is_v6(&self) -> bool {
        matches!(self, Self::V6(_))
    }
}

/// Waits until the kernel has sent the packet. Fails if the server does not answer ARP within the timeout.
fn wait_until_sent(socket: &LinkUdp) -> Result<(), SiteError> {
    match inet::wait_until_sent(socket, ARP_TIMEOUT).map_err(exchange::cannot_send)? {
        true => Ok(()),
        false => Err(Error::internal("cannot send: the server does not answer ARP").into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// With another identifier the server gives another address.
    #[test]
    fn a_machine_id_that_cannot_be_read_is_not_replaced() {
        let prefix = std::env::temp_dir().join(format!("cnibox-machine-{}", std::process::id()));
        let path = file::below(&prefix, Path::new(MACHINE_ID));
        let boot_id = Ok(machine_id(Path::new("/proc/none")).unwrap());
        assert_eq!(machine_id(&prefix), boot_id);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for (content, expected) in [("", boot_id), ("0123\n", Ok("0123\n".to_owned()))] {
            fs::write(&path, content).unwrap();
            assert_eq!(machine_id(&prefix), expected, "{content:?}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = machine_id(&prefix).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        fs::remove_dir_all(&prefix).unwrap();
    }
}
