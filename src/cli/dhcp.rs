//! `dhcp daemon` and `dhcp leases`: the daemon that the plugin `dhcp` needs, and its leases.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use argh::{EarlyExit, FromArgs};

use crate::cni::json::Json;
use crate::dhcp::flags::{Flags, SOCKET, USAGE};
use crate::dhcp::protocol::Request;
use crate::dhcp::server::{self, Passed};
use crate::dhcp::socket;
use crate::error::{Error, Result};

use super::table;

/// The time that the daemon has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

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
    socket: PathBuf,
}

/// Whether the first argument after `dhcp` is for this module.
pub fn knows(word: &OsStr) -> bool {
    word == "daemon" || word == "leases"
}

/// Runs the daemon or lists its leases. Exit codes: 0 fine, 1 failed, 2 not understood.
pub fn run(args: &[OsString]) -> u8 {
    let (name, done) = match args {
        [first, flags @ ..] if first == "daemon" => match Flags::parse(flags) {
            Ok(None) => {
                super::say(USAGE);
                return 0;
            }
            Ok(Some(flags)) => ("dhcp daemon", server::run(&flags, passed())),
            Err(error) => {
                eprintln!("dhcp daemon: {error}\n{USAGE}");
                return 2;
            }
        },
        _ => match leases(args.get(1..).unwrap_or_default()) {
            Ok(leases) => ("dhcp leases", leases.run()),
            Err(code) => return code,
        },
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{name}: {error}");
            1
        }
    }
}

/// The sockets of the service manager. Source: sd_listen_fds(3).
fn passed() -> Passed {
    let number = |name: &str| std::env::var_os(name)?.to_str()?.parse().ok();
    Passed { pid: number("LISTEN_PID"), count: number("LISTEN_FDS").unwrap_or_default() }
}

/// The error is an exit code.
fn leases(args: &[OsString]) -> Result<Leases, u8> {
    let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Leases::from_args(&["cnibox", "dhcp", "leases"], &args).map_err(|exit| match exit {
        EarlyExit { output, status: Ok(()) } => {
            super::say(&output);
            0
        }
        EarlyExit { output, status: Err(()) } => {
            eprintln!("dhcp leases: {}", output.trim_end());
            2
        }
    })
}

impl Leases {
    fn run(self) -> Result<()> {
        let path = std::path::absolute(&self.socket).unwrap_or(self.socket);
        let answer = socket::ask(&path, &Request::Leases, ANSWER_MAX, Some(ANSWER_MAX))
            .map_err(socket::Failure::into_error)?;
        let now = milliseconds(&answer, "now");
        let Some(Json::Array(leases)) = answer.get("leases") else {
            return Err(Error::internal("cannot list the leases: the daemon's answer has no list"));
        };
        if self.json {
            let leases = leases.iter().map(|lease| object(lease, now)).collect();
            super::say(&Json::object([("leases", Some(Json::Array(leases)))]).to_pretty());
        } else {
            let header = [
                "NETWORK",
                "CONTAINER",
                "IFNAME",
                "ADDRESSES",
                "SERVER",
                "STATE",
                "RENEWS",
                "ENDS",
                "NETNS",
            ];
            table::print(header, leases.iter().map(|lease| row(lease, now)));
        }
        Ok(())
    }
}

/// The keys of the addresses.
const FAMILIES: [&str; 2] = ["v4", "v6"];

/// The addresses of a lease, of both families.
fn families(lease: &Json) -> Vec<&Json> {
    FAMILIES.iter().filter_map(|family| lease.get(family)).collect()
}

fn text(json: &Json, key: &str) -> String {
    match json.get(key) {
        Some(Json::String(text)) => text.clone(),
        _ => String::new(),
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

fn row(lease: &Json, now: Option<u64>) -> [String; 9] {
    let families = families(lease);
    let joined = |key: &str| {
        let mut all = String::new();
        for family in &families {
            if !all.is_empty() {
                all.push(',');
            }
            all.push_str(&text(family, key));
        }
        all
    };
    let time = |key: &str| {
        let seconds = families.iter().filter_map(|it| seconds_to(it, key, now)).min();
        seconds.map_or_else(|| "never".into(), |seconds| format!("{seconds} s"))
    };
    let is_infinite = families.iter().all(|it| it.get("endsAt").is_none());
    [
        text(lease, "network"),
        text(lease, "containerID"),
        text(lease, "ifname"),
        joined("address"),
        joined("server"),
        text(lease, "state"),
        if is_infinite { "never".into() } else { time("renewAt") },
        time("endsAt"),
        text(lease, "netns"),
    ]
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
    let mut entries = Vec::new();
    let mut add = |key: &str, value: Option<Json>| {
        if let Some(value) = value {
            entries.push((key.to_owned(), value));
        }
    };
    for key in COPIED {
        add(key, lease.get(key).cloned());
    }
    for (key, name) in TIMES {
        add(name, seconds_to(lease, key, now).map(Json::from));
    }
    for key in FAMILIES {
        add(key, lease.get(key).map(|lease| object(lease, now)));
    }
    Json::Object(entries)
}
