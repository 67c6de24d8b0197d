//! Address management: the allocator chooses the addresses of an attachment, and the store reserves them.

pub mod range;
pub mod resolv_conf;
pub mod store;

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::{Error, Result};
use crate::names::Attachment;
use range::{Range, RangeSet};
use store::Locked;

/// An address of an attachment, with the prefix length of its subnet.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocated {
    pub address: IpNet,
    pub gateway: IpAddr,
}

/// The addresses that an attachment requests, and how they are chosen.
pub struct AllocationRequest<'a> {
    pub sets: &'a [RangeSet],
    /// Addresses that the attachment must get.
    pub requested: &'a [IpAddr],
    /// The identity of the container (see [`store::identity`]), if the configuration sets `sticky`: it prefers its last
    /// addresses.
    pub sticky: Option<u64>,
    pub stale_on_boot: StaleOnBoot,
    /// Whether the host, or somebody on the link, has an address. Such an address is reserved only if it is requested.
    pub is_in_use: &'a dyn Fn(IpAddr) -> bool,
}

/// Whether reservations of an earlier boot of the host are released when a request needs them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StaleOnBoot {
    Reclaim,
    Keep,
}

/// Reserves one address from each set: a requested address of the set, else the container's last address if it is free,
/// else the next free address.
///
/// If it fails, it releases the addresses that this call reserved, and no others.
pub fn allocate(
    locked: &mut Locked<'_>,
    request: &AllocationRequest<'_>,
    at: &Attachment,
) -> Result<Vec<Allocated>> {
    check_no_duplicate(locked, request, at)?;
    let mut reserved = Vec::with_capacity(request.sets.len());
    let result = allocate_from_each(locked, request, at, &mut reserved);
    if let (Ok(_), Some(identity)) = (&result, request.sticky) {
        let is_of_sets = |ip| request.sets.iter().any(|set| set.range_of(ip).is_some());
        locked.save_last_addresses(identity, &reserved, is_of_sets);
    }
    result.map_err(|error| {
        let undone = reserved.into_iter().filter_map(|ip| locked.release_address(ip, at).err());
        undone.fold(error, |error, undo| error.also(&undo))
    })
}

/// Fails if the attachment has an address of one of the sets already.
fn check_no_duplicate(
    locked: &mut Locked<'_>,
    request: &AllocationRequest<'_>,
    at: &Attachment,
) -> Result<()> {
    let is_in_a_set = |ip: &IpAddr| request.sets.iter().any(|set| set.range_of(*ip).is_some());
    let held = locked.held_by(at)?;
    let Some(ip) = held.iter().copied().find(is_in_a_set) else { return Ok(()) };
    let index = request.sets.iter().position(|set| set.range_of(ip).is_some()).unwrap_or_default();
    // After a reboot without a DEL, the container's own reservations are stale.
    if request.reclaims(locked, |ip| held.contains(&ip))? {
        return check_no_duplicate(locked, request, at);
    }
    Err(Error::internal(format_args!(
        "failed to allocate for range {index}: {ip} has been allocated to {}, duplicate allocation is not allowed",
        at.container_id
    )))
}

