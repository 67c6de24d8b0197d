//! `cnibox metrics`: numbers for a monitoring system, in the text format of OpenMetrics 1.0.

use std::path::Path;

use argh::FromArgs;

use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::plugin::Entry;
use crate::runtime::evidence::Life;
use crate::runtime::reservations::Survey;

use super::{ipam, parameters, say};

/// Print metrics as OpenMetrics text: pools, reservations, attachments and published ports.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "metrics",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} /var/lib/prometheus/node-exporter/cnibox.prom",
    note = "The textfile collector of node_exporter reads the file. It is complete at any time."
)]
pub(super) struct Metrics {
    /// the file to replace; stdout if not given
    #[argh(positional)]
    file: Option<String>,
}

impl Metrics {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let text = text(&parameters::runtime(plugins, parameters::TIMEOUT_S).survey()?);
        match self.file.as_ref().map(Path::new) {
            None => say(&text),
            // The collector reads `*.prom` only, and as another user.
            Some(path) => file::replace(path, text.as_bytes(), 0o666).map_err(|error| {
                let msg = format!("cannot write {}", path.display());
                Error::internal(msg).with_details(error.to_string())
            })?,
        }
        Ok(0)
    }
}

/// The metrics of a range: name and meaning.
const OF_RANGE: [(&str, &str); 3] = [
    ("pool_size", "Addresses that a range can give out."),
    ("pool_used", "Reserved addresses of a range."),
    ("pool_free", "Addresses of a range that can still be given out."),
];

fn text(survey: &Survey) -> String {
    let mut families = [const { String::new() }; 3];
    for pool in &survey.pools {
        for it in &pool.ranges {
            let labels = format!("network=\"{}\",range=\"{}\"", pool.network, it.range);
            // The network can have the range in two data directories.
            if families[0].contains(&labels) {
                continue;
            }
            let values = [it.range.size(), it.used, it.free];
            for (at, (name, about)) in OF_RANGE.iter().enumerate() {
                let of = &mut families[at];
                if of.is_empty() {
                    family(of, name, about);
                }
                sample(of, name, &labels, values[at]);
            }
        }
    }
    let mut text = families.concat();
    let (mut reservations, mut attachments, mut ports) = (Vec::new(), Vec::new(), Vec::new());
    for pool in &survey.pools {
        for it in &pool.reservations {
            count(&mut reservations, &pool.network, ipam::state(&it.state));
        }
    }
    for (entry, life) in &survey.attachments {
        let state = match life {
            Life::Alive => "alive",
            Life::Gone(_) => "gone",
            Life::Unknown(_) => "unknown",
        };
        count(&mut attachments, &entry.network, state);
        if let Some(Json::Array(mappings)) = entry.capability_args.get("portMappings")
            && state != "gone"
        {
            for it in mappings {
                count(&mut ports, &entry.network, protocol(it));
            }
        }
    }
    counts(&mut text, "reservations", "Reserved addresses.", "state", &reservations);
    counts(&mut text, "attachments", "Attachments in the cache.", "state", &attachments);
    counts(&mut text, "published_ports", "Published ports of attachments.", "protocol", &ports);
    text + "# EOF\n"
}

/// A network, the value of another label, and how many have both.
type Count<'a> = (&'a str, &'static str, u64);

fn count<'a>(counts: &mut Vec<Count<'a>>, network: &'a str, value: &'static str) {
    match counts.iter_mut().find(|it| it.0 == network && it.1 == value) {
        Some((_, _, count)) => *count += 1,
        None => counts.push((network, value, 1)),
    }
}

/// The protocol of a port mapping. A text that `portmap` refuses counts as another one.
fn protocol(mapping: &Json) -> &'static str {
    match mapping.get("protocol") {
        Some(Json::String(text)) if !text.is_empty() => {
            let known = ["tcp", "udp", "sctp"];
            known.into_iter().find(|it| it.eq_ignore_ascii_case(text)).unwrap_or("other")
        }
        _ => "tcp",
    }
}

/// A family of counts with a network and another label.
fn counts(text: &mut String, name: &str, about: &str, label: &str, counts: &[Count<'_>]) {
    family(text, name, about);
    for (network, value, count) in counts {
        sample(text, name, &format!("network=\"{network}\",{label}=\"{value}\""), *count);
    }
}

fn family(text: &mut String, name: &str, about: &str) {
    text.push_str(&format!("# TYPE cnibox_{name} gauge\n# HELP cnibox_{name} {about}\n"));
}

/// Names of networks and texts of addresses have no character that a label has to escape.
fn sample(text: &mut String, name: &str, labels: &str, value: u64) {
    text.push_str(&format!("cnibox_{name}{{{labels}}} {value}\n"));
}
