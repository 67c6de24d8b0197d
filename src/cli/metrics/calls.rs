//! The durations of the calls of plugins, from the log of calls (`plugin::log`).

use std::path::Path;

use crate::error::{Error, Result};
use crate::kernel::file;

const VERBS: [&str; 6] = ["ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION"];

/// The upper bounds of the buckets: in microseconds, and in seconds as OpenMetrics writes them.
const BOUNDS: [(u64, &str); 13] = [
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (500_000, "0.5"),
    (1_000_000, "1.0"),
    (2_500_000, "2.5"),
    (5_000_000, "5.0"),
    (10_000_000, "10.0"),
];

/// The longest line that is read. The lines of `plugin::log` are shorter.
const LINE_BYTES_MAX: usize = 4096;
/// The most pairs of plugin and verb. Calls of further pairs are left out. No host has so many plugins.
const HISTOGRAMS_MAX: usize = 1000;

/// The calls of one plugin with one verb.
struct Histogram {
    plugin: String,
    verb: &'static str,
    /// For each bound, the calls with a duration of at most this bound and more than the bound before.
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum_us: u64,
}

/// Adds the histogram of the calls in a log to the text. A missing log counts as empty.
pub(super) fn write(log: &Path, text: &mut String) -> Result<()> {
    let mut all: Vec<Histogram> = Vec::new();
    let read = file::each_line(log, LINE_BYTES_MAX, |line| {
        if let Some((plugin, verb, us)) = call(&String::from_utf8_lossy(line)) {
            add(&mut all, plugin, verb, us);
        }
    });
    file::found(read).map_err(Error::of_file("read", log))?;
    text.push_str("# TYPE cnibox_call_seconds histogram\n# UNIT cnibox_call_seconds seconds\n");
    text.push_str("# HELP cnibox_call_seconds Durations of the calls of plugins in the log.\n");
    for histogram in &all {
        histogram.write(text);
    }
    Ok(())
}

/// The plugin, the verb and the microseconds of a line. `None` if the line is not about a call, or if the name of the plugin
/// cannot be the value of a label.
fn call(line: &str) -> Option<(&str, &'static str, u64)> {
    let (mut plugin, mut verb) = (None, None);
    for word in line.split(' ') {
        match word.split_once('=')? {
            ("plugin", name) => plugin = Some(name),
            ("verb", name) => verb = VERBS.into_iter().find(|known| *known == name),
            // Stop here: after `ms` comes the text of an error, which can contain `verb=` and other words.
            ("ms", ms) => {
                let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
                let plugin = plugin.filter(|name| name.chars().all(is_plain))?;
                return Some((plugin, verb?, microseconds(ms)?));
            }
            _ => {}
        }
    }
    None
}

/// Converts milliseconds with exactly three decimals, such as `12.034`, to microseconds.
fn microseconds(ms: &str) -> Option<u64> {
    let (whole, part) = ms.split_once('.')?;
    let part: u64 = (part.len() == 3).then(|| part.parse().ok())??;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part)
}

fn add(all: &mut Vec<Histogram>, plugin: &str, verb: &'static str, us: u64) {
    let index = all.iter().position(|known| known.plugin == plugin && known.verb == verb);
    let index = match index {
        Some(index) => index,
        None if all.len() == HISTOGRAMS_MAX => return,
        None => {
            let counts = [0; BOUNDS.len()];
            all.push(Histogram { plugin: plugin.into(), verb, counts, count: 0, sum_us: 0 });
            all.len() - 1
        }
    };
    let histogram = &mut all[index];
    histogram.count += 1;
    histogram.sum_us = histogram.sum_us.saturating_add(us);
    if let Some(bucket) = BOUNDS.iter().position(|(bound, _)| us <= *bound) {
        histogram.counts[bucket] += 1;
    }
}

impl Histogram {
    fn write(&self, text: &mut String) {
        let labels = format!("plugin=\"{}\",verb=\"{}\"", self.plugin, self.verb);
        let mut total = 0;
        for ((_, bound), count) in BOUNDS.iter().zip(self.counts) {
            total += count;
            text.push_str(&format!(
                "cnibox_call_seconds_bucket{{{labels},le=\"{bound}\"}} {total}\n"
            ));
        }
        let Self { count, sum_us, .. } = self;
        let (s, us) = (sum_us / 1_000_000, sum_us % 1_000_000);
        text.push_str(&format!(
            "cnibox_call_seconds_bucket{{{labels},le=\"+Inf\"}} {count}\n\
             cnibox_call_seconds_count{{{labels}}} {count}\n\
             cnibox_call_seconds_sum{{{labels}}} {s}.{us:06}\n"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_is_a_call() {
        for (line, expected) in [
            (
                "time=2026-11-22T05:04:03.210Z verb=ADD plugin=bridge network=n container=c ifname=eth0 ms=12.034 code=0",
                Some(("bridge", "ADD", 12_034)),
            ),
            ("verb=GC plugin=host-local ms=0.007 code=0", Some(("host-local", "GC", 7))),
            (
                "verb=DEL plugin=dhcp ms=1.000 code=11 error=\"verb=ADD plugin=x ms=2.000\"",
                Some(("dhcp", "DEL", 1_000)),
            ),
            ("verb=ROB plugin=bridge ms=1.000 code=4", None),
            ("verb=ADD plugin=\"a ms=1.000 code=4", None),
            ("verb=ADD plugin=bridge ms=1.00 code=0", None),
            ("verb=ADD plugin=bridge ms=99999999999999999999.000 code=0", None),
            ("verb=ADD plugin=bridge", None),
            ("a line of another program", None),
            ("", None),
        ] {
            assert_eq!(call(line), expected, "{line}");
        }
    }

    #[test]
    fn the_buckets_are_in_the_order_of_their_bounds() {
        assert!(BOUNDS.is_sorted());
        for (us, text) in BOUNDS {
            let seconds: f64 = text.parse().unwrap();
            assert!((seconds * 1e6 - us as f64).abs() < 0.5, "{text}");
        }
    }
}
