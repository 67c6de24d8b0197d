//! A host that gets its IPv6 address and its default route from router advertisements, as SLAAC gives them.

use serde_json::{Value, json};

use crate::world::{Container, Outcome, PLUGIN_DIR, World, parse};

/// An address beyond the router.
const BEYOND: &str = "2001:db8:9::9";

/// Sends one advertisement: a default route for 30 minutes, and a prefix for addresses.
const ADVERTISE: &str = "import socket, struct, sys
index = socket.if_nametoindex('down0')
router = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
router.bind(('fe80::1', 0, 0, index))
prefix = socket.inet_pton(socket.AF_INET6, '2001:db8:1::')
option = struct.pack('!BBBBIII', 3, 4, 64, 0xc0, 3600, 1800, 0) + prefix
router.sendto(struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, 1800, 0, 0) + option, ('ff02::1', 0, 0, index))";

/// The host with the link `up0`, and its router.
fn host(world: &World) -> Container<'_> {
    let router = world.container("router");
    let netns = router.netns();
    world.host(["ip", "link", "add", "up0", "type", "veth", "peer", "down0", "netns", &netns]);
    let script = format!(
        "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
         ip link set lo up; ip address add {BEYOND}/128 dev lo; ip link set down0 addrgenmode none
         ip link set down0 up; ip address add fe80::1/64 dev down0 nodad
         ip address add 2001:db8:1::1/64 dev down0 nodad"
    );
    router.exec(["sh", "-ec", &script]);
    world.host(["ip", "link", "set", "up0", "up"]);
    router
}

fn advertise(router: &Container<'_>) {
    router.exec(["python3", "-c", ADVERTISE]);
}

fn has_default_route(world: &World) -> bool {
    world.host(["ip", "-6", "route", "show", "default"]).contains("via fe80::1 dev up0")
}

/// Advertises until the host has the route and an address that it can use.
fn advertise_until_online(world: &World, router: &Container<'_>) {
    world.eventually("the host is online", || {
        advertise(router);
        let addresses = world.host(["ip", "-6", "-o", "address", "show", "dev", "up0"]);
        has_default_route(world)
            && addresses.contains("2001:db8:1:")
            && !addresses.contains("tentative")
    });
}

fn is_online(world: &World) {
    world.pinging(BEYOND, None).output_of_success();
}

fn value(world: &World, link: &str, key: &str) -> String {
    world.sysctl(&format!("net/ipv6/conf/{link}/{key}"))
}

fn set(world: &World, link: &str, key: &str, value: &str) {
    world.host(["sh", "-c", &format!("echo {value} >/proc/sys/net/ipv6/conf/{link}/{key}")]);
}

fn network(plugin: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": plugin, "bridge": "br0", "isDefaultGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}})
}

#[test]
fn the_host_stays_online_when_the_first_container_comes() {
    for plugin in ["bridge", "ptp"] {
        let world = World::new();
        let router = host(&world);
        for (link, key, of_link) in
            [("deaf0", "accept_ra", "0"), ("own0", "forwarding", "1"), ("more0", "accept_ra", "1")]
        {
            world.host(["ip", "link", "add", link, "type", "bridge"]);
            set(&world, link, key, of_link);
        }
        advertise_until_online(&world, &router);
        is_online(&world);
        let general = || ["all", "default"].map(|link| value(&world, link, "accept_ra"));
        let before = general();

        let c1 = world.container("c1");
        c1.add(plugin, &network(plugin));
        assert_eq!(value(&world, "all", "forwarding"), "1");
        assert!(has_default_route(&world), "{plugin}");
        is_online(&world);
        let now = ["up0", "more0", "deaf0", "own0"].map(|link| value(&world, link, "accept_ra"));
        assert_eq!((now, general()), (["2", "2", "0", "1"].map(str::to_owned), before));
        let new = world
            .links()
            .into_iter()
            .filter(|link| !["lo", "up0", "more0", "deaf0", "own0"].contains(&link.as_str()));
        for link in new {
            assert_eq!(value(&world, &link, "accept_ra"), "0", "{link}");
        }
        // Later advertisements count.
        world.host(["ip", "-6", "route", "del", "default"]);
        advertise_until_online(&world, &router);
        is_online(&world);
        c1.del(plugin, &network(plugin));
        is_online(&world);
    }
}

