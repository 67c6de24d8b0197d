//! aardvark-dns, which answers the queries: one process for the names of all networks.
//!
//! It reads its directory at SIGHUP, and writes its process id there. If the last file of the directory is gone at a SIGHUP, it ends by
//! itself some time later, and the next start could take it for one that runs; so it gets SIGTERM before, and its end is waited for.
//! At SIGTERM it leaves the file with its process id.

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};

use super::named::DIRECTORY;
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::child::{self, End, Output};
use crate::kernel::file::{self, Aside};
use crate::kernel::process::{self as processes, Opened};
use crate::kernel::sockets::Waiting;
use crate::kernel::state_directory::is_in_user_namespace;
use crate::kernel::sys;
use crate::netlink::nft::Transport;
use crate::netlink::sock_diag;

/// The name of the executable, and of the package of Debian, Fedora, openSUSE, Alpine and Arch that has it.
pub const NAME: &str = "aardvark-dns";
/// The oldest release whose answers have no lifetime: 1.4 lets clients keep one for a day.
const OLDEST: [u32; 2] = [1, 13];
/// The directories of podman's helpers (containers.conf(5), `helper_binaries_dir`), then those of the system.
const DIRECTORIES: [&str; 6] = [
    "/usr/local/libexec/podman",
    "/usr/local/lib/podman",
    "/usr/libexec/podman",
    "/usr/lib/podman",
    "/usr/local/bin",
    "/usr/bin",
];
/// The file with its process id.
pub(super) const ID_FILE: &str = "aardvark.pid";
const SYSTEMD: &str = "/run/systemd/system";
const SYSTEMD_RUN: &str = "/usr/bin/systemd-run";

/// The domain that the engine takes off a queried name. Those of other networks are written as names.
pub const DOMAIN: &str = "dns.podman";
pub const PORT: u16 = 53;
/// By which it answers queries.
pub const SERVED: [Transport; 2] = [Transport::Udp, Transport::Tcp];

const START_MAX: Duration = Duration::from_secs(10);
/// The longest wait for its end after SIGTERM, and again after SIGKILL.
const END_MAX: Duration = Duration::from_secs(1);
/// The longest wait for a new address after SIGHUP, and the pause between two looks at the sockets. A busy host delays the engine.
const LISTEN_MAX: Duration = Duration::from_secs(5);
const LISTEN_PAUSE: Duration = Duration::from_micros(500);

/// The engine of a directory.
pub struct Engine {
    pub directory: &'static str,
}

