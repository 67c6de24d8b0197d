//! The client against a simulated server and a simulated clock.

use super::*;
use crate::dhcp::client::Client as _;
use crate::dhcp::v6::packet::tests::{DUID, IAID, SERVER, ia, ia_address, option, reply, status};

mod random;

const OTHER: [u8; 4] = [0, 2, 9, 9];

pub fn settings() -> Settings {
    let resend_timeout = secs(208);
    Settings { duid: DUID.to_vec(), iaid: IAID, probe: false, resend_timeout }
}

pub fn secs(secs: u64) -> Time {
    Time::from_secs(secs)
}

pub fn address() -> Ipv6Addr {
    "fd00::5".parse().unwrap()
}

/// A packet of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub kind: u8,
    pub xid: u32,
    pub server: Option<Vec<u8>>,
    pub address: Option<Ipv6Addr>,
    pub elapsed_cs: u16,
}

impl Sent {
    pub fn of(action: &Action) -> Option<Self> {
        let Action::Send(bytes) = action else { return None };
        let find = |wanted: u8| {
            let mut at = 4;
            while at < bytes.len() {
                let size = usize::from(bytes[at + 3]);
                if bytes[at + 1] == wanted {
                    return Some(&bytes[at + 4..at + 4 + size]);
                }
                at += 4 + size;
            }
            None
        };
        assert_eq!(find(1), Some(&DUID[..]));
        let ia = find(3).unwrap();
        assert_eq!(ia[..4], IAID.to_be_bytes());
        let octets = |bytes: &[u8]| <[u8; 16]>::try_from(&bytes[16..32]).unwrap();
        Some(Self {
            kind: bytes[0],
            xid: u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]),
            server: find(2).map(<[u8]>::to_vec),
            address: (ia.len() > 12).then(|| octets(ia).into()),
            elapsed_cs: u16::from_be_bytes(find(8).unwrap().try_into().unwrap()),
        })
    }
}

/// A reply with one address with this valid lifetime; the preferred one is half of it.
pub fn answer(sent: &Sent, kind: MessageType, server: &[u8], valid: u32) -> Vec<u8> {
    let preferred = if valid == u32::MAX { valid } else { valid / 2 };
    reply(sent.xid, kind, server, &[&ia(IAID, 0, 0, &[&ia_address(address(), preferred, valid)])])
}

struct World {
    client: Client,
    now: Time,
}

impl World {
    fn new() -> Self {
        Self { client: Client::new(settings(), 42), now: secs(1000) }
    }

    /// Passes an event to the client. Without `probe`, answers `Action::Probe` at once: the address can be used.
    fn step(&mut self, event: Event<'_, Lease>) -> Vec<Action> {
        let mut actions = self.client.step(event, self.now);
        let is_probe = |action: &Action| matches!(action, Action::Probe(_));
        if let (Some(at), false) = (actions.iter().position(is_probe), self.client.settings.probe) {
            actions.remove(at);
            actions.extend(self.client.step(Event::Probed { problem: None }, self.now));
        }
        actions
    }

    fn sent(&mut self, event: Event<'_, Lease>) -> Sent {
        let actions = self.step(event);
        let [action] = actions.as_slice() else { panic!("{actions:?}") };
        Sent::of(action).unwrap()
    }

    fn receive(&mut self, bytes: &[u8]) -> Vec<Action> {
        self.step(Event::Received(bytes))
    }

    fn wait(&mut self) -> Vec<Action> {
        self.now = self.client.deadline().unwrap();
        self.step(Event::Timeout)
    }

    /// Waits for the next packet.
    fn wait_sent(&mut self) -> Sent {
        loop {
            let actions = self.wait();
            match actions.as_slice() {
                [] => {}
                [action] => return Sent::of(action).unwrap(),
                _ => panic!("{actions:?}"),
            }
        }
    }

