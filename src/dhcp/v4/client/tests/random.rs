//! Random sequences of events: the invariants of the client hold after each event.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{SERVER, Sent, answer, secs, settings};
use crate::dhcp::client::{Client as _, Event};
use crate::dhcp::lease::v4::Lease;
use crate::dhcp::time::Time;
use crate::dhcp::v4::client::{Action, Client};
use crate::dhcp::v4::packet::MessageType;
use crate::dhcp::v4::settings::{Settings, Times};

#[derive(Clone, Debug)]
enum Input {
    Start,
    /// A lease from the journal with this lease time in seconds.
    Resume(u32),
    /// A reply to the last packet.
    Reply {
        kind: u8,
        server: u8,
        lease: u32,
        /// The last byte of the address.
        host: u8,
    },
    Noise(Vec<u8>),
    /// Advances the time to the deadline.
    Wait,
    /// Advances the time by a number of milliseconds.
    Late(u64),
    Probed(bool),
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let lease = prop_oneof![0u32..200, any::<u32>(), Just(u32::MAX)];
    let kind = prop_oneof![Just(2u8), Just(5), Just(5), Just(6), 0u8..9];
    let input = prop_oneof![
        1 => Just(Input::Start),
        1 => (0u32..300).prop_map(Input::Resume),
        8 => (kind, 1u8..3, lease, prop_oneof![6 => Just(5u8), 1 => any::<u8>()]).prop_map(|(kind, server, lease, host)| Input::Reply { kind, server, lease, host }),
        1 => vec(any::<u8>(), 0..400).prop_map(Input::Noise),
        6 => Just(Input::Wait),
        2 => (0u64..200_000).prop_map(Input::Late),
        2 => any::<bool>().prop_map(Input::Probed),
    ];
    vec(input, 0..80)
}

struct Model {
    client: Client,
    now: Time,
    last: Option<Sent>,
    /// Whether the interface has the address.
    has_address: bool,
    is_started: bool,
    has_failed: bool,
}

impl Model {
    fn step(&mut self, event: Event<'_, Lease>) {
        match event {
            Event::Start => self.is_started = true,
            Event::Resume(_) if !self.is_started || self.has_failed => {
                (self.is_started, self.has_address) = (true, true);
            }
            _ => {}
        }
        if matches!(event, Event::Start | Event::Resume(_)) {
            self.has_failed = false;
        }
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
                Action::Failed(_) => {
                    assert!(!self.has_address);
                    self.has_failed = true;
                }
                Action::Probe(address) => {
                    assert_eq!(address.octets()[..3], [10, 0, 0]);
                    if !self.client.settings.probe {
                        return self.step(Event::Probed { problem: None });
                    }
                }
            }
        }
        assert!(self.last.as_ref().is_none_or(|sent| sent.kind != 7));
        self.check();
    }

    fn check(&self) {
        let lease = self.client.lease();
        assert_eq!(lease.is_some(), self.has_address);
        assert!(lease.is_none_or(|lease| !lease.is_over(self.now)), "{lease:?} at {:?}", self.now);
        let is_running = self.is_started && !self.has_failed;
        assert_eq!(self.client.deadline().is_some(), is_running);
        assert!(is_running || !self.client.is_listening());
        let end = lease.and_then(|lease| lease.ends_at);
        assert!(end.is_none_or(|end| self.client.deadline() <= Some(end)));
    }

    fn input(&mut self, input: &Input) {
        match input {
            Input::Start => self.step(Event::Start),
            Input::Resume(size) => {
                let mut world = super::World::bound(settings(), (*size).max(2));
                let lease = world.lease();
                world.now = self.now;
                self.step(Event::Resume(lease));
            }
            Input::Reply { kind, server, lease, host } => {
                let Some(last) = self.last.clone() else { return };
                let [a, b, c, _] = SERVER;
                let mut bytes = answer(&last, MessageType(*kind), [a, b, c, *server], *lease);
                bytes[19] = *host;
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
        let actions = self.client.step(Event::Release, self.now);
        let kinds: Vec<u8> = actions.iter().filter_map(Sent::of).map(|sent| sent.kind).collect();
        assert_eq!(actions.len(), kinds.len());
        if self.has_address {
            assert_eq!(kinds, [7]);
        } else {
            assert!(kinds.is_empty() || kinds == [7], "{kinds:?}");
        }
        let later = self.now + secs(1_000_000);
        for event in [Event::Release, Event::Timeout, Event::Start, Event::Probed { problem: None }]
        {
            assert_eq!(self.client.step(event, later), []);
        }
        assert!(self.client.deadline().is_none() && !self.client.is_listening());
        assert_eq!(self.client.lease(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_each_event(
        inputs in inputs(),
        seed in any::<u64>(),
        probe in any::<bool>(),
        timeout_ms in prop_oneof![Just(0u64), 1u64..20_000, any::<u64>()],
        resend_max_s in 0u64..100,
        resend_timeout_s in prop_oneof![0u64..300, any::<u64>()],
    ) {
        let times = Times {
            timeout: Time::from_millis(timeout_ms),
            resend_max: secs(resend_max_s),
            resend_timeout: secs(resend_timeout_s),
        };
        let client = Client::new(Settings { probe, times, ..settings() }, seed);
        let (now, last) = (secs(1000), None);
        let mut model =
            Model { client, now, last, has_address: false, is_started: false, has_failed: false };
        for input in &inputs {
            model.input(input);
        }
        model.release();
    }
}
