//! Whether an attachment lives. Everything that removes something without the word of the operator asks here.
//!
//! | this is seen | the answer |
//! |---|---|
//! | the path of the entry leads to a namespace with its address, or, without addresses, its interface | alive |
//! | the path leads to the recorded namespace, and its interface is there | alive |
//! | the path leads to the recorded namespace, and its interface is not there: renamed, moved, in a virtual machine | unknown |
//! | no record, the path leads to a namespace, and its address is not there: no clock tells whether it is another one | unknown |
//! | an earlier boot made the record | gone (a) |
//! | the path leads to another namespace than the recorded one, or to none | gone (b) |
//! | no record, and the path leads to no namespace in any mount namespace | gone (c) |
//!
//! It is *unknown* in place of *gone* as long as one of these holds:
//!
//! - This process has no view of the host, see `HostView`, or some process or namespace could not be read.
//! - A visible namespace is the recorded one, or has an address, the MAC address or the owner of the attachment. The address
//!   and the MAC address do not count in the namespace of another attachment that has the same.
//! - A plugin is called for the container.
//! - Without a record: a process names the container, or the state is that of a host around this PID namespace.
//!
//! A record counts only if it is of the same ADD as the entry: it has the same path, and the namespace that is at the path
//! now is not older than the entry. A later ADD by another runtime made such an entry, with plugins that write no record.

use std::cell::OnceCell;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cni::success::Success;
use crate::error::Result;
use crate::kernel::host_view::{HostView, began, mounts, process_of};
use crate::kernel::identity::{Identity, Same};
use crate::kernel::netns::NetNs;
use crate::names::Mac;
use crate::netlink::rtnl::Rtnl;
use crate::plugin::identity::Record;
use crate::plugin::owner::Owner;
use crate::runtime::Runtime;
use crate::runtime::cache::{self, CacheEntry};
use crate::runtime::signs::{SeenNamespace, Signs, shown};

/// Whether an attachment lives.
#[derive(Clone, Debug, PartialEq)]
pub enum Life {
    Alive,
    /// It has provably ended, for this reason.
    Gone(String),
    /// It cannot be told, for this reason.
    Unknown(String),
}

/// The sight of one process at one time. It reads what it needs, once.
pub struct Evidence<'a> {
    runtime: &'a Runtime,
    home: NetNs,
    view: OnceCell<Result<HostView, String>>,
    signs: OnceCell<Signs>,
    entries: OnceCell<Vec<CacheEntry>>,
}

/// The object at the path of an entry.
enum AtPath {
    /// The attachment.
    It,
    /// No namespace.
    Nothing(String),
    /// A namespace that is not its own.
    Another(String),
    Unclear(String),
}

/// The part of an attachment that a namespace has.
enum Attached {
    /// One of its addresses, on any interface, because a container may rename its own. The interface, if it had no address.
    Addresses,
    /// Only an interface of its name.
    Interface,
    Nothing,
}

impl<'a> Evidence<'a> {
    pub(super) fn new(runtime: &'a Runtime) -> Result<Self> {
        Ok(Self {
            runtime,
            home: NetNs::own()?,
            view: OnceCell::new(),
            signs: OnceCell::new(),
            entries: OnceCell::new(),
        })
    }

    /// The view of the host, or the reason why this process has no view.
    pub fn view(&self) -> Result<&HostView, &str> {
        let look = || {
            HostView::look()
                .map_err(|reason| format!("this process has no view of the host: {reason}"))
        };
        self.view.get_or_init(look).as_ref().map_err(String::as_str)
    }

    pub(super) fn signs(&self) -> &Signs {
        self.signs.get_or_init(|| Signs::read(&self.home))
    }

    #[cfg(feature = "tool")]
    pub(super) fn into_signs(self) -> Signs {
        let home = self.home;
        self.signs.into_inner().unwrap_or_else(|| Signs::read(&home))
    }

