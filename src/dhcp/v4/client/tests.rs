//! The client against a simulated server and a simulated clock.

use super::*;
use crate::dhcp::client::Client as _;
use crate::dhcp::protocol::Provided;
use crate::dhcp::v4::packet::tests::{MAC, reply};
use crate::dhcp::v4::settings::Times;

mod random;

pub const ADDRESS: [u8; 4] = [10, 0, 0, 5];
pub const SERVER: [u8; 4] = [10, 0, 0, 1];
const OTHER: [u8; 4] = [10, 0, 0, 2];
const BROADCAST: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
const MASK: [u8; 6] = [1, 4, 255, 255, 255, 0];

pub fn settings() -> Settings {
    Settings {
        mac: MAC,
        client_id: b"\0abc/mynet/eth0".to_vec(),
        broadcast: false,
        provide: vec![Provided { option: 12, value: "myhost".into() }],
        request: vec![121, 3, 1],
        probe: false,
        times: Times::default(),
    }
}

pub fn secs(secs: u64) -> Time {
    Time::from_secs(secs)
}

/// A packet of the client, read by fixed offsets.
#[derive(Clone, Debug)]
pub struct Sent {
    pub kind: u8,
    pub xid: u32,
    pub secs: u16,
    pub ciaddr: [u8; 4],
    pub address: Option<Vec<u8>>,
    pub server: Option<Vec<u8>>,
    /// The source and the destination.
    pub path: (Ipv4Addr, Ipv4Addr),
}

impl Sent {
    pub fn of(action: &Action) -> Option<Self> {
        let Action::Send(Packet { payload, from, to }) = action else { return None };
        let option = |wanted: u8| {
            let mut at = 240;
            while payload[at] != 255 {
                let size = usize::from(payload[at + 1]);
                if payload[at] == wanted {
                    return Some(payload[at + 2..at + 2 + size].to_vec());
                }
                at += 2 + size;
            }
            None
        };
        Some(Self {
            kind: option(53).unwrap()[0],
            xid: u32::from_be_bytes(payload[4..8].try_into().unwrap()),
            secs: u16::from_be_bytes(payload[8..10].try_into().unwrap()),
            ciaddr: payload[12..16].try_into().unwrap(),
            address: option(50),
            server: option(54),
            path: (*from, *to),
        })
    }
}

/// A reply of a server with a lease time in seconds.
pub fn answer(sent: &Sent, kind: MessageType, server: [u8; 4], lease: u32) -> Vec<u8> {
    let id = [&[54, 4][..], &server].concat();
    let time = [&[51, 4][..], &lease.to_be_bytes()].concat();
    let router = [&[3, 4][..], &SERVER].concat();
    let address = if kind == MessageType::NAK { [0; 4] } else { ADDRESS };
    reply(sent.xid, kind, address, &[&id, &time, &MASK, &router])
}

struct World {
    client: Client,
    now: Time,
}

