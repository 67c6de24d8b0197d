//! `dnsname` with aardvark-dns: names are asked for with the resolvers of glibc and busybox, in containers.

mod engine;
mod input;

use serde_json::{Value, json};

use crate::world::{Call, Container, Running, World, with};

/// The process id of the engine.
const ID: &str = "/run/cnibox/names/aardvark/aardvark.pid";

/// A network of a bridge with a gateway of both families.
fn network(name: &str, number: u8) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": name, "type": "bridge", "bridge": format!("cni{number}"), "isGateway": true,
        "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": [
            [{"subnet": format!("10.{number}.0.0/24")}], [{"subnet": format!("fd00:{number}::/64")}],
        ]},
    })
}

fn dnsname(network: &Value, keys: Value) -> Value {
    let own = json!({"cniVersion": "1.1.0", "name": network["name"], "type": "dnsname"});
    with(&own, keys)
}

/// A container with an interface in a network, and the configuration of `dnsname` for it.
fn prepare<'w>(world: &'w World, name: &str, network: &Value) -> (Container<'w>, Value) {
    let container = world.container(name);
    let before = container.add("bridge", network);
    (container, with(&dnsname(network, json!({})), json!({"prevResult": before})))
}

/// One attachment of a container.
struct Attached<'w> {
    container: Container<'w>,
    network: Value,
    ifname: String,
    config: Value,
    result: Value,
}

/// Attaches a container to a network, with its name.
fn attach<'w>(world: &'w World, name: &str, network: &Value, keys: Value) -> Attached<'w> {
    attach_as(world.container(name), "eth0", name, network, keys)
}

fn attach_as<'w>(
    container: Container<'w>,
    ifname: &str,
    name: &str,
    network: &Value,
    keys: Value,
) -> Attached<'w> {
    let before = container.call("bridge", "ADD", network).env("CNI_IFNAME", ifname).run().success();
    let config = with(&dnsname(network, keys), json!({"prevResult": before}));
    let mut attached = Attached {
        container,
        network: network.clone(),
        ifname: ifname.into(),
        config,
        result: Value::Null,
    };
    attached.result = attached.call("ADD").env("CNI_ARGS", &args(name)).run().success();
    attached
}

fn args(name: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAME={name}")
}

impl<'w> Attached<'w> {
    fn call(&self, verb: &str) -> Call<'w> {
        self.container.call("dnsname", verb, &self.config).env("CNI_IFNAME", &self.ifname)
    }

    fn check(&self, name: &str) -> Call<'w> {
        let config = with(&self.config, json!({"prevResult": self.result}));
        let call = self.container.call("dnsname", "CHECK", &config);
        call.env("CNI_IFNAME", &self.ifname).env("CNI_ARGS", &args(name))
    }

    /// DEL of both plugins, in their order.
    fn detach(&self) {
        self.call("DEL").run().silence();
        let del = self.container.call("bridge", "DEL", &self.network);
        del.env("CNI_IFNAME", &self.ifname).run().silence();
    }

    fn server(&self) -> &str {
        self.result["dns"]["nameservers"][0].as_str().unwrap()
    }

    /// The addresses of a name, sorted, by the resolver of glibc with the DNS settings of the result.
    fn asks(&self, name: &str) -> Vec<String> {
        self.asks_by(&format!("getent ahosts {name} | cut -d ' ' -f 1"), &[&self.result])
    }

    /// The lines of a command, sorted, with the DNS settings of several results.
    fn asks_by(&self, command: &str, results: &[&Value]) -> Vec<String> {
        let words = |key: &str| {
            let all = results.iter().flat_map(|result| result["dns"][key].as_array().unwrap());
            all.map(|word| word.as_str().unwrap()).collect::<Vec<_>>()
        };
        let servers: String =
            words("nameservers").iter().map(|server| format!("nameserver {server}\n")).collect();
        let script = format!(
            "printf '{servers}search {}\noptions timeout:2 attempts:2\n' >/run/resolv
            mount --bind /run/resolv /etc/resolv.conf
            printf 'hosts: dns\n' >/run/nsswitch; mount --bind /run/nsswitch /etc/nsswitch.conf
            {command} | sort -u",
            words("search").join(" ")
        );
        let netns = self.container.netns();
        let words =
            ["unshare", "--mount", "nsenter", &*format!("--net={netns}"), "sh", "-c", &script];
        let output = self.container.world.tool(&words, None).output_of_success();
        output.lines().map(str::to_owned).collect()
    }

    fn addresses(&self) -> Vec<String> {
        let ips = self.result["ips"].as_array().unwrap().iter();
        let address =
            |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        let mut all: Vec<String> = ips.map(address).collect();
        all.sort();
        all
    }
}

