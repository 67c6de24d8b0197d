//! The operations of a runtime on one attachment: ADD, CHECK and DEL, with the cache and the record.
//!
//! An ADD or DEL notes in the record what it was asked for, before it calls the first plugin; an ADD also notes when its caller has
//! the result, and a DEL removes the record last. So a record tells which operation was interrupted. The next ADD or DEL of the
//! attachment then deletes the attachment. So does GC, if the container has ended or the operation is a DEL.
//!
//! Source: CNI specification 1.1.0, section 3, "Lifecycle & Ordering".

use std::path::Path;

use crate::attachments::record::{
    AllRecords, Begun, Held, Hold, Made, Maker, Operation, Record, Unreadable,
};
use crate::cni::json::Json;
use crate::cni::request::Verb;
use crate::cni::success::Success;
use crate::cni::version::{self, Version};
use crate::error::{Code, Error, Result};
use crate::kernel::file;
use crate::kernel::flock::Mode;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::{self, warn};
use crate::names::{Attachment, ContainerId, IfName, NetworkName};
use crate::netlink::rtnl::Rtnl;
use crate::runtime::Runtime;
use crate::runtime::attachments::{self, Unrecorded};
use crate::runtime::cache::{CacheEntry, Damaged, Entries};
use crate::runtime::chain::{Chain, FailedAdd};
use crate::runtime::conf::Network;
use crate::runtime::lock::Lock;

/// The network of an operation.
#[derive(Clone)]
pub enum Choice {
    /// The configuration of a file that the caller names. It overrides the one in the cache.
    Configuration(Network),
    /// The name of the network: use its configuration in the cache, else in the directory.
    Named(NetworkName),
}

/// An attachment to make, and the parameters of its plugins.
pub struct NewAttachment {
    pub network: Network,
    pub at: Attachment,
    /// CNI_ARGS.
    pub args: String,
    /// The capability arguments: an object, or `Null`.
    pub capability_args: Json,
}

/// The attachment of a DEL or CHECK, and the parameters of its plugins.
pub struct Target<'a> {
    pub at: &'a Attachment,
    /// CNI_NETNS. `None`: the value in the cache.
    pub netns: Option<&'a Path>,
    /// CNI_ARGS. Empty: the value in the cache.
    pub args: &'a str,
    /// The capability arguments: an object. `Null`: the value in the cache.
    pub capability_args: &'a Json,
}

/// An ADD whose plugins have succeeded, and which still holds its locks. The caller must call `keep` or `undo_after`. If the
/// process ends before, the ADD counts as interrupted.
#[must_use]
pub struct Added<'a> {
    /// The result of the last plugin, as the version of the network has it.
    pub success: Success,
    runtime: &'a Runtime,
    network: &'a Network,
    entry: CacheEntry,
    begun: Begun,
    _locks: [Lock; 2],
}

/// The record of an attachment that is deleted.
pub(super) enum DelRecord {
    /// Locked until the DEL has removed it.
    Held(Box<Held>),
    /// Not locked. It can be that of a living successor. `None` without a record, and for one that cannot be read.
    Read(Option<Box<Record>>),
}

impl DelRecord {
    pub(super) fn get(&self) -> Option<&Record> {
        match self {
            Self::Held(held) => Some(&held.record),
            Self::Read(record) => record.as_deref(),
        }
    }
}

impl Added<'_> {
    /// The result in the format of the version of the network.
    pub fn result(&self) -> &Json {
        &self.entry.result
    }

    /// Completes the ADD after the caller has the result: notes that in the record. If that fails, deletes the attachment, because
    /// the ADD would count as interrupted.
    pub fn keep(mut self) -> Result<()> {
        self.begun.note_added().map_err(|error| self.undo_after(error))
    }

    /// Deletes the attachment after the caller could not use its result. Returns `error`.
    pub fn undo_after(self, error: Error) -> Error {
        error.and(self.runtime.undo_add(self.begun, &self.entry, self.network))
    }
}

impl<'a> Target<'a> {
    /// An attachment with the parameters in the cache.
    pub fn cached(at: &'a Attachment, netns: Option<&'a Path>) -> Self {
        Self { at, netns, args: "", capability_args: &Json::Null }
    }
}

impl Choice {
    pub fn name(&self) -> &NetworkName {
        match self {
            Self::Configuration(network) => &network.name,
            Self::Named(name) => name,
        }
    }
}

/// The attachments of a container.
#[derive(Default)]
pub struct AttachmentsOf {
    pub attached: Vec<(NetworkName, Attachment)>,
    /// An error for each file that can be of an attachment of the container and cannot be read.
    pub unreadable: Vec<Error>,
}

