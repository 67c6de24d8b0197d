//! Hosts that drop packets to themselves: the queries of containers are accepted.

use serde_json::json;

use super::{args, attach, leftovers, network};
use crate::world::World;

/// A host whose iptables drops packets to it in both families, and names what the administrator has.
fn host_that_drops(world: &World) {
    world.host([
        "sh",
        "-ec",
        "for iptables in iptables-nft ip6tables-nft; do $iptables -P INPUT DROP; $iptables -A INPUT -p tcp --dport 22 -j ACCEPT; done
        ip6tables-nft -A INPUT -p icmpv6 -j ACCEPT",
    ]);
}

/// The rules of the chain INPUT, as iptables prints them.
fn rules(world: &World) -> Vec<String> {
    let script = "iptables-nft -S INPUT 2>/dev/null; ip6tables-nft -S INPUT 2>/dev/null";
    world.host(["sh", "-c", script]).lines().map(str::to_owned).collect()
}

#[test]
fn queries_reach_the_gateway_of_a_host_that_drops_input_and_nothing_else_does() {
    let world = World::new();
    host_that_drops(&world);
    let before = rules(&world);
    let net = network("net", 1);
    let web = attach(&world, "web", &net, json!({}));
    let db = attach(&world, "db", &net, json!({}));
    assert_eq!(db.asks("web"), web.addresses());
    for server in ["10.1.0.1", "fd00:1::1"] {
        let asked =
            db.container.exec(["dig", "+tcp", "+short", &format!("@{server}"), "web.dns.podman"]);
        assert_eq!(asked, format!("{}\n", web.addresses()[0]), "{server}");
    }
    let pinging = db.container.tool(["ping", "-n", "-c", "1", "-W", "1", "10.1.0.1"]).run();
    assert_ne!(pinging.status, 0, "other packets are dropped");
    let [v4, v6] = ["10.1.0", "fd00:1:"]
        .map(|net| rules(&world).into_iter().filter(|rule| rule.contains(net)).collect::<Vec<_>>());
    let rule = |of: &str, to: &str, transport: &str| {
        format!(
            "-A INPUT -s {of} -d {to} -p {transport} -m {transport} --dport 53 -m comment --comment \"cnibox: names of network net\" -j ACCEPT"
        )
    };
    for (rules, of, to) in
        [(&v4, "10.1.0.0/24", "10.1.0.1/32"), (&v6, "fd00:1::/64", "fd00:1::1/128")]
    {
        let mut rules = rules.clone();
        rules.sort();
        assert_eq!(rules, [rule(of, to, "tcp"), rule(of, to, "udp")]);
    }
    // A query from elsewhere to the gateway's address is no query of a container.
    let outside = world.container("outside");
    outside.add("ptp", &json!({"cniVersion": "1.1.0", "name": "out", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}));
    outside.exec(["ip", "route", "replace", "default", "via", "10.9.0.1"]);
    let asked = outside.tool(["dig", "+time=1", "+tries=1", "@10.1.0.1", "web.dns.podman"]).run();
    assert_ne!(asked.status, 0, "{}", asked.report());
    for attached in [&web, &db] {
        attached.detach();
    }
    assert_eq!(rules(&world), before);
    assert_eq!(leftovers(&world), "");
}

#[test]
fn rules_that_another_program_saves_restores_or_removes_are_right_again() {
    let world = World::new();
    host_that_drops(&world);
    let net = network("net", 1);
    let web = attach(&world, "web", &net, json!({}));
    let made = rules(&world);
    world.host(["sh", "-ec", "iptables-nft-save >/run/saved; iptables-nft-restore </run/saved"]);
    web.call("ADD").env("CNI_ARGS", &args("web")).run().success();
    assert_eq!(rules(&world), made, "restored rules are not made twice");
    web.check("web").run().silence();
    world.host(["iptables-nft", "-F", "INPUT"]);
    web.check("web").run().fails(
        999,
        &["the rule of INPUT that accepts queries to 10.1.0.1 is missing in table ip filter"],
    );
    web.call("ADD").env("CNI_ARGS", &args("web")).run().success();
    web.check("web").run().silence();
    assert_eq!(web.asks("web"), web.addresses());
    // Those of a network without names, as a restored file of rules has them.
    let other = attach(&world, "other", &network("gone", 2), json!({}));
    world.host(["sh", "-ec", "iptables-nft-save >/run/saved"]);
    other.detach();
    world.host(["sh", "-ec", "iptables-nft-restore </run/saved"]);
    assert!(rules(&world).iter().any(|rule| rule.contains("network gone")));
    web.detach();
    assert_eq!(rules(&world).iter().filter(|rule| rule.contains("cnibox")).count(), 0);
}

#[test]
fn a_host_without_the_chain_gets_none() {
    let world = World::new();
    let web = attach(&world, "web", &network("net", 1), json!({}));
    assert_eq!(web.asks("web"), web.addresses());
    assert_eq!(world.host(["nft", "list", "tables"]), "");
    // A firewall that begins later.
    host_that_drops(&world);
    web.check("web").run().fails(999, &["is missing in table ip filter"]);
    web.call("ADD").env("CNI_ARGS", &args("web")).run().success();
    assert_eq!(web.asks("web"), web.addresses());
}
