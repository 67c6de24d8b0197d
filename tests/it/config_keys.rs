//! The keys of configurations, read out of the sources: the structs in `keys!`, the names that code asks a JSON value for, and
//! the keys of CNI_ARGS.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The text before a key where code asks a JSON value for it.
const ASKING: [&str; 3] = [".get(\"", "(json, \"", "object(\""];

/// Names that code asks a file of its own for, and not the configuration.
const IN_STATE_FILES: [(&str, &str); 2] = [("tuning", "owner"), ("tuning", "netns")];

/// The struct of a plugin's file, not of its configuration.
const STATE_FILE: (&str, &str) = ("dnsname", "Named");

/// The configuration that all plugins share, beside the plugins.
pub const NETWORK: &str = "network";

const CONF: &str = "cni/conf.rs";

#[derive(Debug, PartialEq)]
struct Struct {
    name: String,
    fields: Vec<Field>,
}

#[derive(Debug, PartialEq)]
struct Field {
    key: String,
    of_type: String,
}

/// The names of a plugin's keys, without their place.
pub fn names(plugin: &str) -> BTreeSet<String> {
    let structs = of_configuration(plugin).into_iter();
    let keys = structs.flat_map(|item| item.fields).map(|field| field.key);
    keys.chain(asked(plugin)).collect()
}

/// The names that a plugin's code asks a JSON value for.
pub fn asked(plugin: &str) -> BTreeSet<String> {
    let mut names = asked_in(&code(plugin));
    names.retain(|name| !IN_STATE_FILES.contains(&(plugin, name)));
    names
}

/// The paths that the structs read, `ipam.ranges[][].subnet` for one, each with the JSON type of the value.
pub fn paths(plugin: &str) -> BTreeMap<String, &'static str> {
    let code = code(plugin);
    let (mac, rest) = requested_mac();
    if plugin == NETWORK {
        let mut paths = paths_of(&structs(&rest), "");
        let mut route = structs(&read("cni/success.rs"));
        route.retain(|item| item.name == "Route");
        paths.extend(paths_of(&route, "ipam.routes[]."));
        return paths;
    }
    let structs_of_plugin = of_configuration(plugin);
    let mut paths = paths_of(&structs_of_plugin, "");
    // A struct that is read from the configuration a second time, beside the struct of the plugin.
    for also in
        structs_of_plugin.iter().filter(|item| code.contains(&format!("read::<{}>", item.name)))
    {
        walk(&structs_of_plugin, also, "", &mut paths);
    }
    if code.contains("requested_mac(") || code.contains("wanted_mac(") {
        paths.extend(paths_of(&structs(&mac), ""));
    }
    paths
}

fn of_configuration(plugin: &str) -> Vec<Struct> {
    let mut all = structs(&code(plugin));
    all.retain(|item| (plugin, &*item.name) != STATE_FILE);
    all
}

/// The keys of CNI_ARGS by the names of the fields that hold them.
pub fn args() -> BTreeMap<String, String> {
    let code = read("cni/args.rs");
    let pairs = code.split(": given(\"").collect::<Vec<_>>();
    let pairs = pairs.windows(2).map(|pair| {
        let field = pair[0].rsplit(' ').next().unwrap();
        (field.to_owned(), pair[1].split('"').next().unwrap().to_owned())
    });
    pairs.collect()
}

/// Whether the code of a plugin has these words.
pub fn says(plugin: &str, words: &str) -> bool {
    code(plugin).contains(words)
}

/// The file with a plugin's manual.
pub fn manual(plugin: &str) -> PathBuf {
    files(plugin).swap_remove(0)
}

fn read(path: &str) -> String {
    without_tests(&fs::read_to_string(src().join(path)).unwrap())
}

fn without_tests(text: &str) -> String {
    text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned()
}

