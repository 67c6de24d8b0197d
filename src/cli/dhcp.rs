//! `dhcp daemon` and `dhcp leases`: the daemon that the plugin `dhcp` needs, and its leases.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use argh::{EarlyExit, FromArgs};

use crate::cni::json::{Json, Object};
use crate::dhcp::flags::{Flags, SOCKET, USAGE};
use crate::dhcp::protocol::Request;
use crate::dhcp::server::{self, Passed};
use crate::dhcp::socket;
use crate::error::{Error, Result};
use crate::kernel::sys::{self, warn};
use crate::runtime::renumber;

use super::table::Table;

/// List the leases of the DHCP daemon.
#[derive(FromArgs)]
#[argh(
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --json",
    note = "Times are in seconds from now. A lease without an end is infinite."
)]
struct Leases {
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// the path of the daemon's socket; /run/cni/dhcp.sock if not given
    #[argh(option, default = "SOCKET.into()")]
    socket: String,
}

/// The time that the daemon has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Whether the first argument after `dhcp` is for this module.
pub fn knows(word: &OsStr) -> bool {
    word == "daemon" || word == "leases"
}

/// Runs the daemon or lists its leases. Exit codes: 0 fine, 1 failed, 2 not understood.
pub fn run(args: &[OsString]) -> u8 {
    sys::occupy_standard_files();
    let (name, done) = match args {
        [first, flags @ ..] if first == "daemon" => match Flags::parse(flags) {
            Ok(None) => {
                super::say(USAGE);
                return 0;
            }
            Ok(Some(flags)) => {
                let follow = renumber::follower(std::env::var_os("DBUS_SYSTEM_BUS_ADDRESS"));
                ("dhcp daemon", server::run(&flags, passed(), follow))
            }
            Err(error) => {
                warn(format_args!("dhcp daemon: {error}\n{USAGE}"));
                return 2;
            }
        },
        _ => match parsed(args.get(1..).unwrap_or_default()) {
            Ok(leases) => ("dhcp leases", leases.run()),
            Err(exit) => return super::ended("dhcp leases", &exit),
        },
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            warn(format_args!("{name}: {error}"));
            1
        }
    }
}

/// The sockets of the service manager. Source: sd_listen_fds(3).
fn passed() -> Passed {
    let number = |name: &str| std::env::var_os(name)?.to_str()?.parse().ok();
    Passed { pid: number("LISTEN_PID"), count: number("LISTEN_FDS").unwrap_or_default() }
}

fn parsed(args: &[OsString]) -> Result<Leases, EarlyExit> {
    let texts = super::texts(args);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Leases::from_args(&[super::NAME, "dhcp", "leases"], &texts)
}

impl Leases {
    fn run(&self) -> Result<()> {
        let path =
            std::path::absolute(&self.socket).unwrap_or_else(|_| PathBuf::from(&self.socket));
        let answer = socket::ask(&path, &Request::Leases, ANSWER_MAX, Some(ANSWER_MAX))
            .map_err(socket::Failure::into_error)?;
        let now = milliseconds(&answer, "now");
        let Some(Json::Array(leases)) = answer.get("leases") else {
            return Err(Error::internal("cannot list the leases: the daemon's answer has no list"));
        };
        if self.json {
            let mut objects = Vec::new();
            for lease in leases {
                objects.push(object(lease, now));
            }
            super::say_json(Object::default().list("leases", objects));
            return Ok(());
        }
        let mut table = Table::new(&[
            "NETWORK",
            "CONTAINER",
            "IFNAME",
            "ADDRESSES",
            "SERVER",
            "STATE",
            "RENEWS",
            "ENDS",
            "NETNS",
        ]);
        for lease in leases {
            add_row(&mut table, lease, now);
        }
        table.print();
        Ok(())
    }
}

/// The keys of the addresses.
const FAMILIES: [&str; 2] = ["v4", "v6"];

/// The addresses of a lease, of both families.
fn families(lease: &Json) -> Vec<&Json> {
    let mut families = Vec::new();
    for key in FAMILIES {
        families.extend(lease.get(key));
    }
    families
}

fn text<'a>(json: &'a Json, key: &str) -> &'a str {
    match json.get(key) {
        Some(Json::String(text)) => text,
        _ => "",
    }
}

fn milliseconds(json: &Json, key: &str) -> Option<u64> {
    match json.get(key) {
        Some(Json::Number(number)) => number.as_u64(),
        _ => None,
    }
}

/// The seconds from now to a time; 0 if it is over.
fn seconds_to(lease: &Json, key: &str, now: Option<u64>) -> Option<u64> {
    Some(milliseconds(lease, key)?.saturating_sub(now?) / 1000)
}

/// The texts of all families.
fn texts(families: &[&Json], key: &str) -> String {
    let mut texts = Vec::new();
    for it in families {
        texts.push(text(it, key));
    }
    texts.join(",")
}

/// The earliest time of all families.
fn time(families: &[&Json], key: &str, now: Option<u64>) -> String {
    let mut earliest: Option<u64> = None;
    for it in families {
        if let Some(seconds) = seconds_to(it, key, now) {
            earliest = Some(earliest.unwrap_or(seconds).min(seconds));
        }
    }
    match earliest {
        Some(seconds) => format!("{seconds} s"),
        None => "never".into(),
    }
}

fn add_row(table: &mut Table, lease: &Json, now: Option<u64>) {
    let families = &families(lease);
    let is_infinite = families.iter().all(|it| it.get("endsAt").is_none());
    table.row(&[
        &text(lease, "network"),
        &text(lease, "containerID"),
        &text(lease, "ifname"),
        &texts(families, "address"),
        &texts(families, "server"),
        &text(lease, "state"),
        &if is_infinite { "never".into() } else { time(families, "renewAt", now) },
        &time(families, "endsAt", now),
        &text(lease, "netns"),
    ]);
}

/// The keys that `leases --json` prints as the daemon sends them.
const COPIED: [&str; 14] = [
    "network",
    "containerID",
    "ifname",
    "netns",
    "mac",
    "state",
    "address",
    "server",
    "gateway",
    "routes",
    "mtu",
    "dns",
    "domain",
    "search",
];
/// The times, and the keys of the seconds to them.
const TIMES: [(&str, &str); 3] =
    [("renewAt", "renewsIn"), ("rebindAt", "rebindsIn"), ("endsAt", "endsIn")];

/// A lease or its part of one family, as `leases --json` prints it.
fn object(lease: &Json, now: Option<u64>) -> Json {
    let mut entries = Object::default();
    for key in COPIED {
        entries.put_any(key, lease.get(key).cloned());
    }
    for (key, name) in TIMES {
        entries.put_any(name, seconds_to(lease, key, now).map(Json::from));
    }
    for key in FAMILIES {
        entries.put_any(key, lease.get(key).map(|lease| object(lease, now)));
    }
    entries.json()
}
