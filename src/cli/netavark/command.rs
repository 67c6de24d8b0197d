//! The command lines of `podman network create` that create networks with this driver: that of a new network, and those of the
//! networks of files. podman itself is not executed.

use ipnet::IpNet;

use crate::cli::doctor::quoted;
use crate::cli::podman::list;
use crate::cli::podman::object::{LeaseRange, Object, Subnet};
use crate::cni::json::Map;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::names::NetworkName;
use crate::runtime::Runtime;
use crate::runtime::conf::Network;
use crate::runtime::new_network::{Kind, NewNetwork};

/// podman's own network, which each podman has.
const OF_PODMAN: &str = "podman";

/// The command that creates a new network. `options` are those of `-o`.
pub fn of_new(name: &NetworkName, new: &NewNetwork, options: Vec<(String, String)>) -> String {
    let gateway = |net: &IpNet| {
        let is_given = !new.gateways.is_empty();
        is_given.then(|| list::gateway_of(new, net)).flatten()
    };
    let subnets = new.subnets.iter();
    let subnets = subnets.map(|net| Subnet {
        subnet: *net,
        gateway: gateway(net),
        lease: LeaseRange::default(),
    });
    let interface = new.bridge.as_deref().or(new.parent.as_deref());
    let object = Object {
        name: name.to_string(),
        interface: interface.map(ToString::to_string).unwrap_or_default(),
        subnets: subnets.collect(),
        is_internal: new.is_internal,
        has_names: new.has_names,
        options: Map([type_of(new.kind), options].concat()),
        ..Object::default()
    };
    command(&object)
}

fn type_of(kind: Kind) -> Vec<(String, String)> {
    let is_default = kind == Kind::default();
    if is_default { Vec::new() } else { vec![("type".into(), kind.text().into())] }
}

/// The command that creates the network of an object.
fn command(object: &Object) -> String {
    let mut words: Vec<String> =
        ["podman", "network", "create", "--driver", "cnibox"].map(str::to_owned).into();
    let mut flag = |flag: &str, value: String| words.extend([flag.to_owned(), quoted(&value)]);
    if !object.interface.is_empty() {
        flag("--interface-name", object.interface.clone());
    }
    // podman pairs the first gateway with the first subnet, and so on.
    for Subnet { subnet, gateway, .. } in &object.subnets {
        flag("--subnet", subnet.to_string());
        if let Some(gateway) = gateway {
            flag("--gateway", gateway.to_string());
        }
    }
    if object.is_internal {
        words.push("--internal".to_owned());
    }
    // podman asks for names unless it is told not to. A file decides for itself.
    if !object.has_names && object.option(list::NETWORK).is_none() {
        words.push("--disable-dns".to_owned());
    }
    let mut flag = |flag: &str, value: String| words.extend([flag.to_owned(), quoted(&value)]);
    for (key, value) in &object.options.0 {
        flag("--opt", format!("{key}={value}"));
    }
    words.push(object.name.clone());
    words.join(" ")
}

/// The lines for the networks of these names, or of all, in the order of `networks`: commands, and comments before them. A file
/// that cannot be used is a warning. Fails for names without a file.
pub fn of_files(runtime: &Runtime, names: &[NetworkName]) -> Result<(Vec<String>, Vec<Error>)> {
    let (mut lines, mut found) = (Vec::new(), Vec::new());
    for network in Network::all_by_name(&runtime.configurations)? {
        match network {
            Err(error) => warn(format_args!("warning: {error}")),
            Ok(network) if !names.is_empty() && !names.contains(&network.name) => {}
            Ok(network) if found.contains(&network.name) => {
                let file = network.file.display();
                warn(format_args!("warning: {file}: another file configures {}", network.name));
            }
            Ok(network) => {
                lines.extend(of_file(&network));
                found.push(network.name);
            }
        }
    }
    let missing = names.iter().filter(|name| !found.contains(name));
    let missing =
        missing.map(|name| Error::config(format_args!("no file configures network {name}")));
    Ok((lines, missing.collect()))
}

/// The driver uses the file as it is: it can have plugins and keys for which podman has no option.
fn of_file(network: &Network) -> Vec<String> {
    let name = network.name.to_string();
    if name == OF_PODMAN {
        return vec![format!("# {name}: each podman has a network of this name")];
    }
    let options = Map(vec![(list::NETWORK.into(), name.clone())]);
    vec![command(&Object { name, options, ..Object::default() })]
}
