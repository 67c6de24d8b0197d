//! `cnibox explain`: it prints what the next ADD makes, as other tools show it after that ADD, and changes nothing.

use serde_json::{Value, json};

use super::cnibox;
use crate::firewall::firewalld::start_firewalld;
use crate::world::{Call, Outcome, World, at_every_change, parse};

const CONFIGURATIONS: &str = "/run/net.d";
const OWN: &str = "/run/own";

struct Host {
    world: World,
}

impl Host {
    fn new() -> Self {
        let world = World::new();
        world.host(["mkdir", "-p", CONFIGURATIONS, OWN]);
        Self { world }
    }

    fn configure(&self, plugins: &Value) {
        let network = json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins});
        self.world.write(&format!("{CONFIGURATIONS}/1.conflist"), network.to_string());
    }

    fn cnibox(&self, args: &[&str]) -> Call<'_> {
        cnibox(&self.world, args)
            .env("NETCONFPATH", CONFIGURATIONS)
            .env("CNI_PATH", &format!("{OWN}:/run/plugins"))
    }

    /// The links, addresses, routes, rules, settings, mounts and files of the host.
    fn lines(&self) -> Vec<String> {
        let mut lines = self.world.state().lines().to_vec();
        let look = "cat /proc/mounts; find /run -xdev -printf '%p %i %s %T@\\n' | sort; \
                    sysctl -a --pattern 'accept_ra$|route_localnet|forwarding'; tc qdisc show";
        let shown = self.world.host(["sh", "-c", look]);
        lines.extend(shown.lines().map(str::to_owned));
        lines
    }

    /// What `explain` says. The host stays as it is.
    #[track_caller]
    fn explain(&self, args: &[&str]) -> Outcome {
        let before = self.lines();
        let outcome = self.cnibox(&[&["explain", "net"], args].concat()).run();
        crate::world::state::assert_same(&before, &self.lines(), "explain");
        outcome
    }

    fn explained(&self, args: &[&str]) -> Value {
        parse(&self.explain(&[args, &["--json"]].concat()).output())
    }

    /// Explains an ADD, does it for a container of the same id, and compares.
    #[track_caller]
    fn compare(&self, args: &[&str]) -> Value {
        let explained = self.explained(args);
        let container = self.world.container("next");
        let add = ["add", "net", "next", "--container-id", "new"];
        let result = parse(&self.cnibox(&[&add[..], args].concat()).run().output());
        for key in ["ips", "routes", "dns"] {
            assert_eq!(explained["result"][key], result[key], "{key}");
        }
        let sides = [Side::of(&self.world, None), Side::of(&self.world, Some(&container.netns()))];
        let printed = objects(&explained);
        assert!(printed.len() > 2, "{explained}");
        for (index, (side, object)) in printed.iter().enumerate() {
            // A later plugin can change a link.
            let start = object.split(' ').take(2).collect::<Vec<_>>().join(" ") + " ";
            let is_it = |other: &(String, String)| other.0 == *side && other.1.starts_with(&start);
            if start.starts_with("link ") && printed[index + 1..].iter().any(is_it) {
                continue;
            }
            let [host, container] = &sides;
            let side = if side == "host" { host } else { container };
            assert!(side.has(object), "{object} is not there");
        }
        // The other way round: everything of this owner is printed.
        let elements =
            printed.iter().filter(|(_, object)| object.contains("comment \"net new eth0\""));
        assert_eq!(elements.count(), sides[0].nft.matches("comment \"net new eth0\"").count());
        for (name, side) in ["host", "container"].iter().zip(&sides) {
            for address in side.addresses.lines().filter(|line| line.contains(" global ")) {
                let words: Vec<&str> = address.split_whitespace().collect();
                let line = format!("address {} dev {}", words[3], words[1]);
                let is_printed = printed.contains(&((*name).to_owned(), line.clone()));
                assert!(is_printed || !line.contains("10.1.0.3"), "{name} {line}");
            }
        }
        explained
    }
}