impl World {
    fn of(settings: Settings) -> Self {
        Self { client: Client::new(settings, 42), now: secs(1000) }
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

    /// The only packet of a step.
    fn sent(&mut self, event: Event<'_, Lease>) -> Sent {
        let actions = self.step(event);
        let [action] = actions.as_slice() else { panic!("{actions:?}") };
        Sent::of(action).unwrap()
    }

    fn receive(&mut self, sent: &Sent, kind: MessageType, lease: u32) -> Vec<Action> {
        self.step(Event::Received(&answer(sent, kind, SERVER, lease)))
    }

    /// Advances the time to the deadline.
    fn wait(&mut self) -> Vec<Action> {
        self.now = self.client.deadline().unwrap();
        self.step(Event::Timeout)
    }

    fn wait_sent(&mut self) -> Sent {
        self.now = self.client.deadline().unwrap();
        self.sent(Event::Timeout)
    }

    /// A client with a lease.
    fn bound(settings: Settings, lease: u32) -> Self {
        let mut world = Self::of(settings);
        let discover = world.sent(Event::Start);
        let offer = answer(&discover, MessageType::OFFER, SERVER, lease);
        let request = world.sent(Event::Received(&offer));
        let actions = world.receive(&request, MessageType::ACK, lease);
        assert!(matches!(actions.as_slice(), [Action::Bound]), "{actions:?}");
        world
    }

    fn lease(&self) -> Lease {
        self.client.lease().unwrap().clone()
    }
}

fn discover_after_loss(actions: &[Action], reason: &str) -> Sent {
    let [Action::Lost(found), sent] = actions else { panic!("{actions:?}") };
    assert_eq!(*found, reason);
    let sent = Sent::of(sent).unwrap();
    assert_eq!(sent.kind, 1);
    sent
}

#[test]
fn lease_takes_four_messages() {
    let mut world = World::of(settings());
    assert_eq!((world.client.deadline(), world.client.is_listening()), (None, false));
    let discover = world.sent(Event::Start);
    assert_eq!((discover.kind, discover.path, discover.secs), (1, BROADCAST, 0));
    assert!(world.client.is_listening());
    world.now = world.now + secs(3);
    let request = world.sent(Event::Received(&answer(&discover, MessageType::OFFER, SERVER, 600)));
    assert_eq!((request.kind, request.path, request.xid), (3, BROADCAST, discover.xid));
    assert_eq!(request.address.as_deref(), Some(&ADDRESS[..]));
    assert_eq!(request.server.as_deref(), Some(&SERVER[..]));
    assert_eq!((request.ciaddr, request.secs), ([0; 4], 0), "that of the DISCOVER");
    world.now = world.now + secs(1);
    let actions = world.receive(&request, MessageType::ACK, 600);
    let lease = world.lease();
    assert_eq!(actions, [Action::Bound]);
    assert_eq!(lease.address.to_string(), "10.0.0.5/24");
    assert_eq!((lease.server, lease.gateway), (SERVER.into(), Some(SERVER.into())));
    assert_eq!(lease.since, secs(1003), "the lease begins with the request");
    assert_eq!((lease.rebind_at, lease.ends_at), (secs(1513), Some(secs(1603))));
    assert!((secs(1288)..=secs(1303)).contains(&lease.renew_at), "{lease:?}");
    assert!(!world.client.is_listening());
    assert_eq!(world.client.deadline(), Some(lease.renew_at));
}

#[test]
fn client_without_a_server_gives_up_in_time() {
    let mut world = World::of(settings());
    let mut sent = vec![(world.now, world.sent(Event::Start))];
    let error = loop {
        match world.wait().as_slice() {
            [Action::Failed(error)] => break error.clone(),
            [action] => sent.push((world.now, Sent::of(action).unwrap())),
            actions => assert!(actions.is_empty() && !world.client.is_listening(), "{actions:?}"),
        }
    };
    assert_eq!(world.now, secs(1208));
    assert_eq!(error, "no more tries: no server answered; sent 9 DISCOVER and 0 REQUEST in 208 s");
    // Three packets with one xid, with waits of 10 s, 20 s and 40 s, and a pause of 2 s.
    let waits: Vec<u64> = sent.windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs()).collect();
    for (wait, expected) in waits.iter().zip([10, 20, 42, 10, 20, 42, 10, 20]) {
        assert!(wait.abs_diff(expected) <= 2, "{waits:?}");
    }
    let xids: Vec<u32> = sent.iter().map(|(_, sent)| sent.xid).collect();
    assert!(xids[0] == xids[2] && xids[2] != xids[3], "{xids:?}");
    assert_eq!((world.client.deadline(), world.client.is_listening()), (None, false));
    assert_eq!(world.sent(Event::Start).kind, 1, "it starts again");
}

#[test]
fn pauses_double_up_to_the_limit() {
    let times = Times { timeout: secs(1), resend_max: secs(20), resend_timeout: secs(10_000) };
    let mut world = World::of(Settings { times, ..settings() });
    world.sent(Event::Start);
    let mut pauses = Vec::new();
    while pauses.len() < 9 {
        if world.wait().is_empty() {
            pauses.push((world.client.deadline().unwrap() - world.now).as_millis());
        }
    }
    for (pause, expected) in pauses.iter().zip([2, 2, 2, 2, 4, 8, 16, 20, 20]) {
        assert!(pause.abs_diff(expected * 1000) <= 1000, "{pauses:?}");
    }
}

