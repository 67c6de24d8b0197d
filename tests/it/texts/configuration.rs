//! Mistakes in the configuration. The error is the same with the container's namespace and without it.

use serde_json::{Value, json};

use super::{Row, none, problem, row};
use crate::world::{World, plugin_names};

fn of_all_plugins() -> Vec<Row> {
    vec![
        row("0.4", "bridge", json!({"name": 5}), 6, "error unmarshall network config"),
        row("0.4", "host-local", json!({"name": 5}), 6, "error unmarshall network config"),
        row("0.4", "bridge", json!({"name": ""}), 7, "missing network name"),
        row("0.5", "bridge", json!({"name": "a b"}), 7, "invalid characters found in network name"),
        row("0.7", "bridge", json!({"cniVersion": "9.9.9"}), 1, "incompatible CNI versions"),
        row("0.11", "loopback", foreign_result(), 999, "could not parse prevResult"),
        row("0.11", "tuning", foreign_result(), 999, "could not parse prevResult"),
        row("0.11", "loopback", json!({"prevResult": []}), 6, "could not parse prevResult"),
    ]
}

/// Of a version of another shape.
fn foreign_result() -> Value {
    json!({"prevResult": {"cniVersion": "0.4.0", "ips": [], "interfaces": []}})
}

fn of_interface_plugins() -> Vec<Row> {
    let load = "failed to load netconf";
    let parse = "failed to parse network config";
    vec![
        row("0.13", "bridge", json!({"ipam": {"type": "../x"}}), 7, "invalid plugin name"),
        row(
            "0.13",
            "bridge",
            json!({"ipam": {"type": "none"}}),
            7,
            "failed to find plugin \"none\" in path [",
        ),
        row(
            "0.13",
            "tap",
            json!({"ipam": {"type": "none"}}),
            7,
            "failed to find plugin \"none\" in path [",
        ),
        row("2.1", "bridge", json!({"ipam": {"type": "host-local"}}), 7, "no IP ranges specified"),
        row("2.1", "veth", json!({"ipam": {"type": "host-local"}}), 7, "no IP ranges specified"),
        row("1", "bridge", json!({"mtu": "x"}), 6, load),
        row("1", "bridge", json!({"runtimeConfig": {"mac": 5}}), 6, load),
        row("1", "ptp", json!({"args": {"cni": {"mac": 5}}}), 6, load),
        row("1", "macvlan", json!({"master": "up0", "runtimeConfig": {"mac": 5}}), 6, load),
        row("1", "tap", json!({"runtimeConfig": {"mac": 5}}), 6, load),
        row("1", "ptp", json!({"mtu": "x"}), 6, load),
        row("1", "veth", json!({"mtu": "x"}), 6, load),
        row("1", "macvlan", json!({"mtu": "x"}), 6, load),
        row("1", "ipvlan", json!({"mtu": "x"}), 6, load),
        row("1", "vlan", json!({"mtu": "x"}), 6, load),
        row("1", "host-device", json!({"device": 5}), 6, load),
        row("1", "tap", json!({"mtu": "x"}), 6, load),
        row("1", "dummy", json!({"mtu": "x"}), 6, parse),
    ]
}

