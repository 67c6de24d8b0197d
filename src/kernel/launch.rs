//! Starts a command in a network namespace and passes signals to it. This module does not depend on CNI networks.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::kernel::file::{self, Aside};
use crate::kernel::listener;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::{self, ChildSetup, warn};

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The exit codes that a shell returns for a command that does not exist, that cannot be executed, or that a signal ended. In
/// the last case the number of the signal is added.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
const KILLED: i32 = 128;

/// The signals that are not passed to the command: those of a fault in this process, and those of job control, which the
/// terminal sends to both processes.
const NOT_PASSED: [Signal; 11] = [
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGABRT,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGSEGV,
    Signal::SIGSYS,
    Signal::SIGPIPE,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// A command, with its network, its mounts and its host name.
pub struct Launch<'a> {
    pub netns: &'a NetNs,
    /// The program and its arguments; not empty.
    pub words: &'a [OsString],
    /// The content of /etc/resolv.conf for the command; `None` keeps that of the host.
    pub resolv_conf: Option<String>,
    /// The directory of the temporary resolv.conf, which exists until the command has started.
    pub directory: &'a Path,
    pub hostname: Option<&'a str>,
    /// Mounts of this process that the command does not see.
    pub hidden: &'a [&'a str],
    /// An open file that the command inherits.
    pub inherited: Option<&'a File>,
}

impl Launch<'_> {
    /// Runs the command as a child, which is killed when this process ends. Returns its exit code. From now on this process
    /// passes signals to the child and does not handle them itself.
    pub fn run(&self) -> Result<u8> {
        let mut mask = SigSet::all();
        NOT_PASSED.into_iter().for_each(|signal| mask.remove(signal));
        let signals = listener::block_signals(&mask, SfdFlags::empty())?;
        // A signal came before the mask was set.
        if sys::is_interrupted() {
            return Err(Error::internal("cannot start the command: interrupted"));
        }
        let started = self.begin(|command| {
            sys::end_with_parent(command);
            self.netns.run(|| Ok(command.spawn()))
        })?;
        match started {
            Ok(mut child) => self.wait(&mut child, &signals),
            Err(code) => Ok(code),
        }
    }

    /// Replaces this process by the command. Returns an exit code if the command cannot be executed.
    pub fn exec(&self) -> Result<u8> {
        let started: Result<(), u8> =
            self.begin(|command| self.netns.run(|| Ok(Err(command.exec()))))?;
        Ok(started.err().unwrap_or_default())
    }

    /// Sets up the command and starts it. The inner error is an exit code: the setup succeeded, and the command cannot be
    /// executed.
    fn begin<T>(
        &self,
        start: impl FnOnce(&mut Command) -> Result<io::Result<T>>,
    ) -> Result<Result<T, u8>> {
        let name = self.words[0].to_string_lossy();
        let cannot = |error: io::Error| sys::failed(format_args!("cannot prepare {name}"))(error);
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        let (mut reader, writer) = io::pipe().map_err(cannot)?;
        let resolv_conf = self.write_resolv_conf()?;
        let inherited = self.inherited.map(|file| file.as_fd().try_clone_to_owned()).transpose();
        let setup = ChildSetup {
            inherited: inherited.map_err(cannot)?,
            resolv_conf: resolv_conf.as_ref().map(|file| file.path().into()),
            hostname: self.hostname.map(Into::into),
            hidden: self.hidden.iter().map(Into::into).collect(),
        };
        sys::set_up_child(&mut command, setup, writer);
        let started = start(&mut command);
        drop(command);
        // The child unlinks the file after the mount. If the child failed earlier, the file is removed here.
        drop(resolv_conf);
        let error = match started? {
            Ok(child) => return Ok(Ok(child)),
            Err(error) => error,
        };
        if reader.read(&mut [0]).map_err(cannot)? == 0 {
            return Err(cannot(error));
        }
        warn(format_args!("cnibox: cannot execute {name}: {}", sys::reason(&error)));
        Ok(Err(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }))
    }

    /// Writes the file that is mounted over /etc/resolv.conf. It is removed when the returned value is dropped.
    fn write_resolv_conf(&self) -> Result<Option<Aside>> {
        // A hidden mount can cover the file that /etc/resolv.conf links to.
        let content = match &self.resolv_conf {
            Some(content) if !self.hidden.is_empty() || ensure_resolv_conf() => content,
            _ => return Ok(None),
        };
        let path = self.directory.join("resolv.conf");
        let write = || {
            file::make_directory(self.directory, 0o700)?;
            let aside = Aside::keep(&path, content.as_bytes(), 0o600)?;
            // The command can run as any user, so the umask must not apply.
            aside.file().set_permissions(fs::Permissions::from_mode(0o644))?;
            Ok(aside)
        };
        write().map(Some).map_err(|error: io::Error| {
            Error::internal(format_args!("cannot write {}: {error}", path.display()))
        })
    }

    fn wait(&self, child: &mut Child, signals: &SignalFd) -> Result<u8> {
        let failed = |error: io::Error| Error::internal(format_args!("cannot wait: {error}"));
        let pid = Pid::from_raw(child.id().cast_signed());
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(exit_code(status));
            }
            let info = match signals.read_signal() {
                Ok(Some(info)) => info,
                Ok(None) | Err(Errno::EINTR) => continue,
                Err(errno) => return Err(failed(errno.into())),
            };
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            // A signal from the terminal (a positive code) reaches the command without this process.
            let is_from_process = info.ssi_code <= 0;
            if is_from_process && number != Signal::SIGCHLD as i32 {
                sys::send_signal(pid, number);
            }
        }
    }
}

/// Creates an empty /etc/resolv.conf if there is none, as the target of the mount. To resolvers an empty file is the same as no
/// file. False if the file cannot be opened.
fn ensure_resolv_conf() -> bool {
    let path = Path::new(RESOLV_CONF);
    let opened = match file::open(path, file::READ) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            file::open_any(path, file::READ | file::CREATE, 0o644)
        }
        opened => opened,
    };
    opened
        .map_err(|error| {
            warn(format_args!(
                "warning: cannot open {RESOLV_CONF}: {error}; the command does not get the DNS \
                 servers of its network"
            ))
        })
        .is_ok()
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| KILLED + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}
