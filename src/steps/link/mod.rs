//! Links of the container and of the host, with their addresses and routes.

pub mod chained;
pub mod configure;
pub mod forwarding;
pub mod gateway;
pub mod host_link;
pub mod inside;
pub mod interface;
pub mod kind;
pub mod mtu;
pub mod parent;
pub mod routes;
pub mod routing_tables;
pub mod taken_mac;
pub mod tuned;
pub mod uplinks;
pub mod verify;
pub mod veth;
