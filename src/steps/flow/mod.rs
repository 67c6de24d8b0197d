//! Calls of delegates, and the addresses that they give.

pub mod delegate;
pub mod orphans;
