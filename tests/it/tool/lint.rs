//! `cnibox lint`: every kind of mistake is found at its place, and what other programs write is right.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::cnibox;
use crate::world::{Outcome, World, parse, with};

fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/lint").join(name)
}

fn lint(world: &World, args: &[&str]) -> Outcome {
    let args = [&["lint"], args].concat();
    cnibox(world, &args).env("CNI_PATH", "/run/own").run()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Each file has one mistake. Its name begins with the kind.
#[test]
fn each_mistake_is_found_at_its_place() {
    let world = World::new();
    let expected = fs::read_to_string(fixtures("expected")).unwrap();
    let (mut expected, mut kinds) = (expected.lines(), BTreeMap::new());
    for file in files(&fixtures("faulty")) {
        let path = file.to_str().unwrap();
        let outcome = lint(&world, &[path]);
        let name = file.file_name().unwrap().to_str().unwrap();
        let found: Vec<&str> =
            outcome.stdout.lines().filter(|line| !line.starts_with(' ')).collect();
        let wanted = expected.next().unwrap_or_default().to_owned();
        assert_eq!(found, [wanted.replacen(name, path, 1)], "{}", outcome.report());
        assert!(wanted.starts_with(name) && outcome.status == 1, "{}", outcome.report());
        *kinds.entry(name.split('-').next().unwrap().to_owned()).or_insert(0) += 1;
    }
    assert_eq!(expected.next(), None);
    assert!(kinds.len() >= 10 && kinds.values().all(|count| *count >= 2), "{kinds:?}");
    assert!(kinds.values().sum::<i32>() >= 40, "{kinds:?}");
}

#[test]
fn a_mistake_is_shown_with_its_line() {
    let world = World::new();
    let file = fixtures("faulty/type-mtu.conflist");
    let outcome = lint(&world, &[file.to_str().unwrap()]);
    assert_eq!(
        outcome.stdout.lines().nth(1),
        Some("    \"mtu\": \"1500\""),
        "{}",
        outcome.report()
    );
}

#[test]
fn networks_with_the_same_addresses_are_found() {
    let world = World::new();
    for directory in files(&fixtures("pairs")) {
        let outcome = lint(&world, &[directory.to_str().unwrap()]);
        let found: Vec<&str> =
            outcome.stdout.lines().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(found.len(), 1, "{}", outcome.report());
        assert!(found[0].contains("10-two.conflist:10:9: "), "{}", outcome.report());
        assert!(found[0].ends_with(" of network one in 00-one.conflist"), "{}", outcome.report());
    }
}

#[test]
fn configurations_of_other_programs_are_right() {
    let world = World::new();
    // The parent of the macvlan of nerdctl.
    world.host(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other"]);
    // dhcp may be an executable of somewhere else.
    world.host(["mkdir", "-p", "/run/own"]);
    world.write("/run/own/dhcp", "");
    let outcome = lint(&world, &[fixtures("clean").to_str().unwrap()]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{}", outcome.report());
    assert!(outcome.stderr.contains("note: bridge has no key keyA"), "{}", outcome.report());
    assert!(!outcome.stderr.contains("nerdctl"), "{}", outcome.report());
    // An earlier nerdctl wrote a number.
    let file = fixtures("clean/nerdctl-dhcp.conflist");
    let text = fs::read_to_string(file).unwrap().replace("\"5c4\"", "5");
    assert!(text.contains("\"nerdctlID\": 5"), "{text}");
    world.write("/run/nerdctl.conflist", text);
    let outcome = lint(&world, &["/run/nerdctl.conflist"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{}", outcome.report());
}

#[test]
fn files_of_networks_create_have_neither_mistakes_nor_notes() {
    let world = World::new();
    world.host(["ip", "link", "add", "lan", "type", "veth", "peer", "name", "other"]);
    for (number, args) in [
        &[][..],
        &["-o", "isolate=true", "-o", "mtu=1400"],
        &["--type", "macvlan", "--parent", "lan"],
        &["--type", "ipvlan", "--parent", "lan"],
        &["--type", "vlan", "--parent", "lan", "-o", "vlan=7"],
    ]
    .iter()
    .enumerate()
    {
        let directory = format!("/run/net{number}");
        let subnet = format!("10.{}.0.0/24", 60 + number);
        let words = [&["networks", "create", "net", "--subnet", &subnet], *args].concat();
        let created = cnibox(&world, &words).env("NETCONFPATH", &directory).run();
        assert_eq!(created.status, 0, "{}", created.report());
        let outcome = lint(&world, &[&directory]);
        let said = (outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str());
        assert_eq!(said, (0, "", ""), "{args:?}: {}", outcome.report());
    }
}

#[test]
fn a_range_that_containers_cannot_use_is_a_note() {
    let world = World::new();
    let ipam = json!({"type": "host-local", "subnet": "224.5.0.0/16"});
    let bridge = json!({"type": "bridge", "bridge": "cni7", "ipam": ipam});
    let network = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge]});
    world.write("/run/10-net.conflist", network.to_string());
    let outcome = lint(&world, &["/run/10-net.conflist"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{}", outcome.report());
    let text = "note: 224.5.0.0/16 overlaps with 224.0.0.0/4: it is multicast";
    assert!(outcome.stderr.contains(text), "{}", outcome.report());
}

#[test]
fn notes_are_on_stderr_and_no_mistakes() {
    let world = World::new();
    world.host(["ip", "link", "add", "lan", "type", "veth", "peer", "name", "other"]);
    world.host(["ip", "address", "add", "10.1.5.1/24", "dev", "lan"]);
    world.host(["ip", "link", "set", "lan", "up"]);
    let bridge = json!({
        "type": "bridge", "bridge": "cni7", "color": "red", "capabilities": {"mac": true},
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"},
    });
    let ipam = json!({"type": "static", "addresses": [{"address": "10.9.0.2/24"}]});
    let dummy = json!({"type": "dummy", "mtu": 1400, "ipam": ipam});
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": false}});
    let of_parent = |kind: &str, parent: &str| json!({"type": kind, "master": parent});
    let too_long = "l".repeat(200);
    let parents = ["lan", "lan0", &too_long].map(|parent| of_parent("macvlan", parent));
    let inside = with(&of_parent("ipvlan", "eth0"), json!({"linkInContainer": true}));
    let plugins = [&[bridge, dummy, portmap, inside], &parents[..]].concat();
    let network = json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins});
    world.write("/run/10-net.conflist", network.to_string());
    let outcome = lint(&world, &["/run/10-net.conflist"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{}", outcome.report());
    for text in [
        "note: this host has no link lan0: an ADD fails until it has",
        "note: bridge has no key color",
        "note: portmap does nothing unless it declares the capability portMappings",
        "note: the Go plugin dummy ignores mtu",
        "note: 10.1.0.0/16 overlaps the route of this host to 10.1.5.0/24 by lan",
    ] {
        assert!(outcome.stderr.contains(text), "{text}: {}", outcome.report());
    }
    let document = parse(&lint(&world, &["--json", "/run/10-net.conflist"]).output());
    let findings = document["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 5, "{document}");
    assert!(
        findings.iter().all(|finding| finding["kind"] == "note" && finding["line"] == 1),
        "{document}"
    );
}

/// The MTU is that of the pair, which `tuning` can have changed.
#[test]
fn a_burst_smaller_than_a_full_frame_is_a_note() {
    let world = World::new();
    let ipam = json!({"type": "host-local", "subnet": "10.1.0.0/24"});
    for (mtu, tuned, burst, frame) in [
        (0, 0, 12_104, Some(1514)),
        (0, 0, 12_112, None),
        (9000, 0, 12_112, Some(9014)),
        (1400, 0, 12_104, None),
        (0, 9000, 12_112, Some(9014)),
    ] {
        let bridge = json!({"type": "bridge", "bridge": "cni7", "mtu": mtu, "ipam": ipam});
        let tuning = json!({"type": "tuning", "mtu": tuned});
        let bandwidth = json!({"type": "bandwidth", "egressRate": 1_000_000, "egressBurst": burst});
        let network =
            json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge, tuning, bandwidth]});
        world.write("/run/10-net.conflist", network.to_string());
        let outcome = lint(&world, &["/run/10-net.conflist"]);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{}", outcome.report());
        let bytes = burst / 8;
        let note = frame.map(|frame| {
            let mtu = frame - 14;
            format!("note: egressBurst of {bytes} bytes drops full frames: with mtu {mtu} they have {frame} bytes")
        });
        let has_note = outcome.stderr.contains(note.as_deref().unwrap_or("note: egressBurst"));
        assert_eq!(has_note, note.is_some(), "{}", outcome.report());
    }
}

#[test]
fn the_directory_of_the_runtime_is_examined_by_default() {
    let world = World::new();
    world.host(["mkdir", "-p", "/run/net.d"]);
    world.write("/run/net.d/a.conflist", "{}");
    let outcome = cnibox(&world, &["lint"]).env("NETCONFPATH", "/run/net.d").run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert!(outcome.stdout.starts_with("/run/net.d/a.conflist:1:1: "), "{}", outcome.report());
    let outcome = lint(&world, &["/run/missing.conflist"]);
    assert!(
        outcome.status == 1 && outcome.stderr.contains("cannot read /run/missing.conflist"),
        "{}",
        outcome.report()
    );
}

/// Go marshals the reference's own structure with both keys. The one in its own case counts.
#[test]
fn a_key_in_two_cases_is_no_mistake() {
    let world = World::new();
    let address = r#"{"address": "10.10.0.1/24", "gateway": "10.10.0.254",
        "Address": {"IP": "10.10.0.1", "Mask": "////AA=="}, "Version": "4"}"#;
    let ipam = format!(r#"{{"type": "static", "addresses": [{address}]}}"#);
    let text =
        format!(r#"{{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {ipam}}}"#);
    world.write("/run/net.conf", text);
    let outcome = lint(&world, &["/run/net.conf"]);
    assert_eq!((outcome.status, &*outcome.stdout), (0, ""), "{}", outcome.report());
}

/// Each of these files took minutes: each key was searched in the whole file.
#[test]
fn a_long_file_is_examined_in_one_pass() {
    let world = World::new();
    let own = r#""cniVersion": "1.0.0", "name": "net", "type": "bridge", "mtu": 1400}"#;
    for (entry, status, listed) in [("\"NAME\": \"x\",\n", 0, 0), ("\"mtu\": \"x\",\n", 1, 101)] {
        let text = format!("{{{}{own}", entry.repeat((2 << 20) / entry.len()));
        world.write("/run/net.conf", text);
        let outcome = lint(&world, &["/run/net.conf"]);
        assert_eq!(
            (outcome.status, outcome.stdout.lines().count()),
            (status, 2 * listed),
            "{entry}"
        );
    }
}

/// Go folds the long s and the sign of Kelvin in keys, and reads null in a list of strings as the empty string.
#[test]
fn lint_reads_keys_and_null_as_the_plugins_do() {
    let world = World::new();
    let examine = |text: &str| {
        let text = format!(r#"{{"cniVersion": "1.0.0", "name": "net", "type": "veth", {text}}}"#);
        world.write("/run/net.conf", text);
        lint(&world, &["/run/net.conf"])
    };
    for right in [
        "\"ip\u{212a}asq\": 1, \"ipMa\u{17f}q\": true",
        "\"dn\u{17f}\": {\"\u{17f}earch\": [\"a.example\", null]}",
    ] {
        let outcome = examine(right);
        assert_eq!((outcome.status, &*outcome.stdout), (0, ""), "{}", outcome.report());
    }
    for (wrong, key) in [
        ("\"ipMa\u{17f}q\": 1", "ipMa\u{17f}q is an integer"),
        (r#""ipam": {"type": "host-local", "ranges": [null]}"#, "ipam.ranges[0]"),
    ] {
        let outcome = examine(wrong);
        assert!(outcome.status == 1 && outcome.stdout.contains(key), "{}", outcome.report());
    }
}
