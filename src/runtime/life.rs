//! The state of the attachments in the cache: alive, or stale because the namespace is removed or replaced.
//!
//! A separate file identifies the namespace, because a later one can have the same path and cniCacheV1 has no field for
//! it: boot, device, inode and its time. The kernel reuses numbers, and attachments of other runtimes have no such file, so the
//! addresses are compared, too.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, NetworkName};
use crate::runtime::cache::{self, Entry};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Whether an attachment lives.
#[derive(Clone, Debug, PartialEq)]
pub enum Life {
    Alive,
    /// It is provably dead, for this reason.
    Stale(String),
    /// It cannot be told, for this reason.
    Unknown(String),
}

/// The namespaces of attachments.
#[derive(Clone, Debug)]
pub struct Identities {
    directory: PathBuf,
}

impl Identities {
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Remembers the namespace of an attachment.
    pub fn write(&self, network: &NetworkName, at: &Attachment, netns: &NetNs) -> Result<()> {
        cache::replace(&self.path(network, at), Identity::of(netns)?.text().as_bytes())
    }

    pub fn remove(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        cache::remove(&self.path(network, at))
    }

    /// Removes the incomplete files that killed processes have left.
    pub fn sweep(&self) {
        file::sweep(&self.directory);
    }

    fn path(&self, network: &NetworkName, at: &Attachment) -> PathBuf {
        self.directory.join(cache::file_name(network, at))
    }

    /// Whether the attachment of an entry lives.
    pub fn life(&self, home: &NetNs, entry: &Entry) -> Life {
        let unknown = |error: Error| Life::Unknown(error.to_string());
        if entry.netns.as_os_str().is_empty() {
            return Life::Unknown("its entry names no namespace".into());
        }
        let path = entry.netns.display();
        let netns = match home.open_if_exists(&entry.netns) {
            Ok(Some(netns)) => netns,
            Ok(None) => return Life::Stale(format!("there is no namespace at {path}")),
            Err(error) => {
                return Life::Unknown(format!("cannot open network namespace {path}: {error}"));
            }
        };
        let known = file::read_text(&self.path(&entry.network, &entry.at)).ok();
        let judge = || -> Result<Life> {
            if netns.is(home)? {
                return Ok(Life::Stale(format!("{path} is the namespace of the host")));
            }
            let (identity, is_same) = (Identity::of(&netns)?, known.as_deref());
            let is_same = is_same.map(|known| identity.compare(known));
            if is_same == Some(Same::No) {
                return Ok(Life::Stale(format!("{path} is another namespace than at its ADD")));
            }
            let missing = format!("its interface is not in {path}");
            Ok(match (Attached::look(entry, &netns)?, is_same) {
                // Addresses may change, by DHCP for one, while the interface stays.
                (Attached::Addresses, _) | (Attached::Interface, Some(Same::Yes)) => Life::Alive,
                (Attached::Nothing, None | Some(Same::Number)) => Life::Stale(missing),
                (Attached::Nothing, _) => Life::Unknown(missing),
                (Attached::Interface, _) => {
                    Life::Unknown(format!("its addresses are not in {path}"))
                }
            })
        };
        judge().unwrap_or_else(unknown)
    }
}

/// The part of an attachment that a namespace has.
enum Attached {
    /// One of its addresses, on any interface, because a container may rename its own. The interface, if it had no address.
    Addresses,
    /// Only an interface of its name.
    Interface,
    Nothing,
}

impl Attached {
    fn look(entry: &Entry, netns: &NetNs) -> Result<Self> {
        let rtnl = netns.rtnl()?;
        let success = entry.success().unwrap_or_default().unwrap_or_default();
        let there = if success.ips.is_empty() { Vec::new() } else { rtnl.all_addresses()? };
        if success.ips.iter().any(|ip| there.contains(&ip.address.addr())) {
            return Ok(Self::Addresses);
        }
        Ok(match rtnl.link(&entry.at.ifname)? {
            Some(_) if success.ips.is_empty() => Self::Addresses,
            Some(_) => Self::Interface,
            None => Self::Nothing,
        })
    }
}

/// The identity of a namespace.
pub(super) struct Identity {
    /// Boot, device and inode.
    number: String,
    /// When the inode was made. A namespace that nothing but a process holds gets a new inode whenever one looks.
    since: String,
}

/// The result of a comparison of two identities.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Same {
    Yes,
    /// It may be another one with the same number: the kernel takes the lowest that is free.
    Number,
    No,
}

impl Identity {
    pub(super) fn of(netns: &NetNs) -> Result<Self> {
        let boot = fs::read_to_string(Path::new(BOOT_ID)).unwrap_or_default();
        let ((device, inode), (s, ns)) = (netns.identity()?, netns.inode_time()?);
        let number = format!("{} {device} {inode}", boot.trim());
        Ok(Self { number, since: format!("{s}.{ns:09}") })
    }

    /// The line of a file.
    pub(super) fn text(&self) -> String {
        format!("{} {}\n", self.number, self.since)
    }

    /// `known` is the line of a file.
    pub(super) fn compare(&self, known: &str) -> Same {
        match known.trim_end().rsplit_once(' ') {
            Some((number, since)) if number == self.number => {
                if since == self.since {
                    Same::Yes
                } else {
                    Same::Number
                }
            }
            _ => Same::No,
        }
    }
}

/// The addresses of a result as text, for people.
pub fn addresses(success: &Success) -> String {
    let addresses: Vec<String> = success.nets().iter().map(ToString::to_string).collect();
    addresses.join(", ")
}
