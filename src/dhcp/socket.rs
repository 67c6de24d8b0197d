//! The plugin's side of the daemon's socket: sends requests to the daemon, and starts one for `"daemon": "auto"`.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use crate::cni::json;
use crate::dhcp::journal;
use crate::dhcp::line::{Lines, write_line};
use crate::dhcp::protocol::{ANSWER_BYTES_MAX, Answer, Request};
use crate::error::{Code, Error, Result};
use crate::kernel::child;
use crate::kernel::sys;
use crate::kernel::unix::{Endpoint, Stream};

/// The longest first line of an answer, in bytes: a timeout, or an error.
const HEAD_BYTES_MAX: u64 = 4096;
/// The wait for an answer is longer than the timeout that the daemon announces by this time.
const ANSWER_GRACE: Duration = Duration::from_secs(5);
/// The pause before a request is sent again: to a daemon that serves too many requests, or that has just ended.
const PAUSE: Duration = Duration::from_millis(50);
/// The time that a daemon has from its start until it listens. It adopts its leases afterwards.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// No daemon listens.
    Down(Error),
    /// The process that listens did not answer in time, or is not a daemon of cnibox.
    Silent(Error),
    /// The daemon's own error.
    Refused(Error),
}

impl Failure {
    pub fn into_error(self) -> Error {
        match self {
            Self::Down(error) | Self::Silent(error) | Self::Refused(error) => error,
        }
    }
}

/// Sends a request and returns the answer. `start_timeout` limits the time until the daemon begins to serve it. `timeout`
/// limits the whole call; `None`: the timeout that the daemon announces.
pub fn ask(
    socket: &Path,
    request: &Request,
    start_timeout: Duration,
    timeout: Option<Duration>,
) -> Result<Box<RawValue>, Failure> {
    let begin = Instant::now();
    loop {
        let asked = ask_once(
            socket,
            request,
            begin + start_timeout,
            timeout.map(|timeout| begin + timeout),
        );
        let is_transient = match &asked {
            Err(Failure::Refused(error) | Failure::Down(error)) => {
                error.code == Code::TRY_AGAIN_LATER
            }
            _ => false,
        };
        if !is_transient || begin.elapsed() + PAUSE > start_timeout {
            return asked;
        }
        // Try again after a pause: the daemon sends no event when it can serve another request.
        #[expect(
            clippy::disallowed_methods,
            reason = "the number of attempts is limited by `start_timeout`"
        )]
        std::thread::sleep(PAUSE);
    }
}

fn ask_once(
    socket: &Path,
    request: &Request,
    start_deadline: Instant,
    deadline: Option<Instant>,
) -> Result<Box<RawValue>, Failure> {
    let path = socket.display();
    let stream =
        Stream::connect(&Endpoint::Path(socket.into()), start_deadline).map_err(|error| {
            let reason = sys::reason(&error);
            let failed = Error::internal(format_args!("cannot connect to {path}: {reason}"));
            match error.kind() {
                ErrorKind::WouldBlock => {
                    Failure::Silent(silent(socket, "it accepts no connection"))
                }
                _ if sys::is_interrupted() => unanswered(socket, &error),
                _ => Failure::Down(failed.with_details(HOW_TO_START)),
            }
        })?;
    // A daemon that refuses the request does not read it, so the write can fail. The answer then has the reason.
    let mut lines = Lines::new(stream);
    let sent = write_line(lines.stream(), request);
    let line = lines.next(HEAD_BYTES_MAX).map_err(|error| unanswered(socket, &error))?;
    if line.is_empty() {
        let reason = sent.err().map_or_else(|| CLOSED.into(), |error| sys::reason(&error));
        let msg = format!("cannot ask the DHCP daemon at {path}: {reason}");
        return Err(Failure::Down(Error::new(Code::TRY_AGAIN_LATER, msg)));
    }
    if !line.starts_with(b"{") {
        let error =
            Error::internal(format_args!("the process at {path} is not the DHCP daemon of cnibox"));
        return Err(Failure::Silent(error.with_details(HOW_TO_REPLACE)));
    }
    let unreadable = |reason: &dyn Display| Failure::Silent(silent(socket, &reason.to_string()));
    let read = |line: &[u8]| json::read(line).map_err(|error| unreadable(&error));
    let mut answer: Answer = read(&line)?;
    // A daemon that refuses the request answers at once.
    if let Answer::Within(within) = answer {
        lines.stream().deadline =
            deadline.unwrap_or_else(|| Instant::now() + within.into() + ANSWER_GRACE);
        let line = lines.next(ANSWER_BYTES_MAX).map_err(|error| unanswered(socket, &error))?;
        if line.is_empty() {
            return Err(Failure::Silent(silent(socket, CLOSED)));
        }
        answer = read(&line)?;
    }
    match answer {
        Answer::Done(value) => Ok(value),
        Answer::Failed { code, msg, details } => {
            Err(Failure::Refused(Error::new(Code(code), msg).with_details(details)))
        }
        Answer::Within(_) => Err(unreadable(&"it gave two time limits")),
    }
}

const CLOSED: &str = "it closed the connection";
const HOW_TO_START: &str =
    "start it with `dhcp daemon`, or set \"daemon\": \"auto\" in the configuration";
const HOW_TO_REPLACE: &str =
    "stop the other daemon, and start `dhcp daemon` of cnibox or set \"daemon\": \"auto\"";

fn silent(socket: &Path, reason: &str) -> Error {
    Error::internal(format_args!("cannot ask the DHCP daemon at {}: {reason}", socket.display()))
}

fn unanswered(socket: &Path, error: &io::Error) -> Failure {
    let reason = match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it did not answer in time".into(),
        _ => sys::reason(error),
    };
    Failure::Silent(silent(socket, &reason))
}

/// Starts a daemon that ends with its last lease, unless a daemon listens already. Returns when the daemon listens. It is
/// detached, and keeps no file of this process open.
pub fn start(socket: &Path) -> Result<()> {
    // If several plugins get here at once, the first one starts the daemon; the others then connect to it.
    let _lock = journal::lock_starts()?;
    let deadline = Instant::now() + START_TIMEOUT;
    if Stream::connect(&Endpoint::Path(socket.into()), deadline).is_ok() {
        return Ok(());
    }
    let failed = |reason: String| {
        Error::internal(format_args!(
            "cannot start the DHCP daemon of {}: {reason}",
            socket.display()
        ))
    };
    let spawn = || {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("cnibox").args(["dhcp", "daemon", "-until-idle", "-socketpath"]).arg(socket);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        sys::detach(&mut command);
        command.spawn()
    };
    let child = spawn().map_err(|error| failed(sys::reason(&error)))?;
    let stderr =
        child::read_stderr(child, deadline).map_err(|error| failed(sys::reason(&error)))?;
    let stderr = String::from_utf8_lossy(&stderr);
    match Stream::connect(&Endpoint::Path(socket.into()), deadline) {
        Ok(_) => {
            sys::warn_lines(stderr.trim());
            Ok(())
        }
        Err(error) if stderr.trim().is_empty() => Err(failed(sys::reason(&error))),
        Err(_) => Err(failed(stderr.trim().replace('\n', "; "))),
    }
}
