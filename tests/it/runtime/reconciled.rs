//! `cnibox reconcile`: what another program removed from living attachments is as ADD made it, and connections continue.

use serde_json::{Value, json};

use super::{Host, list};
use crate::portmap::{ask, ask_in_vain, neighbours, serve};
use crate::world::{Connection, Container, Outcome, State, echo, parse, plugin_names, with};

/// A network with everything that can be removed.
pub(super) fn network() -> Value {
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    json!({
        "cniVersion": "1.1.0", "name": "net", "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
                "macspoofchk": true, "ipam": {"type": "host-local", "ranges": ranges},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall", "backend": "iptables", "ingressPolicy": "isolated"},
            {
                "type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000,
                "egressRate": 80_000_000, "egressBurst": 8_000_000,
            },
        ],
    })
}

/// A network of one plugin of the kind `veth` or `ptp`.
pub(super) fn routed(kind: &str) -> Value {
    let ranges = json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:4::/64"}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let ipam = json!({"type": "host-local", "ranges": ranges, "routes": routes});
    let plugin = json!({"type": kind, "ipMasq": true, "ipam": ipam});
    json!({"cniVersion": "1.1.0", "name": "routed", "plugins": [plugin]})
}

/// Each line about a part with the attachment in front, which is printed once: `restored eth0 of container c1 in network net: bridge: …`.
fn flat(said: &str) -> String {
    let (mut lines, mut title) = (String::new(), "");
    for line in said.lines() {
        match line.strip_prefix("    ") {
            Some(part) => lines.push_str(&format!("{title} {part}\n")),
            None if line.ends_with(':') => title = line,
            None => lines.push_str(&format!("{line}\n")),
        }
    }
    lines
}

impl Host {
    /// The container has its name as its id.
    pub(super) fn attach_as(&self, network: &str, name: &str, args: &[&str]) {
        let add = ["add", network, name, "--container-id", name];
        self.cnibox(&[&add[..], args].concat()).run().success();
    }

    pub(super) fn reconcile(&self, args: &[&str]) -> Outcome {
        self.cnibox(&[&["reconcile"], args].concat()).run()
    }

    /// Restores something, and then nothing. Returns what it said first.
    #[track_caller]
    fn reconciled(&self) -> String {
        let said = self.reconcile(&[]).output();
        self.reconcile(&[]).silence();
        flat(&said)
    }

    /// Restores something. The second time only `left` is said.
    #[track_caller]
    fn reconciled_but(&self, left: &str) -> String {
        let said = self.reconcile(&[]).output();
        let again = self.reconcile(&[]).output();
        assert!(again.contains(left) && !again.contains("restored"), "{again}");
        flat(&said)
    }

    /// The state of the host. The order of tables and chains is that of their creation.
    pub(super) fn lines(&self) -> Vec<String> {
        let lines = |state: State| -> Vec<String> {
            let split = |line: &String| line.lines().map(without_first_owner).collect::<Vec<_>>();
            state.lines().iter().flat_map(split).collect()
        };
        let mut lines = lines(self.world.state());
        for what in ["qdisc", "class"] {
            let shown = self.world.host(["tc", what, "show"]);
            lines.extend(shown.lines().map(without_counter));
        }
        lines.sort();
        lines
    }

    #[track_caller]
    pub(super) fn assert_as(&self, before: &[String], when: &str) {
        crate::world::state::assert_same(before, &self.lines(), when);
    }
}

/// A line of nft without the owner of a subnet: the element that attachments share names the one that was restored first. A watcher restores
/// one later that a command is just looking at.
fn without_first_owner(line: &str) -> String {
    match line.split_once(" comment \"") {
        Some((subnet, rest)) if subnet.ends_with(".0") || subnet.ends_with("::") => {
            format!("{subnet}{}", rest.split_once('"').map_or("", |(_, after)| after))
        }
        _ => line.to_owned(),
    }
}

/// A line of tc without the handle of the ingress discipline, and without a counter of packets.
fn without_counter(line: &str) -> String {
    line.split(" direct_packets_stat").next().unwrap_or_default().trim().to_owned()
}

