//! Retransmission of the client's messages (RFC 8415, sections 7.6 and 15), and its pauses.

use crate::dhcp::random::Random;
use crate::dhcp::time::Time;

/// The retransmission of a message: the first wait, the longest wait, and the number of packets.
pub struct Retry {
    first: Time,
    longest: Time,
    pub count: u32,
}

const SECOND: Time = Time::from_secs(1);
pub const REQUEST: Retry = Retry { first: SECOND, longest: Time::from_secs(30), count: 10 };
/// CONFIRM is sent for at most 10 s.
pub const CONFIRM: Retry = Retry { first: SECOND, longest: Time::from_secs(4), count: u32::MAX };
pub const CONFIRM_MAX: Time = Time::from_secs(10);
pub const RENEW: Retry =
    Retry { first: Time::from_secs(10), longest: Time::from_secs(600), count: u32::MAX };
pub const DECLINE: Retry = Retry { first: SECOND, longest: Time::MAX, count: 4 };
/// The longest wait between two SOLICIT in seconds, and the range in which a server can set another value.
pub const SOL_MAX_RT_S: u32 = 3600;
pub const SOL_MAX_RT_RANGE_S: std::ops::RangeInclusive<u32> = 60..=86_400;
/// The pause before the client starts over. It doubles each time, up to the maximum.
const PAUSE: Time = Time::from_secs(2);
const PAUSE_MAX: Time = Time::from_secs(64);

impl Retry {
    pub fn of_solicit(sol_max_rt: Time) -> Self {
        Self { first: SECOND, longest: sol_max_rt, count: u32::MAX }
    }

    /// The wait after a packet: it doubles up to a maximum, with a jitter of at most a tenth. `last` is the wait after the
    /// packet before.
    pub fn wait(&self, last: Option<Time>, random: &mut Random) -> Time {
        let base = last.map_or(self.first, |last| last * 2).min(self.longest);
        random.around(base, base / 10)
    }

    /// The wait after the first SOLICIT, for the answers of all servers: at least `first`.
    pub fn wait_for_all(&self, random: &mut Random) -> Time {
        self.first + random.up_to(self.first / 10)
    }
}

/// The length of a pause after this number of shorter pauses.
pub fn pause(pauses: u32, random: &mut Random) -> Time {
    random.around((PAUSE * (1 << pauses.min(8))).min(PAUSE_MAX), SECOND)
}
