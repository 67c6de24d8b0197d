//! Links, bridges and the interfaces of containers.

use super::Breaks::Traffic;
use super::By::{Inside, One, Plain, Probe};
use super::Flow::{Between, Host as HostFlow, Port, Port6, World, World6};
use super::Mend::{Printed, Undone};
use super::{Fault, judge, judge_apart};
use crate::tool::probe::Host;

/// The links of the host.
pub(super) const LINKS: &[Fault] = &[
    Fault {
        name: "the bridge is down",
        make: "ip link set cni-a down",
        breaks: Traffic(&[World, World6, Port, Port6, Between, HostFlow]),
        found: &[(Plain, &["broken: bridge cni-a of network a is down"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the port of a container is down",
        make: "ip link set $one down",
        breaks: Traffic(&[World, World6, Port, Between]),
        found: &[(Plain, &["its link $one on the host is down"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the port of a container has left its bridge",
        make: "ip link set $one nomaster",
        breaks: Traffic(&[World, Port, Between]),
        found: &[(Plain, &["its link $one on the host is not in bridge cni-a"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the port of a container is in another bridge",
        make: "ip link add other up type bridge && ip link set $one master other",
        breaks: Traffic(&[World, Port, Between]),
        found: &[(Plain, &["its link $one on the host is in other, not in bridge cni-a"])],
        mend: Printed,
        end: "ip link delete other",
    },
    Fault {
        name: "the bridge has lost its address",
        make: "ip address delete 10.1.0.1/16 dev cni-a",
        breaks: Traffic(&[World, Port, HostFlow]),
        found: &[(Plain, &["address 10.1.0.1/16 is not on interface cni-a"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "IPv6 is disabled on the bridge",
        make: "sysctl -qw net.ipv6.conf.cni-a.disable_ipv6=1",
        breaks: Traffic(&[World6, Port6]),
        found: &[(Plain, &["address fd00:1::1/64 is not on interface cni-a"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the bridge forgets the port of a container",
        make: "bridge link set dev $one flood off learning off &&
            bridge fdb delete $(ip -n one -br link show eth0 | awk '{print $3}') dev $one master",
        breaks: Traffic(&[World, Port, Between]),
        found: &[(Probe, &["to other containers (udp 53 over IPv4", "after prerouting"])],
        mend: Undone(
            "bridge link set dev $one flood on learning on",
            "no counter shows which port lost a frame",
        ),
        end: "",
    },
];

/// What a program in the container changed.
pub(super) const CONTAINERS: &[Fault] = &[
    Fault {
        name: "the container has lost its address",
        make: "ip -n one address delete 10.1.0.2/16 dev eth0",
        breaks: Traffic(&[World, Port, Between, HostFlow]),
        found: &[(Plain, &["its address 10.1.0.2/16 is gone"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the container has lost its default route",
        make: "ip -n one route delete default",
        breaks: Traffic(&[World, Port]),
        found: &[(One, &["its default route of IPv4 is gone"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the container has lost its default route of IPv6",
        make: "ip -n one -6 route delete default",
        breaks: Traffic(&[World6, Port6]),
        found: &[(Plain, &["its default route of IPv6 is gone"]), (Inside, &["IPv6 is gone"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the container has another gateway",
        make: "ip -n one route replace default via 10.1.0.3",
        breaks: Traffic(&[World, Port]),
        found: &[(Plain, &["its default route of IPv4 is via 10.1.0.3, not via 10.1.0.1"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the interface of the container is down",
        make: "ip -n one link set eth0 down",
        breaks: Traffic(&[World, World6, Port, Between]),
        found: &[(Plain, &["the interface is down"])],
        mend: Printed,
        end: "",
    },
];

/// What needs another ADD.
pub(super) const AGAIN: &[Fault] = &[
    Fault {
        name: "the port of a container is deleted",
        make: "ip link delete $one",
        breaks: Traffic(&[World, Port, Between]),
        found: &[(Plain, &["its link $one on the host is gone", "start the container again"])],
        mend: Undone(
            "cnibox del a one && cnibox add a one -p 8080:80 --ip 10.1.0.2 --ip fd00:1::2",
            "a runtime has to call ADD",
        ),
        end: "",
    },
    Fault {
        name: "the bridge is deleted",
        make: "ip link delete cni-a",
        breaks: Traffic(&[World, World6, Port, Between, HostFlow]),
        found: &[(Plain, &["bridge cni-a of network a is gone", "start the container again"])],
        mend: Undone(
            "for name in one two; do cnibox del a $name || exit 1; done
            cnibox add a one -p 8080:80 --ip 10.1.0.2 --ip fd00:1::2 && cnibox add a two --ip 10.1.0.3 --ip fd00:1::3",
            "a runtime has to call ADD",
        ),
        end: "",
    },
];

#[test]
fn links() {
    judge(Host::new, LINKS);
}

#[test]
fn containers() {
    judge(Host::new, CONTAINERS);
}

#[test]
fn attached_again() {
    judge_apart(Host::new, AGAIN);
}
