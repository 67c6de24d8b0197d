//! The reservations of `host-local` on a host, and whether their owners live.
//!
//! A reservation is **alive** if one of these holds:
//!
//! - its address is on a link, or its owner is the alias of a link, in a namespace that this process can see;
//! - the cache has a living attachment of its owner.
//!
//! It is **gone** only with a proof. An ADD reserves the address first, puts it on a link milliseconds or seconds later, and
//! appears in the cache last. So the absence of signs is no proof while an ADD can be in progress. A program can also use an
//! address that is on no link: a virtual machine, or a card of DPDK. These are the proofs:
//!
//! 1. The cache has an attachment of its owner with its address, that entry is not older than the reservation, and `evidence`
//!    finds it gone. A later ADD of the same container would have made a newer reservation.
//! 2. An earlier boot of this host made it. The index tells that by the boot id and without a clock.
//! 3. The cache has no attachment of its owner, the reservation is older than `ADD_MAX`, and no command line and no control
//!    group of a process names the container. This needs the right to read all processes.
//!
//! No proof counts in these cases; the reservation is **unknown** then:
//!
//! - A process is a plugin that is called for the container: an ADD, or the DEL that will release the address.
//! - A pending record of cnibox has the owner, or a record with its container id in the name is damaged.
//! - `"staleOnBoot": "keep"` says that the reservation can be another host's. Only proof 1 counts.
//! - This process has no view of the host, or the data directory is mounted into a container that does not see the host.
//!
//! The signs are read in the order of an ADD: reservations, pending records, processes, namespaces, cache. So an ADD that
//! makes progress meanwhile leaves a sign. A reservation that is gone cannot live again: a new ADD writes a new file, and the
//! release, which holds the lock of the store, compares the file with that of the list.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::cni::args::Args;
use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::ipam::range::Range;
use crate::ipam::store::Store;
use crate::ipam::store::listed::{self, Holder, Reservation};
use crate::kernel::sys::warn;
use crate::names::{Attachment, IfName, NetworkName};
use crate::plugin::identity::Record;
use crate::plugin::owner::Owner;
use crate::plugins::flannel;
use crate::plugins::host_local::{self, DATA_DIR};
use crate::runtime::Runtime;
use crate::runtime::attached::with_life;
use crate::runtime::cache::{self, CacheEntry, Entries};
use crate::runtime::conf::{self, Network};
use crate::runtime::evidence::{Evidence, Life};
use crate::runtime::signs::Signs;

/// An ADD without a process of its own, or between two plugins, takes less.
const ADD_MAX: Duration = Duration::from_secs(60);

/// The addresses of a network in one data directory.
#[derive(Debug)]
pub struct Pool {
    pub network: NetworkName,
    pub data_dir: PathBuf,
    /// A file of NETCONFPATH has the network.
    pub is_configured: bool,
    pub ranges: Vec<Use>,
    /// In the order of their addresses.
    pub reservations: Vec<OwnedReservation>,
    is_of_several_hosts: bool,
}

/// A range with the number of its addresses.
#[derive(Debug)]
pub struct Use {
    pub range: Range,
    pub used: u64,
    /// The addresses that can still be allocated.
    pub free: u64,
}

/// A reservation with what is known of its owner.
#[derive(Debug)]
pub struct OwnedReservation {
    pub reservation: Reservation,
    /// Namespace and name in the CNI_ARGS of the attachment.
    pub pod: Option<(String, String)>,
    /// Since the file was written. `None` if its time is in the future.
    pub age: Option<Duration>,
    pub state: OwnerState,
}

/// Whether the owner of a reservation lives, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnerState {
    Alive(String),
    /// Provably dead.
    Gone(String),
    Unknown(String),
    /// The operator keeps the address out of use.
    Reserved,
}

/// All reservations and attachments of a host.
#[derive(Debug)]
pub struct Survey {
    pub pools: Vec<Pool>,
    pub attachments: Vec<(CacheEntry, Life)>,
    pub(super) pending: Vec<CacheEntry>,
    /// The records of namespaces that have not provably ended.
    pub(super) records: Vec<Record>,
    /// Why this process may not see the containers of the host.
    pub(super) doubt: Option<String>,
    pub(super) signs: Signs,
}

