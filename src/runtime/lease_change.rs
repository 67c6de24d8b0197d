//! Makes the host follow after a DHCP server replaced the address of an attachment: the rules of all plugins, the record, and the
//! cache entry, with which CHECK compares. The rules are those of a reconcile with the result that has the new addresses.
//!
//! This takes the lock of the container without a wait. During an ADD, DEL or CHECK of this runtime it fails, and the daemon
//! retries. Without a cache entry the plugins and their configuration are unknown, and the rules stay as they are.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;

use crate::attachments::record::{Hold, Record, Records};
use crate::cni::request::Verb;
use crate::cni::success::{Dns, Success};
use crate::cni::version::{self, Version};
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::names::{Attachment, NetworkName};
use crate::plugin::parts::Parts;
use crate::runtime::Runtime;
use crate::runtime::cache::{Cache, CacheEntry};
use crate::runtime::chain::{CallSettings, Chain, PATH};
use crate::runtime::conf;
use crate::runtime::lock::Lock;

/// The timeout of an executed plugin. None is executed here: what a plugin of another executable made stays.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The directory in which libcni has the cache of Multus.
const MULTUS: &str = "/var/lib/cni/multus/results";

/// The change of one attachment's addresses.
pub struct LeaseChange {
    pub network: NetworkName,
    pub at: Attachment,
    /// Pairs of results: of an earlier lease, and of the current lease of the same family. Each has one address.
    pub leases: Vec<(Success, Success)>,
}

impl LeaseChange {
    /// One pair of the earlier and the current address for each member of `leases`.
    fn address_pairs(&self) -> Vec<(IpNet, IpNet)> {
        let net = |success: &Success| success.ips.first().map(|ip| ip.address);
        self.leases.iter().filter_map(|(old, new)| Some((net(old)?, net(new)?))).collect()
    }
}

/// The runtime for `follow`. `bus_address` is the address of the system D-Bus; `None` is the default.
pub fn runtime(prefix: &Path, bus_address: Option<OsString>) -> Runtime {
    let settings = CallSettings {
        // Only for attachments whose record does not name the plugins.
        path: PATH.split(':').map(|path| file::below(prefix, Path::new(path))).collect(),
        timeout: TIMEOUT,
        netns_override: false,
        bus_address: bus_address.filter(|address| !address.is_empty()),
        turns: Default::default(),
        log: None,
    };
    Runtime::below(prefix, settings, conf::DIRECTORY.into())
}

/// Makes the host and the cache entry follow a change. Idempotent, also after a partial update. Returns a text about what was
/// changed. `prefix` is put in front of all paths of the host.
pub fn follow(runtime: &Runtime, prefix: &Path, change: &LeaseChange) -> Result<String> {
    let LeaseChange { network, at, leases } = change;
    let _lock = Lock::container_if_free(&runtime.locks, &at.container_id)?;
    // The record comes before the cache entry, so the record still belongs to the entry.
    if let Some(record) = runtime.records.read(network, at)? {
        update_record(&runtime.records, &record, change)?;
    }
    let held = match runtime.records.hold(network, at)? {
        Hold::Held(held) => Some(held),
        Hold::Missing => None,
        // The daemon tries again.
        Hold::Busy(error) => return Err(error),
    };
    let record = held.as_ref().map(|held| &held.record);
    let of_multus = Cache::new(file::below(prefix, Path::new(MULTUS)));
    let (cache, found) = match runtime.cache.read(network, at)? {
        Some(entry) => (&runtime.cache, Some(entry)),
        None => (&of_multus, of_multus.read(network, at)?),
    };
    let Some(entry) = found else {
        return Ok("its rules on the host stay, because no runtime has a cache entry of it".into());
    };
    // A file from before cniCacheV1 does not name the attachment. A DEL that has begun removes everything.
    if entry.config.is_empty() || record.is_some_and(|record| record.is_deleting) {
        return Ok(String::new());
    }
    let Some(before) = entry.success()? else { return Ok(String::new()) };
    let mut success = before.clone();
    for (old, new) in leases {
        update(&mut success, old, new);
    }
    let version = entry.result.text_at("cniVersion");
    let version = version.map_or(Ok(Version::NEWEST), Version::negotiate)?;
    let entry = CacheEntry { result: version::print_result(&success, version)?, ..entry };
    if success != before {
        cache.write(&entry)?;
    }
    let network = entry.network_of_add()?;
    let netns = file::below(prefix, &entry.netns);
    let pairs = change.address_pairs().into_iter();
    let moved = pairs.filter(|(from, to)| from.addr() != to.addr());
    let former: Vec<IpAddr> = moved.map(|(from, _)| from.addr()).collect();
    let verb = Verb::Add(at.clone());
    let chain = Chain { record, ..runtime.chain(&entry, &network, &netns, verb) };
    let (mut changed, mut errors) = (Vec::new(), Vec::new());
    for (plugin, parts) in chain.reconcile(at, &entry.result, &|_| Parts::to_put(former.clone())) {
        changed.extend((!parts.restored.is_empty()).then_some(plugin));
        errors.extend(parts.errors);
    }
    Error::joined(errors)?;
    changed.extend((success != before).then(|| "the cache entry".into()));
    Ok(changed.join(", "))
}

