//! What cannot be read is not absent: a living container keeps what it has, whatever its record has become, until its DEL or the
//! operator's word.

use serde_json::{Value, json};

use super::{CONFIGURATIONS, Host, list};
use crate::world::{Container, Running, parse, with};

/// Shell commands that make a record unreadable, each with a part of the reason.
const DAMAGES: [(&str, &str); 6] = [
    ("truncate -s 0 \"$0\"", "it is empty"),
    ("head -c 60 \"$0\" >/run/cut; mv /run/cut \"$0\"", "EOF"),
    ("truncate -s 17M \"$0\"", "more than 16777216 bytes"),
    (r#"sed -i 's/"maker":"[a-z]*"/"maker":"cnibox2"/' "$0""#, "cnibox2"),
    (r#"sed -i 's/"version":1/"version":2/' "$0""#, "its form has version 2"),
    ("rm \"$0\"; mkdir \"$0\"", "it is a directory"),
];

/// A macvlan with a reservation, and a bridge with a published port.
const NETWORKS: [(&str, &str); 2] = [("lan", "10.1.0.2"), ("net", "10.2.0.2")];

fn host() -> Host {
    let host = Host::new();
    host.world.host(["sh", "-ec", "ip link add lan0 type bridge; ip link set lan0 up"]);
    let ipam = |subnet: &str| json!({"type": "host-local", "ranges": [[{"subnet": subnet}]]});
    let mut lan = list("1.1.0", &[]);
    lan["name"] = "lan".into();
    lan["plugins"] = json!([{"type": "macvlan", "master": "lan0", "ipam": ipam("10.1.0.0/24")}]);
    let mut net = list("1.1.0", &[]);
    let bridge =
        json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam("10.2.0.0/24")});
    net["plugins"] = json!([bridge, {"type": "portmap", "capabilities": {"portMappings": true}}]);
    host.configure("1.conflist", &lan);
    host.configure("2.conflist", &net);
    host
}

impl Host {
    /// A container with an interface in each network, of which only a process holds the namespace.
    fn living(&self, name: &str) -> Running {
        let container = self.world.container(name);
        let process = container.tool(["sleep", "1000"]).start();
        for (network, ports) in [("lan", &[][..]), ("net", &["-p", "8080:80", "-i", "eth1"])] {
            let add = ["add", network, name, "--container-id", name];
            self.cnibox(&[&add[..], ports].concat()).run().success();
        }
        container.destroy();
        process
    }

    fn states(&self) -> Vec<(String, String)> {
        let document = parse(&self.cnibox(&["attachments", "--json"]).run().output());
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let all = document["attachments"].as_array().unwrap();
        all.iter().map(|entry| (text(entry, "state"), text(entry, "reason"))).collect()
    }

    fn damage(&self, damage: &str, record: &str) {
        self.world.host(["sh", "-ec", damage, record]);
    }
}

fn records(id: &str) -> [String; 2] {
    [("lan", "eth0"), ("net", "eth1")]
        .map(|(network, ifname)| format!("/var/lib/cni/attachments/{network}+{id}+{ifname}"))
}

#[test]
fn a_living_container_keeps_everything_while_its_record_cannot_be_read() {
    for (damage, reason) in DAMAGES {
        let host = host();
        let _process = host.living("c1");
        assert!(host.states().iter().all(|(state, _)| state == "alive"), "{:?}", host.states());
        for record in records("c1") {
            host.damage(damage, &record);
        }
        let before = host.state();
        for command in [
            &["gc"][..],
            &["gc", "--dry-run"],
            &["gc", "--confirm"],
            &["doctor", "--fix", "--yes"],
            &["ipam", "release", "--leaks"],
            &["reconcile"],
            &["attachments"],
        ] {
            let outcome = host.cnibox(command).run();
            let report = outcome.report();
            before.assert_same(&host.state(), &format!("{damage}: {report}"));
            for record in records("c1") {
                assert!(host.world.path(&record).exists(), "{damage}: {report}");
                if matches!(command[0], "gc" | "attachments") {
                    let said = outcome.stderr.contains(&record) && outcome.stderr.contains(reason);
                    assert!(said, "{damage}: {report}");
                    let command = "cnibox gc --unknown lan/c1/eth0 removes it";
                    assert!(outcome.stderr.contains(command), "{damage}: {report}");
                }
            }
        }
        let found = host.cnibox(&["doctor"]).run();
        assert!(found.stdout.contains(reason), "{damage}: {}", found.report());
        for (state, why) in host.states() {
            assert!(state == "unknown" && why.contains(reason), "{damage}: {state}: {why}");
        }
        // unlink(2) removes no directory.
        if !damage.contains("mkdir") {
            host.operator_removes("c1");
        }
    }
}