impl Runtime {
    /// Reads everything, and changes nothing. A file that cannot be used is a line on stderr.
    pub fn survey(&self) -> Result<Survey> {
        let evidence = self.evidence()?;
        let mut pools = self.pools()?;
        for pool in &mut pools {
            pool.read()?;
        }
        let Entries { entries: pending, mut damaged } = self.pending.all()?;
        let mut records = self.records.all();
        evidence.signs();
        records.retain(|record| !evidence.has_ended(record));
        let cached = self.cache.all()?;
        damaged.extend(cached.damaged);
        damaged.iter().for_each(warn_of);
        let attachments = with_life(&evidence, cached.entries);
        for (entry, _) in &attachments {
            add_given(entry, &mut pools);
        }
        let sources =
            Sources { runtime: self, evidence: &evidence, pending, records, attachments, damaged };
        for pool in &mut pools {
            pool.judge(&sources);
            pool.count();
        }
        let Sources { attachments, pending, records, .. } = sources;
        let doubt = evidence.doubt_of_guest(Path::new(DATA_DIR));
        Ok(Survey { pools, attachments, pending, records, doubt, signs: evidence.into_signs() })
    }

    /// The configured networks with `host-local`, and the data directories of other networks.
    fn pools(&self) -> Result<Vec<Pool>> {
        let mut pools: Vec<Pool> = Vec::new();
        let mut names: Vec<NetworkName> = Vec::new();
        for (_, network) in Network::all(&self.configurations)? {
            match network {
                Ok(network) if !names.contains(&network.name) => {
                    add_configured(&network, &mut pools);
                    names.push(network.name);
                }
                Ok(_) => {}
                Err(error) => warn_of(&error),
            }
        }
        let mut directories = vec![PathBuf::from(DATA_DIR)];
        for pool in &pools {
            if !directories.contains(&pool.data_dir) {
                directories.push(pool.data_dir.clone());
            }
        }
        for data_dir in directories {
            if !is_there(&data_dir)? {
                continue;
            }
            for entry in fs::read_dir(&data_dir).into_iter().flatten().flatten() {
                if let Ok(name) = entry.file_name().into_string()
                    && let Ok(network) = NetworkName::new(name)
                    && entry.path().is_dir()
                {
                    pool_of(&mut pools, &network, &data_dir);
                }
            }
        }
        Ok(pools)
    }

    /// Releases a reservation under the lock of its store. False if its file is gone or has changed since it was listed.
    pub fn release(&self, pool: &Pool, reservation: &Reservation) -> Result<bool> {
        match Store::open_if_exists(&pool.data_dir, &pool.network, &self.settings.turns)? {
            Some(store) => store.locked(|locked| locked.release_listed(reservation)),
            None => Ok(false),
        }
    }

    /// Keeps an address out of use. False if it is taken.
    pub fn reserve(&self, pool: &Pool, address: IpAddr) -> Result<bool> {
        let store = Store::open(&pool.data_dir, &pool.network, &self.settings.turns)?;
        store.locked(|locked| locked.reserve_for_operator(address))
    }
}

/// Fails if a directory above cannot be searched.
fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().map_err(|error| {
        let msg = format!("cannot read directory {}", path.display());
        Error::internal(msg).with_details(error.to_string())
    })
}

fn warn_of(error: &Error) {
    warn(format_args!("warning: {error}"));
}

fn add_configured(network: &Network, pools: &mut Vec<Pool>) {
    for plugin in &network.plugins {
        let of_delegate =
            if conf::kind(plugin) == "flannel" { flannel::host_local(plugin) } else { None };
        let plugin = of_delegate.as_ref().unwrap_or(plugin);
        if has_host_local(plugin)
            && let Err(error) = add_plugin(network, plugin, pools)
        {
            warn_of(&error.context(format!("network {}", network.name)));
        }
    }
}

fn has_host_local(plugin: &Json) -> bool {
    conf::kind(plugin.get("ipam").unwrap_or(&Json::Null)) == "host-local"
}

/// Adds the ranges that a runtime gave for an attachment to the pool of its network.
fn add_given(entry: &CacheEntry, pools: &mut [Pool]) {
    let Some(ranges) = entry.capability_args.get("ipRanges") else { return };
    let Ok(network) = entry.network_of_add() else { return };
    for plugin in &network.plugins {
        let Json::Object(entries) = plugin else { continue };
        if !has_host_local(plugin) || !conf::declares(plugin, "ipRanges") {
            continue;
        }
        let ranges_of_call = Json::object([("ipRanges", Some(ranges.clone()))]);
        let mut plugin = entries.clone();
        plugin.push(("runtimeConfig".into(), ranges_of_call));
        let Ok(found) = host_local::pool(&Json::Object(plugin)) else { continue };
        let is_its =
            |pool: &&mut Pool| pool.network == network.name && pool.data_dir == found.data_dir;
        let (Ok(sets), Some(pool)) = (&found.sets, pools.iter_mut().find(is_its)) else { continue };
        for set in sets {
            set.ranges().iter().for_each(|range| pool.add(range));
        }
    }
}

