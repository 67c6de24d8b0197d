//! The state of a world as sorted text, one line per thing, so that two states can be compared and the difference
//! can be read: links, addresses, routes, rules, nftables, settings, files.

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use super::{Container, World};

/// Flags that the kernel sets some time later, when it has noticed a carrier.
const FLAGS_OF_CARRIER: [&str; 3] = ["LOWER_UP", "NO-CARRIER", "M-DOWN"];

/// Prints the settings that plugins enable and do not disable. Then, for the host and for each namespace of the arguments, two
/// outputs of `ip` and one of `nft`. A NUL ends each part. One command, because each command in a world costs two forks of the test.
const LOOK: &str = r"
    cd /proc/sys
    grep . net/ipv4/ip_forward net/ipv6/conf/all/forwarding
    printf '\0'
    look() {
        $enter ip -j -d -batch - <<BATCH
link show
address show
route show table all
rule show
BATCH
        printf '\0'
        $enter ip -j -d -6 rule show
        printf '\0'
        $enter nft --stateless list ruleset
        printf '\0'
    }
    enter=
    look
    for netns; do
        enter=nsenter\ --net=$netns
        look
    done
";

/// Where plugins keep the records of attachments.
pub const RECORDS: &str = "/var/lib/cni/attachments";
const GENERATION: &str = r#",\"generation\""#;

/// Where plugins keep files.
const STATE_DIRS: [&str; 3] = ["/var/lib", "/run/cni", "/run/cnibox/names"];

/// What host-local knows of its files, beside the directories of the networks. It is no state: it holds nothing that they do not
/// say, it is made again when it is lost, and the reference has none.
const KNOWN_DIR: &str = "/var/lib/cni/networks/.cnibox";

#[derive(Clone, PartialEq, Eq)]
pub struct State(Vec<String>);

impl State {
    pub(super) fn read(world: &World, containers: &[&Container<'_>]) -> Self {
        let paths: Vec<String> = containers.iter().map(|container| container.netns()).collect();
        let words: Vec<&str> =
            ["sh", "-ec", LOOK, "sh"].into_iter().chain(paths.iter().map(String::as_str)).collect();
        let output = world.tool(&words, None).run().output();
        let mut parts = output.split('\0');
        let settings = parts.next().unwrap();
        let mut lines: Vec<String> = settings
            .lines()
            .map(|line| format!("host setting {}", line.replacen(':', " = ", 1)))
            .collect();
        let names = containers.iter().map(|container| container.name.as_str());
        for place in ["host"].into_iter().chain(names) {
            for family in ["", "-6"] {
                let documents = serde_json::Deserializer::from_str(parts.next().unwrap());
                for document in documents.into_iter::<Value>() {
                    for object in document.unwrap().as_array().unwrap() {
                        describe(place, family, object, &mut lines);
                    }
                }
            }
            let ruleset = parts.next().unwrap();
            if !ruleset.trim().is_empty() {
                lines.push(format!("{place} nft\n{ruleset}"));
            }
        }
        assert_eq!(parts.collect::<Vec<_>>(), [""]);
        for dir in STATE_DIRS {
            files(world, Path::new(dir), &mut lines);
        }
        lines.sort();
        Self(lines)
    }

    /// Without what survives a DEL in the reference, and so in cnibox: the bridge with its addresses and routes,
    /// forwarding, the directory of the network with `lock` and `last_reserved_ip.N`; and the directories of the records of
    /// host-device and of namespaces, and of names. And nothing more than that.
    pub fn apart_from(&self, bridge: &str, network: &str) -> Self {
        let survives = |line: &String| {
            let of_bridge = line.starts_with("host ")
                && (line.starts_with(&format!("host link {bridge} "))
                    || line.contains(&format!(" dev={bridge} ")));
            let dir = format!("/var/lib/cni/networks/{network}");
            // Records of attachments are gone, their directory stays.
            let of_records = line.starts_with("dir /run/cni ")
                || line.starts_with("dir /run/cni/host-device ")
                || line.starts_with("dir /run/cnibox/names ");
            let of_store = line.starts_with("dir /var/lib/cni ")
                || line.starts_with("dir /var/lib/cni/attachments")
                || line.starts_with("dir /var/lib/cni/networks ")
                || line.starts_with(&format!("dir {dir} "))
                || line.starts_with(&format!("file {dir}/lock "))
                || line.starts_with(&format!("file {dir}/last_reserved_ip."));
            of_bridge || of_records || of_store || line.starts_with("host setting ")
        };
        Self(self.0.iter().filter(|line| !survives(line)).cloned().collect())
    }

    /// Without the lines of a kind and with a text.
    pub fn without(&self, kind: &str, text: &str) -> Self {
        let is_kept = |line: &&String| !(line.starts_with(kind) && line.contains(text));
        Self(self.0.iter().filter(is_kept).cloned().collect())
    }

    /// With random names replaced, to compare two worlds. (MACs are never part of a state.)
    pub fn without_random_names(&self) -> Self {
        let mut lines: Vec<String> = self.0.iter().map(|line| mask_veth(line)).collect();
        lines.sort();
        Self(lines)
    }

    pub fn lines(&self) -> &[String] {
        &self.0
    }

    /// Whether a line begins like this.
    pub fn has(&self, start: &str) -> bool {
        self.0.iter().any(|line| line.starts_with(start))
    }

    /// Lines that only the other state has (`+`), and that only this one has (`-`).
    pub fn difference(&self, after: &Self) -> Vec<String> {
        difference(&self.0, &after.0)
    }

    /// Panics with the lines that differ, which says more than both states printed whole.
    #[track_caller]
    pub fn assert_same(&self, after: &Self, when: &str) {
        let difference = self.difference(after);
        assert!(self == after, "{when}, the world is not as before:\n{}", difference.join("\n"));
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}\n", self.0.join("\n"))
    }
}

