//! Which file is taken, and what is said of broken ones.

use serde_json::json;

use super::{CONFIGURATIONS, Host, list};

fn host() -> Host {
    let host = Host::new();
    for kind in ["one", "two"] {
        host.recorder(kind, "echo '{}'");
    }
    host.world.container("c1");
    host
}

#[test]
fn a_broken_file_is_a_line_on_stderr_and_no_obstacle() {
    let host = host();
    host.configure("50.conflist", &list("1.0.0", &["one"]));
    host.world.write(&format!("{CONFIGURATIONS}/10.conflist"), "{\n  \"name\": oops\n}");
    host.world.write(&format!("{CONFIGURATIONS}/60.conflist"), "{");
    let outcome = host.cnibox(&["add", "net", "c1"]).run();
    let expected = "warning: cannot read /run/net.d/10.conflist: cannot read JSON: expected value at line 2 column 11\n";
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, expected), "{}", outcome.report());
    // A DEL takes the configuration of the cache.
    host.cnibox(&["del", "net", "c1"]).run().silence();
    let outcome = host.cnibox(&["add", "nowhere", "c1"]).run();
    assert_eq!(outcome.status, 1);
    assert!(
        outcome
            .stderr
            .ends_with("cnibox: no net configuration with name \"nowhere\" in /run/net.d\n"),
        "{}",
        outcome.report()
    );
}

#[test]
fn a_network_is_named_by_its_file_too() {
    let host = host();
    host.configure("50.conflist", &list("1.0.0", &["one"]));
    host.configure("other.json", &json!({"cniVersion": "1.0.0", "name": "net", "type": "two"}));
    for (network, expected) in [("net", "one ADD"), ("/run/net.d/other.json", "two ADD")] {
        host.cnibox(&["add", network, "c1"]).run().success();
        assert_eq!(host.titles(), [expected]);
        host.cnibox(&["del", "net", "c1"]).run().silence();
        host.seen();
    }
    let outcome = host.cnibox(&["add", "./nothing.conflist", "c1"]).run();
    assert!(outcome.status == 1 && outcome.stderr.contains("cannot read ./nothing.conflist"));
}

#[test]
fn plugins_of_a_directory_are_part_of_the_network_and_of_its_del() {
    let host = host();
    host.configure("50.conflist", &list("1.0.0", &["one"]));
    host.world.write(&format!("{CONFIGURATIONS}/net/1.conf"), r#"{"type": "two"}"#);
    host.cnibox(&["add", "net", "c1"]).run().success();
    assert_eq!(host.titles(), ["one ADD", "two ADD"]);
    host.world.host(["rm", "-r", "/run/net.d/net"]);
    host.cnibox(&["del", "net", "c1"]).run().silence();
    assert_eq!(host.titles(), ["two DEL", "one DEL"]);
}

#[test]
fn the_highest_version_that_both_know_is_spoken() {
    let host = host();
    let mut network = list("0.4.0", &["one"]);
    network["cniVersions"] = json!(["0.3.1", "1.0.0", "7.0.0"]);
    host.configure("50.conflist", &network);
    host.cnibox(&["add", "net", "c1"]).run().success();
    assert_eq!(host.seen()[0].config()["cniVersion"], "1.0.0");
    network["cniVersions"] = json!(null);
    network["cniVersion"] = "7.0.0".into();
    host.configure("50.conflist", &network);
    let outcome = host.cnibox(&["add", "/run/net.d/50.conflist", "c1", "-i", "eth1"]).run();
    assert!(outcome.stderr.contains("incompatible CNI versions"), "{}", outcome.report());
}
