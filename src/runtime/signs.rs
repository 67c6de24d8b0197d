//! The signs of life of containers on a host: the addresses and links of all namespaces, and the processes. Reading them
//! changes nothing.

mod visible;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::kernel::host_view::has_ended;
use crate::kernel::netns::NetNs;
use crate::names::Mac;
use crate::steps::link::host_link;

use visible::{Held, Visible, processes};

/// All that could be seen.
#[derive(Debug, Default)]
pub(super) struct Signs {
    namespaces: Vec<SeenNamespace>,
    /// The container ids that plugins in progress have, and their process ids.
    calls: Vec<(String, u32)>,
    /// The command lines and control groups of all processes. Runtimes name the container there.
    texts: Vec<u8>,
    pub(super) visible: Visible,
}

/// A namespace, and what is in it.
#[derive(Debug)]
pub(super) struct SeenNamespace {
    pub(super) inode: u64,
    pub(super) path: PathBuf,
    pub(super) is_host: bool,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) macs: Vec<Mac>,
    /// The owners that aliases of links name.
    pub(super) owners: Vec<String>,
}

impl Signs {
    /// Reads the processes first. An ADD puts the address on a link before its process ends, so an ADD that is missing from
    /// the processes has done that when the namespaces are read.
    pub(super) fn read(home: &NetNs) -> Self {
        let mut signs = Self::default();
        match processes() {
            Ok(processes) => {
                for process in processes.into_iter().filter(|pid| *pid != std::process::id()) {
                    signs.read_process(process);
                }
            }
            Err(error) => signs.visible.miss(Path::new("/proc"), &error),
        }
        let hidden = signs.visible.hidden.take();
        signs.visible = Visible::read();
        hidden.into_iter().for_each(|reason| signs.visible.hide(reason));
        let host = home.identity().map_or(0, |(_, inode)| inode);
        for held in std::mem::take(&mut signs.visible.namespaces) {
            signs.read_namespace(home, &held, host);
            signs.visible.namespaces.push(held);
        }
        signs
    }

    /// Why some namespace or process could not be seen.
    pub(super) fn hidden(&self) -> Option<&str> {
        self.visible.hidden.as_deref()
    }

    /// The namespaces with an address.
    pub(super) fn with_address(&self, address: IpAddr) -> impl Iterator<Item = &SeenNamespace> {
        self.namespaces.iter().filter(move |namespace| namespace.addresses.contains(&address))
    }

    /// The namespaces of containers with a link of this MAC address.
    pub(super) fn with_mac(&self, mac: Mac) -> impl Iterator<Item = &SeenNamespace> {
        self.namespaces
            .iter()
            .filter(move |namespace| !namespace.is_host && namespace.macs.contains(&mac))
    }

    /// The namespaces with a link of an owner.
    pub(super) fn with_owner(&self, owner: &str) -> impl Iterator<Item = &SeenNamespace> {
        self.namespaces
            .iter()
            .filter(move |namespace| namespace.owners.iter().any(|other| other == owner))
    }

    /// The process of a plugin that is called for a container.
    pub(super) fn call(&self, container_id: &str) -> Option<u32> {
        self.calls.iter().find(|(id, _)| id == container_id).map(|(_, process)| *process)
    }

    /// Whether command lines and control groups have all words of a container id.
    pub(super) fn name(&self, container_id: &str) -> bool {
        let mut wanted = words(container_id.as_bytes()).peekable();
        let has = |wanted| words(&self.texts).any(|word| word == wanted);
        wanted.peek().is_some() && wanted.all(has)
    }

    fn read_process(&mut self, process: u32) {
        for name in ["environ", "cmdline", "cgroup"] {
            let path = PathBuf::from(format!("/proc/{process}/{name}"));
            let content = match fs::read(&path) {
                Ok(content) => content,
                Err(error) => {
                    self.visible.miss(&path, &error);
                    continue;
                }
            };
            if name != "environ" {
                self.texts.extend(content);
                self.texts.push(b'\n');
                continue;
            }
            let (mut id, mut is_plugin) = (None, false);
            for variable in content.split(|byte| *byte == 0) {
                id = id.or_else(|| variable.strip_prefix(b"CNI_CONTAINERID="));
                is_plugin |= variable.starts_with(b"CNI_COMMAND=");
            }
            if let Some(id) = id.filter(|_| is_plugin) {
                self.calls.push((String::from_utf8_lossy(id).into_owned(), process));
            }
        }
    }

    fn read_namespace(&mut self, home: &NetNs, held: &Held, host: u64) {
        let mut failure = None;
        for path in &held.paths {
            match look_into(home, held.inode, path, host) {
                Ok(Some(namespace)) => return self.namespaces.push(namespace),
                // The process has ended, or the mount was removed, and another namespace can have its path.
                Ok(None) => {}
                // A mount can outlast the process by which it was found.
                Err(error) if is_of_mount(path) || !is_gone(path) => failure = Some(error),
                Err(_) => {}
            }
        }
        if let Some(error) = failure {
            self.visible.hide(error.to_string());
        }
    }
}

/// `None` if the path does not lead to the namespace any more.
fn look_into(home: &NetNs, inode: u64, path: &Path, host: u64) -> Result<Option<SeenNamespace>> {
    let netns = home.open(path)?;
    if netns.identity()?.1 != inode {
        return Ok(None);
    }
    let (rtnl, mut macs, mut owners) = (netns.rtnl()?, Vec::new(), Vec::new());
    let addresses = rtnl.all_addresses()?;
    for link in &rtnl.links()? {
        macs.extend(link.mac);
        // An ifb is the host's own, and stays when the namespace of its owner ends.
        if link.kind.as_deref() != Some("ifb") {
            owners.extend(host_link::owner_of(link).map(str::to_owned));
        }
    }
    let path = shown(path);
    Ok(Some(SeenNamespace { inode, path, is_host: inode == host, addresses, macs, owners }))
}

/// A mount that process 1 sees is shown with the path there.
pub(super) fn shown(path: &Path) -> PathBuf {
    path.strip_prefix("/proc/1/root").map_or_else(|_| path.into(), |path| Path::new("/").join(path))
}

fn is_of_mount(path: &Path) -> bool {
    path.components().nth(3).is_some_and(|part| part.as_os_str() == "root")
}

fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| has_ended(&error))
}

/// The words of letters and digits.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let words = text.split(|byte| !byte.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_names_a_container_in_its_command_line() {
        let mut signs = Signs::default();
        signs.texts.extend(b"conmon\0-c\0f00d42\0--x=k8s_web-1");
        for (id, is_named) in [("f00d42", true), ("web-1", true), ("f00d", false), ("c", true)] {
            assert_eq!(signs.name(id), is_named, "{id}");
        }
    }

    #[test]
    fn only_a_mount_is_found_below_the_root_of_a_process() {
        assert!(is_of_mount(Path::new("/proc/1/root/run/netns/a")));
        assert!(!is_of_mount(Path::new("/proc/1/task/1/ns/net")));
    }

    #[test]
    fn the_signs_of_this_process_are_seen() {
        let home = NetNs::own().unwrap();
        let signs = Signs::read(&home);
        let own = home.rtnl().unwrap().all_addresses().unwrap();
        assert!(own.iter().all(|ip| signs.with_address(*ip).next().is_some()), "{own:?}");
    }
}
