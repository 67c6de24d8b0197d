//! The keys of plugins that make an interface, of the configuration that all plugins share, and of IPAM plugins.

use serde_json::{Value, json};

use super::subject::{Case, NEIGHBOUR, Place, Subject, VLANS, case, dual_stack};
use crate::world::{OUTSIDE, with};

const MAC: &str = "02:00:00:00:00:77";

pub fn subjects() -> Vec<Subject> {
    vec![
        network(),
        bridge(),
        pair("veth"),
        pair("ptp"),
        macvlan(),
        host_device(),
        tap(),
        flannel(),
        Subject::new("loopback", json!({}), Vec::new()),
        host_local(),
        fixed(),
        dummy(),
        vlan(),
        ipvlan(),
        dhcp(),
    ]
}

/// Ways to ask for a MAC address that many plugins have.
fn macs() -> Vec<Case> {
    vec![case("/runtimeConfig/mac", MAC), case("/args/cni/mac", MAC)]
}

fn on_bridge(subject: Subject) -> Subject {
    Subject { targets: &NEIGHBOUR, ..subject }
}

fn network() -> Subject {
    let mut cases = vec![
        case(
            "/dns",
            json!({"nameservers": ["10.1.0.1"], "domain": "a", "search": ["a"], "options": ["b"]}),
        ),
        case("/capabilities", json!({"mac": true})),
    ];
    cases.extend(macs());
    let subject = Subject::new("bridge", json!({"ipam": dual_stack()}), cases);
    on_bridge(Subject { keys_of: "network", ..subject })
}

fn bridge() -> Subject {
    let gateway = || json!({"isGateway": true});
    let cases = vec![
        case("/bridge", "br9"),
        case("/isGateway", true),
        case("/isDefaultGateway", true),
        case("/forceAddress", true).with(gateway()),
        case("/ipMasq", true),
        case("/ipMasqBackend", "nftables").with(json!({"ipMasq": true})),
        case("/mtu", 1400),
        case("/hairpinMode", true),
        case("/promiscMode", true),
        case("/vlan", 10).of(VLANS),
        case("/vlanTrunk", json!([{"minID": 20, "maxID": 29}, {"id": 40}])).of(VLANS),
        case("/preserveDefaultVlan", true).with(json!({"vlan": 10})).of(VLANS).without_traffic(),
        case("/macspoofchk", true),
        case("/macspoofchk", true).with(json!({"ipMasq": true})),
        case("/ipMasq", true).with(json!({"macspoofchk": true})),
        case("/enabledad", true),
        case("/disableContainerInterface", true).with(json!({"ipam": null})).without_traffic(),
        case("/portIsolation", true),
        case("/removeUnused", true),
        case("/internal", true).without_traffic(),
    ];
    on_bridge(Subject::new("bridge", json!({"ipam": dual_stack()}), cases))
}

fn routed() -> Value {
    with(&dual_stack(), json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}))
}

fn pair(plugin: &'static str) -> Subject {
    let mut cases = vec![
        case("/mtu", 1400),
        case("/ipMasq", true),
        case("/ipMasqBackend", "nftables").with(json!({"ipMasq": true})),
    ];
    cases.extend(macs());
    let subject = Subject::new(plugin, json!({"ipam": routed()}), cases);
    Subject { targets: &["10.1.0.1", "fd00:1::1"], ..subject }
}

fn macvlan() -> Subject {
    let mut cases = vec![
        case("/master", "lan"),
        case("/mode", "private"),
        case("/mode", "passthru"),
        case("/mtu", 1400),
        case("/mac", MAC),
        case("/linkInContainer", true)
            .with(json!({"master": "uplink"}))
            .required()
            .without_traffic(),
        case("/bcqueuelen", 5000),
    ];
    cases.extend(macs());
    let subject = Subject::new("macvlan", json!({"ipam": dual_stack()}), cases);
    Subject { host: ON_SWITCH, in_container: UPLINK, targets: &OUTSIDE, ..subject }
}

/// The host has the link `lan` to a switch.
macro_rules! on_switch {
    ($more:literal) => {
        concat!(
            "ip link add lan type veth peer name port; ip link add sw type bridge mcast_snooping 0
            ip link set port master sw; ip link set port up; ip link set sw up; ip link set lan up\n",
            $more
        )
    };
}

