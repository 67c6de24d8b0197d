//! The flags of `dhcp daemon`, as Go's package flag reads them: `-timeout 10s`, `-timeout=10s`, `--timeout=10s`. The systemd
//! units of the reference's daemon work unchanged.
//!
//! Source: pkg.go.dev/flag, "Command line flag syntax"; pkg.go.dev/time#ParseDuration.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use crate::dhcp::time::Time;
use crate::dhcp::v4::settings::Times;
use crate::error::{Error, Result};

/// The daemon's socket, if neither flag nor key names another one. The path is the reference's.
pub const SOCKET: &str = "/run/cni/dhcp.sock";

/// The text of `-help`.
pub const USAGE: &str = "Usage of daemon:
  -broadcast
        ask servers to answer by broadcast, for all attachments
  -hostprefix PATH
        put PATH in front of the paths of the socket and of the namespaces
  -pidfile PATH
        write the process id to PATH, which is absolute
  -resendmax DURATION
        the longest pause between two attempts to get a lease (default 1m2s)
  -resendtimeout DURATION
        the time after which an ADD gives up (default 3m28s)
  -socketpath PATH
        listen at PATH (default /run/cni/dhcp.sock)
  -timeout DURATION
        the wait for the answer to the first packet of an attempt (default 10s)
  -until-idle
        end when the last lease is gone";

/// The flags with their defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Flags {
    pub pidfile: Option<PathBuf>,
    /// The prefix of the paths of the socket, the journal and every namespace; empty by default.
    pub hostprefix: PathBuf,
    /// The absolute path of the socket, without `hostprefix`.
    pub socketpath: PathBuf,
    pub broadcast: bool,
    /// The timeouts of the DHCPv4 clients. `resend_timeout` is also that of the others.
    pub times: Times,
    /// A flag of cnibox: the daemon ends when its last lease is gone.
    pub until_idle: bool,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            pidfile: None,
            hostprefix: PathBuf::new(),
            socketpath: SOCKET.into(),
            broadcast: false,
            times: Times::default(),
            until_idle: false,
        }
    }
}

impl Flags {
    /// Parses the arguments. Returns `None` for `-h` and `-help`: the caller prints the usage.
    pub fn parse(args: &[OsString]) -> Result<Option<Self>> {
        let mut flags = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let bytes = arg.as_bytes();
            let name = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-"));
            let Some(name) = name.filter(|name| !name.is_empty()) else {
                return Err(cannot(&arg.to_string_lossy(), "it is not a flag"));
            };
            let (name, value) = match name.iter().position(|byte| *byte == b'=') {
                Some(at) => (&name[..at], Some(OsString::from_vec(name[at + 1..].to_vec()))),
                None => (name, None),
            };
            let name = String::from_utf8_lossy(name);
            match &*name {
                "h" | "help" => return Ok(None),
                "broadcast" => flags.broadcast = switch(&name, value)?,
                "until-idle" => flags.until_idle = switch(&name, value)?,
                _ => {
                    let value = value.or_else(|| args.next().cloned());
                    flags.set(&name, value)?;
                }
            }
        }
        Ok(Some(flags))
    }

    fn set(&mut self, name: &str, value: Option<OsString>) -> Result<()> {
        let flag = format!("-{name}");
        let value = || value.clone().ok_or_else(|| cannot(&flag, "flag needs an argument"));
        let absolute = || match PathBuf::from(value()?) {
            path if path.is_absolute() => Ok(path),
            _ => Err(cannot(&flag, "the path is not absolute")),
        };
        let time = || {
            let value = value()?;
            let text = value.to_string_lossy();
            let time = duration(&text).map(Time::from);
            time.ok_or_else(|| {
                cannot(&flag, &format!("{text:?} is no duration, such as 10s or 1m30s"))
            })
        };
        match name {
            "pidfile" => self.pidfile = Some(absolute()?),
            "socketpath" => self.socketpath = absolute()?,
            "hostprefix" => self.hostprefix = value()?.into(),
            "timeout" => self.times.timeout = time()?,
            "resendmax" => self.times.resend_max = time()?,
            "resendtimeout" => self.times.resend_timeout = time()?,
            _ => return Err(cannot(&flag, "flag provided but not defined")),
        }
        Ok(())
    }
}

