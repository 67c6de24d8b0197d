//! Rulesets of a host with the plugin `firewall`, judged by traffic. Rules before those of the plugin can drop the packets that it
//! would accept.

use serde_json::{Value, json};

use super::rulesets::{
    AS_TRAFFIC, DROPPED, FLOWS, Site, Traffic, UNPUBLISHED, V4_DROPPED, network,
};
use super::{attach, configure, faults, healthy, only_fault};
use crate::firewall::firewalld::start_firewalld;

const V6_DROPPED: Traffic = Traffic { out: [true, false], published: true };
const NO_CONNECTION: Traffic = Traffic { out: [false, false], published: true };

fn with_firewall(keys: Value) -> Value {
    let mut network = network();
    let firewall = crate::world::with(&json!({"type": "firewall"}), keys);
    network["plugins"].as_array_mut().unwrap().push(firewall);
    network
}

/// Commands that load rules, the traffic if they run before the ADD, and the traffic if they run after it.
type Case<'a> = (&'a str, Traffic, Traffic);

fn judge(cases: &[Case<'_>]) {
    judge_with(json!({}), cases);
}

fn judge_with(keys: Value, cases: &[Case<'_>]) {
    let network = with_firewall(keys);
    let world = healthy(std::slice::from_ref(&network));
    let site = Site::of(&world, &network);
    for (commands, before, after) in cases {
        let load = || world.host(["sh", "-ec", commands]);
        site.flush();
        load();
        site.add();
        site.judge(commands, *before, AS_TRAFFIC);
        site.flush();
        site.add();
        load();
        site.judge(commands, *after, AS_TRAFFIC);
    }
}

/// ADD puts its rules before them.
#[test]
fn rules_at_the_beginning_of_forward() {
    judge(&[
        (
            "iptables-nft -I FORWARD -s 10.1.0.0/16 -j DROP
             ip6tables-nft -I FORWARD -s fd00:1::/64 -j DROP",
            FLOWS,
            DROPPED,
        ),
        (
            "iptables-nft -I FORWARD -d 10.1.0.0/16 -j DROP
             ip6tables-nft -I FORWARD -d fd00:1::/64 -j DROP",
            UNPUBLISHED,
            DROPPED,
        ),
        ("iptables-nft -I FORWARD -s 10.1.0.0/16 -j REJECT", FLOWS, V4_DROPPED),
        ("ip6tables-nft -I FORWARD -s fd00:1::/64 -j DROP", FLOWS, V6_DROPPED),
        (
            "iptables-nft -I FORWARD -o cni-a -m conntrack --ctstate NEW -j DROP",
            UNPUBLISHED,
            UNPUBLISHED,
        ),
        ("iptables-nft -I FORWARD -i docker0 -j DROP", FLOWS, FLOWS),
    ]);
}

/// Of Docker and kube-router, which put their jumps at the beginning again and again.
#[test]
fn chains_of_others_at_the_beginning_of_forward() {
    judge(&[
        (
            "for ip in iptables ip6tables; do
                 $ip-nft -N DOCKER-USER
                 $ip-nft -I FORWARD -j DOCKER-USER
             done
             iptables-nft -A DOCKER-USER -s 10.1.0.0/16 -j DROP
             ip6tables-nft -A DOCKER-USER -s fd00:1::/64 -j DROP",
            FLOWS,
            DROPPED,
        ),
        (
            "iptables-nft -N DOCKER-USER
             iptables-nft -A DOCKER-USER ! -i wan0 -j DROP
             iptables-nft -A DOCKER-USER -j RETURN
             iptables-nft -I FORWARD -j DOCKER-USER",
            FLOWS,
            V4_DROPPED,
        ),
        (
            "iptables-nft -N KUBE-ROUTER-FORWARD
             iptables-nft -I FORWARD 1 -m comment --comment 'kube-router netpol' -j KUBE-ROUTER-FORWARD
             iptables-nft -N KUBE-POD-FW-A
             iptables-nft -A KUBE-ROUTER-FORWARD -s 10.1.0.0/16 -j KUBE-POD-FW-A
             iptables-nft -A KUBE-ROUTER-FORWARD -d 10.1.0.0/16 -j KUBE-POD-FW-A
             iptables-nft -A KUBE-POD-FW-A -m conntrack --ctstate INVALID -j DROP
             iptables-nft -A KUBE-POD-FW-A -j REJECT --reject-with icmp-port-unreachable",
            UNPUBLISHED,
            V4_DROPPED,
        ),
    ]);
}

/// The plugin does not change their verdicts.
#[test]
fn chains_in_other_tables_and_of_the_administrator() {
    let mine = |priority: &str, rules: &str| {
        format!(
            "nft 'table inet mine {{ chain forward {{
                 type filter hook forward priority {priority}; {rules}; }}; }}'"
        )
    };
    let drop = "ip saddr 10.1.0.0/16 drop; ip6 saddr fd00:1::/64 drop";
    let established = "ct state established accept; ct status dnat accept; reject";
    judge(&[
        (&mine("-10", drop), DROPPED, DROPPED),
        (&mine("10", drop), DROPPED, DROPPED),
        (&mine("10", established), NO_CONNECTION, NO_CONNECTION),
        ("iptables-nft -t mangle -A FORWARD -s 10.1.0.0/16 -j DROP", V4_DROPPED, V4_DROPPED),
        (
            "for ip in iptables ip6tables; do
                 $ip-nft -N CNI-ADMIN 2>/dev/null || true
             done
             iptables-nft -A CNI-ADMIN -i cni-a -j DROP
             ip6tables-nft -A CNI-ADMIN -i cni-a -j DROP",
            DROPPED,
            DROPPED,
        ),
    ]);
}