fn of_keys_of_interfaces() -> Vec<Row> {
    vec![
        row("1.2", "bridge", json!({"ipMasqBackend": "x"}), 7, "unknown ipmasq backend"),
        row(
            "1.2",
            "bridge",
            mac("x"),
            7,
            "failed to make veth pair: address x: invalid MAC address",
        ),
        row(
            "1.2",
            "bridge",
            json!({"args": {"cni": {"mac": "x"}}}),
            7,
            "failed to make veth pair: address x: invalid MAC address",
        ),
        row("1.3", "ptp", json!({"ipMasqBackend": "x"}), 7, "unknown ipmasq backend"),
        row("1.4", "macvlan", json!({"mode": "x"}), 7, "unknown macvlan mode"),
        row("1.4", "macvlan", json!({"master": "none"}), 7, "Link not found"),
        row("1.4", "macvlan", json!({}), 7, "no default route interface found"),
        row("1.4", "macvlan", json!({"mac": "x"}), 7, "invalid args x for MAC addr"),
        row("1.4", "macvlan", mac("x"), 7, "invalid args x for MAC addr"),
        row(
            "1.4",
            "macvlan",
            json!({"master": "up0", "mtu": 1600}),
            7,
            "invalid MTU 1600, must be [0, master MTU(1500)]",
        ),
        row(
            "1.4",
            "macvlan",
            json!({"master": "up0", "mtu": -1}),
            7,
            "invalid MTU -1, must be [0, master MTU(1500)]",
        ),
        row("1.5", "ipvlan", json!({"mode": "x"}), 7, "unknown ipvlan mode"),
        row(
            "1.5",
            "ipvlan",
            json!({"prevResult": {"interfaces": []}}),
            7,
            "chained master failure",
        ),
        row("1.6", "vlan", json!({"master": "none"}), 7, "Link not found"),
        row(
            "1.6",
            "vlan",
            json!({"master": "up0", "mtu": 1600}),
            7,
            "invalid MTU 1600, must be [0, master MTU(1500)]",
        ),
        row(
            "1.7",
            "host-device",
            json!({}),
            7,
            "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"",
        ),
        row("1.8", "dummy", json!({}), 7, "dummy interface requires an IPAM configuration"),
        row("1.9", "tap", json!({"mac": "x"}), 7, "invalid args x for MAC addr"),
        row("1.9", "tap", json!({"mtu": -1}), 7, "invalid MTU -1"),
    ]
}

fn of_vlans() -> Vec<Row> {
    let trunk = |item: Value| json!({"vlanTrunk": [item]});
    let together = "minID and maxID should be configured simultaneously, ";
    vec![
        row(
            "1.2",
            "bridge",
            json!({"vlan": 4095}),
            7,
            "invalid VLAN ID 4095 (must be between 0 and 4094)",
        ),
        row("1.2", "bridge", trunk(json!({"id": 0})), 7, "incorrect trunk id parameter"),
        row(
            "1.2",
            "bridge",
            trunk(json!({"minID": 0, "maxID": 1})),
            7,
            "incorrect trunk minID parameter",
        ),
        row(
            "1.2",
            "bridge",
            trunk(json!({"minID": 1, "maxID": 4095})),
            7,
            "incorrect trunk maxID parameter",
        ),
        row(
            "1.2",
            "bridge",
            trunk(json!({"minID": 2, "maxID": 1})),
            7,
            "minID is greater than maxID in trunk parameter",
        ),
        row("1.2", "bridge", trunk(json!({"minID": 2})), 7, together),
        row("1.2", "bridge", trunk(json!({"maxID": 2})), 7, together),
        row(
            "1.6",
            "vlan",
            json!({"master": "up0", "vlanId": 5000}),
            7,
            "invalid VLAN ID 5000 (must be between 0 and 4095 inclusive)",
        ),
        row(
            "1.6",
            "vlan",
            json!({}),
            7,
            "\"master\" field is required. It specifies the host interface name to create the VLAN for.",
        ),
    ]
}

fn of_modes() -> Vec<Row> {
    let ipam = || json!({"type": "host-local", "subnet": "10.1.0.0/24"});
    vec![
        row(
            "1.2",
            "bridge",
            json!({"hairpinMode": true, "promiscMode": true}),
            7,
            "cannot set hairpin mode and promiscuous mode at the same time",
        ),
        row(
            "1.2",
            "bridge",
            json!({"disableContainerInterface": true, "ipam": ipam()}),
            7,
            "cannot use IPAM when DisableContainerInterface flag is set",
        ),
    ]
}

fn of_host_device() -> Vec<Row> {
    let find = "failed to find host device: ";
    vec![
        row(
            "1.7",
            "host-device",
            json!({"hwaddr": "x"}),
            7,
            "failed to find host device: failed to parse MAC address \"x\": address x: invalid MAC address",
        ),
        row(
            "1.7",
            "host-device",
            json!({"kernelpath": "/x"}),
            7,
            "failed to find host device: kernel device path \"/x\" must be absolute and begin with /sys/devices/",
        ),
        row("1.7", "host-device", json!({"kernelpath": "x/../y"}), 7, find),
    ]
}

