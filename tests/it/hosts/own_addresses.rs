//! An administrator's link with addresses in the subnet of the containers, and ranges that include the edges of the subnet.

use serde_json::{Value, json};

use crate::world::{PLUGIN_DIR, World, with};

/// The last number of each address that containers have, IPv4 and then IPv6.
fn last_numbers(result: &Value) -> Vec<String> {
    let last = |ip: &Value| {
        let address = ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        address.rsplit(['.', ':']).next().unwrap().to_owned()
    };
    result["ips"].as_array().unwrap().iter().map(last).collect()
}

/// A host whose link `lan0` has the addresses 2 of both subnets, and the network of a plugin on this link.
fn host(plugin: &str) -> (World, Value) {
    let world = World::new();
    match plugin {
        "bridge" => world.host(["ip", "link", "add", "lan0", "up", "type", "bridge"]),
        _ => {
            world.host(["ip", "link", "add", "lan0", "up", "type", "veth", "peer", "name", "wire0"])
        }
    };
    // An address of another link is that of a host in another network.
    world.host(["ip", "address", "add", "10.1.0.3/32", "dev", "lo"]);
    world.host(["ip", "address", "add", "fd00:1::3/128", "dev", "lo"]);
    world.host(["ip", "address", "add", "10.1.0.2/29", "dev", "lan0"]);
    world.host(["ip", "address", "add", "fd00:1::2/125", "dev", "lan0", "nodad"]);
    let network = json!({"cniVersion": "1.0.0", "name": "net", "type": plugin, "bridge": "lan0", "master": "lan0",
    "ipam": {"type": "host-local", "ranges": [
        [{"subnet": "10.1.0.0/29", "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.7", "gateway": "10.1.0.1"}],
        [{"subnet": "fd00:1::/125", "rangeStart": "fd00:1::", "gateway": "fd00:1::1"}],
    ]}});
    (world, network)
}

#[test]
fn an_address_of_the_host_or_an_edge_of_the_subnet_is_not_chosen() {
    for plugin in ["bridge", "macvlan"] {
        let (world, network) = host(plugin);
        for number in 3..=6 {
            let container = world.container(&format!("c{number}"));
            let number = number.to_string();
            let result = container.add(plugin, &network);
            assert_eq!(last_numbers(&result), [&*number, &*number], "{plugin}");
        }
        let one_more = world.container("more");
        let range = "no IP addresses available in range set: 10.1.0.0-10.1.0.7";
        one_more.call(plugin, "ADD", &network).run().fails(999, &[range]);
        world
            .call(plugin, "STATUS", &with(&network, json!({"cniVersion": "1.1.0"})))
            .run()
            .fails(50, &[range]);
    }
}

#[test]
fn the_runtime_attaches_with_other_addresses_than_the_hosts() {
    let (world, network) = host("bridge");
    let mut list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [network]});
    list["plugins"][0].as_object_mut().unwrap().remove("name");
    world.write("/run/net.d/net.conflist", list.to_string());
    let c1 = world.container("c1");
    let add = world
        .tool(&["/run/bin/cnibox", "add", "net", "c1"], None)
        .env("NETCONFPATH", "/run/net.d")
        .env("CNI_PATH", PLUGIN_DIR);
    assert_eq!(last_numbers(&add.run().success()), ["3", "3"]);
    let has = c1.addresses("eth0");
    assert!(
        has.contains(&"10.1.0.3/29".into()) && has.contains(&"fd00:1::3/125".into()),
        "{has:?}"
    );
}

#[test]
fn a_requested_address_that_no_container_can_use_is_a_warning() {
    let (world, network) = host("macvlan");
    let cases = [
        (["10.1.0.0", "fd00:1::"], ["network address", "anycast address"]),
        (["10.1.0.7", "fd00:1::2"], ["broadcast address", "address of this host"]),
        (["10.1.0.2", "fd00:1::3"], ["address of this host", ""]),
    ];
    for (number, (requested, reasons)) in cases.into_iter().enumerate() {
        let bits = [29, 125];
        let nets = [0, 1].map(|family| format!("{}/{}", requested[family], bits[family]));
        let of_static =
            json!({"type": "static", "addresses": [{"address": nets[0]}, {"address": nets[1]}]});
        let mut by_static = network.clone();
        by_static["ipam"] = of_static;
        by_static["name"] = "static".into();
        let by_host_local = with(&network, json!({"runtimeConfig": {"ips": requested}}));
        for (plugin, config) in [("host-local", &by_host_local), ("static", &by_static)] {
            let container = world.container(&format!("{plugin}{number}"));
            let add = container.call(plugin, "ADD", config).run();
            for (net, reason) in nets.iter().zip(reasons) {
                let warning = format!("{net} is requested, although it is");
                let warned =
                    add.stderr.lines().any(|line| line.contains(&warning) && line.contains(reason));
                assert_eq!(warned, !reason.is_empty(), "{plugin}: {net}: {}", add.report());
            }
            assert_eq!(add.success()["ips"][0]["address"], nets[0]);
        }
    }
}

#[test]
fn a_routed_container_can_have_every_address_of_its_subnet() {
    let (world, network) = host("ptp");
    for (number, last) in ["0", "2", "3", "4", "5", "6", "7"].iter().enumerate() {
        let container = world.container(&format!("c{number}"));
        let add = container.call("host-local", "ADD", &network).run();
        assert!(add.stderr.is_empty(), "{}", add.report());
        let six = if *last == "0" { "" } else { last };
        assert_eq!(last_numbers(&add.success()), [last, six]);
    }
}
