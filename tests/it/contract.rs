//! The rules that the specification and libcni set for every plugin. One table: the plugins of `--list`, each with a
//! configuration that works.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value, json};

use crate::toggle::subject::{BRIDGE, Kind, Place, Subject};
use crate::toggle::subjects;
use crate::world::{Container, State, World, plugin_names, with, without};

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// "Incompatible CNI version" of the specification, section 5.
const INCOMPATIBLE: u64 = 1;

/// One container of one plugin, and a version.
pub struct Scene<'w> {
    pub subject: &'w Subject,
    pub world: &'w World,
    pub container: Container<'w>,
    version: &'static str,
}

impl Scene<'_> {
    pub fn plugin(&self) -> &'static str {
        self.subject.plugin
    }

    /// Runs the plugin before a chained one. Returns a configuration with which ADD succeeds.
    pub fn begin(&self) -> Value {
        let version = json!({"cniVersion": self.version});
        let config = with(&good(self.subject), version.clone());
        if !self.subject.is_chained() {
            return config;
        }
        let result = self.container.add("bridge", &with(&Subject::network(), version));
        with(&config, json!({"prevResult": result}))
    }

    /// Removes what `begin` made; CNI_NETNS does not matter.
    pub fn end(&self) {
        if self.subject.is_chained() {
            self.container.del("bridge", &Subject::network());
        }
    }

    pub fn add(&self, config: &Value) -> Value {
        self.container.add(self.plugin(), config)
    }

    pub fn del(&self, config: &Value) {
        self.container.del(self.plugin(), config);
    }

    /// Makes what outlives every DEL: the bridge, base chains, directories.
    pub fn prime(&self) {
        let config = self.begin();
        self.add(&config);
        self.del(&config);
        self.end();
    }

    /// The same in a new namespace, after the end of the one before.
    fn renewed(&self) -> Self {
        Scene { container: self.subject.container(self.world), ..*self }
    }

    pub fn state(&self) -> State {
        self.world.state_with(&[&self.container]).apart_from(BRIDGE, "net")
    }
}

/// A configuration that an ADD succeeds with: what the first case of the table needs.
fn good(subject: &Subject) -> Value {
    match subject.cases.first() {
        Some(case) if case.kind == Kind::Required => subject.config_with(case),
        Some(case) => subject.config_without(case),
        None => json!({"cniVersion": "1.1.0", "name": "net", "type": subject.plugin}),
    }
}

/// The plugins of `--list` that run here, each once. The others run in tests/vm and in tests/it/dhcp.
fn runnable() -> Vec<Subject> {
    let all = subjects().into_iter().filter(|subject| subject.keys_of == subject.plugin);
    all.filter(Subject::is_runnable).collect()
}