    fn bound(valid: u32) -> Self {
        let mut world = Self::new();
        let solicit = world.sent(Event::Start);
        world.receive(&answer(&solicit, MessageType::ADVERTISE, &SERVER, valid));
        let request = world.wait_sent();
        let actions = world.receive(&answer(&request, MessageType::REPLY, &SERVER, valid));
        assert!(matches!(actions.as_slice(), [Action::Bound]), "{actions:?}");
        world
    }

    fn lease(&self) -> Lease {
        self.client.lease().unwrap().clone()
    }
}

#[test]
fn lease_takes_four_messages() {
    let mut world = World::new();
    let solicit = world.sent(Event::Start);
    assert_eq!((solicit.kind, solicit.address, solicit.elapsed_cs), (1, None, 0));
    assert!(world.client.is_listening());
    // The client waits for better servers.
    assert_eq!(world.receive(&answer(&solicit, MessageType::ADVERTISE, &OTHER, 600)), []);
    let preference = option(7, &[&[9]]);
    let better = [answer(&solicit, MessageType::ADVERTISE, &SERVER, 600), preference].concat();
    assert_eq!(world.receive(&better), []);
    assert_eq!(world.receive(&answer(&solicit, MessageType::ADVERTISE, &OTHER, 600)), []);
    let request = world.wait_sent();
    assert!((secs(1001)..secs(1002)).contains(&world.now), "{:?}", world.now);
    assert_eq!((request.kind, request.server.as_deref()), (3, Some(&SERVER[..])));
    assert_ne!(request.xid, solicit.xid);

    let foreign = answer(&request, MessageType::REPLY, &OTHER, 600);
    assert_eq!(world.receive(&foreign), []);
    let actions = world.receive(&answer(&request, MessageType::REPLY, &SERVER, 600));
    let lease = world.lease();
    assert_eq!(actions, [Action::Bound]);
    assert_eq!((lease.address, &lease.server[..]), (address(), &SERVER[..]));
    assert_eq!(lease.since, world.now);
    assert_eq!(lease.ends_at, Some(world.now + secs(600)));
    assert_eq!(lease.preferred_until, Some(world.now + secs(300)));
    assert_eq!(lease.rebind_at, world.now + secs(240));
    assert!((world.now + secs(142)..=world.now + secs(150)).contains(&lease.renew_at));
    assert_eq!(world.client.deadline(), Some(lease.renew_at));
    assert!(!world.client.is_listening());
}

#[test]
fn best_preference_and_rapid_commit_end_the_wait() {
    let mut world = World::new();
    let solicit = world.sent(Event::Start);
    let preference = option(7, &[&[255]]);
    let advertise = [answer(&solicit, MessageType::ADVERTISE, &OTHER, 600), preference].concat();
    let request = world.sent(Event::Received(&advertise));
    assert_eq!((request.kind, request.server.as_deref()), (3, Some(&OTHER[..])));

    let mut world = World::new();
    let solicit = world.sent(Event::Start);
    let slow = answer(&solicit, MessageType::REPLY, &SERVER, 600);
    assert_eq!(world.receive(&slow), [], "a REPLY without rapid commit");
    let actions = world.receive(&[slow, option(14, &[])].concat());
    assert_eq!(actions, [Action::Bound]);

    // After the first wait, the client accepts the first server that answers.
    let mut world = World::new();
    world.sent(Event::Start);
    let solicit = world.wait_sent();
    assert!(solicit.elapsed_cs >= 100);
    assert_eq!(
        world.sent(Event::Received(&answer(&solicit, MessageType::ADVERTISE, &OTHER, 60))).kind,
        3
    );
}

