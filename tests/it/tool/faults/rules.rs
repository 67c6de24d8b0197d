//! Rules of nf_tables, of iptables-nft and of iptables-legacy that an administrator wrote.

use super::Breaks::Traffic;
use super::By::{Plain, Probe, ProbeOne};
use super::Flow::{Between, Host as HostFlow, Port, Port6, World, World6};
use super::Mend::{Printed, PrintedExcept, Undone};
use super::{Fault, judge};
use crate::tool::probe::Host;

/// Chains of type filter at each hook.
pub(super) const CHAINS: &[Fault] = &[
    Fault {
        name: "policy drop in forward",
        make: "nft 'table inet admin { chain fw { type filter hook forward priority 0; policy drop; }; }'",
        breaks: Traffic(&[World, World6, Port, Port6]),
        found: &[
            (Plain, &["may: ", "forward: chain fw, table inet admin"]),
            (
                Probe,
                &[
                    "dropped by the policy of chain fw, table inet admin",
                    "nft -a list chain inet admin fw",
                ],
            ),
        ],
        mend: Printed,
        end: "nft delete table inet admin",
    },
    Fault {
        name: "reject in a chain that is jumped to",
        make: "nft 'table inet admin { chain sub { ip saddr 10.1.0.0/16 reject; };
            chain fw { type filter hook forward priority 0; iifname cni-a jump sub; }; }'",
        breaks: Traffic(&[World]),
        found: &[
            (Plain, &["forward: chain sub, from fw, table inet admin"]),
            (Probe, &["are dropped by rule ", "of chain sub, table inet admin"]),
        ],
        mend: Printed,
        end: "nft delete table inet admin",
    },
    Fault {
        name: "drop of one port of other hosts",
        make: "nft 'table inet admin { chain fw { type filter hook forward priority 0; iifname cni-a tcp dport 443 drop; }; }'",
        breaks: Traffic(&[World, World6]),
        found: &[(Probe, &["tcp 443 over IPv4", "of chain fw, table inet admin"])],
        mend: PrintedExcept(
            "forward: chain fw, table inet admin (an nftables ruleset): new connections of a",
        ),
        end: "nft delete table inet admin",
    },
    Fault {
        name: "drop of one container",
        make: "nft 'table inet admin { chain fw { type filter hook forward priority 0; ip saddr 10.1.0.2 drop; }; }'",
        breaks: Traffic(&[World, Port]),
        found: &[(
            ProbeOne,
            &["wan → fw: rule 2 of inet admin drops", "of chain fw, table inet admin"],
        )],
        mend: Printed,
        end: "nft delete table inet admin",
    },
    Fault {
        name: "drop of an address that a set has",
        make: "nft 'table inet admin { set ban { type ipv4_addr; elements = { 10.1.0.2 }; };
            chain fw { type filter hook forward priority 0; ip saddr @ban drop; }; }'",
        breaks: Traffic(&[World, Port]),
        found: &[
            (Plain, &["forward: chain fw, table inet admin"]),
            (Probe, &["packets of eth0 of container ", "of chain fw, table inet admin"]),
        ],
        mend: PrintedExcept(
            "forward: chain fw, table inet admin (an nftables ruleset): new connections of a",
        ),
        end: "nft delete table inet admin",
    },
    Fault {
        name: "drop of answers",
        make: "nft 'table inet admin { chain fw { type filter hook forward priority 0; iifname wan ct state established drop; }; }'",
        breaks: Traffic(&[World, World6]),
        found: &[(Plain, &["forward: chain fw, table inet admin", "answers of a"])],
        mend: Undone("nft flush chain inet admin fw", "the probe asks about first packets only"),
        end: "nft delete table inet admin",
    },
    Fault {
        name: "drop of packets of the host",
        make: "nft 'table inet admin { chain out { type filter hook output priority 0; oifname cni-a drop; }; }'",
        breaks: Traffic(&[HostFlow]),
        found: &[(Plain, &["output: chain out, table inet admin"])],
        mend: Undone(
            "nft flush chain inet admin out",
            "the probe asks about packets of containers only",
        ),
        end: "nft delete table inet admin",
    },
    Fault {
        name: "drop by a limit",
        make: "nft 'table inet admin { chain fw { type filter hook forward priority 0;
            tcp flags syn limit rate over 1/hour burst 1 packets drop; }; }'",
        breaks: Traffic(&[World, Port]),
        found: &[
            (Plain, &["forward: chain fw, table inet admin"]),
            (
                Probe,
                &["of chain fw, table inet admin", "The rule drops some packets and not others"],
            ),
        ],
        mend: Undone("nft flush chain inet admin fw", "a limit is wanted, and its rate is unknown"),
        end: "nft delete table inet admin",
    },
];

