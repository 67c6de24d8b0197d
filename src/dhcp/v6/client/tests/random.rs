//! Random sequences of events: the invariants of the client hold after each event.

use crate::dhcp::time::Time;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Sent, World, answer, secs, settings};
use crate::dhcp::client::{Client as _, Event};
use crate::dhcp::lease::v6::Lease;
use crate::dhcp::v6::client::{Action, Client, State};
use crate::dhcp::v6::packet::MessageType;
use crate::dhcp::v6::packet::tests::{IAID, SERVER, ia, option, reply, status};

#[derive(Clone, Debug)]
enum Input {
    Start,
    /// A lease from the journal with this valid lifetime in seconds.
    Resume(u32),
    /// A reply to the last packet.
    Reply {
        kind: u8,
        server: u8,
        valid: u32,
        is_rapid: bool,
    },
    /// A reply with a status for the message or for its addresses.
    Refuse {
        code: u16,
        is_nested: bool,
    },
    Noise(Vec<u8>),
    /// Advances the time to the deadline.
    Wait,
    /// Advances the time by a number of milliseconds.
    Late(u64),
    Probed(bool),
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let valid = prop_oneof![0u32..200, any::<u32>(), Just(u32::MAX)];
    let kind = prop_oneof![Just(2u8), Just(7), Just(7), 0u8..12];
    let reply = (kind, 0u8..2, valid, any::<bool>())
        .prop_map(|(kind, server, valid, is_rapid)| Input::Reply { kind, server, valid, is_rapid });
    let refusal =
        (0u16..7, any::<bool>()).prop_map(|(code, is_nested)| Input::Refuse { code, is_nested });
    let input = prop_oneof![
        1 => Just(Input::Start),
        1 => (0u32..300).prop_map(Input::Resume),
        8 => reply,
        2 => refusal,
        1 => vec(any::<u8>(), 0..200).prop_map(Input::Noise),
        6 => Just(Input::Wait),
        2 => (0u64..200_000).prop_map(Input::Late),
        3 => any::<bool>().prop_map(Input::Probed),
    ];
    vec(input, 0..80)
}

struct Model {
    client: Client,
    now: Time,
    last: Option<Sent>,
    /// Whether the interface has the address.
    has_address: bool,
    is_running: bool,
}

impl Model {
    fn step(&mut self, event: Event<'_, Lease>) {
        if matches!(event, Event::Resume(_)) && !self.is_running {
            self.has_address = true;
        }
        self.is_running |= matches!(event, Event::Start | Event::Resume(_));
        for action in self.client.step(event, self.now) {
            match action {
                Action::Send(_) => self.last = Sent::of(&action),
                Action::Bound => {
                    let lease = self.client.lease().unwrap();
                    assert!(lease.renew_at < lease.rebind_at || lease.ends_at.is_none());
                    assert!(lease.ends_at.is_none_or(|end| lease.rebind_at < end));
                    self.has_address = true;
                }
                Action::Lost(_) => {
                    assert!(self.has_address, "an address is lost once");
                    self.has_address = false;
                }
                Action::Probe(_) if self.client.settings.probe => assert!(!self.has_address),
                Action::Probe(_) => return self.step(Event::Probed { problem: None }),
                Action::Failed(_) => {
                    assert!(!self.has_address);
                    self.is_running = false;
                }
            }
        }
        assert!(self.last.as_ref().is_none_or(|sent| sent.kind != 8));
        self.check();
    }

    fn check(&self) {
        let lease = self.client.lease();
        assert_eq!(lease.is_some(), self.has_address);
        assert!(lease.is_none_or(|lease| !lease.is_over(self.now)), "{lease:?} at {:?}", self.now);
        assert_eq!(self.client.deadline().is_some(), self.is_running);
        assert!(self.is_running || !self.client.is_listening());
        let end = lease.and_then(|lease| lease.ends_at);
        assert!(end.is_none_or(|end| self.client.deadline() <= Some(end)));
    }

    fn input(&mut self, input: &Input) {
        match input {
            Input::Start => self.step(Event::Start),
            Input::Resume(size) => {
                let lease = World::bound((*size).max(4)).lease();
                self.step(Event::Resume(lease));
            }
            Input::Reply { kind, server, valid, is_rapid } => {
                let Some(last) = &self.last else { return };
                let server = if *server == 0 { &SERVER[..] } else { &[0, 2, 9] };
                let rapid = if *is_rapid { option(14, &[]) } else { Vec::new() };
                let bytes = [answer(last, MessageType(*kind), server, *valid), rapid].concat();
                self.step(Event::Received(&bytes));
            }
            Input::Refuse { code, is_nested } => {
                let Some(last) = &self.last else { return };
                let code = status(*code);
                let options = if *is_nested { ia(IAID, 0, 0, &[&code]) } else { code };
                let bytes = reply(last.xid, MessageType::REPLY, &SERVER, &[&options]);
                self.step(Event::Received(&bytes));
            }
            Input::Noise(bytes) => self.step(Event::Received(bytes)),
            Input::Wait => {
                let Some(deadline) = self.client.deadline() else { return };
                self.now = self.now.max(deadline);
                self.step(Event::Timeout);
                // A lease that was granted late is renewed at once.
                self.step(Event::Timeout);
                let next = self.client.deadline();
                assert!(next.is_none_or(|next| next > self.now), "{next:?} at {:?}", self.now);
            }
            Input::Late(ms) => {
                self.now = self.now + Time::from_millis(*ms);
                self.step(Event::Timeout);
            }
            Input::Probed(taken) => self.step(Event::Probed { problem: taken.then_some("taken") }),
        }
    }

    /// The end: exactly one RELEASE if there is a lease, and then no packet.
    fn release(&mut self) {
        let is_granted = match &self.client.state {
            State::Probing(lease) => !lease.is_over(self.now),
            _ => self.has_address,
        };
        let actions = self.client.step(Event::Release, self.now);
        let kinds: Vec<u8> = actions.iter().filter_map(Sent::of).map(|sent| sent.kind).collect();
        assert_eq!(actions.len(), kinds.len());
        assert_eq!(kinds, if is_granted { vec![8] } else { vec![] });
        let later = self.now + secs(1_000_000);
        for event in
            [Event::Release, Event::Timeout, Event::Start, Event::Probed { problem: Some("taken") }]
        {
            assert_eq!(self.client.step(event, later), []);
        }
        assert!(self.client.deadline().is_none() && !self.client.is_listening());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_each_event(
        inputs in inputs(),
        seed in any::<u64>(),
        probe in any::<bool>(),
        resend_timeout_s in prop_oneof![0u64..300, any::<u64>()],
    ) {
        let mut settings = settings();
        settings.probe = probe;
        settings.resend_timeout = secs(resend_timeout_s);
        let (client, now) = (Client::new(settings, seed), secs(1000));
        let mut model =
            Model { client, now, last: None, has_address: false, is_running: false };
        for input in &inputs {
            model.input(input);
        }
        model.release();
    }
}
