//! The probe says what it has not asked, takes no block that somebody may want for a fault, and prints commands that help.

use serde_json::Value;

use super::Host;

pub(super) fn admin(hook: &str, rules: &str) -> String {
    format!("nft 'table inet admin {{ chain c {{ type filter hook {hook}; {rules} }}; }}'")
}

pub(super) fn what(finding: &Value) -> &str {
    finding["what"].as_str().unwrap()
}

#[test]
fn what_was_not_asked_may_still_be_dropped() {
    let host = Host::new();
    for rules in [
        admin("forward priority 0; policy drop", "iifname cni-a accept; ct status dnat accept;"),
        admin("forward priority 0", "iifname wan oifname cni-a ct state established drop;"),
        admin("output priority 0", "oifname cni-a drop;"),
    ] {
        host.run(&rules);
        let findings = host.findings();
        assert_eq!(findings.len(), 1, "{rules}: {findings:#?}");
        let line = findings[0]["lines"][0].as_str().unwrap();
        assert!(line.contains(": answers of a") || line.contains("packets of the host"), "{line}");
        assert_eq!(host.probe(&[]).stdout.matches("no fault found").count(), 0, "{rules}");
        host.run("nft delete table inet admin");
    }
    // A rule that sees no packet of the probe keeps them from being asked. So the chain is still listed.
    host.run(&admin("forward priority 0; policy drop", "tcp dport 22 log group 5;"));
    let findings = host.findings();
    assert!(findings[0]["lines"][0].as_str().unwrap().contains("new connections"), "{findings:#?}");
}

#[test]
fn each_container_is_asked() {
    let host = Host::new();
    for address in ["10.1.0.2", "10.1.0.3"] {
        let rule = format!("ip saddr {address} ip daddr 198.41.0.4 drop;");
        host.run(&admin("forward priority 0", &rule));
        let findings = host.findings();
        assert!(
            findings.iter().any(|one| what(one).contains("are dropped by rule")),
            "{findings:#?}"
        );
        host.run("nft delete table inet admin");
    }
}

#[test]
fn a_port_that_is_closed_for_the_world_can_be_wanted() {
    let host = Host::new();
    let rules = "ct state established,related accept; iifname cni-a accept; iifname lan0 accept;";
    host.run(&admin("forward priority 0; policy drop", rules));
    for _ in 0..2 {
        let faults = host.faults();
        let ports = faults.iter().find(|one| what(one).contains("published ports")).unwrap();
        assert_eq!(ports["kind"], "may", "{ports:#}");
        let fix = ports["fix"].as_str().unwrap();
        assert!(fix.contains("ct status dnat ip") && fix.contains("tcp dport 80 accept"), "{fix}");
        host.run(fix);
        if host.faults().is_empty() {
            return;
        }
    }
    assert_eq!(host.faults(), [] as [Value; 0]);
}

#[test]
fn a_packet_that_goes_elsewhere_does_not_pass() {
    let host = Host::new();
    for (fault, text, end) in [
        (
            "nft 'table ip admin { chain c { type nat hook prerouting priority -110; tcp dport 8080 dnat to 10.9.9.9; }; }'",
            "go to another destination than 10.1.0.2 port 80",
            "nft delete table ip admin",
        ),
        (
            "ip route add 10.1.0.2/32 dev wan",
            "sends packets for its address 10.1.0.2 through wan, not through cni-a",
            "ip route delete 10.1.0.2/32 dev wan",
        ),
        (
            "ip route add unreachable 10.1.0.2/32",
            "sends packets for its address 10.1.0.2 nowhere, not through cni-a",
            "ip route delete unreachable 10.1.0.2/32",
        ),
    ] {
        host.run(fault);
        let findings = host.findings();
        let has = |one: &Value| one["kind"] == "broken" && what(one).contains(text);
        assert!(findings.iter().any(has), "{fault}: {findings:#?}");
        host.run(end);
    }
    assert_eq!(host.findings(), [] as [Value; 0]);
}