fn update_record(records: &Records, record: &Record, change: &LeaseChange) -> Result<()> {
    let Some(before) = record.made.last() else { return Ok(()) };
    let mut made = before.clone();
    for (from, to) in change.address_pairs() {
        let of_change = made.addresses.iter_mut().filter(|address| **address == from.addr());
        of_change.for_each(|address| *address = to.addr());
        records.move_claims(record, from.addr(), to.addr())?;
    }
    if made == *before { Ok(()) } else { records.amend(&change.network, &change.at, &made) }
}

/// Replaces address, gateway, routes and DNS of the lease `old` in a result by those of `new`. A result without the address of
/// `old` stays.
fn update(success: &mut Success, old: &Success, new: &Success) {
    let (Some(from), Some(to)) = (old.ips.first(), new.ips.first()) else { return };
    let Some(ip) = success.ips.iter_mut().find(|ip| ip.address == from.address) else { return };
    ip.address = to.address;
    if ip.gateway == from.gateway {
        ip.gateway = to.gateway;
    }
    replace(&mut success.routes, &old.routes, &new.routes);
    let Dns { nameservers, domain, search, .. } = &mut success.dns;
    replace(nameservers, &old.dns.nameservers, &new.dns.nameservers);
    replace(search, &old.dns.search, &new.dns.search);
    if *domain == old.dns.domain {
        domain.clone_from(&new.dns.domain);
    }
}

/// Replaces the items of `old` in a list by those of `new`. A list without all of `old` has another origin and stays.
fn replace<T: Clone + PartialEq>(list: &mut Vec<T>, old: &[T], new: &[T]) {
    if old == new || !old.iter().all(|item| list.contains(item)) {
        return;
    }
    let at = list.iter().position(|item| old.contains(item)).unwrap_or(list.len());
    list.retain(|item| !old.contains(item));
    let missing: Vec<T> = new.iter().filter(|item| !list.contains(item)).cloned().collect();
    list.splice(at..at, missing);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::Json;

    fn result(text: &str) -> Success {
        version::parse_result(&Json::parse(text.as_bytes()).unwrap(), Version::NEWEST).unwrap()
    }

    fn lease(address: &str, gateway: &str, dns: &str) -> Success {
        result(&format!(
            r#"{{"ips": [{{"address": "{address}", "gateway": "{gateway}"}}],
                "routes": [{{"dst": "0.0.0.0/0", "gw": "{gateway}"}}],
                "dns": {{"nameservers": ["{dns}"], "domain": "lan", "search": ["a.lan"]}}}}"#
        ))
    }

    #[test]
    fn the_values_of_the_lease_are_replaced_and_the_rest_stays() {
        let old = lease("10.1.0.5/24", "10.1.0.1", "10.1.0.53");
        let new = lease("10.2.0.6/16", "10.2.0.1", "10.2.0.53");
        let whole = |lease: &Success| {
            let mut whole = lease.clone();
            whole.ips[0].interface = Some(1);
            whole.ips.push(result(r#"{"ips": [{"address": "fd00::5/64"}]}"#).ips[0].clone());
            whole
                .routes
                .insert(0, result(r#"{"routes": [{"dst": "10.9.0.0/16"}]}"#).routes[0].clone());
            whole.dns.nameservers.push("fd00::53".into());
            whole
        };
        let mut success = whole(&old);
        update(&mut success, &old, &new);
        assert_eq!(success, whole(&new));
        // Idempotent: a retry after a crash changes nothing.
        update(&mut success, &old, &new);
        assert_eq!(success, whole(&new));
    }

    #[test]
    fn a_result_of_another_address_or_with_another_dns_stays() {
        let old = lease("10.1.0.5/24", "10.1.0.1", "10.1.0.53");
        let new = lease("10.2.0.6/16", "10.2.0.1", "10.2.0.53");
        let other = lease("10.1.0.7/24", "10.1.0.1", "10.1.0.53");
        let mut success = other.clone();
        update(&mut success, &old, &new);
        assert_eq!(success, other);
        let mut success = old.clone();
        success.dns = result(r#"{"dns": {"nameservers": ["192.0.2.1"], "domain": "x"}}"#).dns;
        let dns = success.dns.clone();
        update(&mut success, &old, &new);
        assert_eq!((success.dns, success.ips), (dns, new.ips));
    }
}
