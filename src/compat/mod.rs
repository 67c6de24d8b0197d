//! Left-overs of the Go plugins: their rules, which DEL and GC remove. A node can be switched over while containers run.

pub mod forward_rules;
pub mod host_ports;
pub mod rules;
