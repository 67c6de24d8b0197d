//! `cnibox ipam`: lists the reservations of `host-local` with their owners, releases leaked ones, and reserves addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use argh::{ArgsInfo, FromArgs};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::ipam::store::listed::Holder;
use crate::kernel::sys::warn;
use crate::names::{ContainerId, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::reservations::{OwnedReservation, OwnerState, Pod, Pool, RangeUse, Survey};

use super::output::{Done, print_json, print_json_list, print_line, usage_error};
use super::parameters::TIMEOUT_S;
use super::podman;
use super::table::Table;

/// List the addresses of host-local and their owners, release leaked addresses, reserve addresses.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "ipam",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} list mynet",
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
    /// release, reserve: the addresses; list, leaks: only this network
    #[argh(positional, arg_name = "addresses|network")]
    operands: Vec<String>,
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
    #[argh(switch, short = 'n')]
    dry_run: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
}

/// The widest line of a table.
const COLUMNS: usize = 80;
/// The digits of a container id that a table shows.
const ID_DIGITS: usize = 12;

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
        if changes && !self.leaks && self.operands.is_empty() {
            return Err(invalid("ADDRESS is missing"));
        }
        let (network, addresses) = match (self.operands.as_slice(), &self.network) {
            (addresses, network) if changes => (network.as_ref(), addresses),
            ([], network) => (network.as_ref(), &[][..]),
            ([network], None) if network.parse::<IpAddr>().is_err() => (Some(network), &[][..]),
            _ => return Err(invalid("it takes one NETWORK and no ADDRESS")),
        };
        let addresses = addresses.iter().map(|text| address(text));
        let addresses = addresses.collect::<Result<Vec<IpAddr>>>()?;
        let runtime = podman::runtime(TIMEOUT_S);
        let mut survey = runtime.survey()?;
        if let Some(name) = network {
            survey.pools.retain(|pool| *pool.network == **name);
            if survey.pools.is_empty() {
                return Err(Error::config(format_args!(
                    "there is no network {name} with addresses of host-local"
                )));
            }
        }
        match action {
            "list" => self.list(&survey),
            "leaks" => self.print_leaks(&survey),
            "release" => self.release(&runtime, &survey, &addresses)?,
            _ => self.reserve(&runtime, &survey.pools, &addresses)?,
        }
        Ok(0)
    }

    fn list(&self, survey: &Survey) {
        if self.json {
            return print_json_list("networks", &survey.pools);
        }
        let mut table = Table::new("RANGE NETWORK SIZE USED FREE");
        for pool in &survey.pools {
            for RangeUse { range, size, used, free } in &pool.ranges {
                let [size, used, free] = [*size, *used, *free].map(number);
                table.row(&[range, &pool.network, &size, &used, &free]);
            }
        }
        table.print_within(COLUMNS, &[0, 1]);
        print_line("");
        let mut table = Table::new("ADDRESS NETWORK OWNER POD AGE STATE");
        for owned in survey.reservations() {
            add_row(&mut table, owned);
        }
        table.print_within(COLUMNS, &[1, 2, 3]);
        for owned in survey.reservations() {
            if let OwnerState::Gone(reason) | OwnerState::Unknown(reason) = &owned.state {
                warn(format_args!("{}: {}: {reason}", owned.title(), owned.state.text()));
            }
        }
    }

    fn print_leaks(&self, survey: &Survey) {
        let leaks: Vec<&OwnedReservation> = survey.leaks().map(|(owned, _)| owned).collect();
        if self.json {
            return print_json_list("leaks", &leaks);
        }
        leaks.into_iter().map(with_reason).for_each(print_line);
    }

    fn release(&self, runtime: &Runtime, survey: &Survey, addresses: &[IpAddr]) -> Result<()> {
        let find = |address: &IpAddr| {
            let with_address =
                survey.reservations().filter(|owned| owned.reservation.address == *address);
            only_one(*address, with_address.map(|owned| (&owned.network, owned)))
        };
        let mut selected: Vec<Result<&OwnedReservation>> = addresses.iter().map(find).collect();
        if self.leaks {
            selected.extend(survey.leaks().map(|(owned, _)| Ok(owned)));
        }
        self.print_changes(
            "release",
            selected.into_iter().map(|owned| {
                let owned = owned?;
                self.release_one(runtime, owned)?;
                Ok((owned, with_reason(owned)))
            }),
        )
    }

    /// Releases an address. Fails if the release needs --force, and it is not given.
    fn release_one(&self, runtime: &Runtime, owned: &OwnedReservation) -> Result<()> {
        let address = owned.reservation.address;
        let unproven = match &owned.state {
            OwnerState::Alive(reason) => Some(("is alive", reason)),
            OwnerState::Unknown(reason) => Some(("may be alive", reason)),
            OwnerState::Gone(_) | OwnerState::Reserved => None,
        };
        if let Some((is, reason)) = unproven.filter(|_| !self.force) {
            let msg = format!("cannot release {address}: {} {is}: {reason}", owned.owner());
            return Err(Error::internal(msg).with_details("--force releases it"));
        }
        if self.dry_run || runtime.release(owned)? {
            return Ok(());
        }
        let msg = format!("cannot release {address}: its reservation has changed meanwhile");
        Err(Error::internal(msg))
    }

    fn reserve(&self, runtime: &Runtime, pools: &[Pool], addresses: &[IpAddr]) -> Result<()> {
        self.print_changes(
            "reserve",
            addresses.iter().map(|&address| {
                let network = &self.reserve_one(runtime, pools, address)?.network;
                let line = format!("{address} of network {network}");
                Ok((ReservedAddress { network, address }, line))
            }),
        )
    }

    /// Makes changes of reservations, and prints each one after it is made, or all in one JSON document: what was done, or what
    /// would be done in a dry run. Goes on after an error, and returns all errors.
    fn print_changes<T: Serialize>(
        &self,
        verb: &str,
        changes: impl Iterator<Item = Result<(T, String)>>,
    ) -> Result<()> {
        let (would, past) = if self.dry_run { ("would ", "") } else { ("", "d") };
        let (mut changed, mut errors) = (Vec::new(), Vec::new());
        for change in changes {
            match change {
                Ok((reservation, _)) if self.json => changed.push(reservation),
                Ok((_, line)) => print_line(format_args!("{would}{verb}{past} {line}")),
                Err(error) => errors.push(error),
            }
        }
        if self.json {
            let done = BTreeMap::from([(format!("{verb}d"), changed)]);
            print_json(&Done { dry_run: self.dry_run, done });
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
        let with_address = pools.iter().filter(has);
        let pool = only_one(address, with_address.map(|pool| (&pool.network, pool)))?;
        let held = pool.reservations.iter().find(|owned| owned.reservation.address == address);
        if held.is_none() && (self.dry_run || runtime.reserve(pool, address)?) {
            return Ok(pool);
        }
        let owner = held.map(OwnedReservation::owner);
        let msg = format!("cannot reserve {address}: it is taken");
        Err(Error::internal(msg).with_details(owner.unwrap_or_default()))
    }
}

