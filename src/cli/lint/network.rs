//! Examines a network configuration: its name, its versions and each of its plugins.

use std::path::PathBuf;

use crate::cli::manual::Key;
use crate::cni::json::Json;
use crate::cni::version::Version;
use crate::names::NetworkName;
use crate::plugin::execute::Program;
use crate::plugins::{self, PLUGINS};
use crate::runtime::{conf, networks};

use super::document::Document;
use super::json_path::JsonPath;
use super::keys::{self, ANY, Known};
use super::ranges;
use super::values::{self, Expected};
use crate::cli::similar::hint;

/// The keys of a network configuration list, with their types.
///
/// Source: CNI specification 1.1.0, section 1.
const KEYS: [Key; 10] = [
    key("cniVersion", "string"),
    key("cniVersions", "list of strings"),
    key("name", "string"),
    key("disableCheck", "boolean"),
    key("disableGC", "boolean"),
    key("loadOnlyInlinedPlugins", "boolean"),
    key("plugins", "list of objects"),
    // Runtimes ignore `args` of a list. A plugin has its own `args`.
    key("args", "object"),
    // nerdctl writes these two. Old versions wrote the id as a number.
    key("nerdctlID", ANY),
    key("nerdctlLabels", ANY),
];

const fn key(path: &'static str, of_type: &'static str) -> Key {
    Key { path, is_in_args: false, of_type, default: "", meaning: "" }
}

/// Examines a network configuration.
pub(super) fn examine(document: &mut Document, json: &Json, cni_path: &[PathBuf]) {
    let root = JsonPath::default();
    if !matches!(json, Json::Object(_)) {
        return document.fault(&root, "the network configuration is not an object");
    }
    let name = examine_name(document, json);
    examine_versions(document, json);
    let is_list = conf::is_list(&document.file);
    let plugins = match json.get("plugins") {
        None if !is_list && json.get("type").is_some() => vec![(root, json)],
        Some(Json::Array(plugins)) if !plugins.is_empty() => {
            keys::examine_list(document, json, &KEYS);
            let key = root.key("plugins");
            plugins.iter().enumerate().map(|(at, plugin)| (key.item(at), plugin)).collect()
        }
        Some(Json::Array(_)) => {
            return document.fault(&root.key("plugins"), "the list of plugins is empty");
        }
        Some(_) => return document.fault(&root.key("plugins"), "plugins is not a list"),
        None => return document.fault(&root, "the list of plugins is missing"),
    };
    let mut expected = Expected::default();
    for (at, (path, plugin)) in plugins.iter().enumerate() {
        let before = document.faults();
        examine_plugin(document, path, plugin, cni_path, at == 0);
        ranges::examine(document, path, plugin, &name);
        if let Some(parent) = networks::parent(plugin) {
            let offset = path.key("master").offset_in(&document.text);
            document.parents.push((offset, parent.into()));
        }
        // After a fault, the plugin is not called: its error would report the same mistake again.
        if document.faults() == before {
            values::examine(document, path, plugin, &expected);
        }
        expected.add(plugin);
    }
}

/// Examines the name. Returns it, or an empty text if it is not valid.
fn examine_name(document: &mut Document, json: &Json) -> String {
    let root = JsonPath::default();
    match json.get("name") {
        None => document.fault(&root, "the network has no name"),
        Some(Json::String(name)) => match NetworkName::new(name.as_str()) {
            Ok(_) => return name.clone(),
            Err(error) => document.fault(&root.key("name"), error.to_string()),
        },
        // The rules of `keys` report a value that is not a string.
        Some(_) => {}
    }
    String::new()
}

fn examine_versions(document: &mut Document, json: &Json) {
    let root = JsonPath::default();
    let mut examine = |path: JsonPath<'_>, version: &Json| {
        if let Json::String(text) = version
            && Version::negotiate(text).is_err()
        {
            let known = Version::ALL.map(Version::text).join(", ");
            document
                .fault(&path, format!("CNI version {text:?} is not supported; known are {known}"));
        }
    };
    if let Some(version) = json.get("cniVersion") {
        examine(root.key("cniVersion"), version);
    }
    if let Some(Json::Array(versions)) = json.get("cniVersions") {
        let key = root.key("cniVersions");
        versions.iter().enumerate().for_each(|(at, version)| examine(key.item(at), version));
    }
}

fn examine_plugin<'a>(
    document: &mut Document,
    path: &JsonPath<'a>,
    plugin: &'a Json,
    cni_path: &[PathBuf],
    is_first: bool,
) {
    if !matches!(plugin, Json::Object(_)) {
        return document.fault(path, "the configuration of a plugin is not an object");
    }
    let kind = match plugin.get("type") {
        Some(Json::String(kind)) if !kind.is_empty() => kind.as_str(),
        Some(Json::String(_)) | None => return document.fault(path, "the plugin has no type"),
        Some(_) => return document.fault(&path.key("type"), "type is not a string"),
    };
    examine_type(document, &path.key("type"), kind, cni_path);
    let ipam = conf::ipam_kind(plugin);
    if !ipam.is_empty() {
        let path = path.key("ipam").key("type");
        examine_type(document, &path, ipam, cni_path);
        if plugins::named(ipam).is_some_and(|entry| !entry.is_ipam) {
            document.fault(&path, format!("{ipam} is not an IPAM plugin"));
        }
    }
    let Some(entry) = plugins::named(kind) else { return };
    if is_first && entry.is_chained {
        let text = format!("{kind} follows another plugin; it cannot be the first");
        document.fault(&path.key("type"), text);
    }
    let known = Known::of(kind, plugin);
    keys::examine(document, path, plugin, &known);
    keys::examine_capabilities(document, path, plugin, &known);
}

/// Reports a plugin that is neither on CNI_PATH nor in this executable.
fn examine_type(document: &mut Document, path: &JsonPath<'_>, kind: &str, cni_path: &[PathBuf]) {
    if Program::find(kind, &[], cni_path, PLUGINS).is_ok() {
        return;
    }
    let mut on_path: Vec<String> = Vec::new();
    for directory in cni_path {
        for entry in directory.read_dir().into_iter().flatten().flatten() {
            on_path.extend(entry.file_name().into_string());
        }
    }
    let own = PLUGINS.iter().map(|entry| entry.name);
    let known: Vec<&str> = own.chain(on_path.iter().map(String::as_str)).collect();
    document.fault(path, format!("there is no plugin {kind:?}{}", hint(kind, &known)));
}
