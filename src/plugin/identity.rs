//! The record of the namespace in which an attachment was made: a later namespace can have the same path.
//!
//! Each successful ADD of a plugin that makes an interface writes it, whichever runtime calls, because no cache of a runtime has
//! the identity of a namespace. DEL and GC of this plugin remove it. `runtime::evidence` compares with it. A missing record is no error: then there is less proof.

use std::fs;
use std::io::ErrorKind;
use std::ops::Not;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cni::json;
use crate::cni::request::Verb;
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::host_view;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, ContainerId, IfName, NetworkName};
use crate::netlink::rtnl::Rtnl;
use crate::plugin::Context;
use crate::plugin::owner::hash;

/// It has a directory for each PID namespace in which plugins ran. It outlasts a boot, as the caches of the runtimes do: then the
/// records tell that their attachments have ended.
const DIRECTORY: &str = "/var/lib/cni/identities";

/// The name of the first PID namespace of a machine in place of `host_view::nested`.
const MACHINE: &str = "machine";

/// No name of a network, container or interface before it can contain it.
const SEPARATOR: char = '+';

/// NAME_MAX (linux/limits.h), less what a name aside needs.
const NAME_BYTES_MAX: usize = 200;

/// The record of one attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub network: NetworkName,
    pub at: Attachment,
    /// CNI_NETNS.
    pub netns: PathBuf,
    pub identity: Identity,
    /// `cnibox add` and the like wrote it. They have a record of their own of an operation that did not end.
    pub is_of_cnibox: bool,
}

/// The records of the attachments that were made in this PID namespace. The first one of a machine also sees those of the
/// others, which are in it.
#[derive(Clone, Debug)]
pub struct Records {
    own: PathBuf,
    sees_others: bool,
}

impl Records {
    pub fn of_host() -> Self {
        let nested = host_view::nested().unwrap_or_else(|_| Some("unknown".into()));
        let own = Path::new(DIRECTORY).join(nested.as_deref().unwrap_or(MACHINE));
        Self { own, sees_others: nested.is_none() }
    }

    /// Writes the record, or replaces it.
    pub fn write(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.network, &record.at);
        let written = file::replace_private(&path, &record.content());
        written.map_err(|error| cannot("write", &path, error))
    }

    /// `None` also for a record that cannot be read.
    pub fn read(&self, network: &NetworkName, at: &Attachment) -> Option<Record> {
        let is_it = |record: &Record| record.network == *network && record.at == *at;
        let read =
            |directory: &Path| Record::parse(&file::read(&path_in(directory, network, at)).ok()?);
        let mut directories = self.directories().into_iter();
        directories.find_map(|directory| read(&directory).filter(is_it))
    }

    /// A missing record is not an error.
    pub fn remove(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        self.directories().into_iter().try_for_each(|directory| {
            let path = path_in(&directory, network, at);
            let removed = fault::file_operation().and_then(|()| fs::remove_file(&path));
            let Err(error) = removed else { return Ok(()) };
            // A read-only file system has this error for missing files, too.
            if fs::symlink_metadata(&path).is_ok() {
                return Err(cannot("remove", &path, error));
            }
            // The process that wrote it was perhaps killed before the file got its name.
            file::sweep_of(&path);
            Ok(())
        })
    }

    /// All records that can be read.
    pub fn all(&self) -> Vec<Record> {
        let mut all = Vec::new();
        let directories = self.directories().into_iter();
        for entry in directories.filter_map(|path| fs::read_dir(path).ok()).flatten().flatten() {
            if !file::is_aside(&entry.file_name()) {
                all.extend(file::read(&entry.path()).ok().and_then(|bytes| Record::parse(&bytes)));
            }
        }
        all
    }

    /// Whether plugins of this PID namespace keep records in the directory, and those of no other one: then its neighbours
    /// below /var/lib/cni are not those of a host around it.
    pub fn is_only_one(&self) -> bool {
        directories() == [self.own.as_path()]
    }

    /// Removes the incomplete files that killed processes have left, and damaged records, which prove nothing. A file that
    /// cannot be removed does no harm.
    pub fn sweep(&self) {
        for directory in self.directories() {
            file::sweep(&directory);
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if !file::is_aside(&entry.file_name()) && is_damaged(&entry.path()) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }

    /// The file of an attachment.
    pub fn path(&self, network: &NetworkName, at: &Attachment) -> PathBuf {
        path_in(&self.own, network, at)
    }

    fn directories(&self) -> Vec<PathBuf> {
        if self.sees_others { directories() } else { vec![self.own.clone()] }
    }
}