/// A host with two containers that publish ports, and a neighbour outside.
pub(super) fn host_with_two<'h>(host: &'h Host) -> [Container<'h>; 3] {
    host.configure("1.conflist", &network());
    let [outside, _] = neighbours(&host.world);
    let [c1, c2] = ["c1", "c2"].map(|name| host.world.container(name));
    for (container, ports) in [
        (&c1, &["-p", "8080:80", "-p", "8081:81", "-p", "8053:53/udp"][..]),
        (&c2, &["-p", "8082:80"]),
    ] {
        host.attach_as("net", &container.name, ports);
    }
    [outside, c1, c2]
}

/// The answers of the published ports.
fn published(host: &Host, outside: &Container<'_>) -> Vec<String> {
    answers(|protocol, address, port| {
        ask(&host.world, Some(&outside.netns()), protocol, address, port)
    })
}

fn answers(ask: impl Fn(&str, &str, u16) -> String) -> Vec<String> {
    let mut answers = Vec::new();
    for address in ["192.0.2.1", "fd00:2::1"] {
        answers.push(ask("tcp", address, 8080));
        answers.push(ask("tcp", address, 8082));
        answers.push(ask("udp", address, 8053));
    }
    answers
}

#[test]
fn connections_continue_and_begin_after_a_flush_of_all_rules() {
    let host = Host::new();
    let [outside, c1, c2] = host_with_two(&host);
    serve(&c1, "tcp", 80);
    serve(&c1, "udp", 53);
    serve(&c2, "tcp", 80);
    echo(&c1, 81);
    let expected: Vec<String> = ["192.0.2.2", "fd00:2::2"]
        .iter()
        .flat_map(|client| ["c1", "c2", "c1"].map(|name| format!("{name} {client}")))
        .collect();
    assert_eq!(published(&host, &outside), expected);
    let open = [("four", "TCP:192.0.2.1:8081"), ("six", "TCP:[fd00:2::1]:8081")]
        .map(|(name, target)| Connection::open(&outside, name, target));
    let before = host.lines();
    let links = host.world.host(["ip", "-o", "link"]);
    host.world.host(["nft", "flush", "ruleset"]);
    let none = answers(|protocol, address, port| {
        ask_in_vain(&host.world, Some(&outside.netns()), protocol, address, port)
    });
    assert_eq!(none, ["nothing"; 6]);
    let said = host.reconciled();
    for (container, plugin) in
        ["c1", "c2"].iter().flat_map(|c| ["bridge", "portmap", "firewall"].map(|p| (c, p)))
    {
        let line = format!("restored eth0 of container {container} in network net: {plugin}: ");
        assert!(said.contains(&line), "{line}: {said}");
    }
    assert!(!said.contains("bandwidth"), "{said}");
    assert_eq!(published(&host, &outside), expected);
    open.iter().for_each(|connection| connection.carries("second"));
    assert_eq!(ask(&host.world, None, "tcp", "127.0.0.1", 8080), "c1 10.1.0.1");
    host.assert_as(&before, "a flush of all rules");
    assert_eq!(host.world.host(["ip", "-o", "link"]), links);
    for name in ["c1", "c2"] {
        for verb in ["check", "del"] {
            host.cnibox(&[verb, "net", name, "--container-id", name]).run().silence();
        }
    }
}

#[test]
fn each_table_set_and_setting_is_restored_alone() {
    let host = Host::new();
    let [_, _c1, _c2] = host_with_two(&host);
    let before = host.lines();
    let end = host.world.ports_of("cni0").remove(0);
    for (change, plugin) in [
        ("nft delete table ip cnibox", "bridge: masquerading"),
        ("nft delete table ip6 cnibox", "portmap: "),
        ("nft delete table bridge cnibox", "bridge: the MAC spoof check"),
        ("nft flush set ip cnibox firewall-addresses", "firewall: "),
        ("nft flush map ip cnibox masquerade-sources", "bridge: masquerading"),
        ("nft flush chain ip cnibox masquerade-srcnat", "bridge: masquerading"),
        ("iptables-nft -F CNI-FORWARD", "firewall: "),
        ("echo 0 >/proc/sys/net/ipv4/ip_forward", "bridge: IP forwarding is disabled"),
        ("echo 0 >/proc/sys/net/ipv6/conf/all/forwarding", "bridge: IP forwarding is disabled"),
        ("echo 0 >/proc/sys/net/ipv4/conf/cni0/route_localnet", "portmap: 127.0.0.1"),
        ("echo 1 >/proc/sys/net/ipv6/conf/END/accept_ra", "bridge: interface END accepts"),
        ("ip address del 10.1.0.1/24 dev cni0", "bridge: address 10.1.0.1/24"),
        ("ip address del fd00:1::1/64 dev cni0", "bridge: address fd00:1::1/64"),
        ("tc qdisc del dev END root", "bandwidth: interface END has no queueing discipline"),
        ("tc qdisc del dev END ingress", "bandwidth: interface END does not redirect"),
    ] {
        let change = change.replace("END", &end);
        host.world.host(["sh", "-ec", &change]);
        let said = host.reconciled();
        assert!(said.contains(&plugin.replace("END", &end)), "{change}: {said}");
        host.assert_as(&before, &change);
    }
}

