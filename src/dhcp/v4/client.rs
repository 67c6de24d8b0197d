//! The DHCPv4 client as a pure state machine (RFC 2131, figure 5). The caller has the clock and the sockets, and passes the
//! random seed.
//!
//! It differs from the RFC in one point: the client sends its first DISCOVER at once. RFC 2131, section 4.4.1, has a random
//! delay of 1 to 10 s, so that hosts that start together do not flood the network. Here it would delay each ADD by that time.

use std::mem;
use std::net::Ipv4Addr;

use super::grant;
use super::packet::{Message, MessageType, Reply};
use super::settings::Settings;
use crate::dhcp::attempt::Attempt;
use crate::dhcp::client::{self, Event, PROBE_TIMEOUT, RESUME_DELAY_MAX};
use crate::dhcp::lease::v4::Lease;
use crate::dhcp::random::Random;
use crate::dhcp::time::Time;

/// An action, with a packet and an address of DHCPv4.
type Action = client::Action<Packet, Ipv4Addr>;

/// The number of packets in a series: a message and its retransmissions. The wait for an answer doubles after each.
const SERIES: u8 = 3;
/// The pauses between two series of DISCOVER, as in the reference: four of 2 s, then one of 4 s, which doubles from there.
const PAUSE_FAST: Time = Time::from_secs(2);
const PAUSES_FAST: u32 = 4;
const PAUSE: Time = Time::from_secs(4);
/// The lower bounds of two settings: with smaller values the client would flood the network.
const TIMEOUT_MIN: Time = Time::from_millis(10);
const RESEND_MAX_MIN: Time = Time::from_millis(100);
/// 136 years. The sum of all waits stays below `Time::MAX`.
const TIMEOUT_MAX: Time = Time::from_secs(1 << 32);
/// The shortest pause between two packets of a renewal or rebinding (RFC 2131, section 4.4.5).
const RENEWAL_PAUSE: Time = Time::from_secs(60);
/// The pause after a DECLINE (RFC 2131, section 3.1).
const DECLINE_PAUSE: Time = Time::from_secs(10);

/// A packet to UDP port 67. One to 255.255.255.255 goes through a packet socket, another one through a UDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub payload: Vec<u8>,
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
}

/// The state of RFC 2131, figure 5.
#[derive(Debug)]
enum State {
    /// Not started, or given up.
    Idle,
    /// INIT: the client waits before the next DISCOVER.
    Pausing,
    Selecting,
    Requesting {
        address: Ipv4Addr,
        server: Ipv4Addr,
    },
    /// The server granted the lease; the caller checks the address.
    Probing(Lease),
    Rebooting,
    Bound,
    Renewing,
    Rebinding,
    /// Released.
    Finished,
}

/// A client for one address of one interface.
#[derive(Debug)]
pub struct Client {
    settings: Settings,
    random: Random,
    state: State,
    lease: Option<Lease>,
    /// The transaction id of the series.
    xid: u32,
    /// The number of packets of the series that were sent. `SERIES + 1`: the series has ended, and no socket is needed until
    /// the next one.
    sent: u8,
    sent_at: Time,
    /// The end of the current wait.
    wait_ends_at: Time,
    /// The field `secs` counts from the start of the attempt, or of the renewal.
    attempt: Attempt,
    /// The field `secs` of the last packet. A REQUEST for an offer has that of its DISCOVER (RFC 2131, section 4.1).
    secs: u16,
    /// The number of leases that a server granted and then refused, without a renewal in between.
    refusals: u32,
    /// The address of a lease that ended: the client requests it again.
    previous_address: Option<Ipv4Addr>,
}

impl Client {
    /// A client that is not started. The transaction ids and the jitter depend on the seed, which must differ from client to
    /// client.
    pub fn new(mut settings: Settings, seed: u64) -> Self {
        let times = &mut settings.times;
        times.timeout = times.timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        times.resend_max = times.resend_max.max(RESEND_MAX_MIN);
        Self {
            settings,
            random: Random::new(seed),
            state: State::Idle,
            lease: None,
            xid: 0,
            sent: 0,
            sent_at: Time::ZERO,
            wait_ends_at: Time::ZERO,
            attempt: Attempt::default(),
            secs: 0,
            refusals: 0,
            previous_address: None,
        }
    }

    /// Drops the lease if it has ended, and requests another one. Returns whether it has ended.
    fn expire(&mut self, now: Time, out: &mut Vec<Action>) -> bool {
        let is_over = self.lease.as_ref().is_some_and(|lease| lease.is_over(now));
        if is_over {
            self.previous_address = self.lease.as_ref().map(|lease| lease.address.addr());
            self.lose_lease("the lease ended", now, out);
        }
        is_over
    }