impl Engine {
    pub(super) fn path(&self) -> &'static Path {
        Path::new(self.directory)
    }

    fn id_file(&self) -> PathBuf {
        self.path().join(ID_FILE)
    }

    /// The engine of this directory in this network namespace. `None` if there is none. Fails if this cannot be told.
    ///
    /// Its file does not always name it: another namespace can have the same directory, and somebody can have removed the file. Then it
    /// is looked for among all processes.
    pub fn running(&self) -> Result<Option<Opened>> {
        if let Some(engine) = self.noted()? {
            return Ok(Some(engine));
        }
        let all = processes::ids_of(NAME).map_err(sys::failed("cannot list processes"))?;
        for id in all {
            if let Some(engine) = self.at(id)? {
                return Ok(Some(engine));
            }
        }
        Ok(None)
    }

    /// Writes the id of the engine into its file, if the file lacks it. Returns whether it did.
    pub fn note(&self, engine: &Opened) -> Result<bool> {
        if self.noted_id()? == Some(engine.id) {
            return Ok(false);
        }
        put(&self.id_file(), Some(format!("{}\n", engine.id))).map(|()| true)
    }

    fn noted_id(&self) -> Result<Option<u32>> {
        let text = read(&self.id_file())?;
        Ok(text.and_then(|text| text.trim().parse().ok()))
    }

    /// The engine that the file names.
    pub fn noted(&self) -> Result<Option<Opened>> {
        self.noted_id()?.map_or(Ok(None), |id| self.at(id))
    }

    /// The engine if it has this process id.
    fn at(&self, id: u32) -> Result<Option<Opened>> {
        let doing = format_args!("cannot tell whether process {id} is {NAME}");
        let Some(process) = Opened::open(id).map_err(sys::failed(doing))? else { return Ok(None) };
        let is_ours = self.is_of(&process).map_err(sys::failed(doing))?;
        Ok(is_ours.then_some(process))
    }

    fn is_of(&self, process: &Opened) -> io::Result<bool> {
        let arguments = process.arguments()?;
        let arguments: Vec<&str> = arguments.split('\0').collect();
        if !arguments.windows(2).any(|pair| pair == ["--config", self.directory])
            || processes::executable_of(process.id)?.as_deref() != Some(NAME)
            || !processes::shares_directory(process.id, Path::new(DIRECTORY))?
        {
            return Ok(false);
        }
        match processes::shares_network(process.id, process::id()) {
            Some(shares) => Ok(shares),
            // It has ended meanwhile.
            None if process.arguments()?.is_empty() => Ok(false),
            None => Err(io::Error::other("its network namespace is hidden")),
        }
    }

    /// Starts the engine. Fails with its reason if it cannot serve one of the addresses in the files of the directory.
    pub fn start(&self, executable: &Path) -> Result<()> {
        put(&self.id_file(), None)?;
        for manager in managers() {
            // In the control group of the container's unit it would end with this unit.
            let mut command = Command::new(SYSTEMD_RUN);
            command.args(["--quiet", "--scope", "--collect", "--no-ask-password", manager]);
            command.arg(executable);
            // Without a bus there is no scope.
            let started = self.start_with(command);
            if started.is_ok() || sys::is_interrupted() {
                return started;
            }
            // It can have started it before it failed.
            if let Some(engine) = self.running()? {
                stop(&engine)?;
            }
            put(&self.id_file(), None)?;
        }
        self.start_with(Command::new(executable))
    }

    fn start_with(&self, mut command: Command) -> Result<()> {
        command.arg("--config").arg(self.directory).args(["-p", "53", "-f", DOMAIN, "run"]);
        match run(command, START_MAX)? {
            Output { end: End::Exited(status), .. } if status.success() => Ok(()),
            output => Err(Error::internal(format_args!("cannot start {NAME}"))
                .with_details(reason_of(&output))),
        }
    }
}

/// A file of its directory. `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<String>> {
    file::found(file::read_text(path)).map_err(Error::of_file("read", path))
}

/// Writes or removes a file. The engine reads all files of its directory, so a temporary one is in another.
pub(super) fn put(path: &Path, content: Option<String>) -> Result<()> {
    let Some(content) = content else {
        let removed = fault::file_operation().and_then(|()| fs::remove_file(path));
        return file::found(removed).map(drop).map_err(Error::of_file("remove", path));
    };
    let write = || {
        if let Some(directory) = path.parent() {
            file::make_directory(directory, 0o700)?;
        }
        let aside = PathBuf::from(DIRECTORY).join(path.file_name().unwrap_or_default());
        Aside::keep(&aside, content.as_bytes(), 0o600)?.rename(path)
    };
    write().map_err(Error::of_file("write", path))
}

/// The service managers that can make a scope, as options of systemd-run. In a user namespace, root of a container of LXC has that of the
/// system, and an ordinary user only that of the user, which ends at the logout.
fn managers() -> &'static [&'static str] {
    if !Path::new(SYSTEMD).exists() || !Path::new(SYSTEMD_RUN).exists() {
        return &[];
    }
    if is_in_user_namespace() { &["--system", "--user"] } else { &["--system"] }
}

/// Fails if this process could not signal the engine.
pub fn require_signals() -> Result<()> {
    Opened::require().map_err(sys::failed(format_args!("cannot signal {NAME}")))
}

