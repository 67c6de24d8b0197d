//! CHECK: what we set is there, and whatever of it is missing is named.

use serde_json::{Value, json};

use super::{dual_stack, dual_stack_with};
use crate::world::{World, lan};

fn config() -> Value {
    dual_stack_with(json!({"mtu": 1400, "bcqueuelen": 5000}))
}

/// Where (`c`ontainer or `h`ost) what is done, and what CHECK must name.
const CHANGES: [(char, &str, &str); 14] = [
    ('c', "ip address del 10.1.0.2/24 dev eth0", "10.1.0.2/24"),
    ('c', "ip address del fd00:1::2/64 dev eth0", "fd00:1::2/64"),
    ('c', "ip link del eth0", "eth0"),
    ('c', "ip link set eth0 down", "eth0 is down"),
    ('c', "ip link set eth0 address 02:00:00:00:00:99", "MAC address 02:00:00:00:00:99"),
    ('c', "ip link set eth0 mtu 1300", "mtu 1300, not 1400"),
    ('c', "ip link set eth0 type macvlan mode private", "mode bridge"),
    ('c', "ip link set eth0 type macvlan bcqueuelen 7", "bcqueuelen 5000"),
    ('c', "ip route del 10.9.0.0/16", "10.9.0.0/16"),
    ('c', "ip -6 route del fd09::/48", "fd09::/48"),
    ('c', "ip link set eth0 down; ip link set eth0 name x", "eth0"),
    ('c', "ip link del eth0; ip link add eth0 address MAC type bridge", "kind macvlan"),
    ('h', "rm /var/lib/cni/networks/net/10.1.0.2 /var/lib/cni/networks/net/fd00*", "c1"),
    (
        'h',
        "nsenter --net=/run/netns/c1 ip link del eth0
         ip link add other type bridge; ip link set other up
         ip link add link other name eth0 netns /run/netns/c1 address MAC mtu 1400 \
            type macvlan mode bridge bcqueuelen 5000",
        "is not on lan",
    ),
];

#[test]
fn a_changed_setting_is_named() {
    for (place, script, named) in CHANGES {
        let world = World::new();
        let _outside = lan(&world);
        let c1 = world.container("c1");
        let result = c1.add("macvlan", &config());
        c1.check("macvlan", &config(), &result);
        let script = script.replace("MAC", result["interfaces"][0]["mac"].as_str().unwrap());
        if place == 'h' {
            world.host(["sh", "-ec", &script]);
        } else {
            c1.exec(["sh", "-ec", &script]);
        }
        let outcome = c1.checking("macvlan", &config(), &result).run();
        assert!(outcome.status != 0, "CHECK does not see: {script}\n{}", outcome.report());
        let error = outcome.error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.contains(named), "{script}\nnot named {named}: {error:?}");
    }
}

#[test]
fn unset_keys_are_not_compared() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    let result = c1.add("macvlan", &dual_stack());
    c1.exec(["ip", "link", "set", "eth0", "mtu", "1300"]);
    c1.exec(["ip", "address", "add", "10.201.0.1/24", "dev", "eth0"]);
    let before = world.state_with(&[&c1]);
    c1.check("macvlan", &dual_stack(), &result);
    before.assert_same(&world.state_with(&[&c1]), "after CHECK");
}
