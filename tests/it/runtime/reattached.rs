//! A container is attached again by a main plugin that writes no record, with our chained plugins behind it. It lives, whatever the
//! record of an earlier one of its name tells.

use std::path::Path;

use serde_json::{Value, json};

use super::Host;
use crate::parity::reference;
use crate::portmap::{ask, elements, neighbours, serve};
use crate::world::{Container, with};

/// The chained plugins in the order of the list.
const CHAINS: [&[&str]; 4] =
    [&["portmap", "firewall"], &["firewall", "portmap"], &["bandwidth", "portmap"], &["portmap"]];

fn config(plugin: &str, keys: Value) -> Value {
    with(&json!({"cniVersion": "1.0.0", "name": "net", "type": plugin}), keys)
}

/// The main plugin. Its IPAM plugin writes no record either if it is the reference's.
pub(super) fn bridge(number: u8) -> Value {
    let addresses = json!([
        {"address": format!("10.1.0.{number}/24"), "gateway": "10.1.0.1"},
        {"address": format!("fd00:1::{number}/64"), "gateway": "fd00:1::1"},
    ]);
    let ipam = json!({"type": "static", "addresses": addresses, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
    let keys = json!({"bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": ipam});
    config("bridge", keys)
}

pub(super) fn chained(plugin: &str, port: u16) -> Value {
    let ports = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let keys = match plugin {
        "portmap" => json!({"runtimeConfig": {"portMappings": ports}}),
        "bandwidth" => json!({"ingressRate": 80_000_000, "ingressBurst": 8_000_000,
            "egressRate": 80_000_000, "egressBurst": 8_000_000}),
        _ => json!({"backend": "iptables", "ingressPolicy": "same-bridge"}),
    };
    config(plugin, keys)
}

fn is_recorded(host: &Host, id: &str) -> bool {
    Path::new(&host.world.path(host.record_of("net", id))).exists()
}

pub(super) fn add_by_go(container: &Container<'_>, number: u8) -> Value {
    let call = container.call("bridge", "ADD", &bridge(number)).of_directory(&reference());
    call.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").run().success()
}

pub(super) fn add_chain(container: &Container<'_>, chain: &[&str], port: u16, result: &Value) {
    for plugin in chain {
        let config = with(&chained(plugin, port), json!({"prevResult": result}));
        container.add(plugin, &config);
    }
}

pub(super) fn del_chain(container: &Container<'_>, chain: &[&str], result: &Value) {
    for plugin in chain.iter().rev() {
        container.del(plugin, &with(&chained(plugin, 8080), json!({"prevResult": result})));
    }
}

/// The same by plugins of others: the main one is the last.
fn del_by_go(container: &Container<'_>, number: u8) {
    let call = container.call("bridge", "DEL", &bridge(number)).of_directory(&reference());
    call.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").run().silence();
}

/// A container of our plugins that ended without a DEL.
fn ended(host: &Host, name: &str, number: u8, chain: &[&str]) {
    let container = host.world.container(name);
    let links = host.world.links();
    let result = container.add("bridge", &bridge(number));
    add_chain(&container, chain, 8080, &result);
    destroy(host, &container, &links);
}

/// Ends a container, up to the end of its links.
fn destroy(host: &Host, container: &Container<'_>, links: &[String]) {
    container.destroy();
    let is_old = |link: &String| links.contains(link) || !link.starts_with("veth");
    host.world.eventually("its link is gone", || host.world.links().iter().all(is_old));
}

fn refuses_its_port(host: &Host) {
    let c2 = host.world.container("c2");
    let result = c2.add("bridge", &bridge(5));
    let config = with(&chained("portmap", 8080), json!({"prevResult": result}));
    let taken = "it is taken by network net, container c1, interface eth0";
    let error = c2.call("portmap", "ADD", &config).run().error();
    let said = format!("{}: {}", error.msg, error.details);
    assert!(said.contains(taken) && !said.contains("may have ended"), "{said}");
    c2.del("bridge", &with(&bridge(5), json!({"prevResult": result})));
}

#[test]
fn its_rules_stay_and_its_port_answers() {
    for chain in CHAINS {
        let host = Host::new();
        let [outside, _] = neighbours(&host.world);
        ended(&host, "c1", 2, chain);
        let c1 = host.world.container("c1");
        let result = add_by_go(&c1, 3);
        add_chain(&c1, chain, 8080, &result);
        serve(&c1, "tcp", 80);
        let answers = || {
            for address in ["192.0.2.1", "fd00:2::1"] {
                let answer = ask(&host.world, Some(&outside.netns()), "tcp", address, 8080);
                assert!(answer.starts_with("c1"), "{chain:?} {address}: {answer}");
            }
        };
        answers();
        refuses_its_port(&host);
        let before = elements(&host.world);
        for family in ["ip ", "ip6 "] {
            let is_its = |line: &String| line.starts_with(family) && line.ends_with("net c1 eth0");
            assert!(before.iter().any(is_its), "{chain:?}: {before:#?}");
        }
        host.cnibox(&["gc"]).run().silence();
        assert_eq!(before, elements(&host.world), "{chain:?}");
        for plugin in chain {
            c1.check(plugin, &chained(plugin, 8080), &result);
        }
        answers();
    }
}

/// Also without an earlier one of its name.
#[test]
fn nothing_is_left_after_its_end() {
    for (chain, is_first) in CHAINS.into_iter().flat_map(|chain| [(chain, true), (chain, false)]) {
        for way in ["gc", "ADD of another", "DEL", "late DEL", "GC"] {
            let what = format!("{chain:?} {is_first} {way}");
            let host = Host::new();
            let links = host.world.links();
            if !is_first {
                ended(&host, "c1", 2, chain);
            }
            let c1 = host.world.container("c1");
            let result = add_by_go(&c1, 3);
            add_chain(&c1, chain, 8080, &result);
            // Repeated.
            add_chain(&c1, chain, 8080, &result);
            match way {
                "DEL" => {
                    del_chain(&c1, chain, &result);
                    del_by_go(&c1, 3);
                    assert_eq!(host.kept(), [""; 0], "{what}");
                    destroy(&host, &c1, &links);
                }
                "late DEL" => {
                    destroy(&host, &c1, &links);
                    del_chain(&c1, chain, &result);
                    assert_eq!(host.kept(), [""; 0], "{what}");
                }
                "GC" => {
                    let keep = |ids: Value| json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": ids});
                    for ids in [json!([{"containerID": "c1", "ifname": "eth0"}]), json!([])] {
                        assert!(is_recorded(&host, "c1"), "{what}");
                        for plugin in chain {
                            let config = with(&chained(plugin, 8080), keep(ids.clone()));
                            host.world.call(plugin, "GC", &config).run().silence();
                        }
                    }
                    assert!(!is_recorded(&host, "c1"), "{what}");
                    destroy(&host, &c1, &links);
                }
                "gc" => {
                    destroy(&host, &c1, &links);
                    let said = host.cnibox(&["gc"]).run().output();
                    let line = "removed the rules and links of eth0 of container c1 in network net";
                    assert!(said.starts_with(line), "{what}: {said}");
                }
                _ => {
                    destroy(&host, &c1, &links);
                    let c2 = host.world.container("c2");
                    let result = c2.add("bridge", &bridge(3));
                    add_chain(&c2, chain, 8080, &result);
                    del_chain(&c2, chain, &result);
                    c2.del("bridge", &with(&bridge(3), json!({"prevResult": result})));
                    // Of c1 the record and rules that were not in the way.
                    host.cnibox(&["gc"]).run();
                }
            }
            assert_eq!(elements(&host.world), [""; 0], "{what}");
            let ifbs = host.world.links().into_iter().filter(|link| !links.contains(link));
            let ifbs: Vec<String> = ifbs.filter(|link| link != "cni0").collect();
            assert_eq!(ifbs, [""; 0], "{what}");
            host.cnibox(&["gc"]).run().silence();
            assert_eq!(host.kept(), [""; 0], "{what}");
        }
    }
}

/// The record of our main plugin is that of the whole chain.
#[test]
fn a_chained_plugin_leaves_the_record_of_ours() {
    for chain in CHAINS {
        let host = Host::new();
        let c1 = host.world.container("c1");
        let result = c1.add("bridge", &bridge(2));
        let read = || host.world.read(&host.record_of("net", "c1")).replace("\n\n", "\n");
        let record = read();
        add_chain(&c1, chain, 8080, &result);
        let names = chain.iter().map(|name| match *name {
            "portmap" => {
                let ports = ["ip", "ip6"].map(|of| format!("{of} portmap-published any tcp 8080"));
                json!({"plugins": [name], "ports": ports}).to_string() + "\n"
            }
            _ => format!("{{\"plugins\":[\"{name}\"]}}\n"),
        });
        let with_names = record + &names.collect::<String>();
        assert_eq!(read(), with_names, "{chain:?}: ADD");
        del_chain(&c1, chain, &result);
        assert_eq!(read(), with_names + "{\"deleting\":true}\n", "{chain:?}: DEL");
        c1.del("bridge", &with(&bridge(2), json!({"prevResult": result})));
        assert_eq!(host.kept(), [""; 0], "{chain:?}");
    }
}

/// Our main plugin again, in the same namespace and without a DEL.
#[test]
fn our_main_plugin_replaces_the_record_of_a_chained_one() {
    let host = Host::new();
    let c1 = host.world.container("c1");
    let result = add_by_go(&c1, 3);
    add_chain(&c1, &["portmap"], 8080, &result);
    c1.exec(["ip", "link", "del", "eth0"]);
    let result = c1.add("bridge", &bridge(2));
    add_chain(&c1, &["portmap"], 8080, &result);
    del_chain(&c1, &["portmap"], &result);
    assert!(is_recorded(&host, "c1"));
    c1.del("bridge", &with(&bridge(2), json!({"prevResult": result})));
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_failed_add_leaves_the_record_as_it_was() {
    for is_first in [true, false] {
        let host = Host::new();
        if !is_first {
            ended(&host, "c1", 2, &["firewall"]);
        }
        let other = host.world.container("c2");
        let result = other.add("bridge", &bridge(5));
        add_chain(&other, &["portmap"], 8080, &result);
        let c1 = host.world.container("c1");
        let result = add_by_go(&c1, 3);
        let records = || {
            // The claims of the ended container are removed.
            let list = "cd /var/lib/cni/attachments; grep -r . . | sort; ls -l | grep -v '@.*net+c1+eth0$'";
            host.world.host(["sh", "-c", list])
        };
        let before = records();
        let config = with(&chained("portmap", 8080), json!({"prevResult": result}));
        let error = c1.call("portmap", "ADD", &config).run().error();
        assert!(error.msg.contains("taken by network net, container c2"), "{error:?}");
        assert_eq!(before, records(), "{is_first}");
    }
}

/// The network had the reference's plugins, and has ours now: `reconcile` makes the rules of ours.
#[test]
fn reconcile_records_the_life_for_which_it_makes_rules() {
    let host = Host::new();
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge(3), chained("firewall", 0)]});
    ended(&host, "c1", 2, &["firewall"]);
    let c1 = host.world.container("c1");
    let result = add_by_go(&c1, 3);
    host.remember("c1", &c1.netns(), &list, &result);
    let record = host.world.read(&host.record_of("net", "c1"));
    host.cnibox(&["reconcile", "--dry-run"]).run();
    assert_eq!(record, host.world.read(&host.record_of("net", "c1")));
    host.cnibox(&["reconcile"]).run().output();
    let before = elements(&host.world);
    assert!(before.iter().any(|line| line.ends_with("net c1 eth0")), "{before:#?}");
    host.cnibox(&["gc"]).run().silence();
    host.world.host(["rm", "/var/lib/cni/results/net-c1-eth0"]);
    host.cnibox(&["gc"]).run().silence();
    assert_eq!(before, elements(&host.world));
}

