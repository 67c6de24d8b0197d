//! What `cnibox doctor` examines.

use std::path::Path;

use crate::error::{Error, Result};
use crate::names::{Attachment, NetworkName};
use crate::plugin::life::Life;
use crate::runtime::NAMED_NAMESPACES;
use crate::runtime::cache::CacheEntry;
use crate::runtime::reservations::Survey;

use crate::cli::attachments::host_ports;

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

    pub(super) fn concerns_network(&self, network: &NetworkName) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|(name, _)| name == network))
    }
}

/// The attachments that concern a container: by its id, the beginning of its id, or the name of its namespace.
pub(super) fn of_container(survey: &Survey, word: &str) -> Result<Vec<(NetworkName, Attachment)>> {
    let has_id = |entry: &&CacheEntry| *entry.at.container_id == *word;
    let path = Path::new(NAMED_NAMESPACES).join(word);
    let has_name = |entry: &&CacheEntry| {
        entry.netns == path
            || entry.netns == Path::new("/var").join(path.strip_prefix("/").unwrap_or(&path))
    };
    let begins = |entry: &&CacheEntry| entry.at.container_id.starts_with(word);
    let all = || survey.attachments.iter().map(|(entry, _)| entry);
    let mut found: Vec<&CacheEntry> = all().filter(has_id).collect();
    if found.is_empty() {
        found = all().filter(has_name).collect();
    }
    if found.is_empty() && !word.is_empty() {
        found = all().filter(begins).collect();
        if found.iter().any(|entry| entry.at.container_id != found[0].at.container_id) {
            let msg = format!("cannot choose a container: several ids begin with {word}");
            return Err(Error::config(msg));
        }
    }
    if found.is_empty() {
        return Err(Error::config(format_args!(
            "cannot find container {word}: it has no attachment"
        )));
    }
    Ok(names(found.into_iter()))
}

/// The living attachments that publish a port of the host.
pub(super) fn of_port(survey: &Survey, port: u16) -> Result<Vec<(NetworkName, Attachment)>> {
    let publishes = |entry: &&CacheEntry| host_ports(entry).any(|published| published == port);
    let alive = survey.attachments.iter().filter(|(_, life)| *life == Life::Alive);
    let found = names(alive.map(|(entry, _)| entry).filter(publishes));
    if found.is_empty() {
        return Err(Error::config(format_args!(
            "cannot find port {port}: no living container publishes it"
        )));
    }
    Ok(found)
}

fn names<'a>(entries: impl Iterator<Item = &'a CacheEntry>) -> Vec<(NetworkName, Attachment)> {
    entries.map(|entry| (entry.network.clone(), entry.at.clone())).collect()
}
