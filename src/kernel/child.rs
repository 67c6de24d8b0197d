//! Talks to a child process within a time limit. It does not interpret the data.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::kernel::sys;

/// The longest output. A child that writes more to stdout is killed; what it writes to stderr after that is dropped.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// The number of bytes that a writable pipe takes without blocking. Source: pipe(7).
const PIPE_BUF: usize = 4096;
/// An interrupt that comes right before a wait is seen after it; so is the end of a child without a pidfd.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// A child without a pidfd that has closed its pipes is about to exit.
const EXIT_PAUSE: Duration = Duration::from_millis(1);

/// The output of a child.
#[derive(Debug)]
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub end: End,
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Exited(ExitStatus),
    /// It was killed because it wrote more than `OUTPUT_BYTES_MAX` to stdout.
    TooLong,
    /// It was killed at the time limit.
    TimedOut,
    /// It was killed since this process was interrupted: see `sys::catch_interrupts`.
    Interrupted,
}

/// Writes the input, and reads until the child has exited. Other processes may still have its pipes: a child can start a
/// daemon. With a limit, the child must lead a process group of its own, which is killed at the limit, and when this process
/// is interrupted.
pub fn communicate(mut child: Child, input: &[u8], limit: Option<Duration>) -> io::Result<Output> {
    let mut output = Output { stdout: Vec::new(), stderr: Vec::new(), end: End::TimedOut };
    let deadline = limit.map(|limit| Instant::now() + limit);
    output.end = match exchange(&mut child, input, &mut output, deadline) {
        Ok(end) => end,
        Err(error) => {
            end(&mut child, deadline.is_some());
            return Err(error);
        }
    };
    if !matches!(output.end, End::Exited(_)) {
        end(&mut child, deadline.is_some());
    }
    Ok(output)
}

/// The output of a child that runs on, until it closes its stderr. Fails at the deadline, and after an interrupt. What is longer
/// than `OUTPUT_BYTES_MAX` is dropped.
pub fn read_stderr(mut child: Child, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stderr = child.stderr.take();
    let mut output = Vec::new();
    while stderr.is_some() {
        let Some(wait) = time_to_wait(Some(deadline)) else {
            return Err(ErrorKind::TimedOut.into());
        };
        sys::fail_if_interrupted()?;
        let file = stderr.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
        let [is_ready] = ready([file], wait)?;
        if is_ready && !read(&mut stderr, &mut output)? {
            stderr = None;
        }
        output.truncate(OUTPUT_BYTES_MAX);
    }
    Ok(output)
}

/// Kills the child and what it has started, and reaps it.
fn end(child: &mut Child, has_group: bool) {
    let group = Pid::from_raw(child.id().cast_signed());
    // The number of a child that was reaped can be another process's.
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    if has_group && waitid(Id::Pid(group), flags).is_ok() {
        let _ = killpg(group, Signal::SIGKILL); // it fails only for a child that has ended
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn exchange(
    child: &mut Child,
    mut input: &[u8],
    output: &mut Output,
    deadline: Option<Instant>,
) -> io::Result<End> {
    // A child can end before it has read its input.
    sys::survive_failed_writes();
    let (mut stdin, mut stdout) = (child.stdin.take(), child.stdout.take());
    let mut stderr = child.stderr.take();
    let pidfd = sys::pidfd(child);
    loop {
        if input.is_empty() {
            stdin = None;
        }
        let Some(wait) = time_to_wait(deadline) else { return Ok(End::TimedOut) };
        if deadline.is_some() && sys::is_interrupted() {
            return Ok(End::Interrupted);
        }
        let is_silent = stdin.is_none() && stdout.is_none() && stderr.is_none() && pidfd.is_none();
        let files = [
            stdin.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)),
            stdout.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)),
            stderr.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)),
            pidfd.as_ref().map(|pidfd| PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)),
        ];
        let [can_write, can_read, can_read_errors, _] =
            ready(files, if is_silent { EXIT_PAUSE } else { wait })?;
        if can_write && !write(&mut stdin, &mut input)? {
            stdin = None;
        }
        if can_read && !read(&mut stdout, &mut output.stdout)? {
            stdout = None;
        }
        if can_read_errors && !read(&mut stderr, &mut output.stderr)? {
            stderr = None;
        }
        let exited = child.try_wait()?;
        if exited.is_some() {
            read_rest(stdout.take(), &mut output.stdout)?;
            read_rest(stderr.take(), &mut output.stderr)?;
        }
        if output.stdout.len() > OUTPUT_BYTES_MAX {
            return Ok(End::TooLong);
        }
        output.stderr.truncate(OUTPUT_BYTES_MAX);
        if let Some(status) = exited {
            return Ok(End::Exited(status));
        }
    }
}

/// Returns `None` at the deadline.
fn time_to_wait(deadline: Option<Instant>) -> Option<Duration> {
    let Some(deadline) = deadline else { return Some(WAIT_MAX) };
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then(|| left.clamp(EXIT_PAUSE, WAIT_MAX))
}

