//! Routes, policy rules and sysctls of the host.

use super::Breaks::Traffic;
use super::By::{Plain, Probe};
use super::Flow::{Host as HostFlow, Port, Port6, World, World6};
use super::Mend::{Printed, Undone};
use super::{Fault, judge};
use crate::tool::probe::Host;

pub(super) const SYSCTLS: &[Fault] = &[
    Fault {
        name: "forwarding of IPv4 is off",
        make: "sysctl -qw net.ipv4.ip_forward=0",
        breaks: Traffic(&[World, Port]),
        found: &[(Plain, &["net.ipv4.ip_forward is 0; it must be 1 for a"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "forwarding of IPv6 is off",
        make: "sysctl -qw net.ipv6.conf.all.forwarding=0",
        breaks: Traffic(&[World6, Port6]),
        found: &[(Plain, &["net.ipv6.conf.all.forwarding is 0; it must be 1 for a"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "forwarding is off for the uplink",
        make: "sysctl -qw net.ipv4.conf.wan.forwarding=0",
        breaks: Traffic(&[World, Port]),
        found: &[(Plain, &["net.ipv4.conf.wan.forwarding is 0, and wan is an uplink"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "forwarding is off for the bridge",
        make: "sysctl -qw net.ipv4.conf.cni-a.forwarding=0",
        breaks: Traffic(&[World, Port]),
        found: &[
            (Probe, &["after prerouting: counter InAddrErrors"]),
            (Plain, &["net.ipv4.conf.cni-a.forwarding is 0"]),
        ],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "a reverse path filter and a wrong route",
        make: "ip route add 10.1.0.0/17 dev wan && sysctl -qw net.ipv4.conf.cni-a.rp_filter=1",
        breaks: Traffic(&[World, Port, HostFlow]),
        found: &[(Probe, &["are dropped by the reverse path filter of cni-a: counter IPReversePathFilter"])],
        mend: Undone(
            "sysctl -qw net.ipv4.conf.cni-a.rp_filter=0 && ip route delete 10.1.0.0/17 dev wan",
            "the filter only shows the wrong route, and someone may want that",
        ),
        end: "",
    },
    Fault {
        name: "a reverse path filter and two uplinks",
        make: "ip link add wan2 type veth peer name port2 netns outside && ip link set wan2 up &&
            ip address add 203.0.113.1/24 dev wan2 && ip -n outside link set port2 up &&
            ip -n outside address add 203.0.113.9/24 dev port2 &&
            ip route replace default via 203.0.113.9 && ip route append default via 198.18.0.9 metric 100 &&
            sysctl -qw net.ipv4.conf.wan.rp_filter=1",
        breaks: Traffic(&[Port]),
        found: &[(Plain, &["note: rp_filter of wan is 1 (strict), and the host has several default routes"])],
        mend: Undone("sysctl -w net/ipv4/conf/wan/rp_filter=2", "it is the printed command, but that of a note"),
        end: "ip link delete wan2; ip route delete default via 198.18.0.9 metric 100; ip route add default via 198.18.0.9;
            sysctl -qw net.ipv4.conf.wan.rp_filter=0",
    },
];

pub(super) const ROUTES: &[Fault] = &[
    Fault {
        name: "the host has another route to a container",
        make: "ip route add 10.1.0.2/32 dev wan",
        breaks: Traffic(&[World, Port, HostFlow]),
        found: &[(Probe, &["through wan, not through cni-a", "`ip route get 10.1.0.2` shows the route"])],
        mend: Undone("ip route delete 10.1.0.2/32 dev wan", "someone may want the route"),
        end: "",
    },
    Fault {
        name: "the host has another route to half of the network",
        make: "ip route add 10.1.0.0/17 via 198.18.0.9",
        breaks: Traffic(&[World, Port, HostFlow]),
        found: &[(Probe, &["through wan, not through cni-a"])],
        mend: Undone("ip route delete 10.1.0.0/17 via 198.18.0.9", "someone may want the route"),
        end: "",
    },
    Fault {
        name: "the host has no route to the network",
        make: "ip route delete 10.1.0.0/16 dev cni-a",
        breaks: Traffic(&[World, Port, HostFlow]),
        found: &[(Probe, &["through wan, not through cni-a"])],
        mend: Undone(
            "ip route add 10.1.0.0/16 dev cni-a proto kernel scope link src 10.1.0.1",
            "the kernel made the route with the address",
        ),
        end: "",
    },
    Fault {
        name: "a container is unreachable for the host",
        make: "ip route add unreachable 10.1.0.2/32",
        breaks: Traffic(&[World, Port, HostFlow]),
        found: &[(Probe, &["nowhere, not through cni-a"])],
        mend: Undone("ip route delete unreachable 10.1.0.2/32", "someone may want the route"),
        end: "",
    },
    Fault {
        name: "the host has the address of a container",
        make: "ip address add 10.1.0.2/32 dev lo",
        breaks: Traffic(&[World, Port, HostFlow]),
        found: &[(Probe, &["through lo, not through cni-a"])],
        mend: Undone("ip address delete 10.1.0.2/32 dev lo", "which of the two is to keep the address is unknown"),
        end: "",
    },
    Fault {
        name: "the host has no default route",
        make: "ip route delete default",
        breaks: Traffic(&[World, Port]),
        found: &[
            (Plain, &["the host has no default route of IPv4, for a"]),
            (Probe, &["the host has no route of IPv4 to other networks, such as 198.41.0.4"]),
        ],
        mend: Undone("ip route add default via 198.18.0.9", "the gateway is unknown"),
        end: "",
    },
    Fault {
        name: "the uplink is down",
        make: "ip link set wan down",
        breaks: Traffic(&[World, World6, Port, Port6]),
        found: &[(Plain, &["the host has no default route, for a, and wan is down"])],
        mend: Undone(
            "ip link set wan up && ip route add default via 198.18.0.9 && ip address replace fd03::1/64 dev wan nodad &&
            ip route add default via fd03::9",
            "the gateway is unknown",
        ),
        end: "",
    },
    Fault {
        name: "the host throws away packets to an address",
        make: "ip route add blackhole 198.41.0.4/32",
        breaks: Traffic(&[World]),
        found: &[(Probe, &["the host has no route of IPv4 to other networks, such as 198.41.0.4"])],
        mend: Undone("ip route delete blackhole 198.41.0.4/32", "someone may want the route"),
        end: "",
    },
];

pub(super) const POLICY: &[Fault] = &[
    Fault {
        name: "a policy rule prohibits packets of the network",
        make: "ip rule add from 10.1.0.0/16 to 198.41.0.4 priority 9 prohibit",
        breaks: Traffic(&[World]),
        found: &[
            (Plain, &["ip rule 9: from 10.1.0.0/16"]),
            (Probe, &["are dropped by routing, after prerouting", "ip rule 9: from 10.1.0.0/16"]),
        ],
        mend: Undone("ip rule delete priority 9", "someone may want the rule"),
        end: "",
    },
    Fault {
        name: "a policy rule leads to a table that drops",
        make: "ip rule add from 10.1.0.0/16 priority 9 lookup 99 && ip route add blackhole default table 99",
        breaks: Traffic(&[World, Port, HostFlow]),
        found: &[
            (Plain, &["ip rule 9: from 10.1.0.0/16: selects another routing table"]),
            (Probe, &["are dropped by routing, after prerouting", "ip rule 9: from 10.1.0.0/16"]),
        ],
        mend: Undone("ip rule delete priority 9", "someone may want the rule"),
        end: "ip route flush table 99",
    },
    Fault {
        name: "a policy rule leads to a table with another way out",
        make: "ip rule add from 10.1.0.0/16 priority 9 lookup 99 && ip route add default dev lo table 99",
        breaks: Traffic(&[World, Port]),
        found: &[(Plain, &["ip rule 9: from 10.1.0.0/16: selects another routing table"])],
        mend: Undone("ip rule delete priority 9", "someone may want the rule"),
        end: "ip route flush table 99",
    },
    Fault {
        name: "a policy rule prohibits packets with a mark",
        make: "nft 'table ip admin { chain pre { type filter hook prerouting priority mangle; ip saddr 10.1.0.0/16 meta mark set 77; }; }' &&
            ip rule add fwmark 77 priority 9 prohibit",
        breaks: Traffic(&[World]),
        found: &[
            (Plain, &["ip rule 9: from all: prohibit"]),
            (Probe, &["are dropped by routing, after prerouting", "ip rule 9: from all: prohibit"]),
        ],
        mend: Undone("ip rule delete priority 9", "someone may want the rule"),
        end: "nft delete table ip admin",
    },
];

#[test]
fn sysctls() {
    judge(Host::new, SYSCTLS);
}

#[test]
fn routes() {
    judge(Host::new, ROUTES);
}

#[test]
fn policy() {
    judge(Host::new, POLICY);
}
