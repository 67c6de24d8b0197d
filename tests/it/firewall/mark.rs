//! The bit of the mark: rules that `iptables-save` and `iptables-restore` keep, and the rules of earlier releases, which they do
//! not.

use serde_json::{Value, json};

use super::{
    OUTSIDE, address, assert_does_not_reach, assert_reaches, attach, bridge, drop_forwarded,
    firewall, forget, outside, rules,
};
use crate::world::{World, with};

const PROGRAMS: [&str; 2] = ["iptables", "ip6tables"];

/// Saves the rules of both programs, and restores them.
fn restore(world: &World) {
    for program in PROGRAMS {
        let script = format!("{program}-save >/run/saved && {program}-restore </run/saved");
        world.host(["sh", "-ec", &script]);
    }
}

fn listed(world: &World) -> [String; 2] {
    PROGRAMS.map(|program| world.host([program, "-S"]))
}

/// Regression: the map of the addresses was gone, all containers were cut off, and each round added two rules.
#[test]
fn restored_rules_accept_the_same_packets() {
    let world = World::new();
    let (outside, c1, c2) = (outside(&world), world.container("c1"), world.container("c2"));
    drop_forwarded(&world);
    let result = attach(&c1, &bridge("net", 1), json!({}));
    let other = c2.add("bridge", &bridge("net", 1));
    let config = firewall("net", json!({}), &result);
    let before = listed(&world);
    // As nft prints and restores them, then as iptables does.
    let by_nft = "nft list ruleset >/run/saved; nft flush ruleset; nft -f /run/saved";
    for round in 0..4 {
        match round {
            0 => drop(world.host(["sh", "-ec", by_nft])),
            _ => restore(&world),
        }
        assert_eq!(listed(&world), before, "round {round}");
        assert_reaches(&c1, &OUTSIDE);
        assert_does_not_reach(&c2, &OUTSIDE);
        c1.check("firewall", &config, &result);
        c1.add("firewall", &config);
        assert_eq!(listed(&world), before, "round {round}");
    }
    assert_does_not_reach(&outside, &[&address(&result, 0), &address(&result, 1)]);
    c2.add("firewall", &firewall("net", json!({}), &other));
    assert_reaches(&c2, &OUTSIDE);
    forget(&c1, "net");
    assert_does_not_reach(&c1, &OUTSIDE);
    assert_eq!(listed(&world), before);
}

#[test]
fn a_bit_that_came_from_elsewhere_opens_nothing_and_ends_behind_forward() {
    let world = World::new();
    let (_outside, c1, c2) = (outside(&world), world.container("c1"), world.container("c2"));
    drop_forwarded(&world);
    attach(&c1, &bridge("net", 1), json!({}));
    c2.add("bridge", &bridge("net", 1));
    for program in PROGRAMS {
        let set = "-t mangle -A PREROUTING -j MARK --set-mark 0xffff";
        let seen = "-t mangle -A POSTROUTING -m mark --mark 0x1000/0x1000 -j DROP";
        world.host(["sh", "-ec", &format!("{program} {set}; {program} {seen}")]);
    }
    assert_does_not_reach(&c2, &OUTSIDE);
    assert_reaches(&c1, &OUTSIDE);
}

