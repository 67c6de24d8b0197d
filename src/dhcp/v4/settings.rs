//! The configuration of a client.

use crate::dhcp::time::Time;
use crate::names::Mac;

/// The configuration of a client: the content of its packets and the limits of its waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mac: Mac,
    /// Option 61, unless `provide` has one.
    pub client_id: Vec<u8>,
    /// Sets the broadcast flag: the server answers by broadcast. ipvlan needs it.
    pub broadcast: bool,
    /// Options for the server: code and value.
    pub provide: Vec<(u8, Vec<u8>)>,
    /// The complete parameter request list (option 55), see `message::request_list`.
    pub request: Vec<u8>,
    /// The caller looks by ARP for another holder of a new address before it is used. An earlier lease is lost meanwhile.
    pub probe: bool,
    pub times: Times,
}

/// The limits of waits, from the daemon's flags `-timeout`, `-resendmax` and `-resendtimeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The wait for the answer to the first of three equal messages. The waits after the others are two and four times that.
    pub timeout: Time,
    /// The longest pause between two series of messages.
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
