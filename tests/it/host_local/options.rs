//! Keys that the reference lacks: addresses that are never given out, containers that get their old address again, reservations
//! that a reboot left behind.

use serde_json::{Value, json};

use super::{Net, addresses};
use crate::world::{Container, World, with};

#[test]
fn excluded_addresses_are_never_reserved() {
    let net = Net::new(json!({
        "exclude": ["10.1.0.2", "10.1.0.4/30", "fd00::/120"],
        "ranges": [
            [{"subnet": "10.1.0.0/28", "exclude": ["10.1.0.10", "10.1.0.11/32"]}],
            [{"subnet": "fd00::/64"}],
        ],
    }));
    let given: Vec<String> = ["3", "8", "9", "12", "13", "14"]
        .iter()
        .flat_map(|id| net.add(id).into_iter().take(1))
        .collect();
    assert_eq!(
        given,
        [
            "10.1.0.3/28",
            "10.1.0.8/28",
            "10.1.0.9/28",
            "10.1.0.12/28",
            "10.1.0.13/28",
            "10.1.0.14/28"
        ]
    );
    assert!(net.has("fd00::100") && net.has("fd00::105"));
    let text = "no IP addresses available in range set: 10.1.0.1-10.1.0.14";
    assert!(net.run("ADD", "more").fails(999, &[]).msg.contains(text));
    assert!(net.run("STATUS", "x").fails(50, &[]).msg.contains(text));
    net.del("9");
    net.run("STATUS", "x").silence();
}

#[test]
fn most_of_a_network_can_be_excluded() {
    let net = Net::new(json!({"subnet": "fd00::/64", "exclude": ["fd00::/65"]}));
    assert_eq!(net.add("abc"), ["fd00::8000:0:0:0/64"]);
    let net = Net::new(json!({"subnet": "10.1.0.0/16", "exclude": ["10.1.0.0/16"]}));
    net.run("ADD", "abc").fails(999, &["no IP addresses available"]);
    net.run("STATUS", "abc").fails(50, &["no IP addresses available"]);
}

#[test]
fn a_request_for_an_excluded_address_is_an_error() {
    for ipam in [
        json!({"subnet": "10.1.0.0/24", "exclude": ["10.1.0.8/29"]}),
        json!({"ranges": [[{"subnet": "10.1.0.0/24", "exclude": ["10.1.0.8/29"]}]]}),
    ] {
        let net = Net::new(ipam);
        let error = net.call("ADD", "abc").env("CNI_ARGS", "IP=10.1.0.9").run().fails(999, &[]);
        assert!(error.msg.contains("10.1.0.9 is excluded by 10.1.0.8/29"), "{error:?}");
        assert_eq!(net.taken(), [""; 0]);
    }
}

#[test]
fn an_excluded_address_that_is_held_is_given_back_all_the_same() {
    let net = Net::new(json!({"subnet": "10.1.0.0/24"}));
    net.add("abc");
    let config = net.with(json!({"ipam": {"exclude": ["10.1.0.2"]}}));
    net.bare.call("host-local", "CHECK", &config).run().silence();
    net.bare.call("host-local", "DEL", &config).run().silence();
    assert_eq!(net.taken(), [""; 0]);
}

#[test]
fn wrong_exclusions_are_refused() {
    let of_all = |text: &str| json!({"subnet": "10.1.0.0/24", "exclude": [text]});
    let of_one = |text: &str| json!({"ranges": [[{"subnet": "10.1.0.0/24", "exclude": [text]}]]});
    let cases = [
        (of_all("x"), "exclude: invalid IP address: x"),
        (of_all("10.1.0.0/33"), "exclude: invalid CIDR address: 10.1.0.0/33"),
        (of_all("10.1.0.5/24"), "10.1.0.5/24 has host bits set: write 10.1.0.5 or 10.1.0.0/24"),
        (of_one(""), "invalid range set 0: exclude: invalid IP address: "),
        (of_one("10.1.1.1"), "invalid range set 0: exclude 10.1.1.1/32 not in network 10.1.0.0/24"),
        (of_one("10.0.0.0/8"), "exclude 10.0.0.0/8 not in network 10.1.0.0/24"),
        (of_one("fd00::1"), "exclude fd00::1/128 not in network 10.1.0.0/24"),
    ];
    for (ipam, text) in cases {
        for verb in ["ADD", "STATUS"] {
            Net::new(ipam.clone()).run(verb, "abc").fails(7, &[text]);
        }
    }
    // An exclusion may lie outside of every range.
    assert_eq!(Net::new(of_all("192.168.0.0/16")).add("abc"), ["10.1.0.2/24"]);
}

