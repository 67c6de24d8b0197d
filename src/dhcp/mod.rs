//! DHCP: leases, and the clients as pure state machines. `v4` has no clock, no socket and no randomness of its own.

pub mod domain;
pub mod lease;
pub mod random;
pub mod v4;