/// The packets that the plugin accepts do not reach these rules.
#[test]
fn rules_behind_those_of_the_plugin() {
    let docker = "for ip in iptables ip6tables; do $ip-nft-restore --noflush <<EOF
*filter
:FORWARD DROP
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
-I FORWARD 1 -j DOCKER-USER
-I FORWARD 2 -j DOCKER-ISOLATION-STAGE-1
-I FORWARD 3 -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-I FORWARD 4 -o docker0 -j DOCKER
-I FORWARD 5 -i docker0 ! -o docker0 -j ACCEPT
-I FORWARD 6 -i docker0 -o docker0 -j ACCEPT
COMMIT
EOF
done";
    let ufw = "for ip in iptables ip6tables; do $ip-nft-restore --noflush <<EOF
*filter
:FORWARD DROP
:ufw-before-forward - [0:0]
:ufw-user-forward - [0:0]
:ufw-reject-forward - [0:0]
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-reject-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-reject-forward -j REJECT
COMMIT
EOF
done";
    let publish = |commands: &str| {
        let accept = "-I FORWARD -m conntrack --ctstate DNAT -j ACCEPT";
        format!("{commands}\niptables-nft {accept}\nip6tables-nft {accept}")
    };
    let policy = "iptables-nft -P FORWARD DROP\nip6tables-nft -P FORWARD DROP";
    let reject = "iptables-nft -A FORWARD -j REJECT\nip6tables-nft -A FORWARD -j REJECT";
    for commands in [policy, reject, docker, ufw] {
        judge(&[(commands, UNPUBLISHED, UNPUBLISHED), (&publish(commands), FLOWS, FLOWS)]);
    }
}

/// With `acceptPublished`, those are also new connections to published ports.
#[test]
fn published_ports_that_the_plugin_accepts() {
    let policy = "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP";
    let before = "iptables-nft -I FORWARD -o cni-a -m conntrack --ctstate NEW -j DROP";
    let keys = json!({"acceptPublished": true});
    judge_with(keys, &[(policy, FLOWS, FLOWS), (before, FLOWS, UNPUBLISHED)]);
}

/// The plugin adds the addresses to a zone, and no rule to FORWARD.
#[test]
fn firewalld_accepts_in_its_own_table_only() {
    let network = with_firewall(json!({}));
    let world = healthy(std::slice::from_ref(&network));
    let _running = start_firewalld(&world);
    let site = Site::of(&world, &network);
    site.judge("firewalld", FLOWS, AS_TRAFFIC);
    world.host(["iptables-nft", "-P", "FORWARD", "DROP"]);
    site.judge("policy drop beside firewalld", V4_DROPPED, AS_TRAFFIC);
}

/// It does not let the packets of `backend` iptables pass.
#[test]
fn firewalld_with_the_backend_iptables() {
    let network = with_firewall(json!({"backend": "iptables"}));
    let world = healthy(std::slice::from_ref(&network));
    let _running = start_firewalld(&world);
    let site = Site::of(&world, &network);
    site.judge("firewalld", NO_CONNECTION, AS_TRAFFIC);
}

/// ADD cannot ask it for sources, and its rules drop packets still.
#[test]
fn the_rules_of_firewalld_without_firewalld() {
    let network = with_firewall(json!({}));
    let world = healthy(std::slice::from_ref(&network));
    world.host(["nft", "table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; ct state established accept; ct status dnat accept; jump filter_FORWARD_ZONES; reject; }; chain filter_FORWARD_ZONES { }; }"]);
    let site = Site::of(&world, &network);
    site.judge("firewalld is dead", NO_CONNECTION, AS_TRAFFIC);
}

#[test]
fn a_rule_with_the_bit_of_the_plugin_firewall_is_found() {
    let mut own = super::network("a", 1);
    own["plugins"].as_array_mut().unwrap().push(json!({"type": "firewall"}));
    let world = healthy(std::slice::from_ref(&own));
    attach(&world, &own);
    let others = "table inet other { chain c { type filter hook prerouting priority 0; meta mark set 0x1000; }; }";
    world.tool(&["nft", "-f", "-"], None).stdin(others).output_of_success();
    let texts = ["network a: markAcceptBit: a rule of chain c of table inet other uses bit 12"];
    let fix = only_fault(&world, "broken", &texts);
    assert_eq!(fix, "set markAcceptBit in /run/net.d/a.conflist");
    own["plugins"][1] = json!({"type": "firewall", "markAcceptBit": 11});
    configure(&world, "a", &own);
    assert_eq!(faults(&world), [json!(null); 0]);
}