/// With forwarding, the kernel would delete the route of a link that is taken for one that forwards already.
#[test]
fn an_add_that_cannot_examine_a_link_does_not_enable_forwarding() {
    let world = World::new();
    let router = host(&world);
    advertise_until_online(&world, &router);
    let c1 = world.container("c1");
    for error in ["EIO", "EACCES", "EMFILE"] {
        let inject = format!("inject=open,openat:error={error}");
        let sysctl = "/proc/sys/net/ipv6/conf/up0/forwarding";
        let strace = ["strace", "-qq", "-o", "/run/trace", "-P", sysctl, "-e", &inject];
        let add = c1.call("bridge", "ADD", &network("bridge")).under(&strace);
        add.run().fails(999, &["cannot read net.ipv6.conf.up0.forwarding"]);
        assert_eq!(value(&world, "all", "forwarding"), "0", "{error}");
        is_online(&world);
    }
}

/// The administrator's value stays when forwarding was on before.
#[test]
fn a_host_that_forwards_already_is_not_changed() {
    let world = World::new();
    let _router = host(&world);
    set(&world, "all", "forwarding", "1");
    world.container("c1").add("bridge", &network("bridge"));
    assert_eq!(value(&world, "up0", "accept_ra"), "1");
}

#[test]
fn reconcile_keeps_the_host_online_too() {
    let world = World::new();
    let router = host(&world);
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [network("bridge")]});
    world.write("/run/net.d/net.conflist", list.to_string());
    world.container("c1");
    cnibox(&world, &["add", "net", "c1"]).success();
    for (link, key, to) in [("all", "forwarding", "0"), ("up0", "accept_ra", "1")] {
        set(&world, link, key, to);
    }
    advertise_until_online(&world, &router);
    let outcome = cnibox(&world, &["reconcile"]);
    assert_eq!(value(&world, "all", "forwarding"), "1", "{}", outcome.report());
    is_online(&world);
}

fn cnibox(world: &World, args: &[&str]) -> Outcome {
    let words = [&["/run/bin/cnibox"], args].concat();
    let call = world.tool(&words, None).env("CNI_PATH", PLUGIN_DIR);
    call.env("NETCONFPATH", "/run/net.d").run()
}

/// The findings of `doctor` about advertisements.
fn findings(world: &World) -> Vec<Value> {
    let document = parse(&cnibox(world, &["doctor", "--json"]).stdout);
    let all = document["findings"].as_array().unwrap().clone().into_iter();
    all.filter(|finding| finding["what"].as_str().unwrap().contains("advertisements")).collect()
}

#[test]
fn doctor_finds_a_host_that_went_offline_and_brings_it_back() {
    let world = World::new();
    let router = host(&world);
    advertise_until_online(&world, &router);
    assert_eq!(findings(&world), [] as [Value; 0]);
    // As an older version, or another program, has done it.
    set(&world, "all", "forwarding", "1");
    assert!(!has_default_route(&world));
    advertise(&router);
    assert!(!has_default_route(&world));
    let found = findings(&world);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0]["kind"], "broken");
    assert_eq!(found[0]["fix"], "sysctl -w net/ipv6/conf/up0/accept_ra=2");

    let dry = cnibox(&world, &["doctor", "--fix", "--dry-run"]);
    assert!(
        dry.stdout.contains("would set net/ipv6/conf/up0/accept_ra to 2\n"),
        "{}",
        dry.report()
    );
    assert_eq!(value(&world, "up0", "accept_ra"), "1");
    let fixed = cnibox(&world, &["doctor", "--fix", "--yes"]);
    assert!(fixed.stdout.contains("set net/ipv6/conf/up0/accept_ra to 2\n"), "{}", fixed.report());
    assert_eq!(value(&world, "up0", "accept_ra"), "2");
    advertise_until_online(&world, &router);
    is_online(&world);
    assert_eq!(findings(&world), [] as [Value; 0]);
}

#[test]
fn doctor_is_silent_about_static_addresses() {
    let world = World::new();
    let _router = host(&world);
    world.host(["ip", "address", "add", "2001:db8:1::2/64", "dev", "up0", "nodad"]);
    world.host(["ip", "route", "add", "default", "via", "fe80::1", "dev", "up0"]);
    set(&world, "all", "forwarding", "1");
    assert_eq!(value(&world, "up0", "accept_ra"), "1");
    is_online(&world);
    assert_eq!(findings(&world), [] as [Value; 0]);
}
