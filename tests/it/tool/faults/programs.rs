//! Rulesets of other programs that drop packets of containers.

use super::Breaks::Traffic;
use super::By::{Plain, Probe};
use super::Flow::{Port, Port6, World, World6};
use super::Mend::{Printed, Undone};
use super::{Fault, judge};
use crate::tool::probe::Host;

pub(super) const PROGRAMS: &[Fault] = &[
    Fault {
        name: "Docker drops what is forwarded",
        make: "iptables-nft-restore <<'END'
*filter
:FORWARD DROP
:DOCKER -
:DOCKER-ISOLATION-STAGE-1 -
:DOCKER-ISOLATION-STAGE-2 -
:DOCKER-USER -
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
END",
        breaks: Traffic(&[World, Port]),
        found: &[
            (Plain, &["forward: chain FORWARD, table ip filter (Docker)"]),
            (Probe, &["dropped by the policy of chain FORWARD, table ip filter", "iptables-nft -I DOCKER-USER 1 "]),
        ],
        mend: Printed,
        end: "nft delete table ip filter",
    },
    Fault {
        name: "a rule of DOCKER-USER drops what the uplink gets",
        make: "iptables-nft -N DOCKER-USER && iptables-nft -I FORWARD -j DOCKER-USER && iptables-nft -A DOCKER-USER -i wan -j DROP",
        breaks: Traffic(&[World, Port]),
        found: &[
            (Plain, &["forward: chain DOCKER-USER, from FORWARD, table ip filter (Docker)"]),
            (Probe, &["of chain DOCKER-USER, table ip filter (Docker)"]),
        ],
        mend: Printed,
        end: "nft delete table ip filter",
    },
    Fault {
        name: "ufw drops what is forwarded",
        make: "iptables-nft-restore <<'END'
*filter
:FORWARD DROP
:ufw-before-forward -
:ufw-user-forward -
:ufw-reject-forward -
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-reject-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
COMMIT
END",
        breaks: Traffic(&[World, Port]),
        found: &[
            (Plain, &["forward: chain FORWARD, table ip filter (ufw)"]),
            (Probe, &[
                "ufw route allow in on cni-a out on wan from 10.1.0.0/16",
                "ufw route allow in on wan out on cni-a to 10.1.0.2 port 80 proto tcp",
            ]),
        ],
        mend: Undone(
            "iptables-nft -A ufw-user-forward -i cni-a -o wan -s 10.1.0.0/16 -j ACCEPT &&
            iptables-nft -A ufw-user-forward -i cni-a -o cni-a -s 10.1.0.0/16 -d 10.1.0.0/16 -j ACCEPT &&
            iptables-nft -A ufw-user-forward -i wan -o cni-a -d 10.1.0.2 -p tcp --dport 80 -j ACCEPT",
            "the gate has no ufw; these are the rules that the printed commands of ufw 0.36.2 add",
        ),
        end: "nft delete table ip filter",
    },
    Fault {
        name: "firewalld rejects what is forwarded",
        make: "nft 'table inet firewalld {
            chain filter_FWD_public { meta l4proto { icmp, ipv6-icmp } accept; };
            chain filter_FORWARD_ZONES { goto filter_FWD_public; };
            chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept;
                ct state { established, related } accept; ct status dnat accept; iifname lo accept; ct state invalid drop;
                jump filter_FORWARD_ZONES; reject with icmpx admin-prohibited; }; }'",
        breaks: Traffic(&[World, World6]),
        found: &[
            (Plain, &["forward: chain filter_FORWARD, table inet firewalld (firewalld)"]),
            (Probe, &["of chain filter_FORWARD, table inet firewalld (firewalld)", "firewall-cmd --permanent --zone=trusted --add-source=10.1.0.0/16"]),
        ],
        mend: Undone(
            "nft insert rule inet firewalld filter_FORWARD iifname cni-a accept",
            "firewall-cmd needs the daemon, which the gate does not run",
        ),
        end: "nft delete table inet firewalld",
    },
    Fault {
        name: "fw4 of OpenWrt rejects what is forwarded",
        make: "nft 'table inet fw4 { chain handle_reject { reject; }; chain forward_wan { jump handle_reject; };
            chain forward { type filter hook forward priority filter; policy drop;
                ct state established,related accept; iifname wan jump forward_wan; jump handle_reject; }; }'",
        breaks: Traffic(&[World, World6, Port, Port6]),
        found: &[
            (Plain, &["forward: chain handle_reject, from forward, table inet fw4 (fw4 of OpenWrt)"]),
            (Probe, &["of chain handle_reject, table inet fw4", "nftables.d/chain-pre/forward/cnibox.nft && fw4 reload"]),
        ],
        mend: Undone(
            "nft insert rule inet fw4 forward iifname cni-a accept && nft insert rule inet fw4 forward ct status dnat accept",
            "only OpenWrt has fw4, which puts the lines of the printed file at the beginning of the chain",
        ),
        end: "nft delete table inet fw4",
    },
];

pub(super) const KUBERNETES: &[Fault] = &[
    Fault {
        name: "kube-proxy accepts only its own marks",
        make: "iptables-nft-restore <<'END'
*filter
:FORWARD DROP
:KUBE-FORWARD -
:KUBE-FIREWALL -
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
END",
        breaks: Traffic(&[World, Port]),
        found: &[(Probe, &["dropped by the policy of chain FORWARD, table ip filter"])],
        mend: Printed,
        end: "nft delete table ip filter",
    },
    Fault {
        name: "KUBE-FIREWALL drops packets with a mark",
        make: "iptables-nft -t mangle -A PREROUTING -i cni-a -j MARK --set-xmark 0x8000/0x8000 &&
            iptables-nft -N KUBE-FIREWALL && iptables-nft -A FORWARD -j KUBE-FIREWALL &&
            iptables-nft -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP",
        breaks: Traffic(&[World]),
        found: &[(Probe, &["of chain KUBE-FIREWALL, table ip filter (kube-proxy)"])],
        mend: Undone(
            "iptables-nft -t mangle -D PREROUTING -i cni-a -j MARK --set-xmark 0x8000/0x8000",
            "kube-proxy writes the chain again and again; who set the mark is unknown",
        ),
        end: "nft delete table ip filter; nft delete table ip mangle",
    },
];

#[test]
fn programs() {
    judge(Host::new, PROGRAMS);
}

#[test]
fn kubernetes() {
    judge(Host::new, KUBERNETES);
}