impl Runtime {
    /// Attaches a container to a network, all or nothing. Fails if an attachment of this name may be alive. First deletes the
    /// remains of one that has ended.
    pub fn add<'a>(&'a self, new: &'a NewAttachment, path: &Path) -> Result<Added<'a>> {
        let NewAttachment { network, at, args, capability_args } = new;
        let locks = self.lock(&network.name, &at.container_id)?;
        let home = NetNs::own()?;
        let netns = home.open(path)?;
        self.refuse_host_namespace(&home, &netns)?;
        let entry = CacheEntry {
            config: network.bytes.clone(),
            netns: path.into(),
            args: args.clone(),
            capability_args: capability_args.clone(),
            ..CacheEntry::new(&network.name, at)
        };
        let chain = self.chain(&entry, network, path, Verb::Add(at.clone()));
        let plugins = chain.require_plugins()?;
        self.delete_stale_of(&netns, &entry, network)?;
        let rtnl = netns.rtnl()?;
        let was_there = rtnl.link(&entry.at.ifname)?.is_some();
        let mut begun = self.begin(&entry, plugins, &netns, &rtnl)?;
        let undo = |error: Error, begun, entry: &CacheEntry| {
            let undone = self.undo_add(begun, entry, network);
            error.and(undone.map_err(|undo| undo.context("cannot undo the failed ADD")))
        };
        let success = match chain.add() {
            Ok(success) => success,
            // The interface existed before this ADD, so it belongs to another attachment. A DEL would remove it.
            Err(FailedAdd { error, changed_nothing: true }) if was_there => {
                return Err(error.and(begun.undo()));
            }
            Err(FailedAdd { error, .. }) => return Err(undo(error, begun, &entry)),
        };
        match self.complete(&mut begun, &success, &entry, network.version) {
            Ok(entry) => Ok(Added { success, runtime: self, network, entry, begun, _locks: locks }),
            Err(error) => Err(undo(error, begun, &entry)),
        }
    }

    /// Writes the record, with the identity of the namespace and the request.
    fn begin(
        &self,
        entry: &CacheEntry,
        plugins: Vec<String>,
        netns: &NetNs,
        rtnl: &Rtnl,
    ) -> Result<Begun> {
        let (sockets, by) = ((&Rtnl::open()?, rtnl), (Maker::Cnibox, plugins));
        let record = Record::of(&entry.network, &entry.at, netns, sockets, by)?;
        self.records.begin_of_runtime(&Record {
            starter: self.starter,
            request: entry.request(&entry.config),
            ..record
        })
    }

    /// Writes the result of an ADD into the record and into the cache. Returns the cache entry.
    fn complete(
        &self,
        begun: &mut Begun,
        success: &Success,
        entry: &CacheEntry,
        version: Version,
    ) -> Result<CacheEntry> {
        let result = version::print_result(success, version)?;
        let entry = CacheEntry { result, ..entry.clone() };
        begun.note_made(&Made::of(success))?;
        self.cache.write(&entry)?;
        Ok(entry)
    }

    /// Locks the record of an attachment until its DEL has removed it. Fails with code 11 if another process has the lock.
    pub(super) fn hold_for_del(&self, network: &NetworkName, at: &Attachment) -> Result<DelRecord> {
        match self.records.hold_for_del(network, at) {
            Ok(Hold::Held(held)) => Ok(DelRecord::Held(held)),
            Ok(Hold::Busy(error)) => Err(error),
            Ok(Hold::Missing) | Err(_) => {
                let doing = format_args!("cannot lock the record of {}", at.title(network));
                sys::fail_if_interrupted().map_err(sys::failed(doing))?;
                Ok(self.read_for_del(network, at))
            }
        }
    }

    /// An unreadable record does not prevent the DEL that a runtime or the operator orders.
    pub(super) fn read_for_del(&self, network: &NetworkName, at: &Attachment) -> DelRecord {
        let record = self.records.read(network, at).unwrap_or_else(|error| {
            warn(format_args!("{error}"));
            None
        });
        DelRecord::Read(record.map(Box::new))
    }

    /// Runs DEL of the whole list after a failed ADD, whichever plugin failed.
    fn undo_add(&self, mut begun: Begun, entry: &CacheEntry, network: &Network) -> Result<()> {
        sys::forget_interrupt();
        // The DEL of an executed plugin does not wait for the lock of a record with this note.
        if let Err(error) = begun.note_deleting() {
            warn(format_args!("{error}"));
        }
        let record = self.read_for_del(&entry.network, &entry.at);
        self.delete(entry, network, &entry.netns, record)
    }

