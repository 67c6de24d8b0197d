//! The driver of netavark: JSON in, JSON out, as podman 5.4 and 5.8 write and read it.

mod only_podman;
mod request;
mod unknown;

use serde_json::{Value, json};

use super::{Host, network};
use crate::world::connection::{Connection, echo};
use crate::world::{Container, Outcome, all_at_once, executable, parse, runs_with, with};

const ID: &str = "407c0dffaae17890a81501a93e6971e3649210a36492b8ff7b2e4916c7b4668e";

/// What podman writes for `podman network create --driver cnibox NAME`.
pub(super) fn object(name: &str) -> Value {
    json!({
        "name": name, "id": ID, "driver": "cnibox", "created": "0001-01-01T00:00:00Z", "ipv6_enabled": false,
        "internal": false, "dns_enabled": true,
    })
}

pub(super) fn with_options(name: &str, options: Value) -> Value {
    with(&object(name), json!({"options": options}))
}

impl Host {
    pub(super) fn driver(&self, args: &[&str], input: &Value) -> Outcome {
        self.cnibox(args).env("HOME", "/run/home").stdin(input.to_string()).run()
    }

    /// The object that podman keeps. netavark writes `null` where podman wrote nothing.
    pub(super) fn created(&self, object: &Value) -> Value {
        parse(&self.driver(&["create"], object).output())
    }

    fn refusal(&self, object: &Value) -> String {
        let outcome = self.driver(&["create"], object);
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        error_of(&outcome)
    }

    pub(super) fn set_up(&self, container: &Container<'_>, request: &Value) -> Value {
        parse(&self.driver(&["setup", &container.netns()], request).output())
    }

    pub(super) fn tear_down(&self, netns: &str, request: &Value) {
        self.driver(&["teardown", netns], request).silence();
    }
}

fn error_of(outcome: &Outcome) -> String {
    parse(&outcome.stdout)["error"].as_str().expect("there is an error").to_owned()
}

/// The request for a container of this network, on eth0.
pub(super) fn request(id: &str, network: &Value) -> Value {
    let null = json!({
        "network_interface": null, "options": null, "ipam_options": null, "subnets": null, "routes": null,
        "network_dns_servers": null,
    });
    json!({
        "container_id": id, "container_name": id, "port_mappings": null, "network": with(&null, network.clone()),
        "network_options": {
            "aliases": ["alias"], "interface_name": "eth0", "static_ips": null, "static_mac": null, "options": null,
        },
    })
}

pub(super) fn publishing(request: &Value, mappings: Value) -> Value {
    with(request, json!({"port_mappings": mappings}))
}

pub(super) fn asking(request: &Value, options: Value) -> Value {
    with(request, json!({"network_options": with(&request["network_options"], options)}))
}

pub(super) fn address_of(answer: &Value, index: usize) -> String {
    let net = answer["interfaces"]["eth0"]["subnets"][index]["ipnet"]
        .as_str()
        .expect("it has an address");
    net.split('/').next().unwrap_or_default().to_owned()
}

#[test]
fn info_has_the_versions() {
    let host = Host::new();
    let info = parse(&host.cnibox(&["info"]).run().output());
    assert_eq!(info["api_version"], "1.0.0");
    assert!(info["version"].as_str().is_some_and(|version| !version.is_empty()), "{info}");
}

#[test]
fn a_network_without_options_is_a_bridge_with_a_free_subnet() {
    let host = Host::new();
    let before = host.state();
    let created = host.created(&object("web"));
    assert_eq!(created["subnets"], json!([{"subnet": "10.89.0.0/24", "gateway": "10.89.0.1"}]));
    assert_eq!(created["network_interface"], "cnb407c0dffaae1");
    assert_eq!(created["ipam_options"], json!({"driver": "cnibox"}));
    assert_eq!(created["dns_enabled"], false);
    for key in ["name", "id", "driver", "created"] {
        assert_eq!(created[key], object("web")[key]);
    }
    assert_eq!(host.created(&created), created, "it is a fixed point");
    // Nothing would remove what `create` wrote.
    assert_eq!(host.state(), before);

    let dual = host.created(&with(&object("web"), json!({"ipv6_enabled": true})));
    assert_eq!(
        dual["subnets"][1],
        json!({"subnet": "fd7c:dff:aae1:7890::/64", "gateway": "fd7c:dff:aae1:7890::1"})
    );

    // Networks of podman that have no interface yet.
    let home = "/run/home/.local/share/containers/storage/networks";
    host.world.host(["mkdir", "-p", home]);
    host.world.write(&format!("{home}/web.json"), created.to_string());
    let other = host.created(&with(&object("other"), json!({"id": "1".repeat(64)})));
    assert_eq!(other["subnets"][0]["subnet"], "10.89.1.0/24");
}