    /// Whether the attachment of an entry lives.
    pub fn life(&self, entry: &CacheEntry) -> Life {
        if entry.netns.as_os_str().is_empty() {
            return Life::Unknown("its entry names no namespace".into());
        }
        let record = self.record_of(entry);
        let at_path = self.at_path(entry, record.as_ref());
        let (reason, record) = match at_path {
            Ok(AtPath::It) => return Life::Alive,
            Ok(AtPath::Unclear(reason)) => return Life::Unknown(reason),
            Err(error) => return Life::Unknown(error.to_string()),
            Ok(AtPath::Nothing(reason) | AtPath::Another(reason)) => (reason, record),
        };
        match self.doubt(entry, record.as_ref()) {
            Some(doubt) => Life::Unknown(format!("{reason}, but {doubt}")),
            None if record.is_some_and(|record| record.identity.is_of_earlier_boot()) => {
                Life::Gone("an earlier boot of this host made it".into())
            }
            None => Life::Gone(reason),
        }
    }

    /// Whether a DEL may go into the namespace at the path of an entry, as this process sees it: it is not that of another
    /// attachment.
    pub(super) fn is_own_namespace(&self, entry: &CacheEntry) -> bool {
        let record = self.record_of(entry);
        let judge = || -> Result<bool> {
            let Ok(Some(netns)) = self.home.open_if_exists(&entry.netns) else { return Ok(false) };
            if netns.is(&self.home)? {
                return Ok(self.runtime.settings.netns_override.is_some());
            }
            let rtnl = netns.rtnl()?;
            let same = compared(record.as_ref(), &netns, &rtnl)?;
            Ok(match (Attached::look(entry, &rtnl)?, same) {
                (Attached::Addresses, _) | (_, Some(Same::Yes)) => true,
                (Attached::Interface, same) => same != Some(Same::No),
                (Attached::Nothing, _) => false,
            })
        };
        // DEL tells why it cannot open or read it.
        judge().unwrap_or(true)
    }

    /// The record of the ADD that made an entry.
    fn record_of(&self, entry: &CacheEntry) -> Option<Record> {
        let record = self.runtime.records.read(&entry.network, &entry.at);
        record.filter(|record| record.netns == entry.netns)
    }

    fn at_path(&self, entry: &CacheEntry, record: Option<&Record>) -> Result<AtPath> {
        let path = entry.netns.display();
        let netns = match self.open(&entry.netns) {
            Ok(Some(netns)) => netns,
            Ok(None) => return Ok(AtPath::Nothing(format!("there is no namespace at {path}"))),
            Err(error) => {
                let reason = format!("cannot open network namespace {path}: {error}");
                return Ok(AtPath::Unclear(reason));
            }
        };
        let rtnl = netns.rtnl()?;
        let is_host = netns.is(&self.home)?;
        let found = if is_host { Attached::Nothing } else { Attached::look(entry, &rtnl)? };
        let same = compared(record, &netns, &rtnl)?;
        Ok(match (found, same) {
            // Addresses may change, by DHCP for one, while the interface stays.
            (Attached::Addresses, _) | (Attached::Interface, Some(Same::Yes)) => AtPath::It,
            // Each namespace has it.
            (Attached::Interface, None | Some(Same::Maybe)) if *entry.at.ifname == *"lo" => {
                AtPath::It
            }
            (Attached::Nothing, Some(Same::Yes)) => {
                AtPath::Unclear(format!("its interface is not in {path}"))
            }
            (_, Some(Same::No)) if self.is_newer(entry, &netns)? => {
                AtPath::Another(format!("{path} is another namespace than at its ADD"))
            }
            _ if is_host => AtPath::Unclear(format!("{path} is the namespace of the host")),
            (Attached::Interface, _) => AtPath::Unclear(format!("its addresses are not in {path}")),
            (Attached::Nothing, _) => AtPath::Unclear(format!("its interface is not in {path}")),
        })
    }

    /// The namespace at a path, as process 1 sees it if possible.
    fn open(&self, path: &Path) -> io::Result<Option<NetNs>> {
        match self.view() {
            Ok(view) => view.namespace_at(path),
            Err(_) => self.home.open_if_exists(path),
        }
    }