    /// Detaches a container from a network. Idempotent: succeeds if there is no attachment.
    pub fn del(&self, choice: &Choice, target: &Target<'_>) -> Result<()> {
        let (name, at) = (choice.name(), target.at);
        if self.has_entry(name, at) {
            return self.del_listed(choice, target);
        }
        let _locks = self.lock(name, &at.container_id)?;
        let held = self.hold_for_del(name, at)?;
        self.del_known(choice, target, self.entry_of(name, at), held)
    }

    /// Detaches an attachment that was listed a moment ago. Succeeds if another process has deleted it since: then nothing has its
    /// configuration any more, and a network of podman has no file.
    pub fn del_listed(&self, choice: &Choice, target: &Target<'_>) -> Result<()> {
        let (name, at) = (choice.name(), target.at);
        let _locks = self.lock(name, &at.container_id)?;
        let held = self.hold_for_del(name, at);
        match self.entry_of(name, at) {
            None if !self.has_entry(name, at) => Ok(()),
            known => self.del_known(choice, target, known, held?),
        }
    }

    /// `known` is the entry of the attachment.
    fn del_known(
        &self,
        choice: &Choice,
        target: &Target<'_>,
        known: Option<CacheEntry>,
        record: DelRecord,
    ) -> Result<()> {
        if record.get().is_some_and(|record| record.operation().is_some()) {
            // The records are not needed here.
            let _ = self.sweep_files();
        }
        let network = self.network(choice, known.as_ref())?;
        if let (Some(given), Some(record)) = (target.netns, record.get())
            && self.is_of_successor(record, given)?
        {
            let (title, given) = (target.at.title(choice.name()), given.display());
            warn(format_args!(
                "touched nothing of {title}: it lives, and {given} is not its network namespace"
            ));
            return Ok(());
        }
        let netns = match (&known, target.netns) {
            (None, given) => given.unwrap_or_else(|| Path::new("")).into(),
            (Some(known), None) => self.netns_of_del(known, Unrecorded::HasInterface),
            (Some(known), Some(given)) => {
                let at_add = self.netns_of_del(known, Unrecorded::IsAtPath);
                if at_add.as_os_str().is_empty() { at_add } else { given.into() }
            }
        };
        self.delete(&merged_entry(&network, target, known), &network, &netns, record)
    }

    /// Fails if the namespace is the host's, unless CNI_NETNS_OVERRIDE is set. An executed plugin could change the host before
    /// it detects this.
    pub(super) fn refuse_host_namespace(&self, home: &NetNs, netns: &NetNs) -> Result<()> {
        if self.settings.netns_override || !netns.is(home)? {
            return Ok(());
        }
        let msg = format!("cannot use {}: it is the namespace of the host", netns.path().display());
        Err(Error::new(Code::SAME_NETNS, msg))
    }

    /// The attachments of a container, by the cache and by the requests in records.
    pub fn attachments_of(
        &self,
        container_id: &ContainerId,
        choice: Option<&Choice>,
        ifname: Option<&IfName>,
    ) -> Result<AttachmentsOf> {
        let Entries { entries: cached, damaged } = self.cache.of_container(container_id)?;
        let mut of = AttachmentsOf::default();
        let AllRecords { records, unreadable } = self.records.of_container(container_id)?;
        let requests = records.iter().filter_map(CacheEntry::of_record);
        for entry in cached.into_iter().chain(requests) {
            let is_wanted = choice.is_none_or(|choice| *choice.name() == entry.network)
                && ifname.is_none_or(|ifname| entry.at.ifname == *ifname);
            let attached = (entry.network, entry.at);
            if is_wanted && !of.attached.contains(&attached) {
                of.attached.push(attached);
            }
        }
        let is_of_other = |record: &Unreadable| {
            record.named().is_none_or(|attached| !of.attached.contains(&attached))
        };
        let others = unreadable.into_iter().filter(is_of_other).map(|record| record.error);
        // A damaged entry of an attachment whose record has the request is not needed.
        let is_needed =
            |file: &Damaged| !of.attached.iter().any(|(network, at)| file.is_of(network, at));
        let entries = damaged.into_iter().filter(is_needed).map(|file| file.error);
        of.unreadable = entries.chain(others).collect();
        Ok(of)
    }

