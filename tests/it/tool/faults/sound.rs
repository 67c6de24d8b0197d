//! Rulesets of other programs without a fault: all connections are possible, and the doctor is silent.

use super::{By, Flow, Host, Site, lost};

/// Files of tests/fixtures/rulesets, whose first line says how they were made.
struct Ruleset {
    name: &'static str,
    /// Files, each with the program that loads it.
    files: &'static [(&'static str, &'static str)],
    /// The rules accept no containers. The network has the plugin `firewall`, which does.
    needs_firewall: bool,
}

const NFT: &str = "nft -f -";
const IPTABLES: &str = "iptables-nft-restore --noflush";
const IP6TABLES: &str = "ip6tables-nft-restore --noflush";

const RULESETS: &[Ruleset] = &[
    Ruleset {
        name: "ufw",
        files: &[
            (IPTABLES, include_str!("../../../fixtures/rulesets/ufw.v4")),
            (IP6TABLES, include_str!("../../../fixtures/rulesets/ufw.v6")),
        ],
        needs_firewall: false,
    },
    Ruleset {
        name: "firewalld",
        files: &[(NFT, include_str!("../../../fixtures/rulesets/firewalld.nft"))],
        needs_firewall: false,
    },
    Ruleset {
        name: "Docker",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/docker.v4"))],
        needs_firewall: false,
    },
    Ruleset {
        name: "kube-proxy",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/kube-proxy.v4"))],
        needs_firewall: false,
    },
    Ruleset {
        name: "fw4",
        files: &[(NFT, include_str!("../../../fixtures/rulesets/fw4.nft"))],
        needs_firewall: false,
    },
    Ruleset {
        name: "shorewall",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/shorewall.v4"))],
        needs_firewall: false,
    },
    Ruleset {
        name: "ferm",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/ferm.v4"))],
        needs_firewall: false,
    },
    Ruleset {
        name: "arno-iptables-firewall",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/arno.v4"))],
        needs_firewall: true,
    },
    Ruleset {
        name: "firehol",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/firehol.v4"))],
        needs_firewall: false,
    },
    Ruleset {
        name: "fail2ban",
        files: &[(NFT, include_str!("../../../fixtures/rulesets/fail2ban.nft"))],
        needs_firewall: false,
    },
    Ruleset {
        name: "an example of nftables",
        files: &[(NFT, include_str!("../../../fixtures/rulesets/workstation.nft"))],
        needs_firewall: false,
    },
];

impl Ruleset {
    #[track_caller]
    fn judge(&self, site: &Site) {
        let name = self.name;
        for (program, text) in self.files {
            site.shell(program).stdin(*text).output_of_success();
        }
        site.assert_flows(name);
        for by in [By::Plain, By::Probe] {
            site.assert_silent(by, name);
        }
    }
}

fn judge(needs_firewall: bool) {
    for ruleset in RULESETS.iter().filter(|one| one.needs_firewall == needs_firewall) {
        let site = Site::new(if needs_firewall { lost::with_firewall() } else { Host::new() });
        ruleset.judge(&site);
    }
}

#[test]
fn the_doctor_is_silent_about_ten_rulesets() {
    assert!(RULESETS.len() >= 10);
    judge(false);
}

#[test]
fn the_doctor_is_silent_about_a_ruleset_with_the_plugin_firewall() {
    judge(true);
}

/// Commands after which a chain drops all new connections from outside, except with the rule.
const NFT_RULES: &str = "nft 'table inet mine { chain forward {
    type filter hook forward priority 0; policy drop;
    ct state established,related accept; iifname \"cni-a\" accept; RULE; }; }'";
const IPTABLES_RULES: &str = "for ip in iptables ip6tables; do
    $ip-nft -P FORWARD DROP && $ip-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT &&
    $ip-nft -A FORWARD -i cni-a -j ACCEPT && $ip-nft -A FORWARD RULE -j ACCEPT || exit; done";

/// A container publishes port 80 over TCP as 8080. Rules that accept packets to it, and rules that do not or not all of them.
#[test]
fn rules_are_compared_with_the_published_port() {
    let site = Site::new(Host::new());
    for (commands, accepting, others) in [
        (
            NFT_RULES,
            &[
                "tcp dport 80 accept",
                "tcp dport { 22, 80 } accept",
                "tcp dport 70-90 accept",
                "tcp dport { 22, 70-90 } accept",
                "tcp dport != 81 accept",
                "ct status dnat meta l4proto tcp accept",
                "tcp sport 1024-65535 tcp dport 80 accept",
                "tcp dport vmap { 22: drop, 80: accept }",
                "tcp dport 8080 drop; oifname cni-a tcp dport 80 accept",
            ][..],
            &[
                "tcp dport 8080 accept",
                "tcp dport { 22, 443 } accept",
                "tcp dport 81-90 accept",
                "udp dport 80 accept",
                "tcp sport 50000-60000 tcp dport 80 accept",
                "tcp dport 80 ip daddr 10.1.0.3 accept",
                "tcp dport vmap { 80: drop }; accept",
                "tcp dport 79-80 drop; accept",
            ][..],
        ),
        (
            IPTABLES_RULES,
            &[
                "-p tcp --dport 80",
                "-p tcp -m multiport --dports 22,70:90",
                "-p tcp --sport 1024:65535 --dport 80",
            ],
            &[
                "-p tcp --dport 8080",
                "-p tcp -m multiport --dports 22,443",
                "-p tcp -m multiport ! --dports 80,443",
                "-p udp --dport 80",
            ],
        ),
    ] {
        let rules = [(accepting, true), (others, false)];
        for (rule, is_accepting) in
            rules.iter().flat_map(|(rules, is)| rules.iter().map(|rule| (*rule, *is)))
        {
            site.run(&commands.replace("RULE", rule));
            let cut = [Flow::Port, Flow::Port6];
            if is_accepting {
                assert_eq!(site.passing(&cut, 60).len(), 2, "{rule}");
                site.assert_silent(By::Plain, rule);
            } else {
                // Another port of the client may pass.
                let is_partial = rule.contains("sport") || rule.contains("daddr");
                assert!(is_partial || site.passing(&cut, 1).is_empty(), "{rule}");
                let outcome = site.doctor(By::Plain);
                let listed = outcome.stdout.matches(": published ports of a").count();
                assert!(listed > 0, "{rule}: {}", outcome.report());
            }
            site.run("nft delete table inet mine 2>/dev/null; for family in ip ip6; do nft flush chain $family filter FORWARD; nft chain $family filter FORWARD '{ policy accept; }' 2>/dev/null; done; true");
        }
    }
}
