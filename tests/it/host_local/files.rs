//! The directory of a network is the reference's, byte for byte.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Net;
use crate::world::call::Running;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_reservation_is_a_file() {
    let net =
        Net::new(json!({"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]}));
    assert_eq!(net.add("abc"), ["10.1.0.2/16", "fd00:1::2/64"]);
    let dir = net.bare.network("net");
    assert_eq!(
        names(&dir),
        ["10.1.0.2", "fd00:1::2", "last_reserved_ip.0", "last_reserved_ip.1", "lock"]
    );
    assert_eq!(fs::read(dir.join("10.1.0.2")).unwrap(), b"abc\r\neth0");
    assert_eq!(fs::read(dir.join("fd00:1::2")).unwrap(), b"abc\r\neth0");
    assert_eq!(net.read("last_reserved_ip.0"), "10.1.0.2");
    assert_eq!(net.read("last_reserved_ip.1"), "fd00:1::2");
    assert_eq!(net.read("lock"), "");
}

#[test]
fn only_the_owner_may_read_reservations() {
    let net = Net::new(json!({"subnet": "10.1.0.0/16"}));
    net.add("abc");
    let dir = net.bare.network("net");
    let modes = ["10.1.0.2", "last_reserved_ip.0", "lock"].map(|name| mode(&dir.join(name)));
    assert_eq!(modes.map(|mode| format!("{mode:o}")), ["600", "600", "750"]);
    assert_eq!(mode(&dir), 0o755);
}

#[test]
fn a_del_takes_the_file_and_leaves_the_rest() {
    let net = Net::new(json!({"subnet": "10.1.0.0/16"}));
    net.add("abc");
    net.del("abc");
    assert_eq!(names(&net.bare.network("net")), ["last_reserved_ip.0", "lock"]);
    assert_eq!(net.read("last_reserved_ip.0"), "10.1.0.2");
}

#[test]
fn the_name_of_the_interface_is_part_of_the_owner() {
    let net = Net::new(json!({"subnet": "10.1.0.0/16"}));
    net.add("abc");
    net.call("ADD", "abc").env("CNI_IFNAME", "eth1").run().success();
    assert_eq!(net.read("10.1.0.3"), "abc\r\neth1");
    net.del("abc");
    assert_eq!(net.taken(), ["10.1.0.3"]);
}

#[test]
fn ids_that_begin_alike_are_different() {
    let net = Net::new(json!({"subnet": "10.1.0.0/16"}));
    for id in ["a", "ab", "abc"] {
        net.add(id);
    }
    net.del("ab");
    assert_eq!(net.taken(), ["10.1.0.2", "10.1.0.4"]);
}

#[test]
fn a_file_of_an_old_release_holds_only_the_id() {
    for content in ["abc", "abc\n", "abc \r\n"] {
        let net = Net::new(json!({"subnet": "10.1.0.0/16"}));
        net.write("10.1.0.7", content);
        net.write("10.1.0.8", "abcd");
        net.run("CHECK", "abc").silence();
        net.run("ADD", "abc").fails(999, &["10.1.0.7", "duplicate allocation is not allowed"]);
        net.del("abc");
        assert_eq!(net.taken(), ["10.1.0.8"], "{content:?}");
    }
}

#[test]
fn del_removes_the_new_file_before_the_old_one() {
    let net = Net::new(json!({"subnet": "10.1.0.0/16"}));
    net.write("10.1.0.7", "abc\r\neth0");
    net.write("10.1.0.8", "abc");
    net.del("abc");
    assert_eq!(net.taken(), ["10.1.0.8"]);
    net.del("abc");
    assert_eq!(net.taken(), [""; 0]);
}

#[test]
fn white_space_around_the_content_does_not_matter() {
    let net = Net::new(json!({"subnet": "10.1.0.0/16"}));
    net.write("10.1.0.7", " abc\r\neth0\n");
    net.run("CHECK", "abc").silence();
    net.del("abc");
    assert_eq!(net.taken(), [""; 0]);
}

#[test]
fn a_file_that_a_crash_left_empty_or_torn_is_free() {
    let net = Net::new(json!({"subnet": "10.1.0.0/29"}));
    net.write("10.1.0.2", "");
    net.write("10.1.0.3", "\0\0\0\0\0\0\0\0\0");
    net.write("10.1.0.4", "other\r\neth0");
    assert_eq!(net.add("a"), ["10.1.0.2/29"]);
    assert_eq!(net.add("b"), ["10.1.0.3/29"]);
    assert_eq!(net.add("c"), ["10.1.0.5/29"]);
    assert_eq!(net.read("10.1.0.2"), "a\r\neth0");
    assert_eq!(net.read("10.1.0.3"), "b\r\neth0");
}

/// The kernel and the reference accept them. The line break between container and interface is no name's.
#[test]
fn a_reservation_of_an_interface_with_control_bytes_is_held_and_given_back() {
    let net = Net::new(json!({"subnet": "10.1.0.0/29"}));
    let call = |verb: &str, id: &str, name: &str| net.call(verb, id).env("CNI_IFNAME", name);
    let keep = |list: Value| net.with(json!({"cni.dev/valid-attachments": list}));
    for name in ["a\x01b", "\x1fab", "ab\x1f", "\x1b[2J", "\x7f", "a\u{200b}"] {
        let result = call("ADD", "abc", name).run().success();
        let [address] = super::addresses(&result).try_into().unwrap();
        let file = address.strip_suffix("/29").unwrap();
        assert_eq!(net.read(file), format!("abc\r\n{name}"));
        call("CHECK", "abc", name).run().silence();
        let keep_it = keep(json!([{"containerID": "abc", "ifname": name}]));
        for config in [&keep_it, &keep(json!([]))] {
            assert!(net.has(file), "{name:?}");
            net.bare.call("host-local", "GC", config).run().silence();
        }
        assert!(!net.has(file), "{name:?}");
        // As an older build or the reference wrote it.
        net.write("10.1.0.3", &format!("abc\r\n{name}"));
        for other in ["c1", "c2", "c3", "c4"] {
            assert_ne!(net.add(other), ["10.1.0.3/29"], "{name:?}");
        }
        call("DEL", "abc", name).run().silence();
        assert!(!net.has("10.1.0.3"), "{name:?}");
        ["c1", "c2", "c3", "c4"].iter().for_each(|other| net.del(other));
    }
    for name in ["a\rb", "a\nb", "a\r\nb", "a\tb", "a\x0bb", "a\u{85}b", "ab\n"] {
        call("ADD", "abc", name).run().fails(4, &["interface name"]);
        assert_eq!(net.taken(), [""; 0], "{name:?}");
    }
}

#[test]
fn a_torn_file_can_be_asked_for() {
    let net = Net::new(json!({"subnet": "10.1.0.0/24"}));
    net.write("10.1.0.9", "");
    let result = net.call("ADD", "abc").env("CNI_ARGS", "IP=10.1.0.9").run().success();
    assert_eq!(super::addresses(&result), ["10.1.0.9/24"]);
    assert_eq!(net.read("10.1.0.9"), "abc\r\neth0");
}

#[test]
fn a_container_that_is_named_like_an_address_owns_nothing_more_than_others() {
    let net = Net::new(json!({"subnet": "10.1.0.0/16"}));
    net.add("abc");
    net.del("10.1.0.2");
    assert_eq!(net.read("last_reserved_ip.0"), "10.1.0.2");
    net.run("CHECK", "10.1.0.2").fails(999, &["10.1.0.2"]);
}

#[test]
fn files_that_are_no_reservations_are_left_alone() {
    let net = Net::new(json!({"subnet": "10.1.0.0/16"}));
    net.write("README", "abc\r\neth0\r\nand more");
    net.write("last_reserved_ip.7", "10.9.0.1");
    net.add("abc");
    net.del("abc");
    assert_eq!(
        names(&net.bare.network("net")),
        ["README", "last_reserved_ip.0", "last_reserved_ip.7", "lock"]
    );
}

#[test]
fn an_invalid_last_address_is_ignored() {
    for content in ["", "garbage", "10.9.0.1", "fd00::1", "10.1.0.200/24"] {
        let net = Net::new(json!({"subnet": "10.1.0.0/24"}));
        net.write("last_reserved_ip.0", content);
        assert_eq!(net.add("abc"), ["10.1.0.2/24"], "{content:?}");
        assert_eq!(net.read("last_reserved_ip.0"), "10.1.0.2");
    }
}

/// How long a started plugin may take to get to the lock.
const START_LIMIT: Duration = Duration::from_secs(60);

/// An ADD that waits for the lock, which another process holds.
fn started_waiting(net: &Net, lock_path: &Path) -> Running {
    let running = net.call("ADD", "abc").start();
    let fds = format!("/proc/{}/fd", running.pid());
    let has_lock_open = || {
        let entries = fs::read_dir(&fds).into_iter().flatten().flatten();
        entries.flat_map(|entry| fs::read_link(entry.path())).any(|target| target == lock_path)
    };
    let deadline = Instant::now() + START_LIMIT;
    while !has_lock_open() {
        assert!(Instant::now() < deadline, "the lock file is never opened");
        std::thread::yield_now();
    }
    running
}

#[test]
fn add_waits_for_the_holder_of_the_lock_file() {
    let net = Net::new(json!({"subnet": "10.1.0.0/24"}));
    net.write("lock", "");
    let lock_path = net.bare.network("net").join("lock");
    // The standard library locks with flock(2), like the reference.
    let lock = File::open(&lock_path).unwrap();
    lock.lock().unwrap();
    let running = started_waiting(&net, &lock_path);
    assert_eq!(net.taken(), [""; 0], "nothing happens while another holds the lock");
    lock.unlock().unwrap();
    running.finish().success();
    assert_eq!(net.taken(), ["10.1.0.2"]);
}

#[test]
fn a_directory_that_is_removed_meanwhile_is_made_again() {
    let net = Net::new(json!({"subnet": "10.1.0.0/24"}));
    net.write("lock", "");
    let lock_path = net.bare.network("net").join("lock");
    let lock = File::open(&lock_path).unwrap();
    lock.lock().unwrap();
    let running = started_waiting(&net, &lock_path);
    fs::remove_dir_all(net.bare.scratch.file("networks")).unwrap();
    lock.unlock().unwrap();
    running.finish().success();
    assert_eq!(net.taken(), ["10.1.0.2"]);
    assert!(net.has("lock"));
}

#[test]
fn the_holder_of_the_lock_is_named_after_the_timeout() {
    let net = Net::new(json!({"subnet": "10.1.0.0/24"}));
    net.write("lock", "");
    let lock = File::open(net.bare.network("net").join("lock")).unwrap();
    lock.lock().unwrap();
    let start = Instant::now();
    let holder = format!("process {} (", std::process::id());
    // The executable that is shipped does not read the variable.
    let call = net.call("ADD", "abc").env("CNIBOX_LIMIT_LOCK", "2");
    let error = call.run().fails(11, &[&holder, " s ago, holds it"]);
    assert!(error.msg.starts_with("cannot lock ") && error.msg.contains("/lock within 30 s: "));
    assert!(start.elapsed() >= Duration::from_secs(2));
    assert_eq!(net.taken(), [""; 0]);
    lock.unlock().unwrap();
    net.add("abc");
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named() {
    let net = Net::new(json!({"subnet": "10.1.0.0/24"}));
    net.bare.scratch.write_text("file", "");
    let dir = net.bare.scratch.text("file/networks");
    let config = net.with(json!({"ipam": {"dataDir": dir}}));
    let error = net.bare.call("host-local", "ADD", &config).run().fails(5, &[&dir]);
    assert!(error.msg.starts_with("cannot "), "{error:?}");
}