/// Makes the engine read its directory. Returns false if it has ended.
pub fn reload(engine: &Opened) -> Result<bool> {
    let doing = format_args!("cannot signal {NAME}, process {}", engine.id);
    engine.hang_up().map_err(sys::failed(doing))
}

/// Ends the engine, and waits for its end.
pub fn stop(engine: &Opened) -> Result<()> {
    engine
        .end(END_MAX)
        .map_err(sys::failed(format_args!("cannot end {NAME}, process {}", engine.id)))
}

/// Finds the executable, in `path` and where podman has its helpers. Fails if there is none that is new enough.
pub fn find(path: &[PathBuf]) -> Result<PathBuf> {
    let mut reason = "it is not installed".to_owned();
    let directories = path.iter().map(PathBuf::as_path).chain(DIRECTORIES.map(Path::new));
    for candidate in directories.map(|directory| directory.join(NAME)) {
        match fs::metadata(&candidate) {
            Ok(found) if found.is_file() => {}
            Ok(_) => continue,
            Err(error) if file::is_missing(&error) => continue,
            Err(error) => {
                reason = format!("cannot read {}: {}", candidate.display(), sys::reason(&error));
                continue;
            }
        }
        match version(&candidate) {
            Ok(version) if version >= OLDEST => return Ok(candidate),
            Ok([major, minor]) => {
                reason = format!("{} is release {major}.{minor}", candidate.display());
            }
            Err(error) => reason = error.to_string(),
        }
    }
    let [major, minor] = OLDEST;
    let needed = format!("the names of containers need {NAME} {major}.{minor} or later");
    Err(Error::internal(format_args!("cannot find {NAME}")).with_details(format_args!(
        "{reason}; {needed}, which is the package {NAME} of the usual distributions"
    )))
}

/// The first two numbers of the release.
fn version(executable: &Path) -> Result<[u32; 2]> {
    let mut command = Command::new(executable);
    command.arg("--version");
    let output = run(command, START_MAX)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    version_of(&text).ok_or_else(|| {
        let msg = format!("cannot tell the release of {}", executable.display());
        Error::internal(msg).with_details(format_args!("it says {:?}", text.trim()))
    })
}

/// `aardvark-dns 1.14.0` or `aardvark-dns 2.0.0-dev`.
fn version_of(text: &str) -> Option<[u32; 2]> {
    let mut numbers = text.strip_prefix(NAME)?.trim().split('.');
    Some([numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?])
}

/// Runs a command to its end. The process that it leaves behind has no descriptor of this one: a runtime waits until they are closed.
fn run(mut command: Command, limit: Duration) -> Result<Output> {
    let name = command.get_program().display().to_string();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    sys::detach(&mut command);
    let started = fault::kernel_request().and_then(|()| command.spawn());
    let output = started.and_then(|child| child::communicate(child, b"", Some(limit)));
    output.map_err(|error| {
        Error::internal(format_args!("cannot run {name}")).with_details(sys::reason(&error))
    })
}

/// Why a command failed, from the last line that it wrote.
fn reason_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    match (&output.end, last) {
        (End::Interrupted, _) => "it was interrupted".into(),
        (_, Some(line)) => line.trim_start_matches("Error starting server ").to_owned(),
        (End::Exited(status), None) => status.to_string(),
        (_, None) => format!("it did not begin to serve within {} s", START_MAX.as_secs()),
    }
}

