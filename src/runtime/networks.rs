//! Lists the networks of a directory with the order in which each runtime uses them. This module does not depend on
//! attachments.
//!
//! - containerd uses the files in the order of their names. It uses no network after a broken file, and does not check whether
//!   the plugins exist.
//! - CRI-O uses the same order. It skips a broken file, a network with a missing plugin, and a second network of the same name.
//! - podman does the same as CRI-O, but reads only lists.
//!
//! Sources: `loadFromConfDir` of go-cni, `loadNetworks` of ocicni, `loadNetworks` of podman's libnetwork/cni.

use std::path::PathBuf;

use ipnet::IpNet;

use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::names::NetworkName;
use crate::plugin::execute::Program;
use crate::plugins::{PLUGINS, bridge};
use crate::runtime::Runtime;
use crate::runtime::conf::{self, Network};

/// A network, and its position in the order of each runtime, from 1. `None`: the runtime does not use the network.
#[derive(Debug)]
pub struct ListedNetwork {
    pub network: Network,
    pub subnets: Vec<IpNet>,
    pub containerd: Option<u32>,
    pub crio: Option<u32>,
    pub podman: Option<u32>,
    /// The types of plugins that are neither on CNI_PATH nor in this executable.
    pub missing: Vec<String>,
    /// The types that are in this executable and not on CNI_PATH, where other runtimes look.
    pub built_in: Vec<String>,
}

/// The names of the networks that one runtime uses, and the number of assigned positions.
#[derive(Default)]
struct Order {
    names: Vec<NetworkName>,
    count: u32,
}

impl Runtime {
    /// The networks in the order of the file names, and an error for each file that cannot be used.
    pub fn networks(&self) -> Result<(Vec<ListedNetwork>, Vec<Error>)> {
        let (mut listed, mut broken) = (Vec::new(), Vec::new());
        let (mut containerd, mut crio, mut podman) =
            (Order::default(), Order::default(), Order::default());
        for network in Network::all_by_name(&self.configurations)? {
            let network = match network {
                Ok(network) => network,
                Err(error) => {
                    broken.push(error);
                    continue;
                }
            };
            let (missing, built_in) = unresolved(&network, &self.settings.path);
            let is_complete = missing.is_empty() && built_in.is_empty();
            let is_list = conf::is_list(&network.file);
            listed.push(ListedNetwork {
                containerd: broken.is_empty().then(|| containerd.next()),
                crio: if is_complete { crio.next_of(&network.name) } else { None },
                podman: if is_complete && is_list { podman.next_of(&network.name) } else { None },
                subnets: subnets(&network),
                network,
                missing,
                built_in,
            });
        }
        Ok((listed, broken))
    }
}

impl Order {
    fn next(&mut self) -> u32 {
        self.count += 1;
        self.count
    }

    fn next_of(&mut self, name: &NetworkName) -> Option<u32> {
        if self.names.contains(name) {
            return None;
        }
        self.names.push(name.clone());
        Some(self.next())
    }
}

/// The plugin types of a network that are missing, and those that are only in this executable.
fn unresolved(network: &Network, path: &[PathBuf]) -> (Vec<String>, Vec<String>) {
    let (mut missing, mut built_in) = (Vec::new(), Vec::new());
    for kind in types(network) {
        let list = match Program::find(&kind, path, PLUGINS) {
            Err(_) => &mut missing,
            Ok(_) if path.iter().any(|directory| directory.join(&kind).is_file()) => {
                continue;
            }
            Ok(_) => &mut built_in,
        };
        if !list.contains(&kind) {
            list.push(kind);
        }
    }
    (missing, built_in)
}

/// The types of the plugins and of their IPAM plugins.
fn types(network: &Network) -> Vec<String> {
    let mut types = Vec::new();
    for plugin in &network.plugins {
        for kind in [conf::kind(plugin), plugin.get("ipam").map_or("", conf::kind)] {
            if !kind.is_empty() {
                types.push(kind.to_owned());
            }
        }
    }
    types
}

/// The subnets in the configurations of the IPAM plugins.
pub fn subnets(network: &Network) -> Vec<IpNet> {
    fn collect(json: &Json, found: &mut Vec<IpNet>) {
        match json {
            Json::Array(values) => values.iter().for_each(|value| collect(value, found)),
            Json::Object(_) => {
                if let Some(subnet) = json.text_at("subnet")
                    && let Ok(subnet) = subnet.parse::<IpNet>()
                {
                    found.push(subnet.trunc());
                }
                collect(json.get("ranges").unwrap_or(&Json::Null), found);
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    for plugin in &network.plugins {
        collect(plugin.get("ipam").unwrap_or(&Json::Null), &mut found);
    }
    found
}

/// The name of the bridge of a network, if it has the plugin `bridge`.
pub(super) fn bridge(network: &Network) -> Option<&str> {
    let plugin = network.plugins.iter().find(|plugin| conf::kind(plugin) == "bridge")?;
    Some(bridge_of(plugin))
}

/// The name of the bridge in a configuration of the plugin `bridge`, or the default.
pub fn bridge_of(plugin: &Json) -> &str {
    plugin.text_at("bridge").filter(|name| !name.is_empty()).unwrap_or(bridge::DEFAULT)
}
