//! Finds values that the plugins refuse. Each plugin is called with its configuration but without a namespace: it checks the
//! configuration, and the call ends before it reads or changes links. Keys that depend on the host are replaced: the IPAM
//! plugin by `static` (the configured one is called separately), the master by a link in the container, and the name of the
//! network.

use crate::cni::json::{Json, is_key};
use crate::cni::request::{Request, Verb};
use crate::error::{Code, Error, Result};
use crate::names::{Attachment, ContainerId, IfName};
use crate::plugin::{Context, Entry, Session};
use crate::plugins::{self, PLUGINS, bandwidth};
use crate::runtime::conf;

use super::document::Document;
use super::json_path::JsonPath;

/// The expected result of the plugins that come before in a list, derived from their configurations.
#[derive(Default)]
pub(super) struct Expected {
    /// The container has an IPv6 address.
    has_v6: bool,
    /// The MTU of the veth pair. 0: it is unknown, or there is no pair.
    mtu: u32,
}

impl Expected {
    /// Adds the result of the next plugin of the list.
    pub(super) fn add(&mut self, plugin: &Json) {
        self.has_v6 |= gives_v6(plugin);
        let entry = plugins::named(conf::kind(plugin));
        let is_pair = entry.is_some_and(|entry| entry.kinds.contains(&Entry::VETH));
        let configured = [plugin.get("args").and_then(|args| args.get("cni")), Some(plugin)];
        let mut configured = configured.into_iter().flatten().filter_map(|keys| keys.get("mtu"));
        let configured = configured.find_map(|mtu| mtu.to_compact().parse().ok());
        match configured.filter(|mtu| *mtu > 0) {
            Some(mtu) if is_pair || self.mtu != 0 => self.mtu = mtu,
            None if is_pair => self.mtu = VETH_MTU,
            _ => {}
        }
    }
}

/// The default MTU of a veth pair in the kernel.
const VETH_MTU: u32 = 1500;
const V4: &str = r#"{"address":"10.0.0.2/24","gateway":"10.0.0.1"}"#;
const V6: &str = r#"{"address":"fd00::2/64","gateway":"fd00::1"}"#;

fn addresses(has_v6: bool) -> String {
    if has_v6 { format!("{V4},{V6}") } else { V4.into() }
}

