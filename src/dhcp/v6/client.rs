//! The DHCPv6 client as a pure state machine (RFC 8415, section 18.2). The caller has the clock and the socket, and passes
//! the random seed.
//!
//! It differs from the RFC in one point: the client sends its first SOLICIT at once. RFC 8415, section 18.2.1, has a random
//! delay of up to 1 s, so that hosts that start together do not flood the network. Here it would delay each ADD by that time.
//!
//! All packets go from port 546 of a link-local address to port 547 of ff02::1:2, and replies come back to port 546.

mod replies;

use std::mem;
use std::net::Ipv6Addr;

use super::packet::{Message, MessageType};
use super::retry::{self, CONFIRM_MAX, Retry, SOL_MAX_RT_S};
use crate::dhcp::attempt::Attempt;
use crate::dhcp::client::{self, Event, PROBE_TIMEOUT, RESUME_DELAY_MAX};
use crate::dhcp::lease::v6::Lease;
use crate::dhcp::random::Random;
use crate::dhcp::time::Time;

/// An action, with the payload of a packet to all servers.
type Action = client::Action<Vec<u8>, Ipv6Addr>;

/// The socket stays open for this time after a packet, and is closed for the rest of a longer wait.
const LISTEN_TIME: Time = Time::from_secs(10);

/// The identity of a client, and the timeout for its first lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The DUID of the client (see `duid::of`).
    pub duid: Vec<u8>,
    pub iaid: u32,
    /// The caller probes a new address before it is used. Meanwhile the client has no lease: an earlier one is lost.
    pub probe: bool,
    /// The time after which the client gives up if it never had a lease.
    pub resend_timeout: Time,
}

#[derive(Debug)]
enum State {
    /// Not started, or given up.
    Idle,
    /// The client waits before the next SOLICIT.
    Pausing,
    /// The client sends SOLICIT. The value: preference and DUID of the best server that has answered in the first wait.
    Soliciting(Option<(u8, Vec<u8>)>),
    /// The client sends REQUEST to the server with this DUID.
    Requesting(Vec<u8>),
    /// The server granted the lease; the caller checks the address.
    Probing(Lease),
    Confirming,
    Bound,
    Renewing,
    Rebinding,
    /// The address cannot be used: the client sends a DECLINE until the server answers, at most four times.
    Declining(Lease),
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
    /// The transaction id of the exchange; it has 24 bits.
    xid: u32,
    /// The number of packets of the exchange that were sent.
    sent: u32,
    sent_at: Time,
    /// The time of the first packet of the exchange.
    began: Time,
    /// The length of the current wait for an answer.
    wait: Time,
    /// The time of the next retransmission.
    resend_at: Time,
    is_listening: bool,
    /// The time of the next `Event::Timeout`: the retransmission, the close of the socket, or the end of the state.
    wait_ends_at: Time,
    attempt: Attempt,
    sol_max_rt: Time,
    /// The number of RENEW and REBIND that a server answered with NoBinding, without a renewal in between.
    refusals: u32,
}

