//! `cnibox ipam`: the addresses of `host-local`, their owners, and the leaked ones.

use std::net::IpAddr;
use std::time::Duration;

use argh::FromArgs;

use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::ipam::store::listed::Holder;
use crate::kernel::sys::warn;
use crate::plugin::Entry;
use crate::runtime::lifecycle::Runtime;
use crate::runtime::reservations::{Judged, Pool, State, Use, title};

use super::parameters::{self, TIMEOUT_S, not_understood};
use super::{say, table};

/// List the addresses of host-local and their owners, release leaked ones, keep addresses out of use.
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
    /// of release and reserve
    #[argh(positional)]
    addresses: Vec<String>,
    /// the network, where several have the address
    #[argh(option)]
    network: Option<String>,
    /// release: all addresses of owners that are provably gone
    #[argh(switch)]
    leaks: bool,
    /// release: also what is alive or unknown
    #[argh(switch)]
    force: bool,
    /// release, reserve: tell what would be done, and do nothing
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
}

/// The widest line of a table.
const COLUMNS: usize = 80;
/// The digits of a container id that identify it for people.
const ID_DIGITS: usize = 12;

impl Ipam {
    pub(super) fn run(self, plugins: &'static [Entry]) -> Result<()> {
        let changes = matches!(self.action.as_str(), "release" | "reserve");
        if !matches!(self.action.as_str(), "list" | "leaks") && !changes {
            return Err(not_understood(format!(
                "ipam {}: not one of list, leaks, release, reserve",
                self.action
            )));
        }
        let is_release = self.action == "release";
        if (!is_release && (self.leaks || self.force)) || (!changes && self.dry_run) {
            return Err(not_understood(format!("ipam {}: it has no such option", self.action)));
        }
        if changes != (self.leaks || !self.addresses.is_empty()) {
            let rule = if changes { "ADDRESS is missing" } else { "it takes no ADDRESS" };
            return Err(not_understood(format!("ipam {}: {rule}", self.action)));
        }
        let addresses: Vec<IpAddr> =
            self.addresses.iter().map(|text| address(text)).collect::<Result<_>>()?;
        let runtime = parameters::runtime(plugins, TIMEOUT_S);
        let mut pools = runtime.survey()?.pools;
        if let Some(name) = &self.network {
            pools.retain(|pool| *pool.network == **name);
            if pools.is_empty() {
                let msg = format!("there is no network {name} with addresses of host-local");
                return Err(Error::config(msg));
            }
        }
        match self.action.as_str() {
            "list" => self.list(&pools),
            "leaks" => self.print_leaks(&pools),
            "release" => self.release(&runtime, &pools, &addresses),
            _ => self.reserve(&runtime, &pools, &addresses),
        }
    }

    fn list(&self, pools: &[Pool]) -> Result<()> {
        if self.json {
            let networks = Json::Array(pools.iter().map(pool_object).collect());
            say(&Json::object([("networks", Some(networks))]).to_pretty());
            return Ok(());
        }
        let ranges = pools.iter().flat_map(|pool| pool.ranges.iter().map(move |it| (pool, it)));
        let header = ["RANGE", "NETWORK", "SIZE", "USED", "FREE"];
        let row = |(pool, it): (&Pool, &Use)| {
            let [size, used, free] = [it.range.size(), it.used, it.free].map(number);
            [it.range.to_string(), pool.network.to_string(), size, used, free]
        };
        table::print_within(COLUMNS, &[0, 1], header, ranges.map(row));
        say("");
        let header = ["ADDRESS", "NETWORK", "OWNER", "POD", "AGE", "STATE"];
        let rows = all(pools).map(|(pool, it)| row_of(pool, it));
        table::print_within(COLUMNS, &[1, 2, 3], header, rows);
        for (pool, it) in all(pools) {
            if let State::Gone(reason) | State::Unknown(reason) = &it.state {
                let (state, title) = (state(&it.state), described(pool, it));
                warn(&format!("{title}: {state}: {reason}"));
            }
        }
        Ok(())
    }

    fn print_leaks(&self, pools: &[Pool]) -> Result<()> {
        let gone: Vec<(&Pool, &Judged)> = leaks(pools).collect();
        if self.json {
            let objects = gone.iter().map(|(pool, it)| object(pool, it)).collect();
            say(&Json::object([("leaks", Some(Json::Array(objects)))]).to_pretty());
            return Ok(());
        }
        gone.iter().for_each(|(pool, it)| say(&with_reason(pool, it)));
        Ok(())
    }

