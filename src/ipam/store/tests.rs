//! Tests of the store on real directories.

mod model;
mod other_programs;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::locked::{Placed, put_in_place};
use super::*;
use crate::names::{Attachment, ContainerId, IfName};

/// A temporary data directory.
pub(crate) struct TempDir {
    path: PathBuf,
    turns: Turns,
}

impl TempDir {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("cnibox-{}-{}", process::id(), COUNT.fetch_add(1, Relaxed));
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self { path, turns: Turns::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn network_dir(&self) -> PathBuf {
        self.path.join("net")
    }

    pub(crate) fn store(&self) -> Store<'_> {
        Store::open(&self.path, &network(), &self.turns).unwrap()
    }

    pub(crate) fn store_if_exists(&self) -> Option<Store<'_>> {
        Store::open_if_exists(&self.path, &network(), &self.turns).unwrap()
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        fs::create_dir_all(self.network_dir()).unwrap();
        fs::write(self.network_dir().join(name), content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.network_dir().join(name)).unwrap()
    }

    /// The sorted names in the directory of the network.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.network_dir()).unwrap();
        let name =
            |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).unwrap();
    }
}

pub(crate) fn network() -> NetworkName {
    NetworkName::new("net").unwrap()
}

/// The interface eth0 of a container.
pub(crate) fn attachment(id: &str) -> Attachment {
    interface(id, "eth0")
}

fn interface(id: &str, ifname: &str) -> Attachment {
    Attachment { container_id: ContainerId::new(id).unwrap(), ifname: IfName::new(ifname).unwrap() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn reserve(dir: &TempDir, address: &str, id: &str) -> bool {
    dir.store().locked(|locked| locked.reserve(ip(address), &attachment(id))).unwrap()
}

#[test]
fn files_have_the_bytes_of_the_reference() {
    let dir = TempDir::new();
    dir.store()
        .locked(|locked| {
            assert!(locked.reserve(ip("10.1.0.2"), &attachment("abc"))?);
            assert!(locked.reserve(ip("fd00:1::2"), &attachment("abc"))?);
            assert!(!locked.reserve(ip("10.1.0.2"), &attachment("other"))?);
            locked.set_last_reserved(0, ip("10.1.0.1"))?;
            locked.set_last_reserved(0, ip("10.1.0.2"))?;
            locked.set_last_reserved(1, ip("fd00:1::2"))
        })
        .unwrap();
    assert_eq!(
        dir.names(),
        ["10.1.0.2", "fd00:1::2", "last_reserved_ip.0", "last_reserved_ip.1", "lock"]
    );
    let content = fs::read(dir.network_dir().join("10.1.0.2")).unwrap();
    assert_eq!(content, [0x61, 0x62, 0x63, 0x0d, 0x0a, 0x65, 0x74, 0x68, 0x30]);
    assert_eq!(dir.read("last_reserved_ip.0"), "10.1.0.2");
    assert_eq!(dir.read("lock"), "");
    for name in ["10.1.0.2", "last_reserved_ip.1"] {
        let metadata = fs::metadata(dir.network_dir().join(name)).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.nlink()), (0o600, 1), "{name}");
    }
    let lock = fs::metadata(dir.network_dir().join("lock")).unwrap();
    assert_eq!(lock.permissions().mode() & 0o700, 0o700);
}

#[test]
fn one_of_sixteen_threads_reserves_the_address() {
    let dir = TempDir::new();
    let winners = std::thread::scope(|scope| {
        let race = |n: u32| {
            let dir = &dir;
            scope.spawn(move || reserve(dir, "10.1.0.2", &format!("c{n}")))
        };
        let threads: Vec<_> = (0..16).map(race).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().then_some(())).count()
    });
    assert_eq!(winners, 1);
    assert_eq!(dir.names(), ["10.1.0.2", "lock"]);
}

/// The number of open descriptors in a directory. Tests in other threads use other directories.
fn descriptors_in(dir: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|link| fs::read_link(link.unwrap().path()).ok());
    targets.filter(|target| target.starts_with(dir)).count()
}

#[test]
fn all_threads_that_share_turns_get_the_lock() {
    const THREADS: u32 = 32;
    const ROUNDS: u32 = 100;

    let dir = TempDir::new();
    let in_use = Mutex::new(BTreeSet::new());
    let add = |at: &Attachment| {
        let reserved = dir.store().locked(|locked| {
            let mut all = (2..100).map(|n| ip(&format!("10.1.0.{n}")));
            Ok(all.find(|ip| locked.reserve(*ip, at).unwrap()))
        });
        let ip = reserved.unwrap().unwrap();
        assert!(in_use.lock().unwrap().insert(ip), "{ip} was reserved twice");
        ip
    };
    let del = |at: &Attachment, ip: IpAddr| {
        // Before the release: after it another thread can reserve the address.
        assert!(in_use.lock().unwrap().remove(&ip));
        dir.store_if_exists().unwrap().locked(|locked| locked.release(at)).unwrap();
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (add, del) = (&add, &del);
            scope.spawn(move || {
                // An address is kept until the next one is reserved.
                let mut held = None;
                for round in 0..ROUNDS {
                    let at = attachment(&format!("c{thread}-{round}"));
                    let ip = add(&at);
                    if let Some((at, ip)) = held.replace((at, ip)) {
                        del(&at, ip);
                    }
                }
                let (at, ip) = held.unwrap();
                del(&at, ip);
            });
        }
    });
    assert_eq!(dir.names(), ["lock"]);
    assert_eq!(descriptors_in(dir.path()), 0);
}

