//! `cnibox networks`: what is listed, written and removed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::{CONFIGURATIONS, Host, list};
use crate::world::{Outcome, all_at_once, with};

impl Host {
    fn networks(&self, args: &[&str]) -> Outcome {
        self.cnibox(&[&["networks"], args].concat()).run()
    }

    #[track_caller]
    fn create(&self, args: &[&str]) {
        let name = args[0];
        assert_eq!(self.networks(&[&["create"], args].concat()).output(), format!("{name}\n"));
    }

    #[track_caller]
    fn refuses(&self, status: i32, args: &[&str], text: &str) {
        let before = self.files();
        let outcome = self.networks(args);
        let is_refused = outcome.status == status && outcome.stdout.is_empty();
        assert!(is_refused && outcome.stderr.contains(text), "{text}: {}", outcome.report());
        assert_eq!(self.files(), before);
    }

    /// The files of the directory, hidden ones too, with their contents.
    fn files(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.world.path(CONFIGURATIONS)).unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read_to_string(entry.path()).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    fn names(&self) -> Vec<String> {
        self.files().into_iter().map(|(name, _)| name).collect()
    }

    fn config(&self, name: &str) -> Value {
        serde_json::from_str(&self.world.read(&format!("{CONFIGURATIONS}/{name}.conflist")))
            .unwrap()
    }

    fn subnet(&self, name: &str) -> Value {
        self.config(name)["plugins"][0]["ipam"]["ranges"][0][0]["subnet"].clone()
    }

