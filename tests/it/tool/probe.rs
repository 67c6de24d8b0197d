//! `cnibox doctor --probe`: the kernel names the rule that drops packets of containers, and no packet arrives anywhere.

mod extent;
mod faults;
mod honest;
mod risks;

use serde_json::{Value, json};

use super::cnibox;
use crate::world::{Call, Container, Outcome, World, at_every_change_from, parse};

pub(super) const CONFIGURATIONS: &str = "/run/net.d";

/// A host with an uplink to `outside`, and two containers in the network `a`; one has a published port.
pub(super) struct Host {
    pub(super) world: World,
}

impl Host {
    pub(super) fn new() -> Self {
        Self::with_plugins(&[])
    }

    /// The network has these plugins after `bridge` and `portmap`.
    pub(super) fn with_plugins(more: &[Value]) -> Self {
        let world = World::new();
        let outside = world.container("outside");
        let script = format!(
            "mkdir -p {CONFIGURATIONS} &&
             ip link add wan type veth peer name port netns outside && ip link set wan up &&
             ip address add 198.18.0.1/24 dev wan && ip address add fd03::1/64 dev wan nodad &&
             ip route add default via 198.18.0.9 && ip route add default via fd03::9 &&
             sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"
        );
        world.host(["sh", "-c", &script]);
        outside.exec(["sh", "-c", "ip address add 198.18.0.9/24 dev port && ip link set port up"]);
        let bridge = json!({
            "type": "bridge", "bridge": "cni-a", "isGateway": true, "ipMasq": true,
            "capabilities": {"ips": true},
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            },
        });
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let plugins = [&[bridge, portmap], more].concat();
        let network = json!({"cniVersion": "1.0.0", "name": "a", "plugins": plugins});
        world.write(&format!("{CONFIGURATIONS}/a.conflist"), network.to_string());
        let host = Self { world };
        for (name, ports) in [("one", &["-p", "8080:80"][..]), ("two", &[])] {
            host.world.container(name);
            host.cnibox(&[&["add", "a", name], ports].concat()).run().success();
        }
        host
    }

    fn cnibox(&self, args: &[&str]) -> Call<'_> {
        cnibox(&self.world, args).env("NETCONFPATH", CONFIGURATIONS).env("CNI_PATH", "/run/plugins")
    }

    fn probe(&self, args: &[&str]) -> Outcome {
        self.cnibox(&[&["doctor", "--probe"], args].concat()).run()
    }

    /// The findings of the probe, without notes.
    #[track_caller]
    fn findings(&self) -> Vec<Value> {
        let outcome = self.probe(&["--json"]);
        let mut findings = parse(&outcome.stdout)["findings"].as_array().unwrap().clone();
        findings.retain(|finding| finding["kind"] != "note");
        let is_broken = findings.iter().any(|finding| finding["kind"] == "broken");
        assert_eq!(outcome.status, i32::from(is_broken), "{}", outcome.report());
        findings
    }

    /// Those that are faults, or that have a command.
    #[track_caller]
    fn faults(&self) -> Vec<Value> {
        let mut findings = self.findings();
        findings.retain(|finding| finding["kind"] == "broken" || finding["fix"] != "");
        findings
    }

    fn run(&self, script: &str) {
        self.world.host(["sh", "-c", script]);
    }

    /// The link and the tables of the probe.
    fn left(&self) -> String {
        self.world.host(["sh", "-c", "ip -o link; nft list tables"])
    }

    fn is_clean(&self) -> bool {
        !self.left().contains("cnibox-probe")
    }
}

/// Counts the packets that a namespace gets from now on, but not those of neighbour discovery.
fn count(container: &Container<'_>) {
    let script = "nft add table inet count &&
        nft 'add chain inet count in { type filter hook prerouting priority -500; }' &&
        nft add rule inet count in meta l4proto { tcp, udp, icmp } counter &&
        nft add rule inet count in icmpv6 type destination-unreachable counter";
    container.exec(["sh", "-c", script]);
}

#[track_caller]
fn got_nothing(container: &Container<'_>) {
    let rules = container.exec(["nft", "list", "table", "inet", "count"]);
    assert_eq!(rules.matches("counter packets 0 ").count(), 2, "{}: {rules}", container.name);
}

