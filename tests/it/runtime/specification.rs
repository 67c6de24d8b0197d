//! Section 3 of the specification, "Execution of Network Configurations", and its appendix. Each rule has a test:
//!
//! | rule | test |
//! |---|---|
//! | the namespace exists before a plugin is called | `specification::without_a_namespace_no_plugin_is_called` |
//! | no parallel operations for a container, parallel ones for different containers | `lifecycle::operations_of_one_container_exclude_each_other_and_of_others_do_not` |
//! | plugins handle concurrent calls | `threads::many_threads_add_and_delete_in_one_process` |
//! | a delete follows an add, also one that fails | `lifecycle::a_failed_add_is_followed_by_del_of_the_whole_list` |
//! | the same after the death of the runtime | `killed::after_an_add_that_was_killed_del_leaves_nothing` |
//! | a delete can be repeated | `lifecycle::del_of_a_missing_attachment_calls_the_plugins_and_fails_without_ignore` |
//! | the configuration does not change between add and delete | `lifecycle::the_configuration_of_the_add_is_that_of_the_del` |
//! | nor, for what is attached, with a later attachment | `specification::a_changed_configuration_is_that_of_later_attachments` |
//! | the runtime cleans up the namespace that it made | `arguments::create_and_delete_are_all_or_nothing` |
//! | the same after its death | `killed::after_an_add_with_create_that_was_killed_gc_leaves_nothing` |
//! | the form of a container id | `specification::a_container_id_has_the_form_of_the_specification` |
//! | CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_ARGS and CNI_PATH are set | `recorded::the_environment_is_the_process_with_the_variables_of_the_call` |
//! | add: a missing plugin is an error | `lifecycle::a_plugin_that_is_missing_fails_the_add_before_anything_is_done` |
//! | add: the first plugin gets no result, another one that of the plugin before | `recorded::a_list_of_every_version` |
//! | add: an error ends it, and is returned | `lifecycle::a_failed_add_is_followed_by_del_of_the_whole_list` |
//! | add: the last result is stored | `cached::the_entry_that_we_write_is_libcnis` |
//! | delete: in reverse order, with the last result | `recorded::a_list_of_every_version` |
//! | delete: an error is returned; we go on, so that nothing is left | `lifecycle::a_del_goes_on_past_what_fails_or_is_missing_and_keeps_the_entry_until_all_succeeded` |
//! | check: with the parameters of add, and the last result | `recorded::the_environment_is_the_process_with_the_variables_of_the_call` |
//! | check: an error, or a missing plugin, ends it | `specification::check_and_status_end_at_the_first_error` |
//! | check: `disableCheck` | `recorded::check_and_gc_can_be_disabled` |
//! | gc: each plugin once, without parameters of an attachment | `recorded::status_and_gc_have_no_attachment` |
//! | gc: goes on after an error, and returns all | `specification::gc_goes_on_after_an_error_and_returns_all` |
//! | gc: `disableGC` | `recorded::check_and_gc_can_be_disabled` |
//! | gc: not at the same time as add and delete | `gc_of_ended::a_gc_during_adds_takes_nothing_away` |
//! | `cniVersion` is the highest that both know | `configurations::the_highest_version_that_both_know_is_spoken` |
//! | `cniVersion`, `name`, `runtimeConfig` and `prevResult` are inserted, `capabilities` is removed, the rest stays | `recorded::a_list_of_every_version` |
//! | the same of a single configuration | `recorded::a_single_configuration_of_every_version` |
//! | `cni.dev/valid-attachments` is inserted for gc | `recorded::status_and_gc_have_no_attachment` |
//! | the appendix: what each plugin gets | `specification::plugins_get_what_the_appendix_prints` |
//! | the appendix: with our plugins | `specification::the_appendix_runs_with_our_plugins` |
//!
//! The rules of GC are those of version 1.1.0, the others are in 1.0.0, too.

use std::fs;

use serde_json::{Value, json};

use super::{Host, list, printing};
use crate::spec::{BLUE, example, with_real_names};
use crate::world::{Call, with, without};

const LIST: &str = include_str!("../spec/1.0.0/list.jsonc");
const CAP_ARGS: &str = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],"mac":"00:11:22:33:44:66"}"#;

