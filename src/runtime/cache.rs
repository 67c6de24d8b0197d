//! The cache of results, in libcni's format (cniCacheV1), so that runtimes can find, check and delete the attachments of one
//! another. This module does not check whether an attachment is alive.

use std::fs;
use std::io;
use std::io::ErrorKind::{FileTooLarge, IsADirectory};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde::Serialize;

use crate::attachments::record::{Made, Maker, Record};
use crate::cni::json::{self, Json, keys};
use crate::cni::success::Success;
use crate::cni::version::{self, Version};
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::state_directory::StateDirectory;
use crate::names::{Attachment, ContainerId, IfName, NetworkName};
use crate::runtime::conf::Network;

/// The directory of libcni's cache.
pub const DIRECTORY: StateDirectory =
    StateDirectory { usual: "/var/lib/cni/results", of_user: "/run/cnibox/lib/results" };
const KIND: &str = "cniCacheV1";
/// Base64 as Go's encoding/json reads and writes it: with padding; the unused bits of the last digit can have any value.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The content of the cache file of one attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheEntry {
    pub network: NetworkName,
    pub at: Attachment,
    /// The network configuration that ADD used. Empty in entries of runtimes before cniCacheV1.
    pub config: Vec<u8>,
    /// CNI_NETNS. libcni before 1.2 does not store it; then this is the `sandbox` of the interface in the result, or empty.
    pub netns: PathBuf,
    /// CNI_ARGS of ADD.
    pub args: String,
    /// The capability arguments of ADD: an object, or `Null`.
    pub capability_args: Json,
    /// The result of the last plugin of ADD, or `Null`.
    pub result: Json,
    /// The record whose request this is: the cache has no entry of the attachment.
    pub of_record: Option<OfRecord>,
}

/// The record of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct OfRecord {
    pub generation: String,
    /// Whether the request is that of an ADD. That of a DEL, of an attachment that another runtime has made, can lack plugins of the
    /// ADD.
    is_of_add: bool,
}

/// A directory with libcni's file names, one file per attachment. Two attachments can have the same file name.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
}

/// All files of a cache.
#[derive(Debug, Default)]
pub struct Entries {
    /// The content of the usable files, in the order of the file names.
    pub entries: Vec<CacheEntry>,
    pub damaged: Vec<Damaged>,
}

/// A file that cannot be used.
#[derive(Debug)]
pub struct Damaged {
    name: String,
    pub error: Error,
}

impl Damaged {
    /// Whether the file has the name of an attachment's file.
    pub fn is_of(&self, network: &NetworkName, at: &Attachment) -> bool {
        self.name == file_name(network, at)
    }

    /// Whether the file can be that of an attachment of this container. A file name is ambiguous.
    pub fn may_be_of(&self, network: &NetworkName, id: &ContainerId) -> bool {
        self.name.starts_with(&format!("{network}-{id}-"))
    }
}

impl CacheEntry {
    /// An entry with the name of an attachment only.
    pub fn new(network: &NetworkName, at: &Attachment) -> Self {
        Self {
            network: network.clone(),
            at: at.clone(),
            config: Vec::new(),
            netns: PathBuf::new(),
            args: String::new(),
            capability_args: Json::Null,
            result: Json::Null,
            of_record: None,
        }
    }

    /// The request in a record, see `Record::request`. `None` if the record has none, or an incomplete one.
    pub fn of_record(record: &Record) -> Option<Self> {
        let entry = Self::parse(&Json::parse(&record.request).ok()?).ok()?;
        let is_its_own = (&entry.network, &entry.at) == (&record.network, &record.at);
        let is_of_add = record.maker == Maker::Cnibox;
        let of_record = Some(OfRecord { generation: record.generation.clone(), is_of_add });
        is_its_own.then_some(Self { of_record, ..entry })
    }

    /// The request for a record, with the configuration `config`.
    pub fn request(&self, config: &[u8]) -> Vec<u8> {
        json::compact(&self.document(config, Json::Null)).into_bytes()
    }

    /// Whether the configuration is that of the ADD.
    pub fn has_list_of_add(&self) -> bool {
        self.of_record.as_ref().is_none_or(|record| record.is_of_add)
    }

    /// The network configuration that ADD used.
    pub fn network_of_add(&self) -> Result<Network> {
        let network = Network::from_cache(&self.config).map_err(|error| {
            error.context(format!("cannot read the cached configuration of {}", self.title()))
        })?;
        // A DEL with the configuration of another network would delete objects of that network.
        if network.name == self.network {
            return Ok(network);
        }
        let msg = format!("cannot use the cached configuration of {}", self.title());
        Err(Error::config(msg).with_details(format_args!("it is of network {}", network.name)))
    }

