//! The sockets on which programs of the host wait for connections or packets. This module does not know who publishes ports.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::file;

/// A socket that waits for connections or packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    pub address: IpAddr,
    pub port: u16,
    inode: String,
}

impl Waiting {
    /// Whether it waits on this address of the host; `None` is each address. A socket of `::` also waits for IPv4.
    pub fn is_on(&self, address: Option<IpAddr>) -> bool {
        let has_address = |address: IpAddr| {
            self.address == address
                || address.is_unspecified()
                || self.address.is_unspecified() && (self.address.is_ipv6() || address.is_ipv4())
        };
        address.is_none_or(has_address)
    }

    /// The name and the id of a process that has the socket. `None` if no readable process has it.
    pub fn program(&self) -> Option<(String, u32)> {
        let target = format!("socket:[{}]", self.inode);
        let has_socket = |id: &u32| {
            let files = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
            files
                .flat_map(|file| fs::read_link(file.path()))
                .any(|path| path.as_os_str() == &*target)
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut ids = processes.filter_map(|file| file.file_name().to_str()?.parse().ok());
        let id = ids.find(has_socket)?;
        let name = file::read_lossy(format!("/proc/{id}/comm")).ok()?;
        Some((name.trim_end().to_owned(), id))
    }
}

/// The sockets of this network namespace that wait for `tcp` connections or `udp` packets.
pub fn waiting(protocol: &str) -> io::Result<Vec<Waiting>> {
    // TCP_LISTEN; and TCP_CLOSE, which is a UDP socket that is not connected (net/tcp_states.h).
    let state = if protocol == "tcp" { "0A" } else { "07" };
    let mut found = Vec::new();
    for family in ["", "6"] {
        match file::read_lossy(format!("/proc/thread-self/net/{protocol}{family}")) {
            Ok(text) => found.extend(text.lines().filter_map(|line| parse(line, state))),
            // The kernel has no IPv6.
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
    let inode = (*fields.get(9)?).to_owned();
    (fields.get(3)? == &state).then_some(Waiting { address, port, inode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_the_ports_of_its_address() {
        let line = |address: IpAddr| Waiting { address, port: 80, inode: String::new() };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (socket, published, is_on) in [
            ("0.0.0.0", None, true),
            ("127.0.0.1", None, true),
            ("127.0.0.1", Some("10.0.0.1"), false),
            ("0.0.0.0", Some("10.0.0.1"), true),
            ("10.0.0.1", Some("0.0.0.0"), true),
            ("::", Some("10.0.0.1"), true),
            ("0.0.0.0", Some("fd00::1"), false),
        ] {
            assert_eq!(line(ip(socket)).is_on(published.map(ip)), is_on, "{socket} {published:?}");
        }
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
            assert_eq!(parsed.inode, "77");
            assert_eq!(parse(&line(&address), "07"), None);
        }
        assert_eq!(parse("  sl  local_address rem_address   st", "0A"), None);
    }
}
