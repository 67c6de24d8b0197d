//! Rulesets of iptables, in nf_tables and in the table of iptables-legacy.

use super::rulesets::{
    AS_TRAFFIC, Case, DROPPED, FLOWS, MAY_DROP, Site, UNPUBLISHED, V4_DROPPED, host, judge_each,
};

/// Rules that are loaded with iptables-restore into the table `filter` of one program.
fn judge(program: &str, cases: &[Case<'_>]) {
    judge_each(cases, |world, rules, traffic| {
        for ip in ["iptables", "ip6tables"] {
            let is_both = traffic == DROPPED || traffic.out[1] == traffic.out[0];
            let rules = if ip == "iptables" || is_both { rules } else { ":FORWARD ACCEPT" };
            let text = format!("*filter\n{}\nCOMMIT\n", rules.replace("; ", "\n"));
            let restore = format!("{ip}-{program}-restore");
            world.tool(&[&restore], None).stdin(text).output_of_success();
        }
        rules.to_owned()
    });
}

const CASES: &[Case<'_>] = &[
    (":FORWARD DROP", DROPPED, AS_TRAFFIC),
    (":FORWARD DROP", V4_DROPPED, AS_TRAFFIC),
    (":FORWARD ACCEPT; -A FORWARD -i cni-a -j REJECT", DROPPED, AS_TRAFFIC),
    (":FORWARD ACCEPT; -A FORWARD ! -i wan0 -j DROP", DROPPED, AS_TRAFFIC),
    (":FORWARD ACCEPT; -A FORWARD -m conntrack --ctstate INVALID -j DROP", FLOWS, AS_TRAFFIC),
    (":FORWARD ACCEPT; -A FORWARD -p udp -j DROP", FLOWS, MAY_DROP),
    (
        ":FORWARD DROP; -A FORWARD -i cni+ -j ACCEPT; -A FORWARD -o cni+ -j ACCEPT",
        FLOWS,
        AS_TRAFFIC,
    ),
    (
        ":FORWARD DROP; -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A FORWARD -i cni-a ! -o cni-a -j ACCEPT; -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT",
        FLOWS,
        AS_TRAFFIC,
    ),
    (
        ":FORWARD DROP; -A FORWARD -m state --state ESTABLISHED -j ACCEPT; -A FORWARD -p tcp -m tcp --syn -i cni-a -j ACCEPT",
        UNPUBLISHED,
        AS_TRAFFIC,
    ),
    // Docker.
    (
        ":FORWARD DROP; :DOCKER - [0:0]; :DOCKER-ISOLATION-STAGE-1 - [0:0]; :DOCKER-ISOLATION-STAGE-2 - [0:0]; :DOCKER-USER - [0:0]; -A FORWARD -j DOCKER-USER; -A FORWARD -j DOCKER-ISOLATION-STAGE-1; -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A FORWARD -o docker0 -j DOCKER; -A FORWARD -i docker0 ! -o docker0 -j ACCEPT; -A FORWARD -i docker0 -o docker0 -j ACCEPT; -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2; -A DOCKER-ISOLATION-STAGE-1 -j RETURN; -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP; -A DOCKER-ISOLATION-STAGE-2 -j RETURN; -A DOCKER-USER -j RETURN",
        DROPPED,
        AS_TRAFFIC,
    ),
    // ufw.
    (
        ":FORWARD DROP; :ufw-before-forward - [0:0]; :ufw-user-forward - [0:0]; :ufw-reject-forward - [0:0]; -A FORWARD -j ufw-before-forward; -A FORWARD -j ufw-reject-forward; -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A ufw-before-forward -j ufw-user-forward; -A ufw-reject-forward -m comment --comment deny -j LOG",
        DROPPED,
        AS_TRAFFIC,
    ),
    (
        ":FORWARD DROP; :MINE - [0:0]; -A FORWARD -g MINE; -A MINE -i cni-a -j RETURN; -A MINE -j ACCEPT",
        DROPPED,
        AS_TRAFFIC,
    ),
    (
        ":FORWARD DROP; :MINE - [0:0]; -A FORWARD -j MINE; -A MINE -i lo -j RETURN; -A MINE -j ACCEPT",
        FLOWS,
        AS_TRAFFIC,
    ),
    (
        ":FORWARD DROP; -A FORWARD -m limit --limit 1000/sec --limit-burst 1000 -j ACCEPT",
        FLOWS,
        MAY_DROP,
    ),
    (":FORWARD DROP; -A FORWARD -m mark --mark 1 -j ACCEPT", DROPPED, MAY_DROP),
    (":FORWARD ACCEPT; -A FORWARD -p tcp -m tcp --dport 25 -j DROP", FLOWS, MAY_DROP),
];

#[test]
fn rules_in_nf_tables() {
    judge("nft", CASES);
}

#[test]
fn rules_in_the_table_of_iptables_legacy() {
    let listed = |(rules, traffic, _): &Case<'static>| (*rules, *traffic, MAY_DROP);
    judge("legacy", &CASES.iter().map(listed).collect::<Vec<_>>());
}

#[test]
fn a_table_of_iptables_with_rules_of_nft() {
    let world = host();
    let site = Site::new(&world);
    world.host(["iptables-nft", "-P", "FORWARD", "DROP"]);
    world.host(["nft", "add rule ip filter FORWARD ct state invalid drop"]);
    site.judge("a rule of nft", V4_DROPPED, AS_TRAFFIC);
}

/// To read a table of iptables-legacy creates it.
#[test]
fn no_table_of_iptables_legacy_is_made() {
    let world = host();
    let tables = "cat /proc/thread-self/net/ip_tables_names /proc/thread-self/net/ip6_tables_names";
    let before = world.host(["sh", "-c", tables]);
    super::doctor(&world, &[]);
    assert_eq!((before.as_str(), world.host(["sh", "-c", tables]).as_str()), ("", ""));
}
