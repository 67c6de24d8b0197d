//! nf_tables rules that several plugins use.

pub mod compat;
pub mod hairpin;
pub mod internal;
pub mod localnet;
pub mod masquerade;
pub mod shared_rules;
pub mod shared_set;
pub mod spoof_check;
pub mod targets;
