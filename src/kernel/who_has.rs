//! Asks on a link which machine has an address: with ARP for IPv4, with neighbor discovery for IPv6.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::kernel::clock;
use crate::kernel::packet::{Arp, PacketSocket};
use crate::names::Mac;

/// The number of questions, and the wait for an answer after each of them. A machine answers within a few milliseconds.
const QUESTIONS: usize = 2;
const WAIT: Duration = Duration::from_millis(120);

const PACKET_BYTES_MAX: usize = 2048;
const IP6_BYTES: usize = 40;
const ICMP6: u8 = 58;
/// The types of ICMPv6 messages, and the type of an option (RFC 4861, section 4).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const TARGET_LINK_LAYER: u8 = 2;

/// The answer to the question.
pub enum Answer {
    /// A machine with this MAC address has the address.
    Has(Mac),
    Nobody,
    /// Nobody was asked: the kernel has no packet sockets, or this process may not open one (CAP_NET_RAW).
    NotAsked,
}

/// Asks which machine has the address. The questions have no address of this host as source, so no neighbour changes its tables.
/// The link has to be in the namespace of the calling thread, and up; `own` is its MAC address.
pub fn who_has(index: u32, own: Mac, address: IpAddr) -> io::Result<Answer> {
    let socket = match address {
        IpAddr::V4(_) => PacketSocket::for_arp(index),
        IpAddr::V6(_) => PacketSocket::for_ipv6(index),
    };
    let socket = match socket {
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EAFNOSUPPORT | Errno::EPERM | Errno::EACCES) => {
                return Ok(Answer::NotAsked);
            }
            _ => return Err(error),
        },
        Ok(socket) => socket,
    };
    let question = match address {
        IpAddr::V4(address) => Arp::probe(own, address).encode().to_vec(),
        IpAddr::V6(address) => solicitation(address),
    };
    let holder = |frame: &[u8]| match address {
        IpAddr::V4(address) => {
            let arp = Arp::parse(frame).filter(|arp| arp.claims(address, own))?;
            Some(arp.sender_mac)
        }
        IpAddr::V6(address) => advertised(frame, address).filter(|mac| *mac != own),
    };
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    for _ in 0..QUESTIONS {
        socket.broadcast(&question)?;
        let end = clock::since_boot() + WAIT;
        while let Some(left) = end.checked_sub(clock::since_boot()).filter(|left| !left.is_zero()) {
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            while let Some(frame) = socket.receive(&mut buffer)? {
                if let Some(mac) = holder(frame) {
                    return Ok(Answer::Has(mac));
                }
            }
        }
    }
    Ok(Answer::Nobody)
}

/// The solicitation of duplicate address detection (RFC 4862, section 5.4.2), with its IPv6 header.
fn solicitation(target: Ipv6Addr) -> Vec<u8> {
    let mut to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
    to[13..].copy_from_slice(&target.octets()[13..]);
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    let length = u8::try_from(message.len()).unwrap_or(0);
    // The pseudo header: both addresses, the length and the protocol.
    let pseudo = [&to[..], &[0, length, 0, ICMP6]].concat();
    let words = pseudo.as_chunks::<2>().0.iter().chain(message.as_chunks::<2>().0);
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0, 0, length, ICMP6, 255];
    packet.extend([0; 16]);
    packet.extend(to);
    packet.extend(message);
    packet
}

/// The MAC address in a neighbor advertisement for the address.
fn advertised(packet: &[u8], target: Ipv6Addr) -> Option<Mac> {
    let (header, message) = packet.split_at_checked(IP6_BYTES)?;
    let of_target = message.get(8..24)? == target.octets();
    let [kind, 1, mac @ ..] = message.get(24..)? else { return None };
    if header[6] != ICMP6 || message[0] != ADVERTISEMENT || !of_target || *kind != TARGET_LINK_LAYER
    {
        return None;
    }
    mac.first_chunk().copied().map(Mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0x12, 0x3456);

    #[test]
    fn a_solicitation_has_a_valid_checksum() {
        let packet = solicitation(TARGET);
        assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, 24, 58, 255]);
        assert_eq!(packet[37..40], [0x12, 0x34, 0x56]);
        let pseudo = [&packet[8..40], &[0, 24, 0, 58], &packet[40..]].concat();
        let sum: u32 =
            pseudo.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn only_an_advertisement_for_the_address_is_an_answer() {
        let mac = [2, 0, 0, 0, 0, 7];
        let mut answer = solicitation(TARGET);
        answer[40] = ADVERTISEMENT;
        answer.extend([TARGET_LINK_LAYER, 1]);
        answer.extend(mac);
        assert_eq!(advertised(&answer, TARGET), Some(Mac(mac)));
        assert_eq!(advertised(&answer, Ipv6Addr::LOCALHOST), None);
        for end in 0..answer.len() {
            assert_eq!(advertised(&answer[..end], TARGET), None, "{end}");
        }
        for (at, value) in [(6, 17), (40, SOLICITATION), (64, 1), (65, 2)] {
            let mut other = answer.clone();
            other[at] = value;
            assert_eq!(advertised(&other, TARGET), None, "{at}");
        }
    }
}
