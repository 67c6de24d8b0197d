//! Our DEL and GC remove the objects of the reference's plugins, over netlink.

use serde_json::{Value, json};

use super::network;
use crate::parity::reference;
use crate::world::{World, with};

/// The tables of iptables that are left, without what it makes by itself.
fn rules_of_iptables(world: &World) -> Vec<String> {
    ["iptables-save", "ip6tables-save"]
        .iter()
        .flat_map(|tool| {
            let text = world.tool(&[tool], None).run().output();
            let lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.into_iter().filter(|line| line.starts_with("-A") || line.contains("CNI"))
        })
        .collect()
}

fn config() -> Value {
    // Debian's release of the reference knows versions up to 1.0.0, and GC came later.
    with(
        &network("bridge", json!({"ipMasq": true, "macspoofchk": true})),
        json!({"cniVersion": "1.0.0"}),
    )
}

#[test]
fn rules_of_iptables_and_of_the_spoof_check_go_with_a_del() {
    for way in ["DEL", "DEL without namespace"] {
        let world = World::new();
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        for container in [&c1, &c2] {
            let call = container.call("bridge", "ADD", &config()).env("PATH", "/usr/sbin:/usr/bin");
            call.of_directory(&reference()).run().success();
        }
        let both = rules_of_iptables(&world);
        assert_eq!(both.iter().filter(|line| line.contains("POSTROUTING")).count(), 4, "{both:?}");
        let call = c1.call("bridge", "DEL", &config());
        let call = if way == "DEL" { call } else { call.env("CNI_NETNS", "") };
        call.run().silence();
        let one = rules_of_iptables(&world);
        assert!(one.len() * 2 == both.len(), "{way}: {one:?} of {both:?}");
        assert!(!one.iter().any(|line| line.contains("c1")), "{way}: {one:?}");
        assert!(!world.host(["nft", "list", "ruleset"]).contains("c1-eth0"), "{way}");
        c2.del("bridge", &config());
        assert_eq!(rules_of_iptables(&world), [""; 0], "{way}");
        assert!(!world.host(["nft", "list", "ruleset"]).contains("cni-br-iface"), "{way}");
    }
}

#[test]
fn rules_of_iptables_go_with_a_gc() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    for container in [&c1, &c2] {
        let call = container.call("bridge", "ADD", &config()).env("PATH", "/usr/sbin:/usr/bin");
        call.of_directory(&reference()).run().success();
    }
    let valid = json!({
        "cniVersion": "1.1.0",
        "cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}],
    });
    world.call("bridge", "GC", &with(&config(), valid)).run().silence();
    let left = rules_of_iptables(&world);
    let of =
        |id: &str| left.iter().filter(|line| line.contains(&format!("id: \\\"{id}\\\""))).count();
    assert_eq!((of("c1"), of("c2")), (0, 6), "{left:?}");
}

/// The reference's newer releases can write rules of nft themselves; Debian's cannot, so they are written here as its
/// contract has them.
#[test]
fn rules_of_its_nftables_backend_go_with_a_del_and_a_gc() {
    let rules = "\
table inet cni_plugins_masquerade {
  chain masq_checks {
    ip saddr 10.1.0.2 ip daddr != 10.1.0.0/16 masquerade comment \"d23676b4f2d9fe04-e65086f8a75535c6, net: mynet, if: eth0, id: abc\"
    ip saddr 10.1.0.3 ip daddr != 10.1.0.0/16 masquerade comment \"d23676b4f2d9fe04-0123456789abcdef, net: mynet, if: eth0, id: abd\"
    ip saddr 10.1.0.4 ip daddr != 10.1.0.0/16 masquerade comment \"0123456789abcdef-e65086f8a75535c6, net: other, if: eth0, id: abc\"
  }
  chain postrouting {
    type nat hook postrouting priority 100;
    ip daddr 224.0.0.0/4 return
    goto masq_checks
  }
}
";
    let config = with(&network("bridge", json!({"ipMasq": true})), json!({"name": "mynet"}));
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "abc", "ifname": "eth0"}]});
    for (verb, left) in [("DEL", ["10.1.0.3", "10.1.0.4"]), ("GC", ["10.1.0.2", "10.1.0.4"])] {
        let world = World::new();
        world.write("/run/rules", rules);
        world.host(["nft", "--file", "/run/rules"]);
        let call = world.call("bridge", verb, &with(&config, valid.clone()));
        call.env("CNI_CONTAINERID", "abc").env("CNI_IFNAME", "eth0").run().silence();
        let text = world.host(["nft", "list", "ruleset"]);
        for address in ["10.1.0.2", "10.1.0.3", "10.1.0.4"] {
            let expected = left.contains(&address);
            assert_eq!(
                text.contains(&format!("saddr {address} ")),
                expected,
                "{verb} {address}: {text}"
            );
        }
    }
}

#[test]
fn ports_of_its_nftables_backend_go_with_a_del() {
    let rules = "\
table ip cni_hostport {
  chain hostports {
    tcp dport 8080 dnat to 10.1.0.2:80 comment \"abc\"
    tcp dport 8081 dnat to 10.1.0.3:80 comment \"abd\"
  }
  chain prerouting {
    type nat hook prerouting priority -100;
    fib daddr type local jump hostports
  }
  chain masquerading {
    type nat hook postrouting priority 100;
    ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment \"abc\"
    ip saddr 10.1.0.3 ip daddr 10.1.0.3 masquerade comment \"abd\"
  }
}
";
    let world = World::new();
    world.write("/run/rules", rules);
    world.host(["nft", "--file", "/run/rules"]);
    let config = json!({"cniVersion": "1.0.0", "name": "mynet", "type": "portmap"});
    let call = world.call("portmap", "DEL", &config);
    call.env("CNI_CONTAINERID", "abc").env("CNI_IFNAME", "eth0").run().silence();
    let text = world.host(["nft", "list", "ruleset"]);
    assert!(!text.contains("abc") && text.matches("\"abd\"").count() == 2, "{text}");
}
