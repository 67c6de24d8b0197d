//! STATUS and ADD side by side: for each plugin and each condition of the host, STATUS says 50 exactly when an ADD fails.

use serde_json::{Value, json};

use crate::world::{Container, World, with};

/// The state of the host, and the expected outcome of both verbs.
#[derive(Clone)]
struct Condition {
    what: &'static str,
    /// Commands of the host's shell.
    host: String,
    plugin: &'static str,
    config: Value,
    /// Where the kernel of the test decides, the verbs are only compared.
    is_ready: Option<bool>,
}

fn ready(what: &'static str, host: &str, plugin: &'static str, config: Value) -> Condition {
    Condition { what, host: host.into(), plugin, config, is_ready: Some(true) }
}

fn not_ready(what: &'static str, host: &str, plugin: &'static str, config: Value) -> Condition {
    Condition { is_ready: Some(false), ..ready(what, host, plugin, config) }
}

fn of_kernel(what: &'static str, host: &str, plugin: &'static str, config: Value) -> Condition {
    Condition { is_ready: None, ..ready(what, host, plugin, config) }
}

/// An uplink, its cable, and a subnet file of flannel.
const HOST: &str = "ip link add up0 up type veth peer name wire0
    ip link set wire0 up
    ip link add down0 type veth peer name wire1
    mkdir -p /run/flannel /run/cni
    printf 'FLANNEL_NETWORK=10.42.0.0/16\\nFLANNEL_SUBNET=10.42.1.1/24\\nFLANNEL_MTU=1450\\nFLANNEL_IPMASQ=true\\n' \
        >/run/flannel/subnet.env\n";

/// Makes a directory a file system of its own that is full.
fn full(dir: &str) -> String {
    format!(
        "mkdir -p {dir}; mount -t tmpfs -o size=4k none {dir}
        head -c 4096 /dev/zero >{dir}/ballast; ! echo x 2>/dev/null >{dir}/more; rm -f {dir}/more"
    )
}

/// The same of a read-only one, with what `before` puts there.
fn read_only(dir: &str, before: &str) -> String {
    format!("mkdir -p {dir}; mount -t tmpfs none {dir}; {before}; mount -o remount,ro {dir}")
}

const NETWORKS: &str = "/var/lib/cni/networks";

/// The gateway of `ipam`.
const GATEWAY: &str = "ip address add 10.1.0.1/24 dev lo";

fn plugin(kind: &str, keys: Value) -> Value {
    with(&json!({"cniVersion": "1.1.0", "name": "net", "type": kind}), keys)
}

fn ipam() -> Value {
    json!({"type": "host-local", "subnet": "10.1.0.0/24"})
}

/// An interface plugin with addresses.
fn addressed(kind: &str, keys: Value) -> Value {
    with(&plugin(kind, json!({"ipam": ipam()})), keys)
}

/// The same with addresses and routes of both families.
fn routed(kind: &str, keys: Value) -> Value {
    let ipam = json!({
        "type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "10.9.0.0/16"}, {"dst": "fd09::/48"}, {"dst": "10.8.0.0/16", "gw": "10.1.0.9"}],
    });
    with(&plugin(kind, keys), json!({"ipam": ipam}))
}

fn host_local(keys: Value) -> Value {
    plugin("bridge", json!({"ipam": with(&ipam(), keys)}))
}

fn tuning(keys: Value) -> Value {
    plugin("tuning", with(&keys, json!({"prevResult": {"cniVersion": "1.1.0"}})))
}