fn mac(mac: &str) -> Value {
    json!({"runtimeConfig": {"mac": mac}})
}

fn of_ipam_plugins() -> Vec<Row> {
    let range = |range: Value| json!({"ipam": {"subnet": null, "ranges": [[range]]}});
    let sets = |sets: Value| json!({"ipam": {"subnet": null, "ranges": sets}});
    vec![
        row("2.1", "host-local", json!({"ipam": null}), 7, "IPAM config missing 'ipam' key"),
        row("2.1", "host-local", json!({"ipam": {"subnet": null}}), 7, "no IP ranges specified"),
        row("2.1", "host-local", sets(json!([[]])), 7, "invalid range set 0: empty range set"),
        row(
            "2.1",
            "host-local",
            range(json!({})),
            7,
            "invalid range set 0: IP <nil> not v4 nor v6",
        ),
        row(
            "2.1",
            "host-local",
            range(json!({"subnet": "10.0.0.0/31"})),
            7,
            "invalid range set 0: Network 10.0.0.0/31 too small to allocate from",
        ),
        row(
            "2.1",
            "host-local",
            range(json!({"subnet": "::ffff:10.0.0.0/120"})),
            7,
            "invalid range set 0: IPNet IP and Mask version mismatch",
        ),
        row(
            "2.1",
            "host-local",
            range(json!({"subnet": "10.0.0.1/24"})),
            7,
            "invalid range set 0: Network has host bits set",
        ),
        row(
            "2.1",
            "host-local",
            range(json!({"subnet": "10.0.0.0/24", "rangeStart": "10.9.0.1"})),
            7,
            "invalid range set 0: RangeStart 10.9.0.1 not in network",
        ),
        row(
            "2.1",
            "host-local",
            range(json!({"subnet": "10.0.0.0/24", "rangeEnd": "10.9.0.1"})),
            7,
            "invalid range set 0: RangeEnd 10.9.0.1 not in network",
        ),
    ]
}

fn of_range_sets() -> Vec<Row> {
    let sets = |sets: Value| json!({"ipam": {"subnet": null, "ranges": sets}});
    let two = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]);
    let of_0_2_0 = json!({"cniVersion": "0.2.0", "ipam": {"subnet": null, "ranges": two}});
    vec![
        row(
            "2.1",
            "host-local",
            sets(json!([[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]])),
            7,
            "invalid range set 0: mixed address families",
        ),
        row(
            "2.1",
            "host-local",
            sets(json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/16"}]])),
            7,
            "range set 0 overlaps with 1",
        ),
        row(
            "2.1",
            "host-local",
            of_0_2_0,
            7,
            "CNI version 0.2.0 does not support more than 1 address per family",
        ),
    ]
}

/// The reason comes first, without the path in the document.
fn of_json_of_ipam() -> Vec<Row> {
    let (ip, cidr) = ("invalid IP address: x", "invalid CIDR address: x");
    let route = |keys: Value| json!({"ipam": {"routes": [keys]}});
    let address = json!({"ipam": {"addresses": [{"address": "10.0.0.1/24", "gateway": "x"}]}});
    vec![
        row("2.1", "host-local", json!({"ipam": {"gateway": "x"}}), 6, ip),
        row("2.1", "host-local", json!({"ipam": {"rangeEnd": "x"}}), 6, ip),
        row("2.1", "host-local", json!({"args": {"cni": {"ips": ["x"]}}}), 6, ip),
        row("2.1", "host-local", json!({"runtimeConfig": {"ips": ["x"]}}), 6, ip),
        row("2.1", "host-local", route(json!({"dst": "x"})), 6, cidr),
        row("2.1", "host-local", route(json!({"dst": "10.0.0.0/8", "gw": "x"})), 6, ip),
        row("2.2", "static", route(json!({"dst": "x"})), 6, cidr),
        row("2.2", "static", address, 6, ip),
    ]
}

