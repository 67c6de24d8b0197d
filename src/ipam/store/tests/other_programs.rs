//! The store after other programs changed the directory or the owners, and after a boot of the host.

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

use super::{TempDir, attachment, network};
use crate::error::Result;
use crate::ipam::store::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn in_boot<T>(dir: &TempDir, boot: u64, f: impl FnMut(&mut Locked<'_>) -> Result<T>) -> T {
    let mut store = dir.store();
    store.paths.owners.boot = Some(boot);
    store.locked(f).unwrap()
}

fn locked<T>(dir: &TempDir, f: impl FnMut(&mut Locked<'_>) -> Result<T>) -> T {
    dir.store().locked(f).unwrap()
}

fn reserve(dir: &TempDir, address: &str, id: &str) -> bool {
    locked(dir, |locked| locked.reserve(ip(address), &attachment(id)))
}

fn held(dir: &TempDir, id: &str) -> Vec<String> {
    let held = locked(dir, |locked| locked.held_by(&attachment(id)));
    held.iter().map(IpAddr::to_string).collect()
}

fn knows_owners(dir: &TempDir) -> bool {
    locked(dir, |locked| Ok(locked.knows_owners()))
}

fn owners(dir: &TempDir) -> PathBuf {
    dir.path().join(".cnibox/net~owners")
}

#[test]
fn the_owners_stay_known_after_changes_by_cnibox() {
    let dir = TempDir::new();
    assert!(!knows_owners(&dir), "the first call reads the files");
    assert!(reserve(&dir, "10.1.0.2", "abc"));
    assert!(knows_owners(&dir));
    locked(&dir, |locked| locked.set_last_reserved(0, ip("10.1.0.2")));
    assert!(knows_owners(&dir));
    locked(&dir, |locked| locked.release(&attachment("abc")));
    assert!(knows_owners(&dir));
    locked(&dir, |locked| locked.keep_only(&[]));
    assert!(knows_owners(&dir) && held(&dir, "abc").is_empty());
}

#[test]
fn every_change_by_other_programs_is_detected() {
    let dir = TempDir::new();
    for _ in 0..50 {
        reserve(&dir, "10.1.0.2", "abc");
        dir.write("10.1.0.3", "other\r\neth0");
        assert_eq!(held(&dir, "other"), ["10.1.0.3"]);
        assert!(knows_owners(&dir));
        fs::remove_file(dir.network_dir().join("10.1.0.2")).unwrap();
        assert!(held(&dir, "abc").is_empty());
        assert!(knows_owners(&dir));
        fs::rename(dir.network_dir().join("10.1.0.3"), dir.network_dir().join("10.1.0.2")).unwrap();
        assert_eq!(held(&dir, "other"), ["10.1.0.2"]);
        fs::remove_dir_all(dir.network_dir()).unwrap();
        assert!(held(&dir, "other").is_empty());
    }
}

#[test]
fn a_restored_stamp_does_not_count() {
    let dir = TempDir::new();
    reserve(&dir, "10.1.0.2", "abc");
    assert!(knows_owners(&dir));
    let paths = StorePaths::new(dir.path(), &network());
    let found = fs::metadata(dir.network_dir()).unwrap();
    // What a stamp of some seconds ago was: only the change time tells that it is restored.
    let stamp = |seconds| paths.owners.stamp_of(&found, seconds).unwrap();
    assert_eq!(stamp(found.mtime()), found.modified().unwrap());
    let open = File::open(dir.network_dir()).unwrap();
    for (ago, expected) in [(0, true), (10, false), (100_000, false), (-10, false)] {
        open.set_modified(stamp(found.mtime() - ago)).unwrap();
        assert_eq!(paths.owners.are_current(), expected, "{ago}");
    }
}

/// Creates an object at the path of the owners.
type CreateAt = fn(&Path, &TempDir);

#[test]
fn an_object_of_any_type_in_place_of_the_owners_is_replaced() {
    let objects: [(&str, CreateAt); 8] = [
        ("nothing", |_, _| {}),
        ("another directory", |path, _| fs::create_dir_all(path.join("abc+eth0/b")).unwrap()),
        ("a link to nowhere", |path, dir| symlink(dir.path().join("nowhere"), path).unwrap()),
        ("a link to itself", |path, _| symlink("net~owners", path).unwrap()),
        ("a link to a directory", |path, dir| symlink(dir.network_dir(), path).unwrap()),
        ("a pipe", |path, _| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
        ("a file", |path, _| fs::write(path, "").unwrap()),
        ("owners with other texts", |path, _| {
            fs::create_dir(path).unwrap();
            symlink("10.1.0.3 1 7", path.join("abc+eth0")).unwrap();
            symlink("text", path.join("def+eth0")).unwrap();
            fs::write(path.join("ghi+eth0"), "").unwrap();
        }),
    ];
    for (what, create_at) in objects {
        let dir = TempDir::new();
        reserve(&dir, "10.1.0.2", "abc");
        fs::remove_dir_all(owners(&dir)).unwrap();
        create_at(&owners(&dir), &dir);
        assert!(!knows_owners(&dir), "{what}");
        assert!(knows_owners(&dir), "{what}");
        let names: Vec<_> = fs::read_dir(owners(&dir)).unwrap().map(Result::unwrap).collect();
        assert_eq!(names.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(), ["abc+eth0"]);
        assert_eq!(held(&dir, "abc"), ["10.1.0.2"], "{what}");
        assert!(!dir.path().join("nowhere").exists() && dir.names() == ["10.1.0.2", "lock"]);
    }
}

#[test]
fn every_change_of_the_owners_by_other_programs_is_detected() {
    let changes: [(&str, CreateAt); 4] = [
        ("removed", |path, _| fs::remove_file(path.join("abc+eth0")).unwrap()),
        ("renamed", |path, _| fs::rename(path.join("abc+eth0"), path.join("def+eth0")).unwrap()),
        ("added", |path, _| symlink("10.1.0.2 1 7", path.join("def+eth0")).unwrap()),
        ("all removed", |path, _| fs::remove_dir_all(path.parent().unwrap()).unwrap()),
    ];
    for (what, change) in changes {
        let dir = TempDir::new();
        reserve(&dir, "10.1.0.2", "abc");
        assert!(knows_owners(&dir));
        change(&owners(&dir), &dir);
        assert!(!knows_owners(&dir), "{what}");
        assert_eq!(held(&dir, "abc"), ["10.1.0.2"], "{what}");
        assert!(held(&dir, "def").is_empty() && knows_owners(&dir), "{what}");
    }
}

#[test]
fn the_files_are_read_if_no_owners_can_be_written() {
    let elsewhere = TempDir::new();
    let objects: [CreateAt; 2] = [
        |path, _| fs::write(path, "").unwrap(),
        |path, elsewhere| symlink(elsewhere.path(), path).unwrap(),
    ];
    for create_at in objects {
        let dir = TempDir::new();
        create_at(&dir.path().join(".cnibox"), &elsewhere);
        assert!(reserve(&dir, "10.1.0.2", "abc") && !reserve(&dir, "10.1.0.2", "other"));
        assert_eq!(held(&dir, "abc"), ["10.1.0.2"]);
        assert!(!knows_owners(&dir));
        locked(&dir, |locked| locked.release(&attachment("abc")));
        assert!(held(&dir, "abc").is_empty());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "nothing is written there");
    }
}

#[test]
fn a_long_run_of_taken_addresses_is_passed_if_no_owners_can_be_written() {
    let dir = TempDir::new();
    fs::write(dir.path().join(".cnibox"), "").unwrap();
    for n in 2..80 {
        dir.write(&format!("10.2.0.{n}"), "old\r\neth0");
    }
    let found = locked(&dir, |locked| {
        assert!(locked.reserve(ip("10.1.0.2"), &attachment("abc"))?);
        let mut all = (2..100).map(|n| ip(&format!("10.2.0.{n}")));
        Ok(all.find(|ip| {
            locked.may_be_free(*ip).unwrap() && locked.reserve(*ip, &attachment("abc")).unwrap()
        }))
    });
    assert_eq!(found, Some(ip("10.2.0.80")));
    assert_eq!(held(&dir, "abc"), ["10.1.0.2", "10.2.0.80"]);
}

#[test]
fn a_dangling_link_in_place_of_a_file_is_not_free() {
    let dir = TempDir::new();
    reserve(&dir, "10.1.0.2", "abc");
    symlink("/nonexistent", dir.network_dir().join("10.1.0.3")).unwrap();
    assert!(!reserve(&dir, "10.1.0.3", "other"));
    assert!(!locked(&dir, |locked| Ok(locked.is_free(ip("10.1.0.3")))));
}

#[test]
fn the_file_overrides_what_is_known_of_it() {
    let dir = TempDir::new();
    for address in ["10.1.0.2", "10.1.0.3", "10.1.0.4"] {
        reserve(&dir, address, "abc");
    }
    // These writes do not change the directory.
    dir.write("10.1.0.2", "other\r\neth0");
    dir.write("10.1.0.3", "");
    assert!(knows_owners(&dir));
    locked(&dir, |locked| locked.release(&attachment("abc")));
    assert_eq!(dir.read("10.1.0.2"), "other\r\neth0");
    assert_eq!(dir.names(), ["10.1.0.2", "10.1.0.3", "lock"]);
    assert_eq!(held(&dir, "other"), ["10.1.0.2"]);
    // The address of an incomplete file is free. GC keeps a file that names a valid attachment now.
    dir.write("10.1.0.2", "abc\r\neth0");
    assert!(reserve(&dir, "10.1.0.3", "abc"));
    locked(&dir, |locked| locked.keep_only(&[attachment("abc")]));
    assert_eq!(dir.names(), ["10.1.0.2", "10.1.0.3", "lock"]);
}

#[test]
fn a_program_without_the_lock_during_a_change_does_no_harm() {
    let dir = TempDir::new();
    reserve(&dir, "10.1.0.2", "abc");
    locked(&dir, |locked| {
        assert!(locked.knows_owners());
        dir.write("10.1.0.3", "unlocked\r\neth0");
        fs::remove_file(dir.network_dir().join("10.1.0.2")).unwrap();
        locked.reserve(ip("10.1.0.4"), &attachment("new"))
    });
    assert!(knows_owners(&dir), "the change is not detected");
    assert!(!reserve(&dir, "10.1.0.3", "new"), "no address is reserved twice");
    assert!(reserve(&dir, "10.1.0.2", "new"), "the removed reservation is free");
    assert!(held(&dir, "unlocked").is_empty());
    dir.write("10.1.0.5", "");
    assert_eq!(held(&dir, "unlocked"), ["10.1.0.3"], "the next change is detected");
}

#[test]
fn a_pipe_with_an_address_as_its_name_causes_no_wait() {
    let dir = TempDir::new();
    reserve(&dir, "10.1.0.2", "abc");
    let pipe = dir.network_dir().join("10.1.0.3");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    for _ in 0..2 {
        assert!(!reserve(&dir, "10.1.0.3", "other"));
        locked(&dir, |locked| locked.keep_only(&[]));
        assert!(knows_owners(&dir));
    }
}

#[test]
fn a_directory_that_is_removed_during_the_wait_is_opened_again() {
    let dir = TempDir::new();
    let (store, other) = (dir.store(), dir.store_if_exists().unwrap());
    fs::remove_dir_all(dir.network_dir()).unwrap();
    assert!(other.locked(|locked| locked.held_by(&attachment("abc"))).unwrap().is_empty());
    assert!(!dir.network_dir().exists());
    assert!(store.locked(|locked| locked.reserve(ip("10.1.0.2"), &attachment("abc"))).unwrap());
    assert_eq!(dir.names(), ["10.1.0.2", "lock"]);
    // A new directory in its place has another lock.
    let store = dir.store();
    fs::rename(dir.network_dir(), dir.path().join("old")).unwrap();
    dir.write("lock", "");
    assert!(store.locked(|locked| locked.reserve(ip("10.1.0.2"), &attachment("abc"))).unwrap());
    assert_eq!(dir.names(), ["10.1.0.2", "lock"]);
}

fn reclaim(dir: &TempDir, boot: u64) -> Vec<String> {
    in_boot(dir, boot, |locked| locked.reclaim(|_| true));
    dir.names().into_iter().filter(|name| name.parse::<IpAddr>().is_ok()).collect()
}

#[test]
fn reservations_of_an_earlier_boot_are_reclaimed() {
    let dir = TempDir::new();
    for boot in [1, 2] {
        let address = format!("10.1.0.{boot}");
        in_boot(&dir, boot, |locked| locked.reserve(ip(&address), &attachment("abc")));
    }
    in_boot(&dir, 3, |locked| {
        assert!(!locked.knows_owners(), "what was known in another boot may be half written");
        locked.reserve(ip("10.1.0.3"), &attachment("new"))
    });
    assert!(in_boot(&dir, 3, |locked| locked.can_reclaim(|address| address == ip("10.1.0.1"))));
    assert!(!in_boot(&dir, 3, |locked| locked.can_reclaim(|address| address == ip("10.1.0.3"))));
    assert_eq!(reclaim(&dir, 3), ["10.1.0.3"]);
    assert_eq!(reclaim(&dir, 3), ["10.1.0.3"]);
    assert!(reclaim(&dir, 4).is_empty());
}

#[test]
fn reservations_of_this_or_an_unknown_boot_are_not_reclaimed() {
    // A reservation of the Go plugin from before the first call: its boot is unknown.
    let dir = TempDir::new();
    dir.write("10.1.0.2", "abc\r\neth0");
    assert_eq!(reclaim(&dir, 1), ["10.1.0.2"]);
    // An earlier boot had the reservation.
    assert!(reclaim(&dir, 2).is_empty());
    // The Go plugin reserves the address again in this boot, before a call of cnibox.
    in_boot(&dir, 2, |locked| locked.reserve(ip("10.1.0.2"), &attachment("abc")));
    fs::remove_file(dir.network_dir().join("10.1.0.2")).unwrap();
    dir.write("10.1.0.2", "abc\r\neth0");
    assert_eq!(reclaim(&dir, 3), ["10.1.0.2"]);
    // The file is overwritten in place.
    dir.write("10.1.0.2", "abc\r\neth0");
    assert_eq!(reclaim(&dir, 4), ["10.1.0.2"]);
    // After the loss of the owners, the boots of all reservations are unknown.
    fs::remove_dir_all(owners(&dir)).unwrap();
    assert_eq!(reclaim(&dir, 5), ["10.1.0.2"]);
    assert!(reclaim(&dir, 6).is_empty());
    // The file of another program is never reclaimed.
    dir.write("10.1.0.2", "for the printer");
    for boot in 7..9 {
        assert_eq!(reclaim(&dir, boot), ["10.1.0.2"]);
    }
}

#[test]
fn without_a_boot_id_the_files_are_read_and_nothing_is_reclaimed() {
    let dir = TempDir::new();
    in_boot(&dir, 1, |locked| locked.reserve(ip("10.1.0.2"), &attachment("abc")));
    for _ in 0..2 {
        let mut store = dir.store();
        store.paths.owners.boot = None;
        let reclaimed = store.locked(|locked| {
            assert!(!locked.knows_owners());
            locked.reclaim(|_| true)
        });
        assert!(!reclaimed.unwrap());
    }
    assert_eq!(held(&dir, "abc"), ["10.1.0.2"]);
}

#[test]
fn release_removes_all_of_many_addresses() {
    // A symbolic link has 4095 bytes at most. An owner with more addresses has none, so the files are read at each call.
    for (last, is_known) in [(60, true), (200, false)] {
        let dir = TempDir::new();
        for n in 2..last {
            dir.write(&format!("10.1.0.{n}"), "abc\r\neth0");
        }
        reserve(&dir, "10.1.0.200", "other");
        assert_eq!(knows_owners(&dir), is_known);
        assert_eq!(held(&dir, "abc").len(), last - 2);
        locked(&dir, |locked| locked.release(&attachment("abc")));
        assert_eq!(dir.names(), ["10.1.0.200", "lock"]);
        assert!(held(&dir, "abc").is_empty());
        assert_eq!(held(&dir, "other"), ["10.1.0.200"]);
        assert!(knows_owners(&dir));
    }
}

#[test]
fn each_network_has_its_own_owners() {
    let dir = TempDir::new();
    let other = NetworkName::new("other").unwrap();
    reserve(&dir, "10.1.0.2", "abc");
    let turns = Turns::default();
    let store = Store::open(dir.path(), &other, &turns).unwrap();
    assert!(store.locked(|locked| locked.reserve(ip("10.1.0.2"), &attachment("abc"))).unwrap());
    assert!(knows_owners(&dir));
    assert!(Store::open(dir.path(), &network(), &turns).is_ok());
    let names: Vec<_> = fs::read_dir(dir.path().join(".cnibox"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
}