impl Host {
    /// `gc --unknown` removes the attachments with their records and reservations.
    fn operator_removes(&self, id: &str) {
        for name in [format!("lan/{id}/eth0"), format!("net/{id}/eth1")] {
            let outcome = self.cnibox(&["gc", "--unknown", &name]).run();
            assert_eq!(outcome.status, 0, "{}", outcome.report());
        }
        // The claims of an unreadable record are swept later.
        self.cnibox(&["gc"]).run().silence();
        let kept = self.kept().into_iter().filter(|path| !path.ends_with("/confirm"));
        assert_eq!(kept.collect::<Vec<_>>(), [""; 0]);
        for (network, address) in NETWORKS {
            let path = format!("/var/lib/cni/networks/{network}/{address}");
            assert!(!self.world.path(&path).exists(), "{path}");
        }
        assert!(!self.world.host(["nft", "list", "ruleset"]).contains("8080"));
    }
}

#[test]
fn an_add_replaces_no_unreadable_record() {
    for (damage, _) in DAMAGES {
        let host = host();
        let _process = host.living("c1");
        let [record, _] = records("c1");
        host.damage(damage, &record);
        let before = host.state();
        host.world.container("c1");
        let add = ["add", "lan", "c1", "--container-id", "c1"];
        let refused = host.cnibox(&add).run();
        let said = refused.stderr.contains("cannot read record") && refused.status == 1;
        assert!(said, "{}", refused.report());
        before.assert_same(&host.state(), damage);
        // Without its cache entry, too: another runtime can have made the attachment.
        host.world.host(["rm", "/var/lib/cni/results/lan-c1-eth0"]);
        let before = host.state();
        let refused = host.cnibox(&add).run();
        let said = refused.stderr.contains("cnibox gc --unknown lan/c1/eth0 removes it");
        assert!(said && refused.status == 1, "{}", refused.report());
        before.assert_same(&host.state(), damage);
        // The DEL of its runtime needs no record, and removes it.
        let config = host.world.read(&format!("{CONFIGURATIONS}/1.conflist"));
        let config =
            with(&parse(&config)["plugins"][0], json!({"cniVersion": "1.1.0", "name": "lan"}));
        if damage.contains("mkdir") {
            continue;
        }
        let del = host.world.call("macvlan", "DEL", &config).env("CNI_CONTAINERID", "c1");
        del.env("CNI_IFNAME", "eth0").run().silence();
        assert!(!host.world.path(&record).exists());
        host.cnibox(&add).run().success();
    }
}

#[test]
fn the_address_of_a_container_whose_record_cannot_be_read_is_taken() {
    let host = host();
    let ipam = json!({"type": "static", "addresses": [{"address": "10.3.0.7/24"}, {"address": "fd00:3::7/64"}]});
    let config = json!({"cniVersion": "1.0.0", "name": "one", "type": "macvlan", "master": "lan0", "ipam": ipam});
    for (damage, reason) in DAMAGES {
        let [c1, c2] = ["c1", "c2"].map(|name| host.world.container(name));
        let process = c1.tool(["sleep", "1000"]).start();
        c1.add("macvlan", &config);
        c1.destroy();
        let record = host.record_of("one", "c1");
        let whole = host.world.read(&record);
        host.damage(damage, &record);
        let refused = c2.call("macvlan", "ADD", &config).run();
        let remover = "cnibox gc --unknown one/c1/eth0 removes it";
        refused.fails(
            999,
            &["cannot use 10.3.0.7 on link lan0: eth0 of container c1", reason, remover],
        );
        host.world.host(["rm", "-rf", &record]);
        host.world.write(&record, whole);
        host.world.host(["kill", &process.pid_in_world().to_string()]);
        process.finish();
        host.world.eventually("the address is free", || {
            c2.call("macvlan", "ADD", &config).run().status == 0
        });
        c2.del("macvlan", &config);
        c2.destroy();
    }
}

