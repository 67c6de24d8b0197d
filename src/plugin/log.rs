//! The log of calls: one line for each, in the form `key=value` (logfmt).
//!
//! The setting is `LEVEL[,file:PATH|syslog|kmsg]`, from CNIBOX_LOG or, if that is not set, from the line `log = …` of
//! /etc/cnibox/cnibox.conf. Without a destination the lines go to stderr. A line that cannot be written is dropped: an
//! error of the log does not fail the call.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cni::request::{Request, Verb};
use crate::error::Error;
use crate::kernel::{file, sys, terminal};
use crate::names::Attachment;

const CONFIGURATION: &str = "/etc/cnibox/cnibox.conf";
const KEY: &str = "log";
const SYSLOG: &str = "/dev/log";
const KMSG: &str = "/dev/kmsg";
/// The facility LOG_DAEMON of syslog(3). It is added to the priority of a line.
const DAEMON: u8 = 3 << 3;
/// The longest line. The kernel refuses longer records in /dev/kmsg, see printk's LOG_LINE_MAX.
const BYTES_MAX: usize = 976;

/// The open log of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    level: Level,
    sink: Sink,
    /// The value of TRACEPARENT, which the field `trace` repeats, see the W3C recommendation "Trace Context".
    trace: String,
}

/// The calls that are logged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Level {
    /// Only calls that fail.
    Error,
    /// All calls.
    Info,
}

#[derive(Clone, Debug, PartialEq)]
enum Sink {
    Stderr,
    File(PathBuf),
    Syslog,
    Kmsg,
}

/// One call of a plugin.
pub struct Call<'a> {
    /// The name of the plugin.
    pub plugin: &'a str,
    /// The value of CNI_COMMAND.
    pub command: &'a str,
    /// `None` if the request could not be read.
    pub request: Option<(&'a Request, &'a Verb)>,
    pub started: Instant,
}

impl Log {
    /// Opens the log. `setting` is the value of CNIBOX_LOG; without it, the configuration file is read, which costs one failed
    /// open if there is none. `None`: no log. An invalid setting is a warning.
    pub fn open(setting: Option<&str>, trace: Option<String>) -> Option<Self> {
        let from_file = || {
            let text = file::read_text(Path::new(CONFIGURATION)).ok()?;
            let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
            let value = |line: &str| {
                let (key, value) = line.split_once('=')?;
                (key.trim() == KEY).then(|| value.trim().to_owned())
            };
            lines.filter_map(value).next_back()
        };
        let setting = setting.map(str::to_owned).or_else(from_file)?;
        let log = Self::parse(&setting, trace.unwrap_or_default());
        if log.is_none() && setting != "off" {
            sys::warn(format_args!(
                "cannot log: {setting:?} is not LEVEL[,file:PATH|syslog|kmsg], with a level error, info or off"
            ));
        }
        log
    }

    /// The path of the log file, if all calls are logged to a file.
    #[cfg(feature = "tool")]
    pub fn file_of_all_calls(&self) -> Option<&Path> {
        match &self.sink {
            Sink::File(path) if self.level == Level::Info => Some(path),
            _ => None,
        }
    }

    fn parse(setting: &str, trace: String) -> Option<Self> {
        let (level, sink) = setting.split_once(',').unwrap_or((setting, ""));
        let level = match level {
            "error" => Level::Error,
            "info" => Level::Info,
            _ => return None,
        };
        let sink = match (sink, sink.strip_prefix("file:")) {
            ("", _) => Sink::Stderr,
            ("syslog", _) => Sink::Syslog,
            ("kmsg", _) => Sink::Kmsg,
            (_, Some(path)) if path.starts_with('/') => Sink::File(path.into()),
            _ => return None,
        };
        Some(Self { level, sink, trace })
    }

    /// Writes the line of a call that has ended.
    pub fn write(&self, call: &Call<'_>, error: Option<&Error>) {
        if self.level == Level::Error && error.is_none() {
            return;
        }
        let line = self.line(call, error);
        // The priorities of syslog(3): 3 is LOG_ERR, 6 is LOG_INFO.
        let priority = if error.is_some() { 3 } else { 6 };
        match &self.sink {
            Sink::Stderr => sys::warn(format_args!("{line}")),
            Sink::File(path) => append(path, &format!("time={} {line}\n", now())),
            Sink::Syslog => {
                let pid = std::process::id();
                let record = format!("<{}>cnibox[{pid}]: {line}", DAEMON | priority);
                let socket = UnixDatagram::unbound();
                let sent = socket.and_then(|socket| {
                    // The call must not wait for a syslog daemon that does not read.
                    socket.set_nonblocking(true)?;
                    socket.send_to(record.as_bytes(), SYSLOG)
                });
                drop(sent);
            }
            Sink::Kmsg => append(Path::new(KMSG), &format!("<{priority}>cnibox: {line}\n")),
        }
    }

