//! The DHCPv6 client of one interface with its socket, which exists only while the client waits for an answer.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use crate::dhcp::exchange::{
    News, PACKET_BYTES_MAX, PACKETS_AT_ONCE_MAX, RESTART_AFTER, Waiting, cannot_send,
};
use crate::dhcp::site::{Site, Trouble};
use crate::dhcp::v6::client::{Action, Client, Event, Settings};
use crate::dhcp::v6::frame::{CLIENT_PORT, SERVER_PORT, SERVERS};
use crate::error::{Error, Result};
use crate::kernel::file::reason;
use crate::kernel::inet::LinkUdp;
use crate::kernel::sys;

/// The longest wait for the link-local address of a new interface, which duplicate address detection delays.
const LINK_LOCAL_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two looks at the addresses: an event would need a socket in the namespace.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// See the head of this file.
pub struct Exchange6 {
    pub client: Client,
    udp: Option<Arc<LinkUdp>>,
    /// The client starts at this time, or when the interface has a link-local address.
    starts: Option<Start>,
    /// The last error of the socket, for the message of a failure.
    trouble: Option<Error>,
}

struct Start {
    next_look: Duration,
    limit: Duration,
}

impl Exchange6 {
    pub fn new(settings: Settings) -> Result<Self> {
        let seed = u64::from_ne_bytes(sys::random_bytes()?);
        Ok(Self { client: Client::new(settings, seed), udp: None, starts: None, trouble: None })
    }

    /// Starts as soon as the interface can send.
    pub fn start(&mut self, now: Duration) {
        self.starts = Some(Start { next_look: now, limit: now + LINK_LOCAL_LIMIT });
    }

    /// Handles an event, and executes what the client wants.
    pub fn step(&mut self, event: Event<'_>, site: &Site<'_>, now: Duration) -> Vec<News> {
        let mut news = Vec::new();
        for action in self.client.step(event, now) {
            match action {
                Action::Send(payload) => match self.send(&payload, site) {
                    Ok(()) => {}
                    Err(Trouble::Gone(reason)) => news.push(News::Gone(reason)),
                    Err(Trouble::Failed(error)) => self.trouble = Some(error),
                },
                Action::Bound(_) => {
                    self.trouble = None;
                    news.push(News::Bound);
                }
                Action::Lost(reason) => news.push(News::Lost(reason)),
                Action::Failed(tried) => {
                    let next = now + RESTART_AFTER;
                    self.starts = Some(Start { next_look: next, limit: next });
                    let trouble = self.trouble.take();
                    let trouble = trouble.map_or_else(String::new, |error| format!("; {error}"));
                    news.push(News::Failed(format!("{tried}{trouble}")));
                }
            }
        }
        if !self.client.is_listening() {
            self.udp = None;
        }
        news
    }

    /// The time of the next `tick`.
    pub fn deadline(&self) -> Option<Duration> {
        let start = self.starts.as_ref().map(|start| start.next_look);
        [self.client.deadline(), start].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn tick(&mut self, site: &Site<'_>, now: Duration) -> Vec<News> {
        if let Some(start) = self.starts.as_mut().filter(|start| start.next_look <= now) {
            match has_link_local(site) {
                Ok(false) if now < start.limit => start.next_look = now + LOOK_AGAIN,
                Err(Trouble::Gone(reason)) => return vec![News::Gone(reason)],
                _ => {
                    self.starts = None;
                    return self.step(Event::Start, site, now);
                }
            }
        }
        if self.client.deadline().is_some_and(|at| at <= now) {
            return self.step(Event::Time, site, now);
        }
        Vec::new()
    }

    /// Adds the files to wait for. If one of them is readable, call `receive`.
    pub fn add_files(&self, list: &mut Vec<Waiting>) {
        list.extend(self.udp.iter().map(|it| Arc::clone(it) as Waiting));
    }

    /// Reads the packets that wait.
    pub fn receive(&mut self, site: &Site<'_>, now: Duration) -> Vec<News> {
        let mut news = Vec::new();
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        for _ in 0..PACKETS_AT_ONCE_MAX {
            let Some(socket) = self.udp.clone() else { break };
            match socket.receive(&mut buffer) {
                Ok(Some(payload)) => {
                    news.extend(self.step(Event::Received(payload), site, now));
                }
                Ok(None) => break,
                Err(error) => self.trouble = Some(Error::internal(reason(&error))),
            }
        }
        news
    }

    fn send(&mut self, payload: &[u8], site: &Site<'_>) -> Result<(), Trouble> {
        if self.udp.is_none() {
            self.udp = Some(Arc::new(socket(site)?));
        }
        self.udp.as_ref().map_or(Ok(()), |socket| send(socket, payload, site))
    }

    /// The payloads that release the lease, none without a lease. The client is finished then.
    pub fn release(&mut self, now: Duration) -> Vec<Vec<u8>> {
        let payload = |action| match action {
            Action::Send(payload) => Some(payload),
            _ => None,
        };
        self.client.step(Event::Release, now).into_iter().filter_map(payload).collect()
    }
}

/// Whether the interface has a link-local address that is usable.
fn has_link_local(site: &Site<'_>) -> Result<bool, Trouble> {
    let addresses = site.open()?.rtnl()?.addresses(site.record.ifindex)?;
    let is_usable = |it: &crate::kernel::rtnl::Address| {
        it.net.addr().is_ipv6() && it.scope_link && !it.tentative && !it.dad_failed
    };
    Ok(addresses.iter().any(is_usable))
}

/// A socket on the port of clients.
pub fn socket(site: &Site<'_>) -> Result<LinkUdp, Trouble> {
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), CLIENT_PORT);
    site.run(|| LinkUdp::bind(&site.record.ask.key.ifname, address))
}

/// Sends to all servers of the link.
pub fn send(socket: &LinkUdp, payload: &[u8], site: &Site<'_>) -> Result<(), Trouble> {
    let servers = SocketAddrV6::new(SERVERS, SERVER_PORT, 0, site.record.ifindex);
    socket.send(payload, servers.into()).map_err(cannot_send)
}