#[test]
fn client_without_a_server_gives_up_in_time() {
    let mut world = World::new();
    let mut times = vec![(world.now, world.sent(Event::Start))];
    let error = loop {
        match world.wait().as_slice() {
            [Action::Failed(error)] => break error.clone(),
            [action] => times.push((world.now, Sent::of(action).unwrap())),
            // The socket is closed in a long wait.
            actions => assert!(actions.is_empty() && !world.client.is_listening()),
        }
    };
    assert_eq!(world.now, secs(1208));
    assert_eq!(error, "no more tries: no server answered; sent 8 SOLICIT and 0 REQUEST in 208 s");
    let waits: Vec<u64> = times.windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs()).collect();
    for (wait, expected) in waits.iter().zip([1, 2, 4, 8, 16, 32, 64]) {
        assert!(wait.abs_diff(expected) <= expected / 4 + 1, "{waits:?}");
    }
    assert!(times.iter().all(|(_, sent)| sent.xid == times[0].1.xid), "one exchange");
    assert_eq!((world.client.deadline(), world.client.is_listening()), (None, false));
    assert_eq!(world.sent(Event::Start).kind, 1);
}

#[test]
fn server_without_addresses_is_named_in_the_error() {
    for nested in [true, false] {
        let mut world = World::new();
        let solicit = world.sent(Event::Start);
        let full = status(2);
        let options = if nested { ia(IAID, 0, 0, &[&full]) } else { full };
        assert_eq!(
            world.receive(&reply(solicit.xid, MessageType::ADVERTISE, &SERVER, &[&options])),
            []
        );
        let error = loop {
            if let [Action::Failed(error)] = world.wait().as_slice() {
                break error.clone();
            }
        };
        assert!(error.contains("the server has no address (NoAddrsAvail)"), "{error}");
    }
}

#[test]
fn refused_request_waits_before_it_starts_over() {
    let mut world = World::new();
    let solicit = world.sent(Event::Start);
    world.receive(&answer(&solicit, MessageType::ADVERTISE, &SERVER, 600));
    let request = world.wait_sent();
    let full = ia(IAID, 0, 0, &[&status(2)]);
    assert_eq!(world.receive(&reply(request.xid, MessageType::REPLY, &SERVER, &[&full])), []);
    assert!(!world.client.is_listening());
    assert!(world.client.deadline() >= Some(world.now + secs(1)));
    assert_eq!(world.wait_sent().kind, 1);
}

#[test]
fn renewal_is_for_one_server_and_rebinding_for_all() {
    let mut world = World::bound(2000);
    let lease = world.lease();
    let renew = world.wait_sent();
    assert_eq!(world.now, lease.renew_at);
    assert_eq!((renew.kind, renew.server.as_deref()), (5, Some(&SERVER[..])));
    assert_eq!(renew.address, Some(address()));
    assert_eq!(world.receive(&answer(&renew, MessageType::REPLY, &OTHER, 2000)), []);
    let actions = world.receive(&answer(&renew, MessageType::REPLY, &SERVER, 2000));
    assert_eq!(actions, [Action::Bound]);
    assert_eq!(world.lease().ends_at, Some(world.now + secs(2000)));

    let rebind_at = world.lease().rebind_at;
    let mut sent = world.wait_sent();
    while sent.kind == 5 {
        sent = world.wait_sent();
    }
    assert_eq!((world.now, sent.kind, &sent.server), (rebind_at, 6, &None));
    let actions = world.receive(&answer(&sent, MessageType::REPLY, &OTHER, 2000));
    assert_eq!(actions, [Action::Bound]);
    assert_eq!(world.lease().server, OTHER);
}

#[test]
fn lease_that_ends_is_lost_and_the_client_does_not_give_up() {
    let mut world = World::bound(100);
    let end = world.lease().ends_at.unwrap();
    let actions = loop {
        let actions = world.wait();
        if world.client.lease().is_none() {
            break actions;
        }
    };
    assert_eq!(world.now, end);
    let [Action::Lost("the lease ended"), solicit] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert_eq!(Sent::of(solicit).unwrap().kind, 1);
    while world.now < secs(100_000) {
        let actions = world.wait();
        assert!(!matches!(actions.as_slice(), [Action::Failed(_)]), "{actions:?}");
    }
    let solicit = world.wait_sent();
    world.receive(&answer(&solicit, MessageType::ADVERTISE, &SERVER, 100));
    assert!(world.client.deadline().is_some());
}

