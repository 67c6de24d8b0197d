//! The sockets on which programs wait for connections or packets. This module does not know who publishes ports.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::file;

/// A socket that waits for connections or packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    pub address: IpAddr,
    pub port: u16,
    /// A socket of `::` does not wait for IPv4.
    pub is_v6_only: bool,
    /// The number of the socket, which the links in /proc/PID/fd have.
    pub inode: u32,
}

/// A process that has a socket.
pub struct Program {
    pub id: u32,
    pub name: String,
    /// The arguments that it was started with, each with a NUL behind it.
    pub arguments: String,
}

impl Waiting {
    /// Whether it waits on this address of the host; `None` is each address, `0.0.0.0` and `::` each of one family.
    pub fn is_on(&self, address: Option<IpAddr>) -> bool {
        let has_address = |address: IpAddr| {
            let has_family = self.address.is_ipv4() == address.is_ipv4()
                || address.is_ipv4() && self.address.is_unspecified() && !self.is_v6_only;
            has_family
                && (self.address == address
                    || self.address.is_unspecified()
                    || address.is_unspecified())
        };
        address.is_none_or(has_address)
    }

    /// Whether a process has the socket. Fails if its files cannot be read.
    pub fn is_of(&self, id: u32) -> io::Result<bool> {
        let target = format!("socket:[{}]", self.inode);
        for file in fs::read_dir(format!("/proc/{id}/fd"))? {
            // One that was closed meanwhile is not this one.
            if file::found(fs::read_link(file?.path()))?
                .is_some_and(|path| path.as_os_str() == &*target)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The processes that have the socket. Those that cannot be read are left out.
    pub fn programs(&self) -> Vec<Program> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|file| file.file_name().to_str()?.parse().ok());
        let read = |id: u32| {
            let text = |file: &str| file::read_lossy(format!("/proc/{id}/{file}")).ok();
            let name = text("comm")?.trim_end().to_owned();
            Some(Program { id, name, arguments: text("cmdline").unwrap_or_default() })
        };
        ids.filter(|id| self.is_of(*id).unwrap_or(false)).filter_map(read).collect()
    }
}

/// The sockets of this network namespace that wait for `tcp` connections or `udp` packets. The kernel searches its whole table of
/// connections: 4 ms on a host with 24 GB. /proc does not have the sockets of `sctp` in this form.
pub fn of_proc(protocol: &str) -> io::Result<Vec<Waiting>> {
    // TCP_LISTEN; and TCP_CLOSE, which is a UDP socket that is not connected (net/tcp_states.h).
    let state = if protocol == "tcp" { "0A" } else { "07" };
    let mut found = Vec::new();
    for family in ["", "6"] {
        match file::read_lossy(format!("/proc/thread-self/net/{protocol}{family}")) {
            Ok(text) => found.extend(text.lines().filter_map(|line| parse(line, state))),
            // The kernel has no IPv6, or not the protocol.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// A line of /proc/net/tcp or of a file of the same form. `None` for a socket in another state.
fn parse(line: &str, state: &str) -> Option<Waiting> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // The kernel prints each word of an address as a number.
    let word =
        |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        _ => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Ipv6Addr::from(bytes).to_canonical()
        }
    };
    let inode = fields.get(9)?.parse().ok()?;
    (fields.get(3)? == &state).then_some(Waiting { address, port, is_v6_only: false, inode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_the_ports_of_its_address() {
        let line = |address: IpAddr| Waiting { address, port: 80, is_v6_only: false, inode: 1 };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (socket, published, is_on) in [
            ("0.0.0.0", None, true),
            ("127.0.0.1", None, true),
            ("127.0.0.1", Some("10.0.0.1"), false),
            ("0.0.0.0", Some("10.0.0.1"), true),
            ("10.0.0.1", Some("0.0.0.0"), true),
            ("::", Some("10.0.0.1"), true),
            ("0.0.0.0", Some("fd00::1"), false),
            ("0.0.0.0", Some("::"), false),
            ("10.0.0.1", Some("::"), false),
            ("::", Some("0.0.0.0"), true),
            ("fd00::1", Some("::"), true),
            ("fd00::1", Some("0.0.0.0"), false),
        ] {
            assert_eq!(line(ip(socket)).is_on(published.map(ip)), is_on, "{socket} {published:?}");
        }
        let v6_only = Waiting { is_v6_only: true, ..line(ip("::")) };
        assert!(v6_only.is_on(None) && v6_only.is_on(Some(ip("fd00::1"))));
        assert!(!v6_only.is_on(Some(ip("10.0.0.1"))) && !v6_only.is_on(Some(ip("0.0.0.0"))));
    }

    #[test]
    fn lines_of_proc_are_read() {
        let word = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let line = |address: &str| {
            format!(
                "   0: {address}:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0"
            )
        };
        let v4 = word([127, 0, 0, 1]);
        let v6 = [[0xfd, 0, 0, 0], [0; 4], [0; 4], [0, 0, 0, 1]].map(word).concat();
        for (address, expected) in [(v4, "127.0.0.1"), (v6, "fd00::1")] {
            let parsed = parse(&line(&address), "0A").unwrap();
            assert_eq!((parsed.address, parsed.port), (expected.parse().unwrap(), 8080));
            assert_eq!(parsed.inode, 77);
            assert_eq!(parse(&line(&address), "07"), None);
        }
        assert_eq!(parse("  sl  local_address rem_address   st", "0A"), None);
    }
}