fn conditions_of_host_local() -> Vec<Condition> {
    let config = || host_local(json!({}));
    let make = |what: &str| format!("mkdir -p {NETWORKS}/net; {what}");
    vec![
        ready("nothing is there", "", "host-local", config()),
        not_ready(
            "lock is a directory",
            &make("mkdir /var/lib/cni/networks/net/lock"),
            "host-local",
            config(),
        ),
        ready(
            "lock is read-only",
            &make("install -m 444 /dev/null /var/lib/cni/networks/net/lock"),
            "host-local",
            config(),
        ),
        not_ready(
            "a directory is a file",
            "mkdir -p /var/lib/cni; touch /var/lib/cni/networks",
            "host-local",
            config(),
        ),
        not_ready("the file system is full", &full(NETWORKS), "host-local", config()),
        not_ready(
            "that of the network is full",
            &full("/var/lib/cni/networks/net"),
            "host-local",
            config(),
        ),
        not_ready("it is read-only", &read_only(NETWORKS, "true"), "host-local", config()),
        not_ready(
            "it is read-only and has a lock",
            &read_only(
                NETWORKS,
                "mkdir /var/lib/cni/networks/net; touch /var/lib/cni/networks/net/lock",
            ),
            "host-local",
            config(),
        ),
        not_ready("no resolvConf", "", "host-local", host_local(json!({"resolvConf": "/nowhere"}))),
        not_ready(
            "no address is left",
            &make(
                "touch /var/lib/cni/networks/net/lock; for n in 2 3 4 5 6; do printf 'x\\r\\neth0' >/var/lib/cni/networks/net/10.1.0.$n; done",
            ),
            "host-local",
            host_local(json!({"subnet": "10.1.0.0/29"})),
        ),
        // With a daemon: tests/it/dhcp/limits.rs.
        not_ready(
            "no daemon listens",
            "",
            "dhcp",
            plugin("bridge", json!({"ipam": {"type": "dhcp"}})),
        ),
        ready(
            "it needs nothing",
            &full(NETWORKS),
            "static",
            plugin(
                "bridge",
                json!({"ipam": {"type": "static", "addresses": [{"address": "10.1.0.5/24"}]}}),
            ),
        ),
    ]
}

fn conditions_of_interfaces() -> Vec<Condition> {
    let macvlan = |master: &str| plugin("macvlan", json!({"master": master}));
    let port = "ip link add br0 type bridge; ip link set up0 master br0";
    vec![
        ready("all is well", "", "macvlan", macvlan("up0")),
        ready("the master is down", "", "macvlan", macvlan("down0")),
        ready(
            "the master is down, with routes",
            "",
            "macvlan",
            routed("macvlan", json!({"master": "down0"})),
        ),
        not_ready("there is no master", "", "macvlan", macvlan("none0")),
        not_ready("the master is a port", port, "macvlan", macvlan("up0")),
        not_ready("no default route", "", "macvlan", macvlan("")),
        ready(
            "nothing is there",
            "",
            "bridge",
            addressed("bridge", json!({"isGateway": true, "ipMasq": true, "macspoofchk": true})),
        ),
        not_ready(
            "its name is taken",
            "ip link add cni0 type veth peer name cni1",
            "bridge",
            addressed("bridge", json!({})),
        ),
        not_ready(
            "its IPAM plugin cannot write",
            &full(NETWORKS),
            "bridge",
            addressed("bridge", json!({})),
        ),
        ready("all is well", "", "veth", addressed("veth", json!({"ipMasq": true}))),
        ready("all is well", "", "ptp", addressed("ptp", json!({}))),
        ready("all is well", "", "loopback", plugin("loopback", json!({}))),
        of_kernel("all is well", "", "tap", addressed("tap", json!({}))),
        not_ready(
            "there is no device for taps",
            "mount -t tmpfs none /dev/net",
            "tap",
            addressed("tap", json!({})),
        ),
        of_kernel(
            "the master is down",
            "",
            "vlan",
            plugin("vlan", json!({"master": "down0", "vlanId": 7, "ipam": ipam()})),
        ),
        of_kernel(
            "all is well",
            "",
            "vlan",
            plugin("vlan", json!({"master": "up0", "vlanId": 7, "ipam": ipam()})),
        ),
        of_kernel(
            "the master is down",
            "",
            "ipvlan",
            addressed("ipvlan", json!({"master": "down0"})),
        ),
        of_kernel(
            "the master is a port",
            port,
            "ipvlan",
            addressed("ipvlan", json!({"master": "up0"})),
        ),
        of_kernel("all is well", "", "dummy", addressed("dummy", json!({}))),
    ]
}

fn conditions_without_an_ipam_plugin() -> Vec<Condition> {
    let kinds = ["bridge", "veth", "macvlan", "tap", "dummy", "vlan", "ipvlan", "host-device"];
    let keys =
        json!({"master": "up0", "device": "up0", "vlanId": 7, "ipam": {"type": "none-such"}});
    let condition =
        |kind| not_ready("there is no IPAM plugin", "", kind, plugin(kind, keys.clone()));
    kinds.map(condition).into()
}

