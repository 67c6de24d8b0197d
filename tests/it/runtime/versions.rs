//! Versions: what plugins say of them, and results of older ones inside a newer list.

use serde_json::json;

use super::{Host, NOTES, list, printing};

/// Runs ADD of a list of version 1.0.0 with a plugin that has this answer to VERSION. Returns the exit code and stderr.
fn add_with(answer: &str) -> (Host, i32, String) {
    let host = Host::new();
    host.recorder_speaking("old", answer, "echo '{}'");
    host.configure("1.conflist", &list("1.0.0", &["old"]));
    host.world.container("c1");
    let outcome = host.cnibox(&["add", "net", "c1"]).run();
    (host, outcome.status, outcome.stderr)
}

#[test]
fn a_version_that_a_plugin_does_not_speak_is_named_with_those_that_it_speaks() {
    let speaks = |text: &str| format!("echo '{text}'");
    for (answer, spoken) in [
        (
            speaks(r#"{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}"#),
            "speaks 0.3.1, 0.4.0",
        ),
        // Between 0.1.0 and the list of versions, and before the question.
        (speaks(r#"{"cniVersion":"0.2.0"}"#), "speaks 0.1.0, 0.2.0"),
        (speaks(r#"{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}"#) + "; exit 1", "speaks 0.1.0"),
    ] {
        let (host, status, stderr) = add_with(&answer);
        assert_eq!(status, 1, "{stderr}");
        for text in ["plugin old does not speak CNI version \"1.0.0\"", spoken] {
            assert!(stderr.contains(text), "{text}: {stderr}");
        }
        assert_eq!((host.titles(), host.kept()), (vec![], vec![]));
    }
}

#[test]
fn an_answer_that_cannot_be_read_fails_the_add() {
    for (answer, text) in [
        ("echo nonsense", "cannot ask plugin /run/own/old for its VERSION"),
        ("echo broken >&2; exit 1", "netplugin failed: \"broken\""),
    ] {
        let (host, status, stderr) = add_with(answer);
        assert_eq!(status, 1, "{stderr}");
        assert!(stderr.contains(text), "{text}: {stderr}");
        assert_eq!(host.titles(), [""; 0]);
    }
}

#[test]
fn each_file_gets_one_version_call() {
    let host = Host::new();
    for kind in ["one", "two"] {
        host.recorder(kind, "echo '{}'");
    }
    host.configure("1.conflist", &list("1.0.0", &["one", "two", "one", "one"]));
    host.world.container("c1");
    host.cnibox(&["add", "net", "c1"]).run().success();
    let asked = host.world.read(&format!("{NOTES}/versions"));
    assert_eq!(asked.lines().count(), 2);
}

#[test]
fn the_question_comes_as_libcni_asks_it() {
    let host = Host::new();
    let answer = r#"env | grep ^CNI_ | sort > /run/asked; cat >> /run/asked; echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0"]}'"#;
    host.recorder_speaking("one", answer, "echo '{}'");
    host.configure("1.conflist", &list("1.0.0", &["one"]));
    host.world.container("c1");
    host.cnibox(&["add", "net", "c1"]).run().success();
    let expected = "CNI_COMMAND=VERSION\nCNI_IFNAME=dummy\nCNI_NETNS=dummy\nCNI_PATH=dummy\n{\"cniVersion\":\"1.1.0\"}";
    assert_eq!(host.world.read("/run/asked"), expected);
}

#[test]
fn results_of_older_plugins_are_converted() {
    let old = json!({
        "cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
        "ip6": {"ip": "fd00::5/64"}, "dns": {},
    });
    let middle = json!({
        "cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/c1"}],
        "ips": [{"version": "4", "address": "10.1.0.5/16", "interface": 0}], "dns": {},
    });
    let host = Host::new();
    host.recorder("old", &printing(&old));
    host.recorder("middle", &printing(&middle));
    host.recorder(
        "last",
        "[ $CNI_COMMAND != ADD ] || sed 's/.*\"prevResult\"://; s/}$//' /run/notes/$number.stdin",
    );
    host.configure("1.conflist", &list("1.1.0", &["old", "middle", "last"]));
    host.world.container("c1");
    let result = host.cnibox(&["add", "net", "c1"]).run().success();
    let seen = host.seen();
    let of_old = json!({
        "cniVersion": "1.1.0", "routes": [{"dst": "0.0.0.0/0"}],
        "ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}],
    });
    let of_middle = json!({
        "cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/c1"}],
        "ips": [{"address": "10.1.0.5/16", "interface": 0}],
    });
    assert_eq!(seen[1].config()["prevResult"], of_old);
    assert_eq!(seen[2].config()["prevResult"], of_middle);
    assert_eq!(result, of_middle);
}

#[test]
fn a_cached_result_of_another_version_is_converted() {
    let host = Host::new();
    host.recorder(
        "one",
        &printing(&json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.5/16"}]})),
    );
    host.configure("1.conflist", &list("1.1.0", &["one"]));
    host.world.container("c1");
    host.cnibox(&["add", "net", "c1"]).run().success();
    host.configure("1.conflist", &list("0.4.0", &["one"]));
    host.seen();
    for verb in ["check", "del"] {
        host.cnibox(&[verb, "/run/net.d/1.conflist", "c1"]).run().silence();
        let expected = json!({
            "cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.1.0.5/16"}], "dns": {},
        });
        assert_eq!(host.seen()[0].config()["prevResult"], expected);
    }
}
