//! DHCP: leases, and the clients as pure state machines. `v4` and `v6` have no clock, no socket and no randomness of their own.

pub mod domain;
pub mod lease;
pub mod random;
pub mod v4;
pub mod v6;
