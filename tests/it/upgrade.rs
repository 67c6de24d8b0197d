//! The state of an older release is understood: `tests/fixtures/upgrade/VERSION` has the files, the rules and the links of
//! a host with one container that this release attached.
//!
//! A new fixture is recorded with the executable of its release, from a checkout with its version in `RELEASES`:
//! `CNIBOX_EXECUTABLE=FILE cargo test --test it -- --ignored upgrade::record`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::portmap::{ask, ask_in_vain, neighbours, serve};
use crate::world::{Call, Connection, Container, World, echo};

/// The newest is the last.
const RELEASES: [&str; 2] = ["0.1.0", "0.2.0"];

/// Directories with state. What `host-local` knows of its files is none.
const STATE: [&str; 3] = ["var/lib/cni/networks/net", "var/lib/cni/results", "run/cnibox"];
const CONFIGURATIONS: &str = "/run/net.d";
const NETNS: &str = "/run/netns/one";
const PORTS: &str = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":53,"containerPort":53,"protocol":"udp"}]}"#;

fn fixture(release: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/upgrade").join(release)
}

fn network() -> Value {
    let bridge = json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "macspoofchk": true,
        "ipam": {"type": "host-local", "ranges": [
            [{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}],
        ]},
    });
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let firewall = json!({"type": "firewall", "ingressPolicy": "same-bridge"});
    let tuning = json!({"type": "tuning", "mtu": 1400});
    json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge, portmap, firewall, tuning]})
}

fn cnibox<'w>(world: &'w World, args: &[&str]) -> Call<'w> {
    let call = world.tool(&[&["/run/bin/cnibox"], args].concat(), None);
    let call = call.env("NETCONFPATH", CONFIGURATIONS).env("CNI_PATH", "/run/plugins");
    call.env("CAP_ARGS", PORTS)
}

fn host() -> World {
    let world = World::new();
    world.write(&format!("{CONFIGURATIONS}/10-net.conflist"), network().to_string());
    world
}

/// The commands that make the links again, with their aliases, addresses and settings.
fn links(world: &World, container: &Container<'_>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let addresses = |link: &Value| -> Vec<String> {
        let infos = link["addr_info"].as_array().unwrap().iter();
        let global = infos.filter(|info| info["scope"] == "global");
        global.map(|info| format!("{}/{}", text(&info["local"]), info["prefixlen"])).collect()
    };
    let mut lines = vec!["set -eu".to_owned()];
    for setting in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        lines.push(format!("echo {} >/proc/sys/{setting}", world.sysctl(setting)));
    }
    let listed = world.host_json(["ip", "-j", "-d", "address"]);
    let eth0 = container.json(["ip", "-j", "-d", "address", "show", "eth0"])[0].clone();
    let set = |lines: &mut Vec<String>, ip: &str, link: &Value| {
        let (name, alias) = (text(&link["ifname"]), text(&link["ifalias"]));
        if !alias.is_empty() {
            lines.push(format!("{ip} link set {name} alias '{alias}'"));
        }
        lines.push(format!("{ip} link set {name} mtu {} up", link["mtu"]));
        for address in addresses(link) {
            lines.push(format!("{ip} address add {address} dev {name} nodad"));
        }
    };
    for link in listed.as_array().unwrap() {
        let (name, mac) = (text(&link["ifname"]), text(&link["address"]));
        match link["linkinfo"]["info_kind"].as_str() {
            Some("bridge") => {
                lines.push(format!("ip link add {name} address {mac} type bridge"));
                let setting = format!("net/ipv4/conf/{name}/route_localnet");
                lines.push(format!("echo {} >/proc/sys/{setting}", world.sysctl(&setting)));
                set(&mut lines, "ip", link);
            }
            Some("veth") => {
                let peer = text(&eth0["address"]);
                lines.push(format!(
                    "ip link add {name} address {mac} type veth peer name eth0 address {peer} netns one"
                ));
                lines.push(format!("ip link set {name} master {}", text(&link["master"])));
                set(&mut lines, "ip", link);
            }
            _ => {}
        }
    }
    set(&mut lines, "ip -n one", &eth0);
    for family in ["-4", "-6"] {
        let routes = container.json(["ip", "-j", family, "route", "show", "default"]);
        for route in routes.as_array().unwrap() {
            lines.push(format!(
                "ip -n one {family} route add default via {}",
                text(&route["gateway"])
            ));
        }
    }
    lines.join("\n") + "\n"
}

/// Copies the files of the state. A file of the fixture has the name and the content of the original.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::write(to, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

