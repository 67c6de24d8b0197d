//! The cache: entries of podman and libcni are ours to check and delete, and damaged ones are nobody's trouble.

use serde_json::{Value, json};

use super::{Host, list, network, printing};

/// The entry of podman 4.3 in /var/lib/cni/results after `podman run --name c1`, except for the configuration and the
/// namespace: the result has version 0.4.0, and there are arguments.
fn podmans(config: &str, netns: &str, result: &Value) -> Value {
    json!({
        "kind": "cniCacheV1", "containerId": "3f2a", "config": config, "ifName": "eth0", "networkName": "net",
        "netns": netns, "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "c1"]],
        "capabilityArgs": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]},
        "result": result,
    })
}

fn base64(host: &Host, text: &str) -> String {
    host.world.tool(&["base64", "-w0"], None).stdin(text).run().output()
}

fn podmans_list() -> Value {
    let mut network = network();
    network["cniVersion"] = "0.4.0".into();
    network["args"] = json!({"podman_labels": {"a": "b"}});
    network
}

/// An attachment that another runtime made with our plugins: its plugins one after the other, then its cache entry.
fn attach_as_podman(host: &Host) {
    let container = host.world.container("c1");
    let list = podmans_list();
    let mut result = Value::Null;
    for plugin in list["plugins"].as_array().unwrap() {
        let mut config = plugin.clone();
        config["name"] = "net".into();
        config["cniVersion"] = "0.4.0".into();
        config["prevResult"] = result;
        if plugin["type"] == "portmap" {
            let mapping =
                json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]);
            config["runtimeConfig"] = json!({"portMappings": mapping});
        }
        let call = container.call(plugin["type"].as_str().unwrap(), "ADD", &config);
        result = call.env("CNI_CONTAINERID", "3f2a").run().success();
    }
    let entry = podmans(&base64(host, &list.to_string()), &container.netns(), &result);
    host.world.write("/var/lib/cni/results/net-3f2a-eth0", entry.to_string());
}