#[test]
fn an_older_ruleset_of_iptables_that_drops_is_followed_by_reconcile() {
    let host = Host::new();
    let [_outside, c1, _c2] = host_with_two(&host);
    for address in ["192.0.2.2", "fd00:2::2"] {
        c1.ping(address);
    }
    let older = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n";
    for program in ["iptables-nft-restore", "ip6tables-nft-restore"] {
        host.world.tool(&[program], None).stdin(older).run().output();
    }
    let ping = ["ping", "-n", "-q", "-c", "1", "-W", "1", "192.0.2.2"];
    assert_ne!(c1.tool(ping).run().status, 0);
    let said = host.reconciled();
    assert_eq!(said.matches("firewall: ").count(), said.lines().count(), "{said}");
    for address in ["192.0.2.2", "fd00:2::2"] {
        c1.ping(address);
    }
}

#[test]
fn an_ifb_comes_back_with_its_queue_and_the_host_end_keeps_its_own() {
    let host = Host::new();
    host_with_two(&host);
    let links = host.world.links();
    let ifb = links.iter().find(|name| name.starts_with("bwp")).unwrap();
    let before = host.lines();
    host.world.host(["ip", "link", "del", ifb]);
    let said = host.reconciled();
    assert_eq!(said.matches("bandwidth: ").count(), 3, "{said}");
    host.assert_as(&before, "the removal of the ifb");
    host.world.host(["tc", "qdisc", "del", "dev", ifb, "root"]);
    assert_eq!(host.reconciled().lines().count(), 1);
    host.assert_as(&before, "the removal of its queue");
}

#[test]
fn routes_and_addresses_of_a_routed_pair_come_back() {
    for kind in ["veth", "ptp"] {
        let host = Host::new();
        host.configure("1.conflist", &routed(kind));
        let [outside, _] = neighbours(&host.world);
        let c1 = host.world.container("c1");
        host.attach_as("routed", "c1", &[]);
        let end = host.world.links().into_iter().find(|name| name.starts_with("veth")).unwrap();
        let before = host.lines();
        for change in [
            "ip route del 10.2.0.2 dev END",
            "ip -6 route del fd00:4::2 dev END",
            "ip address del 10.2.0.1/32 dev END",
            "ip address flush dev END scope global; ip route flush dev END",
            "nft flush ruleset; echo 0 >/proc/sys/net/ipv4/ip_forward",
        ] {
            let change = change.replace("END", &end);
            host.world.host(["sh", "-ec", &change]);
            let said = host.reconciled();
            assert!(said.contains(&format!("{kind}: ")), "{said}");
            host.assert_as(&before, &change);
            for address in ["192.0.2.2", "fd00:2::2"] {
                c1.ping(address);
            }
        }
        drop(outside);
    }
}

#[test]
fn a_dry_run_tells_the_same_and_changes_nothing() {
    let host = Host::new();
    host_with_two(&host);
    host.world.host(["nft", "flush", "ruleset"]);
    host.world.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]);
    let before = host.lines();
    let would = host.reconcile(&["--dry-run"]).output();
    host.assert_as(&before, "a dry run");
    let document: Value =
        serde_json::from_str(&host.reconcile(&["--dry-run", "--json"]).output()).unwrap();
    assert_eq!(document["dryRun"], true);
    assert_eq!(document["skipped"], json!([]));
    let first = &document["restored"][0];
    let at = ["network", "containerID", "ifname", "plugin"].map(|key| first[key].as_str().unwrap());
    assert_eq!(at, ["net", "c1", "eth0", "bridge"]);
    // An attachment is named once, and the kernel's objects are not.
    let titles = would.lines().filter(|line| line.starts_with("would restore "));
    assert_eq!(titles.count(), 2, "{would}");
    assert!(!would.contains("table ip") && !would.contains("portmap-"), "{would}");
    assert!(would.contains("\n    portmap: host port tcp 8080 is missing\n"), "{would}");
    // Shared rules that the first attachment restores are not missing for the second.
    let (said, would) = (host.reconciled(), flat(&would));
    let would: Vec<&str> = would.lines().collect();
    assert!(said.lines().count() <= would.len(), "{said}");
    for line in said.lines() {
        let line = line.replacen("restored", "would restore", 1);
        // The reason can differ.
        let what = line.splitn(3, ": ").take(2).collect::<Vec<_>>().join(": ");
        assert!(would.iter().any(|line| line.starts_with(&what)), "{what}: {would:?}");
    }
}

