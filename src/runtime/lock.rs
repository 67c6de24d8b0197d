//! Locks of containers and networks. Operations of one container id exclude each other; GC of a network excludes ADD and
//! DEL there.
//!
//! An operation locks the network first, then the container. Each lock is a flock(2) on its own file, so the kernel releases it
//! when the process ends.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Limit, Mode};
use crate::kernel::sys::warn;
use crate::names::{ContainerId, NetworkName};

/// The longest wait for other holders, as in the store of host-local.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The maximum size of a note, which is the text in a lock file. `netns_lock` writes the purpose and the identity of a
/// namespace.
const NOTE_BYTES_MAX: usize = 4096;

/// The prefix in the name of the lock file of a namespace; the name of the namespace follows.
const NAMESPACE: &str = "namespace-";

/// A held lock. Drop releases it.
pub struct Lock {
    path: PathBuf,
    file: File,
    /// The lock is exclusive, so drop may remove the file.
    is_exclusive: bool,
}

impl Lock {
    /// The lock of a network: shared for ADD and DEL, exclusive for GC.
    pub fn network(directory: &Path, network: &NetworkName, mode: Mode) -> Result<Self> {
        Self::take(directory, &format!("network-{network}"), mode, WAIT_MAX)
    }

    /// The shared lock of a network, without a wait. `None` while a GC holds the lock exclusively. A caller can hold the lock
    /// of a container already; a wait in this order could be a deadlock.
    pub fn network_without_gc(directory: &Path, network: &NetworkName) -> Result<Option<Self>> {
        let name = format!("network-{network}");
        match Self::take(directory, &name, Mode::Shared, Duration::ZERO) {
            Err(error) if error.code == Code::TRY_AGAIN_LATER => Ok(None),
            taken => taken.map(Some),
        }
    }

    /// The lock of a container.
    pub fn container(directory: &Path, container_id: &ContainerId) -> Result<Self> {
        Self::take(directory, &format!("container-{container_id}"), Mode::Exclusive, WAIT_MAX)
    }

    /// The lock of a container, without a wait. Fails with code 11 while another process holds it.
    pub fn container_if_free(directory: &Path, container_id: &ContainerId) -> Result<Self> {
        Self::take(directory, &format!("container-{container_id}"), Mode::Exclusive, Duration::ZERO)
    }

    /// The lock of a named namespace, for the process that creates the namespace.
    pub fn namespace(directory: &Path, name: &str) -> Result<Self> {
        Self::take(directory, &format!("{NAMESPACE}{name}"), Mode::Exclusive, WAIT_MAX)
    }

    /// Writes a text into the lock file. `visit_stale_namespaces` reads it after this process has ended.
    pub fn note(&self, text: &str) -> Result<()> {
        let write = || {
            fault::file_operation()?;
            let (mut file, _) = file::open_regular(&self.path, file::REWRITE)?;
            file.write_all(text.as_bytes())
        };
        write().map_err(Error::of_file("write", &self.path))
    }