    fn release(&self, runtime: &Runtime, pools: &[Pool], addresses: &[IpAddr]) -> Result<()> {
        let mut errors = Vec::new();
        let mut wanted: Vec<(&Pool, &Judged)> = Vec::new();
        for address in addresses {
            match only(*address, all(pools).filter(|(_, it)| it.reservation.address == *address)) {
                Ok(found) => wanted.push(found),
                Err(error) => errors.push(error),
            }
        }
        if self.leaks {
            wanted.extend(leaks(pools));
        }
        let mut released = Vec::new();
        for (pool, it) in wanted {
            let done = self.refusal(pool, it).map_or(Ok(()), Err).and_then(|()| {
                let is_done = self.dry_run || runtime.release(pool, &it.reservation)?;
                let changed = || {
                    let address = it.reservation.address;
                    let msg =
                        format!("cannot release {address}: its reservation has changed meanwhile");
                    Error::internal(msg)
                };
                is_done.then_some(()).ok_or_else(changed)
            });
            match done {
                Ok(()) if self.json => released.push(object(pool, it)),
                Ok(()) => {
                    let done = if self.dry_run { "would release" } else { "released" };
                    say(&format!("{done} {}", with_reason(pool, it)));
                }
                Err(error) => errors.push(error),
            }
        }
        self.finish("released", released, errors)
    }

    /// The error of a release that needs --force.
    fn refusal(&self, pool: &Pool, it: &Judged) -> Option<Error> {
        let (is, reason) = match &it.state {
            State::Alive(reason) => ("is alive", reason),
            State::Unknown(reason) => ("may be alive", reason),
            State::Gone(_) | State::Reserved => return None,
        };
        let owner = title(&pool.network, &it.reservation.holder);
        let msg = format!("cannot release {}: {owner} {is}: {reason}", it.reservation.address);
        (!self.force).then(|| Error::internal(msg).with_details("--force releases it"))
    }

    fn reserve(&self, runtime: &Runtime, pools: &[Pool], addresses: &[IpAddr]) -> Result<()> {
        let (mut reserved, mut errors) = (Vec::new(), Vec::new());
        for address in addresses {
            let has = |pool: &&Pool| pool.ranges.iter().any(|it| it.range.contains(*address));
            let candidates = pools.iter().filter(has).map(|pool| (pool, ()));
            let done = only(*address, candidates).and_then(|(pool, ())| {
                let held = pool.reservations.iter().find(|it| it.reservation.address == *address);
                let owner = held
                    .map_or_else(String::new, |it| title(&pool.network, &it.reservation.holder));
                if held.is_none() && (self.dry_run || runtime.reserve(pool, *address)?) {
                    return Ok(pool);
                }
                let msg = format!("cannot reserve {address}: it is taken");
                Err(Error::internal(msg).with_details(owner))
            });
            match done {
                Ok(pool) if self.json => reserved.push(Json::object([
                    ("network", Some(pool.network.to_string().into())),
                    ("address", Some(address.to_string().into())),
                ])),
                Ok(pool) => {
                    let done = if self.dry_run { "would reserve" } else { "reserved" };
                    say(&format!("{done} {address} of network {}", pool.network));
                }
                Err(error) => errors.push(error),
            }
        }
        self.finish("reserved", reserved, errors)
    }

    fn finish(&self, key: &str, changed: Vec<Json>, errors: Vec<Error>) -> Result<()> {
        if self.json {
            let dry_run = Some(Json::Bool(self.dry_run));
            say(&Json::object([("dryRun", dry_run), (key, Some(Json::Array(changed)))]).to_pretty());
        }
        errors.into_iter().reduce(|first, error| first.also(&error)).map_or(Ok(()), Err)
    }
}

fn address(text: &str) -> Result<IpAddr> {
    text.parse().map_err(|_| not_understood(format!("{text:?} is not an IP address")))
}

fn all(pools: &[Pool]) -> impl Iterator<Item = (&Pool, &Judged)> {
    pools.iter().flat_map(|pool| pool.reservations.iter().map(move |it| (pool, it)))
}

fn leaks(pools: &[Pool]) -> impl Iterator<Item = (&Pool, &Judged)> {
    all(pools).filter(|(_, it)| matches!(it.state, State::Gone(_)))
}

