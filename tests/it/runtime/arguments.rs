//! Arguments, variables, exit codes and what goes to which stream.

use serde_json::json;

use super::{Host, list, network};
use crate::world::with;

fn host() -> Host {
    let host = Host::new();
    host.recorder("one", "echo '{}'");
    host.configure("1.conflist", &list("1.0.0", &["one"]));
    host.world.container("c1");
    host
}

#[test]
fn wrong_arguments_have_exit_code_2_and_nothing_is_done() {
    let host = host();
    for args in [
        &["add"][..],
        &["add", "net"],
        &["add", "net", "c1", "more"],
        &["add", "net", "c1", "--frobnicate"],
        &["add", "n*t", "c1"],
        &["add", "net", ""],
        &["add", "net", "c1", "--container-id", "-"],
        &["add", "net", "c1", "-i", "much-too-long-a-name"],
        &["add", "net", "c1", "--timeout", "soon"],
        &["add", "net", "/tmp/x", "--create"],
        &["add", "net", "c1", "--ip", "300.1.1.1"],
        &["add", "net", "c1", "--mac", "x"],
        &["del"],
        &["del", "net"],
        &["del", "net", "c1", "more"],
        &["del", "--container-id", "3f", "--delete"],
        &["check", "net"],
        &["gc", "a", "b", "c"],
    ] {
        let outcome = host.cnibox(args).run();
        assert_eq!((outcome.status, outcome.stdout.as_str()), (2, ""), "{}", outcome.report());
        assert!(outcome.stderr.starts_with("cnibox: "), "{}", outcome.report());
    }
    for (name, value) in [
        ("CNI_ARGS", "A"),
        ("CNI_ARGS", "A=b;"),
        ("CNI_ARGS", "=b"),
        ("CNI_ARGS", "A="),
        ("CAP_ARGS", "[]"),
        ("CAP_ARGS", "{"),
    ] {
        let outcome = host.cnibox(&["add", "net", "c1"]).env(name, value).run();
        assert_eq!(outcome.status, 2, "{}", outcome.report());
        assert!(outcome.stderr.contains(name), "{}", outcome.report());
    }
    assert_eq!((host.titles(), host.kept()), (vec![], vec![]));
}

#[test]
fn help_is_a_success_with_an_example() {
    let host = host();
    let runtime = ["add", "check", "del", "gc", "status", "networks", "attachments", "run", "exec"];
    for command in runtime {
        for help in ["--help", "help"] {
            let text = host.cnibox(&[command, help]).run().output();
            assert!(text.contains(&format!("Examples:\n  cnibox {command} ")), "{text}");
        }
        assert!(host.cnibox(&["--help"]).run().output().contains(command));
    }
}

#[test]
fn the_interface_is_that_of_the_option_or_the_variable_or_eth0() {
    let host = host();
    let add = |args: &[&str], variable: &str| {
        let args = [&["add", "net", "c1"], args].concat();
        host.cnibox(&args).env("CNI_IFNAME", variable).run().success();
        host.seen()[0].variable("CNI_IFNAME").unwrap().to_owned()
    };
    assert_eq!(add(&[], ""), "eth0");
    assert_eq!(add(&[], "net1"), "net1");
    assert_eq!(add(&["--ifname", "net2"], "net1"), "net2");
}

#[test]
fn container_ids_are_cnitools_whatever_way_the_namespace_is_named() {
    let host = host();
    let expected = "cnitool-20b4ff582526573bbe7d";
    for netns in ["c1", "/run/netns/c1", "/run//netns/../netns/./c1"] {
        host.cnibox(&["add", "net", netns]).run().success();
        let seen = host.seen();
        let last = seen.last().unwrap();
        assert_eq!(last.variable("CNI_CONTAINERID"), Some(expected));
        assert_eq!(last.variable("CNI_NETNS"), Some("/run/netns/c1"));
        host.cnibox(&["del", "net", netns]).run().silence();
        host.seen();
    }
}

