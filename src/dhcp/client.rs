//! What the DHCPv4 and the DHCPv6 client have in common. A client is a pure state machine: the caller has the clock and the
//! sockets, and passes the random seed.

use std::net::IpAddr;

use crate::dhcp::time::Time;

/// The longest delay before the first packet of a resumed client: a daemon resumes all its clients at once.
pub const RESUME_DELAY_MAX: Time = Time::from_secs(1);
/// The longest wait for `Event::Probed`. After it, the address counts as free.
pub const PROBE_TIMEOUT: Time = Time::from_secs(10);

/// An input of a client with leases of type `L`.
#[derive(Clone, Debug)]
pub enum Event<'a, L> {
    /// The client has no lease, and requests one.
    Start,
    /// A new daemon found this lease in its journal. The client asks a server to confirm it (DHCPv4: INIT-REBOOT, DHCPv6:
    /// CONFIRM), and keeps it until a refusal or the end of the lease.
    Resume(L),
    /// The payload of a UDP packet to the client's port.
    Received(&'a [u8]),
    /// The deadline has passed. An early call has no effect.
    Timeout,
    /// The answer to `Action::Probe`. `problem`: why the client must decline the address.
    Probed { problem: Option<&'static str> },
    /// The address is not needed any more. The client is finished afterwards.
    Release,
}

/// An output of a client with packets of type `P` and addresses of type `A`. The caller executes the actions of a step in their
/// order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<P, A> {
    Send(P),
    /// Check the address, and answer with `Event::Probed`: at once, or, if the setting `probe` is set, within 10 s, after a
    /// look for another host with the address.
    Probe(A),
    /// `Client::lease` is new, renewed or confirmed. The caller compares it with the lease that it applied.
    Bound,
    /// The lease was lost for this reason: the address must be removed from the interface. The client requests a lease again,
    /// and does not give up.
    Lost(&'static str),
    /// The client gave up; the text lists the attempts. `Event::Start` starts it again.
    Failed(String),
}

/// A client for one address of one interface.
pub trait Client {
    type Lease: Clone;
    type Packet;
    type Address: Copy + Into<IpAddr>;

    /// Handles an event, and returns the actions for the caller. `now` is the time since boot; it must not decrease.
    fn step(
        &mut self,
        event: Event<'_, Self::Lease>,
        now: Time,
    ) -> Vec<Action<Self::Packet, Self::Address>>;

    /// The time of the next `Event::Timeout`. `None`: the client is not started, gave up, or is finished.
    fn deadline(&self) -> Option<Time>;

    /// Whether the client waits for a packet, so that a socket must be open.
    fn is_listening(&self) -> bool;

    /// The current lease.
    fn lease(&self) -> Option<&Self::Lease>;
}
