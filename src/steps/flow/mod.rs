//! The course of a call: undo, delegates, the previous result, CHECK.

pub mod delegate;
pub mod undo;