#[test]
fn each_rule_of_the_table_has_a_test() {
    let own = include_str!("specification.rs");
    let rows = own.lines().filter_map(|line| line.strip_prefix("//! | ")).skip(1);
    let tests: Vec<&str> = rows.filter_map(|row| row.rsplit('`').nth(1)).collect();
    assert!(tests.len() > 30, "{tests:?}");
    for test in tests {
        let (file, name) = test.split_once("::").unwrap();
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
        let text = fs::read_to_string(format!("{directory}/runtime/{file}.rs"))
            .or_else(|_| fs::read_to_string(format!("{directory}/{file}.rs")))
            .unwrap();
        assert!(text.contains(&format!("#[test]\nfn {name}() {{")), "{test}");
    }
}

fn host_with(version: &str, kinds: &[&str]) -> Host {
    let host = Host::new();
    for kind in kinds {
        host.recorder(kind, &printing(&json!({"cniVersion": version})));
    }
    host.configure("1.conflist", &list(version, kinds));
    host.world.container("c1");
    host
}

#[test]
fn without_a_namespace_no_plugin_is_called() {
    let host = host_with("1.0.0", &["one"]);
    host.world.write("/run/netns/file", "");
    for netns in ["missing", "file", "/run/netns/missing", "999999999"] {
        let outcome = host.cnibox(&["add", "net", netns]).run();
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        assert!(outcome.stderr.contains("cannot open network namespace"), "{}", outcome.report());
    }
    assert_eq!((host.titles(), host.kept()), (vec![], vec![]));
}

#[test]
fn a_changed_configuration_is_that_of_later_attachments() {
    let host = host_with("1.0.0", &["one"]);
    host.recorder("two", &printing(&json!({"cniVersion": "1.0.0"})));
    host.world.container("c2");
    host.cnibox(&["add", "net", "c1"]).run().success();
    host.configure("1.conflist", &list("1.0.0", &["two"]));
    host.cnibox(&["add", "net", "c2"]).run().success();
    for verb in ["check", "del"] {
        for netns in ["c1", "c2"] {
            host.cnibox(&[verb, "net", netns]).run().silence();
        }
    }
    let expected = ["one ADD", "two ADD", "one CHECK", "two CHECK", "one DEL", "two DEL"];
    assert_eq!(host.titles(), expected);
}

#[test]
fn a_container_id_has_the_form_of_the_specification() {
    let host = host_with("1.0.0", &["one"]);
    let call = |id: &str| host.cnibox(&["add", "net", "c1", "--container-id", id]).run();
    for id in ["", "-a", "_a", ".a", "a b", "a/b", "ä"] {
        assert_eq!(call(id).status, 2, "{id:?}");
    }
    assert_eq!(host.titles(), [""; 0]);
    for id in ["a", "0", "a_b.c-D", "7f3e"] {
        call(id).success();
        assert_eq!(host.seen()[0].variable("CNI_CONTAINERID"), Some(id));
        host.cnibox(&["del", "--container-id", id]).run().silence();
        host.seen();
    }
}

/// Fails when the test says so.
const FAILING: &str = r#"if [ $CNI_COMMAND = $TEST_FAILS ]; then
echo "{\"code\": 107, \"msg\": \"$0 fails\"}"; exit 1; fi; [ $CNI_COMMAND != ADD ] || echo '{}'"#;

#[test]
fn check_and_status_end_at_the_first_error() {
    let host = host_with("1.1.0", &["one", "two", "three"]);
    host.recorder("two", FAILING);
    host.cnibox(&["add", "net", "c1"]).env("TEST_FAILS", "-").run().success();
    host.seen();
    for (verb, command) in [("check", "CHECK"), ("status", "STATUS")] {
        let call = || host.cnibox(&[verb, "net", "c1"]).env("TEST_FAILS", command).run();
        let outcome = call();
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        assert!(outcome.stderr.contains("/run/own/two fails"), "{}", outcome.report());
        assert_eq!(host.titles(), [format!("one {command}"), format!("two {command}")]);
    }
    host.world.host(["rm", "/run/own/two"]);
    for (verb, expected) in [("check", "one CHECK"), ("status", "one STATUS")] {
        let outcome = host.cnibox(&[verb, "net", "c1"]).run();
        assert_eq!(outcome.status, 1, "{}", outcome.report());
        assert!(outcome.stderr.contains("failed to find plugin \"two\""), "{}", outcome.report());
        assert_eq!(host.titles(), [expected]);
    }
}