#[test]
fn a_process_stands_for_its_namespace() {
    let host = host();
    let script = "sleep 1000 > /dev/null 2>&1 & exec /run/bin/cnibox add net $!";
    // The shell is in the host's namespace, and so is its child.
    let outcome = host.world.tool(&["sh", "-c", script], None);
    let outcome = outcome.env("NETCONFPATH", super::CONFIGURATIONS).env("CNI_PATH", super::OWN);
    let outcome = outcome.run();
    assert!(outcome.stderr.contains("is the namespace of the host"), "{}", outcome.report());
    let script = "unshare -n sleep 1000 > /dev/null 2>&1 & pid=$!; \
        until [ \"$(readlink /proc/$pid/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ] && grep -q sleep /proc/$pid/comm; do sleep 0.05; done; \
        /run/bin/cnibox add net $pid; code=$?; kill $pid; exit $code";
    let add = host.world.tool(&["sh", "-c", script], None);
    add.env("NETCONFPATH", super::CONFIGURATIONS).env("CNI_PATH", super::OWN).run().success();
    assert!(host.seen()[0].variable("CNI_NETNS").unwrap().ends_with("/ns/net"));
}

#[test]
fn a_port_needs_a_plugin_that_can_publish_it() {
    let host = host();
    let outcome = host.cnibox(&["add", "net", "c1", "-p", "8080:80"]).run();
    assert_eq!(outcome.status, 1);
    for text in ["cannot publish a port: no plugin of network net can", "portMappings"] {
        assert!(outcome.stderr.contains(text), "{}", outcome.report());
    }
    let outcome = host.cnibox(&["add", "net", "new", "--create", "-p", "8080:80"]).run();
    assert_eq!(outcome.status, 1);
    assert!(!host.world.path("/run/netns/new").exists());
    assert_eq!(host.titles(), [""; 0]);
}

#[test]
fn create_and_delete_are_all_or_nothing() {
    let host = Host::new();
    let mut broken = network();
    broken["plugins"][0]["mtu"] = json!("much");
    host.configure("1.conflist", &broken);
    let create = ["add", "net", "web", "--create"];
    assert_eq!(host.cnibox(&create).run().status, 1);
    assert!(!host.world.path("/run/netns/web").exists());
    host.configure("1.conflist", &network());
    host.cnibox(&create).run().success();
    let again = host.cnibox(&create).run();
    assert!(again.status == 1 && again.stderr.contains("exists"), "{}", again.report());
    host.cnibox(&["check", "net", "web"]).run().silence();
    for status in [0, 1] {
        let del = host.cnibox(&["del", "net", "web", "--delete"]).run();
        assert_eq!((del.status, del.stdout.as_str()), (status, ""), "{}", del.report());
        assert!(!host.world.path("/run/netns/web").exists());
    }
}

#[test]
fn without_variables_the_usual_directories_are_searched() {
    let host = host();
    let plain = |args: &[&str]| {
        let words = [&["/run/bin/cnibox"], args].concat();
        host.world.tool(&words, None).run()
    };
    for args in [&["add", "other", "c1"][..], &["del", "other", "c1"], &["status", "other"]] {
        let outcome = plain(args);
        assert!(outcome.stderr.contains(" in /etc/cni/net.d"), "{}", outcome.report());
    }
    let network = list("1.0.0", &["no-such-type"]);
    host.world.write("/etc/cni/net.d/1.conflist", network.to_string());
    let outcome = plain(&["add", "net", "c1"]);
    let path = r#"in path ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"]"#;
    assert!(outcome.stderr.contains(path), "{}", outcome.report());
}

#[test]
fn gc_and_status_take_a_namespace_as_cnitool_does() {
    let host = host();
    host.cnibox(&["add", "net", "c1"]).run().success();
    host.cnibox(&["gc", "net", "c1"]).run().silence();
    assert_eq!(host.cnibox(&["status", "net", "c1"]).run().output(), "");
    host.cnibox(&["check", "net", "c1"]).run().silence();
}

#[test]
fn del_with_a_container_id_takes_a_network_and_an_interface() {
    let host = host();
    host.configure("2.conflist", &with(&list("1.0.0", &["one"]), json!({"name": "other"})));
    let id = ["--container-id", "a"];
    for (network, ifname) in [("net", "eth0"), ("net", "eth1"), ("other", "eth2")] {
        host.cnibox(&[&["add", network, "c1", "-i", ifname], &id[..]].concat()).run().success();
    }
    host.seen();
    for (args, expected) in [
        (&["del", "net", "-i", "eth1"][..], "eth1"),
        (&["del", "other"], "eth2"),
        (&["del"], "eth0"),
    ] {
        host.cnibox(&[args, &id].concat()).run().silence();
        let seen = host.seen();
        let ifnames: Vec<_> =
            seen.iter().map(|call| call.variable("CNI_IFNAME").unwrap()).collect();
        assert_eq!(ifnames, [expected]);
        assert_eq!(seen[0].variable("CNI_NETNS"), Some("/run/netns/c1"));
    }
    assert_eq!(host.kept(), [""; 0]);
}