/// The network of an address, which has to be the only one.
fn only<'a, T>(
    address: IpAddr,
    mut found: impl Iterator<Item = (&'a Pool, T)>,
) -> Result<(&'a Pool, T)> {
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(Error::config(format!("cannot find {address} in any network"))),
        (Some((one, _)), Some((other, _))) => {
            let msg = format!("{address} is in networks {} and {}", one.network, other.network);
            Err(Error::config(msg).with_details("--network selects one"))
        }
    }
}

fn described(pool: &Pool, it: &Judged) -> String {
    format!("{} of {}", it.reservation.address, title(&pool.network, &it.reservation.holder))
}

fn with_reason(pool: &Pool, it: &Judged) -> String {
    match &it.state {
        State::Alive(reason) | State::Gone(reason) | State::Unknown(reason) => {
            format!("{}: {reason}", described(pool, it))
        }
        State::Reserved => described(pool, it),
    }
}

pub(super) fn state(state: &State) -> &'static str {
    match state {
        State::Alive(_) => "alive",
        State::Gone(_) => "gone",
        State::Unknown(_) => "unknown",
        State::Reserved => "reserved",
    }
}

fn row_of(pool: &Pool, it: &Judged) -> [String; 6] {
    let owner = match &it.reservation.holder {
        Holder::Container(id, ifname) => {
            let ifname = ifname.as_ref().map_or_else(String::new, |it| format!("{it}@"));
            ifname + id.get(..ID_DIGITS).unwrap_or(id)
        }
        Holder::Operator => String::new(),
        Holder::Other(text) => text.clone(),
    };
    let pod = it.pod.as_ref().map(|(namespace, name)| format!("{namespace}/{name}"));
    [
        it.reservation.address.to_string(),
        pool.network.to_string(),
        owner,
        pod.unwrap_or_default(),
        it.age.map(age).unwrap_or_default(),
        state(&it.state).into(),
    ]
}

/// A number of addresses for people. One with too many digits for a table is a power of two, rounded.
fn number(number: u64) -> String {
    if number < 1 << 32 { number.to_string() } else { format!("~2^{}", (number - 1).ilog2() + 1) }
}

/// The largest unit that fits: `59s`, `59m`, `47h`, `300d`.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (count, unit) = match seconds {
        0..120 => (seconds, 's'),
        120..7200 => (seconds / 60, 'm'),
        7200..172_800 => (seconds / 3600, 'h'),
        _ => (seconds / 86400, 'd'),
    };
    format!("{count}{unit}")
}

fn pool_object(pool: &Pool) -> Json {
    let range = |it: &Use| {
        Json::object([
            ("subnet", Some(it.range.subnet.to_string().into())),
            ("first", Some(it.range.first.to_string().into())),
            ("last", Some(it.range.last.to_string().into())),
            ("size", Some(it.range.size().into())),
            ("used", Some(it.used.into())),
            ("free", Some(it.free.into())),
        ])
    };
    Json::object([
        ("name", Some(pool.network.to_string().into())),
        ("dataDir", Some(pool.data_dir.to_string_lossy().as_ref().into())),
        ("configured", Some(Json::Bool(pool.is_configured))),
        ("ranges", Some(Json::Array(pool.ranges.iter().map(range).collect()))),
        (
            "reservations",
            Some(Json::Array(pool.reservations.iter().map(|it| object(pool, it)).collect())),
        ),
    ])
}

fn object(pool: &Pool, it: &Judged) -> Json {
    let text = |text: &str| Some(Json::from(text));
    let (id, ifname, owner) = match &it.reservation.holder {
        Holder::Container(id, ifname) => (text(id), ifname.as_ref().and_then(|it| text(it)), None),
        Holder::Operator => (None, None, None),
        Holder::Other(owner) => (None, None, text(owner)),
    };
    let pod = it.pod.as_ref().map(|(namespace, name)| {
        Json::object([("namespace", text(namespace)), ("name", text(name))])
    });
    let reason = match &it.state {
        State::Alive(reason) | State::Gone(reason) | State::Unknown(reason) => text(reason),
        State::Reserved => None,
    };
    Json::object([
        ("network", text(&pool.network)),
        ("address", text(&it.reservation.address.to_string())),
        ("containerID", id),
        ("ifname", ifname),
        ("owner", owner),
        ("pod", pod),
        ("ageSeconds", it.age.map(|age| age.as_secs().into())),
        ("state", text(state(&it.state))),
        ("reason", reason),
    ])
}
