//! Reads the keys of configurations out of the sources: the fields of structs that derive `Deserialize`, and the names
//! that code asks a JSON value for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What stands before a key where code asks a JSON value for it.
const ASKING: [&str; 3] = [".get(\"", "(json, \"", " object(\""];

/// The keys of a plugin's sources; `network` is what all plugins have in common.
pub fn keys(plugin: &str) -> BTreeSet<String> {
    files(plugin).iter().flat_map(|path| keys_of(&fs::read_to_string(path).unwrap())).collect()
}

fn files(plugin: &str) -> Vec<PathBuf> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let module = match plugin {
        "network" => return vec![src.join("cni/conf.rs")],
        "ptp" => "veth".to_owned(),
        "static" => "static_ipam".to_owned(),
        name => name.replace('-', "_"),
    };
    let mut files = vec![src.join(format!("plugins/{module}.rs"))];
    if let Ok(entries) = fs::read_dir(src.join("plugins").join(module)) {
        files.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    }
    if plugin == "host-local" {
        files.push(src.join("ipam/range.rs"));
    }
    files
}

fn keys_of(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let mut keys = asked(code);
    let mut lines = joined_attributes(code).into_iter();
    while let Some(line) = lines.next() {
        if line.starts_with("#[derive(") && line.contains("Deserialize") {
            keys.extend(fields(&mut lines));
        }
    }
    keys
}

fn asked(code: &str) -> BTreeSet<String> {
    let after = ASKING.iter().flat_map(|start| code.split(start).skip(1));
    after.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

/// The lines without indentation, and an attribute that is on several lines on one.
fn joined_attributes(code: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in code.lines().map(str::trim) {
        match lines.last_mut() {
            Some(last) if last.starts_with("#[") && !last.ends_with(']') => last.push_str(line),
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

/// The keys of the struct whose `derive` was read last.
fn fields(lines: &mut impl Iterator<Item = String>) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut of_struct = String::new();
    for line in lines.by_ref() {
        if line.contains("struct ") || line.contains("enum ") {
            if !line.contains("struct ") || !line.ends_with('{') {
                return keys;
            }
            break;
        }
        of_struct += &line;
    }
    let mut of_field = String::new();
    for line in lines {
        if line == "}" {
            break;
        } else if line.starts_with("#[") {
            of_field += &line;
        } else if let Some((name, _)) = line.split_once(": ").filter(|_| !line.starts_with("//")) {
            let name = name.rsplit(' ').next().unwrap();
            if !of_struct.contains("transparent") && !of_field.contains("flatten") {
                keys.insert(key(name, &of_struct, &of_field));
            }
            of_field.clear();
        }
    }
    keys
}

fn key(field: &str, of_struct: &str, of_field: &str) -> String {
    if let Some((_, renamed)) = of_field.split_once("rename = \"") {
        return renamed.split('"').next().unwrap().to_owned();
    }
    if !of_struct.contains("rename_all = \"camelCase\"") {
        return field.to_owned();
    }
    let mut words = field.split('_');
    let first = words.next().unwrap().to_owned();
    words.fold(first, |key, word| key + &word[..1].to_uppercase() + &word[1..])
}

#[test]
fn keys_are_found_as_serde_names_them() {
    let text = "
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = \"camelCase\")]
        pub struct Keys {
            /// A comment: with a colon.
            ip_masq: bool,
            #[serde(rename = \"hostIP\", deserialize_with = \"text\")]
            pub host_ip: String,
            #[serde(
                rename = \"long\"
            )]
            pub(super) broken: String,
        }
        #[derive(Deserialize)]
        #[serde(transparent)]
        struct Around {
            keys: Keys,
        }
        #[derive(Deserialize)]
        struct Empty {}
        struct NoConfiguration {
            other: bool,
        }
        fn read(json: &Json) {
            json.get(\"mac\"); number(json, \"txQLen\"); let it = object(\"delegate\");
        }
        #[derive(Default, Deserialize)]
        struct Plain {
            plain_name: u32,
        }
";
    let found: Vec<String> = keys_of(text).into_iter().collect();
    let expected = ["delegate", "hostIP", "ipMasq", "long", "mac", "plain_name", "txQLen"];
    assert_eq!(found, expected);
}
