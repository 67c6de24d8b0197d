//! The DHCPv6 client as a pure state machine (RFC 8415, section 18.2). The caller has the clock and the socket, and passes
//! the random seed.
//!
//! It differs from the RFC in one point: the client sends its first SOLICIT at once. RFC 8415, section 18.2.1, has a random
//! delay of up to 1 s, so that hosts that start together do not flood the network. Here it would delay each ADD by that time.
//!
//! All packets go from port 546 of a link-local address to port 547 of ff02::1:2, and replies come back to port 546.

use crate::dhcp::time::Time;
use std::mem;
use std::net::Ipv6Addr;

use super::packet::{Address, Ia, Message, MessageType, Reply, Status};
use crate::dhcp::attempt::Attempt;
use crate::dhcp::lease::v6::Lease;
use crate::dhcp::random::Random;

/// Retransmission (RFC 8415, section 7.6): the first wait, the longest wait, and the number of packets.
struct Retry {
    first: Time,
    longest: Time,
    count: u32,
}

const SECOND: Time = Time::from_secs(1);
const REQUEST_RETRY: Retry = Retry { first: SECOND, longest: Time::from_secs(30), count: 10 };
/// CONFIRM is sent for at most 10 s.
const CONFIRM_RETRY: Retry = Retry { first: SECOND, longest: Time::from_secs(4), count: u32::MAX };
const CONFIRM_MAX: Time = Time::from_secs(10);
const RENEW_RETRY: Retry =
    Retry { first: Time::from_secs(10), longest: Time::from_secs(600), count: u32::MAX };
const DECLINE_RETRY: Retry = Retry { first: SECOND, longest: Time::MAX, count: 4 };
/// The longest wait between two SOLICIT in seconds, and the range in which a server can set another value.
const SOL_MAX_RT_S: u32 = 3600;
const SOL_MAX_RT_RANGE_S: std::ops::RangeInclusive<u32> = 60..=86_400;
/// The longest delay before the first CONFIRM: a daemon resumes all its clients at once.
const RESUME_DELAY_MAX: Time = Time::from_secs(1);
/// The longest wait for `Event::Probed`. After it, the address counts as free.
const PROBE_TIMEOUT: Time = Time::from_secs(10);
/// The socket stays open for this time after a packet, and is closed for the rest of a longer wait.
const LISTEN_TIME: Time = Time::from_secs(10);
/// The pause before the client starts over. It doubles each time, up to the maximum.
const PAUSE: Time = Time::from_secs(2);
const PAUSE_MAX: Time = Time::from_secs(64);
/// With this preference of a server, the client does not wait for other servers.
const PREFERENCE_MAX: u8 = 255;
/// A shorter valid lifetime is refused: its renewals would flood the network.
const VALID_SECS_MIN: u32 = 2;
const INFINITE: u32 = u32::MAX;

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