#[test]
#[ignore = "it writes the fixture of a release"]
fn record() {
    let directory = fixture(RELEASES.last().unwrap());
    let world = host();
    let container = world.container("one");
    cnibox(&world, &["add", "net", NETNS]).run().success();
    for state in STATE {
        copy(&world.path(format!("/{state}")), &directory.join("root").join(state));
    }
    fs::write(directory.join("links.sh"), links(&world, &container)).unwrap();
    fs::write(directory.join("ruleset.nft"), world.host(["nft", "list", "ruleset"])).unwrap();
}

fn open<'w>((client, name, target): (&Container<'w>, &'static str, &str)) -> Connection<'w> {
    Connection::open(client, name, target)
}

fn with_default_routes(container: &Container<'_>) {
    for gateway in ["10.1.0.1", "fd00:1::1"] {
        container.exec(["ip", "route", "add", "default", "via", gateway]);
    }
}

/// A host as the release left it.
fn restored(release: &str) -> World {
    let world = host();
    world.container("one");
    let directory = fixture(release);
    for state in STATE {
        let recorded = directory.join("root").join(state);
        // git keeps no empty directory.
        if recorded.exists() {
            copy(&recorded, &world.path(format!("/{state}")));
        }
    }
    for (file, command) in [("links.sh", "sh"), ("ruleset.nft", "nft --file")] {
        let path = format!("/run/{file}");
        world.write(&path, fs::read(directory.join(file)).unwrap());
        world.host(["sh", "-c", &format!("{command} {path}")]);
    }
    world
}

#[track_caller]
fn nothing_is_left(world: &World) {
    let rules = world.host(["nft", "list", "ruleset"]);
    assert!(!rules.contains("cnitool-") && !rules.contains("10.1.0.2"), "{rules}");
    let files = world.host(["sh", "-c", "find /var/lib/cni /run/cnibox -type f"]);
    let is_state = |line: &&str| {
        let may_stay = ["/lock", "/last_reserved_ip.", "/.cnibox", "/locks/"];
        !may_stay.iter().any(|name| line.contains(name))
    };
    assert_eq!(files.lines().find(is_state), None, "{files}");
    assert!(world.ports_of("cni0").is_empty());
}

#[test]
fn check_of_an_older_attachment_succeeds() {
    for release in RELEASES {
        let world = restored(release);
        cnibox(&world, &["check", "net", NETNS]).run().output();
    }
}

#[test]
fn del_of_an_older_attachment_leaves_nothing() {
    for release in RELEASES {
        let world = restored(release);
        cnibox(&world, &["del", "net", NETNS]).run().output();
        // The record of the namespace has another place now.
        cnibox(&world, &["gc"]).run().output();
        nothing_is_left(&world);
    }
}

#[test]
fn gc_of_an_older_attachment_leaves_nothing() {
    for release in RELEASES {
        // A gc that sees it alive makes a record. Without one, only an empty place proves its end.
        for end in ["gc, umount", "umount, rm"] {
            let world = restored(release);
            for step in end.split(", ") {
                match step {
                    "gc" => cnibox(&world, &["gc"]).run().silence(),
                    command => drop(world.host([command, NETNS])),
                }
            }
            // The kernel needs some time.
            world.eventually("the links are gone", || world.ports_of("cni0").is_empty());
            cnibox(&world, &["gc"]).run().output();
            nothing_is_left(&world);
        }
    }
}

/// The new rules come in the place of the old ones in one transaction: no packet of a connection goes untranslated.
#[test]
fn connections_of_an_older_attachment_go_on() {
    for release in RELEASES {
        let world = restored(release);
        let one = Container { world: &world, name: "one".into() };
        let [outside, _] = neighbours(&world);
        with_default_routes(&one);
        echo(&one, 80);
        echo(&outside, 7);
        let mut all = Vec::from(
            [
                (&outside, "in4", "TCP:192.0.2.1:8080"),
                (&outside, "in6", "TCP:[fd00:2::1]:8080"),
                (&one, "out4", "TCP:192.0.2.2:7"),
                (&one, "out6", "TCP:[fd00:2::2]:7"),
            ]
            .map(open),
        );
        let two = world.container("two");
        cnibox(&world, &["add", "net", &two.netns()]).without("CAP_ARGS").run().success();
        with_default_routes(&two);
        all.iter().for_each(|connection| connection.carries("second"));
        all.extend(
            [
                (&two, "hairpin4", "TCP:192.0.2.1:8080"),
                (&two, "hairpin6", "TCP:[fd00:2::1]:8080"),
                (&two, "direct4", "TCP:10.1.0.2:80"),
                (&two, "direct6", "TCP:[fd00:1::2]:80"),
            ]
            .map(open),
        );
        assert!(world.host(["nft", "list", "ruleset"]).contains("chain portmap-prerouting"));
        let three = world.container("three");
        let ports = r#"{"portMappings":[{"hostPort":8083,"containerPort":80,"protocol":"tcp"}]}"#;
        let check = || cnibox(&world, &["check", "net", NETNS]).run().output();
        check();
        cnibox(&world, &["add", "net", &three.netns()]).env("CAP_ARGS", ports).run().success();
        check();
        let new = world.host(["nft", "list", "ruleset"]);
        assert!(
            !new.contains("chain portmap-prerouting") && !new.contains("srcnat; policy"),
            "{new}"
        );
        all.iter().for_each(|connection| connection.carries("third"));
        Connection::open(&outside, "again", "TCP:192.0.2.1:8080").carries("second");
    }
}