fn cannot(flag: &str, reason: &str) -> Error {
    Error::config(format_args!("cannot use {flag}: {reason}"))
}

/// Parses the value of a boolean flag. A flag without a value is true.
fn switch(name: &str, value: Option<OsString>) -> Result<bool> {
    match value.as_deref().map(OsStrExt::as_bytes) {
        None | Some(b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True") => Ok(true),
        Some(b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False") => Ok(false),
        Some(_) => Err(cannot(&format!("-{name}"), "the value is neither true nor false")),
    }
}

/// A duration of Go, more than 0: numbers with units, such as `1h2m3.5s`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut nanoseconds = 0_u64;
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c))?);
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let unit: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
        nanoseconds = nanoseconds.checked_add(whole.checked_mul(unit)?)?;
        let mut digit_unit = unit;
        for digit in fraction.bytes() {
            digit_unit /= 10;
            nanoseconds = nanoseconds
                .checked_add(digit_unit.checked_mul(digit.checked_sub(b'0')?.into())?)?;
        }
        rest = after;
    }
    Some(Duration::from_nanos(nanoseconds)).filter(|duration| !duration.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Option<Flags>> {
        let args: Vec<OsString> = args.split_whitespace().map(OsString::from).collect();
        Flags::parse(&args)
    }

    #[test]
    fn flags_are_written_as_in_go() {
        let expected = Flags {
            pidfile: Some("/run/dhcp.pid".into()),
            hostprefix: "/host".into(),
            socketpath: "/run/x.sock".into(),
            broadcast: true,
            times: Times {
                timeout: Time::from_millis(1500),
                resend_max: Time::from_secs(90),
                resend_timeout: Time::from_secs(5),
            },
            until_idle: false,
        };
        for args in [
            "-pidfile /run/dhcp.pid -hostprefix /host -socketpath /run/x.sock -broadcast -timeout 1.5s -resendmax 1m30s -resendtimeout 5s",
            "--pidfile=/run/dhcp.pid --hostprefix=/host --socketpath=/run/x.sock --broadcast=t --timeout=1500ms --resendmax=90s --resendtimeout=5s",
        ] {
            assert_eq!(parse(args), Ok(Some(expected.clone())), "{args}");
        }
        assert_eq!(parse(""), Ok(Some(Flags::default())));
        assert_eq!(parse("-broadcast=false"), Ok(Some(Flags::default())));
        for args in ["-h", "--help", "-broadcast -help"] {
            assert_eq!(parse(args), Ok(None), "{args}");
        }
    }

    #[test]
    fn wrong_flags_are_errors_that_name_the_flag() {
        for (args, expected) in [
            ("run", "cannot use run: it is not a flag"),
            ("-", "cannot use -: it is not a flag"),
            ("--speed=5", "cannot use -speed: flag provided but not defined"),
            ("-timeout", "cannot use -timeout: flag needs an argument"),
            ("-pidfile a", "cannot use -pidfile: the path is not absolute"),
            ("-broadcast=maybe", "cannot use -broadcast: the value is neither true nor false"),
            ("-timeout 5", "cannot use -timeout: \"5\" is no duration, such as 10s or 1m30s"),
        ] {
            assert_eq!(parse(args).unwrap_err().msg, expected, "{args}");
        }
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, nanoseconds) in [
            ("10s", Some(10_000_000_000)),
            ("1h2m3.25s", Some(3_723_250_000_000)),
            ("+.5us", Some(500)),
            ("62s", Some(62_000_000_000)),
            ("1.ms", Some(1_000_000)),
            ("0s", None),
            ("0", None),
            ("-5s", None),
            ("s", None),
            (".s", None),
            ("1.2.3s", None),
            ("1x", None),
            ("9999999999h", None),
            ("", None),
        ] {
            assert_eq!(duration(text), nanoseconds.map(Duration::from_nanos), "{text}");
        }
    }
}
