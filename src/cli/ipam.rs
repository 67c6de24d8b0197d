//! `cnibox ipam`: lists the reservations of `host-local` with their owners, releases leaked ones, and reserves addresses.

use std::borrow::Cow;
use std::net::IpAddr;

use argh::FromArgs;
use ipnet::IpNet;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::ipam::store::listed::Holder;
use crate::kernel::sys::warn;
use crate::names::NetworkName;
use crate::runtime::Runtime;
use crate::runtime::reservations::{OwnedReservation, OwnerState, Pool, RangeUse, title};

use super::output::{print_json, print_json_list, print_line, usage_error};
use super::parameters::{self, TIMEOUT_S};
use super::table::Table;

/// List the addresses of host-local and their owners, release leaked addresses, reserve addresses.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "ipam",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} list",
    example = "{command_name} leaks",
    example = "{command_name} release --leaks",
    example = "{command_name} release 10.89.0.7",
    example = "{command_name} reserve 10.89.0.200",
    note = "An owner is alive if its address or its alias is on a link of the host or of a container, or if the cache has its living attachment. It is gone if that is proven, and unknown otherwise."
)]
pub(super) struct Ipam {
    /// list, leaks, release or reserve
    #[argh(positional)]
    action: String,
    /// the addresses to release or to reserve
    #[argh(positional)]
    addresses: Vec<String>,
    /// only this network; release and reserve need it if several networks have the address
    #[argh(option)]
    network: Option<String>,
    /// release: all addresses of owners that are provably gone
    #[argh(switch)]
    leaks: bool,
    /// release: also addresses whose owner is alive or unknown
    #[argh(switch)]
    force: bool,
    /// release, reserve: print what would be done, and do nothing
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
}

/// The widest line of a table.
const COLUMNS: usize = 80;
/// The digits of a container id that a table shows.
const ID_DIGITS: usize = 12;

/// The reservations of all pools.
type Reservations<'a> = Vec<(&'a Pool, &'a OwnedReservation)>;

impl Ipam {
    pub(super) fn run(&self) -> Result<u8> {
        let action = self.action.as_str();
        let invalid = |reason: &str| usage_error(format_args!("ipam {action}: {reason}"));
        let changes = matches!(action, "release" | "reserve");
        if !matches!(action, "list" | "leaks") && !changes {
            return Err(invalid("not one of list, leaks, release, reserve"));
        }
        let is_release = action == "release";
        if (!is_release && (self.leaks || self.force)) || (!changes && self.dry_run) {
            return Err(invalid("it has no such option"));
        }
        if changes != (self.leaks || !self.addresses.is_empty()) {
            let reason = if changes { "ADDRESS is missing" } else { "it takes no ADDRESS" };
            return Err(invalid(reason));
        }
        let addresses = self.addresses.iter().map(|text| address(text));
        let addresses = addresses.collect::<Result<Vec<IpAddr>>>()?;
        let runtime = parameters::runtime(TIMEOUT_S);
        let mut pools = runtime.survey()?.pools;
        if let Some(name) = &self.network {
            pools.retain(|pool| *pool.network == **name);
            if pools.is_empty() {
                return Err(Error::config(format_args!(
                    "there is no network {name} with addresses of host-local"
                )));
            }
        }
        match action {
            "list" => self.list(&pools),
            "leaks" => self.print_leaks(&pools),
            "release" => self.release(&runtime, &pools, &addresses)?,
            _ => self.reserve(&runtime, &pools, &addresses)?,
        }
        Ok(0)
    }

    fn list(&self, pools: &[Pool]) {
        if self.json {
            let networks: Vec<ShownNetwork<'_>> = pools.iter().map(ShownNetwork::new).collect();
            return print_json_list("networks", &networks);
        }
        let mut table = Table::new("RANGE NETWORK SIZE USED FREE");
        for pool in pools {
            for RangeUse { range, used, free } in &pool.ranges {
                let [size, used, free] = [range.size(), *used, *free].map(number);
                table.row(&[range, &pool.network, &size, &used, &free]);
            }
        }
        table.print_within(COLUMNS, &[0, 1]);
        print_line("");
        let mut table = Table::new("ADDRESS NETWORK OWNER POD AGE STATE");
        let all = all(pools);
        for (pool, owned) in &all {
            add_row(&mut table, &ShownReservation::new(pool, owned));
        }
        table.print_within(COLUMNS, &[1, 2, 3]);
        for (pool, owned) in all {
            if let OwnerState::Gone(reason) | OwnerState::Unknown(reason) = &owned.state {
                let (state, title) = (state(&owned.state), described(pool, owned));
                warn(format_args!("{title}: {state}: {reason}"));
            }
        }
    }

    fn print_leaks(&self, pools: &[Pool]) {
        let leaks = leaks(pools);
        if self.json {
            let shown: Vec<ShownReservation<'_>> =
                leaks.iter().map(|(pool, owned)| ShownReservation::new(pool, owned)).collect();
            return print_json_list("leaks", &shown);
        }
        for (pool, owned) in leaks {
            print_line(with_reason(pool, owned));
        }
    }