/// The function that reads the MAC address for several plugins, and the rest of its file.
fn requested_mac() -> (String, String) {
    let conf = read(CONF);
    let start = conf.find("pub fn requested_mac(").unwrap();
    let end = start + conf[start..].find("\n}\n").unwrap();
    (conf[start..end].to_owned(), conf[..start].to_owned() + &conf[end..])
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn code(plugin: &str) -> String {
    let texts = files(plugin).into_iter().map(|path| fs::read_to_string(path).unwrap());
    texts.map(|text| without_tests(&text)).collect()
}

fn files(plugin: &str) -> Vec<PathBuf> {
    let module = match plugin {
        NETWORK => return vec![src().join(CONF), src().join("cni/request.rs")],
        "ptp" => "veth".to_owned(),
        "static" => "static_ipam".to_owned(),
        name => name.replace('-', "_"),
    };
    let mut files = vec![src().join(format!("plugins/{module}.rs"))];
    if let Ok(entries) = fs::read_dir(src().join("plugins").join(module)) {
        files.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    }
    if plugin == "host-local" {
        files.push(src().join("ipam/range.rs"));
    }
    files
}

fn asked_in(code: &str) -> BTreeSet<String> {
    let after = ASKING.iter().flat_map(|start| code.split(start).skip(1));
    after.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

/// The structs in all `keys!` of the code.
fn structs(code: &str) -> Vec<Struct> {
    let mut structs = Vec::new();
    let mut lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    while lines.any(|line| line == "keys! {") {
        while let Some(line) = lines.find(|line| *line == "}" || line.contains("struct ")) {
            let Some((_, head)) = line.split_once("struct ") else { break };
            let name = head.split(' ').next().unwrap().to_owned();
            let of_struct = lines.by_ref().take_while(|line| *line != "}");
            let fields = if head.ends_with("{}") { Vec::new() } else { fields(of_struct) };
            structs.push(Struct { name, fields });
        }
    }
    structs
}

/// The lines of a struct, without comments, are attributes and keys: `"key" => pub field: String = default,`.
fn fields<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Field> {
    let of_keys = lines.filter(|line| !line.starts_with("#["));
    let field = |line: &str| {
        let (key, rest) = line.strip_prefix('"')?.split_once("\" => ")?;
        let (_, rest) = rest.strip_suffix(',')?.split_once(": ")?;
        let of_type = rest.split(" = ").next()?;
        Some(Field { key: key.to_owned(), of_type: of_type.to_owned() })
    };
    let fields = of_keys.map(|line| field(line).unwrap_or_else(|| panic!("no key: {line}")));
    let fields: Vec<Field> = fields.collect();
    let unique: BTreeSet<_> = fields.iter().map(|field| field.key.to_ascii_lowercase()).collect();
    assert_eq!(unique.len(), fields.len(), "two keys differ in case only: {fields:?}");
    fields
}

/// The paths of those structs that are no part of another one.
fn paths_of(structs: &[Struct], prefix: &str) -> BTreeMap<String, &'static str> {
    let mut paths = BTreeMap::new();
    let is_part = |item: &Struct| {
        let types = structs.iter().flat_map(|other| &other.fields).map(|field| &field.of_type);
        types.into_iter().any(|of_type| innermost(of_type) == item.name)
    };
    for root in structs.iter().filter(|item| !is_part(item)) {
        walk(structs, root, prefix, &mut paths);
    }
    paths
}

fn innermost(of_type: &str) -> &str {
    of_type.rsplit('<').next().unwrap().trim_end_matches('>')
}

fn walk(structs: &[Struct], at: &Struct, prefix: &str, paths: &mut BTreeMap<String, &'static str>) {
    for field in &at.fields {
        let mut path = prefix.to_owned() + &field.key;
        let mut of_type = field.of_type.as_str();
        loop {
            let inner = |outer: &str| of_type.strip_prefix(outer)?.strip_suffix('>');
            if let Some(inner) = inner("Option<") {
                of_type = inner;
            } else if let Some(inner) = inner("Vec<") {
                // A list of lists is one key.
                if !path.ends_with("[]") {
                    paths.insert(path.clone(), "list");
                }
                of_type = inner;
                path += "[]";
            } else {
                break;
            }
        }
        if let Some(inner) = structs.iter().find(|item| item.name == of_type) {
            walk(structs, inner, &(path + "."), paths);
        } else if !path.ends_with("[]") {
            paths.insert(path, json_type(of_type));
        }
    }
}

fn json_type(of_type: &str) -> &'static str {
    match of_type {
        "bool" => "boolean",
        "u8" | "u32" | "u64" | "i32" | "i64" => "integer",
        "String" | "IpAddr" | "IpNet" | "RouteType" => "string",
        "Dns" => "object",
        map if map.starts_with("Map<") => "object",
        other => panic!("this test does not know the JSON type of {other}"),
    }
}
