//! `cnibox ipam`: the addresses of `host-local`, their owners, and the leaked ones.

use std::net::IpAddr;
use std::time::Duration;

use argh::FromArgs;

use crate::cni::json::{Json, Object};
use crate::error::{Error, Result};
use crate::ipam::store::listed::Holder;
use crate::kernel::sys::warn;
use crate::plugin::Entry;
use crate::runtime::lifecycle::Runtime;
use crate::runtime::reservations::{Judged, Pool, State, Use, title};

use super::not_understood;
use super::parameters::{self, TIMEOUT_S};
use super::say;
use super::table::Table;

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

/// The reservations of all pools.
type Reservations<'a> = Vec<(&'a Pool, &'a Judged)>;

impl Ipam {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let action = self.action.as_str();
        let wrong = |what: &str| not_understood(["ipam ", action, ": ", what].concat());
        let changes = matches!(action, "release" | "reserve");
        if !matches!(action, "list" | "leaks") && !changes {
            return Err(wrong("not one of list, leaks, release, reserve"));
        }
        let is_release = action == "release";
        if (!is_release && (self.leaks || self.force)) || (!changes && self.dry_run) {
            return Err(wrong("it has no such option"));
        }
        if changes != (self.leaks || !self.addresses.is_empty()) {
            return Err(wrong(if changes { "ADDRESS is missing" } else { "it takes no ADDRESS" }));
        }
        let mut addresses = Vec::new();
        for text in &self.addresses {
            addresses.push(address(text)?);
        }
        let runtime = parameters::runtime(plugins, TIMEOUT_S);
        let mut pools = runtime.survey()?.pools;
        if let Some(name) = &self.network {
            pools.retain(|pool| *pool.network == **name);
            if pools.is_empty() {
                let msg = format!("there is no network {name} with addresses of host-local");
                return Err(Error::config(msg));
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
            let mut networks = Vec::new();
            for pool in pools {
                networks.push(pool_object(pool));
            }
            return super::say_json(Object::default().list("networks", networks));
        }
        let mut table = Table::new(&["RANGE", "NETWORK", "SIZE", "USED", "FREE"]);
        for pool in pools {
            for it in &pool.ranges {
                let [size, used, free] = [it.range.size(), it.used, it.free].map(number);
                table.row(&[&it.range, &pool.network, &size, &used, &free]);
            }
        }
        table.print_within(COLUMNS, &[0, 1]);
        say("");
        let mut table = Table::new(&["ADDRESS", "NETWORK", "OWNER", "POD", "AGE", "STATE"]);
        let all = all(pools);
        for (pool, it) in &all {
            add_row(&mut table, pool, it);
        }
        table.print_within(COLUMNS, &[1, 2, 3]);
        for (pool, it) in all {
            if let State::Gone(reason) | State::Unknown(reason) = &it.state {
                let (state, title) = (state(&it.state), described(pool, it));
                warn(format_args!("{title}: {state}: {reason}"));
            }
        }
    }

    fn print_leaks(&self, pools: &[Pool]) {
        let mut objects = Vec::new();
        for (pool, it) in leaks(pools) {
            if self.json {
                objects.push(object(pool, it));
            } else {
                say(&with_reason(pool, it));
            }
        }
        if self.json {
            super::say_json(Object::default().list("leaks", objects));
        }
    }

    fn release(&self, runtime: &Runtime, pools: &[Pool], addresses: &[IpAddr]) -> Result<()> {
        let (mut released, mut errors) = (Vec::new(), Vec::new());
        let mut wanted = Reservations::new();
        for address in addresses {
            let mut found = all(pools);
            found.retain(|(_, it)| it.reservation.address == *address);
            match only(*address, &found) {
                Ok(()) => wanted.extend(found),
                Err(error) => errors.push(error),
            }
        }
        if self.leaks {
            wanted.extend(leaks(pools));
        }
        for (pool, it) in wanted {
            match self.release_one(runtime, pool, it) {
                Ok(()) if self.json => released.push(object(pool, it)),
                Ok(()) => self.tell("release", &with_reason(pool, it)),
                Err(error) => errors.push(error),
            }
        }
        self.finish("released", released, errors)
    }

    fn release_one(&self, runtime: &Runtime, pool: &Pool, it: &Judged) -> Result<()> {
        if let Some(error) = self.refusal(pool, it) {
            return Err(error);
        }
        if self.dry_run || runtime.release(pool, &it.reservation)? {
            return Ok(());
        }
        let address = it.reservation.address;
        let msg = format!("cannot release {address}: its reservation has changed meanwhile");
        Err(Error::internal(msg))
    }

