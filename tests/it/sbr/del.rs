//! DEL leaves no rule and no table, also without the interface, and makes no file.

use serde_json::{Value, json};

use super::{call, container, result, routing, sbr};
use crate::world::{World, with};

/// Of our rules and tables nothing is left, while others' are.
fn is_clean(found: &str) -> bool {
    !found.contains("proto 203")
        && !found.contains("table 10")
        && found.contains("from 10.0.0.2 lookup 300")
}

#[test]
fn del_in_all_its_ways() {
    let forgotten = |config: &Value| with(config, json!({"prevResult": null}));
    type Way = (&'static str, &'static str, fn(&Value) -> Value);
    let ways: [Way; 7] = [
        ("as it was added", "true", Value::clone),
        ("without a result", "true", forgotten),
        ("without addresses", "ip address flush dev net1", Value::clone),
        ("without both", "ip address flush dev net1", forgotten),
        ("without the link", "ip link del net1", Value::clone),
        ("without link and result", "ip link del net1", forgotten),
        ("changed", "true", |config| {
            with(config, json!({"gateways": ["nonsense"], "addSourceHints": true}))
        }),
    ];
    for (how, command, change) in ways {
        let world = World::new();
        let c1 = container(&world);
        c1.exec(["ip", "rule", "add", "from", "10.0.0.2", "lookup", "300"]);
        let config = sbr(json!({}), &result(&c1));
        call(&c1, "ADD", &config).run().success();
        assert!(!is_clean(&routing(&c1)));
        c1.exec(["sh", "-c", command]);
        for _ in 0..2 {
            call(&c1, "DEL", &change(&config)).run().silence();
            assert!(is_clean(&routing(&c1)), "{how}: {}", routing(&c1));
        }
    }
}

#[test]
fn the_other_interface_keeps_its_own() {
    let world = World::new();
    let c1 = container(&world);
    let config = sbr(json!({}), &result(&c1));
    call(&c1, "ADD", &config).run().success();
    let eth0 = json!({"ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}]});
    let eth0 = sbr(json!({}), &eth0);
    c1.call("sbr", "ADD", &eth0).run().success();
    c1.exec(["ip", "link", "del", "net1"]);
    call(&c1, "DEL", &with(&config, json!({"prevResult": null}))).run().silence();
    let found = routing(&c1);
    assert!(
        found.contains("from 10.0.0.2 lookup 102")
            && found.contains("default via 10.0.0.1 dev eth0 table 102")
    );
    assert!(!found.contains("from 10.1.0.2") && !found.contains("fd00:1::2"), "{found}");
    c1.call("sbr", "CHECK", &eth0).run().silence();
}

#[test]
fn add_waits_for_a_held_lock() {
    let world = World::new();
    let c1 = container(&world);
    let config = sbr(json!({}), &result(&c1));
    // As the reference locks, and until the test writes into the pipe.
    world.host(["mkfifo", "/run/pipe"]);
    let script = format!("flock {} sh -c 'echo >/run/held; cat /run/pipe'", c1.netns());
    let holder = world.tool(&["sh", "-c", &script], None).start();
    world.eventually("locked", || world.path("/run/held").exists());
    let adding = call(&c1, "ADD", &config).start();
    // In nanosleep(2) or clock_nanosleep(2), between two tries.
    let is_asleep = || {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", adding.pid()));
        call.is_ok_and(|call| call.starts_with("230 ") || call.starts_with("35 "))
    };
    world.eventually("waiting", is_asleep);
    assert!(!routing(&c1).contains("lookup 100"));
    world.host(["sh", "-c", "echo >/run/pipe"]);
    holder.finish().output();
    adding.finish().success();
    assert!(routing(&c1).contains("from 10.1.0.2 lookup 100"));
}
