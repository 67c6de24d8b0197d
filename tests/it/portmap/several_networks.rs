//! A container in several networks publishes its ports in each of them, as with `podman run --network a,b -p 8080:80`.

use serde_json::{Value, json};

use super::{ask, chained, elements, neighbours, network, portmap, result, serve, tcp, udp};
use crate::world::{Container, Outcome, World, with};

const NETWORKS: [usize; 3] = [0, 1, 2];

fn call(container: &Container<'_>, verb: &str, number: usize, config: &Value) -> Outcome {
    let config = with(config, json!({"name": format!("net{number}")}));
    let plugin = config["type"].as_str().unwrap();
    container.call(plugin, verb, &config).env("CNI_IFNAME", &format!("eth{number}")).run()
}

/// The configuration of a bridge of its own.
fn bridge(number: usize) -> Value {
    let v4 = json!({"subnet": format!("10.{}.0.0/16", number + 1)});
    let v6 = json!({"subnet": format!("fd00:1:{number}::/64")});
    let own = json!({
        "bridge": format!("cni{number}"), "isGateway": true, "isDefaultGateway": number == 0,
        "ipam": {"type": "host-local", "ranges": [[v4], [v6]]},
    });
    with(&network(), own)
}

fn ports() -> Value {
    let one_address = with(&tcp(8081, 80), json!({"hostIP": "192.0.2.1"}));
    portmap(json!([tcp(8080, 80), udp(8080, 80), one_address]))
}

#[test]
fn a_port_stays_published_until_the_last_network_is_left() {
    let world = World::new();
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let [outside, _] = neighbours(&world);
    let results = NETWORKS.map(|number| call(&c1, "ADD", number, &bridge(number)).success());
    let published = |number: usize| chained(&ports(), &results[number]);
    let publish = |number: usize| drop(call(&c1, "ADD", number, &published(number)).success());
    let withdraw = |number: usize| call(&c1, "DEL", number, &portmap(json!(null))).silence();
    let check = |number: usize| call(&c1, "CHECK", number, &published(number)).silence();
    serve(&c1, "tcp", 80);
    let answers = || {
        for (address, port) in [("192.0.2.1", 8080), ("192.0.2.1", 8081), ("fd00:2::1", 8080)] {
            let answer = ask(&world, Some(&outside.netns()), "tcp", address, port);
            assert!(answer.starts_with("c1 "), "{address} {port}: {answer}");
        }
    };
    NETWORKS.into_iter().for_each(publish);
    for gone in [0, 1, 2, 1] {
        NETWORKS.into_iter().for_each(check);
        withdraw(gone);
        NETWORKS.into_iter().filter(|number| *number != gone).for_each(check);
        answers();
        for port in [tcp(8080, 81), with(&tcp(8081, 81), json!({"hostIP": "192.0.2.1"}))] {
            let config = chained(&portmap(json!([port])), &result(2, &c2.netns()));
            c2.call("portmap", "ADD", &config).run().fails(999, &["container c1"]);
        }
        // Twice is once.
        publish(gone);
        publish(gone);
    }
    withdraw(0);
    let keep = json!({"cni.dev/valid-attachments": []});
    call(&c1, "GC", 2, &with(&portmap(json!(null)), keep)).silence();
    answers();
    check(1);
    withdraw(1);
    assert_eq!(elements(&world), [""; 0]);
    let ruleset = world.host(["nft", "list", "ruleset"]);
    assert!(!ruleset.contains("besides"), "{ruleset}");
}

/// Conditions that are the container's own are not another's.
#[test]
fn conditions_keep_their_meaning() {
    let world = World::new();
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let if_from =
        |net: &str| with(&portmap(json!([tcp(8080, 80)])), json!({"conditionsV4": ["-s", net]}));
    let made_up = |container: &Container<'_>, number: u32, config: &Value| {
        chained(config, &result(number, &container.netns()))
    };
    for number in [0, 1] {
        let config = made_up(&c1, u32::try_from(number).unwrap(), &if_from("10.0.0.0/8"));
        call(&c1, "ADD", number, &config).success();
        call(&c1, "CHECK", number, &config).silence();
    }
    for (config, is_taken) in [
        (if_from("10.0.0.0/8"), true),
        (portmap(json!([tcp(8080, 80)])), true),
        (if_from("172.16.0.0/12"), false),
    ] {
        // Only IPv4 has conditions that differ.
        let ipv4 = with(
            &config,
            json!({"runtimeConfig": {"portMappings": [
                with(&tcp(8080, 80), json!({"hostIP": "0.0.0.0"}))
            ]}}),
        );
        let outcome = c2.call("portmap", "ADD", &made_up(&c2, 2, &ipv4)).run();
        if is_taken {
            outcome.fails(999, &["container c1"]);
        } else {
            outcome.success();
        }
    }
    for number in [0, 1] {
        call(&c1, "DEL", number, &portmap(json!(null))).silence();
    }
    c2.del("portmap", &portmap(json!(null)));
    assert_eq!(elements(&world), [""; 0]);
}
