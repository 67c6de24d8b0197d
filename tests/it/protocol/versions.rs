//! Versions of the specification: which are spoken, what each verb needs, and the shape of an error.

use serde_json::json;

use super::host_local;
use crate::world::{Bare, VERSIONS, with, without};

#[test]
fn a_version_that_we_do_not_speak_is_refused() {
    let bare = Bare::new();
    let list = VERSIONS.map(|version| format!("\"{version}\"")).join(" ");
    for version in ["9.9.9", "1.0", "1.0.5", "1.2.0", "0.5.0", "abc", "v1.0.0", " 1.0.0"] {
        let config = with(&host_local(&bare), json!({"cniVersion": version}));
        for verb in ["ADD", "DEL"] {
            let error = bare.call("host-local", verb, &config).run().fails(1, &[]);
            assert_eq!(error.msg, "incompatible CNI versions");
            let details = format!("config is \"{version}\", plugin supports [{list}]");
            assert_eq!(error.details, details);
        }
    }
    assert!(!bare.network("").exists(), "a refused call does nothing");
}

#[test]
fn no_version_means_the_first() {
    let bare = Bare::new();
    let config = host_local(&bare);
    for (id, versionless) in [
        ("a", without(&config, "cniVersion")),
        ("b", with(&config, json!({"cniVersion": ""}))),
        ("c", with(&config, json!({"cniVersion": null}))),
    ] {
        let call = bare.call("host-local", "ADD", &versionless).env("CNI_CONTAINERID", id);
        let result = call.run().success();
        assert_eq!(result["cniVersion"], "0.1.0");
        assert!(result["ip4"]["ip"].is_string(), "{result}");
    }
}

#[test]
fn verbs_need_a_version_that_has_them() {
    let bare = Bare::new();
    let config = host_local(&bare);
    bare.call("host-local", "ADD", &config).run().success();
    let config = with(&config, json!({"cni.dev/valid-attachments": []}));
    for (verb, since) in [("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")] {
        for version in ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let config = with(&config, json!({"cniVersion": version}));
            let outcome = bare.call("host-local", verb, &config).run();
            if version >= since {
                outcome.silence();
            } else {
                let error = outcome.fails(1, &[]);
                let text = format!("config version does not allow {verb}");
                assert!(error.msg.contains(&text), "{version}: {error:?}");
            }
        }
    }
}

#[test]
fn verbs_judge_versions_that_do_not_exist() {
    let bare = Bare::new();
    let config = with(&host_local(&bare), json!({"cni.dev/valid-attachments": []}));
    let (too_old, too_new) = ("config version does not allow", "plugin version does not allow");
    let unknown = "incompatible CNI versions";
    let cases = [
        ("CHECK", "0.3.9", 1, too_old),
        ("GC", "1.0.7", 1, too_old),
        ("STATUS", "1.0.7", 1, too_old),
        ("CHECK", "1.2.0", 1, too_new),
        ("GC", "1.2.0", 1, too_new),
        ("STATUS", "2", 1, too_new),
        ("CHECK", "1.0.7", 1, unknown),
        ("CHECK", "1.1", 1, unknown),
        ("GC", "1.1", 1, unknown),
        ("CHECK", "1.1.0.0", 6, ""),
        ("GC", "one", 6, ""),
        ("STATUS", "1.x", 6, ""),
    ];
    for (verb, version, code, text) in cases {
        let config = with(&config, json!({"cniVersion": version}));
        bare.call("host-local", verb, &config).run().fails(code, &[text]);
    }
}

#[test]
fn an_error_carries_the_version_of_the_configuration() {
    let bare = Bare::new();
    for version in VERSIONS {
        let config = with(&host_local(&bare), json!({"cniVersion": version, "ipam": null}));
        let outcome = bare.call("host-local", "ADD", &config).run();
        assert!(outcome.stdout.starts_with("{\n    \""), "{}", outcome.report());
        assert_eq!(outcome.error().cni_version, version);
    }
}

#[test]
fn output_is_escaped_as_go_escapes_it() {
    let bare = Bare::new();
    let dns = json!({"search": ["a<b>&c\u{2028}d\u{2029}\u{e4}\"\\\u{1}"]});
    let config =
        json!({"cniVersion": "1.0.0", "name": "net", "ipam": {"type": "static", "dns": dns}});
    let outcome = bare.call("static", "ADD", &config).run();
    let escaped = r#""a\u003cb\u003e\u0026c\u2028d\u2029ä\"\\\u0001""#;
    assert!(outcome.stdout.contains(escaped), "{}", outcome.report());
}
