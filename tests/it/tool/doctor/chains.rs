//! Rulesets of nft.

use super::nft;
use super::rulesets::{
    AS_TRAFFIC, Case, DROPPED, FLOWS, MAY_DROP, Site, Traffic, UNPUBLISHED, V4_DROPPED, host,
    judge_each,
};

/// `P` is the beginning of a chain with the policy drop, `A` of one with the policy accept.
fn judge(cases: &[Case<'_>]) {
    judge_each(cases, |world, rules, _| {
        let begin = |policy| {
            format!("chain forward {{ type filter hook forward priority 0; policy {policy};")
        };
        let rules = match rules.split_at(1) {
            ("P", rest) => begin("drop") + rest + ";}",
            ("A", rest) => begin("accept") + rest + ";}",
            _ => rules.to_owned(),
        };
        nft(world, &rules);
        rules
    });
}

#[test]
fn rules_with_verdicts() {
    judge(&[
        ("P", DROPPED, AS_TRAFFIC),
        ("A iifname cni-a log prefix \"x\" drop", DROPPED, AS_TRAFFIC),
        ("A iifname cni-a reject", DROPPED, AS_TRAFFIC),
        ("A iifname != wan0 counter drop", DROPPED, AS_TRAFFIC),
        ("A oifname cni-a ct state new drop", UNPUBLISHED, AS_TRAFFIC),
        ("A ct state invalid drop", FLOWS, AS_TRAFFIC),
        ("A fib daddr type local drop", FLOWS, AS_TRAFFIC),
        ("A tcp flags & (fin|syn|rst|ack) != syn ct state new drop", FLOWS, MAY_DROP),
        ("A ip frag-off & 0x1fff != 0 drop; meta l4proto udp drop", FLOWS, MAY_DROP),
        ("P iifgroup 0 accept", FLOWS, AS_TRAFFIC),
        (
            "P counter; iifname cni-a counter accept; ct state established counter accept; ct status dnat counter accept",
            FLOWS,
            AS_TRAFFIC,
        ),
        ("P ct state established,related accept; iifname cni-a accept", UNPUBLISHED, AS_TRAFFIC),
        ("P iifname \"cni-*\" accept; oifname \"cni-*\" accept", FLOWS, AS_TRAFFIC),
        (
            "P meta mark set 7 iifname cni-a accept; ct state established ct mark set 7 accept; ct status dnat accept",
            FLOWS,
            AS_TRAFFIC,
        ),
        (
            "flags dormant; chain forward { type filter hook forward priority 0; policy drop; }",
            FLOWS,
            AS_TRAFFIC,
        ),
    ]);
}

#[test]
fn one_family() {
    let only = |v4, v6, published| Traffic { out: [v4, v6], published };
    judge(&[
        ("A ip saddr 10.1.0.0/16 drop", only(false, true, false), AS_TRAFFIC),
        ("A ip6 saddr fd00:1::/64 reject", only(true, false, true), AS_TRAFFIC),
        ("A meta nfproto ipv6 drop", only(true, false, true), AS_TRAFFIC),
        ("P meta nfproto ipv6 accept", only(false, true, false), AS_TRAFFIC),
        // Of firewalld.
        (
            "A ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002:a00::/24, 2002:e000::/19 } reject",
            FLOWS,
            AS_TRAFFIC,
        ),
    ]);
}

#[test]
fn sets_and_maps() {
    judge(&[
        ("P meta l4proto vmap { tcp : accept }", FLOWS, MAY_DROP),
        ("P meta l4proto vmap { udp : accept }", DROPPED, AS_TRAFFIC),
        ("P iifname vmap { cni-a : accept, * : drop }", DROPPED, AS_TRAFFIC),
        ("P iifname { lo, cni-a } accept; oifname { lo, cni-a } accept", FLOWS, AS_TRAFFIC),
        ("P iifname { lo, \"cni-*\" } accept; oifname { \"cni-*\" } accept", FLOWS, MAY_DROP),
        ("P iifgroup { 0-9 } accept", FLOWS, MAY_DROP),
        ("P iifname != { lo, eth0 } accept", FLOWS, AS_TRAFFIC),
        ("P iifname . oifname { cni-a . wan0, wan0 . cni-a } accept", FLOWS, MAY_DROP),
        ("P ip saddr { 10.0.0.0-10.0.255.255, 10.1.0.0/16 } accept; ip daddr { 10.0.0.0/8 } accept; meta nfproto ipv6 accept", FLOWS, AS_TRAFFIC),
        ("P iifname cni-a ip saddr { 10.0.0.0/16, 10.2.0.0/15 } accept; meta nfproto ipv6 accept", V4_DROPPED, AS_TRAFFIC),
        ("P ip saddr . meta l4proto { 10.1.0.0/16 . tcp } accept; meta nfproto ipv6 accept; ct state established accept; ct status dnat accept", FLOWS, MAY_DROP),
        ("map states { type ct_state : verdict; elements = { established : accept, related : accept, new : jump fresh }; };
          chain fresh { iifname cni-a oifname wan0 accept; ct status dnat accept; };
          chain forward { type filter hook forward priority 0; policy drop; ct state vmap @states; }", FLOWS, AS_TRAFFIC),
    ]);
}

#[test]
fn several_chains() {
    judge(&[
        ("chain sub { iifname cni-a accept; oifname cni-a accept; };
          chain forward { type filter hook forward priority 0; policy drop; goto sub; }", FLOWS, AS_TRAFFIC),
        ("chain sub { return; };
          chain forward { type filter hook forward priority 0; policy drop; iifname cni-a goto sub; accept; }", DROPPED, AS_TRAFFIC),
        ("chain sub { return; };
          chain forward { type filter hook forward priority 0; policy drop; iifname cni-a jump sub; accept; }", FLOWS, AS_TRAFFIC),
        ("chain deep { iifname cni-a reject; }; chain sub { jump deep; };
          chain forward { type filter hook forward priority 0; jump sub; }", DROPPED, AS_TRAFFIC),
        ("chain first { type filter hook forward priority -10; accept; };
          chain second { type filter hook forward priority 10; policy drop; }", DROPPED, AS_TRAFFIC),
        ("chain first { type filter hook forward priority -10; iifname cni-a drop; };
          chain second { type filter hook forward priority 10; accept; }", DROPPED, AS_TRAFFIC),
        ("chain input { type filter hook input priority 0; policy drop; }", FLOWS, AS_TRAFFIC),
    ]);
}

#[test]
fn rules_that_cannot_be_compared() {
    judge(&[
        ("P limit rate 1000/second burst 1000 packets accept", FLOWS, MAY_DROP),
        ("P quota 100 mbytes accept", FLOWS, MAY_DROP),
        ("A quota over 100 mbytes drop", FLOWS, MAY_DROP),
        ("P numgen inc mod 2 { 0, 1 } accept", FLOWS, MAY_DROP),
        ("A numgen inc mod 2 { 0, 1 } drop", DROPPED, MAY_DROP),
        ("P meta mark 1 accept", DROPPED, MAY_DROP),
        ("A tcp dport 25 drop", FLOWS, MAY_DROP),
        ("A ip daddr 203.0.113.0/24 drop", FLOWS, AS_TRAFFIC),
        ("A ip saddr 10.1.200.0/24 drop", FLOWS, MAY_DROP),
        ("set seen { type ipv4_addr; flags dynamic; size 99; };
          chain forward { type filter hook forward priority 0; update @seen { ip saddr limit rate over 1000/second burst 1000 packets } drop; }", FLOWS, MAY_DROP),
    ]);
}

/// As firewalld 1.3 makes it.
#[test]
fn the_table_of_firewalld() {
    let world = host();
    let site = Site::new(&world);
    let rules = "table inet firewalld {
        chain filter_FORWARD {
            type filter hook forward priority filter + 10; policy accept;
            ct state { established, related } accept
            ct status dnat accept
            iifname \"lo\" accept
            ct state invalid drop
            jump filter_FORWARD_ZONES
            reject with icmpx admin-prohibited
        }
        chain filter_FORWARD_ZONES { iifname \"eth0\" goto filter_FWD_public; goto filter_FWD_public; }
        chain filter_FWD_public { meta l4proto { icmp, ipv6-icmp } accept; }
    }";
    world.tool(&["nft", "-f", "-"], None).stdin(rules).output_of_success();
    site.judge(rules, Traffic { out: [false, false], published: true }, AS_TRAFFIC);
    assert!(site.lines()[0].to_string().contains("(firewalld)"));
}