/// Chains of the hooks before and after forward, and of the families bridge and netdev.
pub(super) const HOOKS: &[Fault] = &[
    Fault {
        name: "drop after routing",
        make: "nft 'table inet admin { chain last { type filter hook postrouting priority 0; oifname wan ip saddr 10.1.0.0/16 drop; }; }'",
        breaks: Traffic(&[World]),
        found: &[
            (Plain, &["postrouting: chain last, table inet admin"]),
            (Probe, &["of chain last, table inet admin"]),
        ],
        mend: Printed,
        end: "nft delete table inet admin",
    },
    Fault {
        name: "drop before connection tracking",
        make: "nft 'table inet admin { chain raw { type filter hook prerouting priority -300; tcp dport 8080 drop; }; }'",
        breaks: Traffic(&[Port, Port6]),
        found: &[(Probe, &["published ports", "of chain raw, table inet admin"])],
        // A client can have the source port 8080, and nobody asked about answers to it.
        mend: PrintedExcept("prerouting: chain raw, table inet admin"),
        end: "nft delete table inet admin",
    },
    Fault {
        name: "drop at the ingress of the uplink",
        make: "nft 'table netdev admin { chain in { type filter hook ingress device wan priority 0; tcp dport 8080 drop; }; }'",
        breaks: Traffic(&[Port, Port6]),
        found: &[
            (Plain, &["ingress: chain in, table netdev admin"]),
            (Probe, &["published ports", "are lost before the rules of nf_tables", "family netdev of wan"]),
        ],
        mend: Undone("nft flush chain netdev admin in", "the kernel does not trace at ingress, so the rule is unknown"),
        end: "nft delete table netdev admin",
    },
    Fault {
        name: "drop at the ingress of a container's port",
        make: "nft \"table netdev admin { chain in { type filter hook ingress device $one priority 0; ether type ip drop; }; }\"",
        breaks: Traffic(&[World, Port, Between, HostFlow]),
        found: &[
            (Plain, &["ingress: chain in, table netdev admin"]),
            (Probe, &["are lost before the rules of nf_tables", "family netdev of $one"]),
        ],
        mend: Undone("nft flush chain netdev admin in", "the kernel does not trace at ingress, so the rule is unknown"),
        end: "nft delete table netdev admin",
    },
    Fault {
        name: "drop between ports of the bridge",
        make: "nft 'table bridge admin { chain fw { type filter hook forward priority 0; ether type ip drop; }; }'",
        breaks: Traffic(&[Between]),
        found: &[
            (Plain, &["forward: chain fw, table bridge admin"]),
            (Probe, &["packets of network a to other containers", "of chain fw, table bridge admin"]),
        ],
        mend: Undone("nft flush chain bridge admin fw", "the printed command accepts the first packets, and a chain of a bridge has no state for the answers"),
        end: "nft delete table bridge admin",
    },
    Fault {
        name: "drop of frames from a bridge to its host",
        make: "nft 'table bridge admin { chain in { type filter hook input priority 0; tcp dport 443 drop; }; }'",
        breaks: Traffic(&[World, World6]),
        found: &[(Probe, &["of chain in, table bridge admin"])],
        mend: PrintedExcept("input: chain in, table bridge admin"),
        end: "nft delete table bridge admin",
    },
    Fault {
        name: "drop of ARP on the bridge",
        make: "nft 'table bridge admin { chain pre { type filter hook prerouting priority 0; ether type arp drop; }; }' &&
            ip neighbour flush dev cni-a && ip -n one neighbour flush dev eth0",
        breaks: Traffic(&[World, HostFlow]),
        found: &[(Plain, &["prerouting: chain pre, table bridge admin"])],
        mend: Undone("nft flush chain bridge admin pre", "the probe sends no ARP"),
        end: "nft delete table bridge admin",
    },
];