#[test]
fn renewal_is_unicast_and_listens_only_while_it_waits() {
    let mut world = World::bound(settings(), 3600);
    let first = world.wait_sent();
    let path = (ADDRESS.into(), SERVER.into());
    assert_eq!((first.kind, first.path, first.ciaddr), (3, path, ADDRESS));
    assert_eq!((first.address, first.server), (None, None));
    assert!(world.client.is_listening());
    assert_eq!(world.wait(), [], "a renewal has one packet (RFC 2131, section 4.4.5)");
    assert!(!world.client.is_listening());
    let pause = world.client.deadline().unwrap() - world.now;
    assert!(pause > secs(500), "half of the time until rebinding: {pause:?}");
    let again = world.wait_sent();
    assert!(again.xid != first.xid && again.path == path);
    // The field counts from the start of the renewal, at T1.
    assert_eq!(u64::from(again.secs), (world.now - world.lease().renew_at).as_secs());
    let before = world.lease();
    let actions = world.receive(&again, MessageType::ACK, 7200);
    let lease = world.lease();
    assert_eq!(actions, [Action::Bound]);
    assert_eq!((lease.since, lease.address), (world.now, before.address));
    assert_eq!(lease.ends_at, Some(world.now + secs(7200)));
    assert!(!world.client.is_listening());
}

#[test]
fn a_renewal_has_few_packets() {
    let mut world = World::bound(settings(), 3600);
    let Lease { rebind_at, ends_at, .. } = world.lease();
    for end in [rebind_at, ends_at.unwrap()] {
        let mut sent_at = Vec::new();
        while world.client.deadline().unwrap() < end {
            if !world.wait().is_empty() {
                sent_at.push(world.now);
            }
        }
        // RFC 2131, section 4.4.5: after half of the rest, and not before 60 s.
        assert!((3..8).contains(&sent_at.len()), "{sent_at:?}");
        let mut gaps = sent_at.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.all(|gap| gap >= secs(60)), "{sent_at:?}");
    }
}

#[test]
fn renewal_can_change_the_address() {
    for probe in [false, true] {
        let mut world = World::bound(Settings { probe: false, ..settings() }, 600);
        world.client.settings.probe = probe;
        let renewal = world.wait_sent();
        let mut changed = answer(&renewal, MessageType::ACK, SERVER, 600);
        changed[19] = 9;
        let actions = world.step(Event::Received(&changed));
        if probe {
            let lost = Action::Lost("the server changed the address");
            assert_eq!(actions, [lost, Action::Probe([10, 0, 0, 9].into())]);
            assert_eq!(world.step(Event::Probed { problem: None }).len(), 1);
        } else {
            assert_eq!(actions, [Action::Bound]);
        }
        assert_eq!(world.lease().address.to_string(), "10.0.0.9/24");
    }
}

#[test]
fn rebinding_is_broadcast_to_all_servers() {
    let mut world = World::bound(settings(), 100);
    let rebind_at = world.lease().rebind_at;
    let mut sent = world.wait_sent();
    while sent.path != (ADDRESS.into(), Ipv4Addr::BROADCAST) {
        let foreign = answer(&sent, MessageType::ACK, OTHER, 100);
        assert_eq!(world.step(Event::Received(&foreign)), [], "a renewal is with one server");
        assert_eq!(world.wait(), []);
        sent = world.wait_sent();
    }
    assert_eq!(world.now, rebind_at);
    assert_eq!((sent.kind, sent.ciaddr), (3, ADDRESS));
    assert_eq!((&sent.address, &sent.server), (&None, &None));
    let actions = world.step(Event::Received(&answer(&sent, MessageType::ACK, OTHER, 100)));
    assert_eq!(actions, [Action::Bound]);
    assert_eq!(world.lease().server, Ipv4Addr::from(OTHER));
}