fn engine(world: &World) -> String {
    world.read(ID).trim().to_owned()
}

/// Kills the engine, and waits for its end.
fn kill(world: &World) {
    let id = engine(world);
    world.host(["kill", "-9", &id]);
    let arguments = format!("cat /proc/{id}/cmdline 2>/dev/null || true");
    world.eventually("the engine is dead", || world.host(["sh", "-c", &arguments]).is_empty());
}

/// The processes of the engine, and the files of names.
fn leftovers(world: &World) -> String {
    world.host([
        "sh",
        "-c",
        "pgrep -x aardvark-dns; find /run/cnibox/names -mindepth 1 2>/dev/null || true",
    ])
}

/// A program that has port 53 of an address.
fn occupy(world: &World, address: &str) -> Running {
    let listen = format!("UDP4-RECVFROM:53,bind={address},fork");
    let running = world.tool(&["socat", &listen, "EXEC:cat"], None).start();
    world.eventually("the port is taken", || {
        world.host(["ss", "-Hlnu"]).contains(&format!("{address}:53 "))
    });
    running
}

#[test]
fn containers_find_each_other_by_name_alias_short_id_and_domain() {
    let world = World::new();
    let net = network("net", 1);
    let aliases =
        json!({"runtimeConfig": {"aliases": {"net": ["www", "Data.Base"], "other": ["else"]}}});
    let web = attach(&world, "web", &net, aliases);
    let db = attach(&world, "a-container-with-a-long-id", &net, json!({}));
    assert_eq!(
        web.result["dns"],
        json!({"nameservers": ["10.1.0.1", "fd00:1::1"], "search": ["dns.podman"]})
    );
    for name in ["web", "WEB", "www", "data.base", "web.dns.podman", "web.dns.podman."] {
        assert_eq!(db.asks(name), web.addresses(), "{name}");
        assert_eq!(web.asks(name), web.addresses(), "{name}, itself");
    }
    assert_eq!(web.asks("a-container-"), db.addresses(), "the first 12 characters of the id");
    assert_eq!(web.asks("else"), [""; 0], "an alias in another network");
    // busybox has another resolver, and PTR.
    let asked = db.container.exec(["busybox", "nslookup", "www", "fd00:1::1"]);
    assert!(web.addresses().iter().all(|address| asked.contains(address)), "{asked}");
    let asked = db.container.exec(["busybox", "nslookup", &web.addresses()[0], db.server()]);
    assert!(asked.contains("name = web"), "{asked}");
    db.container.ping(&web.asks("www")[0]);
    for attached in [web, db] {
        attached.detach();
    }
    assert_eq!(leftovers(&world), "");
}

#[test]
fn a_container_in_two_networks_finds_the_names_of_both_by_either_server() {
    let world = World::new();
    let (one, two) = (network("one", 1), network("two", 2));
    let both = attach(&world, "both", &one, json!({}));
    let second = attach_as(
        Container { world: &world, name: "both".into() },
        "eth1",
        "both",
        &two,
        json!({}),
    );
    let first = attach(&world, "first", &one, json!({}));
    let last = attach(&world, "last", &two, json!({}));
    for asking in [&both, &second] {
        assert_eq!(asking.asks("first"), first.addresses());
        assert_eq!(asking.asks("last"), last.addresses());
    }
    assert_eq!(first.asks("last"), [""; 0], "it is in the other network only");
    assert_eq!(last.asks("both"), second.addresses());
    // The DEL of one interface leaves the names of the other one.
    second.detach();
    assert_eq!(last.asks("both"), [""; 0]);
    assert_eq!(first.asks("both"), both.addresses());
    [first, last, both].iter().for_each(Attached::detach);
    assert_eq!(leftovers(&world), "");
}

