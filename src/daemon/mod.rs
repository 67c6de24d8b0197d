//! The daemon of `dhcp`: serves each request on its socket in a separate thread, until a signal ends it. The leases are in `Table`.

mod table;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cni::json;
use crate::cni::version::{self, Version};
use crate::dhcp::flags::Flags;
use crate::dhcp::journal::Journal;
use crate::dhcp::journal::Listed;
use crate::dhcp::line::{Lines, write_line};
use crate::dhcp::protocol::{Answer, LeaseRequest, REQUEST_BYTES_MAX, Request};
use crate::dhcp::time::Time;
use crate::error::{Code, Error, Result};
use crate::kernel::file;
use crate::kernel::listener::{Arrival, Listener, Signals, write_public};
use crate::kernel::sys::{self, thread, warn};
use crate::kernel::unix::Stream;
use crate::runtime::Runtime;

use table::Table;

/// The timeout for a client to send its request, and to read the answer.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of all requests except `acquire`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The stack of the thread of a request, in bytes. Its pages are used only as far as the calls go.
const STACK_BYTES: usize = 2 << 20;
/// The most requests that are served at the same time. When there are more, clients try again.
const THREADS_MAX: usize = 1024;
/// The interval of the checks whether the daemon is idle and can end, and whether leases of the journal can have a thread. There
/// is no event for the end of the last lease, and none for a thread that the kernel would start again.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait for the lock of the journal. A plugin holds the lock while it releases a lease because no daemon runs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause after a failed `accept`: the process has no free descriptor, for example.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

/// Runs the daemon until a signal ends it. The leases are not released. `passed` is the number of sockets that the service
/// manager passes to this process.
pub fn run(flags: &Flags, passed: u32, host: Runtime) -> Result<()> {
    // Block the signals before the first thread starts: threads inherit the signal mask.
    let signals = Signals::block()?;
    sys::survive_failed_writes();
    let inherited = (passed > 0).then(|| Listener::inherited(passed)).transpose()?;
    let path = match &inherited {
        Some(listener) => listener.path().to_owned(),
        None => file::below(&flags.hostprefix, &flags.socketpath),
    };
    let path_on_host = without_prefix(&flags.hostprefix, &path);
    let journal = Journal::of(&flags.hostprefix, &path_on_host);
    let Some(_lock) = journal.lock(LOCK_TIMEOUT)? else {
        let msg = format!("cannot start the DHCP daemon of {}", path.display());
        return Err(Error::new(Code::TRY_AGAIN_LATER, msg).with_details(journal.holder()));
    };
    // Write the file before the socket accepts connections: a script that can connect then finds the id of the process, too.
    let _pidfile = flags.pidfile.as_deref().map(Pidfile::write).transpose()?;
    let listener = inherited.map_or_else(|| Listener::create(&path), Ok)?;
    let served = serve(flags, &listener, &signals, journal, host);
    listener.remove();
    served
}

fn serve(
    flags: &Flags,
    listener: &Listener,
    signals: &Signals,
    journal: Journal,
    host: Runtime,
) -> Result<()> {
    let log = journal.directory().join(".log");
    // 500 attachments at once have as many connections and sockets.
    sys::raise_file_limit();
    let table = Table::open(journal, flags.clone(), host)?;
    if flags.until_idle {
        // The plugin that started this daemon waits until the daemon's stderr is closed. From now on, stderr is the log.
        file::redirect_stderr(&log).map_err(|error| {
            Error::internal(format_args!("cannot write {}: {error}", log.display()))
        })?;
    }
    // Each request that is served has a clone.
    let active = Arc::new(());
    let mut was_idle = false;
    loop {
        let limit = (flags.until_idle || table.has_waiting()).then_some(IDLE_PAUSE);
        match listener.wait(signals, limit, IO_TIMEOUT) {
            Ok(Arrival::Connection(stream)) => {
                serve_in_thread(stream, &table, &active);
                was_idle = false;
            }
            Ok(Arrival::Signal) => return Ok(()),
            Ok(Arrival::Timeout) => {
                if table.has_waiting() {
                    // `Table::open` has reported the reason.
                    let _ = table.adopt();
                }
                let is_idle = flags.until_idle && count_of(&active) == 0 && table.is_idle();
                if is_idle && was_idle {
                    return Ok(());
                }
                was_idle = is_idle;
            }
            Err(error) => {
                warn(format_args!("warning: {error}"));
                // Pause, because no event tells when a descriptor is free again.
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the loop must not use all of a core"
                )]
                std::thread::sleep(FAILED_PAUSE);
            }
        }
    }
}

/// The file with the id of this process. Dropping it removes the file.
struct Pidfile<'a>(&'a Path);

