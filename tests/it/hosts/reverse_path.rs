//! Hosts with a strict reverse path filter, as RHEL and its relatives have it: on the host, and in each new network namespace.

use serde_json::{Value, json};

use crate::portmap::{ask, ask_in_vain, neighbours, serve};
use crate::world::{Call, Container, PLUGIN_DIR, World, parse, with};

const REASON: &str = "published ports do not answer other hosts: replies of eth1 leave by eth0";

/// The default route of the container is that of its first network.
fn bridge(network: &str, number: u8) -> Value {
    let ipam = json!({"type": "host-local", "subnet": format!("10.{number}.0.0/24")});
    json!({"cniVersion": "1.1.0", "name": network, "type": "bridge", "bridge": format!("cni-{network}"),
        "isGateway": true, "isDefaultGateway": number == 1, "ipam": ipam})
}

fn chained(plugin: &str, keys: Value, result: &Value) -> Value {
    let base = json!({"cniVersion": "1.1.0", "name": "b", "type": plugin, "prevResult": result});
    with(&base, keys)
}

fn portmap(keys: Value, result: &Value) -> Value {
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let own = json!({"runtimeConfig": {"portMappings": ports}});
    chained("portmap", with(&own, keys), result)
}

/// Sets the filter of all links, and of those that come later.
const FILTER: &str = "for link in /proc/sys/net/ipv4/conf/*; do echo $1 >$link/rp_filter; done";

/// A host and a container with these filters. The container gets its first network `a` here.
fn container<'w>(world: &'w World, on_host: &str, inside: &str) -> Container<'w> {
    world.host(["sh", "-c", FILTER, "sh", on_host]);
    let c1 = world.container("c1");
    c1.exec(["sh", "-c", FILTER, "sh", inside]);
    c1.add("bridge", &bridge("a", 1));
    c1
}

/// A call for its second network, `b`.
fn second<'w>(c1: &Container<'w>, verb: &str, config: &Value) -> Call<'w> {
    c1.call(config["type"].as_str().unwrap(), verb, config).env("CNI_IFNAME", "eth1")
}

/// Publishes the ports; returns the warnings.
#[track_caller]
fn publish(c1: &Container<'_>, config: &Value) -> String {
    let outcome = second(c1, "ADD", config).run();
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    outcome.stderr
}

/// A TCP server: one of UDP that listens on all addresses answers from that of the default route.
fn answer(world: &World, client: &Container<'_>) -> String {
    ask(world, Some(&client.netns()), "tcp", "192.0.2.1", 8080)
}

#[test]
fn add_warns_of_a_port_that_does_not_answer_and_sbr_mends_it() {
    for (on_host, inside, filter) in [
        ("1", "1", "rp_filter of eth1 in the container is 1"),
        ("0", "1", "rp_filter of eth1 in the container is 1"),
        ("1", "0", "rp_filter of cni-a on the host is 1"),
    ] {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let c1 = container(&world, on_host, inside);
        let result = second(&c1, "ADD", &bridge("b", 2)).run().success();
        serve(&c1, "tcp", 80);
        let warnings = publish(&c1, &portmap(json!({}), &result));
        for text in [REASON, filter, "add the plugin sbr to network b"] {
            assert!(warnings.contains(text), "{on_host} {inside}: {text}: {warnings}");
        }
        assert_eq!(warnings.lines().count(), 1, "{warnings}");
        let silent = ask_in_vain(&world, Some(&outside.netns()), "tcp", "192.0.2.1", 8080);
        assert_eq!(silent, "nothing", "{on_host} {inside}");

        let result = second(&c1, "ADD", &chained("sbr", json!({}), &result)).run().success();
        assert_eq!(answer(&world, &outside), "c1 192.0.2.2", "{on_host} {inside}");
        assert_eq!(publish(&c1, &portmap(json!({}), &result)), "");
        assert_eq!(answer(&world, &outside), "c1 192.0.2.2", "{on_host} {inside}");
    }
}

#[test]
fn there_is_no_warning_where_ports_answer() {
    for (filter, keys, source) in [
        ("0", json!({}), "192.0.2.2"),
        ("2", json!({}), "192.0.2.2"),
        ("1", json!({"masqAll": true}), "10.2.0.1"),
    ] {
        let world = World::new();
        let [outside, _] = neighbours(&world);
        let c1 = container(&world, filter, filter);
        let result = second(&c1, "ADD", &bridge("b", 2)).run().success();
        serve(&c1, "tcp", 80);
        assert_eq!(publish(&c1, &portmap(keys, &result)), "", "{filter}");
        assert_eq!(answer(&world, &outside), format!("c1 {source}"));
    }
    // The ports of the first network.
    let world = World::new();
    let c1 = container(&world, "1", "1");
    c1.del("bridge", &bridge("a", 1));
    let result = c1.add("bridge", &bridge("a", 1));
    let outcome =
        c1.call("portmap", "ADD", &with(&portmap(json!({}), &result), json!({"name": "a"}))).run();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
}

#[test]
fn doctor_finds_the_container_and_names_sbr() {
    let world = World::new();
    let cnibox = |args: &[&str]| {
        let words = [&["/run/bin/cnibox"], args].concat();
        let call = world.tool(&words, None).env("CNI_PATH", PLUGIN_DIR);
        call.env("NETCONFPATH", "/run/net.d").run()
    };
    let configure = |network: &str, number: u8, more: &[&str]| {
        let mut plugins = vec![
            bridge(network, number),
            json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        ];
        plugins.extend(more.iter().map(|kind| json!({"type": kind})));
        let list = json!({"cniVersion": "1.1.0", "name": network, "plugins": plugins});
        world.write(&format!("/run/net.d/{network}.conflist"), list.to_string());
    };
    let faults = || {
        let document = parse(&cnibox(&["doctor", "--json"]).stdout);
        let all = document["findings"].as_array().unwrap().clone().into_iter();
        let is_about =
            |finding: &Value| finding["what"].as_str().unwrap().contains("do not answer");
        all.filter(is_about).collect::<Vec<_>>()
    };
    for on in ["host", "container"] {
        if on == "host" {
            world.host(["sh", "-c", FILTER, "sh", "1"]);
        } else {
            world.container("c1").exec(["sh", "-c", FILTER, "sh", "1"]);
        }
    }
    configure("a", 1, &[]);
    configure("b", 2, &[]);
    cnibox(&["add", "a", "c1", "-p", "8081:81"]).success();
    assert_eq!(faults(), [] as [Value; 0]);
    let second = ["b", "c1", "--ifname", "eth1"];
    let add = |ports: &[&str]| cnibox(&[&["add"], &second[..], ports].concat()).success();
    add(&[]);
    assert_eq!(faults(), [] as [Value; 0], "without ports");
    cnibox(&[&["del"], &second[..]].concat()).silence();
    add(&["-p", "8080:80"]);
    let found = faults();
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0]["kind"], "broken");
    let what = found[0]["what"].as_str().unwrap();
    assert!(what.contains(REASON) && what.starts_with("eth1 of container "), "{what}");
    assert!(found[0]["fix"].as_str().unwrap().contains("add the plugin sbr to network b"));
    // As it says.
    cnibox(&[&["del"], &second[..]].concat()).silence();
    configure("b", 2, &["sbr"]);
    add(&["-p", "8080:80"]);
    assert_eq!(faults(), [] as [Value; 0]);
}
