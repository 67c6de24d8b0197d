//! DHCP: the leases, the clients as pure state machines, and the daemon. `v4` and `v6` open no socket and read no clock: the
//! caller passes the time and the random seed.

mod admission;
mod apply;
pub mod attempt;
pub mod client;
pub mod clients;
pub mod domain;
mod exchange;
pub mod flags;
pub mod journal;
pub mod lease;
mod line;
pub mod protocol;
pub mod random;
pub mod server;
mod site;
mod slaac;
pub mod socket;
mod source_routing;
pub mod table;
pub mod time;
mod uplink;
pub mod v4;
pub mod v6;