#[test]
fn flags_of_podman_are_kept() {
    let host = Host::new();
    let subnets = json!([
        {"subnet": "10.50.0.0/24", "gateway": "10.50.0.9", "lease_range": {"start_ip": "10.50.0.65", "end_ip": "10.50.0.127"}},
        {"subnet": "fd50::/64"},
    ]);
    let flags = json!({
        "subnets": subnets, "network_interface": "cni9", "internal": true, "network_dns_servers": ["9.9.9.9", "fd00::53"],
        "labels": {"l": "1"}, "options": {"mtu": "1400"}, "routes": [{"destination": "10.99.0.0/24", "gateway": "10.50.0.7", "metric": 7}],
    });
    let created = host.created(&with(&object("full"), flags.clone()));
    assert_eq!(created["subnets"][0], subnets[0]);
    assert_eq!(created["subnets"][1], json!({"subnet": "fd50::/64", "gateway": "fd50::1"}));
    assert_eq!(created["network_interface"], "cni9");
    assert_eq!(created["labels"], flags["labels"]);
    // podman refuses servers of a network without its own DNS.
    assert_eq!(created["network_dns_servers"], Value::Null);
    assert_eq!(created["options"], json!({"mtu": "1400", "dns": "9.9.9.9,fd00::53"}));

    let c1 = host.world.container("c1");
    let answer = host.set_up(&c1, &request("c1", &created));
    assert_eq!(answer["dns_server_ips"], json!(["9.9.9.9", "fd00::53"]));
    let subnets = &answer["interfaces"]["eth0"]["subnets"];
    assert_eq!(subnets[0], json!({"ipnet": "10.50.0.65/24", "gateway": "10.50.0.9"}));
    assert_eq!(subnets[1], json!({"ipnet": "fd50::2/64", "gateway": "fd50::1"}));
    let routes = c1.exec(["ip", "route"]);
    assert!(!routes.contains("default"), "{routes}");
    assert!(routes.contains("10.99.0.0/24 via 10.50.0.7 dev eth0 metric 7"), "{routes}");
    assert!(c1.exec(["ip", "link", "show", "eth0"]).contains("mtu 1400"));
    host.world.host(["ip", "link", "show", "cni9"]);
}

#[test]
fn addresses_can_be_those_of_a_dhcp_server_or_nobodys() {
    let host = Host::new();
    for (options, driver, word) in [
        (json!({"type": "macvlan", "parent": "lan"}), None, "dhcp"),
        (json!({"type": "bridge"}), Some("dhcp"), "dhcp"),
        (json!({"type": "ipvlan", "parent": "lan"}), Some("none"), "none"),
        (json!({"type": "bridge"}), Some("none"), "none"),
    ] {
        let asked = driver.map_or(Value::Null, |driver| json!({"driver": driver}));
        let object = with(&with_options("web", options), json!({"ipam_options": asked}));
        let created = host.created(&object);
        assert_eq!(created["ipam_options"], json!({"driver": word}), "{object}");
        assert_eq!(created["subnets"], Value::Null, "{object}");
        assert_eq!(host.created(&created), created, "it is a fixed point");
    }
}

