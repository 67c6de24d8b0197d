//! The manuals at the heads of the plugins' files are complete: their tables of keys are compared with the sources, and
//! each key is shown to be read at its place.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Map, Value, json};

use crate::config_keys::{self, NETWORK};
use crate::world::{World, leaves, parse, plugin_names, with};

const HEADER: &str = "| key | type | default | meaning |";
const TYPES: [&str; 5] = ["boolean", "integer", "string", "list", "object"];
const VERBS: [&str; 5] = ["ADD", "CHECK", "DEL", "GC", "STATUS"];

/// Keys of CNI_ARGS stand in a table so: `CNI_ARGS: MAC`.
const IN_ARGS: &str = "CNI_ARGS: ";

/// Keys of CNI_ARGS that accept every value, so that no call can show that they are read.
const NAMES_IN_ARGS: [&str; 3] = ["pod_namespace", "pod_name", "hostname"];

/// Keys with a value of another type that ADD accepts: the plugin, the key, and the reason.
const NOT_CHECKED: [(&str, &str, &str); 1] =
    [("flannel", "runtimeConfig", "it is handed to the delegate as it is")];

struct Row {
    key: String,
    of_type: String,
    default: String,
    meaning: String,
}

/// The text at the head of a file.
fn head(plugin: &str) -> String {
    let text = fs::read_to_string(config_keys::manual(plugin)).unwrap();
    let head = text.lines().map_while(|line| line.strip_prefix("//!"));
    head.map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned() + "\n").collect()
}

fn table(plugin: &str) -> Vec<Row> {
    let head = head(plugin);
    let mut parts = head.split(HEADER);
    let Some(table) = parts.by_ref().nth(1) else { return Vec::new() };
    assert!(parts.next().is_none(), "{plugin}: the manual has two tables of keys");
    let lines = table.trim_start().lines().skip(1).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells = line.strip_prefix("| ").and_then(|rest| rest.strip_suffix(" |"));
        let cells: Vec<&str> = cells.unwrap_or_default().split(" | ").map(str::trim).collect();
        let [key, of_type, default, meaning] = cells[..] else {
            panic!("{plugin}: not four cells: {line}");
        };
        let key = key.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        let key = key.unwrap_or_else(|| panic!("{plugin}: a key is one word in ``: {line}"));
        let [key, of_type, default, meaning] = [key, of_type, default, meaning].map(str::to_owned);
        Row { key, of_type, default, meaning }
    };
    lines.map(row).collect()
}