#[test]
fn only_the_living_of_the_named_network_are_restored() {
    let host = Host::new();
    let [_, c1, _] = host_with_two(&host);
    let other = with(&routed("veth"), json!({}));
    host.configure("2.conflist", &other);
    host.world.container("c3");
    host.attach_as("routed", "c3", &[]);
    c1.destroy();
    host.world.host(["nft", "flush", "ruleset"]);
    let said = host.reconcile(&["net"]).output();
    assert!(said.contains("restored eth0 of container c2 in network net:\n"), "{said}");
    assert!(!said.contains("restored eth0 of container c1"), "{said}");
    assert!(said.contains("left eth0 of container c1 in network net: it has ended: "), "{said}");
    assert!(!said.contains("c3"), "{said}");
    let rules = host.world.host(["nft", "list", "ruleset"]);
    assert!(rules.contains("net c2 eth0") && !rules.contains("net c1 eth0"), "{rules}");
    assert!(!rules.contains("routed c3 eth0"), "{rules}");
    let said = host.reconcile(&["routed"]).output();
    assert!(said.contains("container c3 in network routed:\n    veth: masquerading"), "{said}");
    // The path belongs to another container now.
    host.world.container("c1");
    assert!(!host.reconcile(&[]).stdout.contains("restored"));
}

#[test]
fn a_plugin_of_others_is_said_and_not_run() {
    let host = Host::new();
    let passes =
        "[ $CNI_COMMAND != ADD ] || sed 's/.*\"prevResult\"://; s/}$//' /run/notes/$number.stdin";
    host.recorder("stranger", passes);
    let mut config = network();
    config["plugins"].as_array_mut().unwrap().insert(1, json!({"type": "stranger"}));
    host.configure("1.conflist", &config);
    for (name, ports) in [("c1", &["-p", "8080:80"][..]), ("c2", &[])] {
        host.world.container(name);
        host.attach_as("net", name, ports);
    }
    host.seen();
    host.world.host(["nft", "flush", "ruleset"]);
    let said = flat(&host.reconcile(&[]).output());
    assert!(said.contains("c1 in network net: portmap: "), "{said}");
    let left = "left in network net: plugin stranger is of another executable";
    assert_eq!(said.matches(left).count(), 1, "{said}");
    assert_eq!(host.reconcile(&[]).output().trim(), left);
    assert_eq!(host.titles(), [""; 0]);
}

/// `firewall` in a call of its own.
fn firewall() -> Value {
    with(&network()["plugins"][2], json!({"cniVersion": "1.1.0", "name": "net"}))
}