    fn release(&self, runtime: &Runtime, pools: &[Pool], addresses: &[IpAddr]) -> Result<()> {
        let (mut released, mut errors) = (Vec::new(), Vec::new());
        let mut selected = Reservations::new();
        for address in addresses {
            let mut found = all(pools);
            found.retain(|(_, owned)| owned.reservation.address == *address);
            match only_network(*address, found.iter().map(|(pool, _)| *pool)) {
                Ok(_) => selected.extend(found),
                Err(error) => errors.push(error),
            }
        }
        if self.leaks {
            selected.extend(leaks(pools));
        }
        for (pool, owned) in selected {
            match self.release_one(runtime, pool, owned) {
                Ok(()) if self.json => released.push(ShownReservation::new(pool, owned)),
                Ok(()) => self.print_change("release", &with_reason(pool, owned)),
                Err(error) => errors.push(error),
            }
        }
        if self.json {
            print_json(&Changed {
                dry_run: self.dry_run,
                released: Some(released),
                reserved: None,
            });
        }
        Error::joined(errors)
    }

    /// Releases an address. Fails if the release needs --force, and it is not given.
    fn release_one(&self, runtime: &Runtime, pool: &Pool, owned: &OwnedReservation) -> Result<()> {
        let address = owned.reservation.address;
        let unproven = match &owned.state {
            OwnerState::Alive(reason) => Some(("is alive", reason)),
            OwnerState::Unknown(reason) => Some(("may be alive", reason)),
            OwnerState::Gone(_) | OwnerState::Reserved => None,
        };
        if let Some((is, reason)) = unproven.filter(|_| !self.force) {
            let owner = title(&pool.network, &owned.reservation.holder);
            let msg = format!("cannot release {address}: {owner} {is}: {reason}");
            return Err(Error::internal(msg).with_details("--force releases it"));
        }
        if self.dry_run || runtime.release(pool, &owned.reservation)? {
            return Ok(());
        }
        let msg = format!("cannot release {address}: its reservation has changed meanwhile");
        Err(Error::internal(msg))
    }

    /// Prints what was done to a reservation, or would be done in a dry run.
    fn print_change(&self, verb: &str, text: &str) {
        let (would, past) = if self.dry_run { ("would ", " ") } else { ("", "d ") };
        print_line(format_args!("{would}{verb}{past}{text}"));
    }

    fn reserve(&self, runtime: &Runtime, pools: &[Pool], addresses: &[IpAddr]) -> Result<()> {
        let (mut reserved, mut errors) = (Vec::new(), Vec::new());
        for address in addresses {
            match self.reserve_one(runtime, pools, *address) {
                Ok(pool) if self.json => {
                    reserved.push(ReservedAddress { network: &pool.network, address: *address });
                }
                Ok(pool) => {
                    self.print_change("reserve", &format!("{address} of network {}", pool.network));
                }
                Err(error) => errors.push(error),
            }
        }
        if self.json {
            print_json(&Changed {
                dry_run: self.dry_run,
                released: None,
                reserved: Some(reserved),
            });
        }
        Error::joined(errors)
    }

    fn reserve_one<'a>(
        &self,
        runtime: &Runtime,
        pools: &'a [Pool],
        address: IpAddr,
    ) -> Result<&'a Pool> {
        let has = |pool: &&Pool| pool.ranges.iter().any(|usage| usage.range.contains(address));
        let pool = only_network(address, pools.iter().filter(has))?;
        let held = pool.reservations.iter().find(|owned| owned.reservation.address == address);
        if held.is_none() && (self.dry_run || runtime.reserve(pool, address)?) {
            return Ok(pool);
        }
        let owner = held.map(|held| title(&pool.network, &held.reservation.holder));
        let msg = format!("cannot reserve {address}: it is taken");
        Err(Error::internal(msg).with_details(owner.unwrap_or_default()))
    }
}

fn address(text: &str) -> Result<IpAddr> {
    text.parse().map_err(|_| usage_error(format!("{text:?} is not an IP address")))
}

fn all(pools: &[Pool]) -> Reservations<'_> {
    let pools = pools.iter();
    pools.flat_map(|pool| pool.reservations.iter().map(move |owned| (pool, owned))).collect()
}

fn leaks(pools: &[Pool]) -> Reservations<'_> {
    let mut leaks = all(pools);
    leaks.retain(|(_, owned)| matches!(owned.state, OwnerState::Gone(_)));
    leaks
}

/// The network that has the address. Fails unless it is exactly one.
fn only_network<'a>(
    address: IpAddr,
    mut pools: impl Iterator<Item = &'a Pool>,
) -> Result<&'a Pool> {
    match (pools.next(), pools.next()) {
        (Some(pool), None) => Ok(pool),
        (Some(one), Some(other)) => {
            let msg = format!("{address} is in networks {} and {}", one.network, other.network);
            Err(Error::config(msg).with_details("--network selects one"))
        }
        (None, _) => Err(Error::config(format_args!("cannot find {address} in any network"))),
    }
}

