//! A host that saves its ruleset, as `nft list ruleset >/etc/nftables.conf` does, and restores it at boot: what containers of
//! the earlier boot had in it is there again, and they have ended.

use serde_json::{Value, json};

use super::routed;
use crate::parity::reference;
use crate::portmap::{ask, elements, neighbours, serve};
use crate::world::{Container, PLUGIN_DIR, World, with};

/// The host of `neighbours` has these addresses.
const HOST: [&str; 2] = ["192.0.2.1", "fd00:2::1"];

struct Host {
    world: World,
}

impl Host {
    fn new() -> Self {
        let world = World::new();
        world.boot(1);
        Self { world }
    }

    /// All containers of the test end with the boot, and the ruleset is restored.
    fn reboot(&self, containers: &[&Container<'_>]) {
        let saved = self.world.host(["nft", "list", "ruleset"]);
        containers.iter().for_each(|container| container.destroy());
        self.world.eventually("their links are gone", || {
            self.world.host(["ip", "-o", "link", "show", "type", "veth"]).matches("cnibox ").count()
                == 0
        });
        self.world.host(["nft", "flush", "ruleset"]);
        self.world.host(["rm", "-rf", "/run/cnibox"]);
        self.world.boot(2);
        self.world.write("/run/saved", saved);
        self.world.host(["nft", "-f", "/run/saved"]);
    }
}

fn ports(mappings: &Value) -> Value {
    json!({"runtimeConfig": {"portMappings": mappings}})
}

fn portmap(network: &Value, more: Value) -> Value {
    let config = json!({"cniVersion": "1.0.0", "name": network["name"], "type": "portmap"});
    with(&config, more)
}

/// Attaches a container and publishes its ports. Returns the configuration of `portmap` with the result.
fn publish(container: &Container<'_>, network: &Value, config: &Value) -> Value {
    let result = container.add(network["type"].as_str().unwrap(), network);
    let config = with(config, json!({"prevResult": result}));
    container.add("portmap", &config);
    container.check("portmap", &config, &result);
    config
}

/// The elements of `portmap` that name an owner.
fn owned(world: &World, owner: &str) -> Vec<String> {
    let mut all = elements(world);
    all.retain(|line| line.contains(" portmap-") || line.contains("owners-of-portmap-"));
    all.retain(|line| line.ends_with(&format!(", {owner}")));
    all
}

/// The number of rules: a rule that is not recognized after nft restored it would be added again.
fn rules(world: &World) -> usize {
    let ruleset = world.host_json(["nft", "-j", "list", "ruleset"]);
    ruleset["nftables"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|object| object["rule"].is_object())
        .count()
}

fn tcp(host_port: u16) -> Value {
    json!({"hostPort": host_port, "containerPort": 80, "protocol": "tcp"})
}

#[test]
fn a_port_of_the_restored_ruleset_serves_the_next_container() {
    let on = |ip: &str| with(&tcp(8080), json!({"hostIP": ip}));
    let udp = json!({"hostPort": 53, "containerPort": 53, "protocol": "udp"});
    let both = json!([on(HOST[0]), on(HOST[1]), udp]);
    let any = json!([tcp(8080), udp]);
    let condition =
        json!({"conditionsV4": ["-s", "192.0.2.0/24"], "conditionsV6": ["-s", "fd00:2::/64"]});
    for (before, after, more) in [
        (&any, &any, json!({})),
        (&both, &any, json!({})),
        (&any, &both, json!({})),
        (&any, &any, json!({"masqAll": true})),
        (&any, &any, condition),
    ] {
        let host = Host::new();
        let world = &host.world;
        let [outside, _beyond] = neighbours(world);
        let network = routed(1, json!({"ipMasq": true}));
        let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
        publish(&c1, &network, &portmap(&network, with(&ports(before), more.clone())));
        // What another one has beside it.
        publish(&c3, &network, &portmap(&network, ports(&json!([tcp(8081)]))));
        let count = rules(world);
        host.reboot(&[&c1, &c3]);
        assert!(!owned(world, "net1 c1 eth0").is_empty());
        let config = portmap(&network, with(&ports(after), more.clone()));
        publish(&c2, &network, &config);
        assert_eq!(owned(world, "net1 c1 eth0"), [""; 0], "{before} {after} {more}");
        assert_eq!(rules(world), count, "{before} {after} {more}");
        for protocol in ["tcp", "udp"] {
            let (port, own) = if protocol == "tcp" { (8080, 80) } else { (53, 53) };
            serve(&c2, protocol, own);
            for address in HOST {
                let answer = ask(world, Some(&outside.netns()), protocol, address, port);
                assert!(answer.starts_with("c2 "), "{protocol} {address} {more}: {answer}");
            }
        }
        // What is of no use to the new one stays for gc.
        assert!(!owned(world, "net1 c3 eth0").is_empty());
        c2.del("portmap", &config);
        assert_eq!(owned(world, "net1 c2 eth0"), [""; 0]);
    }
}

/// A container keeps its id when podman starts it again after the boot, perhaps in another network.
#[test]
fn a_container_that_starts_again_in_another_network_serves_its_port() {
    let host = Host::new();
    let world = &host.world;
    let [outside, _beyond] = neighbours(world);
    let (one, two) = (routed(1, json!({})), routed(5, json!({})));
    let c1 = world.container("c1");
    publish(&c1, &one, &portmap(&one, ports(&json!([tcp(8080)]))));
    host.reboot(&[&c1]);
    let c1 = world.container("c1");
    publish(&c1, &two, &portmap(&two, ports(&json!([tcp(8080)]))));
    serve(&c1, "tcp", 80);
    for address in HOST {
        let answer = ask(world, Some(&outside.netns()), "tcp", address, 8080);
        assert!(answer.starts_with("c1 "), "{address}: {answer}");
    }
    assert_eq!(owned(world, "net1 c1 eth0"), [""; 0]);
}

/// `reconcile` publishes the ports of a living container over those of one that has ended.
#[test]
fn a_port_that_an_older_ruleset_gives_away_is_restored() {
    let host = Host::new();
    let world = &host.world;
    world.host(["mkdir", "-p", "/run/net.d"]);
    let network = routed(1, json!({}));
    let mut list = json!({"cniVersion": "1.0.0", "name": "net1", "plugins": [network, {"type": "portmap", "capabilities": {"portMappings": true}}]});
    list["plugins"][0].as_object_mut().unwrap().remove("name");
    list["plugins"][0].as_object_mut().unwrap().remove("cniVersion");
    world.write("/run/net.d/net1.conflist", list.to_string());
    let cnibox = |words: &[&str]| {
        world
            .tool(&[&["/run/bin/cnibox"], words].concat(), None)
            .env("NETCONFPATH", "/run/net.d")
            .env("CNI_PATH", PLUGIN_DIR)
            .run()
    };
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    cnibox(&["add", "net1", "c1", "--container-id", "c1", "-p", "8080:80"]).output();
    let saved = world.host(["nft", "list", "ruleset"]);
    c1.destroy();
    cnibox(&["add", "net1", "c2", "--container-id", "c2", "-p", "8080:80"]).output();
    world.write("/run/saved", saved);
    world.host(["nft", "flush", "ruleset"]);
    world.host(["nft", "-f", "/run/saved"]);
    cnibox(&["reconcile"]).output();
    cnibox(&["check", "net1", "c2", "--container-id", "c2"]).silence();
    assert_eq!(owned(world, "net1 c1 eth0"), [""; 0]);
    drop(c2);
}

/// Without its record, the owner of an element may live.
#[test]
fn what_may_live_keeps_its_port_and_the_error_says_what_to_do() {
    let host = Host::new();
    let world = &host.world;
    let network = routed(1, json!({}));
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    let config = portmap(&network, ports(&json!([tcp(8080)])));
    publish(&c1, &network, &config);
    host.reboot(&[&c1]);
    world.host(["sh", "-c", "rm /var/lib/cni/attachments/net1+c1+eth0"]);
    let result = c2.add("ptp", &network);
    let before = world.state_with(&[&c2]);
    let chained = with(&config, json!({"prevResult": result}));
    let refused = c2.call("portmap", "ADD", &chained).run().fails(
        999,
        &[
            "cannot publish host port tcp 8080: it is taken by network net1, container c1, interface eth0",
            "which may have ended: it has no record; cnibox gc --unknown net1/c1/eth0 removes it",
        ],
    );
    drop(refused);
    before.assert_same(&world.state_with(&[&c2]), "after the refused ADD");
    let gc = ["/run/bin/cnibox", "gc", "--unknown", "net1/c1/eth0"];
    let said = world.tool(&gc, None).run().output();
    assert_eq!(
        said,
        "removed eth0 of container c1 from network net1: forced by the operator, although it has no record\n"
    );
    c2.add("portmap", &chained);
    assert_eq!(owned(world, "net1 c1 eth0"), [""; 0]);
    // A living one is not removed, and there is nothing to do about it.
    let result = c3.add("ptp", &network);
    let chained = with(&config, json!({"prevResult": result}));
    let error = c3.call("portmap", "ADD", &chained).run();
    assert!(!error.report().contains("may have ended"), "{}", error.report());
    error.fails(999, &["it is taken by network net1, container c2, interface eth0"]);
    let gc = ["/run/bin/cnibox", "gc", "--unknown", "net1/c2/eth0"];
    let outcome = world.tool(&gc, None).run();
    assert!(outcome.status == 1 && outcome.stderr.contains("it is alive"), "{}", outcome.report());
}

/// The reference publishes the port a second time, behind the rules of the container that has ended.
#[test]
fn the_reference_leads_the_port_to_the_container_that_has_ended() {
    let world = World::with_plugins(&reference());
    let [outside, _beyond] = neighbours(&world);
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let network = with(&routed(1, json!({})), json!({"cniVersion": "1.0.0"}));
    let publish = |container: &Container<'_>| {
        let result = container.add("ptp", &network);
        let config = portmap(&network, ports(&json!([tcp(8080)])));
        let call = container.call("portmap", "ADD", &with(&config, json!({"prevResult": result})));
        call.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").run().success();
    };
    publish(&c1);
    c1.destroy();
    publish(&c2);
    serve(&c2, "tcp", 80);
    let answer = crate::portmap::ask_in_vain(&world, Some(&outside.netns()), "tcp", HOST[0], 8080);
    assert_eq!(answer, "nothing");
}