/// The container's side of each kind of link, with the chained plugins that work there.
#[test]
fn with_inside_the_containers_side_comes_back_too() {
    let host = Host::new();
    host.world.host(["ip", "link", "add", "lan", "type", "bridge"]);
    host.world.host(["ip", "link", "set", "lan", "up"]);
    let ranges = json!([[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd00:7::/64"}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.9.0.0/16"}]);
    let ipam = json!({"type": "host-local", "ranges": ranges, "routes": routes});
    let sysctl = json!({"net.ipv4.conf.IFNAME.arp_filter": "1"});
    for main in [
        json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam}),
        json!({"type": "ptp", "ipam": ipam}),
        json!({"type": "macvlan", "master": "lan", "ipam": ipam}),
    ] {
        let plugins =
            json!([main, {"type": "tuning", "sysctl": sysctl, "mtu": 1400}, {"type": "sbr"}]);
        let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins});
        host.configure("1.conflist", &list);
        let c1 = host.world.container("c1");
        host.attach_as("net", "c1", &[]);
        let state = || {
            let show = "ip -4 -o address show eth0; ip -6 -o address show eth0 scope global; ip rule; ip -6 rule
                for f in -4 -6; do ip $f route show table all | grep -v 'table local\\|^ff00\\|^multicast\\|^fe80\\|^local'
                done; cat /proc/sys/net/ipv4/conf/eth0/arp_filter /sys/class/net/eth0/mtu";
            // A route that is made again is not of the kernel. With an IPv6 address the kernel removes it from its routes.
            let shown = c1.exec(["sh", "-c", show]).replace(" proto kernel", "");
            (2..9).fold(shown, |shown, last| shown.replace(&format!(" src fd00:7::{last}"), ""))
        };
        let before = state();
        for disturb in [
            "ip route flush table 100; ip -6 route flush table 101",
            "ip rule del table 100; ip -6 rule del table 101",
            "ip address flush dev eth0 scope global",
            "ip link set eth0 down; ip link set eth0 mtu 1300",
            "echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_filter",
        ] {
            c1.exec(["sh", "-c", disturb]);
            let outcome = host.reconcile(&[]);
            let left = "not restored inside eth0 of container c1 in network net:\n    ";
            let is_told = outcome.stdout.starts_with(left) && outcome.stderr.contains("--inside");
            assert!(outcome.status == 0 && is_told, "{main} {disturb}: {}", outcome.report());
            let document = parse(&host.reconcile(&["--json"]).output());
            let count = outcome.stdout.matches("\n    ").count();
            assert_eq!(document["leftInside"].as_array().map(Vec::len), Some(count), "{document}");
            assert_ne!(state(), before, "{main} {disturb}");
            let listed = host.reconcile(&["--inside", "--dry-run"]).output();
            assert!(listed.contains("would restore"), "{main} {disturb}: {listed}");
            let said = host.reconcile(&["--inside"]).output();
            assert!(said.contains("restored eth0 of container c1"), "{main} {disturb}: {said}");
            host.reconcile(&["--inside"]).silence();
            assert_eq!(state(), before, "{main} {disturb}: {said}");
            host.cnibox(&["check", "net", "c1", "--container-id", "c1"]).run().silence();
        }
        host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
        c1.destroy();
    }
}

/// Each rule leads to the table of its address again, and none to the table of a route of the result.
#[test]
fn rules_of_source_routing_lead_to_their_tables_again() {
    let host = Host::new();
    let ranges = json!([[{"subnet": "10.7.0.0/24"}], [{"subnet": "10.8.0.0/24"}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "0.0.0.0/0", "gw": "10.8.0.1", "table": 90}]);
    let ipam = json!({"type": "host-local", "ranges": ranges, "routes": routes});
    let bridge = json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam});
    let plugins = json!([bridge, {"type": "sbr"}]);
    host.configure(
        "1.conflist",
        &json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins}),
    );
    let c1 = host.world.container("c1");
    host.attach_as("net", "c1", &[]);
    // Without the priorities, which are in the order of the additions.
    let show = "{ ip rule | cut -f 2; ip route show table all | grep -v 'table local'; } | sort";
    let state = || c1.exec(["sh", "-c", show]);
    let before = state();
    for disturb in ["100", "101", "100; ip rule del table 101"] {
        c1.exec(["sh", "-c", &format!("ip rule del table {disturb}")]);
        assert_ne!(state(), before);
        let said = host.reconcile(&["--inside"]).output();
        assert!(said.contains("sbr: rule from 10."), "{disturb}: {said}");
        assert_eq!(state(), before, "{disturb}");
        host.reconcile(&["--inside"]).silence();
    }
}

const RECORD: &str = "/var/lib/cni/attachments/net+c1+eth0";