/// Reserves an address from each set, and adds it to `reserved`: the caller releases these addresses after an error.
fn allocate_from_each(
    locked: &mut Locked<'_>,
    request: &AllocationRequest<'_>,
    at: &Attachment,
    reserved: &mut Vec<IpAddr>,
) -> Result<Vec<Allocated>> {
    let mut pending = request.requested.to_vec();
    let last_addresses =
        request.sticky.map(|identity| locked.last_addresses(identity)).unwrap_or_default();
    let mut allocated = Vec::with_capacity(request.sets.len());
    for (index, set) in request.sets.iter().enumerate() {
        let requested = pending.iter().position(|ip| set.range_of(*ip).is_some());
        let (ip, range) = match requested.map(|position| pending.remove(position)) {
            Some(ip) => reserve_requested(locked, request, set, ip, at),
            None => reserve_any(locked, request, (index, set), &last_addresses, at),
        }
        .map_err(|error| error.in_front(format_args!("failed to allocate for range {index}")))?;
        reserved.push(ip);
        // A container that gets its last address again does not change the last reserved address. Otherwise other containers
        // would get addresses that were released just before.
        if requested.is_some() || !last_addresses.contains(&ip) {
            locked.set_last_reserved(index, ip)?;
        }
        let address = IpNet::new(ip, range.subnet.prefix_len())
            .map_err(|error| Error::internal(format_args!("cannot allocate {ip}: {error}")))?;
        allocated.push(Allocated { address, gateway: range.gateway });
    }
    if pending.is_empty() {
        return Ok(allocated);
    }
    let left = pending.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
    Err(Error::internal(format_args!("failed to allocate all requested IPs: {left}"))
        .with_details("an ADD allocates one address from each range set"))
}

fn reserve_requested<'a>(
    locked: &mut Locked<'_>,
    request: &AllocationRequest<'_>,
    set: &'a RangeSet,
    ip: IpAddr,
    at: &Attachment,
) -> Result<(IpAddr, &'a Range)> {
    let range = set
        .range_of(ip)
        .filter(|range| range.gateway != ip)
        .ok_or_else(|| Error::internal(format_args!("requested ip {ip} is subnet's gateway")))?;
    if let Some(net) = range.excluding(ip) {
        let msg = format!("requested ip {ip} is excluded by {net}");
        return Err(Error::internal(msg));
    }
    if locked.reserve(ip, at)?
        || request.reclaims(locked, |stale| stale == ip)? && locked.reserve(ip, at)?
    {
        return Ok((ip, range));
    }
    let msg = format!("requested IP address {ip} is not available in range set {set}");
    Err(Error::internal(msg).with_details(locked.holder(ip)))
}

fn reserve_any<'a>(
    locked: &mut Locked<'_>,
    request: &AllocationRequest<'_>,
    (index, set): (usize, &'a RangeSet),
    last_addresses: &[IpAddr],
    at: &Attachment,
) -> Result<(IpAddr, &'a Range)> {
    for ip in last_addresses.iter().copied().filter(|ip| set.may_allocate(*ip)) {
        if let Some(range) = set.range_of(ip)
            && !(request.is_in_use)(ip)
            && locked.reserve(ip, at)?
        {
            return Ok((ip, range));
        }
    }
    let last_reserved = locked.last_reserved(index)?;
    let reserve_next = |locked: &mut Locked<'_>| {
        find_free(locked, set, last_reserved, |locked, ip| {
            Ok(!(request.is_in_use)(ip) && locked.reserve(ip, at)?)
        })
    };
    if let Some(found) = reserve_next(locked)? {
        return Ok(found);
    }
    // Search once more after stale reservations were released.
    let can_retry = request.reclaims(locked, |ip| set.may_allocate(ip))?;
    let found = if can_retry { reserve_next(locked)? } else { None };
    found.ok_or_else(|| exhausted(set))
}

/// The first free address of a set for which `take` returns true.
fn find_free<'a>(
    locked: &mut Locked<'_>,
    set: &'a RangeSet,
    last_reserved: Option<IpAddr>,
    mut take: impl FnMut(&mut Locked<'_>, IpAddr) -> Result<bool>,
) -> Result<Option<(IpAddr, &'a Range)>> {
    for span in set.spans(last_reserved) {
        let mut from = Some(span.first);
        while let Some(ip) = from.and_then(|ip| span.first_allocatable(ip)) {
            if locked.may_be_free(ip)? && take(locked, ip)? {
                return Ok(Some((ip, span.range)));
            }
            from = span.after(ip);
        }
    }
    Ok(None)
}

/// The addresses whose holders keep an attachment from its addresses.
#[derive(Debug, Default)]
pub struct InTheWay {
    pub addresses: Vec<IpAddr>,
    /// They are those of range sets that have no free address, in the order in which they were allocated.
    pub are_of_full_sets: bool,
}

