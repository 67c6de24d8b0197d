//! Finds unknown keys, values of a wrong type, and undeclared or unknown capabilities.

use std::collections::BTreeSet;

use crate::cni::json::{Json, fold, is_key};
use crate::plugins;
use crate::runtime::conf;

use super::document::Document;
use super::json_path::JsonPath;
use crate::cli::manual::{self, Key, Manual};
use crate::cli::similar::{hint, nearest};

/// The keys of one plugin.
pub(super) struct Known<'a> {
    kind: &'a str,
    /// The manuals of the network, of the plugin and of its IPAM plugin.
    manuals: Vec<Manual>,
    keys: Vec<Key>,
    /// The keys of the plugin that flannel calls. They are in the object `delegate`.
    delegate: Vec<Key>,
    /// The IPAM plugin is of another program, so its keys are unknown.
    is_ipam_foreign: bool,
}

/// The type of an object that can have any keys.
const FREE: &str = "object";
/// The key of an object that can have keys of other programs.
const ARGS: &str = "args";
/// The type of a key that another program reads.
pub(super) const ANY: &str = "any";
const PORT_MAPPINGS: &str = "portMappings";
/// The keys whose value is a path.
const PATHS: [&str; 5] = ["dataDir", "subnetFile", "daemonSocketPath", "resolvConf", "kernelpath"];

impl<'a> Known<'a> {
    pub(super) fn of(kind: &'a str, plugin: &'a Json) -> Self {
        let [delegate, ipam] = conf::delegates(plugin);
        let mut own = vec![manual::network()];
        own.extend(manual::of(kind));
        own.extend(manual::of(ipam));
        let keys = own.iter().flat_map(|manual| manual.keys()).collect();
        let mut of_delegate = Vec::new();
        if !delegate.is_empty() {
            if let Some(manual) = manual::of(delegate) {
                of_delegate = manual.keys();
            }
            of_delegate.extend(manual::network().keys());
        }
        Self {
            kind,
            is_ipam_foreign: !ipam.is_empty() && manual::of(ipam).is_none(),
            keys,
            delegate: of_delegate,
            manuals: own,
        }
    }
}

/// Examines the keys of a list of plugins.
pub(super) fn examine_list(document: &mut Document, json: &Json, keys: &[Key]) {
    let walk = Walk { owner: "a list of plugins", keys, free: "" };
    walk.object(document, &JsonPath::default(), "", json);
}

/// Examines the keys of a plugin.
pub(super) fn examine<'a>(
    document: &mut Document,
    path: &JsonPath<'a>,
    plugin: &'a Json,
    known: &Known<'_>,
) {
    let free = if known.is_ipam_foreign { "ipam" } else { "" };
    let walk = Walk { owner: known.kind, keys: &known.keys, free };
    walk.object(document, path, "", plugin);
    if let (Some(delegate), false) = (plugin.get("delegate"), known.delegate.is_empty()) {
        let walk = Walk { owner: "the delegate", keys: &known.delegate, free: "" };
        walk.object(document, &path.key("delegate"), "", delegate);
    }
}

/// Compares the capabilities that a configuration declares with those that the plugin has.
pub(super) fn examine_capabilities(
    document: &mut Document,
    path: &JsonPath<'_>,
    plugin: &Json,
    known: &Known<'_>,
) {
    // flannel passes all capabilities to its delegate.
    if !known.delegate.is_empty() {
        return;
    }
    let has: Vec<&str> = known.manuals.iter().flat_map(|manual| manual.capabilities()).collect();
    let (key, kind) = (path.key("capabilities"), known.kind);
    if let Some(Json::Object(declared)) = plugin.get("capabilities") {
        for (name, value) in declared {
            if *value == Json::Bool(true) && !has.contains(&name.as_str()) {
                let hint = hint(name, &has);
                document.fault(&key.key(name), format!("{kind} has no capability {name}{hint}"));
            }
        }
    }
    // Other plugins work without their capabilities.
    if kind == "portmap" && !conf::declares(plugin, PORT_MAPPINGS) {
        let text =
            format!("portmap does nothing unless it declares the capability {PORT_MAPPINGS}");
        document.note(&path.key("type"), text);
    }
}

/// Compares the keys of an object, and of the objects in it, with a table of keys.
struct Walk<'a> {
    /// The owner of the keys in messages: a plugin, `the delegate` or `a list of plugins`.
    owner: &'a str,
    keys: &'a [Key],
    /// An object whose unknown keys are not reported, such as the `ipam` of a foreign IPAM plugin. Empty: none.
    free: &'a str,
}

