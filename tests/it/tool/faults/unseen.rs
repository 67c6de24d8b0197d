//! Faults that the doctor does not find, and faults that no test can make here.

use super::Flow::{Between, Host as HostFlow, Port, Port6, World, World6};
use super::{By, Fault, Flow, Mend, Site, links, lost, programs, routes, rules, state};
use crate::tool::probe::Host;

/// A fault that cuts traffic, and neither `doctor` nor `doctor --probe` prints anything of it.
struct Unseen {
    name: &'static str,
    make: &'static str,
    cuts: &'static [Flow],
    end: &'static str,
    /// Why it is not found.
    why: &'static str,
}

const UNSEEN: &[Unseen] = &[
    Unseen {
        name: "connections to the published port are not tracked",
        make: "nft 'table inet admin { chain raw { type filter hook prerouting priority -300; tcp dport 8080 notrack; }; }'",
        cuts: &[Port, Port6],
        end: "nft delete table inet admin",
        why: "the probe sends nothing where a rule has notrack, and says so; the filters list only what drops",
    },
    Unseen {
        name: "the uplink drops what it sends",
        make: "tc qdisc add dev wan root tbf rate 8bit burst 1 latency 1ms",
        cuts: &[World, World6, Port],
        end: "tc qdisc delete dev wan root",
        why: "queueing is after the last hook, where the packets of the probe end",
    },
    Unseen {
        name: "a chain drops at the egress of the uplink",
        make: "nft 'table netdev admin { chain out { type filter hook egress device wan priority 0; ip protocol tcp drop; }; }'",
        cuts: &[World, Port],
        end: "nft delete table netdev admin",
        why: "egress is after the last hook, where the packets of the probe end",
    },
    Unseen {
        name: "another rule translates the source to a foreign address",
        make: "nft 'table ip admin { chain post { type nat hook postrouting priority 0; ip saddr 10.1.0.0/16 snat to 203.0.113.77; }; }'",
        cuts: &[World],
        end: "nft delete table ip admin",
        why: "the answers go elsewhere, and the probe asks about first packets",
    },
    Unseen {
        name: "the host answers no ARP",
        make: "sysctl -qw net.ipv4.conf.all.arp_ignore=8 && ip neighbour flush all && ip -n one neighbour flush all &&
            ip -n outside neighbour flush all",
        cuts: &[World, Port],
        end: "sysctl -qw net.ipv4.conf.all.arp_ignore=0",
        why: "the probe sends no ARP; a packet of it needs no neighbour",
    },
    Unseen {
        name: "a table of the family arp drops",
        make: "nft 'table arp admin { chain in { type filter hook input priority 0; drop; }; }' && ip neighbour flush all &&
            ip -n one neighbour flush all && ip -n outside neighbour flush all",
        cuts: &[World, Port, HostFlow],
        end: "nft delete table arp admin",
        why: "the probe sends no ARP; the filters list the families of IP, bridge and netdev",
    },
    Unseen {
        name: "the host drops neighbour discovery from the uplink",
        make: "nft 'table inet admin { chain in { type filter hook input priority 0; iifname wan icmpv6 type nd-neighbor-solicit drop; }; }' &&
            ip -n outside neighbour flush all",
        cuts: &[World6, Port6],
        end: "nft delete table inet admin",
        why: "the probe sends no neighbour discovery of other hosts, and chains of input are listed with -v only",
    },
    Unseen {
        name: "the host has a wrong neighbour entry of a container",
        make: "ip neighbour replace 10.1.0.2 lladdr 02:00:00:00:00:99 dev cni-a nud permanent",
        cuts: &[World, Port, HostFlow],
        end: "ip neighbour delete 10.1.0.2 dev cni-a",
        why: "the last hook, where the packets of the probe end, is before the neighbour",
    },
    Unseen {
        name: "another container has taken the address",
        make: "ip -n two address add 10.1.0.2/32 dev eth0",
        cuts: &[Between],
        end: "ip -n two address delete 10.1.0.2/32 dev eth0 && ip neighbour flush dev cni-a",
        why: "a container may add addresses, and only those of its ADD are compared",
    },
    Unseen {
        name: "both ports of the bridge are isolated",
        make: "bridge link set dev $one isolated on && bridge link set dev $two isolated on",
        cuts: &[Between],
        end: "bridge link set dev $one isolated off && bridge link set dev $two isolated off",
        why: "the probe takes isolated ports for those of `portIsolation`, and asks nothing between them",
    },
    Unseen {
        name: "a container prohibits packets to an address",
        make: "ip -n one route add prohibit 198.41.0.0/24",
        cuts: &[World],
        end: "ip -n one route delete prohibit 198.41.0.0/24",
        why: "only the routes of the ADD are compared, and the packets of the probe begin at the port of the container",
    },
];

