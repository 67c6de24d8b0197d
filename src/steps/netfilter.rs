//! What all of our tables in nf_tables have in common.
//!
//! They are called `cnibox`, one per family. Whoever needs a chain or map there makes it if it is missing; these stay.
//! What belongs to an attachment has its owner for a comment, and goes with it.

use crate::error::Result;
use crate::kernel::nft::{Batch, Comment, Element, Family, Nft, Object, Table};
use crate::names::{Attachment, NetworkName};
use crate::steps::owner::Owner;

/// Our table of a family.
pub const fn table(family: Family) -> Table<'static> {
    Table { family, name: "cnibox" }
}

/// The comment by which an owner finds what is his.
pub fn comment(owner: &Owner) -> Result<Comment> {
    Comment::new(owner.to_string())
}

/// Whether these are there, in their order.
pub fn exist<const N: usize>(nft: &Nft, objects: [Object<'_>; N]) -> Result<[bool; N]> {
    let found = nft.exist(&objects)?;
    Ok(std::array::from_fn(|index| found.get(index).copied().unwrap_or_default()))
}

/// Adds an element. One with the same key makes way for it: whoever it belonged to has left without a DEL.
pub fn put(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    set: &str,
    wanted: Element,
) -> Result<()> {
    let key = std::slice::from_ref(&wanted.key);
    match nft.elements_at(table, set, key)?.pop().flatten() {
        Some(found) if found == wanted => return Ok(()),
        Some(_) => {
            batch.delete_elements(table, set, key);
        }
        None => {}
    }
    batch.add_elements(table, set, &[wanted]);
    Ok(())
}

/// Whose things are to be removed.
#[derive(Clone)]
pub enum Stale {
    /// One owner's.
    Of(Owner),
    /// Those of a network but these.
    AllBut { prefix: String, keep: Vec<String> },
}

impl Stale {
    /// Everything of the network that belongs to none of the attachments.
    pub fn all_but(network: &NetworkName, keep: &[Attachment]) -> Self {
        let keep = keep.iter().map(|at| Owner::new(network, at).to_string()).collect();
        Self::AllBut { prefix: Owner::prefix(network), keep }
    }

    pub fn has(&self, comment: Option<&Comment>) -> bool {
        let Some(comment) = comment else { return false };
        match self {
            Self::Of(owner) => **comment == *owner.to_string(),
            Self::AllBut { prefix, keep } => {
                comment.starts_with(prefix) && !keep.iter().any(|kept| **kept == **comment)
            }
        }
    }
}
