//! Many calls at the same time, and many existing elements.

use serde_json::{Value, json};

use super::{OUTSIDE, bridge, drop_forwarded, firewall, outside, rules};
use crate::world::{Container, Outcome, World, all_at_once};

const MANY: usize = 32;

#[test]
fn thirty_two_at_once_lose_nothing_and_leave_nothing() {
    let world = World::new();
    let _outside = outside(&world);
    drop_forwarded(&world);
    let containers: Vec<Container<'_>> =
        (0..MANY).map(|number| world.container(&format!("c{number}"))).collect();
    let network = bridge("net", 1);
    let adds = all_at_once(containers.iter().map(|c| c.call("bridge", "ADD", &network)));
    let results: Vec<Value> = adds.into_iter().map(Outcome::success).collect();
    let policies = ["open", "same-bridge", "isolated"];
    let keys = |number: usize| json!({"ingressPolicy": policies[number % 3]});
    let configs: Vec<Value> = results
        .iter()
        .enumerate()
        .map(|(number, result)| firewall("net", keys(number), result))
        .collect();
    let calls = |verb| {
        let pairs = containers.iter().zip(&configs);
        all_at_once(pairs.map(|(c, config)| c.call("firewall", verb, config)))
    };
    for (outcome, result) in calls("ADD").into_iter().zip(&results) {
        assert_eq!(outcome.success(), *result);
    }
    calls("CHECK").into_iter().for_each(Outcome::silence);
    let count = |text: &str| rules(&world).matches(text).count();
    // Of each family: in the set, and in one of the maps for those with a policy.
    let with_policy = (0..MANY).filter(|number| number % 3 != 0).count();
    let isolated = (0..MANY).filter(|number| number % 3 == 2).count();
    assert_eq!(count("comment \"net c"), 2 * (MANY + with_policy) + isolated);
    assert_eq!(count("comment \"CNI firewall plugin rules\""), 2);
    for address in OUTSIDE {
        let pings = all_at_once(containers.iter().map(|c| c.pinging(address)));
        pings.into_iter().for_each(|ping| drop(ping.output()));
    }
    calls("DEL").into_iter().for_each(Outcome::silence);
    assert_eq!((count("\"net c"), count("\"br1\"")), (0, 0), "{}", rules(&world));
}

/// Compares the sizes of netlink messages, not times.
#[test]
fn an_add_does_not_look_at_the_others() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    drop_forwarded(&world);
    let once = |container: &Container<'_>| {
        let result = container.add("bridge", &bridge("net", 1));
        let config = firewall("net", json!({"ingressPolicy": "isolated"}), &result);
        let call = container.call("firewall", "ADD", &config);
        let outcome =
            call.under(&["strace", "-e", "trace=recvfrom,recvmsg", "-e", "signal=none"]).run();
        let lines = outcome.stderr.lines().filter_map(|line| line.rsplit("= ").next());
        let bytes: u64 = lines.filter_map(|count| count.parse::<u64>().ok()).sum();
        outcome.success();
        super::forget(container, "net");
        container.del("bridge", &bridge("net", 1));
        bytes
    };
    // The first one makes what all share, and so reads less.
    once(&c1);
    let received =
        |container: &Container<'_>| [(); 5].map(|()| once(container)).into_iter().min().unwrap();
    let alone = received(&c1);
    for (family, name, address) in [("ip", "ipv4", "10.200."), ("ip6", "ipv6", "fd00:200::")] {
        let separator = if family == "ip" { "." } else { ":" };
        let element = |number: u32| {
            format!(
                "{address}{}{separator}{} comment \"net x{number} eth0\"",
                number / 200 + 1,
                number % 200 + 1
            )
        };
        // nft takes no more at once.
        for first in (0..2000).step_by(200) {
            let mut script = String::new();
            for address in (first..first + 200).map(element) {
                script.push_str(&format!(
                    "add element {family} cnibox firewall-addresses {{ {address} }}\n\
                     add element {family} cnibox firewall-isolated {{ {address} : \"br1\" }}\n"
                ));
            }
            world.write("/run/elements", script);
            world.host(["nft", "-f", "/run/elements"]);
        }
        assert!(rules(&world).contains(name));
    }
    let among_many = received(&c2);
    assert!(among_many <= alone + alone / 10, "{alone} bytes alone, {among_many} among 2000");
}