/// Runs the rule for every plugin, each in a world of its own, with one version after the other. Reports all plugins that break it.
#[track_caller]
pub fn for_every_plugin(versions: &[&'static str], rule: impl Fn(&Scene<'_>)) {
    let mut broken = Vec::new();
    for subject in runnable() {
        let world = subject.world();
        let mut container = subject.container(&world);
        for version in versions {
            let scene = Scene { subject: &subject, world: &world, container, version };
            if let Err(why) = catch_unwind(AssertUnwindSafe(|| rule(&scene))) {
                let why = why.downcast_ref::<String>().map_or("?", String::as_str);
                broken.push(format!("{} {version}: {why}", subject.plugin));
                break;
            }
            container = scene.container;
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_table_has_every_plugin_of_the_list() {
    let table: BTreeSet<String> =
        subjects().iter().map(|subject| subject.plugin.to_owned()).collect();
    assert_eq!(table, plugin_names().into_iter().collect());
}

/// The keys of a result, without those that every version allows.
fn wrong_keys(version: &str, is_ipam: bool, result: &Value) -> Vec<String> {
    let keys: &[&str] = match version {
        "0.1.0" | "0.2.0" => &["ip4", "ip6"],
        _ if is_ipam => &["ips", "routes"],
        _ => &["interfaces", "ips", "routes"],
    };
    let found = result.as_object().unwrap().keys();
    found
        .filter(|key| {
            !["cniVersion", "dns"].contains(&key.as_str()) && !keys.contains(&key.as_str())
        })
        .cloned()
        .collect()
}

/// The first address of the result is an address of the container's interface.
fn assert_address_is_configured(scene: &Scene<'_>, result: &Value) {
    let address = match &result["ip4"]["ip"] {
        Value::Null => &result["ips"][0]["address"],
        address => address,
    };
    let has_global_address = scene.subject.place != Place::Ipam && scene.plugin() != "loopback";
    if let (Some(address), true) = (address.as_str(), has_global_address) {
        let addresses = scene.container.addresses("eth0");
        assert!(
            addresses.iter().any(|other| other == address),
            "{address} is not in {addresses:?}"
        );
    }
}

#[test]
fn a_result_has_the_shape_of_the_version_asked_for() {
    for_every_plugin(&VERSIONS, |scene| {
        let version = scene.version;
        let is_ipam = scene.subject.place == Place::Ipam;
        let config = scene.begin();
        let result = scene.add(&config);
        assert_eq!(result["cniVersion"], version);
        assert_eq!(wrong_keys(version, is_ipam, &result), [""; 0], "{result}");
        for ip in result["ips"].as_array().into_iter().flatten() {
            let has_family = ip.get("version").is_some();
            assert_eq!(has_family, ["0.3.0", "0.3.1", "0.4.0"].contains(&version), "{ip}");
        }
        let has_interfaces = !is_ipam && !["0.1.0", "0.2.0"].contains(&version);
        let names = result["interfaces"].as_array().into_iter().flatten();
        let names: Vec<&Value> = names.map(|interface| &interface["name"]).collect();
        let expected = if scene.plugin() == "loopback" { "lo" } else { "eth0" };
        assert_eq!(names.contains(&&json!(expected)), has_interfaces, "{result}");
        assert_address_is_configured(scene, &result);
        if scene.subject.is_chained() {
            // tuning changes an interface, bandwidth adds one, and dnsname has servers.
            let [before, after] = [&config["prevResult"], &result]
                .map(|value| without(&without(value, "interfaces"), "dns"));
            assert_eq!(before, after, "the rest of the previous result is the result");
        }
        scene.del(&config);
        scene.end();
    });
}

#[test]
fn verbs_are_refused_in_versions_that_do_not_have_them() {
    for_every_plugin(&["0.3.1", "1.0.0"], |scene| {
        let refused: &[&str] = match scene.version {
            "0.3.1" => &["CHECK", "GC", "STATUS"],
            _ => &["GC", "STATUS"],
        };
        let valid = json!({"cni.dev/valid-attachments": []});
        let config = with(&scene.begin(), valid);
        for verb in refused {
            let error = scene.container.call(scene.plugin(), verb, &config).run().error();
            assert_eq!(error.code, INCOMPATIBLE, "{verb}: {error:?}");
        }
        scene.end();
    });
}

#[test]
fn check_passes_after_add_and_fails_without_the_result() {
    for_every_plugin(&["0.4.0", "1.0.0", "1.1.0"], |scene| {
        let config = scene.begin();
        let result = scene.add(&config);
        scene.container.check(scene.plugin(), &config, &result);
        let bare = without(&config, "prevResult");
        let outcome = scene.container.call(scene.plugin(), "CHECK", &bare).run();
        match scene.plugin() {
            // As in the reference: host-local reads its own files, and loopback the flags of `lo`.
            "host-local" | "loopback" => outcome.silence(),
            _ => drop(outcome.fails(7, &["equired prevResult missing"])),
        }
        scene.del(&config);
        scene.end();
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    for_every_plugin(&["1.1.0"], |scene| {
        scene.prime();
        let config = scene.begin();
        let before = scene.state();
        let add = |config: &Value| scene.container.call(scene.plugin(), "ADD", config);
        let mut failing = vec![(
            "an unknown version",
            add(&with(&config, json!({"cniVersion": "9.0.0"}))),
            "incompatible CNI versions",
        )];
        match scene.subject.place {
            Place::Ipam => failing.push(("no ipam", add(&without(&config, "ipam")), "ipam")),
            place => {
                let none = "/run/netns/none";
                failing.push(("no namespace", add(&config).env("CNI_NETNS", none), none));
                let host = add(&config).env("CNI_NETNS", "/proc/thread-self/ns/net");
                failing.push(("the host", host, ""));
                if place != Place::First {
                    let alone = add(&without(&config, "prevResult"));
                    failing.push(("no result", alone, "must be called as chained plugin"));
                } else if config.get("ipam").is_some() {
                    let ipam = json!({"ipam": {"type": "none-such"}});
                    failing.push(("no such IPAM plugin", add(&with(&config, ipam)), "none-such"));
                }
            }
        }
        for (why, call, text) in failing {
            let error = call.run().error();
            assert!(format!("{}: {}", error.msg, error.details).contains(text), "{why}: {error:?}");
            before.assert_same(&scene.state(), why);
        }
    });
}

#[test]
fn del_and_gc_without_an_add_make_nothing() {
    for_every_plugin(&["1.1.0"], |scene| {
        let config = with(&good(scene.subject), json!({"cni.dev/valid-attachments": []}));
        let before = scene.world.state_with(&[&scene.container]);
        for _ in 0..2 {
            scene.del(&config);
        }
        scene.world.call(scene.plugin(), "GC", &config).run().silence();
        before.assert_same(&scene.world.state_with(&[&scene.container]), "after DEL and GC");
    });
}

#[test]
fn del_succeeds_again_and_without_an_add() {
    for_every_plugin(&["1.1.0"], |scene| {
        scene.prime();
        let config = scene.begin();
        let before = scene.state();
        let same = |when: &str| {
            if scene.subject.place != Place::ChainedUntilTheEnd {
                before.assert_same(&scene.state(), when);
            }
        };
        scene.del(&config);
        before.assert_same(&scene.state(), "DEL without ADD");
        scene.add(&config);
        for when in ["DEL", "the second DEL"] {
            scene.del(&config);
            same(when);
        }
        scene.end();
    });
}

/// How a namespace ends before DEL, and what DEL gets as CNI_NETNS; `None` is no variable.
type End = (&'static str, fn(&Container<'_>), Option<&'static str>);

const ENDS: [End; 6] = [
    ("the namespace is gone", |c| c.destroy(), Some("/run/netns/c1")),
    ("a regular file is left of the namespace", |c| c.unmount(), Some("/run/netns/c1")),
    ("the directory of the namespace is gone", |c| c.destroy(), Some("/run/none/none")),
    ("the path is no namespace", |c| c.destroy(), Some("/dev/null")),
    ("the path is empty", |c| c.destroy(), Some("")),
    ("no path is given", |c| c.destroy(), None),
];

#[test]
fn del_without_the_namespace_leaves_nothing_on_the_host() {
    for_every_plugin(&["1.1.0"], |scene| {
        scene.prime();
        scene.container.destroy();
        let state = || scene.world.state().apart_from(BRIDGE, "net");
        let before = state();
        for (what, end, netns) in ENDS {
            let scene = scene.renewed();
            let config = scene.begin();
            scene.add(&config);
            // The kernel moves a card to the host when its namespace ends; the world has no card that the kernel moves.
            scene.world.host(["sh", "-c", scene.subject.before_gc]);
            end(&scene.container);
            let del = scene.container.call(scene.plugin(), "DEL", &config).without("CNI_NETNS");
            let del = match netns {
                Some(path) => del.env("CNI_NETNS", path),
                None => del,
            };
            for _ in 0..2 {
                del.clone().run().silence();
            }
            scene.end();
            // The kernel removes the links of a namespace some time after its end.
            scene.world.eventually(what, || before.difference(&state()).is_empty());
            let has_file = scene.world.path(scene.container.netns()).exists();
            assert_eq!(has_file, what.contains("file"), "{what}");
        }
    });
}

#[test]
fn gc_keeps_what_is_valid_and_what_is_of_another_network() {
    for_every_plugin(&["1.1.0"], |scene| {
        let config = scene.begin();
        let result = scene.add(&config);
        let before = scene.state();
        let gc = |more: Value| {
            let config = with(&without(&config, "prevResult"), more);
            scene.world.call(scene.plugin(), "GC", &config).run().silence();
            before.assert_same(&scene.state(), "GC");
        };
        gc(json!({"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}));
        gc(json!({"name": "third", "cni.dev/valid-attachments": []}));
        scene.container.check(scene.plugin(), &config, &result);
        scene.del(&config);
        scene.end();
    });
}

#[test]
fn gc_without_the_list_of_valid_attachments_is_refused() {
    for_every_plugin(&["1.1.0"], |scene| {
        let config = scene.begin();
        let result = scene.add(&config);
        let before = scene.state();
        let bare = without(&config, "prevResult");
        let outcome = scene.world.call(scene.plugin(), "GC", &bare).run();
        outcome.fails(7, &["cni.dev/valid-attachments"]);
        before.assert_same(&scene.state(), "GC");
        scene.container.check(scene.plugin(), &config, &result);
    });
}

#[test]
fn status_is_silent_where_add_succeeds() {
    for_every_plugin(&["1.1.0"], |scene| {
        let config = without(&scene.begin(), "prevResult");
        scene.world.call(scene.plugin(), "STATUS", &config).run().silence();
    });
}
