//! An attempt of a client to get a lease: its deadline, and its report if it fails.

use crate::dhcp::time::Time;

/// An attempt of the DHCPv4 or the DHCPv6 client.
#[derive(Debug, Default)]
pub struct Attempt {
    pub began: Time,
    /// The time at which the client gives up. `None`: the client had a lease, so it does not give up.
    pub gives_up_at: Option<Time>,
    pub pauses: u32,
    /// The number of DISCOVER or SOLICIT messages that were sent.
    pub searches: u32,
    /// The number of REQUEST messages that were sent.
    pub requests: u32,
    /// The last problem, for the report.
    pub problem: &'static str,
}

impl Attempt {
    pub fn new(now: Time, gives_up_at: Option<Time>) -> Self {
        Self { began: now, gives_up_at, problem: "no server answered", ..Self::default() }
    }

    pub fn is_over(&self, now: Time) -> bool {
        self.gives_up_at.is_some_and(|limit| limit <= now)
    }

    /// The text of a failure: the last problem, and the numbers of messages. `search` is DISCOVER or SOLICIT.
    pub fn report(&self, search: &str, now: Time) -> String {
        let Self { problem, searches, requests, .. } = self;
        let secs = (now - self.began).as_secs();
        // The reference's message begins with the same words.
        format!(
            "no more tries: {problem}; sent {searches} {search} and {requests} REQUEST in {secs} s"
        )
    }
}