fn of_static() -> Vec<Row> {
    let ips = "an entry in the 'ips' field is NOT in CIDR notation, got: 'x'";
    vec![
        row("2.2", "static", json!({"runtimeConfig": {"ips": ["x"]}}), 7, ips),
        row("2.2", "static", json!({"args": {"cni": {"ips": ["x"]}}}), 7, ips),
        row("2.2", "static", json!({"ipam": null}), 7, "IPAM config missing 'ipam' key"),
        row(
            "2.2",
            "static",
            json!({"ipam": {"addresses": [{"address": "10.0.0.1"}]}}),
            7,
            "the 'address' field is expected to be in CIDR notation, got: '10.0.0.1'",
        ),
    ]
}

fn of_dhcp() -> Vec<Row> {
    let ipam = |key: &str| json!({"ipam": {key: [{"option": "speed"}]}});
    vec![
        row("2.3", "dhcp", json!({}), 7, "IPAM config missing 'ipam' key"),
        row("2.3", "dhcp", ipam("provide"), 7, "Can not parse option"),
        row("2.3", "dhcp", ipam("request"), 7, "Can not parse option"),
    ]
}

fn of_chained_plugins() -> Vec<Row> {
    let parse = "failed to parse network configuration";
    let load = "failed to load netconf";
    vec![
        row("3", "portmap", json!({"snat": "x"}), 6, parse),
        row("3", "bandwidth", json!({"ingressRate": "x"}), 6, parse),
        row("3", "sbr", json!({"table": "x"}), 6, parse),
        row("3", "firewall", json!({"backend": 5}), 6, load),
        row("3", "tuning", json!({"dataDir": 5}), 6, load),
        row("3", "tuning", json!({"mtu": "x"}), 7, load),
        row("3", "tuning", json!({"sysctl": {"net.core.somaxconn": 5}}), 7, load),
        row("3", "tuning", json!({"args": {"cni": {"promisc": 1}}}), 7, load),
        row("3", "tuning", json!({"runtimeConfig": {"mac": 5}}), 7, load),
        row("3", "vrf", json!({"vrfname": 5}), 6, load),
        row("3", "flannel", json!({"dataDir": 5}), 6, load),
    ]
}

fn of_keys_of_chained_plugins() -> Vec<Row> {
    let without = || json!({"prevResult": null});
    let limits = |more: Value| json!({"runtimeConfig": {"bandwidth": more}});
    let burst = json!({"ingressRate": 8000, "ingressBurst": 40_000_000_000_u64});
    vec![
        row("3.1", "portmap", without(), 7, "must be called as chained plugin"),
        row(
            "3.1",
            "portmap",
            json!({"backend": "x"}),
            7,
            "failed to parse config: unrecognized backend",
        ),
        row(
            "3.1",
            "portmap",
            json!({"markMasqBit": 99}),
            7,
            "failed to parse config: MasqMarkBit must be between 0 and 31",
        ),
        row(
            "3.1",
            "portmap",
            json!({"markMasqBit": 5, "externalSetMarkChain": "X"}),
            7,
            "failed to parse config: Cannot specify externalSetMarkChain and markMasqBit",
        ),
        row(
            "3.1",
            "portmap",
            ports(0, 80),
            7,
            "failed to parse config: Invalid host port number: 0",
        ),
        row(
            "3.1",
            "portmap",
            ports(80, -1),
            7,
            "failed to parse config: Invalid container port number: -1",
        ),
        row("3.2", "bandwidth", without(), 7, "must be called as chained plugin"),
        row(
            "3.2",
            "bandwidth",
            limits(json!({"ingressRate": 8000})),
            7,
            "if rate is set, burst must also be set",
        ),
        row(
            "3.2",
            "bandwidth",
            limits(json!({"egressBurst": 8000})),
            7,
            "if burst is set, rate must also be set",
        ),
        row("3.2", "bandwidth", limits(burst), 7, "burst cannot be more than 4GB"),
        row("3.3", "firewall", without(), 7, "missing prevResult from earlier plugin"),
        row("3.3", "firewall", json!({"ingressPolicy": "x"}), 7, "unknown ingress policy"),
    ]
}

