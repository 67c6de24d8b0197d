//! Orphans: rules of attachments that have no record, because another program has removed the state of the node (`rm -rf
//! /var/lib/cni`). No proof tells whether the containers have ended. But a port of the host must not lead to a container that has got
//! the address since, so `steps::orphans` removes the rules for an address that an ADD has got.
//!
//! An ADD that finds no directory of records lists the orphans, before it makes the directory, in a file beside it. The other ADDs
//! only open this file, which usually does not exist.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::attachments::owner::Owner;
use crate::attachments::record::{self, Record, Records};
use crate::cni::json;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::names::{Attachment, IpFamily, NetworkName};
use crate::netlink::ip_of;
use crate::netlink::nft::{Datum, Element, Nft, Table};

/// The name of the tables of cnibox.
pub const TABLE: &str = "cnibox";

/// An attachment without a record, and an address in its rules. A line of the file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Orphan {
    pub network: NetworkName,
    #[serde(flatten)]
    pub at: Attachment,
    pub address: IpAddr,
}

/// The content of the file if the rules could not be listed: who reads it lists them.
const UNLISTED: &[u8] = b"unlisted\n";

/// Lists the orphans of the node. `directory` is that of the records, which does not exist. Without the permission to read the rules
/// there is no list.
pub(super) fn list(directory: &Path) -> io::Result<()> {
    let path = path_of(directory);
    without_record().map_or_else(|_| write_bytes(&path, UNLISTED), |orphans| write(&path, &orphans))
}

/// The orphans of a network that have one of these addresses. `is_unlisted`: the file could not be written.
pub fn of_addresses(
    network: &NetworkName,
    addresses: &[IpAddr],
    is_unlisted: bool,
) -> Result<Vec<Orphan>> {
    let mut orphans = match is_unlisted {
        true => without_record()?,
        false => read(&path_of(record::DIRECTORY.path()))?,
    };
    orphans.retain(|orphan| orphan.network == *network && addresses.contains(&orphan.address));
    Ok(orphans)
}

/// Removes from the list the attachments that have no rules any more. `owners` returns those in rules of the node.
pub fn sweep(owners: impl FnOnce() -> Result<Vec<String>>) -> Result<()> {
    let path = path_of(record::DIRECTORY.path());
    let mut orphans = read(&path)?;
    if orphans.is_empty() {
        return Ok(());
    }
    let owners = owners()?;
    let has_rules = |orphan: &Orphan| {
        owners.iter().any(|owner| *owner == Owner::new(&orphan.network, &orphan.at).as_str())
    };
    orphans.retain(has_rules);
    write(&path, &orphans).map_err(Error::of_file("write", &path))
}

/// Removes orphans from the list, whose rules are removed. Of two processes that do this at once, one can list the orphans of the
/// other again: a later ADD finds that they have no rules.
pub fn forget(gone: &[Orphan]) -> Result<()> {
    let path = path_of(record::DIRECTORY.path());
    let mut orphans = read(&path)?;
    let is_gone = |orphan: &Orphan| {
        gone.iter().any(|gone| (&gone.network, &gone.at) == (&orphan.network, &orphan.at))
    };
    orphans.retain(|orphan| !is_gone(orphan));
    write(&path, &orphans).map_err(Error::of_file("write", &path))
}

fn path_of(directory: &Path) -> PathBuf {
    directory.with_file_name("orphans")
}

fn read(path: &Path) -> Result<Vec<Orphan>> {
    let content = file::found(file::read(path)).map_err(Error::of_file("read", path))?;
    let content = content.unwrap_or_default();
    if content == UNLISTED {
        let orphans = without_record()?;
        // If it cannot be written, the next ADD lists the rules again.
        let _ = write(path, &orphans);
        return Ok(orphans);
    }
    let lines = content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            json::read(line).map_err(|error| {
                Error::internal(error).context(format!("cannot read {}", path.display()))
            })
        })
        .collect()
}

fn write(path: &Path, orphans: &[Orphan]) -> io::Result<()> {
    if orphans.is_empty() {
        return file::found(fs::remove_file(path)).map(drop);
    }
    let lines: Vec<String> = orphans.iter().map(|orphan| json::compact(orphan) + "\n").collect();
    write_bytes(path, lines.concat().as_bytes())
}

fn write_bytes(path: &Path, content: &[u8]) -> io::Result<()> {
    file::make_directory(path.parent().unwrap_or(path), 0o755)?;
    file::replace_private(path, content)
}

/// The attachments in the rules of the node that have no record. None without the permission to read the rules.
fn without_record() -> Result<Vec<Orphan>> {
    let nft = match Nft::open_if_supported() {
        Err(error) if error.is_not_permitted() => None,
        opened => opened?,
    };
    let mut orphans = nft.as_ref().map_or(Ok(Vec::new()), in_rules)?;
    let all = Records::of_host().all()?;
    let has_record = |orphan: &Orphan| {
        let is_of =
            |record: &Record| (&record.network, &record.at) == (&orphan.network, &orphan.at);
        all.records.iter().any(is_of)
    };
    orphans.retain(|orphan| !has_record(orphan));
    Ok(orphans)
}

/// The owners in the rules of cnibox, with the addresses that their elements have in the key or the value.
fn in_rules(nft: &Nft) -> Result<Vec<Orphan>> {
    let mut orphans = Vec::new();
    for family in IpFamily::ALL {
        let table = Table { family: family.into(), name: TABLE };
        for set in nft.sets(table)? {
            for element in nft.elements(table, &set.name)? {
                let owner = element.comment.as_deref().and_then(Owner::named);
                let Some((network, at)) = owner else { continue };
                let orphan = |address| Orphan { network: network.clone(), at: at.clone(), address };
                orphans.extend(addresses(&element, family).map(orphan));
            }
        }
    }
    orphans.sort_unstable();
    orphans.dedup();
    Ok(orphans)
}

/// What can be addresses at the begin of the key and of the value of an element.
fn addresses(element: &Element, family: IpFamily) -> impl Iterator<Item = IpAddr> {
    let value = match &element.data {
        Some(Datum::Value(value)) => value.as_slice(),
        _ => &[],
    };
    let address =
        move |field: &[u8]| ip_of(family.number(), field.get(..usize::from(family.bits()) / 8)?);
    [element.key.as_slice(), value].into_iter().filter_map(address)
}