fn described(pool: &Pool, owned: &OwnedReservation) -> String {
    format!("{} of {}", owned.reservation.address, title(&pool.network, &owned.reservation.holder))
}

fn with_reason(pool: &Pool, owned: &OwnedReservation) -> String {
    match reason(&owned.state) {
        Some(reason) => format!("{}: {reason}", described(pool, owned)),
        None => described(pool, owned),
    }
}

fn reason(state: &OwnerState) -> Option<&str> {
    match state {
        OwnerState::Alive(reason) | OwnerState::Gone(reason) | OwnerState::Unknown(reason) => {
            Some(reason)
        }
        OwnerState::Reserved => None,
    }
}

pub(super) fn state(state: &OwnerState) -> &'static str {
    match state {
        OwnerState::Alive(_) => "alive",
        OwnerState::Gone(_) => "gone",
        OwnerState::Unknown(_) => "unknown",
        OwnerState::Reserved => "reserved",
    }
}

fn add_row(table: &mut Table, shown: &ShownReservation<'_>) {
    let id = shown.container_id.map(|id| id.get(..ID_DIGITS).unwrap_or(id));
    let owner = match (id, shown.ifname) {
        (Some(id), Some(ifname)) => format!("{ifname}@{id}"),
        (id, _) => id.or(shown.owner).unwrap_or_default().into(),
    };
    let pod = shown.pod.as_ref().map(|Pod { namespace, name }| format!("{namespace}/{name}"));
    let age = shown.age_seconds.map(age);
    table.row(&[
        &shown.address,
        &shown.network,
        &owner,
        &pod.unwrap_or_default(),
        &age.unwrap_or_default(),
        &shown.state,
    ]);
}

/// A number of addresses in a table. From 2^32 on, it is printed as a power of two, rounded up.
fn number(number: u64) -> String {
    if number < 1 << 32 { number.to_string() } else { format!("~2^{}", (number - 1).ilog2() + 1) }
}

/// An age in the largest unit that fits: `59s`, `59m`, `47h`, `300d`.
fn age(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..120 => (seconds, 's'),
        120..7200 => (seconds / 60, 'm'),
        7200..172_800 => (seconds / 3600, 'h'),
        _ => (seconds / 86400, 'd'),
    };
    format!("{count}{unit}")
}

/// The output of `list --json`: a network with its ranges and reservations.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownNetwork<'a> {
    name: &'a NetworkName,
    data_dir: Cow<'a, str>,
    configured: bool,
    ranges: Vec<ShownRange>,
    reservations: Vec<ShownReservation<'a>>,
}

#[derive(Serialize)]
struct ShownRange {
    subnet: IpNet,
    first: IpAddr,
    last: IpAddr,
    size: u64,
    used: u64,
    free: u64,
}

/// The output of `release --json` and `reserve --json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Changed<'a> {
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<Vec<ShownReservation<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<Vec<ReservedAddress<'a>>>,
}

#[derive(Serialize)]
struct ReservedAddress<'a> {
    network: &'a NetworkName,
    address: IpAddr,
}

/// A reservation in the output of --json. A key without a known value is left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownReservation<'a> {
    network: &'a NetworkName,
    address: IpAddr,
    #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
    container_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ifname: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<Pod<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<u64>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct Pod<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl<'a> ShownNetwork<'a> {
    fn new(pool: &'a Pool) -> Self {
        let range = |RangeUse { range, used, free }: &RangeUse| ShownRange {
            subnet: range.subnet,
            first: range.first,
            last: range.last,
            size: range.size(),
            used: *used,
            free: *free,
        };
        let reservation = |owned| ShownReservation::new(pool, owned);
        Self {
            name: &pool.network,
            data_dir: pool.data_dir.to_string_lossy(),
            configured: pool.is_configured,
            ranges: pool.ranges.iter().map(range).collect(),
            reservations: pool.reservations.iter().map(reservation).collect(),
        }
    }
}

impl<'a> ShownReservation<'a> {
    fn new(pool: &'a Pool, owned: &'a OwnedReservation) -> Self {
        let (container_id, ifname, owner) = match &owned.reservation.holder {
            Holder::Container(id, ifname) => (Some(&**id), ifname.as_deref(), None),
            Holder::Operator => (None, None, None),
            Holder::Other(owner) => (None, None, Some(owner.as_str())),
        };
        Self {
            network: &pool.network,
            address: owned.reservation.address,
            container_id,
            ifname,
            owner,
            pod: owned.pod.as_ref().map(|(namespace, name)| Pod { namespace, name }),
            age_seconds: owned.age.map(|age| age.as_secs()),
            state: state(&owned.state),
            reason: reason(&owned.state),
        }
    }
}
