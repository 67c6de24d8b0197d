//! From the Go plugins to cnibox and back, with a container that lives on; and two installers at once.

use std::fs;

use serde_json::json;

use super::{DIR, NEW, Node, OLD};
use crate::world::all_at_once;

/// The reference plugins of the machine.
const REFERENCE: &str = match option_env!("CNI_REFERENCE") {
    Some(directory) => directory,
    None => "/usr/lib/cni",
};

#[test]
fn a_container_lives_through_the_switch_and_back() {
    let node = Node::new();
    let world = &node.world;
    let names = ["bridge", "host-local", "portmap", "loopback"];
    for name in names {
        world.host(["cp", &format!("{REFERENCE}/{name}"), DIR]);
    }
    let before = node.files();
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.7.0.0/24", "dataDir": "/run/networks"},
    });
    let [one, two] = ["one", "two"].map(|name| world.container(name));
    let here = |call: crate::world::Call<'_>| {
        call.of_directory(DIR).env("PATH", "/usr/sbin:/usr/bin").run()
    };
    // The Go plugin makes the first container; ours removes it, and makes the second one.
    here(one.call("bridge", "ADD", &config)).success();
    node.install(&["--force", "--backup"]).output();
    one.ping("10.7.0.1");
    let result = here(two.call("bridge", "ADD", &config)).success();
    assert_eq!(result["ips"][0]["address"], "10.7.0.3/24");
    two.ping("10.7.0.2");
    here(one.call("bridge", "DEL", &config)).silence();
    // The second container stays, and the Go plugin removes it.
    node.uninstall().output();
    assert_eq!(node.files(), before);
    two.ping("10.7.0.1");
    here(two.call("bridge", "DEL", &config)).silence();
    assert!(world.ports_of("br0").is_empty());
    let left = fs::read_dir(world.path("/run/networks/net")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.starts_with("10.")).count(), 0);
}

/// As the container of the DaemonSet runs.
#[test]
fn an_installation_needs_no_capability() {
    let node = Node::new();
    node.foreign(&["bridge"]);
    let before = node.files();
    let without = "setpriv --bounding-set=-all --inh-caps=-all --no-new-privs";
    node.sh(&format!("{without} {NEW} install --force --backup {DIR} >/run/installed"));
    assert!(node.version("bridge")["supportedVersions"].is_array());
    node.sh(&format!("{without} {NEW} uninstall {DIR} >/run/installed"));
    assert_eq!(node.files(), before);
}

#[test]
fn two_installers_at_once_end_with_one_whole_installation() {
    let node = Node::new();
    node.foreign(&["bridge"]);
    let force = ["install", "--force", "--backup", "--only", "bridge,portmap"];
    let calls = [NEW, OLD, NEW, OLD].map(|executable| node.command(executable, &force));
    for outcome in all_at_once(calls) {
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    assert_eq!(node.inode("bridge"), node.inode("cnibox"));
    assert_eq!(node.names(), [".cnibox.backup", ".cnibox.manifest", "bridge", "cnibox", "portmap"]);
    let calls = [NEW, OLD].map(|executable| node.command(executable, &["uninstall"]));
    for outcome in all_at_once(calls) {
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    assert_eq!(node.version("bridge")["of"], "bridge");
    assert_eq!(node.names(), ["bridge"]);
}

#[test]
fn an_install_and_an_uninstall_at_once_end_with_one_of_both() {
    let node = Node::new();
    node.install(&["--only", "bridge"]).output();
    let install = node.command(NEW, &["install", "--only", "bridge"]);
    let uninstall = node.command(NEW, &["uninstall"]);
    for outcome in all_at_once([uninstall, install]) {
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    match node.names().is_empty() {
        true => {}
        false => drop(node.version("bridge")),
    }
}