    /// Drops the lease, and requests another one at once.
    fn lose_lease(&mut self, reason: &'static str, now: Time, out: &mut Vec<Action>) {
        self.lease = None;
        out.push(Action::Lost(reason));
        self.attempt = Attempt::new(now, None);
        self.discover(now, out);
    }

    fn discover(&mut self, now: Time, out: &mut Vec<Action>) {
        self.begin_series(State::Selecting);
        self.transmit(now, out);
    }

    /// Enters a state in which the client sends a series of packets.
    fn begin_series(&mut self, state: State) {
        // A REQUEST has the xid of its OFFER.
        if !matches!(state, State::Requesting { .. }) {
            self.xid = self.random.u32();
        }
        self.state = state;
        self.sent = 0;
    }

    /// Sends the next packet of the series.
    fn transmit(&mut self, now: Time, out: &mut Vec<Action>) {
        if !matches!(self.state, State::Requesting { .. }) {
            let secs = (now - self.attempt.began).as_secs();
            self.secs = u16::try_from(secs).unwrap_or(u16::MAX);
        }
        let mut message =
            Message { secs: self.secs, ..Message::new(MessageType::REQUEST, self.xid) };
        let mut to = Ipv4Addr::BROADCAST;
        match (&self.state, &self.lease) {
            (State::Requesting { address, server }, _) => {
                (message.address, message.server) = (Some(*address), Some(*server));
            }
            (State::Rebooting, Some(lease)) => message.address = Some(lease.address.addr()),
            (State::Renewing, Some(lease)) => {
                message.ciaddr = lease.address.addr();
                to = lease.server;
            }
            (_, Some(lease)) => message.ciaddr = lease.address.addr(),
            (_, None) => {
                (message.kind, message.address) = (MessageType::DISCOVER, self.previous_address)
            }
        }
        let is_discover = message.kind == MessageType::DISCOVER;
        let count =
            if is_discover { &mut self.attempt.searches } else { &mut self.attempt.requests };
        *count = count.saturating_add(1);
        out.push(self.send(&message, to));
        let wait = self.settings.times.timeout * (1 << self.sent.min(SERIES));
        let spread = (wait / 10).min(Time::from_secs(1));
        self.wait_ends_at = now + self.random.around(wait, spread);
        if let (State::Renewing, Some(lease)) = (&self.state, &self.lease) {
            self.wait_ends_at = self.wait_ends_at.min(lease.rebind_at);
        }
        self.sent_at = now;
        self.sent += 1;
    }

    fn send(&self, message: &Message, to: Ipv4Addr) -> Action {
        Action::Send(Packet { payload: self.settings.packet(message), from: message.ciaddr, to })
    }

    fn timeout(&mut self, now: Time, out: &mut Vec<Action>) {
        let rebind_at = self.lease.as_ref().map_or(Time::ZERO, |lease| lease.rebind_at);
        match mem::replace(&mut self.state, State::Idle) {
            State::Pausing | State::Selecting | State::Requesting { .. }
                if self.attempt.is_over(now) =>
            {
                out.push(Action::Failed(self.attempt.report("DISCOVER", now)));
            }
            State::Pausing => self.discover(now, out),
            State::Probing(lease) if lease.is_over(now) => self.pause(now),
            State::Probing(lease) => self.bind(lease, out),
            State::Bound => self.enter_lease_state(now, out),
            State::Renewing if rebind_at <= now => self.enter_lease_state(now, out),
            state => {
                self.state = state;
                if self.sent < self.series_packets() {
                    self.transmit(now, out);
                } else {
                    self.end_series(now, out);
                }
            }
        }
    }

    /// A renewal has one packet, and then a long pause (RFC 2131, section 4.4.5).
    fn series_packets(&self) -> u8 {
        match self.state {
            State::Renewing | State::Rebinding => 1,
            _ => SERIES,
        }
    }

    /// Handles a series without an answer, and the end of the pause after the series.
    fn end_series(&mut self, now: Time, out: &mut Vec<Action>) {
        let limit = match (&self.state, &self.lease) {
            (State::Renewing, Some(lease)) => lease.rebind_at,
            (State::Rebinding, Some(lease)) => lease.ends_at.unwrap_or(Time::MAX),
            // Without an answer the lease stays valid (RFC 2131, section 3.2).
            (State::Rebooting, _) => return self.enter_lease_state(now, out),
            _ => {
                if matches!(self.state, State::Requesting { .. }) {
                    self.attempt.problem = "the server did not answer the REQUEST";
                }
                return self.pause(now);
            }
        };
        if self.sent > SERIES {
            return self.enter_lease_state(now, out);
        }
        self.sent = SERIES + 1;
        let pause = ((limit - now) / 2).max(RENEWAL_PAUSE);
        self.wait_ends_at = (now + pause).min(limit);
    }