/// Faults that were not made, each with the reason.
const NOT_TRIED: &[(&str, &str)] = &[
    (
        "the table of connections is full",
        "nf_conntrack_max is read-only in a namespace; a unit test of src/cli/doctor/limits.rs has it",
    ),
    (
        "the table of neighbours is full",
        "gc_thresh3 is not a sysctl of a namespace; the same unit test has it",
    ),
    (
        "an XDP program drops",
        "bpf() needs a capability in the initial user namespace; `doctor` lists a program as XDP",
    ),
    (
        "a BPF program of traffic control or of a cgroup drops",
        "bpf() needs a capability in the initial user namespace",
    ),
    (
        "a filter of traffic control drops",
        "not all kernels have act_gact; the tests of the probe have other filters",
    ),
    (
        "the MTU of the way is smaller",
        "the kernel tells the container, so traffic is cut only if a host far away drops ICMP",
    ),
    (
        "a server of the host has the published port",
        "no fault: the port is translated before the server gets the packet",
    ),
    (
        "the server of the container listens on 127.0.0.1",
        "no fault of the host: `ss -ltn` in the container shows it",
    ),
    (
        "resolv.conf has the wrong name server",
        "runtimes write it; the probe asks a name server on the gateway only",
    ),
    (
        "the state directory is read-only",
        "doctor reads it only; each ADD fails with the path and the reason",
    ),
    ("the range is full", "no fault of the host: ADD prints it, and `ipam list` has the owners"),
    (
        "iptables-legacy translates instead of dropping, over IPv6",
        "not all kernels have ip6table_nat",
    ),
];

#[test]
fn they_cut_traffic_and_nobody_says_so() {
    let site = Site::new(Host::new());
    for fault in UNSEEN {
        let name = fault.name;
        site.run(fault.make);
        let connecting = site.connect(fault.cuts, 1);
        for by in [By::Plain, By::Probe] {
            site.assert_silent(by, &format!("{name} is in the list of what is not found"));
        }
        assert_eq!(connecting.finish(), [], "{name}: it cuts these");
        site.run(fault.end);
        site.assert_flows(&format!("{name}, undone"));
        site.assert_same(name);
    }
}

#[test]
fn the_table_has_forty_faults_and_each_exception_has_a_reason() {
    let tables: [&[Fault]; 16] = [
        rules::CHAINS,
        rules::HOOKS,
        rules::TRANSLATIONS,
        rules::IPTABLES,
        programs::PROGRAMS,
        programs::KUBERNETES,
        links::LINKS,
        links::CONTAINERS,
        links::AGAIN,
        routes::SYSCTLS,
        routes::ROUTES,
        routes::POLICY,
        lost::LOST,
        lost::FIREWALL,
        state::STATE,
        state::INSTALLATION,
    ];
    let faults = || tables.iter().copied().flatten().chain(state::ENDED);
    let is_by = |fault: &&Fault, probe: bool| {
        fault.found.iter().any(|(by, _)| matches!(by, By::Probe | By::ProbeOne) == probe)
    };
    let by_plain = faults().filter(|fault| is_by(fault, false)).count();
    let by_probe = faults().filter(|fault| is_by(fault, true)).count();
    let undone = faults().filter(|fault| matches!(fault.mend, Mend::Undone(..))).count();
    let all = faults().count();
    let counts =
        format!("{all}: {by_plain} by doctor, {by_probe} by --probe, {undone} without a command");
    assert!(all >= 80 && by_plain >= 60 && by_probe >= 40, "{counts}");
    assert!(all - undone >= 40, "{counts}");
    let names: std::collections::BTreeSet<_> = faults().map(|fault| fault.name).collect();
    assert_eq!(names.len(), all, "each name is that of one fault");
    let undone = faults().filter_map(|fault| match fault.mend {
        Mend::Undone(_, why) => Some((fault.name, why)),
        _ => None,
    });
    let unseen = UNSEEN.iter().map(|fault| (fault.name, fault.why));
    for (name, why) in undone.chain(unseen).chain(NOT_TRIED.iter().copied()) {
        assert!(why.len() > 10, "{name}: {why}");
    }
}
