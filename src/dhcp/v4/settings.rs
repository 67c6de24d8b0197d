//! The settings of a DHCPv4 client.

use crate::dhcp::protocol::Provided;
use crate::dhcp::time::Time;
use crate::names::Mac;

/// The content of the packets of a client, and its timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mac: Mac,
    /// The client identifier (option 61), unless `provide` has one.
    pub client_id: Vec<u8>,
    /// Sets the BROADCAST flag, so that the server answers by broadcast. ipvlan needs it.
    pub broadcast: bool,
    /// Options for the server.
    pub provide: Vec<Provided>,
    /// The complete parameter request list (option 55), see `message::request_list`.
    pub request: Vec<u8>,
    /// The caller probes a new address by ARP before it is used. Meanwhile the client has no lease: an earlier one is lost.
    pub probe: bool,
    pub times: Times,
}

/// The timeouts of a client, from the daemon's flags `-timeout`, `-resendmax` and `-resendtimeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The wait for the answer to a message. After its two retransmissions the waits are two and four times as long.
    pub timeout: Time,
    /// The longest pause between two series of DISCOVER.
    pub resend_max: Time,
    /// The time after which the client gives up if it never had a lease.
    pub resend_timeout: Time,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            timeout: Time::from_secs(10),
            resend_max: Time::from_secs(62),
            resend_timeout: Time::from_secs(208),
        }
    }
}
