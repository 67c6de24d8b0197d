//! Starts a command in a network namespace and passes signals to it. It does not use networks.

use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, ErrorKind, Read};
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
use crate::kernel::netns::NetNs;
use crate::kernel::sys::{self, ChildSetup, warn};

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// As a shell has them.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
const KILLED: i32 = 128;

/// The signals that are not passed to the command: those of a mistake in this process, and those of job control, which
/// stop this process as a terminal stops the command.
const OWN: [Signal; 11] = [
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
    /// The content of /etc/resolv.conf; None keeps the host's.
    pub resolv_conf: Option<String>,
    /// A directory for a file that exists until the command has started.
    pub directory: &'a Path,
    pub hostname: Option<&'a str>,
    /// Mounts of this process that the command does not see.
    pub hidden: &'a [&'a str],
}

impl Launch<'_> {
    /// Runs the command as a child, which dies with this process. Returns its exit code. From now on this process does
    /// not react to signals itself.
    pub fn run(&self) -> Result<u8> {
        let mut mask = SigSet::all();
        OWN.into_iter().for_each(|signal| mask.remove(signal));
        let failed = |errno: Errno| {
            // nix's texts of errors would take 13 KB.
            Error::internal(format_args!(
                "cannot wait for signals: {}",
                sys::errno_text(errno as i32)
            ))
        };
        mask.thread_block().map_err(failed)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC).map_err(failed)?;
        // It came before the mask.
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

    /// Replaces this process by the command. Returns an exit code if that fails.
    pub fn exec(&self) -> Result<u8> {
        let started: Result<(), u8> =
            self.begin(|command| self.netns.run(|| Ok(Err(command.exec()))))?;
        Ok(started.err().unwrap_or_default())
    }

    /// The inner error is an exit code: the setup succeeded, and the command cannot be executed.
    fn begin<T>(
        &self,
        start: impl FnOnce(&mut Command) -> Result<io::Result<T>>,
    ) -> Result<Result<T, u8>> {
        let name = self.words[0].to_string_lossy();
        let cannot = |error: io::Error| {
            Error::internal(format_args!("cannot prepare {name}: {}", sys::reason(&error)))
        };
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        let (mut reader, writer) = io::pipe().map_err(cannot)?;
        let resolv_conf = self.write_resolv_conf()?;
        sys::set_up_child(&mut command, self.setup(resolv_conf.as_ref())?, writer);
        let started = start(&mut command);
        drop(command);
        // The command's side has unlinked it, if it came so far.
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

    fn setup(&self, resolv_conf: Option<&Aside>) -> Result<ChildSetup> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| Error::config(format_args!("{text:?} contains a NUL")))
        };
        let resolv_conf = resolv_conf.map(|file| file.path().to_string_lossy());
        Ok(ChildSetup {
            resolv_conf: resolv_conf.map(|path| text(&path)).transpose()?,
            hostname: self.hostname.map(text).transpose()?,
            hidden: self.hidden.iter().map(|path| text(path)).collect::<Result<_>>()?,
        })
    }

    /// Writes the file that is mounted over /etc/resolv.conf. It is removed when it is dropped.
    fn write_resolv_conf(&self) -> Result<Option<Aside>> {
        // A hidden mount can cover the file that /etc/resolv.conf links to.
        let content = match &self.resolv_conf {
            Some(content) if !self.hidden.is_empty() || is_in_place() => content,
            _ => return Ok(None),
        };
        let path = self.directory.join("resolv.conf");
        let write = || {
            file::make_private_directory(self.directory)?;
            let aside = Aside::write(&path, content.as_bytes(), 0o600)?;
            // Every user of the command's side reads it, whatever the umask says.
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
                return Ok(code(status));
            }
            let info = match signals.read_signal() {
                Ok(Some(info)) => info,
                Ok(None) | Err(Errno::EINTR) => continue,
                Err(errno) => return Err(failed(errno.into())),
            };
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            // The kernel sends those of a terminal to the command, too.
            let is_sent = info.ssi_code <= 0;
            if is_sent && number != Signal::SIGCHLD as i32 {
                sys::send_signal(pid, number);
            }
        }
    }
}

/// Whether /etc/resolv.conf exists, to mount over it. A missing one is created: to resolvers an empty file and none are
/// the same.
fn is_in_place() -> bool {
    let path = Path::new(RESOLV_CONF);
    let opened = match file::open(&file::reading(), path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            file::open(file::reading().write(true).create(true), path)
        }
        opened => opened,
    };
    opened
        .map_err(|error| {
            warn(format_args!("warning: {RESOLV_CONF}: {error}; the command has none"))
        })
        .is_ok()
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| KILLED + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}