#[test]
fn a_file_that_is_written_without_the_lock_keeps_the_address() {
    let dir = TempDir::new();
    let reserved = dir.store().locked(|locked| {
        dir.write("10.1.0.2", "other\r\neth0");
        locked.reserve(ip("10.1.0.2"), &attachment("abc"))
    });
    assert!(!reserved.unwrap());
    assert_eq!(dir.read("10.1.0.2"), "other\r\neth0");
    assert_eq!(dir.names(), ["10.1.0.2", "lock"]);
}

#[test]
fn incomplete_reservations_are_free() {
    let dir = TempDir::new();
    for incomplete in ["", " \n", "\0\0\0\0", "abc\r\n\0\0\0\0"] {
        dir.write("10.1.0.2", incomplete);
        assert!(reserve(&dir, "10.1.0.2", "abc"), "{incomplete:?}");
        assert_eq!(dir.read("10.1.0.2"), "abc\r\neth0");
        assert_eq!(dir.names(), ["10.1.0.2", "lock"]);
    }
    assert!(!reserve(&dir, "10.1.0.2", "other"));
    dir.write("10.1.0.3", "taken by hand,\nfor the printer");
    assert!(!reserve(&dir, "10.1.0.3", "other"));
    fs::create_dir(dir.network_dir().join("10.1.0.4")).unwrap();
    assert!(!reserve(&dir, "10.1.0.4", "other"));
}

#[test]
fn a_file_that_a_crash_left_is_never_written() {
    let dir = TempDir::new();
    reserve(&dir, "10.1.0.2", "abc");
    // A crash between the link and the removal of the first name.
    let aside = dir.network_dir().join(ASIDE);
    fs::hard_link(dir.network_dir().join("10.1.0.2"), &aside).unwrap();
    assert!(reserve(&dir, "10.1.0.3", "other"));
    assert_eq!(dir.read("10.1.0.2"), "abc\r\neth0");
    assert_eq!(dir.read("10.1.0.3"), "other\r\neth0");
    assert_eq!(dir.names(), ["10.1.0.2", "10.1.0.3", "lock"]);
    // A crash before the link: no address is reserved, and DEL removes the file.
    fs::write(&aside, "third\r\neth0").unwrap();
    dir.store().locked(|locked| locked.release(&attachment("third"))).unwrap();
    assert_eq!(dir.names(), ["10.1.0.2", "10.1.0.3", "lock"]);
}

#[test]
fn without_hard_links_the_lock_excludes_others() {
    let dir = TempDir::new();
    let (aside, target) = (dir.path().join("aside"), dir.path().join("target"));
    for error in [ErrorKind::PermissionDenied, ErrorKind::Unsupported] {
        fs::write(&aside, "new").unwrap();
        let no_links = |_: &Path, _: &Path| Err(error.into());
        assert_eq!(put_in_place(&aside, &target, no_links).unwrap(), Placed::New);
        assert!(!aside.exists());
        fs::write(&aside, "newer").unwrap();
        assert_eq!(put_in_place(&aside, &target, no_links).unwrap(), Placed::NameInUse);
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        fs::remove_file(&target).unwrap();
    }
    let full = |_: &Path, _: &Path| Err(ErrorKind::StorageFull.into());
    assert_eq!(put_in_place(&aside, &target, full).unwrap_err().kind(), ErrorKind::StorageFull);
}

#[test]
fn release_removes_the_reservations_of_the_attachment() {
    let dir = TempDir::new();
    for (name, content) in [
        ("10.1.0.2", "abc\r\neth0"),
        ("10.1.0.3", "abc\r\neth0\n"),
        ("10.1.0.4", "abc\r\neth1"),
        ("10.1.0.5", "abc\n"),
        ("10.1.0.6", "abcd"),
        ("FD00::1", "abc\r\neth0"),
        ("last_reserved_ip.0", "abc"),
    ] {
        dir.write(name, content);
    }
    let left = |expected: &[&str]| {
        dir.store().locked(|locked| locked.release(&attachment("abc"))).unwrap();
        let names = dir.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(names, expected);
    };
    // A file without an interface belongs to the attachment only if no file names the attachment.
    left(&["10.1.0.4", "10.1.0.5", "10.1.0.6", "FD00::1", "last_reserved_ip.0", "lock"]);
    left(&["10.1.0.4", "10.1.0.6", "FD00::1", "last_reserved_ip.0", "lock"]);
    left(&["10.1.0.4", "10.1.0.6", "FD00::1", "last_reserved_ip.0", "lock"]);
}

