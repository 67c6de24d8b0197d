//! `cnibox ipam`: addresses and their owners, leaks, and addresses kept out of use.

pub mod host;
mod proofs;

use serde_json::{Value, json};

use crate::world::parse;
use host::{DATA, Host};

#[test]
fn addresses_are_listed_with_their_owners() {
    let host = Host::new();
    let _web = host.attached("web");
    host.reserve_file(
        "10.1.0.7",
        "6b4e8c1f0a9d7e5b3c2a1908f7e6d5c4b3a2918070605040302010ffeeddccbb\r\neth0",
    );
    let document = host.list();
    let network = &document["networks"][0];
    let range = json!({
        "subnet": "10.1.0.0/24", "first": "10.1.0.1", "last": "10.1.0.254",
        "size": 253, "used": 2, "free": 251,
    });
    assert_eq!(network["name"], "net");
    assert_eq!(network["dataDir"], DATA);
    assert_eq!(network["configured"], true);
    assert_eq!(network["ranges"][0], range, "{document}");
    assert_eq!(network["ranges"][1]["size"], json!(u64::MAX - 1), "{document}");
    let found = network["reservations"].as_array().unwrap();
    assert_eq!(found.len(), 3, "{document}");
    assert_eq!(found[0]["address"], "10.1.0.2");
    assert_eq!(found[0]["containerID"], "web");
    assert_eq!(found[0]["ifname"], "eth0");
    assert_eq!(found[0]["pod"], json!({"namespace": "default", "name": "page"}));
    assert_eq!(found[0]["state"], "alive");
    assert!(found[0]["ageSeconds"].as_u64().unwrap() < 120, "{document}");
    assert_eq!(host.state_of("10.1.0.7"), "unknown");
}

#[test]
fn tables_fit_80_columns() {
    let host = Host::new();
    let name = "a-network-with-a-very-long-name-that-fills-the-line";
    for address in ["2001:db8:1111:2222:3333:4444:5555:6666", "10.1.0.7"] {
        host.world.write(
            &format!("{DATA}/{name}/{address}"),
            format!("{}\r\neth0", "0123456789abcdef".repeat(4)),
        );
    }
    host.configure(name, &json!([[{"subnet": "2001:db8:1111:2222::/64", "rangeStart": "2001:db8:1111:2222:3333::1"}]]), json!({}));
    let printed = host.ipam(&["list"]).output();
    assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
    for text in ["2001:db8:1111:2222:3333:4444:5555:6666", " eth0@012", "RANGE ", "ADDRESS "] {
        assert!(printed.contains(text), "{text}: {printed}");
    }
    assert!(printed.contains('~'), "{printed}");
}

#[test]
fn looking_changes_nothing() {
    let host = Host::new();
    let web = host.attached("web");
    host.dead("mail");
    host.reserve_file("10.1.0.9", "old");
    // A backup without empty files: the plugins would write a new lock.
    host.world.host(["rm", &format!("{DATA}/net/lock")]);
    host.world.host(["rm", "-r", &format!("{DATA}/.cnibox")]);
    let state = || {
        let find = "find /run/cnibox /var/lib/cni /run/net.d -printf '%p %i %T@ %C@ %s\\n' | sort";
        host.world.host(["sh", "-c", find]) + &format!("{:?}", host.world.state_with(&[&web]))
    };
    let before = state();
    host.ipam(&["list"]).output();
    host.ipam(&["leaks"]).output();
    host.ipam(&["release", "--leaks", "--dry-run"]).output();
    host.ipam(&["reserve", "10.1.0.99", "--dry-run"]).output();
    assert!(host.cnibox(&["metrics"]).run().output().contains("cnibox_"));
    assert_eq!(state(), before);
}

