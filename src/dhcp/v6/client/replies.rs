//! What the client does with a reply of a server.

use std::net::Ipv6Addr;

use super::{Action, Client, PROBE_TIMEOUT, Settings, State};
use crate::dhcp::time::Time;
use crate::dhcp::v6::grant::{self, VALID_SECS_MIN};
use crate::dhcp::v6::packet::{Address, MessageType, Reply, Status};
use crate::dhcp::v6::retry;

/// With this preference of a server, the client does not wait for other servers.
const PREFERENCE_MAX: u8 = 255;

impl Client {
    fn held(&self) -> Option<Ipv6Addr> {
        self.lease.as_ref().map(|lease| lease.address)
    }

    pub(super) fn receive(&mut self, payload: &[u8], now: Time, out: &mut Vec<Action>) {
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
                self.granted(reply, now, out)
            }
            (State::Requesting(_), MessageType::REPLY) => self.requested(reply, now, out),
            (State::Confirming, MessageType::REPLY) => match reply.status {
                Status::SUCCESS => self.enter_lease_state(now, out),
                Status::NOT_ON_LINK => {
                    self.lose_lease("the address does not fit the link", now, out);
                    self.solicit(now, out);
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

    fn advertised(&mut self, reply: Reply, now: Time, out: &mut Vec<Action>) {
        self.set_sol_max_rt(&reply);
        if let Err(problem) = grant::choose(&reply, self.held()) {
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
        if let Some(secs) = reply.sol_max_rt.filter(|secs| retry::SOL_MAX_RT_RANGE_S.contains(secs))
        {
            self.sol_max_rt = Time::from_secs(secs.into());
        }
    }

    fn requested(&mut self, reply: Reply, now: Time, out: &mut Vec<Action>) {
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
        self.attempt.problem = grant::choose(&reply, None).err().unwrap_or(self.attempt.problem);
        self.pause(now);
    }

    fn renewed(&mut self, reply: Reply, now: Time, out: &mut Vec<Action>) {
        let held = self.held();
        let Some(ia) = &reply.ia else { return };
        if ia.status == Status::NO_BINDING {
            self.refusals += 1;
            if self.refusals % 2 == 1 {
                // The server has lost the binding. It can assign an address to the same IAID again, perhaps the same one.
                return self.begin_exchange(State::Requesting(reply.server), now, out);
            }
            // The server repeatedly granted a binding, and then replied NoBinding: the pause gets longer each time.
            self.wait_ends_at = now + retry::pause(self.refusals / 2, &mut self.random);
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
        if grant::choose(&reply, held).is_ok() {
            self.refusals = 0;
        }
        self.granted(reply, now, out);
    }

    fn granted(&mut self, reply: Reply, now: Time, out: &mut Vec<Action>) {
        self.set_sol_max_rt(&reply);
        let held = self.held();
        let lease = match grant::lease(reply, held, self.sent_at, &mut self.random) {
            Ok(lease) if !lease.is_over(now) => lease,
            Ok(_) => return,
            Err(problem) => {
                self.attempt.problem = problem;
                return;
            }
        };
        self.is_listening = false;
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
}