/// `cnibox add` attached the earlier one, and its entry has another path, where nothing is.
#[test]
fn the_entry_of_an_earlier_one_takes_nothing_from_it() {
    for by_go in [true, false] {
        let host = Host::new();
        let mut list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge(2), chained("firewall", 0)]});
        list["plugins"][1]["type"] = "firewall".into();
        host.configure("1.conflist", &list);
        let links = host.world.links();
        let earlier = host.world.container("earlier");
        host.cnibox(&["add", "net", "earlier", "--container-id", "c1"]).run().success();
        destroy(&host, &earlier, &links);
        let later = host.world.container("later");
        let call = |plugin: &str, verb: &str, config: &Value| {
            later.call(plugin, verb, config).env("CNI_CONTAINERID", "c1")
        };
        let result = if by_go {
            let call = call("bridge", "ADD", &bridge(3)).of_directory(&reference());
            call.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").run().success()
        } else {
            let result = call("bridge", "ADD", &bridge(3)).run().success();
            later.exec(["ip", "link", "set", "eth0", "alias", ""]);
            let clear =
                "for link in $(ls /sys/class/net/cni0/brif); do ip link set $link alias ''; done";
            host.world.host(["sh", "-c", clear]);
            result
        };
        let config = with(&chained("firewall", 0), json!({"prevResult": result}));
        call("firewall", "ADD", &config).run().success();
        let before = elements(&host.world);
        host.cnibox(&["gc"]).run().silence();
        assert_eq!(before, elements(&host.world), "{by_go}");
        let refused = host.cnibox(&["add", "net", "earlier", "--container-id", "c1"]).run();
        assert_eq!(refused.status, 1, "{}", refused.report());
        later.destroy();
        host.world.eventually("gc leaves nothing", || {
            host.cnibox(&["gc"]).run();
            elements(&host.world).is_empty() && host.kept().is_empty()
        });
    }
}