#[test]
fn leaks_are_listed_and_released() {
    let host = Host::new();
    let web = host.attached("web");
    let leaked = host.attached("mail");
    let outcome = host.ipam(&["leaks"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{}", outcome.report());
    host.destroy(&leaked);
    let of_mail = "eth0 of container mail in network net: its network namespace has ended\n";
    let lines =
        |prefix: &str| format!("{prefix}10.1.0.3 of {of_mail}{prefix}fd00:1::3 of {of_mail}");
    assert_eq!(host.ipam(&["leaks"]).output(), lines(""));
    let document = parse(&host.ipam(&["leaks", "--json"]).output());
    assert_eq!(document["leaks"][0]["address"], "10.1.0.3", "{document}");
    assert_eq!(host.ipam(&["release", "--leaks", "--dry-run"]).output(), lines("would release "));
    assert_eq!(host.addresses(), ["10.1.0.2", "10.1.0.3", "fd00:1::2", "fd00:1::3"]);
    assert_eq!(host.ipam(&["release", "--leaks"]).output(), lines("released "));
    assert_eq!(host.addresses(), ["10.1.0.2", "fd00:1::2"]);
    assert_eq!(host.ipam(&["release", "--leaks"]).output(), "");
    // The next call knows the change, too.
    web.world.host(["ip", "netns", "add", "next"]);
    assert!(host.add("next").contains("10.1.0.4/24"));
}

#[test]
fn a_living_owner_is_named_and_keeps_its_address() {
    let host = Host::new();
    let _web = host.attached("web");
    let outcome = host.ipam(&["release", "10.1.0.2"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{}", outcome.report());
    let expected = "cannot release 10.1.0.2: eth0 of container web in network net is alive: \
                    its network namespace exists: --force releases it";
    assert!(outcome.stderr.contains(expected), "{}", outcome.report());
    assert_eq!(host.addresses(), ["10.1.0.2", "fd00:1::2"]);
    let document = parse(&host.ipam(&["release", "10.1.0.2", "--force", "--json"]).output());
    assert_eq!(document["released"][0]["containerID"], "web", "{document}");
    assert_eq!(document["dryRun"], false);
    assert_eq!(host.addresses(), ["fd00:1::2"]);
}

#[test]
fn an_address_in_two_networks_needs_the_name_of_one() {
    let host = Host::new();
    host.world.write(&format!("{DATA}/other/10.1.0.7"), "x9\r\neth0");
    host.reserve_file("10.1.0.7", "x8\r\neth0");
    let outcome = host.ipam(&["release", "10.1.0.7", "--force"]);
    assert!(
        outcome.status == 1 && outcome.stderr.contains("in networks net and other"),
        "{}",
        outcome.report()
    );
    host.ipam(&["release", "10.1.0.7", "--force", "--network", "other"]).output();
    assert_eq!(host.addresses(), ["10.1.0.7"]);
    let document = host.list();
    assert_eq!(document["networks"][1]["name"], "other", "{document}");
    assert_eq!(document["networks"][1]["configured"], false, "{document}");
    assert_eq!(document["networks"][1]["ranges"], json!([]), "{document}");
}

#[test]
fn a_refused_address_does_not_keep_others_from_their_release() {
    let host = Host::new();
    let _web = host.attached("web");
    host.dead("mail");
    let outcome = host.ipam(&["release", "10.1.0.2", "10.1.0.3", "10.9.9.9"]);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert!(outcome.stdout.starts_with("released 10.1.0.3 of "), "{}", outcome.report());
    for text in ["cannot release 10.1.0.2", "cannot find 10.9.9.9 in any network"] {
        assert!(outcome.stderr.contains(text), "{text}: {}", outcome.report());
    }
}

#[test]
fn a_reserved_address_stays_out_of_use_until_its_release() {
    let host = Host::new();
    assert_eq!(
        host.ipam(&["reserve", "10.1.0.2", "fd00:1::2"]).output(),
        "reserved 10.1.0.2 of network net\nreserved fd00:1::2 of network net\n"
    );
    let _web = host.attached("web");
    assert_eq!(host.addresses(), ["10.1.0.2", "10.1.0.3", "fd00:1::2", "fd00:1::3"]);
    let state = |address| (host.state_of(address), host.find(address)["containerID"].clone());
    assert_eq!(state("10.1.0.2"), ("reserved".to_owned(), Value::Null));
    // Neither GC of the plugin, nor DEL of the Go plugin, nor `release --leaks` takes it.
    let go = host.plugin_call("/usr/lib/cni/host-local", "DEL", "reserved");
    assert_eq!(go.run().status, 0);
    host.gc_of_plugin();
    host.ipam(&["release", "--leaks"]).output();
    assert_eq!(host.addresses(), ["10.1.0.2", "fd00:1::2"]);
    let taken = host.ipam(&["reserve", "10.1.0.2"]);
    assert!(
        taken.status == 1 && taken.stderr.contains("cannot reserve 10.1.0.2: it is taken"),
        "{}",
        taken.report()
    );
    let outside = host.ipam(&["reserve", "10.2.0.2"]);
    assert!(
        outside.status == 1 && outside.stderr.contains("cannot find 10.2.0.2"),
        "{}",
        outside.report()
    );
    host.ipam(&["release", "10.1.0.2", "fd00:1::2"]).output();
    assert_eq!(host.addresses(), [""; 0]);
}

#[test]
fn reservations_of_the_go_plugin_are_understood() {
    let host = Host::new();
    let world = &host.world;
    host.plugin_call("/usr/lib/cni/host-local", "ADD", "theirs").run().output();
    host.reserve_file("10.1.0.7", "of-an-old-release\n");
    host.reserve_file("10.1.0.8", "held by\nthe administrator");
    host.reserve_file("10.1.0.9", "");
    let owner = |address: &str| {
        let found = host.find(address);
        (found["containerID"].clone(), found["ifname"].clone(), found["owner"].clone())
    };
    assert_eq!(owner("10.1.0.2"), (json!("theirs"), json!("eth0"), Value::Null));
    assert_eq!(owner("10.1.0.7"), (json!("of-an-old-release"), Value::Null, Value::Null));
    assert_eq!(owner("10.1.0.8"), (Value::Null, Value::Null, json!("held by\nthe administrator")));
    // The crash of an ADD left an empty file: the address is free.
    assert_eq!(host.find("10.1.0.9"), Value::Null);
    assert_eq!(host.list()["networks"][0]["ranges"][0]["used"], 3);
    host.ipam(&["release", "--force", "10.1.0.2", "10.1.0.7", "10.1.0.8"]).output();
    assert_eq!(host.addresses(), ["10.1.0.9", "fd00:1::2"]);
    assert!(world.read(&format!("{DATA}/net/lock")).is_empty());
}

#[test]
fn ranges_count_what_can_be_allocated() {
    let host = Host::new();
    let ranges = json!([[{"subnet": "10.5.0.0/29", "exclude": ["10.5.0.4/31", "10.5.0.5", "10.5.0.4/31"]}],
        [{"subnet": "fd05::/126", "gateway": "fd05::9"}]]);
    host.configure("small", &ranges, json!({"dataDir": "/run/data"}));
    // Of .1 to .6 the gateway .1, .4 and .5 are not allocated. .4 was reserved before it was excluded.
    host.world.write("/run/data/small/10.5.0.4", "a9\r\neth0");
    host.world.write("/run/data/small/10.5.0.2", "a9\r\neth1");
    let document = host.list();
    let networks = document["networks"].as_array().unwrap();
    let small = networks.iter().find(|network| network["name"] == "small").unwrap();
    let numbers =
        |index: usize| ["size", "used", "free"].map(|key| small["ranges"][index][key].clone());
    assert_eq!(numbers(0), [3, 2, 2], "{small}");
    assert_eq!(numbers(1), [3, 0, 3], "{small}");
    assert_eq!(small["dataDir"], "/run/data");
}

/// The cells of each line of a table.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn ranges_of_the_runtime_are_listed_with_the_attachment() {
    let host = Host::new();
    let ipam = json!({"type": "host-local"});
    let plugin = json!({"type": "bridge", "bridge": "cni1", "capabilities": {"ipRanges": true}, "ipam": ipam});
    host.write_network("pods", &plugin);
    host.world.host(["ip", "netns", "add", "pod"]);
    let ranges = json!({"ipRanges": [[{"subnet": "10.6.0.0/24"}]]});
    let add = host.cnibox(&["add", "pods", "pod"]).env("CAP_ARGS", &ranges.to_string());
    assert!(add.run().output().contains("10.6.0.2/24"));
    let outcome = host.ipam(&["list"]);
    assert!(outcome.stdout.contains("\n10.6.0.2  pods "), "{}", outcome.report());
    let range = ["10.6.0.1-10.6.0.254", "pods", "253", "1", "252"];
    assert!(rows(&outcome.stdout).contains(&range.to_vec()), "{}", outcome.report());
    assert_eq!(outcome.stderr, "", "{}", outcome.report());
}

#[test]
fn subnets_of_flannel_are_listed() {
    let host = Host::new();
    let env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    host.world.write("/run/own.env", env);
    let flannel = |file: &str| json!({"type": "flannel", "subnetFile": file});
    host.write_network("pods", &flannel("/run/own.env"));
    host.write_network("later", &flannel("/run/missing.env"));
    host.world.write(&format!("{DATA}/pods/10.244.3.7"), "a9\r\neth0");
    let outcome = host.ipam(&["list"]);
    let range = ["10.244.3.1-10.244.3.254", "pods", "253", "1", "252"];
    assert!(rows(&outcome.stdout).contains(&range.to_vec()), "{}", outcome.report());
    assert!(!outcome.stdout.contains("later"), "{}", outcome.report());
}

#[test]
fn a_broken_configuration_is_a_warning() {
    let host = Host::new();
    host.world.write("/run/net.d/20-broken.conflist", "{");
    host.configure("wrong", &json!([[{"subnet": "10.7.0.0/33"}]]), json!({}));
    host.world.write(&format!("{DATA}/wrong/10.7.0.2"), "a9\r\neth0");
    let outcome = host.ipam(&["list"]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    assert!(outcome.stdout.contains("10.7.0.2"), "{}", outcome.report());
    for text in ["20-broken.conflist", "network wrong: invalid range set 0"] {
        assert!(outcome.stderr.contains(text), "{text}: {}", outcome.report());
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let host = Host::new();
    for args in [
        &[][..],
        &["free"],
        &["list", "10.1.0.2"],
        &["leaks", "--force"],
        &["release"],
        &["release", "here"],
        &["reserve", "--leaks", "10.1.0.2"],
        &["list", "--dry-run"],
        &["reserve"],
    ] {
        let outcome = host.ipam(args);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (2, ""), "{}", outcome.report());
    }
    let outcome = host.ipam(&["list", "--network", "nowhere"]);
    assert!(
        outcome.status == 1 && outcome.stderr.contains("there is no network nowhere"),
        "{}",
        outcome.report()
    );
}

#[test]
fn a_reservation_that_cannot_be_read_is_a_warning() {
    let host = Host::new();
    let _web = host.attached("web");
    host.world.host(["ln", "-s", "10.1.0.77", &format!("{DATA}/net/10.1.0.77")]);
    let outcome = host.ipam(&["list"]);
    assert!(outcome.status == 0 && outcome.stdout.contains("10.1.0.2 "), "{}", outcome.report());
    assert!(!outcome.stdout.contains("10.1.0.77"), "{}", outcome.report());
    let expected = format!("warning: cannot read {DATA}/net/10.1.0.77: ");
    assert!(outcome.stderr.contains(&expected), "{}", outcome.report());
}

#[test]
fn a_directory_that_cannot_be_searched_is_an_error() {
    let host = Host::new();
    let _web = host.attached("web");
    host.world.host(["chmod", "0", DATA]);
    let words =
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "/run/bin/cnibox", "ipam", "list"];
    let outcome = host.world.tool(&words, None).env("NETCONFPATH", "/run/net.d").run();
    let expected = format!("cannot read directory {DATA}");
    assert!(outcome.status == 1 && outcome.stderr.contains(&expected), "{}", outcome.report());
}
