//! What all published ports share: the table, the maps and sets, the chains and their rules.

use super::conditions::Conditions;
use super::config::{Settings, Source};
use super::ruleset::{self, Group, Side, masqueraded_set};
use crate::error::Result;
use crate::kernel::nft::{Batch, COMMENT_BYTES_MAX_IN_NFT, Comment, Nft};
use crate::steps::nft::shared_rules::{self, Chain};

/// One family's skeleton, as far as a network needs it.
pub struct Skeleton<'a> {
    pub side: Side,
    pub settings: &'a Settings,
    /// The one that it needs besides the main one.
    pub group: &'a Group,
    /// The lengths of the prefixes that are masqueraded.
    pub lengths: Vec<u8>,
}

impl Skeleton<'_> {
    fn conditions(&self) -> &Conditions {
        self.settings.conditions(self.side.family())
    }

    /// Adds what is missing.
    pub fn ensure(&self, nft: &Nft, batch: &mut Batch) -> Result<()> {
        let table = self.side.table();
        self.skeleton()?.ensure(nft, batch, |batch, name| {
            self.side.with_set(name, |set| batch.add_set(table, set).is_empty());
        })
    }

    /// Fails if anything is missing.
    pub fn check(&self, nft: &Nft) -> Result<()> {
        self.skeleton()?.check(nft)
    }

    fn skeleton(&self) -> Result<shared_rules::Skeleton<'static>> {
        let table = self.side.table();
        Ok(shared_rules::Skeleton { table, sets: self.sets(), chains: self.chains()? })
    }

    fn sets(&self) -> Vec<String> {
        let mut groups = vec![Group::main()];
        groups.extend(Some(self.group.clone()).filter(|group| !group.is_main()));
        let mut sets = vec![ruleset::OWNERS.to_owned()];
        sets.extend(groups.iter().flat_map(Group::sets));
        sets.extend(self.lengths.iter().map(|length| masqueraded_set(*length)));
        sets
    }

    /// Where a jump leads to comes before where it starts.
    fn chains(&self) -> Result<Vec<Chain>> {
        let (side, group, main) = (self.side, self.group, Group::main());
        let mut chains =
            vec![Chain::regular(&main.chain(), side.published(&main, &Conditions::none()))];
        if !group.is_main() {
            // Before those without conditions, who would leave nothing over.
            chains[0].first = Some(side.to_group(group));
            let conditions = self.conditions();
            let mut chain = Chain::regular(&group.chain(), side.published(group, conditions));
            if !conditions.are_none() {
                chain.comment = Some(Comment::new(shortened(conditions.text()))?);
            }
            chains.insert(0, chain);
        }
        let to_this_host = vec![side.to_this_host()];
        let base = ruleset::DSTNAT_PREROUTING;
        chains.push(Chain::base(ruleset::PREROUTING, base, to_this_host.clone()));
        chains.push(Chain::base(ruleset::OUTPUT, ruleset::DSTNAT_OUTPUT, to_this_host));
        if self.settings.source != Source::Kept {
            let rules = self.lengths.iter().map(|length| side.masqueraded(*length)).collect();
            chains.push(Chain::base(ruleset::POSTROUTING, ruleset::SRCNAT, rules));
            if side.has(ruleset::loopback().addr()) {
                let rules = vec![side.not_from_outside()];
                chains.push(Chain::base(ruleset::LOOPBACK, ruleset::RAW, rules));
            }
        }
        Ok(chains)
    }
}

/// What nft can read back, too.
fn shortened(text: &str) -> String {
    let mut end = text.len().min(COMMENT_BYTES_MAX_IN_NFT - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