/// The published port is translated to another address.
pub(super) const TRANSLATIONS: &[Fault] = &[
    Fault {
        name: "another rule translates the published port",
        make: "nft 'table ip admin { chain pre { type nat hook prerouting priority -110; tcp dport 8080 dnat to 10.9.9.9; }; }'",
        breaks: Traffic(&[Port]),
        found: &[
            (Plain, &["chain pre, table ip admin", "translates the published port 8080"]),
            (Probe, &["go to another destination than 10.1.0.2 port 80"]),
        ],
        mend: Undone("nft flush chain ip admin pre", "which translation is wanted is unknown"),
        end: "nft delete table ip admin",
    },
    Fault {
        name: "another rule redirects the published port to the host",
        make: "nft 'table ip admin { chain pre { type nat hook prerouting priority -110; tcp dport 8080 redirect to :9999; }; }'",
        breaks: Traffic(&[Port]),
        found: &[
            (Plain, &["chain pre, table ip admin", "translates the published port 8080"]),
            (Probe, &["are not translated to the container: they go to the host itself"]),
        ],
        mend: Undone("nft flush chain ip admin pre", "which translation is wanted is unknown"),
        end: "nft delete table ip admin",
    },
    Fault {
        name: "kube-proxy has a service with the published port",
        make: "iptables-nft -t nat -N KUBE-NODEPORTS && iptables-nft -t nat -N KUBE-SVC-A &&
            iptables-nft -t nat -A KUBE-SVC-A -p tcp -j DNAT --to-destination 10.9.9.9:80 &&
            iptables-nft -t nat -A KUBE-NODEPORTS -p tcp -m tcp --dport 8080 -j KUBE-SVC-A &&
            iptables-nft -t nat -I PREROUTING -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS &&
            nft 'table ip admin { chain pre { type nat hook prerouting priority -110; tcp dport 8080 accept; }; }'",
        breaks: Traffic(&[Port]),
        found: &[(Probe, &["published ports"])],
        mend: Undone("nft delete table ip nat; nft delete table ip admin", "which translation is wanted is unknown"),
        end: "",
    },
    Fault {
        name: "iptables-legacy translates the published port",
        make: "iptables-legacy -t nat -A PREROUTING -p tcp --dport 8080 -j DNAT --to 10.9.9.9:80",
        breaks: Traffic(&[Port]),
        found: &[
            (Plain, &["iptables-legacy: table nat has rules"]),
            (Probe, &["go to another destination than 10.1.0.2 port 80"]),
        ],
        mend: Undone("iptables-legacy -t nat -F", "which translation is wanted is unknown"),
        end: "",
    },
];

/// Tables of iptables.
pub(super) const IPTABLES: &[Fault] = &[
    Fault {
        name: "policy DROP of iptables-nft",
        make: "iptables-nft -P FORWARD DROP",
        breaks: Traffic(&[World, Port]),
        found: &[
            (Plain, &["forward: chain FORWARD, table ip filter (iptables-nft)"]),
            (Probe, &["dropped by the policy of chain FORWARD, table ip filter (iptables-nft)"]),
        ],
        mend: Printed,
        end: "nft delete table ip filter",
    },
    Fault {
        name: "policy DROP of ip6tables-nft",
        make: "ip6tables-nft -P FORWARD DROP",
        breaks: Traffic(&[World6, Port6]),
        found: &[(
            Probe,
            &[
                "over IPv6",
                "dropped by the policy of chain FORWARD, table ip6 filter (iptables-nft)",
            ],
        )],
        mend: Printed,
        end: "nft delete table ip6 filter",
    },
    Fault {
        name: "drop in table raw of iptables",
        make: "iptables-nft -t raw -A PREROUTING -i cni-a -j DROP",
        breaks: Traffic(&[World, HostFlow]),
        found: &[(Probe, &["of chain PREROUTING, table ip raw (iptables-nft)"])],
        mend: Printed,
        end: "nft delete table ip raw",
    },
    Fault {
        name: "policy DROP of iptables-legacy",
        make: "iptables-legacy -P FORWARD DROP",
        breaks: Traffic(&[World, Port]),
        found: &[
            (Plain, &["iptables-legacy: table filter has rules"]),
            (
                Probe,
                &[
                    "lost between the hooks forward and postrouting: iptables-legacy has rules in table filter",
                ],
            ),
        ],
        mend: PrintedExcept("iptables-legacy: table filter has rules"),
        end: "iptables-legacy -F; iptables-legacy -P FORWARD ACCEPT",
    },
    Fault {
        name: "drop in table mangle of iptables-legacy",
        make: "iptables-legacy -t mangle -A PREROUTING -p tcp --dport 8080 -j DROP",
        breaks: Traffic(&[Port]),
        found: &[
            (Plain, &["iptables-legacy: table mangle has rules"]),
            (
                Probe,
                &[
                    "are dropped by routing, after prerouting",
                    "iptables-legacy: table mangle has rules",
                ],
            ),
        ],
        mend: Undone(
            "iptables-legacy -t mangle -F",
            "tables of iptables-legacy are not traced, so the rule is unknown",
        ),
        end: "",
    },
];

#[test]
fn chains() {
    judge(Host::new, CHAINS);
}

#[test]
fn hooks() {
    judge(Host::new, HOOKS);
}

#[test]
fn translations() {
    judge(Host::new, TRANSLATIONS);
}

#[test]
fn iptables() {
    judge(Host::new, IPTABLES);
}
