//! Steps that several plugins have in common. A step that makes an object says which step removes it.

pub mod flow;
pub mod link;
pub mod nft;
pub mod renumber;
pub mod state;