/// The configuration of `static` that replaces the IPAM plugin of an interface plugin.
fn ipam(has_v6: bool) -> Result<Json> {
    let addresses = addresses(has_v6);
    Json::parse(format!(r#"{{"type":"static","addresses":[{addresses}]}}"#).as_bytes())
}

/// The previous result for a plugin.
fn result(expected: &Expected) -> Result<Json> {
    let interface = r#"{"name":"eth0","sandbox":"/run/netns/lint"}"#;
    let ips = addresses(expected.has_v6);
    let text = format!(r#"{{"cniVersion":"1.1.0","interfaces":[{interface}],"ips":[{ips}]}}"#);
    Json::parse(text.as_bytes())
}

/// Reports the error of a plugin, and that of its IPAM plugin.
pub(super) fn examine<'a>(
    document: &mut Document,
    path: &JsonPath<'a>,
    plugin: &'a Json,
    expected: &Expected,
) {
    let kind = conf::kind(plugin);
    if let Some(entry) = plugins::named(kind).filter(|entry| !entry.is_ipam)
        && let Err(error) = call(entry, plugin, expected)
    {
        let text = error.to_string();
        document.fault(&path_of_error(&text, path, plugin), text);
    }
    if kind == "bandwidth" && expected.mtu != 0 {
        for text in bandwidth::warnings(plugin, expected.mtu) {
            document.note(&path_of_error(&text, path, plugin), text);
        }
    }
    if let Some((entry, ipam)) = ipam_of(plugin)
        && let Err(error) = call(entry, plugin, expected)
    {
        let text = error.to_string();
        document.fault(&path_of_error(&text, &path.key("ipam"), ipam), text);
    }
}

/// The IPAM plugin of a plugin, with its configuration. `None` if this executable does not have it.
fn ipam_of(plugin: &Json) -> Option<(&'static Entry, &Json)> {
    let ipam = plugin.get("ipam")?;
    plugins::named(conf::kind(ipam)).filter(|entry| entry.is_ipam).map(|entry| (entry, ipam))
}

/// Calls a plugin with a configuration. Returns an error about the configuration only.
fn call(entry: &Entry, plugin: &Json, expected: &Expected) -> Result<()> {
    // flannel calls no IPAM plugin: its key `ipam` is for the delegate.
    // The bridge refuses to be the gateway of a network with dhcp before it calls it.
    let is_gateway = ["isGateway", "isDefaultGateway"]
        .iter()
        .any(|key| entry.name == "bridge" && matches!(plugin.get(key), Some(Json::Bool(true))));
    let is_refused = is_gateway && conf::ipam_kind(plugin) == "dhcp";
    let is_replaced = !entry.is_ipam && entry.name != "flannel" && !is_refused;
    let has_ipam = !conf::ipam_kind(plugin).is_empty();
    let replacement = (is_replaced && has_ipam).then(|| ipam(gives_v6(plugin))).transpose()?;
    let request = request(plugin, replacement, expected)?;
    let at = Attachment { container_id: ContainerId::new("lint")?, ifname: IfName::new("eth0")? };
    let verb = match entry {
        // STATUS of these plugins would connect to the daemon. ADD fails before that, since there is no namespace.
        Entry { needs_link: true, .. } => Verb::Add(at),
        Entry { is_ipam: true, .. } => Verb::Status,
        _ => Verb::Check(at),
    };
    let session = Session::without_container();
    let context = Context { request: &request, session: &session, plugins: PLUGINS };
    match entry.run(&context, &verb) {
        Err(error) if [Code::DECODE, Code::INVALID_CONFIG].contains(&error.code) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the IPAM plugin of a plugin gives every container an IPv6 address. False for an invalid configuration.
fn gives_v6(plugin: &Json) -> bool {
    let Some((entry, _)) = ipam_of(plugin) else { return false };
    let Ok(request) = request(plugin, None, &Expected::default()) else { return false };
    let session = Session::without_container();
    let context = Context { request: &request, session: &session, plugins: PLUGINS };
    entry.expected(&context).is_ok_and(|expected| expected.has_v6)
}

/// A STATUS request with the configuration of a plugin. `ipam` replaces the `ipam` object of the configuration.
fn request(plugin: &Json, ipam: Option<Json>, expected: &Expected) -> Result<Request> {
    let Json::Object(entries) = plugin else { return Err(Error::config("it is not an object")) };
    let mut entries = entries.clone();
    conf::remove_keys(&mut entries, &["cniVersion", "name", "prevResult", "linkInContainer"]);
    if ipam.is_some() {
        conf::remove_keys(&mut entries, &["ipam"]);
    }
    let added = [
        ("cniVersion", Some("1.1.0".into())),
        ("name", Some("cnibox-lint".into())),
        ("linkInContainer", Some(Json::Bool(true))),
        ("prevResult", Some(result(expected)?)),
        ("ipam", ipam),
    ];
    for (key, value) in added {
        entries.extend(value.map(|value| (key.to_owned(), value)));
    }
    Request::new(&Verb::Status, Json::Object(entries))
}

/// The path of the key whose name or value is in the text of an error.
fn path_of_error<'a>(text: &str, path: &JsonPath<'a>, object: &'a Json) -> JsonPath<'a> {
    let mut best = (0, path.clone());
    search(text, path, object, &mut best);
    best.1
}

/// Searches the key that the text of an error names. A key gets 2 points if the text contains its name, and 1 point if the
/// text contains its value. `best`: the points and the path of the first key with the most points.
fn search<'a>(text: &str, path: &JsonPath<'a>, json: &'a Json, best: &mut (u8, JsonPath<'a>)) {
    match json {
        Json::Object(entries) => {
            for (key, value) in entries {
                let path = path.key(key);
                let printed = match value {
                    Json::String(text) => text.clone(),
                    value => value.to_compact(),
                };
                let points = 2 * u8::from(names(text, key)) + u8::from(names(text, &printed));
                if points > best.0 && !is_key(key, "type") {
                    *best = (points, path.clone());
                }
                search(text, &path, value, best);
            }
        }
        Json::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                search(text, &path.item(at), item, best);
            }
        }
        _ => {}
    }
}

/// Whether a text contains a word as a whole.
fn names(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric();
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !word.is_empty() && !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}
