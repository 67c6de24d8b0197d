//! What several plugins do. A step that something else must take back later names who does.

pub mod chained;
pub mod configure;
pub mod delegate;
pub mod forwarding;
pub mod host_link;
pub mod interface;
pub mod masquerade;
pub mod netfilter;
pub mod owner;
pub mod parent;
pub mod record;
pub mod reference;
pub mod rules;
pub mod spoof_check;
pub mod tables;
pub mod undo;
pub mod verify;
pub mod veth;