#[test]
fn release_of_a_container_named_like_an_address_keeps_last_reserved_ip() {
    let dir = TempDir::new();
    dir.write("last_reserved_ip.0", "10.1.0.2");
    dir.store().locked(|locked| locked.release(&attachment("10.1.0.2"))).unwrap();
    assert_eq!(dir.names(), ["last_reserved_ip.0", "lock"]);
}

#[test]
fn gc_keeps_valid_reservations_and_files_of_other_programs() {
    let dir = TempDir::new();
    for (name, content) in [
        ("10.1.0.2", "abc\r\neth0"),
        ("10.1.0.3", "abc\r\neth1"),
        ("10.1.0.4", "gone\r\neth0"),
        ("10.1.0.5", "abc"),
        ("10.1.0.6", "gone\n"),
        ("10.1.0.7", ""),
        ("10.1.0.8", "by hand, for the printer"),
        (ASIDE, "gone\r\neth0"),
        ("last_reserved_ip.0", "10.1.0.8"),
        ("notes", "gone\r\neth0"),
    ] {
        dir.write(name, content);
    }
    dir.store().locked(|locked| locked.keep_only(&[attachment("abc")])).unwrap();
    assert_eq!(
        dir.names(),
        ["10.1.0.2", "10.1.0.5", "10.1.0.8", "last_reserved_ip.0", "lock", "notes"]
    );
    dir.store().locked(|locked| locked.keep_only(&[])).unwrap();
    assert_eq!(dir.names(), ["10.1.0.8", "last_reserved_ip.0", "lock", "notes"]);
}

#[test]
fn an_incomplete_last_reserved_ip_is_ignored() {
    let dir = TempDir::new();
    for (content, expected) in
        [("10.1.0.2\n", Some(ip("10.1.0.2"))), ("", None), ("\0\0", None), ("10.1.", None)]
    {
        dir.write("last_reserved_ip.3", content);
        let last = dir.store().locked(|locked| locked.last_reserved(3)).unwrap();
        assert_eq!(last, expected, "{content:?}");
    }
    assert_eq!(dir.store().locked(|locked| locked.last_reserved(0)).unwrap(), None);
}

#[test]
fn opening_an_existing_store_creates_nothing() {
    let dir = TempDir::new();
    assert!(dir.store_if_exists().is_none());
    assert!(!dir.network_dir().exists());
    fs::create_dir(dir.network_dir()).unwrap();
    assert!(dir.store_if_exists().is_none());
    assert!(dir.names().is_empty());
    // Reservations without a lock: a backup without empty files.
    dir.write("10.1.0.2", "abc\r\neth0");
    dir.store_if_exists().unwrap().locked(|locked| locked.release(&attachment("abc"))).unwrap();
    assert_eq!(dir.names(), ["lock"]);
}

#[test]
fn a_file_in_place_of_the_data_directory_is_an_error() {
    let dir = TempDir::new();
    fs::write(dir.path().join("file"), "").unwrap();
    let data_dir = dir.path().join("file/networks");
    let turns = Turns::default();
    assert!(Store::open_if_exists(&data_dir, &network(), &turns).unwrap().is_none());
    let opened = Store::open(&data_dir, &network(), &turns).map(drop);
    for result in [opened, Store::check_usable(&data_dir, &network())] {
        let error = result.unwrap_err();
        assert_eq!(error.code, Code::IO);
        assert!(error.msg.to_lowercase().contains("not a directory"), "{error}");
    }
    assert_eq!(Store::check_usable(dir.path(), &network()), Ok(()));
    assert_eq!(Store::check_usable(&dir.path().join("a/b"), &network()), Ok(()));
    assert!(!dir.path().join("a").exists());
}

#[test]
fn release_goes_on_past_an_unreadable_file() {
    let dir = TempDir::new();
    dir.write("10.1.0.2", "abc\r\neth0");
    // Not even root can open a symbolic link to itself.
    std::os::unix::fs::symlink("10.1.0.3", dir.network_dir().join("10.1.0.3")).unwrap();
    let result = dir.store().locked(|locked| locked.release(&attachment("abc")));
    assert!(result.unwrap_err().msg.contains("10.1.0.3"));
    assert_eq!(dir.names(), ["10.1.0.3", "lock"]);
    assert!(!reserve(&dir, "10.1.0.3", "other"));
    assert!(dir.store().locked(|locked| locked.keep_only(&[])).is_err());
}