/// The namespace at the path has an interface of the name that names no owner, as the reference makes it.
#[test]
fn a_del_with_an_unreadable_record_spares_the_container_at_its_path() {
    for (damage, _) in DAMAGES {
        if damage.contains("mkdir") {
            continue;
        }
        let host = host();
        let config = host.world.read(&format!("{CONFIGURATIONS}/1.conflist"));
        let config =
            with(&parse(&config)["plugins"][0], json!({"cniVersion": "1.1.0", "name": "lan"}));
        let add = |container: &Container<'_>, id: &str| {
            let call = host.world.call("macvlan", "ADD", &config).env("CNI_CONTAINERID", id);
            let call = call.env("CNI_NETNS", &container.netns()).env("CNI_IFNAME", "eth0");
            call.run().success()
        };
        let pod = host.world.container("pod");
        let result = add(&pod, "a");
        host.damage(damage, &host.record_of("lan", "a"));
        let del = |id: &str, config: &Value| {
            let call = host.world.call("macvlan", "DEL", config).env("CNI_CONTAINERID", id);
            call.env("CNI_NETNS", &pod.netns()).env("CNI_IFNAME", "eth0").run()
        };
        // The interface of the result is in the namespace: it goes.
        let with_result = with(&config, json!({"prevResult": result}));
        assert_eq!(del("a", &with_result).status, 0);
        assert!(!pod.exec(["ip", "-o", "link"]).contains("eth0"));
        let result = add(&pod, "a");
        host.damage(damage, &host.record_of("lan", "a"));
        pod.destroy();
        let pod = host.world.container("pod");
        host.world.host(["sh", "-ec", "ip link add link lan0 name new0 type macvlan mode bridge; ip link set new0 netns pod name eth0"]);
        for config in [&with(&config, json!({"prevResult": result})), &config] {
            host.world.write(&host.record_of("lan", "a"), "");
            let outcome = del("a", config);
            assert_eq!(outcome.status, 0, "{}", outcome.report());
            assert!(pod.exec(["ip", "-o", "link"]).contains("eth0"), "{damage}");
        }
        assert!(!host.world.path(host.record_of("lan", "a")).exists());
    }
}

#[test]
fn reconcile_enters_only_the_namespace_of_the_add() {
    let host = host();
    let mut tuned = list("1.1.0", &[]);
    tuned["name"] = "tuned".into();
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.4.0.0/24"}]]});
    let sysctl = json!({"net.ipv4.conf.IFNAME.arp_filter": "1"});
    tuned["plugins"] = json!([
        {"type": "macvlan", "master": "lan0", "ipam": ipam},
        {"type": "tuning", "mtu": 1400, "promisc": true, "mac": "02:00:00:00:00:77", "sysctl": sysctl},
    ]);
    host.configure("3.conflist", &tuned);
    let c1 = host.world.container("c1");
    let _process = c1.tool(["sleep", "1000"]).start();
    host.cnibox(&["add", "tuned", "c1", "--container-id", "c1"]).run().success();
    c1.destroy();
    let other = host.world.container("c1");
    host.world.host(["sh", "-ec", "ip link add link lan0 name new0 type macvlan mode bridge; ip link set new0 netns c1 name eth0"]);
    let before = host.world.state_with(&[&other]);
    for words in [&["reconcile", "--inside", "--dry-run"][..], &["reconcile", "--inside"]] {
        let outcome = host.cnibox(words).run();
        before.assert_same(&host.world.state_with(&[&other]), &outcome.report());
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(said.contains("is another network namespace than at the ADD"), "{said}");
        assert!(!said.contains("restored"), "{said}");
    }
    let check = host.cnibox(&["check", "tuned", "c1", "--container-id", "c1"]).run();
    let said = check.stderr.contains("is another network namespace than at the ADD");
    assert!(check.status == 1 && said, "{}", check.report());
}
