//! All network namespaces that a thread, an open file or a mount holds, as far as /proc shows them.
//!
//! A socket holds its namespace, too, but /proc does not tell which one. Reading changes nothing.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::kernel::host_view::{has_ended, mounts};
use crate::kernel::sys;

/// The namespaces of a host.
#[derive(Debug, Default)]
pub struct Visible {
    /// Each namespace once.
    pub namespaces: Vec<Held>,
    /// The mounts of namespaces in all mount namespaces: the path there, and one that this process can open.
    pub mounts: Vec<(PathBuf, PathBuf)>,
    /// The process ids.
    pub processes: Vec<u32>,
    /// Why some namespace or process could not be seen.
    pub hidden: Option<String>,
    mount_namespaces: Vec<u64>,
}

/// One namespace.
#[derive(Debug)]
pub struct Held {
    pub inode: u64,
    /// The paths that lead to it: one for each process that holds it, and for each mount.
    pub paths: Vec<PathBuf>,
}

/// A process that starts another one and ends can hide it from a list. So the list is read until it has no new process.
const ROUNDS_MAX: u32 = 10;

impl Visible {
    pub fn read() -> Self {
        let mut visible = Self::default();
        for _ in 0..ROUNDS_MAX {
            let new = match processes() {
                Ok(all) => all.into_iter().filter(|process| !visible.processes.contains(process)),
                Err(error) => {
                    visible.miss(Path::new("/proc"), &error);
                    break;
                }
            };
            let new: Vec<u32> = new.collect();
            if new.is_empty() {
                return visible;
            }
            for process in new {
                visible.read_process(process);
                visible.processes.push(process);
            }
        }
        visible.hide("processes start faster than they can be listed".into());
        visible
    }

    /// Notes that something could not be read. A process that has ended hides nothing.
    pub fn miss(&mut self, path: &Path, error: &io::Error) {
        if !has_ended(error) {
            self.hide(format!("cannot read {}: {}", path.display(), sys::reason(error)));
        }
    }

    /// Notes why something could not be seen.
    pub fn hide(&mut self, reason: String) {
        self.hidden.get_or_insert(reason);
    }

    fn read_process(&mut self, process: u32) {
        let directory = PathBuf::from(format!("/proc/{process}"));
        let mut held: Vec<(u64, PathBuf)> = Vec::new();
        let mut hold = |inode: u64, path: PathBuf| {
            if held.iter().all(|(known, _)| *known != inode) {
                held.push((inode, path));
            }
        };
        for thread in self.names_in(&directory.join("task")) {
            let path = thread.join("ns/net");
            match fs::metadata(&path) {
                Ok(found) => hold(found.ino(), path),
                Err(error) => self.miss(&path, &error),
            }
        }
        // Those of this process are what it looks at.
        if process != std::process::id() {
            for path in self.names_in(&directory.join("fd")) {
                match fs::read_link(&path) {
                    Ok(target) => {
                        if let Some(inode) = target.to_str().and_then(inode_of) {
                            hold(inode, path);
                        }
                    }
                    Err(error) => self.miss(&path, &error),
                }
            }
        }
        for (inode, path) in held {
            self.add(inode, path);
        }
        self.read_mounts(&directory);
    }

    fn read_mounts(&mut self, directory: &Path) {
        let namespace = directory.join("ns/mnt");
        let inode = match fs::metadata(&namespace) {
            Ok(found) => found.ino(),
            Err(error) => return self.miss(&namespace, &error),
        };
        if self.mount_namespaces.contains(&inode) {
            return;
        }
        let mountinfo = directory.join("mountinfo");
        let text = match fs::read_to_string(&mountinfo) {
            Ok(text) => text,
            Err(error) => return self.miss(&mountinfo, &error),
        };
        self.mount_namespaces.push(inode);
        for (root, path) in mounts(&text) {
            if let Some(inode) = inode_of(root) {
                let below_root = path.strip_prefix("/").unwrap_or(&path);
                let open = directory.join("root").join(below_root);
                self.mounts.push((path, open.clone()));
                self.add(inode, open);
            }
        }
    }

    fn add(&mut self, inode: u64, path: PathBuf) {
        match self.namespaces.iter_mut().find(|held| held.inode == inode) {
            Some(held) => held.paths.push(path),
            None => self.namespaces.push(Held { inode, paths: vec![path] }),
        }
    }

    /// The paths in a directory.
    fn names_in(&mut self, directory: &Path) -> Vec<PathBuf> {
        let mut names = Vec::new();
        match fs::read_dir(directory) {
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(entry) => names.push(entry.path()),
                        Err(error) => self.miss(directory, &error),
                    }
                }
            }
            Err(error) => self.miss(directory, &error),
        }
        names
    }
}

/// The ids of the processes that /proc shows.
pub fn processes() -> io::Result<Vec<u32>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        if let Some(Ok(process)) = entry?.file_name().to_str().map(str::parse) {
            processes.push(process);
        }
    }
    Ok(processes)
}

/// The inode in `net:[4026532345]`.
fn inode_of(name: &str) -> Option<u64> {
    name.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_this_process_is_seen_once() {
        let visible = Visible::read();
        let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let found = visible.namespaces.iter().filter(|held| held.inode == own);
        assert_eq!(found.count(), 1);
        assert!(visible.processes.contains(&std::process::id()));
    }

    #[test]
    fn a_name_has_an_inode() {
        assert_eq!(inode_of("net:[4026531840]"), Some(4_026_531_840));
        for other in ["mnt:[4026531840]", "net:[]", "/run/netns/a", "net:[1"] {
            assert_eq!(inode_of(other), None, "{other}");
        }
    }
}