#[test]
fn what_cannot_be_honoured_is_refused_with_its_reason() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.world.host(["mkdir", "-p", "/run/home/.local/share/containers/storage/networks"]);
    let known = with(
        &object("known"),
        json!({"id": "1", "network_interface": "cni9", "subnets": [{"subnet": "10.77.7.0/24"}]}),
    );
    let file = "/run/home/.local/share/containers/storage/networks/known.json";
    host.world.write(file, known.to_string());
    for (object, reason) in [
        (
            with_options("a", json!({"nonsense": "1"})),
            "option nonsense=1: unknown: known are network, type",
        ),
        (
            with_options("a", json!({"type": "tun"})),
            "option type=tun: not one of bridge, veth, ptp",
        ),
        (
            with_options("a", json!({"type": "ipvlan", "isolate": "true"})),
            "option isolate=true: type ipvlan does not have it",
        ),
        (with_options("a", json!({"mtu": "99999"})), "99999"),
        (with_options("a", json!({"vlan": "9999"})), "9999"),
        (with_options("a", json!({"dns": "here"})), "option dns=here: not an IP address"),
        (
            with(
                &with_options("a", json!({"dns": "9.9.9.9"})),
                json!({"network_dns_servers": ["9.9.9.9"]}),
            ),
            "--dns and the option dns exclude each other",
        ),
        (
            with_options("a", json!({"bridge.bridge": "br0"})),
            "option bridge.bridge=br0: podman's other options say that",
        ),
        (
            with_options("a", json!({"isolate": "true", "plugins": "portmap"})),
            "option isolate: it needs the plugin firewall",
        ),
        (
            with(
                &with_options("a", json!({"type": "macvlan", "parent": "x"})),
                json!({"network_interface": "y"}),
            ),
            "--interface-name and the option parent exclude each other",
        ),
        (
            with(
                &with_options("a", json!({"type": "macvlan", "parent": "x"})),
                json!({"internal": true}),
            ),
            "--internal: a DHCP server decides that",
        ),
        (
            with(
                &object("a"),
                json!({"ipam_options": {"driver": "none"}, "subnets": [{"subnet": "10.5.0.0/24"}]}),
            ),
            "--subnet: there are no addresses",
        ),
        (
            with(
                &with_options("a", json!({"type": "macvlan", "parent": "x"})),
                json!({"ipam_options": {"driver": "host-local"}}),
            ),
            "needs a subnet",
        ),
        (
            with(&object("a"), json!({"network_interface": "cni9"})),
            "network known has the bridge cni9",
        ),
        (
            with_options("a", json!({"network": "net", "dns": "here"})),
            "option dns=here: not an IP address",
        ),
        (with_options("a", json!({"plugins": "nothing"})), "there is no plugin \"nothing\""),
        (with_options("a", json!({"portmap.nonsense": "1"})), "portmap has no key nonsense"),
        (with_options("a", json!({"bridge.isGateway": "perhaps"})), "isGateway"),
        (
            with(
                &object("a"),
                json!({"subnets": [{"subnet": "10.5.0.0/24", "gateway": "10.6.0.1"}]}),
            ),
            "--gateway 10.6.0.1: not in subnet 10.5.0.0/24",
        ),
        (
            with(
                &object("a"),
                json!({"routes": [{"destination": "10.99.0.0/24", "gateway": "10.6.0.1"}]}),
            ),
            "--route 10.99.0.0/24,10.6.0.1: 10.6.0.1 is in no subnet of it",
        ),
        (
            with(&object("a"), json!({"subnets": [{"subnet": "10.77.0.0/16"}]})),
            "subnet 10.77.0.0/16 overlaps with 10.77.7.0/24 of network known",
        ),
        (with_options("a", json!({"mtu": "big"})), "option mtu=big: not a number"),
        (with_options("a", json!({"metric": "-1"})), "option metric=-1: not a number"),
        (
            with_options("a", json!({"type": "vlan"})),
            "a vlan needs the options parent=LINK and vlan=ID",
        ),
        (with_options("a", json!({"type": "ipvlan", "parent": "lan"})), "needs a subnet"),
        (
            with_options("a", json!({"tap.mtu": "1"})),
            "option tap.mtu: the network has no plugin tap",
        ),
        (
            with_options("a", json!({"network": "nowhere"})),
            "no net configuration with name \"nowhere\"",
        ),
        (
            with_options("a", json!({"network": "net", "mtu": "1400"})),
            "option mtu: not one of network, dns, metric",
        ),
        (
            with(&with_options("a", json!({"network": "net"})), json!({"internal": true})),
            "--internal: the file of network net decides that",
        ),
        (
            with(
                &with_options("a", json!({"network": "net"})),
                json!({"subnets": [{"subnet": "10.5.0.0/24"}]}),
            ),
            "--subnet: the file",
        ),
        (
            with(&object("a"), json!({"ipam_options": {"driver": "magic"}})),
            "--ipam-driver magic: not host-local, dhcp or none",
        ),
        (
            with(&object("a"), json!({"subnets": [{"subnet": "224.0.0.0/24"}]})),
            "subnet 224.0.0.0/24 overlaps with",
        ),
        (with(&object("a"), json!({"network_interface": "a name"})), "a name"),
        (with(&object("a"), json!({"subnets": [{"subnet": "here"}]})), "subnet"),
        (
            with(&object("a"), json!({"subnets": [{"subnet": 5}]})),
            "subnets[0].subnet: invalid type: integer `5`, expected a string",
        ),
        (
            with(&object("a"), json!({"subnets": [5]})),
            "subnets[0]: invalid type: integer `5`, expected an object",
        ),
        (
            with_options("a", json!({"bridge.dns": "[5]"})),
            "dns: invalid type: list, expected an object",
        ),
        (with_options("a", json!({"tuning.dataDir": "data"})), "dataDir is a relative path"),
        (
            with_options("a", json!({"network": "net.d/1.conflist"})),
            "option network=net.d/1.conflist: a relative path",
        ),
    ] {
        let error = host.refusal(&object);
        assert!(error.contains(reason), "{object}: {error}");
    }
    let outcome = host.cnibox(&["create"]).stdin("{").run();
    assert!(!error_of(&outcome).is_empty() && outcome.status == 1, "{}", outcome.report());
    let c1 = host.world.container("c1");
    let own = asking(&request("c1", &object("a")), json!({"options": {"vrf": "blue"}}));
    assert_eq!(
        error_of(&host.driver(&["setup", &c1.netns()], &own)),
        "--network a:vrf=blue: a driver has no options of a container"
    );
    let web = host.created(&object("web"));
    let outside = asking(&request("c1", &web), json!({"static_ips": ["10.6.0.7"]}));
    assert_eq!(
        error_of(&host.driver(&["setup", &c1.netns()], &outside)),
        "cannot give address 10.6.0.7: network web has 10.89.0.0/24"
    );
    let taken = json!({"static_ips": ["10.89.0.7"]});
    host.set_up(&c1, &asking(&request("first", &web), taken.clone()));
    let c2 = host.world.container("c2");
    let error =
        error_of(&host.driver(&["setup", &c2.netns()], &asking(&request("c2", &web), taken)));
    assert!(
        error.contains("10.89.0.7 is not available") && error.contains("it is taken by first"),
        "{error}"
    );
    let outcome = host.driver(&["setup"], &request("c1", &object("a")));
    assert!(
        error_of(&outcome).contains("the path of a network namespace is missing"),
        "{}",
        outcome.report()
    );
}

