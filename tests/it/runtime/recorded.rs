//! The input of plugins: the configurations of the specification's appendix, in every version, as a list and as a
//! single configuration.

use serde_json::{Value, json};

use super::{CONFIGURATIONS, Host, printing};
use crate::world::VERSIONS;

/// A result in the shape of a version, with its keys in the order in which it is printed.
fn result(version: &str, mac: &str) -> String {
    match version {
        "0.1.0" | "0.2.0" => format!(
            r#"{{"cniVersion":"{version}","ip4":{{"ip":"10.1.0.5/16","gateway":"10.1.0.1","routes":[{{"dst":"0.0.0.0/0"}}]}},"dns":{{"nameservers":["10.1.0.1"]}}}}"#
        ),
        "0.3.0" | "0.3.1" | "0.4.0" => format!(
            r#"{{"cniVersion":"{version}","interfaces":[{{"name":"cni0","mac":"00:11:22:33:44:55"}},{{"name":"eth0","mac":"{mac}","sandbox":"/run/netns/blue"}}],"ips":[{{"version":"4","interface":1,"address":"10.1.0.5/16","gateway":"10.1.0.1"}}],"routes":[{{"dst":"0.0.0.0/0"}}],"dns":{{"nameservers":["10.1.0.1"]}}}}"#
        ),
        _ => format!(
            r#"{{"cniVersion":"{version}","dns":{{"nameservers":["10.1.0.1"]}},"interfaces":[{{"mac":"00:11:22:33:44:55","name":"cni0"}},{{"mac":"{mac}","name":"eth0","sandbox":"/run/netns/blue"}}],"ips":[{{"address":"10.1.0.5/16","gateway":"10.1.0.1","interface":1}}],"routes":[{{"dst":"0.0.0.0/0"}}]}}"#
        ),
    }
}

const FIRST_MAC: &str = "99:88:77:66:55:44";
const LAST_MAC: &str = "00:11:22:33:44:66";

/// The appendix's network, with numbers and an order of keys that a decoder can spoil. `$VERSION` is replaced.
const NETWORK: &str = r#"{
  "cniVersion": "$VERSION", "name": "dbnet", "plugins": [
    {"type": "rec-bridge", "bridge": "cni0", "zeta": 1.0, "large": 12345678901234567890, "args": {"labels": {"appVersion": "1.0"}},
     "keyA": ["some more", "plugin specific", "configuration"], "alpha": 1e3, "cniVersion": "0.9.9", "name": "other",
     "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}},
    {"type": "rec-tuning", "capabilities": {"mac": true}, "sysctl": {"net.core.somaxconn": "500"}},
    {"type": "rec-portmap", "capabilities": {"portMappings": true, "aliases": true, "mac": false}}
  ]
}"#;
const CAP_ARGS: &str = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],"mac":"00:11:22:33:44:66","dns":{}}"#;