/// Which of the files can be used without waiting, or are closed at the other end.
fn ready<const N: usize>(files: [Option<PollFd<'_>>; N], wait: Duration) -> io::Result<[bool; N]> {
    let mut open: Vec<PollFd<'_>> = files.iter().flatten().cloned().collect();
    match poll(&mut open, PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok([false; N]),
        Err(errno) => return Err(errno.into()),
    }
    let mut answers = open.iter().map(|file| file.any().unwrap_or(true));
    Ok(files.map(|file| file.is_some() && answers.next().unwrap_or_default()))
}

/// False when the child reads no more: it need not read all.
fn write(stdin: &mut Option<ChildStdin>, input: &mut &[u8]) -> io::Result<bool> {
    let Some(file) = stdin else { return Ok(false) };
    match file.write(&input[..input.len().min(PIPE_BUF)]) {
        Ok(count) => {
            *input = &input[count..];
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}

/// False at the end.
fn read(file: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<bool> {
    let Some(file) = file else { return Ok(false) };
    let mut bytes = [0; PIPE_BUF];
    match file.read(&mut bytes) {
        Ok(count) => {
            into.extend(&bytes[..count]);
            Ok(count > 0)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads what a child that has exited left in a pipe. It does not wait for the end of the file, which comes when no other
/// process has the pipe.
fn read_rest(mut file: Option<impl Read + AsFd>, into: &mut Vec<u8>) -> io::Result<()> {
    let Some(pipe) = &file else { return Ok(()) };
    let capacity = fcntl(pipe, FcntlArg::F_GETPIPE_SZ)?;
    // Another writer may be faster than this reader.
    let end = into.len() + usize::try_from(capacity).unwrap_or_default();
    while into.len() < end {
        let files = file.as_ref().map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN));
        if ready([files], Duration::ZERO)? == [false] || !read(&mut file, into)? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use nix::sys::signal::kill;

    use super::*;

    fn shell(script: &str, input: &[u8], limit: Option<Duration>) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        communicate(command.spawn().unwrap(), input, limit).unwrap()
    }

    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn more_than_a_pipe_holds_goes_there_and_back() {
        let input: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        for limit in [None, LONG] {
            let output = shell("tee /dev/stderr", &input, limit);
            assert!(matches!(output.end, End::Exited(status) if status.success()));
            assert!(output.stdout == input && output.stderr == input);
        }
    }

    #[test]
    fn a_child_need_not_read_and_its_status_is_returned() {
        for limit in [None, LONG] {
            let output = shell("echo no >&2; exit 3", &[b'x'; 100_000], limit);
            assert!(matches!(output.end, End::Exited(status) if status.code() == Some(3)));
            assert_eq!(output.stderr, b"no\n");
        }
    }

    /// The script leaves a process that holds its stdout and stderr. The first line has its process number.
    fn leaving(left: &str, script: &str, limit: Option<Duration>) -> Output {
        let output = shell(&format!("{left} & echo $!; {script}"), b"", limit);
        let mut lines = output.stdout.split(|byte| *byte == b'\n');
        let pid = lines.find_map(|line| str::from_utf8(line).ok()?.parse().ok());
        let _ = kill(Pid::from_raw(pid.unwrap()), Signal::SIGKILL); // a writer dies with the pipe
        output
    }

    #[test]
    fn a_child_that_ends_counts_as_ended_whatever_it_leaves_behind() {
        for limit in [LONG, None] {
            for left in ["sleep 1000", "yes"] {
                let output = leaving(left, "exit 3", limit);
                assert!(matches!(output.end, End::Exited(status) if status.code() == Some(3)));
            }
        }
    }

    #[test]
    fn all_that_a_child_has_printed_until_its_end_is_read() {
        // Each fills a pipe with one write, so the child can end before the first byte is read.
        let fill = "dd if=/dev/zero bs=65536 count=1 status=none";
        let output = leaving("sleep 1000", &format!("{fill} >&2; exec {fill}"), LONG);
        assert!(matches!(output.end, End::Exited(_)));
        let zeros = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == 0).count();
        assert_eq!((zeros(&output.stdout), output.stderr.len()), (65536, 65536));
    }

    #[test]
    fn the_stderr_of_a_child_that_runs_on_is_read_up_to_its_limit() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 9000000 /dev/zero >&2"]).stderr(Stdio::piped());
        let deadline = Instant::now() + Duration::from_secs(60);
        let output = read_stderr(command.spawn().unwrap(), deadline).unwrap();
        assert_eq!(output.len(), OUTPUT_BYTES_MAX);
    }

    #[test]
    fn a_child_is_killed_at_the_limit_with_what_it_started() {
        let limit = Some(Duration::from_secs(5));
        for script in ["echo so far; sleep 100; true", "echo so far; exec >&- 2>&-; sleep 100"] {
            let output = shell(script, b"", limit);
            assert!(matches!(output.end, End::TimedOut), "{output:?}");
            assert_eq!(output.stdout, b"so far\n");
        }
    }
}