    /// Runs CHECK of each plugin. Fails if an object differs from what ADD made.
    pub fn check(&self, choice: &Choice, target: &Target<'_>) -> Result<()> {
        let _locks = self.lock(choice.name(), &target.at.container_id)?;
        let known = self.cache.read(choice.name(), target.at)?.ok_or_else(|| {
            let title = target.at.title(choice.name());
            let msg = format!("cannot check {title}: it is not attached");
            Error::new(Code::UNKNOWN_CONTAINER, msg).with_details("the cache has no entry for it")
        })?;
        let network = self.network(choice, Some(&known))?;
        if network.version < Version::V0_4_0 {
            let msg = format!(
                "configuration version {:?} does not support the CHECK command",
                network.version.text()
            );
            return Err(Error::new(Code::INCOMPATIBLE_VERSION, msg));
        }
        if network.disable_check {
            return Ok(());
        }
        let entry = merged_entry(&network, target, Some(known));
        let netns = target.netns.unwrap_or(&entry.netns);
        let (record, verb) = (self.record_of(&entry)?, Verb::Check(entry.at.clone()));
        Chain { record: record.as_ref(), ..self.chain(&entry, &network, netns, verb) }
            .check(&entry.result)
    }

    /// Runs CHECK of an attachment, with the parameters of its ADD. Returns false if the version of its configuration has no
    /// CHECK, or if `disableCheck` is set.
    pub fn check_entry(&self, entry: &CacheEntry) -> Result<bool> {
        let network = entry.network_of_add()?;
        if network.disable_check || network.version < Version::V0_4_0 {
            return Ok(false);
        }
        let choice = Choice::Named(entry.network.clone());
        self.check(&choice, &Target::cached(&entry.at, None)).map(|()| true)
    }

    /// Runs STATUS of each plugin. Fails if an ADD would fail. Returns false, and runs no plugin, if the version of the network has
    /// no STATUS.
    pub fn status(&self, network: &Network) -> Result<bool> {
        if network.version < Version::V1_1_0 {
            return Ok(false);
        }
        sys::catch_interrupts();
        Chain::without_parameters(&self.settings, network, Verb::Status).status().map(|()| true)
    }

    /// Runs DEL of the list. Removes the cache entry and the record only if all plugins succeeded. The configuration of `entry` is the
    /// known one, and empty if none is known.
    pub(super) fn delete(
        &self,
        entry: &CacheEntry,
        network: &Network,
        netns: &Path,
        mut found: DelRecord,
    ) -> Result<()> {
        // A list that changed can lack a plugin, and a foreign plugin of the same name removes nothing that cnibox made.
        let is_of_add = entry.config == network.bytes && entry.has_list_of_add();
        let is_its_own = |record: &&Record| attachments::is_record_of(record, entry, &self.cache);
        let record = found.get().filter(is_its_own).cloned();
        let verb = Verb::Del(entry.at.clone());
        let chain = Chain { record: record.as_ref(), ..self.chain(entry, network, netns, verb) };
        let chain = Chain { netns: self.netns_to_clean(&chain, entry)?, ..chain };
        if let DelRecord::Held(held) = &mut found
            && let Err(error) = held.note_deleting(|| entry.request(&network.bytes))
        {
            warn(format_args!("{error}"));
            // The DEL of an executed plugin would wait for the lock.
            found = DelRecord::Read(None);
        }
        let removes_all = is_of_add && chain.is_ours();
        chain.del(&entry.result)?;
        if !removes_all {
            self.remove_owned(&entry.network, std::slice::from_ref(&entry.at))?;
        }
        let removed = self.remove_files(&entry.network, &entry.at);
        drop(found);
        removed
    }

    /// Removes the cache entry, and last the record. After a crash in between, the record makes the next call repeat the DEL.
    pub(super) fn remove_files(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        // A file that belongs to another attachment stays. A damaged file is removed.
        if self.cache.holder(network, at)?.is_none() {
            self.cache.remove(network, at)?;
        }
        self.records.remove(network, at)
    }

    /// The cache entry of an attachment, or else the request in its record. An unreadable record has none.
    pub(super) fn entry_of(&self, network: &NetworkName, at: &Attachment) -> Option<CacheEntry> {
        let cached = self.cache.read(network, at).unwrap_or_else(|error| {
            warn(format_args!("{error}; going on without it"));
            None
        });
        let record = || self.records.read(network, at).ok().flatten();
        cached.or_else(|| CacheEntry::of_record(&record()?))
    }

