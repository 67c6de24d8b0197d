//! The signs of life of containers on a host: the addresses and links of all namespaces, and the processes.
//!
//! A namespace is found by its mount (`ip netns` and runtimes mount them below /run) and by the processes in it. Reading them
//! changes nothing.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::steps::link::host_link;

/// PROC_PID_INIT_INO (linux/proc_ns.h): the inode of the first PID namespace of the machine.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// All that could be seen.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// Each address of a link, and the path of a namespace that has it.
    addresses: Vec<(IpAddr, PathBuf)>,
    /// Each owner that the alias of a link names, and the path of the namespace of the link.
    owners: Vec<(String, PathBuf)>,
    /// The container ids that plugins in progress have, and their process ids.
    calls: Vec<(String, u32)>,
    /// The command lines and control groups of all processes. Runtimes name the container there.
    texts: Vec<u8>,
    /// Why some namespace or process could not be seen.
    pub(super) hidden: Option<String>,
}

impl Signs {
    /// Reads the processes first. An ADD puts the address on a link before its process ends, so an ADD that is missing from
    /// the processes has done that when the namespaces are read.
    pub(super) fn read(home: &NetNs) -> Self {
        let mut signs = Self::default();
        let mut namespaces = mounted("/proc/self/mountinfo");
        for process in processes() {
            let directory = PathBuf::from(format!("/proc/{process}"));
            if process != std::process::id() {
                signs.read_process(process, &directory);
            }
            namespaces.push(directory.join("ns/net"));
        }
        let mut seen = Vec::new();
        for path in namespaces {
            match fs::metadata(&path) {
                Ok(metadata) => {
                    let identity = (metadata.dev(), metadata.ino());
                    if !seen.contains(&identity) {
                        seen.push(identity);
                        signs.read_namespace(home, path);
                    }
                }
                Err(error) => signs.miss(&path, &error),
            }
        }
        signs
    }

    /// The path of a namespace with an address.
    pub(super) fn with_address(&self, address: IpAddr) -> Option<&Path> {
        self.addresses.iter().find(|(ip, _)| *ip == address).map(|(_, path)| path.as_path())
    }

    /// The path of a namespace with a link of an owner.
    pub(super) fn with_owner(&self, owner: &str) -> Option<&Path> {
        self.owners.iter().find(|(name, _)| name == owner).map(|(_, path)| path.as_path())
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

    fn read_process(&mut self, process: u32, directory: &Path) {
        for name in ["environ", "cmdline", "cgroup"] {
            let path = directory.join(name);
            let content = match fs::read(&path) {
                Ok(content) => content,
                Err(error) => {
                    self.miss(&path, &error);
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

    fn read_namespace(&mut self, home: &NetNs, path: PathBuf) {
        let read = || -> Result<_> {
            let rtnl = home.open(&path)?.rtnl()?;
            Ok((rtnl.all_addresses()?, rtnl.links()?))
        };
        match read() {
            Ok((addresses, links)) => {
                for ip in addresses {
                    self.addresses.push((ip, path.clone()));
                }
                for link in &links {
                    // An ifb is the host's own, and stays when the namespace of its owner ends.
                    if link.kind.as_deref() != Some("ifb")
                        && let Some(owner) = host_link::owner_of(link)
                    {
                        self.owners.push((owner.to_owned(), path.clone()));
                    }
                }
            }
            // It can have ended meanwhile.
            Err(_) if !path.exists() => {}
            Err(error) => self.hidden = Some(error.to_string()),
        }
    }

    fn miss(&mut self, path: &Path, error: &std::io::Error) {
        // ESRCH: the process ended after its file was opened.
        let has_ended = error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH);
        if !has_ended && self.hidden.is_none() {
            self.hidden = Some(format!("cannot read {}: {error}", path.display()));
        }
    }
}

const ESRCH: i32 = 3;

/// The words of letters and digits.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let words = text.split(|byte| !byte.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty())
}

fn processes() -> Vec<u32> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(Ok(process)) = entry.file_name().to_str().map(str::parse) {
            processes.push(process);
        }
    }
    processes
}

/// The mounted network namespaces.
fn mounted(mountinfo: &str) -> Vec<PathBuf> {
    let text = fs::read_to_string(mountinfo).unwrap_or_default();
    let mut mounted = Vec::new();
    for (root, path) in mounts(&text) {
        if root.starts_with("net:[") {
            mounted.push(path.into());
        }
    }
    mounted
}

/// The roots and paths of the lines of mountinfo (proc_pid_mountinfo(5), fields 4 and 5).
fn mounts(text: &str) -> Vec<(&str, &str)> {
    let mut mounts = Vec::new();
    for line in text.lines() {
        let mut fields = line.split(' ');
        if let (Some(root), Some(path)) = (fields.nth(3), fields.next()) {
            mounts.push((root, path));
        }
    }
    mounts
}

/// Whether the reservations were mounted into a container that does not see the processes of the host, such as a pod without
/// `hostPID`. The signs there are not those of the host.
pub(super) fn is_guest(data_dir: &Path) -> bool {
    let is_first = |metadata: fs::Metadata| metadata.ino() == FIRST_PID_NAMESPACE;
    if fs::metadata("/proc/self/ns/pid").is_ok_and(is_first) {
        return false;
    }
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts(&text).iter().any(|(_, path)| {
        let path = Path::new(path);
        path.starts_with("/var/lib/cni") || path == data_dir
    })
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
    fn mounts_have_a_root_and_a_path() {
        let text = "36 35 0:4 net:[4026532345] /run/netns/web rw shared:5 - nsfs nsfs rw\n\n1 2\n";
        assert_eq!(mounts(text), [("net:[4026532345]", "/run/netns/web")]);
    }

    #[test]
    fn the_signs_of_this_process_are_seen() {
        let home = NetNs::own().unwrap();
        let signs = Signs::read(&home);
        let own = home.rtnl().unwrap().all_addresses().unwrap();
        assert!(own.iter().all(|ip| signs.with_address(*ip).is_some()), "{own:?}");
    }
}
