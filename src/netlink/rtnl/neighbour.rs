//! Neighbours: asks a link who has an address.

use std::net::IpAddr;
use std::time::Duration;

use neli::consts::nl::NlmF;
use nix::libc;

use super::Rtnl;
use super::consts::{NDA_DST, NDA_LLADDR, NTF_USE, NUD_ANSWERED};
use crate::error::Result;
use crate::names::{IpFamily, Mac};
use crate::netlink::{Error, Requests, attribute, found, u16_at};

/// The length of struct ndmsg (linux/neighbour.h), and the place of its state.
const HEADER_BYTES: usize = 12;
const STATE_AT: usize = 8;

impl Rtnl {
    /// Who answers on a link for an address, by ARP or neighbour discovery. `None` if nobody has answered when the time is over, or
    /// if the link is down or cannot ask. What the host knew of the address before is forgotten.
    pub fn neighbour(&self, index: u32, address: IpAddr, timeout: Duration) -> Result<Option<Mac>> {
        let doing = format!("cannot ask link {index} for {address}");
        let request = |message: u16, flags: NlmF, ndm_flags: u8| {
            let mut header = [0; HEADER_BYTES];
            header[0] = IpFamily::of(address).number();
            header[4..8].copy_from_slice(&index.to_ne_bytes());
            header[10] = ndm_flags;
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
            let known = found(self.socket.get(get, answered), Error::is_not_found)?;
            let mac = known.flatten().flatten();
            Ok((mac.is_some(), mac))
        };
        Ok(self.wait(libc::RTNLGRP_NEIGH, timeout, answer)?.1)
    }
}

/// The MAC address of a neighbour that has answered.
fn answered(payload: &[u8]) -> Option<Option<Mac>> {
    let (header, attributes) = payload.split_at_checked(HEADER_BYTES)?;
    let has_answered = u16_at(header, STATE_AT)? & NUD_ANSWERED != 0;
    let mac = attribute(attributes, NDA_LLADDR).and_then(|mac| Some(Mac(mac.try_into().ok()?)));
    Some(mac.filter(|_| has_answered))
}
