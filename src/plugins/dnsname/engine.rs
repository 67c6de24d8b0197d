//! aardvark-dns, which answers the queries: one process for the names of all networks.
//!
//! It reads its directory at SIGHUP, and writes its process id there. If the last file of the directory is gone at a SIGHUP, it ends by
//! itself some time later, and the next start could take it for one that runs; so it gets SIGTERM before, and its end is waited for.
//! At SIGTERM it leaves the file with its process id.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::child::{self, End, Output};
use crate::kernel::file;
use crate::kernel::process::{Opened, Process, shares_network};
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

const START_MAX: Duration = Duration::from_secs(10);
/// The longest wait for its end after SIGTERM, and again after SIGKILL.
const END_MAX: Duration = Duration::from_secs(1);
/// The longest wait for a new address after SIGHUP, and the pause between two looks at the sockets.
const LISTEN_MAX: Duration = Duration::from_secs(1);
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
    pub fn running(&self) -> Result<Option<Opened>> {
        let path = self.id_file();
        let text = file::found(file::read_text(&path)).map_err(Error::of_file("read", &path))?;
        let Some(id) = text.and_then(|text| text.trim().parse::<u32>().ok()) else {
            return Ok(None);
        };
        let doing = format_args!("cannot tell whether process {id} is {NAME}");
        let process = Opened::open(id).map_err(sys::failed(doing))?;
        let is_ours = |process: &Opened| self.is_of(process);
        let found =
            process.map(|process| is_ours(&process).map(|is_ours| is_ours.then_some(process)));
        found.transpose().map(Option::flatten).map_err(sys::failed(doing))
    }

    fn is_of(&self, process: &Opened) -> io::Result<bool> {
        let arguments = process.arguments()?;
        let arguments: Vec<&str> = arguments.split('\0').collect();
        if !arguments.windows(2).any(|pair| pair == ["--config", self.directory]) {
            return Ok(false);
        }
        let Some(known) = Process::of(process.id)? else { return Ok(false) };
        if known.executable()?.as_deref() != Some(NAME) {
            return Ok(false);
        }
        let hidden = || io::Error::other("its network namespace is hidden");
        shares_network(process.id, process::id()).ok_or_else(hidden)
    }

    /// Starts the engine. Fails with its reason if it cannot serve one of the addresses in the files of the directory.
    pub fn start(&self, executable: &Path) -> Result<()> {
        let id_file = self.id_file();
        file::found(fs::remove_file(&id_file)).map_err(Error::of_file("remove", &id_file))?;
        if Path::new(SYSTEMD).exists() && Path::new(SYSTEMD_RUN).exists() {
            // In the control group of the container's unit it would end with this unit.
            let mut command = Command::new(SYSTEMD_RUN);
            command.args(["--quiet", "--scope", "--collect"]);
            if is_in_user_namespace() {
                command.arg("--user");
            }
            command.arg(executable);
            // Without a bus there is no scope.
            let started = self.run(command);
            if started.is_ok() || sys::is_interrupted() {
                return started;
            }
            // It can have started it before it failed.
            if let Some(engine) = self.running()? {
                stop(&engine)?;
            }
            let _ = fs::remove_file(&id_file);
        }
        self.run(Command::new(executable))
    }

    fn run(&self, mut command: Command) -> Result<()> {
        command.arg("--config").arg(self.directory).args(["-p", "53", "-f", DOMAIN, "run"]);
        match run(command, START_MAX)? {
            Output { end: End::Exited(status), .. } if status.success() => Ok(()),
            output => Err(Error::internal(format_args!("cannot start {NAME}"))
                .with_details(reason_of(&output))),
        }
    }
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
        (_, Some(line)) => line.trim_start_matches("Error starting server ").to_owned(),
        (End::Exited(status), None) => status.to_string(),
        (_, None) => format!("it did not begin to serve within {} s", START_MAX.as_secs()),
    }
}

/// Waits until the engine serves these addresses.
pub fn wait_for(addresses: &[IpAddr]) -> Result<()> {
    if addresses.is_empty() {
        return Ok(());
    }
    let end = Instant::now() + LISTEN_MAX;
    loop {
        let waiting = sock_diag::waiting(Transport::Udp)?;
        let is_served = |address: &&IpAddr| {
            waiting.iter().any(|socket| socket.port == PORT && socket.address == **address)
        };
        let Some(missing) = addresses.iter().find(|address| !is_served(address)) else {
            return Ok(());
        };
        if Instant::now() >= end {
            let seconds = LISTEN_MAX.as_secs();
            let msg = format!("{NAME} does not serve {missing} within {seconds} s");
            return Err(Error::internal(msg));
        }
        sys::fail_if_interrupted().map_err(sys::failed(format_args!("cannot wait for {NAME}")))?;
        // The engine tells nobody when it has read its directory.
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(LISTEN_PAUSE);
    }
}

/// Fails if a program other than `engine` has port 53 of an address, or of every address.
pub fn refuse_taken(address: IpAddr, engine: Option<&Opened>) -> Result<()> {
    for transport in [Transport::Udp, Transport::Tcp] {
        let waiting = sock_diag::waiting(transport)?;
        let is_taken = |socket: &&Waiting| socket.port == PORT && socket.is_on(Some(address));
        let Some(socket) = waiting.iter().find(is_taken) else { continue };
        let msg = format!("cannot serve {} port {PORT} of {address}", transport.name());
        let programs = socket.programs();
        // It has not closed the address yet that it served before.
        if engine.is_some_and(|engine| programs.iter().any(|program| program.id == engine.id)) {
            continue;
        }
        let program = match programs.into_iter().next() {
            Some(program) => format!("the program {}, process {}", program.name, program.id),
            None => "another program".into(),
        };
        let details = format!("{program}, has this port of {}", socket.address);
        return Err(Error::internal(msg).with_details(details));
    }
    Ok(())
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
