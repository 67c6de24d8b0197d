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
use serde::Serialize;

use crate::attachments::record::as_text;
use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::names::NetworkName;
use crate::plugin::execute::Program;
use crate::plugins::{PLUGINS, bridge};
use crate::runtime::Runtime;
use crate::runtime::conf::{self, Network};

/// A network in the list of networks. This is also the output of `cnibox networks --json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedNetwork {
    pub name: NetworkName,
    #[serde(serialize_with = "as_text")]
    pub file: PathBuf,
    pub cni_version: &'static str,
    pub subnets: Vec<IpNet>,
    /// The types of the plugins.
    pub plugins: Vec<String>,
    /// The types of plugins that are neither on CNI_PATH nor in this executable.
    pub missing: Vec<String>,
    /// The types that are in this executable and not on CNI_PATH, where other runtimes look.
    pub built_in: Vec<String>,
    pub order: Order,
}

/// The position of a network in the order of each runtime, from 1. `None`: the runtime does not use the network.
#[derive(Debug, Serialize)]
pub struct Order {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub containerd: Option<usize>,
    #[serde(rename = "cri-o", skip_serializing_if = "Option::is_none")]
    pub crio: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub podman: Option<usize>,
}

impl Runtime {
    /// The networks in the order of the file names, then `others`, and an error for each file that cannot be used.
    pub fn networks(&self) -> Result<(Vec<ListedNetwork>, Vec<Error>)> {
        let (mut listed, mut broken) = (Vec::new(), Vec::new());
        let (mut of_crio, mut of_podman) = (Vec::new(), Vec::new());
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
            let position = |names| is_complete.then(|| add(names, &network.name)).flatten();
            let order = Order {
                containerd: broken.is_empty().then_some(listed.len() + 1),
                crio: position(&mut of_crio),
                podman: if is_list { position(&mut of_podman) } else { None },
            };
            listed.push(ListedNetwork { built_in, ..ListedNetwork::new(network, missing, order) });
        }
        for network in &self.others {
            let (missing, _) = unresolved(network, &self.settings.path);
            let order = Order { containerd: None, crio: None, podman: None };
            listed.push(ListedNetwork::new(network.clone(), missing, order));
        }
        Ok((listed, broken))
    }

    /// The names of all networks: of those with a file, and of those with an attachment or its remains. Fails if one of these files
    /// cannot be read.
    pub fn known_names(&self) -> Result<Vec<NetworkName>> {
        let configured: Result<Vec<Network>> =
            Network::all(&self.configurations)?.into_iter().collect();
        let networks = configured?.into_iter().chain(self.others.iter().cloned());
        let mut names: Vec<NetworkName> = networks.map(|network| network.name).collect();
        let found = self.cache.all()?;
        names.extend(found.entries.into_iter().map(|entry| entry.network));
        found.damaged.into_iter().next().map_or(Ok(()), |file| Err(file.error))?;
        let found = self.records.all()?;
        names.extend(found.records.into_iter().map(|record| record.network));
        found.unreadable.into_iter().next().map_or(Ok(()), |unreadable| Err(unreadable.error))?;
        Ok(names)
    }

    /// The networks in the cache that have none of these names, each with the file of one of its attachments.
    pub fn networks_of_cache(&self, known: &[NetworkName]) -> Result<Vec<Network>> {
        let mut found: Vec<Network> = Vec::new();
        for entry in self.cache.all()?.entries {
            let is_known = known.contains(&entry.network)
                || found.iter().any(|network| network.name == entry.network);
            if !is_known && let Ok(network) = entry.network_of_add() {
                let file = self.cache.path(&entry.network, &entry.at);
                found.push(Network { file, ..network });
            }
        }
        Ok(found)
    }
}

impl ListedNetwork {
    fn new(network: Network, missing: Vec<String>, order: Order) -> Self {
        Self {
            subnets: subnets(&network),
            plugins: network.plugins.iter().map(|plugin| conf::kind(plugin).into()).collect(),
            name: network.name,
            file: network.file,
            cni_version: network.version.text(),
            missing,
            built_in: Vec::new(),
            order,
        }
    }
}

/// Adds a network to the names of the networks that one runtime uses. Returns its position; `None` if the name is there already.
fn add(names: &mut Vec<NetworkName>, name: &NetworkName) -> Option<usize> {
    if names.contains(name) {
        return None;
    }
    names.push(name.clone());
    Some(names.len())
}

/// The plugin types of a network that are missing, and those that are only in this executable.
fn unresolved(network: &Network, path: &[PathBuf]) -> (Vec<String>, Vec<String>) {
    let (mut missing, mut built_in) = (Vec::new(), Vec::new());
    for kind in types(network) {
        let list = match Program::find(kind, &[], path, PLUGINS) {
            Err(_) => &mut missing,
            Ok(_) if path.iter().any(|directory| directory.join(kind).is_file()) => continue,
            Ok(_) => &mut built_in,
        };
        if !list.iter().any(|known| known == kind) {
            list.push(kind.to_owned());
        }
    }
    (missing, built_in)
}

/// The types of the plugins and of their IPAM plugins.
fn types(network: &Network) -> impl Iterator<Item = &str> {
    let of_plugin = |plugin| [conf::kind(plugin), conf::ipam_kind(plugin)];
    network.plugins.iter().flat_map(of_plugin).filter(|kind| !kind.is_empty())
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

/// The link of the host that a plugin with the key `master` attaches containers to. `None` if the plugin chooses it, or finds it in the
/// container.
pub fn parent(plugin: &Json) -> Option<&str> {
    let has_parent = ["macvlan", "ipvlan", "vlan"].contains(&conf::kind(plugin));
    let is_inside = plugin.get("linkInContainer") == Some(&Json::Bool(true));
    plugin.text_at("master").filter(|name| has_parent && !is_inside && !name.is_empty())
}

/// The name of the bridge of a network, if it has the plugin `bridge`.
pub fn bridge(network: &Network) -> Option<&str> {
    network.plugin("bridge").map(bridge_of)
}

/// The name of the bridge in a configuration of the plugin `bridge`, or the default.
pub fn bridge_of(plugin: &Json) -> &str {
    plugin.text_at("bridge").filter(|name| !name.is_empty()).unwrap_or(bridge::DEFAULT)
}
