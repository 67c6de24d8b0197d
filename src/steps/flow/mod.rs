//! The control flow of a call: undo after an error, and calls of delegates.

pub mod delegate;
pub mod orphans;
pub mod undo;
