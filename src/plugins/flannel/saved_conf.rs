//! What was asked of the delegate, kept from ADD to DEL: by then the daemon may have another subnet, or be gone.
//!
//! The file is the reference's, `DATADIR/CONTAINERID`, so either can end what the other began. The reference has only one
//! for all networks and interfaces of a container. Where that is another attachment's, ours has one more:
//! `DATADIR/CONTAINERID:HASH`. Whose a file is stands in a key of our own; of one of the reference only the network is
//! known.
//!
//! Written by ADD, before the delegate is called. Removed by a failing ADD, unless the delegate could not take back what it
//! did, and by DEL and GC once the delegate is done.

use crate::cni::json::Json;
use crate::cni::request::Request;
use crate::error::Result;
use crate::names::Attachment;
use crate::plugin::owner::{Owner, Owners};
use crate::steps::state::{self, Record};

const OWNER: &str = "cnibox.owner";

/// A file that is there.
pub struct SavedConf {
    pub record: Record,
    pub config: Json,
}

/// Writes it; returns where, and what was there of an earlier ADD of the same attachment.
pub fn write(
    dir: &str,
    request: &Request,
    at: &Attachment,
    config: &Json,
) -> Result<(Record, Option<Vec<u8>>)> {
    let owner = Owner::new(&request.network, at);
    let [shared, own] = names(at, &owner);
    // Another interface of the container may come at the same time.
    let _lock = state::lock(dir)?;
    let record = Record::new(dir, &shared);
    let content = record.read()?;
    // One of the reference may be another interface's.
    let is_free = match content.as_deref().map(Json::parse) {
        Some(Ok(it)) => text(&it, OWNER) == Some(&owner.to_string()),
        Some(Err(_)) | None => true,
    };
    let (record, before) = if is_free {
        (record, content)
    } else {
        let record = Record::new(dir, &own);
        let before = record.read()?;
        (record, before)
    };
    let mut entries = match config.clone() {
        Json::Object(entries) => entries,
        _ => Vec::new(),
    };
    entries.push((OWNER.into(), owner.to_string().into()));
    record.write(Json::Object(entries).sorted().to_compact().as_bytes())?;
    Ok((record, before))
}

/// The attachment's file. One that cannot be read is as good as none.
pub fn find(dir: &str, request: &Request, at: &Attachment) -> Result<Option<SavedConf>> {
    let owner = Owner::new(&request.network, at);
    for name in names(at, &owner).iter().rev() {
        let record = Record::new(dir, name);
        let Some(content) = record.read()? else { continue };
        match Json::parse(&content) {
            Ok(config) if is_of(&config, request, &owner) => {
                return Ok(Some(SavedConf { record, config: without_owner(config) }));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Removes what an ADD that was killed has left of the attachment's files.
pub fn clean_up(dir: &str, request: &Request, at: &Attachment) {
    let owner = Owner::new(&request.network, at);
    names(at, &owner).iter().for_each(|name| Record::new(dir, name).remove_aside());
}

/// All of the network; those of the owners are marked as stale.
pub fn all(dir: &str, owners: &Owners) -> Result<Vec<(SavedConf, bool)>> {
    let mut found = Vec::new();
    for record in state::all(dir)? {
        let content = record.read()?;
        let Some(config) = content.and_then(|content| Json::parse(&content).ok()) else { continue };
        if text(&config, "name") != Some(owners.network()) {
            continue;
        }
        let is_stale = match text(&config, OWNER) {
            Some(owner) => owners.contain(owner),
            None => owners.has(|at, _| record.name() == Some(&at.container_id)),
        };
        found.push((SavedConf { record, config: without_owner(config) }, is_stale));
    }
    Ok(found)
}

fn names(at: &Attachment, owner: &Owner) -> [String; 2] {
    // No container id has a colon.
    [at.container_id.to_string(), format!("{}:{}", at.container_id, owner.short())]
}

fn is_of(config: &Json, request: &Request, owner: &Owner) -> bool {
    match text(config, OWNER) {
        Some(found) => found == owner.to_string(),
        None => text(config, "name") == Some(&request.network),
    }
}

/// As the delegate gets it.
fn without_owner(mut config: Json) -> Json {
    if let Json::Object(entries) = &mut config {
        entries.retain(|(key, _)| key != OWNER);
    }
    config
}

fn text<'a>(json: &'a Json, key: &str) -> Option<&'a str> {
    match json.get(key) {
        Some(Json::String(text)) => Some(text),
        _ => None,
    }
}
