//! Rules of nf_tables that several plugins share.

pub mod masquerade;
pub mod rules;
pub mod shared_rules;
pub mod spoof_check;
