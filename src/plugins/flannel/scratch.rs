//! What was asked of the delegate, kept from ADD to DEL: by then the daemon may have another subnet, or be gone.
//!
//! The file is the reference's, `DATADIR/CONTAINERID`, so either can end what the other began. The reference has only one
//! for all networks and interfaces of a container. Where that is another attachment's, ours has one more:
//! `DATADIR/CONTAINERID:HASH`. Whose a file is stands in a key of our own; of one of the reference only the network is
//! known.
//!
//! Written by ADD, before the delegate is called. Removed by a failing ADD, and by DEL and GC once the delegate is done.

use crate::cni::json::Json;
use crate::cni::request::Request;
use crate::error::Result;
use crate::names::{Attachment, NetworkName};
use crate::steps::owner::Owner;
use crate::steps::record::{self, Record};

const OWNER: &str = "cnibox.owner";

/// A file that is there.
pub struct Scratch {
    pub record: Record,
    pub config: Json,
}

/// Writes it; returns where.
pub fn write(dir: &str, request: &Request, at: &Attachment, config: &Json) -> Result<Record> {
    let owner = Owner::new(&request.network, at);
    let [shared, own] = names(at, &owner);
    let record = Record::new(dir, &shared);
    let is_free = match record.read()? {
        Some(content) => Json::parse(&content).map_or(true, |it| is_of(&it, request, &owner)),
        None => true,
    };
    let record = if is_free { record } else { Record::new(dir, &own) };
    let Json::Object(mut entries) = config.clone() else { return Ok(record) };
    entries.push((OWNER.into(), owner.to_string().into()));
    record.write(Json::Object(entries).sorted().to_compact().as_bytes())?;
    Ok(record)
}

/// The attachment's file. One that cannot be read is as good as none.
pub fn find(dir: &str, request: &Request, at: &Attachment) -> Result<Option<Scratch>> {
    let owner = Owner::new(&request.network, at);
    for name in names(at, &owner).iter().rev() {
        let record = Record::new(dir, name);
        let Some(content) = record.read()? else { continue };
        match Json::parse(&content) {
            Ok(config) if is_of(&config, request, &owner) => {
                return Ok(Some(Scratch { record, config }));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// All of the network; those of none of `keep` are marked as stale.
pub fn all(dir: &str, network: &NetworkName, keep: &[Attachment]) -> Result<Vec<(Scratch, bool)>> {
    let owners: Vec<String> = keep.iter().map(|at| Owner::new(network, at).to_string()).collect();
    let mut found = Vec::new();
    for record in record::all(dir)? {
        let content = record.read()?;
        let Some(config) = content.and_then(|content| Json::parse(&content).ok()) else { continue };
        if text(&config, "name") != Some(network) {
            continue;
        }
        let is_kept = match text(&config, OWNER) {
            Some(owner) => owners.iter().any(|it| it == owner),
            None => keep.iter().any(|at| record.name() == Some(&at.container_id)),
        };
        found.push((Scratch { record, config }, !is_kept));
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

fn text<'a>(json: &'a Json, key: &str) -> Option<&'a str> {
    match json.get(key) {
        Some(Json::String(text)) => Some(text),
        _ => None,
    }
}
