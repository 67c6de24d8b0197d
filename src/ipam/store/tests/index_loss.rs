//! What becomes of the index, and of what it would say, when others change the directory, or the index itself, or boot
//! the host.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Command;

use super::{TempDir, attachment, network};
use crate::error::Result;
use crate::ipam::store::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn in_boot<T>(dir: &TempDir, boot: u64, f: impl FnOnce(&mut Locked<'_>) -> Result<T>) -> T {
    let mut store = dir.store();
    store.place.boot = Some(boot);
    store.locked(f).unwrap()
}

fn locked<T>(dir: &TempDir, f: impl FnOnce(&mut Locked<'_>) -> Result<T>) -> T {
    dir.store().locked(f).unwrap()
}

fn reserve(dir: &TempDir, address: &str, id: &str) -> bool {
    locked(dir, |locked| locked.reserve(ip(address), &attachment(id)))
}

fn held(dir: &TempDir, id: &str) -> Vec<String> {
    let held = locked(dir, |locked| locked.held_by(&attachment(id)));
    held.iter().map(IpAddr::to_string).collect()
}

fn has_index(dir: &TempDir) -> bool {
    locked(dir, |locked| Ok(locked.has_index()))
}

fn index(dir: &TempDir) -> PathBuf {
    dir.path().join(".cnibox/net")
}

#[test]
fn the_index_is_believed_after_our_own_changes() {
    let dir = TempDir::new();
    assert!(!has_index(&dir), "there is none yet");
    assert!(reserve(&dir, "10.1.0.2", "abc"));
    assert!(has_index(&dir));
    locked(&dir, |locked| locked.set_last_reserved(0, ip("10.1.0.2")));
    assert!(has_index(&dir));
    locked(&dir, |locked| locked.release(&attachment("abc")));
    assert!(has_index(&dir));
    locked(&dir, |locked| locked.keep_only(&[]));
    assert!(has_index(&dir) && held(&dir, "abc").is_empty());
}

#[test]
fn every_change_by_others_is_seen() {
    let dir = TempDir::new();
    for _ in 0..50 {
        reserve(&dir, "10.1.0.2", "abc");
        dir.write("10.1.0.3", "other\r\neth0");
        assert_eq!(held(&dir, "other"), ["10.1.0.3"]);
        assert!(has_index(&dir));
        fs::remove_file(dir.network_dir().join("10.1.0.2")).unwrap();
        assert!(held(&dir, "abc").is_empty());
        assert!(has_index(&dir));
        fs::rename(dir.network_dir().join("10.1.0.3"), dir.network_dir().join("10.1.0.2")).unwrap();
        assert_eq!(held(&dir, "other"), ["10.1.0.2"]);
        fs::remove_dir_all(dir.network_dir()).unwrap();
        assert!(held(&dir, "other").is_empty());
    }
}

#[test]
fn a_directory_restored_with_its_times_is_another() {
    let dir = TempDir::new();
    reserve(&dir, "10.1.0.2", "abc");
    let backup = dir.path().join("backup");
    let copy = |from: &Path, to: &Path| {
        let from = format!("{}/.", from.display());
        assert!(Command::new("cp").args(["-a", &from]).arg(to).status().unwrap().success());
    };
    fs::create_dir_all(&backup).unwrap();
    for name in ["net", ".cnibox"] {
        copy(&dir.path().join(name), &backup.join(name));
    }
    reserve(&dir, "10.1.0.3", "later");
    // Over what is there, so that the directory holds more than it did then.
    for name in ["net", ".cnibox"] {
        copy(&backup.join(name), &dir.path().join(name));
    }
    assert!(!has_index(&dir));
    assert_eq!(held(&dir, "later"), ["10.1.0.3"]);
    // Nothing else, with only the index restored, and only the directory.
    for name in [".cnibox", "net"] {
        reserve(&dir, "10.1.0.4", "last");
        copy(&backup.join(name), &dir.path().join(name));
        assert!(!has_index(&dir), "{name}");
        assert_eq!(held(&dir, "last"), ["10.1.0.4"]);
        locked(&dir, |locked| locked.release(&attachment("last")));
    }
}

/// Puts something in the place of the index.
type Plant = fn(&Path, &TempDir);

#[test]
fn whatever_lies_there_instead_is_replaced() {
    let plants: [(&str, Plant); 9] = [
        ("nothing", |_, _| {}),
        ("a directory", |path, _| fs::create_dir_all(path.join("a/b")).unwrap()),
        ("a link to nowhere", |path, dir| symlink(dir.path().join("nowhere"), path).unwrap()),
        ("a link to itself", |path, _| symlink("net", path).unwrap()),
        ("a link to a file", |path, dir| symlink(dir.network_dir().join("lock"), path).unwrap()),
        ("a pipe", |path, _| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
        ("an empty file", |path, _| fs::write(path, "").unwrap()),
        ("random bytes", |path, _| fs::write(path, [0xa5; 5000]).unwrap()),
        ("a huge file", |path, _| File::create(path).unwrap().set_len(1 << 40).unwrap()),
    ];
    for (what, plant) in plants {
        let dir = TempDir::new();
        reserve(&dir, "10.1.0.2", "abc");
        fs::remove_file(index(&dir)).unwrap();
        plant(&index(&dir), &dir);
        assert!(!has_index(&dir), "{what}");
        assert!(has_index(&dir), "{what}");
        assert!(fs::symlink_metadata(index(&dir)).unwrap().is_file(), "{what}");
        assert_eq!(held(&dir, "abc"), ["10.1.0.2"], "{what}");
        assert!(!dir.path().join("nowhere").exists() && dir.read("lock").is_empty(), "{what}");
    }
}

#[test]
fn without_a_place_for_the_index_the_files_are_read() {
    let elsewhere = TempDir::new();
    let plants: [Plant; 2] = [
        |path, _| fs::write(path, "").unwrap(),
        |path, elsewhere| symlink(elsewhere.path(), path).unwrap(),
    ];
    for plant in plants {
        let dir = TempDir::new();
        plant(&dir.path().join(".cnibox"), &elsewhere);
        assert!(reserve(&dir, "10.1.0.2", "abc") && !reserve(&dir, "10.1.0.2", "other"));
        assert_eq!(held(&dir, "abc"), ["10.1.0.2"]);
        assert!(!has_index(&dir));
        locked(&dir, |locked| locked.release(&attachment("abc")));
        assert!(held(&dir, "abc").is_empty());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "nothing is written there");
    }
}

#[test]
fn what_a_file_says_goes_before_what_the_index_says() {
    let dir = TempDir::new();
    for address in ["10.1.0.2", "10.1.0.3", "10.1.0.4"] {
        reserve(&dir, address, "abc");
    }
    // No change of the directory.
    dir.write("10.1.0.2", "other\r\neth0");
    dir.write("10.1.0.3", "");
    assert!(has_index(&dir));
    locked(&dir, |locked| locked.release(&attachment("abc")));
    assert_eq!(dir.read("10.1.0.2"), "other\r\neth0");
    assert_eq!(dir.names(), ["10.1.0.2", "10.1.0.3", "lock"]);
    assert_eq!(held(&dir, "other"), ["10.1.0.2"]);
    // What is torn is free, and GC keeps what is not what it was.
    dir.write("10.1.0.2", "abc\r\neth0");
    assert!(reserve(&dir, "10.1.0.3", "abc"));
    locked(&dir, |locked| locked.keep_only(&[attachment("abc")]));
    assert_eq!(dir.names(), ["10.1.0.2", "10.1.0.3", "lock"]);
}

#[test]
fn somebody_without_the_lock_at_the_worst_moment_does_no_harm() {
    let dir = TempDir::new();
    reserve(&dir, "10.1.0.2", "abc");
    locked(&dir, |locked| {
        assert!(locked.has_index());
        dir.write("10.1.0.3", "rude\r\neth0");
        fs::remove_file(dir.network_dir().join("10.1.0.2")).unwrap();
        locked.reserve(ip("10.1.0.4"), &attachment("new"))
    });
    assert!(has_index(&dir), "it cannot be seen");
    assert!(!reserve(&dir, "10.1.0.3", "new"), "nothing is given twice");
    assert!(reserve(&dir, "10.1.0.2", "new"), "and nothing is lost");
    assert_eq!(held(&dir, "rude"), ["10.1.0.3"]);
}

#[test]
fn who_finds_nothing_free_counts() {
    let dir = TempDir::new();
    reserve(&dir, "10.1.0.2", "abc");
    assert!(!locked(&dir, |locked| locked.has_lost_count()));
    locked(&dir, |locked| {
        fs::remove_file(dir.network_dir().join("10.1.0.2")).unwrap();
        locked.reserve(ip("10.1.0.3"), &attachment("new"))
    });
    let free = locked(&dir, |locked| {
        let range = (ip("10.1.0.2"), ip("10.1.0.3"));
        assert_eq!(locked.next_free(range.0, range.1)?, None);
        assert!(locked.has_lost_count()? && !locked.has_lost_count()?);
        locked.next_free(range.0, range.1)
    });
    assert_eq!(free, Some(ip("10.1.0.2")));
}

#[test]
fn a_pipe_called_like_an_address_keeps_nobody_waiting() {
    let dir = TempDir::new();
    reserve(&dir, "10.1.0.2", "abc");
    let pipe = dir.network_dir().join("10.1.0.3");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    for _ in 0..2 {
        assert!(!reserve(&dir, "10.1.0.3", "other"));
        locked(&dir, |locked| locked.keep_only(&[]));
        assert!(has_index(&dir));
    }
}

#[test]
fn who_removes_the_directory_while_we_wait_leaves_us_nothing_to_lock() {
    let dir = TempDir::new();
    let (store, other) = (dir.store(), dir.store_if_exists().unwrap());
    fs::remove_dir_all(dir.network_dir()).unwrap();
    assert!(other.locked(|locked| locked.held_by(&attachment("abc"))).unwrap().is_empty());
    assert!(!dir.network_dir().exists());
    assert!(store.locked(|locked| locked.reserve(ip("10.1.0.2"), &attachment("abc"))).unwrap());
    assert_eq!(dir.names(), ["10.1.0.2", "lock"]);
    // And another directory in its place has another lock.
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
fn what_an_earlier_boot_left_is_reclaimed() {
    let dir = TempDir::new();
    for boot in [1, 2] {
        let address = format!("10.1.0.{boot}");
        in_boot(&dir, boot, |locked| locked.reserve(ip(&address), &attachment("abc")));
    }
    in_boot(&dir, 3, |locked| {
        assert!(!locked.has_index(), "an index of another boot may be half written");
        locked.reserve(ip("10.1.0.3"), &attachment("new"))
    });
    assert!(in_boot(&dir, 3, |locked| locked.can_reclaim(|it| it == ip("10.1.0.1"))));
    assert!(!in_boot(&dir, 3, |locked| locked.can_reclaim(|it| it == ip("10.1.0.3"))));
    assert_eq!(reclaim(&dir, 3), ["10.1.0.3"]);
    assert_eq!(reclaim(&dir, 3), ["10.1.0.3"]);
    assert!(reclaim(&dir, 4).is_empty());
}

#[test]
fn what_may_be_of_this_boot_is_not_reclaimed() {
    // The Go plugin's, from before there was an index, or of a boot of which nobody knows.
    let dir = TempDir::new();
    dir.write("10.1.0.2", "abc\r\neth0");
    assert_eq!(reclaim(&dir, 1), ["10.1.0.2"]);
    // It was there in another boot than this one.
    assert!(reclaim(&dir, 2).is_empty());
    // The same name again, by the Go plugin in this boot before we are called.
    in_boot(&dir, 2, |locked| locked.reserve(ip("10.1.0.2"), &attachment("abc")));
    fs::remove_file(dir.network_dir().join("10.1.0.2")).unwrap();
    dir.write("10.1.0.2", "abc\r\neth0");
    assert_eq!(reclaim(&dir, 3), ["10.1.0.2"]);
    // Written anew in place.
    dir.write("10.1.0.2", "abc\r\neth0");
    assert_eq!(reclaim(&dir, 4), ["10.1.0.2"]);
    // With the index everything is lost that is known of boots.
    fs::remove_file(index(&dir)).unwrap();
    assert_eq!(reclaim(&dir, 5), ["10.1.0.2"]);
    assert!(reclaim(&dir, 6).is_empty());
    // Not a plugin's at all.
    dir.write("10.1.0.2", "for the printer");
    for boot in 7..9 {
        assert_eq!(reclaim(&dir, boot), ["10.1.0.2"]);
    }
}

#[test]
fn without_a_boot_id_nothing_is_believed_or_reclaimed() {
    let dir = TempDir::new();
    in_boot(&dir, 1, |locked| locked.reserve(ip("10.1.0.2"), &attachment("abc")));
    for _ in 0..2 {
        let mut store = dir.store();
        store.place.boot = None;
        let reclaimed = store.locked(|locked| {
            assert!(!locked.has_index());
            locked.reclaim(|_| true)
        });
        assert!(!reclaimed.unwrap());
    }
    assert_eq!(held(&dir, "abc"), ["10.1.0.2"]);
}

#[test]
fn whoever_has_many_addresses_gives_them_all_back() {
    let dir = TempDir::new();
    for n in 2..100 {
        dir.write(&format!("10.1.0.{n}"), "abc\r\neth0");
    }
    reserve(&dir, "10.1.0.100", "other");
    assert!(has_index(&dir));
    assert_eq!(held(&dir, "abc").len(), 98);
    locked(&dir, |locked| locked.release(&attachment("abc")));
    assert_eq!(dir.names(), ["10.1.0.100", "lock"]);
    assert!(held(&dir, "abc").is_empty());
    assert_eq!(held(&dir, "other"), ["10.1.0.100"]);
    assert!(has_index(&dir));
}

#[test]
fn networks_have_an_index_each() {
    let dir = TempDir::new();
    let other = NetworkName::new("other").unwrap();
    reserve(&dir, "10.1.0.2", "abc");
    let turns = Turns::default();
    let store = Store::open(dir.path(), &other, &turns).unwrap();
    assert!(store.locked(|locked| locked.reserve(ip("10.1.0.2"), &attachment("abc"))).unwrap());
    assert!(has_index(&dir));
    assert!(Store::open(dir.path(), &network(), &turns).is_ok());
    let names: Vec<_> = fs::read_dir(dir.path().join(".cnibox"))
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
}
