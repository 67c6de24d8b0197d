//! Left-overs: rules of the Go plugins, which DEL and GC remove, and objects of older builds of cnibox under other names,
//! which ADD, CHECK, DEL and GC rename. A node can be switched over while containers
//! run.

pub mod forward_rules;
pub mod old_names;
pub mod rules;
