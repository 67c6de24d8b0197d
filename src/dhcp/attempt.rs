//! The attempt of a client to get a lease: its limit, and its report if it fails.

use crate::dhcp::time::Time;

/// An attempt of either family.
#[derive(Debug, Default)]
pub struct Attempt {
    pub began: Time,
    /// `None`: the client had a lease and does not give up.
    pub gives_up_at: Option<Time>,
    pub pauses: u32,
    /// How many messages were sent that look for servers, and that ask one of them.
    pub searches: u32,
    pub requests: u32,
    /// The last obstacle, for the report.
    pub problem: &'static str,
}

impl Attempt {
    pub fn new(now: Time, gives_up_at: Option<Time>) -> Self {
        Self { began: now, gives_up_at, problem: "no server answered", ..Self::default() }
    }

    pub fn is_over(&self, now: Time) -> bool {
        self.gives_up_at.is_some_and(|limit| limit <= now)
    }

    /// The last obstacle and the messages that were sent. `search`: the name of those that look for servers.
    pub fn report(&self, search: &str, now: Time) -> String {
        let Self { problem, searches, requests, .. } = self;
        let secs = (now - self.began).as_secs();
        // The first words are the reference's.
        format!(
            "no more tries: {problem}; sent {searches} {search} and {requests} REQUEST in {secs} s"
        )
    }
}