const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0";

fn sticky() -> Net {
    Net::new(json!({
        "sticky": true, "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
    }))
}

fn add_of_pod(net: &Net, id: &str) -> Vec<String> {
    addresses(&net.call("ADD", id).env("CNI_ARGS", POD).run().success())
}

#[test]
fn a_sticky_pod_gets_its_addresses_again() {
    let net = sticky();
    let first = add_of_pod(&net, "one");
    net.add("other");
    net.del("one");
    // Another container of the same pod, and not the next address.
    assert_eq!(add_of_pod(&net, "two"), first);
    assert_eq!(net.read("last_reserved_ip.0"), "10.1.0.3", "the round goes on where it was");
    assert_eq!(net.add("new"), ["10.1.0.4/24", "fd00::4/64"]);
}

#[test]
fn without_a_pod_the_container_is_known_again() {
    let net = sticky();
    assert_eq!(net.add("abc"), ["10.1.0.2/24", "fd00::2/64"]);
    net.del("abc");
    assert_eq!(net.add("abd"), ["10.1.0.3/24", "fd00::3/64"]);
    assert_eq!(net.add("abc"), ["10.1.0.2/24", "fd00::2/64"]);
    let other = net.call("ADD", "abc").env("CNI_IFNAME", "eth1").run().success();
    assert_eq!(addresses(&other), ["10.1.0.4/24", "fd00::4/64"], "another interface");
}

#[test]
fn a_sticky_address_that_is_taken_is_not_waited_for() {
    let net = sticky();
    add_of_pod(&net, "one");
    net.del("one");
    net.write("10.1.0.2", "other\r\neth0");
    assert_eq!(add_of_pod(&net, "two"), ["10.1.0.3/24", "fd00::2/64"]);
    net.del("two");
    std::fs::remove_file(net.bare.network("net").join("10.1.0.2")).unwrap();
    assert_eq!(add_of_pod(&net, "three")[0], "10.1.0.3/24", "the last one counts");
}

#[test]
fn a_sticky_address_yields_to_a_requested_one_and_to_the_ranges() {
    let net = sticky();
    add_of_pod(&net, "one");
    net.del("one");
    let asked = net.call("ADD", "two").env("CNI_ARGS", &format!("{POD};IP=10.1.0.77"));
    assert_eq!(addresses(&asked.run().success()), ["10.1.0.77/24", "fd00::2/64"]);
    net.del("two");
    assert_eq!(add_of_pod(&net, "three"), ["10.1.0.77/24", "fd00::2/64"]);
    net.del("three");
    let config = net.with(json!({"ipam": {"exclude": ["10.1.0.77", "fd00::2"]}}));
    let call = net.bare.call("host-local", "ADD", &config).env("CNI_ARGS", POD);
    assert_eq!(addresses(&call.run().success()), ["10.1.0.78/24", "fd00::3/64"]);
}

#[test]
fn without_sticky_the_next_address_is_reserved() {
    let net = Net::new(json!({"subnet": "10.1.0.0/24", "sticky": false}));
    add_of_pod(&net, "one");
    net.del("one");
    assert_eq!(add_of_pod(&net, "two"), ["10.1.0.3/24"]);
}

#[test]
fn without_its_memory_a_sticky_pod_gets_another_address() {
    let net = sticky();
    add_of_pod(&net, "one");
    net.del("one");
    std::fs::remove_dir_all(net.bare.network(".cnibox")).unwrap();
    assert_eq!(add_of_pod(&net, "two"), ["10.1.0.3/24", "fd00::3/64"]);
}

/// A host with a network of two addresses, which can boot.
struct Host {
    world: World,
    config: Value,
}

impl Host {
    fn new(ipam: Value) -> Self {
        let ranges = json!({"type": "host-local", "subnet": "10.1.0.0/29", "rangeEnd": "10.1.0.3"});
        let config = json!({"cniVersion": "1.1.0", "name": "net", "ipam": with(&ranges, ipam)});
        let host = Self { world: World::new(), config };
        host.world.boot(1);
        host
    }

