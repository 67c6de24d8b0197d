//! Linux over netlink: links, addresses, routes, nf_tables, connection tracking. This code does not depend on CNI.
//!
//! `message` has the bytes of requests and replies, `socket` the exchange with the kernel, `error` its errors. The other modules
//! have the objects in the messages.

#[cfg(feature = "tool")]
pub(crate) mod changes;
pub(crate) mod conntrack;
mod error;
mod message;
pub mod nft;
pub(crate) mod rtnl;
pub(crate) mod sock_diag;
mod socket;
#[cfg(feature = "tool")]
pub(crate) mod xfrm;
pub(crate) mod xtables;

pub use error::Error;
#[cfg(test)]
pub(crate) use message::rows;
pub(crate) use message::{
    AF_INET, AF_INET6, REQUESTS_AT_ONCE, address_in, attribute, attributes, fixed, ip_of, octets,
    text, u8_of, u16_at, u16_of, u32_at, u32_of,
};
pub use message::{Attrs, Requests};
pub(crate) use socket::{Events, Socket, found};