fn conditions_of_the_rest() -> Vec<Condition> {
    let device = |name: &str| plugin("host-device", json!({"device": name}));
    let records = "/run/cni/host-device";
    let flannel = |keys| with(&plugin("flannel", json!({"cniVersion": "1.1.0"})), keys);
    let sysctl = |key: &str| tuning(json!({"sysctl": {key: "1"}}));
    vec![
        ready("all is well", "", "host-device", device("up0")),
        ready("it is down", "", "host-device", device("down0")),
        ready(
            "it is a port",
            "ip link add br0 type bridge; ip link set up0 master br0",
            "host-device",
            device("up0"),
        ),
        not_ready("there is none", "", "host-device", device("none0")),
        not_ready("nothing can be recorded", &full(records), "host-device", device("up0")),
        not_ready(
            "records are read-only",
            &read_only(records, "true"),
            "host-device",
            device("up0"),
        ),
        ready("all is well", "", "tuning", sysctl("net.core.somaxconn")),
        ready("nothing is wanted", &full("/run/cni/tuning"), "tuning", tuning(json!({}))),
        not_ready("the kernel lacks it", "", "tuning", sysctl("net.core.nothing")),
        not_ready(
            "dataDir is full",
            &full("/run/cni/tuning"),
            "tuning",
            sysctl("net.core.somaxconn"),
        ),
        not_ready(
            "dataDir is read-only",
            &read_only("/run/cni/tuning", "true"),
            "tuning",
            sysctl("net.core.somaxconn"),
        ),
        not_ready(
            "it is not allowed",
            "mkdir -p /etc/cni/tuning; echo '^net.ipv4' >/etc/cni/tuning/allowlist.conf",
            "tuning",
            sysctl("net.core.somaxconn"),
        ),
        ready("all is well", "", "flannel", flannel(json!({}))),
        not_ready(
            "the daemon has not come",
            "rm /run/flannel/subnet.env",
            "flannel",
            flannel(json!({})),
        ),
        not_ready("dataDir is full", &full("/var/lib/cni/flannel"), "flannel", flannel(json!({}))),
        not_ready(
            "dataDir is read-only",
            &read_only("/var/lib/cni/flannel", "true"),
            "flannel",
            flannel(json!({})),
        ),
        not_ready(
            "there is no delegate",
            "",
            "flannel",
            flannel(json!({"delegate": {"type": "none-such"}})),
        ),
    ]
}