    fn container(&self, name: &str) -> Container<'_> {
        self.world.container(name)
    }

    fn add(&self, container: &Container<'_>) -> Vec<String> {
        addresses(&container.add("host-local", &self.config))
    }

    fn taken(&self) -> Vec<String> {
        let dir = self.world.path("/var/lib/cni/networks/net");
        let names = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.starts_with("10."));
        names.sort();
        names
    }
}

#[test]
fn reservations_from_before_a_reboot_are_reclaimed_when_no_address_is_free() {
    for ipam in [json!({}), json!({"staleOnBoot": "reclaim"}), json!({"staleOnBoot": ""})] {
        let host = Host::new(ipam);
        let [c1, c2, c3, c4] = ["c1", "c2", "c3", "c4"].map(|name| host.container(name));
        host.add(&c1);
        host.world.boot(2);
        assert_eq!(host.add(&c2), ["10.1.0.3/29"], "while there are others");
        assert_eq!(host.taken(), ["10.1.0.2", "10.1.0.3"]);
        let status = || host.world.call("host-local", "STATUS", &host.config).run();
        status().silence();
        assert_eq!(host.add(&c3), ["10.1.0.2/29"]);
        status().fails(50, &["no IP addresses available"]);
        c4.call("host-local", "ADD", &host.config).run().fails(999, &["no IP addresses available"]);
        assert_eq!(host.world.read("/var/lib/cni/networks/net/10.1.0.2"), "c3\r\neth0");
    }
}

#[test]
fn reservations_from_before_a_reboot_can_be_kept() {
    let host = Host::new(json!({"staleOnBoot": "keep"}));
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| host.container(name));
    host.add(&c1);
    host.world.boot(2);
    // A reservation of another host: the record is there.
    host.world.host(["rm", "/var/lib/cni/attachments/net+c1+eth0"]);
    host.add(&c2);
    c3.call("host-local", "ADD", &host.config).run().fails(999, &["no IP addresses available"]);
    host.world.call("host-local", "STATUS", &host.config).run().fails(50, &[]);
    c1.call("host-local", "ADD", &host.config).run().fails(999, &["duplicate allocation"]);
    assert_eq!(host.taken(), ["10.1.0.2", "10.1.0.3"]);
}

#[test]
fn a_reboot_is_in_nobodys_way() {
    let host = Host::new(json!({}));
    let [c1, c2] = ["c1", "c2"].map(|name| host.container(name));
    host.add(&c1);
    host.world.boot(2);
    // Started again without a DEL, as after a power failure; and another that wants the very address.
    assert_eq!(host.add(&c1), ["10.1.0.3/29"]);
    c1.call("host-local", "ADD", &host.config).run().fails(999, &["duplicate allocation"]);
    host.world.boot(3);
    let asked = c2.call("host-local", "ADD", &host.config).env("CNI_ARGS", "IP=10.1.0.3").run();
    assert_eq!(addresses(&asked.success()), ["10.1.0.3/29"]);
    assert_eq!(host.world.read("/var/lib/cni/networks/net/10.1.0.3"), "c2\r\neth0");
}

#[test]
fn reservations_that_the_reference_made_after_a_reboot_are_kept() {
    let host = Host::new(json!({}));
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| host.container(name));
    host.add(&c1);
    host.world.boot(2);
    host.world.write("/var/lib/cni/networks/net/10.1.0.3", "theirs\r\neth0");
    host.add(&c2);
    assert_eq!(host.world.read("/var/lib/cni/networks/net/10.1.0.2"), "c2\r\neth0");
    c3.call("host-local", "ADD", &host.config).run().fails(999, &["no IP addresses available"]);
    assert_eq!(host.world.read("/var/lib/cni/networks/net/10.1.0.3"), "theirs\r\neth0");
}

#[test]
fn another_word_for_stale_on_boot_is_refused() {
    for word in ["Keep", "release", "true"] {
        let net = Net::new(json!({"subnet": "10.1.0.0/24", "staleOnBoot": word}));
        for verb in ["ADD", "STATUS"] {
            net.run(verb, "abc").fails(7, &["staleOnBoot", word]);
        }
        net.del("abc");
    }
}