    /// A line about what was done, or would be done.
    fn tell(&self, verb: &str, text: &str) {
        let (would, past) = if self.dry_run { ("would ", " ") } else { ("", "d ") };
        say(&[would, verb, past, text].concat());
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
            match self.reserve_one(runtime, pools, *address) {
                Ok(pool) if self.json => {
                    let mut object = Object::default();
                    object.text("network", &pool.network).text("address", address);
                    reserved.push(object.json());
                }
                Ok(pool) => {
                    self.tell("reserve", &format!("{address} of network {}", pool.network));
                }
                Err(error) => errors.push(error),
            }
        }
        self.finish("reserved", reserved, errors)
    }

    fn reserve_one<'a>(
        &self,
        runtime: &Runtime,
        pools: &'a [Pool],
        address: IpAddr,
    ) -> Result<&'a Pool> {
        let mut found = Vec::new();
        for pool in pools {
            if pool.ranges.iter().any(|it| it.range.contains(address)) {
                found.push((pool, ()));
            }
        }
        only(address, &found)?;
        let pool = found[0].0;
        let held = pool.reservations.iter().find(|it| it.reservation.address == address);
        if held.is_none() && (self.dry_run || runtime.reserve(pool, address)?) {
            return Ok(pool);
        }
        let owner = held.map(|it| title(&pool.network, &it.reservation.holder));
        let msg = format!("cannot reserve {address}: it is taken");
        Err(Error::internal(msg).with_details(owner.unwrap_or_default()))
    }

    fn finish(&self, key: &str, changed: Vec<Json>, errors: Vec<Error>) -> Result<()> {
        if self.json {
            let mut object = Object::default();
            super::say_json(object.put("dryRun", Json::Bool(self.dry_run)).list(key, changed));
        }
        Error::joined(errors)
    }
}

fn address(text: &str) -> Result<IpAddr> {
    text.parse().map_err(|_| not_understood(format!("{text:?} is not an IP address")))
}

fn all(pools: &[Pool]) -> Reservations<'_> {
    let mut all = Vec::new();
    for pool in pools {
        for it in &pool.reservations {
            all.push((pool, it));
        }
    }
    all
}

fn leaks(pools: &[Pool]) -> Reservations<'_> {
    let mut leaks = all(pools);
    leaks.retain(|(_, it)| matches!(it.state, State::Gone(_)));
    leaks
}

/// The network of an address has to be the only one.
fn only<T>(address: IpAddr, found: &[(&Pool, T)]) -> Result<()> {
    let (one, other) = match found {
        [_] => return Ok(()),
        [] => return Err(Error::config(format_args!("cannot find {address} in any network"))),
        [(one, _), (other, _), ..] => (&one.network, &other.network),
    };
    let msg = format!("{address} is in networks {one} and {other}");
    Err(Error::config(msg).with_details("--network selects one"))
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

fn add_row(table: &mut Table, pool: &Pool, it: &Judged) {
    let owner = match &it.reservation.holder {
        Holder::Container(id, ifname) => {
            let id = id.get(..ID_DIGITS).unwrap_or(id);
            match ifname {
                Some(ifname) => format!("{ifname}@{id}"),
                None => id.into(),
            }
        }
        Holder::Operator => String::new(),
        Holder::Other(text) => text.clone(),
    };
    let pod = match &it.pod {
        Some((namespace, name)) => format!("{namespace}/{name}"),
        None => String::new(),
    };
    let age = it.age.map(age).unwrap_or_default();
    let address = &it.reservation.address;
    table.row(&[address, &pool.network, &owner, &pod, &age, &state(&it.state)]);
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
    let mut ranges = Vec::new();
    for Use { range, used, free } in &pool.ranges {
        let mut object = Object::default();
        object.text("subnet", &range.subnet).text("first", &range.first);
        object.text("last", &range.last).number("size", range.size());
        ranges.push(object.number("used", *used).number("free", *free).json());
    }
    let mut reservations = Vec::new();
    for it in &pool.reservations {
        reservations.push(object(pool, it));
    }
    let mut object = Object::default();
    object.text("name", &pool.network).text("dataDir", &pool.data_dir.to_string_lossy());
    object.put("configured", Json::Bool(pool.is_configured));
    object.list("ranges", ranges).list("reservations", reservations).json()
}

fn object(pool: &Pool, it: &Judged) -> Json {
    let mut object = Object::default();
    object.text("network", &pool.network).text("address", &it.reservation.address);
    match &it.reservation.holder {
        Holder::Container(id, ifname) => {
            object.text("containerID", id);
            if let Some(ifname) = ifname {
                object.text("ifname", ifname);
            }
        }
        Holder::Operator => {}
        Holder::Other(owner) => {
            object.text("owner", owner);
        }
    }
    if let Some((namespace, name)) = &it.pod {
        let mut pod = Object::default();
        object.put("pod", pod.text("namespace", namespace).text("name", name).json());
    }
    if let Some(age) = it.age {
        object.number("ageSeconds", age.as_secs());
    }
    object.text("state", &state(&it.state));
    if let State::Alive(reason) | State::Gone(reason) | State::Unknown(reason) = &it.state {
        object.text("reason", reason);
    }
    object.json()
}
