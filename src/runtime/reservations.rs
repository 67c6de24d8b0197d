//! Lists the reservations of `host-local` on a host, and decides whether their owners are alive.
//!
//! A reservation is **alive** while the attachment of its owner is alive (see `attachments::life`). The attachment comes from the
//! cache, or from a record without a cache entry. A reservation is **gone** with one of these proofs:
//!
//! 1. The attachment has ended, and its ADD reserved the address. A cache entry that is older than the reservation is no such
//!    proof: a later ADD of the same container made the reservation.
//! 2. An earlier boot of this host made the reservation. The store keeps the boot, so this does not depend on a clock.
//!
//! Every other reservation is **unknown**. With `"staleOnBoot": "keep"`, a reservation can belong to another host: there only
//! proof 1 counts.
//!
//! A reservation that is gone cannot become alive: a new ADD writes a new file. The release holds the lock of the store and
//! compares the file with the listed one.

mod evidence;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::attachments::life::{Life, Witness};
use crate::attachments::owner::Owner;
use crate::attachments::record::{Record, Unreadable, as_text};
use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::ipam::range::{Range, RangeSet};
use crate::ipam::store::Store;
use crate::ipam::store::listed::{self, Holder, Reservation};
use crate::kernel::file;
use crate::kernel::sys::warn;
use crate::names::{Attachment, ContainerId, NetworkName};
use crate::plugins::flannel;
use crate::plugins::host_local::{self, DATA_DIR};
use crate::runtime::Runtime;
use crate::runtime::cache::{CacheEntry, Entries};
use crate::runtime::conf::{self, Network};
use crate::runtime::host_objects;
use evidence::{Evidence, key};

/// The addresses of a network in one data directory. This is also the output of `cnibox ipam list --json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    #[serde(rename = "name")]
    pub network: NetworkName,
    #[serde(serialize_with = "as_text")]
    pub data_dir: PathBuf,
    /// Whether a file in NETCONFPATH, or podman, configures the network.
    #[serde(rename = "configured")]
    pub is_configured: bool,
    pub ranges: Vec<RangeUse>,
    /// In the order of their addresses.
    pub reservations: Vec<OwnedReservation>,
    #[serde(skip)]
    pub(super) is_of_several_hosts: bool,
}

/// A range with the numbers of its used and free addresses.
#[derive(Debug, Serialize)]
pub struct RangeUse {
    #[serde(flatten)]
    pub range: Range,
    pub size: u64,
    pub used: u64,
    /// The addresses that can still be allocated.
    pub free: u64,
}

/// A reservation, and the state of its owner.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnedReservation {
    pub network: NetworkName,
    #[serde(skip)]
    data_dir: PathBuf,
    #[serde(flatten)]
    pub reservation: Reservation,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// The time since the file was written. `None` if its mtime is in the future.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    #[serde(flatten)]
    pub state: OwnerState,
}

impl OwnedReservation {
    pub(super) fn is_alive(&self) -> bool {
        matches!(self.state, OwnerState::Alive(_))
    }
}

/// The pod of a container, from the CNI_ARGS of the attachment.
#[derive(Debug, Serialize)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
}

/// Whether the owner of a reservation is alive, with the reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub enum OwnerState {
    Alive(String),
    /// The owner has provably ended.
    Gone(String),
    Unknown(String),
    /// The operator reserved the address, so that no container gets it.
    Reserved,
}

/// All reservations and attachments of a host.
#[derive(Debug)]
pub struct Survey {
    pub pools: Vec<Pool>,
    pub attachments: Vec<(CacheEntry, Life)>,
    /// The records of attachments without a cache entry.
    pub records: Vec<(Record, Life)>,
    /// The records that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// An error for each reservation and cache entry that cannot be read.
    pub damaged: Vec<Error>,
}

impl Runtime {
    /// `read_survey`, with a warning for each damaged file.
    pub fn survey(&self) -> Result<Survey> {
        let survey = self.read_survey(&Witness::new()?)?;
        survey.warn();
        Ok(survey)
    }

