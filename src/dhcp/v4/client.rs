//! The DHCPv4 client as a pure state machine (RFC 2131, figure 5). The caller has the clock, the sockets and the seed.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::dhcp::lease::v4::Lease;
use crate::names::Mac;

/// What the client sends and how long it tries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mac: Mac,
    /// Option 61, unless `provide` has one.
    pub client_id: Vec<u8>,
    /// Sets the broadcast flag: the server answers by broadcast. ipvlan needs it.
    pub broadcast: bool,
    /// Options for the server: code and value.
    pub provide: Vec<(u8, Vec<u8>)>,
    /// The complete parameter request list (option 55), see `request_list`.
    pub request: Vec<u8>,
    /// The caller looks by ARP for another holder of a new address before it is used.
    pub probe: bool,
    pub times: Times,
}

/// The limits of waits, from the daemon's flags `-timeout`, `-resendmax` and `-resendtimeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The wait for the answer to the first of three equal messages. The waits after the others are two and four times that.
    pub timeout: Duration,
    /// The longest pause between two series of messages.
    pub resend_max: Duration,
    /// The time after which the client gives up if it never had a lease.
    pub resend_timeout: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            resend_max: Duration::from_secs(62),
            resend_timeout: Duration::from_secs(208),
        }
    }
}

/// An input of the client.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// The client has no lease and asks for one.
    Start,
    /// The daemon started again with a lease of its journal: the client asks the server to confirm it (INIT-REBOOT). It keeps
    /// the lease until a NAK or the end of the lease.
    Resume(Lease),
    /// The payload of a UDP packet to port 68.
    Received(&'a [u8]),
    /// The deadline is over. An early call is harmless.
    Time,
    /// The answer to `Action::Probe`.
    Probed { taken: bool },
    /// The address is not needed any more. The client is finished afterwards.
    Release,
}

/// An output of the client. The caller executes the actions of a step in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Send {
        payload: Vec<u8>,
        via: Via,
    },
    /// Look for another holder of the address by ARP, and answer with `Event::Probed` within 10 s.
    Probe(Ipv4Addr),
    /// The lease is new, renewed or confirmed. The caller compares it with the lease that it applied.
    Bound(Lease),
    /// The address must leave the interface, for this reason. The client starts again by itself and does not give up.
    Lost(&'static str),
    /// The client gave up; the text says what was tried. `Event::Start` starts it again.
    Failed(String),
}

/// The way of a packet to UDP port 67.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// From 0.0.0.0 to 255.255.255.255, through a packet socket.
    Broadcast,
    /// From this address to 255.255.255.255: rebinding.
    BroadcastFrom(Ipv4Addr),
    /// Through a UDP socket: renewal and release.
    Unicast { from: Ipv4Addr, to: Ipv4Addr },
}

/// A client for one address of one interface.
#[derive(Debug)]
pub struct Client {
    lease: Option<Lease>,
}

impl Client {
    pub fn new(_settings: Settings, _seed: u64) -> Self {
        Self { lease: None }
    }

    /// Handles an event at a time since boot.
    pub fn step(&mut self, _event: Event<'_>, _now: Duration) -> Vec<Action> {
        Vec::new()
    }

    /// The time of the next `Event::Time`. None: the client is not started or finished.
    pub fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Whether a socket has to receive now.
    pub fn is_listening(&self) -> bool {
        false
    }

    /// The lease that is valid now.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }
}