/// musl asks all servers at once, and takes the first answer, also one that there is no such name.
#[test]
fn a_program_of_musl_in_two_networks_finds_the_names_of_both() {
    const RESOLVER: &str = r"
        #include <netdb.h>
        #include <stdio.h>
        int main(int count, char **words) {
            struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
            if (getaddrinfo(words[1], NULL, &hints, &found)) return 1;
            for (; found; found = found->ai_next) {
                char text[64];
                getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
                puts(text);
            }
        }";
    let world = World::new();
    world.write("/run/resolver.c", RESOLVER);
    world.host(["musl-gcc", "-static", "-o", "/run/resolver", "/run/resolver.c"]);
    let (net, other) = (network("net", 1), network("other", 2));
    let web = attach(&world, "web", &net, json!({}));
    let db = attach(&world, "db", &other, json!({}));
    let both = attach(&world, "both", &net, json!({}));
    let second = attach_as(
        Container { world: &world, name: "both".into() },
        "eth1",
        "both",
        &other,
        json!({}),
    );
    for (name, found) in [("web", &web), ("db", &db), ("db.dns.podman", &db)] {
        for _ in 0..5 {
            let asked =
                both.asks_by(&format!("/run/resolver {name}"), &[&both.result, &second.result]);
            assert_eq!(asked, found.addresses(), "{name}");
        }
    }
    assert_eq!(web.asks_by("/run/resolver db", &[&web.result]), [""; 0]);
}

