//! Orphans: rules of attachments that have no record, because another program has removed the state of the node (`rm -rf
//! /var/lib/cni`). No proof tells whether the containers have ended. But a port of the host must not lead to a container that has got
//! the address since, so `steps::flow::orphans` removes the rules for an address that an ADD has got.
//!
//! An ADD that finds no directory of records lists the orphans, before it makes the directory, in a file beside it. The other ADDs
//! only open this file, which usually does not exist.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cni::json;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::names::{Attachment, IpFamily, NetworkName};
use crate::netlink::ip_of;
use crate::netlink::nft::{Datum, Element, Nft, Table};
use crate::plugin::owner::Owner;
use crate::plugin::record;

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

/// Lists the orphans of the node. `directory` is that of the records, which does not exist. Without the permission to read the rules
/// there is no list.
pub(super) fn list(directory: &Path) -> io::Result<()> {
    let Ok(orphans) = on_host() else { return Ok(()) };
    write(&path_of(directory), &orphans)
}

/// The orphans of a network that have one of these addresses.
pub fn of_addresses(network: &NetworkName, addresses: &[IpAddr]) -> Result<Vec<Orphan>> {
    let mut orphans = read(&path_of(record::DIRECTORY.path()))?;
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
    file::make_directory(path.parent().unwrap_or(path), 0o755)?;
    file::replace_private(path, lines.concat().as_bytes())
}

/// The owners in the rules of cnibox, with the addresses that their elements have in the key or the value.
fn on_host() -> Result<Vec<Orphan>> {
    let Some(nft) = Nft::open_if_supported()? else { return Ok(Vec::new()) };
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