fn conditions_of_chained_plugins() -> Vec<Condition> {
    vec![
        ready(
            "of an interface",
            "",
            "tuning",
            chained("tuning", json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1"}})),
        ),
        ready("all is well", "", "portmap", chained("portmap", json!({}))),
        ready("all is well", "", "firewall", chained("firewall", json!({}))),
        ready(
            "iptables-legacy drops",
            "iptables-legacy -P FORWARD DROP",
            "firewall",
            chained("firewall", json!({})),
        ),
        not_ready(
            "firewalld does not run",
            "",
            "firewall",
            chained("firewall", json!({"backend": "firewalld"})),
        ),
        ready("all is well", "", "sbr", chained("sbr", json!({}))),
        ready("all is well", GATEWAY, "dnsname", chained("dnsname", json!({}))),
        not_ready(
            "its program is missing",
            &format!("{GATEWAY}; rm /run/plugins/aardvark-dns"),
            "dnsname",
            chained("dnsname", json!({})),
        ),
        not_ready(
            "its directory is read-only",
            &format!("{GATEWAY}; {}", read_only("/run/cnibox/names", "true")),
            "dnsname",
            chained("dnsname", json!({})),
        ),
        of_kernel("all is well", "", "vrf", chained("vrf", json!({"vrfname": "blue"}))),
        ready(
            "all is well",
            "",
            "bandwidth",
            chained("bandwidth", json!({"ingressRate": 1_000_000, "ingressBurst": 1_000_000})),
        ),
    ]
}

/// A plugin behind a bridge: `check` makes the interface first.
fn chained(kind: &str, keys: Value) -> Value {
    plugin(kind, with(&keys, json!({"prevResult": "of a bridge"})))
}

fn check(condition: &Condition) {
    let Condition { what, host, plugin, config, is_ready } = condition;
    let title = format!("{plugin}: {what}");
    let world = World::new();
    world.host(["sh", "-ec", HOST]);
    let c1 = world.container("c1");
    let mut config = config.clone();
    if config["prevResult"] == "of a bridge" {
        config["prevResult"] = c1.add("bridge", &addressed("bridge", json!({"name": "first"})));
    }
    world.host(["sh", "-ec", host]);
    let before = world.state();
    let status = world.call(plugin, "STATUS", &config).run();
    before.assert_same(&world.state(), &format!("{title}: STATUS changes nothing"));
    let add = c1.call(plugin, "ADD", &config).run();
    let (said, done) = (status.report(), add.report());
    assert_eq!(status.status == 0, add.status == 0, "{title}\n{said}\n{done}");
    if status.status != 0 {
        status.fails(50, &[]);
    }
    if let Some(is_ready) = is_ready {
        assert_eq!(add.status == 0, *is_ready, "{title}\n{done}");
    }
}

#[test]
fn status_of_ipam_plugins_says_50_exactly_when_an_add_fails() {
    conditions_of_host_local().iter().for_each(check);
}

#[test]
fn status_of_interface_plugins_says_50_exactly_when_an_add_fails() {
    conditions_of_interfaces().iter().for_each(check);
    conditions_without_an_ipam_plugin().iter().for_each(check);
}

#[test]
fn status_of_the_other_plugins_says_50_exactly_when_an_add_fails() {
    conditions_of_the_rest().iter().for_each(check);
    conditions_of_chained_plugins().iter().for_each(check);
}

#[test]
fn status_of_a_wrong_configuration_has_the_code_of_add() {
    let world = World::new();
    let ipam = json!({"type": "static", "addresses": [{"address": "10.1.0.2/24"}, {"address": "fd00::2/64", "gateway": "fd00::1"}]});
    let config = plugin("ptp", json!({"ipam": ipam}));
    let text = "cannot route address 10.1.0.2/24: the IPAM plugin returned no gateway for it";
    world.call("ptp", "STATUS", &config).run().fails(7, &[text]);
    world.container("c1").call("ptp", "ADD", &config).run().fails(7, &[text]);
}

#[test]
fn every_plugin_is_in_a_table() {
    let tables = [
        conditions_of_host_local(),
        conditions_of_interfaces(),
        conditions_of_the_rest(),
        conditions_of_chained_plugins(),
    ]
    .concat();
    for name in crate::world::plugin_names() {
        let has_line = tables.iter().any(|condition| condition.plugin == name);
        assert!(has_line, "{name} has no condition");
    }
}

/// A call in a chain after earlier plugins left something, in a namespace that is gone.
fn late_add(c1: &Container<'_>, plugin: &str, config: &Value) -> u64 {
    c1.call(plugin, "ADD", config).env("CNI_NETNS", "/run/netns/gone").run().error().code
}

/// Code 3 tells a runtime that no DEL is needed.
#[test]
fn code_3_is_never_said_while_something_of_the_attachment_is_there() {
    let world = World::new();
    world.host(["sh", "-ec", HOST]);
    let c1 = world.container("c1");
    let bridge = addressed("bridge", json!({}));
    let result = c1.add("bridge", &bridge);
    let ipam_only = json!({"vrfname": "blue", "master": "up0", "device": "up0", "vlanId": 7});
    for kind in crate::world::plugin_names() {
        let is_ipam = ["host-local", "static", "dhcp"].contains(&kind.as_str());
        if is_ipam {
            continue;
        }
        let keys = with(&ipam_only, json!({"prevResult": result, "ipam": ipam()}));
        assert_eq!(late_add(&c1, &kind, &plugin(&kind, keys)), 999, "{kind}");
    }
    assert!(world.state().has("file /var/lib/cni/networks/net/10.1.0.2"), "this would be lost");
}

#[test]
fn code_3_of_a_delegate_is_not_handed_on() {
    let world = World::new();
    let script = "#!/bin/sh\ncat >/dev/null\necho '{\"cniVersion\": \"1.1.0\", \"code\": 3, \"msg\": \"who?\"}'; exit 1\n";
    world.write("/run/own/my-ipam", script);
    world.host(["chmod", "+x", "/run/own/my-ipam"]);
    let c1 = world.container("c1");
    let config = with(&plugin("bridge", json!({})), json!({"ipam": {"type": "my-ipam"}}));
    for verb in ["ADD", "DEL"] {
        let call = c1.call("bridge", verb, &config).env("CNI_PATH", "/run/own:/run/plugins");
        call.env("PATH", "/usr/bin:/bin").run().fails(999, &["who?"]);
    }
}
