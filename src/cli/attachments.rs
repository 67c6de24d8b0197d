//! `cnibox attachments`: the attachments of all networks, with their state.

use std::path::Path;

use argh::{ArgsInfo, FromArgs};
use ipnet::IpNet;
use serde::Serialize;

use crate::attachments::life::Life;
use crate::attachments::record::as_text;
use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::names::{Attachment, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::attachments::container_like;
use crate::runtime::cache::CacheEntry;
use crate::runtime::conf::Network;

use super::output::print_json_list;
use super::parameters::{self, TIMEOUT_S};
use super::table::Table;

/// List the attachments of all runtimes, with their addresses, published ports and state.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "attachments",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} mynet",
    example = "{command_name} --check",
    note = "The exit code is 0, also if an attachment is gone; with --check it is 1 unless each is alive and passes CHECK."
)]
pub(super) struct Attachments {
    /// only those of this network, or of this container: its network namespace, or the beginning of its id
    #[argh(positional, arg_name = "network|container")]
    network_or_container: Option<String>,
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

/// An attachment, as --json prints it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownAttachment<'a> {
    network: &'a NetworkName,
    #[serde(flatten)]
    at: &'a Attachment,
    #[serde(serialize_with = "as_text")]
    netns: &'a Path,
    addresses: Vec<IpNet>,
    port_mappings: &'a [Json],
    #[serde(flatten)]
    life: &'a Life,
    /// podman made the namespace, and nothing uses it.
    #[serde(rename = "unused", skip_serializing_if = "is_false")]
    is_unused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<&'static str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Attachments {
    pub(super) fn run(&self) -> Result<u8> {
        let runtime = parameters::runtime(self.timeout);
        let mut all = runtime.attachments()?;
        if let Some(word) = &self.network_or_container {
            all = self::of(&runtime, word, all)?;
        }
        let unused = runtime.unused_namespaces(&all).unwrap_or_else(|error| {
            warn(format_args!("warning: {error}"));
            Vec::new()
        });
        let mut shown = Vec::new();
        for (entry, life) in &all {
            let check = self.check.then(|| checked(&runtime, entry, life));
            let is_unused = *life == Life::Alive && unused.contains(&&*entry.netns);
            shown.push(ShownAttachment { is_unused, ..ShownAttachment::new(entry, life, check) });
        }
        if self.json {
            print_json_list("attachments", &shown);
        } else {
            print(&shown);
        }
        match shown.iter().filter(|attachment| attachment.check == Some(FAILED)).count() {
            0 => Ok(0),
            count => {
                let msg = format!("{count} of {} attachments failed", all.len());
                let hint = "cnibox reconcile restores what other programs removed on the host, cnibox reconcile --inside also \
                            addresses and routes in containers";
                Err(Error::internal(msg).with_details(hint))
            }
        }
    }
}

/// The attachments of the network or of the container that a word names. Fails if there is neither.
fn of(
    runtime: &Runtime,
    word: &str,
    mut all: Vec<(CacheEntry, Life)>,
) -> Result<Vec<(CacheEntry, Life)>> {
    let is_configured = || -> Result<bool> {
        let mut networks = Network::all(&runtime.configurations)?.into_iter().flatten();
        Ok(networks.any(|network| *network.name == *word))
    };
    if all.iter().any(|(entry, _)| *entry.network == *word) || is_configured()? {
        all.retain(|(entry, _)| *entry.network == *word);
        return Ok(all);
    }
    let entries: Vec<CacheEntry> = all.iter().map(|(entry, _)| entry.clone()).collect();
    let id = container_like(word, Some(&parameters::netns(word)?), &entries)?.ok_or_else(|| {
        Error::config(format_args!("no network and no attached container is {word}"))
    })?;
    all.retain(|(entry, _)| entry.at.container_id == id);
    Ok(all)
}

const FAILED: &str = "failed";

fn checked(runtime: &Runtime, entry: &CacheEntry, life: &Life) -> &'static str {
    if life.is_ended() {
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

/// The id as podman prints it, if it is as long as podman's. Its beginning names the container in the commands that show something.
fn short(id: &str) -> &str {
    if id.len() == 64 { id.get(..12).unwrap_or(id) } else { id }
}

fn print(attachments: &[ShownAttachment<'_>]) {
    let mut table = Table::new("NETWORK CONTAINER IFNAME ADDRESSES PORTS STATE CHECK NETNS");
    for attachment in attachments {
        let ShownAttachment { network, at, netns, addresses, port_mappings, life, .. } = attachment;
        let addresses: Vec<String> = addresses.iter().map(IpNet::to_string).collect();
        let ports: Vec<String> = port_mappings.iter().map(published).collect();
        table.row(&[
            network,
            &short(&at.container_id),
            &at.ifname,
            &addresses.join(","),
            &ports.join(","),
            &if attachment.is_unused { "alive,unused" } else { life.text() },
            &attachment.check.unwrap_or_default(),
            &netns.display(),
        ]);
    }
    table.print();
    for ShownAttachment { network, at, netns, life, is_unused, .. } in attachments {
        if *is_unused {
            let name = netns.file_name().unwrap_or_default().display();
            let Attachment { container_id, ifname } = at;
            warn(format_args!(
                "{}: alive, unused: neither a process nor conmon uses its network namespace; this command ends it: \
                 cnibox del {network} {name} --container-id {container_id} -i {ifname} --delete",
                at.title(network)
            ));
        }
        if let Life::Ended(reason) | Life::Unknown(reason) = life {
            warn(format_args!("{}: {}: {reason}", at.title(network), life.text()));
        }
    }
}

impl<'a> ShownAttachment<'a> {
    fn new(entry: &'a CacheEntry, life: &'a Life, check: Option<&'static str>) -> Self {
        let success = entry.success().unwrap_or_else(|error| {
            warn(format_args!("warning: {error}"));
            None
        });
        Self {
            network: &entry.network,
            at: &entry.at,
            netns: &entry.netns,
            addresses: success.unwrap_or_default().nets(),
            port_mappings: mappings(entry),
            life,
            is_unused: false,
            check,
        }
    }
}

/// The port mappings with which an attachment was made.
pub(super) fn mappings(entry: &CacheEntry) -> &[Json] {
    match entry.capability_args.get("portMappings") {
        Some(Json::Array(mappings)) => mappings,
        _ => &[],
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