/// The directories of all PID namespaces.
fn directories() -> Vec<PathBuf> {
    let found = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

fn path_in(directory: &Path, network: &NetworkName, at: &Attachment) -> PathBuf {
    let name = [&**network, &*at.container_id, &*at.ifname].join(&SEPARATOR.to_string());
    // The content has the names, too.
    let short = format!("{SEPARATOR}{:016x}", hash(&name));
    directory.join(if name.len() > NAME_BYTES_MAX { short } else { name })
}

/// Whether a regular file can be read, and is no record.
fn is_damaged(path: &Path) -> bool {
    match file::read(path) {
        Ok(bytes) => Record::parse(&bytes).is_none(),
        Err(error) => error.kind() == ErrorKind::FileTooLarge,
    }
}

fn cannot(verb: &str, path: &Path, error: std::io::Error) -> Error {
    Error::internal(format_args!("cannot {verb} {}", path.display()))
        .with_details(error.to_string())
}

/// The content of a file.
#[derive(Serialize, Deserialize)]
struct Kept {
    network: NetworkName,
    #[serde(rename = "containerID")]
    container_id: ContainerId,
    ifname: IfName,
    netns: String,
    identity: String,
    #[serde(default, skip_serializing_if = "Not::not")]
    cnibox: bool,
}

impl Record {
    /// `rtnl` is a socket in the namespace.
    pub fn of(network: &NetworkName, at: &Attachment, netns: &NetNs, rtnl: &Rtnl) -> Result<Self> {
        Ok(Self {
            network: network.clone(),
            at: at.clone(),
            netns: netns.path().into(),
            identity: Identity::of(netns, rtnl.netns_cookie())?,
            is_of_cnibox: false,
        })
    }

    /// The same record, by our runtime.
    pub fn of_cnibox(self) -> Self {
        Self { is_of_cnibox: true, ..self }
    }

    fn content(&self) -> Vec<u8> {
        let Attachment { container_id, ifname } = self.at.clone();
        let kept = Kept {
            network: self.network.clone(),
            container_id,
            ifname,
            netns: self.netns.to_string_lossy().into_owned(),
            identity: self.identity.text(),
            cnibox: self.is_of_cnibox,
        };
        json::compact(&kept).into_bytes()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let kept: Kept = json::read(bytes).ok()?;
        Some(Self {
            network: kept.network,
            at: Attachment { container_id: kept.container_id, ifname: kept.ifname },
            netns: kept.netns.into(),
            identity: Identity::parse(&kept.identity)?,
            is_of_cnibox: kept.cnibox,
        })
    }
}

/// Keeps the records up to date after a successful call. A record that cannot be written is a warning: without it there is less
/// proof.
pub(super) fn after(cx: &Context<'_>, verb: &Verb) -> Result<()> {
    let (network, records) = (&cx.request.network, Records::of_host());
    match verb {
        Verb::Add(at) => {
            write(cx, &records, at).unwrap_or_else(|error| cx.warn(error));
            Ok(())
        }
        Verb::Del(at) => records.remove(network, at),
        Verb::Gc(keep) => {
            let mut all = records.all().into_iter();
            let is_stale =
                |record: &Record| record.network == *network && !keep.contains(&record.at);
            all.try_for_each(|record| {
                if is_stale(&record) { records.remove(network, &record.at) } else { Ok(()) }
            })
        }
        Verb::Check(_) | Verb::Status => Ok(()),
    }
}

fn write(cx: &Context<'_>, records: &Records, at: &Attachment) -> Result<()> {
    let (netns, rtnl) = (cx.session.required_netns()?, cx.session.container()?);
    records.write(&Record::of(&cx.request.network, at, netns, rtnl)?)
}