#[test]
fn unknown_binding_is_requested_again() {
    let no_binding = |sent: &Sent| {
        reply(sent.xid, MessageType::REPLY, &SERVER, &[&ia(IAID, 0, 0, &[&status(3)])])
    };
    let mut world = World::bound(2000);
    let renew = world.wait_sent();
    let request = world.sent(Event::Received(&no_binding(&renew)));
    assert_eq!((request.kind, request.server.as_deref()), (3, Some(&SERVER[..])));
    assert_eq!(request.address, Some(address()));
    let actions = world.receive(&answer(&request, MessageType::REPLY, &SERVER, 2000));
    assert_eq!(actions, [Action::Bound]);

    let mut world = World::bound(2000);
    let renew = world.wait_sent();
    let request = world.sent(Event::Received(&no_binding(&renew)));
    let actions = world.receive(&no_binding(&request));
    assert_eq!(actions, [Action::Lost("the server does not know the lease")]);
    assert_eq!(world.wait_sent().kind, 1);
}

#[test]
fn pauses_grow_if_a_server_replies_no_binding_to_what_it_granted() {
    let no_binding = |sent: &Sent| {
        reply(sent.xid, MessageType::REPLY, &SERVER, &[&ia(IAID, 0, 0, &[&status(3)])])
    };
    let mut world = World::bound(20_000);
    let mut pauses = Vec::new();
    let mut renew = world.wait_sent();
    for _ in 0..4 {
        let request = world.sent(Event::Received(&no_binding(&renew)));
        assert_eq!(request.kind, 3);
        let granted = world.receive(&answer(&request, MessageType::REPLY, &SERVER, 20_000));
        assert_eq!(granted, [Action::Bound]);
        let again = world.wait_sent();
        assert_eq!(world.receive(&no_binding(&again)), []);
        assert!(!world.client.is_listening() && world.client.lease().is_some());
        let refused_at = world.now;
        renew = world.wait_sent();
        pauses.push((world.now - refused_at).as_secs());
    }
    assert!(pauses[0] >= 2 && pauses[1] > pauses[0] && pauses[3] > 2 * pauses[1], "{pauses:?}");
    let actions = world.receive(&answer(&renew, MessageType::REPLY, &SERVER, 20_000));
    assert_eq!(actions, [Action::Bound]);
    let renew = world.wait_sent();
    assert_eq!(world.sent(Event::Received(&no_binding(&renew))).kind, 3, "it starts again");
}

#[test]
fn server_can_withdraw_or_replace_the_address() {
    let mut world = World::bound(2000);
    let renew = world.wait_sent();
    let withdrawn = answer(&renew, MessageType::REPLY, &SERVER, 0);
    assert_eq!(world.receive(&withdrawn), [Action::Lost("the server took the address back")]);

    let mut world = World::bound(2000);
    let renew = world.wait_sent();
    let new: Ipv6Addr = "fd00::6".parse().unwrap();
    let both = [ia_address(address(), 0, 0), ia_address(new, 100, 200)].concat();
    let bytes = reply(renew.xid, MessageType::REPLY, &SERVER, &[&ia(IAID, 0, 0, &[&both])]);
    assert_eq!(world.receive(&bytes), [Action::Bound]);
    assert_eq!(world.lease().address, new);
}

