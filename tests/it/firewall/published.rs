//! `acceptPublished`: published ports where FORWARD drops packets.

use serde_json::{Value, json};

use super::{bridge, drop_forwarded, firewall};
use crate::portmap::{ask, ask_in_vain, neighbours, serve};
use crate::world::{Container, World};

/// The addresses of the host.
const HOST: [&str; 2] = ["192.0.2.1", "fd00:2::1"];

/// A container on a bridge with a server on port 80, which is published as 8080. `plugins`: the order of the chained ones.
fn publish(container: &Container<'_>, plugins: [&str; 2], keys: &Value) -> Value {
    let result = container.add("bridge", &bridge("net", 1));
    let portmap = json!({"cniVersion": "1.1.0", "name": "net", "type": "portmap", "prevResult": result,
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}});
    for plugin in plugins {
        let config = match plugin {
            "portmap" => portmap.clone(),
            _ => firewall("net", keys.clone(), &result),
        };
        container.add(plugin, &config);
    }
    serve(container, "tcp", 80);
    serve(container, "tcp", 81);
    result
}

/// Each case is for both families: does a host outside reach the published port?
fn reaches(world: &World, outside: &Container<'_>, name: &str, expected: bool) {
    for address in HOST {
        let netns = outside.netns();
        let answer = if expected {
            ask(world, Some(&netns), "tcp", address, 8080)
        } else {
            ask_in_vain(world, Some(&netns), "tcp", address, 8080)
        };
        assert_eq!(answer.starts_with(name), expected, "{address}: {answer}");
    }
}

#[test]
fn a_published_port_passes_a_forward_that_drops_only_with_the_key() {
    for plugins in [["portmap", "firewall"], ["firewall", "portmap"]] {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let c1 = world.container("c1");
        drop_forwarded(&world);
        let result = publish(&c1, plugins, &json!({}));
        reaches(&world, &outside, "c1", false);
        let open = firewall("net", json!({"acceptPublished": true}), &result);
        world.call("firewall", "STATUS", &open).run().silence();
        c1.add("firewall", &open);
        c1.check("firewall", &open, &result);
        reaches(&world, &outside, "c1", true);
        for program in ["iptables", "ip6tables"] {
            let script = format!("{program}-save >/run/saved; {program}-restore </run/saved");
            world.host(["sh", "-ec", &script]);
        }
        reaches(&world, &outside, "c1", true);
        // Another port of the container, and a translation of the administrator to it, which `portmap` did not publish.
        let dnat = |program: &str, to: &str| {
            let rule =
                format!("{program} -t nat -A PREROUTING -p tcp --dport 8081 -j DNAT --to {to}");
            world.host(["sh", "-ec", &rule]);
        };
        dnat("iptables", "10.1.0.2:81");
        dnat("ip6tables", "[fd00:1::2]:81");
        for (address, port) in
            [("10.1.0.2", 80), ("fd00:1::2", 80), (HOST[0], 8081), (HOST[1], 8081)]
        {
            let answer = ask_in_vain(&world, Some(&outside.netns()), "tcp", address, port);
            assert_eq!(answer, "nothing", "{address} {port}");
        }
        // The administrator's chain is first.
        for program in ["iptables", "ip6tables"] {
            world.host(["sh", "-ec", &format!("{program} -A CNI-ADMIN -p tcp --dport 80 -j DROP")]);
        }
        reaches(&world, &outside, "c1", false);
        world.host(["sh", "-ec", "iptables -F CNI-ADMIN; ip6tables -F CNI-ADMIN"]);
        // The container's own ADD without the key closes the port again.
        c1.add("firewall", &firewall("net", json!({}), &result));
        reaches(&world, &outside, "c1", false);
        c1.add("firewall", &open);
        reaches(&world, &outside, "c1", true);
        c1.del("firewall", &open);
        reaches(&world, &outside, "c1", false);
        for family in ["ip", "ip6"] {
            let left = world.host(["nft", "list", "set", family, "cnibox", "firewall-published"]);
            assert!(!left.contains("elements"), "{left}");
        }
    }
}

/// The policy drops what the key accepts: a neighbour of an isolated container does not reach its port.
#[test]
fn isolation_comes_before_the_accept() {
    let world = World::new();
    let [outside, _] = neighbours(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    drop_forwarded(&world);
    let keys = json!({"acceptPublished": true, "ingressPolicy": "isolated"});
    publish(&c1, ["portmap", "firewall"], &keys);
    let other = c2.add("bridge", &bridge("net", 1));
    c2.add("firewall", &firewall("net", keys, &other));
    reaches(&world, &outside, "c1", true);
    for address in ["10.1.0.1", "fd00:1::1"] {
        let answer = ask_in_vain(&world, Some(&c2.netns()), "tcp", address, 8080);
        assert_eq!(answer, "nothing", "{address}");
    }
}
