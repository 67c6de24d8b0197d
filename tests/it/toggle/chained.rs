//! The keys of plugins that follow another one in a chain.

use serde_json::{Value, json};

use super::subject::{Case, Place, Subject, case};
use crate::world::with;

pub fn subjects() -> Vec<Subject> {
    vec![portmap(), firewall(), bandwidth(), sbr(), tuning(), vrf(), dnsname()]
}

/// A DEL may come without a result, but an ADD does not.
fn prev_result() -> Case {
    case("/prevResult", json!({})).required()
}

fn vrf() -> Subject {
    let name = || json!({"vrfname": "blue"});
    let cases = vec![
        prev_result().with(name()),
        case("/vrfname", "blue").required(),
        case("/table", 10).with(name()),
    ];
    let subject = Subject::chained("vrf", json!({}), cases);
    Subject { option: "CONFIG_NET_VRF", ..subject }
}

fn dnsname() -> Subject {
    let cases = vec![
        prev_result(),
        case("/domainName", "example.org"),
        case("/internal", true),
        case("/runtimeConfig/aliases", json!({"net": ["web", "www"], "other": ["else"]})),
    ];
    let subject = Subject::chained("dnsname", json!({}), cases);
    Subject { look: ["pgrep -x aardvark-dns || true", ""], ..subject }
}

fn portmap() -> Subject {
    let published = |keys: Value| {
        let tcp = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
        json!({"runtimeConfig": {"portMappings": [with(&tcp, keys)]}})
    };
    let plain = || published(json!({}));
    let cases = vec![
        prev_result().with(plain()),
        case("/backend", "nftables").with(plain()),
        case("/snat", false).with(plain()),
        case("/masqAll", true).with(plain()),
        case("/markMasqBit", 5).with(plain()),
        case("/externalSetMarkChain", "KUBE-MARK-MASQ").with(plain()),
        case("/conditionsV4", json!(["-s", "192.0.2.0/24"])).with(plain()),
        case("/conditionsV6", json!(["-s", "fd00:2::/64"])).with(plain()),
        case("/runtimeConfig/portMappings", plain()["runtimeConfig"]["portMappings"].clone()),
        case("/runtimeConfig/portMappings/0/hostPort", 8080).with(plain()).required(),
        case("/runtimeConfig/portMappings/0/containerPort", 80).with(plain()).required(),
        case("/runtimeConfig/portMappings/0/protocol", "udp").with(plain()),
        case("/runtimeConfig/portMappings/0/hostIP", "10.1.0.1").with(plain()),
    ];
    Subject::chained("portmap", json!({}), cases)
}

fn firewall() -> Subject {
    let cases = vec![
        prev_result(),
        case("/backend", "iptables"),
        case("/iptablesAdminChainName", "OURS"),
        case("/acceptPublished", true),
        case("/markAcceptBit", 5),
        case("/ingressPolicy", "same-bridge"),
        case("/ingressPolicy", "strict"),
        case("/ingressPolicy", "isolated"),
    ];
    let subject = Subject::chained("firewall", json!({}), cases);
    let host = "printf 'table ip filter { chain FORWARD { type filter hook forward priority 0; }; }
        table ip6 filter { chain FORWARD { type filter hook forward priority 0; }; }\n' | nft -f -";
    Subject { host, ..subject }
}

fn bandwidth() -> Subject {
    let limits = || {
        json!({
            "ingressRate": 20_000_000, "ingressBurst": 2_000_000, "egressRate": 10_000_000,
            "egressBurst": 1_000_000,
        })
    };
    let only_ingress = json!({"ingressRate": 20_000_000, "ingressBurst": 2_000_000});
    let cases = vec![
        prev_result().with(limits()),
        case("/ingressRate", 20_000_000).with(limits()).required(),
        case("/ingressBurst", 2_000_000).with(limits()).required(),
        case("/egressRate", 10_000_000).with(limits()).required(),
        case("/egressBurst", 1_000_000).with(limits()).required(),
        case("/shapedSubnets", json!(["10.1.0.0/24"])).with(limits()),
        case("/unshapedSubnets", json!(["10.1.0.0/24"])).with(limits()),
        case("/latency", 50).with(limits()),
        case("/fairQueue", true).with(limits()),
        case("/runtimeConfig/bandwidth", limits()),
        case("/runtimeConfig/bandwidth", only_ingress),
    ];
    let subject = Subject::chained("bandwidth", json!({}), cases);
    Subject { look: ["tc qdisc show; ip link show type ifb | wc -l", ""], ..subject }
}

fn sbr() -> Subject {
    let cases = vec![
        prev_result(),
        case("/table", 200),
        case("/gateways", json!(["10.1.0.200"])),
        case("/addSourceHints", true),
    ];
    let subject = Subject::chained("sbr", json!({}), cases);
    Subject { place: Place::ChainedUntilTheEnd, ..subject }
}

fn tuning() -> Subject {
    let mac = "02:00:00:00:00:77";
    let sysctl = || json!({"net.ipv4.conf.IFNAME.arp_notify": "1", "net/core/somaxconn": "77"});
    let cases = vec![
        prev_result().with(json!({"mtu": 1400})),
        case("/mac", mac),
        case("/mtu", 1400),
        case("/promisc", true),
        case("/allmulti", true),
        case("/txQLen", 77),
        case("/sysctl", sysctl()),
        case("/runtimeConfig/mac", mac),
        case("/args/cni/mac", mac),
        case("/args/cni/mtu", 1400),
        case("/args/cni/promisc", true),
        case("/args/cni/allmulti", true),
        case("/args/cni/txQLen", 77),
        case("/args/cni/sysctl", sysctl()),
        case("/sysctl", sysctl()).with(json!({"mtu": 1400, "mac": mac})),
        case("/mac", mac).with(json!({"sysctl": sysctl()})),
    ];
    let subject = Subject::chained("tuning", json!({}), cases);
    let look = "ip -o link show dev eth0 | sed 's/^[0-9]*: //'
        cat /proc/sys/net/ipv4/conf/*/arp_notify /proc/sys/net/core/somaxconn";
    Subject { look: ["", look], ..subject }
}