#[test]
fn gc_goes_on_after_an_error_and_returns_all() {
    let host = host_with("1.1.0", &["one", "two", "three", "four"]);
    for kind in ["one", "three"] {
        host.recorder(kind, FAILING);
    }
    host.world.host(["rm", "/run/own/two"]);
    let outcome = host.cnibox(&["gc", "net", "--uncached"]).env("TEST_FAILS", "GC").run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    for text in ["/run/own/one fails", "failed to find plugin \"two\"", "/run/own/three fails"] {
        assert!(outcome.stderr.contains(text), "{text}: {}", outcome.report());
    }
    assert_eq!(host.titles(), ["one GC", "three GC", "four GC"]);
}

/// A host with a network, and a container at the path that the appendix prints.
fn host_of_the_appendix(network: &Value) -> Host {
    let host = Host::new();
    host.configure("dbnet.conflist", network);
    host.world.container("blue");
    host
}

/// A call with the parameters that the appendix names.
fn call_of_the_appendix<'a>(host: &'a Host, verb: &str, args: &str) -> Call<'a> {
    let call = host.cnibox(&[verb, "dbnet", BLUE, "--container-id", "blue"]);
    call.env("CAP_ARGS", CAP_ARGS).env("CNI_ARGS", args)
}

#[test]
fn plugins_get_what_the_appendix_prints() {
    let mut network = example(LIST);
    // The requests of the appendix have no routes.
    network["plugins"][0]["ipam"].as_object_mut().unwrap().remove("routes");
    let host = host_of_the_appendix(&network);
    let with_version = |text: &str| with(&example(text), json!({"cniVersion": "1.0.0"}));
    let of_bridge = with_version(include_str!("../spec/1.0.0/add-result.jsonc"));
    let of_tuning = with_version(include_str!("../spec/1.0.0/tuning-result.jsonc"));
    for (plugin, result) in
        [("bridge", &of_bridge), ("tuning", &of_tuning), ("portmap", &of_tuning)]
    {
        host.recorder(plugin, &printing(result));
    }
    let add = include_str!("../spec/1.0.0/add.jsonc");
    let tuning_add = include_str!("../spec/1.0.0/tuning-add.jsonc");
    let check = include_str!("../spec/1.0.0/check.jsonc");
    let delete = include_str!("../spec/1.0.0/delete.jsonc");
    let tuning = include_str!("../spec/1.0.0/tuning.jsonc");
    let portmap = include_str!("../spec/1.0.0/portmap.jsonc");
    for (verb, printed) in [
        ("add", [("bridge", add), ("tuning", tuning_add), ("portmap", portmap)]),
        ("check", [("bridge", check), ("tuning", tuning), ("portmap", portmap)]),
        ("del", [("portmap", portmap), ("tuning", tuning), ("bridge", delete)]),
    ] {
        let outcome = call_of_the_appendix(&host, verb, "argA=foo").run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        let seen = host.seen();
        let got: Vec<(String, Value)> = seen
            .iter()
            .map(|call| {
                assert_eq!(call.variable("CNI_ARGS"), Some("argA=foo"));
                assert_eq!(call.variable("CNI_IFNAME"), Some("eth0"));
                let mut config = call.config();
                if let Some(Value::Object(result)) = config.get_mut("prevResult") {
                    assert_eq!(result.remove("cniVersion"), Some("1.0.0".into()));
                }
                (call.title(), config)
            })
            .collect();
        let title = |plugin: &str| format!("{plugin} {}", verb.to_uppercase());
        let expected = printed.map(|(plugin, text)| (title(plugin), example(text)));
        assert_eq!(got, expected);
    }
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn the_appendix_runs_with_our_plugins() {
    let host = host_of_the_appendix(&example(LIST));
    let call = |verb: &str| call_of_the_appendix(&host, verb, "argA=foo;IgnoreUnknown=1").run();
    // The tables of nf_tables, and the bridge, stay from the first time on.
    call("add").success();
    call("del").silence();
    let before = host.world.state().apart_from("cni0", "dbnet");
    // The next address is the one that is printed.
    host.world.write("/var/lib/cni/networks/dbnet/last_reserved_ip.0", "10.1.0.4");
    let result = call("add").success();
    let printed = example(include_str!("../spec/1.0.0/tuning-result.jsonc"));
    assert_eq!(without(&result, "cniVersion"), with_real_names(&printed, &result));
    assert!(host.world.host(["nft", "list", "ruleset"]).contains("10.1.0.5 . 80"));
    call("check").silence();
    call("del").silence();
    assert_eq!(host.kept(), [""; 0]);
    before.assert_same(&host.world.state().apart_from("cni0", "dbnet"), "after DEL");
}
