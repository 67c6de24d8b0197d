//! Steps that several plugins use. The head of a module says which verbs remove the objects that it creates.

pub mod delegate;
pub mod link;
pub mod orphans;
pub mod rules;
pub mod state;
pub mod undo;