/// An input of the client.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// The client has no lease, and requests one.
    Start,
    /// A new daemon found this lease in its journal. The client asks whether the address fits the link (CONFIRM), and keeps
    /// the lease until a refusal or the end of the lease.
    Resume(Lease),
    /// The payload of a UDP packet to port 546.
    Received(&'a [u8]),
    /// The deadline has passed. An early call has no effect.
    Timeout,
    /// The answer to `Action::Probe`. `problem`: why the client must decline the address.
    Probed { problem: Option<&'static str> },
    /// The address is not needed any more. The client is finished afterwards.
    Release,
}

/// An output of the client. The caller executes the actions of a step in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the payload.
    Send(Vec<u8>),
    /// Check the address, and answer with `Event::Probed`: at once, or, if `Settings::probe` is set, within 10 s, after
    /// duplicate address detection.
    Probe(Ipv6Addr),
    /// `Client::lease` is new or renewed. The caller compares it with the lease that it applied.
    Bound,
    /// The lease was lost for this reason: the address must be removed from the interface. The client requests a lease again,
    /// and does not give up.
    Lost(&'static str),
    /// The client gave up; the text lists the attempts. `Event::Start` starts it again.
    Failed(String),
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

    /// Handles an event, and returns the actions for the caller. `now` is the time since boot; it must not decrease.
    pub fn step(&mut self, event: Event<'_>, now: Time) -> Vec<Action> {
        let mut out = Vec::new();
        let is_idle = matches!(self.state, State::Idle);
        match event {
            _ if matches!(self.state, State::Finished) => {}
            Event::Start if is_idle => {
                self.attempt = Attempt::new(now, Some(now + self.settings.resend_timeout));
                self.begin_exchange(State::Soliciting(None), now, &mut out);
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

    /// The time of the next `Event::Timeout`. `None`: the client is not started, gave up, or is finished.
    pub fn deadline(&self) -> Option<Time> {
        let limit = match &self.state {
            State::Idle | State::Finished => return None,
            State::Probing(lease) => lease.ends_at,
            _ => self.attempt.gives_up_at.or_else(|| self.lease.as_ref()?.ends_at),
        };
        Some(limit.map_or(self.wait_ends_at, |limit| limit.min(self.wait_ends_at)))
    }

    /// Whether the client waits for a packet, so that a socket must be open.
    pub fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// The current lease.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Drops the lease if it has ended, and requests another one. Returns whether it has ended.
    fn expire(&mut self, now: Time, out: &mut Vec<Action>) -> bool {
        let is_over = self.lease.as_ref().is_some_and(|lease| lease.is_over(now));
        if is_over {
            self.lose_lease("the lease ended", now, out);
            self.begin_exchange(State::Soliciting(None), now, out);
        }
        is_over
    }

    /// Drops the lease. The caller starts the next exchange or a pause.
    fn lose_lease(&mut self, reason: &'static str, now: Time, out: &mut Vec<Action>) {
        self.lease = None;
        out.push(Action::Lost(reason));
        self.attempt = Attempt::new(now, None);
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

    /// The wait after the next packet (RFC 8415, section 15): it doubles up to a maximum, with a jitter of at most a tenth.
    fn next_wait(&mut self) -> Time {
        let retry = self.retry();
        let is_first = self.sent == 0;
        if is_first && matches!(self.state, State::Soliciting(_)) {
            // After the first SOLICIT, the client waits at least `first` for the answers of all servers.
            return retry.first + self.random.up_to(retry.first / 10);
        }
        let base = if is_first { retry.first } else { self.wait * 2 };
        let base = base.min(retry.longest);
        self.random.around(base, base / 10)
    }

    fn retry(&self) -> Retry {
        match self.state {
            State::Requesting(_) => REQUEST_RETRY,
            State::Confirming => CONFIRM_RETRY,
            State::Renewing | State::Rebinding => RENEW_RETRY,
            State::Declining(_) => DECLINE_RETRY,
            _ => Retry { first: SECOND, longest: self.sol_max_rt, count: u32::MAX },
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
            (State::Pausing, _) => self.begin_exchange(State::Soliciting(None), now, out),
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
        let pause = (PAUSE * (1 << self.attempt.pauses.min(8))).min(PAUSE_MAX);
        self.attempt.pauses += 1;
        self.wait_ends_at = now + self.random.around(pause, SECOND);
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

    fn receive(&mut self, payload: &[u8], now: Time, out: &mut Vec<Action>) {
        let Settings { duid, iaid, .. } = &self.settings;
        let Some(reply) = Reply::parse(payload, self.xid, duid, *iaid) else { return };
        let server = match (&self.state, &self.lease) {
            (State::Requesting(server), _) => Some(server),
            (State::Renewing, Some(lease)) => Some(&lease.server),
            (State::Declining(lease), _) => Some(&lease.server),
            _ => None,
        };
        if server.is_some_and(|server| *server != reply.server) {
            return;
        }
        match (&self.state, MessageType(reply.kind)) {
            (State::Soliciting(_), MessageType::ADVERTISE) => self.advertised(reply, now, out),
            (State::Soliciting(_), MessageType::REPLY) if reply.is_rapid => {
                self.granted(&reply, now, out)
            }
            (State::Requesting(_), MessageType::REPLY) => self.requested(&reply, now, out),
            (State::Confirming, MessageType::REPLY) => match reply.status {
                Status::SUCCESS => self.enter_lease_state(now, out),
                Status::NOT_ON_LINK => {
                    self.lose_lease("the address does not fit the link", now, out);
                    self.begin_exchange(State::Soliciting(None), now, out);
                }
                _ => {}
            },
            (State::Renewing | State::Rebinding, MessageType::REPLY) => {
                self.renewed(reply, now, out)
            }
            (State::Declining(_), MessageType::REPLY) => self.pause(now),
            _ => {}
        }
    }

    /// The best address of a reply: the address of the lease, else the first usable address. The error is the reason why the
    /// reply has no usable address.
    fn choose<'a>(&self, reply: &'a Reply) -> Result<(&'a Ia, Address), &'static str> {
        const NONE: &str = "the server has no address (NoAddrsAvail)";
        let ia = reply.ia.as_ref().ok_or(match reply.status {
            Status::NO_ADDRS_AVAIL => NONE,
            _ => "the server offered no address",
        })?;
        match (ia.status, reply.status) {
            (Status::SUCCESS, Status::SUCCESS) => {}
            (Status::NO_ADDRS_AVAIL, _) | (_, Status::NO_ADDRS_AVAIL) => return Err(NONE),
            (Status::NOT_ON_LINK, _) | (_, Status::NOT_ON_LINK) => {
                return Err("the server refused the link of the address (NotOnLink)");
            }
            _ => return Err("the server failed"),
        }
        let usable = || ia.addresses.iter().filter(|address| address.valid >= VALID_SECS_MIN);
        let held = self.lease.as_ref().map(|lease| lease.address);
        let best =
            usable().find(|address| Some(address.address) == held).or_else(|| usable().next());
        best.map(|address| (ia, *address)).ok_or("the server offered no address")
    }

    fn advertised(&mut self, reply: Reply, now: Time, out: &mut Vec<Action>) {
        self.set_sol_max_rt(&reply);
        if let Err(problem) = self.choose(&reply) {
            self.attempt.problem = problem;
            return;
        }
        let is_first_wait = self.sent == 1;
        let State::Soliciting(best) = &mut self.state else { return };
        if !is_first_wait || reply.preference == PREFERENCE_MAX {
            self.begin_exchange(State::Requesting(reply.server), now, out);
        } else if best.as_ref().is_none_or(|(preference, _)| *preference < reply.preference) {
            *best = Some((reply.preference, reply.server));
        }
    }

    fn set_sol_max_rt(&mut self, reply: &Reply) {
        if let Some(secs) = reply.sol_max_rt.filter(|secs| SOL_MAX_RT_RANGE_S.contains(secs)) {
            self.sol_max_rt = Time::from_secs(secs.into());
        }
    }

    fn requested(&mut self, reply: &Reply, now: Time, out: &mut Vec<Action>) {
        let statuses = [reply.status, reply.ia.as_ref().map_or(Status::SUCCESS, |ia| ia.status)];
        let is_refused = |status| {
            [Status::NO_ADDRS_AVAIL, Status::NOT_ON_LINK, Status::NO_BINDING].contains(&status)
        };
        if !statuses.into_iter().any(is_refused) {
            return self.granted(reply, now, out);
        }
        if self.lease.is_some() {
            self.lose_lease("the server does not know the lease", now, out);
        }
        self.attempt.problem = self.choose(reply).err().unwrap_or(self.attempt.problem);
        self.pause(now);
    }

    fn renewed(&mut self, reply: Reply, now: Time, out: &mut Vec<Action>) {
        let held = self.lease.as_ref().map(|lease| lease.address);
        let Some(ia) = &reply.ia else { return };
        if ia.status == Status::NO_BINDING {
            self.refusals += 1;
            if self.refusals % 2 == 1 {
                // The server has lost the binding. It can assign an address to the same IAID again, perhaps the same one.
                return self.begin_exchange(State::Requesting(reply.server), now, out);
            }
            // The server repeatedly granted a binding, and then replied NoBinding: the pause gets longer each time.
            let pause = (PAUSE * (1 << (self.refusals / 2).min(8))).min(PAUSE_MAX);
            self.wait_ends_at = now + self.random.around(pause, SECOND);
            self.is_listening = false;
            self.state = State::Bound;
            return;
        }
        let is_withdrawn = |address: &Address| Some(address.address) == held && address.valid == 0;
        let is_replaced = ia.addresses.iter().any(|address| address.valid >= VALID_SECS_MIN);
        if ia.addresses.iter().any(is_withdrawn) && !is_replaced {
            self.lose_lease("the server took the address back", now, out);
            return self.pause(now);
        }
        if self.choose(&reply).is_ok() {
            self.refusals = 0;
        }
        self.granted(&reply, now, out);
    }

    fn granted(&mut self, reply: &Reply, now: Time, out: &mut Vec<Action>) {
        self.set_sol_max_rt(reply);
        let (ia, address) = match self.choose(reply) {
            Ok(found) => found,
            Err(problem) => {
                self.attempt.problem = problem;
                return;
            }
        };
        let since = self.sent_at;
        let end = |secs: u32| (secs != INFINITE).then(|| since + Time::from_secs(secs.into()));
        let (renew, rebind) = times(ia, &address);
        let lease = Lease {
            address: address.address,
            server: reply.server.clone(),
            dns: reply.dns.clone(),
            search: reply.search.clone(),
            since,
            // Clients that started together renew at different times.
            renew_at: since + renew - self.random.up_to(renew / 20),
            rebind_at: since + rebind,
            preferred_until: end(address.preferred),
            ends_at: end(address.valid),
        };
        if lease.is_over(now) {
            return;
        }
        self.is_listening = false;
        let held = self.lease.as_ref().map(|lease| lease.address);
        if held != Some(lease.address) {
            if self.settings.probe && self.lease.is_some() {
                self.lose_lease("the server changed the address", now, out);
            }
            out.push(Action::Probe(lease.address));
            self.wait_ends_at = now + PROBE_TIMEOUT;
            self.state = State::Probing(lease);
        } else {
            self.bind(lease, out);
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
                        let (server, address) =
                            (Some(lease.server.as_slice()), Some(lease.address));
                        let xid = self.random.u32() >> 8;
                        out.push(Action::Send(self.message(
                            MessageType::DECLINE,
                            xid,
                            server,
                            address,
                            0,
                        )));
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
            let (server, address) = (Some(lease.server.as_slice()), Some(lease.address));
            let xid = self.random.u32() >> 8;
            out.push(Action::Send(self.message(MessageType::RELEASE, xid, server, address, 0)));
        }
    }
}

/// T1 and T2. The defaults are half and 80 % of the preferred lifetime (RFC 8415, section 21.4), or of the valid lifetime if
/// the address is deprecated. A value of 0 is replaced by its default. The server's values are used if 1 s <= T1 < T2 < valid
/// lifetime.
fn times(ia: &Ia, address: &Address) -> (Time, Time) {
    let secs = |secs: u32| Time::from_secs(secs.into());
    if address.preferred == INFINITE && (ia.t1 == 0 || ia.t1 == INFINITE) {
        return (secs(INFINITE), secs(INFINITE));
    }
    let life = if address.preferred < VALID_SECS_MIN { address.valid } else { address.preferred };
    let default = (secs(life) / 2, secs(life) * 4 / 5);
    let of_server = |given: u32, default| if given == 0 { default } else { secs(given) };
    let (t1, t2) = (of_server(ia.t1, default.0), of_server(ia.t2, default.1));
    let is_consistent = secs(1) <= t1 && t1 < t2 && t2 < secs(address.valid);
    if is_consistent { (t1, t2) } else { default }
}

#[cfg(test)]
mod tests;
