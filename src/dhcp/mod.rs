//! DHCP: leases, and the clients as pure state machines. `v4` has no clock, no socket and no randomness of its own.

pub mod domain;
mod fields;
pub mod flags;
pub mod journal;
pub mod lease;
mod line;
pub mod protocol;
pub mod random;
pub mod release;
pub mod server;
pub mod socket;
pub mod v4;
