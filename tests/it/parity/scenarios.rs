//! The calls to both sides, for two containers one after the other.

use serde_json::{Value, json};

use crate::world::LAN;

pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) plugin: &'static str,
    pub(super) config: Value,
    /// CNI_ARGS.
    pub(super) args: &'static str,
    /// Commands on the host, and in each container, before the calls.
    pub(super) on_host: &'static str,
    pub(super) in_container: &'static str,
}

fn scenario(name: &'static str, plugin: &'static str, config: Value) -> Scenario {
    Scenario { name, plugin, config, args: "", on_host: "", in_container: "" }
}

const RESOLV_CONF: &str = "printf 'nameserver 10.0.0.53\\nsearch a b\\n' > /run/resolv.conf";

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = bridges();
    all.extend(pairs());
    all.extend(macvlans());
    all.extend(alone());
    all.extend(failures());
    all
}

fn bridges() -> Vec<Scenario> {
    let dual = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]);
    let bridge = |name, config| scenario(name, "bridge", config);
    let mut scenarios = vec![
        bridge("bridge, plain", json!({"cniVersion": "1.0.0", "name": "net"})),
        bridge("bridge, plain, 0.3.1", json!({"cniVersion": "0.3.1", "name": "net"})),
        bridge(
            "bridge, port flags",
            json!({"cniVersion": "1.0.0", "name": "net", "bridge": "br7", "mtu": 1400,
            "hairpinMode": true}),
        ),
        bridge(
            "bridge, promiscuous",
            json!({"cniVersion": "1.0.0", "name": "net", "promiscMode": true}),
        ),
        bridge(
            "bridge, address",
            json!({"cniVersion": "0.4.0", "name": "net",
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "gateway": "10.1.0.1"},
            "dns": {"nameservers": ["10.1.0.1"]}}),
        ),
        bridge(
            "bridge, gateway, dual stack",
            json!({"cniVersion": "1.0.0", "name": "net", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": dual}}),
        ),
        bridge(
            "bridge, default gateway, dual stack, 0.2.0",
            json!({"cniVersion": "0.2.0", "name": "net",
            "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": dual}}),
        ),
        bridge(
            "bridge, routes",
            json!({"cniVersion": "1.0.0", "name": "net",
            "ipam": {"type": "host-local", "ranges": dual, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.7.0.0/16",
            "gw": "10.1.0.77"}, {"dst": "::/0"}, {"dst": "fd07::/48", "gw": "fd00:1::77"}]}}),
        ),
        bridge(
            "bridge, static",
            json!({"cniVersion": "1.0.0", "name": "net", "isGateway": true,
            "ipam": {"type": "static", "addresses": [{"address": "10.1.0.5/16"}, {"address": "fd00:1::5/64",
            "gateway": "fd00:1::1"}], "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]}}),
        ),
    ];
    let mut mac = bridge("bridge, mac", json!({"cniVersion": "1.0.0", "name": "net"}));
    mac.args = "MAC=02:00:00:00:00:77";
    scenarios.push(mac);
    scenarios
}

fn pairs() -> Vec<Scenario> {
    let routes = json!([{"dst": "0.0.0.0/0"}]);
    let pair = |name, version, ipam| {
        scenario(
            name,
            "ptp",
            json!({"cniVersion": version, "name": "net", "mtu": 1400, "ipam": ipam}),
        )
    };
    vec![
        pair(
            "ptp",
            "1.0.0",
            json!({"type": "host-local", "subnet": "10.2.0.0/24", "routes": routes}),
        ),
        pair(
            "ptp, dual stack",
            "0.4.0",
            json!({"type": "host-local",
            "ranges": [[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}),
        ),
        pair("ptp, 0.1.0", "", json!({"type": "host-local", "subnet": "10.2.0.0/24"})),
    ]
}

fn macvlans() -> Vec<Scenario> {
    let macvlan = |name, keys: Value| {
        let config = json!({"cniVersion": "1.0.0", "name": "net", "master": "lan"});
        let config = crate::world::with(&config, keys);
        Scenario { on_host: LAN, ..scenario(name, "macvlan", config) }
    };
    let dual = json!({"type": "host-local",
        "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.7.0.0/16", "gw": "10.1.0.77"}]});
    let mut asked = macvlan("macvlan, mac", json!({"mac": "02:00:00:00:00:66"}));
    asked.args = "MAC=02:00:00:00:00:77";
    let mut taken = macvlan("failure, macvlan, eth0 is there", json!({"ipam": dual}));
    taken.in_container = "ip link add eth0 type bridge";
    let mut in_container = macvlan("macvlan, in the container", json!({"linkInContainer": true}));
    in_container.in_container = LAN;
    vec![
        macvlan("macvlan", json!({})),
        macvlan("macvlan, default route", json!({"master": null, "ipam": dual})),
        macvlan("macvlan, dual stack, 0.4.0", json!({"cniVersion": "0.4.0", "ipam": dual})),
        macvlan("macvlan, dual stack, 0.2.0", json!({"cniVersion": "0.2.0", "ipam": dual})),
        macvlan("macvlan, private, mtu", json!({"mode": "private", "mtu": 1400})),
        macvlan("macvlan, passthru", json!({"mode": "passthru", "ipam": dual})),
        asked,
        in_container,
        taken,
        macvlan("failure, macvlan, no master", json!({"master": "gone"})),
        macvlan("failure, macvlan, mode", json!({"mode": "source"})),
        macvlan("failure, macvlan, mtu", json!({"mtu": 1501})),
        macvlan("failure, macvlan, mac", json!({"mac": "nonsense"})),
        macvlan("failure, macvlan, no such ipam", json!({"ipam": {"type": "none-such"}})),
    ]
}

fn alone() -> Vec<Scenario> {
    let host_local = |name, config| scenario(name, "host-local", config);
    let mut resolv_conf = host_local(
        "host-local, everything",
        json!({"cniVersion": "1.0.0", "name": "net",
        "runtimeConfig": {"ipRanges": [[{"subnet": "10.4.0.0/24"}]], "ips": ["10.5.0.9/24"]},
        "ipam": {"type": "host-local", "subnet": "10.3.0.0/24", "rangeStart": "10.3.0.100", "gateway": "10.3.0.254",
            "ranges": [[{"subnet": "10.5.0.0/28"}, {"subnet": "10.5.1.0/28"}], [{"subnet": "fd00:3::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.3.0.7"}],
            "resolvConf": "/run/resolv.conf"}}),
    );
    resolv_conf.on_host = RESOLV_CONF;
    let mut old_file = host_local(
        "host-local, files of old releases",
        json!({"cniVersion": "0.3.1", "name": "net",
        "ipam": {"type": "host-local", "subnet": "10.3.0.0/24"}}),
    );
    old_file.on_host = "mkdir -p /var/lib/cni/networks/net; cd /var/lib/cni/networks/net
        printf c1 > 10.3.0.77; printf 'other\\r\\neth0' > 10.3.0.2; printf 10.3.0.9 > last_reserved_ip.0";
    let mut asked = host_local(
        "host-local, asked for",
        json!({"cniVersion": "0.4.0", "name": "net",
        "ipam": {"type": "host-local", "subnet": "10.3.0.0/24"}}),
    );
    asked.args = "IgnoreUnknown=1;IP=10.3.0.50;K8S_POD_NAME=x";
    let ipam = json!({"type": "static", "addresses": [{"address": "10.6.0.5/24", "gateway": "10.6.0.1"}],
        "routes": [{"dst": "0.0.0.0/0"}], "dns": {"domain": "example.org"}});
    let mut asked_static = scenario(
        "static, asked for",
        "static",
        json!({"cniVersion": "0.4.0", "name": "net", "ipam": ipam}),
    );
    asked_static.args = "IP=10.7.0.5/24,fd00:7::5/64;GATEWAY=10.7.0.1,fd00:7::1";
    vec![
        resolv_conf,
        old_file,
        asked,
        scenario("static", "static", json!({"cniVersion": "1.0.0", "name": "net", "ipam": ipam})),
        asked_static,
        scenario("loopback", "loopback", json!({"cniVersion": "1.0.0", "name": "lo"})),
        scenario("loopback, 0.3.1", "loopback", json!({"cniVersion": "0.3.1", "name": "lo"})),
        scenario("loopback, no version", "loopback", json!({"name": "lo"})),
    ]
}

fn failures() -> Vec<Scenario> {
    let small = json!({"type": "host-local", "subnet": "10.1.0.0/30"});
    let bridge = |name, keys: Value| {
        let config =
            json!({"cniVersion": "1.0.0", "name": "net", "isGateway": true, "ipam": small});
        scenario(name, "bridge", crate::world::with(&config, keys))
    };
    let mut taken = bridge("failure, eth0 is there", json!({}));
    taken.in_container = "ip link add eth0 type bridge";
    let mut other_kind = bridge("failure, cni0 is no bridge", json!({}));
    other_kind.on_host = "ip link add cni0 type veth peer name other";
    let mut other_address = bridge("failure, another address on the bridge", json!({}));
    other_address.on_host = "ip link add cni0 type bridge; ip address add 10.9.0.1/24 dev cni0";
    vec![
        bridge("failure, exhausted", json!({})),
        taken,
        other_kind,
        other_address,
        bridge("failure, no name", json!({"name": ""})),
        bridge("failure, bad name", json!({"name": "a/b"})),
        bridge("failure, bad version", json!({"cniVersion": "7.0.0"})),
        bridge("failure, no such ipam", json!({"ipam": {"type": "none-such"}})),
        bridge(
            "failure, hairpin and promiscuous",
            json!({"hairpinMode": true, "promiscMode": true}),
        ),
        bridge("failure, plain in 0.2.0", json!({"cniVersion": "0.2.0", "ipam": null})),
        scenario(
            "failure, no ranges",
            "host-local",
            json!({"cniVersion": "1.0.0", "name": "net",
            "ipam": {"type": "host-local"}}),
        ),
        scenario(
            "failure, small subnet",
            "host-local",
            json!({"cniVersion": "1.0.0", "name": "net",
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/31"}}),
        ),
        scenario("failure, no section", "static", json!({"cniVersion": "1.0.0", "name": "net"})),
    ]
}