    /// Reads all reservations, attachments and records. The only change is a record for an attachment that is alive and has
    /// none. Prints a warning for each damaged configuration.
    pub fn read_survey(&self, witness: &Witness) -> Result<Survey> {
        let (mut pools, unreadable) = self.pools()?;
        unreadable.iter().for_each(warn_of);
        // Before the cache and the records: a reservation that is made later is not judged by older entries.
        let (mut listed, mut of_reservations) = (Vec::new(), Vec::new());
        for pool in &pools {
            let (reservations, damaged) = pool.list()?;
            listed.push(reservations);
            of_reservations.extend(damaged.into_iter().map(|(_, error)| error));
        }
        let Entries { entries: cached, damaged } = self.cache.all()?;
        let mut attachments = self.lives(witness, cached);
        attachments.sort_by(|(one, _), (other, _)| key(one).cmp(&key(other)));
        for (entry, _) in &attachments {
            add_ranges_of_add(entry, &mut pools);
        }
        let of_cache = |(entry, _): &(CacheEntry, Life)| entry.title();
        let cached: HashSet<String> = attachments.iter().map(of_cache).collect();
        let mut records = Vec::new();
        let all = self.records.all()?;
        for record in all.records {
            if !cached.contains(&record.at.title(&record.network)) {
                let life = witness.life_of_record(&record);
                records.push((record, life));
            }
        }
        let unreadable = all.unreadable;
        let evidence = Evidence { runtime: self, records, unreadable, attachments, damaged };
        for (pool, listed) in pools.iter_mut().zip(listed) {
            let judged = listed.into_iter().map(|listed| evidence.judged(pool, listed));
            pool.reservations = judged.collect();
            pool.count();
        }
        let Evidence { attachments, records, unreadable, damaged, .. } = evidence;
        let damaged = damaged.into_iter().map(|file| file.error).chain(of_reservations).collect();
        Ok(Survey { pools, attachments, records, unreadable, damaged })
    }

