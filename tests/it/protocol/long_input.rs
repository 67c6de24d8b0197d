//! DEL, CHECK and GC read what ADD has accepted, with the result and the attachments in addition.

use serde_json::{Value, json};

use super::host_local;
use crate::world::{Bare, with};

const MIB: usize = 1 << 20;

#[test]
fn what_add_accepts_can_be_deleted_with_a_long_result() {
    let bare = Bare::new();
    let config = with(&host_local(&bare), json!({"padding": "x".repeat(4 * MIB - 1000)}));
    let result = bare.call("host-local", "ADD", &config).run().success();
    let longer = |key: &str, value: Value| with(&config, json!({key: value}));
    bare.call("host-local", "ADD", &longer("more", json!("x".repeat(2000))))
        .run()
        .fails(5, &["more than 4194304 bytes"]);
    let domains: Vec<String> =
        (0..60_000).map(|number| format!("{number}.domain.of.a.list.example")).collect();
    let previous = longer("prevResult", with(&result, json!({"dns": {"search": domains}})));
    assert!(previous.to_string().len() > 5 * MIB);
    bare.call("host-local", "CHECK", &previous).run().silence();
    let keep = json!([{"containerID": "abc", "ifname": "eth0"}]);
    let gc = with(&previous, json!({"cni.dev/valid-attachments": keep}));
    bare.call("host-local", "GC", &gc).run().silence();
    assert_eq!(bare.taken("net").len(), 1);
    bare.call("host-local", "DEL", &previous).run().silence();
    assert_eq!(bare.taken("net"), [""; 0]);
}

/// Each of these texts took minutes: for each key, the whole object was searched for the last one.
#[test]
fn a_key_that_is_repeated_all_over_a_long_configuration_takes_one_pass() {
    let bare = Bare::new();
    let config = host_local(&bare).to_string();
    for entry in [r#","name":null"#, r#","NAME":"other""#] {
        let entries = entry.repeat((4 * MIB - config.len()) / entry.len());
        let text = format!("{}{entries}}}", config.strip_suffix('}').unwrap());
        let call =
            |verb: &str| bare.call("host-local", verb, &Value::Null).stdin(text.clone()).run();
        call("ADD").success();
        assert_eq!(bare.taken("net").len(), 1);
        call("DEL").silence();
        assert_eq!(bare.taken("net"), [""; 0]);
    }
}
