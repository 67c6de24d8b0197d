//! Executes programs. std's own `Command` costs 20 KB, most of it for maps of the environment.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int};
use std::fs::OpenOptions;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};

unsafe extern "C" {
    /// Source: environ(7).
    static environ: *const *const c_char;
}

/// The value of a variable in the environment of this process. The C library compares names ten times slower.
pub fn variable(name: &str) -> Option<OsString> {
    let name = name.as_bytes();
    for variable in own_environment() {
        let mut at = 0;
        // SAFETY: the bytes before `at` are those of the name, so the string does not end before it.
        while at < name.len() && unsafe { variable.add(at).cast::<u8>().read() } == name[at] {
            at += 1;
        }
        // SAFETY: as above. A value ends with NUL.
        unsafe {
            if at == name.len() && variable.add(at).cast::<u8>().read() == b'=' {
                let value = CStr::from_ptr(variable.add(at + 1));
                return Some(OsStr::from_bytes(value.to_bytes()).to_owned());
            }
        }
    }
    None
}

/// The variables of this process: strings `NAME=VALUE`.
fn own_environment() -> impl Iterator<Item = *const c_char> {
    // SAFETY: `environ` is NULL, or an array of strings with NULL at its end. This program never changes it.
    unsafe {
        let mut next = environ;
        std::iter::from_fn(move || {
            if next.is_null() || (*next).is_null() {
                return None;
            }
            let variable = *next;
            next = next.add(1);
            Some(variable)
        })
    }
}

/// One of the three standard files of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Standard {
    /// That of this process.
    Own,
    /// /dev/null
    Null,
    /// A pipe to this process.
    Pipe,
}

/// A program that is to be executed.
pub struct Command {
    program: CString,
    /// With the name of the program.
    arguments: Vec<CString>,
    /// Without a list the program gets that of this process.
    environment: Option<Vec<CString>>,
    /// stdin, stdout and stderr
    pub standard: [Standard; 3],
    /// The program leads a process group of its own.
    pub leads_group: bool,
    hooks: Vec<Box<dyn FnMut() -> io::Result<()>>>,
}

/// A program that was started. It is neither killed nor reaped when this is dropped.
pub struct Child {
    pid: c_int,
    status: Option<ExitStatus>,
    pub stdin: Option<PipeWriter>,
    pub stdout: Option<PipeReader>,
    pub stderr: Option<PipeReader>,
}

impl Command {
    /// The program is looked up on PATH, unless it has a slash. `arguments` begins with the name of the program. Fails if one
    /// of them contains a NUL.
    pub fn new(program: &OsStr, arguments: &[&OsStr]) -> io::Result<Self> {
        let text = |text: &&OsStr| CString::new(text.as_bytes());
        Ok(Self {
            program: text(&program)?,
            arguments: arguments.iter().map(text).collect::<Result<_, _>>()?,
            environment: None,
            standard: [Standard::Own; 3],
            leads_group: false,
            hooks: Vec::new(),
        })
    }

    /// The program gets an empty environment.
    pub fn clear_environment(&mut self) {
        self.environment = Some(Vec::new());
    }

    /// The program gets the environment of this process with these variables. A variable without a value is removed. Fails
    /// if a value contains a NUL.
    pub fn change_environment(&mut self, changes: &[(&str, Option<OsString>)]) -> io::Result<()> {
        let is_changed = |variable: &CStr| {
            let name = variable.to_bytes().split(|byte| *byte == b'=').next();
            changes.iter().any(|(changed, _)| name == Some(changed.as_bytes()))
        };
        // SAFETY: the variables are strings, and live as long as the process.
        let own = own_environment().map(|variable| unsafe { CStr::from_ptr(variable) });
        let mut environment: Vec<CString> =
            own.filter(|variable| !is_changed(variable)).map(CStr::to_owned).collect();
        for (name, value) in changes {
            if let Some(value) = value {
                let variable = [name.as_bytes(), b"=", value.as_bytes()].concat();
                environment.push(CString::new(variable)?);
            }
        }
        self.environment = Some(environment);
        Ok(())
    }

    /// Adds what is to be done between fork and exec.
    ///
    /// # Safety
    ///
    /// Another thread can hold any lock at the time of the fork, so `hook` may make system calls only.
    pub unsafe fn pre_exec(&mut self, hook: impl FnMut() -> io::Result<()> + 'static) {
        self.hooks.push(Box::new(hook));
    }