impl Walk<'_> {
    /// Examines the keys of an object. `prefix` is the path of the object in the manual, with a dot at its end:
    /// `ipam.ranges[][].`.
    fn object<'b>(
        &self,
        document: &mut Document,
        path: &JsonPath<'b>,
        prefix: &str,
        object: &'b Json,
    ) {
        let Json::Object(entries) = object else { return };
        let present = entries.iter().filter(|(_, value)| !value.is_null());
        let present: BTreeSet<&str> = present.map(|(name, _)| name.as_str()).collect();
        for (name, value) in entries {
            let full = format!("{prefix}{name}");
            let path = path.key(name);
            let row = self.row(&full);
            let is_in_manual = row.is_some() || self.has_keys_below(&full);
            // A dot is a part of a name: plugins do not read the name as a path. Names such as `cni.dev/attachments` have a slash.
            if let (Some((object, key)), true) = (name.rsplit_once('.'), is_in_manual)
                && !name.contains('/')
            {
                let owner = self.owner;
                let text = format!("{owner} has no key {full}; write {key} in the object {object}");
                document.fault(&path, text);
                continue;
            }
            if let Some(row) = row {
                // If keys differ only in case, the key with the spelling of the manual counts.
                let key = row.path.rsplit('.').next().unwrap_or_default();
                if name != key && present.contains(key) {
                    continue;
                }
                if let Some(found) = mismatched_type(row.of_type, value) {
                    let text = format!("{full} is {found}; it must be of type {}", row.of_type);
                    document.fault(&path, text);
                    continue;
                }
                if PATHS.contains(&key) && is_relative(value) {
                    let text =
                        format!("{full} is a relative path: no runtime has a fixed directory");
                    document.note(&path, text);
                }
                if is_ignored_by_reference(self.owner, row.path) {
                    document.note(&path, format!("the Go plugin {} ignores {full}", self.owner));
                }
            }
            if self.has_keys_below(&full) {
                self.value(document, &path, &full, value);
            } else if row.is_none() {
                self.unknown(document, &path, prefix, name);
            }
        }
    }

    fn value<'b>(&self, document: &mut Document, path: &JsonPath<'b>, full: &str, value: &'b Json) {
        match value {
            Json::Object(_) => self.object(document, path, &format!("{full}."), value),
            Json::Array(items) => {
                let full = format!("{full}[]");
                for (at, item) in items.iter().enumerate() {
                    self.value(document, &path.item(at), &full, item);
                }
            }
            // `mismatched_type` has already reported an item that is not an object.
            _ => {}
        }
    }

    fn row(&self, full: &str) -> Option<&Key> {
        self.keys.iter().find(|key| !key.is_in_args && is_key(full, key.path))
    }

    /// Of all keys of the configuration whose path begins with `beginning`: the rest of the path.
    fn below(&self, beginning: &str) -> Vec<&str> {
        let of_configuration = self.keys.iter().filter(|key| !key.is_in_args);
        of_configuration.filter_map(|key| rest(key.path, beginning)).collect()
    }

    fn has_keys_below(&self, full: &str) -> bool {
        self.below(full).iter().any(|rest| rest.starts_with(['.', '[']))
    }

    fn unknown(&self, document: &mut Document, path: &JsonPath<'_>, prefix: &str, name: &str) {
        let object = prefix.trim_end_matches(['.', '[', ']']);
        if !object.is_empty() && object == self.free {
            return;
        }
        let is_free = self.row(object).is_some_and(|row| row.of_type == FREE);
        let owner = self.owner;
        let full = format!("{prefix}{name}");
        // Cut each remainder to its first key.
        let mut names = self.below(prefix);
        for known in &mut names {
            *known = known.split(['.', '[']).next().unwrap_or_default();
        }
        match nearest(name, &names) {
            Some(known) => {
                document.fault(path, format!("{owner} has no key {full}; did you mean {known}?"));
            }
            None if is_free || prefix.is_empty() && is_key(name, ARGS) || object == ARGS => {}
            None => document.note(path, format!("{owner} has no key {full}")),
        }
    }
}

fn is_ignored_by_reference(plugin: &str, path: &str) -> bool {
    plugins::named(plugin).is_some_and(|entry| entry.ignored_by_reference.contains(&path))
}

fn is_relative(value: &Json) -> bool {
    matches!(value, Json::String(path) if !path.is_empty() && !path.starts_with('/'))
}

/// The remainder of a path that begins with `beginning`, in any case. `None` for other paths.
fn rest<'a>(path: &'a str, beginning: &str) -> Option<&'a str> {
    let mut rest = path.chars();
    let is_equal = |wanted| rest.next().map(fold) == Some(fold(wanted));
    beginning.chars().all(is_equal).then_some(rest.as_str())
}

/// The type of a value, if it differs from the type in the manual, such as `list of lists of objects`. `None` if the value has
/// the right type.
fn mismatched_type(expected: &str, value: &Json) -> Option<&'static str> {
    if expected == ANY {
        return None;
    }
    let (kind, items) = expected.split_once(" of ").unwrap_or((expected, ""));
    let (found, with_article) = match value {
        // null counts as a missing key.
        Json::Null => return None,
        Json::Bool(_) => ("boolean", "a boolean"),
        Json::Number(number) if number.as_i64().is_some() || number.as_u64().is_some() => {
            ("integer", "an integer")
        }
        Json::Number(_) => ("number", "a number with a fraction"),
        Json::String(_) => ("string", "a string"),
        Json::Array(_) => ("list", "a list"),
        Json::Object(_) | Json::Raw(_) => ("object", "an object"),
    };
    // The type in the manual can have more words, as in "integer, or a string": the first word counts.
    let kind = kind.split([' ', ',']).next().unwrap_or(kind);
    if found != kind.trim_end_matches('s') {
        return Some(with_article);
    }
    let item = match items.strip_prefix("lists") {
        Some(rest) => format!("list{rest}"),
        None => items.strip_suffix('s').unwrap_or(items).to_owned(),
    };
    if item.is_empty() {
        return None;
    }
    match value {
        Json::Array(items) if items.iter().any(|inner| mismatched_type(&item, inner).is_some()) => {
            Some("a list with an item of another type")
        }
        Json::Object(entries)
            if entries.iter().any(|(_, inner)| mismatched_type(&item, inner).is_some()) =>
        {
            Some("an object with a value of another type")
        }
        _ => None,
    }
}