/// The objects of all plugins, with their side.
fn objects(explained: &Value) -> Vec<(String, String)> {
    let plugins = explained["plugins"].as_array().unwrap();
    let all = plugins.iter().flat_map(|plugin| plugin["objects"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.map(|object| (text(&object["where"]), text(&object["object"]))).collect()
}

/// A namespace as `ip`, `tc`, `nft` and /proc show it.
struct Side {
    links: String,
    addresses: String,
    routes: String,
    rules: String,
    nft: String,
    traffic: String,
    sysctls: String,
}

impl Side {
    fn of(world: &World, netns: Option<&str>) -> Self {
        let show = |script: &str| world.tool(&["sh", "-c", script], netns).run().output();
        let traffic = "for l in $(ls /proc/sys/net/ipv4/conf); do \
            tc qdisc show dev $l 2>/dev/null | sed \"s/^/dev $l /\"; \
            tc filter show dev $l ingress 2>/dev/null | sed \"s/^/dev $l /\"; done";
        Self {
            links: show("ip -o -d link"),
            addresses: show("ip -o address"),
            routes: show("ip -o route show table all; ip -o -6 route show table all"),
            rules: show("ip rule; ip -6 rule"),
            nft: words_without_macs(&show("nft list ruleset")),
            traffic: show(traffic),
            sysctls: show("sysctl -a 2>/dev/null"),
        }
    }

    fn shown(&self, object: &str) -> &str {
        match object.split(' ').next().unwrap() {
            "link" => &self.links,
            "address" => &self.addresses,
            "route" => &self.routes,
            "rule" => &self.rules,
            "table" | "chain" | "element" => &self.nft,
            "qdisc" | "filter" => &self.traffic,
            "sysctl" => &self.sysctls,
            other => panic!("{other}"),
        }
    }

    fn has(&self, object: &str) -> bool {
        let words: Vec<&str> = object.split(' ').collect();
        let line_with = |texts: &[String]| {
            let has_all = |line: &str| texts.iter().all(|text| format!("{line} ").contains(text));
            self.shown(object).lines().any(has_all)
        };
        match words[..] {
            ["link", name, kind, "mtu", mtu, ref rest @ ..] => {
                let mut texts =
                    vec![format!(" {name}"), format!("mtu {mtu} "), format!(" {kind} ")];
                texts.extend(
                    rest.windows(2).filter(|pair| pair[0] == "master").map(|pair| pair.join(" ")),
                );
                line_with(&texts)
            }
            ["address", address, "dev", name] => {
                line_with(&[format!(" {name} "), format!(" {address} ")])
            }
            ["route", dst, ref pairs @ ..] => {
                let mut texts = vec![format!("{dst} ")];
                texts.extend(pairs.chunks(2).map(|pair| format!("{} ", pair.join(" "))));
                line_with(&texts)
            }
            ["rule", "from", source, "lookup", table, "priority", priority] => line_with(&[
                format!("{priority}:"),
                format!("from {source} "),
                format!("lookup {table} "),
            ]),
            ["table", ..] => self.nft.contains(&format!("{object} {{")),
            ["chain", _, _, name] => self.nft.contains(&format!("chain {name} {{")),
            ["element", family, table, set, ..] => {
                let element = object.split_once("{ ").unwrap().1.trim_end_matches(" }");
                let table = self.nft.split_once(&format!("table {family} {table} {{"));
                let sets = ["set", "map"].map(|kind| format!("{kind} {set} {{"));
                let found = sets.iter().find_map(|set| table?.1.split_once(set));
                // The set ends before the next one, or before the chains.
                let end = |text: &str| {
                    ["} set ", "} map ", "} chain "].iter().filter_map(|next| text.find(next)).min()
                };
                let found = found.map(|(_, text)| &text[..end(text).unwrap_or(text.len())]);
                found.is_some_and(|text| text.contains(&words_without_macs(element)))
            }
            ["qdisc", kind, "dev", name, "root"] => {
                line_with(&[format!("dev {name} qdisc {kind} ")])
            }
            ["filter", "dev", name, "ingress", "redirect", "dev", to] => {
                line_with(&[format!("dev {name} "), format!("Redirect to device {to})")])
            }
            ["sysctl", ..] => self.sysctls.lines().any(|line| format!("sysctl {line}") == object),
            _ => panic!("{object}"),
        }
    }
}

/// The words with one space between them. MAC addresses are random.
fn words_without_macs(text: &str) -> String {
    let is_mac = |word: &str| word.len() == 17 && word.matches(':').count() == 5;
    let words = text.split_whitespace().map(|word| if is_mac(word) { "MAC" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn dual_stack() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]})
}

fn bridge(ipam: &Value) -> Value {
    json!({
        "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
        "macspoofchk": true, "ipam": ipam, "dns": {"nameservers": ["10.1.0.1"]},
    })
}

/// A chain with plugins that change the host in all ways.
fn whole() -> Value {
    json!([
        bridge(&dual_stack()),
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall", "backend": "iptables", "ingressPolicy": "isolated"},
        {"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "500"}},
        {
            "type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000,
            "egressRate": 80_000_000, "egressBurst": 8_000_000,
        },
    ])
}

#[test]
fn the_next_add_makes_what_explain_has_printed() {
    let host = Host::new();
    host.configure(&whole());
    let explained = host.compare(&["-p", "8080:80"]);
    let printed = objects(&explained);
    for object in
        ["table ip cnibox", "sysctl net.ipv4.ip_forward = 1", "link cni0 bridge mtu 1500 up"]
    {
        assert!(printed.contains(&("host".into(), object.into())), "{object}: {printed:?}");
    }
}

#[test]
fn what_the_host_has_is_not_printed_and_the_address_is_the_next_free_one() {
    let host = Host::new();
    host.configure(&whole());
    host.world.container("first");
    host.cnibox(&["add", "net", "first", "-p", "8080:80"]).run().success();
    let explained = host.compare(&["-p", "8081:80"]);
    assert_eq!(explained["result"]["ips"][0]["address"], "10.1.0.3/24");
    let printed = objects(&explained);
    let is_shared = |(_, object): &&(String, String)| {
        ["table ", "chain ", "link cni0 ", "address 10.1.0.1/"]
            .iter()
            .any(|start| object.starts_with(start))
            || object.contains("{ \"cni0\" }")
            || object.contains("ip_forward")
            || object.contains("conf.cni0.")
    };
    assert_eq!(printed.iter().find(is_shared), None);
    host.cnibox(&["del", "net", "next", "--container-id", "new"]).run().silence();
    host.world.eventually("the links are gone", || host.world.ports_of("cni0").len() == 1);
    let text = host.explain(&[]).output();
    for line in ["bridge", "  container  address 10.1.0.4/24 dev eth0", "  dns nameserver 10.1.0.1"]
    {
        assert!(text.lines().any(|printed| printed == line), "{line}: {text}");
    }
}

#[test]
fn a_port_of_another_container_is_refused_as_by_an_add() {
    let host = Host::new();
    host.configure(&whole());
    let first = host.world.container("first");
    host.world.container("next");
    host.cnibox(&["add", "net", "first", "--container-id", "c1", "-p", "8080:80"]).run().success();
    for port in ["8080:80", "127.0.0.1:8080:80", "[fd03::1]:8080:81"] {
        let explained = host.explain(&["-p", port]);
        let added = host.cnibox(&["add", "net", "next", "-p", port]).run();
        assert_eq!((explained.status, added.status), (1, 1), "{port}: {}", explained.report());
        let error = explained.stderr.trim_end();
        assert!(error.ends_with("taken by network net, container c1, interface eth0"), "{error}");
        assert!(added.stderr.contains(error), "{error}: {}", added.stderr);
        assert_eq!(explained.stdout, "");
    }
    let free = host.explain(&["-p", "8081:80"]).output();
    assert!(free.contains("portmap-published { tcp . 8081 ") && !free.contains("0x"), "{free}");
    // An ADD takes the port of a container that has ended.
    first.destroy();
    host.world.eventually("its link is gone", || host.world.ports_of("cni0").is_empty());
    let explained = host.explained(&["-p", "8080:80"]);
    let objects = explained["plugins"][1]["objects"].as_array().unwrap();
    let former: Vec<&Value> = objects.iter().filter_map(|object| object.get("onHost")).collect();
    let element = |family: &str, address: &str| {
        format!(
            "element {family} cnibox portmap-published {{ tcp . 8080 comment \"net c1 eth0\" : {address} . 80 }}"
        )
    };
    assert_eq!(former, [&element("ip", "10.1.0.2"), &element("ip6", "fd00:1::2")]);
}

#[test]
fn a_port_of_a_program_of_the_host_is_a_warning() {
    let host = Host::new();
    host.configure(&whole());
    let server = ["socat", "TCP-LISTEN:8080,fork", "EXEC:true"];
    let _server = host.world.tool(&server, None).start();
    host.world
        .eventually("the server listens", || host.world.host(["ss", "-Hltn"]).contains(":8080 "));
    let outcome = host.explain(&["-p", "8080:80"]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    let text = "warning: tcp port 8080: the program socat, process ";
    assert!(outcome.stderr.contains(text), "{}", outcome.report());
    assert_eq!(host.explain(&["-p", "8081:80"]).stderr, "");
}

#[test]
fn links_of_the_host_are_in_the_copy() {
    let host = Host::new();
    host.world.host(["ip", "link", "add", "up0", "mtu", "1480", "type", "veth", "peer", "up1"]);
    host.world.host(["ip", "address", "add", "192.0.2.1/24", "dev", "up0"]);
    host.world.host(["ip", "link", "set", "up0", "up"]);
    host.world.host(["ip", "route", "add", "default", "via", "192.0.2.254"]);
    for plugin in [
        json!({"type": "macvlan", "master": "up0", "ipam": dual_stack()}),
        // The master is the link of the default route.
        json!({"type": "macvlan", "ipam": dual_stack()}),
        json!({"type": "ptp", "ipMasq": true, "ipam": dual_stack()}),
    ] {
        let is_pair = plugin["type"] == "ptp";
        host.configure(&json!([plugin, {"type": "sbr"}]));
        let explained = host.compare(&[]);
        let mtu = if is_pair { "mtu 1500" } else { "mtu 1480" };
        let has_mtu =
            |(side, object): &(String, String)| side == "container" && object.contains(mtu);
        assert!(objects(&explained).iter().any(has_mtu), "{explained}");
        host.cnibox(&["del", "net", "next", "--container-id", "new"]).run().silence();
        host.world.host(["ip", "netns", "del", "next"]);
    }
}

#[test]
fn an_add_that_fails_is_explained_by_its_error() {
    let small = json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.3"}]]});
    for plugins in [
        json!([{"type": "macvlan", "master": "nothing", "ipam": dual_stack()}]),
        json!([{"type": "brigde"}]),
        json!([bridge(&json!({"type": "host-lokal"}))]),
        json!([bridge(&small)]),
        json!([bridge(&dual_stack()), {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.nothing": "1"}}]),
        json!([{"type": "bridge", "isGateway": "yes"}]),
        json!([{"type": "portmap"}]),
    ] {
        let host = Host::new();
        host.world.container("next");
        host.configure(&plugins);
        let explained = host.explain(&[]);
        let added = host.cnibox(&["add", "net", "next"]).run();
        assert_eq!((explained.status, added.status), (1, 1), "{}", explained.report());
        // The undo of the ADD can print more.
        let error = explained.stderr.trim_end();
        assert!(added.stderr.contains(error) && !error.is_empty(), "{error}: {}", added.stderr);
        assert_eq!(explained.stdout, "");
    }
    let outcome = Host::new().cnibox(&["explain", "nothing"]).run();
    assert!(outcome.stderr.contains("no net configurations found"), "{}", outcome.report());
}

#[test]
fn executed_plugins_and_dhcp_are_named_and_not_called() {
    let host = Host::new();
    let path = format!("{OWN}/foreign");
    host.world.tool(&["tee", &path], None).stdin("#!/bin/sh\necho >> /run/called\n").run().output();
    host.world.host(["chmod", "755", &path]);
    let reason = format!("{path} is another executable");
    let (foreign, firewall) =
        (json!({"type": "foreign"}), json!({"type": "firewall", "backend": "iptables"}));
    let after = "it needs the result of the plugin before";
    for (plugins, expected) in [
        // A chained plugin: the list goes on.
        (json!([bridge(&dual_stack()), foreign, firewall]), [None, Some(&*reason), None]),
        (json!([foreign, firewall, firewall]), [Some(&*reason), Some(after), Some(after)]),
        (
            json!([bridge(&json!({"Type": "foreign"})), firewall, firewall]),
            [Some(&*reason), Some(after), Some(after)],
        ),
        (
            json!([bridge(&json!({"type": "dhcp"})), firewall, firewall]),
            [Some("dhcp asks a server on the network"), Some(after), Some(after)],
        ),
        (
            json!([{"type": "flannel", "delegate": {"type": "foreign"}}, firewall, firewall]),
            [Some(&*reason), Some(after), Some(after)],
        ),
    ] {
        host.configure(&plugins);
        let explained = host.explained(&[]);
        let steps = explained["plugins"].as_array().unwrap();
        let not_called: Vec<Option<&str>> =
            steps.iter().map(|step| step["notCalled"].as_str()).collect();
        assert_eq!(not_called, expected, "{plugins}");
        assert_eq!(explained.get("result").is_some(), expected[2].is_none(), "{plugins}");
        for step in steps {
            let is_empty = step["objects"].as_array().unwrap().is_empty();
            assert_eq!(is_empty, step.get("notCalled").is_some(), "{step}");
        }
        let text = host.explain(&[]).output();
        let line = format!("is not called: {}", expected.into_iter().flatten().next().unwrap());
        assert!(text.contains(&line), "{text}");
    }
    assert!(!host.world.path("/run/called").exists());
}

#[test]
fn firewalld_is_named_and_gets_nothing() {
    let host = Host::new();
    let _running = start_firewalld(&host.world);
    let sources = || host.world.host(["firewall-cmd", "--zone", "trusted", "--list-sources"]);
    for backend in ["", "firewalld"] {
        host.configure(&json!([bridge(&dual_stack()), {"type": "firewall", "backend": backend}]));
        let explained = host.explained(&[]);
        assert_eq!(explained["plugins"][1]["notCalled"], "it gives the addresses to firewalld");
        assert_eq!(explained["result"]["ips"][0]["address"], "10.1.0.2/24");
        assert_eq!(sources().trim(), "");
    }
}

#[test]
fn files_of_other_directories_are_in_the_copy() {
    let host = Host::new();
    let mut ipam = dual_stack();
    for (name, directory) in [("one", "/run/a:b,c/store"), ("two", "/var/lib/other")] {
        ipam["dataDir"] = directory.into();
        host.configure(&json!([bridge(&ipam)]));
        host.world.container(name);
        host.cnibox(&["add", "net", name]).run().success();
        assert_eq!(host.explained(&[])["result"]["ips"][0]["address"], "10.1.0.3/24");
        host.cnibox(&["del", "net", name]).run().silence();
    }
    ipam["dataDir"] = "/nothing/here".into();
    host.configure(&json!([bridge(&ipam)]));
    let outcome = host.explain(&[]);
    assert!(outcome.stderr.contains("cannot copy /nothing/here: "), "{}", outcome.report());
}

#[test]
fn explain_needs_capabilities() {
    let host = Host::new();
    host.configure(&whole());
    let call = host.cnibox(&["explain", "net"]).under(&["setpriv", "--bounding-set=-net_admin"]);
    let outcome = call.run();
    assert_eq!(outcome.stderr, "cnibox: cannot explain net without CAP_NET_ADMIN\n");
    assert_eq!(outcome.status, 1);
}

#[test]
fn a_killed_explain_leaves_nothing() {
    let host = Host::new();
    host.configure(&json!([bridge(&dual_stack())]));
    let state = || {
        let mounts =
            host.world.host(["sh", "-c", "cat /proc/mounts; find /run/cni* /var/lib | sort"]);
        (host.world.state(), mounts)
    };
    let before = state();
    let after = |point: &str| assert!(state() == before, "{point}: {:?}", state());
    let killed = at_every_change(&host.world, || host.cnibox(&["explain", "net"]), || {}, after);
    assert!(killed > 10, "{killed}");
}

#[test]
fn routes_that_reject_packets_are_printed() {
    let host = Host::new();
    let routes = json!([
        {"dst": "10.9.0.0/16", "type": "blackhole"},
        {"dst": "fd09::/48", "type": "prohibit", "priority": 50},
    ]);
    let addresses = json!([{"address": "10.1.0.2/24"}, {"address": "fd00:1::2/64"}]);
    let ipam = json!({"type": "static", "addresses": addresses, "routes": routes});
    host.configure(&json!([{"type": "bridge", "isGateway": true, "ipam": ipam}]));
    let text = host.explain(&[]).output();
    let printed = objects(&host.compare(&[]));
    for route in ["route blackhole 10.9.0.0/16", "route prohibit fd09::/48"] {
        assert!(text.contains(&format!("\n  {route}\n")), "{text}");
        let is_it =
            |(side, object): &(String, String)| side == "container" && object.starts_with(route);
        assert!(printed.iter().any(is_it), "{printed:?}");
    }
}