    /// Whether `holds` is true for at least one reserved address.
    pub(super) fn has_reservation(&self, holds: impl Fn(&Pool, IpAddr) -> bool) -> Result<bool> {
        let (pools, _) = self.pools()?;
        for pool in &pools {
            let directory = pool.data_dir.join(&*pool.network);
            let cannot = Error::of_file("read directory", &directory);
            let files = file::found(fs::read_dir(&directory)).map_err(&cannot)?;
            for file in files.into_iter().flatten() {
                let name = file.map_err(&cannot)?.file_name();
                let address = name.to_str().and_then(|name| name.parse().ok());
                if address.is_some_and(|address| holds(pool, address)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The pools of the configured networks with `host-local`, and of other networks that have a directory in a data directory.
    /// Also returns an error for each configuration that cannot be read.
    fn pools(&self) -> Result<(Vec<Pool>, Vec<Error>)> {
        let mut pools: Vec<Pool> = Vec::new();
        let mut unreadable = Vec::new();
        let mut names: Vec<NetworkName> = Vec::new();
        let others = self.others.iter().cloned().map(Ok);
        for network in Network::all(&self.configurations)?.into_iter().chain(others) {
            match network {
                Ok(network) if !names.contains(&network.name) => {
                    add_configured(&network, &mut pools, &mut unreadable);
                    names.push(network.name);
                }
                Ok(_) => {}
                Err(error) => unreadable.push(error),
            }
        }
        let mut directories = vec![DATA_DIR.path().to_owned()];
        for pool in &pools {
            if !directories.contains(&pool.data_dir) {
                directories.push(pool.data_dir.clone());
            }
        }
        for data_dir in directories {
            if !exists(&data_dir)? {
                continue;
            }
            let cannot = Error::of_file("read directory", &data_dir);
            for entry in fs::read_dir(&data_dir).map_err(&cannot)? {
                let entry = entry.map_err(&cannot)?;
                if let Ok(name) = entry.file_name().into_string()
                    && let Ok(network) = NetworkName::new(name)
                    && is_directory(&entry.path())?
                {
                    pool_of(&mut pools, &network, &data_dir);
                }
            }
        }
        Ok((pools, unreadable))
    }

    /// Releases a reservation under the lock of its store. Returns false if its file was removed or changed since it was
    /// listed.
    pub fn release(&self, owned: &OwnedReservation) -> Result<bool> {
        match Store::open_if_exists(&owned.data_dir, &owned.network, &self.settings.turns)? {
            Some(store) => store.locked(|locked| locked.release_listed(&owned.reservation)),
            None => Ok(false),
        }
    }

    /// Reserves an address for the operator, so that no container gets it. Returns false if it is already reserved.
    pub fn reserve(&self, pool: &Pool, address: IpAddr) -> Result<bool> {
        let store = Store::open(&pool.data_dir, &pool.network, &self.settings.turns)?;
        store.locked(|locked| locked.reserve_for_operator(address))
    }
}

impl Survey {
    /// Prints a warning for each damaged file.
    pub(super) fn warn(&self) {
        self.damaged.iter().for_each(warn_of);
    }

    pub fn reservations(&self) -> impl Iterator<Item = &OwnedReservation> {
        self.pools.iter().flat_map(|pool| &pool.reservations)
    }

    /// The reservations of owners that have ended, each with the proof.
    pub fn leaks(&self) -> impl Iterator<Item = (&OwnedReservation, &str)> {
        self.reservations().filter_map(|owned| match &owned.state {
            OwnerState::Gone(reason) => Some((owned, reason.as_str())),
            _ => None,
        })
    }

    /// The networks and containers of the reservations.
    pub(super) fn holders(&self) -> BTreeSet<(NetworkName, ContainerId)> {
        let holder = |owned: &OwnedReservation| match &owned.reservation.holder {
            Holder::Container { id, .. } => Some((owned.network.clone(), id.clone())),
            Holder::Operator | Holder::Other { .. } => None,
        };
        self.reservations().filter_map(holder).collect()
    }

    /// Whether there is the request of an ended attachment of a holder, of which GC has not run the DEL, or it failed. The DEL releases
    /// the reservation.
    pub(super) fn is_left_to_del(&self, owned: &OwnedReservation) -> bool {
        let Holder::Container { id, .. } = &owned.reservation.holder else { return false };
        let is_its_own = |network: &NetworkName, at: &Attachment| {
            *network == owned.network && at.container_id == *id
        };
        let mut requested = self.records.iter().filter(|(record, _)| !record.request.is_empty());
        self.attachments
            .iter()
            .any(|(entry, life)| life.is_ended() && is_its_own(&entry.network, &entry.at))
            || requested
                .any(|(record, life)| life.is_ended() && is_its_own(&record.network, &record.at))
    }

    /// The attachments in the cache, and those that only a record names, each with its life.
    pub fn all_lives(&self) -> impl Iterator<Item = (&NetworkName, &Attachment, &Life)> {
        let cached = self.attachments.iter().map(|(entry, life)| (&entry.network, &entry.at, life));
        let recorded = self.records.iter();
        cached.chain(recorded.map(|(record, life)| (&record.network, &record.at, life)))
    }

    /// Removes the attachments that are not chosen.
    pub fn retain(&mut self, is_chosen: impl Fn(&NetworkName, &Attachment) -> bool) {
        self.attachments.retain(|(entry, _)| is_chosen(&entry.network, &entry.at));
        self.records.retain(|(record, _)| is_chosen(&record.network, &record.at));
    }

    /// The records of ended attachments that have rules or links on the host, and no cache entry.
    pub fn leaked_owners(&self) -> Result<Vec<&Record>> {
        let ended = self.records.iter().filter(|(_, life)| life.is_ended());
        let ended: HashMap<String, &Record> = ended
            .map(|(record, _)| (Owner::new(&record.network, &record.at).to_string(), record))
            .collect();
        Ok(host_objects::on_host()?.iter().filter_map(|owner| ended.get(owner).copied()).collect())
    }
}

/// Whether a path exists. Fails if a directory above it cannot be searched.
fn exists(path: &Path) -> Result<bool> {
    path.try_exists().map_err(Error::of_file("read directory", path))
}

/// False for a file that was removed since it was listed, and for a link to a missing one.
fn is_directory(path: &Path) -> Result<bool> {
    let found = file::found(fs::metadata(path)).map_err(Error::of_file("read", path))?;
    Ok(found.is_some_and(|found| found.is_dir()))
}

fn warn_of(error: &Error) {
    warn(format_args!("warning: {error}"));
}

fn add_configured(network: &Network, pools: &mut Vec<Pool>, unreadable: &mut Vec<Error>) {
    for plugin in &network.plugins {
        let of_delegate =
            if conf::kind(plugin) == "flannel" { flannel::host_local(plugin) } else { None };
        let plugin = of_delegate.as_ref().unwrap_or(plugin);
        if has_host_local(plugin)
            && let Err(error) = add_plugin(network, plugin, pools)
        {
            unreadable.push(error.context(format!("network {}", network.name)));
        }
    }
}

fn has_host_local(plugin: &Json) -> bool {
    conf::ipam_kind(plugin) == "host-local"
}

/// Adds the ranges that a runtime passed to an ADD (`ipRanges`) to the pool of the network.
fn add_ranges_of_add(entry: &CacheEntry, pools: &mut [Pool]) {
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
        let is_its_pool =
            |pool: &&mut Pool| pool.network == network.name && pool.data_dir == found.data_dir;
        let (Ok(sets), Some(pool)) = (&found.sets, pools.iter_mut().find(is_its_pool)) else {
            continue;
        };
        pool.add(sets);
    }
}

fn add_plugin(network: &Network, plugin: &Json, pools: &mut Vec<Pool>) -> Result<()> {
    let found = host_local::pool(plugin)?;
    let pool = pool_of(pools, &network.name, &found.data_dir);
    pool.is_configured = true;
    pool.is_of_several_hosts |= found.is_of_several_hosts;
    match found.sets {
        Ok(sets) => pool.add(&sets),
        // The configuration needs no ranges, because the runtime passes them with each ADD.
        Err(_) if conf::declares(plugin, "ipRanges") => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Returns the pool of a network in a data directory; adds it if it is missing. `pools` is sorted by network and directory.
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
    fn add(&mut self, sets: &[RangeSet]) {
        for range in sets.iter().flat_map(RangeSet::ranges) {
            if self.ranges.iter().all(|usage| usage.range != *range) {
                let (range, size) = (range.clone(), range.size());
                self.ranges.push(RangeUse { range, size, used: 0, free: 0 });
            }
        }
    }

    /// Whether an address of an attachment is in a range, and its reservation was not listed.
    pub fn lacks(&self, entry: &CacheEntry, address: IpAddr) -> bool {
        let is_it = |owned: &OwnedReservation| {
            owned.reservation.address == address && owned.reservation.holder.is(&entry.at)
        };
        self.network == entry.network
            && self.ranges.iter().any(|usage| usage.range.contains(address))
            && !self.reservations.iter().any(is_it)
    }

    /// The directory of the reservations.
    pub fn directory(&self) -> PathBuf {
        self.data_dir.join(&*self.network)
    }

    /// The present holder of an address. Fails if its file cannot be read.
    pub fn read(&self, address: IpAddr) -> Result<Option<Holder>> {
        let (reservations, damaged) = self.list()?;
        let mut found = reservations.into_iter().filter(|found| found.address == address);
        let found = found.next().map(|found| found.holder);
        match damaged.into_iter().find(|(of, _)| *of == address) {
            Some((_, error)) if found.is_none() => Err(error),
            _ => Ok(found),
        }
    }

    /// The reservations, and an error for each file that cannot be read.
    fn list(&self) -> Result<listed::Listed> {
        if !exists(&self.directory())? {
            return Ok(Default::default());
        }
        listed::list(&self.data_dir, &self.network)
    }

    fn count(&mut self) {
        for RangeUse { range, size, used, free } in &mut self.ranges {
            let mut taken = 0;
            for owned in &self.reservations {
                *used += u64::from(range.contains(owned.reservation.address));
                taken += u64::from(range.may_allocate(owned.reservation.address));
            }
            *free = size.saturating_sub(taken);
        }
    }
}

impl OwnedReservation {
    /// The address and its owner as text for messages.
    pub fn title(&self) -> String {
        format!("{} of {}", self.reservation.address, self.owner())
    }

    /// The owner as text for messages.
    pub fn owner(&self) -> String {
        let network = &self.network;
        match &self.reservation.holder {
            Holder::Container { id, ifname: Some(ifname) } => {
                Attachment { container_id: id.clone(), ifname: ifname.clone() }.title(network)
            }
            Holder::Container { id, ifname: None } => {
                format!("container {id} in network {network}")
            }
            Holder::Operator => format!("the operator in network {network}"),
            Holder::Other { owner } => format!("{owner:?} in network {network}"),
        }
    }
}

impl OwnerState {
    pub fn text(&self) -> &'static str {
        match self {
            Self::Alive(_) => "alive",
            Self::Gone(_) => "gone",
            Self::Unknown(_) => "unknown",
            Self::Reserved => "reserved",
        }
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Alive(reason) | Self::Gone(reason) | Self::Unknown(reason) => Some(reason),
            Self::Reserved => None,
        }
    }
}
