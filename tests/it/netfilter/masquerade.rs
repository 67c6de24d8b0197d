//! `ipMasq` of bridge, veth and ptp.

use serde_json::{Value, json};

use super::{OUTSIDE, network, outside, owned, ruleset};
use crate::world::{World, all_at_once, with, without_tags};

fn masquerading(plugin: &str) -> Value {
    network(plugin, json!({"ipMasq": true}))
}

fn address(result: &Value, index: usize) -> String {
    let text = result["ips"][index]["address"].as_str().unwrap();
    text.split('/').next().unwrap().to_owned()
}

#[test]
fn containers_reach_the_outside_only_with_it() {
    for plugin in ["bridge", "veth", "ptp"] {
        let world = World::new();
        let _outside = outside(&world);
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        c1.add(plugin, &masquerading(plugin));
        c2.add(plugin, &network(plugin, json!({})));
        for address in OUTSIDE {
            c1.ping(address);
            let ping = c2.tool(["ping", "-n", "-q", "-c", "1", "-W", "1", address]).run();
            assert_eq!(ping.status, 1, "{plugin}: {}", ping.report());
        }
    }
}

#[test]
fn within_their_subnet_containers_keep_their_addresses() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    // On a routed pair neighbours talk through the host's postrouting.
    let one = c1.add("ptp", &masquerading("ptp"));
    let two = c2.add("ptp", &masquerading("ptp"));
    let rules = format!(
        "table inet t {{ chain input {{ type filter hook input priority 0; policy accept;\n\
         icmp type echo-request ip saddr != {} drop\n\
         icmpv6 type echo-request ip6 saddr != {} drop\n}}\n}}\n",
        address(&one, 0),
        address(&one, 1)
    );
    world.write("/run/rules", rules);
    c2.exec(["nft", "--file", "/run/rules"]);
    c1.ping(&address(&two, 0));
    c1.ping(&address(&two, 1));
}

#[test]
fn the_rules_are_as_documented() {
    let world = World::new();
    world.container("c1").add("bridge", &masquerading("bridge"));
    let expected = "\
table ip cnibox {
	map masquerade-sources {
		type ipv4_addr : verdict
		elements = { 10.1.0.2 comment \"net c1 eth0\" : goto masquerade-10.1.0.0/16 }
	}

	chain masquerade-srcnat {
		type nat hook postrouting priority 120; policy accept;
		ip saddr vmap @masquerade-sources
	}

	chain masquerade-10.1.0.0/16 {
		ip daddr 10.1.0.0/16 return
		ip daddr 224.0.0.0/4 return
		masquerade
	}
}
table ip6 cnibox {
	map masquerade-sources {
		type ipv6_addr : verdict
		elements = { fd00:1::2 comment \"net c1 eth0\" : goto masquerade-fd00_1__/64 }
	}

	chain masquerade-srcnat {
		type nat hook postrouting priority 120; policy accept;
		ip6 saddr vmap @masquerade-sources
	}

	chain masquerade-fd00_1__/64 {
		ip6 daddr fd00:1::/64 return
		ip6 daddr ff00::/8 return
		masquerade
	}
}
";
    assert_eq!(without_tags(&ruleset(&world)), expected);
}

#[test]
fn del_removes_masquerading_after_any_change() {
    let ways = ["plain", "no namespace", "namespace gone", "left-over file", "link gone"];
    for way in ways {
        let world = World::new();
        let c1 = world.container("c1");
        let config = masquerading("bridge");
        // The maps and base chains stay from the first time on.
        c1.add("bridge", &config);
        c1.del("bridge", &config);
        let before = ruleset(&world);
        c1.add("bridge", &config);
        assert_ne!(ruleset(&world), before);
        match way {
            "namespace gone" => c1.destroy(),
            "left-over file" => c1.unmount(),
            "link gone" => drop(c1.exec(["ip", "link", "del", "eth0"])),
            _ => {}
        }
        let call = c1.call("bridge", "DEL", &config);
        let call = if way == "no namespace" { call.env("CNI_NETNS", "") } else { call };
        call.run().silence();
        assert_eq!(ruleset(&world), before, "{way}");
        c1.call("bridge", "DEL", &config).run().silence();
    }
}

#[test]
fn a_subnets_chain_stays_for_its_other_containers() {
    let world = World::new();
    let _outside = outside(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = masquerading("bridge");
    c1.add("bridge", &config);
    c2.add("bridge", &config);
    c1.del("bridge", &config);
    assert_eq!(owned(&world), 2);
    for address in OUTSIDE {
        c2.ping(address);
    }
}

#[test]
fn a_stale_element_passes_to_the_new_owner_of_its_address() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = masquerading("bridge");
    c1.add("bridge", &config);
    // The reservation was removed by hand; the element of the old owner remains.
    world.host(["rm", "-rf", "/var/lib/cni/networks/net"]);
    c1.exec(["ip", "link", "del", "eth0"]);
    c2.add("bridge", &config);
    c1.del("bridge", &config);
    assert!(ruleset(&world).contains("10.1.0.2 comment \"net c2 eth0\""));
    assert_eq!(owned(&world), 2, "the new owner's are not the old one's");
}

#[test]
fn check_fails_if_a_rule_is_missing() {
    let perturbations: [&[&str]; 5] = [
        &["delete", "element", "ip", "cnibox", "masquerade-sources", "{ 10.1.0.2 }"],
        &["delete", "element", "ip6", "cnibox", "masquerade-sources", "{ fd00:1::2 }"],
        &["flush", "chain", "ip", "cnibox", "masquerade-10.1.0.0/16"],
        &["flush", "chain", "ip6", "cnibox", "masquerade-srcnat"],
        &["flush", "ruleset"],
    ];
    for words in perturbations {
        let world = World::new();
        let c1 = world.container("c1");
        let config = masquerading("veth");
        let result = c1.add("veth", &config);
        c1.check("veth", &config, &result);
        world.tool(&[&["nft"], words].concat(), None).run().output();
        let error = c1.checking("veth", &config, &result).run().error();
        assert!(error.msg.contains("masquerading"), "{words:?}: {error:?}");
        c1.del("veth", &config);
    }
}

#[test]
fn gc_keeps_valid_attachments() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = masquerading("bridge");
    c1.add("bridge", &config);
    c2.add("bridge", &config);
    let other = with(
        &config,
        json!({"name": "nets", "bridge": "cni1",
        "ipam": {"ranges": [[{"subnet": "10.2.0.0/16"}], [{"subnet": "fd00:2::/64"}]]}}),
    );
    world.container("c3").add("bridge", &other);
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]});
    world.call("bridge", "GC", &with(&config, valid)).run().silence();
    let rules = ruleset(&world);
    for (owner, count) in [("net c1 eth0", 0), ("net c2 eth0", 2), ("nets c3 eth0", 2)] {
        assert_eq!(rules.matches(&format!("comment \"{owner}\"")).count(), count, "{owner}");
    }
}

