//! Values that the plugins refuse. Each plugin examines its own configuration, as in a call without a namespace, which ends
//! before it reads or changes links. Parts that depend on the host are replaced: the IPAM plugin is examined by itself, the
//! master is a link in the container, and no network has the name.

use crate::cni::json::Json;
use crate::cni::request::{Request, Verb};
use crate::error::{Code, Error, Result};
use crate::names::{Attachment, ContainerId, IfName};
use crate::plugin::{Context, Entry, Session};
use crate::runtime::conf;

use super::document::{Document, Host};
use super::place::Path;

/// In place of the IPAM plugin of an interface plugin.
const IPAM: &str = r#"{"type":"static","addresses":[{"address":"10.0.0.2/24"}]}"#;
/// In place of the result of the plugins before.
const RESULT: &str = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/lint"}],
    "ips":[{"interface":0,"address":"10.0.0.2/24","gateway":"10.0.0.1"}]}"#;

/// Reports the error of a plugin, and that of its IPAM plugin.
pub(super) fn examine<'a>(
    document: &mut Document,
    path: &Path<'a>,
    plugin: &'a Json,
    host: &Host<'_>,
) {
    let kind = conf::kind(plugin);
    let entry = |kind: &str| host.plugins.iter().find(|entry| entry.name == kind);
    if let Some(entry) = entry(kind).filter(|entry| !entry.is_ipam)
        && let Err(error) = call(entry, host, plugin, kind != "flannel")
    {
        report(document, path, plugin, &error);
    }
    let Some(ipam) = plugin.get("ipam") else { return };
    if let Some(entry) = entry(conf::kind(ipam)).filter(|entry| entry.is_ipam)
        && let Err(error) = call(entry, host, plugin, false)
    {
        report(document, &path.key("ipam"), ipam, &error);
    }
}

/// Lets a plugin examine a configuration. The error is one about the configuration.
fn call(entry: &Entry, host: &Host<'_>, plugin: &Json, replaces_ipam: bool) -> Result<()> {
    let Json::Object(entries) = plugin else { return Ok(()) };
    let mut entries = entries.clone();
    let has_ipam = plugin.get("ipam").is_some_and(|ipam| !conf::kind(ipam).is_empty());
    conf::without(&mut entries, &["cniVersion", "name", "prevResult", "linkInContainer"]);
    let mut add = |key: &str, value: Json| entries.push((key.into(), value));
    add("cniVersion", "1.1.0".into());
    add("name", "cnibox-lint".into());
    add("linkInContainer", Json::Bool(true));
    add("prevResult", Json::parse(RESULT.as_bytes())?);
    if replaces_ipam && has_ipam {
        conf::without(&mut entries, &["ipam"]);
        entries.push(("ipam".into(), Json::parse(IPAM.as_bytes())?));
    }
    let request = Request::new("STATUS", |_| None, Json::Object(entries));
    let (request, status) = request.map_err(|refusal| refusal.error)?;
    let at = Attachment { container_id: ContainerId::new("lint")?, ifname: IfName::new("eth0")? };
    let verb = match entry {
        // STATUS would ask the daemon. ADD needs the namespace first.
        Entry { needs_link: true, .. } => Verb::Add(at),
        Entry { is_ipam: true, .. } => status,
        _ => Verb::Check(at),
    };
    let session = Session::without_container();
    let context = Context { request: &request, session: &session, plugins: host.plugins };
    match entry.run(&context, &verb) {
        Err(error) if [Code::DECODE, Code::INVALID_CONFIG].contains(&error.code) => Err(error),
        _ => Ok(()),
    }
}

/// Reports an error at the key that it names, or that has the value that it names.
fn report<'a>(document: &mut Document, path: &Path<'a>, object: &'a Json, error: &Error) {
    let text = error.to_string();
    let mut best = (0, path.clone());
    search(&text, path, object, &mut best);
    document.fault(&best.1, text);
}

/// Searches the key that a text names: its name counts more than its value. `best` has its points and its path.
fn search<'a>(text: &str, path: &Path<'a>, json: &'a Json, best: &mut (u8, Path<'a>)) {
    match json {
        Json::Object(entries) => {
            for (key, value) in entries {
                let path = path.key(key);
                let printed = match value {
                    Json::String(text) => text.clone(),
                    value => value.to_compact(),
                };
                let points = 2 * u8::from(names(text, key)) + u8::from(names(text, &printed));
                if points > best.0 && !key.eq_ignore_ascii_case("type") {
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

/// Whether a text has a word.
fn names(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric();
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !word.is_empty() && !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}