#[test]
fn resumed_lease_is_confirmed() {
    let lease = World::bound(2000).lease();
    let resumed = || {
        let mut world = World::new();
        world.now = secs(1100);
        assert_eq!(world.step(Event::Resume(lease.clone())), []);
        assert_eq!(world.client.lease(), Some(&lease));
        let confirm = world.wait_sent();
        assert!(world.now <= secs(1101));
        assert_eq!((confirm.kind, &confirm.server), (4, &None));
        assert_eq!(confirm.address, Some(address()));
        (world, confirm)
    };
    let (mut world, confirm) = resumed();
    assert_eq!(world.receive(&reply(confirm.xid, MessageType::REPLY, &OTHER, &[&status(0)])), []);
    assert_eq!(world.client.deadline(), Some(lease.renew_at));
    assert!(!world.client.is_listening());

    let (mut world, confirm) = resumed();
    let actions = world.receive(&reply(confirm.xid, MessageType::REPLY, &OTHER, &[&status(4)]));
    assert_eq!(actions[0], Action::Lost("the address does not fit the link"));
    assert_eq!(Sent::of(&actions[1]).unwrap().kind, 1);

    // No server answers for 10 s.
    let (mut world, _) = resumed();
    let begin = world.now;
    while world.client.is_listening() {
        world.wait();
    }
    assert_eq!(world.now, begin + secs(10));
    assert_eq!(world.client.deadline(), Some(lease.renew_at));

    let mut world = World::new();
    world.now = lease.ends_at.unwrap();
    let actions = world.step(Event::Resume(lease.clone()));
    assert_eq!(actions[0], Action::Lost("the lease ended"));
}

/// A client that waits for `Event::Probed`.
fn probing() -> World {
    let mut world = World::new();
    world.client = Client::new(Settings { probe: true, ..settings() }, 7);
    let solicit = world.sent(Event::Start);
    world.receive(&answer(&solicit, MessageType::ADVERTISE, &SERVER, 2000));
    let request = world.wait_sent();
    let actions = world.receive(&answer(&request, MessageType::REPLY, &SERVER, 2000));
    assert_eq!(actions, [Action::Probe(address())]);
    assert_eq!((world.client.lease(), world.client.is_listening()), (None, false));
    world
}

#[test]
fn taken_address_is_declined() {
    let mut world = probing();
    let decline = world.sent(Event::Probed { problem: Some("taken") });
    assert_eq!((decline.kind, decline.server.as_deref()), (9, Some(&SERVER[..])));
    assert_eq!(decline.address, Some(address()));
    assert_eq!(world.wait_sent(), Sent { elapsed_cs: world_cs(&world), ..decline.clone() });
    assert_eq!(world.receive(&reply(decline.xid, MessageType::REPLY, &SERVER, &[&status(0)])), []);
    assert_eq!(world.wait_sent().kind, 1);

    // Without an answer, the DECLINE is sent four times.
    let mut world = probing();
    world.step(Event::Probed { problem: Some("taken") });
    let kinds: Vec<u8> = (0..4).map(|_| world.wait_sent().kind).collect();
    assert_eq!(kinds, [9, 9, 9, 1]);
}

#[test]
fn free_address_is_used_once_it_is_probed() {
    let mut world = probing();
    let actions = world.step(Event::Probed { problem: None });
    assert!(matches!(&actions[..], [Action::Bound]), "{actions:?}");

    // Without an answer the address counts as free.
    let mut world = probing();
    world.now = world.now + secs(10);
    let actions = world.step(Event::Timeout);
    assert!(matches!(&actions[..], [Action::Bound]), "{actions:?}");

    let mut world = probing();
    assert_eq!(world.sent(Event::Release).kind, 8);
}

/// The time since the start of the exchange, as in the option Elapsed Time.
fn world_cs(world: &World) -> u16 {
    u16::try_from((world.now - world.client.began).as_millis() / 10).unwrap()
}

#[test]
fn release_is_sent_once() {
    let mut world = World::bound(2000);
    let release = world.sent(Event::Release);
    assert_eq!((release.kind, release.server.as_deref()), (8, Some(&SERVER[..])));
    assert_eq!(release.address, Some(address()));
    for event in
        [Event::Release, Event::Timeout, Event::Start, Event::Probed { problem: Some("taken") }]
    {
        assert_eq!(world.step(event), []);
    }
    assert_eq!((world.client.deadline(), world.client.is_listening()), (None, false));
    let mut world = World::new();
    world.sent(Event::Start);
    assert_eq!(world.step(Event::Release), []);
}
