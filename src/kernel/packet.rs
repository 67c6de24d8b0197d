//! Packet sockets of a link, for an interface that has no address yet: DHCP packets with their IPv4 headers, and ARP.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc::sock_filter;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, bind, recv, sendto, socket};

use crate::fault;
use crate::kernel::sys::socket::{attach_filter, link_address};
use crate::names::Mac;

/// EtherTypes (linux/if_ether.h).
pub(crate) const ETH_P_IP: u16 = 0x0800;
const ETH_P_ARP: u16 = 0x0806;
const ETH_P_8021Q: u16 = 0x8100;
pub(crate) const ETH_P_IPV6: u16 = 0x86dd;

/// A packet socket of one link. Frames have no link-layer header: the kernel adds and removes it.
pub struct PacketSocket {
    socket: OwnedFd,
    index: u32,
    ethertype: u16,
}

impl PacketSocket {
    /// A socket that receives IPv4 packets to UDP port 68. The link has to be in the namespace of the calling thread.
    pub fn for_dhcp(index: u32) -> io::Result<Self> {
        Self::open(index, ETH_P_IP, &TO_PORT_68)
    }

    /// A socket that receives ARP messages.
    pub fn for_arp(index: u32) -> io::Result<Self> {
        Self::open(index, ETH_P_ARP, &[])
    }

    /// A socket that receives IPv6 packets.
    pub fn for_ipv6(index: u32) -> io::Result<Self> {
        Self::open(index, ETH_P_IPV6, &[])
    }

    /// A socket that sends packets of an EtherType, and receives nothing.
    pub fn for_sending(index: u32, ethertype: u16) -> io::Result<Self> {
        Ok(Self { socket: unbound()?, index, ethertype })
    }

    fn open(index: u32, ethertype: u16, filter: &[sock_filter]) -> io::Result<Self> {
        fault::kernel_request()?;
        // The socket gets no packet before it is bound, so the filter applies to every packet.
        let socket = unbound()?;
        if !filter.is_empty() {
            attach_filter(&socket, filter)?;
        }
        bind(socket.as_raw_fd(), &link_address(index, ethertype)?)?;
        Ok(Self { socket, index, ethertype })
    }

    /// Sends a frame to the broadcast address of the link.
    pub fn broadcast(&self, frame: &[u8]) -> io::Result<()> {
        fault::kernel_request()?;
        self.send(self.ethertype, frame)
    }

    /// Sends a frame to the broadcast address of the link, with a VLAN tag.
    pub fn broadcast_in_vlan(&self, frame: &[u8], vlan: u16) -> io::Result<()> {
        let tagged = [&vlan.to_be_bytes(), &self.ethertype.to_be_bytes(), frame].concat();
        self.send(ETH_P_8021Q, &tagged)
    }

    fn send(&self, ethertype: u16, frame: &[u8]) -> io::Result<()> {
        let to = link_address(self.index, ethertype)?;
        Ok(sendto(self.socket.as_raw_fd(), frame, &to, MsgFlags::empty()).map(drop)?)
    }

    /// The next frame; `None` if no frame is pending. A frame that is longer than the buffer is skipped. A sender on this host
    /// leaves the UDP checksum to the network card, so the checksum can be missing.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            match recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC) {
                Ok(length) if length > buffer.len() => {}
                Ok(length) => return Ok(Some(&buffer[..length])),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// A packet socket that sends whole Ethernet frames on a link, and receives nothing.
pub struct FrameSocket {
    socket: OwnedFd,
    index: u32,
}

impl FrameSocket {
    /// The link has to be in the namespace of the calling thread.
    pub fn open(index: u32) -> io::Result<Self> {
        fault::kernel_request()?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        Ok(Self { socket, index })
    }

    /// Sends a frame with its Ethernet header.
    pub fn send(&self, ethertype: u16, frame: &[u8]) -> io::Result<()> {
        fault::kernel_request()?;
        let to = link_address(self.index, ethertype)?;
        Ok(sendto(self.socket.as_raw_fd(), frame, &to, MsgFlags::empty()).map(drop)?)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn unbound() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Packet, SockType::Datagram, flags, None)
}

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Accepts IPv4 packets to UDP port 68, except fragments after the first. The offsets begin at the IPv4 header.
const TO_PORT_68: [sock_filter; 9] = [
    instruction(0x30, 0, 0, 9),      // ldb [9]: the protocol
    instruction(0x15, 0, 6, 17),     // jeq udp, else drop
    instruction(0x28, 0, 0, 6),      // ldh [6]: flags and fragment offset
    instruction(0x45, 4, 0, 0x1fff), // jset: drop
    instruction(0xb1, 0, 0, 0),      // ldxb 4*([0]&0xf): the header length
    instruction(0x48, 0, 0, 2),      // ldh [x + 2]: the destination port
    instruction(0x15, 0, 1, 68),     // jeq 68, else drop
    instruction(0x06, 0, 0, 0xffff), // ret: accept
    instruction(0x06, 0, 0, 0),      // ret: drop
];

/// An ARP message for IPv4 on Ethernet (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    pub is_reply: bool,
    pub sender_mac: Mac,
    pub sender: Ipv4Addr,
    pub target: Ipv4Addr,
}

