//! A command accepts what is dropped, and no more: a rule that drops some packets of a network can be there on purpose.

use serde_json::Value;

use super::Host;
use super::honest::{admin, what};

#[test]
fn packets_of_programs_are_asked() {
    let host = Host::new();
    // Rules that drop packets which no program sends, and a rule that ends traces.
    let rules =
        "udp length 8 drop; tcp flags syn tcp option maxseg missing drop; meta nftrace set 0;";
    host.run(&admin("prerouting priority -200", rules));
    host.run("iptables-nft -t mangle -A PREROUTING -p tcp -m conntrack --ctstate NEW -m tcpmss ! --mss 536:65535 -j DROP");
    assert_eq!(host.faults(), [] as [Value; 0]);
}

#[test]
fn a_rule_for_some_packets_may_be_wanted() {
    let host = Host::new();
    for (rules, subject, fix) in [
        // An allowlist.
        (
            admin(
                "forward priority 0; policy drop",
                "ct state established,related accept; iifname cni-a oifname wan tcp dport 443 accept; iifname cni-a oifname cni-a accept; ct status dnat accept;",
            ),
            "packets of network a to other networks (udp 53 over IPv4, udp 53 over IPv6)",
            "iifname \"cni-a\" oifname \"wan\" udp dport 53 accept",
        ),
        // A container that is cut off.
        (
            admin("forward priority 0", "ip saddr 10.1.0.2 oifname wan ct state new drop;"),
            "packets of eth0 of container ",
            "ip saddr 10.1.0.2 oifname \"wan\" tcp dport 443 accept",
        ),
        // A port among others. The rule behind it stays in force.
        (
            admin("forward priority 0", "iifname cni-a udp dport 53 drop; tcp dport 25 drop;"),
            "packets of network a to other networks (udp 53 over IPv4, udp 53 over IPv6)",
            "iifname \"cni-a\" oifname \"wan\" udp dport 53 accept",
        ),
    ] {
        host.run(&rules);
        let findings = host.findings();
        let found = findings.iter().find(|one| what(one).contains("are dropped by"));
        let found = found.unwrap_or_else(|| panic!("{rules}: {findings:#?}"));
        assert_eq!(found["kind"], "may", "{rules}: {found:#}");
        assert!(what(found).contains(subject), "{rules}: {found:#}");
        assert!(found["fix"].as_str().unwrap().contains(fix), "{rules}: {found:#}");
        for _ in 0..4 {
            let faults = host.faults();
            let Some(first) = faults.iter().find(|one| one["fix"] != "") else { break };
            host.run(first["fix"].as_str().unwrap());
        }
        assert_eq!(host.faults(), [] as [Value; 0], "{rules}");
        host.run("nft delete table inet admin");
    }
}

#[test]
fn one_command_accepts_all_packets_of_a_finding() {
    let host = Host::new();
    host.run("nft 'add table ip admin; add table ip6 admin; add chain ip admin c { type filter hook forward priority 0; policy drop; }; add chain ip6 admin c { type filter hook forward priority 0; policy drop; }'");
    host.run(&admin("forward priority 1; policy drop", "ct state established,related accept;"));
    // Two families, and three directions in each of three tables.
    for _ in 0..18 {
        let faults = host.faults();
        let Some(first) = faults.first() else { break };
        host.run(first["fix"].as_str().unwrap());
    }
    assert_eq!(host.faults(), [] as [Value; 0]);
    // The rule for answers was there, or was added once.
    for table in ["ip admin", "inet admin"] {
        let rules = host.world.host(["sh", "-c", &format!("nft list table {table}")]);
        assert_eq!(rules.matches("ct state established,related accept").count(), 1, "{rules}");
    }
}

#[test]
fn a_rule_of_the_administrator_is_not_of_cnibox() {
    let host = Host::new();
    host.run("iptables-nft -N CNI-ADMIN && iptables-nft -I FORWARD -j CNI-ADMIN && iptables-nft -A CNI-ADMIN -j DROP");
    let findings = host.findings();
    let has = |one: &&Value| one["kind"] == "broken" && what(one).contains("CNI-ADMIN");
    let found = findings.iter().find(has).unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(
        found["fix"].as_str().unwrap().starts_with("iptables-nft -I CNI-ADMIN 1 "),
        "{found:#}"
    );
}

#[test]
fn what_a_rule_names_besides_is_not_asked() {
    let host = Host::new();
    for rule in [
        "iifname cni-a oifname wan tcp dport 80 drop;",
        "ip saddr 10.1.0.0/16 tcp dport 5432 drop;",
    ] {
        host.run(&admin("forward priority 0", rule));
        let findings = host.findings();
        let line = findings[0]["lines"][0].as_str().unwrap();
        assert!(line.contains("chain c, table inet admin") && line.contains("of a"), "{line}");
        host.run("nft delete table inet admin");
    }
}

/// Other tools list the tables while the probe is there.
#[test]
fn the_tables_of_the_probe_can_be_listed() {
    let host = Host::new();
    // The probe waits for the packets that legacy tables drop.
    host.run("iptables-legacy -P FORWARD DROP");
    let probe = host.cnibox(&["doctor", "--probe"]).start();
    host.world.eventually("the probe has begun", || !host.is_clean());
    let listed = host.world.host(["nft", "list", "ruleset"]);
    assert!(listed.contains("table ip cnibox-probe"), "{listed}");
    drop(probe);
    host.world.eventually("the probe has ended", || host.is_clean());
}

/// One container without a carrier, and an uplink without one, keep no other packet from being sent.
#[test]
fn a_link_without_a_carrier_is_not_asked() {
    let host = Host::new();
    host.run("ip -n one link set eth0 down");
    let outcome = host.probe(&[]);
    assert!(outcome.stderr.contains(" has no carrier"), "{}", outcome.report());
    let outcome = host.probe(&["two"]);
    assert!(
        outcome.stdout.contains("to other networks, tcp 443 over IPv4: "),
        "{}",
        outcome.report()
    );
    host.run("ip -n outside link set port down");
    let outcome = host.probe(&["two"]);
    assert!(!outcome.report().contains("cannot send"), "{}", outcome.report());
}

/// A table of the name without an owner comes from a stored ruleset.
#[test]
fn a_stored_table_of_the_probe_is_replaced() {
    let host = Host::new();
    host.run("nft 'add table ip cnibox-probe; add chain ip cnibox-probe old; add table inet x'");
    assert_eq!(host.findings(), [] as [Value; 0]);
    assert!(host.is_clean(), "{}", host.left());
}