/// The addresses that the request lacks: requested ones that are taken, or else all addresses of the sets without a free one.
pub fn in_the_way(
    locked: &mut Locked<'_>,
    sets: &[RangeSet],
    requested: &[IpAddr],
    is_in_use: &dyn Fn(IpAddr) -> bool,
) -> Result<InTheWay> {
    let taken = locked.taken()?;
    let mut addresses: Vec<IpAddr> =
        requested.iter().copied().filter(|ip| taken.contains(ip)).collect();
    if !addresses.is_empty() {
        return Ok(InTheWay { addresses, are_of_full_sets: false });
    }
    for (index, set) in sets.iter().enumerate() {
        let is_requested = requested.iter().any(|ip| set.range_of(*ip).is_some());
        if is_requested || has_free(locked, (index, set), is_in_use)? {
            continue;
        }
        for span in set.spans(locked.last_reserved(index)?) {
            addresses.extend(taken.iter().copied().filter(|ip| span.may_allocate(*ip)));
        }
    }
    Ok(InTheWay { addresses, are_of_full_sets: true })
}

impl AllocationRequest<'_> {
    /// Releases stale reservations of selected addresses, if the request allows it. Returns whether there were any.
    fn reclaims(
        &self,
        locked: &mut Locked<'_>,
        is_wanted: impl Fn(IpAddr) -> bool,
    ) -> Result<bool> {
        match self.stale_on_boot {
            StaleOnBoot::Reclaim => locked.reclaim(is_wanted),
            StaleOnBoot::Keep => Ok(false),
        }
    }
}

/// Fails if a set has no free address for an ADD. `index` is that of the set.
pub fn check_not_exhausted(
    locked: &mut Locked<'_>,
    (index, set): (usize, &RangeSet),
    stale_on_boot: StaleOnBoot,
    is_in_use: &dyn Fn(IpAddr) -> bool,
) -> Result<()> {
    if has_free(locked, (index, set), is_in_use)?
        || stale_on_boot == StaleOnBoot::Reclaim && locked.can_reclaim(|ip| set.may_allocate(ip))?
    {
        return Ok(());
    }
    Err(exhausted(set))
}

fn has_free(
    locked: &mut Locked<'_>,
    (index, set): (usize, &RangeSet),
    is_in_use: &dyn Fn(IpAddr) -> bool,
) -> Result<bool> {
    let last_reserved = locked.last_reserved(index)?;
    let is_free = |locked: &mut Locked<'_>, ip| Ok(!is_in_use(ip) && locked.is_free(ip));
    Ok(find_free(locked, set, last_reserved, is_free)?.is_some())
}

