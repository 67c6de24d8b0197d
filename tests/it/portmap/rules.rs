//! The rules as `nft` reads them: those that the documentation of the functions promises, and no more for more ports.

use serde_json::{Value, json};

use super::{portmap, publish, tcp, udp};
use crate::world::{World, with, without_tags};

/// Without handles, so that it can be compared; blank lines say nothing.
fn ruleset(world: &World, family: &str) -> String {
    let text = world.host(["nft", "list", "table", family, "cnibox"]);
    let text = without_tags(&text);
    text.lines().filter(|line| !line.trim().is_empty()).map(|line| line.to_owned() + "\n").collect()
}

fn mappings() -> Value {
    json!([tcp(8080, 80), with(&udp(53, 5353), json!({"hostIP": "192.0.2.1"}))])
}

const IPV4: &str = r#"table ip cnibox {
	map portmap-published {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 8080 comment "net c1 eth0" : 10.1.0.3 . 80 }
	}
	map portmap-published-on {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 192.0.2.1 . udp . 53 comment "net c1 eth0" : 10.1.0.3 . 5353 }
	}
	set portmap-published-on-ports {
		type inet_proto . inet_service
		elements = { udp . 53 comment "net c1 eth0" }
	}
	set portmap-masqueraded-8 {
		type ipv4_addr . ipv4_addr
		elements = { 127.0.0.0 . 10.1.0.3 comment "net c1 eth0" }
	}
	set portmap-masqueraded-16 {
		type ipv4_addr . ipv4_addr
		elements = { 10.1.0.0 . 10.1.0.3 comment "net c1 eth0" }
	}
	set portmap-sources-8 {
		type ipv4_addr
		elements = { 127.0.0.0 comment "net c1 eth0" }
	}
	set portmap-sources-16 {
		type ipv4_addr
		elements = { 10.1.0.0 comment "net c1 eth0" }
	}
	set portmap-localnet {
		type ifname
	}
	set portmap-unmasqueraded {
		type inet_proto . inet_service
	}
	chain portmap-published {
		ip saddr 127.0.0.0/8 meta l4proto . th dport @portmap-unmasqueraded return
		dnat ip to ip daddr . meta l4proto . th dport map @portmap-published-on
		dnat ip to meta l4proto . th dport map @portmap-published
	}
	chain portmap-mark {
		ip saddr & 255.0.0.0 == @portmap-sources-8 meta mark set meta mark | 0x00002000
		ip saddr & 255.255.0.0 == @portmap-sources-16 meta mark set meta mark | 0x00002000
	}
	chain portmap-unmark {
		meta mark set meta mark & 0xffffdfff
	}
	chain portmap-srcnat {
		type nat hook postrouting priority srcnat - 1; policy accept;
		meta mark & 0x00002000 == 0x00002000 ip saddr & 255.0.0.0 . ip daddr @portmap-masqueraded-8 masquerade
		meta mark & 0x00002000 == 0x00002000 ip saddr & 255.255.0.0 . ip daddr @portmap-masqueraded-16 masquerade
	}
	chain portmap-dstnat {
		type nat hook prerouting priority -80; policy accept;
		fib daddr type local jump portmap-mark
		fib daddr type local jump portmap-published
		fib daddr type local jump portmap-unmark
	}
	chain portmap-dstnat-output {
		type nat hook output priority -80; policy accept;
		fib daddr type local jump portmap-mark
		fib daddr type local jump portmap-published
		fib daddr type local jump portmap-unmark
	}
	chain portmap-localnet {
		type filter hook prerouting priority raw; policy accept;
		iifname @portmap-localnet ip daddr 127.0.0.0/8 drop
	}
}
"#;

const IPV6: &str = r#"table ip6 cnibox {
	map portmap-published {
		type inet_proto . inet_service : ipv6_addr . inet_service
		elements = { tcp . 8080 comment "net c1 eth0" : fd00:1::3 . 80 }
	}
	map portmap-published-on {
		type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service
	}
	set portmap-published-on-ports {
		type inet_proto . inet_service
	}
	set portmap-masqueraded-64 {
		type ipv6_addr . ipv6_addr
		elements = { fd00:1:: . fd00:1::3 comment "net c1 eth0" }
	}
	set portmap-sources-64 {
		type ipv6_addr
		elements = { fd00:1:: comment "net c1 eth0" }
	}
	chain portmap-published {
		dnat ip6 to ip6 daddr . meta l4proto . th dport map @portmap-published-on
		dnat ip6 to meta l4proto . th dport map @portmap-published
	}
	chain portmap-mark {
		ip6 saddr & ffff:ffff:ffff:ffff:: == @portmap-sources-64 meta mark set meta mark | 0x00002000
	}
	chain portmap-unmark {
		meta mark set meta mark & 0xffffdfff
	}
	chain portmap-srcnat {
		type nat hook postrouting priority srcnat - 1; policy accept;
		meta mark & 0x00002000 == 0x00002000 ip6 saddr & ffff:ffff:ffff:ffff:: . ip6 daddr @portmap-masqueraded-64 masquerade
	}
	chain portmap-dstnat {
		type nat hook prerouting priority -80; policy accept;
		ip6 saddr ::1 return
		ip6 saddr fe80::/10 return
		ip6 daddr ::1 return
		ip6 daddr fe80::/10 return
		fib daddr type local jump portmap-mark
		fib daddr type local jump portmap-published
		fib daddr type local jump portmap-unmark
	}
	chain portmap-dstnat-output {
		type nat hook output priority -80; policy accept;
		ip6 saddr ::1 return
		ip6 saddr fe80::/10 return
		ip6 daddr ::1 return
		ip6 daddr fe80::/10 return
		fib daddr type local jump portmap-mark
		fib daddr type local jump portmap-published
		fib daddr type local jump portmap-unmark
	}
}
"#;