/// The switch answers, and the default route leads to it.
const ON_SWITCH: &str = on_switch!(
    "ip address add 10.20.0.1/24 dev lan; ip route add default via 10.20.0.9
    ip address add 10.1.0.254/24 dev sw; ip address add fd00:1::fe/64 dev sw nodad"
);

/// The switch answers in VLAN 10, where the kernel has VLANs.
const ON_SWITCH_WITH_VLAN: &str = on_switch!(
    "if ip link add link sw name sw10 type vlan id 10; then
        ip link set sw10 up; ip address add 10.1.0.254/24 dev sw10; ip address add fd00:1::fe/64 dev sw10 nodad
    fi"
);

/// A link of the container for an interface in it.
const UPLINK: &str =
    "ip link add uplink type veth peer name cable; ip link set cable up; ip link set uplink up";

fn host_device() -> Subject {
    let cases = vec![
        case("/device", "card").required(),
        case("/device", "card").with(json!({"hwaddr": "02:00:00:00:00:07"})),
        case("/hwaddr", "02:00:00:00:00:07").with(json!({"device": "card"})),
        case("/hwaddr", "02:00:00:00:00:07").required(),
        // It counts for nothing beside `device`, but it is read.
        case("/kernelpath", "/sys/devices/none").with(json!({"device": "card"})),
        case("/DPDKMode", true).with(json!({"device": "card"})).without_traffic(),
    ];
    let subject = Subject::new("host-device", json!({"ipam": dual_stack()}), cases);
    Subject {
        host: "ip link add card address 02:00:00:00:00:07 up type veth peer name cable
            ip link set cable up
            ip address add 10.1.0.254/24 dev cable; ip address add fd00:1::fe/64 dev cable nodad",
        before_gc: "sleep 100 & nsenter --net=/run/netns/c1 ip link set dev eth0 netns $! || true; kill $!",
        targets: &OUTSIDE,
        ..subject
    }
}

fn tap() -> Subject {
    let mut cases = vec![
        case("/multiQueue", true),
        case("/mtu", 1400),
        case("/mac", MAC),
        case("/owner", 0),
        case("/group", 0),
        case("/bridge", "inner"),
    ];
    cases.extend(macs());
    let subject = Subject::new("tap", json!({"ipam": dual_stack()}), cases);
    Subject { in_container: "ip link add inner type bridge", ..subject }
}

fn flannel() -> Subject {
    let cases = vec![
        case("/delegate", json!({"macspoofchk": true, "ipMasq": true})),
        case("/delegate", json!({"portIsolation": true})),
        case("/delegate/type", "veth"),
        case("/ipam", json!({"routes": [{"dst": "10.9.0.0/16"}]})),
        case("/runtimeConfig", json!({"mac": MAC})),
    ];
    let subject = Subject::new("flannel", json!({}), cases);
    Subject {
        host: "mkdir -p /run/flannel; cat >/run/flannel/subnet.env <<END
FLANNEL_NETWORK=10.1.0.0/16
FLANNEL_SUBNET=10.1.0.1/24
FLANNEL_IPV6_NETWORK=fd00:1::/56
FLANNEL_IPV6_SUBNET=fd00:1::1/64
FLANNEL_MTU=1500
FLANNEL_IPMASQ=true
END",
        ..on_bridge(subject)
    }
}

fn host_local() -> Subject {
    let range = |keys: Value| json!([[with(&json!({"subnet": "10.2.0.0/24"}), keys)]]);
    let ranges = |keys| json!({"ipam": {"ranges": range(keys)}});
    let top = || json!({"ipam": {"subnet": "10.2.0.0/24"}});
    let nothing = || json!({});
    let wish = || json!(["10.1.0.7"]);
    let cases = vec![
        case("/ipam/subnet", "10.2.0.0/24"),
        case("/ipam/rangeStart", "10.2.0.5").with(top()),
        case("/ipam/rangeEnd", "10.2.0.5").with(top()),
        case("/ipam/gateway", "10.2.0.5").with(top()),
        case("/ipam/ranges", range(json!({"gateway": "10.2.0.9"}))).required(),
        case("/ipam/ranges/0/0/subnet", "10.2.0.0/24").with(ranges(nothing())).required(),
        case("/ipam/ranges/0/0/rangeStart", "10.2.0.5").with(ranges(nothing())),
        case("/ipam/ranges/0/0/rangeEnd", "10.2.0.5").with(ranges(nothing())),
        case("/ipam/ranges/0/0/gateway", "10.2.0.5").with(ranges(nothing())),
        case("/ipam/ranges/0/0/exclude", json!(["10.2.0.2"])).with(ranges(nothing())),
        case("/ipam/routes", json!([{"dst": "10.9.0.0/16"}])),
        case("/ipam/resolvConf", "/etc/hosts"),
        case("/ipam/exclude", json!(["10.1.0.2"])),
        case("/ipam/sticky", true),
        case("/ipam/staleOnBoot", "keep"),
        case("/runtimeConfig/ipRanges", range(nothing())),
        case("/runtimeConfig/ips", wish()),
        case("/args/cni/ips", wish()),
    ];
    let subject = Subject::new("host-local", json!({"ipam": dual_stack()}), cases);
    Subject { place: Place::Ipam, ..subject }
}

