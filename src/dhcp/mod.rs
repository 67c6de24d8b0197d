//! DHCP: the leases, the clients as pure state machines, and what the plugin and the daemon share. `v4` and `v6` open no socket and read no clock: the
//! caller passes the time and the random seed.

pub mod admission;
pub mod apply;
pub mod attempt;
pub mod client;
pub mod clients;
pub mod domain;
pub mod exchange;
pub mod flags;
pub mod journal;
pub mod lease;
pub mod line;
pub mod protocol;
pub mod random;
pub mod site;
mod slaac;
pub mod socket;
mod source_routing;
pub mod time;
pub mod uplink;
pub mod v4;
pub mod v6;
