//! A network that no file of /etc/cni/net.d configures: the commands know it from podman's files, and from the cache.

use serde_json::{Value, json};

use super::{ID, object, request};
use crate::runtime::Host;
use crate::world::{Outcome, parse, with};

const NETWORKS: &str = "/run/home/.local/share/containers/storage/networks";

impl Host {
    /// What podman keeps of a network.
    fn keep(&self, network: &Value) {
        self.world.host(["mkdir", "-p", NETWORKS]);
        let name = network["name"].as_str().unwrap();
        self.world.write(&format!("{NETWORKS}/{name}.json"), network.to_string());
    }

    /// `cnibox` of the user whose podman has the networks.
    fn of_user(&self, args: &[&str]) -> Outcome {
        self.cnibox(args).env("HOME", "/run/home").run()
    }

    fn listed(&self) -> Value {
        self.of_user(&["networks", "--json"]).success()["networks"].clone()
    }
}

/// A network `web` with both families, as `create` returns it.
fn web(host: &Host) -> Value {
    let subnets = json!([{"subnet": "10.89.0.0/24"}, {"subnet": "fd89::/64"}]);
    host.created(&with(&object("web"), json!({"subnets": subnets})))
}

#[test]
fn a_new_network_avoids_the_subnets_and_bridges_of_podman() {
    let host = Host::new();
    host.keep(&web(&host));
    // A network of netavark itself.
    let other = json!({
        "name": "plain", "id": "2".repeat(64), "driver": "bridge", "network_interface": "cnibox0",
        "subnets": [{"subnet": "10.89.1.0/24", "gateway": "10.89.1.1"}],
    });
    host.keep(&other);
    let create = |args: &[&str]| host.of_user(&[&["networks", "create"], args].concat());
    for (args, reason) in [
        (&["a", "--subnet", "10.89.0.128/25"][..], "overlaps with 10.89.0.0/24 of network web"),
        (&["a", "--subnet", "10.89.0.0/16"], "overlaps with 10.89.1.0/24 of network plain"),
        (&["a", "--subnet", "fd89::/48"], "overlaps with fd89::/64 of network web"),
        (&["a", "--interface-name", "cnb407c0dffaae1"], "network web has the bridge"),
        (&["a", "--interface-name", "cnibox0"], "network plain has the bridge cnibox0"),
        (&["web"], "podman has a network of this name"),
    ] {
        let outcome = create(args);
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        assert!(outcome.stderr.contains(reason), "{args:?}: {}", outcome.report());
    }
    create(&["a"]).output();
    let written = parse(&host.world.read("/run/net.d/a.conflist"));
    let bridge = &written["plugins"][0];
    assert_eq!(bridge["bridge"], "cnibox1");
    assert_eq!(bridge["ipam"]["ranges"][0][0]["subnet"], "10.89.2.0/24");
}

#[test]
fn the_commands_know_a_network_that_only_podman_has() {
    let host = Host::new();
    let network = web(&host);
    host.keep(&network);
    let with_file =
        json!({"name": "of-file", "id": ID, "driver": "cnibox", "options": {"network": "net"}});
    host.keep(&with_file);

    let listed = host.listed();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    let web = &listed[0];
    assert_eq!(
        (&web["name"], &web["subnets"]),
        (&json!("web"), &json!(["10.89.0.0/24", "fd89::/64"]))
    );
    assert_eq!(web["plugins"], json!(["bridge", "portmap", "firewall", "tuning"]));
    assert_eq!(web["file"], format!("{NETWORKS}/web.json"));
    assert_eq!(web["order"], json!({}));

    let explained = host.of_user(&["explain", "web", "--json"]).success();
    assert_eq!(explained["result"]["ips"][0]["address"], "10.89.0.2/24", "{explained}");
    let metrics = host.of_user(&["metrics"]).output();
    assert!(metrics.contains("cnibox_pool_size{network=\"web\",range=\"10.89.0.1-"), "{metrics}");

    let ranges = host.of_user(&["ipam", "list"]).output();
    assert!(ranges.contains(" web ") && ranges.contains("10.89.0.1-10.89.0.254"), "{ranges}");
    let words = host.of_user(&["completion", "words", "status", ""]).output();
    assert!(words.lines().any(|word| word == "web"), "{words}");

    // A file of CNI with a part of the subnet, and one with the bridge.
    let plugin = json!({
        "type": "bridge", "bridge": "cnb407c0dffaae1", "isGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.89.0.0/25"}], [{"subnet": "fd89::/80"}]]},
    });
    let list = json!({"cniVersion": "1.0.0", "name": "cni", "plugins": [plugin]});
    host.configure("1.conflist", &list);
    for command in ["lint", "doctor"] {
        let outcome = host.of_user(&[command]);
        for text in [
            "10.89.0.0/25 overlaps the range 10.89.0.0/24 of network web in web.json",
            "fd89::/80 overlaps the range fd89::/64 of network web in web.json",
        ] {
            assert!(outcome.stdout.contains(text), "{command}: {}", outcome.report());
        }
    }
    let outcome = host.of_user(&["doctor"]);
    let text = "1.conflist: network web in web.json has the same bridge, cnb407c0dffaae1";
    assert!(outcome.stdout.contains(text), "{}", outcome.report());
}

#[test]
fn the_cache_has_a_network_whose_file_another_user_has() {
    let host = Host::new();
    let network = web(&host);
    let c1 = host.world.container("c1");
    let request = request("c1", &network);
    host.set_up(&c1, &request);
    let listed = host.listed();
    assert_eq!(listed[0]["name"], "web", "{listed}");
    assert_eq!(listed[0]["file"], "/var/lib/cni/results/web-c1-eth0");
    host.of_user(&["explain", "web"]).output();
    let metrics = host.of_user(&["metrics"]).output();
    assert!(metrics.contains("cnibox_pool_used{network=\"web\""), "{metrics}");
    host.tear_down(&c1.netns(), &request);
    assert_eq!(host.listed(), json!([]));
    let outcome = host.of_user(&["explain", "web"]);
    assert!(outcome.stderr.contains("no net configuration"), "{}", outcome.report());
}
