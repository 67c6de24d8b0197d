//! The variables: which verb needs which, what they may hold, and what is found wrong first.

use super::host_local;
use crate::world::{Bare, VERSIONS, plugin_names};

const VERSION_ANSWER: &str = concat!(
    r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#,
    "\n"
);

#[test]
fn without_a_command_every_plugin_introduces_itself_and_does_not_wait_for_stdin() {
    let bare = Bare::new();
    for name in plugin_names() {
        let introduction = format!(
            "CNI {name} plugin v1.9.1+cnibox.{}\nCNI protocol versions supported: {}\n",
            env!("CARGO_PKG_VERSION"),
            VERSIONS.join(", "),
        );
        for call in [bare.plugin(&name), bare.plugin(&name).env("CNI_COMMAND", "")] {
            let outcome = call.keeping_stdin_open().run();
            assert!(outcome.status == 0 && outcome.stdout.is_empty(), "{}", outcome.report());
            assert_eq!(outcome.stderr, introduction);
        }
    }
}

#[test]
fn version_needs_nothing_but_the_command_and_does_not_wait_for_stdin() {
    let bare = Bare::new();
    for name in plugin_names() {
        let outcome = bare.plugin(&name).env("CNI_COMMAND", "VERSION").keeping_stdin_open().run();
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, VERSION_ANSWER), "{name}");
        assert_eq!(outcome.stderr, "");
    }
}

#[test]
fn version_ignores_what_else_it_is_given() {
    let bare = Bare::new();
    // The values of libcni, of ocicni and podman, and invalid ones.
    for stdin in [r#"{"cniVersion":"0.3.1"}"#, "", "{", "\u{0}"] {
        let outcome = bare
            .plugin("bridge")
            .env("CNI_COMMAND", "VERSION")
            .env("CNI_NETNS", "dummy")
            .env("CNI_IFNAME", "dummy/dummy:dummy dummy dummy")
            .env("CNI_CONTAINERID", "-")
            .env("CNI_PATH", "dummy")
            .stdin(stdin)
            .run();
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, VERSION_ANSWER), "{stdin}");
    }
}

#[test]
fn every_missing_variable_is_named() {
    let all = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
    let cases: [(&str, &[&str]); 11] = [
        ("ADD", &all[..1]),
        ("ADD", &all[1..2]),
        ("ADD", &all[2..]),
        ("ADD", &all),
        ("CHECK", &all[1..]),
        ("CHECK", &all),
        ("DEL", &["CNI_CONTAINERID"]),
        ("DEL", &["CNI_IFNAME"]),
        ("DEL", &["CNI_CONTAINERID", "CNI_IFNAME"]),
        ("GC", &["CNI_PATH"]),
        ("ADD", &["CNI_IFNAME", "CNI_PATH"]),
    ];
    let bare = Bare::new();
    for (verb, missing) in cases {
        let required = missing.iter().filter(|&&name| verb == "GC" || name != "CNI_PATH");
        let list: Vec<&str> = required.copied().collect();
        let text = format!("required env variables [{}] missing", list.join(","));
        let call = bare.call("host-local", verb, &host_local(&bare));
        let absent = missing.iter().fold(call.clone(), |call, name| call.without(name));
        let empty = missing.iter().fold(call, |call, name| call.env(name, ""));
        for call in [absent, empty] {
            let error = call.run().fails(4, &[]);
            assert!(error.msg.contains(&text), "{verb} without {missing:?}: {error:?}");
        }
    }
    assert_eq!(bare.taken("net"), [""; 0], "a refused call does nothing");
}

#[test]
fn optional_variables_may_be_missing() {
    let bare = Bare::new();
    let config = host_local(&bare);
    let bare_call = |verb: &str| bare.call("host-local", verb, &config).without("CNI_PATH");
    bare_call("ADD").run().success();
    bare_call("CHECK").run().silence();
    bare_call("DEL").without("CNI_NETNS").run().silence();
    let ids = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
    let status = ids.iter().fold(bare_call("STATUS"), |call, name| call.without(name));
    status.run().silence();
}

#[test]
fn an_invalid_container_id_is_refused() {
    let bare = Bare::new();
    let config = host_local(&bare);
    for id in ["-a", ".a", "_a", "a/b", "../a", "a b", "a\n", "\na", "ä", "a\u{e4}", "a:b", "a;b"]
    {
        for verb in ["ADD", "CHECK", "DEL"] {
            let call = bare.call("host-local", verb, &config).env("CNI_CONTAINERID", id);
            let error = call.run().fails(4, &[]);
            assert_eq!(error.details, id, "{error:?}");
        }
    }
    let long = "a".repeat(4000);
    for id in ["a", "0", "A-", "a_b.c-D9", long.as_str()] {
        let call = |verb| bare.call("host-local", verb, &config).env("CNI_CONTAINERID", id);
        call("ADD").run().success();
        call("DEL").run().silence();
    }
}

#[test]
fn an_invalid_interface_name_is_refused() {
    let bare = Bare::new();
    let config = host_local(&bare);
    let bad = [".", "..", "a/b", "a:b", "a b", "a\tb", "a\n", "a\u{a0}b", "a\u{2003}b", "a\u{85}b"];
    let long = ["abcdefghijklmnop", "ääääääää"];
    for verb in ["ADD", "CHECK", "DEL"] {
        let call = |name| bare.call("host-local", verb, &config).env("CNI_IFNAME", name).run();
        for name in bad {
            call(name).fails(4, &[]);
        }
        for name in long {
            call(name).fails(4, &["less than 16 characters"]);
        }
    }
    for name in ["e", "abcdefghijklmno", "...", "eth0.100", "ä", "-"] {
        let call = |verb| bare.call("host-local", verb, &config).env("CNI_IFNAME", name);
        call("ADD").run().success();
        call("DEL").run().silence();
    }
}

#[test]
fn the_first_mistake_is_the_error() {
    let bare = Bare::new();
    let add = bare.call("host-local", "ADD", &host_local(&bare));
    let missing = "required env variables";

    let error = add.clone().env("CNI_CONTAINERID", "-").without("CNI_IFNAME").run().fails(4, &[]);
    assert!(!error.msg.contains(missing), "a bad id goes before missing variables: {error:?}");
    let error = add.clone().without("CNI_NETNS").env("CNI_IFNAME", "a b").run().fails(4, &[]);
    assert!(!error.msg.contains(missing), "a bad name goes before missing variables: {error:?}");

    add.clone().without("CNI_NETNS").stdin("{").run().fails(4, &[missing]);
    add.stdin(r#"{"cniVersion":"9.9.9"}"#).run().fails(7, &["missing network name"]);
}

#[test]
fn a_missing_variable_is_found_before_stdin_is_waited_for() {
    let bare = Bare::new();
    let add = bare.call("host-local", "ADD", &host_local(&bare)).without("CNI_NETNS");
    add.keeping_stdin_open().run().fails(4, &["CNI_NETNS"]);
}

#[test]
fn an_unknown_command_is_named_after_the_configuration_was_found_good() {
    let bare = Bare::new();
    for command in ["FOO", "add", "Add", "ADD ", "VERSIONS"] {
        let alone = || bare.plugin("host-local").env("CNI_COMMAND", command);
        let error = alone().config(&host_local(&bare)).run().fails(4, &[]);
        assert!(error.msg.contains(&format!("unknown CNI_COMMAND: {command}")), "{error:?}");
        alone().run().fails(6, &[]);
        alone().stdin("{}").run().fails(7, &["missing network name"]);
    }
    assert_eq!(bare.taken("net"), [""; 0]);
}