fn exhausted(set: &RangeSet) -> Error {
    Error::internal(format_args!("no IP addresses available in range set: {set}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::cni::json::Json;
    use store::tests::{TempDir, attachment};

    use super::*;

    fn sets(text: &str) -> Vec<RangeSet> {
        let json = Json::parse(text.as_bytes()).unwrap();
        range::parse(&json.read::<Vec<_>>("ranges").unwrap(), &[]).unwrap()
    }

    fn request<'a>(sets: &'a [RangeSet], requested: &'a [IpAddr]) -> AllocationRequest<'a> {
        AllocationRequest {
            sets,
            requested,
            sticky: None,
            stale_on_boot: StaleOnBoot::Reclaim,
            is_in_use: &|_| false,
        }
    }

    /// Allocates as ADD does. Returns the addresses, or the message of the error.
    fn add(
        dir: &TempDir,
        sets: &[RangeSet],
        requested: &[&str],
        id: &str,
    ) -> Result<String, String> {
        let requested: Vec<IpAddr> = requested.iter().map(|ip| ip.parse().unwrap()).collect();
        let allocated = dir
            .store()
            .locked(|locked| allocate(locked, &request(sets, &requested), &attachment(id)));
        let addresses = allocated.map_err(|error| error.msg.clone())?;
        Ok(addresses.iter().map(|ip| ip.address.to_string()).collect::<Vec<_>>().join(" "))
    }

    fn del(dir: &TempDir, id: &str) {
        dir.store().locked(|locked| locked.release(&attachment(id))).unwrap();
    }

    #[test]
    fn addresses_are_allocated_in_a_circle() {
        let dir = TempDir::new();
        let sets = sets(r#"[[{"subnet":"10.0.0.0/29"}]]"#);
        for (id, ip) in [("c2", 2), ("c3", 3), ("c4", 4), ("c5", 5), ("c6", 6)] {
            assert_eq!(add(&dir, &sets, &[], id).unwrap(), format!("10.0.0.{ip}/29"));
        }
        assert_eq!(
            add(&dir, &sets, &[], "c7").unwrap_err(),
            "failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.6"
        );
        del(&dir, "c3");
        assert_eq!(add(&dir, &sets, &[], "c7").unwrap(), "10.0.0.3/29");
        assert_eq!(dir.read("last_reserved_ip.0"), "10.0.0.3");
        del(&dir, "c2");
        del(&dir, "c4");
        assert_eq!(add(&dir, &sets, &[], "c8").unwrap(), "10.0.0.4/29");
        assert_eq!(add(&dir, &sets, &[], "c9").unwrap(), "10.0.0.2/29");
    }

    #[test]
    fn the_ranges_of_a_set_are_one_pool() {
        let dir = TempDir::new();
        let sets = sets(
            r#"[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.2","rangeEnd":"10.0.0.4"},
                {"subnet":"10.0.1.0/24","rangeStart":"10.0.1.1","rangeEnd":"10.0.1.3","gateway":"10.0.1.1"}]]"#,
        );
        for ip in ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.1.2", "10.0.1.3"] {
            assert_eq!(add(&dir, &sets, &[], ip).unwrap(), format!("{ip}/24"));
        }
        assert!(
            add(&dir, &sets, &[], "more")
                .unwrap_err()
                .contains("10.0.0.2-10.0.0.4,10.0.1.1-10.0.1.3")
        );
    }

    #[test]
    fn requested_addresses_are_assigned_to_their_sets() {
        let dir = TempDir::new();
        let sets = sets(r#"[[{"subnet":"10.0.0.0/24"}],[{"subnet":"fd00::/64"}]]"#);
        assert_eq!(
            add(&dir, &sets, &["fd00::9", "10.0.0.9"], "a").unwrap(),
            "10.0.0.9/24 fd00::9/64"
        );
        assert_eq!(add(&dir, &sets, &["10.0.0.20"], "b").unwrap(), "10.0.0.20/24 fd00::a/64");
        assert_eq!(dir.read("last_reserved_ip.0"), "10.0.0.20");
        let cases = [
            (
                &["10.0.0.20"][..],
                "failed to allocate for range 0: requested IP address 10.0.0.20 is not available in range \
                 set 10.0.0.1-10.0.0.254",
            ),
            (
                &["10.0.0.30", "fd00::1"],
                "failed to allocate for range 1: requested ip fd00::1 is subnet's gateway",
            ),
            (
                &["10.0.0.30", "10.0.0.31", "192.168.0.1"],
                "failed to allocate all requested IPs: 10.0.0.31 192.168.0.1",
            ),
        ];
        for (requested, expected) in cases {
            assert_eq!(add(&dir, &sets, requested, "c").unwrap_err(), expected);
            let held = dir.store().locked(|locked| locked.held_by(&attachment("c"))).unwrap();
            assert!(held.is_empty(), "{requested:?} left {held:?}");
        }
    }

    #[test]
    fn an_attachment_gets_its_addresses_once() {
        let dir = TempDir::new();
        let both = sets(r#"[[{"subnet":"10.0.0.0/24"}],[{"subnet":"fd00::/64"}]]"#);
        add(&dir, &both[1..], &[], "a").unwrap();
        dir.write("10.0.0.7", "old\n");
        for requested in [&[][..], &["10.0.0.9"]] {
            for (id, ip) in [("a", "fd00::2"), ("old", "10.0.0.7")] {
                let error = add(&dir, &both, requested, id).unwrap_err();
                let expected =
                    format!("{ip} has been allocated to {id}, duplicate allocation is not allowed");
                assert!(error.contains(&expected), "{error}");
            }
        }
        assert_eq!(dir.names(), ["10.0.0.7", "fd00::2", "last_reserved_ip.0", "lock"]);
    }

    #[test]
    fn a_failing_set_releases_only_what_the_call_reserved() {
        let dir = TempDir::new();
        let few = sets(r#"[[{"subnet":"10.0.0.0/24"}],[{"subnet":"10.1.0.0/30"}]]"#);
        add(&dir, &few, &[], "first").unwrap();
        // An earlier reservation of the same container, outside of the configured sets.
        dir.write("10.9.0.1", "second\r\neth0");
        assert!(
            add(&dir, &few, &[], "second").unwrap_err().contains("range set: 10.1.0.1-10.1.0.2")
        );
        let addresses: Vec<String> =
            dir.names().into_iter().filter(|name| name.starts_with("10.")).collect();
        assert_eq!(addresses, ["10.0.0.2", "10.1.0.2", "10.9.0.1"]);
    }

    #[test]
    fn an_address_is_released_if_its_position_cannot_be_written() {
        let dir = TempDir::new();
        let sets = sets(r#"[[{"subnet":"10.0.0.0/24"}]]"#);
        dir.store();
        // A rename to a directory fails. The directory is created after the read of the position, which would fail, too.
        let path = dir.network_dir().join("last_reserved_ip.0");
        let result = dir.store().locked(|locked| {
            let result = locked.last_reserved(0);
            fs::create_dir(&path).unwrap();
            result.unwrap();
            let ip = "10.0.0.2".parse().unwrap();
            allocate(locked, &request(&sets, &[ip]), &attachment("a"))
        });
        let error = result.unwrap_err();
        assert_eq!(error.msg, "cannot record 10.0.0.2 as the last reserved address");
        assert!(error.details.contains("last_reserved_ip.0: "), "{error}");
        assert_eq!(dir.names(), ["last_reserved_ip.0", "lock"]);
    }

    #[test]
    fn sixteen_concurrent_adds_get_sixteen_addresses() {
        let dir = TempDir::new();
        let sets = sets(r#"[[{"subnet":"10.0.0.0/27"}],[{"subnet":"fd00::/64"}]]"#);
        let mut got: Vec<String> = std::thread::scope(|scope| {
            let (dir, sets) = (&dir, &sets);
            let add = |n: u32| scope.spawn(move || add(dir, sets, &[], &format!("c{n}")).unwrap());
            let threads: Vec<_> = (0..16).map(add).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        got.sort();
        got.dedup();
        assert_eq!(got.len(), 16);
        assert_eq!(dir.names().len(), 32 + 3);
    }

    #[test]
    fn exhaustion_is_found_without_a_walk_through_the_range() {
        let dir = TempDir::new();
        let small = sets(r#"[[{"subnet":"10.0.0.0/30"}],[{"subnet":"fd00::/64"}]]"#);
        let check = |index: usize| {
            let result = dir.store().locked(|locked| {
                let set = (index, &small[index]);
                check_not_exhausted(locked, set, StaleOnBoot::Reclaim, &|_| false)
            });
            result.map_err(|error| error.msg.clone())
        };
        // Reservations of the gateway and incomplete ones take no address.
        dir.write("10.0.0.1", "operator");
        dir.write("10.0.0.2", "");
        assert_eq!((check(0), check(1)), (Ok(()), Ok(())));
        dir.write("10.0.0.2", "abc\r\neth0");
        assert_eq!(
            check(0).unwrap_err(),
            "no IP addresses available in range set: 10.0.0.1-10.0.0.2"
        );
        assert_eq!(check(1), Ok(()));
    }
}
