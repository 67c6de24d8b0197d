//! Rules that `nft list ruleset` wrote and `nft -f` restored, as text or as JSON, have other expressions with the same effect:
//! CHECK accepts them, ADD adds nothing, and DEL removes the elements of its owner.

use serde_json::{Value, json};

use super::{network, owned, ruleset};
use crate::world::{Container, World, with};

/// A plugin with rules in nf_tables, and its keys.
struct Case {
    plugin: &'static str,
    keys: Value,
}

fn cases() -> Vec<Case> {
    let case = |plugin, keys| Case { plugin, keys };
    let conditions = |v4: Value, v6: Value| json!({"conditionsV4": v4, "conditionsV6": v6});
    vec![
        case("bridge", json!({"ipMasq": true})),
        case("bridge", json!({"macspoofchk": true})),
        case("veth", json!({"ipMasq": true})),
        case("firewall", json!({})),
        case("firewall", json!({"ingressPolicy": "same-bridge"})),
        case("firewall", json!({"ingressPolicy": "isolated"})),
        case("portmap", json!({})),
        case("portmap", json!({"snat": false})),
        case("portmap", json!({"masqAll": true})),
        case("portmap", conditions(json!(["-s", "10.0.0.1", "-d", "10.0.0.2"]), json!([]))),
        case("portmap", conditions(json!(["!", "-s", "10.0.0.0/9"]), json!(["-s", "fd00::/57"]))),
        case("portmap", conditions(json!(["-i", "eth+"]), json!(["!", "-i", "eth0"]))),
        case("portmap", conditions(json!(["--sport", "1:9", "-p", "tcp"]), json!(["th sport 9"]))),
        case(
            "portmap",
            conditions(
                json!(["--sport", "7", "--dport", "9"]),
                json!(["-m", "mark", "--mark", "1/3"]),
            ),
        ),
        case(
            "portmap",
            conditions(
                json!([
                    "-m",
                    "iprange",
                    "--src-range",
                    "10.0.0.1-10.0.0.9",
                    "-m",
                    "mark",
                    "--mark",
                    "7"
                ]),
                json!(["ip6 saddr != fd00::1-fd00::9", "meta mark 8", "ct mark 0x10"]),
            ),
        ),
        case(
            "portmap",
            conditions(
                json!(["-m", "multiport", "!", "--sports", "1:9"]),
                json!(["fib daddr type local"]),
            ),
        ),
    ]
}

impl Case {
    /// The configuration, and what comes before it in the list.
    fn config(&self, port: u16) -> (Value, Option<Value>) {
        let mappings = json!([
            {"hostPort": port, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": port + 1, "containerPort": 81, "protocol": "tcp", "hostIP": "192.0.2.1"},
        ]);
        let more = with(&self.keys, json!({"runtimeConfig": {"portMappings": mappings}}));
        match self.plugin {
            "bridge" | "veth" => (network(self.plugin, self.keys.clone()), None),
            plugin => {
                let config = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin});
                (with(&config, more), Some(network("bridge", json!({}))))
            }
        }
    }

    fn add(&self, container: &Container<'_>, port: u16) -> (Value, Value) {
        let (config, before) = self.config(port);
        let Some(before) = before else {
            let result = container.add(self.plugin, &config);
            return (config, result);
        };
        let result = container.add("bridge", &before);
        let config = with(&config, json!({"prevResult": result}));
        container.add(self.plugin, &config);
        (config, result)
    }
}

/// How the rules are written and read back.
#[derive(Clone, Copy)]
enum Format {
    Text,
    Json,
}

/// As an administrator does it.
fn restore(world: &World, format: Format) {
    match format {
        Format::Text => {
            let script = "nft list ruleset >/run/f; nft flush ruleset; nft -f /run/f";
            world.host(["sh", "-ec", script]);
        }
        Format::Json => restore_rules_as_json(world),
    }
}

/// The rules only: nft cannot read the maps that it writes as JSON if a value has several parts.
fn restore_rules_as_json(world: &World) {
    let mut listed = world.host_json(["nft", "-j", "list", "ruleset"]);
    let objects = listed["nftables"].as_array_mut().unwrap();
    let tables = objects.iter().filter_map(|object| object.get("table"));
    for table in tables {
        let [family, name] = ["family", "name"].map(|key| table[key].as_str().unwrap());
        world.host(["nft", "flush", "table", family, name]);
    }
    objects.retain(|object| object.get("rule").is_some());
    // As text it writes the match of iptables in its own words; JSON with this match it refuses.
    let mark = json!({"match": {
        "op": "==", "left": {"&": [{"meta": {"key": "mark"}}, 0x1000]}, "right": 0x1000,
    }});
    let xt = json!({"xt": {"type": "match", "name": "mark"}}).to_string();
    let text = listed.to_string().replace(&xt, &mark.to_string());
    world.tool(&["nft", "-j", "-f", "-"], None).stdin(text).run().output();
}

/// All but the elements.
fn rules(world: &World) -> Vec<String> {
    let listed = world.host_json(["nft", "-j", "list", "ruleset"]);
    let mut lines = Vec::new();
    for object in listed["nftables"].as_array().unwrap() {
        let mut object = object.clone();
        for (_, object) in object.as_object_mut().unwrap() {
            let object = object.as_object_mut().unwrap();
            object.remove("elem");
            object.remove("handle");
        }
        lines.push(object.to_string());
    }
    lines.sort();
    lines
}

#[test]
fn rules_that_nft_restored_are_recognised() {
    are_recognised(Format::Text);
}

#[test]
fn rules_that_nft_restored_from_json_are_recognised() {
    are_recognised(Format::Json);
}

fn are_recognised(format: Format) {
    for case in cases() {
        let world = World::new();
        if case.plugin == "firewall" {
            for tool in ["iptables", "ip6tables"] {
                world.host([tool, "-P", "FORWARD", "DROP"]);
            }
        }
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        let (config, result) = case.add(&c1, 8080);
        let text = format!("{} {}", case.plugin, case.keys);
        let elements = owned(&world);
        assert!(elements > 0, "{text}: it has elements");
        restore(&world, format);
        assert_eq!(owned(&world), elements, "{text}");
        let restored = rules(&world);
        let check = c1.checking(case.plugin, &config, &result).run();
        assert_eq!(check.status, 0, "{text}: {}", check.report());
        case.add(&c2, 9080);
        assert_eq!(rules(&world), restored, "{text}: after the ADD of another container");
        assert_eq!(owned(&world), 2 * elements, "{text}");
        c1.check(case.plugin, &config, &result);
        restore(&world, format);
        c1.del(case.plugin, &config);
        assert_eq!(owned(&world), elements, "{text}: after the DEL of the first");
        assert!(!ruleset(&world).contains("net c1 eth0"), "{text}");
    }
}

#[test]
fn bandwidth_has_nothing_in_nf_tables() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &network("bridge", json!({})));
    let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "bandwidth", "prevResult": result,
        "ingressRate": 8000, "ingressBurst": 8000, "egressRate": 8000, "egressBurst": 8000});
    c1.add("bandwidth", &config);
    assert_eq!(ruleset(&world), "");
}
