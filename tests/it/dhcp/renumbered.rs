//! A server that gives a container another address: published ports, masquerading, the rules of the firewall and the cache
//! entry follow.

use serde_json::{Value, json};

use super::scripted::{Scripted, answer, plan_with, plan6};
use super::{Daemon, LIMIT_S, Site, bridge};
use crate::firewall::firewalld::{has_source, start_firewalld};
use crate::firewall::{drop_forwarded, set_br_netfilter};
use crate::portmap::udp::{ask_again, connections};
use crate::portmap::{ask, serve};
use crate::world::{Call, Container, World, with};

const CACHE: &str = "/var/lib/cni/results/net-c1-eth0";
const LOCK: &str = "/run/cnibox/locks/container-c1";

/// A host between the LAN and `beyond`, which drops forwarded packets and knows no way back to the LAN.
pub(super) struct Router<'w> {
    pub(super) site: Site<'w>,
    pub(super) beyond: Container<'w>,
}

impl<'w> Router<'w> {
    pub(super) fn new(world: &'w World, families: &[&str]) -> Self {
        let site = Site::with_bridge(world);
        let beyond = world.container("beyond");
        site.script(&format!(
            "ip link add wan0 type veth peer name wan netns {}
             ip address add 192.0.2.1/24 dev wan0; ip address add fd00:2::1/64 dev wan0 nodad
             ip link set wan0 up
             ip address add 10.1.0.1/24 dev br0; ip address add 10.2.0.1/16 dev br0
             ip address add fd00:1::1/64 dev br0 nodad
             echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding",
            beyond.netns()
        ));
        beyond.exec([
            "sh",
            "-e",
            "-c",
            "ip link set lo up; ip address add 192.0.2.2/24 dev wan
            ip address add fd00:2::2/64 dev wan nodad; ip link set wan up",
        ]);
        drop_forwarded(world);
        // `firewall` accepts what containers send, and answers to it. Published ports are the administrator's choice.
        for iptables in ["iptables", "ip6tables"] {
            let script = "-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT";
            world.host(["sh", "-c", &format!("{iptables} {script}")]);
        }
        set_br_netfilter(world, "0");
        let router = Self { site, beyond };
        router.configure(&json!({"type": "dhcp", "families": families}));
        router
    }

