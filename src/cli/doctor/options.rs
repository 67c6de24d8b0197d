//! What `cnibox doctor` examines.

use crate::attachments::life::Life;
use crate::error::{Error, Result};
use crate::names::{Attachment, ContainerId, NetworkName};
use crate::runtime::attachments::container_like;
use crate::runtime::cache::CacheEntry;
use crate::runtime::reservations::Survey;

use super::published::mappings;
use crate::cli::{parameters, podman};

#[derive(Default)]
pub(super) struct ExamineOptions {
    /// Also what concerns no network here.
    pub(super) is_verbose: bool,
    /// Also what a container can have changed on purpose.
    pub(super) is_inside: bool,
    /// Only these attachments. `None`: the whole host.
    pub(super) only: Option<Vec<(NetworkName, Attachment)>>,
}

impl ExamineOptions {
    pub(super) fn concerns(&self, network: &NetworkName, at: &Attachment) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| only.iter().any(|(name, one)| name == network && one == at))
    }

    pub(super) fn concerns_container(&self, network: &NetworkName, id: &ContainerId) -> bool {
        let is_it =
            |(name, at): &(NetworkName, Attachment)| name == network && at.container_id == *id;
        self.only.as_ref().is_none_or(|only| only.iter().any(is_it))
    }

    pub(super) fn concerns_network(&self, network: &NetworkName) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|(name, _)| name == network))
    }
}

/// The attachments that concern a container: by its id, the beginning of its id, or its namespace. None if they can be in a file that
/// cannot be read, which the check `leaks` reports.
pub(super) fn of_container(survey: &Survey, word: &str) -> Result<Vec<(NetworkName, Attachment)>> {
    let mut all: Vec<CacheEntry> =
        survey.attachments.iter().map(|(entry, _)| entry.clone()).collect();
    // The cache has no entry of these.
    all.extend(survey.records.iter().map(|(record, _)| {
        let named = CacheEntry::new(&record.network, &record.at);
        CacheEntry { netns: record.netns.clone(), ..named }
    }));
    match container_like(word, Some(&parameters::netns(word)?), &all)? {
        Some(id) => Ok(names(all.iter().filter(|entry| entry.at.container_id == id))),
        None if is_unreadable(survey) => Ok(Vec::new()),
        None => {
            let hint = match podman::is_network(word) {
                true => "; it is a network: cnibox doctor examines all of them",
                false => "",
            };
            let msg = format!("cannot find container {word}: it has no attachment{hint}");
            Err(Error::config(msg))
        }
    }
}

fn is_unreadable(survey: &Survey) -> bool {
    !survey.damaged.is_empty() || !survey.unreadable.is_empty()
}

/// The living attachments that publish a port of the host. None if one can be in a file that cannot be read.
pub(super) fn of_port(survey: &Survey, port: u16) -> Result<Vec<(NetworkName, Attachment)>> {
    let publishes = |entry: &&CacheEntry| {
        mappings(&entry.capability_args).is_ok_and(|all| all.iter().any(|it| it.host_port == port))
    };
    let alive = survey.attachments.iter().filter(|(_, life)| *life == Life::Alive);
    let found = names(alive.map(|(entry, _)| entry).filter(publishes));
    if found.is_empty() && !is_unreadable(survey) {
        return Err(Error::config(format_args!(
            "cannot find port {port}: no living container publishes it"
        )));
    }
    Ok(found)
}

fn names<'a>(entries: impl Iterator<Item = &'a CacheEntry>) -> Vec<(NetworkName, Attachment)> {
    entries.map(|entry| (entry.network.clone(), entry.at.clone())).collect()
}