#[test]
fn two_containers_with_one_name_are_both_found_and_each_takes_only_its_own_along() {
    let world = World::new();
    let net = network("net", 1);
    let (one, other) = (world.container("c1"), world.container("c2"));
    let one = attach_as(one, "eth0", "web", &net, json!({}));
    let other = attach_as(other, "eth0", "web", &net, json!({}));
    let mut all = [one.addresses(), other.addresses()].concat();
    all.sort();
    assert_eq!(one.asks("web"), all);
    one.detach();
    assert_eq!(other.asks("web"), other.addresses());
    let gc = with(
        &other.config,
        json!({"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]}),
    );
    world.call("dnsname", "GC", &gc).run().silence();
    assert_eq!(other.asks("web"), other.addresses());
    let gc = with(&gc, json!({"cni.dev/valid-attachments": []}));
    world.call("dnsname", "GC", &gc).run().silence();
    assert_eq!(leftovers(&world), "");
}

#[test]
fn a_domain_of_a_network_is_searched_and_answered() {
    let world = World::new();
    let net = network("net", 1);
    let web = attach(&world, "web", &net, json!({"domainName": "shop.example"}));
    let db = attach(&world, "db", &net, json!({"domainName": "shop.example"}));
    assert_eq!(web.result["dns"]["search"], json!(["shop.example"]));
    for name in ["db", "db.shop.example", "db.shop.example."] {
        assert_eq!(web.asks(name), db.addresses(), "{name}");
    }
    db.check("db").run().silence();
    let wrong = dnsname(&net, json!({"domainName": "a b", "prevResult": web.config["prevResult"]}));
    web.container
        .call("dnsname", "ADD", &wrong)
        .run()
        .fails(7, &["domainName: \"a b\" is no domain"]);
}

#[test]
fn names_that_would_forge_entries_are_left_out() {
    let world = World::new();
    let net = network("net", 1);
    let aliases = json!(["a b", "x,y", "new\nline 10.1.0.9  evil", "", "..", "good", "good"]);
    let web = attach(&world, "web", &net, json!({"runtimeConfig": {"aliases": {"net": aliases}}}));
    let again = web.call("ADD").env("CNI_ARGS", &args("we b")).run();
    assert_eq!(
        again
            .stderr
            .lines()
            .filter(|line| line.ends_with("is no name of a host: it is left out"))
            .count(),
        5
    );
    again.success();
    let rendered = world.read("/run/cnibox/names/aardvark/n-net");
    assert_eq!(
        rendered, "10.1.0.1,fd00:1::1\nweb 10.1.0.2 fd00:1::2 good,web\n",
        "the last name is the beginning of the id"
    );
}

#[test]
fn other_names_are_asked_of_the_servers_of_the_network_unless_it_is_internal() {
    let world = World::new();
    let _upstream = world.dnsmasq("127.0.0.9", &["--host-record=far.example,192.0.2.7"]);
    world.eventually("dnsmasq waits", || world.host(["ss", "-Hlnu"]).contains("127.0.0.9:53 "));
    let with_dns = |name, number| {
        with(
            &network(name, number),
            json!({"dns": {"nameservers": ["127.0.0.9"], "search": ["far"]}}),
        )
    };
    let open = attach(&world, "open", &with_dns("net", 1), json!({}));
    assert_eq!(
        open.result["dns"],
        json!({"nameservers": ["10.1.0.1", "fd00:1::1"], "search": ["dns.podman", "far"]})
    );
    assert_eq!(open.asks("far.example"), ["192.0.2.7"]);
    let closed = attach(&world, "closed", &with_dns("inner", 2), json!({"internal": true}));
    let other = attach(&world, "other", &with_dns("inner", 2), json!({"internal": true}));
    assert_eq!(closed.asks("far.example"), [""; 0]);
    assert_eq!(closed.asks("other"), other.addresses());
    open.check("open").run().silence();
    closed.check("closed").run().silence();
}

#[test]
fn a_network_without_a_gateway_on_the_host_is_refused() {
    let world = World::new();
    let net = with(&network("net", 1), json!({"isGateway": false, "isDefaultGateway": false}));
    let (c1, config) = prepare(&world, "c1", &net);
    c1.call("dnsname", "ADD", &config)
        .run()
        .fails(7, &["cannot serve names in network net", "isGateway of bridge"]);
    assert_eq!(leftovers(&world), "");
}

#[test]
fn a_pair_without_a_bridge_has_names() {
    let world = World::new();
    let net = json!({"cniVersion": "1.1.0", "name": "net", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}});
    let attach = |name: &str| {
        let container = world.container(name);
        let before = container.add("ptp", &net);
        let config = with(&dnsname(&net, json!({})), json!({"prevResult": before}));
        let add = container.call("dnsname", "ADD", &config).env("CNI_ARGS", &args(name));
        let result = add.run().success();
        Attached { container, network: net.clone(), ifname: "eth0".into(), config, result }
    };
    let (web, db) = (attach("web"), attach("db"));
    assert_eq!(db.asks("web"), web.addresses());
    assert_eq!(web.asks("db"), db.addresses());
    web.call("DEL").run().silence();
    web.container.del("ptp", &net);
    assert_eq!(db.asks("db"), db.addresses(), "the engine serves on at the other pair's end");
}

#[test]
fn a_repeated_add_replaces_the_names_and_a_failed_one_leaves_them() {
    let world = World::new();
    let net = network("net", 1);
    let web = attach(&world, "web", &net, json!({}));
    let add = |name: &str, keys: Value| {
        let config = with(&web.config, keys);
        web.container.call("dnsname", "ADD", &config).env("CNI_ARGS", &args(name)).run()
    };
    add("shop", json!({})).success();
    assert_eq!(web.asks("shop"), web.addresses());
    // `web` is also the beginning of the id.
    web.check("shop").run().silence();
    web.check("web").run().fails(999, &["the names of container web are missing"]);
    // The second gateway is the address of a stranger.
    world.host(["sh", "-ec", "ip address add 10.1.0.77/24 dev cni1"]);
    let _stranger = occupy(&world, "10.1.0.77");
    let mut moved = web.config["prevResult"].clone();
    moved["ips"][0]["gateway"] = json!("10.1.0.77");
    add("other", json!({"prevResult": moved}))
        .fails(999, &["cannot serve udp port 53 of 10.1.0.77"]);
    assert_eq!(web.asks("shop"), web.addresses());
    assert_eq!(web.asks("other"), [""; 0]);
}

/// A debug build makes an operation fail.
mod faults {
    use super::*;

    #[test]
    fn a_repeated_add_that_fails_leaves_the_names() {
        let world = World::new();
        let net = network("net", 1);
        let web = attach_as(world.container("c1"), "eth0", "web", &net, json!({}));
        let mut failures = 0;
        for number in 1..=12 {
            let again = web.call("ADD").env("CNI_ARGS", &args("other"));
            let outcome = again.env("CNIBOX_FAIL_FILE", &number.to_string()).run();
            let expected = if outcome.status == 0 { "other" } else { "web" };
            failures += u32::from(outcome.status != 0);
            assert_eq!(web.asks(expected), web.addresses(), "{number}: {}", outcome.report());
            web.call("ADD").env("CNI_ARGS", &args("web")).run().success();
        }
        assert!(failures > 5, "{failures}");
    }
}
