//! Permanent neighbours: MAC addresses of IP addresses on a link that the kernel does not ask for.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use nix::libc;

use super::{Batch, Rtnl};
use crate::error::Result;
use crate::names::{IpFamily, Mac};
use crate::netlink::{Requests, attribute, ip_of, u16_at, u32_at};

/// NUD_PERMANENT, two attributes of a neighbour, and the length of struct ndmsg (linux/neighbour.h).
const NUD_PERMANENT: u16 = 0x80;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const HEADER_BYTES: usize = 12;

impl Rtnl {
    /// The permanent neighbours of a family on a link.
    pub fn permanent_neighbours(&self, index: u32, family: IpFamily) -> Result<Vec<(IpAddr, Mac)>> {
        let doing = format!("cannot list the neighbours of link {index}");
        // The kernel refuses a list of one link or state here.
        let header = header(family, 0, 0);
        let request = Requests::bare(libc::RTM_GETNEIGH, NlmF::empty(), doing, &header);
        let read = |payload: &[u8]| {
            let is_wanted =
                u32_at(payload, 4)? == index && u16_at(payload, 8)? & NUD_PERMANENT != 0;
            let list = payload.get(HEADER_BYTES..).filter(|_| is_wanted)?;
            let ip = ip_of(family.number(), attribute(list, NDA_DST)?)?;
            Some((ip, Mac(attribute(list, NDA_LLADDR)?.try_into().ok()?)))
        };
        Ok(self.socket.dump(request, read)?)
    }
}

impl Batch {
    /// Makes the neighbour permanent, with this MAC address.
    pub fn set_permanent_neighbour(&mut self, index: u32, (ip, mac): (IpAddr, Mac)) {
        let doing = format!("cannot add neighbour {ip} with MAC address {mac}");
        let flags = NlmF::CREATE | NlmF::REPLACE;
        self.requests.push(libc::RTM_NEWNEIGH, flags, doing, |attrs| {
            attrs.raw(&header(IpFamily::of(ip), index, NUD_PERMANENT));
            attrs.ip(NDA_DST, ip);
            attrs.bytes(NDA_LLADDR, &mac.0);
        });
    }
}

/// struct ndmsg: family, padding, index, state, flags, type.
fn header(family: IpFamily, index: u32, state: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = family.number();
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header
}