#[test]
fn a_sound_host_is_silent_and_no_packet_arrives() {
    let host = Host::new();
    let names = ["outside", "one", "two"];
    let containers = names.map(|name| Container { world: &host.world, name: name.into() });
    containers.iter().for_each(count);
    for rules in [
        "true",
        // Packets that are dropped, refused, or not tracked do not arrive either, and no answer does.
        "nft add table ip admin && nft 'add chain ip admin fw { type filter hook forward priority 0; }' &&
         nft add rule ip admin fw reject",
        "nft flush chain ip admin fw && nft 'add chain ip admin raw { type filter hook prerouting priority -300; }' &&
         nft add rule ip admin raw notrack && nft add rule ip admin fw reject",
        "nft delete table ip admin; sysctl -qw net.ipv4.ip_forward=0",
    ] {
        host.run(rules);
        let outcome = host.probe(&["--force"]);
        let is_sound = rules == "true";
        assert_eq!(outcome.status == 0, is_sound, "{rules}: {}", outcome.report());
        let line = "no fault found in 1 network and 2 attachments\n";
        assert_eq!(outcome.stdout == line, is_sound, "{rules}: {}", outcome.report());
        containers.iter().for_each(got_nothing);
        assert!(host.is_clean(), "{}", host.left());
        let connections = "grep -E '(sport|dport)=20[0-9]{3} ' /proc/net/nf_conntrack || true";
        assert_eq!(host.world.host(["sh", "-c", connections]), "", "{rules}");
        // No neighbour was asked for its Ethernet address.
        assert_eq!(host.world.host(["ip", "-4", "neighbour", "show", "dev", "wan"]), "", "{rules}");
    }
}

#[test]
fn the_rule_is_named_and_the_command_mends_it() {
    let host = Host::new();
    let chain = |hook: &str| {
        format!(
            "nft 'add table inet admin; add chain inet admin c {{ type filter hook {hook}; }}' && "
        )
    };
    let forward = chain("forward priority 0");
    for (fault, texts) in [
        (
            format!("{forward} nft add rule inet admin c iifname cni-a oifname wan drop"),
            &["packets of network a to other networks (udp 53 over IPv4, ", "table inet admin (an nftables ruleset)"][..],
        ),
        (
            format!("{forward} nft 'add chain inet admin sub; add rule inet admin c jump sub; add rule inet admin sub tcp dport 443 reject'"),
            &["tcp 443 over IPv4, tcp 443 over IPv6) are dropped by rule ", "of chain sub, table"],
        ),
        (
            chain("forward priority 0; policy drop"),
            &["are dropped by the policy of chain c, table inet admin"],
        ),
        (
            format!("{forward} nft add rule inet admin c ct status dnat tcp dport 80 drop"),
            &["packets to the published ports of eth0 of container ", "tcp 8080 over IPv4"],
        ),
        (
            "nft 'add table bridge admin; add chain bridge admin c { type filter hook forward priority 0; }; add rule bridge admin c udp dport 53 drop'".into(),
            &["packets of network a to other containers (udp 53 over IPv4", "of chain c, table bridge admin"],
        ),
        (
            chain("input priority 0; policy drop"),
            &["packets of network a to the gateway fd00:1::1 (neighbour solicitation) are dropped by the policy"],
        ),
        (
            "iptables-nft -A FORWARD -i cni-a -j DROP".into(),
            &["of chain FORWARD, table ip filter (iptables-nft)"],
        ),
        (
            "iptables-nft -N DOCKER-USER && iptables-nft -I FORWARD -j DOCKER-USER && iptables-nft -A DOCKER-USER -i wan -j DROP".into(),
            &["packets to the published ports", "of chain DOCKER-USER, table ip filter (Docker)"],
        ),
    ] {
        let fault = fault.trim_end_matches("&& ");
        host.run(fault);
        let mut faults = host.faults();
        let what = faults[0]["what"].as_str().unwrap();
        assert!(texts.iter().all(|text| what.contains(text)), "{fault}: {what}");
        let shown = what.split('`').nth(1).unwrap();
        assert!(shown.starts_with("nft -a list chain "), "{what}");
        host.run(shown);
        // Each command accepts the packets of one finding.
        for _ in 0..8 {
            let Some(first) = faults.first() else { break };
            host.run(first["fix"].as_str().unwrap());
            faults = host.faults();
        }
        assert_eq!(faults, [] as [Value; 0], "{fault}");
        host.run("for table in inet bridge; do nft delete table $table admin 2>/dev/null; done; iptables-nft -F; iptables-nft -X; true");
    }
}

