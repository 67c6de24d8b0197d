//! The networks that podman keeps in files of its own, where it keeps them by default. podman makes the bridge of a network with
//! the first container, so a network can have a subnet and a bridge that the host does not have yet.

use std::fs;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::cni::json::{Json, Map, keys};
use crate::kernel::file;

/// The word of podman for networks of the driver of cnibox.
pub const DRIVER: &str = "cnibox";
/// The option of such a network that names a network of the directory of configurations.
pub const NETWORK: &str = "network";

keys! {
    /// The keys of a network of any driver.
    pub struct OfPodman {
        "name" => pub name: String,
        "id" => pub id: String,
        "driver" => pub driver: String,
        "network_interface" => pub interface: String,
        "subnets" => subnets: Vec<Subnet>,
        "options" => options: Map<String>,
    }

    struct Subnet requires "subnet" {
        "subnet" => subnet: IpNet,
    }
}

impl OfPodman {
    /// The subnets, without the bits of a host.
    pub fn nets(&self) -> impl Iterator<Item = IpNet> {
        self.subnets.iter().map(|subnet| subnet.subnet.trunc())
    }

    /// Whether the driver of cnibox makes the list of plugins of the network. Otherwise it uses that of a file.
    pub fn is_only_here(&self) -> bool {
        self.driver == DRIVER && self.options.0.iter().all(|(key, _)| key != NETWORK)
    }
}

/// The directories in which podman keeps its networks by default.
pub fn directories(home: Option<PathBuf>) -> Vec<PathBuf> {
    let of_user = home.map(|home| home.join(".local/share/containers/storage/networks"));
    [Some("/etc/containers/networks".into()), of_user].into_iter().flatten().collect()
}

/// The networks in podman's files. A file that this user cannot read, or that is no network, is left out: podman has other
/// networks for each user.
pub fn networks(directories: &[PathBuf]) -> Vec<OfPodman> {
    let all = documents(directories).into_iter();
    all.filter_map(|(_, json)| json.read("a network").ok()).collect()
}

/// podman's files with their content.
pub fn documents(directories: &[PathBuf]) -> Vec<(PathBuf, Json)> {
    let files = directories.iter().filter_map(|directory| fs::read_dir(directory).ok());
    let mut paths: Vec<PathBuf> = files.flatten().flatten().map(|file| file.path()).collect();
    paths.sort_unstable();
    let read = |path: PathBuf| {
        let json = Json::parse(&file::read(&path).ok()?).ok()?;
        Some((path, json))
    };
    paths.into_iter().filter_map(read).collect()
}
