//! Which address is given: ranges, sets of ranges, their order, and what is wrong with some.

use serde_json::{Value, json};

use super::{Net, addresses};
use crate::world::{Outcome, all_at_once};

#[test]
fn addresses_are_given_in_turn() {
    let net = Net::new(json!({"subnet": "10.0.0.0/29"}));
    for (id, address) in [("a", "2"), ("b", "3"), ("c", "4"), ("d", "5"), ("e", "6")] {
        assert_eq!(net.add(id), [format!("10.0.0.{address}/29")]);
    }
    let error = net.run("ADD", "f").fails(999, &[]);
    let text = "no IP addresses available in range set: 10.0.0.1-10.0.0.6";
    assert!(error.msg.contains(text), "{error:?}");
    assert_eq!(net.taken().len(), 5);

    net.del("b");
    assert_eq!(net.add("f"), ["10.0.0.3/29"]);
    assert_eq!(net.read("last_reserved_ip.0"), "10.0.0.3");
    net.del("a");
    net.del("c");
    assert_eq!(net.add("g"), ["10.0.0.4/29"]);
    assert_eq!(net.add("h"), ["10.0.0.2/29"]);
}

#[test]
fn an_address_that_was_given_back_is_given_again_last() {
    let net = Net::new(json!({"subnet": "10.0.0.0/29"}));
    let mut given = Vec::new();
    for _ in 0..6 {
        given.extend(net.add("a"));
        net.del("a");
    }
    let last_part = |address: &String| address.as_bytes()["10.0.0.".len()] - b'0';
    assert_eq!(given.iter().map(last_part).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 2]);
}

#[test]
fn the_ranges_of_a_set_are_one_pool() {
    let first = json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.2", "rangeEnd": "10.0.0.4"});
    let second = json!({"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.1", "rangeEnd": "10.0.1.3",
        "gateway": "10.0.1.1"});
    let net = Net::new(json!({"ranges": [[first, second]]}));
    let given: Vec<String> = ["a", "b", "c", "d", "e"].iter().flat_map(|id| net.add(id)).collect();
    assert_eq!(given, ["10.0.0.2/24", "10.0.0.3/24", "10.0.0.4/24", "10.0.1.2/24", "10.0.1.3/24"]);
    let text = "no IP addresses available in range set: 10.0.0.2-10.0.0.4,10.0.1.1-10.0.1.3";
    assert!(net.run("ADD", "f").fails(999, &[]).msg.contains(text));
}