#[test]
fn lease_that_ends_is_lost_and_the_client_does_not_give_up() {
    let mut world = World::bound(settings(), 100);
    let end = world.lease().ends_at.unwrap();
    let discover = loop {
        let actions = world.wait();
        assert!(world.now <= end);
        if world.client.lease().is_none() {
            break discover_after_loss(&actions, "the lease ended");
        }
    };
    assert_eq!(world.now, end);
    assert_eq!(discover.address.as_deref(), Some(&ADDRESS[..]), "it asks for its address again");
    while world.now < secs(100_000) {
        let actions = world.wait();
        assert!(!matches!(actions.as_slice(), [Action::Failed(_)]), "{actions:?}");
    }
    let discover = world.wait_sent_discover();
    let request = world.sent(Event::Received(&answer(&discover, MessageType::OFFER, OTHER, 100)));
    let actions = world.step(Event::Received(&answer(&request, MessageType::ACK, OTHER, 100)));
    assert_eq!(actions, [Action::Bound]);
}

impl World {
    fn wait_sent_discover(&mut self) -> Sent {
        loop {
            if let Some(sent) = self.wait().first().and_then(Sent::of) {
                assert_eq!(sent.kind, 1);
                return sent;
            }
        }
    }
}

#[test]
fn refused_renewal_starts_over() {
    let mut world = World::bound(settings(), 600);
    let renewal = world.wait_sent();
    assert_eq!(world.step(Event::Received(&answer(&renewal, MessageType::NAK, OTHER, 0))), []);
    let actions = world.receive(&renewal, MessageType::NAK, 0);
    let discover = discover_after_loss(&actions, "the server refused the lease");
    assert_eq!(discover.address, None);
}

#[test]
fn pauses_grow_if_a_server_refuses_the_leases_that_it_granted() {
    let mut world = World::bound(settings(), 600);
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let renewal = world.wait_sent();
        let actions = world.receive(&renewal, MessageType::NAK, 0);
        assert_eq!(actions[0], Action::Lost("the server refused the lease"));
        let lost_at = world.now;
        let discover = match actions.get(1) {
            Some(sent) => Sent::of(sent).unwrap(),
            None => world.wait_sent(),
        };
        pauses.push((world.now - lost_at).as_secs());
        let offer = answer(&discover, MessageType::OFFER, SERVER, 600);
        let request = world.sent(Event::Received(&offer));
        assert_eq!(world.receive(&request, MessageType::ACK, 600), [Action::Bound]);
    }
    assert_eq!(pauses[0], 0, "the first one starts over at once");
    assert!(pauses[1] >= 3 && pauses[2] > pauses[1] + 2 && pauses[4] >= 30, "{pauses:?}");
    let renewal = world.wait_sent();
    assert_eq!(world.receive(&renewal, MessageType::ACK, 600), [Action::Bound]);
    let renewal = world.wait_sent();
    let actions = world.receive(&renewal, MessageType::NAK, 0);
    discover_after_loss(&actions, "the server refused the lease");
}

#[test]
fn refused_request_waits_before_it_starts_over() {
    let mut world = World::of(settings());
    let discover = world.sent(Event::Start);
    let request = world.sent(Event::Received(&answer(&discover, MessageType::OFFER, SERVER, 600)));
    assert_eq!(world.receive(&request, MessageType::NAK, 0), []);
    assert!(!world.client.is_listening() && world.client.deadline() >= Some(secs(1001)));
    assert_eq!(world.wait_sent().kind, 1);
}

#[test]
fn resumed_lease_is_confirmed() {
    let lease = World::bound(settings(), 600).lease();
    let mut world = World::of(settings());
    world.now = secs(1100);
    assert_eq!(world.step(Event::Resume(lease.clone())), []);
    assert_eq!(world.client.lease(), Some(&lease));
    let request = world.wait_sent();
    assert!(world.now <= secs(1101), "{:?}", world.now);
    assert_eq!((request.kind, request.path, request.ciaddr), (3, BROADCAST, [0; 4]));
    assert_eq!((request.address.as_deref(), &request.server), (Some(&ADDRESS[..]), &None));

    let actions = world.step(Event::Received(&answer(&request, MessageType::ACK, OTHER, 600)));
    assert_eq!(actions, [Action::Bound]);
    assert_eq!(world.lease().since, world.now);
}

