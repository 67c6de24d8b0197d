//! Rules of the Go plugins: DEL and GC remove them, so a node can be switched over to cnibox while containers run.

pub mod forward_rules;
pub mod host_ports;
pub mod rules;
