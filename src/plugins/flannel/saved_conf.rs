//! The configuration of the delegate, saved from ADD to DEL. At the time of the DEL, the file of the daemon can have another
//! subnet or be missing.
//!
//! The file is that of the reference, `DATADIR/CONTAINERID`, so the DEL of cnibox can follow an ADD of the Go plugin, and the
//! other way round. The reference has one file for all networks and interfaces of a container. If the file belongs to another
//! attachment, cnibox writes `DATADIR/CONTAINERID:HASH`. The key `cnibox.owner` names the owner; a file of the reference names
//! its network only.
//!
//! ADD writes the file before it calls the delegate. A failing ADD removes it if the delegate undid its work. DEL and GC
//! remove it after the delegate succeeded.

use super::ConfigObject;
use crate::attachments::owner::{Owner, Owners};
use crate::cni::json::Json;
use crate::cni::request::Request;
use crate::error::{Error, Result};
use crate::names::Attachment;
use crate::plugin::Context;
use crate::steps::state::{self, StateFile};
use crate::steps::undo::Failures;

const OWNER: &str = "cnibox.owner";

pub struct SavedConf {
    pub record: StateFile,
    pub config: Json,
}

/// The saved configuration of an attachment.
pub enum Saved {
    Found(SavedConf),
    Missing,
    /// The file is not JSON, or too long. The delegate may have made something. The file can be that of another attachment of the container.
    Damaged(Error),
}

/// Writes the file of an attachment. Returns the file, and the content that an earlier ADD of this attachment wrote.
pub fn write(
    dir: &str,
    request: &Request,
    at: &Attachment,
    config: &Json,
) -> Result<(StateFile, Option<Vec<u8>>)> {
    let owner = Owner::new(&request.network, at);
    let [shared, own] = names(at, &owner);
    // The lock is held against a concurrent ADD of another interface of the container.
    let _lock = state::lock(dir)?;
    let record = StateFile::new(dir, &shared);
    let content = record.read()?;
    // A file of the reference is not replaced, because it can belong to another interface. One that is too long cannot be
    // restored.
    let is_free = match &content {
        Some(Ok(content)) => Json::parse(content)
            .map_or(true, |json| json.text_at(OWNER) == Some(&owner.to_string())),
        Some(Err(_)) => false,
        None => true,
    };
    let (record, before) = if is_free {
        (record, content)
    } else {
        let record = StateFile::new(dir, &own);
        let before = record.read()?;
        (record, before)
    };
    let before = before.transpose()?;
    let mut config = ConfigObject(config.clone());
    config.0.set(OWNER, owner.to_string().into());
    record.write(config.0.sorted().to_compact().as_bytes())?;
    Ok((record, before))
}

/// The saved configuration of the attachment.
pub fn find(dir: &str, request: &Request, at: &Attachment) -> Result<Saved> {
    let owner = Owner::new(&request.network, at);
    for name in names(at, &owner).iter().rev() {
        let record = StateFile::new(dir, name);
        let Some(content) = record.read()? else { continue };
        match parse(&record, content) {
            Ok(config) if is_of(&config, request, &owner) => {
                return Ok(Saved::Found(SavedConf { record, config: without_owner(config) }));
            }
            Ok(_) => {}
            Err(error) => return Ok(Saved::Damaged(error)),
        }
    }
    Ok(Saved::Missing)
}

/// Removes the incomplete files that a killed ADD of the attachment left.
pub fn remove_incomplete(dir: &str, request: &Request, at: &Attachment) {
    let owner = Owner::new(&request.network, at);
    names(at, &owner).iter().for_each(|name| StateFile::new(dir, name).remove_aside());
}

/// All saved configurations of the network, each with true if it is stale: it was saved for one of the owners. The error of a
/// file that cannot be read is added to `failures`. Of a damaged file the network is unknown: it stays, with a warning.
pub fn all(
    cx: &Context<'_>,
    dir: &str,
    owners: &Owners,
    failures: &mut Failures,
) -> Result<Vec<(SavedConf, bool)>> {
    let mut found = Vec::new();
    for record in state::all(dir)? {
        let Some(content) = failures.note(record.read()) else { continue };
        let config = match parse(&record, content) {
            Ok(config) => config,
            Err(error) => {
                cx.warn(error);
                continue;
            }
        };
        if config.text_at("name") != Some(owners.network()) {
            continue;
        }
        let is_stale = match config.text_at(OWNER) {
            Some(owner) => owners.contain(owner),
            None => owners.has(|at, _| record.name() == Some(&at.container_id)),
        };
        found.push((SavedConf { record, config: without_owner(config) }, is_stale));
    }
    Ok(found)
}

fn parse(record: &StateFile, content: Result<Vec<u8>>) -> Result<Json> {
    Json::parse(&content?).map_err(|error| record.damaged(error))
}

fn names(at: &Attachment, owner: &Owner) -> [String; 2] {
    // No container id has a colon.
    [at.container_id.to_string(), format!("{}:{}", at.container_id, owner.short())]
}

fn is_of(config: &Json, request: &Request, owner: &Owner) -> bool {
    match config.text_at(OWNER) {
        Some(found) => found == owner.to_string(),
        None => config.text_at("name") == Some(&request.network),
    }
}

/// Removes the key `cnibox.owner`, which the delegate does not get.
fn without_owner(mut config: Json) -> Json {
    if let Json::Object(entries) = &mut config {
        entries.retain(|(key, _)| key != OWNER);
    }
    config
}
