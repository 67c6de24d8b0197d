//! `dhcp daemon` and `dhcp leases`: the daemon that the plugin `dhcp` needs, and its leases.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use argh::{EarlyExit, FromArgs};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cni::json;
use crate::daemon;
use crate::dhcp::flags::{Flags, SOCKET, USAGE};
use crate::dhcp::protocol::Request;
use crate::dhcp::socket;
use crate::error::{Error, Result};
use crate::kernel::sys::{warn, warn_lines};
use crate::runtime::lease_change;

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

/// The timeout of the daemon's answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Whether the first argument after `dhcp` is a command of this file.
pub fn is_command(name: &OsStr) -> bool {
    name == "daemon" || name == "leases"
}

/// Runs the daemon or lists its leases. Exit codes: 0 success, 1 failure, 2 usage error.
pub fn run(args: &[OsString]) -> u8 {
    let (name, done) = match args {
        [first, flags @ ..] if first == "daemon" => match Flags::parse(flags) {
            Ok(None) => {
                super::output::print_text(USAGE);
                return 0;
            }
            Ok(Some(flags)) => {
                let bus_address = std::env::var_os("DBUS_SYSTEM_BUS_ADDRESS");
                let host = lease_change::runtime(&flags.hostprefix, bus_address);
                ("dhcp daemon", daemon::run(&flags, passed_sockets(), host))
            }
            Err(error) => {
                warn(format_args!("dhcp daemon: {error}"));
                warn_lines(USAGE);
                return 2;
            }
        },
        _ => match parsed(args.get(1..).unwrap_or_default()) {
            Ok(leases) => ("dhcp leases", leases.run()),
            Err(exit) => return super::print_early_exit("dhcp leases", &exit),
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

/// The number of sockets that the service manager passes to this process. Source: sd_listen_fds(3).
fn passed_sockets() -> u32 {
    let number = |name: &str| std::env::var_os(name)?.to_str()?.parse().ok();
    let is_own = number("LISTEN_PID") == Some(std::process::id());
    number("LISTEN_FDS").filter(|_| is_own).unwrap_or_default()
}

fn parsed(args: &[OsString]) -> Result<Leases, EarlyExit> {
    let texts = super::lossy_strings(args);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Leases::from_args(&[super::output::NAME, "dhcp", "leases"], &texts)
}

impl Leases {
    fn run(&self) -> Result<()> {
        let path =
            std::path::absolute(&self.socket).unwrap_or_else(|_| PathBuf::from(&self.socket));
        let answer = socket::ask(&path, &Request::Leases, ANSWER_MAX, Some(ANSWER_MAX))
            .map_err(socket::Failure::into_error)?;
        let Listed { now, mut leases } = json::read(answer.get().as_bytes()).map_err(|error| {
            Error::internal(format_args!("cannot read the daemon's list of leases: {error}"))
        })?;
        for lease in &mut leases {
            lease
                .v4
                .iter_mut()
                .chain(&mut lease.v6)
                .for_each(|family| family.make_relative_to(now));
        }
        if self.json {
            super::output::print_json_list("leases", &leases);
            return Ok(());
        }
        let mut table =
            Table::new("NETWORK CONTAINER IFNAME ADDRESSES SERVER STATE RENEWS ENDS NETNS");
        for lease in &leases {
            lease.add_row(&mut table);
        }
        table.print();
        Ok(())
    }
}

/// The answer of the daemon.
#[derive(Deserialize)]
struct Listed {
    /// Milliseconds since boot.
    now: u64,
    leases: Vec<Lease>,
}

/// A lease in the answer of the daemon, and in the output of --json.
#[derive(Serialize, Deserialize)]
struct Lease {
    network: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    netns: String,
    mac: String,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    v4: Option<FamilyLease>,
    #[serde(skip_serializing_if = "Option::is_none")]
    v6: Option<FamilyLease>,
}

/// The lease of one address family. Times are in milliseconds since boot in the answer of the daemon, and in seconds from now
/// in the output of --json.
#[derive(Serialize, Deserialize)]
struct FamilyLease {
    address: String,
    /// The address or the DUID of the server.
    server: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routes: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u16>,
    dns: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    search: Vec<String>,
    #[serde(rename(deserialize = "renewAt", serialize = "renewsIn"))]
    renews: u64,
    #[serde(rename(deserialize = "rebindAt", serialize = "rebindsIn"))]
    rebinds: u64,
    /// The end of the lease. `None` if the lease is infinite.
    #[serde(
        rename(deserialize = "endsAt", serialize = "endsIn"),
        skip_serializing_if = "Option::is_none"
    )]
    ends: Option<u64>,
}

impl FamilyLease {
    /// Converts the times to seconds from now; 0 for a time in the past.
    fn make_relative_to(&mut self, now: u64) {
        for time in [&mut self.renews, &mut self.rebinds].into_iter().chain(&mut self.ends) {
            *time = time.saturating_sub(now) / 1000;
        }
    }
}

impl Lease {
    fn families(&self) -> impl Iterator<Item = &FamilyLease> {
        self.v4.iter().chain(&self.v6)
    }

    fn add_row(&self, table: &mut Table) {
        let addresses: Vec<&str> = self.families().map(|family| family.address.as_str()).collect();
        let server = self.v4.as_ref().map_or("", |lease| lease.server.get().trim_matches('"'));
        let ends = self.families().filter_map(|family| family.ends).min();
        let renews = ends.and_then(|_| self.families().map(|family| family.renews).min());
        let shown =
            |time: Option<u64>| time.map_or_else(|| "never".into(), |time| format!("{time} s"));
        table.row(&[
            &self.network,
            &self.container_id,
            &self.ifname,
            &addresses.join(","),
            &server,
            &self.state,
            &shown(renews),
            &shown(ends),
            &self.netns,
        ]);
    }
}