    /// Starts the program as a child. Fails if it cannot be executed.
    pub fn spawn(&mut self) -> io::Result<Child> {
        let mut child = Child { pid: 0, status: None, stdin: None, stdout: None, stderr: None };
        let mut theirs = [const { None }; 3];
        for (at, standard) in self.standard.into_iter().enumerate() {
            theirs[at] = match standard {
                Standard::Own => None,
                Standard::Null => {
                    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
                    Some(OwnedFd::from(null))
                }
                Standard::Pipe => Some(child.pipe(at)?),
            };
        }
        // The program closes it when it begins. An error before that goes through it.
        let (mut report, mut reporter) = io::pipe()?;
        let texts = self.texts();
        // SAFETY: the child makes system calls only, until it executes the program or ends.
        child.pid = Errno::result(unsafe { libc::fork() })?;
        if child.pid == 0 {
            let error = self.execute(&theirs, &texts).raw_os_error().unwrap_or(libc::EINVAL);
            let _ = reporter.write_all(&error.to_ne_bytes()); // else the child only ends
            // SAFETY: it does not return.
            unsafe { libc::_exit(1) };
        }
        drop(reporter);
        let mut error = [0; size_of::<c_int>()];
        match report.read_exact(&mut error) {
            Err(_) => Ok(child),
            Ok(()) => {
                child.wait()?;
                Err(io::Error::from_raw_os_error(c_int::from_ne_bytes(error)))
            }
        }
    }

    /// Replaces this process by the program. Returns only if that fails.
    pub fn exec(&mut self) -> io::Error {
        let texts = self.texts();
        self.execute(&[const { None }; 3], &texts)
    }

    /// The arguments and the environment as execve(2) takes them. Made before the fork, because it allocates.
    fn texts(&self) -> [Option<Vec<*const c_char>>; 2] {
        [Some(&self.arguments), self.environment.as_ref()].map(|texts| {
            let texts = texts?.iter().map(|text| text.as_ptr());
            Some(texts.chain([ptr::null()]).collect())
        })
    }

    fn execute(
        &mut self,
        standard: &[Option<OwnedFd>; 3],
        texts: &[Option<Vec<*const c_char>>; 2],
    ) -> io::Error {
        if let Err(error) = self.prepare(standard) {
            return error;
        }
        // SAFETY: both arrays end with NULL. They and their strings live until the call fails.
        unsafe {
            let [arguments, environment] =
                texts.each_ref().map(|list| list.as_ref().map_or(environ, |list| list.as_ptr()));
            libc::execvpe(self.program.as_ptr(), arguments, environment);
        }
        io::Error::last_os_error()
    }

    /// Makes the surroundings of the program.
    fn prepare(&mut self, standard: &[Option<OwnedFd>; 3]) -> io::Result<()> {
        for (number, file) in (0..).zip(standard) {
            if let Some(file) = file {
                // SAFETY: the call takes numbers only. `number` is one of the standard files, which no value owns.
                Errno::result(unsafe { libc::dup2(file.as_raw_fd(), number) })?;
            }
        }
        if self.leads_group {
            // SAFETY: the call takes numbers only.
            Errno::result(unsafe { libc::setpgid(0, 0) })?;
        }
        // SAFETY: no handler is set.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
        self.hooks.iter_mut().try_for_each(|hook| hook())
    }
}

impl Child {
    /// Makes the pipe of a standard file. Returns the end of the program.
    fn pipe(&mut self, number: usize) -> io::Result<OwnedFd> {
        let (reader, writer) = io::pipe()?;
        Ok(match number {
            0 => {
                self.stdin = Some(writer);
                reader.into()
            }
            1 => {
                self.stdout = Some(reader);
                writer.into()
            }
            _ => {
                self.stderr = Some(reader);
                writer.into()
            }
        })
    }

    pub fn id(&self) -> i32 {
        self.pid
    }

    /// A file that can be read when it has ended. `None` if the kernel (before 5.3) or a filter of system calls has no
    /// pidfd_open(2). It must not have been reaped.
    pub fn pidfd(&self) -> Option<OwnedFd> {
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the descriptor is new, so no other value owns it.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Waits for its end, and reaps it.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.reap(0)? {
                return Ok(status);
            }
        }
    }

    /// Reaps it if it has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.reap(libc::WNOHANG)
    }

    pub fn is_reaped(&self) -> bool {
        self.status.is_some()
    }

    fn reap(&mut self, flags: c_int) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            let mut status = 0;
            // SAFETY: `status` is valid for the time of the call.
            match Errno::result(unsafe { libc::waitpid(self.pid, &raw mut status, flags) }) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => self.status = Some(ExitStatus::from_raw(status)),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(self.status)
    }

    /// Sends SIGKILL, unless it was reaped.
    pub fn kill(&self) {
        if self.status.is_none() {
            // SAFETY: the call takes numbers only. A child that was not reaped keeps its number.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }
}