/// An older release closed 127.0.0.0/8 on all links. The new rule has a set of links, and an ADD on another link fills it.
#[test]
fn a_link_that_an_older_release_opened_stays_closed() {
    for release in RELEASES {
        let world = restored(release);
        let one = Container { world: &world, name: "one".into() };
        let listen = "TCP4-LISTEN:9000,bind=127.0.0.1,fork,reuseaddr";
        world.tool(&["socat", listen, "SYSTEM:read line; echo host"], None).start();
        world.eventually("it listens", || !world.host(["ss", "-Hntl", "sport = :9000"]).is_empty());
        one.exec([
            "sh",
            "-ec",
            "echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet; ip route add 127.0.0.1/32 via 10.1.0.1",
        ]);
        let two = world.container("two");
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.2.0.0/24"}]]});
        let ptp = json!({"cniVersion": "1.1.0", "name": "two", "type": "ptp", "ipam": ipam});
        let portmap = json!({"cniVersion": "1.1.0", "name": "two", "type": "portmap",
            "runtimeConfig": {"portMappings": [{"hostPort": 8082, "containerPort": 80}]},
            "prevResult": two.add("ptp", &ptp)});
        two.add("portmap", &portmap);
        let rules = world.host(["nft", "list", "table", "ip", "cnibox"]);
        assert!(!rules.contains("chain portmap-loopback"), "{rules}");
        assert_eq!(ask(&world, None, "tcp", "127.0.0.1", 9000), "host");
        let asked = ask_in_vain(&world, Some(&one.netns()), "tcp", "127.0.0.1", 9000);
        assert_eq!(asked, "nothing", "{release}");
    }
}

#[test]
fn an_older_attachment_keeps_its_address_and_its_ports() {
    for release in RELEASES {
        let world = restored(release);
        let two = world.container("two");
        let refused = cnibox(&world, &["add", "net", &two.netns()]).run();
        assert!(refused.status == 1 && refused.stderr.contains("8080"), "{}", refused.report());
        let added = cnibox(&world, &["add", "net", &two.netns()]).without("CAP_ARGS").run();
        assert_eq!(added.success()["ips"][0]["address"], "10.1.0.4/24");
        two.ping("10.1.0.2");
        cnibox(&world, &["del", "net", NETNS]).run().output();
        two.ping("10.1.0.1");
    }
}

/// The rules of the policy and the targets of the ports come with the ADD of any other container.
#[test]
fn a_port_of_an_older_attachment_answers_another_network() {
    for release in RELEASES {
        let world = restored(release);
        let one = Container { world: &world, name: "one".into() };
        serve(&one, "tcp", 80);
        let mut other = network();
        other["name"] = "other".into();
        let plugins = other["plugins"].as_array_mut().unwrap();
        plugins.retain(|plugin| plugin["type"] != "portmap");
        plugins[0]["bridge"] = "cni1".into();
        plugins[0]["isDefaultGateway"] = true.into();
        plugins[0]["ipMasq"] = false.into();
        plugins[0]["ipam"]["ranges"] =
            json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]);
        world.write(&format!("{CONFIGURATIONS}/20-other.conflist"), other.to_string());
        for gateway in ["10.1.0.1", "fd00:1::1"] {
            one.exec(["ip", "route", "replace", "default", "via", gateway]);
        }
        cnibox(&world, &["check", "net", NETNS]).run().output();
        let two = world.container("two");
        let add = cnibox(&world, &["add", "other", &two.netns()]).without("CAP_ARGS");
        add.run().success();
        let asked = |address: &str, port| ask(&world, Some(&two.netns()), "tcp", address, port);
        assert_eq!(asked("10.2.0.1", 8080), "one 10.2.0.2", "{release}");
        assert_eq!(asked("fd00:2::1", 8080), "one fd00:2::2", "{release}");
        assert_eq!(ask_in_vain(&world, Some(&two.netns()), "tcp", "10.1.0.2", 80), "nothing");
        let rules = world.host(["nft", "list", "ruleset"]);
        assert!(!rules.contains("firewall-forward"), "{release}: {rules}");
        cnibox(&world, &["check", "net", NETNS]).run().output();
        cnibox(&world, &["del", "net", NETNS]).run().output();
        let rules = world.host(["nft", "list", "ruleset"]);
        assert!(!rules.contains("10.1.0.2"), "{release}: {rules}");
    }
}
