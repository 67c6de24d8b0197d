//! `cnibox metrics`: gauges and a histogram for a monitoring system, in the text format of OpenMetrics 1.0.

mod calls;

use std::path::Path;

use argh::{ArgsInfo, FromArgs};

use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::sys::warn;
use crate::kernel::terminal::printable;
use crate::netlink::nft::Transport;
use crate::runtime::Runtime;
use crate::runtime::reservations::{RangeUse, Survey};

use super::output::print_text;
use super::{attachments, parameters, podman};

/// Print metrics as OpenMetrics text: pools, reservations, attachments, published ports, leaks, and the durations of calls.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "metrics",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} /var/lib/prometheus/node-exporter/cnibox.prom",
    note = "The file is for the textfile collector of node_exporter. It is replaced by rename, so a reader never sees half of it. The durations come from the log of all calls, if that is a file."
)]
pub(super) struct Metrics {
    /// the file to replace; stdout if not given
    #[argh(positional)]
    file: Option<String>,
}

impl Metrics {
    pub(super) fn run(&self) -> Result<u8> {
        let runtime = podman::runtime(parameters::TIMEOUT_S);
        let survey = runtime.survey()?;
        let mut text = text(&survey);
        write_stale(&mut text, &survey);
        write_times(&mut text, &runtime)?;
        text.push_str("# EOF\n");
        match self.file.as_ref().map(Path::new) {
            None => print_text(&text),
            // The collector runs as another user, so others can read the file. It reads only names that end in `.prom`, not the
            // temporary file.
            Some(path) => file::replace(path, text.as_bytes(), 0o666)
                .map_err(Error::of_file("write", path))?,
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
    let mut ranges: Vec<(String, [u64; 3])> = Vec::new();
    for pool in &survey.pools {
        for RangeUse { range, size, used, free } in &pool.ranges {
            let labels = format!("network=\"{}\",range=\"{range}\"", pool.network);
            // Two data directories can have the same range of a network: OpenMetrics allows each set of labels once.
            if !ranges.iter().any(|(other, _)| *other == labels) {
                ranges.push((labels, [*size, *used, *free]));
            }
        }
    }
    let mut text = String::new();
    for (at, (name, about)) in OF_RANGE.iter().enumerate().filter(|_| !ranges.is_empty()) {
        family(&mut text, name, about);
        for (labels, values) in &ranges {
            sample(&mut text, name, labels, values[at]);
        }
    }
    let (mut reservations, mut states, mut ports) = (Vec::new(), Vec::new(), Vec::new());
    for owned in survey.reservations() {
        count(&mut reservations, &owned.network, owned.state.text());
    }
    for (entry, life) in &survey.attachments {
        count(&mut states, &entry.network, life.text());
        if !life.is_ended() {
            for mapping in attachments::mappings(entry) {
                count(&mut ports, &entry.network, protocol(mapping));
            }
        }
    }
    counts(&mut text, "reservations", "Reserved addresses.", "state", &reservations);
    counts(&mut text, "attachments", "Attachments in the cache.", "state", &states);
    counts(&mut text, "published_ports", "Published ports of attachments.", "protocol", &ports);
    text
}

/// Adds the numbers of the objects that `gc --confirm` removes.
fn write_stale(text: &mut String, survey: &Survey) {
    let mut stale = Vec::new();
    for (entry, life) in &survey.attachments {
        if life.is_ended() {
            count(&mut stale, &entry.network, "attachment");
        }
    }
    for (owned, _) in survey.leaks() {
        count(&mut stale, &owned.network, "reservation");
    }
    // Without the capability to read nf_tables rules, the other metrics are still printed.
    let owners = survey.leaked_owners().unwrap_or_else(|error| {
        warn(format_args!("warning: {error}"));
        Vec::new()
    });
    for record in owners {
        count(&mut stale, &record.network, "rules");
    }
    counts(text, "stale", "Objects of containers that have ended.", "kind", &stale);
}

/// Adds the time since the last `gc --confirm`, and the durations of calls.
fn write_times(text: &mut String, runtime: &Runtime) -> Result<()> {
    if let Some(age) = runtime.seconds_since_confirmed_gc()? {
        let name = "gc_age_seconds";
        family(text, name, "Time since the last run of gc --confirm.");
        text.push_str(&format!("cnibox_{name} {age}\n"));
    }
    let log = runtime.settings.log.as_ref().and_then(|log| log.file_of_all_calls());
    log.map_or(Ok(()), |log| calls::write(log, text))
}

/// A network, the value of a second label, and the number of objects with both.
type Count<'a> = (&'a str, &'static str, u64);

fn count<'a>(counts: &mut Vec<Count<'a>>, network: &'a str, value: &'static str) {
    match counts.iter_mut().find(|count| count.0 == network && count.1 == value) {
        Some((_, _, count)) => *count += 1,
        None => counts.push((network, value, 1)),
    }
}

/// The protocol of a port mapping. `other` for a text that `portmap` refuses.
fn protocol(mapping: &Json) -> &'static str {
    let text = mapping.text_at("protocol").filter(|text| !text.is_empty()).unwrap_or("tcp");
    Transport::named(text).map_or("other", Transport::name)
}

/// Adds a metric family with one sample for each network and value of a second label.
fn counts(text: &mut String, name: &str, about: &str, label: &str, counts: &[Count<'_>]) {
    family(text, name, about);
    for (network, value, count) in counts {
        let labels = format!("network=\"{}\",{label}=\"{value}\"", escaped(network));
        sample(text, name, &labels, *count);
    }
}

fn family(text: &mut String, name: &str, about: &str) {
    text.push_str(&format!("# TYPE cnibox_{name} gauge\n# HELP cnibox_{name} {about}\n"));
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    printable(value).replace('\\', r"\\").replace('"', "\\\"")
}

fn sample(text: &mut String, name: &str, labels: &str, value: u64) {
    text.push_str(&format!("cnibox_{name}{{{labels}}} {value}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_in_a_comment_of_another_program_stays_one_label() {
        let mut text = String::new();
        let network = "a\"} 1\ncnibox_x{y=\"\\\u{1b}\u{202e}";
        counts(&mut text, "stale", "About.", "kind", &[(network, "rules", 7)]);
        let label = r#"a\"} 1?cnibox_x{y=\"\\??"#;
        let sample = format!("cnibox_stale{{network=\"{label}\",kind=\"rules\"}} 7");
        assert_eq!(text.lines().nth(2), Some(&*sample), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}
