//! What the Go reference plugins leave on a host. DEL and GC remove it, so a node can be switched over with containers
//! running.

pub mod forward_rules;
pub mod rules;