/// The request configurations of the three plugins, without their previous results.
fn requests(version: &str) -> [(&'static str, String); 3] {
    let head = format!(r#"{{"cniVersion":"{version}","name":"dbnet","type":"#);
    [
        (
            "rec-bridge",
            format!(
                r#"{head}"rec-bridge","bridge":"cni0","zeta":1.0,"large":12345678901234567890,"args":{{"labels":{{"appVersion":"1.0"}}}},"keyA":["some more","plugin specific","configuration"],"alpha":1e3,"ipam":{{"type":"host-local","subnet":"10.1.0.0/16"}}"#
            ),
        ),
        (
            "rec-tuning",
            format!(
                r#"{head}"rec-tuning","sysctl":{{"net.core.somaxconn":"500"}},"runtimeConfig":{{"mac":"00:11:22:33:44:66"}}"#
            ),
        ),
        (
            "rec-portmap",
            format!(
                r#"{head}"rec-portmap","runtimeConfig":{{"portMappings":[{{"hostPort":8080,"containerPort":80,"protocol":"tcp"}}]}}"#
            ),
        ),
    ]
}

fn with_result(request: &str, result: Option<&str>) -> String {
    match result {
        Some(result) => format!(r#"{request},"prevResult":{result}}}"#),
        None => format!("{request}}}"),
    }
}

/// A host with the appendix's network in a version.
fn host(version: &str) -> Host {
    let host = Host::new();
    let path = format!("{CONFIGURATIONS}/dbnet.conflist");
    host.world.write(&path, NETWORK.replace("$VERSION", version));
    let printing =
        |mac: &str| format!("if [ $CNI_COMMAND = ADD ]; then echo '{}'; fi", result(version, mac));
    host.recorder("rec-bridge", &printing(FIRST_MAC));
    host.recorder("rec-tuning", &printing(LAST_MAC));
    host.recorder("rec-portmap", &printing(LAST_MAC));
    host
}

fn seen(host: &Host, command: &str) -> Vec<(String, String)> {
    let seen = host.seen();
    assert!(seen.iter().all(|call| call.command == command), "{seen:?}");
    seen.into_iter().map(|call| (call.plugin, call.stdin)).collect()
}

fn owned(expected: &[(&str, String)]) -> Vec<(String, String)> {
    expected.iter().map(|(plugin, text)| ((*plugin).to_owned(), text.clone())).collect()
}

fn add_check_and_del(version: &str) {
    let host = host(version);
    let container = host.world.container("blue");
    let (first, last) = (result(version, FIRST_MAC), result(version, LAST_MAC));
    let cnibox = |verb: &str| host.cnibox(&[verb, "dbnet", &container.netns()]);

    let outcome = cnibox("add").env("CAP_ARGS", CAP_ARGS).env("CNI_ARGS", "argA=foo").run();
    let printed: Value = outcome.success();
    assert_eq!(printed, serde_json::from_str::<Value>(&last).unwrap());
    let results = [None, Some(first.as_str()), Some(last.as_str())];
    let expected: Vec<_> = requests(version)
        .into_iter()
        .zip(results)
        .map(|((plugin, request), result)| (plugin, with_result(&request, result)))
        .collect();
    assert_eq!(seen(&host, "ADD"), owned(&expected), "{version}");

    let outcome = cnibox("check").run();
    let checked =
        requests(version).map(|(plugin, request)| (plugin, with_result(&request, Some(&last))));
    if version < "0.4.0" {
        assert_eq!(outcome.status, 1);
        let text = "does not support the CHECK command";
        assert!(outcome.stderr.contains(text), "{}", outcome.report());
        assert_eq!(seen(&host, "CHECK"), []);
    } else {
        outcome.silence();
        assert_eq!(seen(&host, "CHECK"), owned(&checked), "{version}");
    }

    cnibox("del").run().silence();
    let result = (version >= "0.4.0").then_some(last.as_str());
    let mut deleted =
        requests(version).map(|(plugin, request)| (plugin, with_result(&request, result)));
    deleted.reverse();
    assert_eq!(seen(&host, "DEL"), owned(&deleted), "{version}");
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_list_of_every_version() {
    std::thread::scope(|scope| {
        for version in VERSIONS {
            scope.spawn(move || add_check_and_del(version));
        }
    });
}

#[test]
fn a_single_configuration_of_every_version() {
    for version in VERSIONS {
        let host = host(version);
        host.world.host(["rm", &format!("{CONFIGURATIONS}/dbnet.conflist")]);
        let text = format!(
            r#"{{"args":{{"x":1.0}},"cniVersion":"{version}","type":"rec-tuning","capabilities":{{"mac":true}},"name":"one","z":{{"b":1,"a":2}}}}"#
        );
        host.world.write(&format!("{CONFIGURATIONS}/1.conf"), text);
        let container = host.world.container("blue");
        let cnibox = |verb: &str| host.cnibox(&[verb, "one", "blue"]).env("CAP_ARGS", CAP_ARGS);
        cnibox("add").run().success();
        let request = format!(
            r#"{{"cniVersion":"{version}","name":"one","args":{{"x":1.0}},"type":"rec-tuning","z":{{"b":1,"a":2}},"runtimeConfig":{{"mac":"00:11:22:33:44:66"}}"#
        );
        assert_eq!(seen(&host, "ADD"), owned(&[("rec-tuning", with_result(&request, None))]));
        let last = result(version, LAST_MAC);
        let check = host.cnibox(&["check", "one", "blue"]).run();
        let checked = match version >= "0.4.0" {
            true => vec![("rec-tuning", with_result(&request, Some(&last)))],
            false => vec![],
        };
        assert_eq!(check.status == 0, version >= "0.4.0", "{}", check.report());
        assert_eq!(seen(&host, "CHECK"), owned(&checked));
        host.cnibox(&["del", "one", &container.netns()]).run().silence();
        let result = (version >= "0.4.0").then_some(last.as_str());
        assert_eq!(seen(&host, "DEL"), owned(&[("rec-tuning", with_result(&request, result))]));
    }
}

#[test]
fn the_environment_is_the_process_with_the_variables_of_the_call() {
    let host = host("1.1.0");
    let container = host.world.container("blue");
    let cnibox = |verb: &str, netns: &str| {
        host.cnibox(&[verb, "dbnet", netns, "--container-id", "abc", "-i", "net1"])
            .env("TEST_OWN", "kept")
            .env("CNI_COMMAND_OF_OTHERS", "x")
    };
    cnibox("add", "blue").env("CNI_ARGS", "A=b;C=d").run().success();
    let expected = |verb: &str| {
        vec![
            "CNI_ARGS=A=b;C=d".to_owned(),
            format!("CNI_COMMAND={verb}"),
            "CNI_COMMAND_OF_OTHERS=x".into(),
            "CNI_CONTAINERID=abc".into(),
            "CNI_IFNAME=net1".into(),
            "CNI_NETNS=/run/netns/blue".into(),
            "CNI_PATH=/run/own:/run/plugins".into(),
            "TEST_OWN=kept".into(),
        ]
    };
    let environments = |verb: &str| {
        for call in host.seen() {
            let mut env = call.env;
            env.retain(|line| !line.starts_with("CNIBOX_"));
            assert_eq!(env, expected(verb));
        }
    };
    environments("ADD");
    // Without arguments of its own, a CHECK and a DEL have those of the ADD.
    cnibox("check", &container.netns()).run().silence();
    environments("CHECK");
    cnibox("del", "blue").run().silence();
    environments("DEL");
}

#[test]
fn status_and_gc_have_no_attachment() {
    let host = host("1.1.0");
    let container = host.world.container("blue");
    host.cnibox(&["add", "dbnet", "blue", "--container-id", "abc"]).run().success();
    host.seen();
    host.cnibox(&["status", "dbnet", &container.netns()]).run().silence();
    let plain = |(plugin, request): (&'static str, String)| {
        let mut config: Value = serde_json::from_str(&with_result(&request, None)).unwrap();
        config.as_object_mut().unwrap().remove("runtimeConfig");
        (plugin.to_owned(), config)
    };
    let expected = requests("1.1.0").map(plain);
    let seen = host.seen();
    let configs: Vec<_> = seen.iter().map(|call| (call.plugin.clone(), call.config())).collect();
    assert_eq!(configs, expected);
    for call in &seen {
        assert_eq!(call.command, "STATUS");
        assert_eq!(call.variable("CNI_PATH"), Some("/run/own:/run/plugins"));
        for name in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS"] {
            assert_eq!(call.variable(name), None);
        }
    }
    // The recorders make no interface, so only the namespace tells what lives.
    host.cnibox(&["gc", "dbnet", "--uncached"]).run().silence();
    let valid = json!([{"containerID": "abc", "ifname": "eth0"}]);
    let expected = expected.map(|(plugin, mut config)| {
        config["cni.dev/valid-attachments"] = valid.clone();
        config["cni.dev/attachments"] = valid.clone();
        (plugin, config)
    });
    let seen = host.seen();
    assert!(seen.iter().all(|call| call.command == "GC"), "{seen:?}");
    let configs: Vec<_> = seen.iter().map(|call| (call.plugin.clone(), call.config())).collect();
    assert_eq!(configs, expected);
}

#[test]
fn an_older_version_has_no_status_and_no_gc() {
    let host = host("1.0.0");
    host.world.container("blue");
    host.cnibox(&["add", "dbnet", "blue"]).run().success();
    host.seen();
    let status = host.cnibox(&["status", "dbnet"]).run();
    assert_eq!((status.status, status.stdout.as_str()), (0, ""));
    let note = "note: no plugin of dbnet was asked: cniVersion 1.0.0 has no STATUS\n";
    assert_eq!(status.stderr, note);
    host.cnibox(&["gc", "dbnet", "--uncached"]).run().silence();
    assert_eq!(host.titles(), [""; 0]);
}

#[test]
fn check_and_gc_can_be_disabled() {
    let host = Host::new();
    host.recorder("rec", &printing(&json!({"cniVersion": "1.1.0"})));
    let network = json!({
        "cniVersion": "1.1.0", "name": "net", "disableCheck": true, "disableGC": "true", "plugins": [{"type": "rec"}],
    });
    host.configure("1.conflist", &network);
    let container = host.world.container("c1");
    host.cnibox(&["add", "net", "c1"]).run().success();
    host.seen();
    host.cnibox(&["check", "net", "c1"]).run().silence();
    container.destroy();
    host.cnibox(&["gc", "net", "--uncached"]).run().silence();
    host.cnibox(&["gc"]).run().silence();
    assert_eq!(host.titles(), [""; 0]);
    assert_eq!(host.kept().len(), 2, "{:?}", host.kept());
}
