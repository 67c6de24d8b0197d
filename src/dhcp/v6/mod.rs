//! DHCPv6 (RFC 8415) for one non-temporary address: packets and the client, without sockets and clocks.

pub mod client;
pub mod duid;
pub mod frame;
pub mod grant;
pub mod packet;
mod retry;