    /// Whether the namespace at the path of an entry is there since after the entry was written. The inode of a mounted
    /// namespace is as old as the mount.
    fn is_newer(&self, entry: &CacheEntry, netns: &NetNs) -> Result<bool> {
        let Some(written) = self.written(entry) else { return Ok(false) };
        let began = match process_of(&entry.netns) {
            Some(process) => began(process).ok(),
            None => {
                let (_, (s, ns)) = netns.identity_and_time()?;
                let (s, ns) = (u64::try_from(s).ok(), u32::try_from(ns).ok());
                s.zip(ns).map(|(s, ns)| UNIX_EPOCH + Duration::new(s, ns))
            }
        };
        Ok(began.is_some_and(|began| began > written))
    }

    fn written(&self, entry: &CacheEntry) -> Option<SystemTime> {
        let path = self.runtime.cache.path(&entry.network, &entry.at);
        fs::metadata(path).and_then(|file| file.modified()).ok()
    }

    /// The reason why an attachment may live that is not at its path.
    fn doubt(&self, entry: &CacheEntry, record: Option<&Record>) -> Option<String> {
        if let Err(reason) = self.view() {
            return Some(reason.into());
        }
        if record.is_none()
            && let Some(doubt) = self.doubt_of_guest(Path::new(cache::DIRECTORY))
        {
            return Some(doubt);
        }
        let signs = self.signs();
        if let Some(hidden) = signs.hidden() {
            return Some(hidden.into());
        }
        if let Some(process) = signs.call(&entry.at.container_id) {
            return Some(format!("process {process} is a plugin that is called for its container"));
        }
        match record {
            Some(record) => {
                if let Some(held) = self.recorded(record) {
                    return Some(format!("its namespace is at {}", shown(held).display()));
                }
            }
            None => {
                let mut mounts = signs.visible.mounts.iter();
                if let Some((_, path)) = mounts.find(|(path, _)| *path == entry.netns) {
                    return Some(format!("a namespace is at {}", path.display()));
                }
                if signs.name(&entry.at.container_id) {
                    return Some("a process names its container".into());
                }
            }
        }
        self.sign(entry, record.is_some())
    }

    /// Whether the namespace of a record has provably ended.
    pub(super) fn has_ended(&self, record: &Record) -> bool {
        self.view().is_ok()
            && (record.identity.is_of_earlier_boot()
                || (self.signs().hidden().is_none() && self.recorded(record).is_none()))
    }

    /// Where the recorded namespace is, or may be.
    fn recorded(&self, record: &Record) -> Option<&Path> {
        let mut all = self.signs().visible.namespaces.iter();
        let held = all.find(|held| held.inode == record.identity.inode)?;
        for path in &held.paths {
            let same = self
                .home
                .open(path)
                .and_then(|netns| compared(Some(record), &netns, &netns.rtnl()?));
            if same == Ok(Some(Same::No)) {
                return None;
            }
        }
        held.paths.first().map(PathBuf::as_path)
    }

    /// The sign of an attachment in a visible namespace. The end of a namespace needs some time to remove the links that it
    /// has on the host, so those count only without a record.
    fn sign(&self, entry: &CacheEntry, has_record: bool) -> Option<String> {
        let signs = self.signs();
        let owner = Owner::new(&entry.network, &entry.at);
        let mut of_owner = signs.with_owner(owner.as_str());
        if let Some(namespace) = of_owner.find(|namespace| !(namespace.is_host && has_record)) {
            return Some(format!("a link in {} names its owner", namespace.path.display()));
        }
        let success = entry.success().unwrap_or_default().unwrap_or_default();
        for address in addresses_of(&success) {
            let has = |other: &Success| addresses_of(other).any(|found| found == address);
            let mut namespaces = signs.with_address(address);
            if let Some(namespace) =
                namespaces.find(|namespace| !self.is_of_another(entry, namespace, &has))
            {
                return Some(format!("its address {address} is in {}", namespace.path.display()));
            }
        }
        for mac in macs_of(&success) {
            let has = |other: &Success| macs_of(other).any(|found| found == mac);
            let mut namespaces = signs.with_mac(mac);
            if let Some(namespace) =
                namespaces.find(|namespace| !self.is_of_another(entry, namespace, &has))
            {
                return Some(format!("its MAC address {mac} is in {}", namespace.path.display()));
            }
        }
        None
    }

