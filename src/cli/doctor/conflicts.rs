//! Network configurations that have mistakes, or exclude each other.

use crate::cni::json::Json;
use crate::error::Result;
use crate::runtime::conf;

use super::host::{Configured, Host};
use super::{Finding, Harm, quoted};
use crate::cli::lint::{Faults, name};

pub(super) fn conflicts(host: &Host<'_>) -> Result<Vec<Finding>> {
    // `lint` calls a directory that does not exist a file.
    if !host.configurations.is_dir() {
        return Ok(Vec::new());
    }
    let faults = Faults::of(host.configurations, host.plugins, host.path)?;
    let mut findings = Vec::new();
    for (file, count) in faults.files.iter().filter(|(_, count)| *count > 0) {
        findings.push(Finding {
            harm: Harm::Broken,
            what: format!("{}: lint finds mistakes: {count}", file.display()),
            why: "A plugin or a runtime refuses it, or ignores a part of it.",
            mend: format!("cnibox lint {}", quoted(file.display())),
        });
    }
    for (file, text) in faults.between {
        findings.push(Finding {
            harm: Harm::Broken,
            what: format!("{}: {text}", file.display()),
            why: "Two containers get the same address, or the host has two routes to it.",
            mend: format!("edit the subnet in {}", file.display()),
        });
    }
    for (index, one) in host.networks.iter().enumerate() {
        for other in &host.networks[..index] {
            findings.extend(between(other, one));
        }
    }
    Ok(findings)
}

/// The conflict of two networks, if they have one that is not about ranges.
fn between(first: &Configured, second: &Configured) -> Option<Finding> {
    let file = second.network.file.display();
    let (title, other) = (&*second.network.name, name(&first.network.file));
    if second.network.name == first.network.name {
        return Some(Finding {
            harm: Harm::Broken,
            what: format!("{file}: the name {title} is that of the network in {other}"),
            why: "A runtime uses one of both files only.",
            mend: format!("edit the name in {file}"),
        });
    }
    let bridge = second.bridge.as_ref().filter(|bridge| first.bridge.as_ref() == Some(*bridge))?;
    if vlan(first) != vlan(second) {
        return None;
    }
    let are_gateways = first.is_gateway && second.is_gateway;
    Some(Finding {
        harm: if are_gateways { Harm::Broken } else { Harm::Note },
        what: format!(
            "{file}: bridge {bridge} is that of network {} in {other}",
            first.network.name
        ),
        why: match are_gateways {
            true => {
                "ADD fails in the second network, or gives the bridge a second gateway address."
            }
            false => "The containers of both networks are on one link.",
        },
        mend: format!("edit the bridge in {file}"),
    })
}

/// The VLAN of the ports.
fn vlan(network: &Configured) -> Option<&Json> {
    let bridge = network.plugins().find(|it| conf::kind(it) == "bridge");
    bridge.and_then(|it| it.get("vlan"))
}
