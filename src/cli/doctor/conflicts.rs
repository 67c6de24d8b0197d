//! Finds mistakes in network configurations, and conflicts between two of them.

use crate::cni::json::Json;
use crate::error::Result;
use crate::netlink::rtnl::Link;
use crate::runtime::networks;

use super::finding::{Findings, Harm, quoted};
use super::host::{ConfiguredNetwork, Host};
use crate::cli::lint::{Faults, name};

pub(super) fn conflicts(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    // `lint` would report a missing directory as an unreadable file.
    if !host.runtime.configurations.is_dir() {
        return Ok(());
    }
    let faults = Faults::of(&host.runtime.configurations, host.path(), &host.runtime.others)?;
    for (file, count, first) in &faults.files {
        if *count > 0 {
            found.add(
                Harm::Broken,
                format_args!("{}: lint finds mistakes: {count}: {first}", file.display()),
                "A plugin or a runtime refuses it, or ignores a part of it.",
                format_args!("cnibox lint {}", quoted(file.display())),
            );
        }
    }
    for (file, error) in &faults.unreadable {
        found.add(
            Harm::Broken,
            error,
            "A runtime cannot read it, or waits for it forever.",
            format_args!("ls -l {}", quoted(file.display())),
        );
    }
    for (file, text) in &faults.between {
        found.add(
            Harm::Broken,
            format_args!("{}: {text}", file.display()),
            "Two containers get the same address, or the host has two routes to it.",
            format_args!("edit the subnet in {}", quoted(file.display())),
        );
    }
    let is_file_of =
        |net: &ConfiguredNetwork| net.network.file.starts_with(&host.runtime.configurations);
    // podman and the cache have the first networks, and nobody can edit those.
    for (index, one) in host.networks.iter().enumerate().filter(|(_, one)| is_file_of(one)) {
        for other in &host.networks[..index] {
            compare(other, one, found);
        }
    }
    Ok(())
}

/// Finds networks whose parent link the host does not have.
pub(super) fn parents(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    for network in host.networks.iter().map(|net| &net.network) {
        for parent in network.plugins.iter().filter_map(networks::parent) {
            let has =
                |link: &Link| link.name == parent || link.alt_names.iter().any(|it| it == parent);
            if host.links.iter().any(has) {
                continue;
            }
            let name = &network.name;
            found.add(
                Harm::Broken,
                format_args!("the host has no link {parent}, the parent of network {name}"),
                "No container can be attached to the network.",
                format_args!("edit the key master in {}", quoted(network.file.display())),
            );
        }
    }
    Ok(())
}

/// Adds a finding if two networks have the same name or bridge. `lint` compares their ranges.
fn compare(first: &ConfiguredNetwork, second: &ConfiguredNetwork, found: &mut Findings) {
    let file = second.network.file.display();
    let word = quoted(&file);
    let (title, other) = (&*second.network.name, name(&first.network.file));
    if second.network.name == first.network.name {
        found.add(
            Harm::Broken,
            format_args!("{file}: the network in {other} has the same name, {title}"),
            "A runtime uses only one of the two files.",
            format_args!("edit the name in {word}"),
        );
        return;
    }
    let Some(bridge) = &second.bridge else { return };
    if first.bridge.as_ref() != Some(bridge) || vlan(first) != vlan(second) {
        return;
    }
    let (harm, why) = match first.is_gateway && second.is_gateway {
        true => (
            Harm::Broken,
            "ADD fails in the second network, or gives the bridge a second gateway address.",
        ),
        false => (Harm::Note, "The containers of both networks are on one link."),
    };
    let name = &first.network.name;
    let what = format_args!("{file}: network {name} in {other} has the same bridge, {bridge}");
    found.add(harm, what, why, format_args!("edit the bridge in {word}"));
}

/// The VLAN of the bridge's ports for containers.
fn vlan(network: &ConfiguredNetwork) -> Option<&Json> {
    network.network.plugin("bridge")?.get("vlan")
}