const ARP_BYTES: usize = 28;
/// The beginning of an ARP message: the numbers of Ethernet and of IPv4, and the lengths of their addresses.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl Arp {
    /// An ARP probe, to find out whether another host has the address (RFC 5227, section 2.1.1). The ARP tables of neighbors do
    /// not change.
    pub fn probe(mac: Mac, address: Ipv4Addr) -> Self {
        Self { is_reply: false, sender_mac: mac, sender: Ipv4Addr::UNSPECIFIED, target: address }
    }

    /// An ARP announcement: all neighbors learn that this interface has the address (RFC 5227, section 2.3).
    pub fn announcement(mac: Mac, address: Ipv4Addr) -> Self {
        Self { is_reply: false, sender_mac: mac, sender: address, target: address }
    }

    pub fn encode(&self) -> [u8; ARP_BYTES] {
        let mut frame = [0; ARP_BYTES];
        frame[..6].copy_from_slice(&ARP_HEAD);
        frame[7] = if self.is_reply { 2 } else { 1 };
        frame[8..14].copy_from_slice(&self.sender_mac.0);
        frame[14..18].copy_from_slice(&self.sender.octets());
        frame[24..28].copy_from_slice(&self.target.octets());
        frame
    }

    pub fn parse(frame: &[u8]) -> Option<Self> {
        let frame: &[u8; ARP_BYTES] = frame.first_chunk()?;
        let at = |start: usize| frame.get(start..)?.first_chunk::<4>().copied().map(Ipv4Addr::from);
        if frame[..6] != ARP_HEAD || frame[6] != 0 || !matches!(frame[7], 1 | 2) {
            return None;
        }
        Some(Self {
            is_reply: frame[7] == 2,
            sender_mac: Mac(frame.get(8..)?.first_chunk().copied()?),
            sender: at(14)?,
            target: at(24)?,
        })
    }

    /// Whether the message shows that another interface uses the address, or is about to (RFC 5227, section 2.1.1).
    pub fn claims(&self, address: Ipv4Addr, own: Mac) -> bool {
        let is_probe = !self.is_reply && self.sender.is_unspecified() && self.target == address;
        self.sender_mac != own && (self.sender == address || is_probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 5);

    #[test]
    fn an_arp_message_is_written_and_read_back() {
        let probe = Arp::probe(OWN, ADDRESS);
        let frame = probe.encode();
        let expected =
            [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 1, 0, 5];
        assert_eq!(frame, expected);
        // Ethernet pads short frames.
        let padded = [&frame[..], &[0; 18]].concat();
        assert_eq!(Arp::parse(&padded), Some(probe));
        for end in 0..frame.len() {
            assert_eq!(Arp::parse(&frame[..end]), None, "{end}");
        }
        for (at, value) in [(0, 1), (1, 6), (3, 6), (4, 8), (5, 16), (6, 1), (7, 3)] {
            let mut frame = frame;
            frame[at] = value;
            assert_eq!(Arp::parse(&frame), None, "{at}");
        }
    }

    #[test]
    fn an_address_is_claimed_by_its_holder_and_by_another_probe() {
        let other = Arp::announcement(OTHER, ADDRESS);
        let elsewhere = Ipv4Addr::new(10, 1, 0, 6);
        for (arp, is_claim) in [
            (other, true),
            (Arp { is_reply: true, target: elsewhere, ..other }, true),
            (Arp::probe(OTHER, ADDRESS), true),
            (Arp::probe(OWN, ADDRESS), false),
            (Arp::announcement(OWN, ADDRESS), false),
            // A request for the address is no claim.
            (Arp { sender: elsewhere, ..other }, false),
        ] {
            assert_eq!(arp.claims(ADDRESS, OWN), is_claim, "{arp:?}");
        }
    }
}
