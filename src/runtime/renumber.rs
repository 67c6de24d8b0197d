//! Updates the host after a DHCP server replaced the address of an attachment: the rules of all plugins, the sources of
//! firewalld, the record, and the cache entry, with which CHECK compares.
//!
//! This takes the lock of the container without a wait. During an ADD, DEL or CHECK of this runtime it fails, and the daemon
//! retries.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::cni::success::{Dns, Success};
use crate::cni::version::{self, Version};
use crate::error::Result;
use crate::netlink::conntrack::Conntrack;
use crate::netlink::nft::Nft;
use crate::plugin::owner::Owner;
use crate::plugin::record::{self, Records};
use crate::plugins::firewall;
use crate::runtime::cache::{self, Cache, CacheEntry};
use crate::runtime::lock::Lock;
use crate::steps::nft::renumber::{Move, renumber};
use crate::steps::renumber::{Change, Follow};

/// The function that the daemon calls after a change of address. `bus` is the address of the system D-Bus; `None` is the
/// default.
pub fn follower(bus: Option<OsString>) -> Follow {
    let bus = bus.filter(|bus| !bus.is_empty());
    Box::new(move |prefix, change| follow(prefix, bus.as_deref(), change))
}

fn follow(prefix: &Path, bus: Option<&OsStr>, change: &Change) -> Result<String> {
    let below = |path: &Path| match prefix.as_os_str().is_empty() {
        true => path.to_owned(),
        false => prefix.join(path.strip_prefix("/").unwrap_or(path)),
    };
    let directory = below(&super::locks());
    let _lock = Lock::container_if_free(&directory, &change.at.container_id)?;
    let moved = move_rules(change, bus)?;
    update_record(&Records::in_directory(below(Path::new(record::DIRECTORY))), change)?;
    let is_cached = update_entry(&Cache::new(below(Path::new(cache::DIRECTORY))), change)?;
    Ok(described(moved, is_cached))
}

/// The text for the log: the number of moved rules, and whether the cache entry was updated. Empty if nothing was changed.
fn described(moved: usize, is_cached: bool) -> String {
    let mut changed = match moved {
        0 => Vec::new(),
        1 => vec!["1 rule".to_owned()],
        count => vec![format!("{count} rules")],
    };
    if is_cached {
        changed.push("the cache entry".into());
    }
    changed.join(" and ")
}

/// Moves the sources of firewalld and the rules to the new addresses. Returns the number of moved rules. Deletes the conntrack
/// entries of the old addresses: otherwise the kernel translates packets to the old address as long as they arrive.
fn move_rules(change: &Change, bus: Option<&OsStr>) -> Result<usize> {
    let owner = Owner::new(&change.network, &change.at);
    let mut moves: Vec<Move> = Vec::new();
    for (from, to) in change.address_pairs().into_iter().filter(|(from, to)| from != to) {
        moves.push(Move { owner: owner.clone(), from, to });
    }
    let Some(nft) = Nft::open_if_supported()?.filter(|_| !moves.is_empty()) else { return Ok(0) };
    // Move the sources of firewalld first: the elements that record them move with the rules. So after a failure, the retry
    // still finds the old elements.
    if cfg!(feature = "firewall") {
        firewall::follow_sources(&nft, bus, &moves)?;
    }
    let (mut count, mut left) = (0, Vec::new());
    for address_move in &moves {
        let moved = renumber(&nft, address_move)?;
        count += moved.elements;
        if moved.elements > 0
            && !moved.is_shared
            && address_move.from.addr() != address_move.to.addr()
        {
            left.push(address_move.from.addr());
        }
    }
    if !left.is_empty() {
        Conntrack::open()?.delete_of(&left)?;
    }
    Ok(count)
}

/// Writes the new addresses into the record before the cache entry has them, so the record still belongs to the entry.
fn update_record(records: &Records, change: &Change) -> Result<()> {
    let Some(record) = records.read(&change.network, &change.at) else { return Ok(()) };
    let Some(before) = record.made.last() else { return Ok(()) };
    let mut made = before.clone();
    for (from, to) in change.address_pairs() {
        let of_change = made.addresses.iter_mut().filter(|address| **address == from.addr());
        of_change.for_each(|address| *address = to.addr());
        records.move_claims(&record, from.addr(), to.addr())?;
    }
    if made == *before { Ok(()) } else { records.amend(&change.network, &change.at, &made) }
}

/// Updates the result in the cache. Returns false if there is no entry, or if its result has none of the old leases. Fails if
/// the file belongs to another attachment; the file stays.
fn update_entry(cache: &Cache, change: &Change) -> Result<bool> {
    let Some(entry) = cache.read(&change.network, &change.at)? else { return Ok(false) };
    // A file from before cniCacheV1 does not name the attachment.
    if entry.config.is_empty() {
        return Ok(false);
    }
    let Some(before) = entry.success()? else { return Ok(false) };
    let mut success = before.clone();
    for (old, new) in &change.leases {
        update(&mut success, old, new);
    }
    if success == before {
        return Ok(false);
    }
    let version = entry.result.text_at("cniVersion");
    let version = version.map_or(Ok(Version::NEWEST), Version::negotiate)?;
    let result = version::print_result(&success, version)?;
    cache.write(&CacheEntry { result, ..entry }).map(|()| true)
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