fn ports(host: i32, container: i32) -> Value {
    let mapping = json!({"hostPort": host, "containerPort": container, "protocol": "tcp"});
    json!({"runtimeConfig": {"portMappings": [mapping]}})
}

fn of_tuning_and_routing() -> Vec<Row> {
    let without = || json!({"prevResult": null});
    vec![
        row("3.4", "tuning", without(), 7, "Required prevResult missing"),
        row(
            "3.4",
            "tuning",
            json!({"sysctl": {"kernel.hostname": "x"}}),
            7,
            "invalid net sysctl key: \"kernel.hostname\"",
        ),
        row("3.4", "tuning", json!({"mac": "x"}), 7, "invalid args x for MAC addr"),
        row("3.4", "tuning", mac("x"), 7, "invalid args x for MAC addr"),
        row(
            "3.4",
            "tuning",
            json!({"sysctl": {"net.core.wmem_max": "1"}}),
            7,
            "Sysctl net.core.wmem_max is not allowed. ",
        ),
        row("3.8", "dnsname", json!({"prevResult": null}), 7, "must be called as chained plugin"),
        row("3.6", "vrf", json!({}), 7, "configuration is expected to have a valid vrf name"),
        row("3.5", "sbr", without(), 7, "This plugin must be called as chained plugin"),
        row("3.5", "sbr", json!({"prevResult": {"ips": []}}), 7, "No IP addresses supplied"),
        row(
            "3.6",
            "vrf",
            json!({"vrfname": "blue", "prevResult": null}),
            7,
            "missing prevResult from earlier plugin",
        ),
        row(
            "3.7",
            "flannel",
            json!({"delegate": {"name": "x"}}),
            7,
            "'delegate' dictionary must not have 'name' field",
        ),
        row(
            "3.7",
            "flannel",
            json!({"delegate": {"type": 5}}),
            7,
            "'delegate' dictionary, if present, must have (string) 'type' field",
        ),
        row(
            "3.7",
            "flannel",
            json!({"subnetFile": "/run/empty.env"}),
            999,
            "/run/empty.env is missing ",
        ),
    ]
}

fn rows() -> Vec<Row> {
    [
        of_all_plugins(),
        of_interface_plugins(),
        of_keys_of_interfaces(),
        of_vlans(),
        of_modes(),
        of_host_device(),
        of_ipam_plugins(),
        of_json_of_ipam(),
        of_static(),
        of_dhcp(),
        of_range_sets(),
        of_tuning_and_routing(),
        of_chained_plugins(),
        of_keys_of_chained_plugins(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn world() -> World {
    let world = World::new();
    world.write("/etc/cni/tuning/allowlist.conf", "^net\\.ipv4\\.\n");
    world.write("/run/empty.env", "");
    world.host(["ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
    world
}

fn wrong(verb: &str, netns: &str) {
    let world = world();
    let c1 = world.container("c1");
    c1.exec(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]);
    let problems: Vec<String> = rows()
        .iter()
        .filter_map(|row| {
            let Row { section, plugin, code, begins, .. } = row;
            let call = c1.call(plugin, verb, &row.config()).env("CNI_NETNS", netns);
            let call = match *plugin {
                "macvlan" | "ipvlan" | "vlan" | "dummy" | "tap" => call.env("CNI_IFNAME", "eth7"),
                _ => call,
            };
            problem(&format!("{section} {plugin} {verb}"), call, *code, begins)
        })
        .collect();
    none(&problems);
}

#[test]
fn the_error_of_a_wrong_configuration_has_the_words_of_the_reference() {
    wrong("ADD", "/run/netns/c1");
}

#[test]
fn a_wrong_configuration_is_an_error_before_the_namespace_is_opened() {
    wrong("ADD", "/run/netns/none");
}

#[test]
fn every_plugin_has_a_wrong_configuration_here() {
    let rows = rows();
    let missing: Vec<String> = plugin_names()
        .into_iter()
        .filter(|name| !rows.iter().any(|row| row.plugin == name))
        .collect();
    assert_eq!(missing, [""; 0]);
}