fn add_plugin(network: &Network, plugin: &Json, pools: &mut Vec<Pool>) -> Result<()> {
    let found = host_local::pool(plugin)?;
    let pool = pool_of(pools, &network.name, &found.data_dir);
    pool.is_configured = true;
    pool.is_of_several_hosts |= found.is_of_several_hosts;
    match found.sets {
        Ok(sets) => {
            for set in &sets {
                set.ranges().iter().for_each(|range| pool.add(range));
            }
        }
        // The runtime gives them.
        Err(_) if conf::declares(plugin, "ipRanges") => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The pool of a network in a data directory. `pools` has the order of their names and directories.
fn pool_of<'a>(pools: &'a mut Vec<Pool>, network: &NetworkName, data_dir: &Path) -> &'a mut Pool {
    let key = (network, data_dir);
    let of = |pool: &Pool| (&pool.network, pool.data_dir.as_path()).cmp(&key);
    let index = pools.iter().position(|pool| of(pool).is_ge()).unwrap_or(pools.len());
    if pools.get(index).is_none_or(|pool| of(pool).is_gt()) {
        let pool = Pool {
            network: network.clone(),
            data_dir: data_dir.into(),
            is_configured: false,
            ranges: Vec::new(),
            reservations: Vec::new(),
            is_of_several_hosts: false,
        };
        pools.insert(index, pool);
    }
    &mut pools[index]
}

impl Pool {
    fn add(&mut self, range: &Range) {
        if self.ranges.iter().all(|usage| usage.range != *range) {
            self.ranges.push(Use { range: range.clone(), used: 0, free: 0 });
        }
    }

    fn read(&mut self) -> Result<()> {
        if !is_there(&self.data_dir.join(&*self.network))? {
            return Ok(());
        }
        let (listed, unreadable) = listed::list(&self.data_dir, &self.network)?;
        unreadable.iter().for_each(warn_of);
        let now = SystemTime::now();
        for reservation in listed {
            let age = reservation.modified.and_then(|time| now.duration_since(time).ok());
            self.reservations.push(OwnedReservation {
                reservation,
                pod: None,
                age,
                state: OwnerState::Reserved,
            });
        }
        Ok(())
    }

    fn judge(&mut self, sources: &Sources<'_>) {
        let mut reservations = std::mem::take(&mut self.reservations);
        for owned in &mut reservations {
            let entries = sources.of(&self.network, &owned.reservation.holder);
            owned.pod = entries.iter().find_map(|(entry, _)| pod(entry));
            owned.state = sources.judge(self, owned, &entries);
        }
        self.reservations = reservations;
    }

    fn count(&mut self) {
        for Use { range, used, free } in &mut self.ranges {
            let mut taken = 0;
            for owned in &self.reservations {
                *used += u64::from(range.contains(owned.reservation.address));
                taken += u64::from(range.may_allocate(owned.reservation.address));
            }
            *free = range.size().saturating_sub(taken);
        }
    }
}

fn pod(entry: &CacheEntry) -> Option<(String, String)> {
    let args = Args::parse(&entry.args).ok()?;
    Some((args.pod_namespace?.into(), args.pod_name?.into()))
}

struct Sources<'a> {
    runtime: &'a Runtime,
    evidence: &'a Evidence<'a>,
    pending: Vec<CacheEntry>,
    /// As in [`Survey`].
    records: Vec<Record>,
    attachments: Vec<(CacheEntry, Life)>,
    /// Of cache entries and pending records.
    damaged: Vec<Error>,
}

/// The attachments of one owner.
type OfOwner<'a> = Vec<(&'a CacheEntry, &'a Life)>;