fn fixed() -> Subject {
    let addresses = || json!([{"address": "10.1.0.7/24"}]);
    let own = || json!({"ipam": {"addresses": addresses()}});
    let cases = vec![
        case("/ipam/addresses", addresses()).required(),
        case("/ipam/addresses/0/address", "10.1.0.7/24").with(own()).required(),
        case("/ipam/addresses/0/gateway", "10.1.0.1").with(own()),
        case("/ipam/routes", json!([{"dst": "10.9.0.0/16"}])).with(own()),
        case("/ipam/dns", json!({"domain": "a"})).with(own()),
        case("/runtimeConfig/ips", json!(["10.1.0.8/24"])).with(own()),
        case("/args/cni/ips", json!(["10.1.0.9/24"])).with(own()),
    ];
    let subject = Subject::new("static", json!({"ipam": {"type": "static"}}), cases);
    Subject { place: Place::Ipam, ..subject }
}

/// Its keys are toggled in `tests/it/dhcp/keys.rs`.
fn dhcp() -> Subject {
    let name = |more: Value| json!([with(&json!({"option": "host-name"}), more)]);
    let cases = vec![
        case("/ipam/daemon", "auto"),
        case("/ipam/provide", name(json!({"value": "a"}))),
        case("/ipam/provide/0/fromArg", "NAME").with(json!({"ipam": {"provide": name(json!({}))}})),
        case("/ipam/request", json!([{"option": "42", "skipDefault": false}])),
        case("/ipam/priority", 7),
        case("/ipam/probe", true),
        case("/ipam/broadcast", true),
        case("/ipam/subnets", json!(["10.1.0.0/24"])),
        case("/ipam/families", json!(["4"])),
    ];
    let subject = Subject::new("dhcp", json!({"ipam": {"type": "dhcp"}}), cases);
    Subject { place: Place::Dhcp, ..subject }
}

fn dummy() -> Subject {
    let cases = vec![case("/mtu", 1400), case("/mac", MAC)];
    let subject = Subject::new("dummy", json!({"ipam": dual_stack()}), cases);
    Subject { option: "CONFIG_DUMMY", ..subject }
}

fn vlan() -> Subject {
    let tag = || json!({"vlanId": 10});
    let both = || json!({"vlanId": 10, "master": "lan"});
    let cases = vec![
        case("/master", "lan").with(tag()).required(),
        case("/vlanId", 10).with(json!({"master": "lan"})).without_traffic(),
        case("/mtu", 1400).with(both()),
        case("/linkInContainer", true)
            .with(json!({"vlanId": 10, "master": "uplink"}))
            .required()
            .without_traffic(),
    ];
    let subject = Subject::new("vlan", json!({"ipam": dual_stack()}), cases);
    Subject {
        option: "CONFIG_VLAN_8021Q",
        host: ON_SWITCH_WITH_VLAN,
        in_container: UPLINK,
        targets: &OUTSIDE,
        ..subject
    }
}

fn ipvlan() -> Subject {
    let cases = vec![
        case("/master", "lan"),
        case("/mode", "l3"),
        case("/flag", "private"),
        case("/mtu", 1400),
        case("/linkInContainer", true)
            .with(json!({"master": "uplink"}))
            .required()
            .without_traffic(),
    ];
    let subject = Subject::new("ipvlan", json!({"ipam": dual_stack()}), cases);
    Subject {
        option: "CONFIG_IPVLAN",
        host: ON_SWITCH,
        in_container: UPLINK,
        targets: &OUTSIDE,
        ..subject
    }
}