    /// The result of ADD, if the entry has one.
    pub fn success(&self) -> Result<Option<Success>> {
        if self.result == Json::Null {
            return Ok(None);
        }
        let success = version::parse_result(&self.result, Version::NEWEST);
        success.map(Some).map_err(|error| {
            error.context(format!("cannot read the cached result of {}", self.title()))
        })
    }

    /// The MAC addresses and IP addresses that ADD made in the container, by the result.
    pub fn made(&self) -> Made {
        Made::of(&self.success().ok().flatten().unwrap_or_default())
    }

    /// The attachment as text for messages.
    pub fn title(&self) -> String {
        self.at.title(&self.network)
    }

    fn document(&self, config: &[u8], result: Json) -> Document {
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            vec![key.to_owned(), value.to_owned()]
        };
        let pairs = self.args.split(';').filter(|pair| !pair.is_empty());
        Document {
            kind: KIND.into(),
            container_id: self.at.container_id.to_string(),
            config: BASE64.encode(config),
            if_name: self.at.ifname.to_string(),
            network_name: self.network.to_string(),
            netns: self.netns.to_string_lossy().into_owned(),
            cni_args: pairs.map(pair).collect(),
            capability_args: self.capability_args.clone(),
            result,
        }
    }

    fn parse(json: &Json) -> Result<Self> {
        let document: Document = json.read("entry")?;
        if document.kind != KIND {
            return Err(Error::config(format_args!("kind: not {KIND}")));
        }
        for (key, value) in
            [("capabilityArgs", &document.capability_args), ("result", &document.result)]
        {
            if !matches!(value, Json::Null | Json::Object(_)) {
                return Err(Error::config(format_args!("{key}: not an object")));
            }
        }
        let config = decode(&document.config);
        let netns = match document.netns.as_str() {
            "" => sandbox(&document.result, &document.if_name).unwrap_or_default(),
            netns => netns,
        };
        Ok(Self {
            network: NetworkName::new(document.network_name)?,
            at: Attachment {
                container_id: ContainerId::new(document.container_id)?,
                ifname: IfName::new(document.if_name.as_str())?,
            },
            config: config.ok_or_else(|| Error::config("config: not base64"))?,
            netns: netns.into(),
            args: args(&document.cni_args)?,
            capability_args: document.capability_args,
            result: document.result,
            of_record: None,
        })
    }
}

keys! {
    /// The JSON document of a file. The order of the keys is libcni's.
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Document {
        "kind" => kind: String,
        "containerId" => container_id: String,
        /// The network configuration of ADD, in base64.
        "config" => config: String,
        "ifName" => if_name: String,
        "networkName" => network_name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        "netns" => netns: String,
        /// CNI_ARGS as pairs of key and value.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        "cniArgs" => cni_args: Vec<Vec<String>>,
        #[serde(skip_serializing_if = "Json::is_null")]
        "capabilityArgs" => capability_args: Json,
        #[serde(skip_serializing_if = "Json::is_null")]
        "result" => result: Json,
    }
}

/// The `sandbox` of an interface in a result, if it is a path. The `sandbox` of a virtual machine can be another text.
fn sandbox<'a>(result: &'a Json, ifname: &str) -> Option<&'a str> {
    let Json::Array(interfaces) = result.get("interfaces")? else { return None };
    let of_name =
        interfaces.iter().filter(|interface| interface.get("name") == Some(&ifname.into()));
    let mut paths = of_name.filter_map(|interface| interface.text_at("sandbox"));
    paths.find(|path| path.starts_with('/'))
}

/// Decodes base64. Returns `None` if the text is not base64. Line breaks are skipped, as Go does.
fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text.replace(['\r', '\n'], "")).ok()
}

/// Joins the pairs of `cniArgs` to CNI_ARGS.
fn args(pairs: &[Vec<String>]) -> Result<String> {
    let mut args = Vec::new();
    for pair in pairs {
        let [key, value] = pair.as_slice() else {
            return Err(Error::config("cniArgs: not a list of pairs"));
        };
        args.push(format!("{key}={value}"));
    }
    Ok(args.join(";"))
}

impl Cache {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The entry of an attachment, if it exists. Fails if the file is damaged or belongs to another attachment.
    pub fn read(&self, network: &NetworkName, at: &Attachment) -> Result<Option<CacheEntry>> {
        let path = self.path(network, at);
        let Some(json) = read(&path)? else { return Ok(None) };
        if json.get("kind").is_none() && matches!(json, Json::Object(_)) {
            // A file from before cniCacheV1 has only the result.
            return Ok(Some(CacheEntry { result: json, ..CacheEntry::new(network, at) }));
        }
        let entry = CacheEntry::parse(&json).map_err(|error| unusable(&path, error))?;
        // Network `a-b` with container `c` has the same file as network `a` with container `b-c`.
        if entry.network != *network || entry.at != *at {
            let belongs = format!("it belongs to {}", entry.title());
            return Err(unusable(&path, Error::config(belongs)));
        }
        Ok(Some(entry))
    }