#[test]
fn a_bridge_or_gateway_that_cannot_be_one_is_refused() {
    let host = Host::new();
    host.world.host(["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
    host.world.host(["ip", "link", "add", "br0", "type", "bridge"]);
    for name in ["lo", "v0"] {
        let error = host.refusal(&with(&object("a"), json!({"network_interface": name})));
        assert!(error.contains(&format!("bridge {name}: the host has a link")), "{error}");
        let nobody = json!({"network_interface": name, "ipam_options": {"driver": "none"}});
        host.refusal(&with(&object("a"), nobody));
    }
    host.created(&with(&object("a"), json!({"network_interface": "br0"})));
    let with_gateway = |subnet: &str, gateway: &str| {
        with(&object("a"), json!({"subnets": [{"subnet": subnet, "gateway": gateway}]}))
    };
    for (subnet, gateway, reason) in [
        ("10.5.0.0/24", "10.5.0.0", "is the address of the network itself"),
        ("10.5.0.0/24", "10.5.0.255", "is the broadcast address"),
        ("10.5.0.0/24", "10.6.0.1", "not in subnet"),
        ("fd55::/64", "fd55::", "is the address of the network itself"),
        ("fd55::/64", "fd56::1", "not in subnet"),
        ("10.5.0.0/24", "fd55::1", "not in subnet"),
    ] {
        let error = host.refusal(&with_gateway(subnet, gateway));
        assert!(error.contains(gateway) && error.contains(reason), "{error}");
    }
    // IPv6 has no broadcast.
    for (subnet, gateway) in
        [("fd55::/64", "fd55::ffff:ffff:ffff:ffff"), ("10.5.0.0/24", "10.5.0.254")]
    {
        let created = host.created(&with_gateway(subnet, gateway));
        assert_eq!(created["subnets"][0]["gateway"], gateway);
    }
}

#[test]
fn a_container_has_what_the_answer_says_and_its_ports() {
    let host = Host::new();
    let network = host.created(&with(&object("web"), json!({"ipv6_enabled": true})));
    let c1 = host.world.container("c1");
    let own = asking(
        &request("c1", &network),
        json!({
            "static_ips": ["10.89.0.77"], "static_mac": "02:00:00:00:00:77",
        }),
    );
    let request = publishing(
        &own,
        json!([
            {"container_port": 90, "host_ip": "", "host_port": 8090, "protocol": "tcp,udp", "range": 2},
            {"container_port": 95, "host_ip": "10.89.0.1", "host_port": 8095, "protocol": "tcp", "range": 1},
        ]),
    );
    let answer = host.set_up(&c1, &request);
    let eth0 = &answer["interfaces"]["eth0"];
    assert_eq!(eth0["mac_address"], "02:00:00:00:00:77");
    assert_eq!(eth0["subnets"][0], json!({"ipnet": "10.89.0.77/24", "gateway": "10.89.0.1"}));
    assert_eq!(answer["interfaces"].as_object().map(|all| all.len()), Some(1));
    assert!(
        c1.addresses("eth0")
            .iter()
            .any(|address| *address == format!("{}/64", address_of(&answer, 1)))
    );
    assert!(c1.exec(["ip", "route"]).contains("default via 10.89.0.1 dev eth0 metric 100"));

    let c2 = host.world.container("c2");
    host.set_up(&c2, &self::request("c2", &network));
    for port in [90, 91, 95] {
        echo(&c1, port);
    }
    for target in [
        "TCP:10.89.0.1:8090",
        "TCP:10.89.0.1:8091",
        "TCP:10.89.0.1:8095",
        "TCP:[fd7c:dff:aae1:7890::1]:8090",
    ] {
        Connection::open(&c2, "client", target).carries("word");
    }
    let published = host.world.host(["nft", "list", "map", "ip", "cnibox", "portmap-published"]);
    assert!(published.contains("udp . 8091"), "{published}");

    host.tear_down(&c1.netns(), &request);
    host.tear_down(&c1.netns(), &request);
    host.tear_down(&c2.netns(), &self::request("c2", &network));
    // podman does not say that a network was removed.
    assert!(!host.world.links().contains(&"cnb407c0dffaae1".to_owned()));
    assert_eq!(host.cnibox(&["attachments", "--json"]).run().success()["attachments"], json!([]));
    let left = host.world.host(["nft", "list", "ruleset"]);
    assert!(!left.contains("8090") && !left.contains("10.89.0.77"), "{left}");
}

/// Whichever process deletes the attachment, the others succeed: nothing has the list of the network any more.
#[test]
fn processes_that_remove_one_attachment_at_once_all_succeed() {
    let host = Host::new();
    let network = host.created(&object("web"));
    let request = request("c1", &network);
    for round in 0..6 {
        let c1 = host.world.container(&format!("c{round}"));
        let netns = c1.netns();
        host.set_up(&c1, &request);
        let teardown = || {
            let call = host.cnibox(&["teardown", &netns]).env("HOME", "/run/home");
            call.stdin(request.to_string())
        };
        let del = || host.cnibox(&["del", "--container-id", "c1"]);
        let mut calls = vec![teardown(), teardown(), del()];
        if round % 2 == 1 {
            // Without its namespace the container has ended, and gc removes the attachment, too.
            c1.destroy();
            calls.push(host.cnibox(&["gc"]));
        }
        for outcome in all_at_once(calls) {
            assert_eq!(outcome.status, 0, "round {round}: {}", outcome.report());
        }
        let left = host.cnibox(&["attachments", "--json"]).run().success();
        assert_eq!(left["attachments"], json!([]), "round {round}");
    }
}

#[test]
fn a_known_container_in_another_namespace_is_replaced() {
    let host = Host::new();
    let network = host.created(&object("web"));
    let [old, new] = ["old", "new"].map(|name| host.world.container(name));
    let request = publishing(
        &request("c1", &network),
        json!([
            {"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp", "range": 1},
        ]),
    );
    host.set_up(&old, &request);
    // podman was killed; its namespace is there still.
    let answer = host.set_up(&new, &request);
    assert!(new.addresses("eth0").contains(&format!("{}/24", address_of(&answer, 0))));
    assert!(!old.exec(["ip", "link"]).contains("eth0"));
    // The host was shut down.
    new.destroy();
    host.set_up(&old, &request);
    // The namespace is gone, and the network has other options now.
    let path = old.netns();
    old.destroy();
    let changed =
        with(&request, json!({"network": with(&network, json!({"options": {"network": "gone"}}))}));
    host.tear_down(&path, &changed);
    assert_eq!(host.cnibox(&["attachments", "--json"]).run().success()["attachments"], json!([]));
    assert!(!host.world.host(["nft", "list", "ruleset"]).contains("8080"));
}

#[test]
fn a_network_of_a_file_is_used_as_it_is() {
    let host = Host::new();
    let file = json!({"cniVersion": "1.0.0", "name": "mynet", "plugins": [
        {"type": "bridge", "bridge": "br7", "isGateway": true, "capabilities": {"ips": true}, "dns": {"nameservers": ["10.7.0.53"], "search": ["a.test"]},
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.7.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    ]});
    host.configure("7.conflist", &file);
    let network = host.created(&with_options(
        "nb",
        json!({"network": "mynet", "metric": "42", "dns": "10.7.0.53, 9.9.9.9"}),
    ));
    assert_eq!(network["subnets"], Value::Null);
    assert_eq!(
        network["options"],
        json!({"network": "mynet", "metric": "42", "dns": "10.7.0.53, 9.9.9.9"})
    );
    let c1 = host.world.container("c1");
    let answer = host.set_up(&c1, &request("c1", &network));
    assert_eq!(address_of(&answer, 0), "10.7.0.2");
    assert_eq!(
        (&answer["dns_server_ips"], &answer["dns_search_domains"]),
        (&json!(["10.7.0.53", "9.9.9.9"]), &json!(["a.test"]))
    );
    assert!(c1.exec(["ip", "route"]).contains("default via 10.7.0.1 dev eth0 metric 42"));
    let attached = host.cnibox(&["attachments", "--json"]).run().success();
    assert_eq!(attached["attachments"][0]["network"], "mynet", "{attached}");
    // podman hands the ports to each network of a container, also to one without a plugin that publishes them.
    let c2 = host.world.container("c2");
    let publishing = publishing(
        &request("c2", &network),
        json!([
            {"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp", "range": 1},
        ]),
    );
    let outcome = host.driver(&["setup", &c2.netns()], &publishing);
    let note = "note: network nb does not publish port 8080:80/tcp: no plugin of it can";
    assert!(outcome.status == 0 && outcome.stderr.contains(note), "{}", outcome.report());
    host.tear_down(&c1.netns(), &request("c1", &network));
    assert!(!c1.exec(["ip", "link"]).contains("eth0"));
}

/// podman without root: root of a user namespace, /run is its own, and /var/lib is the host's.
#[test]
fn without_root_the_state_is_below_run() {
    let host = Host::new();
    let network = host.created(&object("web"));
    let request = publishing(
        &request("c1", &network),
        json!([
            {"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp", "range": 1},
        ]),
    );
    host.world.write("/run/request.json", request.to_string());
    host.world.host(["mkdir", "-p", "/var/lib/cni", "/run/netns"]);
    // The world does not know this user, as podman's namespace does not know root of the host.
    for directory in ["/var/lib", "/var/lib/cni"] {
        std::os::unix::fs::chown(host.world.path(directory), Some(1), None).unwrap();
    }
    let script = r#"
        touch /run/netns/of-user
        unshare --net=/run/netns/of-user true
        "$0" setup /run/netns/of-user < /run/request.json
        nsenter --net=/run/netns/of-user ip -brief address show eth0
        find /run/cnibox/lib /var/lib/cni -type f
        "$0" attachments
        echo after
        "$0" teardown /run/netns/of-user < /run/request.json
        find /run/cnibox/lib -type f ! -name '*lock' ! -name 'last_reserved*' ! -path '*/.cnibox/*'
        ip -brief link
    "#;
    let words =
        ["--user", "--map-root-user", "--net", "--mount", "sh", "-ec", script, executable()];
    let words: Vec<&str> = ["unshare"].into_iter().chain(words).collect();
    let output = host.world.tool(&words, None).run().output();
    let (during, after) = output.split_once("after\n").expect("the script printed it");
    assert!(during.contains("eth0") && during.contains("10.89.0.2/24"), "{during}");
    for kept in ["results/", "attachments/", "networks/web/10.89.0.2"] {
        assert!(during.contains(&format!("/run/cnibox/lib/{kept}")), "{kept}: {during}");
    }
    assert!(!during.contains("/var/lib/cni/"), "{during}");
    assert!(during.contains("web "), "{during}");
    assert_eq!(after.lines().filter(|line| !line.starts_with("lo ")).count(), 0, "{after}");
}

#[test]
fn the_command_of_podman_for_a_new_network_is_printed() {
    let host = Host::new();
    let before = host.state();
    let printed = |args: &str| {
        let words: Vec<&str> = args.split(' ').collect();
        host.cnibox(&[&["networks", "create", "--podman"], &words[..]].concat()).run()
    };
    let create = "podman network create --driver cnibox";
    for (args, command) in [
        ("web", "--disable-dns web"),
        ("web --names", "web"),
        ("web --names --domain shop.example", "--opt dnsname.domainName=shop.example web"),
        (
            "web --subnet 10.5.0.0/24 --subnet fd00:5::/64 --gateway 10.5.0.9",
            "--subnet 10.5.0.0/24 --gateway 10.5.0.9 --subnet fd00:5::/64 --gateway fd00:5::1 --disable-dns web",
        ),
        (
            "web --interface-name br7 -o mtu=1400",
            "--interface-name br7 --disable-dns --opt mtu=1400 web",
        ),
        (
            "lan --type macvlan --parent eth0 --subnet 10.5.0.0/24 -o mode=private",
            "--interface-name eth0 --subnet 10.5.0.0/24 --disable-dns --opt type=macvlan --opt mode=private lan",
        ),
    ] {
        assert_eq!(printed(args).output(), format!("{create} {command}\n"));
    }
    for (args, reason) in [
        ("web --subnet 224.0.0.0/24", "subnet 224.0.0.0/24 overlaps with"),
        ("lan --type ipvlan --parent eth0", "needs a subnet"),
        ("web --subnet 10.5.0.0/24 --gateway 10.6.0.1", "10.6.0.1"),
    ] {
        let outcome = printed(args);
        assert!(outcome.status != 0 && outcome.stderr.contains(reason), "{}", outcome.report());
    }
    assert_eq!(host.state(), before);
}

#[test]
fn the_commands_of_podman_for_the_networks_of_files_are_printed() {
    let host = Host::new();
    let list = |name: &str, plugins: Value| json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins});
    let bridge = json!({"type": "bridge"});
    host.configure("1.conflist", &list("mynet", json!([bridge])));
    host.configure("2.conflist", &list("named", json!([bridge, {"type": "dnsname"}])));
    host.configure("3.conflist", &list("podman", json!([bridge])));
    host.world.write("/run/net.d/4.conflist", "{");
    let create = "podman network create --driver cnibox --opt network=";
    let outcome = host.cnibox(&["networks", "export", "--podman"]).run();
    assert!(outcome.stderr.contains("4.conflist"), "{}", outcome.report());
    let expected = format!(
        "{create}mynet mynet\n\
         {create}named named\n\
         # podman: each podman has a network of this name\n"
    );
    assert_eq!(outcome.stdout, expected);
    let one = host.cnibox(&["networks", "export", "--podman", "mynet"]).run();
    assert_eq!(one.stdout, format!("{create}mynet mynet\n"));
    let missing = host.cnibox(&["networks", "export", "--podman", "mynet", "gone"]).run();
    assert!(missing.status == 1 && missing.stderr.contains("no file configures network gone"));
    let created = host.created(&with_options("mynet", json!({"network": "mynet"})));
    assert_eq!(created["options"], json!({"network": "mynet"}));
}

#[test]
fn a_network_in_a_vlan_has_a_bridge_with_room_for_its_gateway() {
    let host = Host::new();
    let network = host.created(&with_options("a", json!({"vlan": "4094"})));
    let bridge = network["network_interface"].as_str().unwrap();
    assert!(format!("{bridge}.4094").len() < 16, "{bridge}");
    let c1 = host.world.container("c1");
    let own = request("c1", &network);
    if !runs_with("CONFIG_BRIDGE_VLAN_FILTERING") {
        let refused = error_of(&host.driver(&["setup", &c1.netns()], &own));
        assert!(refused.contains("the kernel lacks CONFIG_BRIDGE_VLAN_FILTERING"), "{refused}");
        return;
    }
    let answer = host.set_up(&c1, &own);
    c1.ping(answer["interfaces"]["eth0"]["subnets"][0]["gateway"].as_str().unwrap());
    host.tear_down(&c1.netns(), &own);
    assert!(!host.world.links().iter().any(|link| link.starts_with(bridge)));
}