#[test]
fn resumed_lease_is_kept_until_a_refusal_or_its_end() {
    let lease = World::bound(settings(), 600).lease();
    // No answer: renewal and rebinding take place at their times.
    let mut world = World::of(settings());
    world.step(Event::Resume(lease.clone()));
    for _ in 0..3 {
        assert_eq!(world.wait_sent().path, BROADCAST);
    }
    assert_eq!(world.wait(), []);
    assert_eq!(world.client.deadline(), Some(lease.renew_at));
    assert_eq!(world.wait_sent().path, (ADDRESS.into(), SERVER.into()));

    let mut world = World::of(settings());
    world.step(Event::Resume(lease.clone()));
    let request = world.wait_sent();
    let actions = world.receive(&request, MessageType::NAK, 0);
    discover_after_loss(&actions, "the server refused the lease");

    let mut world = World::of(settings());
    world.now = lease.ends_at.unwrap();
    let actions = world.step(Event::Resume(lease.clone()));
    discover_after_loss(&actions, "the lease ended");

    // After a DEL without a daemon, the next daemon resumes the lease and releases it.
    let mut world = World::of(settings());
    world.step(Event::Resume(lease));
    assert_eq!(world.sent(Event::Release).kind, 7);
    assert_eq!(world.client.deadline(), None);
}

fn probing(lease: u32) -> (World, Sent) {
    let mut world = World::of(Settings { probe: true, ..settings() });
    let discover = world.sent(Event::Start);
    let request =
        world.sent(Event::Received(&answer(&discover, MessageType::OFFER, SERVER, lease)));
    let actions = world.receive(&request, MessageType::ACK, lease);
    assert_eq!(actions, [Action::Probe(ADDRESS.into())]);
    assert!(world.client.lease().is_none() && !world.client.is_listening());
    (world, request)
}

#[test]
fn a_decline_has_no_broadcast_flag() {
    let (mut world, _) = probing(600);
    world.client.settings.broadcast = true;
    let actions = world.step(Event::Probed { problem: Some("taken") });
    let [Action::Send(Packet { payload, .. })] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(payload[10..12], [0, 0]);
    world.now = world.now + secs(60);
    let actions = world.step(Event::Timeout);
    let [Action::Send(Packet { payload, .. })] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(payload[10..12], [0x80, 0], "a DISCOVER has it");
}

#[test]
fn taken_address_is_declined() {
    let (mut world, _) = probing(600);
    let decline = world.sent(Event::Probed { problem: Some("taken") });
    assert_eq!((decline.kind, decline.path, decline.ciaddr), (4, BROADCAST, [0; 4]));
    assert_eq!(decline.address.as_deref(), Some(&ADDRESS[..]));
    assert_eq!(decline.server.as_deref(), Some(&SERVER[..]));
    assert_eq!(world.client.deadline(), Some(world.now + secs(10)));
    assert_eq!(world.wait_sent().kind, 1);
}

#[test]
fn free_address_is_used_after_the_probe() {
    let (mut world, _) = probing(600);
    let actions = world.step(Event::Probed { problem: None });
    assert_eq!(actions, [Action::Bound]);
    // A renewal of the same address is not probed.
    let renewal = world.wait_sent();
    let actions = world.receive(&renewal, MessageType::ACK, 600);
    assert_eq!(actions, [Action::Bound]);

    let (mut world, _) = probing(600);
    assert_eq!(world.client.deadline(), Some(world.now + secs(10)));
    let actions = world.wait();
    assert_eq!(actions, [Action::Bound], "no answer to the probe");

    let (mut world, _) = probing(4);
    assert_eq!(world.wait(), [], "the lease ended before");
    assert_eq!(world.wait_sent().kind, 1);
}

