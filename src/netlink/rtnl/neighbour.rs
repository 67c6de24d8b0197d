//! Neighbours: asks a link who has an address, and sets MAC addresses that the kernel does not ask for.

use std::net::IpAddr;
use std::time::Duration;

use neli::consts::nl::NlmF;
use nix::libc;

use super::consts::{NDA_DST, NDA_LLADDR, NTF_USE, NUD_ANSWERED, NUD_PERMANENT};
use super::{Batch, Rtnl};
use crate::error::Result;
use crate::names::{IpFamily, Mac};
use crate::netlink::{Error, Requests, attribute, found, ip_of, u16_at, u32_at};

/// The length of struct ndmsg (linux/neighbour.h).
const HEADER_BYTES: usize = 12;

impl Rtnl {
    /// Who answers on a link for an address, by ARP or neighbour discovery. `None` if nobody has answered when the time is over, or
    /// if the link is down or cannot ask. What the host knew of the address before is forgotten.
    pub fn neighbour(&self, index: u32, address: IpAddr, timeout: Duration) -> Result<Option<Mac>> {
        let doing = format!("cannot ask link {index} for {address}");
        let request = |message: u16, flags: NlmF, use_flag: u8| {
            let header = header(IpFamily::of(address), index, (0, use_flag));
            Requests::one(message, flags, doing.clone(), |attrs| {
                attrs.raw(&header);
                attrs.ip(NDA_DST, address);
            })
        };
        let mut forget = request(libc::RTM_DELNEIGH, NlmF::empty(), 0);
        forget.tolerate(libc::ENOENT);
        self.change(forget)?;
        self.change(request(libc::RTM_NEWNEIGH, NlmF::CREATE, NTF_USE))?;
        let answer = || -> Result<(bool, Option<Mac>)> {
            let get = request(libc::RTM_GETNEIGH, NlmF::empty(), 0);
            let known = found(
                self.socket.get(get, |payload| Some(answered(payload))),
                Error::is_not_found,
            )?;
            let mac = known.flatten().flatten();
            Ok((mac.is_some(), mac))
        };
        Ok(self.wait(libc::RTNLGRP_NEIGH, timeout, answer)?.1)
    }

    /// The permanent neighbours of a family on a link.
    pub fn permanent_neighbours(&self, index: u32, family: IpFamily) -> Result<Vec<(IpAddr, Mac)>> {
        let doing = format!("cannot list the neighbours of link {index}");
        // The kernel refuses a list of one link or state here.
        let header = header(family, 0, (0, 0));
        let request = Requests::bare(libc::RTM_GETNEIGH, NlmF::empty(), doing, &header);
        let read = |payload: &[u8]| {
            let is_wanted = u32_at(payload, 4)? == index && state(payload)? & NUD_PERMANENT != 0;
            let list = payload.get(HEADER_BYTES..).filter(|_| is_wanted)?;
            Some((ip_of(family.number(), attribute(list, NDA_DST)?)?, mac(payload)?))
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
            attrs.raw(&header(IpFamily::of(ip), index, (NUD_PERMANENT, 0)));
            attrs.ip(NDA_DST, ip);
            attrs.bytes(NDA_LLADDR, &mac.0);
        });
    }
}

/// struct ndmsg: family, padding, index, state, flags, type.
fn header(family: IpFamily, index: u32, (state, flags): (u16, u8)) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = family.number();
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header[10] = flags;
    header
}

fn state(payload: &[u8]) -> Option<u16> {
    u16_at(payload, 8)
}

fn mac(payload: &[u8]) -> Option<Mac> {
    Some(Mac(attribute(payload.get(HEADER_BYTES..)?, NDA_LLADDR)?.try_into().ok()?))
}

/// The MAC address of a neighbour that has answered.
fn answered(payload: &[u8]) -> Option<Mac> {
    mac(payload).filter(|_| state(payload).is_some_and(|state| state & NUD_ANSWERED != 0))
}