    /// Writes the configuration of the network.
    pub(super) fn configure(&self, ipam: &Value) {
        let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "bridge", "bridge": "br0", "ipMasq": true, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}]});
        self.site.world.write("/run/net.d/net.conflist", list.to_string());
    }

    pub(super) fn cnibox(&self, args: &[&str]) -> Call<'w> {
        let words = [&["/run/bin/cnibox"], args].concat();
        let call = self.site.world.tool(&words, None);
        call.env("NETCONFPATH", "/run/net.d").env("CNI_PATH", "/run/plugins")
    }

    /// A container with the published port 8080, or another one.
    pub(super) fn attach(&self, name: &str, port: u16) -> Container<'w> {
        let c = self.site.world.container(name);
        let args = json!({"portMappings": [
            {"hostPort": port, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": port, "containerPort": 80, "protocol": "udp"}]});
        let call = self.cnibox(&["add", "net", name, "--container-id", name]);
        call.env("CAP_ARGS", &args.to_string()).run().success();
        serve(&c, "tcp", 80);
        c
    }

    /// Whether the container is reached by its port, reaches others through the host, and CHECK finds everything.
    #[track_caller]
    pub(super) fn works(&self, c: &Container<'_>, port: u16, addresses: [&str; 3]) {
        let [own, host, beyond] = addresses;
        let asked = ask(self.site.world, Some(&self.beyond.netns()), "tcp", host, port);
        assert_eq!(asked, format!("{} {beyond}", c.name));
        c.ping(beyond);
        let check = self.cnibox(&["check", "net", &c.name, "--container-id", &c.name]).run();
        assert_eq!(check.status, 0, "{}", check.report());
        let list = self.cnibox(&["attachments"]).run().output();
        let line = list.lines().find(|line| line.contains(&c.name)).unwrap_or_default();
        assert!(line.contains(&format!(" {own}/")) && line.contains("alive"), "{list}");
    }

    pub(super) fn names(&self, address: &str) -> bool {
        let ruleset = self.site.world.host(["nft", "list", "ruleset"]);
        let is_it = |word: &str| word == address || word.starts_with(&format!("{address}/"));
        ruleset.split([' ', ',', '\n', '\t', '{', '}']).any(is_it)
    }

    /// Waits until everything follows to another address.
    #[track_caller]
    pub(super) fn wait_for_move(&self, daemon: &Daemon<'_>, [old, new]: [&str; 2]) {
        let has_moved = || {
            !self.names(old)
                && self.names(new)
                && self.site.world.read(CACHE).contains(&format!("\"{new}/"))
                && !journal(self.site.world).contains("former")
        };
        let ruleset = || self.site.world.host(["nft", "list", "ruleset"]);
        self.site.world.within_or(LIMIT_S, has_moved, || {
            format!("{new} replaces {old}: {} {}", daemon.log(), ruleset())
        });
    }

    pub(super) fn detach(&self, c: &Container<'_>) {
        self.cnibox(&["del", "net", &c.name, "--container-id", &c.name]).run().silence();
    }

    /// The elements of all sets and maps.
    #[track_caller]
    pub(super) fn assert_clean(&self) {
        let ruleset = self.site.world.host(["nft", "list", "ruleset"]);
        assert!(!ruleset.contains(" comment \"net "), "{ruleset}");
        assert!(!ruleset.contains("chain masquerade-1"), "{ruleset}");
        assert!(!ruleset.contains("chain masquerade-f"), "{ruleset}");
        let kept = "find /var/lib/cni/results /run/cnibox/dhcp -type f ! -name '.*' ! -name lock";
        assert_eq!(self.site.world.host(["sh", "-c", kept]), "");
    }
}

/// The records of all leases.
fn journal(world: &World) -> String {
    world.host(["sh", "-c", "cat /run/cnibox/dhcp/*/*.lease"])
}

const BY_HOST: &str = "0a010001";
pub(super) const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

pub(super) fn via_host(more: Value) -> Value {
    with(&json!({"options": {"3": BY_HOST}}), more)
}

pub(super) fn at([host, beyond]: [&'static str; 2], own: &'static str) -> [&'static str; 3] {
    [own, host, beyond]
}

#[test]
fn everything_follows_to_another_address() {
    let world = World::new();
    let router = Router::new(&world, &["4"]);
    let server = Scripted::start(&router.site.outside, &plan_with(via_host(json!({}))));
    let daemon = Daemon::new(&world);
    let c1 = router.attach("c1", 8080);
    serve(&c1, "udp", 80);
    let ask_by_udp = || ask_again(&world, &router.beyond, V4[0], 8080);
    router.works(&c1, 8080, at(V4, "10.1.0.20"));
    assert_eq!(ask_by_udp(), "c1");
    assert!(connections(&world).contains("10.1.0.20"), "{}", connections(&world));
    server.answer_by(&plan_with(via_host(json!({"yiaddr": "10.1.0.33"}))));
    router.wait_for_move(&daemon, ["10.1.0.20", "10.1.0.33"]);
    let leads_to = |line: &str| line.contains("dport=8080") && line.contains("src=10.1.0.20");
    assert!(!connections(&world).lines().any(leads_to), "{}", connections(&world));
    // The same connection: UDP has no end.
    assert_eq!(ask_by_udp(), "c1");
    router.works(&c1, 8080, at(V4, "10.1.0.33"));
    // The record of the attachment, too.
    let directory = "/var/lib/cni/attachments";
    let claims = "for claim in @*; do echo $claim $(readlink $claim); done";
    let claims = world.host(["sh", "-c", &format!("cd {directory}; {claims}")]);
    assert_eq!(claims, "@10.1.0.33@br0 net+c1+eth0\n");
    let line = "net c1 eth0: moved to 10.1.0.33/24: bridge, portmap, firewall, the cache entry\n";
    assert!(daemon.log().contains(line), "{}", daemon.log());
    // Its server holds the namespace: by the record of before, the kernel's number still tells that it lives.
    world.host(["umount", "/run/netns/c1"]);
    let list = router.cnibox(&["attachments"]).run().output();
    assert!(list.contains(" 10.1.0.33/") && list.contains("alive"), "{list}");
    router.detach(&c1);
    router.assert_clean();
}

/// A container on another link has the address of before.
#[test]
fn what_another_container_has_at_the_address_stays() {
    let world = World::new();
    let router = Router::new(&world, &["4"]);
    let server = Scripted::start(&router.site.outside, &plan_with(via_host(json!({}))));
    let daemon = Daemon::new(&world);
    let c1 = router.attach("c1", 8080);
    let ipam = json!({"type": "static", "addresses": [{"address": "10.1.0.20/24"}]});
    let list = json!({"cniVersion": "1.0.0", "name": "other", "plugins": [
        {"type": "bridge", "bridge": "br1", "ipMasq": true, "ipam": ipam},
        {"type": "portmap", "runtimeConfig": {"portMappings": [
            {"hostPort": 8081, "containerPort": 80, "protocol": "tcp"}]}},
        {"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}]});
    world.write("/run/net.d/other.conflist", list.to_string());
    let _c2 = world.container("c2");
    let call = |verb| router.cnibox(&[verb, "other", "c2", "--container-id", "c2"]).run();
    call("add").success();
    let owners_of = |address: &str| {
        let rules = world.host(["nft", "list", "table", "ip", "cnibox"]);
        let of = rules.split([',', '{', '\n']).filter(|line| line.contains(address));
        let mut owners: Vec<String> =
            of.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect();
        owners.dedup();
        owners
    };
    assert!(owners_of("10.1.0.20").contains(&"net c1 eth0".to_owned()));
    server.answer_by(&plan_with(via_host(json!({"yiaddr": "10.1.0.33"}))));
    let has_moved =
        || world.read(CACHE).contains("10.1.0.33/") && !journal(&world).contains("former");
    world.within_or(LIMIT_S, has_moved, || daemon.log());
    assert_eq!(owners_of("10.1.0.20"), ["other c2 eth0"]);
    assert_eq!(owners_of("10.1.0.33"), ["net c1 eth0"]);
    let check = call("check");
    assert_eq!(check.status, 0, "{}", check.report());
    call("del").silence();
    world.host(["ip", "link", "del", "br1"]);
    router.works(&c1, 8080, at(V4, "10.1.0.33"));
    router.detach(&c1);
    router.assert_clean();
}

/// A container of another network had the next address and has ended. Its bridge is isolated until its GC.
#[test]
fn the_rules_of_a_container_that_has_ended_wait_for_its_gc() {
    let world = World::new();
    let router = Router::new(&world, &["4"]);
    let server = Scripted::start(&router.site.outside, &plan_with(via_host(json!({}))));
    let daemon = Daemon::new(&world);
    let c1 = router.attach("c1", 8080);
    let c2 = world.container("c2");
    let ipam = json!({"type": "static", "addresses": [{"address": "10.1.0.33/24"}]});
    let bridge = json!({"cniVersion": "1.1.0", "name": "other", "type": "bridge", "bridge": "br1",
        "ipMasq": true, "ipam": ipam});
    let result = c2.add("bridge", &bridge);
    let firewall = json!({"cniVersion": "1.1.0", "name": "other", "type": "firewall",
        "ingressPolicy": "same-bridge", "prevResult": result});
    c2.add("firewall", &firewall);
    c2.destroy();
    server.answer_by(&plan_with(via_host(json!({"yiaddr": "10.1.0.33"}))));
    router.wait_for_move(&daemon, ["10.1.0.20", "10.1.0.33"]);
    router.works(&c1, 8080, at(V4, "10.1.0.33"));
    router.detach(&c1);
    for (plugin, config) in [("firewall", firewall), ("bridge", bridge)] {
        let none = with(&config, json!({"cni.dev/valid-attachments": []}));
        world.call(plugin, "GC", &none).run().silence();
    }
    let rules = world.host(["nft", "list", "ruleset"]);
    assert!(!rules.contains("br1") && !rules.contains("10.1.0.33"), "{rules}");
}

#[test]
fn everything_follows_into_another_subnet() {
    let world = World::new();
    let router = Router::new(&world, &["4"]);
    router.configure(&json!({"type": "dhcp", "subnets": ["10.1.0.0/24", "10.2.0.0/16"]}));
    let server = Scripted::start(&router.site.outside, &plan_with(via_host(json!({}))));
    let daemon = Daemon::new(&world);
    let c1 = router.attach("c1", 8080);
    let other = json!({"yiaddr": "10.2.0.33",
        "options": {"1": "ffff0000", "3": "0a020001", "6": "0a020035", "15": "6c616e"}});
    server.answer_by(&plan_with(other));
    router.wait_for_move(&daemon, ["10.1.0.20", "10.2.0.33"]);
    router.works(&c1, 8080, at(V4, "10.2.0.33"));
    // From the new subnet, too, where the container would answer directly.
    router.site.outside.exec(["ip", "address", "add", "10.2.0.254/16", "dev", "sw"]);
    let neighbour = router.site.outside.netns();
    assert_eq!(ask(&world, Some(&neighbour), "tcp", "10.2.0.1", 8080), "c1 10.2.0.1");
    let entry: Value = serde_json::from_str(&world.read(CACHE)).unwrap();
    let result = &entry["result"];
    assert_eq!(result["ips"][0]["gateway"], "10.2.0.1");
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.2.0.1"}]));
    assert_eq!(result["dns"], json!({"nameservers": ["10.2.0.53"], "domain": "lan"}));
    assert!(!router.names("10.1.0.0"), "the chain and the set of the old subnet have no element");
    router.detach(&c1);
    router.assert_clean();
}

#[test]
fn everything_follows_to_another_address_of_ipv6() {
    let world = World::new();
    let router = Router::new(&world, &["6"]);
    let server = Scripted::start6(&router.site.outside, &plan6("fd00:1::20"));
    let daemon = Daemon::new(&world);
    let c1 = router.attach("c1", 8080);
    c1.exec([
        "sh",
        "-e",
        "-c",
        "ip route add fd00:1::/64 dev eth0; ip route add default via fd00:1::1",
    ]);
    let v6 = ["fd00:2::1", "fd00:2::2"];
    router.works(&c1, 8080, at(v6, "fd00:1::20"));
    server.answer_by(&plan6("fd00:1::33"));
    router.wait_for_move(&daemon, ["fd00:1::20", "fd00:1::33"]);
    router.works(&c1, 8080, at(v6, "fd00:1::33"));
    router.detach(&c1);
    router.assert_clean();
}

#[test]
fn everything_follows_after_a_nak() {
    let world = World::new();
    let router = Router::new(&world, &["4"]);
    let server = Scripted::start(&router.site.outside, &plan_with(via_host(json!({}))));
    let daemon = Daemon::new(&world);
    let c1 = router.attach("c1", 8080);
    let offer = answer(2, via_host(json!({"yiaddr": "10.1.0.33"})));
    server.answer_by(&json!({"discover": [offer], "request": [{"type": 6}]}));
    server.wait_for_another("discover");
    server.answer_by(&plan_with(via_host(json!({"yiaddr": "10.1.0.33"}))));
    router.wait_for_move(&daemon, ["10.1.0.20", "10.1.0.33"]);
    router.works(&c1, 8080, at(V4, "10.1.0.33"));
    router.detach(&c1);
    router.assert_clean();
}

/// Like another process of the runtime that is at work for the container: nothing but the interface changes.
fn hold_container(world: &World) -> std::fs::File {
    world.write(LOCK, "");
    let file = std::fs::File::open(world.path(LOCK)).unwrap();
    file.lock().unwrap();
    file
}

#[test]
fn a_daemon_that_is_killed_between_address_and_rules_is_followed_by_one_that_moves_them() {
    let world = World::new();
    let router = Router::new(&world, &["4"]);
    let server = Scripted::start(&router.site.outside, &plan_with(via_host(json!({}))));
    let mut daemon = Daemon::new(&world);
    let c1 = router.attach("c1", 8080);
    let held = hold_container(&world);
    server.answer_by(&plan_with(via_host(json!({"yiaddr": "10.1.0.33"}))));
    world.within_or(
        LIMIT_S,
        || c1.addresses("eth0") == ["10.1.0.33/24"],
        || format!("the interface has the address: {}", daemon.log()),
    );
    assert!(router.names("10.1.0.20"), "the rules did not wait for the lock");
    daemon.kill();
    drop(held);
    daemon.start();
    router.wait_for_move(&daemon, ["10.1.0.20", "10.1.0.33"]);
    router.works(&c1, 8080, at(V4, "10.1.0.33"));
    router.detach(&c1);
    router.assert_clean();
}

#[test]
fn rules_that_cannot_be_moved_now_are_moved_later() {
    let world = World::new();
    let router = Router::new(&world, &["4"]);
    let server = Scripted::start(&router.site.outside, &plan_with(via_host(json!({}))));
    let daemon = Daemon::new(&world);
    let c1 = router.attach("c1", 8080);
    let held = hold_container(&world);
    server.answer_by(&plan_with(via_host(json!({"yiaddr": "10.1.0.33"}))));
    let says_why = || daemon.log().contains(&format!("cannot lock {LOCK}"));
    world.within_or(LIMIT_S, says_why, || format!("the log has the reason: {}", daemon.log()));
    drop(held);
    router.wait_for_move(&daemon, ["10.1.0.20", "10.1.0.33"]);
    router.works(&c1, 8080, at(V4, "10.1.0.33"));
}

#[test]
fn the_cache_entry_of_another_attachment_stays() {
    let world = World::new();
    let router = Router::new(&world, &["4"]);
    let server = Scripted::start(&router.site.outside, &plan_with(via_host(json!({}))));
    let daemon = Daemon::new(&world);
    router.attach("c1", 8080);
    // The network `net-c1` and the container `eth0`, for example, have the same file.
    let foreign = world.read(CACHE).replace("\"containerId\":\"c1\"", "\"containerId\":\"c2\"");
    world.write(CACHE, &foreign);
    server.answer_by(&plan_with(via_host(json!({"yiaddr": "10.1.0.33"}))));
    let says_why = || daemon.log().contains("it belongs to eth0 of container c2");
    world.within_or(LIMIT_S, says_why, || format!("the log has the reason: {}", daemon.log()));
    assert_eq!(world.read(CACHE), foreign);
    assert!(!router.names("10.1.0.33"), "the plugins of the attachment are unknown");
}

#[test]
fn the_source_of_firewalld_follows() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let _running = start_firewalld(&world);
    set_br_netfilter(&world, "0");
    let server = Scripted::start(&site.outside, &plan_with(json!({})));
    let daemon = Daemon::new(&world);
    let list = json!({"cniVersion": "1.0.0", "name": "net",
        "plugins": [bridge(), {"type": "firewall", "backend": "firewalld"}]});
    world.write("/run/net.d/net.conflist", list.to_string());
    let _c1 = world.container("c1");
    let cnibox = |verb| {
        let words = ["/run/bin/cnibox", verb, "net", "c1", "--container-id", "c1"];
        let call = world.tool(&words, None).env("NETCONFPATH", "/run/net.d");
        call.env("CNI_PATH", "/run/plugins").run()
    };
    cnibox("add").success();
    assert!(has_source(&world, "trusted", "10.1.0.20/32"));
    server.answer_by(&plan_with(json!({"yiaddr": "10.1.0.33"})));
    let has_moved = || {
        !has_source(&world, "trusted", "10.1.0.20/32")
            && has_source(&world, "trusted", "10.1.0.33/32")
            && !journal(&world).contains("former")
    };
    world.within_or(LIMIT_S, has_moved, || format!("the source moves: {}", daemon.log()));
    cnibox("del").silence();
    assert!(!has_source(&world, "trusted", "10.1.0.33/32"), "DEL finds the record");
}

/// `sbr` with these keys, in a container that gets another address in another subnet.
#[track_caller]
fn source_routing_follows(keys: Value) {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &plan_with(json!({})));
    site.outside.exec(["ip", "address", "add", "10.2.0.254/16", "dev", "sw"]);
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let subnets = json!({"ipam": {"type": "dhcp", "subnets": ["10.1.0.0/24", "10.2.0.0/16"]}});
    let result = c1.add("bridge", &with(&bridge(), subnets));
    let sbr = with(&json!({"cniVersion": "1.0.0", "name": "net", "type": "sbr"}), keys);
    let result = c1.add("sbr", &with(&sbr, json!({"prevResult": result})));
    c1.check("sbr", &sbr, &result);
    let main = || c1.exec(["ip", "route", "show", "table", "main"]);
    let before = main();
    let other = json!({"yiaddr": "10.2.0.33", "options": {"1": "ffff0000", "3": "0a0200fe"}});
    server.answer_by(&plan_with(other));
    let has_moved =
        || c1.addresses("eth0") == ["10.2.0.33/16"] && !journal(&world).contains("former");
    world.within_or(LIMIT_S, has_moved, || format!("the address moves: {}", daemon.log()));
    let rules = c1.exec(["ip", "rule"]);
    assert!(rules.contains("from 10.2.0.33 ") && !rules.contains("10.1.0.20"), "{rules}");
    let table = c1.exec(["ip", "route", "show", "table", "100"]);
    assert!(table.contains("default via 10.2.0.254 dev eth0"), "{table}");
    let expected = before.replace("10.1.0.0/24", "10.2.0.0/16").replace("10.1.0.20", "10.2.0.33");
    assert_eq!(main(), expected);
    let new = json!({"ips": [{"address": "10.2.0.33/16", "gateway": "10.2.0.254", "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.2.0.254"}]});
    let mut result = result;
    result["ips"] = new["ips"].clone();
    result["routes"] = new["routes"].clone();
    c1.check("sbr", &sbr, &result);
    // A program that binds no address has no route: `sbr` leaves none in the main table.
    c1.pinging("10.2.0.254").args(&["-I", "10.2.0.33"]).output_of_success();
}

#[test]
fn the_rules_and_tables_of_sbr_follow() {
    source_routing_follows(json!({}));
    source_routing_follows(json!({"addSourceHints": true}));
}