impl<'a> Pidfile<'a> {
    fn write(path: &'a Path) -> Result<Self> {
        let written = write_public(path, &std::process::id().to_string());
        let doing = format_args!("cannot write {}", path.display());
        written.map(|()| Self(path)).map_err(sys::failed_with(Code::IO, doing))
    }
}

impl Drop for Pidfile<'_> {
    fn drop(&mut self) {
        // If this fails, the file is stale, as after a crash.
        let _ = std::fs::remove_file(self.0);
    }
}

fn without_prefix(prefix: &Path, path: &Path) -> PathBuf {
    match path.strip_prefix(prefix) {
        Ok(rest) if !prefix.as_os_str().is_empty() => Path::new("/").join(rest),
        _ => path.to_owned(),
    }
}

/// The number of requests that are served.
fn count_of(active: &Arc<()>) -> usize {
    Arc::strong_count(active) - 1
}

/// Serves a request in a new thread, or sends a refusal.
fn serve_in_thread(mut stream: Stream, table: &Arc<Table>, active: &Arc<()>) {
    let refusal = if !stream.is_of_root() {
        Error::internal("cannot serve the request: the client does not run as root")
    } else if count_of(active) >= THREADS_MAX {
        Error::new(Code::TRY_AGAIN_LATER, "cannot serve the request: there are too many at once")
    } else {
        let (table, active) = (Arc::clone(table), Arc::clone(active));
        let started = thread::spawn(STACK_BYTES, (stream, table, active), |served| {
            // `_active` counts this thread until its end.
            let (stream, table, _active) = served;
            // An error needs no report: the client sees that the connection is closed.
            let _ = answer(stream, &table);
        });
        let Err(((returned, ..), error)) = started else { return };
        stream = returned;
        let doing = "cannot serve the request: cannot start a thread";
        sys::failed_with(Code::TRY_AGAIN_LATER, doing)(error)
    };
    let _ = write_line(&mut stream, &Answer::new(Err::<(), _>(refusal)));
}

fn answer(stream: Stream, table: &Arc<Table>) -> io::Result<()> {
    let mut lines = Lines::new(stream);
    let line = lines.next(REQUEST_BYTES_MAX)?;
    let stream = lines.stream();
    if line.is_empty() {
        return Ok(());
    }
    if !line.starts_with(b"{") {
        return stream.write_all(HTTP_REFUSAL.as_bytes());
    }
    let request: Request = match json::read(&line) {
        Ok(request) => request,
        Err(error) => {
            let error = Error::new(Code::DECODE, format_args!("cannot read the request: {error}"));
            return write_line(stream, &Answer::new(Err::<(), _>(error)));
        }
    };
    let within =
        if matches!(request, Request::Acquire(_)) { table.limit() } else { REQUEST_TIMEOUT };
    write_line(stream, &Answer::Within(within.into()))?;
    let mut send = |answer: Answer| {
        stream.deadline = Instant::now() + IO_TIMEOUT;
        let is_gone = stream.is_closed();
        write_line(stream, &answer).map(|()| !is_gone)
    };
    let answer = match &request {
        Request::Acquire(request) => return send_lease(table, request, send),
        Request::Check(key) => Answer::new(table.check(key)),
        Request::Release(key) => Answer::new(table.release(key)),
        Request::Gc { network, keep } => Answer::new(table.retain(network, keep)),
        Request::Status => Answer::new(Ok(())),
        Request::Leases => Answer::new(Ok(LeaseList { now: Time::now(), leases: table.list() })),
    };
    send(answer).map(drop)
}

/// Gets a lease and sends it to the plugin. `send` returns whether the plugin can have received the answer.
fn send_lease(
    table: &Arc<Table>,
    request: &LeaseRequest,
    send: impl FnOnce(Answer) -> io::Result<bool>,
) -> io::Result<()> {
    let (success, waiter) = match table.acquire(request) {
        Ok(acquired) => acquired,
        Err(error) => return send(Answer::new(Err::<(), _>(error))).map(drop),
    };
    let printed = version::print_result(&success, Version::NEWEST);
    let is_printed = printed.is_ok();
    let sent = send(Answer::new(printed));
    if is_printed && matches!(sent, Ok(true)) {
        waiter.received();
    }
    sent.map(drop)
}

/// The answer to the request for all leases.
#[derive(Serialize)]
struct LeaseList {
    now: Time,
    leases: Vec<Listed>,
}

/// The answer to a request in another protocol. The plugin of the reference reports the status line of HTTP as its error.
const HTTP_REFUSAL: &str = "HTTP/1.0 400 the DHCP daemon here is that of cnibox and needs the plugin dhcp of cnibox\r\n\r\n";
