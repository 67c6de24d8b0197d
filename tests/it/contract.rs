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

/// One container of one plugin in a world of its own.
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

/// The plugins of `--list` that this kernel can run, each once. The others run in tests/vm.
fn runnable() -> Vec<Subject> {
    let all = subjects().into_iter().filter(|subject| subject.keys_of == subject.plugin);
    all.filter(|subject| subject.place != Place::Vm).collect()
}

/// Runs the rule for every plugin in a world of its own, and reports all plugins that break it.
#[track_caller]
pub fn for_every_plugin(version: &'static str, rule: impl Fn(&Scene<'_>)) {
    let mut broken = Vec::new();
    for subject in runnable() {
        let run = || {
            let world = subject.world();
            let container = subject.container(&world);
            rule(&Scene { subject: &subject, world: &world, container, version });
        };
        if let Err(why) = catch_unwind(AssertUnwindSafe(run)) {
            let why = why.downcast_ref::<String>().map_or("?", String::as_str);
            broken.push(format!("{} {version}: {why}", subject.plugin));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_table_has_every_plugin_of_the_list() {
    let table: BTreeSet<String> =
        subjects().iter().map(|subject| subject.plugin.to_owned()).collect();
    assert_eq!(table, plugin_names().into_iter().collect());
    let in_vm: Vec<&str> = subjects()
        .iter()
        .filter(|subject| subject.place == Place::Vm)
        .map(|it| it.plugin)
        .collect();
    assert_eq!(in_vm, ["dummy", "vlan", "ipvlan", "vrf"], "the kernel of CI lacks these links");
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

#[test]
fn a_result_has_the_shape_of_the_version_asked_for() {
    for version in VERSIONS {
        for_every_plugin(version, |scene| {
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
            scene.del(&config);
            scene.end();
        });
    }
}

#[test]
fn verbs_are_refused_in_versions_that_do_not_have_them() {
    for (verb, version) in [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0")] {
        for_every_plugin(version, |scene| {
            let valid = json!({"cni.dev/valid-attachments": []});
            let config = with(&scene.begin(), valid);
            let error = scene.container.call(scene.plugin(), verb, &config).run().error();
            assert_eq!(error.code, INCOMPATIBLE, "{verb}: {error:?}");
        });
    }
}

#[test]
fn check_passes_after_add_and_fails_without_the_result() {
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        for_every_plugin(version, |scene| {
            let config = scene.begin();
            let result = scene.add(&config);
            scene.container.check(scene.plugin(), &config, &result);
            let bare = without(&config, "prevResult");
            let outcome = scene.container.call(scene.plugin(), "CHECK", &bare).run();
            match scene.plugin() {
                // As in the reference: host-local looks into its own files, loopback at the flags of `lo`.
                "host-local" | "loopback" => outcome.silence(),
                _ => drop(outcome.error()),
            }
            scene.del(&config);
            scene.end();
        });
    }
}

#[test]
fn a_failed_add_leaves_nothing() {
    for_every_plugin("1.1.0", |scene| {
        scene.prime();
        let config = scene.begin();
        let before = scene.state();
        let add = |config: &Value| scene.container.call(scene.plugin(), "ADD", config);
        let mut failing =
            vec![("an unknown version", add(&with(&config, json!({"cniVersion": "9.0.0"}))))];
        match scene.subject.place {
            Place::Ipam => failing.push(("no ipam", add(&without(&config, "ipam")))),
            place => {
                failing.push(("no namespace", add(&config).env("CNI_NETNS", "/run/netns/none")));
                failing
                    .push(("the host", add(&config).env("CNI_NETNS", "/proc/thread-self/ns/net")));
                if place != Place::First {
                    failing.push(("no result", add(&without(&config, "prevResult"))));
                } else if config.get("ipam").is_some() {
                    let ipam = json!({"ipam": {"type": "none-such"}});
                    failing.push(("no such IPAM plugin", add(&with(&config, ipam))));
                }
            }
        }
        for (why, call) in failing {
            let error = call.run().error();
            assert!(!error.msg.is_empty(), "{why}");
            before.assert_same(&scene.state(), why);
        }
    });
}

#[test]
fn del_succeeds_again_and_without_a_namespace_and_without_an_add() {
    for_every_plugin("1.1.0", |scene| {
        scene.prime();
        let config = scene.begin();
        let before = scene.state();
        let del = || scene.container.call(scene.plugin(), "DEL", &config);
        let same = |when: &str| before.assert_same(&scene.state(), when);

        del().run().silence();
        same("DEL without ADD");
        scene.add(&config);
        del().run().silence();
        if scene.subject.place != Place::ChainedUntilTheEnd {
            same("DEL");
        }
        del().run().silence();
        for netns in ["", "/run/netns/none"] {
            del().env("CNI_NETNS", netns).run().silence();
        }
        del().without("CNI_NETNS").run().silence();
        scene.end();
    });
}

#[test]
fn gc_keeps_what_is_valid_and_what_is_of_another_network() {
    for_every_plugin("1.1.0", |scene| {
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
    for_every_plugin("1.1.0", |scene| {
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
    for_every_plugin("1.1.0", |scene| {
        let config = without(&scene.begin(), "prevResult");
        scene.world.call(scene.plugin(), "STATUS", &config).run().silence();
    });
}
