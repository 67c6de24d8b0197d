//! Netlink: requests, replies and errors. It does not interpret the objects in them.

mod message;
mod socket;

#[cfg(test)]
pub(crate) use message::rows;
pub(crate) use message::{
    AF_INET, AF_INET6, attribute, attributes, datagram_messages, fixed, text, u8_of, u32_of,
};
pub use message::{Attrs, Requests};
pub use socket::Error;
pub(crate) use socket::{Events, Protocol, Socket};