/// Waits until the engine serves these addresses. Returns false if it has ended.
pub fn wait_for(addresses: &[IpAddr], engine: &Opened) -> Result<bool> {
    let end = Instant::now() + LISTEN_MAX;
    while let Some(missing) = unserved(addresses, engine)? {
        if Instant::now() >= end {
            probe(missing, Some(engine))?;
            let seconds = LISTEN_MAX.as_secs();
            let msg = format!("{NAME} does not serve {missing} within {seconds} s");
            return Err(Error::internal(msg));
        }
        // The engine tells nobody when it has read its directory.
        let has_ended = sys::fail_if_interrupted().and_then(|()| engine.ends_within(LISTEN_PAUSE));
        if has_ended.map_err(sys::failed(format_args!("cannot wait for {NAME}")))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first of the addresses at which the engine does not wait for queries.
pub fn unserved(addresses: &[IpAddr], engine: &Opened) -> Result<Option<IpAddr>> {
    if addresses.is_empty() {
        return Ok(None);
    }
    let cannot =
        || sys::failed(format!("cannot list the sockets of {NAME}, process {}", engine.id));
    for transport in SERVED {
        let waiting = sock_diag::waiting(transport)?;
        for address in addresses {
            let is_there = |socket: &&Waiting| socket.port == PORT && socket.address == *address;
            let is_own = match waiting.iter().find(is_there) {
                Some(socket) => file::found(socket.is_of(engine.id)).map_err(cannot())?,
                None => None,
            };
            if is_own != Some(true) {
                return Ok(Some(*address));
            }
        }
    }
    Ok(None)
}

/// Fails if the engine could not serve an address: another program has its port, or the host does not have it, or not yet. Without the
/// right to look this is unknown, and no failure.
pub fn probe(address: IpAddr, engine: Option<&Opened>) -> Result<()> {
    for transport in SERVED {
        let bound = fault::kernel_request().and_then(|()| match transport {
            Transport::Udp => UdpSocket::bind((address, PORT)).map(drop),
            _ => TcpListener::bind((address, PORT)).map(drop),
        });
        match bound {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                refuse_other(address, transport, engine)?;
            }
            Err(error) => return Err(unservable(address, transport, sys::reason(&error))),
        }
    }
    Ok(())
}

/// Fails with the name of the program that has the port, if it is not the engine: that has not closed yet what it served before.
fn refuse_other(address: IpAddr, transport: Transport, engine: Option<&Opened>) -> Result<()> {
    let waiting = sock_diag::waiting(transport)?;
    let is_on_port = |socket: &&Waiting| socket.port == PORT && socket.is_on(Some(address));
    let socket = waiting.iter().find(is_on_port);
    let programs = socket.map(Waiting::programs).unwrap_or_default();
    if engine.is_some_and(|engine| programs.iter().any(|program| program.id == engine.id)) {
        return Ok(());
    }
    let program = match programs.into_iter().next() {
        Some(program) => format!("the program {}, process {}", program.name, program.id),
        None => "another program".into(),
    };
    let of = socket.map_or(address, |socket| socket.address);
    Err(unservable(address, transport, format!("{program}, has this port of {of}")))
}

/// The error for an address at which another network is served.
pub fn served_by(network: &str, address: IpAddr) -> Error {
    Error::config(format_args!("cannot serve names at {address}"))
        .with_details(format_args!("network {network} is served there"))
}

fn unservable(address: IpAddr, transport: Transport, why: impl Display) -> Error {
    let msg = format!("cannot serve {} port {PORT} of {address}", transport.name());
    Error::internal(msg).with_details(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read() {
        assert_eq!(version_of("aardvark-dns 1.14.0\n"), Some([1, 14]));
        assert_eq!(version_of("aardvark-dns 2.0.0-dev"), Some([2, 0]));
        assert_eq!(version_of("dnsmasq 2.90"), None);
        assert!([1, 4] < OLDEST && [1, 13] >= OLDEST && [2, 0] >= OLDEST);
    }

    #[test]
    fn the_reason_is_the_last_line() {
        let output =
            |stderr: &str| Output { stdout: Vec::new(), stderr: stderr.into(), end: End::TimedOut };
        let text = "Error from child process\nError starting server failed to bind udp listener on 10.1.0.1:53: in use\n";
        assert_eq!(reason_of(&output(text)), "failed to bind udp listener on 10.1.0.1:53: in use");
        assert_eq!(reason_of(&output("")), "it did not begin to serve within 10 s");
    }
}