/// One object of `ip -j`: an address list, a link, a route or a rule, told apart by their keys.
fn describe(place: &str, family: &str, object: &Value, lines: &mut Vec<String>) {
    let text = |key: &str| plain(&object[key]);
    if let Some(addresses) = object["addr_info"].as_array() {
        for address in addresses.iter().filter(|address| !is_automatic(&address["local"])) {
            lines.push(format!(
                "{place} address dev={} {}/{} brd={} scope={}",
                text("ifname"),
                plain(&address["local"]),
                address["prefixlen"],
                plain(&address["broadcast"]),
                plain(&address["scope"]),
            ));
        }
    } else if object.get("dst").is_some() {
        // The local table follows from the addresses, for IPv6 only when the kernel has found them unique.
        let of_address = object["table"] == "local" && object["protocol"] == "kernel";
        if !is_automatic(&object["dst"]) && !of_address {
            lines.push(format!(
                "{place} route dst={} dev={} type={} via={} src={} table={} proto={} scope={} metric={}",
                text("dst"),
                text("dev"),
                text("type"),
                text("gateway"),
                text("prefsrc"),
                text("table"),
                text("protocol"),
                text("scope"),
                text("metric"),
            ));
        }
    } else if object.get("priority").is_some() {
        lines.push(format!("{place} rule{family} {object}"));
    } else if object.get("ifname").is_some() {
        lines.push(link(place, object));
    }
}

fn link(place: &str, link: &Value) -> String {
    let all = link["flags"].as_array().unwrap().iter().map(plain);
    let mut flags: Vec<String> = all.filter(|f| !FLAGS_OF_CARRIER.contains(&f.as_str())).collect();
    flags.sort();
    let alt_names =
        link.get("altnames").map(|names| format!(" altnames={names}")).unwrap_or_default();
    format!(
        "{place} link {} kind={} master={} mtu={} flags={}{alt_names}",
        plain(&link["ifname"]),
        plain(&link["linkinfo"]["info_kind"]),
        plain(&link["master"]),
        link["mtu"],
        flags.join(",")
    )
}

/// The kernel adds and removes link-local addresses and multicast routes with the carrier.
fn is_automatic(address: &Value) -> bool {
    let address = plain(address);
    address.starts_with("fe80:") || address.starts_with("ff00:") || address == "multicast"
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

fn files(world: &World, dir: &Path, lines: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(world.path(dir)) else { return };
    for entry in entries {
        let entry = entry.unwrap();
        let path = dir.join(entry.file_name());
        if path == Path::new(KNOWN_DIR) {
            continue;
        }
        let meta = entry.metadata().unwrap();
        let mode = meta.permissions().mode() & 0o7777;
        if meta.is_dir() {
            lines.push(format!("dir {} mode={mode:o}", path.display()));
            files(world, &path, lines);
        } else if meta.is_symlink() {
            let target = fs::read_link(entry.path()).unwrap();
            lines.push(format!("link {} -> {}", path.display(), target.display()));
        } else if meta.file_type().is_socket() {
            lines.push(format!("socket {} mode={mode:o}", path.display()));
        } else {
            let content = fs::read(entry.path()).unwrap();
            // The record of an attachment goes on with random values: those of each interface with this name.
            let content = content.escape_ascii().to_string();
            let content = match content.split_once(GENERATION) {
                Some((names, _)) if dir == Path::new(RECORDS) => names,
                _ => &content,
            };
            lines.push(format!("file {} mode={mode:o} '{content}'", path.display()));
        }
    }
}

/// Panics with the lines that differ.
#[track_caller]
pub fn assert_same(before: &[String], after: &[String], when: &str) {
    let difference = difference(before, after).join("\n");
    assert!(before == after, "after {when}, the world is not as before:\n{difference}");
}

fn difference(before: &[String], after: &[String]) -> Vec<String> {
    let only = |sign: char, these: &[String], those: &[String]| {
        let lines = these.iter().filter(|line| !those.contains(line));
        lines.map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    let mut lines = only('-', before, after);
    lines.extend(only('+', after, before));
    lines
}

/// `veth` and eight hexadecimal digits become `veth*`.
pub fn mask_veth(text: &str) -> String {
    let mut parts = text.split("veth");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let random = part.len() >= 8 && part.as_bytes()[..8].iter().all(u8::is_ascii_hexdigit);
        masked.push_str(if random { "veth*" } else { "veth" });
        masked.push_str(if random { &part[8..] } else { part });
    }
    masked
}

/// Quoted MACs become `"MAC"`.
pub fn mask_macs(text: &str) -> String {
    let is_mac = |part: &str| {
        part.len() == 17
            && part.split(':').filter(|pair| u8::from_str_radix(pair, 16).is_ok()).count() == 6
    };
    let parts = text.split('"').map(|part| if is_mac(part) { "MAC" } else { part });
    parts.collect::<Vec<_>>().join("\"")
}