#[test]
fn an_attachment_of_podman_is_checked_and_deleted_by_its_container_id() {
    let host = Host::new();
    attach_as_podman(&host);
    let check = ["check", "net", "c1", "--container-id", "3f2a"];
    host.cnibox(&check).run().silence();
    host.cnibox(&["gc"]).run().silence();
    host.cnibox(&check).run().silence();
    // It lives, so no ADD of the same name may be made over it.
    host.configure("1.conflist", &podmans_list());
    let add = host.cnibox(&["add", "net", "c1", "--container-id", "3f2a"]).run();
    assert!(add.stderr.contains("attached already, with 10.1.0.2/24"), "{}", add.report());
    host.world.host(["rm", "/run/net.d/1.conflist"]);
    host.cnibox(&["del", "--container-id", "3f2a"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
    let rules = host.world.host(["nft", "list", "ruleset"]);
    assert!(!rules.contains("8080"), "{rules}");
    assert!(!host.world.path("/var/lib/cni/networks/net/10.1.0.2").exists());
}

#[test]
fn an_attachment_of_podman_without_its_namespace_is_collected() {
    let host = Host::new();
    attach_as_podman(&host);
    host.world.host(["umount", "/run/netns/c1"]);
    host.world.eventually("the namespace has ended", || {
        !host.cnibox(&["gc", "--dry-run"]).run().output().is_empty()
    });
    let said = host.cnibox(&["gc", "--dry-run"]).run().output();
    assert!(said.starts_with("would remove eth0 of container 3f2a from network net: "), "{said}");
    // The entry, the record of its namespace, and the claim of its address.
    assert_eq!(host.kept().len(), 3);
    host.cnibox(&["gc"]).run().output();
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn the_entry_that_we_write_is_libcnis() {
    let host = Host::new();
    let result = json!({"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.1.0.5/16"}], "dns": {}});
    host.recorder("one", &printing(&result));
    let text = list("0.4.0", &["one"]).to_string();
    host.configure("1.conflist", &list("0.4.0", &["one"]));
    host.world.container("c1");
    let add = host.cnibox(&["add", "net", "c1", "--container-id", "3f2a"]);
    let add = add.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=c1");
    add.env("CAP_ARGS", r#"{"mac":"aa"}"#).run().success();
    let expected = json!({
        "kind": "cniCacheV1", "containerId": "3f2a", "config": base64(&host, &text), "ifName": "eth0",
        "networkName": "net", "netns": "/run/netns/c1", "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "c1"]],
        "capabilityArgs": {"mac": "aa"}, "result": result,
    });
    assert_eq!(host.cached("net-3f2a-eth0"), expected);
    let file = host.world.host(["stat", "-c", "%a", "/var/lib/cni/results/net-3f2a-eth0"]);
    assert_eq!(file.trim(), "600");
    let files = host.world.host(["ls", "-A", "/var/lib/cni/results", "/var/lib/cni"]);
    assert_eq!(files.split_whitespace().filter(|name| name.contains("3f2a")).count(), 1, "{files}");
}

#[test]
fn a_damaged_entry_is_reported_and_stands_in_nobodys_way() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    for name in ["c1", "c2"] {
        host.world.container(name);
        host.cnibox(&["add", "net", name, "--container-id", name]).run().success();
    }
    for damage in ["", "{\"kind\":\"cniCacheV1\"", "[]", r#"{"kind":"cniCacheV1","config":7}"#] {
        let path = "/var/lib/cni/results/net-c1-eth0";
        host.world.write(path, damage);
        let gc = host.cnibox(&["gc"]).run();
        assert!(gc.status == 0 && gc.stderr.contains(path), "{}", gc.report());
        host.cnibox(&["check", "net", "c2", "--container-id", "c2"]).run().silence();
        // The interface is there, and nothing tells what else is.
        let add = host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run();
        assert!(add.status == 1 && add.stderr.contains(path), "{}", add.report());
        let check = host.cnibox(&["check", "net", "c1", "--container-id", "c1"]).run();
        assert!(check.status == 1 && check.stderr.contains(path), "{}", check.report());
        let del = host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run();
        assert!(del.status == 0 && del.stderr.contains(path), "{}", del.report());
        assert!(!host.world.path(path).exists());
        host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run().success();
        // After a loss of power, the namespace is new.
        host.world.write(path, damage);
        host.world.host(["ip", "netns", "del", "c1"]);
        host.world.container("c1");
        host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run().success();
    }
    for name in ["c1", "c2"] {
        host.cnibox(&["del", "net", name, "--container-id", name]).run().silence();
    }
    assert_eq!(host.kept(), [""; 0]);
}

/// The record has the list of the ADD: a plugin that is no longer in the list cleans up, too.
#[test]
fn an_add_over_a_lost_entry_deletes_with_the_list_of_the_earlier_add() {
    let entry = "/var/lib/cni/results/net-c1-eth0";
    let damage = |host: &Host| host.world.write(entry, "{");
    let loss = |host: &Host| drop(host.world.host(["rm", entry]));
    let losses: [&dyn Fn(&Host); 2] = [&damage, &loss];
    for loses in losses {
        let host = Host::new();
        host.recorder("watcher", &printing(&json!({"cniVersion": "1.0.0"})));
        let mut longer = network();
        longer["plugins"].as_array_mut().unwrap().push(json!({"type": "watcher"}));
        host.configure("1.conflist", &longer);
        host.world.container("c1");
        let add = ["add", "net", "c1", "--container-id", "c1"];
        host.cnibox(&[&add[..], &["-p", "8081:80"]].concat()).run().success();
        assert_eq!(host.titles(), ["watcher ADD"]);
        let mut shorter = network();
        shorter["plugins"].as_array_mut().unwrap().truncate(1);
        host.configure("1.conflist", &shorter);
        loses(&host);
        host.world.host(["ip", "netns", "del", "c1"]);
        host.world.container("c1");
        host.cnibox(&add).run().success();
        assert_eq!(host.titles(), ["watcher DEL"]);
        let ruleset = host.world.host(["nft", "list", "ruleset"]);
        assert!(!ruleset.contains("8081"), "{ruleset}");
        host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
        assert_eq!(host.kept(), [""; 0]);
    }
}

#[test]
fn an_attachment_of_podman_is_gone_when_its_path_leads_to_another_namespace() {
    let host = Host::new();
    attach_as_podman(&host);
    let state = || {
        let text = host.cnibox(&["attachments", "--json"]).run().output();
        let document: Value = serde_json::from_str(&text).unwrap();
        document["attachments"][0]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state(), "alive");
    let on_host = ["nsenter", "--net=/run/netns/c1", "ip", "address", "flush", "dev", "eth0"];
    host.world.host(on_host);
    assert_eq!(state(), "alive", "its plugins recorded that it is this namespace");
    // Without a record, nothing tells that.
    let path = host.record_of("net", "3f2a");
    let record = host.world.read(&path);
    host.world.host(["rm", &path]);
    assert_eq!(state(), "unknown", "its interface is there, its address is not");
    host.cnibox(&["gc"]).run().silence();
    host.world.host(["ip", "netns", "del", "c1"]);
    host.world.host(["ip", "netns", "add", "c1"]);
    assert_eq!(state(), "unknown", "it may be another namespace");
    host.cnibox(&["gc"]).run().silence();
    host.world.write(&path, record);
    host.world.eventually("it has ended", || state() == "gone");
    let said = host.cnibox(&["gc"]).run().output();
    assert!(said.contains("its network namespace has ended"), "{said}");
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn an_attachment_with_the_namespace_of_the_host_stays_until_the_operator_removes_it() {
    let host = Host::new();
    let config = base64(&host, &list("0.4.0", &["tuning"]).to_string());
    let entry = podmans(&config, "/proc/self/ns/net", &json!({}));
    host.world.write("/var/lib/cni/results/net-3f2a-eth0", entry.to_string());
    host.cnibox(&["gc"]).run().silence();
    let said = host.cnibox(&["gc", "--unknown", "net/3f2a/eth0"]).run().output();
    assert!(said.ends_with("its interface is not in /proc/self/ns/net\n"), "{said}");
    assert_eq!(host.kept(), [""; 0]);
}