#[test]
fn the_command_fits_the_hook_and_the_way() {
    let host = Host::new();
    let other_uplink = "ip link add wan2 type veth peer name port2 && ip link set port2 up && ip address add 203.0.113.1/24 dev wan2 && ip link set wan2 up &&
        ip route add default via 203.0.113.2 table 77 && ip rule add from 10.1.0.0/16 lookup 77";
    for (fault, text) in [
        (
            admin("prerouting priority -300", "iifname cni-a drop; tcp dport 8080 drop;"),
            "8080 accept",
        ),
        (
            admin("prerouting priority -150", "tcp dport 8080 drop;"),
            "iifname \"wan\" ip daddr 198.18.0.1 tcp dport 8080 accept",
        ),
        (
            admin("prerouting priority 0", "ct status dnat drop;"),
            "ct status dnat ip daddr 10.1.0.2 tcp dport 80 accept",
        ),
        (admin("postrouting priority 0", "oifname wan drop;"), "oifname \"wan\" accept"),
        (
            "iptables-nft -t raw -A PREROUTING -p tcp --dport 8080 -j DROP".into(),
            "-i wan -d 198.18.0.1 -p tcp --dport 8080 -j ACCEPT",
        ),
        (
            "iptables-legacy -P FORWARD DROP".into(),
            "iptables-legacy -I FORWARD 1 -i cni-a -o wan -j ACCEPT",
        ),
        (
            format!("{other_uplink} && {}", admin("forward priority 0; policy drop", "")),
            "oifname \"wan2\" accept",
        ),
    ] {
        host.run(&fault);
        let mut faults = host.faults();
        let has = |one: &Value| one["fix"].as_str().unwrap().contains(text);
        assert!(faults.iter().any(has), "{fault}: {faults:#?}");
        for _ in 0..12 {
            let Some(first) = faults.first() else { break };
            host.run(first["fix"].as_str().unwrap());
            faults = host.faults();
        }
        assert_eq!(faults, [] as [Value; 0], "{fault}");
        host.run("nft delete table inet admin; iptables-nft -t raw -F; iptables-legacy -F; iptables-legacy -P FORWARD ACCEPT; true");
    }
}

#[test]
fn a_rule_of_the_own_tables_and_a_limit_are_told() {
    let host = Host::new();
    host.run(&admin("forward priority 0", "limit rate over 1/hour burst 1 packets drop;"));
    let outcome = host.probe(&[]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    assert!(outcome.stderr.contains("The rule drops some packets"), "{}", outcome.report());
    host.run("nft delete table inet admin");
    let chains = host.world.host(["nft", "list", "chains", "ip"]);
    let (_, own) = chains.split_once("table ip cnibox {").unwrap();
    let (chain, _) = own.split_once("hook postrouting").unwrap();
    let name = chain.rsplit("chain ").next().unwrap().split_whitespace().next().unwrap();
    host.run(&format!("nft insert rule ip cnibox {name} ip daddr 198.41.0.4 drop"));
    let findings = host.findings();
    assert_eq!(findings[0]["kind"], "may", "{findings:#?}");
    assert_eq!(findings[0]["fix"], "cnibox reconcile", "{findings:#?}");
    let what = findings[0]["what"].as_str().unwrap();
    host.run(what.split('`').find(|part| part.starts_with("nft delete rule ")).unwrap());
    assert_eq!(host.findings(), [] as [Value; 0]);
}

#[test]
fn what_cannot_be_asked_is_said() {
    let host = Host::new();
    host.run("ip route delete default && ip tuntap add tun0 mode tun && ip address add 203.0.113.1/32 dev tun0 && ip link set tun0 up && ip route add default dev tun0");
    let outcome = host.probe(&["one"]);
    let reason = "published port 8080 over IPv4: tun0 has no Ethernet address";
    assert!(outcome.stderr.contains(reason), "{}", outcome.report());
    assert!(outcome.stdout.contains("to other networks, udp 53 over IPv4: "), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("no fault found in what was asked: "), "{}", outcome.stdout);
    host.run("ip route delete default");
    let outcome = host.probe(&["one"]);
    let reason = "the host has no route of IPv4 to other networks, such as 198.41.0.4";
    assert!(outcome.stderr.contains(reason), "{}", outcome.report());
    host.run("ip link set cni-a down");
    let outcome = host.probe(&[]);
    assert!(outcome.stderr.contains("cni-a is down"), "{}", outcome.report());
    assert!(!outcome.stdout.contains("traffic control"), "{}", outcome.report());
}