#[test]
fn many_at_once_lose_and_double_nothing() {
    let world = World::new();
    let config = masquerading("bridge");
    let containers: Vec<_> = (0..32).map(|number| world.container(&format!("c{number}"))).collect();
    let call = |verb: &str| {
        all_at_once(containers.iter().map(|container| container.call("bridge", verb, &config)))
    };
    call("ADD").into_iter().for_each(|outcome| drop(outcome.success()));
    assert_eq!(owned(&world), 64);
    call("DEL").into_iter().for_each(|outcome| outcome.silence());
    assert_eq!(owned(&world), 0);
}

#[test]
fn backends_of_the_reference_are_all_served_and_others_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    for backend in ["iptables", "nftables", ""] {
        let config = with(&masquerading("bridge"), json!({"ipMasqBackend": backend}));
        c1.add("bridge", &config);
        assert_eq!(owned(&world), 2, "{backend}");
        c1.del("bridge", &config);
    }
    let before = world.state_with(&[&c1]);
    for plugin in ["bridge", "veth"] {
        let config = with(&masquerading(plugin), json!({"ipMasqBackend": "ebtables"}));
        c1.call(plugin, "ADD", &config).run().fails(7, &["ipMasqBackend", "ebtables"]);
    }
    before.assert_same(&world.state_with(&[&c1]), "after refused calls");
}

#[test]
fn status_says_that_it_can() {
    let world = World::new();
    for plugin in ["bridge", "veth"] {
        world.call(plugin, "STATUS", &masquerading(plugin)).run().silence();
    }
    assert_eq!(ruleset(&world), "", "asking leaves nothing");
}

#[test]
fn no_other_program_is_run() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = network("bridge", json!({"ipMasq": true, "macspoofchk": true}));
    for verb in ["ADD", "DEL"] {
        let trace = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", "/run/trace"];
        let outcome = c1.call("bridge", verb, &config).under(&trace).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        assert_eq!(world.read("/run/trace").matches("execve(").count(), 1, "{verb}");
    }
}
