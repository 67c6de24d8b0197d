//! The state of a node as lines of text, read with `ip -j` and `nft -j`. Each line says where the thing is and which
//! addresses and owners it names, so that it can be found by them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::node::Node;

/// Where plugins and runtimes keep files.
const DIRECTORIES: [&str; 3] = ["/var/lib/cni", "/run/cnibox", "/run/cni"];

/// The links, addresses, routes and rules of a namespace.
#[derive(Clone, Debug, Default)]
pub struct Space {
    pub lines: BTreeSet<String>,
    pub links: Vec<Value>,
    /// Without those that the kernel makes: `address/length` with the name of the link.
    pub addresses: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub host: Space,
    /// By path.
    pub spaces: BTreeMap<String, Space>,
    pub nft: BTreeSet<String>,
    pub files: BTreeMap<String, String>,
}

impl Seen {
    pub fn look(node: &mut Node, paths: &[String]) -> Self {
        let answer = node.ask(&json!({"do": "look", "paths": paths, "directories": DIRECTORIES}));
        assert!(answer.get("error").is_none(), "{answer}");
        let mut spaces = BTreeMap::new();
        for (path, text) in answer["spaces"].as_object().expect("it is an object") {
            spaces.insert(path.clone(), Space::parse(text.as_str().unwrap_or_default()));
        }
        let host = spaces.remove("host").unwrap_or_default();
        let files = answer["files"].as_object().expect("it is an object").iter();
        let files =
            files.map(|(path, content)| (path.clone(), content.as_str().unwrap_or("").to_owned()));
        let nft = ruleset(answer["nft"].as_str().unwrap_or_default());
        Self { host, spaces, nft, files: files.collect() }
    }

    /// All lines about the host: links, addresses, routes, rules of nftables, files.
    pub fn host_lines(&self) -> BTreeSet<String> {
        let mut lines: BTreeSet<String> =
            self.host.lines.iter().map(|line| format!("host {line}")).collect();
        lines.extend(self.nft.iter().cloned());
        lines.extend(self.files.iter().map(|(path, content)| file_line(path, content)));
        lines
    }
}

fn file_line(path: &str, content: &str) -> String {
    // The content of a reservation is its owner; what others have is long.
    if path.starts_with("/var/lib/cni/networks/") && !path.contains("/.cnibox/") {
        let content = content.split_whitespace().collect::<Vec<_>>().join(" ");
        return format!("file {path} '{content}'");
    }
    format!("file {path}")
}

impl Space {
    fn parse(text: &str) -> Self {
        let mut space = Self::default();
        for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
            let Ok(Value::Array(objects)) = document else { continue };
            for object in objects.iter().filter(|object| object.is_object()) {
                space.describe(object);
            }
        }
        space
    }

    fn describe(&mut self, object: &Value) {
        let text = |key: &str| plain(&object[key]);
        if let Some(addresses) = object["addr_info"].as_array() {
            for address in addresses.iter().filter(|address| !is_automatic(&address["local"])) {
                let full = format!("{}/{}", plain(&address["local"]), address["prefixlen"]);
                self.lines.insert(format!("address {full} dev {}", text("ifname")));
                self.addresses.push((full, text("ifname")));
            }
        } else if object.get("dst").is_some() {
            let of_address = object["table"] == "local" && object["protocol"] == "kernel";
            if !is_automatic(&object["dst"]) && !of_address {
                // The kernel joins routes of IPv6 to the same destination.
                let hops = object["nexthops"].as_array().cloned();
                for hop in hops.unwrap_or_else(|| vec![object.clone()]) {
                    self.lines.insert(route(object, &hop));
                }
            }
        } else if object.get("priority").is_some() {
            self.lines.insert(format!("rule {object}"));
        } else if object.get("ifname").is_some() {
            self.lines.insert(link(object));
            self.links.push(object.clone());
        }
    }

    pub fn has_link(&self, name: &str) -> bool {
        self.links.iter().any(|link| link["ifname"] == name)
    }

    pub fn has_address(&self, address: &str) -> bool {
        self.addresses.iter().any(|(there, _)| there == address)
    }
}

fn route(route: &Value, hop: &Value) -> String {
    // Joined routes have one source for all hops.
    let is_six = plain(&route["dst"]).contains(':') || plain(&hop["gateway"]).contains(':');
    let words = ["type", "dst", "prefsrc", "table", "scope", "metric"];
    let words = words.iter().filter(|key| !is_six || **key != "prefsrc");
    let words: Vec<String> = words.map(|key| format!("{key} {}", plain(&route[*key]))).collect();
    format!(
        "route {} gateway {} dev {}",
        words.join(" "),
        plain(&hop["gateway"]),
        plain(&hop["dev"])
    )
}

fn link(link: &Value) -> String {
    let is_up = link["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"));
    format!(
        "link {} kind {} master {} mtu {} mac {} up {is_up} qdisc {} alias '{}' altnames {}",
        plain(&link["ifname"]),
        plain(&link["linkinfo"]["info_kind"]),
        plain(&link["master"]),
        link["mtu"],
        plain(&link["address"]),
        plain(&link["qdisc"]),
        plain(&link["ifalias"]),
        link["altnames"],
    )
}

/// The kernel adds and removes link-local addresses and multicast routes with the carrier.
fn is_automatic(address: &Value) -> bool {
    let address = plain(address);
    ["fe80:", "ff00:", "multicast", "127.0.0.1", "::1"]
        .iter()
        .any(|prefix| address.starts_with(prefix))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// A line for each rule, and for each element of a set or map.
fn ruleset(text: &str) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    for object in document["nftables"].as_array().into_iter().flatten() {
        for kind in ["set", "map"] {
            let set = &object[kind];
            let place = place(set, "name");
            for element in set["elem"].as_array().into_iter().flatten() {
                lines.insert(format!("{place} {element}"));
            }
        }
        let rule = &object["rule"];
        if rule.is_object() {
            let place = place(rule, "chain");
            lines.insert(format!(
                "{place} rule {} comment {}",
                without_counters(&rule["expr"]),
                rule["comment"]
            ));
        }
    }
    lines
}

fn place(object: &Value, name: &str) -> String {
    format!("nft {} {} {}", plain(&object["family"]), plain(&object["table"]), plain(&object[name]))
}

/// Counters change with each packet.
fn without_counters(value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| {
                let value = if key == "counter" { Value::Null } else { without_counters(value) };
                (key.clone(), value)
            });
            Value::Object(entries.collect())
        }
        Value::Array(items) => items.iter().map(without_counters).collect(),
        other => other.clone(),
    }
}

/// Whether a line names an address or an owner, as a whole word.
pub fn names(line: &str, token: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == ':';
    line.match_indices(token).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + token.len()..].chars().next();
        !before.is_some_and(is_inner) && !after.is_some_and(is_inner)
    })
}