    /// Waits before the next DISCOVER.
    fn pause(&mut self, now: Time) {
        let doubled = 1 << self.attempt.pauses.saturating_sub(PAUSES_FAST).min(16);
        let pause = if self.attempt.pauses < PAUSES_FAST { PAUSE_FAST } else { PAUSE * doubled };
        let pause = pause.min(self.settings.times.resend_max);
        let spread = (pause / 2).min(Time::from_secs(1));
        self.wait_ends_at = now + self.random.around(pause, spread);
        self.attempt.pauses += 1;
        self.state = State::Pausing;
    }

    /// Enters BOUND, RENEWING or REBINDING, as the times of the lease require.
    fn enter_lease_state(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(lease) = &self.lease else { return self.pause(now) };
        if now < lease.renew_at {
            self.wait_ends_at = lease.renew_at;
            self.state = State::Bound;
            return;
        }
        let next = if now < lease.rebind_at { State::Renewing } else { State::Rebinding };
        self.attempt.began = lease.renew_at;
        self.begin_series(next);
        self.transmit(now, out);
    }

    fn receive(&mut self, payload: &[u8], now: Time, out: &mut Vec<Action>) {
        let Some(reply) = Reply::parse(payload, self.xid, self.settings.mac) else { return };
        let held = self.lease.as_ref();
        // The server and the address that the reply must have. Any server can answer in REBOOTING and REBINDING. In RENEWING
        // and REBINDING the server can change the address.
        let (server, address) = match self.state {
            State::Selecting => return self.offered(&reply, now, out),
            State::Requesting { server, address } => (Some(server), address),
            State::Renewing => (held.map(|lease| lease.server), reply.yiaddr),
            State::Rebinding => (reply.options.server(), reply.yiaddr),
            _ => match held {
                Some(lease) => (reply.options.server(), lease.address.addr()),
                None => return,
            },
        };
        if server.is_none() || server != reply.options.server() {
            return;
        }
        match reply.kind {
            MessageType::ACK if address == reply.yiaddr => self.granted(&reply, now, out),
            MessageType::NAK if self.lease.is_some() => {
                self.previous_address = None;
                self.refused(now, out);
            }
            MessageType::NAK => {
                self.previous_address = None;
                self.attempt.problem = "the server refused the address that it had offered";
                self.pause(now);
            }
            _ => {}
        }
    }

    /// Handles a NAK for the lease. The first time, the client requests another lease at once. If the server again refuses a
    /// lease that it granted, the pause before the next DISCOVER gets longer each time.
    fn refused(&mut self, now: Time, out: &mut Vec<Action>) {
        const REASON: &str = "the server refused the lease";
        self.refusals += 1;
        if self.refusals == 1 {
            return self.lose_lease(REASON, now, out);
        }
        self.lease = None;
        out.push(Action::Lost(REASON));
        self.attempt = Attempt::new(now, None);
        self.attempt.pauses = PAUSES_FAST + self.refusals - 2;
        self.pause(now);
    }

    fn offered(&mut self, reply: &Reply, now: Time, out: &mut Vec<Action>) {
        if reply.kind != MessageType::OFFER {
            return;
        }
        match grant::check(reply) {
            Err(problem) => self.attempt.problem = problem,
            Ok((net, server)) => {
                self.begin_series(State::Requesting { address: net.addr(), server });
                self.transmit(now, out);
            }
        }
    }

    fn granted(&mut self, reply: &Reply, now: Time, out: &mut Vec<Action>) {
        let lease = match grant::lease(reply, self.sent_at, &mut self.random) {
            Ok(lease) if !lease.is_over(now) => lease,
            Ok(_) => return,
            Err(problem) => {
                self.attempt.problem = problem;
                return;
            }
        };
        let held = self.lease.as_ref().map(|lease| lease.address.addr());
        if held.is_some() {
            self.refusals = 0;
        }
        if held != Some(lease.address.addr()) {
            if self.settings.probe && self.lease.take().is_some() {
                out.push(Action::Lost("the server changed the address"));
            }
            out.push(Action::Probe(lease.address.addr()));
            self.wait_ends_at = now + PROBE_TIMEOUT;
            self.state = State::Probing(lease);
        } else {
            self.bind(lease, out);
        }
    }

