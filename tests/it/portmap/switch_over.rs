//! DEL removes ports that the Go plugin published with either backend. Both plugins translate to the same targets.

use serde_json::{Value, json};

use super::{
    Container, ask, ask_in_vain, attach, chained, neighbours, network, portmap, serve, tcp, udp,
};
use crate::parity::reference;
use crate::world::{World, with};

/// Debian's release of the reference knows versions up to 1.0.0.
fn config() -> Value {
    with(&portmap(json!([tcp(8080, 80), udp(8053, 53)])), json!({"cniVersion": "1.0.0"}))
}

fn attach_by_reference(container: &Container<'_>, config: &Value) -> Value {
    let network = with(&network(), json!({"cniVersion": "1.0.0"}));
    let result = container.add("bridge", &network);
    let call = container.call("portmap", "ADD", &chained(config, &result));
    call.of_directory(&reference()).env("PATH", "/usr/sbin:/usr/bin").run().success();
    result
}

/// Rules and chains of iptables that name a container, or are of one.
fn rules_of_containers(world: &World) -> Vec<String> {
    let saved =
        ["iptables-save", "ip6tables-save"].map(|tool| world.tool(&[tool], None).run().stdout);
    let lines = saved.iter().flat_map(|text| text.lines());
    lines.filter(|line| line.contains("CNI-DN-")).map(str::to_owned).collect()
}

#[test]
fn del_removes_ports_of_the_go_plugin() {
    for way in ["with everything", "with the names alone", "GC"] {
        let world = World::new();
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        let result = attach_by_reference(&c1, &config());
        attach_by_reference(&c2, &with(&config(), portmap_of_c2()));
        let both = rules_of_containers(&world);
        assert!(!both.is_empty());
        match way {
            "with everything" => c1.del("portmap", &chained(&config(), &result)),
            "with the names alone" => {
                let bare = with(&portmap(json!(null)), json!({"cniVersion": "1.0.0"}));
                c1.call("portmap", "DEL", &bare).env("CNI_NETNS", "").run().silence();
            }
            _ => {
                let valid =
                    json!({"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]});
                let gc = with(&portmap(json!(null)), valid);
                world.call("portmap", "GC", &gc).run().silence();
            }
        }
        let one = rules_of_containers(&world);
        assert_eq!(one.len() * 2, both.len(), "{way}: {one:?} of {both:?}");
        assert!(!one.iter().any(|line| line.contains("\"c1\"")), "{way}: {one:?}");
        c2.del("portmap", &config());
        assert_eq!(rules_of_containers(&world), [""; 0], "{way}");
    }
}

fn portmap_of_c2() -> Value {
    json!({"runtimeConfig": {"portMappings": [tcp(9080, 80), udp(9053, 53)]}})
}

#[test]
fn both_plugins_translate_to_the_same_targets() {
    let seen = |by_reference: bool| -> Vec<String> {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        if by_reference {
            attach_by_reference(&c1, &config());
        } else {
            attach(&c1, &with(&config(), json!({"cniVersion": "1.1.0"})));
        }
        c2.add("bridge", &network());
        serve(&c1, "tcp", 80);
        serve(&c1, "udp", 53);
        let clients = [None, Some(outside.netns()), Some(c1.netns()), Some(c2.netns())];
        let mut seen = Vec::new();
        for (protocol, port) in [("tcp", 8080), ("udp", 8053)] {
            for host in ["192.0.2.1", "10.1.0.1", "127.0.0.1", "fd00:2::1", "fd00:1::1"] {
                for client in &clients {
                    // A container's own 127.0.0.1 has no server.
                    let is_in_vain = host == "127.0.0.1" && client.is_some();
                    let ask = if is_in_vain { ask_in_vain } else { ask };
                    let answer = ask(&world, client.as_deref(), protocol, host, port);
                    seen.push(format!("{protocol} {host} {client:?}: {answer}"));
                }
            }
        }
        seen
    };
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| seen(true));
        (seen(false), theirs.join().unwrap())
    });
    assert_eq!(ours, theirs);
    assert!(ours.iter().filter(|line| line.contains(": c1 ")).count() > 30, "{ours:?}");
}

/// The rules of the nftables backend for the ports of `config`.
fn rules_of_nftables(world: &World, container_id: &str) {
    let table = |family: &str, target: &str| {
        format!(
            "table {family} cni_hostport {{
                chain hostports {{
                    tcp dport 8080 dnat to {target}:80 comment \"{container_id}\"
                    udp dport 8053 dnat to {target}:53 comment \"{container_id}\"
                }}
                chain hostports_all {{ jump hostports; }}
                chain prerouting {{
                    type nat hook prerouting priority -100
                    fib daddr type local jump hostports_all
                }}
            }}"
        )
    };
    world
        .write("/run/hostports", [table("ip", "10.1.0.2"), table("ip6", "[fd00:1::2]")].join("\n"));
    world.host(["nft", "--file", "/run/hostports"]);
}

/// Its rules come before those of cnibox, and only the operator knows that the container has ended.
#[test]
fn a_port_of_a_go_container_is_refused_until_its_rules_are_gone() {
    for is_iptables in [true, false] {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        let by_go = if is_iptables {
            attach_by_reference(&c1, &config())
        } else {
            rules_of_nftables(&world, "c1");
            c1.add("bridge", &network())
        };
        let result = c2.add("bridge", &network());
        let wanted = chained(&portmap(json!([tcp(8080, 80)])), &result);
        let before = world.state();
        let fix = "cnibox gc --unknown net/c1/eth0 removes its rules";
        let refused = c2.call("portmap", "ADD", &wanted).run();
        let texts = ["cannot publish host port tcp 8080: it is taken by container c1", fix];
        refused.fails(999, &texts);
        before.assert_same(&world.state(), "after the refusal");
        // Another port is not in the way.
        c2.add("portmap", &chained(&portmap(json!([tcp(8081, 80)])), &result));
        let gc = world.tool(&["/run/bin/cnibox", "gc", "--unknown", "net/c1/eth0"], None);
        let alive = gc.run();
        assert!(alive.status == 1 && alive.stderr.contains("it is alive"), "{}", alive.report());
        c1.del("bridge", &with(&network(), json!({"prevResult": by_go})));
        c1.destroy();
        world.host(["/run/bin/cnibox", "gc", "--unknown", "net/c1/eth0"]);
        c2.add("portmap", &wanted);
        serve(&c2, "tcp", 80);
        for (address, source) in [("192.0.2.1", "192.0.2.2"), ("fd00:2::1", "fd00:2::2")] {
            let answer = ask(&world, Some(&outside.netns()), "tcp", address, 8080);
            assert_eq!(answer, format!("c2 {source}"));
        }
        assert_eq!(rules_of_containers(&world), [""; 0]);
        assert!(!world.host(["nft", "list", "ruleset"]).contains("comment \"c1\""));
    }
}

/// An earlier life of the container had another address.
#[test]
fn the_ports_that_the_go_plugin_published_for_the_same_container_go() {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    let c1 = world.container("c1");
    attach_by_reference(&c1, &config());
    c1.del("bridge", &network());
    world.container("c2").add("bridge", &network());
    attach(&c1, &with(&config(), json!({"cniVersion": "1.1.0"})));
    serve(&c1, "tcp", 80);
    assert_eq!(ask(&world, Some(&outside.netns()), "tcp", "192.0.2.1", 8080), "c1 192.0.2.2");
    assert_eq!(rules_of_containers(&world), [""; 0]);
}