/// Where another executable published the ports, its DEL removes them, and nothing else would remove those of cnibox.
#[test]
fn nothing_is_added_beside_a_plugin_that_another_executable_was() {
    let host = Host::new();
    host_with_two(&host);
    let record = host.world.read(RECORD);
    assert!(
        record.contains(r#""plugins":["bridge","host-local","portmap","firewall","bandwidth"]"#),
        "{record}"
    );
    host.world.write(RECORD, record.replace(r#""portmap","#, ""));
    host.world.host(["nft", "flush", "ruleset"]);
    let said = host.reconciled_but("plugin portmap is of another executable");
    assert!(said.contains("c1 in network net: firewall: "), "{said}");
    assert!(!said.contains("c1 in network net: portmap: "), "{said}");
    assert!(said.contains("c2 in network net: portmap: "), "{said}");
    let rules = host.world.host(["nft", "list", "map", "ip", "cnibox", "portmap-published"]);
    assert!(rules.contains("8082") && !rules.contains("8080"), "{rules}");
}

/// A chain of single calls, as containerd makes them. Their record and DEL are those of the plugins.
#[test]
fn an_attachment_whose_del_has_begun_is_left() {
    let host = Host::new();
    let [_, c1, _] = host_with_two(&host);
    c1.call("firewall", "DEL", &firewall()).run().silence();
    assert!(host.world.read(RECORD).contains(r#"{"deleting":true}"#));
    host.world.host(["nft", "flush", "ruleset"]);
    let said = host.reconciled_but("eth0 of container c1 in network net: its DEL has begun");
    assert!(!said.contains("restored eth0 of container c1"), "{said}");
    assert!(said.contains("restored eth0 of container c2"), "{said}");
    c1.call("firewall", "DEL", &firewall()).run().silence();
    assert_eq!(host.world.read(RECORD).matches("deleting").count(), 1, "one mark is enough");
    // The ADD of a container that lives on.
    let result = host.cached("net-c1-eth0")["result"].clone();
    c1.add("firewall", &with(&firewall(), json!({"prevResult": result})));
    let said = flat(&host.reconcile(&[]).output());
    assert!(said.contains("restored eth0 of container c1 in network net: portmap: "), "{said}");
    host.reconcile(&[]).silence();
}

/// The lock of a record orders a DEL of any runtime with a reconcile.
#[test]
fn a_del_waits_for_a_reconcile_and_a_reconcile_leaves_what_is_locked() {
    let host = Host::new();
    let [_, c1, _] = host_with_two(&host);
    let record = std::fs::File::open(host.world.path(RECORD)).unwrap();
    record.lock().unwrap();
    let busy = "eth0 of container c1 in network net: its ADD or DEL is in progress";
    assert!(host.reconcile(&[]).output().contains(busy));
    let elements = || host.world.host(["nft", "list", "set", "ip", "cnibox", "firewall-addresses"]);
    let name = RECORD.rsplit('/').next().unwrap();
    let del = c1.call("firewall", "DEL", &firewall()).start();
    let files = format!("/proc/{}/fd", del.pid());
    host.world.eventually("the DEL waits for the record", || {
        let mut files = std::fs::read_dir(&files).unwrap().flatten();
        files.any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.ends_with(name)))
    });
    assert!(elements().contains("net c1 eth0"), "{}", elements());
    record.unlock().unwrap();
    del.finish().silence();
    assert!(!elements().contains("net c1 eth0"), "{}", elements());
}

#[test]
fn an_attachment_that_fails_does_not_stop_the_others() {
    let host = Host::new();
    host_with_two(&host);
    let end = host.cached("net-c1-eth0")["result"]["interfaces"][1]["name"].clone();
    host.world.host(["ip", "link", "set", end.as_str().unwrap(), "down"]);
    host.world.host(["nft", "flush", "ruleset"]);
    let outcome = host.reconcile(&[]);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    let error = "cannot restore eth0 of container c1";
    assert!(outcome.stderr.contains(error), "{}", outcome.report());
    let of_c2 = outcome.stdout.split("restored eth0 of container c2 in network net:\n").nth(1);
    assert!(of_c2.is_some_and(|parts| parts.contains("    firewall: ")), "{}", outcome.report());
}

#[test]
fn the_delegate_of_flannel_restores() {
    let host = Host::new();
    let subnets = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
    host.world.write("/run/flannel/subnet.env", subnets);
    host.configure("1.conflist", &list("1.0.0", &["flannel", "portmap"]));
    host.world.container("c1");
    host.attach_as("net", "c1", &[]);
    let before = host.lines();
    host.world.host(["nft", "flush", "ruleset"]);
    let said = host.reconciled();
    assert!(said.contains("flannel: masquerading of 10.42.1.2 is missing"), "{said}");
    host.assert_as(&before, "a flush of all rules");
}

#[test]
fn each_plugin_is_restored_or_has_a_reason() {
    let page = include_str!("../../../docs/reconcile.md");
    for name in plugin_names() {
        let row =
            page.lines().find(|line| line.starts_with("| ") && line.contains(&format!("`{name}`")));
        assert!(row.is_some(), "docs/reconcile.md does not tell what is restored of {name}");
    }
}