    fn line(&self, call: &Call<'_>, error: Option<&Error>) -> String {
        let mut line = String::new();
        let mut field = |key: &str, value: &str| {
            let separator = if line.is_empty() { "" } else { " " };
            if !value.is_empty() {
                line.push_str(&format!("{separator}{key}={}", quoted(value)));
            }
        };
        field("verb", call.command);
        field("plugin", call.plugin);
        if let Some((request, verb)) = call.request {
            field("network", &request.network);
            if let Some(Attachment { container_id, ifname }) = attachment(verb) {
                field("container", container_id);
                field("ifname", ifname);
            }
        }
        let milliseconds = milliseconds(call.started.elapsed());
        field("ms", &milliseconds);
        field("code", &error.map_or(0, |error| error.code.0).to_string());
        field("error", &error.map_or_else(String::new, Error::to_string));
        field("trace", &self.trace);
        let end = line.floor_char_boundary(BYTES_MAX);
        line.truncate(end);
        line
    }
}

fn attachment(verb: &Verb) -> Option<&Attachment> {
    match verb {
        Verb::Add(at) | Verb::Del(at) | Verb::Check(at) => Some(at),
        Verb::Gc(_) | Verb::Status => None,
    }
}

/// The value; in quotes and escaped if it is not one word of printable characters.
fn quoted(value: &str) -> String {
    let is_word =
        |c: char| !c.is_whitespace() && terminal::is_printable(c) && !matches!(c, '"' | '=' | '\\');
    if value.chars().all(is_word) { value.to_owned() } else { format!("{value:?}") }
}

/// The time in milliseconds, with three digits after the point.
fn milliseconds(time: Duration) -> String {
    let microseconds = time.as_micros();
    format!("{}.{:03}", microseconds / 1000, microseconds % 1000)
}

/// Appends a line with one write(2), so that lines of several processes do not mix.
fn append(path: &Path, line: &str) {
    let mut options = OpenOptions::new();
    options.append(true).create(path != Path::new(KMSG)).mode(0o600);
    let _ = options.open(path).and_then(|mut file| file.write_all(line.as_bytes()));
}

/// The time in UTC: `2026-11-22T05:04:03.210Z`.
fn now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn utc(since_epoch: Duration) -> String {
    const DAY_S: u64 = 86_400;
    let (days, second) = (since_epoch.as_secs() / DAY_S, since_epoch.as_secs() % DAY_S);
    // Count the days from 0000-03-01, so that a leap day is the last day of a year. An era has 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    let mut text = String::new();
    let _ = write!(text, "{year:04}-{month:02}-{day:02}T");
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let _ = write!(text, "{hour:02}:{minute:02}:{second:02}.{:03}Z", since_epoch.subsec_millis());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(utc(Duration::from_millis(1_005)), "1970-01-01T00:00:01.005Z");
    }

    #[test]
    fn a_setting_has_a_level_and_a_destination() {
        let log = |level, sink| Some(Log { level, sink, trace: String::new() });
        for (setting, expected) in [
            ("error", log(Level::Error, Sink::Stderr)),
            ("info,syslog", log(Level::Info, Sink::Syslog)),
            ("info,kmsg", log(Level::Info, Sink::Kmsg)),
            ("info,file:/var/log/cnibox", log(Level::Info, Sink::File("/var/log/cnibox".into()))),
            ("off", None),
            ("loud", None),
            ("info,file:relative", None),
            ("info,somewhere", None),
        ] {
            assert_eq!(Log::parse(setting, String::new()), expected, "{setting}");
        }
    }

    #[test]
    fn a_value_is_one_word_or_in_quotes() {
        assert_eq!(quoted("eth0"), "eth0");
        assert_eq!(quoted("cannot add link: \"x\"\n"), r#""cannot add link: \"x\"\n""#);
        for c in (0..=0xffff).filter_map(char::from_u32) {
            let quoted = quoted(&c.to_string());
            assert!(quoted.chars().all(terminal::is_printable), "{quoted:?}");
        }
        assert_eq!(milliseconds(Duration::from_micros(12_034)), "12.034");
    }
}
