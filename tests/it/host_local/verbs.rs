//! DEL, CHECK, GC and STATUS.

use serde_json::{Value, json};

use super::Net;
use crate::world::{World, with, without};

fn net() -> Net {
    Net::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}))
}

#[test]
fn the_default_directory_is_the_references() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "host-local",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
    });
    c1.add("host-local", &config);
    assert_eq!(world.read("/var/lib/cni/networks/net/10.1.0.2"), "c1\r\neth0");
    c1.del("host-local", &config);
    assert!(!world.path("/var/lib/cni/networks/net/10.1.0.2").exists());
}

#[test]
fn del_gives_back_everything_and_can_be_repeated() {
    let net = net();
    net.add("abc");
    net.add("other");
    net.del("abc");
    assert_eq!(net.taken(), ["10.1.0.3", "fd00::3"]);
    net.del("abc");
    net.del("never-added");
    assert_eq!(net.taken(), ["10.1.0.3", "fd00::3"]);
}

#[test]
fn del_needs_no_namespace_and_no_valid_ranges() {
    let net = net();
    let broken = [
        json!({"ranges": null}),
        json!({"ranges": [[]]}),
        json!({"ranges": [[{"subnet": "10.1.0.5/24"}]]}),
        json!({"ranges": [[{"subnet": "10.1.0.0/31"}]]}),
        json!({"ranges": [[{"subnet": "192.168.0.0/24"}]]}),
        json!({"resolvConf": "/none"}),
    ];
    for ipam in broken {
        net.add("abc");
        let config = net.with(json!({"ipam": ipam}));
        let del = net.bare.call("host-local", "DEL", &config).without("CNI_NETNS");
        del.run().silence();
        assert_eq!(net.taken(), [""; 0], "{ipam}");
    }
}

#[test]
fn check_finds_the_reservation_or_names_its_owner() {
    let net = net();
    net.run("CHECK", "abc").fails(999, &["abc"]);
    net.add("abc");
    net.run("CHECK", "abc").silence();
    net.run("CHECK", "abcd").fails(999, &["abcd"]);
    net.call("CHECK", "abc").env("CNI_IFNAME", "eth1").run().fails(999, &["abc"]);
    net.del("abc");
    net.run("CHECK", "abc").fails(999, &["abc"]);
}

fn valid(pairs: &[(&str, &str)]) -> Value {
    let object = |&(id, ifname): &(&str, &str)| json!({"containerID": id, "ifname": ifname});
    pairs.iter().map(object).collect()
}

#[test]
fn gc_releases_all_that_is_not_valid_and_nothing_else() {
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        let net = net();
        for id in ["a", "b", "c"] {
            net.add(id);
        }
        net.call("ADD", "a").env("CNI_IFNAME", "eth1").run().success();
        net.write("10.1.0.100", "a");
        net.write("10.1.0.101", "gone");
        net.write("10.1.0.102", "");
        net.write("notes", "gone");
        let config = net.with(json!({key: valid(&[("a", "eth0"), ("c", "eth0"), ("x", "eth9")])}));
        net.bare.call("host-local", "GC", &config).run().silence();
        let rest = ["10.1.0.100", "10.1.0.2", "10.1.0.4", "fd00::2", "fd00::4"];
        let taken: Vec<_> = net.taken().into_iter().filter(|ip| ip != "10.1.0.102").collect();
        assert_eq!(taken, rest, "{key}");
        assert!(net.has("notes") && net.has("lock") && net.has("last_reserved_ip.0"));
    }
}

#[test]
fn gc_with_nothing_valid_releases_everything() {
    for nothing in [json!([]), json!(null)] {
        let net = net();
        net.add("a");
        let config = net.with(json!({"cni.dev/valid-attachments": nothing}));
        net.bare.call("host-local", "GC", &config).run().silence();
        assert_eq!(net.taken(), [""; 0]);
    }
}

#[test]
fn gc_needs_neither_ids_nor_valid_ranges() {
    let net = net();
    net.add("a");
    let config = net.with(json!({"cni.dev/valid-attachments": [], "ipam": {"ranges": [[]]}}));
    let call = net.bare.call("host-local", "GC", &config);
    let ids = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
    ids.iter().fold(call, |call, name| call.without(name)).run().silence();
    assert_eq!(net.taken(), [""; 0]);
}

#[test]
fn a_list_of_the_wrong_type_is_refused_with_its_key() {
    let net = net();
    net.add("a");
    for list in [json!({}), json!("a"), json!(["a"]), json!([{"containerID": 5, "ifname": "eth0"}])]
    {
        let config = net.with(json!({"cni.dev/valid-attachments": list}));
        net.bare.call("host-local", "GC", &config).run().fails(6, &[]);
    }
    assert_eq!(net.taken(), ["10.1.0.2", "fd00::2"]);
}

#[test]
fn status_says_whether_an_add_would_find_an_address() {
    let net =
        Net::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/30"}]]}));
    net.run("STATUS", "x").silence();
    assert!(!net.bare.network("net").exists(), "STATUS makes nothing");
    net.add("a");
    net.run("STATUS", "x").fails(50, &["10.2.0.1-10.2.0.2"]);
    net.del("a");
    net.run("STATUS", "x").silence();
}

#[test]
fn a_torn_reservation_counts_as_free_for_status() {
    let net = Net::new(json!({"subnet": "10.2.0.0/30"}));
    net.write("10.2.0.2", "");
    net.run("STATUS", "x").silence();
}

#[test]
fn verbs_work_without_a_type_at_the_top() {
    let net = net();
    let config = without(&net.config, "type");
    let config = with(&config, json!({"prevResult": {"cniVersion": "1.0.0"}}));
    for verb in ["ADD", "CHECK", "STATUS", "DEL"] {
        let outcome = net.bare.call("host-local", verb, &config).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
}

#[test]
fn a_network_with_a_name_too_long_for_a_directory_has_no_reservations() {
    let long = with(&net().config, json!({"name": "n".repeat(256)}));
    let net = Net { config: with(&long, json!({"cni.dev/valid-attachments": []})), ..net() };
    net.run("ADD", "x").fails(5, &["File name too long"]);
    net.run("STATUS", "x").fails(50, &["File name too long"]);
    net.del("x");
    net.run("GC", "x").silence();
}