impl Sources<'_> {
    fn of(&self, network: &NetworkName, holder: &Holder) -> OfOwner<'_> {
        let mut of_owner = Vec::new();
        for (entry, life) in &self.attachments {
            if is_of(entry, network, holder) {
                of_owner.push((entry, life));
            }
        }
        of_owner
    }

    fn judge(&self, pool: &Pool, owned: &OwnedReservation, entries: &OfOwner<'_>) -> OwnerState {
        let Reservation { address, holder, .. } = &owned.reservation;
        let signs = self.evidence.signs();
        if let Some(place) = signs.with_address(*address).next() {
            return OwnerState::Alive(format!("its address is in {}", place.path.display()));
        }
        let (id, ifname) = match holder {
            Holder::Container(id, ifname) => (id, ifname),
            Holder::Operator => return OwnerState::Reserved,
            Holder::Other(_) => return OwnerState::Unknown("no plugin made it".into()),
        };
        let mut ifnames: Vec<&IfName> = Vec::new();
        ifnames.extend(ifname);
        for (entry, _) in entries {
            ifnames.push(&entry.at.ifname);
        }
        for ifname in ifnames {
            let at = Attachment { container_id: id.clone(), ifname: ifname.clone() };
            if let Some(place) = signs.with_owner(Owner::new(&pool.network, &at).as_str()).next() {
                return OwnerState::Alive(format!(
                    "a link in {} names its owner",
                    place.path.display()
                ));
            }
        }
        if entries.iter().any(|(_, life)| **life == Life::Alive) {
            return OwnerState::Alive("the cache has its attachment, which lives".into());
        }
        if let Some(doubt) = self.doubt(pool, owned, id, entries) {
            return OwnerState::Unknown(doubt);
        }
        match self.proof(pool, owned, id, entries) {
            Ok(proof) => OwnerState::Gone(proof),
            Err(doubt) => OwnerState::Unknown(doubt),
        }
    }

    /// The reason why no proof counts.
    fn doubt(
        &self,
        pool: &Pool,
        owned: &OwnedReservation,
        id: &str,
        entries: &OfOwner<'_>,
    ) -> Option<String> {
        let holder = &owned.reservation.holder;
        if let Some(process) = self.evidence.signs().call(id) {
            return Some(format!("process {process} is a plugin that is called for it"));
        }
        if self.pending.iter().any(|entry| is_of(entry, &pool.network, holder)) {
            return Some("its ADD or DEL has not ended".into());
        }
        if self.damaged.iter().any(|error| error.to_string().contains(id)) {
            return Some("its cache entry or pending record is damaged".into());
        }
        if let Some(record) = self
            .records
            .iter()
            .find(|record| record.network == pool.network && holder.is(&record.at))
        {
            let path = record.netns.display();
            return Some(format!("the namespace of its ADD has not ended, which was at {path}"));
        }
        if let Some(doubt) = self.evidence.doubt_of_guest(&pool.data_dir) {
            return Some(doubt);
        }
        for (_, life) in entries {
            if let Life::Unknown(reason) = life {
                return Some(reason.clone());
            }
        }
        None
    }

    /// The proof that an owner is dead, or the reason why there is no proof.
    fn proof(
        &self,
        pool: &Pool,
        owned: &OwnedReservation,
        id: &str,
        entries: &OfOwner<'_>,
    ) -> Result<String, String> {
        for (entry, life) in entries {
            if let Life::Gone(reason) = life
                && self.is_reserved_for(owned, entry)
            {
                return Ok(reason.clone());
            }
        }
        if pool.is_of_several_hosts {
            return Err("it can be a reservation of another host".into());
        }
        if owned.reservation.is_of_earlier_boot {
            return Ok("an earlier boot of this host made it".into());
        }
        let signs = self.evidence.signs();
        if let Some(hidden) = signs.hidden() {
            return Err(hidden.into());
        }
        if signs.name(id) {
            return Err("the command line or the control group of a process names it".into());
        }
        match owned.age {
            Some(age) if age > ADD_MAX => {
                Ok("no process, namespace or cache entry has its container".into())
            }
            _ => Err(format!("its ADD can be in progress for {} s", ADD_MAX.as_secs())),
        }
    }

    /// Whether the ADD of a cache entry made the reservation.
    fn is_reserved_for(&self, owned: &OwnedReservation, entry: &CacheEntry) -> bool {
        let cached = self.runtime.cache.path(&entry.network, &entry.at);
        let cached = fs::metadata(cached).and_then(|file| file.modified()).ok();
        let is_older = owned.reservation.modified.is_some_and(|made| Some(made) <= cached);
        let Ok(Some(result)) = entry.success() else { return false };
        is_older && result.ips.iter().any(|ip| ip.address.addr() == owned.reservation.address)
    }
}

fn is_of(entry: &CacheEntry, network: &NetworkName, holder: &Holder) -> bool {
    entry.network == *network && holder.is(&entry.at)
}

/// The attachment of a reservation in words.
pub fn title(network: &NetworkName, holder: &Holder) -> String {
    match holder {
        Holder::Container(container_id, Some(ifname)) => {
            let at = Attachment { container_id: container_id.clone(), ifname: ifname.clone() };
            cache::title(network, &at)
        }
        Holder::Container(id, None) => format!("container {id} in network {network}"),
        Holder::Operator => format!("the operator in network {network}"),
        Holder::Other(text) => format!("{text:?} in network {network}"),
    }
}
