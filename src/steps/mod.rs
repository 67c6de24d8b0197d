//! Steps that several plugins do. A step that makes something names what removes it.

pub mod flow;
pub mod link;
pub mod nft;
pub mod state;