    /// The operation of this runtime, on the attachment of a record, that was interrupted, if no process has the lock of the
    /// container. `None` if another runtime has attached the interface after the interruption: then the record is that of the later
    /// ADD, or the cache entry is. Fails if the cache entry cannot be read.
    pub(super) fn interrupted(&self, record: &Record) -> Result<Option<Operation>> {
        let Some(operation) = record.operation() else { return Ok(None) };
        // An ADD deletes an earlier entry, and notes what it made before it writes its own.
        let is_of_record = |entry: &CacheEntry| {
            !record.made.is_empty() && attachments::is_record_of(record, entry, &self.cache)
        };
        let cached = self.cache.read(&record.network, &record.at)?;
        Ok(cached.as_ref().is_none_or(is_of_record).then_some(operation))
    }

    /// Whether the cache or a record has a request for an attachment. A file that cannot be read counts.
    pub fn has_entry(&self, network: &NetworkName, at: &Attachment) -> bool {
        let is_absent = self.cache.read(network, at) == Ok(None)
            && self.records.read(network, at).is_ok_and(|record| {
                record.is_none_or(|record| CacheEntry::of_record(&record).is_none())
            });
        !is_absent
    }

    /// Whether there is anything of an attachment: an entry, or a record. A file that cannot be read counts.
    pub fn is_known(&self, network: &NetworkName, at: &Attachment) -> bool {
        self.cache.read(network, at) != Ok(None) || self.records.read(network, at) != Ok(None)
    }

    /// Removes the temporary files of killed operations. Returns the records.
    pub(super) fn sweep_files(&self) -> Result<AllRecords> {
        self.cache.sweep();
        file::sweep(&self.state);
        self.records.sweep()
    }

    /// The configuration for a DEL or CHECK.
    fn network(&self, choice: &Choice, known: Option<&CacheEntry>) -> Result<Network> {
        let name = match choice {
            Choice::Configuration(network) => return Ok(network.clone()),
            Choice::Named(name) => name,
        };
        match known.filter(|known| !known.config.is_empty()).map(CacheEntry::network_of_add) {
            Some(Ok(network)) => return Ok(network),
            Some(Err(error)) => warn(format_args!("{error}")),
            None => {}
        }
        self.configured_network(name)
    }

    /// The network of this name in the directory of configurations.
    pub(super) fn configured_network(&self, name: &NetworkName) -> Result<Network> {
        Network::find(name, &self.configurations, &mut |error| warn(format_args!("{error}")))
    }

    pub(super) fn chain<'a>(
        &'a self,
        entry: &'a CacheEntry,
        network: &'a Network,
        netns: &'a Path,
        verb: Verb,
    ) -> Chain<'a> {
        Chain {
            netns,
            args: &entry.args,
            capability_args: &entry.capability_args,
            ..Chain::without_parameters(&self.settings, network, verb)
        }
    }

    /// Locks a network, shared, and a container. From then on, an interrupt stops the chain between two plugins, and a failed
    /// write of the result is an error instead of a signal.
    pub(super) fn lock(&self, network: &NetworkName, container: &ContainerId) -> Result<[Lock; 2]> {
        let network = Lock::network(&self.locks, network, Mode::Shared)?;
        let container = Lock::container(&self.locks, container)?;
        sys::catch_interrupts();
        sys::survive_failed_writes();
        Ok([network, container])
    }

    /// Locks a network, shared, and a container without a wait. `None` while another process holds one of them.
    pub(super) fn lock_if_free(
        &self,
        network: &NetworkName,
        container: &ContainerId,
    ) -> Result<Option<[Lock; 2]>> {
        let Some(network) = Lock::network_without_gc(&self.locks, network)? else {
            return Ok(None);
        };
        let container = match Lock::container_if_free(&self.locks, container) {
            Err(error) if error.code == Code::TRY_AGAIN_LATER => return Ok(None),
            container => container?,
        };
        sys::survive_failed_writes();
        Ok(Some([network, container]))
    }
}

/// The known entry of an attachment, with CNI_ARGS and the capability arguments of the call if these are given. Without a known
/// entry: a new entry with the values of the call, without a configuration.
fn merged_entry(network: &Network, target: &Target<'_>, known: Option<CacheEntry>) -> CacheEntry {
    let mut entry = known.unwrap_or_else(|| CacheEntry {
        netns: target.netns.unwrap_or_else(|| Path::new("")).into(),
        ..CacheEntry::new(&network.name, target.at)
    });
    if !target.args.is_empty() {
        entry.args = target.args.into();
    }
    if *target.capability_args != Json::Null {
        entry.capability_args.clone_from(target.capability_args);
    }
    entry
}