    /// The entry in the file of this attachment, if it is the entry of another attachment with the same file name. A damaged
    /// file is no entry. Fails if the file cannot be read: it can be that of the other attachment.
    pub fn holder(&self, network: &NetworkName, at: &Attachment) -> Result<Option<CacheEntry>> {
        let path = self.path(network, at);
        let content = match read_file(&path) {
            Err(error) if matches!(error.kind(), IsADirectory | FileTooLarge) => return Ok(None),
            content => content.map_err(|error| unusable(&path, Error::internal(error)))?,
        };
        let json = content.and_then(|content| Json::parse(&content).ok());
        let entry = json.and_then(|json| CacheEntry::parse(&json).ok());
        Ok(entry.filter(|entry| entry.network != *network || entry.at != *at))
    }

    /// The entries of one interface of a container, in all networks. Files that are damaged or cannot be read are ignored: an
    /// ADD over such an attachment fails if its interface exists.
    pub fn of_interface(&self, at: &Attachment) -> Result<Vec<CacheEntry>> {
        let end = format!("-{}-{}", at.container_id, at.ifname);
        let Entries { mut entries, .. } = self.all_with_name(|name| name.ends_with(&end))?;
        entries.retain(|entry| entry.at == *at);
        Ok(entries)
    }

    /// The entries of a container, and an error for each unusable file whose name can be that of such an entry.
    pub fn of_container(&self, id: &ContainerId) -> Result<Entries> {
        let part = format!("-{id}-");
        let mut found = self.all_with_name(|name| name.contains(&part))?;
        found.entries.retain(|entry| entry.at.container_id == *id);
        Ok(found)
    }

    /// All entries. The attachment of an entry comes from the content of the file, because a file name is ambiguous.
    pub fn all(&self) -> Result<Entries> {
        self.all_with_name(|_| true)
    }

    fn all_with_name(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Entries> {
        let cannot = Error::of_file("read directory", &self.directory);
        let files = fault::file_operation().and_then(|()| fs::read_dir(&self.directory));
        let Some(files) = file::found(files).map_err(&cannot)? else {
            return Ok(Entries::default());
        };
        let mut paths = Vec::new();
        for file in files {
            let file = file.map_err(&cannot)?;
            let name = file.file_name();
            if !file::is_aside(&name) && is_wanted(&name.to_string_lossy()) {
                paths.push(file.path());
            }
        }
        paths.sort_unstable();
        let mut all = Entries::default();
        for path in paths {
            // None: another process removed the file after the directory was read.
            let Some(json) = read(&path).transpose() else { continue };
            let entry = json
                .and_then(|json| CacheEntry::parse(&json).map_err(|error| unusable(&path, error)));
            match entry {
                Ok(entry) => all.entries.push(entry),
                Err(error) => {
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    all.damaged.push(Damaged { name, error });
                }
            }
        }
        Ok(all)
    }

    /// Removes the temporary files of killed processes.
    pub fn sweep(&self) {
        file::sweep(&self.directory);
    }

    /// Writes an entry, or replaces it.
    pub fn write(&self, entry: &CacheEntry) -> Result<()> {
        let path = self.path(&entry.network, &entry.at);
        let document = json::compact(&entry.document(&entry.config, entry.result.clone()));
        if document.len() > file::BYTES_MAX {
            // A DEL reads at most `BYTES_MAX` bytes, so it could not read this file.
            return Err(Error::of_file("write", &path)(file::too_long(file::BYTES_MAX)));
        }
        replace(&path, document.as_bytes())
    }

    /// Removes an entry. Idempotent: succeeds if the file does not exist.
    pub fn remove(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        let path = self.path(network, at);
        let removed = fault::file_operation().and_then(|()| fs::remove_file(&path));
        file::found(removed).map(drop).map_err(Error::of_file("remove", &path))
    }

    /// The path of an attachment's file.
    pub fn path(&self, network: &NetworkName, at: &Attachment) -> PathBuf {
        self.directory.join(file_name(network, at))
    }
}

fn file_name(network: &NetworkName, at: &Attachment) -> String {
    format!("{network}-{}-{}", at.container_id, at.ifname)
}

fn unusable(path: &Path, error: Error) -> Error {
    error.context(format!("cannot use cache entry {}", path.display()))
}

/// Reads a JSON file. Returns `None` if the file does not exist.
fn read(path: &Path) -> Result<Option<Json>> {
    let bytes = read_file(path).map_err(|error| unusable(path, Error::internal(error)))?;
    bytes.map(|bytes| Json::parse(&bytes)).transpose().map_err(|error| unusable(path, error))
}

/// `None` if the file does not exist.
fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    file::found(fault::file_operation().and_then(|()| file::read(path)))
}

/// Writes or replaces a file atomically: a reader never finds an incomplete file.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    file::replace_private(path, content).map_err(Error::of_file("write", path))
}

#[cfg(test)]
pub(super) mod tests;
