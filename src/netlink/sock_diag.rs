//! The sockets of programs, from the kernel's sock_diag, which finds those that wait without a look at each connection.

use std::net::{IpAddr, Ipv6Addr};

use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use nix::libc;

use crate::error::{Error, Result};
use crate::kernel::sockets::{self, Waiting};
use crate::names::IpFamily;
use crate::netlink::nft::Transport;
use crate::netlink::{self, AF_INET, AF_INET6, Requests, Socket, attribute, fixed, u8_of, u32_at};

/// The sockets of the calling thread's network namespace that wait for connections or packets.
pub(crate) fn waiting(transport: Transport) -> Result<Vec<Waiting>> {
    let is_missing =
        |error: &netlink::Error| matches!(error.errno, libc::ENOENT | libc::EPROTONOSUPPORT);
    match netlink::found(list(transport), is_missing)? {
        Some(found) => Ok(found),
        // A small kernel lacks sock_diag.
        None => sockets::of_proc(transport.name()).map_err(|error| {
            Error::internal(format_args!("cannot list the sockets of the host: {error}"))
        }),
    }
}

fn list(transport: Transport) -> Result<Vec<Waiting>, netlink::Error> {
    let socket = Socket::open(NlFamily::SockOrInetDiag)?;
    // UDP sockets that are not connected have the state of a closed connection.
    let states: u32 = 1 << if transport == Transport::Udp { TCP_CLOSE } else { TCP_LISTEN };
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        let number = if family == IpFamily::V4 { AF_INET } else { AF_INET6 };
        let mut request = vec![number, transport.number(), 0, 0];
        request.extend(states.to_ne_bytes());
        request.resize(REQUEST_BYTES, 0);
        let doing = "cannot list the sockets of the host";
        let request = Requests::bare(SOCK_DIAG_BY_FAMILY, NlmF::empty(), doing, &request);
        found.extend(socket.dump(request, |payload| read(family, payload))?);
    }
    Ok(found)
}

/// A `struct inet_diag_msg` and its attributes.
fn read(family: IpFamily, payload: &[u8]) -> Option<Waiting> {
    let address = match family {
        IpFamily::V4 => IpAddr::from(fixed::<4>(payload, SOURCE_AT)?),
        IpFamily::V6 => Ipv6Addr::from(fixed::<16>(payload, SOURCE_AT)?).to_canonical(),
    };
    let is_v6_only = attribute(payload.get(MESSAGE_BYTES..)?, INET_DIAG_SKV6ONLY).and_then(u8_of);
    Some(Waiting {
        address,
        port: u16::from_be_bytes(fixed(payload, PORT_AT)?),
        is_v6_only: is_v6_only == Some(1),
        inode: u32_at(payload, INODE_AT)?,
    })
}

// Source: linux/sock_diag.h, linux/inet_diag.h: `struct inet_diag_req_v2`, `inet_diag_sockid`, `inet_diag_msg`; net/tcp_states.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_BYTES: usize = 56;
const PORT_AT: usize = 4;
const SOURCE_AT: usize = 8;
const INODE_AT: usize = 68;
const MESSAGE_BYTES: usize = 72;
const INET_DIAG_SKV6ONLY: u16 = 11;
const TCP_CLOSE: u8 = 7;
const TCP_LISTEN: u8 = 10;