impl Client {
    /// A client that is not started. The transaction ids and the jitter depend on the seed, which must differ from client to
    /// client.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            random: Random::new(seed),
            state: State::Idle,
            lease: None,
            xid: 0,
            sent: 0,
            sent_at: Time::ZERO,
            began: Time::ZERO,
            wait: Time::ZERO,
            resend_at: Time::ZERO,
            is_listening: false,
            wait_ends_at: Time::ZERO,
            attempt: Attempt::default(),
            sol_max_rt: Time::from_secs(SOL_MAX_RT_S.into()),
            refusals: 0,
        }
    }

    /// Drops the lease if it has ended, and requests another one. Returns whether it has ended.
    fn expire(&mut self, now: Time, out: &mut Vec<Action>) -> bool {
        let is_over = self.lease.as_ref().is_some_and(|lease| lease.is_over(now));
        if is_over {
            self.lose_lease("the lease ended", now, out);
            self.solicit(now, out);
        }
        is_over
    }

    /// Drops the lease. The caller starts the next exchange or a pause.
    fn lose_lease(&mut self, reason: &'static str, now: Time, out: &mut Vec<Action>) {
        self.lease = None;
        out.push(Action::Lost(reason));
        self.attempt = Attempt::new(now, None);
    }

    fn solicit(&mut self, now: Time, out: &mut Vec<Action>) {
        self.begin_exchange(State::Soliciting(None), now, out);
    }

    /// Enters a state, and sends the first packet of its exchange.
    fn begin_exchange(&mut self, state: State, now: Time, out: &mut Vec<Action>) {
        self.state = state;
        self.sent = 0;
        self.transmit(now, out);
    }

    /// Sends the next packet of the exchange.
    fn transmit(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.sent == 0 {
            self.xid = self.random.u32() >> 8;
            self.began = now;
        }
        let lease = self.lease.as_ref();
        let mut address = lease.map(|lease| lease.address);
        let (kind, server) = match &self.state {
            State::Requesting(server) => (MessageType::REQUEST, Some(server.as_slice())),
            State::Confirming => (MessageType::CONFIRM, None),
            State::Renewing => (MessageType::RENEW, lease.map(|lease| lease.server.as_slice())),
            State::Rebinding => (MessageType::REBIND, None),
            State::Declining(lease) => {
                address = Some(lease.address);
                (MessageType::DECLINE, Some(lease.server.as_slice()))
            }
            _ => (MessageType::SOLICIT, None),
        };
        let elapsed = (now - self.began).as_millis() / 10;
        out.push(Action::Send(self.message(kind, self.xid, server, address, elapsed)));
        match kind {
            MessageType::SOLICIT => self.attempt.searches = self.attempt.searches.saturating_add(1),
            MessageType::REQUEST => self.attempt.requests = self.attempt.requests.saturating_add(1),
            _ => {}
        }
        self.wait = self.next_wait();
        self.sent = self.sent.saturating_add(1);
        self.sent_at = now;
        self.resend_at = now + self.wait;
        self.is_listening = true;
        self.wait_ends_at = self.resend_at.min(now + LISTEN_TIME);
        self.limit_wait();
    }

    /// A single message about a lease, which is not part of an exchange.
    fn message_about(&mut self, lease: &Lease, kind: MessageType) -> Action {
        let xid = self.random.u32() >> 8;
        Action::Send(self.message(kind, xid, Some(&lease.server), Some(lease.address), 0))
    }

    fn message(
        &self,
        kind: MessageType,
        xid: u32,
        server: Option<&[u8]>,
        address: Option<Ipv6Addr>,
        elapsed_cs: u64,
    ) -> Vec<u8> {
        let elapsed_cs = u16::try_from(elapsed_cs).unwrap_or(u16::MAX);
        let Settings { duid, iaid, .. } = &self.settings;
        Message { kind, xid, duid, iaid: *iaid, server, address, elapsed_cs }.encode()
    }

    fn next_wait(&mut self) -> Time {
        let retry = self.retry();
        match &self.state {
            State::Soliciting(_) if self.sent == 0 => retry.wait_for_all(&mut self.random),
            _ => retry.wait((self.sent > 0).then_some(self.wait), &mut self.random),
        }
    }

    fn retry(&self) -> Retry {
        match self.state {
            State::Requesting(_) => retry::REQUEST,
            State::Confirming => retry::CONFIRM,
            State::Renewing | State::Rebinding => retry::RENEW,
            State::Declining(_) => retry::DECLINE,
            _ => Retry::of_solicit(self.sol_max_rt),
        }
    }

    /// Ends the current wait at the end of the state, if that is earlier: 10 s of CONFIRM, or T2 in RENEWING.
    fn limit_wait(&mut self) {
        let limit = match (&self.state, &self.lease) {
            (State::Confirming, _) => self.began + CONFIRM_MAX,
            (State::Renewing, Some(lease)) => lease.rebind_at,
            _ => return,
        };
        self.wait_ends_at = self.wait_ends_at.min(limit);
    }

    fn timeout(&mut self, now: Time, out: &mut Vec<Action>) {
        let rebind_at = self.lease.as_ref().map_or(Time::ZERO, |lease| lease.rebind_at);
        // `best` is set only in the first wait of SOLICIT. That wait is shorter than `LISTEN_TIME`, so this event is its end.
        let best = match &mut self.state {
            State::Soliciting(best) => best.take(),
            _ => None,
        };
        match (&self.state, best) {
            (State::Probing(_), _) => self.probed(None, now, out),
            _ if self.attempt.is_over(now) => {
                self.is_listening = false;
                self.state = State::Idle;
                self.attempt.gives_up_at = None;
                out.push(Action::Failed(self.attempt.report("SOLICIT", now)));
            }
            (State::Pausing, _) => self.solicit(now, out),
            (State::Bound, _) => self.enter_lease_state(now, out),
            (State::Renewing, _) if rebind_at <= now => self.enter_lease_state(now, out),
            (State::Confirming, _) if self.sent > 0 && self.began + CONFIRM_MAX <= now => {
                self.enter_lease_state(now, out);
            }
            (_, Some((_, server))) => self.begin_exchange(State::Requesting(server), now, out),
            _ if now < self.resend_at => {
                self.is_listening = false;
                self.wait_ends_at = self.resend_at;
                self.limit_wait();
            }
            _ if self.sent < self.retry().count => self.transmit(now, out),
            // No answer to the last REQUEST or DECLINE.
            _ => {
                if matches!(self.state, State::Requesting(_)) {
                    self.attempt.problem = "the server did not answer the REQUEST";
                }
                if self.lease.is_some() {
                    self.enter_lease_state(now, out)
                } else {
                    self.pause(now)
                }
            }
        }
    }

    /// Waits before the next SOLICIT.
    fn pause(&mut self, now: Time) {
        self.wait_ends_at = now + retry::pause(self.attempt.pauses, &mut self.random);
        self.attempt.pauses += 1;
        self.is_listening = false;
        self.state = State::Pausing;
    }

    /// Enters BOUND, RENEWING or REBINDING, as the times of the lease require.
    fn enter_lease_state(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(lease) = &self.lease else { return self.pause(now) };
        if lease.rebind_at <= now {
            self.begin_exchange(State::Rebinding, now, out);
        } else if lease.renew_at <= now {
            self.begin_exchange(State::Renewing, now, out);
        } else {
            self.wait_ends_at = lease.renew_at;
            self.is_listening = false;
            self.state = State::Bound;
        }
    }

    fn bind(&mut self, lease: Lease, out: &mut Vec<Action>) {
        self.attempt.gives_up_at = None;
        self.attempt.pauses = 0;
        self.wait_ends_at = lease.renew_at;
        self.state = State::Bound;
        self.lease = Some(lease);
        out.push(Action::Bound);
    }

    fn probed(&mut self, problem: Option<&'static str>, now: Time, out: &mut Vec<Action>) {
        match (mem::replace(&mut self.state, State::Idle), problem) {
            (State::Probing(lease), _) if lease.is_over(now) => self.pause(now),
            (State::Probing(lease), Some(problem)) => {
                self.attempt.problem = problem;
                match &self.lease {
                    None => self.begin_exchange(State::Declining(lease), now, out),
                    // The client keeps the lease of its old address, and sends REBIND at T2. The DECLINE of the new address
                    // is sent once, without a wait for an answer.
                    Some(held) => {
                        let ends_at = held.ends_at.unwrap_or(Time::MAX);
                        self.wait_ends_at =
                            if now < held.rebind_at { held.rebind_at } else { ends_at };
                        out.push(self.message_about(&lease, MessageType::DECLINE));
                        self.state = State::Bound;
                    }
                }
            }
            (State::Probing(lease), None) => self.bind(lease, out),
            (other, _) => self.state = other,
        }
    }

    /// Sends a RELEASE for the lease, or for a granted lease whose address the caller still probes.
    fn release(&mut self, now: Time, out: &mut Vec<Action>) {
        self.is_listening = false;
        self.attempt.gives_up_at = None;
        let granted = match mem::replace(&mut self.state, State::Finished) {
            State::Probing(lease) => Some(lease),
            _ => self.lease.take(),
        };
        if let Some(lease) = granted.filter(|lease| !lease.is_over(now)) {
            out.push(self.message_about(&lease, MessageType::RELEASE));
        }
    }
}

