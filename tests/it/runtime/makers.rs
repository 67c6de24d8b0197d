//! The plugins that made an attachment, by its record, check and delete it, whatever CNI_PATH leads to now.

use serde_json::{Value, json};

use super::{Host, network};
use crate::world::with;

impl Host {
    /// Executables with these names are the first on CNI_PATH from now on. They fail.
    fn replace(&self, names: &[&str]) {
        names.iter().for_each(|name| self.recorder(name, "exit 1"));
    }

    fn attach_to(&self, network: &Value, ids: &[&str]) {
        self.configure("1.conflist", network);
        for id in ids {
            self.world.container(id);
            self.cnibox(&["add", "net", id, "--container-id", id]).run().success();
        }
    }
}

const ALL: [&str; 5] = ["bridge", "host-local", "portmap", "firewall", "tuning"];

#[test]
fn executables_of_other_vendors_are_not_called_for_what_they_did_not_make() {
    let host = Host::new();
    host.attach_to(&network(), &["c1"]);
    host.cnibox(&["del", "--container-id", "c1"]).run().silence();
    host.world.host(["ip", "netns", "delete", "c1"]);
    let before = host.state();
    host.attach_to(&network(), &["c1", "c2", "c3", "c4"]);
    host.replace(&ALL);
    host.cnibox(&["check", "net", "c1", "--container-id", "c1"]).run().silence();
    host.cnibox(&["del", "--container-id", "c1"]).run().silence();
    // One for itself, and several together.
    for ended in [&["c2"][..], &["c3", "c4"]] {
        ended.iter().for_each(|id| {
            host.world.host(["ip", "netns", "delete", id]);
        });
        let removed = || host.cnibox(&["gc"]).run().output().lines().count();
        host.world.eventually("gc removes it", || removed() == ended.len());
    }
    assert_eq!(host.titles(), [""; 0]);
    host.world.host(["ip", "netns", "delete", "c1"]);
    before.assert_same(&host.state(), "after gc");
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn an_ipam_plugin_that_was_executed_is_executed_again() {
    let host = Host::new();
    let ipam = json!({"type": "theirs"});
    let mut list = network();
    list["plugins"] = json!([with(&list["plugins"][0], json!({"ipam": ipam}))]);
    let answer =
        json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]});
    host.recorder("theirs", &super::printing(&answer));
    host.attach_to(&list, &["c1"]);
    assert_eq!(host.titles(), ["theirs ADD"]);
    host.replace(&["bridge"]);
    host.cnibox(&["check", "net", "c1", "--container-id", "c1"]).run().silence();
    host.cnibox(&["del", "--container-id", "c1"]).run().silence();
    assert_eq!(host.titles(), ["theirs CHECK", "theirs DEL"]);
}

/// The record names only the plugins of this executable: what another one made, CNI_PATH has to lead to.
#[test]
fn a_plugin_that_the_record_does_not_name_is_that_of_cni_path() {
    let host = Host::new();
    host.attach_to(&network(), &["c1"]);
    let path = host.record_of("net", "c1");
    let record = host.world.read(&path);
    assert!(record.contains(r#""portmap","#), "{record}");
    host.world.write(&path, record.replace(r#""portmap","#, ""));
    host.replace(&ALL);
    let outcome = host.cnibox(&["del", "--container-id", "c1"]).run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert_eq!(host.titles(), ["portmap DEL"]);
}
