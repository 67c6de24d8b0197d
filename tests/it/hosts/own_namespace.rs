//! A DEL whose CNI_NETNS is the namespace of the host: the runtime has lost the process of the container, and a process of the host
//! has its id now. (`host_device` has the tests of that plugin.)

use serde_json::{Value, json};

use crate::world::{Container, Outcome, PLUGIN_DIR, World, lan, with};

const OWN: &str = "/proc/self/ns/net";
const KINDS: [&str; 2] = ["veth", "macvlan"];

/// A host with links that have the name and the kinds of the container's interface.
struct Host {
    world: World,
    config: Value,
}

impl Host {
    fn new(kind: &str) -> Self {
        let world = World::new();
        lan(&world);
        match kind {
            "veth" => {
                world.host(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "wire0"])
            }
            _ => world.host([
                "ip", "link", "add", "eth0", "link", "lan", "type", "macvlan", "mode", "bridge",
            ]),
        };
        let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
        let config = json!({"cniVersion": "1.0.0", "name": "net", "type": kind, "master": "lan",
            "ipam": {"type": "host-local", "ranges": ranges}});
        Self { world, config }
    }

    fn attach(&self) -> (Container<'_>, Value) {
        let c1 = self.world.container("c1");
        let result = c1.add(self.kind(), &self.config);
        assert_eq!(self.taken(), ["10.1.0.2", "fd00:1::2"]);
        (c1, result)
    }

    fn kind(&self) -> &str {
        self.config["type"].as_str().unwrap()
    }

    fn del(&self, c1: &Container<'_>, more: &[(&str, &str)]) -> Outcome {
        let call = c1.call(self.kind(), "DEL", &self.config).env("CNI_NETNS", OWN);
        more.iter().fold(call, |call, (name, value)| call.env(name, value)).run()
    }

    /// The reserved addresses.
    fn taken(&self) -> Vec<String> {
        let names = self.world.host(["ls", "/var/lib/cni/networks/net"]);
        names
            .lines()
            .filter(|name| name.contains(['.', ':']) && !name.contains("last"))
            .map(Into::into)
            .collect()
    }

    fn has_own_link(&self) -> bool {
        self.world.links().iter().any(|link| link == "eth0")
    }

    #[track_caller]
    fn assert_released(&self, del: Outcome) {
        assert!(
            del.stderr.contains("the network namespace of the plugin itself"),
            "{}",
            del.report()
        );
        del.silence();
        assert_eq!(self.taken(), [""; 0]);
        assert!(self.has_own_link(), "the host's own eth0 is gone");
        let found = "find /var/lib/cni/attachments -type f -name '*c1*'";
        assert_eq!(self.world.host(["sh", "-c", found]), "");
    }
}

#[test]
fn what_an_ended_container_left_is_removed() {
    for kind in KINDS {
        let host = Host::new(kind);
        let (c1, result) = host.attach();
        c1.destroy();
        let config = with(&host.config, json!({"prevResult": result}));
        // Twice, as runtimes do.
        for _ in 0..2 {
            let del = c1.call(kind, "DEL", &config).env("CNI_NETNS", OWN).run();
            host.assert_released(del);
        }
    }
}

#[test]
fn a_living_container_keeps_everything() {
    for kind in KINDS {
        let host = Host::new(kind);
        let (c1, result) = host.attach();
        host.del(&c1, &[]).fails(8, &["it is the network namespace of the plugin itself"]);
        c1.check(kind, &host.config, &result);
        assert_eq!(host.taken(), ["10.1.0.2", "fd00:1::2"]);
        // Its path is gone, and it lives by a process in it.
        let _process = c1.tool(["sleep", "1000"]).start();
        c1.unmount();
        host.del(&c1, &[]).fails(8, &[]);
        assert!(host.has_own_link() && host.taken().len() == 2);
    }
}

#[test]
fn a_container_of_unknown_life_counts_as_gone() {
    for kind in KINDS {
        let host = Host::new(kind);
        let (c1, _) = host.attach();
        host.world.host(["rm", "/var/lib/cni/attachments/net+c1+eth0"]);
        host.assert_released(host.del(&c1, &[]));
    }
}

#[test]
fn an_override_means_the_hosts_namespace() {
    for kind in KINDS {
        let host = Host::new(kind);
        let c1 = host.world.container("c1");
        let del = host.del(&c1, &[("CNI_NETNS_OVERRIDE", "1")]);
        assert_eq!(del.stderr, "", "{}", del.report());
        del.silence();
        assert!(!host.has_own_link(), "{kind}");
    }
}

#[test]
fn the_runtime_does_as_the_plugins_do() {
    for kind in KINDS {
        let host = Host::new(kind);
        let mut list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [host.config]});
        list["plugins"][0].as_object_mut().unwrap().remove("name");
        host.world.write("/run/net.d/net.conflist", list.to_string());
        let cnibox = |words: &[&str]| {
            host.world
                .tool(&[&["/run/bin/cnibox"], words].concat(), None)
                .env("NETCONFPATH", "/run/net.d")
                .env("CNI_PATH", PLUGIN_DIR)
                .run()
        };
        let c1 = host.world.container("c1");
        cnibox(&["add", "net", "c1", "--container-id", "c1"]).success();
        let del = || cnibox(&["del", "net", OWN, "--container-id", "c1"]);
        let refused = del();
        assert!(
            refused.status == 1 && refused.stderr.contains("it is the namespace of the host"),
            "{}",
            refused.report()
        );
        assert_eq!(host.taken(), ["10.1.0.2", "fd00:1::2"]);
        c1.destroy();
        del().silence();
        assert!(host.has_own_link() && host.taken().is_empty());
        assert!(!cnibox(&["attachments"]).stdout.contains("c1"));
    }
}