#[test]
fn a_bit_that_another_rule_uses_is_refused_with_the_place_of_the_rule() {
    for (rule, place) in [
        (
            "iptables -t mangle -A PREROUTING -j MARK --set-xmark 0x1000/0x1000",
            "PREROUTING of table ip mangle",
        ),
        ("ip6tables -A FORWARD -m mark --mark 0x0/0x3000 -j DROP", "FORWARD of table ip6 filter"),
        (
            "nft add table inet t; nft add chain inet t c; nft add rule inet t c meta mark set meta mark or 0x1000",
            "c of table inet t",
        ),
    ] {
        let world = World::new();
        let _outside = outside(&world);
        let c1 = world.container("c1");
        // A rule for whole marks uses the bits of its value only.
        world.host(["iptables", "-t", "mangle", "-A", "FORWARD", "-m", "mark", "--mark", "1"]);
        drop_forwarded(&world);
        world.host(["sh", "-ec", rule]);
        let result = c1.add("bridge", &bridge("net", 1));
        let config = firewall("net", json!({}), &result);
        let before = rules(&world);
        let texts = ["markAcceptBit", "bit 12", place];
        c1.call("firewall", "ADD", &config).run().fails(7, &texts);
        world.call("firewall", "STATUS", &config).run().fails(50, &texts);
        assert_eq!(rules(&world), before);
        let config = firewall("net", json!({"markAcceptBit": 30}), &result);
        world.call("firewall", "STATUS", &config).run().silence();
        c1.add("firewall", &config);
        c1.check("firewall", &config, &result);
        c1.add("firewall", &config);
        assert_reaches(&c1, &OUTSIDE);
        forget(&c1, "net");
        assert_does_not_reach(&c1, &OUTSIDE[..1]);
        let wrong = firewall("net", json!({"markAcceptBit": 32}), &result);
        c1.call("firewall", "ADD", &wrong).run().fails(7, &["markAcceptBit", "32"]);
    }
}

/// What release 0.2.0 adds for an address of each family, beside the element of `firewall-addresses`. `name`: the container.
fn add_as_before(world: &World, name: &str, addresses: [String; 2]) {
    let of_family = |(family, address): (&str, String)| {
        let kind = if family == "ip" { "ipv4_addr" } else { "ipv6_addr" };
        let comment = format!("comment \"net {name} eth0\"");
        let about = |words: &str| {
            format!("comment \"cnibox: accepts {words} map cnibox of nft table {family} filter\"")
        };
        let rules = format!(
            "add rule {family} filter CNI-FORWARD ct state established,related {family} daddr vmap @cnibox {}
             add rule {family} filter CNI-FORWARD {family} saddr vmap @cnibox {}",
            about("answers to the addresses in"),
            about("the addresses in"),
        );
        let has_rules = world.host(["nft", "list", "ruleset", family]).contains("vmap @cnibox");
        format!(
            "add map {family} filter cnibox {{ type {kind} : verdict; }}
             add element {family} filter cnibox {{ {address} {comment} : accept }}
             {}",
            if has_rules { String::new() } else { rules }
        )
    };
    let [v4, v6] = addresses;
    world.write("/run/before", [("ip", v4), ("ip6", v6)].map(of_family).join("\n"));
    world.host(["nft", "-f", "/run/before"]);
}

fn addresses(result: &Value) -> [String; 2] {
    [address(result, 0), address(result, 1)]
}

/// A host with the container c1 and without the rules that accept it.
fn attach_without_rules(world: &World) -> Value {
    let c1 = world.container("c1");
    drop_forwarded(world);
    let result = attach(&c1, &bridge("net", 1), json!({}));
    for family in ["ip", "ip6"] {
        for chain in ["firewall-mark", "firewall-unmark"] {
            world.host(["nft", "delete", "chain", family, "cnibox", chain]);
        }
    }
    for program in PROGRAMS {
        world.host([program, "-D", "CNI-FORWARD", "2"]);
    }
    result
}

/// A host with the container c1, as release 0.2.0 attached it.
fn attach_as_before(world: &World) -> Value {
    let result = attach_without_rules(world);
    add_as_before(world, "c1", addresses(&result));
    result
}