impl client::Client for Client {
    type Lease = Lease;
    type Packet = Vec<u8>;
    type Address = Ipv6Addr;

    fn step(&mut self, event: Event<'_, Lease>, now: Time) -> Vec<Action> {
        let mut out = Vec::new();
        let is_idle = matches!(self.state, State::Idle);
        match event {
            _ if matches!(self.state, State::Finished) => {}
            Event::Start if is_idle => {
                self.attempt = Attempt::new(now, Some(now + self.settings.resend_timeout));
                self.solicit(now, &mut out);
            }
            Event::Resume(lease) if is_idle => {
                self.lease = Some(lease);
                self.attempt = Attempt::new(now, None);
                self.state = State::Confirming;
                self.sent = 0;
                self.resend_at = now + self.random.up_to(RESUME_DELAY_MAX);
                self.wait_ends_at = self.resend_at;
                self.expire(now, &mut out);
            }
            Event::Release => self.release(now, &mut out),
            Event::Start | Event::Resume(_) => {}
            _ if is_idle || self.expire(now, &mut out) => {}
            Event::Received(payload) if self.is_listening => self.receive(payload, now, &mut out),
            Event::Timeout if self.deadline().is_some_and(|deadline| deadline <= now) => {
                self.timeout(now, &mut out);
            }
            Event::Probed { problem } => self.probed(problem, now, &mut out),
            Event::Received(_) | Event::Timeout => {}
        }
        out
    }

    fn deadline(&self) -> Option<Time> {
        let limit = match &self.state {
            State::Idle | State::Finished => return None,
            State::Probing(lease) => lease.ends_at,
            _ => self.attempt.gives_up_at.or_else(|| self.lease.as_ref()?.ends_at),
        };
        Some(limit.map_or(self.wait_ends_at, |limit| limit.min(self.wait_ends_at)))
    }

    fn is_listening(&self) -> bool {
        self.is_listening
    }

    fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }
}

#[cfg(test)]
mod tests;
