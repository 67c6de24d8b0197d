//! `cnibox attachments`: the attachments of all networks, with their state.

use std::borrow::Cow;

use argh::FromArgs;
use serde::Serialize;

use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::names::{Attachment, NetworkName};
use crate::plugin::Entry;
use crate::plugin::life::Life;
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;

use super::parameters::{self, TIMEOUT_S};
use super::table::Table;

/// List the attachments of all runtimes, with their addresses, published ports and state.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "attachments",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --check",
    note = "The exit code is 0, also if an attachment is gone; with --check it is 1 unless each is alive and passes CHECK."
)]
pub(super) struct Attachments {
    /// call CHECK for each attachment
    #[argh(switch)]
    check: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// the seconds that an executed plugin may take; 180 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
}

/// An attachment and the columns of its row.
struct Line {
    entry: CacheEntry,
    addresses: Vec<String>,
    state: &'static str,
    reason: Option<String>,
    check: Option<&'static str>,
}

/// An attachment in the output of --json.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownAttachment<'a> {
    network: &'a NetworkName,
    #[serde(flatten)]
    at: &'a Attachment,
    netns: Cow<'a, str>,
    addresses: &'a [String],
    port_mappings: &'a [Json],
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<&'static str>,
}

impl Attachments {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let runtime = parameters::runtime(plugins, self.timeout);
        let mut failed = 0_u32;
        let mut lines = Vec::new();
        for (entry, life) in runtime.attachments()? {
            let mut check = None;
            if self.check {
                check = Some(checked(&runtime, &entry, &life));
                failed += u32::from(check == Some(FAILED));
            }
            lines.push(Line::new(entry, life, check));
        }
        if self.json {
            let shown: Vec<ShownAttachment<'_>> = lines.iter().map(Line::shown).collect();
            super::output::print_json_list("attachments", &shown);
        } else {
            print(&lines);
        }
        match failed {
            0 => Ok(0),
            count => {
                Err(Error::internal(format_args!("{count} of {} attachments failed", lines.len())))
            }
        }
    }
}

const FAILED: &str = "failed";

fn checked(runtime: &Runtime, entry: &CacheEntry, life: &Life) -> &'static str {
    if matches!(life, Life::Ended(_)) {
        return FAILED;
    }
    match runtime.check_entry(entry) {
        Ok(true) => "ok",
        Ok(false) => "unsupported",
        Err(error) => {
            warn(format_args!("{}: {error}", entry.title()));
            FAILED
        }
    }
}

fn print(lines: &[Line]) {
    let mut table = Table::new(&[
        "NETWORK",
        "CONTAINER",
        "IFNAME",
        "ADDRESSES",
        "PORTS",
        "STATE",
        "CHECK",
        "NETNS",
    ]);
    for line in lines {
        line.add_row(&mut table);
    }
    table.print();
    for line in lines {
        if let Some(reason) = &line.reason {
            warn(format_args!("{}: {}: {reason}", line.entry.title(), line.state));
        }
    }
}

impl Line {
    fn new(entry: CacheEntry, life: Life, check: Option<&'static str>) -> Self {
        let mut addresses = Vec::new();
        match entry.success() {
            Ok(success) => {
                for net in success.unwrap_or_default().nets() {
                    addresses.push(net.to_string());
                }
            }
            Err(error) => warn(format_args!("warning: {error}")),
        }
        let (state, reason) = match life {
            Life::Alive => ("alive", None),
            Life::Ended(reason) => ("gone", Some(reason)),
            Life::Unknown(reason) => ("unknown", Some(reason)),
        };
        Self { entry, addresses, state, reason, check }
    }

    fn mappings(&self) -> &[Json] {
        match self.entry.capability_args.get("portMappings") {
            Some(Json::Array(mappings)) => mappings,
            _ => &[],
        }
    }

    fn add_row(&self, table: &mut Table) {
        let CacheEntry { network, at, netns, .. } = &self.entry;
        let mut ports = Vec::new();
        for mapping in self.mappings() {
            ports.push(published(mapping));
        }
        let (addresses, ports) = (self.addresses.join(","), ports.join(","));
        let check = self.check.unwrap_or_default();
        table.row(&[
            network,
            &at.container_id,
            &at.ifname,
            &addresses,
            &ports,
            &self.state,
            &check,
            &netns.display(),
        ]);
    }

    fn shown(&self) -> ShownAttachment<'_> {
        let CacheEntry { network, at, netns, .. } = &self.entry;
        ShownAttachment {
            network,
            at,
            netns: netns.to_string_lossy(),
            addresses: &self.addresses,
            port_mappings: self.mappings(),
            state: self.state,
            reason: self.reason.as_deref(),
            check: self.check,
        }
    }
}

/// A port mapping as `podman ps` prints it: `127.0.0.1:8080->80/tcp`. Without an address, all addresses of the host publish it.
fn published(mapping: &Json) -> String {
    let text = |key: &str| match mapping.get(key) {
        Some(Json::String(text)) => text.clone(),
        Some(other) => other.to_compact(),
        None => String::new(),
    };
    let ip = match text("hostIP") {
        ip if ip.is_empty() => ip,
        ip if ip.contains(':') => format!("[{ip}]:"),
        ip => format!("{ip}:"),
    };
    let protocol = match text("protocol") {
        protocol if protocol.is_empty() => "tcp".into(),
        protocol => protocol,
    };
    format!("{ip}{}->{}/{protocol}", text("hostPort"), text("containerPort"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_printed_as_podman_prints_them() {
        let printed = |text: &str| published(&Json::parse(text.as_bytes()).unwrap());
        for (text, expected) in [
            (r#"{"hostPort":8080,"containerPort":80,"protocol":"tcp"}"#, "8080->80/tcp"),
            (
                r#"{"HostPort":53,"ContainerPort":5353,"Protocol":"udp","HostIP":"127.0.0.1"}"#,
                "127.0.0.1:53->5353/udp",
            ),
            (r#"{"hostPort":1,"containerPort":7,"hostIP":"fd00::1"}"#, "[fd00::1]:1->7/tcp"),
        ] {
            assert_eq!(printed(text), expected);
        }
    }
}
