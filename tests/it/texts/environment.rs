//! Mistakes in the environment, and calls that a version does not allow.

use serde_json::json;

use super::{base, none, problem};
use crate::world::{Bare, with};

type Variables = &'static [(&'static str, &'static str)];

/// The section, variables that are other than usual, the code and how the message begins.
const ENVIRONMENT: [(&str, Variables, u64, &str); 10] = [
    ("0.4", &[("CNI_CONTAINERID", "")], 4, "required env variables [CNI_CONTAINERID] missing"),
    (
        "0.4",
        &[("CNI_CONTAINERID", ""), ("CNI_NETNS", ""), ("CNI_IFNAME", "")],
        4,
        "required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME] missing",
    ),
    ("0.5", &[("CNI_CONTAINERID", "a b")], 4, "invalid characters in containerID"),
    ("0.5", &[("CNI_IFNAME", "sixteen-bytes-xy")], 4, "interface name is too long"),
    ("0.6", &[("CNI_COMMAND", "add")], 4, "unknown CNI_COMMAND: add"),
    (
        "0.8",
        &[("CNI_NETNS", "/none")],
        999,
        "failed to open netns \"/none\": no such file or directory",
    ),
    ("0.8", &[("CNI_NETNS", "/")], 999, "failed to open netns \"/\""),
    ("0.12", &[("CNI_ARGS", "MAC")], 4, "ARGS: invalid pair"),
    ("0.12", &[("CNI_ARGS", "MAC=a;")], 4, "ARGS: invalid pair"),
    ("0.12", &[("CNI_ARGS", "X=1")], 4, "ARGS: unknown args ["),
];

#[test]
fn the_error_of_a_wrong_environment_has_the_words_of_the_reference() {
    let bare = Bare::new();
    let problems: Vec<String> = ENVIRONMENT
        .iter()
        .filter_map(|(section, variables, code, begins)| {
            let call = bare.call("bridge", "ADD", &base("bridge"));
            let call = variables.iter().fold(call, |call, (name, value)| call.env(name, value));
            problem(section, call, *code, begins)
        })
        .collect();
    none(&problems);
}

#[test]
fn the_error_of_a_version_that_lacks_a_verb_has_the_words_of_the_reference() {
    let bare = Bare::new();
    let rows = [
        ("CHECK", "0.3.1", "config version does not allow CHECK"),
        ("GC", "1.0.0", "config version does not allow GC"),
        ("STATUS", "1.0.0", "config version does not allow STATUS"),
        ("CHECK", "1.9.0", "plugin version does not allow CHECK"),
    ];
    let problems: Vec<String> = rows
        .iter()
        .filter_map(|(verb, version, begins)| {
            let config = with(&base("bridge"), json!({"cniVersion": version}));
            problem("0.6", bare.call("bridge", verb, &config), 1, begins)
        })
        .collect();
    none(&problems);
}

#[test]
fn the_error_of_invalid_json_has_the_words_of_the_reference() {
    let bare = Bare::new();
    let stdins = ["", "{", "[] x"];
    let problems: Vec<String> = stdins
        .iter()
        .filter_map(|stdin| {
            let call = bare.call("bridge", "ADD", &json!({})).stdin(*stdin);
            problem("0.4", call, 6, "error unmarshall network config")
        })
        .collect();
    none(&problems);
}

#[test]
fn the_errors_of_ipam_arguments_have_the_words_of_the_reference() {
    let bare = Bare::new();
    let rows = [
        ("2.1", "host-local", "IP=x", "ARGS: "),
        ("2.2", "static", "IP=10.0.0.1/24;GATEWAY=x", "invalid gateway address"),
    ];
    let problems: Vec<String> = rows
        .iter()
        .filter_map(|(section, plugin, args, begins)| {
            let call = bare.call(plugin, "ADD", &base(plugin)).env("CNI_ARGS", args);
            problem(section, call, 4, begins)
        })
        .collect();
    none(&problems);
}

#[test]
fn without_directories_no_plugin_is_found() {
    let bare = Bare::new();
    let config = with(&base("dummy"), json!({"ipam": {"type": "none"}}));
    let call = bare.call("dummy", "ADD", &config).without("CNI_PATH");
    none(&problem("0.13", call, 7, "no paths provided").into_iter().collect::<Vec<_>>());
}
