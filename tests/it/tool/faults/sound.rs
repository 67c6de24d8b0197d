//! Rulesets of other programs without a fault: all connections are possible, and the doctor is silent.

use super::{By, Host, Site, lost};

/// Files of tests/fixtures/rulesets, whose first line says how they were made.
struct Ruleset {
    name: &'static str,
    /// Files, each with the program that loads it.
    files: &'static [(&'static str, &'static str)],
    /// The rules accept no containers. The network has the plugin `firewall`, which does.
    needs_firewall: bool,
    /// Lines that the doctor prints, though no packet of a container is dropped: a rule has a condition that it does not compare.
    lines: &'static [&'static str],
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
        // The rules for the published port.
        lines: &[
            "chain FORWARD, table ip filter (ufw): published ports of a",
            "chain FORWARD, table ip6 filter (ufw): published ports of a",
        ],
    },
    Ruleset {
        name: "firewalld",
        files: &[(NFT, include_str!("../../../fixtures/rulesets/firewalld.nft"))],
        needs_firewall: false,
        lines: &[],
    },
    Ruleset {
        name: "Docker",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/docker.v4"))],
        needs_firewall: false,
        lines: &[],
    },
    Ruleset {
        name: "kube-proxy",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/kube-proxy.v4"))],
        needs_firewall: false,
        lines: &[],
    },
    Ruleset {
        name: "fw4",
        files: &[(NFT, include_str!("../../../fixtures/rulesets/fw4.nft"))],
        needs_firewall: false,
        lines: &[],
    },
    Ruleset {
        name: "shorewall",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/shorewall.v4"))],
        needs_firewall: false,
        // The rules for the published port.
        lines: &["table ip filter (iptables-nft): published ports of a"],
    },
    Ruleset {
        name: "ferm",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/ferm.v4"))],
        needs_firewall: false,
        lines: &[],
    },
    Ruleset {
        name: "arno-iptables-firewall",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/arno.v4"))],
        needs_firewall: true,
        lines: &[],
    },
    Ruleset {
        name: "firehol",
        files: &[(IPTABLES, include_str!("../../../fixtures/rulesets/firehol.v4"))],
        needs_firewall: false,
        // Each of its accepting rules names ports.
        lines: &[
            "chain FORWARD, table ip filter (iptables-nft): new connections, published ports of a",
        ],
    },
    Ruleset {
        name: "fail2ban",
        files: &[(NFT, include_str!("../../../fixtures/rulesets/fail2ban.nft"))],
        needs_firewall: false,
        lines: &[],
    },
    Ruleset {
        name: "an example of nftables",
        files: &[(NFT, include_str!("../../../fixtures/rulesets/workstation.nft"))],
        needs_firewall: false,
        lines: &[],
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
            let outcome = site.doctor(by);
            assert_eq!(outcome.status, 0, "{name}: {}", outcome.report());
            let findings: Vec<&str> =
                outcome.stdout.lines().filter(|line| line.starts_with("may: ")).collect();
            let is_known = |line: &&str| self.lines.iter().any(|known| line.contains(known));
            let mut lines = outcome.stdout.lines().filter(|line| line.starts_with("    - "));
            assert!(
                findings.len() < 2 && lines.all(|line| is_known(&line)),
                "{name}: {}",
                outcome.report()
            );
            if self.lines.is_empty() {
                site.assert_silent(by, name);
            }
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