#[test]
fn a_packet_that_no_table_drops_is_lost_at_a_hook() {
    let host = Host::new();
    let ports = host.world.ports_of("cni-a").join(" ");
    let on_ports = |command: &str| format!("for port in {ports}; do {command} || exit 1; done");
    let drop = "nft \"table netdev $port { chain c { type filter hook ingress device $port priority 0; drop; }; }\"";
    for (fault, text, end) in [
        (
            on_ports(drop),
            "are lost before the rules of nf_tables",
            on_ports("nft delete table netdev $port"),
        ),
        (
            "ip route add 10.1.0.0/17 dev wan && sysctl -qw net.ipv4.conf.cni-a.rp_filter=1".into(),
            "are dropped by the reverse path filter of cni-a: counter IPReversePathFilter",
            "sysctl -qw net.ipv4.conf.cni-a.rp_filter=0; ip route delete 10.1.0.0/17 dev wan"
                .into(),
        ),
        (
            "ip rule add from 10.1.0.0/16 to 198.41.0.4 unreachable".into(),
            "are dropped by routing, after prerouting",
            "ip rule delete from 10.1.0.0/16 to 198.41.0.4 unreachable".into(),
        ),
    ] {
        host.run(&fault);
        let faults = host.faults();
        let has = |fault: &Value| fault["what"].as_str().unwrap().contains(text);
        assert!(faults.iter().any(has), "{fault}: {faults:#?}");
        host.run(&end);
        assert_eq!(host.faults(), [] as [Value; 0], "after {end}");
    }
}

#[test]
fn the_way_of_a_packet_is_a_line() {
    let host = Host::new();
    let outcome = host.probe(&["one"]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    for line in [
        "from other networks, tcp 8080 over IPv4: wan → cni-a → passes",
        " → cni-a → wan → passes",
        "to another container, tcp 80 over IPv6: eth0 → veth",
    ] {
        assert!(outcome.stdout.contains(line), "{line}: {}", outcome.stdout);
    }
    host.run("nft 'add table inet admin; add chain inet admin fw { type filter hook forward priority 0; policy drop; }'");
    let outcome = host.probe(&["--port", "8080"]);
    let drops = "tcp 8080 over IPv4: wan → cni-a → fw: the policy of inet admin drops\n";
    assert!(outcome.status == 0 && outcome.stdout.contains(drops), "{}", outcome.report());
    assert!(!outcome.stdout.contains("to other networks"), "{}", outcome.stdout);
    // It asked nothing about other connections.
    assert!(outcome.stdout.contains(": new connections, answers of a\n"), "{}", outcome.stdout);
    let unknown = host.probe(&["nobody"]);
    assert!(
        unknown.status != 0 && unknown.stderr.contains("cannot find container nobody"),
        "{}",
        unknown.report()
    );
}

#[test]
fn a_probe_that_is_killed_leaves_nothing() {
    let host = Host::new();
    let call = || host.cnibox(&["doctor", "--probe", "--port", "8080"]);
    let killed = at_every_change_from(
        &host.world,
        "unshare",
        call,
        || {},
        |point| {
            let what = format!("the link and the tables are gone after {point}");
            host.world.eventually(&what, || host.is_clean());
        },
    );
    assert!(killed > 10, "{killed}");
}

#[test]
fn a_table_that_drops_the_queries_of_a_network_with_names_is_named() {
    let host = Host::with_plugins(&[json!({"type": "dnsname"})]);
    assert_eq!(host.faults(), [] as [Value; 0]);
    host.run("iptables-nft -P INPUT DROP; ip6tables-nft -P INPUT DROP; ip6tables-nft -A INPUT -p icmpv6 -j ACCEPT");
    let about = |text: &str| {
        let faults = host.faults();
        let of_text = |fault: &&Value| fault["what"].as_str().unwrap().contains(text);
        faults.iter().filter(of_text).cloned().collect::<Vec<_>>()
    };
    assert_ne!(about("udp 53"), [] as [Value; 0], "the rules are missing");
    host.cnibox(&["reconcile"]).run().output();
    assert_eq!(about("udp 53"), [] as [Value; 0]);
    host.run("nft 'table inet admin { chain c { type filter hook input priority 0; udp dport 53 drop; }; }'");
    let found = about("udp 53");
    assert!(found.iter().any(|fault| fault.to_string().contains("inet admin")), "{found:#?}");
}