fn address(text: &str) -> Result<IpAddr> {
    text.parse().map_err(|_| usage_error(format!("{text:?} is not an IP address")))
}

/// What the only network with the address has. Fails unless it is exactly one.
fn only_one<'a, T>(
    address: IpAddr,
    mut found: impl Iterator<Item = (&'a NetworkName, T)>,
) -> Result<T> {
    match (found.next(), found.next()) {
        (Some((_, found)), None) => Ok(found),
        (Some((one, _)), Some((other, _))) => {
            let msg = format!("{address} is in networks {one} and {other}");
            Err(Error::config(msg).with_details("--network selects one"))
        }
        (None, _) => Err(Error::config(format_args!("cannot find {address} in any network"))),
    }
}

fn with_reason(owned: &OwnedReservation) -> String {
    match owned.state.reason() {
        Some(reason) => format!("{}: {reason}", owned.title()),
        None => owned.title(),
    }
}

fn add_row(table: &mut Table, owned: &OwnedReservation) {
    let short = |id: &ContainerId| id.get(..ID_DIGITS).unwrap_or(id).to_owned();
    let owner = match &owned.reservation.holder {
        Holder::Container { id, ifname: Some(ifname) } => format!("{ifname}@{}", short(id)),
        Holder::Container { id, ifname: None } => short(id),
        Holder::Operator => String::new(),
        Holder::Other { owner } => owner.clone(),
    };
    let pod = owned.pod.as_ref().map(|Pod { namespace, name }| format!("{namespace}/{name}"));
    table.row(&[
        &owned.reservation.address,
        &owned.network,
        &owner,
        &pod.unwrap_or_default(),
        &owned.age_seconds.map(age).unwrap_or_default(),
        &owned.state.text(),
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

/// An address in the output of `reserve --json`.
#[derive(Serialize)]
struct ReservedAddress<'a> {
    network: &'a NetworkName,
    address: IpAddr,
}