    fn bind(&mut self, lease: Lease, out: &mut Vec<Action>) {
        self.wait_ends_at = lease.renew_at;
        self.attempt.gives_up_at = None;
        self.previous_address = None;
        self.state = State::Bound;
        self.lease = Some(lease);
        out.push(Action::Bound);
    }

    fn probed(&mut self, problem: Option<&'static str>, now: Time, out: &mut Vec<Action>) {
        match (mem::replace(&mut self.state, State::Idle), problem) {
            (State::Probing(lease), Some(problem)) => {
                let decline = Message {
                    address: Some(lease.address.addr()),
                    server: Some(lease.server),
                    ..Message::new(MessageType::DECLINE, self.xid)
                };
                out.push(self.send(&decline, Ipv4Addr::BROADCAST));
                if self.lease.is_some() {
                    return self.continue_renewal(now, out);
                }
                self.previous_address = None;
                self.attempt.problem = problem;
                self.wait_ends_at = now + DECLINE_PAUSE;
                self.state = State::Pausing;
            }
            (State::Probing(lease), None) if lease.is_over(now) => self.pause(now),
            (State::Probing(lease), None) => self.bind(lease, out),
            (other, _) => self.state = other,
        }
    }

    /// Keeps the current lease, and goes on as if the server had not answered.
    fn continue_renewal(&mut self, now: Time, out: &mut Vec<Action>) {
        let rebind_at = self.lease.as_ref().map_or(Time::ZERO, |lease| lease.rebind_at);
        self.state = if now < rebind_at { State::Renewing } else { State::Rebinding };
        self.sent = SERIES;
        self.end_series(now, out);
    }

    /// Sends a RELEASE for the address that the server granted or may have granted.
    fn release(&mut self, now: Time, out: &mut Vec<Action>) {
        let of = |lease: Lease| (!lease.is_over(now)).then(|| (lease.address.addr(), lease.server));
        let granted = match mem::replace(&mut self.state, State::Finished) {
            State::Requesting { address, server } => Some((address, server)),
            State::Probing(lease) => of(lease),
            _ => self.lease.take().and_then(of),
        };
        if let Some((ciaddr, server)) = granted {
            let message = Message::new(MessageType::RELEASE, self.random.u32());
            out.push(self.send(&Message { ciaddr, server: Some(server), ..message }, server));
        }
    }
}

impl client::Client for Client {
    type Lease = Lease;
    type Packet = Packet;
    type Address = Ipv4Addr;

    fn step(&mut self, event: Event<'_, Lease>, now: Time) -> Vec<Action> {
        let mut out = Vec::new();
        let is_idle = matches!(self.state, State::Idle);
        match event {
            _ if matches!(self.state, State::Finished) => {}
            Event::Start if is_idle => {
                let limit = now + self.settings.times.resend_timeout;
                self.attempt = Attempt::new(now, Some(limit));
                self.discover(now, &mut out);
            }
            Event::Resume(lease) if is_idle => {
                self.lease = Some(lease);
                self.attempt = Attempt::new(now, None);
                self.begin_series(State::Rebooting);
                self.wait_ends_at = now + self.random.up_to(RESUME_DELAY_MAX);
                self.expire(now, &mut out);
            }
            Event::Release => self.release(now, &mut out),
            Event::Start | Event::Resume(_) => {}
            _ if is_idle || self.expire(now, &mut out) => {}
            Event::Received(payload) if self.is_listening() => self.receive(payload, now, &mut out),
            Event::Probed { problem } => self.probed(problem, now, &mut out),
            Event::Timeout if self.deadline().is_some_and(|deadline| deadline <= now) => {
                self.timeout(now, &mut out);
            }
            Event::Received(_) | Event::Timeout => {}
        }
        out
    }

    fn deadline(&self) -> Option<Time> {
        let limit = match &self.state {
            State::Idle | State::Finished => return None,
            State::Pausing | State::Selecting | State::Requesting { .. } => {
                self.attempt.gives_up_at
            }
            State::Probing(lease) => lease.ends_at,
            _ => self.lease.as_ref().and_then(|lease| lease.ends_at),
        };
        Some(limit.map_or(self.wait_ends_at, |limit| limit.min(self.wait_ends_at)))
    }

    fn is_listening(&self) -> bool {
        let is_exchange = !matches!(
            self.state,
            State::Idle | State::Pausing | State::Probing(_) | State::Bound | State::Finished
        );
        is_exchange && (1..=SERIES).contains(&self.sent)
    }

    fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }
}

#[cfg(test)]
mod tests;
