//! What is not asked, because a packet would leave the host, reach a program, or be stored; and the trap of the packets.

use super::{Host, count, got_nothing};
use crate::world::Container;

#[test]
fn rules_that_do_more_than_count_get_packets_only_by_force() {
    let host = Host::new();
    host.run(
        "nft 'add table inet admin; add set inet admin seen { type ipv4_addr; flags dynamic; }
         add chain inet admin fw { type filter hook forward priority 0; }
         add rule inet admin fw add @seen { ip saddr }'",
    );
    let seen = || host.world.host(["nft", "list", "set", "inet", "admin", "seen"]);
    let outcome = host.probe(&[]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    assert!(outcome.stderr.contains("has dynset"), "{}", outcome.report());
    assert!(!seen().contains("elements"), "{}", seen());
    host.probe(&["--force"]);
    assert!(seen().contains("10.1.0."), "{}", seen());
}

#[test]
fn packets_that_would_be_sent_on_or_answered_are_not_sent() {
    let host = Host::new();
    let names = ["outside", "one", "two"];
    let containers = names.map(|name| Container { world: &host.world, name: name.into() });
    containers.iter().for_each(count);
    let port = &host.world.ports_of("cni-a")[0];
    let chain = |hook: &str, rule: &str| {
        format!("nft 'table inet admin {{ chain c {{ type filter hook {hook}; {rule}; }}; }}'")
    };
    let tc = |link: &str, action: &str| {
        format!(
            "tc qdisc add dev {link} clsact && tc filter add dev {link} ingress u32 match u32 0 0 action {action}"
        )
    };
    // The rule, what is said of it, and whether it concerns all packets.
    for (rule, text, is_for_all) in [
        (tc("wan", "mirred egress mirror dev lo"), "a filter of traffic control on wan", false),
        (tc(port, "mirred egress redirect dev wan"), "a filter of traffic control on veth", false),
        (tc("cni-a", "mirred egress redirect dev wan"), "a filter of traffic control on cni-a", false),
        (chain("prerouting priority -310", "ip saddr 10.1.0.2 ip saddr set 10.1.0.77"), "has a change of the packet", true),
        (chain("prerouting priority -300", "notrack"), "has notrack", true),
        (chain("prerouting priority -300", "log group 5"), "has log group", true),
        (chain("output priority 0", "log group 6"), "has log group", true),
        (chain("input priority 0", "tcp dport 8080 ct state invalid,untracked synproxy mss 1460 wscale 7"), "has synproxy", false),
        (
            "nft 'table netdev admin { chain i { type filter hook ingress device \"wan\" priority 0; tcp dport 8080 reject with tcp reset; }; }'".into(),
            "has reject at ingress",
            true,
        ),
        ("iptables-nft -A FORWARD -m recent --set --name seen".into(), "has recent", true),
        ("iptables-legacy -t mangle -A PREROUTING -p tcp --dport 8080 -j NFQUEUE".into(), "table mangle of iptables-legacy has a rule", false),
    ] {
        host.run(&rule);
        let outcome = host.probe(&[]);
        assert_eq!(outcome.status, 0, "{rule}: {}", outcome.report());
        assert!(outcome.stderr.contains(text), "{rule}: {}", outcome.report());
        assert!(!outcome.stdout.contains("no fault found in 1 network"), "{rule}: {}", outcome.report());
        let ways = host.probe(&["one"]).stdout;
        assert_eq!(ways.contains(" → passes"), !is_for_all, "{rule}: {ways}");
        containers.iter().for_each(got_nothing);
        host.run(&format!(
            "nft delete table inet admin; nft delete table netdev admin; for link in wan cni-a {port}; do tc qdisc delete dev $link clsact; done;
             iptables-nft -F FORWARD; iptables-legacy -t mangle -F; true"
        ));
    }
    assert_eq!(host.probe(&[]).stdout, "no fault found in 1 network and 2 attachments\n");
}

#[test]
fn a_filter_that_only_drops_or_accepts_is_asked() {
    let host = Host::new();
    host.run(
        "tc qdisc add dev wan clsact && tc filter add dev wan ingress u32 match u32 0 0 classid 1:1",
    );
    host.run("iptables-legacy -A FORWARD -p tcp --dport 9 -j DROP");
    let outcome = host.probe(&["one"]);
    assert!(!outcome.report().contains("not asked"), "{}", outcome.report());
    assert!(outcome.stdout.contains("wan → cni-a → passes"), "{}", outcome.stdout);
}

/// The kernel sends the reset to the bridge port without a hook.
#[test]
fn no_segment_is_sent_that_would_be_reset_at_a_bridge_port() {
    let host = Host::new();
    if !std::path::Path::new("/proc/sys/net/bridge").exists() {
        return;
    }
    let one = Container { world: &host.world, name: "one".into() };
    count(&one);
    for rule in ["reject with tcp reset", "notrack"] {
        let hook =
            if rule == "notrack" { "prerouting priority -300" } else { "forward priority 0" };
        host.run(&format!("nft 'table inet t {{ chain c {{ type filter hook {hook}; meta l4proto tcp {rule}; }}; }}'"));
        let outcome = host.probe(&["one"]);
        assert!(!outcome.stdout.contains("to other networks, tcp"), "{}", outcome.report());
        got_nothing(&one);
        host.run("nft delete table inet t");
    }
}

/// A packet that is lost takes most of a second.
#[test]
fn the_trap_has_one_packet_at_a_time() {
    let host = Host::new();
    host.run("iptables-legacy -P FORWARD DROP");
    let list = "nft list set ip cnibox-probe packets 2>/dev/null | tr -d ' \\n' || true";
    let mut running = host.cnibox(&["doctor", "--probe", "one"]).start();
    let mut seen = std::collections::BTreeSet::new();
    while running.is_running() {
        let elements = host.world.host(["sh", "-c", list]);
        if let Some((_, elements)) = elements.split_once("elements={") {
            seen.insert(elements.trim_end_matches('}').to_owned());
        }
    }
    running.finish();
    assert!(!seen.is_empty());
    for element in seen {
        assert!(!element.contains(',') && element.split('.').count() >= 5, "{element}");
        assert!(element.starts_with("udp.10.1.0.") || element.starts_with("tcp."), "{element}");
    }
}

#[test]
fn a_probe_waits_for_another_one() {
    let host = Host::new();
    host.run("iptables-legacy -P FORWARD DROP");
    let calls = [(); 2].map(|()| host.cnibox(&["doctor", "--probe", "--port", "8080"]));
    for outcome in crate::world::all_at_once(calls) {
        assert!(outcome.stdout.contains("iptables-legacy"), "{}", outcome.report());
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
}