    fn links(&self) -> Vec<String> {
        let links = self.world.host_json(["ip", "-json", "link"]);
        let names = links.as_array().unwrap().iter();
        names.map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn a_new_network_is_a_file_that_podman_would_have_written() {
    let host = Host::new();
    host.create(&["mynet"]);
    let expected = json!({
        "cniVersion": "0.4.0", "cniVersions": ["0.4.0", "1.0.0", "1.1.0"], "name": "mynet", "plugins": [
            {
                "type": "bridge", "bridge": "cnibox0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "capabilities": {"ips": true, "mac": true},
                "ipam": {
                    "type": "host-local", "ranges": [[{"subnet": "10.89.0.0/24", "gateway": "10.89.0.1"}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall", "acceptPublished": true},
            {"type": "tuning"},
        ],
    });
    assert_eq!(host.config("mynet"), expected);
    assert_eq!(host.names(), ["mynet.conflist"]);
    let path = host.world.path(format!("{CONFIGURATIONS}/mynet.conflist"));
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn options_have_the_words_of_podman() {
    let host = Host::new();
    let both = ["--subnet", "10.5.0.7/24", "--subnet", "fd00:5::/64", "--gateway", "10.5.0.254"];
    let more = ["-o", "isolate=true", "-o", "mtu=1400", "-o", "vlan=5", "--interface-name", "br5"];
    host.create(&[&["both"][..], &both, &more].concat());
    let bridge = &host.config("both")["plugins"][0];
    assert_eq!(
        [&bridge["mtu"], &bridge["vlan"], &bridge["bridge"]],
        [&json!(1400), &json!(5), &json!("br5")]
    );
    let ranges = json!([
        [{"subnet": "10.5.0.0/24", "gateway": "10.5.0.254"}],
        [{"subnet": "fd00:5::/64", "gateway": "fd00:5::1"}],
    ]);
    assert_eq!(bridge["ipam"]["ranges"], ranges);
    assert_eq!(bridge["ipam"]["routes"], json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]));
    assert_eq!(host.config("both")["plugins"][2]["ingressPolicy"], "same-bridge");
    let lan =
        ["--type", "macvlan", "--parent", "eth7", "-o", "mode=private", "--subnet", "10.6.0.0/24"];
    host.create(&[&["lan"][..], &lan].concat());
    let expected = json!([{
        "type": "macvlan", "master": "eth7", "mode": "private", "capabilities": {"ips": true, "mac": true},
        "ipam": {
            "type": "host-local", "ranges": [[{"subnet": "10.6.0.0/24", "gateway": "10.6.0.1"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }]);
    assert_eq!(host.config("lan")["plugins"], expected);
}

#[test]
fn a_new_network_works_at_once() {
    let host = Host::new();
    host.create(&["web", "--subnet", "10.5.0.0/24", "--subnet", "fd00:5::/64"]);
    host.create(&["routed", "--type", "veth"]);
    for (network, name) in [("web", "c1"), ("routed", "c2")] {
        let container = host.world.container(name);
        let add = ["add", network, name, "-p", "8080:80", "--mac", "02:00:00:00:00:07"];
        let result = host.cnibox(&add).run().success();
        let gateway = result["ips"][0]["gateway"].as_str().unwrap();
        let address = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
        container.ping(gateway);
        host.world.pinging(address, None).output_of_success();
        assert!(container.exec(["ip", "link", "show", "eth0"]).contains("02:00:00:00:00:07"));
        assert!(host.world.host(["nft", "list", "ruleset"]).contains(address));
        host.cnibox(&["check", network, name]).run().silence();
        host.cnibox(&["status", network]).run().silence();
        host.cnibox(&["del", network, name]).run().silence();
    }
}

#[test]
fn the_subnet_that_is_chosen_is_free() {
    let host = Host::new();
    host.configure(
        "1.conf",
        &json!({"name": "other", "type": "bridge", "bridge": "cnibox0",
        "ipam": {"type": "host-local", "subnet": "10.89.0.0/23"}}),
    );
    host.world.host(["ip", "link", "add", "cnibox1", "type", "bridge"]);
    host.world.host(["ip", "address", "add", "10.89.2.9/32", "dev", "cnibox1"]);
    host.world.host(["ip", "link", "set", "cnibox1", "up"]);
    host.world.host(["ip", "route", "add", "10.89.3.0/25", "dev", "cnibox1"]);
    host.create(&["one"]);
    host.create(&["two"]);
    assert_eq!([host.subnet("one"), host.subnet("two")], ["10.89.4.0/24", "10.89.5.0/24"]);
    assert_eq!(host.config("one")["plugins"][0]["bridge"], "cnibox2");
    assert_eq!(host.config("two")["plugins"][0]["bridge"], "cnibox3");
}

#[test]
fn a_vpn_leaves_room_for_a_network() {
    let host = Host::new();
    for script in [
        // The default route of OpenVPN and WireGuard, and a VPN of a company.
        "ip link add tun0 type veth peer name tun1 && ip link set tun0 up && ip link set tun1 up",
        "ip route add 0.0.0.0/1 dev tun0 && ip route add 128.0.0.0/1 dev tun0",
    ] {
        host.world.host(["sh", "-ec", script]);
    }
    host.create(&["one"]);
    assert_eq!(host.subnet("one"), "10.89.0.0/24");
    host.world.host(["ip", "route", "add", "10.0.0.0/8", "dev", "tun0"]);
    host.create(&["two"]);
    assert_eq!(host.subnet("two"), "172.16.0.0/24");
    for net in ["172.16.0.0/12", "192.168.0.0/16"] {
        host.world.host(["ip", "route", "add", net, "dev", "tun0"]);
    }
    let routes = "networks and routes have 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16";
    host.refuses(1, &["create", "three"], routes);
    host.refuses(1, &["create", "three"], "--subnet");
    host.create(&["three", "--subnet", "10.77.0.0/24"]);
}

#[test]
fn networks_made_at_the_same_time_do_not_share_a_subnet() {
    let host = Host::new();
    let names: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    let calls = names.iter().map(|name| host.cnibox(&["networks", "create", name]));
    all_at_once(calls).into_iter().for_each(|outcome| drop(outcome.output()));
    let mut subnets: Vec<String> =
        names.iter().map(|name| host.subnet(name).as_str().unwrap().to_owned()).collect();
    subnets.sort();
    subnets.dedup();
    assert_eq!((subnets.len(), host.files().len()), (8, 8));
    let again = names.iter().map(|_| host.cnibox(&["networks", "create", "same"]));
    let made = all_at_once(again).iter().filter(|outcome| outcome.status == 0).count();
    assert_eq!((made, host.files().len()), (1, 9));
}

#[test]
fn a_wrong_network_is_refused_and_nothing_is_written() {
    let host = Host::new();
    host.create(&["net", "--subnet", "10.5.0.0/24"]);
    host.world.write(&format!("{CONFIGURATIONS}/broken.conflist"), "{");
    host.world.host(["ip", "address", "add", "10.6.0.9/24", "dev", "lo"]);
    let refused = |text: &str, args: &[&str]| host.refuses(1, &[&["create"], args].concat(), text);
    refused("net.conflist configures a network of this name", &["net"]);
    refused("cannot write /run/net.d/broken.conflist: File exists", &["broken"]);
    refused("overlaps with 10.5.0.0/24 of network net", &["x", "--subnet", "10.5.0.128/25"]);
    refused("overlaps with 10.5.0.0/24 of network net", &["x", "--subnet", "10.0.0.0/8"]);
    refused("the host has the address 10.6.0.9", &["x", "--subnet", "10.6.0.0/24"]);
    refused("overlaps with", &["x", "--subnet", "10.7.0.0/24", "--subnet", "10.7.0.0/25"]);
    refused("too small", &["x", "--subnet", "10.7.0.0/31"]);
    let gateways = ["--gateway", "10.7.0.1", "--gateway", "10.7.0.2"];
    refused("several gateways", &[&["x", "--subnet", "10.7.0.0/24"][..], &gateways].concat());
    refused("in none of the subnets", &["x", "--gateway", "10.7.0.1"]);
    refused("needs a subnet", &["x", "--type", "ipvlan"]);
    let misread = |text: &str, args: &[&str]| host.refuses(2, &[&["create"], args].concat(), text);
    misread("invalid characters found in network name", &["../x"]);
    misread("--subnet: \"10.7.0.0\" is not a subnet", &["x", "--subnet", "10.7.0.0"]);
    misread("--type host-device: not one of bridge, veth", &["x", "--type", "host-device"]);
    misread("a vlan needs", &["x", "--type", "vlan", "--parent", "lo", "--subnet", "10.7.0.0/24"]);
    misread("-o parent=lo: not an option of this type", &["x", "--parent", "lo"]);
    misread("-o mode=: not an option", &["x", "--type", "macvlan", "-o", "mode"]);
    misread("-o mtu=-1: not a number", &["x", "-o", "mtu=-1"]);
    host.refuses(2, &["rm"], "NAME is missing");
    host.refuses(1, &["rm", "x"], "cannot remove network x: no file configures it");
}

#[test]
fn a_subnet_that_containers_cannot_use_is_refused_with_its_range_and_the_reason() {
    let host = Host::new();
    for (subnet, reason) in [
        ("0.5.0.0/24", "0.0.0.0/8: it is \"this network\""),
        ("0.0.0.0/0", "0.0.0.0/8: it is \"this network\""),
        ("127.5.0.0/24", "127.0.0.0/8: it is the loopback network"),
        ("169.254.5.0/24", "169.254.0.0/16: it is link-local"),
        ("224.0.0.0/24", "224.0.0.0/4: it is multicast"),
        ("192.0.0.0/2", "224.0.0.0/4: it is multicast"),
        ("255.255.255.0/24", "240.0.0.0/4: it is reserved"),
        ("::/64", "::/128: it is the unspecified address"),
        ("::ffff:10.5.0.0/120", "::ffff:0.0.0.0/96: it is IPv4-mapped"),
        ("fe80:0:0:5::/64", "fe80::/10: it is link-local"),
        ("ff05::/64", "ff00::/8: it is multicast"),
    ] {
        let text = format!("cannot create network x: subnet {subnet} overlaps with {reason}");
        for kind in [&["--type", "bridge"][..], &["--type", "macvlan", "--parent", "lo"]] {
            let subnets = ["create", "x", "--subnet", "10.5.0.0/24", "--subnet", subnet];
            host.refuses(1, &[&subnets, kind].concat(), &text);
        }
    }
    assert_eq!(host.names(), [""; 0]);
}

#[test]
fn a_network_that_containers_use_is_removed_by_force_only() {
    let host = Host::new();
    host.create(&["net"]);
    host.world.container("c1");
    host.cnibox(&["add", "net", "c1", "--container-id", "id1"]).run().success();
    host.refuses(1, &["rm", "net"], "eth0 of container id1 in network net uses it");
    assert_eq!(host.networks(&["rm", "--force", "net"]).output(), "net\n");
    assert_eq!(host.names(), [""; 0]);
    // With its port, the bridge stays.
    assert!(host.links().contains(&"cnibox0".into()));
    host.cnibox(&["check", "net", "c1", "--container-id", "id1"]).run().silence();
    host.cnibox(&["del", "--container-id", "id1"]).run().silence();
}

#[test]
fn a_bridge_goes_with_its_network_unless_something_uses_it() {
    let host = Host::new();
    let add_and_delete = |network: &str| {
        host.world.container(network);
        host.cnibox(&["add", network, network]).run().success();
        host.cnibox(&["del", network, network]).run().silence();
    };
    host.create(&["free"]);
    host.create(&["shared"]);
    host.create(&["addressed"]);
    let mut sharing = host.config("shared");
    sharing["name"] = json!("sharing");
    host.configure("sharing.conflist", &sharing);
    for network in ["free", "shared", "addressed"] {
        add_and_delete(network);
    }
    host.world.host(["ip", "address", "add", "192.0.2.1/24", "dev", "cnibox2"]);
    assert_eq!(
        host.networks(&["rm", "free", "none", "shared", "addressed"]).status,
        1,
        "none is not there"
    );
    assert_eq!(host.names(), ["sharing.conflist"]);
    assert_eq!(host.links(), ["lo", "cnibox1", "cnibox2"]);
    // A subnet is free with its bridge.
    host.create(&["free"]);
    assert_eq!(host.subnet("free"), "10.89.0.0/24");
}

#[test]
fn an_attachment_that_is_stale_does_not_keep_its_network() {
    let host = Host::new();
    host.create(&["net"]);
    let dead = host.world.container("dead");
    host.cnibox(&["add", "net", "dead"]).run().success();
    dead.unmount();
    host.networks(&["rm", "net"]).output();
    host.cnibox(&["gc"]).run().output();
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn the_list_has_the_order_of_each_runtime() {
    let host = Host::new();
    let known = json!({"type": "tuning"});
    let unknown = json!({"type": "nothing", "ipam": {"type": "dhcq"}});
    for (file, name, plugin) in [
        ("10-a.conf", "a", &known),
        ("20-b.conflist", "b", &unknown),
        ("30-c.conflist", "c", &known),
        ("40-c.conflist", "c", &known),
        ("60-d.json", "d", &known),
        ("70-e.conflist", "e", &unknown),
    ] {
        let config = match file.ends_with(".conflist") {
            true => json!({"plugins": [plugin]}),
            false => plugin.clone(),
        };
        host.configure(file, &with(&config, json!({"cniVersion": "1.0.0", "name": name})));
    }
    host.world.write(&format!("{CONFIGURATIONS}/50-broken.conflist"), "{");
    let outcome = host.networks(&["--json"]);
    assert!(outcome.stderr.contains("warning: cannot read /run/net.d/50-broken.conflist: "));
    let document: Value = serde_json::from_str(&outcome.output()).unwrap();
    let listed = document["networks"].as_array().unwrap();
    let orders: Vec<_> = listed
        .iter()
        .map(|network| {
            let order = |runtime: &str| network["order"][runtime].as_u64().unwrap_or(0);
            let file = network["file"].as_str().unwrap().rsplit('/').next().unwrap();
            (file, order("containerd"), order("cri-o"), order("podman"))
        })
        .collect();
    assert_eq!(
        orders,
        [
            ("10-a.conf", 1, 1, 0),
            ("20-b.conflist", 2, 0, 0),
            ("30-c.conflist", 3, 2, 1),
            ("40-c.conflist", 4, 0, 0),
            ("60-d.json", 0, 3, 0),
            ("70-e.conflist", 0, 0, 0),
        ]
    );
    assert_eq!(listed[1]["missing"], json!(["nothing", "dhcq"]));
    let table = host.networks(&[]).output();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 7, "{table}");
    let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
    assert_eq!(
        words(0),
        ["NETWORK", "SUBNETS", "PLUGINS", "MISSING", "CONTAINERD", "CRI-O", "PODMAN", "FILE"]
    );
    assert_eq!(
        words(2),
        ["b", "-", "nothing", "nothing,dhcq", "2", "-", "-", "/run/net.d/20-b.conflist"]
    );
}

#[test]
fn a_plugin_that_no_file_has_is_for_us_alone() {
    let host = Host::new();
    host.create(&["net"]);
    let listed = || {
        let outcome = host.cnibox(&["networks", "--json"]).env("CNI_PATH", "/run/own").run();
        let stderr = outcome.stderr.clone();
        (serde_json::from_str::<Value>(&outcome.output()).unwrap()["networks"][0].clone(), stderr)
    };
    let (network, stderr) = listed();
    assert_eq!(network["missing"], json!([]));
    assert_eq!(
        network["builtIn"],
        json!(["bridge", "host-local", "portmap", "firewall", "tuning"])
    );
    assert_eq!(network["order"], json!({"containerd": 1}));
    assert!(stderr.contains("only cnibox finds bridge, firewall, host-local, portmap, tuning"));
    for name in ["bridge", "host-local", "portmap", "firewall", "tuning"] {
        host.recorder(name, "");
    }
    assert_eq!(listed().0["order"], json!({"containerd": 1, "cri-o": 1, "podman": 1}));
}

#[test]
fn a_new_network_that_containerd_would_take_is_said() {
    let host = Host::new();
    host.configure("50-kubernetes.conflist", &list("1.0.0", &["tuning"]));
    let said = |name: &str| host.networks(&["create", name]).stderr;
    assert_eq!(said("zoo"), "");
    assert!(said("10-first").contains("containerd and CRI-O use this network"));
}

/// Needs a debug build.
mod faults {
    use super::Host;

    #[test]
    fn a_failed_write_leaves_no_file() {
        let host = Host::new();
        let mut failed = 0;
        loop {
            let number = (failed + 1).to_string();
            let call = host.cnibox(&["networks", "create", "net"]).env("CNIBOX_FAIL_FILE", &number);
            if call.run().status == 0 {
                break;
            }
            failed += 1;
            assert_eq!(host.names(), [""; 0], "{number}");
            assert!(failed < 100);
        }
        assert!(failed >= 4, "{failed}");
        assert_eq!(host.names(), ["net.conflist"]);
        let rm = |number: &str| {
            host.cnibox(&["networks", "rm", "net"]).env("CNIBOX_FAIL_FILE", number).run()
        };
        assert_eq!((rm("3").status, host.names()), (1, vec!["net.conflist".to_owned()]));
    }
}
