//! Netlink: requests, replies, and the errors in them. Knows nothing of what they are about.

mod message;
mod socket;

#[cfg(test)]
pub(crate) use message::rows;
pub use message::{Attrs, Requests};
pub(crate) use message::{attributes, fixed, text, u8_of, u32_of};
pub use socket::Error;
pub(crate) use socket::{Events, Protocol, Socket};
