//! DHCPv4 (RFC 2131, RFC 2132): packets, options and the client, without sockets and clocks.

pub mod client;
pub mod frame;
pub mod grant;
pub mod message;
pub mod option;
pub mod packet;
pub mod settings;
