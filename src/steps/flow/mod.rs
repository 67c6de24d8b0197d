//! The course of a call: undo, delegation, what came before in a chain, verification.

pub mod chained;
pub mod delegate;
pub mod undo;
pub mod verify;