fn subjects() -> Vec<String> {
    plugin_names().into_iter().chain([NETWORK.to_owned()]).collect()
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The names in a path.
fn parts(key: &str) -> impl Iterator<Item = &str> {
    key.split('.').map(|part| part.trim_end_matches("[]"))
}

#[test]
fn every_key_in_the_sources_is_in_the_manual() {
    let mut problems = Vec::new();
    for plugin in subjects() {
        let rows = table(&plugin);
        for (path, of_type) in config_keys::paths(&plugin) {
            match rows.iter().find(|row| row.key == path) {
                None => problems.push(format!("{plugin}: no line for {path}")),
                Some(row) if !row.of_type.starts_with(of_type) => {
                    problems.push(format!("{plugin}: {path} is of type {of_type}"));
                }
                Some(_) => {}
            }
        }
        for name in config_keys::asked(&plugin) {
            if !rows.iter().any(|row| parts(&row.key).any(|part| part == name)) {
                problems.push(format!("{plugin}: no line for {name}"));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn every_key_in_the_manual_is_in_the_sources() {
    let mut problems = Vec::new();
    for plugin in subjects() {
        let (paths, asked) = (config_keys::paths(&plugin), config_keys::asked(&plugin));
        let mut known = BTreeSet::new();
        for row in table(&plugin) {
            // A struct of keys can be read from an object that code asks for: `args.cni`.
            let is_read = |key: &str| {
                paths.contains_key(key)
                    || parts(key).all(|part| asked.contains(part) || paths.contains_key(part))
                    || key == "capabilities"
            };
            if !row.key.starts_with(IN_ARGS) && !is_read(&row.key) {
                problems.push(format!("{plugin}: no code reads {}", row.key));
            }
            if !known.insert(row.key.clone()) {
                problems.push(format!("{plugin}: two lines for {}", row.key));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn every_key_has_a_type_a_default_and_a_meaning() {
    let mut problems = Vec::new();
    let mut count = 0;
    for plugin in subjects() {
        for Row { key, of_type, default, meaning } in table(&plugin) {
            count += 1;
            let first = of_type.split(' ').next().unwrap();
            if !TYPES.contains(&first) {
                problems.push(format!("{plugin}: {key}: {first:?} is not one of {TYPES:?}"));
            }
            if default.is_empty() || meaning.len() < 10 {
                problems.push(format!("{plugin}: {key} has no default or no meaning"));
            }
        }
    }
    assert!(count > 150, "tables are found: {count}");
    assert_none(&problems);
}

/// The other keys that a call needs to reach the key.
fn base(plugin: &str) -> Value {
    match plugin {
        "dummy" | "static" => json!({"ipam": {"type": "static"}}),
        "host-local" | "dhcp" => json!({"ipam": {"type": plugin}}),
        "vlan" => json!({"master": "lo", "vlanId": 5}),
        "vrf" => json!({"vrfname": "blue"}),
        _ => json!({}),
    }
}

fn config(plugin: &str, keys: &Value) -> Value {
    let names = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin});
    merged(with(&names, base(plugin)), keys)
}

fn merged(mut base: Value, more: &Value) -> Value {
    match (base.as_object_mut(), more) {
        (Some(base), Value::Object(more)) => {
            for (key, value) in more {
                let old = base.remove(key).unwrap_or(Value::Null);
                base.insert(key.clone(), merged(old, value));
            }
            Value::Object(std::mem::take(base))
        }
        _ => more.clone(),
    }
}

/// `a.b[].c` with this value.
fn at_path(key: &str, value: Value) -> Value {
    key.rsplit('.').fold(value, |value, part| {
        let name = part.trim_end_matches("[]");
        let depth = (part.len() - name.len()) / 2;
        let value = (0..depth).fold(value, |value, _| json!([value]));
        Value::Object(Map::from_iter([(name.to_owned(), value)]))
    })
}

#[test]
fn a_value_of_another_type_is_refused_where_the_manual_has_the_key() {
    let world = World::new();
    let container = world.container("c1");
    let mut problems = Vec::new();
    for plugin in plugin_names() {
        for Row { key, of_type, .. } in table(&plugin) {
            let is_left_out = NOT_CHECKED.iter().any(|entry| (entry.0, entry.1) == (&plugin, &key));
            if key.starts_with(IN_ARGS) || is_left_out {
                continue;
            }
            let is_text = of_type.starts_with("string");
            let wrong = if is_text { json!(5) } else { json!("odd") };
            let config = config(&plugin, &at_path(&key, wrong));
            let outcome = container.call(&plugin, "ADD", &config).run();
            let name = parts(&key).last().unwrap();
            if outcome.status == 0 || !outcome.stdout.contains(name) {
                problems.push(format!("{plugin}: {key} is not read: {}", outcome.report()));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn keys_of_cni_args_are_in_the_manuals_of_those_who_read_them() {
    let world = World::new();
    let container = world.container("c1");
    let mut problems = Vec::new();
    for plugin in plugin_names() {
        let rows = table(&plugin);
        for (field, key) in config_keys::args() {
            let is_read = if NAMES_IN_ARGS.contains(&field.as_str()) {
                config_keys::says(&plugin, &format!(".{field}"))
            } else {
                let previous = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.5/24"}]});
                let config = config(&plugin, &json!({"prevResult": previous}));
                let call = container.call(&plugin, "ADD", &config);
                let outcome = call.env("CNI_ARGS", &format!("{key}=odd")).run();
                if outcome.status == 0 {
                    container.call(&plugin, "DEL", &config).run().output();
                }
                outcome.status != 0 && outcome.stdout.contains("odd")
            };
            let has_row = rows.iter().any(|row| row.key == format!("{IN_ARGS}{key}"));
            if is_read != has_row {
                problems
                    .push(format!("{plugin}: {key} is read: {is_read}, in the manual: {has_row}"));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn examples_have_keys_of_the_tables_only() {
    let mut problems = Vec::new();
    let network = table(NETWORK);
    for plugin in plugin_names() {
        let head = head(&plugin);
        let example = head.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
        let Some(example) = example.map(parse) else {
            problems.push(format!("{plugin}: the manual has no example"));
            continue;
        };
        let mut rows = table(&plugin);
        if let Some(ipam) = example["ipam"]["type"].as_str() {
            rows.extend(table(ipam));
        }
        let rows: Vec<&Row> = rows.iter().chain(&network).collect();
        for place in leaves(&example) {
            // A list of texts or numbers is one value here.
            let key = place.strip_suffix("[]").unwrap_or(&place);
            let is_below = |row: &&&Row| {
                row.of_type.starts_with("object") && key.starts_with(&format!("{}.", row.key))
            };
            if !rows.iter().any(|row| row.key == key) && !rows.iter().any(|row| is_below(&row)) {
                problems.push(format!("{plugin}: the example has {key}, no table has it"));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn every_manual_says_what_each_verb_does() {
    let mut problems = Vec::new();
    for plugin in plugin_names() {
        let head = head(&plugin);
        for verb in VERBS {
            if !head.lines().any(|line| line.starts_with(&format!("- **{verb}**"))) {
                problems.push(format!("{plugin}: the manual does not say what {verb} does"));
            }
        }
    }
    assert_none(&problems);
}
