//! A DHCP server (RFC 2131) that does what a file says: `--dhcp-server LINK FILE`. The file has the third byte of the addresses
//! that it gives, and a word: `give`, `refuse` (DHCPNAK) or `silent`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use nix::sys::socket::{setsockopt, sockopt};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
/// The host.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 0, 0);
/// Each client asks again at once, so that it soon sees a change.
const RENEWAL_SECS: u32 = 1;
/// A client without an answer asks again after half of the rest, at least 60 s (RFC 2131, section 4.4.5): so after 60 s here.
const REBINDING_SECS: u32 = 61;
const LEASE_SECS: u32 = 181;

/// The options follow the fields and the cookie.
const OPTIONS: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;

pub fn serve(args: &[String]) -> Result<(), String> {
    let [link, file] = args else { return Err("two arguments".into()) };
    listen(link, file).map_err(|error| error.to_string())
}

fn listen(link: &str, file: &str) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67))?;
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(link))?;
    socket.set_broadcast(true)?;
    // The place of a client is that of its address: no other one gets it.
    let mut clients: Vec<Vec<u8>> = Vec::new();
    let mut bytes = [0; 2048];
    loop {
        let length = socket.recv(&mut bytes)?;
        let message = &bytes[..length];
        let text = fs::read_to_string(file)?;
        let (subnet, mode) = text.trim().split_once(' ').unwrap_or(("0", "silent"));
        let (Some(kind), Ok(subnet)) = (option(message, 53), subnet.parse()) else { continue };
        let client = option(message, 61).unwrap_or_else(|| &message[28..34]).to_vec();
        let known = clients.iter().position(|known| *known == client);
        let place = known.unwrap_or_else(|| {
            clients.push(client);
            clients.len() - 1
        });
        let place = u8::try_from(place + 10).map_err(io::Error::other)?;
        let address = Ipv4Addr::new(10, 8, subnet, place);
        if let Some(answer) = answer_to(message, kind[0], mode, address) {
            let current =
                Ipv4Addr::from(u32::from_be_bytes([12, 13, 14, 15].map(|at| message[at])));
            let is_renewal = !current.is_unspecified() && answer != NAK;
            let to = if is_renewal { current } else { Ipv4Addr::BROADCAST };
            // A client that is gone is not reached.
            socket.send_to(&reply(message, answer, address), SocketAddrV4::new(to, 68)).ok();
        }
    }
}

/// The type of the answer to a message.
fn answer_to(message: &[u8], kind: u8, mode: &str, address: Ipv4Addr) -> Option<u8> {
    let is_other_server = option(message, 54).is_some_and(|server| server != SERVER.octets());
    let wanted = option(message, 50).unwrap_or(message.get(12..16)?);
    match (kind, mode) {
        _ if is_other_server => None,
        (DISCOVER, "give") => Some(OFFER),
        (REQUEST, "give") if wanted == address.octets() => Some(ACK),
        (REQUEST, "give" | "refuse") => Some(NAK),
        _ => None,
    }
}

fn reply(message: &[u8], kind: u8, address: Ipv4Addr) -> Vec<u8> {
    let mut reply = message[..OPTIONS].to_vec();
    reply[0] = 2;
    reply[12..28].fill(0);
    reply[44..236].fill(0);
    reply[236..].copy_from_slice(&COOKIE);
    let mut add = |code: u8, value: &[u8]| {
        reply.extend([code, u8::try_from(value.len()).unwrap_or_default()]);
        reply.extend(value);
    };
    add(53, &[kind]);
    add(54, &SERVER.octets());
    if kind != NAK {
        add(1, &MASK.octets());
        add(3, &ROUTER.octets());
        add(51, &LEASE_SECS.to_be_bytes());
        add(58, &RENEWAL_SECS.to_be_bytes());
        add(59, &REBINDING_SECS.to_be_bytes());
        reply[16..20].copy_from_slice(&address.octets());
    }
    reply.push(255);
    reply.resize(reply.len().max(300), 0);
    reply
}

/// An option of a message.
fn option(message: &[u8], code: u8) -> Option<&[u8]> {
    let mut rest = message.get(OPTIONS..)?;
    while let [found, length, ..] = *rest {
        if found == 255 {
            break;
        }
        if found == 0 {
            rest = &rest[1..];
            continue;
        }
        let end = 2 + usize::from(length);
        if found == code {
            return rest.get(2..end);
        }
        rest = rest.get(end..)?;
    }
    None
}