    /// Whether a namespace is that of another attachment, with a result that has the same.
    fn is_of_another(
        &self,
        entry: &CacheEntry,
        namespace: &SeenNamespace,
        has: &dyn Fn(&Success) -> bool,
    ) -> bool {
        let all = || self.runtime.cache.all().map(|found| found.entries).unwrap_or_default();
        self.entries.get_or_init(all).iter().any(|other| {
            let is_it = other.network == entry.network && other.at == entry.at;
            let is_there = || {
                let netns = self.open(&other.netns).ok().flatten();
                netns.is_some_and(|netns| {
                    netns.identity().is_ok_and(|(_, inode)| inode == namespace.inode)
                })
            };
            !is_it
                && other.success().is_ok_and(|success| success.is_some_and(|success| has(&success)))
                && is_there()
        })
    }

    /// The reason why the state in a directory may be that of a host around this PID namespace: the directory is mounted into a
    /// container, such as a pod without `hostPID`, or no plugin has worked with it in this PID namespace only.
    pub(super) fn doubt_of_guest(&self, directory: &Path) -> Option<String> {
        match self.view() {
            Err(reason) => Some(reason.into()),
            Ok(view) if view.nested.is_none() => None,
            Ok(_) if self.runtime.records.is_only_one() && !is_mounted_in(directory) => None,
            Ok(_) => Some("this process does not see the processes of the host".into()),
        }
    }
}

impl Attached {
    fn look(entry: &CacheEntry, rtnl: &Rtnl) -> Result<Self> {
        let success = entry.success().unwrap_or_default().unwrap_or_default();
        let mut addresses = addresses_of(&success).peekable();
        let has_address = addresses.peek().is_some();
        let there = if has_address { rtnl.all_addresses()? } else { Vec::new() };
        if addresses.any(|address| there.contains(&address)) {
            return Ok(Self::Addresses);
        }
        // Each namespace has lo.
        if *entry.at.ifname == *"lo" {
            return Ok(Self::Interface);
        }
        Ok(match rtnl.link(&entry.at.ifname)? {
            Some(_) if has_address => Self::Interface,
            Some(_) => Self::Addresses,
            None => Self::Nothing,
        })
    }
}

/// The record of an attachment and a namespace. `None` without a record.
fn compared(record: Option<&Record>, netns: &NetNs, rtnl: &Rtnl) -> Result<Option<Same>> {
    let Some(record) = record else { return Ok(None) };
    Ok(Some(record.identity.compare(&Identity::of(netns, rtnl.netns_cookie())?)))
}

/// The addresses of a result that only one namespace has.
fn addresses_of(success: &Success) -> impl Iterator<Item = IpAddr> {
    success.ips.iter().map(|ip| ip.address.addr()).filter(|address| !address.is_loopback())
}

/// The MAC addresses of the interfaces in the container.
fn macs_of(success: &Success) -> impl Iterator<Item = Mac> {
    let in_container = success.interfaces.iter().filter(|interface| !interface.sandbox.is_empty());
    in_container
        .filter_map(|interface| interface.mac.parse().ok())
        .filter(|mac| *mac != Mac([0; 6]))
}

/// Whether a directory of the state is mounted here from another root. A volume that a container has for all of /var is its
/// own; a directory of the host is mounted at its own path.
fn is_mounted_in(directory: &Path) -> bool {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts(&text).iter().any(|(root, path)| {
        let root = root.trim_start_matches('/');
        path.starts_with("/var/lib/cni")
            || path == directory
            || (!root.is_empty() && directory.starts_with(path) && path.ends_with(root))
    })
}

/// The addresses of a result as text, for people.
pub fn addresses(success: &Success) -> String {
    let addresses: Vec<String> = success.nets().iter().map(ToString::to_string).collect();
    addresses.join(", ")
}