#[test]
fn an_attachment_of_an_earlier_release_goes_on_and_its_rules_are_replaced() {
    let world = World::new();
    let _outside = outside(&world);
    let result = attach_as_before(&world);
    let [c1, c2, c3] =
        ["c1", "c2", "c3"].map(|name| crate::world::Container { world: &world, name: name.into() });
    let config = firewall("net", json!({}), &result);
    assert_reaches(&c1, &OUTSIDE);
    c1.check("firewall", &config, &result);

    let (c2, c3) = (world.container(&c2.name), world.container(&c3.name));
    attach(&c2, &bridge("net", 1), json!({}));
    assert!(!rules(&world).contains("vmap @cnibox"), "{}", rules(&world));
    restore(&world);
    assert_reaches(&c1, &OUTSIDE);
    assert_reaches(&c2, &OUTSIDE);
    c1.check("firewall", &config, &result);

    // An executable of the earlier release, beside this one.
    let third = c3.add("bridge", &bridge("net", 1));
    for (table, address) in ["ip", "ip6"].into_iter().zip(addresses(&third)) {
        let element = format!("{{ {address} comment \"net c3 eth0\" }}");
        world.host(["nft", &format!("add element {table} cnibox firewall-addresses {element}")]);
    }
    add_as_before(&world, "c3", addresses(&third));
    for container in [&c1, &c2, &c3] {
        assert_reaches(container, &OUTSIDE);
    }
    forget(&c2, "net");
    assert_does_not_reach(&c2, &OUTSIDE);
    assert_reaches(&c3, &OUTSIDE);
    forget(&c3, "net");
    assert_does_not_reach(&c3, &OUTSIDE);
    assert_reaches(&c1, &OUTSIDE);
    let none = with(&config, json!({"cni.dev/valid-attachments": []}));
    world.call("firewall", "GC", &none).run().silence();
    assert_does_not_reach(&c1, &OUTSIDE);
    assert!(!rules(&world).contains("\"net c"), "{}", rules(&world));
}

#[test]
fn del_gc_and_add_know_the_elements_of_an_earlier_release() {
    let has_element = |world: &World| rules(world).contains("\"net c1 eth0\"");
    for verb in ["DEL", "GC", "ADD, DEL"] {
        let world = World::new();
        let _outside = outside(&world);
        let result = attach_as_before(&world);
        let c1 = crate::world::Container { world: &world, name: "c1".into() };
        let none = json!({"cni.dev/valid-attachments": []});
        for verb in verb.split(", ") {
            assert!(has_element(&world));
            let config = with(&firewall("net", none.clone(), &result), json!({}));
            let outcome = c1.call("firewall", verb, &config).run();
            assert_eq!(outcome.status, 0, "{}", outcome.report());
            if verb == "ADD" {
                assert_reaches(&c1, &OUTSIDE);
                assert!(!rules(&world).contains("eth0\" : accept"), "{}", rules(&world));
            }
        }
        assert!(!has_element(&world), "{verb}: {}", rules(&world));
        assert_does_not_reach(&c1, &OUTSIDE);
    }
}

/// iptables restores the rules with the map without a target, and each round added two more.
#[test]
fn rules_of_an_earlier_release_that_were_restored_are_removed() {
    let world = World::new();
    let _outside = outside(&world);
    let result = attach_without_rules(&world);
    let c1 = crate::world::Container { world: &world, name: "c1".into() };
    let config = firewall("net", json!({}), &result);
    for (program, family) in PROGRAMS.into_iter().zip(["ip", "ip6"]) {
        let map = format!("map cnibox of nft table {family} filter");
        let script = format!(
            "{program} -A CNI-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED \
                 -m comment --comment 'cnibox: accepts answers to the addresses in {map}'
             {program} -A CNI-FORWARD -m comment --comment 'cnibox: accepts the addresses in {map}'"
        );
        (0..3).for_each(|_| drop(world.host(["sh", "-ec", &script])));
    }
    assert_does_not_reach(&c1, &OUTSIDE);
    let texts = ["accepts marked packets"];
    c1.checking("firewall", &config, &result).run().fails(999, &texts);
    attach(&world.container("c2"), &bridge("net", 1), json!({}));
    assert_reaches(&c1, &OUTSIDE);
    c1.check("firewall", &config, &result);
    for listed in listed(&world) {
        assert_eq!(listed.matches("-A CNI-FORWARD").count(), 2, "{listed}");
    }
}