#[test]
fn one_address_is_given_per_set_in_the_order_runtime_old_syntax_ranges() {
    let net = Net::new(json!({"subnet": "10.2.0.0/24", "ranges": [[{"subnet": "10.3.0.0/24"}],
        [{"subnet": "fd00::/64"}]]}));
    let config = net.with(json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.1.0.0/24"}]]}}));
    let result = net.bare.call("host-local", "ADD", &config).run().success();
    assert_eq!(addresses(&result), ["10.1.0.2/24", "10.2.0.2/24", "10.3.0.2/24", "fd00::2/64"]);
    let last = [0, 1, 2, 3].map(|index| net.read(&format!("last_reserved_ip.{index}")));
    assert_eq!(last, ["10.1.0.2", "10.2.0.2", "10.3.0.2", "fd00::2"]);
}

#[test]
fn bounds_gateways_and_prefixes_are_respected() {
    // Range, first address given, gateway of the result.
    let cases = [
        (json!({"subnet": "10.1.0.0/24"}), "10.1.0.2/24", "10.1.0.1"),
        (json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.254"}), "10.1.0.1/24", "10.1.0.254"),
        (
            json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.2", "rangeStart": "10.1.0.2"}),
            "10.1.0.3/24",
            "10.1.0.2",
        ),
        (json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.0"}), "10.1.0.2/24", "10.1.0.1"),
        (
            json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.254", "rangeEnd": "10.1.0.255"}),
            "10.1.0.254/24",
            "10.1.0.1",
        ),
        (json!({"subnet": "10.1.0.0/24", "gateway": "192.168.7.7"}), "10.1.0.1/24", "192.168.7.7"),
        (json!({"subnet": "10.1.0.0/30"}), "10.1.0.2/30", "10.1.0.1"),
        (json!({"subnet": "10.0.0.0/8", "rangeStart": "10.200.0.9"}), "10.200.0.9/8", "10.0.0.1"),
        (json!({"subnet": "fd00:1:2::/48"}), "fd00:1:2::2/48", "fd00:1:2::1"),
        (json!({"subnet": "fd00::/126", "gateway": "fd00::1"}), "fd00::2/126", "fd00::1"),
        (
            json!({"subnet": "FD00:0:0:0::/64", "rangeStart": "fd00::00ff"}),
            "fd00::ff/64",
            "fd00::1",
        ),
    ];
    for (range, address, gateway) in cases {
        for ipam in [range.clone(), json!({"ranges": [[range]]})] {
            let net = Net::new(ipam.clone());
            let ips = &net.run("ADD", "abc").success()["ips"];
            assert_eq!(*ips, json!([{"address": address, "gateway": gateway}]), "{ipam}");
        }
    }
}

#[test]
fn the_last_address_of_a_range_is_its_end() {
    let cases = [
        (json!({"subnet": "10.1.0.0/30"}), "10.1.0.1-10.1.0.2"),
        (json!({"subnet": "fd00::/126"}), "fd00::1-fd00::3"),
        (
            json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.7", "rangeEnd": "10.1.0.7"}),
            "10.1.0.7-10.1.0.7",
        ),
    ];
    for (range, pool) in cases {
        let net = Net::new(range);
        while net.run("ADD", &format!("c{}", net.taken().len())).status == 0 {
            assert!(net.taken().len() < 4, "{pool} has no end");
        }
        net.run("ADD", "z").fails(999, &[&format!("range set: {pool}")]);
    }
}

#[test]
fn the_old_keys_mean_nothing_without_a_subnet() {
    let net =
        Net::new(json!({"rangeStart": "10.9.0.9", "rangeEnd": "10.9.0.10", "gateway": "10.9.0.1",
        "ranges": [[{"subnet": "10.1.0.0/24"}]]}));
    assert_eq!(net.add("abc"), ["10.1.0.2/24"]);
}

#[test]
fn invalid_ranges_are_refused() {
    let set = |range: Value| json!({"ranges": [[range]]});
    let two_sets = |a: &str, b: &str| json!({"ranges": [[{"subnet": a}], [{"subnet": b}]]});
    let one_set = |a: &str, b: &str| json!({"ranges": [[{"subnet": a}, {"subnet": b}]]});
    let cases = [
        (json!({}), "no IP ranges specified"),
        (json!({"ranges": []}), "no IP ranges specified"),
        (json!({"ranges": [[]]}), "empty range set"),
        (set(json!({})), "subnet"),
        (json!({"subnet": "10.1.0.0/31"}), "10.1.0.0/31 too small to allocate from"),
        (json!({"subnet": "10.1.0.1/32"}), "10.1.0.1/32 too small to allocate from"),
        (json!({"subnet": "fd00::/127"}), "fd00::/127 too small to allocate from"),
        (json!({"subnet": "fd00::1/128"}), "fd00::1/128 too small to allocate from"),
        (json!({"subnet": "10.1.0.7/24"}), "10.1.0.0"),
        (json!({"subnet": "fd00::7/64"}), "fd00::"),
        (json!({"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}), "10.2.0.1"),
        (json!({"subnet": "10.1.0.0/24", "rangeEnd": "10.2.0.1"}), "10.2.0.1"),
        (json!({"subnet": "10.1.0.0/24", "rangeStart": "fd00::1"}), "fd00::1"),
        (
            json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8"}),
            "10.1.0.9",
        ),
        (one_set("10.1.0.0/24", "fd00::/64"), "mixed address families"),
        (one_set("10.1.0.0/24", "10.1.0.0/25"), "overlap"),
        (two_sets("10.1.0.0/24", "10.1.0.128/25"), "overlap"),
        (two_sets("fd00::/64", "fd00::/48"), "overlap"),
    ];
    for (ipam, text) in cases {
        let net = Net::new(ipam.clone());
        for verb in ["ADD", "STATUS"] {
            net.run(verb, "abc").fails(7, &[text]);
        }
        assert!(!net.bare.network("").exists(), "{ipam}: a refused call does nothing");
    }
}

#[test]
fn host_local_needs_its_section() {
    let net = Net::new(json!({}));
    for ipam in [json!(null), json!({"cniVersion": "1.0.0"})] {
        let mut config = net.config.clone();
        if ipam.is_null() {
            config["ipam"] = ipam;
        } else {
            config.as_object_mut().unwrap().remove("ipam");
        }
        let error = net.bare.call("host-local", "ADD", &config).run().fails(7, &[]);
        assert!(error.msg.contains("IPAM config missing 'ipam' key"), "{error:?}");
    }
}

#[test]
fn early_versions_have_one_address_per_family() {
    let two = json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]});
    let six = json!({"ranges": [[{"subnet": "fd00::/64"}], [{"subnet": "fd01::/64"}]]});
    for ipam in [two, six] {
        for version in ["0.1.0", "0.2.0"] {
            let net = Net::of_version(version, ipam.clone());
            let text =
                format!("CNI version {version} does not support more than 1 address per family");
            net.run("ADD", "abc").fails(7, &[&text]);
        }
        assert_eq!(Net::of_version("0.3.0", ipam).add("abc").len(), 2);
    }
}

#[test]
fn when_a_later_set_is_exhausted_the_earlier_ones_are_given_back() {
    let net =
        Net::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/30"}]]}));
    net.add("first");
    let error = net.run("ADD", "second").fails(999, &["10.2.0.1-10.2.0.2"]);
    assert!(error.msg.contains("no IP addresses available in range set: "), "{error:?}");
    assert_eq!(net.taken(), ["10.1.0.2", "10.2.0.2"]);
}

#[test]
fn many_adds_at_once_give_different_addresses() {
    let net = Net::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}));
    let ids: Vec<String> = (0..64).map(|number| format!("c{number}")).collect();
    let adds = all_at_once(ids.iter().map(|id| net.call("ADD", id)));
    let mut given: Vec<String> =
        adds.into_iter().flat_map(|add| addresses(&add.success())).collect();
    given.sort();
    given.dedup();
    assert_eq!((given.len(), net.taken().len()), (128, 128));
    let dels = all_at_once(ids.iter().map(|id| net.call("DEL", id)));
    dels.into_iter().for_each(Outcome::silence);
    assert_eq!(net.taken(), [""; 0]);
}
