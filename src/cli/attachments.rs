//! `cnibox attachments`: who is attached to what.

use argh::FromArgs;

use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::plugin::Entry as Plugin;
use crate::runtime::cache::Entry;
use crate::runtime::life::Life;

use super::parameters::{self, TIMEOUT_S};
use super::table;

/// List attachments with their addresses and published ports, and whether they live, whichever runtime made them.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "attachments",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --check",
    note = "Exit code 0, whatever is stale; with --check 1, unless each attachment lives and is as it was made."
)]
pub(super) struct Attachments {
    /// ask the plugins whether each attachment is as it was made
    #[argh(switch)]
    check: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// the seconds that an executed plugin may take; 180 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
}

/// An attachment as it is printed.
struct Line {
    entry: Entry,
    addresses: Vec<String>,
    state: &'static str,
    reason: Option<String>,
    check: Option<&'static str>,
}

impl Attachments {
    pub(super) fn run(self, plugins: &'static [Plugin]) -> Result<()> {
        let runtime = parameters::runtime(plugins, self.timeout);
        let mut failed = 0_u32;
        let mut lines = Vec::new();
        for (entry, life) in runtime.attachments()? {
            let check = match (&life, self.check) {
                (_, false) => None,
                (Life::Stale(_), true) => Some(Err(None)),
                (_, true) => Some(runtime.check_entry(&entry).map_err(Some)),
            };
            let check = check.map(|checked| match checked {
                Ok(true) => "ok",
                Ok(false) => "unsupported",
                Err(error) => {
                    failed += 1;
                    error.iter().for_each(|error| warn(&format!("{}: {error}", entry.title())));
                    "failed"
                }
            });
            lines.push(Line::new(entry, life, check));
        }
        if self.json {
            let attachments = lines.iter().map(Line::object).collect();
            let document = Json::object([("attachments", Some(Json::Array(attachments)))]);
            super::say(&document.to_pretty());
        } else {
            let header =
                ["NETWORK", "CONTAINER", "IFNAME", "ADDRESSES", "PORTS", "STATE", "CHECK", "NETNS"];
            table::print(header, lines.iter().map(Line::row));
            let reasons = lines.iter().filter_map(|line| Some((line, line.reason.as_ref()?)));
            reasons.for_each(|(line, why)| {
                warn(&format!("{}: {}: {why}", line.entry.title(), line.state))
            });
        }
        match failed {
            0 => Ok(()),
            count => Err(Error::internal(format!("{count} of {} attachments failed", lines.len()))),
        }
    }
}

impl Line {
    fn new(entry: Entry, life: Life, check: Option<&'static str>) -> Self {
        let addresses = match entry.success() {
            Ok(success) => success.unwrap_or_default().nets(),
            Err(error) => {
                warn(&format!("warning: {error}"));
                Vec::new()
            }
        };
        let (state, reason) = match life {
            Life::Alive => ("alive", None),
            Life::Stale(reason) => ("stale", Some(reason)),
            Life::Unknown(reason) => ("unknown", Some(reason)),
        };
        let addresses = addresses.iter().map(ToString::to_string).collect();
        Self { entry, addresses, state, reason, check }
    }

    fn mappings(&self) -> &[Json] {
        match self.entry.capability_args.get("portMappings") {
            Some(Json::Array(mappings)) => mappings,
            _ => &[],
        }
    }

    fn row(&self) -> [String; 8] {
        let at = &self.entry.at;
        [
            self.entry.network.to_string(),
            at.container_id.to_string(),
            at.ifname.to_string(),
            self.addresses.join(","),
            self.mappings().iter().map(published).collect::<Vec<_>>().join(","),
            self.state.into(),
            self.check.unwrap_or_default().into(),
            self.entry.netns.display().to_string(),
        ]
    }

    fn object(&self) -> Json {
        let strings = |strings: &[String]| strings.iter().map(|it| it.as_str().into()).collect();
        let at = &self.entry.at;
        Json::object([
            ("network", Some(self.entry.network.to_string().into())),
            ("containerID", Some(at.container_id.to_string().into())),
            ("ifname", Some(at.ifname.to_string().into())),
            ("netns", Some(self.entry.netns.to_string_lossy().into_owned().into())),
            ("addresses", Some(Json::Array(strings(&self.addresses)))),
            ("portMappings", Some(Json::Array(self.mappings().to_vec()))),
            ("state", Some(self.state.into())),
            ("reason", self.reason.as_deref().map(Json::from)),
            ("check", self.check.map(Json::from)),
        ])
    }
}

/// A port mapping in podman's words: `127.0.0.1:8080->80/tcp`. Where no address is given, it is on all of the host's.
fn published(mapping: &Json) -> String {
    let text = |key: &str| match mapping.get(key) {
        Some(Json::String(text)) => text.clone(),
        Some(other) => other.to_compact(),
        None => String::new(),
    };
    let ip = match text("hostIP") {
        ip if ip.is_empty() => ip,
        ip if ip.contains(':') => format!("[{ip}]:"),
        ip => format!("{ip}:"),
    };
    let protocol =
        Some(text("protocol")).filter(|it| !it.is_empty()).unwrap_or_else(|| "tcp".into());
    format!("{ip}{}->{}/{protocol}", text("hostPort"), text("containerPort"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_printed_as_podman_prints_them() {
        let printed = |text: &str| published(&Json::parse(text.as_bytes()).unwrap());
        for (text, expected) in [
            (r#"{"hostPort":8080,"containerPort":80,"protocol":"tcp"}"#, "8080->80/tcp"),
            (
                r#"{"HostPort":53,"ContainerPort":5353,"Protocol":"udp","HostIP":"127.0.0.1"}"#,
                "127.0.0.1:53->5353/udp",
            ),
            (r#"{"hostPort":1,"containerPort":7,"hostIP":"fd00::1"}"#, "[fd00::1]:1->7/tcp"),
        ] {
            assert_eq!(printed(text), expected);
        }
    }
}