#[test]
fn release_is_sent_once() {
    let mut world = World::bound(settings(), 600);
    let release = world.sent(Event::Release);
    let path = (ADDRESS.into(), SERVER.into());
    assert_eq!((release.kind, release.path, release.ciaddr), (7, path, ADDRESS));
    assert_eq!((release.address, release.server.as_deref()), (None, Some(&SERVER[..])));
    assert!(world.client.lease().is_none());
    for event in [Event::Release, Event::Timeout, Event::Start] {
        assert_eq!(world.step(event), []);
    }

    // The server granted the address, or is just granting it.
    assert_eq!(probing(600).0.sent(Event::Release).kind, 7);
    let mut world = World::of(settings());
    let discover = world.sent(Event::Start);
    world.sent(Event::Received(&answer(&discover, MessageType::OFFER, SERVER, 600)));
    assert_eq!(world.sent(Event::Release).kind, 7);

    let mut world = World::of(settings());
    world.sent(Event::Start);
    assert_eq!(world.step(Event::Release), [], "there is no address");
    let mut world = World::bound(settings(), 600);
    world.now = world.lease().ends_at.unwrap();
    assert_eq!(world.step(Event::Release), [], "the lease is over");
}

#[test]
fn unusable_offers_are_named_in_the_error() {
    let mask = &MASK[..];
    let id = &[54, 4, 10, 0, 0, 1][..];
    let cases: [(_, &[&[u8]], _); 6] = [
        (ADDRESS, &[id], "DHCP option Subnet Mask not found in DHCPACK"),
        (ADDRESS, &[mask], "the server did not send its identifier"),
        ([0; 4], &[id, mask], "the server offered an address that no interface can have"),
        ([10, 0, 0, 255], &[id, mask], "the server offered an address that no interface can have"),
        ([224, 0, 0, 5], &[id, mask], "the server offered an address that no interface can have"),
        (ADDRESS, &[id, mask, &[51, 4, 0, 0, 0, 1]], "the server offered a lease of less than 2 s"),
    ];
    for (address, options, expected) in cases {
        let mut world = World::of(settings());
        let discover = world.sent(Event::Start);
        let offer = reply(discover.xid, MessageType::OFFER, address, options);
        assert_eq!(world.step(Event::Received(&offer)), [], "{expected}");
        let error = loop {
            if let [Action::Failed(error)] = world.wait().as_slice() {
                break error.clone();
            }
        };
        assert!(error.starts_with(&format!("no more tries: {expected}; sent 9 ")), "{error}");
    }
}

#[test]
fn replies_to_others_are_ignored() {
    let mut world = World::of(settings());
    let discover = world.sent(Event::Start);
    let foreign = Sent { xid: discover.xid ^ 1, ..discover.clone() };
    assert_eq!(world.receive(&foreign, MessageType::OFFER, 600), []);
    assert_eq!(world.receive(&discover, MessageType::ACK, 600), [], "an ACK is no offer");
    let request = world.sent(Event::Received(&answer(&discover, MessageType::OFFER, SERVER, 600)));
    assert_eq!(world.step(Event::Received(&answer(&request, MessageType::ACK, OTHER, 600))), []);
    assert_eq!(world.step(Event::Received(&answer(&request, MessageType::NAK, OTHER, 600))), []);
    assert_eq!(world.receive(&request, MessageType::OFFER, 600), []);
    let mut wrong = answer(&request, MessageType::ACK, SERVER, 600);
    wrong[19] = 6;
    assert_eq!(world.step(Event::Received(&wrong)), [], "another address");
    wrong[19] = 5;
    wrong[33] ^= 1;
    assert_eq!(world.step(Event::Received(&wrong)), [], "another MAC address");
    assert_eq!(world.receive(&request, MessageType::ACK, 600).len(), 1);
}

#[test]
fn infinite_lease_is_never_renewed() {
    let world = World::bound(settings(), u32::MAX);
    assert_eq!(world.lease().ends_at, None);
    assert!(world.client.deadline() > Some(secs(100 * 365 * 86_400)));
}

#[test]
fn lease_without_a_time_lasts_an_hour() {
    let mut world = World::of(settings());
    let discover = world.sent(Event::Start);
    let options: [&[u8]; 2] = [&[54, 4, 10, 0, 0, 1], &MASK];
    let request =
        world.sent(Event::Received(&reply(discover.xid, MessageType::OFFER, ADDRESS, &options)));
    world.step(Event::Received(&reply(request.xid, MessageType::ACK, ADDRESS, &options)));
    assert_eq!(world.lease().ends_at, Some(secs(4600)));
    assert_eq!(world.lease().rebind_at, secs(4060));
}