    /// The open file with the lock. A process that inherits it holds the lock, too, until it ends or closes the file, and so do its
    /// descendants. Drop of this value releases the lock for all of them.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Waits for the lock at most `wait`, then fails with code 11.
    fn take(directory: &Path, name: &str, mode: Mode, wait: Duration) -> Result<Self> {
        let path = directory.join(name);
        let limit = Limit::new(wait);
        loop {
            let (file, metadata) = open(directory, &path).map_err(Error::of_file("lock", &path))?;
            let locked =
                fault::file_operation().and_then(|()| flock::lock_within(&file, mode, &limit));
            if !locked.map_err(Error::of_file("lock", &path))? {
                return Err(timeout(&path, wait, &file::holder(&file)));
            }
            // The previous holder may have removed the file. Then other processes lock a new file.
            if file::is_at(&metadata, &path).map_err(Error::of_file("lock", &path))? {
                let is_exclusive = matches!(mode, Mode::Exclusive);
                return Ok(Self { path, file, is_exclusive });
            }
            if limit.left().is_zero() {
                return Err(timeout(&path, wait, "the file is removed again and again"));
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_exclusive {
            // If this fails, the next holder locks the same file.
            let _ = fs::remove_file(&self.path);
        }
        // If this fails, the kernel releases the lock when the descriptor is closed.
        let _ = flock::unlock(&self.file);
    }
}

/// The lock files that no process holds, locked: their holders were killed.
fn abandoned(directory: &Path, has_name: fn(&[u8]) -> bool) -> impl Iterator<Item = Lock> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = files.filter(move |file| has_name(file.file_name().as_encoded_bytes()));
    named.filter_map(|file| {
        let path = file.path();
        let (file, metadata) = file::open_regular(&path, file::READ).ok()?;
        let is_locked = matches!(flock::try_lock(&file, Mode::Exclusive), Ok(true));
        let is_abandoned = is_locked && matches!(file::is_at(&metadata, &path), Ok(true));
        is_abandoned.then(|| Lock { path, file, is_exclusive: true })
    })
}

fn is_of_namespace(name: &[u8]) -> bool {
    name.starts_with(NAMESPACE.as_bytes())
}

/// Removes the lock files that no process holds: their holders were killed. A lock file of a namespace stays as long as the
/// namespace, and `visit_stale_namespaces` removes it.
pub fn sweep(directory: &Path) {
    abandoned(directory, |name| !is_of_namespace(name)).for_each(drop);
}

/// Calls `keep` with the name and the note of each namespace whose lock file exists and that no process holds locked. Removes
/// the lock file if `keep` returns false.
pub fn visit_stale_namespaces(directory: &Path, keep: &mut dyn FnMut(&str, &str) -> bool) {
    for mut lock in abandoned(directory, is_of_namespace) {
        let name = lock.path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_prefix(NAMESPACE).unwrap_or_default();
        // An unreadable note proves nothing, so the lock file stays.
        let is_kept = match file::read_open(&lock.file, NOTE_BYTES_MAX) {
            Ok(note) => keep(name, &String::from_utf8_lossy(&note)),
            Err(error) => {
                warn(format_args!("warning: cannot read {}: {error}", lock.path.display()));
                true
            }
        };
        lock.is_exclusive = !is_kept;
    }
}

fn open(directory: &Path, path: &Path) -> io::Result<(File, Metadata)> {
    let open = || {
        fault::file_operation()?;
        file::open_regular(path, file::LOCK)
    };
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            file::make_directory(directory, 0o700).and_then(|()| open())
        }
        opened => opened,
    }
}

fn timeout(path: &Path, wait: Duration, reason: &str) -> Error {
    let within =
        if wait.is_zero() { String::new() } else { format!(" within {} s", wait.as_secs()) };
    let msg = format!("cannot lock {}{within}: {reason}", path.display());
    Error::new(Code::TRY_AGAIN_LATER, msg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::cache::tests::Scratch;

    #[test]
    fn a_container_has_one_operation_at_a_time_and_no_file_is_left() {
        let dir = Scratch::new();
        let id = ContainerId::new("c").unwrap();
        let count = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = Lock::container(dir.path(), &id).unwrap();
                        assert_eq!(count.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        count.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_network_is_shared_by_all_but_gc() {
        let dir = Scratch::new();
        let locks = dir.path().join("locks");
        let name = NetworkName::new("net").unwrap();
        let one = Lock::network(&locks, &name, Mode::Shared).unwrap();
        let two = Lock::network(&locks, &name, Mode::Shared).unwrap();
        let path = locks.join("network-net");
        let file = File::open(&path).unwrap();
        assert!(!flock::try_lock(&file, Mode::Exclusive).unwrap());
        drop((one, two));
        let gc = Lock::network(&locks, &name, Mode::Exclusive).unwrap();
        assert!(!flock::try_lock(&file, Mode::Shared).unwrap());
        assert!(Lock::network_without_gc(&locks, &name).unwrap().is_none());
        drop(gc);
        assert!(!path.exists());
        assert!(Lock::network_without_gc(&locks, &name).unwrap().is_some());
    }
}