#[test]
fn the_rules_are_those_that_are_documented() {
    let world = World::new();
    let c1 = world.container("c1");
    publish(&c1, 1, &portmap(mappings()));
    assert_eq!(ruleset(&world, "ip"), IPV4);
    assert_eq!(ruleset(&world, "ip6"), IPV6);
}

#[test]
fn more_ports_are_no_more_rules() {
    let world = World::new();
    let rules = |world: &World| {
        let text = ruleset(world, "ip") + &ruleset(world, "ip6");
        let is_rule = |line: &&str| {
            [" map @", "jump ", "masquerade", "drop"].iter().any(|word| line.contains(word))
        };
        let text = without_tags(&text);
        text.lines().filter(is_rule).count()
    };
    publish(&world.container("c0"), 0, &portmap(json!([tcp(8000, 80)])));
    let before = rules(&world);
    for number in 1..8 {
        let container = world.container(&format!("c{number}"));
        let port = 8000 + u16::try_from(number).unwrap();
        publish(&container, number, &portmap(json!([tcp(port, 80), udp(port, 53)])));
    }
    assert_eq!(rules(&world), before);
}

/// nft writes a range as two comparisons, and compares addresses that follow each other at once.
#[test]
fn rules_that_nft_loaded_again_are_those_of_the_network() {
    let world = World::new();
    let c1 = world.container("c1");
    let conditions = json!({
        "conditionsV4": ["-s", "10.0.0.0/9", "-d", "192.0.2.1", "-p", "tcp", "--dport", "8000:9000"],
        "conditionsV6": ["ip6 saddr != fd00:9::/64 ip6 daddr fd00:2::1-fd00:2::f"],
    });
    let config = with(&portmap(json!([tcp(8080, 80)])), conditions);
    publish(&c1, 1, &config);
    let before = ruleset(&world, "ip") + &ruleset(&world, "ip6");
    world.host(["sh", "-ec", "nft list ruleset >/run/f; nft flush ruleset; nft -f /run/f"]);
    publish(&c1, 1, &config);
    assert_eq!(ruleset(&world, "ip") + &ruleset(&world, "ip6"), before);
}

#[test]
fn conditions_have_a_chain_and_maps_of_their_own() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = with(
        &portmap(json!([tcp(8080, 80)])),
        json!({"conditionsV4": ["!", "-s", "10.0.0.0/8", "-i", "wan+"], "conditionsV6": ["iifname != \"lo\""]}),
    );
    publish(&c1, 1, &config);
    let text = ruleset(&world, "ip");
    let rules: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.contains("map @") || line.contains("jump"))
        .collect();
    let id = rules[0].split("@portmap-published-on-").nth(1).unwrap();
    let met = "ip saddr != 10.0.0.0/8 iifname \"wan*\"";
    assert_eq!(
        rules,
        [
            &format!(
                "{met} dnat ip to ip daddr . meta l4proto . th dport map @portmap-published-on-{id}"
            ),
            &format!("{met} dnat ip to meta l4proto . th dport map @portmap-published-{id}"),
            &format!("jump portmap-published-{id}"),
            "dnat ip to ip daddr . meta l4proto . th dport map @portmap-published-on",
            "dnat ip to meta l4proto . th dport map @portmap-published",
            "fib daddr type local jump portmap-mark",
            "fib daddr type local jump portmap-published",
            "fib daddr type local jump portmap-unmark",
            "fib daddr type local jump portmap-mark",
            "fib daddr type local jump portmap-published",
            "fib daddr type local jump portmap-unmark",
        ]
    );
    assert!(text.contains("comment \"! -s 10.0.0.0/8 -i wan+\""), "{text}");
    assert!(ruleset(&world, "ip6").contains("iifname != \"lo\" dnat ip6 to"));
    // They go with the last who has them.
    c1.del("portmap", &portmap(json!(null)));
    for family in ["ip", "ip6"] {
        let text = ruleset(&world, family);
        assert!(!text.contains("portmap-published-on-p") || !text.contains(id), "{text}");
        assert!(!text.contains("jump portmap-published-"), "{text}");
    }
}
